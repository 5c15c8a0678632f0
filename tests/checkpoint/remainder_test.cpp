// Checkpoints and model files of masters that are held as remainders: they have fp32 masters, as
// those of every mixed precision, and each of these loads the others'.
#include "checkpoint/proof.hpp"
#include "zero/checkpoint/offline.hpp"

namespace remainder_checkpoint_test {
namespace {

using namespace checkpoint_tests;
using namespace zero::stage;
using zero::bf16;
using zero::Checkpoints;
using zero::InProcess;
using Away = zero::Mixed<bf16, zero::HalfAway>;
using Rest = zero::Mixed<bf16, zero::Rest16>;
using Even = zero::Mixed<bf16>;
using Short = zero::Mixed<bf16, zero::Rest8>;
using None = zero::Bf16<zero::StochasticRounding>;
template <class Stage, class Precision>
using Optimizer = zero::ShardedOptimizer<InProcess, Stage, Precision>;

/// Calls `body(optimizer, rank)` on so many ranks, whose optimizers have values.
template <class Stage, class Precision, class Body>
void run(int ranks, zero::Bucket bucket, Body const& body) {
  zero::run_ranks(ranks, [&](InProcess& comm) {
    Optimizer<Stage, Precision> optimizer{comm, toy::model(), bucket};
    toy::load(optimizer);
    body(optimizer, comm.rank());
  });
}
/// @param weight  of this rank; where one alone has any, sums are the same on any number of ranks
template <class O>
void train(O& optimizer, long step, double weight = 1.) {
  optimizer.micro_step({.weight = weight});
  for (int const unit : optimizer.units_backward()) {
    auto gradients = optimizer.gradients(unit);
    std::size_t use = 0;
    for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
      if (optimizer.tensors()[t].unit != unit) continue;
      auto const gradient = gradients[use++];
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] +=
            weight == 0. ? 0.f : toy::uniform(t, i, static_cast<std::uint64_t>(step)) - 0.5f;
      }
    }
    optimizer.reduce(std::move(gradients));
  }
  optimizer.step();
}

/// Values of all tensors, by name and array, put together from all ranks.
using Arrays = std::map<std::string, std::vector<float>>;
template <class O>
void collect(O& optimizer, Arrays& all, std::mutex& mutex) {
  std::lock_guard const lock(mutex);
  optimizer.visit_owned(
      [&](zero::Tensor const& tensor, std::size_t first, auto masters, auto const& states) {
        auto const add = [&](std::string const& array, auto const& values) {
          auto& to = all[tensor.name + ":" + array];
          to.resize(zero::element_count(tensor));
          std::transform(values.begin(),
                         values.end(),
                         to.begin() + static_cast<std::ptrdiff_t>(first),
                         [](auto each) { return static_cast<float>(each); });
        };
        add("master", masters);
        for (std::size_t k = 0; k < states.size(); ++k) add(std::to_string(k), states[k]);
      });
}
template <class O>
std::vector<std::byte> parameters_of(O& optimizer) {
  std::vector<std::byte> bits;
  auto const all = optimizer.full_parameters();
  for (std::size_t t = 0; t < all.size(); ++t) {
    auto const bytes = std::as_bytes(all[t]);
    bits.insert(bits.end(), bytes.begin(), bytes.end());
  }
  return bits;
}

