#include "archetypes.hpp"
#include <zero/concepts/precision.hpp>

#include <doctest/doctest.h>

#include <concepts>
#include <string_view>

namespace precision_test {
namespace {

using zero::Precision;

struct NarrowAccumulate : archetype::Precision {
  using Accumulate = zero::bf16;
  friend bool operator==(NarrowAccumulate const&, NarrowAccumulate const&) = default;
};

struct Integers : archetype::Precision {
  using Master = int;
  friend bool operator==(Integers const&, Integers const&) = default;
};

struct ScaledByNothing : archetype::Precision {
  static constexpr bool loss_scaled = true;
  friend bool operator==(ScaledByNothing const&, ScaledByNothing const&) = default;
};

struct Nameless : archetype::Precision {
  static constexpr int name = 1;
  friend bool operator==(Nameless const&, Nameless const&) = default;
};

struct NotCompared {
  static constexpr std::string_view name = "x";
  using Parameter = float;
  using Wire = float;
  using Accumulate = float;
  using Master = float;
  using State = float;
  static constexpr bool loss_scaled = false;
};

}  // namespace

TEST_CASE("a precision names five element types, and sums are not narrower than what is summed") {
  static_assert(Precision<archetype::Precision>);
  static_assert(!Precision<NarrowAccumulate>);
  static_assert(!Precision<Integers>);
  static_assert(!Precision<ScaledByNothing>);
  static_assert(!Precision<Nameless>);
  static_assert(!Precision<NotCompared>);
  static_assert(!Precision<float>);
  CHECK(Precision<archetype::Precision>);
}

TEST_CASE("a master is held where the parameters are not their own") {
  static_assert(zero::has_master<archetype::Precision>);
  static_assert(!zero::has_master<zero::Fp32>);
  static_assert(zero::has_master<zero::Mixed<zero::bf16>>);
  static_assert(zero::has_master<zero::Mixed<zero::fp16>>);
  CHECK(zero::has_master<archetype::Precision>);
}

TEST_CASE("the shipped precisions: 16 bits travel, 32 bits add up, only fp16 is scaled") {
  using Bf16 = zero::Mixed<zero::bf16>;
  using Fp16 = zero::Mixed<zero::fp16>;
  static_assert(std::same_as<Bf16::Parameter, zero::bf16> && std::same_as<Bf16::Wire, zero::bf16>);
  static_assert(std::same_as<Fp16::Parameter, zero::fp16> && std::same_as<Fp16::Wire, zero::fp16>);
  static_assert(std::same_as<Bf16::Accumulate, float> && std::same_as<Fp16::Accumulate, float>);
  static_assert(std::same_as<Bf16::Master, float> && std::same_as<Fp16::Master, float>);
  static_assert(std::same_as<Bf16::State, float> && std::same_as<Fp16::State, float>);
  static_assert(!zero::Fp32::loss_scaled && !Bf16::loss_scaled && Fp16::loss_scaled);
  CHECK(zero::Fp32::name == "fp32");
  CHECK(Bf16::name == "bf16");
  CHECK(Fp16::name == "fp16");
}

}  // namespace precision_test
