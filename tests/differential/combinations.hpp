/// @file
/// The policies that are compiled.
#pragma once

#include "any_communicator.hpp"
#include "case.hpp"
#include "reference.hpp"
#include "support/standard.hpp"
#include "zero/optimizer/any_optimizer.hpp"

namespace differential {

/// Every stage with every memory and accumulation; precisions and rules take turns.
inline constexpr auto combinations = [] {
  using enum Stage;
  using enum Number;
  using enum Rule;
  using enum Accumulation;
  return std::array{
      Policies{replicated, fp32, adamw, none},
      Policies{replicated, bf16, sgd, full},
      Policies{replicated, fp16, lion, shard},
      Policies{replicated, fp16, adam, none, true},
      Policies{replicated, fp32, lamb, full, true},
      Policies{replicated, bf16, plain_sgd, shard, true},
      Policies{pos, bf16_rest, adagrad, none},
      Policies{pos, fp16, adamw, full},
      Policies{pos, fp32, sgd, shard},
      Policies{pos, fp32, lion, none, true},
      Policies{pos, bf16_rest, lamb, full, true},
      Policies{pos, fp16, plain_sgd, shard, true},
      Policies{pos_g, fp16, adamw, none},
      Policies{pos_g, fp32, lion, full},
      Policies{pos_g, bf16_away, sgd, shard},
      Policies{pos_g, bf16, rms_prop, none, true},
      Policies{pos_g, fp16, lamb, full, true},
      Policies{pos_g, fp32, adam, shard, true},
      Policies{pos_gp, fp32, adamw, none},
      Policies{pos_gp, bf16, sgd, none},
      Policies{pos_gp, fp32, lamb, full},
      Policies{pos_gp, fp16, plain_sgd, full},
      Policies{pos_gp, bf16_rest, lion, shard},
      Policies{pos_gp, fp16, adagrad, shard},
      Policies{replicated, bf16_wide, sgd, none, true},
      Policies{pos, bf16_wide, lion, full, true},
      Policies{pos_g, bf16_wide, adamw, shard, true},
      Policies{pos_gp, bf16_wide, adam, none},
      Policies{replicated, bf16_rest, adamw, none, true, true},
      Policies{pos, fp32, sgd, full, true, true},
      Policies{pos_g, fp16, lion, none, true, true},
      Policies{replicated, bf16, adamw, none, false, false, true},
      Policies{pos, fp16, sgd, shard, false, false, true},
      Policies{pos_g, bf16_rest, adam, full, false, false, true},
      Policies{pos_gp, bf16_wide, adamw, none, false, false, true},
      Policies{pos_gp, fp16, lion, shard, false, false, true},
  };
}();

/// Those that are compiled for devices as well: every stage with every precision and accumulation.
inline constexpr std::array<std::size_t, 15> device_combinations{
    0, 1, 3, 6, 7, 9, 12, 14, 17, 18, 21, 22, 26, 33, 35};

/// What a rank does beside what the case says: called with the number of each step, before the step
/// and after its loads, and at the end with the number of steps.
template <class C>
using Beside =
    std::function<void(int step, zero::AnyOptimizer<C::Space::host_accessible, float>& optimizer)>;

/// Plays the rank of a case under one of them.
/// @throws Difference at the first one
template <class C>
using PlayOn = void (*)(C& comm,
                        Case const& test,
                        std::vector<ExpectedStep> const& expected,
                        Beside<C> const& beside);
struct Play {
  PlayOn<AnyCommunicator> on_host = nullptr;
  PlayOn<AnyDevice> on_device = nullptr;
};

/// Combination i is compiled in part i % `parts`.
inline constexpr std::size_t parts = 4;
template <std::size_t Part>
Play play_of(std::size_t combination);
/// Of any part; nothing for what this build leaves out.
Play play_of(std::size_t combination);

}  // namespace differential