/// What a run has after some steps, and what it wrote.
struct Saved {
  Arrays arrays{};
  std::vector<std::byte> parameters{};
  std::map<std::string, std::string> files{};  ///< by what was asked for: the bytes
};
template <class Stage, class Precision>
Saved save(int ranks, std::string const& directory, bool async = false) {
  Saved saved;
  std::mutex mutex;
  std::string path;
  run<Stage, Precision>(ranks, zero::Bucket{1}, [&](auto& optimizer, int rank) {
    for (long step = 0; step < 3; ++step) train(optimizer, step);
    Checkpoints run{directory, {.snapshot_bytes = Checkpoints::plan(optimizer)}};
    std::string written;
    if (async) {
      run.save_async(optimizer);
      train(optimizer, 99);  // changes what was copied, not the copy
      written = run.finish()->path;
      static_cast<void>(run.resume(optimizer));
    } else {
      written = run.save(optimizer).path;
    }
    collect(optimizer, saved.arrays, mutex);
    zero::export_model(optimizer, directory + "/parameters.safetensors");
    zero::export_model(
        optimizer, directory + "/masters.safetensors", {.dtype = zero::ExportDType::master});
    auto const own = parameters_of(optimizer);
    if (rank == 0) saved.parameters = own;
    if (rank == 0) path = written;
  });
  for (char const* const name : {"parameters", "masters"}) {
    saved.files[name] = slurp(directory + "/" + name + ".safetensors");
  }
  // Without an optimizer the same masters come of the checkpoint.
  std::string const other = directory + "/other.safetensors";
  zero::export_checkpoint(path, other, {.dtype = zero::ExportDType::master});
  CHECK(slurp(other) == saved.files["masters"]);
  zero::export_checkpoint(path, other);
  CHECK(slurp(other) == saved.files["parameters"]);
  return saved;
}
/// Loads it, and compares what came.
/// @param exact  parameters are to be equal as well
template <class Stage, class Precision>
void load(Saved const& saved, int ranks, std::string const& directory, bool exact) {
  CAPTURE(ranks);
  Arrays arrays;
  std::mutex mutex;
  run<Stage, Precision>(ranks, zero::Bucket{4096}, [&](auto& optimizer, int) {
    auto const report = Checkpoints{directory}.resume(optimizer);
    bool const loaded = report.has_value();
    collect(optimizer, arrays, mutex);
    optimizer.check_parameters();
    auto const own = parameters_of(optimizer);
    std::lock_guard const lock(mutex);
    CHECK(loaded);
    if (exact) CHECK(own == saved.parameters);
  });
  CHECK(arrays == saved.arrays);
}

}  // namespace

TEST_CASE("remainders are saved as fp32 masters, and load under any stage on any number of ranks") {
  for (bool const async : {false, true}) {
    CAPTURE(async);
    TemporaryDirectory const directory;
    TemporaryDirectory const other;
    Saved const rests = save<PosGP, Rest>(3, directory.path(), async);
    Saved const fp32 = save<PosGP, Away>(3, other.path());
    CHECK(rests.arrays == fp32.arrays);
    CHECK(rests.parameters == fp32.parameters);
    CHECK(rests.files == fp32.files);
    load<Replicated, Rest>(rests, 1, directory.path(), true);
    load<PosG, Rest>(rests, 2, directory.path(), true);
    load<PosGP, Away>(rests, 5, directory.path(), true);
    load<PosGP, Rest>(fp32, 2, other.path(), true);
  }
}

TEST_CASE("each mixed precision loads the others' checkpoints, with the masters' bits") {
  TemporaryDirectory const directory;
  Saved const rests = save<PosG, Rest>(2, directory.path());
  load<Pos, Even>(rests, 3, directory.path(), false);
  TemporaryDirectory const other;
  Saved const even = save<PosG, Even>(2, other.path());
  load<Pos, Rest>(even, 3, other.path(), false);
  load<PosGP, Away>(even, 3, other.path(), false);
  run<Pos, Rest>(1, zero::Bucket{1}, [&](auto& optimizer, int) {
    auto const report = Checkpoints{other.path()}.resume(optimizer);
    REQUIRE(report.has_value());
    REQUIRE(report->differing.size() == 1);
    check_says(report->differing[0], "\"bf16\" saved, \"bf16 rest16\" here");
  });
}

