/// @file
/// Fine-tuning with LoRA (Hu et al., 2021): the matrices W of the blocks are frozen in 8 bits, and
/// beside each of them two thin matrices A and B are trained. The model computes with
/// W + 16/r · B A, of one unit at a time.
#pragma once

#include "base_file.hpp"
#include "eight_bits.hpp"
#include "model.hpp"
#include "options.hpp"
#include "tensors.hpp"
#include "zero/zero.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

namespace gpt {

/// Does a tensor of the base get adapters? The matrices of blocks do.
[[nodiscard]] inline bool is_adapted(Config const& config, TensorInfo const& tensor) {
  return tensor.shape.size() == 2 && tensor.unit > 0 && tensor.unit < config.head_unit();
}

/// The base, frozen: matrices of blocks as bytes, everything else in fp32. In each unit the
/// adapters follow, A [rank, in] and B [out, rank] of one matrix after the other.
[[nodiscard]] inline std::vector<zero::Tensor> describe_adapted(Config const& config, int rank) {
  std::vector<zero::Tensor> described;
  auto const base = tensors(config);
  auto const thin = static_cast<std::size_t>(rank);
  for (int unit = 0; unit < config.units(); ++unit) {
    for (TensorInfo const& tensor : base) {
      if (tensor.unit != unit) continue;
      bool const coded = is_adapted(config, tensor);
      zero::Tensor& frozen = described.emplace_back();
      frozen = {.name = tensor.name,
                .shape = tensor.shape,
                .unit = unit,
                .dtype = coded ? zero::DType::u8 : zero::DType::f32,
                .frozen = true};
      if (coded) frozen.shape[1] = EightBits(tensor.shape[1]).row_bytes();
      if (tensor.tied_to >= 0) frozen.tied_to = base[static_cast<std::size_t>(tensor.tied_to)].name;
    }
    for (TensorInfo const& tensor : base) {
      if (tensor.unit != unit || !is_adapted(config, tensor)) continue;
      described.push_back(
          {.name = tensor.name + ".lora_A", .shape = {thin, tensor.shape[1]}, .unit = unit});
      described.push_back(
          {.name = tensor.name + ".lora_B", .shape = {tensor.shape[0], thin}, .unit = unit});
    }
  }
  return described;
}

/// Elements [first, first + out.size()) of an adapter at the start: B is zero, so that the model
/// begins as the base. Each depends on (seed, tensor, element) alone.
inline void initial_adapter(zero::Tensor const& tensor,
                            std::uint64_t seed,
                            std::size_t index,
                            std::size_t first,
                            std::span<float> out) {
  bool const is_b = tensor.name.ends_with("lora_B");
  float const most = is_b ? 0.F : 1.F / std::sqrt(static_cast<float>(tensor.shape[1]));
  for (float& value : out) {
    auto const bits = static_cast<float>(random_bits(seed, index, first++) >> 40U);
    value = most * (bits * 0x1p-23F - 1.F);
  }
}

/// Fills an optimizer of `describe_adapted` with the base and new adapters; reads the share of the
/// file that this rank is asked for. Collective.
/// @returns the file, which knows how much was read
template <bool on_host>
BaseFile load_adapted(zero::AnyOptimizer<on_host, float>& optimizer, Options const& options) {
  BaseFile file(options.base);
  optimizer.load_bytes(
      [&](zero::Tensor const& tensor, std::size_t first, std::span<std::byte> out) {
        EightBits const coded(file.shape(tensor.name)[1]);
        coded.encode(first, out, [&](std::size_t element, std::span<float> values) {
          file.read(tensor.name, element, values);
        });
      });
  optimizer.load_parameters(
      [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
        if (tensor.frozen) return file.read(tensor.name, first, out);
        auto const index = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
        initial_adapter(tensor, options.seed, index, first, out);
      });
  return file;
}

/// One matrix and its adapters, and how their gradients follow from the matrix's.
template <class T>
struct LowRank {
  std::span<T const> a;  ///< [rank, columns]
  std::span<T const> b;  ///< [rows, rank]
  std::size_t rank = 0;

  [[nodiscard]] std::size_t columns() const noexcept { return a.size() / rank; }
  [[nodiscard]] std::size_t rows() const noexcept { return b.size() / rank; }
  /// LoRA's alpha / r, so that the rank does not change how fast adapters learn.
  [[nodiscard]] float scale() const noexcept { return 16.F / static_cast<float>(rank); }

  /// matrix += scale · B A.
  void add_to(std::span<float> matrix) const {
    for (std::size_t row = 0; row < rows(); ++row) {
      for (std::size_t k = 0; k < rank; ++k) {
        add(scale() * static_cast<float>(b[row * rank + k]), k, matrix.subspan(row * columns()));
      }
    }
  }

  /// d_a += scale · Bᵀ D and d_b += scale · D Aᵀ, D being the gradient of the matrix.
  template <class Gradient>
  void add_gradients(std::span<float const> d,
                     std::span<Gradient> d_a,
                     std::span<Gradient> d_b) const {
    std::vector<float> sum(a.size());
    for (std::size_t row = 0; row < rows(); ++row) {
      float const* const from = d.data() + row * columns();
      for (std::size_t k = 0; k < rank; ++k) {
        float const factor = static_cast<float>(b[row * rank + k]);
        float* const to = sum.data() + k * columns();
        for (std::size_t i = 0; i < columns(); ++i) to[i] += factor * from[i];
        add_rounded(d_b[row * rank + k], scale() * dot(from, a.data() + k * columns()));
      }
    }
    for (std::size_t i = 0; i < sum.size(); ++i) add_rounded(d_a[i], scale() * sum[i]);
  }

