/// @file
/// What bytes are that an optimizer shows of the arrays that it holds.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/layout/storage_types.hpp"

#include <cstddef>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// Consecutive entries of one array of a tensor, in the form in which checkpoints have them, which
/// depends neither on the stage nor on ranks or buckets.
///
/// | coding                    | an entry is                        | dtype       |
/// |---------------------------|------------------------------------|-------------|
/// | `values`                  | the number of an element           | its type    |
/// | `root`, `root_of_squares` | the code of an element             | `DType::u8` |
/// | `root_scales`             | the scale of a group of 32 of them | `DType::u8` |
///
/// Master weights are numbers, also where what a rank holds of them are remainders. The last group
/// of a tensor may be short. An array of a stacked tensor has the entries of its slices one after
/// the other; each slice begins with a group of its own.
struct HeldArray {
  std::string_view name{};   ///< "master", or that of a state; scales have that of their codes
  DType dtype = DType::f32;  ///< of an entry
  Coding coding = Coding::values;  ///< what an entry is, as above
  std::size_t first = 0;  ///< the number of the first entry in the array of the whole tensor
};

}  // namespace zero::inline ZERO_NAMESPACE