TEST_CASE("more masters than a piece of a file has, and from fp32 parameters") {
  TemporaryDirectory const directory;
  std::vector<zero::Tensor> const model{{.name = "w", .shape = {300'001}}};
  auto const value = [](std::size_t i) { return toy::initial_value(1, i); };
  auto const fill = [&](zero::Tensor const&, std::size_t first, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = value(first + i);
  };
  zero::run_ranks(2, [&](InProcess& comm) {
    Optimizer<PosG, zero::Fp32> optimizer{comm, model};
    optimizer.load_parameters(fill);
    Checkpoints{directory.path()}.save(optimizer);
  });
  zero::run_ranks(3, [&](InProcess& comm) {
    Optimizer<Pos, Rest> optimizer{comm, model};
    static_cast<void>(Checkpoints{directory.path()}.resume(optimizer));
    std::size_t wrong = 0;
    optimizer.visit_owned([&](zero::Tensor const&, std::size_t first, auto masters, auto const&) {
      for (std::size_t i = 0; i < masters.size(); ++i) wrong += masters[i] != value(first + i);
    });
    CHECK(wrong == 0);
  });
}

namespace {

/// Rounded as what is loaded is: to nearest, to 24 bits or to bf16.
template <class Precision>
float narrowed(float x) {
  if constexpr (std::is_same_v<Precision, None>) return static_cast<float>(bf16(x));
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + 0x80u) & ~0xffu);
}

/// What two runs have that go on from one checkpoint to step 6, one of them without a stop.
template <class Stage, class Precision>
void resume(int ranks, zero::Bucket bucket, std::string const& directory, Arrays const& wanted) {
  CAPTURE(ranks);
  Arrays arrays;
  std::mutex mutex;
  zero::run_ranks(ranks, [&](InProcess& comm) {
    Optimizer<Stage, Precision> optimizer{comm, toy::model(), bucket, zero::Seed{8}};
    auto const report = Checkpoints{directory}.resume(optimizer);
    bool const listed = report && report->differing.size() == 1;
    std::string const said = listed ? report->differing[0] : "";
    for (long step = 3; step < 6; ++step) train(optimizer, step, comm.rank() == 0 ? 1. : 0.);
    collect(optimizer, arrays, mutex);
    // As the next checkpoint has it.
    Checkpoints{directory + "/more"}.save(optimizer);
    std::lock_guard const lock(mutex);
    check_says(said, "seed: 7 saved, 8 here; the run goes on with the saved one");
  });
  CHECK(arrays == wanted);
}

}  // namespace

TEST_CASE_TEMPLATE("what rounds stochastically goes on with the checkpoint's seed, and its bits",
                   Precision,
                   Short,
                   None) {
  TemporaryDirectory const directory;
  Arrays wanted;
  std::mutex mutex;
  zero::run_ranks(3, [&](InProcess& comm) {
    Optimizer<PosGP, Precision> whole{comm, toy::model(), zero::Bucket{1}, zero::Seed{7}};
    toy::load(whole);
    for (long step = 0; step < 6; ++step) {
      train(whole, step, comm.rank() == 0 ? 1. : 0.);
      if (step == 2) Checkpoints{directory.path()}.save(whole);
    }
    collect(whole, wanted, mutex);
  });
  resume<Replicated, Precision>(1, zero::Bucket{4096}, directory.path(), wanted);
  resume<PosG, Precision>(2, zero::Bucket{1}, directory.path(), wanted);
  resume<PosGP, Precision>(5, zero::Bucket{zero::MiB}, directory.path(), wanted);
  // One that is resumed has the seed that it goes on with.
  run<Pos, Precision>(1, zero::Bucket{1}, [&](auto& optimizer, int) {
    auto const report = Checkpoints{directory.path() + "/more"}.resume(optimizer);
    REQUIRE(report.has_value());
    REQUIRE(report->differing.size() == 1);
    check_says(report->differing[0], "seed: 7 saved, 0 here");
    auto const parameters =
        Checkpoints{directory.path()}.resume(optimizer, {.parameters_only = true});
    REQUIRE(parameters.has_value());
    CHECK(parameters->differing.empty());
  });
}

TEST_CASE_TEMPLATE("masters of fewer bits are loaded to nearest, and saved as they are",
                   Precision,
                   Short,
                   None) {
  TemporaryDirectory const directory;
  Saved const even = save<PosG, Even>(2, directory.path());
  Arrays arrays;
  std::mutex mutex;
  run<PosGP, Precision>(3, zero::Bucket{4096}, [&](auto& optimizer, int) {
    static_cast<void>(Checkpoints{directory.path()}.resume(optimizer));
    collect(optimizer, arrays, mutex);
    optimizer.check_parameters();
  });
  std::size_t wrong = 0;
  for (auto const& [name, values] : even.arrays) {
    bool const master = name.find(":master") != std::string::npos;
    for (std::size_t i = 0; i < values.size(); ++i) {
      float const here = arrays[name][i];
      bool const narrow = master || std::is_same_v<Precision, None>;
      wrong += here != (narrow ? narrowed<Precision>(values[i]) : values[i]) ? 1u : 0u;
    }
  }
  CHECK(wrong == 0);
  TemporaryDirectory const other;
  Saved const narrow = save<PosG, Precision>(2, other.path());
  load<Pos, Even>(narrow, 3, other.path(), false);
  load<PosGP, Precision>(narrow, 3, other.path(), true);
  if constexpr (std::is_same_v<Precision, Short>) load<Pos, Rest>(narrow, 1, other.path(), true);
}

}  // namespace remainder_checkpoint_test
