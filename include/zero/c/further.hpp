/// @file
/// What a trainer in C can ask for where the library has it, and is refused where it has not:
/// groups of tensors, stacks, absent gradients, steps that are counted outside.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/c.h"

#include <string_view>

namespace zero::inline ZERO_NAMESPACE::c {

/// @throws Error (invalid_argument) always
[[noreturn]] ZERO_COLD inline void refuse_further(std::string_view what) {
  fail(ErrorKind::invalid_argument, {"this version of the library has no ", what});
}

/// The group and the stack of a tensor. Without stacks, all layers belong to the first one's unit.
template <class T>
void describe_further(T& tensor, zero_tensor const& given) {
  if constexpr (requires { tensor.group; }) {
    if (given.group != nullptr) tensor.group = given.group;
  } else if (given.group != nullptr) {
    refuse_further("groups of tensors");
  }
  if constexpr (requires { tensor.stacked; }) tensor.stacked = (given.flags & ZERO_STACKED) != 0;
}

/// The number of a step.
template <class Options>
void count_further(Options& options, zero_step_options const& given) {
  if (given.count == 0) return;
  if constexpr (requires { options.count; }) {
    options.count = static_cast<decltype(options.count)>(given.count);
  } else {
    refuse_further("steps that are counted outside");
  }
}

/// A unit's or a tensor's gradient is absent on this rank.
template <class O, class What>
void absent(O& optimizer, What const& what) {
  if constexpr (requires { optimizer.without_gradient(what); }) {
    optimizer.without_gradient(what);
  } else {
    refuse_further("absent gradients");
  }
}

/// The learning rate of a group, or of all for null.
template <class O>
void change_lr(O& optimizer, char const* name, float lr) {
  if constexpr (requires { optimizer.set_lr(lr); }) {
    name != nullptr ? optimizer.set_lr(name, lr) : optimizer.set_lr(lr);
  } else {
    refuse_further("learning rates by group");
  }
}

/// The rule of a group, or of all for null.
template <class O, class R>
void change_rule(O& optimizer, char const* name, R const& rule) {
  if constexpr (requires { optimizer.set_rule(rule); }) {
    name != nullptr ? optimizer.set_rule(name, rule) : optimizer.set_rule(rule);
  } else {
    refuse_further("rules by group");
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::c
