/// @file
/// Elements of arrays that hold numbers otherwise than as they are.
#pragma once

#include "zero/base/config.hpp"

#include <concepts>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::kernel {

/// An element that an update works on as a float, which it becomes before and is made from again
/// afterwards.
///
/// `Random` is the type of the random bits that this takes for each element: `std::uint16_t`,
/// `std::uint8_t`, or void where it takes none. `read` and `write` do it for all elements of
/// arrays, which are an `UpdateArrays`; `number` says which of them is meant: 0 for masters, k + 1
/// for state k. What an element becomes depends on that element, and its random bits, alone.
///
///     template <Isa I, std::size_t number, class Arrays>
///     static void read(float* out, Arrays const& from) noexcept;
///     template <Isa I, std::size_t number, class Arrays>
///     static void write(Arrays const& to, float const* in, Random const* random) noexcept;
///
/// A device does the same with `number` and `assign`, for one element and the parameter beside it;
/// `random` has the random bits, in the lowest ones:
///
///     template <class Parameter>
///     float number(Parameter const& parameter) const noexcept;
///     template <class Parameter>
///     void assign(Parameter& parameter, float number, std::uint32_t random) noexcept;
template <class T>
concept CodedElement = requires {
  typename T::Random;
};

/// One that is made from a float with random bits.
template <class T>
concept RandomElement = CodedElement<T> && !std::is_void_v<typename T::Random>;

/// One that a device can read and write alone, since it has nothing in common with others.
template <class T>
concept LoneElement = !CodedElement<T> || requires(T const& element) {
  element.number(element);
};

}  // namespace zero::inline ZERO_NAMESPACE::kernel
