/// @file
/// One rank of a group, whatever moves its data.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/optimizer/make_tables.hpp"
#include "zero/optimizer/tables/communicator_calls.hpp"
#include "zero/optimizer/tables/space_calls.hpp"

#include <string_view>
#include <type_traits>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::c {

/// What the C interface asks of a communicator over the host's memory.
class AnyRank {
 public:
  AnyRank() = default;
  AnyRank(AnyRank const&) = delete;
  AnyRank& operator=(AnyRank const&) = delete;
  virtual ~AnyRank() = default;

  /// The communicator, as an engine calls it.
  [[nodiscard]] virtual zero::detail::CommunicatorRef ref() noexcept = 0;
  /// Memory for optimizers.
  [[nodiscard]] virtual zero::detail::AllocatorRef allocator() noexcept = 0;
  /// Ends the group with this reason, where there is anybody to hear it.
  virtual void fail_group(std::string_view reason) = 0;
  /// Leaves the group in order.
  virtual void close() = 0;

  /// This rank's number, from 0.
  [[nodiscard]] int number() noexcept { return ref().rank; }
  /// How many ranks there are.
  [[nodiscard]] int ranks() noexcept { return ref().size; }
};

/// The rank of a communicator.
/// @tparam C  the communicator, or a reference to one that lives longer
/// @tparam A  where memory for optimizers is from
template <class C, Allocator A = HostAllocator>
class RankOf final : public AnyRank {
  static_assert(std::remove_reference_t<C>::Space::host_accessible);

 public:
  /// Keeps it, or the reference.
  /// @param comm       the communicator
  /// @param allocator  copied
  explicit RankOf(C comm, A allocator = {})
      : comm_(std::forward<C>(comm)), allocator_(std::move(allocator)) {}

  /// @cond
  zero::detail::CommunicatorRef ref() noexcept override { return zero::detail::ref(comm_); }
  zero::detail::AllocatorRef allocator() noexcept override { return zero::detail::ref(allocator_); }
  void fail_group(std::string_view reason) override {
    if constexpr (requires { comm_.report_failure(reason); }) comm_.report_failure(reason);
  }
  void close() override {
    if constexpr (requires { comm_.close(); }) comm_.close();
  }
  /// @endcond

 private:
  C comm_;
  A allocator_;
};

}  // namespace zero::inline ZERO_NAMESPACE::c
