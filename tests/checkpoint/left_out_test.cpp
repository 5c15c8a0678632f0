// Checkpoints and model files without frozen tensors: what is trained goes on, and the trainer
// brings the rest.
#include "checkpoint/proof.hpp"
#include "support/kinds_model.hpp"
#include "support/refusal.hpp"
#include "zero/checkpoint/offline.hpp"

namespace left_out_test {
namespace {

using namespace checkpoint_tests;
using namespace kinds_model;
using namespace zero::stage;
using zero::Checkpoints;
using zero::InProcess;
using Names = std::vector<std::string>;
using Tensors = std::vector<Tensor>;

/// Frozen tensors that have memory of their own.
Names const base{"codes", "scales", "old", "base"};

Tensors those(bool frozen) {
  Tensors all = model();
  std::erase_if(all, [&](Tensor const& tensor) { return tensor.frozen != frozen; });
  return all;
}
/// Calls `body(optimizer)`, or `body(optimizer, rank)`, on so many ranks.
template <class Stage, class Body>
void run(int ranks, Tensors const& tensors, Body const& body) {
  zero::run_ranks(ranks, [&](InProcess& comm) {
    zero::ShardedOptimizer<InProcess, Stage, Both> optimizer{comm, tensors, zero::Bucket{1}};
    if constexpr (std::invocable<Body const&, decltype(optimizer)&, int>) {
      body(optimizer, comm.rank());
    } else {
      body(optimizer);
    }
  });
}
template <class O>
void load(O& optimizer) {
  optimizer.load_parameters(fill);
  optimizer.load_bytes(fill_bytes);
}
template <class O>
void train(O& optimizer, long step) {
  pass(optimizer, step, 0, type_of, [](bool holds, std::string const& what) {
    CHECK_MESSAGE(holds, what);
  });
  optimizer.step();
}
/// What keeps a step from being taken.
template <class O>
std::string refused_step(O& optimizer) {
  for (int const unit : optimizer.units_backward()) optimizer.reduce(optimizer.gradients(unit));
  std::string said = refusal([&] { optimizer.step(); });
  optimizer.discard_gradients();
  return said;
}
/// An element of a tensor of floats. Collective.
template <class O>
float value(O& optimizer, char const* tensor, std::size_t element) {
  auto const all = optimizer.full_parameters();
  return all.template as<float>(tensor)[element];
}
template <class O>
zero::LoadReport resume(O& optimizer, std::string const& path, zero::LoadOptions options = {}) {
  Checkpoints run{path};
  return run.load(optimizer, run.latest(optimizer).value(), options);
}

/// A run whose checkpoint has no frozen tensor, and what its model is one step later.
struct Run {
  TemporaryDirectory directory{};
  std::string adapters = directory.path() + "/adapters.safetensors";
  std::string base = directory.path() + "/base.safetensors";
  std::string path = directory.path() + "/run";
  std::vector<std::byte> saved{};
  std::vector<std::byte> next{};

