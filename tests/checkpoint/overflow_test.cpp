// Finite values that would become infinite in the type of an array: refused by name, or saturated.
#include "checkpoint/proof.hpp"
#include "checkpoint/stored_model.hpp"
#include "zero/checkpoint/export.hpp"
#include "zero/checkpoint/import.hpp"
#include "zero/checkpoint/offline.hpp"

namespace overflow_test {
namespace {

using namespace checkpoint_tests;
using zero::bf16;
using zero::fp16;
using zero::InProcess;
using zero::MixedFloatGradients;
using zero::Overflow;
using Short = zero::Mixed<bf16, zero::Rest8>;
using namespace zero::stage;

/// Masters and values in double, parameters in something narrower.
template <class P>
struct WideMaster {
  static constexpr std::string_view name = "wide master";
  using Parameter = P;
  using Wire = float;
  using Accumulate = float;
  using Master = double;
  using State = double;
  static constexpr bool loss_scaled = false;
  friend constexpr bool operator==(WideMaster const&, WideMaster const&) = default;
};

template <class Precision, class Stage>
using Optimizer = zero::ShardedOptimizer<InProcess, Stage, Precision>;

std::vector<zero::Tensor> model() {
  return {{.name = "w", .shape = {700}, .unit = 0},
          {.name = "fixed", .shape = {40}, .unit = 0, .frozen = true},
          {.name = "v", .shape = {30, 10}, .unit = 1}};
}

/// What a row of the table is about: a type, and where it ends.
template <class P>
struct Row {
  using Precision = P;
  using Value = std::conditional_t<std::same_as<typename P::Master, double>, double, float>;
  /// What a checkpoint of such values was saved with.
  using Source = std::conditional_t<std::same_as<Value, double>, zero::Fp64, zero::Fp32>;
  std::string type;
  double largest = 0.;  ///< finite number of the type
  Value first = 0;      ///< the least that it rounds to infinity

