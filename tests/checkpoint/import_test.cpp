#include "zero/checkpoint/import.hpp"

#include "checkpoint/proof.hpp"
#include "checkpoint/stored_model.hpp"
#include "support/give_zeros.hpp"
#include "zero/checkpoint/export.hpp"

// Models as files that other tools wrote: what fits is taken, and what does not is named.
namespace import_test {
namespace {

using namespace checkpoint_tests;
using Files = StruckFiles;
using Names = std::vector<std::string>;
using zero::ImportOptions;
using zero::ImportReport;
using zero::load_parameters_from;
using namespace zero::stage;
using Bf16 = zero::Mixed<zero::bf16>;

/// The toy model's file with other names, shapes and tensors.
template <class Change>
std::string changed_file(Change const& change) {
  auto tensors = toy::model(false);
  change(tensors);
  return model_file<float>(tensors, toy::initial_value);
}
std::string sound_file() {
  return changed_file([](auto&) {});
}

void fill_with_sevens(auto& optimizer) {
  optimizer.load_parameters(
      [](auto const&, std::size_t, std::span<float> out) { std::ranges::fill(out, 7.f); });
}

TEST_CASE("all that a file lacks, has too much of or has in another shape is said at once") {
  std::string const file = changed_file([](std::vector<zero::Tensor>& tensors) {
    tensors[1].name = "wpf";
    tensors[2].shape = {89, 23};
    tensors[4].shape = {1};
    tensors[9].name = "more";
  });
  ImportReport report;
  auto const load = [&](bool strict) {
    return failure(2, [&](auto& optimizer, std::string const& at, int rank) {
      fill_with_sevens(optimizer);
      provide(optimizer, at + "m.safetensors", file, rank);
      auto const heard = load_parameters_from(optimizer, at + "m.safetensors", {.strict = strict});
      if (rank == 0) report = heard;
      CHECK(optimizer.parameter(0)[1] == toy::initial_value(0, 1));
      CHECK(optimizer.parameter(3)[39] == toy::initial_value(3, 39));
      // Values that the file does not have stay.
      for (std::size_t const kept : {1u, 2u, 4u, 9u})
        CHECK(std::ranges::all_of(optimizer.parameter(kept), [](float v) { return v == 7.f; }));
      give_zeros(optimizer).step();
    });
  };
  CHECK(load(true) ==
        "data: '@m.safetensors' does not fit this optimizer: not in the file: 'wpe', 'ln.g'; not "
        "in the optimizer: 'more', 'wpf'; different: 'h0.w' has shape [23, 89] here and [89, 23] "
        "in the file, 'h0.b' has shape [] here and [1] in the file");
  CHECK(load(false) == "");
  CHECK(report.missing == Names{"wpe", "ln.g"});
  CHECK(report.unexpected == Names{"more", "wpf"});
  CHECK(report.misfits.size() == 2);
}

TEST_CASE("a model is not imported while somebody reads what it would replace") {
  std::string const why = failure(2, [&](auto& optimizer, std::string const& at, int rank) {
    fill_with_sevens(optimizer);
    provide(optimizer, at + "m.safetensors", sound_file(), rank);
    auto const guard = optimizer.parameters(0);
    load_parameters_from(optimizer, at + "m.safetensors");
  });
  check_says(why, "() while the parameters of unit 0 are in use");
}

/// Loads a file and says what went wrong, or hands the optimizer to `look`.
template <class Look>
std::string load_file(std::string const& file, ImportOptions const& options, Look const& look) {
  return failure(2, [&](auto& optimizer, std::string const& at, int rank) {
    provide(optimizer, at + "m.safetensors", file, rank);
    load_parameters_from(optimizer, at + "m.safetensors", options);
    look(optimizer);
  });
}
std::string load_file(std::string const& file, ImportOptions const& options = {}) {
  return load_file(file, options, [](auto& optimizer) {
    CHECK(optimizer.parameter(0)[36 * 5] == toy::initial_value(0, 36 * 5));
    CHECK(optimizer.parameter(10)[5] == toy::initial_value(0, 5));
    CHECK(optimizer.parameter(7)[4096] == toy::initial_value(7, 4096));
    give_zeros(optimizer).step();
  });
}

TEST_CASE("names are mapped, and tied tensors found under any of their names") {
  CHECK(load_file(sound_file()) == "");
  CHECK(load_file(changed_file([](auto& tensors) { tensors[0].name = "head"; })) == "");
  ImportOptions const options{.names = {{"model.wte", "wte"}, {"h1.c", "h2.w"}, {"h2.w", "h1.c"}}};
  CHECK(load_file(changed_file([](auto& tensors) {
                    tensors[0].name = "model.wte";
                    std::swap(tensors[6].name, tensors[7].name);
                  }),
                  options) == "");
  CHECK(load_file(sound_file(), {.names = {{"wpe", "wte"}}}) ==
        "invalid argument: on rank 0: two tensors of the file are called 'wte' here");

  // An alias of another's, whose name is mapped.
  auto [header, data] = parted(changed_file([](auto& tensors) { tensors[0].name = "emb"; }));
  header.metadata["lm"] = "emb";
  std::string const aliased = zero::safetensors::format(header) + data;
  CHECK(load_file(aliased, {.names = {{"lm", "head"}}}) == "");
  CHECK(load_file(aliased) ==
        "data: '@m.safetensors' does not fit this optimizer: not in the file: 'wte'; not in the "
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
  check_says(load_file(both(1.f)),
             "tensors 'wte' and 'head' are tied here, but differ in '@m.safetensors'");
}

TEST_CASE("types that floats do not hold are refused") {
  auto const of = []<class T>(T) { return model_file<T>(toy::model(), toy::initial_value); };
  CHECK(load_file(of(double{}))
            .starts_with("data: '@m.safetensors' does not fit this optimizer: different: 'wte' is "
                         "F64 in the file, and none of F32, F16 and BF16, 'wpe' is F64"));
  CHECK(load_file(of(zero::bf16{}), {}, [](auto& optimizer) {
          auto const expected = static_cast<float>(zero::bf16(toy::initial_value(7, 9)));
          CHECK(optimizer.parameter(7)[9] == expected);
        }) == "");
}

TEST_CASE("whatever operation fails on whatever rank of an import, all say so") {
  for (int failing = 0; failing < 2; ++failing) {
    bool struck = true;
    bool refused_steps = false;
    for (std::size_t at_call = 0; struck; at_call += at_call < 8 ? 1 : 5) {
      CAPTURE(failing);
      CAPTURE(at_call);
      REQUIRE(at_call < 200);
      Files faulty({}, FileFault{.at = at_call});
      std::string const text = failure(2, [&](auto& optimizer, std::string const& at, int rank) {
        std::string const path = at + "m.safetensors";
        toy::load(optimizer);
        provide(optimizer, path, sound_file(), rank);
        try {
          load_parameters_from(optimizer, path, {}, rank == failing ? faulty : zero::disk());
        } catch (zero::Error const&) {
          std::string const said = refusal([&] { give_zeros(optimizer).step(); });
          optimizer.discard_gradients();
          if (rank == 0 && !said.empty()) {
            refused_steps = true;
            check_says(said, "a load failed halfway");
          }
          load_parameters_from(optimizer, path);
          give_zeros(optimizer).step();
          throw;
        }
      });
      struck = faulty.struck() > 0;
      std::string const begin = "resource: on rank " + std::to_string(failing) + ": cannot ";
      CHECK_MESSAGE((text.empty() || text.starts_with(begin)), text);
    }
    CHECK(refused_steps);
  }
}

TEST_CASE("what a failed import has lost stays lost until that tensor is loaded") {
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
      for (bool const from_file : {true, false}) {
        std::string const why = failure(ranks, [&](auto& optimizer, auto const& at, int rank) {
          toy::load(optimizer);
          provide(optimizer, at + "m.safetensors", sound_file(), rank);
          provide(optimizer, at + "others.safetensors", others, rank);
          provide(optimizer, at + "alone.safetensors", alone, rank);
          auto const check_lost = [&](std::string const& text) {
            std::string const lost = "a load failed halfway: the values of tensor '" + text;
            CHECK(refusal([&] { optimizer.step(); }).starts_with(lost));
            check_says(refusal([&] { zero::export_model(optimizer, at + "out"); }), lost);
          };
          // Behind the header, which is read in two.
          Files faulty({}, FileFault{.only = FileCall::read, .at = 4});
          CHECK(
              refusal([&] {
                load_parameters_from(
                    optimizer, at + "m.safetensors", {}, rank == ranks - 1 ? faulty : zero::disk());
              }) == "of another kind");
          check_lost("");
          load_parameters_from(optimizer, at + "others.safetensors", {.strict = false});
          check_lost(name + "' are neither the old nor the new");
          if (from_file) {
            load_parameters_from(optimizer, at + "alone.safetensors", {.strict = false});
          } else {
            toy::load(optimizer);
          }
          give_zeros(optimizer).step();
        });
        CHECK(why == "");
      }
    }
  }
}

using Times = std::map<int, int>;

/// Counts how often each byte is read, and written, by whatever rank.
struct CountingFiles : zero::DiskFiles {
  struct Counts {
    std::mutex mutex{};
    std::vector<int> times{};

