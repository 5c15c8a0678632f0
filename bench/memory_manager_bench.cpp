/// What it costs to take a block of a reservation and to give one back, beside malloc and free.
///
/// So many blocks are in use; in each iteration one of them is given back and another is taken.
/// `in_turn` gives back the one that was taken last, as a layer's scratch is; `at_random` any, of
/// random sizes and at both ends. The time is that of one pair. No block is touched.
#include <zero/memory.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

struct Reservation {
  zero::ContiguousMemory memory{std::size_t{16} << 30, Nowhere{}};

  /// Addresses that nobody follows: the bookkeeping is what is measured.
  struct Nowhere {
    void* allocate(std::size_t, std::size_t) {
      // It is never followed.
      return reinterpret_cast<void*>(std::uintptr_t{1} << 46);
    }
    void deallocate(void*, std::size_t, std::size_t) {}
  };
  void* take(std::size_t bytes, bool is_short) {
    return memory.allocate(bytes, 256, is_short ? zero::Role::staging : zero::Role::parameters);
  }
  void give_back(void* block, std::size_t bytes) { memory.deallocate(block, bytes, 256); }
};

struct Malloc {
  void* take(std::size_t bytes, bool) { return std::malloc(bytes); }
  void give_back(void* block, std::size_t) { std::free(block); }
};

struct Block {
  void* memory;
  std::size_t bytes;
};

template <class Source>
std::vector<Block> filled(Source& source, std::size_t count, std::mt19937_64& random) {
  std::vector<Block> blocks(count);
  for (Block& block : blocks) {
    block.bytes = 1024 + random() % 65536;
    block.memory = source.take(block.bytes, random() % 2 == 0);
  }
  return blocks;
}

template <class Source>
void in_turn(benchmark::State& state) {
  Source source;
  std::mt19937_64 random(1);
  auto const blocks = filled(source, static_cast<std::size_t>(state.range(0)), random);
  for (auto _ : state) {
    void* block = source.take(10000, true);
    benchmark::DoNotOptimize(block);
    source.give_back(block, 10000);
  }
  for (Block const& block : blocks) source.give_back(block.memory, block.bytes);
}

template <class Source>
void at_random(benchmark::State& state) {
  Source source;
  std::mt19937_64 random(1);
  auto blocks = filled(source, static_cast<std::size_t>(state.range(0)), random);
  for (auto _ : state) {
    std::uint64_t const number = random();
    Block& block = blocks[number % blocks.size()];
    source.give_back(block.memory, block.bytes);
    block.bytes = 1024 + (number >> 32) % 65536;
    void* taken = source.take(block.bytes, (number & 1) == 0);
    benchmark::DoNotOptimize(taken);
    block.memory = taken;
  }
  for (Block const& block : blocks) source.give_back(block.memory, block.bytes);
}

BENCHMARK(in_turn<Reservation>)->Arg(16)->Arg(1024)->Arg(65536);
BENCHMARK(in_turn<Malloc>)->Arg(16)->Arg(1024)->Arg(65536);
BENCHMARK(at_random<Reservation>)->Arg(16)->Arg(1024)->Arg(65536);
BENCHMARK(at_random<Malloc>)->Arg(16)->Arg(1024)->Arg(65536);

}  // namespace
