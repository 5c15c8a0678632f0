#include <zero/concepts/model_states.hpp>
#include <zero/precision/fp32.hpp>
#include <zero/precision/mixed.hpp>
#include <zero/rule/adagrad.hpp>
#include <zero/rule/adam.hpp>
#include <zero/rule/adamw.hpp>
#include <zero/rule/lion.hpp>
#include <zero/rule/sgd.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string_view>

namespace model_states_test {
namespace {

using zero::bf16;
using zero::fp16;
using zero::Fp32;
using zero::Mixed;
using zero::model_states;
using zero::ModelStates;

/// A rule of a user's own, with more state than any of ours.
struct FiveStates {
  static constexpr std::string_view name = "five states";
  static constexpr std::array states{zero::StateArray{"s0"},
                                     zero::StateArray{"s1"},
                                     zero::StateArray{"s2"},
                                     zero::StateArray{"s3"},
                                     zero::StateArray{"s4"}};
  float lr = 1.f;
  [[nodiscard]] zero::StepScalars scalars(long, float, float, float) const noexcept { return {}; }
  template <class V>
  void update(zero::StepScalars const&, V&, V const&, V*) const noexcept {}
  friend bool operator==(FiveStates const&, FiveStates const&) = default;
};

/// Five dtypes of five kinds: each of the three numbers has its own source.
struct Unusual {
  static constexpr std::string_view name = "unusual";
  using Parameter = bf16;
  using Wire = float;
  using Accumulate = float;
  using Master = double;
  using State = fp16;
  static constexpr bool loss_scaled = false;
  friend bool operator==(Unusual const&, Unusual const&) = default;
};

/// No master is held where it would be the parameters once more.
struct HalfThroughout {
  static constexpr std::string_view name = "half";
  using Parameter = bf16;
  using Wire = bf16;
  using Accumulate = float;
  using Master = bf16;
  using State = bf16;
  static constexpr bool loss_scaled = false;
  friend bool operator==(HalfThroughout const&, HalfThroughout const&) = default;
};

}  // namespace

TEST_CASE("mixed-precision Adam is the paper's example: 2, 2 and K = 12 bytes") {
  static_assert(model_states<Mixed<bf16>, zero::AdamW> == ModelStates{2, 2, 12});
  static_assert(model_states<Mixed<fp16>, zero::Adam> == ModelStates{2, 2, 12});
  static_assert(model_states<Mixed<bf16>, zero::AdamW> == ModelStates{});
  CHECK(model_states<Mixed<bf16>, zero::AdamW> == ModelStates{2, 2, 12});
}

TEST_CASE("other rules and precisions derive theirs") {
  static_assert(model_states<Fp32, zero::AdamW> == ModelStates{4, 4, 8});
  static_assert(model_states<Mixed<bf16>, zero::Lion> == ModelStates{2, 2, 8});
  static_assert(model_states<Mixed<bf16>, zero::Adagrad> == ModelStates{2, 2, 8});
  static_assert(model_states<Fp32, zero::Adagrad> == ModelStates{4, 4, 4});
  static_assert(model_states<Mixed<bf16>, zero::Sgd> == ModelStates{2, 2, 8});
  static_assert(model_states<Fp32, zero::PlainSgd> == ModelStates{4, 4, 0});
  CHECK(model_states<Fp32, zero::PlainSgd>.optimizer == 0);
}

TEST_CASE("own rules and precisions need nothing but their types") {
  static_assert(model_states<Unusual, FiveStates> == ModelStates{2, 4, 8 + std::uint64_t{5} * 2});
  static_assert(model_states<HalfThroughout, FiveStates> ==
                ModelStates{2, 2, std::uint64_t{5} * 2});
  CHECK(model_states<HalfThroughout, zero::AdamW> == ModelStates{2, 2, 4});
}

TEST_CASE("types in, bytes per rank out, before the program runs") {
  constexpr zero::Sharding pos_gp{.optimizer = true, .gradients = true, .parameters = true};
  static_assert(
      zero::model_state_bytes(7'500'000'000, 64, pos_gp, model_states<Mixed<bf16>, zero::AdamW>) ==
      zero::ExactBytes{.whole = 1'875'000'000});
  static_assert(zero::largest_model(32'000'000'000, 64, pos_gp, model_states<Fp32, zero::AdamW>) ==
                128'000'000'000);
}

}  // namespace model_states_test
