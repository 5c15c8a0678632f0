/// @file
/// A small network that is recomputed layer by layer from its checkpoints.
#pragma once

#include "zero/activations.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace activations {

inline constexpr int layer_count = 3;
/// Nothing divides evenly by 2, 3 or 4; inputs of layer 1 are the largest.
inline constexpr std::array<std::size_t, layer_count + 1> widths{7, 131, 5, 1};
inline constexpr std::size_t rows = 3;

/// The input of each layer, and a mask of other type and size for layer 1.
[[nodiscard]] inline std::vector<zero::ActivationCheckpoint> checkpoints() {
  return {{"input", 0, rows * widths[0], zero::DType::f32},
          {"input", 1, rows * widths[1], zero::DType::f32},
          {"mask", 1, rows * widths[2], zero::DType::u8},
          {"input", 2, rows * widths[2], zero::DType::f32}};
}

/// Keeps everything whole, in plain vectors: what all placements are compared with.
class KeepAll {
 public:
  template <class T>
  void store(int layer, std::span<T const> tensor, zero::ActivationKey key) {
    auto const* const begin = reinterpret_cast<std::byte const*>(tensor.data());
    kept_[{key.micro_batch, layer, key.checkpoint}] = {begin, begin + tensor.size_bytes()};
  }
  class Fetched {
   public:
    Fetched(KeepAll& all, int layer, int batch) : all_(&all), layer_(layer), batch_(batch) {}
    template <class T>
    std::span<T const> get(std::size_t i) const {
      auto const& bytes = all_->kept_.at({batch_, layer_, i});
      return {reinterpret_cast<T const*>(bytes.data()), bytes.size() / sizeof(T)};
    }

   private:
    KeepAll* all_;
    int layer_;
    int batch_;
  };
  Fetched fetch(int layer, int micro_batch) { return {*this, layer, micro_batch}; }
  void end_step() { kept_.clear(); }

 private:
  std::map<std::tuple<int, int, std::size_t>, std::vector<std::byte>> kept_;
};

/// Weights and their gradients.
class Network {
 public:
  Network() {
    for (std::size_t l = 0; l < layer_count; ++l) {
      weights_[l].resize(widths[l] * widths[l + 1]);
      gradients[l].resize(weights_[l].size());
      for (std::size_t i = 0; i < weights_[l].size(); ++i) {
        weights_[l][i] = static_cast<float>((i * 37 + l * 11) % 101) / 73.f - 0.6f;
      }
    }
  }

