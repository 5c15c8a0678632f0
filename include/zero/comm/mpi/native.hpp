/// @file
/// MPI's own reductions, chunk by chunk.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/hash.hpp"
#include "zero/comm/mpi/blocking.hpp"
#include "zero/comm/mpi/control.hpp"
#include "zero/comm/mpi/flight.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/message.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/kernel/copy.hpp"
#include "zero/kernel/reduce.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// inout[i] += in[i], rounded to 16 bits: what MPI calls for types it does not know.
template <DType Type>
void add_for_mpi(void* in, void* inout, int* count, MPI_Datatype* /*type*/) noexcept {
  void const* const inputs[] = {in, inout};
  kernel::sum_function(Type, DType::f32)(
      inout, inputs, 0, 2, static_cast<std::size_t>(*count), kernel::Store::cached);
}

/// What MPI reduces of a group, over library-owned memory: agreements, and sums, in the order of
/// the calls on every rank.
///
/// Before a sum all ranks agree that they make the same call. Agreements have a communicator of
/// their own: MPI matches by order, and which of an agreement and a sum begins first depends on
/// time.
class NativeSums {
 public:
  /// @param agreements  taken over
  /// @param flights     live longer, as do `counts`
  NativeSums(MPI_Comm comm,
             MPI_Comm agreements,
             int size,
             Options const& options,
             Flights& flights,
             Transport& counts)
      : comm_(comm),
        agreements_(agreements),
        size_(static_cast<std::size_t>(size)),
        limit_((std::min)(options.message_bytes, largest_message)),
        block_(planned_bytes(options, size) / (size_ + 1)),
        memory_(new std::byte[block_ * (size_ + 1)]),
        flights_(&flights),
        counts_(&counts) {
    make(DType::bf16, add_for_mpi<DType::bf16>);
    make(DType::f16, add_for_mpi<DType::f16>);
  }
  NativeSums(NativeSums const&) = delete;
  NativeSums& operator=(NativeSums const&) = delete;
  ~NativeSums() {
    // What some rank never joined cannot be cancelled: its memory stays MPI's.
    if (sum_ != MPI_REQUEST_NULL) static_cast<void>(memory_.release());
    if (agreement_ != MPI_REQUEST_NULL) static_cast<void>(hashes_.release());
  }

  /// Bytes of a block from each rank and the result. MPI may count all blocks as one message.
  [[nodiscard]] static constexpr std::size_t planned_bytes(Options const& options,
                                                           int size) noexcept {
    auto const ranks = static_cast<std::size_t>(size);
    std::size_t const limit = (std::min)(options.message_bytes, largest_message);
    std::size_t const block = (std::min)(options.exchange_bytes / (ranks + 1), limit / ranks);
    return (std::max<std::size_t>)(8, block / 8 * 8) * (ranks + 1);
  }
  [[nodiscard]] std::size_t held() const noexcept { return block_ * (size_ + 1); }
  /// MPI's code, unless all calls have succeeded so far.
  [[nodiscard]] int error() const noexcept { return error_; }

  /// Works on a collective; true if anything moved.
  bool advance(Flight& flight) {
    if (!flight.agreed) {
      return is_turn(agreement_turn_, flight, &Flight::agreed) && agree(flight);
    }
    if (!is_turn(sum_turn_, flight, &Flight::received)) return false;
    if (flight.reduced < flight.op.count && !sum(flight)) return false;
    if (flight.reduced == flight.op.count) {
      flight.received = true;
      flight.squared.end();
    }
    return true;
  }

  /// Collective; blocks.
  void close() {
    Blocking::release(agreements_);
    for (std::size_t i = 0; i < 2; ++i) {
      check(MPI_Op_free(&sums_[i]), "MPI_Op_free");
      check(MPI_Type_free(&types_[i]), "MPI_Type_free");
    }
  }

 private:
  /// Is all over of the collectives of MPI's before this one?
  [[nodiscard]] bool is_turn(std::uint64_t& turn, Flight const& flight, bool Flight::*over) const {
    turn = (std::max)(turn, flights_->oldest());
    for (; turn < flight.number; ++turn) {
      Flight const& before = flights_->at(turn);
      if (before.route.by_library && !(before.*over)) return false;
    }
    return true;
  }
  /// True once MPI has done what it was asked for.
  [[nodiscard]] bool is_done(MPI_Request& request) {
    int done = 0;
    if (error_ == MPI_SUCCESS) error_ = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    return error_ == MPI_SUCCESS && done != 0;
  }