  [[nodiscard]] Value last() const { return std::nextafter(first, Value(0)); }
  [[nodiscard]] std::string refusal() const {
    return "element 5 of tensor 'w' is " + zero::Message{double{first}}.text() +
           ", which would become infinite in " + type +
           "; with overflow = saturate (a policy, and an option of loads and exports) it becomes " +
           zero::Message{largest}.text();
  }
};

/// What is given, with `large` in some places. Others are exact in every type.
template <class Value>
Value given(std::size_t t, std::size_t i, Value large) {
  using Limits = std::numeric_limits<Value>;
  bool const first = (t == 0 && i == 5) || (t == 1 && i == 3) || (t == 2 && i == 299);
  if (first || (t == 0 && i == 650)) return first ? large : -large;
  if (i == 7 || i == 8) return i == 7 ? Limits::infinity() : -Limits::infinity();
  if (i == 9) return Limits::quiet_NaN();
  return static_cast<Value>(i % 64) / 64 - Value(0.5);
}
template <class O, class Value>
void load(O& optimizer, Value large) {
  optimizer.load_parameters([&](zero::Tensor const& tensor, std::size_t first, auto out) {
    auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
    using Held = typename decltype(out)::value_type;
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<Held>(given(t, first + i, large));
  });
}

/// The ways in which values come.
enum class Call : std::uint8_t { load, load_spans, import, resume, verified, fill, broadcast };
constexpr Call calls[] = {Call::load,
                          Call::load_spans,
                          Call::import,
                          Call::resume,
                          Call::verified,
                          Call::fill,
                          Call::broadcast};

/// Gives an optimizer such values in one of the ways.
/// @param at  a directory that has them in files
template <class O, class Value>
void give(O& optimizer, Call call, Overflow overflow, std::string const& at, Value large) {
  auto const index = [&](zero::Tensor const& tensor) {
    return static_cast<std::size_t>(&tensor - optimizer.tensors().data());
  };
  switch (call) {
    case Call::load: return load(optimizer, large);
    case Call::load_spans: {
      std::vector<std::vector<Value>> whole;
      for (zero::Tensor const& tensor : optimizer.tensors()) {
        auto& values = whole.emplace_back();
        for (std::size_t i = 0; i < element_count(tensor); ++i)
          values.push_back(given(index(tensor), i, large));
      }
      std::vector<std::span<Value const>> const spans(whole.begin(), whole.end());
      return optimizer.load_parameters(spans);
    }
    case Call::import: {
      zero::ImportOptions options;
      options.overflow = overflow;
      zero::load_parameters_from(optimizer, at + "/m.safetensors", options);
      return;
    }
    case Call::resume:
    case Call::verified: {
      zero::LoadOptions options{.verify_first = call == Call::verified};
      options.overflow = overflow;
      static_cast<void>(zero::Checkpoints{at}.resume(optimizer, options).value());
      return;
    }
    case Call::fill:
      return optimizer.fill_owned(
          [&](zero::Tensor const& tensor, std::size_t first, auto masters, auto const&) {
            for (std::size_t i = 0; i < masters.size(); ++i)
              masters[i] = given(index(tensor), first + i, large);
          });
    case Call::broadcast:
      return optimizer.broadcast_parameters(
          [&](zero::Tensor const& tensor, std::size_t first, std::span<Value> out) {
            for (std::size_t i = 0; i < out.size(); ++i)
              out[i] = given(index(tensor), first + i, large);
          });
  }
}

/// Files with such values.
template <class R>
void provide_files(std::string const& at, typename R::Value large) {
  using Value = typename R::Value;
  std::filesystem::create_directory(at);
  spill(at + "/m.safetensors", model_file<Value>(model(), [&](std::size_t t, std::size_t i) {
          return given(t, i, large);
        }));
  zero::run_ranks(2, [&](InProcess& comm) {
    Optimizer<typename R::Source, PosG> source{comm, model()};
    load(source, large);
    zero::Checkpoints{at}.save(source);
  });
}

template <class A, class B>
bool same(A a, B b) {
  auto const x = zero::kernel::detail::convert<double>(a);
  auto const y = zero::kernel::detail::convert<double>(b);
  return std::isnan(x) ? std::isnan(y) : x == y;
}

/// A master of that value, as a precision loads it.
template <class P, class Value>
Value held(Value x) {
  if constexpr (std::same_as<P, Short>) {
    auto const bits = std::bit_cast<std::uint32_t>(x);
    return std::isnan(x) ? x : std::bit_cast<Value>((bits + 0x80u) & 0xffffff00u);
  }
  return x;
}

/// Are parameters and masters what was given, with `taken` in place of what was large?
template <class P, class O, class Value>
bool holds(O& optimizer, Value taken, bool frozen) {
  bool right = true;
  {
    auto const all = optimizer.full_parameters();
    for (std::size_t t = 0; t < 3; ++t) {
      if (t == 1 && !frozen) continue;
      for (std::size_t i = 0; i < all[t].size(); ++i) {
        Value const expected = held<P>(given(t, i, taken));
        auto const rounded = zero::kernel::detail::convert<typename P::Parameter>(expected);
        right = right && same(all[t][i], rounded);
      }
    }
  }
  optimizer.visit_owned(
      [&](zero::Tensor const& tensor, std::size_t first, auto masters, auto const&) {
        auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
        for (std::size_t i = 0; i < masters.size(); ++i)
          right = right && same(masters[i], held<P>(given(t, first + i, taken)));
      });
  return right;
}

template <class Stage, class P>
void check_row(Row<P> const& row, std::string const& fits, std::string const& large) {
  using R = Row<P>;
  using Value = typename R::Value;
  auto const top = static_cast<Value>(row.largest);
  for (int ranks = 1; ranks <= 3; ++ranks) {
    for (Call const call : calls) {
      CAPTURE(ranks);
      CAPTURE(int(call));
      CAPTURE(std::string(Stage::name));
      CAPTURE(row.type);
      bool const frozen = call != Call::fill;
      std::vector<std::string> told(static_cast<std::size_t>(ranks));
      std::vector<std::string> later(told);
      std::vector<char> passes(told.size()), goes_on(told.size()), saturates(told.size());
      zero::run_ranks(ranks, [&](InProcess& comm) {
        auto const r = static_cast<std::size_t>(comm.rank());
        Optimizer<P, Stage> refusing{comm, model(), zero::Bucket{1}};
        load(refusing, Value(1));
        give(refusing, call, Overflow::refuse, fits, row.last());
        passes[r] = holds<P>(refusing, row.last(), frozen);
        told[r] = refusal([&] { give(refusing, call, Overflow::refuse, large, row.first); });
        later[r] = refusal([&] { zero::export_model(refusing, fits + "/none.safetensors"); });
        load(refusing, Value(1));
        goes_on[r] = holds<P>(refusing, Value(1), true);
        Optimizer<P, Stage> saturating{comm, model(), zero::Bucket{1}, Overflow::saturate};
        load(saturating, Value(1));
        give(saturating, call, Overflow::saturate, large, row.first);
        saturates[r] = holds<P>(saturating, top, frozen);
      });
      for (std::size_t r = 0; r < told.size(); ++r) {
        CHECK(passes[r]);
        CHECK(goes_on[r]);
        CHECK(saturates[r]);
        CHECK(told[r] == told[0]);
        if (call == Call::resume || call == Call::verified) {
          // Ranks look at files side by side: the first of them that finds something says so.
          CHECK(told[r].rfind("on rank ", 0) == 0);
          check_says(told[r],
                     ", which would become infinite in " + row.type + "; with overflow = ");
        } else {
          CHECK(told[r] == row.refusal());
        }
        if (call == Call::verified) {
          CHECK(later[r] == "");  // nothing was changed
        } else {
          check_says(later[r], "a load failed halfway: the values of tensor 'w'");
        }
      }
    }
  }
}

template <class P>
void check(std::string const& type, double largest, double first) {
  using R = Row<P>;
  R const row{type, largest, static_cast<typename R::Value>(first)};
  TemporaryDirectory const directory;
  std::string const fits = directory.path() + "/fits";
  std::string const large = directory.path() + "/large";
  provide_files<R>(fits, row.last());
  provide_files<R>(large, row.first);
  check_row<Replicated>(row, fits, large);
  check_row<Pos>(row, fits, large);
  check_row<PosG>(row, fits, large);
  check_row<PosGP>(row, fits, large);
}

TEST_CASE("floats that fp16 cannot hold") {
  check<MixedFloatGradients<fp16>>("fp16", 65504., 65520.);
}
TEST_CASE("floats that bf16 cannot hold") {
  check<MixedFloatGradients<bf16>>("bf16", 0x1.FEp127, 0x1.FFp127);
}
TEST_CASE("doubles that float cannot hold") {
  check<WideMaster<float>>("fp32", 0x1.FFFFFEp127, 0x1.FFFFFFp127);
}
TEST_CASE("doubles that bf16 cannot hold") {
  check<WideMaster<bf16>>("bf16", 0x1.FEp127, 0x1.FFp127);
}

TEST_CASE("floats that bf16 cannot hold once they have 24 bits") {
  check<Short>("bf16", 0x1.FEp127, 0x1.FEFFp127);
}

/// Which of these words are refused as values of a trained tensor, and of a frozen one.
template <class P>
std::vector<bool> refused(std::vector<std::uint32_t> const& words) {
  std::vector<bool> found;
  for (bool const frozen : {false, true}) {
    zero::Self comm;
    zero::ShardedOptimizer<zero::Self, Pos, P> optimizer{
        comm, {{.name = "w", .shape = {3}, .frozen = frozen}, {.name = "v", .shape = {1}}}};
    for (std::uint32_t const word : words) {
      found.push_back(!refusal([&] {
                         optimizer.load_parameters([&](auto const&, std::size_t, auto out) {
                           std::ranges::fill(out, 0.f);
                           if (out.size() == 3) out[1] = std::bit_cast<float>(word);
                         });
                       }).empty());
    }
  }
  return found;
}

TEST_CASE("the words of 24-bit masters whose parameters would be infinite, to both ends") {
  std::vector<std::uint32_t> const words{0x7f7f7f7f,
                                         0x7f7f7f80,
                                         0x7f7f7fff,
                                         0xff7f7f7f,
                                         0xff7f7f80,
                                         0xff7f7fff,
                                         0x7f7f8000,
                                         0xff7fffff};
  std::vector<bool> const fewer{false, true, true, false, true, true, true, true};
  std::vector<bool> const all{false, false, false, false, false, false, true, true};
  auto const twice = [](std::vector<bool> some) {
    some.insert(some.end(), some.begin(), some.end());
    return some;
  };
  CHECK(refused<Short>(words) == twice(fewer));
  CHECK(refused<zero::Mixed<bf16, zero::Rest16>>(words) == twice(all));
  CHECK(refused<zero::Mixed<bf16, zero::HalfAway>>(words) == twice(all));
  CHECK(refused<zero::Mixed<bf16>>(words) == twice(all));
}

TEST_CASE("masters that only 24 bits make infinite parameters of are refused from checkpoints") {
  TemporaryDirectory const directory;
  std::vector<zero::Tensor> const one{{.name = "w", .shape = {3}}};
  zero::Self comm;
  zero::ShardedOptimizer<zero::Self, Pos, zero::Mixed<bf16>> whole{comm, one};
  whole.load_parameters(
      [](auto const&, std::size_t, auto out) { std::ranges::fill(out, -0x1.FEFFp127f); });
  zero::Checkpoints{directory.path()}.save(whole);
  zero::ShardedOptimizer<zero::Self, Pos, zero::Mixed<bf16, zero::Rest16>> rests{comm, one};
  CHECK(zero::Checkpoints{directory.path()}.resume(rests).has_value());
  zero::ShardedOptimizer<zero::Self, Pos, Short> fewer{comm, one};
  check_says(refusal([&] { zero::Checkpoints{directory.path()}.resume(fewer); }),
             "element 0 of tensor 'w' is -3.3961516e+38, which would become infinite in bf16");
}

/// Has an update make element 5 of 'w', and element -650 of it the negative.
template <class O>
void update_to(O& optimizer, double value) {
  optimizer.load_parameters([](zero::Tensor const& tensor, std::size_t first, auto out) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      bool const mask = tensor.name == "w" && first + i == 7;  // decays to NaN
      out[i] = mask ? std::numeric_limits<float>::infinity() : 0.f;
    }
  });
  for (int const unit : optimizer.units_backward()) {
    auto gradients = optimizer.gradients(unit);
    if (unit == 0) {
      gradients[0][5] += -1.f;
      gradients[0][650] += 1.f;
    }
    optimizer.reduce(std::move(gradients));
  }
  static_cast<void>(optimizer.step({.learning_rate = value}));
}