  /// Runs layer `l` of a micro-batch forward, storing what it starts from.
  template <class Store>
  void forward(Store& store, int l, int batch) {
    auto& x = under_way_[batch];
    if (l == 0) {
      x.resize(rows * widths[0]);
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] =
            static_cast<float>((i * 29 + static_cast<std::size_t>(batch) * 17) % 57) / 31.f - 1.f;
      }
    }
    store.store(l, std::span<float const>(x), {.micro_batch = batch});
    std::vector<std::uint8_t> mask;
    if (l == 1) {
      for (std::size_t i = 0; i < rows * widths[2]; ++i) {
        mask.push_back((i + static_cast<std::size_t>(batch)) % 3 != 0 ? 1 : 0);
      }
      store.store(l, std::span<std::uint8_t const>(mask), {.checkpoint = 1, .micro_batch = batch});
    }
    std::vector<float> y = apply(static_cast<std::size_t>(l), x, mask);
    // What was stored may be overwritten, and is.
    for (float& value : x) value = -777.f;
    for (std::uint8_t& value : mask) value = 99;
    x = std::move(y);
  }

  /// Recomputes layer `l` of a micro-batch from what was stored, and runs it backward.
  template <class Store>
  void backward(Store& store, int l, int batch) {
    auto& dy = under_way_[batch];
    auto const at = static_cast<std::size_t>(l);
    if (l == layer_count - 1) dy.assign(rows * widths[layer_count], 1.f);
    auto const fetched = store.fetch(l, batch);
    std::span<float const> const x = fetched.template get<float>(0);
    std::span<std::uint8_t const> mask;
    if (l == 1) mask = fetched.template get<std::uint8_t>(1);
    std::vector<float> const y = apply(at, x, mask);
    std::vector<float> dx(rows * widths[at]);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < widths[at + 1]; ++o) {
        if (y[r * widths[at + 1] + o] == 0.f) continue;
        float const d = dy[r * widths[at + 1] + o];
        for (std::size_t i = 0; i < widths[at]; ++i) {
          gradients[at][o * widths[at] + i] += d * x[r * widths[at] + i];
          dx[r * widths[at] + i] += d * weights_[at][o * widths[at] + i];
        }
      }
    }
    dy = std::move(dx);
  }

  std::array<std::vector<float>, layer_count> gradients;

 private:
  template <class X, class Mask>
  [[nodiscard]] std::vector<float> apply(std::size_t l, X const& x, Mask const& mask) const {
    std::vector<float> y(rows * widths[l + 1]);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < widths[l + 1]; ++o) {
        float sum = 0.f;
        for (std::size_t i = 0; i < widths[l]; ++i) {
          sum += x[r * widths[l] + i] * weights_[l][o * widths[l] + i];
        }
        bool const kept = mask.empty() || mask[r * widths[l + 1] + o] != 0;
        y[r * widths[l + 1] + o] = kept && sum > 0.f ? sum : 0.f;
      }
    }
    return y;
  }

  std::array<std::vector<float>, layer_count> weights_;
  std::map<int, std::vector<float>> under_way_;  ///< activations, then their gradients
};

/// One pass of a micro-batch through a layer.
struct Pass {
  bool forward;
  int layer;
  int batch;
};

/// Micro-batches one after the other.
[[nodiscard]] inline std::vector<Pass> in_turn(int batches) {
  std::vector<Pass> passes;
  for (int batch = 0; batch < batches; ++batch) {
    for (int l = 0; l < layer_count; ++l) passes.push_back({true, l, batch});
    for (int l = layer_count; l-- > 0;) passes.push_back({false, l, batch});
  }
  return passes;
}

/// One forward and one backward pass in turn, with `in_flight` micro-batches at once: a pipeline.
[[nodiscard]] inline std::vector<Pass> one_forward_one_backward(int batches, int in_flight) {
  std::vector<Pass> passes;
  int next = 0;
  auto const forward = [&] {
    for (int l = 0; l < layer_count; ++l) passes.push_back({true, l, next});
    ++next;
  };
  while (next < in_flight && next < batches) forward();
  for (int batch = 0; batch < batches; ++batch) {
    for (int l = layer_count; l-- > 0;) passes.push_back({false, l, batch});
    if (next < batches) forward();
  }
  return passes;
}

/// Two micro-batches whose layers take turns, forward and backward at once: virtual stages.
[[nodiscard]] inline std::vector<Pass> layers_in_turn() {
  std::vector<Pass> passes;
  for (int l = 0; l < layer_count; ++l) passes.push_back({true, l, 0});
  for (int l = 0; l < layer_count; ++l) {
    passes.push_back({false, layer_count - 1 - l, 0});
    passes.push_back({true, l, 1});
  }
  for (int l = 0; l < layer_count; ++l) passes.push_back({true, l, 2});
  for (int l = layer_count; l-- > 0;) {
    passes.push_back({false, l, 2});
    passes.push_back({false, l, 1});
  }
  return passes;
}

/// The gradients of a step.
template <class Store>
[[nodiscard]] std::vector<float> gradients(Store& store, std::vector<Pass> const& passes) {
  Network network;
  for (Pass const& pass : passes) {
    if (pass.forward) {
      network.forward(store, pass.layer, pass.batch);
    } else {
      network.backward(store, pass.layer, pass.batch);
    }
  }
  store.end_step();
  std::vector<float> all;
  for (auto const& gradient : network.gradients)
    all.insert(all.end(), gradient.begin(), gradient.end());
  return all;
}

}  // namespace activations
