/// @file
/// A device runtime over host memory, as DeviceGroup asks for it. A trainer's work is done late;
/// transfers are late too, or as early as their waits allow.
#pragma once

#include "cuda/machine.hpp"
#include "zero/comm/device_threads/engine.hpp"
#include "zero/concepts/space.hpp"
#include "zero/kernel/reduce.hpp"
#include "zero/space/host.hpp"

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace fake {

/// The space of one rank: its trainer's stream. Counts what makes a host wait.
class Space {
 public:
  static constexpr std::string_view name = "fake device";
  static constexpr bool host_accessible = false;

  explicit Space(std::shared_ptr<Machine> machine)
      : machine_(std::move(machine)), stream_(machine_->open()) {}

  [[nodiscard]] Stream* stream() const { return stream_; }
  [[nodiscard]] Machine& machine() const { return *machine_; }
  void synchronize() const { machine_->synchronize(stream_); }

  void zero(void* memory, std::size_t bytes) const {
    enqueue([=] { host::zero(memory, bytes); });
  }
  void copy(void* to, void const* from, std::size_t bytes) const {
    enqueue([=] { host::copy(to, from, bytes); });
  }
  void upload(void* to, void const* from, std::size_t bytes) const {
    auto const* const begin = static_cast<std::byte const*>(from);
    std::vector<std::byte> kept(begin, begin + bytes);
    enqueue([to, data = std::move(kept)] { host::copy(to, data.data(), data.size()); });
  }
  void download(void* to, void const* from, std::size_t bytes) const {
    copy(to, from, bytes);
    synchronize();
  }
  template <class To, class From>
  void convert(To* out, From const* in, std::size_t count) const {
    enqueue([=] { host::convert(out, in, count); });
  }
  template <class Sum, class From>
  void add(Sum* out, From const* in, std::size_t count) const {
    enqueue([=] { host::add(out, in, count); });
  }
  template <class T>
  void add_squares(zero::ExactSum* sum, T const* x, std::size_t count) const {
    enqueue([=] { host::add_squares(sum, x, count); });
  }
  template <class T>
  void add_hash(std::uint64_t* hash, T const* x, std::size_t count, std::uint64_t first) const {
    enqueue([=] { host::add_hash(hash, x, count, first); });
  }
  template <class F>
  void call(F const& function) const {
    enqueue([function] { function(); });
  }
  template <class Rule, class Arrays>
  void update(Rule const& rule,
              zero::StepTerms const* terms,
              zero::UpdateRates const& rates,
              Arrays const& arrays) const {
    enqueue([=] { host::update(rule, terms, rates, arrays); });
  }

 private:
  using host = zero::space::Host;

  void enqueue(std::function<void()> work) const { machine_->enqueue(stream_, std::move(work)); }

  std::shared_ptr<Machine> machine_;
  Stream* stream_;
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
  Stream stream(Space const& space) const { return space.stream(); }
  char const* open(Space const& space, Stream& stream) const {
    stream = space.machine().open_transfers();
    return status(space);
  }
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
          std::size_t const element = size_of(sum.dtype);
          std::vector<std::byte> result(sum.count * element);
          auto const function = zero::kernel::sum_function(sum.dtype, sum.accumulate);
          function(result.data(),
                   sources.data(),
                   sum.first,
                   sum.source_count,
                   sum.count,
                   zero::kernel::Store::cached);
          for (void* const target : targets) {
            std::memcpy(static_cast<std::byte*>(target) + sum.first * element,
                        result.data(),
                        result.size());
          }
          if (sum.squares.sum == nullptr) return;
          zero::kernel::SquaredSum squared{sum.squares.sum, sum.squares.count};
          squared.add(sum.dtype, result.data(), sum.count);
          squared.end();
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
