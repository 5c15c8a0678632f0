/// @file
/// What one thread adds to an exact sum, kept in registers for as long as it meets in few words.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/exact_sum.hpp"

#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::device {

/// Four neighbouring words of an exact sum, of which a number takes three: those of numbers whose
/// sizes are near each other, wherever the boundary between two words lies. Others put out what is
/// there. Integer additions in any order, so that the sum has the same bits.
class Addends {
 public:
  static constexpr unsigned word_count = 4;  ///< neighbours that are kept

  /// Adds a number.
  /// @param parts  what it adds to three words
  /// @param put    put(word, part) adds to a word of the sum itself
  template <class Put>
  ZERO_HOST_DEVICE void add(ExactSum::Addend const& parts, Put const& put) noexcept {
    auto const first = static_cast<unsigned>(parts.first);
    if (first - first_ > 1) {  // or below it, which is a large number
      put_out(put);
      first_ = first;
    }
    bool const upper = first != first_;
    words_[0] += upper ? 0 : parts.low;
    words_[1] += upper ? parts.low : parts.middle;
    words_[2] += upper ? parts.middle : parts.high;
    words_[3] += upper ? parts.high : 0;
  }

  /// Adds what another thread has added.
  /// @param other  that thread's
  /// @param put    as above
  template <class Put>
  ZERO_HOST_DEVICE void add(Addends other, Put const& put) noexcept {
    if (other.first_ != first_) return other.put_out(put);
    ZERO_UNROLL(4)
    for (unsigned i = 0; i < word_count; ++i) words_[i] += other.words_[i];
  }

  /// Adds everything to the sum itself.
  /// @param put  as above
  template <class Put>
  ZERO_HOST_DEVICE void put_out(Put const& put) noexcept {
    ZERO_UNROLL(4)
    for (unsigned i = 0; i < word_count; ++i) {
      if (words_[i] != 0) put(first_ + i, words_[i]);
      words_[i] = 0;
    }
  }

  /// The same of another thread.
  /// @param exchange  exchange(value) gives that thread's, of 32 bits or the bits of a double
  template <class Exchange>
  [[nodiscard]] ZERO_HOST_DEVICE Addends of_another(Exchange const& exchange) const noexcept {
    Addends other{};
    other.first_ = exchange(first_);
    ZERO_UNROLL(4)
    for (unsigned i = 0; i < word_count; ++i) {
      double const bits = exchange(__builtin_bit_cast(double, words_[i]));
      other.words_[i] = __builtin_bit_cast(std::int64_t, bits);
    }
    return other;
  }

 private:
  // Without initial values: a block keeps some in its shared memory.
  std::uint32_t first_;
  std::int64_t words_[word_count];
};

}  // namespace zero::inline ZERO_NAMESPACE::device
