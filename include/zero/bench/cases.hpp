/// @file
/// Which collectives a program measures: a case is one of them, of one size.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

/// Microbenchmarks of a user's own communicators and rules; see examples/bench/README.md.
namespace zero::inline ZERO_NAMESPACE::bench {

/// What is to be measured, as rank 0 tells all ranks.
struct Case {
  Op op = Op::all_gather;       ///< operation
  DType dtype = DType::f32;     ///< of the elements: fp32, bf16 or fp16
  bool in_place = false;        ///< by the table of `Collective`
  std::size_t bytes = 0;        ///< of the larger buffer of one rank
  std::int64_t iterations = 1;  ///< collectives in a row in a round
  std::int64_t late_us = 0;     ///< microseconds that the last rank begins after the others
  bool check = true;            ///< look at every element of one result

  /// Is it the same but for its iterations?
  [[nodiscard]] bool is_like(Case other) const {
    other.iterations = iterations;
    return other == *this;
  }
  bool operator==(Case const&) const = default;
};

/// What a program measures of every operation. Which of that is run, Google Benchmark's options
/// say.
struct CollectiveCases {
  std::vector<DType> dtypes{DType::f32};  ///< of elements: fp32, bf16, fp16
  std::vector<int> ranks{2};              ///< sizes of groups; not read where the group is given
  bool out_of_place = true;               ///< send and receive in two buffers
  bool in_place = false;                  ///< in one; an all-to-all cannot
  std::size_t smallest = KiB;             ///< size: bytes of a rank's larger buffer
  std::size_t largest = 256 * MiB;        ///< no size is above it
  std::size_t factor = 4;                 ///< from one size to the next
  /// Microseconds that the last rank begins after the others, as in a trainer. Time counts from
  /// there.
  std::int64_t late_us = 0;
  bool check = true;  ///< look whether results are right
};

namespace detail {

/// The cases of one group, in the order of the table.
/// @throws Error (invalid_argument) in one sentence, if there is none, no end, or one that cannot
/// be
[[nodiscard]] inline std::vector<Case> list(CollectiveCases const& of) {
  auto const refuse = [](Message const& why) { fail(ErrorKind::invalid_argument, why); };
  if (of.dtypes.empty() || of.ranks.empty() || (!of.out_of_place && !of.in_place)) {
    refuse({"nothing is to be measured: give dtypes, ranks and a place"});
  }
  if (of.smallest == 0 || of.smallest > of.largest) {
    refuse({"no size is from smallest, ", of.smallest, ", to largest, ", of.largest});
  }
  if (of.factor < 2) refuse({"the factor from one size to the next has to be at least 2"});
  if (of.late_us < 0) refuse({"the last rank cannot begin before the others"});
  for (int const ranks : of.ranks) {
    if (ranks < 1) refuse({"a group has at least 1 rank, not ", ranks});
  }
  std::vector<Case> cases;
  for (int op = 0; op < op_count; ++op) {
    for (DType const dtype : of.dtypes) {
      if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) {
        refuse({"collectives are measured in fp32, bf16 and fp16, not in ", name(dtype)});
      }
      for (bool const in_place : {false, true}) {
        Case one{.op = static_cast<Op>(op),
                 .dtype = dtype,
                 .in_place = in_place,
                 .bytes = of.smallest,
                 .late_us = of.late_us,
                 .check = of.check};
        if (in_place ? !of.in_place || one.op == Op::all_to_all : !of.out_of_place) continue;
        for (;; one.bytes *= of.factor) {
          cases.push_back(one);
          if (one.bytes > of.largest / of.factor) break;
        }
      }
    }
  }
  return cases;
}

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE::bench
