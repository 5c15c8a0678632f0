/// @file
/// A rank in a group, as its handle knows it. All that does the work is behind it.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/bodies.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/options.hpp"
#include "zero/comm/mpi/pool.hpp"
#include "zero/comm/shared/handle.hpp"
#include "zero/concepts/communicator.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

struct Calls;
struct RankReport;

/// What a rank's handle, its tickets and its family ask of it. Units that are given a communicator
/// compile nothing else; Group is what there is.
class GroupMember {
 public:
  GroupMember() = default;
  GroupMember(GroupMember const&) = delete;
  GroupMember& operator=(GroupMember const&) = delete;
  virtual ~GroupMember() = default;

  [[nodiscard]] virtual int size() const noexcept = 0;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// Announces this rank's part of its next collective and returns the collective's number.
  virtual std::uint64_t post(Collective const& op) = 0;
  /// Blocks until a collective that this rank has posted is done.
  virtual void wait(int rank, std::uint64_t sequence) = 0;
  /// Never blocks, never throws: what goes wrong is told by the next call that can.
  virtual void progress() noexcept = 0;
  /// This rank will not wait for a collective: nothing more is written to its buffers.
  virtual void abandon(int rank, std::uint64_t sequence, bool unwinding) noexcept = 0;
  /// This rank will start nothing more: peers that wait for it fail.
  virtual void leave(int rank, bool unwinding) noexcept = 0;
  /// Ends the family because of an exception on this rank; true if nothing had failed before.
  virtual bool report(std::string_view reason) = 0;

  /// A group of some of the ranks. Collective over all; blocks. After a collective that told all
  /// ranks to come here.
  /// @param members  the new group's ranks, in its order
  /// @param rank     this one's place among them
  [[nodiscard]] virtual zero::detail::Handle<GroupMember> split(std::vector<int> const& members,
                                                                int rank,
                                                                std::string_view name) = 0;
  /// True if a group that this rank has left is in order, and nothing of this rank's needs it.
  [[nodiscard]] virtual bool is_unused() = 0;
  /// @throws Error (invalid_argument) if something of this rank's would outlive the group
  virtual void check_closable() = 0;
  /// Collective; blocks. Begins with a collective that tells all ranks to come here.
  virtual void close() = 0;
  /// The same of the family, if the group is the one that it was constructed with.
  virtual void close_family() = 0;

  /// See Mpi.
  [[nodiscard]] virtual SharedAllocator allocator() const = 0;
  [[nodiscard]] virtual Transport transport() = 0;
  [[nodiscard]] virtual std::uint64_t held() const noexcept = 0;

  /// Names the group in messages between its ranks.
  [[nodiscard]] virtual std::uint64_t id() const noexcept = 0;
  /// What this rank has called last here.
  virtual void tell_calls(Calls& calls) = 0;
  /// For how many seconds nothing has moved here while it waits.
  [[nodiscard]] virtual double still_s() const = 0;
  /// Adds what it waits for here.
  virtual void tell_waiting(RankReport& report) = 0;

  /// Moves what can be moved without waiting; true if anything did. The family's lock is held.
  virtual bool advance() = 0;
  /// True while this rank has a collective under way.
  [[nodiscard]] virtual bool busy() const noexcept = 0;
};

/// This rank in the first group of a new family. Collective; blocks. See the constructor of Mpi.
ZERO_MPI_APART [[nodiscard]] zero::detail::Handle<GroupMember> first_member(MPI_Comm comm,
                                                                            Options const& options);

/// See Mpi.
ZERO_MPI_APART [[nodiscard]] std::uint64_t planned_bytes(Options const& options,
                                                         int ranks,
                                                         int nodes);

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
