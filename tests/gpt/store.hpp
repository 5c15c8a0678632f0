/// @file
/// What a test of the GPT has in the place of an optimizer: memory for tensors, and a batch.
#pragma once

#include "model.hpp"
#include "support/standard.hpp"
#include "text.hpp"

namespace gpt_test {

constexpr gpt::Config tiny{.layers = 2, .heads = 2, .channels = 6, .context = 5};
constexpr int sequences = 3;

/// Which elements of the whole tensor a rank holds, in its order: read off the boxes that it is
/// described with.
inline std::vector<std::size_t> places(gpt::Config const& config,
                                       gpt::ModelRank const& of,
                                       gpt::TensorInfo const& whole) {
  std::vector<std::size_t> all;
  auto const take = [&](std::size_t first, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) all.push_back(first + i);
  };
  for (zero::TensorPart const& part : gpt::parts(config, of)) {
    if (part.tensor != whole.name) continue;
    std::size_t elements = 0;
    for (auto const& box : part.boxes) elements += zero::detail::volume(box.extent);
    zero::detail::for_each_run(part.shape, part.boxes, 0, elements, take);
    return all;
  }
  take(0, whole.numel());
  return all;
}

/// All tensors of a model, or of one rank's part of it, each in memory of its own, `shift` elements
/// off its natural alignment.
template <class T>
class Store {
 public:
  explicit Store(gpt::Config const& config, std::size_t shift = 0, gpt::ModelRank const& of = {})
      : config_(config), of_(of), tensors_(gpt::tensors(config, of)), shift_(shift) {
    for (auto const& tensor : tensors_) memory_.emplace_back(tensor.numel() + shift);
  }

  [[nodiscard]] std::span<T> at(std::size_t tensor) {
    int const tied = tensors_[tensor].tied_to;
    return std::span(memory_[tied < 0 ? tensor : static_cast<std::size_t>(tied)]).subspan(shift_);
  }
  [[nodiscard]] std::vector<std::span<T>> unit(int unit) {
    std::vector<std::span<T>> spans;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].unit == unit) spans.push_back(at(i));
    }
    return spans;
  }
  [[nodiscard]] std::size_t size() const { return tensors_.size(); }
  [[nodiscard]] gpt::TensorInfo const& info(std::size_t tensor) const { return tensors_[tensor]; }

  /// The initialisation, blown up and with every gain and bias moved, so that no gradient vanishes.
  void fill(std::uint64_t seed, float stretch, float spread) {
    auto const whole = gpt::tensors(config_);
    std::vector<float> values;
    for (std::size_t i = 0; i < size(); ++i) {
      values.resize(whole[i].numel());
      gpt::initial_values(config_, seed, static_cast<int>(i), 0, values);
      T* target = at(i).data();
      for (std::size_t const j : places(config_, of_, whole[i])) {
        auto const noise = static_cast<float>(gpt::random_bits(seed + 1, i, j) >> 40U) * 0x1p-24F;
        bool const row = info(i).shape.size() == 1;
        *target++ = T(row ? values[j] + spread * (noise - 0.5F) : values[j] * stretch);
      }
    }
  }

 private:
  gpt::Config config_;
  gpt::ModelRank of_;
  std::vector<gpt::TensorInfo> tensors_;
  std::size_t shift_;
  std::vector<std::vector<T>> memory_;
};

template <class Real, class T>
void forward(gpt::Gpt<Real>& model, Store<T>& weights) {
  for (int unit = 0; unit < model.config().units(); ++unit) {
    model.forward(unit, weights.unit(unit));
  }
}

template <class Real, class T>
void backward(gpt::Gpt<Real>& model, Store<T>& weights, Store<T>& gradients, Real scale = 1) {
  model.begin_backward(scale);
  for (int unit = model.config().units(); unit-- > 0;) {
    model.backward(unit, weights.unit(unit), gradients.unit(unit));
  }
}

/// One forward and backward pass over whole contexts; returns the loss.
template <class Real, class T>
Real pass(gpt::Gpt<Real>& model,
          Store<T>& weights,
          Store<T>& gradients,
          gpt::Batch const& batch,
          Real scale = 1) {
  model.set_batch(batch.inputs, batch.targets);
  forward(model, weights);
  backward(model, weights, gradients, scale);
  return model.loss();
}

/// Have all tensors the same bits?
template <class T>
bool same_bits(Store<T>& left, Store<T>& right) {
  bool same = true;
  for (std::size_t i = 0; i < left.size(); ++i) {
    same = same && std::ranges::equal(left.at(i), right.at(i));
  }
  return same;
}

/// Random bytes.
inline gpt::Batch some_batch(int length, std::uint64_t micro_batch = 0) {
  std::vector<std::uint8_t> text(400);
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<std::uint8_t>(gpt::random_bits(3, i));
  }
  gpt::Batch batch;
  gpt::sample_batch(
      text, {.seed = 5, .step = 1, .micro_batch = micro_batch}, sequences, length, batch);
  return batch;
}

}  // namespace gpt_test
