/// What a trainer gives, sees and changes of tensors of several types: each in its own.
#include "contracts/ranks.hpp"
#include "contracts/recording.hpp"
#include "support/kinds_model.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

#include <cmath>

namespace typed_values_test {
namespace {

using namespace kinds_model;
using zero::Fp32;
using zero::InProcess;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;

/// The same precisions, each of which comes first in one of these lists: tensors of the other then
/// have masters, or are the first whose memory is narrower.
using Turned = zero::ByTensor<Fp32, zero::Mixed<bf16>>;

/// The model whose tensors all name their type, and have it under either list.
std::vector<Tensor> typed_model() {
  std::vector<Tensor> tensors = model();
  for (Tensor& tensor : tensors) tensor.dtype = type_of(tensor);
  return tensors;
}

/// Other values than those of `fill`, of which frozen tensors keep theirs.
void fill_other(Tensor const& tensor, std::size_t first, std::span<float> out) {
  fill(tensor, first, out);
  if (tensor.frozen) return;
  for (float& each : out) each = -each / 3;
}
/// What `fill_other` makes of parameters, as floats.
void fill_rounded(Tensor const& tensor, std::size_t first, std::span<float> out) {
  fill_other(tensor, first, out);
  if (type_of(tensor) != DType::bf16) return;
  for (float& each : out) each = static_cast<float>(bf16(each));
}

/// Have both the same parameters, and after a step as well, for which masters are needed?
template <class One, class Two, class Expect>
void compare(One& one, Two& two, int rank, Expect const& expect) {
  expect(bits(one) == bits(two), "parameters");
  for (auto* optimizer : {&one, &two}) {
    pass(*optimizer, 0, rank, type_of, expect);
    optimizer->step();
  }
  expect(bits(one) == bits(two), "parameters after a step");
  one.check_parameters();
}

/// Halves whose states are halves as well.
struct HalfStates {
  static constexpr std::string_view name = "half states";
  using Parameter = bf16;
  using Wire = float;
  using Accumulate = float;
  using Master = float;
  using State = bf16;
  static constexpr bool loss_scaled = false;
  friend bool operator==(HalfStates const&, HalfStates const&) = default;
};

}  // namespace

TEST_CASE_TEMPLATE("gradients are shown and changed in the type of their tensor",
                   O,
                   contracts::Optimizer<Replicated, Both>,
                   contracts::Optimizer<PosG, Turned>,
                   contracts::Optimizer<PosGP, Both>) {
  INFO("stage " << O::Stage::name << ", precisions " << O::Precision::name);
  for (int const ranks : {1, 4}) {
    contracts::on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
      O optimizer{comm, typed_model(), zero::Bucket{5000}};
      optimizer.load_parameters(fill);
      optimizer.load_bytes(fill_bytes);
      pass(optimizer, 0, comm.rank(), type_of, expect);
      std::size_t shown = 0;
      auto const take = [&](Tensor const& tensor, auto run) {
        using T = std::remove_const_t<typename decltype(run)::element_type>;
        expect(zero::dtype_of<T> == type_of(tensor), "the type of " + tensor.name);
        shown += run.size();
      };
      optimizer.change_gradients([&](Tensor const& tensor, std::size_t, auto run, double) {
        take(tensor, run);
        for (auto& each : run) each = std::remove_cvref_t<decltype(each)>(1.f);
      });
      double const scale = 1. / ranks;
      auto const all = static_cast<double>(optimizer.plan().trained_elements);
      expect(optimizer.grad_norm() == scale * std::sqrt(all), "the norm of what was changed");
      std::size_t const changed = std::exchange(shown, 0);
      optimizer.visit_gradients([&](Tensor const& tensor, std::size_t, auto run, double factor) {
        take(tensor, run);
        for (auto const& each : run) expect(static_cast<float>(each) == 1.f, tensor.name);
        expect(factor == scale, "what makes a sum the mean");
      });
      expect(shown == changed, "all that was changed is shown");
      optimizer.step();
    });
  }
}

TEST_CASE_TEMPLATE("what is filled in becomes masters and parameters of each type",
                   O,
                   contracts::Optimizer<Replicated, Turned>,
                   contracts::Optimizer<Pos, Both>,
                   contracts::Optimizer<PosGP, Turned>) {
  INFO("stage " << O::Stage::name << ", precisions " << O::Precision::name);
  for (int const ranks : {1, 3}) {
    contracts::on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
      O filled{comm, typed_model(), zero::Bucket{5000}};
      filled.load_parameters(fill);
      filled.load_bytes(fill_bytes);
      filled.fill_owned([](Tensor const& tensor, std::size_t first, auto master, auto) {
        fill_other(tensor, first, master);
      });
      O loaded{comm, typed_model(), zero::Bucket{5000}};
      loaded.load_bytes(fill_bytes);
      loaded.load_parameters(fill_other);
      filled.visit_owned([&](Tensor const& tensor, std::size_t first, auto master, auto) {
        std::vector<float> other(master.size());
        fill_other(tensor, first, other);
        expect(std::ranges::equal(master, other), "the master of " + tensor.name);
      });
      compare(filled, loaded, comm.rank(), expect);
    });
  }
}

