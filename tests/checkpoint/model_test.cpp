#include "checkpoint/faulty_files.hpp"
#include "checkpoint/model_files.hpp"
#include "checkpoint/stored_model.hpp"
#include "checkpoint/temporary_directory.hpp"
#include "contracts/loop.hpp"
#include "support/lent_memory.hpp"
#include "support/refusal.hpp"
#include "support/toy_model.hpp"
#include "trapped_space.hpp"
#include "zero/checkpoint/export.hpp"
#include "zero/checkpoint/import.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

// Models as files that other tools read: what optimizers of all kinds write, and read again.
namespace model_test {
namespace {

using checkpoint_tests::failure;
using checkpoint_tests::names_in;
using checkpoint_tests::slurp;
using checkpoint_tests::spill;
using checkpoint_tests::TemporaryDirectory;
using checkpoint_tests::toy_file;
using checkpoint_tests::with_ranks;
using Files = checkpoint_tests::StruckFiles;
using zero::ExportDType;
using zero::ExportOptions;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;
using Bf16 = zero::Mixed<zero::bf16>;
using Fp16 = zero::Mixed<zero::fp16>;

template <class Stage, class Precision>
void check_round_trips() {
  INFO(std::string(Stage::name) << ", " << std::string(Precision::name));
  using Optimizer = contracts::Optimizer<Stage, Precision>;
  using Parameter = typename Precision::Parameter;
  using Master = typename Precision::Master;
  std::string const parameters = toy_file<Precision, Parameter>();
  std::string const masters = toy_file<Precision, Master>();
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
        zero::ExportReport const report =
            zero::export_model(optimizer, at + "parameters.safetensors");
        if (report.bytes != parameters.size()) equal = false;
        if (report.path != at + "parameters.safetensors") equal = false;
        zero::export_model(optimizer, at + "masters.safetensors", {.dtype = ExportDType::master});
        zero::ExportReport const parts =
            zero::export_model(optimizer, at + "parts.safetensors", {.max_file_bytes = 9000});
        if (parts.path != at + "parts.safetensors.index.json") equal = false;

        Optimizer again{comm, toy::model(), zero::Bucket{bytes}};
        zero::load_parameters_from(again, at + "masters.safetensors");
        if (contracts::snapshot(again) != contracts::snapshot(optimizer)) equal = false;
        // From narrow parameters masters are narrow, too.
        zero::load_parameters_from(again, parts.path);
        zero::export_model(again, at + "again.safetensors");
      });
      CHECK(equal);
      CHECK(slurp(at + "parameters.safetensors") == parameters);
      CHECK(slurp(at + "masters.safetensors") == masters);
      CHECK(slurp(at + "again.safetensors") == parameters);
    }
  }
}

TEST_CASE_TEMPLATE("all stages, ranks and buckets write the same bytes, and read them again [full]",
                   Precision,
                   zero::Fp32,
                   Bf16,
                   Fp16) {
  check_round_trips<Replicated, Precision>();
  check_round_trips<Pos, Precision>();
  check_round_trips<PosG, Precision>();
  check_round_trips<PosGP, Precision>();
}

TEST_CASE("what a step has changed is written, in both types") {
  using Optimizer = contracts::Optimizer<PosGP, Bf16>;
  with_ranks<Optimizer>(3, [](Optimizer& optimizer, std::string const& at, auto& comm) {
    toy::load(optimizer);
    contracts::pass(optimizer, {}, 0, comm.rank());
    optimizer.step({.learning_rate = 0.1f});
    zero::export_model(optimizer, at + "p.safetensors");
    zero::export_model(optimizer, at + "m.safetensors", {.dtype = ExportDType::master});
    if (comm.rank() != 0) return;
    zero::DiskFiles files;
    auto const narrow = zero::detail::open_model(files, at + "p.safetensors");
    auto const wide = zero::detail::open_model(files, at + "m.safetensors");
    zero::detail::ModelReader read_narrow(files, narrow);
    zero::detail::ModelReader read_wide(files, wide);
    std::vector<float> p(2047);
    std::vector<float> m(2047);
    read_narrow.read(*narrow.find("h0.w"), 0, p);
    read_wide.read(*wide.find("h0.w"), 0, m);
    bool moved = false;
    bool rounded = true;
    for (std::size_t i = 0; i < m.size(); ++i) {
      moved = moved || m[i] != toy::initial_value(2, i);
      rounded = rounded && p[i] == static_cast<float>(zero::bf16(m[i]));
    }
    CHECK(moved);
    CHECK(rounded);
  });
}