/// Exports from an optimizer with an infinite parameter of a finite master, and from a checkpoint.
template <class Stage, class P>
void check_exports(std::string const& type, double largest, double first, int ranks) {
  TemporaryDirectory const directory;
  std::string const at = directory.path() + "/";
  std::string const words = "element 5 of tensor 'w' is " + zero::Message{first}.text() +
                            ", which would become infinite in " + type + "; with overflow = ";
  std::string const told = failure_of_all(ranks, [&](InProcess& comm) {
    zero::ShardedOptimizer<InProcess, Stage, P, zero::PlainSgd> optimizer{comm, model()};
    update_to(optimizer, first);
    zero::export_model(optimizer, at + "master.safetensors", {.dtype = zero::ExportDType::master});
    zero::Checkpoints{at + "run"}.save(optimizer);
    zero::ExportOptions saturating;
    saturating.overflow = Overflow::saturate;
    zero::export_model(optimizer, at + "saturated.safetensors", saturating);
    zero::export_model(optimizer, at + "refused.safetensors");
  });
  check_says(told, words);
  std::string const run = zero::Checkpoints{at + "run"}.latest().value().path;
  check_says(failure_of([&] { zero::export_checkpoint(run, at + "refused.safetensors"); }), words);
  zero::ExportOptions saturating;
  saturating.overflow = Overflow::saturate;
  zero::export_checkpoint(run, at + "saturated_too.safetensors", saturating);
  CHECK(!std::filesystem::exists(at + "refused.safetensors"));
  CHECK(slurp(at + "saturated.safetensors") == slurp(at + "saturated_too.safetensors"));
  zero::DiskFiles files;
  zero::StoredModel const stored = zero::detail::open_model(files, at + "saturated.safetensors");
  std::vector<double> values(700);
  zero::detail::ModelReader(files, stored)
      .read(*stored.find("w"), 0, zero::DType::f64, values.data(), values.size());
  CHECK(values[5] == largest);
  CHECK(values[650] == -largest);
  CHECK(values[6] == 0);
  CHECK(std::isnan(values[7]));
}