  Run() {
    run<PosGP>(3, those(true), [&](auto& optimizer) {
      load(optimizer);
      zero::export_model(optimizer, base);
    });
    run<PosGP>(3, model(), [&](auto& optimizer, int rank) {
      load(optimizer);
      train(optimizer, 0);
      Checkpoints{path}.save(optimizer, {.frozen = false});
      zero::export_model(optimizer, adapters, {.frozen = false});
      auto const now = bits(optimizer);
      train(optimizer, 1);
      auto const later = bits(optimizer);
      if (rank == 0) saved = now, next = later;
    });
  }
};

}  // namespace

TEST_CASE("frozen tensors that a checkpoint leaves out come from elsewhere, before or after") {
  Run const run_of;
  zero::DiskFiles files;
  auto const found = Checkpoints{run_of.path}.latest().value();
  CHECK(zero::verify_checkpoint(found.path).empty());
  std::uint64_t data = 0;
  for (auto const& file : zero::read_catalog(files, found.path).manifest.files) {
    data += file.bytes - file.header_bytes;
  }
  std::uint64_t trained = 0;
  for (Tensor const& tensor : those(false)) {
    if (tensor.tied_to.empty()) trained += zero::element_count(tensor);
  }
  CHECK(data == trained * 3 * sizeof(float));

  auto const goes_on = [&]<class Stage>(Stage, int ranks) {
    CAPTURE(Stage::name);
    CAPTURE(ranks);
    for (bool const first : {false, true}) {
      CAPTURE(first);
      run<Stage>(ranks, model(), [&](auto& optimizer) {
        auto const bring = [&] { load_parameters_from(optimizer, run_of.base, {.strict = false}); };
        if (first) {
          bring();
          check_says(refused_step(optimizer), "some tensors have no values yet: the values of ");
          check_says(refused_step(optimizer), " tensor 'wte' and of 6 more are missing");
        }
        auto const report = resume(optimizer, run_of.path);
        CHECK(report.left_out == base);
        CHECK(report.missing == Names{});
        CHECK(report.unexpected == Names{});
        CHECK(report.unfit == Names{});
        if (!first) {
          check_says(refused_step(optimizer), "tensor 'scales' and of 1 more are missing");
          check_says(refusal([&] { Checkpoints{run_of.path + "2"}.save(optimizer); }), "'scales'");
          bring();
        }
        CHECK(bits(optimizer) == run_of.saved);
        train(optimizer, 1);
        // Sums over other numbers of ranks are rounded otherwise.
        if (ranks == 3) CHECK(bits(optimizer) == run_of.next);
        optimizer.check_parameters();
      });
    }
  };
  goes_on(Replicated{}, 3);
  goes_on(Pos{}, 3);
  goes_on(PosG{}, 1);
  goes_on(PosGP{}, 2);
  goes_on(PosGP{}, 5);
}

TEST_CASE("values that were given by parts are adopted, or asked for by name") {
  Run const run_of;
  run<PosG>(2, model(), [&](auto& optimizer) {
    resume(optimizer, run_of.path);
    optimizer.load_bytes(fill_bytes);
    check_says(refused_step(optimizer), "tensor 'scales' and of 1 more are missing");
    optimizer.adopt_parameters();
    CHECK(refused_step(optimizer) == "");
  });
  // Bytes are missed after numbers are there.
  run<PosG>(2, model(), [&](auto& optimizer) {
    optimizer.load_parameters(fill);
    resume(optimizer, run_of.path);
    check_says(refused_step(optimizer), "tensor 'codes' has no values");
    optimizer.load_bytes(fill_bytes);
    CHECK(bits(optimizer) == run_of.saved);
    CHECK(refused_step(optimizer) == "");
  });
}

TEST_CASE("a load leaves frozen tensors out although they were saved") {
  TemporaryDirectory const directory;
  run<Pos>(2, model(), [&](auto& optimizer) {
    load(optimizer);
    train(optimizer, 0);
    Checkpoints{directory.path()}.save(optimizer);
  });
  run<PosGP>(3, model(), [&](auto& optimizer) {
    optimizer.load_parameters(
        [](Tensor const&, std::size_t, std::span<float> out) { std::ranges::fill(out, 7.f); });
    optimizer.load_bytes(fill_bytes);
    auto const report = resume(optimizer, directory.path(), {.frozen = false});
    CHECK(report.left_out == base);
    CHECK(value(optimizer, "scales", 39) == 7.f);
    CHECK(value(optimizer, "ln0", 3) != 7.f);
    for (auto const& each : report.taken) {
      bool const frozen = std::ranges::count(base, each.tensor) + (each.tensor == "more") != 0;
      CHECK(each.values != frozen);
    }
    CHECK(resume(optimizer, directory.path()).left_out == Names{});
    CHECK(value(optimizer, "scales", 39) != 7.f);
  });
  // Adapters alone have no place for a base, and need none.
  run<PosG>(2, those(false), [&](auto& optimizer) {
    check_says(refusal([&] { resume(optimizer, directory.path()); }, zero::ErrorKind::data),
               "not in the optimizer: 'base', 'codes', 'more', 'old', 'scales'");
    CHECK(resume(optimizer, directory.path(), {.frozen = false}).left_out == Names{});
  });
}

TEST_CASE("what is trained here, and was left out as frozen, is an error by name") {
  Run const run_of;
  Tensors tensors = model();
  tensors[6].frozen = false;
  run<PosG>(1, tensors, [&](auto& optimizer) {
    check_says(refusal([&] { resume(optimizer, run_of.path); }, zero::ErrorKind::data),
               "different: 'old' is trained here, and left out in the checkpoint");
  });
  tensors = model();
  tensors[5].shape = {41};
  run<PosG>(1, tensors, [&](auto& optimizer) {
    check_says(refusal([&] { resume(optimizer, run_of.path); }, zero::ErrorKind::data),
               "'scales' has shape [41] here and [40] in the checkpoint");
  });
  // Adapters without their base.
  run<PosGP>(2, those(false), [&](auto& optimizer) {
    CHECK(resume(optimizer, run_of.path).left_out == Names{});
  });
}

TEST_CASE("layers of a frozen stack that are not here need not be") {
  Tensors const stack{{.name = "w", .shape = {5}}, {.name = "s", .shape = {3, 4}, .frozen = true}};
  Tensors const layer{stack[0], {.name = "s[1]", .shape = {4}, .frozen = true}};
  for (bool const saved : {false, true}) {
    TemporaryDirectory const directory;
    run<PosG>(1, stack, [&](auto& optimizer) {
      optimizer.adopt_parameters();
      Checkpoints{directory.path()}.save(optimizer, {.frozen = saved});
    });
    run<PosG>(1, layer, [&](auto& optimizer) {
      auto const report = resume(optimizer, directory.path(), {.frozen = !saved});
      CHECK(report.unexpected == Names{});
      CHECK(report.left_out == Names{"s[1]"});
    });
  }
}

TEST_CASE("lent frozen tensors are compared although a file has given all others") {
  TemporaryDirectory const directory;
  std::string const file = directory.path() + "/model.safetensors";
  Tensors const tensors{{.name = "w", .shape = {5}}, {.name = "f", .shape = {3}, .frozen = true}};
  run<PosG>(1, {tensors[0]}, [&](auto& optimizer) {
    optimizer.adopt_parameters();
    zero::export_model(optimizer, file);
  });
  zero::run_ranks(2, [&](InProcess& comm) {
    zero::ShardedOptimizer<InProcess, PosG, zero::Mixed<bf16>, zero::Borrowed<>> optimizer{comm,
                                                                                           tensors};
    std::vector<bf16> w(5);
    std::vector<bf16> f(3, bf16(static_cast<float>(comm.rank())));
    std::vector<bf16> slope(5);
    optimizer.bind_parameters(std::vector<std::span<bf16>>{w, f});
    optimizer.bind_gradients(std::vector<std::span<bf16>>{slope, {}});
    load_parameters_from(optimizer, file, {.strict = false});
    auto const step = [&] {
      optimizer.reduce_all();
      optimizer.step();
    };
    check_says(refusal(step, zero::ErrorKind::communication),
               "start from different values of tensor 'f'");
  });
}

TEST_CASE("ranks that disagree about frozen tensors save nothing") {
  TemporaryDirectory const directory;
  run<PosG>(2, model(), [&](auto& optimizer, int rank) {
    load(optimizer);
    bool const frozen = rank == 0;
    std::string const said =
        refusal([&] { Checkpoints{directory.path()}.save(optimizer, {.frozen = frozen}); });
    check_says(said, "SaveOptions::frozen");
    CHECK((said.find("keep = 0, without frozen tensors") == said.npos) == frozen);
  });
  CHECK(!Checkpoints{directory.path()}.latest());
}

TEST_CASE("several optimizers are saved without frozen tensors in the background") {
  TemporaryDirectory const directory;
  run<PosGP>(2, model(), [&](auto& optimizer) {
    load(optimizer);
    std::vector<zero::NamedOptimizer> const named{{"a", &optimizer}};
    // Memory is counted in pieces: with this much of its own, a rank needs one more for the base.
    std::vector<std::byte> blob;
    while (Checkpoints::plan(named, blob.size(), false) == Checkpoints::plan(named, blob.size())) {
      REQUIRE(blob.size() < std::size_t{1} << 18);
      blob.resize(blob.size() + 512);
    }
    std::uint64_t const bytes = Checkpoints::plan(named, blob.size(), false);
    Checkpoints run{directory.path(), {.snapshot_bytes = bytes}};
    run.save_async(named, {.rank_blob = blob, .frozen = false});
    optimizer.load_parameters(
        [](Tensor const&, std::size_t, std::span<float> out) { std::ranges::fill(out, 7.f); });
    run.finish();
    auto const report = run.resume(named);
    REQUIRE(report.has_value());
    CHECK(report->left_out == Names{"a/codes", "a/scales", "a/old", "a/base"});
    CHECK(value(optimizer, "scales", 39) == 7.f);
    CHECK(value(optimizer, "ln0", 3) == toy::initial_value(1, 3));
  });
}

TEST_CASE("adapters alone are a model file, the same under every stage, and are read as such") {
  Run const run_of;
  std::string const bytes = slurp(run_of.adapters);
  zero::DiskFiles files;
  std::map<std::string, std::string> types;
  auto const stored = zero::detail::open_model(files, run_of.adapters);
  for (auto const& tensor : stored.tensors) types[tensor.entry.name] = tensor.entry.dtype;
  CHECK(types == std::map<std::string, std::string>{{"wte", "BF16"},
                                                    {"ln0", "F32"},
                                                    {"qkv", "BF16"},
                                                    {"ln1", "F32"},
                                                    {"none", "F32"},
                                                    {"c", "BF16"},
                                                    {"w", "BF16"},
                                                    {"router", "F32"}});
  CHECK(stored.metadata.count("more") == 0);
  CHECK(stored.metadata.at("head") == "wte");
  auto const same = [&]<class Stage>(Stage, int ranks) {
    CAPTURE(Stage::name);
    CAPTURE(ranks);
    run<Stage>(ranks, model(), [&](auto& optimizer) {
      load(optimizer);
      resume(optimizer, run_of.path);
      std::string const again = run_of.path + Stage::name.data() + ".safetensors";
      zero::export_model(optimizer, again, {.frozen = false});
      CHECK(slurp(again) == bytes);
    });
  };
  same(Replicated{}, 3);
  same(Pos{}, 2);
  same(PosG{}, 5);
  same(PosGP{}, 1);
  run<PosG>(2, those(false), [&](auto& optimizer) {
    CHECK(load_parameters_from(optimizer, run_of.adapters).text() == "");
    CHECK(refused_step(optimizer) == "");
  });
  // From the checkpoint, without an optimizer.
  std::string const found = Checkpoints{run_of.path}.latest().value().path;
  std::string const offline = run_of.path + "offline.safetensors";
  zero::export_checkpoint(found, offline, {.frozen = false});
  CHECK(slurp(offline) == bytes);
  check_says(refusal([&] { zero::export_checkpoint(found, offline); }, zero::ErrorKind::data),
             "does not have the values of 'codes', which is frozen and was left out");
}

TEST_CASE("each rank reads its share of a frozen base, and that of the next rank, and no more") {
  /// Counts what one rank reads.
  struct Counting : zero::DiskFiles {
    std::uint64_t bytes = 0;
    zero::FileAnswer read(zero::FileAnswer file,
                          void* to,
                          std::size_t count,
                          std::uint64_t offset) override {
      bytes += count;
      return DiskFiles::read(file, to, count, offset);
    }
  };
  constexpr std::size_t all = 1'000'003;
  Tensors const tensors{{.name = "w", .shape = {5}},
                        {.name = "base", .shape = {all}, .dtype = DType::u8, .frozen = true}};
  TemporaryDirectory const directory;
  std::string const file = directory.path() + "/base.safetensors";
  auto const byte = [](std::size_t i) { return static_cast<std::byte>(i * 7 + i / 256); };
  run<PosG>(1, tensors, [&](auto& optimizer) {
    optimizer.adopt_parameters();
    optimizer.load_bytes([&](Tensor const&, std::size_t first, std::span<std::byte> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = byte(first + i);
    });
    zero::export_model(optimizer, file);
  });
  std::uint64_t const header = std::filesystem::file_size(file) - all - 5 * 2;
  auto const reads = [&]<class Stage>(Stage, int ranks) {
    std::vector<std::uint64_t> bytes(static_cast<std::size_t>(ranks));
    zero::run_ranks(ranks, [&](InProcess& comm) {
      zero::ShardedOptimizer<InProcess, Stage, Both> optimizer{comm, tensors};
      Counting counting;
      load_parameters_from(optimizer, file, {}, counting);
      bytes[static_cast<std::size_t>(comm.rank())] = counting.bytes;
      auto const held = optimizer.full_parameters();
      auto const values = held.template as<std::uint8_t>("base");
      bool same = values.size() == all;
      for (std::size_t i = 0; same && i < all; ++i) same = std::byte{values[i]} == byte(i);
      CHECK(same);
    });
    return bytes;
  };
  // Beside the header, and the few numbers of "w".
  for (int const ranks : {4, 7}) {
    std::uint64_t const share = all / static_cast<std::size_t>(ranks);
    for (std::uint64_t const each : reads(PosGP{}, ranks)) {
      CHECK(each < 2 * header + 2 * share + 10'000);
      CHECK(each + 10'000 > 2 * share);
    }
  }
  for (std::uint64_t const each : reads(PosG{}, 4)) CHECK(each >= all);
}

}  // namespace left_out_test
