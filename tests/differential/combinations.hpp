/// @file
/// The policies that are compiled.
#pragma once

#include "any_communicator.hpp"
#include "case.hpp"
#include "reference.hpp"

#include <array>
#include <cstddef>
#include <vector>

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
      Policies{replicated, fp32, adagrad, full, true},
      Policies{replicated, bf16, plain_sgd, shard, true},
      Policies{pos, bf16, adagrad, none},
      Policies{pos, fp16, adamw, full},
      Policies{pos, fp32, sgd, shard},
      Policies{pos, fp32, lion, none, true},
      Policies{pos, bf16, adam, full, true},
      Policies{pos, fp16, sgd, shard, true},
      Policies{pos_g, fp16, adamw, none},
      Policies{pos_g, fp32, lion, full},
      Policies{pos_g, bf16, adamw, shard},
      Policies{pos_g, bf16, adamw, none, true},
      Policies{pos_g, fp16, adagrad, full, true},
      Policies{pos_g, fp32, adam, shard, true},
      Policies{pos_gp, fp32, adamw, none},
      Policies{pos_gp, bf16, sgd, none},
      Policies{pos_gp, fp32, adam, full},
      Policies{pos_gp, fp16, plain_sgd, full},
      Policies{pos_gp, bf16, lion, shard},
      Policies{pos_gp, fp16, adamw, shard},
  };
}();

/// Plays the rank of a case under one of them.
/// @throws Difference at the first one
using Play = void (*)(AnyCommunicator& comm,
                      Case const& test,
                      std::vector<ExpectedStep> const& expected);

/// Combination i is compiled in part i % `parts`.
inline constexpr std::size_t parts = 4;
template <std::size_t Part>
Play play_of(std::size_t combination);

}  // namespace differential