TEST_CASE("what an update has made infinite is not exported as if it were a value") {
  for (int ranks = 1; ranks <= 3; ++ranks) {
    check_exports<Replicated, MixedFloatGradients<fp16>>("fp16", 65504., 65520., ranks);
    check_exports<Pos, MixedFloatGradients<fp16>>("fp16", 65504., 65520., ranks);
    check_exports<PosG, MixedFloatGradients<bf16>>("bf16", 0x1.FEp127, 0x1.FFp127, ranks);
    check_exports<PosGP, MixedFloatGradients<fp16>>("fp16", 65504., 65520., ranks);
  }
}

/// Saves a run whose update has made parameters infinite, and has others go on with it.
template <class Stage, class P>
void check_goes_on(double first, int ranks) {
  TemporaryDirectory const directory;
  zero::run_ranks(2, [&](InProcess& comm) {
    zero::ShardedOptimizer<InProcess, PosG, P, zero::PlainSgd> optimizer{comm, model()};
    update_to(optimizer, first);
    zero::Checkpoints{directory.path()}.save(optimizer);
  });
  for (bool const verify : {false, true}) {
    for (Overflow const overflow : {Overflow::refuse, Overflow::saturate}) {
      zero::run_ranks(ranks, [&](InProcess& comm) {
        zero::ShardedOptimizer<InProcess, Stage, P, zero::PlainSgd> optimizer{comm, model()};
        zero::LoadOptions options{.verify_first = verify};
        options.overflow = overflow;
        CHECK(zero::Checkpoints{directory.path()}.resume(optimizer, options).has_value());
        {
          auto const all = optimizer.full_parameters();
          CHECK(std::isinf(zero::kernel::detail::convert<float>(all[0][5])));
          CHECK(std::isinf(zero::kernel::detail::convert<float>(all[0][650])));
        }
        optimizer.visit_owned([&](auto const& tensor, std::size_t from, auto masters, auto const&) {
          for (std::size_t i = 0; i < masters.size() && tensor.name == "w"; ++i) {
            if (from + i == 5) CHECK(masters[i] == static_cast<float>(first));
            if (from + i == 650) CHECK(masters[i] == -static_cast<float>(first));
          }
        });
      });
    }
  }
}