TEST_CASE("states are shown and filled in in the type that a tensor's precision has for them") {
  auto comms = InProcess::group(1);
  contracts::Optimizer<PosG, zero::ByTensor<HalfStates, Fp32>> optimizer{comms[0], typed_model()};
  optimizer.load_parameters(fill);
  optimizer.load_bytes(fill_bytes);
  std::size_t shown = 0;
  auto const take = [&](Tensor const& tensor, std::size_t, auto const& master, auto const& states) {
    using State =
        std::remove_const_t<typename std::remove_cvref_t<decltype(states[0])>::element_type>;
    CHECK(zero::dtype_of<State> == type_of(tensor));
    for (auto const& state : states) {
      CHECK(state.size() == master.size());
      shown += state.size();
    }
  };
  optimizer.fill_owned([&](Tensor const& tensor, std::size_t first, auto master, auto states) {
    take(tensor, first, master, states);
    for (auto& state : states) {
      for (auto& each : state) each = std::remove_cvref_t<decltype(each)>(0.5f);
    }
  });
  CHECK(std::exchange(shown, 0) == 2 * optimizer.plan().trained_elements);
  optimizer.visit_owned([&](Tensor const& tensor, std::size_t first, auto master, auto states) {
    take(tensor, first, master, states);
    for (auto& state : states) {
      for (auto const& each : state) CHECK(static_cast<float>(each) == 0.5f);
    }
  });
  CHECK(shown == 2 * optimizer.plan().trained_elements);
}

TEST_CASE("bytes make up for no load of numbers that failed, nor numbers for bytes") {
  auto comms = InProcess::group(1);
  contracts::Optimizer<PosG, Both> optimizer{comms[0], model()};
  auto const fail = [](Tensor const&, std::size_t, auto) { throw std::runtime_error("no"); };
  auto const lost = [&](std::string const& first, int others) {
    return refusal([&] { optimizer.step(); }) ==
           "a load failed halfway: the values of tensor '" + first + "' and of " +
               std::to_string(others) +
               " more are neither the old nor the new; load a checkpoint or a model that has them";
  };
  CHECK_THROWS_AS(optimizer.load_parameters(fail), std::runtime_error);
  optimizer.load_bytes(fill_bytes);
  CHECK(lost("wte", 8));
  optimizer.load_parameters(fill);
  CHECK_THROWS_AS(optimizer.load_bytes(fail), std::runtime_error);
  optimizer.load_parameters(fill);
  CHECK(lost("codes", 1));
  optimizer.load_bytes(fill_bytes);
  pass(optimizer, 0, 0, type_of, [](bool holds, std::string const& name) {
    CHECK_MESSAGE(holds, name);
  });
  optimizer.step();
}

/// One tensor of the first type, and two of the second, one behind the other.
template <class First, class Second>
struct TwoTypes {
  std::vector<First> first{std::vector<First>(512)};
  std::vector<Second> second{std::vector<Second>(1024)};
  std::vector<zero::LentSpan> list{
      std::span(first), std::span(second).first(512), std::span(second).last(512)};
};

TEST_CASE_TEMPLATE("buckets of the second type travel from where they lie in lent memory",
                   Precisions,
                   Both,
                   Turned) {
  INFO("precisions " << Precisions::name);
  using Second = std::conditional_t<std::same_as<Precisions, Both>, float, bf16>;
  std::vector<Tensor> const tensors{{.name = "first", .shape = {512}},
                                    {.name = "a", .shape = {512}, .dtype = zero::dtype_of<Second>},
                                    {.name = "b", .shape = {512}, .dtype = zero::dtype_of<Second>}};
  contracts::on_ranks(2, [&](InProcess& inner, auto const& expect) {
    contracts::Watched watched{inner};
    contracts::WatchedOptimizer<PosG, Precisions, zero::Borrowed<>> optimizer{watched.comm,
                                                                              tensors};
    TwoTypes<typename Precisions::Parameter, Second> parameters;
    TwoTypes<typename Precisions::Parameter, Second> gradients;
    optimizer.bind(parameters.list, gradients.list);
    optimizer.load_parameters([](Tensor const&, std::size_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 0.5f);
    });
    watched.comm.forget();
    optimizer.reduce(optimizer.gradients(0));
    optimizer.step();
    int found = 0;
    for (zero::Collective const& call : watched.comm.calls()) {
      if (call.bucket < 0 || call.dtype != zero::dtype_of<Second>) continue;
      ++found;
      void const* const all = call.op == zero::Op::all_gather ? call.recv : call.send;
      auto const& own = call.op == zero::Op::all_gather ? parameters : gradients;
      expect(all == own.second.data(), "where a bucket lies");
    }
    expect(found == 2, "one bucket, there and back");
  });
}