TEST_CASE("above a size there are several files, an index, and no others") {
  with_ranks(2, [](auto& optimizer, std::string const& at, auto& comm) {
    toy::load(optimizer);
    ExportOptions const options{.max_file_bytes = 9000,
                                .metadata = {{"format", "mlx"}, {"a", "b"}}};
    zero::export_model(optimizer, at + "model.safetensors");
    auto const report = zero::export_model(optimizer, at + "model.safetensors", options);
    if (comm.rank() == 0) {
      // The single file of that name is gone.
      CHECK(names_in(at) == std::vector<std::string>{"model-00001-of-00004.safetensors",
                                                     "model-00002-of-00004.safetensors",
                                                     "model-00003-of-00004.safetensors",
                                                     "model-00004-of-00004.safetensors",
                                                     "model.safetensors.index.json"});
      auto const index = nlohmann::json::parse(slurp(at + "model.safetensors.index.json"));
      CHECK(index["metadata"]["total_size"] == 31696);
      CHECK(index["weight_map"].size() == 10);
      CHECK(index["weight_map"]["h2.w"] == "model-00003-of-00004.safetensors");
      zero::DiskFiles files;
      auto const model = zero::detail::open_model(files, at);
      CHECK(model.files.size() == 4);
      CHECK(model.metadata ==
            std::map<std::string, std::string>{{"format", "mlx"}, {"a", "b"}, {"head", "wte"}});
      std::uint64_t bytes = 0;
      for (std::string const& name : names_in(at)) bytes += std::filesystem::file_size(at + name);
      CHECK(report.bytes == bytes);
    }
    zero::export_model(optimizer, at + "model.safetensors");
    if (comm.rank() == 0) {
      CHECK(names_in(at).back() == "model.safetensors");
      CHECK(slurp(at + "model.safetensors") == toy_file<zero::Fp32, float>());
    }
  });
}

TEST_CASE("lent memory is written from where it lies, and loaded into it") {
  using Optimizer = contracts::Optimizer<Pos, Bf16, zero::Borrowed<>>;
  with_ranks<Optimizer>(2, [](Optimizer& optimizer, std::string const& at, auto& comm) {
    using Lent = toy::LentMemory<zero::bf16, zero::bf16, zero::space::Host, zero::HostAllocator>;
    Lent lent({}, {}, optimizer.tensors(), true);
    lent.bind_to(optimizer);
    CHECK(refusal([&] { zero::export_model(optimizer, at + "no.safetensors"); }) ==
          "on rank 0: the optimizer has no values yet: call load_parameters(), "
          "broadcast_parameters() or adopt_parameters() first");
    std::string const file = toy_file<Bf16, zero::bf16>();
    if (comm.rank() == 0) spill(at + "in.safetensors", file);
    optimizer.settle();
    zero::detail::ControlWords const control =
        zero::detail::control_words(comm, zero::detail::Inside::parts(optimizer).arena);
    zero::detail::together(control, "wait", [] {});
    zero::load_parameters_from(optimizer, at + "in.safetensors");
    zero::export_model(optimizer, at + "out.safetensors");
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
      zero::export_model(optimizer, at + "p.safetensors");
      zero::export_model(optimizer, at + "m.safetensors", {.dtype = ExportDType::master});
    });
    on_device([&](auto& optimizer) {
      zero::load_parameters_from(optimizer, at + "m.safetensors");
      zero::export_model(optimizer, at + "again.safetensors", {.dtype = ExportDType::master});
    });
  });
  CHECK(slurp(at + "p.safetensors") == toy_file<Bf16, zero::bf16>());
  CHECK(slurp(at + "m.safetensors") == toy_file<Bf16, float>());
  CHECK(slurp(at + "again.safetensors") == toy_file<Bf16, float>());
}