TEST_CASE("a run goes on as it was, also where an update has made parameters infinite") {
  for (int ranks = 1; ranks <= 3; ++ranks) {
    check_goes_on<Replicated, MixedFloatGradients<fp16>>(65520., ranks);
    check_goes_on<Pos, MixedFloatGradients<bf16>>(0x1.FFp127, ranks);
    check_goes_on<PosGP, MixedFloatGradients<fp16>>(65520., ranks);
    check_goes_on<PosGP, Short>(0x1.FFp127, ranks);
  }
}

TEST_CASE("states that float cannot hold are refused by name, or saturate") {
  TemporaryDirectory const directory;
  std::string const& at = directory.path();
  zero::Self comm;
  zero::ShardedOptimizer<zero::Self, Pos, zero::Fp64> wide{comm, model()};
  load(wide, 1.);
  wide.fill_owned([](zero::Tensor const& tensor, std::size_t, auto, auto const& states) {
    if (tensor.name == "v") states[1][11] = 1e300;
  });
  zero::Checkpoints{at}.save(wide);
  zero::ShardedOptimizer<zero::Self, Pos, zero::Fp32> narrow{comm, model()};
  zero::LoadOptions options;
  CHECK(refusal([&] { zero::Checkpoints{at}.resume(narrow, options); }) ==
        "on rank 0: element 11 of exp_avg_sq of tensor 'v' is 1e+300, which would become infinite "
        "in fp32; with overflow = saturate (a policy, and an option of loads and exports) it "
        "becomes 3.4028235e+38");
  options.overflow = Overflow::saturate;
  zero::Checkpoints{at}.resume(narrow, options);
  narrow.visit_owned([](zero::Tensor const& tensor, std::size_t, auto, auto const& states) {
    if (tensor.name == "v") CHECK(states[1][11] == std::numeric_limits<float>::max());
  });
}

