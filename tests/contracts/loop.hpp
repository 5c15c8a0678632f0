/// @file
/// The smallest training loop over the toy model; it allocates nothing itself.
#pragma once

#include "support/standard.hpp"
#include "support/toy_model.hpp"
#include "zero/zero.hpp"

namespace contracts {

using toy::load;

/// Named by a stage, a precision and whatever else is not the default, in this order: tests that
/// say the same in the same way share a type, and types are most of what there is to compile.
template <class... Policies>
using Optimizer = zero::ShardedOptimizer<zero::InProcess, Policies...>;

/// Calls `use(t, i)` for every tensor t of a unit, the unit's i-th.
template <class Optimizer, class Use>
void for_each_tensor(Optimizer const& optimizer, int unit, Use const& use) {
  std::size_t i = 0;
  for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
    if (optimizer.tensors()[t].unit == unit) use(t, i++);
  }
}

/// Backward pass of one unit; `reduce` is the caller's.
template <class Optimizer>
auto unit_backward(Optimizer& optimizer, int unit, toy::Run const& run, long step, int batch) {
  auto const weights = optimizer.parameters(unit);
  auto gradients = optimizer.gradients(unit);
  for_each_tensor(optimizer, unit, [&](std::size_t t, std::size_t i) {
    toy::backward(run, t, step, batch, optimizer.loss_scale(), weights[i], gradients[i]);
  });
  return gradients;
}

/// Forward and backward pass of one micro-batch.
template <class Optimizer>
void pass(Optimizer& optimizer, toy::Run const& run, long step, int batch) {
  for (int const unit : optimizer.units()) static_cast<void>(optimizer.parameters(unit).size());
  for (std::size_t u = optimizer.units().size(); u-- > 0;) {
    optimizer.reduce(unit_backward(optimizer, static_cast<int>(u), run, step, batch));
  }
}

/// Appends the bytes of a span.
template <class T>
void append(std::vector<std::byte>& to, std::span<T> from) {
  auto const bytes = std::as_bytes(from);
  to.insert(to.end(), bytes.begin(), bytes.end());
}

/// Bits of everything a rank can see: parameters of all units, its master weights and states.
/// Collective where parameters are partitioned.
template <class Optimizer>
[[nodiscard]] std::vector<std::byte> snapshot(Optimizer& optimizer) {
  std::vector<std::byte> bits;
  for (int const unit : optimizer.units()) {
    auto const weights = optimizer.parameters(unit);
    for (std::size_t i = 0; i < weights.size(); ++i) append(bits, weights[i]);
  }
  optimizer.visit_owned(
      [&](zero::Tensor const&, std::size_t, auto const& master, auto const& states) {
        append(bits, master);
        for (auto const& state : states) append(bits, state);
      });
  return bits;
}

/// A model without padding on 1, 2, 3 and 4 ranks: `units` units of 2 * 6144 * `scale` elements.
[[nodiscard]] inline std::vector<zero::Tensor> even_model(int units = 4, std::size_t scale = 1) {
  std::vector<zero::Tensor> tensors;
  for (int unit = 0; unit < units; ++unit) {
    std::string const prefix = "u" + std::to_string(unit);
    tensors.push_back({.name = prefix + ".w", .shape = {2 * scale, 4096}, .unit = unit});
    tensors.push_back({.name = prefix + ".b", .shape = {4096 * scale}, .unit = unit});
  }
  return tensors;
}

}  // namespace contracts