TEST_CASE(
    "whatever operation fails on whatever rank of an export, all say so and no file appears") {
  for (bool const parts : {false, true}) {
    for (int failing = 0; failing < 2; ++failing) {
      bool struck = true;
      for (std::size_t at_call = 0; struck; ++at_call) {
        CAPTURE(parts);
        CAPTURE(failing);
        CAPTURE(at_call);
        REQUIRE(at_call < 200);
        Files faulty({}, checkpoint_tests::FileFault{.at = at_call, .error = ENOSPC});
        std::vector<std::string> left;
        std::string kind;
        std::string const text = failure(
            2,
            [&](auto& optimizer, std::string const& at, int rank) {
              toy::load(optimizer);
              auto const after = [&] {
                auto const names = names_in(at);
                if (rank == 0) left = names;
              };
              try {
                zero::export_model(optimizer,
                                   at + "model.safetensors",
                                   {.max_file_bytes = parts ? 9000u : 90000u},
                                   rank == failing ? faulty : Files{});
              } catch (zero::Error const&) {
                after();
                throw;
              }
              after();
            },
            &kind);
        struck = faulty.struck() > 0;
        if (!struck) {
          CHECK(text.empty());
          CHECK(left.size() == (parts ? 5 : 1));
          break;
        }
        // What a machine does with the model of another form that was there before is no part.
        bool const cleaning = text.find("cannot remove") != std::string::npos;
        if (text.empty()) continue;  // A close whose answer nobody needs.
        CHECK(kind == "resource");
        CHECK(text.starts_with("on rank " + std::to_string(failing) + ": cannot "));
        CHECK(text.ends_with("No space left on device"));
        for (std::string const& name : left) {
          CHECK_MESSAGE((cleaning || name.ends_with(".tmp")), name);
        }
      }
    }
  }
}

TEST_CASE("a crash at any point of an export leaves the old model, the new one or none") {
  auto const content = [](std::uint64_t seed) {
    return [seed](zero::Tensor const&, std::size_t first, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = toy::uniform(seed, first + i, 3);
    };
  };
  std::vector<zero::Tensor> const tensors{{.name = "a", .shape = {700}},
                                          {.name = "b", .shape = {3, 7}, .unit = 1}};
  for (auto const& [old_limit, new_limit] :
       {std::pair{9999u, 9999u}, {9999u, 99u}, {99u, 99u}, {99u, 9999u}}) {
    CAPTURE(old_limit);
    CAPTURE(new_limit);
    checkpoint_tests::ModelFiles files;
    zero::run_ranks(2, [&](zero::InProcess& comm) {
      contracts::Optimizer<PosG, zero::Fp32> optimizer{comm, tensors};
      optimizer.load_parameters(content(1));
      zero::export_model(optimizer, "m.safetensors", {.max_file_bytes = old_limit}, files);
      auto const control =
          zero::detail::control_words(comm, zero::detail::Inside::parts(optimizer).arena);
      zero::detail::together(control, "settle", [&] {
        if (comm.rank() == 0) files.settle();
      });
      optimizer.load_parameters(content(2));
      zero::export_model(optimizer, "m.safetensors", {.max_file_bytes = new_limit}, files);
    });
    REQUIRE(files.changes() > 5);
    std::size_t found[3] = {};
    for (std::size_t at = 0; at <= files.changes(); ++at) {
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        auto after = files.crashed(at, seed);
        for (std::string const path : {"m.safetensors", "m.safetensors.index.json"}) {
          zero::StoredModel model;
          try {
            model = zero::detail::open_model(after, path);
          } catch (zero::Error const& error) {
            // Not there, or an index whose files are: never one that lies.
            CHECK(error.kind() == zero::ErrorKind::resource);
            CHECK(error.message() == "cannot open '" + path + "': No such file or directory");
            ++found[0];
            continue;
          }
          zero::detail::ModelReader reader(after, model);
          std::vector<float> a(700);
          std::vector<float> b(21);
          reader.read(*model.find("a"), 0, a);
          reader.read(*model.find("b"), 0, b);
          bool whole[3] = {true, true, true};
          for (std::uint64_t which = 1; which <= 2; ++which) {
            for (std::size_t i = 0; i < a.size(); ++i) {
              whole[which] = whole[which] && a[i] == toy::uniform(which, i, 3);
            }
            for (std::size_t i = 0; i < b.size(); ++i) {
              whole[which] = whole[which] && b[i] == toy::uniform(which, i, 3);
            }
          }
          CHECK(whole[1] != whole[2]);
          ++found[whole[1] ? 1 : 2];
        }
        if (at == files.changes()) {
          CHECK_NOTHROW(static_cast<void>(zero::detail::open_model(
              after, new_limit < 100 ? "m.safetensors.index.json" : "m.safetensors")));
        }
      }
    }
    CHECK(found[1] > 0);
    CHECK(found[2] > 0);
  }
}

