/// @file
/// In which types a rank holds tensors: parameters, gradients, and the arrays that a rule works on.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// How an array has the values of its elements.
enum class Coding : std::uint8_t {
  parameter,  ///< it is the parameters themselves, and no memory of its own
  values,     ///< one after the other
  rest16,  ///< of each fp32 the 16 bits that its parameter, which is rounded from it, does not have
  rest8,   ///< the upper 8 of them
  root,    ///< of each fp32 a byte, its root code
  root_of_squares,  ///< likewise, of numbers that have no sign
  root_scales       ///< a byte for each group of 32 elements whose codes are in another array
};

/// Elements of a group that is coded together. Tensors begin at multiples of it.
inline constexpr std::uint64_t coded_group = 32;

/// Are they what parameters lack of the values?
[[nodiscard]] constexpr bool is_rest(Coding coding) noexcept {
  return coding == Coding::rest16 || coding == Coding::rest8;
}
/// Are these codes, which scales belong to?
[[nodiscard]] constexpr bool has_scales(Coding coding) noexcept {
  return coding == Coding::root || coding == Coding::root_of_squares;
}

/// Bytes that an array takes for one element; of scales, for a group.
[[nodiscard]] constexpr std::size_t held_bytes(DType dtype, Coding coding) noexcept {
  if (coding >= Coding::rest8) return 1;
  return coding == Coding::rest16 ? 2 : size_of(dtype);
}
/// What an array has so many entries for: elements, or groups.
[[nodiscard]] constexpr std::uint64_t entries_of(Coding coding, std::uint64_t elements) noexcept {
  return coding == Coding::root_scales ? ceil_div(elements, coded_group) : elements;
}

/// How masters are held that are no fp32 of their own, or from which parameters are rounded in
/// another way than to nearest even. Functions of the host; masters need no alignment.
struct MasterForm {
  /// Rounds masters to parameters, and keeps what that takes from them; where one of both is null,
  /// does the other alone.
  void (*split)(void* parameters, void* rests, void const* masters, std::size_t count);
  /// Puts them together again; null where masters are held whole.
  void (*join)(void* masters, void const* parameters, void const* rests, std::size_t count);
  /// The least number whose parameter is infinite; 0: halfway to the power of two behind the
  /// largest one.
  float least_infinite = 0.f;
  friend constexpr bool operator==(MasterForm const&, MasterForm const&) = default;
};

/// How states are held that are codes. Functions of the host; values need no alignment, and begin
/// with a group.
struct CodeForm {
  /// Values of codes, as fp32.
  void (*decode)(void* values, void const* codes, void const* scales, std::size_t count);
  /// Codes of values, to nearest. What was decoded gets its codes and scales back.
  void (*encode)(void* codes, void* scales, void const* values, std::size_t count);
  /// The first of `count` codes that stands for no number; `count` if all do.
  std::size_t (*first_bad)(void const* codes, void const* scales, std::size_t count);
  friend constexpr bool operator==(CodeForm const&, CodeForm const&) = default;
};

/// One array that a rule works on, beside the gradients.
struct ArrayForm {
  std::string_view name{};          ///< such as "exp_avg"; scales have that of their codes
  DType dtype = DType::f32;         ///< of its values, as they are shown and saved
  Coding coding = Coding::values;   ///< of them
  bool random = false;              ///< a step rounds them stochastically
  CodeForm const* codes = nullptr;  ///< null unless they are codes
  friend constexpr bool operator==(ArrayForm const&, ArrayForm const&) = default;
};

/// The types of tensors that are held alike, and their arrays.
struct StorageTypes {
  DType parameter = DType::f32;   ///< what forward and backward read
  DType wire = DType::f32;        ///< gradients, here and on their way
  DType accumulate = DType::f32;  ///< sums over micro-steps
  /// What holds the masters comes first, then the rule's states, then scales of those that are
  /// codes; empty if nothing updates them. Refers to constants.
  std::span<ArrayForm const> arrays{};

  MasterForm const* masters = nullptr;  ///< null: fp32, or parameters are their own

  /// Does nothing update them?
  [[nodiscard]] constexpr bool frozen() const noexcept { return arrays.empty(); }
  /// Are they bytes that no arithmetic touches, such as quantised blocks? Such are frozen.
  [[nodiscard]] constexpr bool opaque() const noexcept { return is_integral(parameter); }
  /// Is there a master, or what the parameter lacks of it, beside the parameter?
  [[nodiscard]] constexpr bool has_master() const noexcept {
    return !frozen() && arrays.front().coding != Coding::parameter;
  }
  /// Is that a number of its own, which the parameter follows?
  [[nodiscard]] constexpr bool has_whole_master() const noexcept {
    return has_master() && arrays.front().coding == Coding::values;
  }
  /// Does a step round any of the arrays stochastically?
  [[nodiscard]] constexpr bool random() const noexcept {
    bool any = false;
    for (ArrayForm const& each : arrays) any = any || each.random;
    return any;
  }
  /// What the update works on.
  [[nodiscard]] constexpr DType master() const noexcept {
    return frozen() ? parameter : arrays.front().dtype;
  }
  /// Of the values that a trainer loads, unless they are opaque.
  [[nodiscard]] constexpr DType value() const noexcept {
    return master() == DType::f64 ? DType::f64 : DType::f32;
  }
  /// Are some states codes?
  [[nodiscard]] constexpr bool coded() const noexcept {
    return !frozen() && arrays.back().coding == Coding::root_scales;
  }
  /// Which array has the scales of the k-th, whose name they have.
  [[nodiscard]] constexpr std::size_t scales_of(std::size_t k) const noexcept {
    std::size_t scales = arrays.size() - 1;
    while (arrays[scales].name != arrays[k].name) --scales;
    return scales;
  }
  /// The arrays behind the first.
  [[nodiscard]] constexpr std::span<ArrayForm const> states() const noexcept {
    return arrays.subspan(frozen() ? 0 : 1);
  }
  /// Bytes of the master of one element: 0 where parameters are their own masters.
  [[nodiscard]] constexpr std::uint64_t master_bytes() const noexcept {
    return has_master() ? held_bytes(master(), arrays.front().coding) : 0;
  }
  /// Bytes of all states of one element, without scales.
  [[nodiscard]] constexpr std::uint64_t state_bytes() const noexcept {
    std::uint64_t bytes = 0;
    for (ArrayForm const& state : states()) {
      if (state.coding != Coding::root_scales) bytes += held_bytes(state.dtype, state.coding);
    }
    return bytes;
  }
  /// Bytes of all scales of a group of elements.
  [[nodiscard]] constexpr std::uint64_t scale_bytes() const noexcept {
    std::uint64_t bytes = 0;
    for (ArrayForm const& state : states()) bytes += state.coding == Coding::root_scales ? 1 : 0;
    return bytes;
  }
  /// The same types, and arrays of the same names and forms.
  friend constexpr bool operator==(StorageTypes const& a, StorageTypes const& b) noexcept {
    return a.parameter == b.parameter && a.wire == b.wire && a.accumulate == b.accumulate &&
           a.masters == b.masters &&
           std::equal(a.arrays.begin(), a.arrays.end(), b.arrays.begin(), b.arrays.end());
  }
};

/// The types of each storage kind, by its number in the partition.
using KindTypes = std::vector<StorageTypes>;

/// How many precisions types are of: where states are codes, each is there a second time behind
/// all, for tensors whose states are not.
[[nodiscard]] constexpr std::size_t precision_count(std::span<StorageTypes const> types) noexcept {
  return types.front().coded() ? types.size() / 2 : types.size();
}

}  // namespace zero::inline ZERO_NAMESPACE
