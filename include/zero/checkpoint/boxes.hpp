/// @file
/// Which part of a whole tensor an optimizer trains, and where its elements lie in the whole.
#pragma once

#include "zero/base/config.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// A box of a tensor: where it begins and how far it reaches, per axis.
struct Box {
  std::vector<std::uint64_t> offset{};  ///< first index
  std::vector<std::uint64_t> extent{};  ///< indices

  friend bool operator==(Box const&, Box const&) = default;
};

/// Says that a tensor of an optimizer is a part of a larger one, as under tensor parallelism: its
/// elements are those of the boxes, one box after the other, each row-major.
struct TensorPart {
  std::string tensor{};                ///< as the optimizer calls it
  std::vector<std::uint64_t> shape{};  ///< of the whole tensor
  std::vector<Box> boxes{};            ///< which do not overlap
};

namespace detail {

/// Elements of a shape that is known to be countable.
[[nodiscard]] inline std::uint64_t volume(std::vector<std::uint64_t> const& shape) noexcept {
  std::uint64_t count = 1;
  for (std::uint64_t const extent : shape) count *= extent;
  return count;
}

/// Calls `visit(first, count)` for every run of elements of the whole tensor that elements
/// [first, first + count) of the boxes are, in their order.
template <class Visit>
void for_each_run(std::vector<std::uint64_t> const& shape,
                  std::span<Box const> boxes,
                  std::uint64_t first,
                  std::uint64_t count,
                  Visit&& visit) {
  for (Box const& box : boxes) {
    if (count == 0) return;
    std::uint64_t const elements = volume(box.extent);
    if (first >= elements) {
      first -= elements;
      continue;
    }
    // From this axis on the box's elements follow each other in the whole, too.
    std::size_t axis = shape.size();
    std::uint64_t run = 1;
    std::uint64_t stride = 1;
    while (axis > 0) {
      --axis;
      run *= box.extent[axis];
      if (box.extent[axis] != shape[axis]) break;
      stride *= shape[axis];
    }
    std::uint64_t const here = (std::min)(count, elements - first);
    for (std::uint64_t done = 0; done < here;) {
      std::uint64_t const at = first + done;
      std::uint64_t const length = (std::min)(here - done, run - at % run);
      std::uint64_t place = shape.empty() ? 0 : box.offset[axis] * stride;
      std::uint64_t row = at / run;
      std::uint64_t scale = shape.empty() ? 1 : stride * shape[axis];
      for (std::size_t a = axis; a-- > 0;) {
        place += (box.offset[a] + row % box.extent[a]) * scale;
        row /= box.extent[a];
        scale *= shape[a];
      }
      visit(place + at % run, length);
      done += length;
    }
    count -= here;
    first = 0;
  }
}

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