/// A disk that takes its time.
struct SlowFiles : zero::DiskFiles {
  std::chrono::milliseconds pause{0};
  zero::FileAnswer write(zero::FileAnswer file,
                         void const* from,
                         std::size_t bytes,
                         std::uint64_t offset) const {
    std::this_thread::sleep_for(pause);
    return DiskFiles::write(file, from, bytes, offset);
  }
  zero::FileAnswer read(zero::FileAnswer file,
                        void* to,
                        std::size_t bytes,
                        std::uint64_t offset) const {
    std::this_thread::sleep_for(pause);
    return DiskFiles::read(file, to, bytes, offset);
  }
};

TEST_CASE("a rank may write and read for longer than the communicator waits") {
  auto const began = std::chrono::steady_clock::now();
  with_ranks(
      3,
      [](auto& optimizer, std::string const& at, auto& comm) {
        toy::load(optimizer);
        SlowFiles files;
        if (comm.rank() == 1) files.pause = std::chrono::milliseconds(60);
        zero::export_model(optimizer, at + "m.safetensors", {}, files);
        zero::load_parameters_from(optimizer, at + "m.safetensors", {}, files);
      },
      0.5);
  CHECK(std::chrono::steady_clock::now() - began > std::chrono::milliseconds(1500));
}

TEST_CASE("an export that makes no sense is refused on all ranks") {
  CHECK(
      failure(2,
              [](auto& optimizer, std::string const& at, int) {
                zero::export_model(optimizer, at + "m.safetensors");
              }) ==
      "on rank 0: the optimizer has no values yet: call load_parameters(), broadcast_parameters() "
      "or adopt_parameters() first");
  CHECK(failure(2, [](auto& optimizer, std::string const& at, int) {
          toy::load(optimizer);
          zero::export_model(optimizer, at + "none/m.safetensors");
        }) == "on rank 0: cannot create '@none/m.safetensors.tmp': No such file or directory");
  CHECK(failure(2, [](auto& optimizer, std::string const& at, int) {
          toy::load(optimizer);
          zero::export_model(optimizer, at + "m.safetensors", {.metadata = {{"head", "x"}}});
        }) == "on rank 0: metadata 'head' are those of the tied tensor of that name");
  with_ranks(2, [](auto& optimizer, std::string const& at, auto& comm) {
    toy::load(optimizer);
    std::string const path = at + (comm.rank() == 0 ? "a" : "b");
    CHECK(refusal([&] { zero::export_model(optimizer, path); }) ==
          "ranks export to different paths or with different options; here to '" + path + "'");
    CHECK(refusal([&] {
            zero::export_model(
                optimizer,
                at + "a",
                {.dtype = ExportDType::master, .metadata = {{"of", std::to_string(comm.rank())}}});
          }) == "ranks export to different paths or with different options; here to '" + at + "a'");
  });
}

}  // namespace
}  // namespace model_test
