/// The paper's lifetimes interleaved (ZeRO §6.3): a first-fit arena of the same size runs out of
/// memory that is free.
#include <zero/memory.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <vector>

namespace interleaving_test {
namespace {

using zero::Lifetime;

/// Addresses that nobody follows.
struct Elsewhere {
  void* allocate(std::size_t, std::size_t) {
    // It is never followed.
    return reinterpret_cast<void*>(std::uintptr_t{1} << 46);
  }
  void deallocate(void*, std::size_t, std::size_t) {}
};

/// The ordinary allocator: the first free range that is large enough. Free neighbours are one.
class FirstFit {
 public:
  explicit FirstFit(std::uint64_t bytes) : free_{{0, bytes}} {}

  [[nodiscard]] std::optional<std::uint64_t> take(std::uint64_t bytes) {
    for (auto range = free_.begin(); range != free_.end(); ++range) {
      auto const [first, size] = *range;
      if (size < bytes) continue;
      free_.erase(range);
      if (size > bytes) free_.emplace(first + bytes, size - bytes);
      used_.emplace(first, bytes);
      return first;
    }
    return std::nullopt;
  }
  void give_back(std::uint64_t first) {
    std::uint64_t size = used_.at(first);
    used_.erase(first);
    auto after = free_.lower_bound(first);
    if (after != free_.end() && after->first == first + size) {
      size += after->second;
      after = free_.erase(after);
    }
    if (after != free_.begin() && std::prev(after)->first + std::prev(after)->second == first) {
      std::prev(after)->second += size;
    } else {
      free_.emplace(first, size);
    }
  }
  [[nodiscard]] std::uint64_t free_bytes() const {
    std::uint64_t sum = 0;
    for (auto const& [first, size] : free_) sum += size;
    return sum;
  }

 private:
  std::map<std::uint64_t, std::uint64_t> free_;
  std::map<std::uint64_t, std::uint64_t> used_;
};

/// Bytes of one layer.
struct Layer {
  std::size_t checkpoint;   ///< its input, kept from forward to backward
  std::size_t activations;  ///< its own, which are gone once its output is there
  std::size_t gradients;    ///< of its parameters, kept from backward to the update
};

/// A block is taken, or the one that was taken under the same number is given back.
struct Event {
  std::size_t block;
  std::size_t bytes;  ///< 0: given back
  Lifetime lifetime;
};

/// Forward and backward with activation checkpointing, and the update after them.
std::vector<Event> step(std::vector<Layer> const& layers) {
  std::vector<Event> events;
  std::size_t blocks = 0;
  auto const take = [&](Lifetime lifetime, std::size_t bytes) {
    events.push_back({blocks, bytes, lifetime});
    return blocks++;
  };
  auto const give = [&](std::size_t block) { events.push_back({block, 0, Lifetime::long_lived}); };
  std::vector<std::size_t> checkpoints;
  std::vector<std::size_t> gradients;
  for (Layer const& layer : layers) {
    auto const activations = take(Lifetime::short_lived, layer.activations);
    checkpoints.push_back(take(Lifetime::long_lived, layer.checkpoint));
    give(activations);
  }
  for (std::size_t i = layers.size(); i-- > 0;) {
    auto const again = take(Lifetime::short_lived, layers[i].activations);
    auto const slopes = take(Lifetime::short_lived, layers[i].activations);
    gradients.push_back(take(Lifetime::long_lived, layers[i].gradients));
    give(again);
    give(slopes);
    give(checkpoints[i]);
  }
  for (std::size_t const block : gradients) give(block);
  return events;
}

/// What is free when a first-fit arena refuses, or nothing if it never does.
std::optional<std::uint64_t> free_when_first_fit_refuses(std::vector<Event> const& events,
                                                         std::uint64_t bytes) {
  FirstFit arena(bytes);
  std::map<std::size_t, std::uint64_t> addresses;
  for (Event const& event : events) {
    if (event.bytes == 0) {
      arena.give_back(addresses.at(event.block));
      continue;
    }
    auto const address = arena.take(event.bytes);
    // Full is not fragmented.
    if (!address) return event.bytes <= arena.free_bytes() ? arena.free_bytes() : 0;
    addresses[event.block] = *address;
  }
  return std::nullopt;
}

/// @throws zero::Error if there is no room
zero::MemoryStatistics replay(std::vector<Event> const& events,
                              zero::ContiguousMemory memory,
                              int times) {
  for (int i = 0; i < times; ++i) {
    std::map<std::size_t, zero::MemoryBlock> blocks;
    for (Event const& event : events) {
      if (event.bytes == 0) {
        blocks.erase(event.block);
      } else {
        blocks[event.block] = memory.take(event.lifetime, event.bytes);
      }
    }
  }
  return memory.statistics();
}

}  // namespace

TEST_CASE("interleaving: where first-fit fails with more than 30 % free, two ends succeed") {
  // Each layer's activations are a little larger than those before, so that they do not fit where
  // those were: behind each is a checkpoint.
  std::vector<Layer> layers;
  for (std::size_t i = 0; i < 24; ++i) {
    layers.push_back({.checkpoint = 1 * zero::KiB,
                      .activations = (64 + 2 * i) * zero::KiB,
                      .gradients = 1 * zero::KiB});
  }
  auto const events = step(layers);
  // No allocator needs less: all checkpoints, and the last layer's activations, recomputed, their
  // gradients, and its own.
  std::uint64_t const bytes =
      zero::round_up((24 + 2 * 110 + 1) * zero::KiB, zero::ContiguousMemory::page);
  auto const free = free_when_first_fit_refuses(events, bytes);
  REQUIRE(free.has_value());
  INFO(*free << " of " << bytes << " bytes are free");
  CHECK(*free * 100 > bytes * 45);
  CHECK(!free_when_first_fit_refuses(events, 2 * bytes).has_value());

  auto const used = replay(events, zero::ContiguousMemory{bytes}, 5);
  CHECK(used.peak_bytes == (24 + 2 * 110 + 1) * zero::KiB);
  CHECK(used.needed_bytes == bytes);
  CHECK(used.live_bytes == 0);
  CHECK(used.largest_free_block == bytes);
}

TEST_CASE("interleaving: models of random sizes, each in a reservation of just what it needs") {
  std::mt19937_64 random(1910);
  int refused = 0;
  int fragmented = 0;
  constexpr int models = 200;
  for (int model = 0; model < models; ++model) {
    std::vector<Layer> layers(8 + random() % 40);
    std::size_t const widest = 16 + random() % 64;
    for (Layer& layer : layers) {
      layer = {.checkpoint = (1 + random() % 8) * zero::KiB,
               .activations = (8 + random() % widest) * zero::KiB,
               .gradients = (1 + random() % 12) * zero::KiB};
    }
    auto const events = step(layers);
    std::uint64_t const bytes =
        replay(events, zero::ContiguousMemory{zero::GiB, Elsewhere{}}, 1).needed_bytes;
    CHECK(replay(events, zero::ContiguousMemory{bytes, Elsewhere{}}, 3).needed_bytes == bytes);
    auto const free = free_when_first_fit_refuses(events, bytes);
    refused += free.has_value() ? 1 : 0;
    fragmented += free.value_or(0) * 100 > bytes * 30 ? 1 : 0;
  }
  INFO(refused << " refused, " << fragmented << " with more than 30 % free");
  CHECK(refused >= 190);
  CHECK(fragmented >= 130);
}

}  // namespace interleaving_test
