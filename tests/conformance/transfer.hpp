/// @file
/// What every transfer has to do, written once.
///
/// `fast` does what a trainer does with the fast memory, in the order of its queue: `make(bytes)`
/// returns memory, `write(memory, bytes)` fills it from a vector, `read(memory)` waits and copies
/// it to one.
#pragma once

#include "support/test.hpp"
#include "zero/concepts/transfer.hpp"

namespace conformance {

using Bytes = std::vector<std::byte>;

[[nodiscard]] inline Bytes pattern(std::size_t bytes, std::uint64_t seed) {
  Bytes result(bytes);
  std::uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::byte& value : result) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<std::byte>(x >> 56);
  }
  return result;
}

/// Out and back: sizes and places of every kind.
template <class Transfer, class Fast>
void check_round_trips(Transfer& transfer, Fast& fast) {
  for (std::size_t const bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{4097}, std::size_t{1000003}}) {
    std::size_t const before = 64;
    auto const slow = transfer.allocate(before + bytes);
    Bytes const sent = pattern(bytes, bytes);
    std::byte* const out = fast.make(bytes);
    std::byte* const in = fast.make(bytes);
    // What lies before it is left alone.
    std::byte* const edge = fast.make(before);
    fast.write(edge, pattern(before, 98));
    transfer.wait(transfer.send_out(slow, edge, before));
    fast.write(out, sent);
    auto const left = transfer.send_out(slow + before, out, bytes);
    transfer.wait(left);
    fast.write(out, pattern(bytes, 99));  // after the wait it is ours again
    auto const came = transfer.bring_in(in, slow + before, bytes);
    transfer.wait(came);
    CHECK(fast.read(in, bytes) == sent);
    transfer.wait(transfer.bring_in(edge, slow, before));
    CHECK(fast.read(edge, before) == pattern(before, 98));
    transfer.wait(came);  // any number of times
    transfer.wait(left);
    transfer.settle();
    transfer.deallocate(slow, before + bytes);
  }
}

/// What was started first is done first, without a wait between them; waits in any order.
template <class Transfer, class Fast>
void check_order(Transfer& transfer, Fast& fast) {
  constexpr std::size_t bytes = 30011;
  constexpr std::size_t count = 70;
  using Ticket = typename Transfer::Ticket;
  auto const slow = transfer.allocate(bytes);
  std::vector<std::byte*> out;
  std::vector<std::byte*> in;
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back(fast.make(bytes));
    in.push_back(fast.make(bytes));
    fast.write(out.back(), pattern(bytes, i));
    // Every one overwrites what the one before has sent, and is to be read in between.
    transfer.send_out(slow, out.back(), bytes);
    tickets.push_back(transfer.bring_in(in.back(), slow, bytes));
  }
  for (std::size_t i = count; i-- > 0;) {
    transfer.wait(tickets[i]);
    CHECK(fast.read(in[i], bytes) == pattern(bytes, i));
  }
  transfer.wait(Ticket{});
  transfer.settle();
  transfer.deallocate(slow, bytes);
}

/// A transfer comes after the work that was queued before it, both ways.
template <class Transfer, class Fast>
void check_queue(Transfer& transfer, Fast& fast) {
  constexpr std::size_t bytes = 70001;
  auto const slow = transfer.allocate(bytes);
  std::byte* const memory = fast.make(bytes);
  std::byte* const kept = fast.make(bytes);
  for (std::uint64_t round = 0; round < 5; ++round) {
    fast.write(memory, pattern(bytes, round));
    transfer.wait(transfer.send_out(slow, memory, bytes));
    fast.write(memory, pattern(bytes, 100 + round));
    fast.copy(kept, memory, bytes);  // reads before the next transfer writes
    transfer.wait(transfer.bring_in(memory, slow, bytes));
    CHECK(fast.read(kept, bytes) == pattern(bytes, 100 + round));
    CHECK(fast.read(memory, bytes) == pattern(bytes, round));
  }
  transfer.settle();
  transfer.deallocate(slow, bytes);
}

template <class Transfer, class Fast>
void check_transfer(Transfer& transfer, Fast& fast) {
  check_round_trips(transfer, fast);
  check_order(transfer, fast);
  check_queue(transfer, fast);
}

/// Fast memory that the host can reach.
class HostMemory {
 public:
  [[nodiscard]] std::byte* make(std::size_t bytes) {
    return blocks_.emplace_back(bytes + 1).data();
  }
  void write(std::byte* to, Bytes const& values) { std::copy(values.begin(), values.end(), to); }
  void copy(std::byte* to, std::byte const* from, std::size_t bytes) {
    std::copy(from, from + bytes, to);
  }
  [[nodiscard]] Bytes read(std::byte const* from, std::size_t bytes) const {
    return {from, from + bytes};
  }

 private:
  std::vector<Bytes> blocks_;
};

}  // namespace conformance
