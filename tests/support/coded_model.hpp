/// @file
/// A model with states of 8 bits, its gradients, and what a step makes of them, element by element,
/// from the definition of root codes.
#pragma once

#include "support/standard.hpp"
#include "support/toy_model.hpp"
#include "zero/kernel/random_bits.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/zero.hpp"

#include <cmath>

namespace coded_model {

using zero::Tensor;

/// Large ones, small ones, one that is marked, the smallest that is coded and the largest that is
/// not, stacks of either, tied and frozen ones; some whose last group is a short one.
inline std::vector<Tensor> model() {
  return {{.name = "wte", .shape = {37, 150}, .unit = 0},
          {.name = "from", .shape = {4096}, .unit = 0, .learning_rate = 0.5},
          {.name = "below", .shape = {4095}, .unit = 0},
          {.name = "layers", .shape = {3, 4099}, .unit = 1, .stacked = true},
          {.name = "gains", .shape = {3, 77}, .unit = 1, .weight_decay = 0., .stacked = true},
          {.name = "old", .shape = {5000}, .unit = 2, .frozen = true},
          {.name = "full", .shape = {5003}, .unit = 3, .full_states = true},
          {.name = "torchao", .shape = {6144}, .unit = 4},
          {.name = "head", .shape = {37, 150}, .unit = 4, .tied_to = "wte"}};
}

/// Has a tensor its states in codes? A slice counts alone.
inline bool is_coded(Tensor const& tensor) {
  std::uint64_t count = zero::element_count(tensor);
  if (tensor.stacked) count /= tensor.shape.front();
  return !tensor.full_states && count >= 4096;
}
inline std::uint64_t slice_count(Tensor const& tensor) {
  return zero::element_count(tensor) / (tensor.stacked ? tensor.shape.front() : 1);
}

/// Weight of all ranks together: a power of two, so that means are exact.
constexpr double weight = 8.;
inline double weight_of(int rank, int ranks) { return rank == 0 ? weight - (ranks - 1) : 1.; }

/// What all ranks' gradients of an element add up to: neighbours are of very different sizes, some
/// of them 0. Sums of what ranks have of it are exact, in any order.
inline float sum_of_gradients(std::size_t t, std::size_t i, long step) {
  float const u = toy::uniform(t + 50, i, static_cast<std::uint64_t>(step)) - 0.5f;
  float const size = std::exp2(-static_cast<float>(i % 11));
  return i % 17 == 3 ? 0.f : std::rint(u * size * 0x1p15f) * 0x1p-14f;
}
inline float gradient_of(std::size_t t, std::size_t i, long step, int rank, int ranks) {
  auto const part = [&](int r) {
    float const u = toy::uniform(t, i, static_cast<std::uint64_t>(100 * step + r)) - 0.5f;
    return std::rint(u * 0x1p14f) * 0x1p-14f;
  };
  if (rank != 0) return part(rank);
  float left = sum_of_gradients(t, i, step);
  for (int r = 1; r < ranks; ++r) left -= part(r);
  return left;
}

/// The number of a tensor's memory in the model, by what it is tied to.
inline std::size_t number_of(Tensor const& tensor) {
  static auto const all = model();
  std::string const& name = tensor.tied_to.empty() ? tensor.name : tensor.tied_to;
  std::size_t t = 0;
  while (t < all.size() && all[t].name != name) ++t;
  return t;
}

/// What is special about a step.
enum class Kind { usual, skipped, rests };
inline Kind kind_of(long step) {
  return step == 2 ? Kind::skipped : step == 3 ? Kind::rests : Kind::usual;
}
/// Which tensor rests then.
inline bool rests(Tensor const& tensor) { return tensor.name == "torchao"; }

/// Values to begin with.
inline void fill(Tensor const& tensor, std::size_t first, std::span<float> out) {
  std::size_t const t = number_of(tensor);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = toy::initial_value(t, first + i);
}

/// A step, with everything that this rank has to say about it.
template <class O>
zero::StepReport step(O& optimizer, long number, int rank, int ranks) {
  Kind const kind = kind_of(number);
  optimizer.micro_step({.weight = weight_of(rank, ranks), .last = true});
  auto const tensors = optimizer.tensors();
  for (int const unit : optimizer.units_backward()) {
    if (kind == Kind::rests && unit == 4) {
      for (Tensor const& tensor : tensors) {
        if (rests(tensor)) optimizer.without_gradient(tensor);
      }
    }
    auto gradients = optimizer.gradients(unit);
    std::size_t use = 0;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      Tensor const& tensor = tensors[t];
      std::uint64_t const count = slice_count(tensor);
      int const layer = unit - tensor.unit;
      int const layers = tensor.stacked ? static_cast<int>(tensor.shape.front()) : 1;
      if (layer < 0 || layer >= layers) continue;
      auto const gradient = gradients[use++];
      // A tied tensor's gradient comes of one of its uses alone.
      if (!tensor.tied_to.empty() || (kind == Kind::rests && rests(tensor))) continue;
      std::size_t const own = number_of(tensor);
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        std::size_t const at = static_cast<std::size_t>(layer) * count + i;
        gradient[i] += gradient_of(own, at, number, rank, ranks);
      }
      if (kind == Kind::skipped && unit == 0 && !gradient.empty() && rank == ranks - 1) {
        gradient[0] = std::numeric_limits<float>::quiet_NaN();
      }
    }
    optimizer.reduce(std::move(gradients));
  }
  return optimizer.step({.non_finite = zero::NonFinite::skip});
}

