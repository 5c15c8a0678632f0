/// @file
/// A device runtime over host memory, as DeviceGroup asks for it. A trainer's work is done late;
/// transfers are late too, or as early as their waits allow.
#pragma once

#include "cuda/machine.hpp"
#include "fake_collective.hpp"
#include "queued_space.hpp"
#include "support/standard.hpp"
#include "zero/comm/device_threads/device_engine.hpp"

namespace fake {

/// A trainer's stream.
struct Trainer {
  std::shared_ptr<Machine> machine;
  Stream* stream = machine->open();

  void enqueue(std::function<void()> work) const { machine->enqueue(stream, std::move(work)); }
  /// Memory is the host's.
  void require(void const*, std::size_t) const {}
  void finish(std::size_t) const { machine->synchronize(stream); }
};

/// The space of one rank.
struct Space : QueuedSpace<std::shared_ptr<Trainer const>> {
  explicit Space(std::shared_ptr<Machine> machine, int number = 0)
      : QueuedSpace(std::make_shared<Trainer const>(Trainer{std::move(machine)})), device(number) {}

  int device;  ///< of the machine

  [[nodiscard]] Stream* stream() const { return queue()->stream; }
  [[nodiscard]] Machine& machine() const { return *queue()->machine; }
  void synchronize() const { queue()->finish(0); }
};

/// The runtime as DeviceGroup asks for it.
struct Api {
  using Space = fake::Space;
  using Stream = fake::Stream*;
  using Event = fake::Event*;
  static constexpr int max_ranks = 64;

  bool together(Space const& a, Space const& b) const { return a.device == b.device; }
  char const* connect(Space const& own, Space const& peer) const {
    if (&own.machine() != &peer.machine()) return "two devices of different machines";
    return status(own);
  }
  Space taking(Space const& space, std::shared_ptr<zero::device::Turns> const&) const {
    return space;
  }
  Stream stream(Space const& space) const { return space.stream(); }
  char const* open(Space const& space, Stream& stream) const {
    stream = space.machine().open_transfers();
    return status(space);
  }
  char const* load(Space const& space) const { return status(space); }
  char const* create(Space const& space, Event& event) const {
    event = space.machine().create();
    return status(space);
  }
  char const* record(Space const& space, Stream stream, Event event) const {
    space.machine().record(stream, event);
    return status(space);
  }
  char const* wait(Space const& space, Stream stream, Event event) const {
    space.machine().wait(stream, event);
    return status(space);
  }
  char const* copy(
      Space const& space, Stream stream, void* to, void const* from, std::size_t bytes) const {
    space.machine().enqueue(stream, [=] { std::memcpy(to, from, bytes); });
    return status(space);
  }
  char const* sum(Space const& space, Stream stream, zero::detail::DeviceSum const& sum) const {
    auto const buffers = static_cast<std::size_t>(sum.target_count);
    auto const ranges = static_cast<std::size_t>(sum.range_count);
    std::vector<void*> targets(sum.targets, sum.targets + buffers * ranges);
    std::vector<void const*> sources(sum.sources, sum.sources + sum.source_count);
    std::vector<std::size_t> firsts(sum.first, sum.first + ranges);
    std::vector<zero::SumSquares> squares(ranges);
    if (sum.squares != nullptr) squares.assign(sum.squares, sum.squares + ranges);
    space.machine().enqueue(stream,
                            [=,
                             dtype = sum.dtype,
                             accumulate = sum.accumulate,
                             count = sum.count,
                             targets = std::move(targets),
                             sources = std::move(sources),
                             firsts = std::move(firsts),
                             squares = std::move(squares)] {
                              for (std::size_t r = 0; r < ranges; ++r) {
                                Bytes const result = fake::sum(
                                    dtype, accumulate, sources, firsts[r], count, squares[r]);
                                for (std::size_t i = 0; i < buffers; ++i) {
                                  std::byte* const to =
                                      at(targets[r * buffers + i], firsts[r] * size_of(dtype));
                                  std::memcpy(to, result.data(), result.size());
                                }
                              }
                            });
    return status(space);
  }
  char const* gather(Space const& space,
                     Stream stream,
                     zero::detail::DeviceGather const& gather) const {
    auto const count = static_cast<std::size_t>(gather.target_count);
    std::vector<void*> targets(gather.targets, gather.targets + count);
    std::vector<std::size_t> skip(gather.skip, gather.skip + count);
    std::vector<void const*> sources(gather.sources, gather.sources + gather.source_count);
    space.machine().enqueue(stream,
                            [count,
                             bytes = gather.bytes,
                             targets = std::move(targets),
                             skip = std::move(skip),
                             sources = std::move(sources)] {
                              for (std::size_t i = 0; i < count; ++i) {
                                std::byte* to = at(targets[i], 0);
                                for (void const* const source : sources) {
                                  std::byte const* const from = at(source, skip[i]);
                                  if (from != to) std::memcpy(to, from, bytes);
                                  to += bytes;
                                }
                              }
                            });
    return status(space);
  }
  void close(Stream) const {}
  void destroy(Event) const {}

 private:
  static char const* status(Space const& space) {
    return space.machine().call() ? nullptr : "the device is on fire";
  }
};

static_assert(zero::detail::DeviceApi<Api>);

/// Spaces of a machine with one queue per rank. Ranks take turns on its devices.
[[nodiscard]] inline std::vector<Space> spaces(int ranks,
                                               std::shared_ptr<Machine> const& machine,
                                               int devices = 2) {
  std::vector<Space> result;
  for (int rank = 0; rank < ranks; ++rank) result.emplace_back(machine, rank % devices);
  return result;
}

}  // namespace fake