TEST_CASE_TEMPLATE("what lies in tensors of each type is adopted",
                   O,
                   contracts::Optimizer<Replicated, Turned>,
                   contracts::Optimizer<PosG, Both>,
                   contracts::Optimizer<PosG, Turned>) {
  INFO("stage " << O::Stage::name << ", precisions " << O::Precision::name);
  for (int const ranks : {1, 3}) {
    contracts::on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
      O written{comm, typed_model(), zero::Bucket{5000}};
      for (std::size_t t = 0; t < written.tensors().size(); ++t) {
        Tensor const& tensor = written.tensors()[t];
        as_typed(tensor, [&]<class T>(T) {
          auto const all = written.template parameter<T>(t);
          if constexpr (std::same_as<T, std::uint8_t>) {
            fill_bytes(tensor, 0, std::as_writable_bytes(std::span(all)));
          } else {
            std::vector<float> other(all.size());
            fill_other(tensor, 0, other);
            std::ranges::transform(other, all.begin(), [](float value) { return T(value); });
          }
        });
      }
      written.adopt_parameters();
      O loaded{comm, typed_model(), zero::Bucket{5000}};
      loaded.load_parameters(fill_rounded);
      loaded.load_bytes(fill_bytes);
      compare(written, loaded, comm.rank(), expect);
    });
  }
}

TEST_CASE("a gradient that is not finite is found in a tensor of the second type") {
  auto comms = InProcess::group(1);
  contracts::Optimizer<PosG, Both> optimizer{comms[0], model()};
  optimizer.load_parameters(fill);
  optimizer.load_bytes(fill_bytes);
  for (int const unit : optimizer.units_backward()) {
    auto gradients = optimizer.gradients(unit);
    // Halves of as many bytes end before.
    if (unit == 1) gradients.as<float>("ln1")[400] = INFINITY;
    optimizer.reduce(std::move(gradients));
  }
  auto const result = optimizer.try_step();
  REQUIRE(result.error() != nullptr);
  CHECK(result.error()->message() ==
        "gradients are not finite: first element 400 of 'ln1', which rank 0 owns");
}

TEST_CASE_TEMPLATE("the loss scale is the first precision's, and that of all gradients",
                   Stage,
                   Replicated,
                   PosGP) {
  INFO("stage " << Stage::name);
  using Scaled = zero::ByTensor<zero::Mixed<zero::fp16>, Fp32>;
  std::vector<Tensor> const tensors{{.name = "w", .shape = {700}},
                                    {.name = "n", .shape = {300}, .dtype = DType::f32}};
  auto const train = [&](float scale) {
    std::vector<std::byte> all;
    contracts::on_ranks(2, [&](InProcess& comm, auto const& expect) {
      contracts::Optimizer<Stage, Scaled> optimizer{
          comm, tensors, Scaled{{.loss_scale = {.initial = scale}}}};
      optimizer.load_parameters([](Tensor const&, std::size_t first, std::span<float> out) {
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = toy::initial_value(3, first + i);
      });
      auto const pass = [&](float half, float full) {
        auto gradients = optimizer.gradients(0);
        for (auto& each : gradients["w"]) each = zero::fp16(half * scale);
        for (float& each : gradients.template as<float>("n")) each = full * scale;
        optimizer.reduce(std::move(gradients));
      };
      expect(optimizer.loss_scale() == scale, "the scale");
      pass(0.5f, 0.25f);
      auto const report = optimizer.step({.max_norm = 1.});
      double const squares = 700 * 0.25 + 300 * 0.0625;
      expect(report.grad_norm == std::sqrt(squares), "the norm without the scale");
      std::vector<std::byte> own;
      auto const look = [&] {
        own.clear();
        auto const whole = optimizer.full_parameters();
        contracts::append(own, whole["w"]);
        contracts::append(own, whole.template as<float>("n"));
      };
      look();
      auto const before = own;
      // A gradient of either type that is not finite halves the scale, and neither type is updated.
      pass(0.5f, INFINITY);
      expect(optimizer.step({.non_finite = zero::NonFinite::skip}).skipped, "skipped");
      expect(optimizer.loss_scale() == scale / 2, "half of the scale");
      look();
      expect(own == before, "no update");
      if (comm.rank() == 0) all = own;
    });
    return all;
  };
  CHECK(train(1024.f) == train(4.f));
}

}  // namespace typed_values_test
