/// @file
/// Memory that a trainer lends to an optimizer of Borrowed<> memory.
#pragma once

#include "contracts/guarded.hpp"
#include "contracts/recording.hpp"
#include "zero/zero.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace contracts {

template <class Stage, class Precision>
using Borrower = WatchedOptimizer<Stage, Precision, zero::Borrowed<>>;

[[nodiscard]] inline std::size_t lent_count(zero::Tensor const& tensor) {
  return tensor.tied_to.empty() ? zero::element_count(tensor) : 0;
}

/// A trainer's memory, every buffer of it between forbidden pages: one for all tensors (`flat`) or
/// one each.
template <class T>
class LentMemory {
 public:
  LentMemory(std::vector<zero::Tensor> const& tensors, bool flat, bool at_end) {
    std::size_t total = 0;
    for (auto const& tensor : tensors) total += lent_count(tensor);
    if (flat) buffers_.emplace_back(total, at_end);
    std::size_t used = 0;
    for (auto const& tensor : tensors) {
      std::size_t const count = lent_count(tensor);
      if (flat) {
        tensors_.push_back(buffers_.front().span().subspan(used, count));
        used += count;
      } else {
        buffers_.emplace_back(count, at_end);
        tensors_.push_back(buffers_.back().span());
      }
    }
  }

  [[nodiscard]] std::span<T> flat() const { return buffers_.front().span(); }
  [[nodiscard]] std::vector<std::span<T>> const& list() const { return tensors_; }
  void clear() {
    for (auto& buffer : buffers_) buffer.allow_writing();
    for (auto const& tensor : tensors_) std::fill(tensor.begin(), tensor.end(), T(0.f));
  }
  void forbid_writing() {
    for (auto& buffer : buffers_) buffer.forbid_writing();
  }
  void copy_from(LentMemory const& other) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      std::copy(other.tensors_[t].begin(), other.tensors_[t].end(), tensors_[t].begin());
    }
  }

 private:
  std::vector<Guarded<T>> buffers_;
  std::vector<std::span<T>> tensors_;
};

/// Lends both, in the form they have.
template <class O>
void lend(O& optimizer,
          bool flat,
          LentMemory<typename O::Parameter> const& parameters,
          LentMemory<typename O::Wire> const& gradients) {
  if (flat) {
    optimizer.bind(parameters.flat(), gradients.flat());
  } else {
    optimizer.bind(parameters.list(), gradients.list());
  }
}

}  // namespace contracts
