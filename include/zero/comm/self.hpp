/// @file
/// The communicator of a trainer that runs alone.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/kernel/copy.hpp"
#include "zero/kernel/reduce.hpp"
#include "zero/space/host.hpp"

namespace zero::inline ZERO_NAMESPACE {

/// One rank: every collective is a copy from `send` to `recv`, or nothing if they are the same.
///
/// Stateless; all objects are equal. Never blocks and never waits for anyone.
class Self {
 public:
  using Space = space::Host;                  ///< buffers are ordinary memory
  static constexpr bool adds_squares = true;  ///< of what `reduce_scatter` copies
  /// Always done: `start` has finished the work when it returns.
  struct Ticket {};

  /// Always 0.
  [[nodiscard]] int rank() const noexcept { return 0; }
  /// Always 1.
  [[nodiscard]] int size() const noexcept { return 1; }

  /// Copies the one block there is.
  /// @par Cost  reads and writes the block once, nothing in place; allocates nothing
  /// @throws Error (invalid_argument) for a call that no group could carry out
  ZERO_APART Ticket start(Collective const& op);

  /// Returns at once: `start` has done the work.
  void wait(Ticket&) noexcept {}

  /// The only group that one rank can form.
  [[nodiscard]] Self split(int /*color*/, int /*key*/) noexcept { return {}; }
};

static_assert(SplittableCommunicator<Self>);

#if ZERO_BODIES

ZERO_BODY Self::Ticket Self::start(Collective const& op) {
  detail::check_arguments(op, 0, 1);
  kernel::copy(op.recv, op.send, op.block_bytes());
  kernel::SquaredSum squared{.squares = op.squares, .left = op.squares_count};
  squared.add(op.dtype, op.recv, op.count);
  squared.end();
  return {};
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE
