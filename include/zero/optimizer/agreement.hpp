/// @file
/// What all ranks must know before any of them updates: norm, overflow, weight, one set of options.
#pragma once

#include "zero/concepts/communicator.hpp"
#include "zero/layout/exact_sum.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/gradient_store.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace zero::inline v0_1::detail {

/// The outcome of one exchange, the same on every rank.
struct Agreement {
  double norm_of_sum = 0.;  ///< of the summed gradients, before unscaling; not finite on overflow
  double weight = 0.;       ///< of all micro-batches on all ranks
  bool overflow = false;    ///< some element of the summed gradients is not finite
};

/// Measures this rank's reduced share and agrees with the others, all in integers.
///
/// Squares are added in fp64 over fixed blocks of `block` logical elements, and the blocks' sums
/// exactly: neither stage nor bucket size nor rank count can change a clip decision.
/// @par Cost  one pass over the reduced share and one all-reduce of about 1 KB
template <class Slots>
class GradientAgreement {
 public:
  using Communicator = typename Slots::Communicator;
  using Space = typename Slots::Space;

  [[nodiscard]] Agreement agree(Communicator& comm,
                                Partition const& partition,
                                GradientStore<Slots> const& store,
                                double weight) {
    ExactSum squares;
    std::int64_t overflows = measure(comm.rank(), partition, store, squares);
    ExactSum weights;
    weights.add(weight);
    exchange(comm, squares, weights, overflows);
    Agreement agreement;
    agreement.overflow = overflows > 0;
    agreement.weight = weights.value();
    agreement.norm_of_sum =
        agreement.overflow ? std::numeric_limits<double>::infinity() : std::sqrt(squares.value());
    return agreement;
  }

  /// Elements of the exchange, for the traffic of control messages.
  static constexpr std::size_t words = 2 * ExactSum::word_count + 1;

 private:
  static std::int64_t measure(int rank,
                              Partition const& partition,
                              GradientStore<Slots> const& store,
                              ExactSum& squares) {
    std::int64_t overflows = 0;
    for (BucketSpan const& bucket : partition.buckets()) {
      std::uint64_t const begin = bucket.begin + static_cast<std::uint64_t>(rank) * bucket.shard;
      auto const* const gradients = store.reduced(bucket);
      std::uint64_t open_block = 0;
      double lanes[8] = {};
      auto const close_block = [&] {
        double const sum = kernel::sum_lanes(lanes);
        if (std::isfinite(sum)) {
          squares.add(sum);
        } else {
          ++overflows;
        }
        for (double& lane : lanes) lane = 0.;
      };
      auto const add_piece = [&](Segment const& piece) {
        for (std::uint64_t done = 0; done < piece.count;) {
          std::uint64_t const at = piece.range_offset + done;
          if (at / block != open_block) {
            close_block();
            open_block = at / block;
          }
          std::uint64_t const count = std::min(piece.count - done, (open_block + 1) * block - at);
          Space::add_squares(gradients + at, static_cast<std::size_t>(count), at, lanes);
          done += count;
        }
      };
      partition.for_each_segment(begin, partition.owned_count(bucket, rank), add_piece);
      close_block();
    }
    return overflows;
  }

  void exchange(Communicator& comm, ExactSum& squares, ExactSum& weights, std::int64_t& overflows) {
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
    overflows = words_[at];
  }

  std::array<std::int64_t, words> words_{};
};

}  // namespace zero::inline v0_1::detail
