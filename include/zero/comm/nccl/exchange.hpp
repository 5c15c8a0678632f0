/// @file
/// Each collective as calls of NCCL; ordered sums of floats as an exchange of blocks and one
/// kernel.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/comm/nccl/api.hpp"
#include "zero/comm/nccl/caller.hpp"
#include "zero/comm/nccl/equipment.hpp"
#include "zero/comm/shared/shares.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/placement.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Enqueues collectives. Every function returns once NCCL has accepted all of it.
template <nccl::Api A>
class NcclExchange {
 public:
  using Lock = typename NcclCaller<A>::Lock;

  /// @param lock  the family's, held
  /// @param number  of the collective in its group, for messages
  NcclExchange(NcclCaller<A> const& caller,
               Lock& lock,
               NcclEquipment<A> const& equipment,
               int rank,
               int size,
               std::uint64_t number) noexcept
      : caller_(caller),
        lock_(lock),
        equipment_(equipment),
        rank_(rank),
        size_(size),
        number_(number) {}

  /// @tparam Ordered  the library adds, which needs a kernel, instead of NCCL
  template <bool Ordered>
  void launch(Collective const& op) const {
    switch (op.op) {
      case Op::all_gather:
        return settle(A::all_gather(op.send, op.recv, op.count, op.dtype, comm(), stream()), op);
      case Op::broadcast: {
        // Only the root has something to send; NCCL may still look at the pointer.
        void const* const send = rank_ == op.root ? op.send : op.recv;
        return settle(A::broadcast(send, op.recv, op.count, op.dtype, op.root, comm(), stream()),
                      op);
      }
      case Op::all_to_all: return all_to_all(op);
      case Op::reduce_scatter:
        if (needs_order<Ordered>(op)) {
          return ordered_sums(op, op.count, op.count * ranks(), op.recv);
        }
        return settle(A::reduce_scatter(op.send, op.recv, op.count, op.dtype, comm(), stream()),
                      op);
      case Op::all_reduce:
        if (needs_order<Ordered>(op)) return ordered_all_reduce(op);
        return settle(A::all_reduce(op.send, op.recv, op.count, op.dtype, comm(), stream()), op);
    }
  }

 private:
  /// NCCL adds integers as well as anybody, with a kernel and a group of calls less.
  template <bool Ordered>
  [[nodiscard]] static bool needs_order(Collective const& op) noexcept {
    return Ordered && !is_integral(op.dtype);
  }
  [[nodiscard]] typename A::Comm comm() const noexcept { return equipment_.comm; }
  [[nodiscard]] typename A::Stream stream() const noexcept { return equipment_.stream; }
  [[nodiscard]] std::size_t ranks() const noexcept { return static_cast<std::size_t>(size_); }
  [[nodiscard]] std::size_t own() const noexcept { return static_cast<std::size_t>(rank_); }

  [[nodiscard]] NcclActivity activity(Collective const& op) const noexcept {
    return NcclActivity::of(op, number_);
  }
  void settle(nccl::Status status, Collective const& op) const {
    caller_.settle(comm(), status, activity(op));
  }

  /// Makes the communicator's stream wait.
  void wait_for(typename A::Event event, Collective const& op) const {
    caller_.unlocked(lock_, activity(op), [&] { return A::stream_wait(stream(), event); });
  }

  /// So many elements of a buffer, and where they begin.
  template <class Pointer>
  [[nodiscard]] static auto part(Pointer* buffer,
                                 std::size_t first,
                                 std::size_t count,
                                 Collective const& op) noexcept {
    return std::pair(offset(buffer, first * size_of(op.dtype)), count);
  }

  /// Gives each rank `sent(rank)` and takes `received(rank)` from it, in one group of calls: the
  /// peers of step `first` and later ones, of which 0 is this rank itself.
  template <class Sent, class Received>
  void exchange(Collective const& op, int first, Sent const& sent, Received const& received) const {
    if (first == size_) return;
    caller_.grouped(comm(), activity(op), [&](NcclCallGroup<A>& group) {
      for (int step = first; step < size_; ++step) {
        int const to = (rank_ + step) % size_;
        int const from = (rank_ + size_ - step) % size_;
        if (auto const [memory, count] = sent(static_cast<std::size_t>(to)); count != 0) {
          group.add(A::send(memory, count, op.dtype, to, comm(), stream()));
        }
        if (auto const [memory, count] = received(static_cast<std::size_t>(from)); count != 0) {
          group.add(A::recv(memory, count, op.dtype, from, comm(), stream()));
        }
      }
    });
  }

  void all_to_all(Collective const& op) const {
    exchange(
        op,
        0,
        [&](std::size_t to) { return part(op.send, to * op.count, op.count, op); },
        [&](std::size_t from) { return part(op.recv, from * op.count, op.count, op); });
  }

