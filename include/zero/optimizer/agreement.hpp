/// @file
/// What all ranks must know before any of them updates: norm, overflow and weight.
#pragma once

#include "zero/concepts/communicator.hpp"
#include "zero/layout/exact_sum.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace zero::inline v0_1::detail {

/// The outcome of one exchange, the same on every rank.
struct Agreement {
  double norm_of_sum = 0.;  ///< of the summed gradients, before unscaling; infinite on overflow
  double weight = 0.;       ///< of all micro-batches on all ranks
  bool overflow = false;    ///< some element of the summed gradients is not finite
};

/// Combines every rank's squares, overflows and weight, all as integers: exact in any order.
/// @par Collective  yes; blocks
/// @par Cost        one all-reduce of `words` 64-bit integers, about 1 KB
class AgreementExchange {
 public:
  static constexpr std::size_t words = 2 * ExactSum::word_count + 1;

  template <Communicator C>
  [[nodiscard]] Agreement agree(C& comm,
                                ExactSum squares,
                                std::int64_t overflows,
                                double own_weight) {
    ExactSum weights;
    weights.add(own_weight);
    std::size_t at = 0;
    for (std::int64_t const word : squares.words()) words_[at++] = word;
    for (std::int64_t const word : weights.words()) words_[at++] = word;
    words_[at] = overflows;
    run(comm,
        {.op = Op::all_reduce,
         .dtype = DType::i64,
         .accumulate = DType::i64,
         .count = words,
         .send = words_.data(),
         .recv = words_.data()});
    at = 0;
    for (std::int64_t& word : squares.words()) word = words_[at++];
    for (std::int64_t& word : weights.words()) word = words_[at++];
    bool const overflow = words_[at] > 0;
    return {.norm_of_sum =
                overflow ? std::numeric_limits<double>::infinity() : std::sqrt(squares.value()),
            .weight = weights.value(),
            .overflow = overflow};
  }

 private:
  std::array<std::int64_t, words> words_{};
};

}  // namespace zero::inline v0_1::detail
