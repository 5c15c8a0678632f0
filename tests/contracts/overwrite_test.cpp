/// Gradients that a backward pass overwrites: the same bits, without zeroing, and mistakes found.
#include "contracts/loop.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace overwrite_test {
namespace {

/// Tensors with gaps between them, small neighbours that share a bucket, and a tied one.
std::vector<zero::Tensor> model() {
  return {{.name = "a", .shape = {700}, .unit = 0},
          {.name = "b", .shape = {9}, .unit = 0},
          {.name = "b2", .shape = {700}, .unit = 0},
          {.name = "c", .shape = {3001}, .unit = 1},
          {.name = "frozen", .shape = {5}, .unit = 1, .frozen = true},
          {.name = "d", .shape = {33}, .unit = 2},
          {.name = "e", .shape = {700}, .unit = 2, .tied_to = "a"}};
}

/// Three steps; gradients are added to, or stored over what is there. What a rank ends with.
template <class Stage, class Precision, class... Ask>
std::vector<std::byte> train(int ranks, std::size_t bucket, Ask... ask) {
  constexpr bool overwrites = sizeof...(Ask) > 0;
  std::vector<std::byte> result;
  std::mutex mutex;
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    contracts::Optimizer<Stage, Precision> optimizer{comm, model(), zero::Bucket{bucket}};
    contracts::load(optimizer);
    std::vector<std::byte> mine;
    for (int step = 0; step < 3; ++step) {
      for (int const unit : optimizer.units_backward()) {
        auto gradients = optimizer.gradients(unit, ask...);
        contracts::for_each_tensor(optimizer, unit, [&](std::size_t t, std::size_t i) {
          auto const to = gradients[i];
          bool const tied = t == 0 || t == 6;
          for (std::size_t k = 0; k < to.size(); ++k) {
            using Wire = typename decltype(gradients)::Wire;
            float const x = 0.01f * static_cast<float>((k * 7 + t + 3) % 11) *
                            static_cast<float>(comm.rank() + step + 1);
            to[k] = Wire(overwrites && !tied ? x : static_cast<float>(to[k]) + x);
          }
        });
        optimizer.reduce(std::move(gradients));
      }
      double const norm = optimizer.step({.max_norm = 0.5}).grad_norm;
      contracts::append(mine, std::span(&norm, 1));
    }
    auto const bits = contracts::snapshot(optimizer);
    mine.insert(mine.end(), bits.begin(), bits.end());
    std::lock_guard const lock(mutex);
    if (comm.rank() == ranks - 1) result = std::move(mine);
  });
  return result;
}

TEST_CASE("overwritten gradients give the bits of gradients that are added to zeros") {
  auto const check = [](auto stage, auto precision) {
    using Stage = decltype(stage);
    using Precision = decltype(precision);
    for (int const ranks : {1, 2, 3}) {
      for (std::size_t const bucket : {std::size_t{1}, 8 * zero::KiB, zero::MiB}) {
        auto const added = train<Stage, Precision>(ranks, bucket);
        CHECK((train<Stage, Precision>(ranks, bucket, zero::overwrite) == added));
        CHECK((train<Stage, Precision>(ranks, bucket, zero::Overwrite{.checked = true}) == added));
      }
    }
  };
  check(zero::stage::Pos{}, zero::Fp32{});
  check(zero::stage::PosG{}, zero::Fp32{});
  check(zero::stage::PosGP{}, zero::Mixed<zero::bf16>{});
}

template <class Precision, class Stage>
std::string found(Stage /*stage*/, std::size_t missed) {
  auto handles = zero::InProcess::group(1);
  contracts::Optimizer<Stage, Precision> optimizer{handles[0], model()};
  contracts::load(optimizer);
  auto gradients = optimizer.gradients(1, zero::Overwrite{.checked = true});
  std::size_t at = 0;
  for (auto& x : gradients["c"]) {
    if (at++ != missed) x = {};
  }
  try {
    optimizer.reduce(std::move(gradients));
  } catch (zero::Error const& error) {
    CHECK(error.kind() == zero::ErrorKind::invalid_argument);
    return error.message();
  }
  return "";
}

