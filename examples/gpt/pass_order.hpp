/// @file
/// In which order a network is called, and with how many elements: the same wherever it computes.
#pragma once

#include "tensors.hpp"

#include <cstddef>
#include <ranges>
#include <stdexcept>
#include <vector>

namespace gpt {

/// The tensors of one unit in registration order: a range of spans (a vector or array of them).
/// Elements are float, double, or a 16-bit type constructible from and convertible to float.
template <class Range>
concept TensorSpans = std::ranges::random_access_range<Range const> &&
    std::ranges::contiguous_range<std::ranges::range_reference_t<Range const>>;

/// Where a micro-batch is on its way through the network. Throws std::logic_error for what comes
/// out of order.
class PassOrder {
 public:
  /// @param of  the model-parallel rank whose tensors it is called with
  /// @throws std::invalid_argument  there is no such model, or max_batch is not positive
  PassOrder(Config const& config, int max_batch, ModelRank const& of = {})
      : units_(config.units()), context_(config.context), max_batch_(max_batch) {
    if (max_batch < 1) throw std::invalid_argument("gpt: max_batch must be positive");
    sizes_.resize(static_cast<std::size_t>(units_));
    for (auto const& tensor : tensors(config, of)) {
      sizes_[static_cast<std::size_t>(tensor.unit)].push_back(tensor.numel());
    }
  }

  /// Elements, by unit and tensor.
  [[nodiscard]] std::vector<std::vector<std::size_t>> const& sizes() const noexcept {
    return sizes_;
  }
  /// Of the micro-batch: sequences, and bytes of each.
  [[nodiscard]] int batch() const noexcept { return batch_; }
  [[nodiscard]] int length() const noexcept { return length_; }
  [[nodiscard]] bool has_targets() const noexcept { return has_targets_; }

  /// Begins a forward pass of sequences of `length` bytes.
  /// @throws std::invalid_argument  sizes disagree, or exceed the context or `max_batch`
  void set_batch(std::size_t inputs, std::size_t targets, int length) {
    if (length < 1 || length > context_ || inputs == 0 ||
        inputs % static_cast<std::size_t>(length) != 0 ||
        inputs / static_cast<std::size_t>(length) > static_cast<std::size_t>(max_batch_) ||
        (targets != 0 && targets != inputs)) {
      throw std::invalid_argument("gpt: the batch does not fit the model");
    }
    length_ = length;
    batch_ = static_cast<int>(inputs) / length;
    has_targets_ = targets != 0;
    next_forward_ = 0;
    next_backward_ = none;
    used_up_ = false;
  }

  template <TensorSpans Weights>
  void expect_forward(int unit, Weights const& weights) const {
    expect(exists(unit) && next_forward_ == unit, "gpt: forward runs unit by unit from 0");
    expect_sizes(unit, weights);
  }
  void end_forward(int unit) noexcept { next_forward_ = unit + 1; }
  void expect_logits() const { expect(next_forward_ == units_, "gpt: there are no logits yet"); }
  void expect_loss() const { expect(has_loss(), "gpt: there is no loss yet"); }

  void begin_backward() {
    expect(has_loss() && !used_up_, "gpt: there is no forward pass to go back");
    used_up_ = true;
    next_backward_ = units_ - 1;
  }
  template <TensorSpans Weights, TensorSpans Gradients>
  void expect_backward(int unit, Weights const& weights, Gradients const& gradients) const {
    expect(exists(unit) && next_backward_ == unit,
           "gpt: backward runs after begin_backward, from the head down");
    expect_sizes(unit, weights);
    expect_sizes(unit, gradients);
  }
  void end_backward(int unit) noexcept { next_backward_ = unit - 1; }

 private:
  static constexpr int none = -1;

  [[nodiscard]] bool exists(int unit) const noexcept { return unit >= 0 && unit < units_; }
  [[nodiscard]] bool has_loss() const noexcept { return next_forward_ == units_ && has_targets_; }
  static void expect(bool condition, char const* message) {
    if (!condition) throw std::logic_error(message);
  }
  template <class Spans>
  void expect_sizes(int unit, Spans const& spans) const {
    auto const& sizes = sizes_[static_cast<std::size_t>(unit)];
    bool equal = std::ranges::size(spans) == sizes.size();
    for (std::size_t i = 0; equal && i < sizes.size(); ++i) {
      equal =
          std::ranges::size(std::ranges::begin(spans)[static_cast<std::ptrdiff_t>(i)]) == sizes[i];
    }
    expect(equal, "gpt: the spans do not match the tensors of the unit");
  }

  int units_;
  int context_;
  int max_batch_;
  int batch_ = 0;
  int length_ = 0;
  int next_forward_ = none;
  int next_backward_ = none;
  bool has_targets_ = false;
  bool used_up_ = false;
  std::vector<std::vector<std::size_t>> sizes_;
};

}  // namespace gpt