  /// Advances the agreement of all ranks on a call; true once they make the same.
  bool agree(Flight& flight) {
    Hashes& hashes = *hashes_;
    if (agreement_ == MPI_REQUEST_NULL) {
      zero::detail::Hash hash;
      hash.add(flight.number);
      hash.add(flight.head.before);
      hash.add(&flight.head.call, sizeof flight.head.call);
      // All are equal if and only if the greatest is the least.
      hashes.mine[0] = hash.value();
      hashes.mine[1] = ~hash.value();
      error_ = MPI_Iallreduce(
          hashes.mine, hashes.most, 2, MPI_UINT64_T, MPI_MAX, agreements_, &agreement_);
    }
    if (!is_done(agreement_)) return false;
    flight.agreed = hashes.most[0] == ~hashes.most[1];
    if (!flight.agreed) flights_->disagree({flight.number});
    return flight.agreed;
  }

  /// Advances a sum, a block at a time; true if something moved.
  bool sum(Flight& flight) {
    Collective const& op = flight.op;
    std::size_t const element = size_of(op.dtype);
    std::size_t const now = (std::min)(block_ / element, op.count - flight.reduced);
    std::byte* const result = memory_.get() + block_ * size_;
    if (sum_ == MPI_REQUEST_NULL) {
      bool const scatter = op.op == Op::reduce_scatter;
      std::size_t const blocks = scatter ? size_ : 1;
      auto const* const send = static_cast<std::byte const*>(op.send);
      for (std::size_t block = 0; block < blocks; ++block) {
        std::memcpy(memory_.get() + block * now * element,
                    send + (block * op.count + flight.reduced) * element,
                    now * element);
      }
      int const count = narrow_count(now, element * blocks, limit_);
      auto* const start = scatter ? MPI_Ireduce_scatter_block : MPI_Iallreduce;
      error_ =
          start(memory_.get(), result, count, type_of(op.dtype), sum_of(op.dtype), comm_, &sum_);
      return true;
    }
    if (!is_done(sum_)) return false;
    std::byte* const to = static_cast<std::byte*>(op.recv) + flight.reduced * element;
    std::memcpy(to, result, now * element);
    flight.squared.add(op.dtype, to, now);
    flight.reduced += now;
    counts_->native_bytes += now * element;
    return true;
  }

  [[nodiscard]] static constexpr std::size_t narrow(DType type) noexcept {
    return type == DType::bf16 ? 0 : 1;
  }
  void make(DType type, MPI_User_function* function) {
    std::size_t const i = narrow(type);
    check(MPI_Type_contiguous(2, MPI_BYTE, &types_[i]), "MPI_Type_contiguous");
    check(MPI_Type_commit(&types_[i]), "MPI_Type_commit");
    check(MPI_Op_create(function, 1, &sums_[i]), "MPI_Op_create");
  }
  [[nodiscard]] MPI_Datatype type_of(DType type) const noexcept {
    switch (type) {
      case DType::f32: return MPI_FLOAT;
      case DType::f64: return MPI_DOUBLE;
      case DType::i32: return MPI_INT32_T;
      case DType::i64: return MPI_INT64_T;
      case DType::u8: return MPI_UINT8_T;
      case DType::bf16:
      case DType::f16: break;
    }
    return types_[narrow(type)];
  }
  [[nodiscard]] MPI_Op sum_of(DType type) const noexcept {
    return size_of(type) == 2 ? sums_[narrow(type)] : MPI_SUM;
  }

  struct Hashes {
    std::uint64_t mine[2] = {};
    std::uint64_t most[2] = {};
  };

  MPI_Comm comm_;
  MPI_Comm agreements_;
  std::size_t size_;
  std::size_t limit_;
  std::size_t block_;
  std::unique_ptr<std::byte[]> memory_;
  std::unique_ptr<Hashes> hashes_ = std::make_unique<Hashes>();
  Flights* flights_;
  Transport* counts_;
  MPI_Request agreement_ = MPI_REQUEST_NULL;
  MPI_Request sum_ = MPI_REQUEST_NULL;
  MPI_Datatype types_[2] = {MPI_DATATYPE_NULL, MPI_DATATYPE_NULL};
  MPI_Op sums_[2] = {MPI_OP_NULL, MPI_OP_NULL};
  // Collectives whose turn it is, of those that MPI reduces.
  std::uint64_t agreement_turn_ = 0;
  std::uint64_t sum_turn_ = 0;
  int error_ = MPI_SUCCESS;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