TEST_CASE("tensors of one unit that share memory are added to, from zero in each step") {
  auto const check = [](auto stage) {
    zero::run_ranks(2, [&](zero::InProcess& comm) {
      zero::ShardedOptimizer optimizer{comm,
                                       {{.name = "wte", .shape = {4}},
                                        {.name = "b", .shape = {3}},
                                        {.name = "head", .shape = {4}, .tied_to = "wte"}},
                                       stage};
      contracts::load(optimizer);
      for (bool const checked : {false, true, false, true}) {
        auto gradients = optimizer.gradients(0, zero::Overwrite{.checked = checked});
        for (float& x : gradients[1]) x = 0.f;
        for (std::size_t const alias : {std::size_t{0}, std::size_t{2}}) {
          for (float& x : gradients[alias]) x += 1.f;
        }
        optimizer.reduce(std::move(gradients));
        CHECK(optimizer.step().grad_norm == 4.);
      }
    });
  };
  check(zero::stage::Replicated{});
  check(zero::stage::Pos{});
  check(zero::stage::PosG{});
  check(zero::stage::PosGP{});
}

TEST_CASE("checked: a tensor that is absent need not be written, and lent memory is not marked") {
  zero::Self comm;
  zero::ShardedOptimizer optimizer{
      comm, {{.name = "a", .shape = {5}}, {.name = "b", .shape = {3}}}, zero::stage::PosG{}};
  contracts::load(optimizer);
  auto gradients = optimizer.gradients(0, zero::Overwrite{.checked = true});
  for (float& x : gradients[0]) x = 1.f;
  optimizer.without_gradient(optimizer.tensors()[1]);
  optimizer.reduce(std::move(gradients));
  CHECK(optimizer.step().grad_norm == doctest::Approx(std::sqrt(5.)));
  CHECK(optimizer.steps(1) == 0);

  std::vector<float> parameters(5), lent(5, 2.f);
  zero::ShardedOptimizer lending{
      comm, {{.name = "a", .shape = {5}}}, zero::stage::PosG{}, zero::Borrowed<>{}};
  lending.bind(std::span(parameters), std::span(lent));
  lending.adopt_parameters();
  try {
    static_cast<void>(lending.gradients(0, zero::Overwrite{.checked = true}));
    CHECK(false);
  } catch (zero::Error const& error) {
    CHECK(error.message().find("lent are only read") != std::string::npos);
  }
  CHECK(lent == std::vector<float>(5, 2.f));
}

TEST_CASE("what was not written and is absent does not count, though its guard was dropped") {
  auto const check = [](auto stage) {
    zero::Self comm;
    zero::ShardedOptimizer optimizer{
        comm, {{.name = "a", .shape = {600}}, {.name = "b", .shape = {600}}}, stage};
    contracts::load(optimizer);
    for (bool const absent : {false, true}) {
      auto gradients = optimizer.gradients(0, zero::overwrite);
      for (float& x : gradients["a"]) x = 1.f;
      if (absent) optimizer.without_gradient(optimizer.tensors()[1]);
      if (absent) continue;
      for (float& x : gradients["b"]) x = 1.f;
      optimizer.reduce(std::move(gradients));
      CHECK(optimizer.step().grad_norm == std::sqrt(1200.));
    }
    CHECK(optimizer.step().grad_norm == std::sqrt(600.));
    CHECK(optimizer.steps(1) == 1);
  };
  check(zero::stage::PosG{});
  check(zero::stage::PosGP{});
}

TEST_CASE("checked: an element that was never written is named") {
  std::string const first = "unit 1 is reduced, but element ";
  std::string const last = " of tensor 'c' was not overwritten";
  using zero::Fp32;
  CHECK(found<Fp32>(zero::stage::PosG{}, 3000) == first + "3000" + last);
  CHECK(found<Fp32>(zero::stage::Replicated{}, 0) == first + "0" + last);
  CHECK(found<zero::Mixed<zero::bf16>>(zero::stage::PosGP{}, 17) == first + "17" + last);
  CHECK(found<zero::Mixed<zero::fp16>>(zero::stage::PosG{}, 1024) == first + "1024" + last);
  CHECK(found<Fp32>(zero::stage::PosG{}, 3001) == "");
}

TEST_CASE("memory of one unit's own is not zeroed for who overwrites it") {
  auto handles = zero::InProcess::group(1);
  contracts::Optimizer<zero::stage::PosG, zero::Fp32> optimizer{handles[0],
                                                                {{.name = "c", .shape = {700}}}};
  optimizer.load_parameters([](zero::Tensor const&, std::size_t, std::span<float> out) {
    for (float& x : out) x = 1.f;
  });
  auto first = optimizer.gradients(0);
  for (auto& x : first["c"]) x = 3.f;
  optimizer.reduce(std::move(first));
  static_cast<void>(optimizer.step());
  CHECK(optimizer.gradients(0, zero::overwrite)["c"][0] == 3.f);
}

}  // namespace
}  // namespace overwrite_test
