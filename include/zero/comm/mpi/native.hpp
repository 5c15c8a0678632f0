/// @file
/// MPI's own reductions, chunk by chunk.
#pragma once

#include "zero/base/config.hpp"
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

/// One reduction at a time over library-owned memory; all ranks use it in the same order.
///
/// Before a sum all ranks agree that they make the same call. Agreements have a communicator of
/// their own: MPI matches by order, and which of an agreement and a sum begins first depends on
/// time.
class NativeReduction {
 public:
  /// @param agreements  taken over
  NativeReduction(MPI_Comm comm, MPI_Comm agreements, int size, Options const& options)
      : comm_(comm),
        agreements_(agreements),
        size_(static_cast<std::size_t>(size)),
        limit_((std::min)(options.message_bytes, largest_message)),
        block_(planned_bytes(options, size) / (size_ + 1)),
        memory_(new std::byte[block_ * (size_ + 1)]) {
    make(DType::bf16, add_for_mpi<DType::bf16>);
    make(DType::f16, add_for_mpi<DType::f16>);
  }
  NativeReduction(NativeReduction const&) = delete;
  NativeReduction& operator=(NativeReduction const&) = delete;
  ~NativeReduction() {
    // What some rank never joined cannot be cancelled: its memory stays MPI's.
    if (request_ != MPI_REQUEST_NULL) static_cast<void>(memory_.release());
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

  /// What all ranks make of a call.
  enum class Verdict : std::uint8_t { open, same, other };
  /// Advances their agreement on the next call; once it is not open, the next may follow.
  /// @param hash  of the call and its place among all
  [[nodiscard]] Verdict agree(std::uint64_t hash, int& error) {
    Hashes& hashes = *hashes_;
    if (agreement_ == MPI_REQUEST_NULL) {
      // All are equal if and only if the greatest is the least.
      hashes.mine[0] = hash;
      hashes.mine[1] = ~hash;
      error = MPI_Iallreduce(
          hashes.mine, hashes.most, 2, MPI_UINT64_T, MPI_MAX, agreements_, &agreement_);
      if (error != MPI_SUCCESS) return Verdict::open;
    }
    int done = 0;
    error = MPI_Test(&agreement_, &done, MPI_STATUS_IGNORE);
    if (error != MPI_SUCCESS || done == 0) return Verdict::open;
    return hashes.most[0] == ~hashes.most[1] ? Verdict::same : Verdict::other;
  }

  /// Advances the sum of elements [at, ...) of a collective; `at` is moved behind what is done.
  /// True if something moved. Errors of MPI are left in `error`.
  bool advance(Collective const& op, std::size_t& at, int& error) {
    std::size_t const element = size_of(op.dtype);
    if (request_ == MPI_REQUEST_NULL) {
      now_ = (std::min)(block_ / element, op.count - at);
      bool const scatter = op.op == Op::reduce_scatter;
      auto const* const send = static_cast<std::byte const*>(op.send);
      for (std::size_t block = 0; block < (scatter ? size_ : 1); ++block) {
        std::memcpy(memory_.get() + block * now_ * element,
                    send + (block * op.count + at) * element,
                    now_ * element);
      }
      int const count = narrow_count(now_, element * (scatter ? size_ : 1), limit_);
      std::byte* const result = memory_.get() + block_ * size_;
      MPI_Datatype const type = type_of(op.dtype);
      MPI_Op const sum = sum_of(op.dtype);
      error = scatter ? MPI_Ireduce_scatter_block(
                            memory_.get(), result, count, type, sum, comm_, &request_)
                      : MPI_Iallreduce(memory_.get(), result, count, type, sum, comm_, &request_);
      return true;
    }
    int done = 0;
    error = MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
    if (error != MPI_SUCCESS || done == 0) return false;
    std::memcpy(static_cast<std::byte*>(op.recv) + at * element,
                memory_.get() + block_ * size_,
                now_ * element);
    at += now_;
    return true;
  }

  /// Collective; blocks.
  void close(Blocking& blocking) {
    blocking.release(agreements_);
    for (std::size_t i = 0; i < 2; ++i) {
      check(MPI_Op_free(&sums_[i]), "MPI_Op_free");
      check(MPI_Type_free(&types_[i]), "MPI_Type_free");
    }
  }

 private:
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
  std::unique_ptr<Hashes> hashes_ = std::make_unique<Hashes>();
  MPI_Request agreement_ = MPI_REQUEST_NULL;
  std::size_t size_;
  std::size_t limit_;
  std::size_t block_;
  std::unique_ptr<std::byte[]> memory_;
  std::size_t now_ = 0;
  MPI_Request request_ = MPI_REQUEST_NULL;
  MPI_Datatype types_[2] = {MPI_DATATYPE_NULL, MPI_DATATYPE_NULL};
  MPI_Op sums_[2] = {MPI_OP_NULL, MPI_OP_NULL};
};

/// What MPI reduces of a group: agreements, and sums, in the order of the calls on every rank.
class NativeSums {
 public:
  /// @param agreements  taken over
  NativeSums(MPI_Comm comm, MPI_Comm agreements, int size, Options const& options, Flights& flights)
      : reduction_(comm, agreements, size, options), flights_(&flights) {}

  [[nodiscard]] std::size_t held() const noexcept { return reduction_.held(); }
  /// That MPI has reduced.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  /// The first collective on which the ranks did not agree; `never` if there is none.
  [[nodiscard]] std::uint64_t disagreement() const noexcept { return disagreement_; }
  /// Collective; blocks.
  void close(Blocking& blocking) { reduction_.close(blocking); }

  /// Works on a collective; true if anything moved.
  /// @param error  MPI's code if something went wrong
  bool advance(Flight& flight, int& error) {
    if (!flight.agreed) return agree(flight, error);
    bool const is_next =
        is_turn(sum_turn_, flight, [](Flight const& before) { return before.received; });
    if (!is_next) return false;
    std::size_t const before = flight.reduced;
    std::size_t const element = size_of(flight.op.dtype);
    if (before < flight.op.count) {
      if (!reduction_.advance(flight.op, flight.reduced, error)) return false;
      std::size_t const now = flight.reduced - before;
      bytes_ += now * element;
      flight.squared.add(
          flight.op.dtype, static_cast<std::byte*>(flight.op.recv) + before * element, now);
    }
    if (flight.reduced == flight.op.count) {
      flight.received = true;
      flight.squared.end();
    }
    return true;
  }

 private:
  bool agree(Flight& flight, int& error) {
    bool const is_next =
        is_turn(agreement_turn_, flight, [](Flight const& before) { return before.agreed; });
    if (!is_next) return false;
    std::uint64_t const hash = flight.head.call.sum_after(flight.head.before ^ flight.number);
    auto const verdict = reduction_.agree(hash, error);
    if (verdict == NativeReduction::Verdict::other) disagreement_ = flight.number;
    flight.agreed = verdict == NativeReduction::Verdict::same;
    return flight.agreed;
  }
  /// Is all over of the collectives of MPI's before this one?
  template <class Over>
  [[nodiscard]] bool is_turn(std::uint64_t& turn, Flight const& flight, Over const& over) const {
    turn = (std::max)(turn, flights_->oldest());
    while (turn < flight.number) {
      Flight const& before = flights_->at(turn);
      if (before.route.by_library && !over(before)) return false;
      ++turn;
    }
    return true;
  }

  NativeReduction reduction_;
  Flights* flights_;
  std::uint64_t sum_turn_ = 0;
  std::uint64_t agreement_turn_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t disagreement_ = never;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
