/// The one C++20 file of policies.c: a rule and a memory of the trainer's own among others.
#include "zero/c/define.hpp"

#include <array>
#include <string_view>

namespace trainer {

/// Takes lr times the gradient off, and the decay's share of nothing.
struct Plain {
  static constexpr std::string_view name = "plain";
  static constexpr std::array<zero::StateArray, 0> states{};
  float lr = 1.f;
  float momentum = 0.f;  // which it ignores

  zero::StepScalars scalars(long, float lr_now, float lr_scale, float) const noexcept {
    return {.learning_rate = lr_now * lr_scale};
  }
  template <class V>
  void update(zero::StepScalars const& s, V& p, V const& g, V* /*state*/) const noexcept {
    p = p - s.learning_rate * g;
  }
  friend constexpr bool operator==(Plain const&, Plain const&) = default;
};

}  // namespace trainer

template <>
inline constexpr std::int32_t zero::c::number<trainer::Plain> = 1000;
template <>
inline constexpr std::int32_t zero::c::number<zero::BorrowedInPlace<>> = 1000;

ZERO_C_DEFINE(zero::stage::Pos,
              zero::Fp32,
              zero::Fp64,
              zero::Mixed<zero::fp16>,
              zero::Mixed<zero::bf16, zero::Rest16>,
              zero::Bf16<zero::StochasticRounding>,
              zero::Adam,
              zero::Sgd,
              trainer::Plain,
              zero::c::Pairs<zero::c::Types<zero::Fp32, zero::Mixed<zero::bf16, zero::Rest16>>,
                             zero::c::Types<zero::AdamW8bit, zero::Lamb, zero::Lars>>,
              zero::AccumulateNone,
              zero::AccumulateFull,
              zero::AccumulateShard,
              zero::Owned<>,
              zero::Borrowed<>,
              zero::BorrowedInPlace<>)