/// What is held of one described tensor, as it lies in memory; of scales there are those of slice
/// after slice.
struct HeldTensor {
  std::vector<float> masters{};
  std::map<std::string, std::vector<float>> full{};           ///< states that are no codes
  std::map<std::string, std::vector<std::uint8_t>> codes{};   ///< bytes
  std::map<std::string, std::vector<std::uint8_t>> scales{};  ///< likewise
  friend bool operator==(HeldTensor const&, HeldTensor const&) = default;
};
using AllHeld = std::map<std::string, HeldTensor>;

/// Adds what a rank has of what it updates, byte for byte.
template <class O>
void collect(O& optimizer, AllHeld& all) {
  auto& parts = zero::detail::EngineAccess::engine(optimizer).parts();
  parts.held.trained(zero::detail::Extent::updated, [&](auto const& piece) {
    auto const& slice = parts.slices[piece.tensor()];
    Tensor const& tensor = parts.described[slice.described];
    HeldTensor& held = all[tensor.name];
    std::size_t const slices = tensor.stacked ? tensor.shape.front() : 1;
    std::uint64_t const count = slice_count(tensor);
    std::uint64_t const groups = (count + 31) / 32;
    auto const put =
        [&](auto& to, std::uint64_t whole, std::uint64_t first, auto const* from, std::uint64_t n) {
          to.resize(whole);
          std::copy_n(from, n, to.begin() + static_cast<std::ptrdiff_t>(first));
        };
    std::uint64_t const layer = slice.first / count;
    std::uint64_t const first = slice.first + piece.first();
    for (std::size_t k = 0; k < piece.types().arrays.size(); ++k) {
      zero::ArrayForm const& form = piece.types().arrays[k];
      zero::detail::Array const array = piece.array(k);
      auto const* const bytes = reinterpret_cast<std::uint8_t const*>(array.first);
      std::string const name(form.name);
      switch (form.coding) {
        case zero::Coding::root:
        case zero::Coding::root_of_squares:
          put(held.codes[name], slices * count, first, bytes, piece.count());
          break;
        case zero::Coding::root_scales:
          put(held.scales[name],
              slices * groups,
              layer * groups + piece.first() / 32,
              bytes,
              (piece.count() + 31) / 32);
          break;
        default: {
          std::vector<float> values(piece.count());
          zero::detail::read_values(parts.space(),
                                    piece.values(k),
                                    values.size(),
                                    reinterpret_cast<std::byte*>(values.data()));
          put(k == 0 ? held.masters : held.full[name],
              slices * count,
              first,
              values.data(),
              values.size());
        }
      }
    }
  });
}

// Root codes, from their definition; in float.

