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
  explicit Space(std::shared_ptr<Machine> machine)
      : QueuedSpace(std::make_shared<Trainer const>(Trainer{std::move(machine)})) {}

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
    std::vector<void*> targets(sum.targets, sum.targets + sum.target_count);
    std::vector<void const*> sources(sum.sources, sum.sources + sum.source_count);
    space.machine().enqueue(
        stream, [=, targets = std::move(targets), sources = std::move(sources)] {
          Bytes const result =
              fake::sum(sum.dtype, sum.accumulate, sources, sum.first, sum.count, sum.squares);
          for (void* const target : targets) {
            std::memcpy(at(target, sum.first * size_of(sum.dtype)), result.data(), result.size());
          }
        });
    return status(space);
  }
  char const* gather(Space const& space,
                     Stream stream,
                     zero::detail::DeviceGather const& gather) const {
    std::vector<void const*> sources(gather.sources, gather.sources + gather.source_count);
    space.machine().enqueue(stream, [=, sources = std::move(sources)] {
      auto* to = static_cast<std::byte*>(gather.target);
      for (void const* const from : sources) {
        if (from != to) std::memcpy(to, from, gather.bytes);
        to += gather.bytes;
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

/// Spaces of a machine with one queue per rank.
[[nodiscard]] inline std::vector<Space> spaces(int ranks, std::shared_ptr<Machine> const& machine) {
  std::vector<Space> result;
  for (int rank = 0; rank < ranks; ++rank) result.emplace_back(machine);
  return result;
}

}  // namespace fake
