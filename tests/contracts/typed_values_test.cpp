/// What a trainer gives, sees and changes of tensors of several types: each in its own.
#include "contracts/ranks.hpp"
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

/// Other values than those of `fill`, of which frozen tensors keep theirs.
float other_value(Tensor const& tensor, std::size_t i) {
  float const first = toy::initial_value(number(storage(tensor)), i);
  return tensor.frozen ? first : -first / 3;
}
void fill_other(Tensor const& tensor, std::size_t first, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = other_value(tensor, first + i);
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
}

}  // namespace

TEST_CASE_TEMPLATE(
    "gradients are shown and changed in the type of their tensor", Stage, Replicated, PosG, PosGP) {
  INFO("stage " << Stage::name);
  for (int const ranks : {1, 4}) {
    contracts::on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
      contracts::Optimizer<Stage, Both> optimizer{comm, model(), zero::Bucket{5000}};
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
        for (auto& each : run) each = std::remove_reference_t<decltype(each)>(1.f);
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
                   Stage,
                   Replicated,
                   Pos,
                   PosGP) {
  INFO("stage " << Stage::name);
  for (int const ranks : {1, 3}) {
    contracts::on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
      contracts::Optimizer<Stage, Both> filled{comm, model(), zero::Bucket{5000}};
      filled.load_parameters(fill);
      filled.load_bytes(fill_bytes);
      filled.fill_owned([](Tensor const& tensor, std::size_t first, auto master, auto) {
        fill_other(tensor, first, master);
      });
      contracts::Optimizer<Stage, Both> loaded{comm, model(), zero::Bucket{5000}};
      loaded.load_bytes(fill_bytes);
      loaded.load_parameters(fill_other);
      filled.visit_owned([&](Tensor const& tensor, std::size_t first, auto master, auto) {
        for (std::size_t i = 0; i < master.size(); ++i) {
          expect(master[i] == other_value(tensor, first + i), "the master of " + tensor.name);
        }
      });
      compare(filled, loaded, comm.rank(), expect);
    });
  }
}

TEST_CASE_TEMPLATE("what lies in tensors of each type is adopted", Stage, Replicated, PosG) {
  INFO("stage " << Stage::name);
  for (int const ranks : {1, 3}) {
    contracts::on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
      contracts::Optimizer<Stage, Both> written{comm, model(), zero::Bucket{5000}};
      for (std::size_t t = 0; t < written.tensors().size(); ++t) {
        Tensor const& tensor = written.tensors()[t];
        as_typed(tensor, [&]<class T>(T) {
          auto const all = written.template parameter<T>(t);
          for (std::size_t i = 0; i < all.size(); ++i) {
            if constexpr (std::same_as<T, std::uint8_t>) {
              all[i] = static_cast<T>(byte_of(tensor, i));
            } else {
              all[i] = T(other_value(tensor, i));
            }
          }
        });
      }
      written.adopt_parameters();
      contracts::Optimizer<Stage, Both> loaded{comm, model(), zero::Bucket{5000}};
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