inline float number(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t word(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float square_of(bool sign) { return sign ? 127.f * 127.f : 255.f * 255.f; }

inline float decoded(bool sign, std::uint8_t code, std::uint8_t scale) {
  float const unit = number(std::uint32_t{scale} << 23) / square_of(sign);
  if (sign) {
    int const c = static_cast<std::int8_t>(code);
    return static_cast<float>(c * std::abs(c)) * unit;
  }
  float const root = static_cast<float>(int{code} * int{code}) * unit;
  return root * root;
}
inline std::uint8_t scale_of(bool sign, std::span<float const> group) {
  std::uint32_t top = 0;
  for (float const x : group) top = std::max(top, word(x) & 0x7fffffffu);
  if (top >= 0x7f800000u) return 255;
  if (top == 0) return 0;
  if (!sign) top = word(std::sqrt(number(top)));
  std::uint32_t const scale = (top + 0x7fffffu) >> 23;
  return static_cast<std::uint8_t>(std::clamp(scale, sign ? 15u : 76u, sign ? 254u : 190u));
}
inline float level_of(bool sign, float x, std::uint8_t scale) {
  float const a = sign ? std::fabs(x) : std::sqrt(x);
  float const factor = number(word(square_of(sign)) + ((127u - scale) << 23));
  return std::min(a * factor, square_of(sign));
}
inline std::uint8_t finished(bool sign, float x, int c) {
  if (!sign && x > 0.f) c = std::max(c, 4);
  return static_cast<std::uint8_t>(std::signbit(x) ? -c : c);
}
/// With 16 random bits.
inline std::uint8_t encoded(bool sign, float x, std::uint8_t scale, std::uint16_t random) {
  if (scale == 0 || scale == 255) return 0;
  float const t = level_of(sign, x, scale);
  int const c = static_cast<int>(std::floor(std::sqrt(t)));
  float const u = (static_cast<float>(random) + 0.5f) * 0x1p-16f;
  bool const up = t - static_cast<float>(c * c) > u * static_cast<float>(2 * c + 1);
  return finished(sign, x, up ? c + 1 : c);
}
/// To nearest.
inline std::uint8_t nearest(bool sign, float x, std::uint8_t scale) {
  if (scale == 0 || scale == 255) return 0;
  return finished(sign, x, static_cast<int>(std::rint(std::sqrt(level_of(sign, x, scale)))));
}

/// A run of the whole model in one thread, element by element.
/// @tparam R     a rule whose states are coded, and which has the rule that it computes as `full()`
template <class R>
class Reference {
 public:
  explicit Reference(R const& rule, std::uint64_t seed = 0) : rule_(rule), seed_(seed) {
    for (Tensor const& tensor : model()) {
      if (tensor.frozen || !tensor.tied_to.empty()) continue;
      HeldTensor& held = all_[tensor.name];
      std::size_t const count = zero::element_count(tensor);
      std::size_t const slices = tensor.stacked ? tensor.shape.front() : 1;
      held.masters.resize(count);
      fill(tensor, 0, held.masters);
      for (zero::StateArray const& state : R::states) {
        std::string const name(state.name);
        if (!is_coded(tensor)) {
          held.full[name].resize(count);
          continue;
        }
        held.codes[name].resize(count);
        held.scales[name].resize(slices * ((slice_count(tensor) + 31) / 32));
      }
    }
  }
  [[nodiscard]] AllHeld const& held() const noexcept { return all_; }

  void step(long number) {
    Kind const kind = kind_of(number);
    if (kind == Kind::skipped) return;
    for (Tensor const& tensor : model()) {
      if (tensor.frozen || !tensor.tied_to.empty()) continue;
      if (kind == Kind::rests && rests(tensor)) continue;
      long const count = ++counts_[tensor.name];
      auto const scalars = rule_.full().scalars(count,
                                                static_cast<float>(rule_.lr),
                                                static_cast<float>(tensor.learning_rate),
                                                static_cast<float>(tensor.weight_decay));
      std::size_t const slice = slice_count(tensor);
      for (std::size_t first = 0; first < zero::element_count(tensor); first += slice) {
        for (std::size_t i = 0; i < slice; i += 32) {
          group(tensor, first, i, std::min<std::size_t>(32, slice - i), number, count, scalars);
        }
      }
    }
  }

 private:
  static constexpr std::size_t states = R::states.size();

  void group(Tensor const& tensor,
             std::size_t slice,
             std::size_t i,
             std::size_t size,
             long number,
             long count,
             zero::StepScalars const& scalars) {
    HeldTensor& held = all_[tensor.name];
    bool const coded = is_coded(tensor);
    std::size_t const groups = (slice_count(tensor) + 31) / 32;
    std::size_t const g = slice / slice_count(tensor) * groups + i / 32;
    std::array<std::array<float, 32>, states> values{};
    std::array<std::uint8_t const*, states> codes{};
    std::array<std::uint8_t, states> scales{};
    std::array<float const*, states> full{};
    for (std::size_t k = 0; k < states; ++k) {
      std::string const name(R::states[k].name);
      if (coded) codes[k] = held.codes[name].data();
      if (coded) scales[k] = held.scales[name][g];
      if (!coded) full[k] = held.full[name].data();
    }
    for (std::size_t e = 0; e < size; ++e) {
      std::size_t const at = slice + i + e;
      std::array<float, states> state{};
      for (std::size_t k = 0; k < states; ++k) {
        bool const sign = R::states[k].coding == zero::StateCoding::root;
        state[k] = coded ? decoded(sign, codes[k][at], scales[k]) : full[k][at];
      }
      float const sum = sum_of_gradients(number_of(tensor), at, number);
      rule_.full().template update<float>(
          scalars, held.masters[at], sum / static_cast<float>(weight), state.data());
      for (std::size_t k = 0; k < states; ++k) values[k][e] = state[k];
    }
    for (std::size_t k = 0; k < states; ++k) {
      std::string const name(R::states[k].name);
      bool const sign = R::states[k].coding == zero::StateCoding::root;
      std::span<float const> const all(values[k].data(), size);
      if (!coded) {
        std::copy_n(all.begin(), size, held.full[name].begin() + std::ptrdiff_t(slice + i));
        continue;
      }
      std::uint8_t const scale = held.scales[name][g] = scale_of(sign, all);
      auto const stream = zero::kernel::random_stream(
          zero::kernel::random_key(zero::kernel::random_key(tensor.name, 0), k + 1),
          seed_,
          static_cast<std::uint64_t>(count));
      auto& to = held.codes[name];
      for (std::size_t e = 0; e < size; ++e) {
        std::size_t const at = slice + i + e;
        auto const bits = zero::kernel::random_bits<std::uint16_t>(stream, at);
        to[at] = encoded(sign, all[e], scale, bits);
      }
    }
  }

  R rule_;
  std::uint64_t seed_;
  AllHeld all_;
  std::map<std::string, long> counts_;
};

}  // namespace coded_model
