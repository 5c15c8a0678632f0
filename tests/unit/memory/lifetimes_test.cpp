/// Lifetimes at random, against a model that looks at every block in every operation; and those of
/// the paper, interleaved (ZeRO §6.3), where a first-fit arena of the same size runs out of memory
/// that is free.
#include "support/test.hpp"
#include <zero/memory.hpp>

namespace lifetimes_test {
namespace {

using zero::ContiguousMemory;
using zero::MemoryBlock;

/// As many as the environment says in ZERO_MEMORY_OPERATIONS, for a proof in full; otherwise what a
/// test has time for.
std::size_t operations(std::size_t usual) {
  char const* const all = std::getenv("ZERO_MEMORY_OPERATIONS");
  return all == nullptr ? usual : std::strtoull(all, nullptr, 10);
}

/// Addresses that no code here may follow.
struct Elsewhere {
  void* allocate(std::size_t, std::size_t) {
    return reinterpret_cast<void*>(std::uintptr_t{1} << 46);
  }
  void deallocate(void*, std::size_t, std::size_t) {}
};

enum class Lifetime { long_lived, short_lived };

MemoryBlock take(ContiguousMemory& memory,
                 Lifetime lifetime,
                 std::size_t bytes,
                 std::size_t alignment = ContiguousMemory::granule) {
  return lifetime == Lifetime::long_lived ? memory.long_lived(bytes, alignment)
                                          : memory.short_lived(bytes, alignment);
}

std::uint64_t address_of(void const* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

struct Block {
  std::uint64_t first;  ///< of all that it occupies
  std::uint64_t last;   ///< behind it
  void* memory;
  std::size_t bytes;
  std::size_t alignment;
  Lifetime lifetime;
  unsigned char content;
};

/// What the manager promises, by looking at all blocks: nothing is remembered but the peaks.
class Model {
 public:
  Model(std::uint64_t begin, std::uint64_t end) : begin_(begin), end_(end) {}

  std::vector<Block> blocks;  ///< in the order of their addresses

  /// Where a block is to begin.
  [[nodiscard]] std::optional<std::uint64_t> place(Lifetime lifetime,
                                                   std::size_t bytes,
                                                   std::size_t alignment) const {
    std::optional<std::uint64_t> best;
    std::uint64_t best_size = ~std::uint64_t{0};
    for (auto const& [from, to] : holes(lifetime)) {
      auto const at = place_in(from, to, lifetime, bytes, alignment);
      // Of blocks that fit alike, the one that is nearest to the end of the reservation.
      bool const nearer = lifetime == Lifetime::short_lived && to - from == best_size;
      if (!at || (to - from >= best_size && !nearer)) continue;
      best = at;
      best_size = to - from;
    }
    auto const [low, high] = border();
    return best ? best : place_in(low, high, lifetime, bytes, alignment);
  }

  void add(Block const& block) {
    auto const behind =
        std::ranges::find_if(blocks, [&](Block const& other) { return other.first > block.first; });
    blocks.insert(behind, block);
    zero::MemoryStatistics const now = statistics();
    peak_ = std::max(peak_, now.live_bytes);
    needed_ = std::max(needed_, now.long_lived.extent_bytes + now.short_lived.extent_bytes);
  }

  [[nodiscard]] zero::MemoryStatistics statistics() const {
    zero::MemoryStatistics now;
    auto const [low, high] = border();
    now.reserved_bytes = end_ - begin_;
    now.free_bytes = end_ - begin_;
    now.largest_free_block = high - low;
    for (Block const& block : blocks) {
      auto& own = block.lifetime == Lifetime::long_lived ? now.long_lived : now.short_lived;
      own.live_bytes += block.bytes;
      now.live_bytes += block.bytes;
      now.free_bytes -= block.last - block.first;
    }
    now.long_lived.extent_bytes = low - begin_;
    now.short_lived.extent_bytes = end_ - high;
    for (Lifetime const lifetime : {Lifetime::long_lived, Lifetime::short_lived}) {
      for (auto const& [from, to] : holes(lifetime)) {
        now.largest_free_block = std::max(now.largest_free_block, to - from);
      }
    }
    now.peak_bytes = peak_;
    now.needed_bytes = (needed_ + 4095) / 4096 * 4096;
    return now;
  }

 private:
  using Range = std::pair<std::uint64_t, std::uint64_t>;

  /// Where the long-lived region ends, and the short-lived one begins.
  [[nodiscard]] Range border() const {
    Range border{begin_, end_};
    for (Block const& block : blocks) {
      if (block.lifetime == Lifetime::long_lived) {
        border.first = std::max(border.first, block.last);
      } else {
        border.second = std::min(border.second, block.first);
      }
    }
    return border;
  }

  /// What is free within a region.
  [[nodiscard]] std::vector<Range> holes(Lifetime lifetime) const {
    auto const [low, high] = border();
    bool const is_long = lifetime == Lifetime::long_lived;
    std::uint64_t at = is_long ? begin_ : high;
    std::uint64_t const end = is_long ? low : end_;
    std::vector<Range> holes;
    for (Block const& block : blocks) {
      if (block.lifetime != lifetime) continue;
      if (block.first > at) holes.emplace_back(at, block.first);
      at = block.last;
    }
    if (end > at) holes.emplace_back(at, end);
    return holes;
  }

  [[nodiscard]] std::optional<std::uint64_t> place_in(std::uint64_t from,
                                                      std::uint64_t to,
                                                      Lifetime lifetime,
                                                      std::size_t bytes,
                                                      std::size_t alignment) const {
    std::uint64_t const whole = (bytes + 255) / 256 * 256;
    bool const is_long = lifetime == Lifetime::long_lived;
    // From the wall on, one place after the other.
    for (std::uint64_t moved = 0; from + moved + whole <= to; moved += 256) {
      std::uint64_t const at = is_long ? from + moved : to - moved - whole;
      if (at % alignment == 0) return at;
    }
    return std::nullopt;
  }

  std::uint64_t begin_;
  std::uint64_t end_;
  std::uint64_t peak_ = 0;
  std::uint64_t needed_ = 0;
};

struct Count {
  std::size_t taken = 0;
  std::size_t full = 0;
};

/// `count` operations on ordinary memory, each held against the model.
void run(std::uint64_t seed, std::size_t count) {
  constexpr std::size_t reserved = 1 << 20;
  ContiguousMemory memory{reserved};
  void* const first = memory.allocate(1, 1);
  memory.deallocate(first, 1, 1);
  std::uint64_t const begin = address_of(first);
  Model model(begin, begin + reserved);
  std::mt19937_64 random(seed);
  Count counted;
  std::size_t wrong = 0;
  auto const expect = [&wrong](bool holds) { wrong += holds ? 0 : 1; };

  // For the peaks.
  model.add({begin, begin + 256, first, 1, 1, Lifetime::long_lived, 0});
  model.blocks.clear();
  // Fills and empties in turn, so that all is met: nothing free, nothing in use, and pieces.
  std::size_t taking = 12;
  for (std::size_t i = 0; i < count && wrong == 0; ++i) {
    if (random() % 500 == 0) taking = random() % 17;
    if (random() % 16 < taking) {
      std::size_t const largest = random() % 32 == 0 ? 200'000 : 9000;
      std::size_t const bytes = 1 + random() % largest;
      std::size_t const alignment = std::size_t{1} << random() % 14;
      auto const lifetime = static_cast<Lifetime>(random() % 2);
      auto const place = model.place(lifetime, bytes, alignment);
      void* block = nullptr;
      try {
        block = lifetime == Lifetime::long_lived
                    ? memory.allocate(bytes, alignment)
                    : memory.allocate(bytes, alignment, zero::Role::staging);
        ++counted.taken;
      } catch (zero::Error const& error) {
        expect(error.kind() == zero::ErrorKind::resource);
        ++counted.full;
      }
      expect(place.value_or(0) == address_of(block));
      if (block != nullptr) {
        expect(address_of(block) % alignment == 0);
        auto const content = static_cast<unsigned char>(random());
        std::memset(block, content, bytes);
        std::uint64_t const at = address_of(block);
        std::uint64_t const size = (bytes + 255) / 256 * 256;
        model.add({at, at + size, block, bytes, alignment, lifetime, content});
      }
    } else if (!model.blocks.empty()) {
      auto const chosen =
          model.blocks.begin() + static_cast<std::ptrdiff_t>(random() % model.blocks.size());
      auto const* const content = static_cast<unsigned char const*>(chosen->memory);
      expect(content[0] == chosen->content &&
             std::memcmp(content, content + 1, chosen->bytes - 1) == 0);
      memory.deallocate(chosen->memory, chosen->bytes, chosen->alignment);
      model.blocks.erase(chosen);
    }
    expect(memory.statistics() == model.statistics());
  }
  INFO("seed " << seed << ", after " << counted.taken << " blocks");
  CHECK(wrong == 0);
  CHECK(counted.full > 0);
  for (Block const& block : model.blocks) {
    memory.deallocate(block.memory, block.bytes, block.alignment);
  }
  CHECK(memory.statistics().free_bytes == reserved);
  MESSAGE(count << " operations: " << counted.taken << " blocks, " << counted.full
                << " times no room");
}

/// Plays the same calls in a reservation; how many of them before one finds no room?
std::size_t successes(std::uint64_t seed, ContiguousMemory memory, std::size_t calls) {
  std::mt19937_64 random(seed);
  std::vector<MemoryBlock> blocks(40);
  for (std::size_t i = 0; i < calls; ++i) {
    auto const lifetime = static_cast<Lifetime>(random() % 2);
    std::size_t const bytes = random() % 10'000;
    std::size_t const alignment = std::size_t{1} << random() % 13;
    auto& block = blocks[random() % blocks.size()];
    block = {};
    try {
      block = take(memory, lifetime, bytes, alignment);
    } catch (zero::Error const&) {
      return i;
    }
  }
  return calls;
}

/// The ordinary allocator: the first free range that is large enough.
class FirstFit {
 public:
  explicit FirstFit(std::uint64_t bytes) : bytes_(bytes) {}

  [[nodiscard]] std::optional<std::uint64_t> take(std::uint64_t bytes) {
    std::uint64_t at = 0;
    for (auto const& [first, size] : used_) {
      if (first - at >= bytes) break;
      at = first + size;
    }
    if (bytes > bytes_ - at) return std::nullopt;
    used_.emplace(at, bytes);
    return at;
  }
  void give_back(std::uint64_t first) { used_.erase(first); }
  [[nodiscard]] std::uint64_t free_bytes() const {
    std::uint64_t sum = bytes_;
    for (auto const& [first, size] : used_) sum -= size;
    return sum;
  }

 private:
  std::uint64_t bytes_;
  std::map<std::uint64_t, std::uint64_t> used_;  // sizes
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
    std::map<std::size_t, MemoryBlock> blocks;
    for (Event const& event : events) {
      if (event.bytes == 0) {
        blocks.erase(event.block);
      } else {
        blocks[event.block] = take(memory, event.lifetime, event.bytes);
      }
    }
  }
  return memory.statistics();
}

}  // namespace

TEST_CASE("random lifetimes: every block is where the model says, and so are the statistics") {
  std::size_t const count = operations(40'000);
  run(1, count / 2);
  run(2, count - count / 2);
}

TEST_CASE("random lifetimes: what was needed is enough, and a page less is not") {
  constexpr std::size_t calls = 500;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    ContiguousMemory const large{zero::GiB, Elsewhere{}};
    REQUIRE(successes(seed, large, calls) == calls);
    std::size_t const needed = large.statistics().needed_bytes;
    CHECK(successes(seed, ContiguousMemory{needed, Elsewhere{}}, calls) == calls);
    CHECK(successes(seed, ContiguousMemory{needed - 4096, Elsewhere{}}, calls) < calls);
  }
}

TEST_CASE("lifetimes: nothing is kept in what is reserved") {
  ContiguousMemory memory{std::size_t{1} << 40, Elsewhere{}};
  std::vector<MemoryBlock> blocks;
  for (std::size_t i = 0; i < 100; ++i) {
    blocks.push_back(take(memory, static_cast<Lifetime>(i % 2), i * zero::GiB / 10));
    if (i % 3 == 0) blocks[i / 2] = {};
  }
  CHECK(memory.statistics().live_bytes > 200 * zero::GiB);
}

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

}  // namespace lifetimes_test