  /// Rank r is to have the sums of elements [r * stride, (r + 1) * stride) of a buffer of `total`.
  ///
  /// Peers' parts arrive in the staging memory, the own part is read where it is. What does not fit
  /// is taken in pieces of half the memory: one piece is exchanged while the one before it is
  /// added, on the stream beside. A half is written again once its sum is done.
  void ordered_sums(Collective const& op, std::size_t stride, std::size_t total, void* out) const {
    std::size_t const element = size_of(op.dtype);
    // Multiples of 64 elements keep all but the last piece aligned for vector loads; squares are
    // added over whole blocks, in a pass of their own where a piece has no room for one.
    auto const fitting = [&](std::size_t bytes) {
      std::size_t const most = bytes / ranks() / element;
      bool const blocks = op.squares != nullptr && most >= zero::block;
      return blocks ? most / zero::block * zero::block : most / 64 * 64;
    };
    bool const halves = size_ > 1 && stride > fitting(equipment_.staging_bytes);
    std::size_t const room =
        fitting(halves ? equipment_.staging_bytes / 2 : equipment_.staging_bytes);
    bool const square = op.squares != nullptr && room >= zero::block;
    std::size_t sums = 0;
    for (std::size_t done = 0; done < stride; done += room) {
      auto const piece = [&](std::size_t r) {
        std::size_t const begin = r * stride + done;
        return begin >= total ? 0 : (std::min)({room, stride - done, total - begin});
      };
      std::size_t const mine = piece(own());
      // Staged blocks are aligned, whatever a trainer's slices are.
      auto const spacing = static_cast<std::size_t>(round_up(mine, 64));
      // A rank that has no more to add has none in later pieces either.
      typename A::Event const summed = equipment_.summed[sums % 2];
      std::byte* const staged =
          equipment_.staging + (halves ? sums % 2 * room * ranks() * element : std::size_t{0});
      if (halves && mine != 0 && sums >= 2) wait_for(summed, op);
      exchange(
          op,
          1,
          [&](std::size_t to) { return part(op.send, to * stride + done, piece(to), op); },
          [&](std::size_t from) { return part(staged, from * spacing, mine, op); });
      if (mine == 0) continue;
      nccl::RankSum const sum{.dtype = op.dtype,
                              .accumulate = op.accumulate,
                              .out = offset(out, done * element),
                              .staged = staged,
                              .own = offset(op.send, (own() * stride + done) * element),
                              .rank = rank_,
                              .ranks = size_,
                              .count = mine,
                              .stride = spacing,
                              .squares = square ? squares(op, done, mine) : SumSquares{}};
      ++sums;
      caller_.unlocked(lock_, activity(op), [&] {
        if (!halves) return A::sum_ranks(sum, stream());
        nccl::Status status = A::event_record(equipment_.exchanged, stream());
        if (status.ok()) status = A::stream_wait(equipment_.beside, equipment_.exchanged);
        if (status.ok()) status = A::sum_ranks(sum, equipment_.beside);
        return status.ok() ? A::event_record(summed, equipment_.beside) : status;
      });
    }
    if (halves && sums != 0) wait_for(equipment_.summed[(sums - 1) % 2], op);
    if (op.squares == nullptr || square) return;
    // The sum of one rank's result is that result.
    nccl::RankSum const pass{.dtype = op.dtype,
                             .accumulate = op.accumulate,
                             .out = out,
                             .own = out,
                             .count = op.count,
                             .squares = squares(op, 0, op.count)};
    caller_.unlocked(lock_, activity(op), [&] { return A::sum_ranks(pass, stream()); });
  }

  /// What elements [done, done + count) of a share add.
  [[nodiscard]] static SumSquares squares(Collective const& op,
                                          std::size_t done,
                                          std::size_t count) noexcept {
    std::size_t const left = op.squares_count - (std::min)(done, op.squares_count);
    return {op.squares, (std::min)(left, count)};
  }

  /// Each rank adds one N-th and sends it to all: 2 (N-1) / N of the buffer, as a rank sends in a
  /// ring.
  void ordered_all_reduce(Collective const& op) const {
    // Not rounded up to where vectors begin: a rank then sends more than the contract says.
    auto const share = [&](std::size_t r) {
      auto const index = static_cast<int>(r);
      return part(op.recv,
                  share_begin(op.count, index, size_, 1),
                  share_length(op.count, index, size_, 1),
                  op);
    };
    ordered_sums(op, share(0).second, op.count, share(own()).first);
    exchange(
        op, 1, [&](std::size_t) { return share(own()); }, share);
  }

  NcclCaller<A> const& caller_;
  Lock& lock_;
  NcclEquipment<A> const& equipment_;
  int rank_;
  int size_;
  std::uint64_t number_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
