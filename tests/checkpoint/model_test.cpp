#include "checkpoint/faulty_files.hpp"
#include "checkpoint/model_files.hpp"
#include "checkpoint/temporary_directory.hpp"
#include "contracts/loop.hpp"
#include "equivalence/lent_memory.hpp"
#include "equivalence/toy_model.hpp"
#include "trapped_space.hpp"
#include "unit/layout/refusal.hpp"
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

// Models as files that other tools read: what optimizers of all kinds write, and what they read.
namespace model_test {
namespace {

namespace st = zero::safetensors;
using checkpoint_tests::FaultyFiles;
using checkpoint_tests::TemporaryDirectory;
using zero::ExportDType;
using zero::ExportOptions;
using zero::ImportOptions;
using zero::ImportReport;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;
using Bf16 = zero::Mixed<zero::bf16>;
using Fp16 = zero::Mixed<zero::fp16>;

std::string slurp(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void spill(std::string const& path, std::string const& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A file of the toy model as one program without ranks writes it.
/// @param value  `value(tensor, element)`
template <class T, class Value>
std::string model_file(std::vector<zero::Tensor> const& tensors, Value const& value) {
  st::Header header;
  header.metadata["format"] = "pt";
  std::string data;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (!tensors[t].tied_to.empty()) {
      header.metadata[tensors[t].name] = tensors[t].tied_to;
      continue;
    }
    header.entries.push_back({.name = tensors[t].name,
                              .dtype = std::string(st::spelled(zero::dtype_of<T>)),
                              .shape = {tensors[t].shape.begin(), tensors[t].shape.end()}});
    for (std::size_t i = 0; i < zero::element_count(tensors[t]); ++i) {
      T const element(value(t, i));
      data.append(reinterpret_cast<char const*>(&element), sizeof(element));
    }
  }
  return st::format(header) + data;
}

/// The toy model's file.
template <class Precision, class T>
std::string toy_file() {
  auto const tensors = toy::model();
  return model_file<T>(tensors, [&](std::size_t t, std::size_t i) {
    float const value = toy::initial_value(t, i);
    // A frozen tensor has no master.
    return tensors[t].frozen ? static_cast<float>(typename Precision::Parameter(value)) : value;
  });
}

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

/// What `work(optimizer, path)` does to a new optimizer on every rank, in a directory of its own.
template <class Optimizer = contracts::Optimizer<PosG, zero::Fp32>, class Work>
void with_ranks(int ranks, Work const& work, double deadline_s = 600) {
  TemporaryDirectory directory;
  zero::run_ranks(ranks,
                  [&](zero::InProcess& comm) {
                    Optimizer optimizer{comm, toy::model(), zero::Bucket{1}};
                    work(optimizer, directory.path() + "/", comm);
                  },
                  {.deadline_s = deadline_s});
}

std::vector<std::string> names_in(std::string const& directory) {
  std::vector<std::string> names;
  zero::DiskFiles{}.list(directory, names);
  return names;
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

/// What all ranks say when `work(optimizer, path, rank)` fails, which must be the same.
template <class Work>
std::string failure(int ranks, Work const& work, std::string* kind = nullptr) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  with_ranks(ranks, [&](auto& optimizer, std::string const& at, auto& comm) {
    try {
      work(optimizer, at, comm.rank());
    } catch (zero::Error const& error) {
      std::lock_guard const lock(mutex);
      std::string text = error.message();
      for (std::size_t found = 0; (found = text.find(at)) != std::string::npos;) {
        text.replace(found, at.size(), "@");
      }
      texts[static_cast<std::size_t>(comm.rank())] = text;
      if (kind != nullptr) *kind = zero::name(error.kind());
    }
  });
  for (std::string const& text : texts) CHECK(text == texts[0]);
  return texts[0];
}

/// Fails as soon as it is told to; ranks share nothing.
using Files = FaultyFiles<zero::DiskFiles>;

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

/// The toy model's file with other names, shapes and tensors.
template <class Change>
std::string changed_file(Change const& change) {
  auto tensors = toy::model(false);
  change(tensors);
  return model_file<float>(tensors, toy::initial_value);
}

TEST_CASE("all that a file lacks, has too much of or has in another shape is said at once") {
  std::string const file = changed_file([](std::vector<zero::Tensor>& tensors) {
    tensors[1].name = "wpf";
    tensors[2].shape = {89, 23};
    tensors[4].shape = {1};
    tensors[9].name = "more";
  });
  auto const load = [&](bool strict, ImportReport& report) {
    return failure(2, [&, strict](auto& optimizer, std::string const& at, int rank) {
      // Values that the file does not have stay.
      optimizer.load_parameters([](auto const&, std::size_t, std::span<float> out) {
        std::fill(out.begin(), out.end(), 7.f);
      });
      if (rank == 0) spill(at + "m.safetensors", file);
      optimizer.check_parameters();
      ImportReport const heard =
          zero::load_parameters_from(optimizer, at + "m.safetensors", {.strict = strict});
      if (rank == 0) report = heard;
      CHECK(optimizer.parameter(0)[1] == toy::initial_value(0, 1));
      CHECK(optimizer.parameter(3)[39] == toy::initial_value(3, 39));
      for (std::size_t const kept : {1u, 2u, 4u, 9u}) {
        auto const values = optimizer.parameter(kept);
        CHECK(std::count(values.begin(), values.end(), 7.f) ==
              static_cast<std::ptrdiff_t>(values.size()));
      }
      optimizer.step();
    });
  };
  ImportReport report;
  CHECK(load(true, report) ==
        "'@m.safetensors' does not fit: missing: wpe, ln.g; unexpected: more, wpf; unfit: h0.w has "
        "shape [23, 89], 'h0.w' of the file [89, 23], h0.b has shape [], 'h0.b' of the file [1]");
  CHECK(load(false, report) == "");
  CHECK(report.missing == std::vector<std::string>{"wpe", "ln.g"});
  CHECK(report.unexpected == std::vector<std::string>{"more", "wpf"});
  CHECK(report.misfits.size() == 2);
}

/// Loads a file and says what went wrong, or hands the optimizer to `look`.
template <class Look>
std::string load_file(std::string const& file, ImportOptions const& options, Look const& look) {
  return failure(2, [&](auto& optimizer, std::string const& at, int rank) {
    if (rank == 0) spill(at + "m.safetensors", file);
    auto const control = zero::detail::control_words(*zero::detail::Inside::parts(optimizer).comm,
                                                     zero::detail::Inside::parts(optimizer).arena);
    zero::detail::together(control, "wait", [] {});
    zero::load_parameters_from(optimizer, at + "m.safetensors", options);
    look(optimizer);
  });
}
std::string load_file(std::string const& file, ImportOptions const& options = {}) {
  return load_file(file, options, [](auto& optimizer) {
    CHECK(optimizer.parameter(0)[36 * 5] == toy::initial_value(0, 36 * 5));
    CHECK(optimizer.parameter(10)[5] == toy::initial_value(0, 5));
    CHECK(optimizer.parameter(7)[4096] == toy::initial_value(7, 4096));
    optimizer.step();
  });
}

TEST_CASE("names are mapped, and tied tensors found under any of their names") {
  CHECK(load_file(changed_file([](auto&) {})) == "");
  CHECK(load_file(changed_file([](auto& tensors) { tensors[0].name = "head"; })) == "");
  ImportOptions const options{.names = {{"model.wte", "wte"}, {"h1.c", "h2.w"}, {"h2.w", "h1.c"}}};
  CHECK(load_file(changed_file([](auto& tensors) {
                    tensors[0].name = "model.wte";
                    std::swap(tensors[6].name, tensors[7].name);
                  }),
                  options) == "");
  CHECK(load_file(changed_file([](auto&) {}), {.names = {{"wpe", "wte"}}}) ==
        "on rank 0: two tensors of the file are called 'wte' here");

  // An alias of another's, whose name is mapped.
  st::Header header;
  std::string const whole = changed_file([](auto& tensors) { tensors[0].name = "emb"; });
  std::size_t const end =
      8 + static_cast<unsigned char>(whole[0]) + 256u * static_cast<unsigned char>(whole[1]);
  header = st::parse("f", std::string_view(whole).substr(8, end - 8), whole.size() - end);
  header.metadata["lm"] = "emb";
  std::string const aliased = st::format(header) + whole.substr(end);
  CHECK(load_file(aliased, {.names = {{"lm", "head"}}}) == "");
  CHECK(load_file(aliased) == "'@m.safetensors' does not fit: missing: wte; unexpected: emb");
}

TEST_CASE("tensors that are tied here may be there twice if they are the same") {
  auto const both = [](float difference) {
    auto tensors = toy::model(false);
    tensors.push_back({.name = "head", .shape = {37, 5}});
    return model_file<float>(tensors, [&](std::size_t t, std::size_t i) {
      return toy::initial_value(t == 10 ? 0 : t, i) + (t == 10 && i == 100 ? difference : 0.f);
    });
  };
  CHECK(load_file(both(0.f)) == "");
  std::string const text = load_file(both(1.f));
  CHECK(text.find("tensors 'wte' and 'head' are tied here, but differ in '@m.safetensors'") !=
        std::string::npos);
}

TEST_CASE("types that floats do not hold are refused") {
  auto const of = []<class T>(T) { return model_file<T>(toy::model(), toy::initial_value); };
  CHECK(load_file(of(double{}))
            .starts_with("'@m.safetensors' does not fit: unfit: wte is F64 in the file, which is "
                         "none of F32, F16 and "
                         "BF16, wpe is F64"));
  CHECK(load_file(of(zero::bf16{}), {}, [](auto& optimizer) {
          CHECK(optimizer.parameter(7)[9] ==
                static_cast<float>(zero::bf16(toy::initial_value(7, 9))));
        }) == "");
}

TEST_CASE("whatever operation fails on whatever rank of an import, all say so") {
  std::string const file = changed_file([](auto&) {});
  for (int failing = 0; failing < 2; ++failing) {
    bool struck = true;
    bool refused_steps = false;
    for (std::size_t at_call = 0; struck; at_call += at_call < 8 ? 1 : 5) {
      CAPTURE(failing);
      CAPTURE(at_call);
      REQUIRE(at_call < 200);
      Files faulty({}, checkpoint_tests::FileFault{.at = at_call, .error = EIO});
      std::string kind;
      std::string const text = failure(
          2,
          [&](auto& optimizer, std::string const& at, int rank) {
            toy::load(optimizer);
            if (rank == 0) spill(at + "m.safetensors", file);
            optimizer.check_parameters();
            try {
              zero::load_parameters_from(
                  optimizer, at + "m.safetensors", {}, rank == failing ? faulty : Files{});
            } catch (zero::Error const&) {
              std::string const said = refusal([&] { optimizer.step(); });
              if (rank == 0 && !said.empty()) {
                refused_steps = true;
                CHECK(said.find("a load failed halfway") != std::string::npos);
              }
              zero::load_parameters_from(optimizer, at + "m.safetensors");
              optimizer.step();
              throw;
            }
          },
          &kind);
      struck = faulty.struck() > 0;
      if (text.empty()) continue;
      CHECK(kind == "resource");
      CHECK(text.starts_with("on rank " + std::to_string(failing) + ": cannot "));
    }
    CHECK(refused_steps);
  }
}

/// Counts how often each byte is read, and written.
struct CountingFiles : zero::DiskFiles {
  std::vector<int>* reads = nullptr;
  std::vector<int>* writes = nullptr;
  static void count(std::vector<int>& counts, std::size_t bytes, std::uint64_t offset) {
    if (counts.size() < offset + bytes) counts.resize(static_cast<std::size_t>(offset) + bytes);
    for (std::size_t i = 0; i < bytes; ++i) ++counts[static_cast<std::size_t>(offset) + i];
  }
  zero::FileAnswer read(zero::FileAnswer file,
                        void* to,
                        std::size_t bytes,
                        std::uint64_t offset) const {
    count(*reads, bytes, offset);
    return DiskFiles::read(file, to, bytes, offset);
  }
  zero::FileAnswer write(zero::FileAnswer file,
                         void const* from,
                         std::size_t bytes,
                         std::uint64_t offset) const {
    count(*writes, bytes, offset);
    return DiskFiles::write(file, from, bytes, offset);
  }
};

/// How many bytes of a file are written and read how often, by all of three ranks together.
template <class Stage, class Precision>
std::pair<std::map<int, int>, std::map<int, int>> accesses() {
  using Optimizer = contracts::Optimizer<Stage, Precision>;
  std::vector<int> reads;
  std::vector<int> writes;
  std::mutex mutex;
  with_ranks<Optimizer>(3, [&](Optimizer& optimizer, std::string const& at, auto&) {
    toy::load(optimizer);
    std::vector<int> own_reads;
    std::vector<int> own_writes;
    CountingFiles files;
    files.reads = &own_reads;
    files.writes = &own_writes;
    zero::export_model(optimizer, at + "m.safetensors", {}, files);
    zero::load_parameters_from(optimizer, at + "m.safetensors", {}, files);
    std::lock_guard const lock(mutex);
    for (auto const& [sum, own] : {std::pair{&reads, &own_reads}, {&writes, &own_writes}}) {
      sum->resize((std::max)(sum->size(), own->size()));
      for (std::size_t i = 0; i < own->size(); ++i) (*sum)[i] += (*own)[i];
    }
  });
  std::pair<std::map<int, int>, std::map<int, int>> times;
  for (int const count : writes) ++times.first[count];
  for (int const count : reads) ++times.second[count];
  return times;
}

TEST_CASE("each byte is written by one rank, and read by those that hold or check it") {
  using Times = std::map<int, int>;
  constexpr int elements = 7924;
  constexpr int frozen = 49;
  int const header = static_cast<int>(toy_file<zero::Fp32, float>().size()) - 4 * elements;
  auto const replicated = accesses<Replicated, zero::Fp32>();
  CHECK(replicated.first == Times{{1, 4 * elements + header}});
  CHECK(replicated.second == Times{{3, 4 * elements + header}});
  // The rank that holds an element and the one before it; everybody what is frozen.
  auto const partitioned = accesses<PosGP, zero::Fp32>();
  CHECK(partitioned.first == Times{{1, 4 * elements + header}});
  CHECK(partitioned.second == Times{{2, 4 * (elements - frozen)}, {3, 4 * frozen + header}});
  // Parameters that have masters beside them.
  int const narrow = static_cast<int>(toy_file<Bf16, zero::bf16>().size());
  CHECK(accesses<Replicated, Bf16>().first == Times{{1, narrow}});
  CHECK(accesses<PosGP, Bf16>().first == Times{{1, narrow}});
}

}  // namespace
}  // namespace model_test
