/// @file
/// Transfers between the memory in which work is done and a slower, larger one.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/space.hpp"

#include <concepts>
#include <cstddef>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// Moves bytes between a memory space and a slower memory, while other work goes on.
///
/// `Space` is the fast one; a transfer belongs to one queue of its work. `Slow` is an address in
/// the slower memory: a value to which bytes can be added. Nobody but the transfer follows it.
///
///     struct MyTransfer {
///       using Space = zero::space::Host;
///       struct Slow { ... };    // Slow operator+(Slow, std::size_t bytes)
///       struct Ticket { ... };  // a copyable value; a default one is done already
///       static constexpr std::string_view name = "mine";
///
///       // Slower memory, at construction only. Throws Error (resource) if there is not so much.
///       Slow allocate(std::size_t bytes);
///       void deallocate(Slow memory, std::size_t bytes) noexcept;
///       // To the slower memory, and back.
///       Ticket send_out(Slow to, void const* from, std::size_t bytes);
///       Ticket bring_in(void* to, Slow from, std::size_t bytes);
///       void wait(Ticket const& ticket);
///       // Blocks the host until nothing is under way.
///       void settle() noexcept;
///     };
///
/// @par Axioms  A transfer begins after all work that is in the space's queue when it is started,
///   and after all transfers that were started before it: what `bring_in` reads is what an earlier
///   `send_out` has written there, without a wait between them. Its fast memory belongs to it until
///   `wait`: work that is queued after `wait` finds the bytes there, or may overwrite them. On a
///   space that queues its work `wait` lets the queue wait, never the host; elsewhere it blocks.
///   Tickets may be waited for in any order, more than once, or never. A failure is an Error
///   (resource) at the wait for what failed, and at every later call. `send_out`, `bring_in` and
///   `wait` allocate nothing. All calls come from one thread.
template <class T>
concept Transfer = requires(T& transfer,
                            typename T::Slow const& slow,
                            typename T::Ticket const& ticket,
                            void* to,
                            void const* from,
                            std::size_t bytes) {
  requires MemorySpace<typename T::Space>;
  requires std::semiregular<typename T::Slow>;
  requires std::semiregular<typename T::Ticket>;
  { T::name } -> std::convertible_to<std::string_view>;
  { slow + bytes } -> std::same_as<typename T::Slow>;
  { transfer.allocate(bytes) } -> std::same_as<typename T::Slow>;
  { transfer.deallocate(slow, bytes) } -> std::same_as<void>;
  { transfer.send_out(slow, from, bytes) } -> std::same_as<typename T::Ticket>;
  { transfer.bring_in(to, slow, bytes) } -> std::same_as<typename T::Ticket>;
  { transfer.wait(ticket) } -> std::same_as<void>;
  { transfer.settle() } -> std::same_as<void>;
  requires noexcept(transfer.deallocate(slow, bytes));
  requires noexcept(transfer.settle());
};

}  // namespace zero::inline ZERO_NAMESPACE