 private:
  // row += factor · A[k].
  void add(float factor, std::size_t k, std::span<float> row) const {
    T const* const from = a.data() + k * columns();
    for (std::size_t i = 0; i < columns(); ++i) row[i] += factor * static_cast<float>(from[i]);
  }

  // In several sums, which a processor adds up side by side.
  [[nodiscard]] float dot(float const* x, T const* y) const {
    std::array<float, 16> sums{};
    for (std::size_t i = 0; i < columns(); ++i) sums[i % 16] += x[i] * static_cast<float>(y[i]);
    float sum = 0.F;
    for (float const part : sums) sum += part;
    return sum;
  }

  template <class Gradient>
  static void add_rounded(Gradient& to, float value) {
    to = static_cast<Gradient>(static_cast<float>(to) + value);
  }
};

/// The weights of the unit at work in fp32, and their gradients.
class Adapters {
 public:
  /// @param memory  where both are from; must outlive this. Nothing is taken without `--lora`
  Adapters(Options const& options, std::pmr::memory_resource* memory)
      : rank_(static_cast<std::size_t>(options.lora)) {
    if (rank_ == 0) return;
    units_.resize(static_cast<std::size_t>(options.model.units()));
    std::size_t slots = 0;
    for (TensorInfo const& tensor : tensors(options.model)) {
      auto& unit = units_[static_cast<std::size_t>(tensor.unit)];
      unit.push_back(
          {tensor.numel(), is_adapted(options.model, tensor) ? tensor.shape[1] : std::size_t{0}});
      slots = std::max(slots, unit.size());
    }
    for (std::size_t slot = 0; slot < slots; ++slot) {
      std::size_t most = 0;
      for (auto const& unit : units_) {
        if (slot < unit.size()) most = std::max(most, unit[slot].elements);
      }
      weights_.emplace_back(most, AlignedAllocator<float>(memory));
      gradients_.emplace_back(most, AlignedAllocator<float>(memory));
    }
  }

  /// Are there any?
  explicit operator bool() const noexcept { return rank_ > 0; }

  /// The unit's weights, as the model wants them. Valid until the next unit's.
  /// @param held  what the optimizer holds of the unit: bytes, fp32 and adapters
  template <class UnitParameters>
  [[nodiscard]] std::vector<std::span<float const>> merge(UnitParameters const& held) {
    std::vector<std::span<float const>> merged;
    for_each(held.unit(), [&](std::size_t slot, Slot const& tensor, std::size_t adapter) {
      auto const weights = std::span(weights_[slot]).first(tensor.elements);
      if (tensor.columns == 0) {
        std::ranges::copy(held.template as<float>(slot), weights.begin());
      } else {
        EightBits(tensor.columns).decode(held.template as<std::uint8_t>(slot), weights);
        low_rank(held, adapter).add_to(weights);
      }
      merged.push_back(weights);
    });
    return merged;
  }

  /// Zeros, for the gradients of what `merge` returns.
  [[nodiscard]] std::vector<std::span<float>> zeros(int unit) {
    std::vector<std::span<float>> all;
    for_each(unit, [&](std::size_t slot, Slot const& tensor, std::size_t) {
      all.push_back(std::span(gradients_[slot]).first(tensor.elements));
      std::ranges::fill(all.back(), 0.F);
    });
    return all;
  }

  /// Adds what those gradients mean for the adapters.
  /// @param to  the optimizer's, of the same unit
  template <class UnitParameters, class UnitGradients>
  void add_gradients(UnitParameters const& held, UnitGradients const& to) const {
    for_each(held.unit(), [&](std::size_t slot, Slot const& tensor, std::size_t adapter) {
      if (tensor.columns == 0) return;
      low_rank(held, adapter)
          .add_gradients(
              std::span(gradients_[slot]).first(tensor.elements), to[adapter], to[adapter + 1]);
    });
  }

 private:
  struct Slot {
    std::size_t elements;
    std::size_t columns;  // 0: without adapters
  };

  template <class UnitParameters>
  [[nodiscard]] auto low_rank(UnitParameters const& held, std::size_t adapter) const {
    using T = typename UnitParameters::Parameter;
    return LowRank<T>{held[adapter], held[adapter + 1], rank_};
  }

  // Calls work(slot, tensor, number of A in the unit) for the base's tensors of a unit.
  template <class Work>
  void for_each(int unit, Work const& work) const {
    auto const& slots = units_[static_cast<std::size_t>(unit)];
    std::size_t adapter = slots.size();
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      work(slot, slots[slot], adapter);
      if (slots[slot].columns > 0) adapter += 2;
    }
  }

  std::size_t rank_;
  std::vector<std::vector<Slot>> units_;
  std::vector<Buffer<float>> weights_, gradients_;  // by slot, of the size of the largest
};

}  // namespace gpt
