/// @file
/// A model of which much is frozen, whose values every type holds, and what a step makes of it, by
/// hand.
#pragma once

#include "support/standard.hpp"
#include "zero/zero.hpp"

namespace frozen_model {

/// Frozen tensors beside trained ones, alone in a unit, tied to another unit, smaller than some
/// numbers of ranks, empty, and whole.
inline std::vector<zero::Tensor> tensors() {
  return {{.name = "a", .shape = {700}, .unit = 0},
          {.name = "base", .shape = {50, 100}, .unit = 0, .frozen = true},
          {.name = "tiny", .shape = {2}, .unit = 0, .frozen = true},
          {.name = "alone", .shape = {3001}, .unit = 1, .frozen = true},
          {.name = "b", .shape = {513}, .unit = 2},
          {.name = "again", .shape = {50, 100}, .unit = 2, .frozen = true, .tied_to = "base"},
          {.name = "mask", .shape = {600}, .unit = 3, .frozen = true, .whole = true},
          {.name = "none", .shape = {0}, .unit = 3, .frozen = true},
          {.name = "head", .shape = {700}, .unit = 3, .tied_to = "a"}};
}
/// The same of what is frozen alone.
inline std::vector<zero::Tensor> frozen_tensors() {
  auto all = tensors();
  std::erase_if(all, [](zero::Tensor const& tensor) { return !tensor.frozen; });
  return all;
}

/// Whose memory a tensor has.
inline std::string const& storage(zero::Tensor const& tensor) {
  return tensor.tied_to.empty() ? tensor.name : tensor.tied_to;
}

/// A small number that differs from tensor to tensor, and from one element to the next.
inline float initial(zero::Tensor const& tensor, std::size_t element) {
  std::size_t const first = static_cast<unsigned char>(storage(tensor)[0]);
  return static_cast<float>((element * 31 + first * 17) % 251) - 125.f;
}

/// As `load_parameters` and `broadcast_parameters` ask for them.
inline void fill(zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = initial(tensor, first + i);
}

/// After so many steps of plain SGD whose learning rate is 1 and whose gradients are 1 on every
/// rank: those of tied tensors add up.
inline float after(zero::Tensor const& tensor, std::size_t element, int steps) {
  int const slope = tensor.frozen ? 0 : storage(tensor) == "a" ? 2 : 1;
  return initial(tensor, element) - static_cast<float>(slope * steps);
}

/// Has a tensor its values after so many steps?
template <class Parameter>
bool right(zero::Tensor const& tensor, std::span<Parameter const> values, int steps) {
  bool same = values.size() == zero::element_count(tensor);
  for (std::size_t i = 0; same && i < values.size(); ++i) {
    same = static_cast<float>(values[i]) == after(tensor, i, steps);
  }
  return same;
}

/// A forward and a backward pass, in which every unit has its values after so many steps.
template <class Optimizer, class Expect>
void pass(Optimizer& optimizer, int steps, Expect const& expect) {
  auto const look = [&](int unit) {
    auto const weights = optimizer.parameters(unit);
    std::size_t i = 0;
    for (zero::Tensor const& tensor : optimizer.tensors()) {
      if (tensor.unit != unit) continue;
      expect(right(tensor, weights[i++], steps),
             tensor.name + " after " + std::to_string(steps) + " steps");
    }
  };
  for (int const unit : optimizer.units()) look(unit);
  for (int const unit : optimizer.units_backward()) {
    look(unit);
    auto gradients = optimizer.gradients(unit);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      for (auto& each : gradients[i])
        each = typename Optimizer::Wire(static_cast<float>(each) + 1.f);
    }
    optimizer.reduce(std::move(gradients));
  }
}

}  // namespace frozen_model
