/// @file
/// In which types a rank holds tensors: parameters, gradients, and the arrays that a rule works on.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// How an array has the values of its elements.
enum class Coding : std::uint8_t {
  parameter,  ///< it is the parameters themselves, and no memory of its own
  values,     ///< one after the other
};

/// One array that a rule works on, beside the gradients.
struct ArrayForm {
  std::string_view name{};         ///< such as "exp_avg"
  DType dtype = DType::f32;        ///< of its elements
  Coding coding = Coding::values;  ///< of them
  friend constexpr bool operator==(ArrayForm const&, ArrayForm const&) = default;
};

/// The types of tensors that are held alike, and their arrays.
struct StorageTypes {
  DType parameter = DType::f32;   ///< what forward and backward read
  DType wire = DType::f32;        ///< gradients, here and on their way
  DType accumulate = DType::f32;  ///< sums over micro-steps
  /// What holds the masters comes first, then the rule's states; empty if nothing updates them.
  /// Refers to constants.
  std::span<ArrayForm const> arrays{};

  /// Does nothing update them?
  [[nodiscard]] constexpr bool frozen() const noexcept { return arrays.empty(); }
  /// Are they bytes that no arithmetic touches, such as quantised blocks? Such are frozen.
  [[nodiscard]] constexpr bool opaque() const noexcept { return is_integral(parameter); }
  /// Is there a master beside the parameter?
  [[nodiscard]] constexpr bool has_master() const noexcept {
    return !frozen() && arrays.front().coding != Coding::parameter;
  }
  /// What the update works on.
  [[nodiscard]] constexpr DType master() const noexcept {
    return frozen() ? parameter : arrays.front().dtype;
  }
  /// Of the values that a trainer loads, unless they are opaque.
  [[nodiscard]] constexpr DType value() const noexcept {
    return master() == DType::f64 ? DType::f64 : DType::f32;
  }
  /// The arrays behind the first.
  [[nodiscard]] constexpr std::span<ArrayForm const> states() const noexcept {
    return arrays.subspan(frozen() ? 0 : 1);
  }
  /// Bytes of the master of one element: 0 where parameters are their own masters.
  [[nodiscard]] constexpr std::uint64_t master_bytes() const noexcept {
    return has_master() ? size_of(master()) : 0;
  }
  /// Bytes of all states of one element.
  [[nodiscard]] constexpr std::uint64_t state_bytes() const noexcept {
    std::uint64_t bytes = 0;
    for (ArrayForm const& state : states()) bytes += size_of(state.dtype);
    return bytes;
  }
  /// The same types, and arrays of the same names and forms.
  friend constexpr bool operator==(StorageTypes const& a, StorageTypes const& b) noexcept {
    return a.parameter == b.parameter && a.wire == b.wire && a.accumulate == b.accumulate &&
           std::equal(a.arrays.begin(), a.arrays.end(), b.arrays.begin(), b.arrays.end());
  }
};

/// The types of each storage kind, by its number in the partition.
using KindTypes = std::vector<StorageTypes>;

}  // namespace zero::inline ZERO_NAMESPACE
