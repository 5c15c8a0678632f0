#include "zero/checkpoint/import.hpp"

#include "checkpoint/faulty_files.hpp"
#include "checkpoint/stored_model.hpp"
#include "contracts/loop.hpp"
#include "support/refusal.hpp"
#include "support/toy_model.hpp"
#include "zero/checkpoint/export.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Models as files that other tools wrote: what fits is taken, and what does not is named.
namespace import_test {
namespace {

namespace st = zero::safetensors;
using checkpoint_tests::failure;
using checkpoint_tests::FileCall;
using checkpoint_tests::FileFault;
using checkpoint_tests::model_file;
using checkpoint_tests::spill;
using checkpoint_tests::toy_file;
using checkpoint_tests::with_ranks;
using Files = checkpoint_tests::StruckFiles;
using zero::ImportOptions;
using zero::ImportReport;
using zero::stage::PosGP;
using zero::stage::Replicated;
using Bf16 = zero::Mixed<zero::bf16>;

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
        "'@m.safetensors' does not fit this optimizer: not in the file: 'wpe', 'ln.g'; not in the "
        "optimizer: 'more', 'wpf'; different: 'h0.w' has shape [23, 89] here and [89, 23] in the "
        "file, 'h0.b' has shape [] here and [1] in the file");
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

TEST_CASE("a model is not imported while somebody reads what it would replace") {
  std::string const file = changed_file([](auto&) {});
  std::string const why = failure(2, [&](auto& optimizer, std::string const& at, int rank) {
    optimizer.load_parameters([](auto const&, std::size_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 7.f);
    });
    if (rank == 0) spill(at + "m.safetensors", file);
    optimizer.check_parameters();
    auto const guard = optimizer.parameters(0);
    zero::load_parameters_from(optimizer, at + "m.safetensors");
  });
  CHECK(why.find("() while the parameters of unit 0 are in use") != std::string::npos);
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
  CHECK(load_file(aliased) ==
        "'@m.safetensors' does not fit this optimizer: not in the file: 'wte'; not in the "
        "optimizer: 'emb'");
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
            .starts_with("'@m.safetensors' does not fit this optimizer: different: 'wte' is F64 in "
                         "the file, and none of F32, F16 and BF16, 'wpe' is F64"));
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

TEST_CASE("what a failed import has lost stays lost until that tensor is loaded") {
  std::string const file = changed_file([](auto&) {});
  for (int const ranks : {1, 2, 3}) {
    for (std::size_t const lacking : {1u, 2u, 7u, 9u}) {
      std::string const name = toy::model()[lacking].name;
      std::string const others =
          changed_file([&](auto& tensors) { tensors[lacking].name = "another"; });
      std::string const alone = changed_file([&](auto& tensors) {
        for (zero::Tensor& tensor : tensors) {
          if (tensor.name != name) tensor.name += " of another";
        }
      });
      CAPTURE(ranks);
      CAPTURE(name);
      auto const run = [&](bool from_file) {
        return failure(ranks, [&](auto& optimizer, std::string const& at, int rank) {
          toy::load(optimizer);
          if (rank == 0) {
            spill(at + "m.safetensors", file);
            spill(at + "others.safetensors", others);
            spill(at + "alone.safetensors", alone);
          }
          optimizer.check_parameters();
          // Behind the header, which is read in two.
          Files const faulty({}, FileFault{.only = FileCall::read, .at = 4});
          std::string const lost = "a load failed halfway: the values of tensor '";
          auto const refused = [&](std::string const& text) {
            CHECK(refusal([&] { optimizer.step(); }).starts_with(lost + text));
            CHECK(refusal([&] {
                    zero::export_model(optimizer, at + "out.safetensors");
                  }).find(lost + text) != std::string::npos);
          };
          CHECK(refusal([&] {
                  zero::load_parameters_from(
                      optimizer, at + "m.safetensors", {}, rank == ranks - 1 ? faulty : Files{});
                }) == "of another kind");
          refused("");
          zero::load_parameters_from(optimizer, at + "others.safetensors", {.strict = false});
          refused(name + "' are neither the old nor the new");
          if (from_file) {
            zero::load_parameters_from(optimizer, at + "alone.safetensors", {.strict = false});
          } else {
            toy::load(optimizer);
          }
          optimizer.step();
        });
      };
      CHECK(run(true) == "");
      CHECK(run(false) == "");
    }
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
}  // namespace import_test
