// Tensors of several types in checkpoints and model files: each in its own, bytes as they are, and
// back under any stage on any number of ranks.
#include "checkpoint/proof.hpp"
#include "support/kinds_model.hpp"
#include "support/refusal.hpp"
#include "zero/checkpoint/offline.hpp"

namespace kinds_checkpoint_test {
namespace {

using namespace checkpoint_tests;
using namespace kinds_model;
using namespace zero::stage;
using zero::Checkpoints;
using zero::InProcess;
template <class Stage>
using Optimizer = zero::ShardedOptimizer<InProcess, Stage, Both>;

/// Calls `body(optimizer)` on so many ranks.
template <class Stage, class Body>
void run(int ranks, Body const& body, std::vector<Tensor> const& tensors = model()) {
  zero::run_ranks(ranks, [&](InProcess& comm) {
    Optimizer<Stage> optimizer{comm, tensors, zero::Bucket{1}};
    body(optimizer, comm.rank());
  });
}
template <class O>
void train(O& optimizer, int rank, long step) {
  pass(optimizer, step, rank, type_of, [](bool holds, std::string const& what) {
    CHECK_MESSAGE(holds, what);
  });
  optimizer.step();
}

}  // namespace

TEST_CASE("tensors of several types are saved as they are, and go on anywhere") {
  TemporaryDirectory const directory;
  std::string const file = directory.path() + "/model.safetensors";
  std::string const masters = directory.path() + "/masters.safetensors";
  std::string checkpoint;
  std::vector<std::byte> saved;
  run<PosGP>(3, [&](auto& optimizer, int rank) {
    optimizer.load_parameters(fill);
    optimizer.load_bytes(fill_bytes);
    train(optimizer, rank, 0);
    auto const report = Checkpoints{directory.path()}.save(optimizer);
    if (rank == 0) checkpoint = report.path;
    zero::export_model(optimizer, file);
    zero::export_model(optimizer, masters, {.dtype = zero::ExportDType::master});
    auto const own = bits(optimizer);
    if (rank == 0) saved = own;
  });
  zero::DiskFiles files;
  auto const types_of = [&](std::string const& path) {
    std::map<std::string, std::string> types;
    for (auto const& tensor : zero::detail::open_model(files, path).tensors) {
      types[tensor.entry.name] = tensor.entry.dtype;
    }
    return types;
  };
  auto types = types_of(file);
  CHECK(types["wte"] == "BF16");
  CHECK(types["ln0"] == "F32");
  CHECK(types["codes"] == "U8");
  CHECK(types["scales"] == "F32");
  CHECK(types["old"] == "BF16");
  types = types_of(masters);
  for (char const* const name : {"wte", "ln0", "scales", "old"}) CHECK(types[name] == "F32");
  CHECK(types["codes"] == "U8");
  // Without an optimizer the same comes of the checkpoint.
  std::string const other = directory.path() + "/other.safetensors";
  zero::export_checkpoint(checkpoint, other);
  CHECK(slurp(other) == slurp(file));
  zero::export_checkpoint(checkpoint, other, {.dtype = zero::ExportDType::master});
  CHECK(slurp(other) == slurp(masters));
  auto const back = [&]<class Stage>(Stage, int ranks) {
    CAPTURE(ranks);
    run<Stage>(ranks, [&](auto& optimizer, int) {
      Checkpoints run{directory.path()};
      auto const found = run.latest(optimizer);
      REQUIRE(found.has_value());
      run.load(optimizer, *found);
      CHECK(bits(optimizer) == saved);
      optimizer.check_parameters();
    });
    run<Stage>(ranks, [&](auto& optimizer, int) {
      load_parameters_from(optimizer, file);
      CHECK(bits(optimizer) == saved);
      optimizer.check_parameters();
    });
  };
  back(Replicated{}, 2);
  back(Pos{}, 3);
  back(PosG{}, 1);
  back(PosGP{}, 2);
  back(PosGP{}, 5);
}

TEST_CASE("a tensor that names the type it has anyway is saved as one that names none") {
  auto const saved = [](std::optional<DType> type) {
    TemporaryDirectory const directory;
    std::vector<Tensor> const tensors{{.name = "w", .shape = {5}, .dtype = type},
                                      {.name = "n", .shape = {5}, .dtype = DType::f32}};
    run<PosG>(
        2,
        [&](auto& optimizer, int) {
          optimizer.adopt_parameters();
          Checkpoints{directory.path()}.save(optimizer);
        },
        tensors);
    std::map<std::string, std::string> files;
    for (auto const& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
      if (!entry.is_regular_file()) continue;
      std::string const name = std::filesystem::relative(entry.path(), directory.path()).string();
      files[name] = slurp(entry.path().string());
    }
    return files;
  };
  auto const files = saved(std::nullopt);
  CHECK(files.size() > 2);
  CHECK(saved(DType::bf16) == files);
}

TEST_CASE("bytes are loaded as bytes of the same type, or not at all") {
  TemporaryDirectory const directory;
  std::string const file = directory.path() + "/model.safetensors";
  std::vector<Tensor> tensors{{.name = "w", .shape = {5}},
                              {.name = "base", .shape = {5}, .dtype = DType::u8, .frozen = true}};
  run<PosG>(
      1,
      [&](auto& optimizer, int) {
        optimizer.adopt_parameters();
        Checkpoints{directory.path()}.save(optimizer);
        zero::export_model(optimizer, file);
      },
      tensors);
  auto const refused = [&](DType type, auto const& load, bool thawed = false) {
    std::string said;
    tensors[1].dtype = type;
    tensors[1].frozen = !thawed;
    run<PosG>(
        1,
        [&](auto& optimizer, int) {
          said = refusal([&] { load(optimizer); }, zero::ErrorKind::data);
        },
        tensors);
    return said;
  };
  auto const checkpoint = [&](auto& optimizer) {
    Checkpoints run{directory.path()};
    run.load(optimizer, *run.latest(optimizer));
  };
  auto const model_file = [&](auto& optimizer) { load_parameters_from(optimizer, file); };
  CHECK(refused(DType::f32, checkpoint).find("'base' has numbers here and uint8") !=
        std::string::npos);
  CHECK(refused(DType::i32, checkpoint).find("'base' has int32 here and uint8") !=
        std::string::npos);
  CHECK(refused(DType::f32, model_file).find("'base' is U8 in the file, and none of F32") !=
        std::string::npos);
  CHECK(refused(DType::i32, model_file).find("'base' is U8 in the file, and int32 here") !=
        std::string::npos);
  // Bytes do not thaw.
  CHECK(refused(DType::f32, checkpoint, true).find("'base' has numbers here and uint8") !=
        std::string::npos);
  CHECK(refused(DType::f32, model_file, true).find("'base' is U8 in the file, and none of F32") !=
        std::string::npos);
  CHECK(refused(DType::u8, checkpoint) == "");
  CHECK(refused(DType::u8, model_file) == "");
}

TEST_CASE("bytes are called in files as the trainer says, and loaded as those") {
  TemporaryDirectory const directory;
  std::string const file = directory.path() + "/model.safetensors";
  std::vector<Tensor> tensors{
      {.name = "w", .shape = {5}},
      {.name = "base", .shape = {5}, .dtype = DType::u8, .file_dtype = "F8_E4M3", .frozen = true}};
  run<PosG>(
      1,
      [&](auto& optimizer, int) {
        optimizer.adopt_parameters();
        Checkpoints{directory.path()}.save(optimizer);
        zero::export_model(optimizer, file);
      },
      tensors);
  zero::DiskFiles files;
  for (auto const& tensor : zero::detail::open_model(files, file).tensors) {
    if (tensor.entry.name == "base") CHECK(tensor.entry.dtype == "F8_E4M3");
  }
  auto const refused = [&](zero::FileDType type, bool whole) {
    std::string said;
    tensors[1].file_dtype = type;
    run<PosG>(
        1,
        [&](auto& optimizer, int) {
          said = refusal(
              [&] {
                Checkpoints run{directory.path()};
                whole ? static_cast<void>(run.load(optimizer, *run.latest(optimizer)))
                      : static_cast<void>(load_parameters_from(optimizer, file));
              },
              zero::ErrorKind::data);
        },
        tensors);
    return said;
  };
  for (bool const whole : {false, true}) {
    CHECK(refused("F8_E4M3", whole) == "");
    CHECK(refused({}, whole) == "");
  }
  CHECK(refused("I8", true).find("'base' is of I8 here and of F8_E4M3") != std::string::npos);
  CHECK(refused("I8", false).find("'base' is F8_E4M3 in the file, and I8 here") !=
        std::string::npos);
}

TEST_CASE("a file sets numbers or bytes, if it has all of them") {
  std::vector<Tensor> const tensors{
      {.name = "w", .shape = {5}},
      {.name = "base", .shape = {5}, .dtype = DType::u8, .frozen = true}};
  for (std::size_t const saved : {0u, 1u}) {
    TemporaryDirectory const directory;
    TemporaryDirectory const other;
    std::string const file = directory.path() + "/model.safetensors";
    run<PosG>(1,
              [&](auto& optimizer, int) {
                optimizer.adopt_parameters();
                Checkpoints{directory.path()}.save(optimizer);
                zero::export_model(optimizer, file);
              },
              {tensors[saved]});
    for (bool const whole : {false, true}) {
      run<PosG>(
          1,
          [&](auto& optimizer, int) {
            if (whole) {
              Checkpoints run{directory.path()};
              run.load(optimizer, *run.latest(optimizer), {.strict = false});
            } else {
              load_parameters_from(optimizer, file, {.strict = false});
            }
            std::string const missing =
                message_of([&] { Checkpoints{other.path()}.save(optimizer); });
            std::string const said = saved == 0
                                         ? "tensor 'base' has no values yet: call load_bytes"
                                         : "the optimizer has no values yet: call load_parameters";
            CHECK_MESSAGE(missing.find(said) != std::string::npos, missing);
            saved == 0 ? optimizer.load_bytes(fill_bytes) : optimizer.load_parameters(fill);
            Checkpoints{other.path()}.save(optimizer);
          },
          tensors);
    }
  }
}

TEST_CASE(
    "a master that has outgrown its parameter's type is loaded, whichever precision is first") {
  using Half = zero::MixedFloatGradients<zero::fp16>;
  std::vector<Tensor> const tensors{{.name = "w", .shape = {3}, .dtype = DType::f16},
                                    {.name = "n", .shape = {3}, .dtype = DType::f32}};
  auto const go_on = [&]<class Precisions>(Precisions) {
    TemporaryDirectory const directory;
    zero::Self comm;
    using O = zero::ShardedOptimizer<zero::Self, PosG, Precisions, zero::PlainSgd>;
    O optimizer{comm, tensors, zero::PlainSgd{.lr = 1.f}};
    optimizer.load_parameters(
        [](auto const&, std::size_t, std::span<float> out) { std::ranges::fill(out, 60'000.f); });
    auto gradients = optimizer.gradients(0);
    std::ranges::fill(gradients.template as<float>("w"), -10'000.f);
    optimizer.reduce(std::move(gradients));
    optimizer.step();
    Checkpoints{directory.path()}.save(optimizer);
    O again{comm, tensors, zero::PlainSgd{.lr = 1.f}};
    CHECK(Checkpoints{directory.path()}.resume(again).has_value());
    again.visit_owned([](Tensor const& tensor, std::size_t, auto masters, auto const&) {
      CHECK(masters[2] == (tensor.name == "w" ? 70'000.f : 60'000.f));
    });
  };
  go_on(zero::ByTensor<Half, zero::Fp32>{});
  go_on(zero::ByTensor<zero::Fp32, Half>{});
}

}  // namespace kinds_checkpoint_test