TEST_CASE("what is rounded twice on its way is looked at twice") {
  TemporaryDirectory const directory;
  // bf16 would take the double, but not the float that the master becomes.
  double const value = std::nextafter(0x1.FFp127, 0.);
  zero::Self comm;
  zero::ShardedOptimizer<zero::Self, Pos, zero::Fp64> wide{comm, {{.name = "w", .shape = {3}}}};
  wide.load_parameters([&](auto const&, std::size_t, auto out) { std::ranges::fill(out, value); });
  zero::Checkpoints{directory.path()}.save(wide);
  zero::ShardedOptimizer<zero::Self, Pos, zero::Mixed<bf16>> narrow{comm,
                                                                    {{.name = "w", .shape = {3}}}};
  check_says(refusal([&] { zero::Checkpoints{directory.path()}.resume(narrow); }),
             "element 0 of tensor 'w' is 3.3961775e+38, which would become infinite in bf16");
  zero::LoadOptions options;
  options.overflow = Overflow::saturate;
  zero::Checkpoints{directory.path()}.resume(narrow, options);
  CHECK(static_cast<float>(narrow.parameter(0)[2]) == 0x1.FEp127f);
  narrow.visit_owned([](auto const&, std::size_t, auto masters, auto const&) {
    CHECK(masters[0] == 0x1.FEp127f);
  });
}

TEST_CASE("frozen parameters that are rounded from float are looked at as doubles and as floats") {
  std::vector<zero::Tensor> const tensors{{.name = "w", .shape = {3}},
                                          {.name = "f", .shape = {2}, .frozen = true}};
  for (double const value : {std::nextafter(0x1.FFp127, 0.), 1e300}) {
    TemporaryDirectory const directory;
    zero::Self comm;
    zero::ShardedOptimizer<zero::Self, Pos, zero::Fp64> wide{comm, tensors};
    wide.load_parameters([&](zero::Tensor const& tensor, std::size_t, auto out) {
      std::ranges::fill(out, tensor.frozen ? value : 1.);
    });
    zero::Checkpoints{directory.path()}.save(wide);
    zero::ShardedOptimizer<zero::Self, Pos, zero::Mixed<bf16, zero::HalfAway>> narrow{comm,
                                                                                      tensors};
    check_says(
        refusal([&] { zero::Checkpoints{directory.path()}.resume(narrow); }),
        "element 0 of tensor 'f' is " + zero::Message{value > 1e200 ? value : 0x1.FFp127}.text());
    zero::LoadOptions options;
    options.overflow = Overflow::saturate;
    zero::Checkpoints{directory.path()}.resume(narrow, options);
    CHECK(static_cast<float>(narrow.parameter(1)[1]) == 0x1.FEp127f);
  }
}

TEST_CASE("an element is named by its place, whichever thread has read it") {
  TemporaryDirectory const directory;
  std::vector<zero::Tensor> const large{{.name = "w", .shape = {2'300'000}}};
  zero::Self comm;
  zero::ShardedOptimizer<zero::Self, Pos, zero::Fp32, zero::PlainSgd> wide{comm, large};
  for (std::size_t const bad : {std::size_t{7}, std::size_t{1'150'001}, std::size_t{2'299'999}}) {
    wide.load_parameters([&](auto const&, std::size_t first, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = first + i == bad ? -1e5f : 0.5f;
    });
    zero::Checkpoints run{directory.path(), {.keep = 1}};
    run.save(wide);
    zero::ShardedOptimizer<zero::Self, Pos, MixedFloatGradients<fp16>, zero::PlainSgd> narrow{
        comm, large};
    for (bool const verifies : {false, true}) {
      check_says(refusal([&] { run.resume(narrow, {.verify_first = verifies}); }),
                 "element " + std::to_string(bad) + " of tensor 'w' is -100000, which would");
    }
  }
}

