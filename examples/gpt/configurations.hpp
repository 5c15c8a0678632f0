/// @file
/// The configurations of the paper's Table 3, by name.
#pragma once

#include "options.hpp"
#include "zero/activations.hpp"
#include "zero/zero.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>

namespace gpt {

/// Policies that go together. What all of the table have in common is in the trainer: buckets of a
/// constant size (CB), and one reservation with two ends for all memory (MD).
template <class S, class P>
struct Configuration {
  using Stage = S;      ///< of the optimizer
  using Placement = P;  ///< of activation checkpoints
};
using C1 = Configuration<zero::stage::Pos, zero::activation::Whole>;
using C2 = Configuration<zero::stage::Pos, zero::activation::Pa>;
using C3 = Configuration<zero::stage::PosG, zero::activation::Whole>;
using C4 = Configuration<zero::stage::PosG, zero::activation::Pa>;
using C5 = Configuration<zero::stage::PosG, zero::activation::PaCpu>;

/// What the options call the policies of a configuration.
struct NamedConfiguration {
  std::string name;
  std::string stage;
  std::string activations;
};

template <class C>
[[nodiscard]] NamedConfiguration named(std::string name) {
  std::string stage(C::Stage::name);
  std::ranges::transform(stage, stage.begin(), [](char c) { return c == 'P' ? 'p' : c; });
  using P = typename C::Placement;
  return {std::move(name),
          std::move(stage),
          P::offloaded     ? "partitioned+host"
          : P::partitioned ? "partitioned"
                           : "recompute"};
}

/// All of Table 3.
[[nodiscard]] inline std::array<NamedConfiguration, 5> configurations() {
  return {named<C1>("C1"), named<C2>("C2"), named<C3>("C3"), named<C4>("C4"), named<C5>("C5")};
}

/// The same options with the policies of a configuration.
[[nodiscard]] inline Options configured(Options options, NamedConfiguration const& with) {
  options.configuration = with.name;
  options.stage = with.stage;
  options.activations = with.activations;
  return options;
}

}  // namespace gpt
