// What values become that a type here cannot hold exactly: the same in whatever way they come in,
// also where nothing but the parameter keeps them, as with frozen tensors.
#include "checkpoint/proof.hpp"
#include "checkpoint/stored_model.hpp"
#include "zero/checkpoint/import.hpp"
#include "zero/checkpoint/offline.hpp"

namespace rounding_test {
namespace {

using namespace checkpoint_tests;
using namespace zero::stage;
using zero::bf16;
using zero::Checkpoints;
using zero::fp16;
using zero::InProcess;
using Even = zero::Mixed<bf16>;
using Away = zero::Mixed<bf16, zero::HalfAway>;
using Half = zero::Mixed<fp16>;
using Rest = zero::Mixed<bf16, zero::Rest16>;
using Short = zero::Mixed<bf16, zero::Rest8>;
using Behind = zero::ByTensor<zero::Fp32, Rest>;
using Tensors = std::vector<zero::Tensor>;
template <class Stage, class Precision>
using Optimizer = zero::ShardedOptimizer<InProcess, Stage, Precision>;

/// What the trainer has: frozen tensors of bf16, and of types that no precision has.
Tensors model() {
  constexpr auto half = zero::DType::bf16;
  return {{.name = "a", .shape = {700}, .dtype = half},
          {.name = "base", .shape = {50, 9}, .dtype = half, .frozen = true},
          {.name = "again",
           .shape = {50, 9},
           .unit = 1,
           .dtype = half,
           .frozen = true,
           .tied_to = "base"},
          {.name = "layers",
           .shape = {3, 70},
           .unit = 1,
           .dtype = half,
           .frozen = true,
           .stacked = true},
          {.name = "mask", .shape = {90}, .unit = 1, .dtype = half, .frozen = true, .whole = true},
          {.name = "wide", .shape = {80}, .unit = 2, .dtype = zero::DType::f32, .frozen = true},
          {.name = "fp16", .shape = {80}, .unit = 2, .dtype = zero::DType::f16, .frozen = true}};
}
/// The same tensors for an optimizer of one type, which trains them or not.
Tensors plain(bool frozen) {
  Tensors tensors = model();
  for (zero::Tensor& tensor : tensors) {
    tensor.dtype = {};
    tensor.frozen = tensor.frozen && frozen;
    tensor.whole = tensor.frozen && tensor.whole;
  }
  return tensors;
}

/// In the middle of two bf16 or of two fp16, just beside it, or anywhere.
float value(std::string const& tensor, std::size_t i) {
  std::uint64_t const t = tensor == "again" ? 'b' : static_cast<unsigned char>(tensor[0]);
  auto const bits = std::bit_cast<std::uint32_t>(toy::initial_value(t, i));
  auto const middle = (bits & 0xffff0000u) | 0x8000u;
  switch (i % 6) {
    case 0:
    case 1: return std::bit_cast<float>(middle);
    case 2: return std::bit_cast<float>(middle - 0x70u);  // a middle for 24 bits
    case 3: return std::bit_cast<float>(middle - 1u);
    case 4: return std::bit_cast<float>((bits & 0xffffe000u) | 0x1000u);
    default: return std::bit_cast<float>(bits);
  }
}
/// One that is the same when it is rounded to float.
double wider(std::string const& tensor, std::size_t i) {
  double const x{value(tensor, i)};
  return i % 2 == 0 ? x * (1 - 0x1p-30) : x;
}

/// The nearest bf16: of two as near the even one, or of floats the one of larger magnitude. Found
/// by looking at both neighbours.
template <class Precision>
float nearest(double x) {
  constexpr bool away = !std::same_as<Precision, Even>;
  auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  if (std::same_as<Precision, Short>) bits = (bits + 0x80u) & ~0xffu;
  if (away) x = double{std::bit_cast<float>(bits)};
  std::uint32_t const cut = bits & 0xffff0000u;
  auto const low = std::bit_cast<float>(cut);
  auto const high = std::bit_cast<float>(cut + 0x10000u);
  double const below = std::abs(x - double{low});
  double const above = std::abs(double{high} - x);
  bool const down = below < above || (below == above && !away && (cut >> 16) % 2 == 0);
  return down ? low : high;
}
/// The precision that tensors of bf16 have.
template <class P>
struct OfBf16 {
  using Type = P;
};
template <>
struct OfBf16<Behind> {
  using Type = Rest;
};

/// What a checkpoint has that was saved with `Source`: doubles that float rounds to middles, or
/// middles of bf16 that fp16 has as well.
template <class Source>
double given(std::string const& tensor, std::size_t i) {
  if constexpr (std::same_as<Source, zero::Fp64>) return wider(tensor, i);
  if constexpr (std::same_as<Source, Half>)
    return double{static_cast<float>(fp16(value(tensor, i)))};
  return double{value(tensor, i)};
}
template <class Source, class Out>
void fill(zero::Tensor const& tensor, std::size_t first, std::span<Out> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<Out>(given<Source>(tensor.name, first + i));
  }
}

/// Which tensors do not have what was given, rounded; empty if all are right.
template <class Precision, class Source = zero::Fp32, class O>
std::string wrong(O& optimizer) {
  std::string names;
  auto const all = optimizer.full_parameters();
  for (zero::Tensor const& tensor : optimizer.tensors()) {
    auto const check = [&](auto const& own, auto const& rounded) {
      bool same = own.size() == zero::element_count(tensor);
      for (std::size_t i = 0; same && i < own.size(); ++i) {
        double const x = given<Source>(tensor.name, i);
        // What is trained has a master of float in between.
        double const from = tensor.frozen ? x : double{static_cast<float>(x)};
        same = static_cast<float>(own[i]) == rounded(from);
      }
      if (!same) names += tensor.name + " ";
    };
    switch (*tensor.dtype) {
      case zero::DType::f32:
        check(all.template as<float>(tensor.name), [](double x) { return static_cast<float>(x); });
        break;
      case zero::DType::f16:
        check(all.template as<fp16>(tensor.name),
              [](double x) { return static_cast<float>(zero::kernel::detail::convert<fp16>(x)); });
        break;
      default: check(all.template as<bf16>(tensor.name), nearest<typename OfBf16<Precision>::Type>);
    }
  }
  return names;
}

/// A checkpoint of such values.
template <class Source>
std::string saved(std::string const& path, bool frozen) {
  zero::run_ranks(2, [&](InProcess& comm) {
    Optimizer<PosG, Source> source{comm, plain(frozen)};
    source.load_parameters([](zero::Tensor const& tensor, std::size_t first, auto out) {
      fill<Source>(tensor, first, out);
    });
    Checkpoints{path}.save(source);
  });
  return path;
}

/// Calls `give(optimizer)` for new optimizers, and looks at what they have.
template <class Precision, class Source, class Give>
void check(std::string const& way, Give const& give) {
  CAPTURE(way);
  auto const on = [&]<class Stage>(Stage, int ranks) {
    CAPTURE(std::string(Stage::name));
    CAPTURE(ranks);
    std::vector<std::string> found(static_cast<std::size_t>(ranks));
    zero::run_ranks(ranks, [&](InProcess& comm) {
      Optimizer<Stage, Precision> optimizer{comm, model(), zero::Bucket{1}};
      give(optimizer);
      found[static_cast<std::size_t>(comm.rank())] = wrong<Precision, Source>(optimizer);
    });
    for (std::string const& each : found) CHECK(each == "");
  };
  for (int const ranks : {1, 3}) {
    on(Replicated{}, ranks);
    on(PosGP{}, ranks);
  }
}

TEST_CASE_TEMPLATE("values become the same in whatever way they come, frozen or not",
                   Precision,
                   Even,
                   Away,
                   Rest,
                   Short,
                   Behind) {
  using zero::Fp32;
  CAPTURE(std::string(Precision::name));
  TemporaryDirectory const directory;
  std::string const at = directory.path() + "/";
  auto const give = [](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
    fill<Fp32>(tensor, first, out);
  };
  check<Precision, Fp32>("load", [&](auto& o) { o.load_parameters(give); });
  check<Precision, Fp32>("broadcast", [&](auto& o) { o.broadcast_parameters(give); });
  spill(at + "m.safetensors", model_file<float>(plain(true), [](std::size_t t, std::size_t i) {
          return value(model()[t].name, i);
        }));
  check<Precision, Fp32>("import",
                         [&](auto& o) { zero::load_parameters_from(o, at + "m.safetensors"); });
  auto const resume = [&]<class Source>(Source, std::string const& way, bool frozen) {
    std::string const run = saved<Source>(at + way, frozen);
    for (bool const verify : {false, true}) {
      check<Precision, Source>(way, [&](auto& o) {
        zero::LoadOptions const options{.parameters_only = true, .verify_first = verify};
        static_cast<void>(Checkpoints{run}.resume(o, options).value());
      });
    }
  };
  // What is exported without an optimizer is what it would have exported.
  zero::run_ranks(3, [&](InProcess& comm) {
    Optimizer<PosGP, Precision> optimizer{comm, model(), zero::Bucket{1}};
    optimizer.load_parameters(give);
    zero::export_model(optimizer, at + "live.safetensors");
    Checkpoints{at + "run"}.save(optimizer);
  });
  std::string const path = Checkpoints{at + "run"}.latest()->path;
  zero::export_checkpoint(path, at + "offline.safetensors");
  CHECK(slurp(at + "offline.safetensors") == slurp(at + "live.safetensors"));
  resume(zero::Fp32{}, "fp32, trained", false);
  resume(zero::Fp32{}, "fp32, frozen", true);
  resume(zero::Fp64{}, "fp64, trained", false);
  resume(zero::Fp64{}, "fp64, frozen", true);
  resume(Half{}, "fp16, frozen", true);
}

TEST_CASE(
    "frozen tensors that are tied here may differ in the file, if what they become does not") {
  Tensors const tied{{.name = "t", .shape = {4}},
                     {.name = "a", .shape = {5}, .frozen = true},
                     {.name = "b", .shape = {5}, .frozen = true, .tied_to = "a"}};
  Tensors apart = tied;
  apart.back().tied_to = "";
  TemporaryDirectory const directory;
  // Half way up from an even bf16, and the one above.
  constexpr float middle = 1.00390625f;
  constexpr float above = 1.0078125f;
  zero::run_ranks(1, [&](InProcess& comm) {
    Optimizer<Pos, zero::Fp32> source{comm, apart};
    source.load_parameters([&](zero::Tensor const& tensor, std::size_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), tensor.name == "a" ? middle : above);
    });
    Checkpoints{directory.path()}.save(source);
  });
  auto const told = [&]<class Precision>(Precision) {
    return failure_of_all(3, [&](InProcess& comm) {
      Optimizer<PosGP, Precision> optimizer{comm, tied, zero::Bucket{1}};
      static_cast<void>(Checkpoints{directory.path()}.resume(optimizer, {.parameters_only = true}));
      auto const all = optimizer.full_parameters();
      CHECK(static_cast<float>(all["b"][4]) == above);
    });
  };
  CHECK(told(Away{}) == "");
  CHECK(told(Rest{}) == "");
  check_says(told(Even{}), "'a' and 'b', which are tied here, have different values");
}

}  // namespace
}  // namespace rounding_test
