#include "checkpoint/proof.hpp"
#include "checkpoint/stored_model.hpp"
#include "support/lent_memory.hpp"
#include "support/standard.hpp"
#include "trapped_space.hpp"
#include "zero/checkpoint/export.hpp"
#include "zero/checkpoint/import.hpp"

// Models as files that other tools read: what optimizers of all kinds write, and read again.
namespace model_test {
namespace {

using namespace checkpoint_tests;
using Files = StruckFiles;
using Names = std::vector<std::string>;
using zero::export_model;
using zero::ExportDType;
using zero::load_parameters_from;
using zero::detail::open_model;
using namespace zero::stage;
using Bf16 = zero::Mixed<zero::bf16>;
using Fp16 = zero::Mixed<zero::fp16>;

template <class Stage, class Precision>
void check_round_trips() {
  INFO(std::string(Stage::name) << ", " << std::string(Precision::name));
  using Optimizer = contracts::Optimizer<Stage, Precision>;
  std::string const parameters = toy_file<Precision, typename Precision::Parameter>();
  std::string const masters = toy_file<Precision, typename Precision::Master>();
  for (int ranks = 1; ranks <= 3; ++ranks) {
    for (std::size_t const bytes : {std::size_t{1}, zero::MiB}) {
      CAPTURE(ranks);
      CAPTURE(bytes);
      TemporaryDirectory directory;
      std::string const at = directory.path() + "/";
      std::atomic<bool> equal = true;
      zero::run_ranks(ranks, [&](zero::InProcess& comm) {
        Optimizer optimizer{comm, toy::model(), zero::Bucket{bytes}};
        toy::load(optimizer);
        auto const report = export_model(optimizer, at + "parameters.safetensors");
        if (report.bytes != parameters.size()) equal = false;
        if (report.path != at + "parameters.safetensors") equal = false;
        export_model(optimizer, at + "masters.safetensors", {.dtype = ExportDType::master});
        auto const parts =
            export_model(optimizer, at + "parts.safetensors", {.max_file_bytes = 9000});
        if (parts.path != at + "parts.safetensors.index.json") equal = false;

        Optimizer again{comm, toy::model(), zero::Bucket{bytes}};
        load_parameters_from(again, at + "masters.safetensors");
        if (contracts::snapshot(again) != contracts::snapshot(optimizer)) equal = false;
        // From narrow parameters masters are narrow, too.
        load_parameters_from(again, parts.path);
        export_model(again, at + "again.safetensors");
      });
      CHECK(equal);
      CHECK(slurp(at + "parameters.safetensors") == parameters);
      CHECK(slurp(at + "masters.safetensors") == masters);
      CHECK(slurp(at + "again.safetensors") == parameters);
    }
  }
}

// Stages and precisions, and not each with each: stages differ in where runs lie, precisions in
// what is converted.
TEST_CASE("all stages, ranks and buckets write the same bytes, and read them again [full]") {
  check_round_trips<Replicated, zero::Fp32>();
  check_round_trips<Pos, zero::Fp32>();
  check_round_trips<PosG, zero::Fp32>();
  check_round_trips<PosGP, zero::Fp32>();
}

TEST_CASE("all precisions, ranks and buckets write the same bytes, and read them again [full]") {
  check_round_trips<Replicated, Bf16>();
  check_round_trips<Pos, Bf16>();
  check_round_trips<PosG, Fp16>();
  check_round_trips<PosGP, Bf16>();
}

/// A tensor of a stored model.
std::vector<float> values_of(auto files,
                             std::string const& path,
                             std::string const& tensor,
                             std::size_t count) {
  auto const model = open_model(files, path);
  std::vector<float> values(count);
  zero::detail::ModelReader(files, model)
      .read(*model.find(tensor), 0, zero::DType::f32, values.data(), count);
  return values;
}

TEST_CASE("above a size there are several files, an index, and no others") {
  with_ranks(2, [](auto& optimizer, std::string const& at, auto& comm) {
    toy::load(optimizer);
    std::string const path = at + "model.safetensors";
    export_model(optimizer, path);
    auto const report = export_model(
        optimizer, path, {.max_file_bytes = 9000, .metadata = {{"format", "mlx"}, {"a", "b"}}});
    if (comm.rank() == 0) {
      // The single file of that name is gone.
      CHECK(names_in(at) == Names{"model-00001-of-00004.safetensors",
                                  "model-00002-of-00004.safetensors",
                                  "model-00003-of-00004.safetensors",
                                  "model-00004-of-00004.safetensors",
                                  "model.safetensors.index.json"});
      auto const index = nlohmann::json::parse(slurp(path + ".index.json"));
      CHECK(index["metadata"]["total_size"] == 31696);
      CHECK(index["weight_map"].size() == 10);
      CHECK(index["weight_map"]["h2.w"] == "model-00003-of-00004.safetensors");
      zero::DiskFiles files;
      auto const model = open_model(files, at);
      CHECK(model.files.size() == 4);
      CHECK(model.metadata ==
            std::map<std::string, std::string>{{"format", "mlx"}, {"a", "b"}, {"head", "wte"}});
      std::uint64_t bytes = 0;
      for (std::string const& name : names_in(at)) bytes += std::filesystem::file_size(at + name);
      CHECK(report.bytes == bytes);
    }
    export_model(optimizer, path);
    if (comm.rank() == 0) {
      CHECK(names_in(at).back() == "model.safetensors");
      CHECK(slurp(path) == toy_file<zero::Fp32, float>());
    }
  });
}

TEST_CASE("lent memory is written from where it lies, and loaded into it") {
  using Optimizer = contracts::Optimizer<Pos, Bf16, zero::Borrowed<>>;
  with_ranks<Optimizer>(2, [](Optimizer& optimizer, std::string const& at, auto& comm) {
    using Lent = toy::LentMemory<zero::bf16, zero::bf16, zero::space::Host, zero::HostAllocator>;
    Lent lent({}, {}, optimizer.tensors(), true);
    lent.bind_to(optimizer);
    check_says(refusal([&] { export_model(optimizer, at + "no.safetensors"); }),
               "the optimizer has no values yet");
    std::string const file = toy_file<Bf16, zero::bf16>();
    optimizer.settle();
    provide(optimizer, at + "in.safetensors", file, comm.rank());
    load_parameters_from(optimizer, at + "in.safetensors");
    export_model(optimizer, at + "out.safetensors");
    CHECK(lent.intact());
    if (comm.rank() == 0) CHECK(slurp(at + "out.safetensors") == file);
  });
}

TEST_CASE("a model goes through a device's own functions where the host cannot reach it") {
  TemporaryDirectory directory;
  std::string const at = directory.path() + "/";
  zero::run_ranks(2, [&](zero::InProcess& inner) {
    using Owned = zero::Owned<trapped::Allocator>;
    auto const on_device = [&](auto const& work) {
      trapped::Device device;
      trapped::Communicator comm(inner, device, trapped::Collectives::late);
      zero::ShardedOptimizer<trapped::Communicator, PosGP, Bf16, Owned> optimizer{
          comm, toy::model(), Owned{{&device}}, zero::Bucket{1}};
      work(optimizer);
      device.synchronize();
    };
    on_device([&](auto& optimizer) {
      toy::load(optimizer);
      export_model(optimizer, at + "p.safetensors");
      export_model(optimizer, at + "m.safetensors", {.dtype = ExportDType::master});
    });
    on_device([&](auto& optimizer) {
      load_parameters_from(optimizer, at + "m.safetensors");
      export_model(optimizer, at + "again.safetensors", {.dtype = ExportDType::master});
    });
  });
  CHECK(slurp(at + "p.safetensors") == toy_file<Bf16, zero::bf16>());
  CHECK(slurp(at + "m.safetensors") == toy_file<Bf16, float>());
  CHECK(slurp(at + "again.safetensors") == toy_file<Bf16, float>());
}

/// Exports where an operation of one rank goes wrong. Says whether it came to it.
bool check_export(bool parts, int failing, std::size_t at_call) {
  CAPTURE(parts);
  CAPTURE(failing);
  CAPTURE(at_call);
  REQUIRE(at_call < 200);
  Files faulty({}, FileFault{.at = at_call, .error = ENOSPC});
  Names left;
  std::string const text = failure(2, [&](auto& optimizer, std::string const& at, int rank) {
    toy::load(optimizer);
    std::string const path = at + "model.safetensors";
    auto const exported = [&] {
      export_model(optimizer,
                   path,
                   {.max_file_bytes = parts ? 9000u : 90000u},
                   rank == failing ? faulty : zero::disk());
    };
    try {
      exported();
    } catch (zero::Error const&) {
      if (rank == 0) left = names_in(at);
      throw;
    }
    if (rank == 0) left = names_in(at);
  });
  if (faulty.struck() == 0) {
    CHECK(text.empty());
    CHECK(left.size() == (parts ? 5 : 1));
    return false;
  }
  if (text.empty()) return true;  // A close whose answer nobody needs.
  CHECK(text.starts_with("resource: on rank " + std::to_string(failing) + ": cannot "));
  CHECK(text.ends_with("No space left on device"));
  // What a machine does with the model of another form that was there before is no part.
  bool const cleaning = text.find("cannot remove") != text.npos;
  for (std::string const& name : left) CHECK_MESSAGE((cleaning || name.ends_with(".tmp")), name);
  return true;
}

TEST_CASE(
    "whatever operation fails on whatever rank of an export, all say so and no file appears") {
  for (bool const parts : {false, true}) {
    for (int const failing : {0, 1}) {
      std::size_t at_call = 0;
      while (check_export(parts, failing, at_call)) ++at_call;
    }
  }
}

/// Values that tell two models apart.
float content(std::uint64_t which, std::size_t element) { return toy::uniform(which, element, 3); }

TEST_CASE("a crash at any point of an export leaves the old model, the new one or none") {
  std::vector<zero::Tensor> const tensors{{.name = "a", .shape = {700}},
                                          {.name = "b", .shape = {3, 7}, .unit = 1}};
  for (auto const& limits : {std::pair{9999u, 9999u}, {9999u, 99u}, {99u, 99u}, {99u, 9999u}}) {
    auto const old_limit = limits.first;
    auto const new_limit = limits.second;
    CAPTURE(old_limit);
    CAPTURE(new_limit);
    ModelFiles files;
    zero::run_ranks(2, [&](zero::InProcess& comm) {
      contracts::Optimizer<PosG, zero::Fp32> optimizer{comm, tensors};
      auto const write = [&](std::uint64_t which, std::uint64_t limit) {
        optimizer.load_parameters([&](auto const&, std::size_t first, std::span<float> out) {
          for (std::size_t i = 0; i < out.size(); ++i) out[i] = content(which, first + i);
        });
        export_model(optimizer, "m.safetensors", {.max_file_bytes = limit}, files);
      };
      write(1, old_limit);
      auto& parts = zero::detail::EngineAccess::engine(optimizer).parts();
      zero::detail::together({parts.comm(), parts.arena}, "settle", [&] {
        if (comm.rank() == 0) files.settle();
      });
      write(2, new_limit);
    });
    REQUIRE(files.changes() > 5);
    std::size_t found[3] = {};
    for (std::size_t at = 0; at <= files.changes(); ++at) {
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        auto after = files.crashed(at, seed);
        for (std::string const path : {"m.safetensors", "m.safetensors.index.json"}) {
          std::vector<float> a;
          std::vector<float> b;
          std::string const why = failure_of([&] {
            static_cast<void>(open_model(after, path));
            a = values_of(after, path, "a", 700);
            b = values_of(after, path, "b", 21);
          });
          if (a.empty()) {
            // Not there, or an index whose files are: never one that lies.
            CHECK(why == "resource: cannot open '" + path + "': No such file or directory");
            ++found[0];
            continue;
          }
          REQUIRE(why == "");
          auto const whole = [&](std::uint64_t which) {
            bool same = true;
            for (auto const* values : {&a, &b}) {
              for (std::size_t i = 0; i < values->size(); ++i)
                same = same && (*values)[i] == content(which, i);
            }
            return same;
          };
          CHECK(whole(1) != whole(2));
          ++found[whole(1) ? 1 : 2];
        }
        std::string const path = new_limit < 100 ? "m.safetensors.index.json" : "m.safetensors";
        if (at == files.changes()) CHECK_NOTHROW(static_cast<void>(open_model(after, path)));
      }
    }
    CHECK(found[1] > 0);
    CHECK(found[2] > 0);
  }
}

TEST_CASE("a rank may write and read for longer than the communicator waits") {
  using std::chrono::milliseconds;
  auto const began = std::chrono::steady_clock::now();
  with_ranks(
      3,
      [](auto& optimizer, std::string const& at, auto& comm) {
        toy::load(optimizer);
        FileFault const slow{.for_good = true, .meanwhile = [](FileCall call) {
                               bool const moves = call == FileCall::read || call == FileCall::write;
                               if (moves) std::this_thread::sleep_for(milliseconds(60));
                             }};
        Files files({}, comm.rank() == 1 ? std::optional(slow) : std::nullopt);
        export_model(optimizer, at + "m.safetensors", {}, files);
        load_parameters_from(optimizer, at + "m.safetensors", {}, files);
      },
      0.5);
  CHECK(std::chrono::steady_clock::now() - began > milliseconds(1500));
}

TEST_CASE("an export that makes no sense is refused on all ranks") {
  auto const refused = [](bool loads, std::string const& name, zero::ExportOptions options = {}) {
    return failure(2, [&](auto& optimizer, std::string const& at, int) {
      if (loads) toy::load(optimizer);
      export_model(optimizer, at + name, options);
    });
  };
  CHECK(refused(false, "m.safetensors") ==
        "invalid argument: on rank 0: the optimizer has no values yet: call "
        "load_parameters(values), broadcast_parameters(values) or adopt_parameters() first");
  CHECK(refused(true, "none/m.safetensors") ==
        "resource: on rank 0: cannot create '@none/m.safetensors.tmp': No such file or directory");
  CHECK(refused(true, "m.safetensors", {.metadata = {{"head", "x"}}}) ==
        "invalid argument: on rank 0: metadata 'head' are those of the tied tensor of that name");
  with_ranks(2, [](auto& optimizer, std::string const& at, auto& comm) {
    toy::load(optimizer);
    std::string const differ =
        "ranks export to different paths or with different options; here to '" + at;
    std::string const path = comm.rank() == 0 ? "a" : "b";
    CHECK(refusal([&] { export_model(optimizer, at + path); }) == differ + path + "'");
    zero::ExportOptions const options{.dtype = ExportDType::master, .metadata = {{"of", path}}};
    CHECK(refusal([&] { export_model(optimizer, at + "a", options); }) == differ + "a'");
  });
}

}  // namespace
}  // namespace model_test