    void add(std::size_t bytes, std::uint64_t offset) {
      std::lock_guard const lock(mutex);
      times.resize(std::max(times.size(), static_cast<std::size_t>(offset) + bytes));
      for (std::size_t i = 0; i < bytes; ++i) ++times[static_cast<std::size_t>(offset) + i];
    }
    [[nodiscard]] Times bytes_by_times() const {
      Times all;
      for (int const count : times) ++all[count];
      return all;
    }
  };
  Counts* reads;
  Counts* writes;

  CountingFiles(Counts& of_reads, Counts& of_writes) : reads(&of_reads), writes(&of_writes) {}

  zero::FileAnswer read(zero::FileAnswer file,
                        void* to,
                        std::size_t bytes,
                        std::uint64_t offset) override {
    reads->add(bytes, offset);
    return DiskFiles::read(file, to, bytes, offset);
  }
  zero::FileAnswer write(zero::FileAnswer file,
                         void const* of,
                         std::size_t bytes,
                         std::uint64_t offset) override {
    writes->add(bytes, offset);
    return DiskFiles::write(file, of, bytes, offset);
  }
};

/// How many bytes of a file are written and read how often, by all of three ranks together.
template <class Stage, class Precision>
std::pair<Times, Times> accesses() {
  using Optimizer = contracts::Optimizer<Stage, Precision>;
  CountingFiles::Counts reads;
  CountingFiles::Counts writes;
  with_ranks<Optimizer>(3, [&](auto& optimizer, std::string const& at, auto&) {
    toy::load(optimizer);
    CountingFiles files(reads, writes);
    zero::export_model(optimizer, at + "m.safetensors", {}, files);
    load_parameters_from(optimizer, at + "m.safetensors", {}, files);
  });
  return {writes.bytes_by_times(), reads.bytes_by_times()};
}

TEST_CASE("each byte is written by one rank, and read by those that hold or check it") {
  constexpr int elements = 7924;
  int const header = static_cast<int>(toy_file<zero::Fp32, float>().size()) - 4 * elements;
  auto const replicated = accesses<Replicated, zero::Fp32>();
  CHECK(replicated.first == Times{{1, 4 * elements + header}});
  CHECK(replicated.second == Times{{3, 4 * elements + header}});
  // The rank that holds an element, frozen or not, and the one before it.
  auto const partitioned = accesses<PosGP, zero::Fp32>();
  CHECK(partitioned.first == Times{{1, 4 * elements + header}});
  CHECK(partitioned.second == Times{{2, 4 * elements}, {3, header}});
  // Parameters that have masters beside them.
  int const narrow = static_cast<int>(toy_file<Bf16, zero::bf16>().size());
  CHECK(accesses<Replicated, Bf16>().first == Times{{1, narrow}});
  CHECK(accesses<PosGP, Bf16>().first == Times{{1, narrow}});
}

}  // namespace
}  // namespace import_test
