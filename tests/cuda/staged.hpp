/// @file
/// A communicator over a device's memory as one over host memory, so that the suites written for
/// host memory judge it: buffers go to the device and come back.
#pragma once

#include "support/standard.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/space/host.hpp"

template <class C, zero::Allocator A>
class Staged {
 public:
  using Space = zero::space::Host;
  static constexpr bool adds_squares = zero::SquaringCommunicator<C>;

  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&&) noexcept = default;
    Ticket& operator=(Ticket&&) noexcept = default;
    /// What is under way ends before its memory goes.
    ~Ticket() { inner_ = {}; }

   private:
    friend class Staged;
    typename C::Ticket inner_{};
    zero::Collective op_{};         ///< as the caller sees it
    zero::Collective staged_{};     ///< on the device
    std::shared_ptr<void> memory_;  ///< of the device
  };

  Staged(C inner, A allocator) : inner_(std::move(inner)), allocator_(std::move(allocator)) {}

  [[nodiscard]] int rank() const noexcept { return inner_.rank(); }
  [[nodiscard]] int size() const noexcept { return inner_.size(); }

  Ticket start(zero::Collective const& op) {
    zero::detail::check_arguments(op, rank(), size());
    Ticket ticket;
    ticket.op_ = op;
    ticket.staged_ = op;
    std::size_t const element = size_of(op.dtype);
    std::size_t const send_bytes = zero::detail::send_count(op, size()) * element;
    std::size_t const recv_bytes = zero::detail::receive_count(op, size()) * element;
    if (op.count == 0) {
      ticket.inner_ = inner_.start(op);
      return ticket;
    }
    // In place, the smaller buffer lies in the larger one.
    auto const* const send = static_cast<std::byte const*>(op.send);
    auto* const recv = static_cast<std::byte*>(op.recv);
    bool const in_place = send != nullptr && send < recv + recv_bytes && recv < send + send_bytes;
    std::size_t const gap = in_place ? 0 : (send_bytes + 255) / 256 * 256;
    std::size_t const squares_at = (gap + std::max(send_bytes, recv_bytes) + 255) / 256 * 256;
    std::size_t const bytes = squares_at + sizeof(zero::ExactSum);
    auto* const device = static_cast<std::byte*>(allocator_.allocate(bytes, 256));
    ticket.memory_ = {device, [allocator = allocator_, bytes](void* memory) mutable {
                        allocator.deallocate(memory, bytes, 256);
                      }};
    std::byte const* const lower =
        in_place ? std::min(send, static_cast<std::byte const*>(recv)) : nullptr;
    std::byte* const device_send = in_place ? device + (send - lower) : device;
    std::byte* const device_recv = in_place ? device + (recv - lower) : device + gap;
    auto const space = inner_.space();
    space.upload(device_recv, recv, recv_bytes);
    if (send != nullptr) space.upload(device_send, send, send_bytes);
    ticket.staged_.send = send == nullptr ? nullptr : device_send;
    ticket.staged_.recv = device_recv;
    if (op.squares != nullptr) {
      ticket.staged_.squares = reinterpret_cast<zero::ExactSum*>(device + squares_at);
      space.upload(ticket.staged_.squares, op.squares, sizeof(zero::ExactSum));
    }
    ticket.inner_ = inner_.start(ticket.staged_);
    return ticket;
  }

  void wait(Ticket& ticket) {
    inner_.wait(ticket.inner_);
    if (ticket.memory_ == nullptr) return;
    std::size_t const element = size_of(ticket.op_.dtype);
    std::size_t const bytes = zero::detail::receive_count(ticket.op_, size()) * element;
    auto const space = inner_.space();
    space.download(ticket.op_.recv, ticket.staged_.recv, bytes);
    if (ticket.op_.squares != nullptr) {
      space.download(ticket.op_.squares, ticket.staged_.squares, sizeof(zero::ExactSum));
    }
    ticket.memory_.reset();
  }

  [[nodiscard]] Staged split(int color, int key) { return {inner_.split(color, key), allocator_}; }

  bool report_failure(std::string_view reason) { return inner_.report_failure(reason); }

 private:
  C inner_;
  A allocator_;
};