TEST_CASE("ranks agree on what becomes of values that do not fit") {
  std::string const told = failure_of_all(2, [](InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, model(), static_cast<Overflow>(comm.rank())};
  });
  CHECK(told ==
        "communication: ranks disagree on overflow: 'refuse' on rank 0; 'saturate' on rank 1");
}

/// Is an element found to overflow exactly where it is finite, and what it is rounded to is not?
template <class To, class From>
void check_bits(std::uint64_t seed) {
  using zero::kernel::detail::convert;
  using Bits =
      std::conditional_t<sizeof(From) == 2,
                         std::uint16_t,
                         std::conditional_t<sizeof(From) == 4, std::uint32_t, std::uint64_t>>;
  std::mt19937_64 random(seed);
  double const most = zero::largest(zero::dtype_of<To>);
  for (int i = 0; i < 200'000; ++i) {
    From value = std::bit_cast<From>(static_cast<Bits>(random()));
    if (i % 2 == 0) {  // about where the type ends
      double const near = most * (1 + static_cast<double>(random() % 4096) * 0x1p-20);
      value = convert<From>(i % 4 == 0 ? near : -near);
    }
    auto const finite = [](auto number) { return std::isfinite(convert<double>(number)); };
    bool const overflows = finite(value) && !finite(convert<To>(value));
    auto const first = [&](Overflow overflow) {
      return zero::kernel::first_overflow(
          zero::dtype_of<To>, zero::dtype_of<From>, &value, 1, overflow);
    };
    bool right = first(Overflow::refuse) == (overflows ? 0 : 1);
    From const before = value;
    right = right && first(Overflow::saturate) == 1;
    // bf16 is coarser than fp16 where that ends.
    double const taken = std::same_as<From, bf16> ? 65280. : most;
    right = right &&
            (overflows ? convert<double>(value) == std::copysign(taken, convert<double>(before))
                       : std::memcmp(&before, &value, sizeof(From)) == 0);
    if (!right) CHECK_MESSAGE(false, convert<double>(before));
  }
}

TEST_CASE("the first of many elements that overflow is found, and all of them saturate") {
  std::vector<std::size_t> const places{0, 255, 256, 511, 512, 700, 999};
  for (std::size_t from = 0; from <= places.size(); ++from) {
    std::vector<float> values(1000, 0.5f);
    for (std::size_t i = from; i < places.size(); ++i) values[places[i]] = 1e5f;
    values[300] = std::numeric_limits<float>::infinity();
    auto const first = [&](Overflow overflow) {
      return zero::kernel::first_overflow(
          zero::DType::f16, zero::DType::f32, values.data(), values.size(), overflow);
    };
    CHECK(first(Overflow::refuse) == (from < places.size() ? places[from] : values.size()));
    CHECK(first(Overflow::saturate) == values.size());
    std::size_t const saturated = places.size() - from;
    CHECK(std::ranges::count(values, 65504.f) == static_cast<std::ptrdiff_t>(saturated));
    CHECK(std::ranges::count(values, 0.5f) == static_cast<std::ptrdiff_t>(999 - saturated));
  }
}

TEST_CASE("an element overflows where it is finite, and rounded is not") {
  check_bits<fp16, float>(1);
  check_bits<bf16, float>(2);
  check_bits<float, double>(3);
  check_bits<bf16, double>(4);
  check_bits<fp16, double>(5);
  check_bits<fp16, bf16>(6);
  check_bits<bf16, fp16>(7);
  check_bits<double, float>(8);
  check_bits<float, float>(9);
}

}  // namespace
}  // namespace overflow_test
