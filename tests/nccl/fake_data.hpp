/// @file
/// What the stand-in's collectives do to memory, in plain words.
#pragma once

#include "nccl/fake_world.hpp"
#include "zero/base/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace fake {

inline std::byte* at(void* memory, std::size_t bytes) {
  return static_cast<std::byte*>(memory) + bytes;
}
inline std::byte const* at(void const* memory, std::size_t bytes) {
  return static_cast<std::byte const*>(memory) + bytes;
}

/// The sum of blocks in order; `narrow` rounds to T after every addition, as a ring does.
template <class T, class Acc>
void sum_as(void* out, std::vector<void const*> const& blocks, std::size_t count, bool narrow) {
  std::vector<T> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto const element = [&](std::size_t block) {
      T value;
      std::memcpy(&value, at(blocks[block], i * sizeof(T)), sizeof(T));
      if constexpr (std::is_arithmetic_v<T>)
        return static_cast<Acc>(value);
      else
        return static_cast<Acc>(static_cast<float>(value));
    };
    Acc sum = element(0);
    for (std::size_t block = 1; block < blocks.size(); ++block) {
      sum = static_cast<Acc>(sum + element(block));
      if constexpr (!std::is_arithmetic_v<T>) {
        if (narrow) sum = static_cast<Acc>(static_cast<float>(static_cast<T>(sum)));
      }
    }
    result[i] = static_cast<T>(sum);
  }
  std::memcpy(out, result.data(), count * sizeof(T));
}

inline void sum(DType dtype,
                DType accumulate,
                void* out,
                std::vector<void const*> const& blocks,
                std::size_t count,
                bool narrow = false) {
  if (count == 0) return;
  switch (dtype) {
    case DType::f32:
      if (accumulate == DType::f64) return sum_as<float, double>(out, blocks, count, narrow);
      return sum_as<float, float>(out, blocks, count, narrow);
    case DType::f64: return sum_as<double, double>(out, blocks, count, narrow);
    case DType::bf16: return sum_as<zero::bf16, float>(out, blocks, count, narrow);
    case DType::f16: return sum_as<zero::fp16, float>(out, blocks, count, narrow);
    case DType::i32: return sum_as<std::int32_t, std::uint32_t>(out, blocks, count, narrow);
    case DType::i64: return sum_as<std::int64_t, std::uint64_t>(out, blocks, count, narrow);
    case DType::u8: return sum_as<std::uint8_t, std::uint8_t>(out, blocks, count, narrow);
  }
}

/// True if two buffers share bytes.
inline bool overlap(void const* a, std::size_t a_bytes, void const* b, std::size_t b_bytes) {
  auto const x = reinterpret_cast<std::uintptr_t>(a);
  auto const y = reinterpret_cast<std::uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

/// NCCL's in-place rules; any other overlap is undefined.
inline bool places_are_legal(Collective const& call, int rank, int size) {
  std::size_t const block = call.count * zero::size_of(call.dtype);
  std::size_t const all = block * static_cast<std::size_t>(size);
  std::size_t const own = block * static_cast<std::size_t>(rank);
  switch (call.kind) {
    case Kind::reduce_scatter:
      return !overlap(call.send, all, call.recv, block) || call.recv == at(call.send, own);
    case Kind::all_gather:
      return !overlap(call.send, block, call.recv, all) || call.send == at(call.recv, own);
    case Kind::all_reduce:
    case Kind::broadcast:
      return !overlap(call.send, block, call.recv, block) || call.send == call.recv;
  }
  return false;
}

/// Carries out one collective for all ranks.
inline void execute(std::vector<Task*> const& tasks) {
  std::size_t const size = tasks.size();
  Collective const& first = tasks[0]->call;
  std::size_t const bytes = first.count * zero::size_of(first.dtype);
  // Results are computed before any is written: buffers may be used in place.
  std::vector<std::vector<std::byte>> results(size);
  for (std::size_t rank = 0; rank < size; ++rank) {
    auto& result = results[rank];
    std::vector<void const*> blocks;
    switch (first.kind) {
      case Kind::reduce_scatter:
        for (Task const* const task : tasks) blocks.push_back(at(task->call.send, rank * bytes));
        result.resize(bytes);
        sum(first.dtype, first.dtype, result.data(), blocks, first.count, true);
        break;
      case Kind::all_reduce:
        for (Task const* const task : tasks) blocks.push_back(task->call.send);
        result.resize(bytes);
        sum(first.dtype, first.dtype, result.data(), blocks, first.count, true);
        break;
      case Kind::all_gather:
        for (Task const* const task : tasks) {
          auto const* const from = at(task->call.send, 0);
          result.insert(result.end(), from, from + bytes);
        }
        break;
      case Kind::broadcast: {
        auto const* const from = at(tasks[static_cast<std::size_t>(first.root)]->call.send, 0);
        result.assign(from, from + bytes);
        break;
      }
    }
  }
  for (std::size_t rank = 0; rank < size; ++rank) {
    std::memcpy(tasks[rank]->call.recv, results[rank].data(), results[rank].size());
  }
}

inline bool World::advance_collective(Task& task) {
  Comm& comm = *task.comm;
  Clique& clique = *comm.clique;
  auto const size = static_cast<std::size_t>(clique.size);
  if (auto const found = clique.executed.find(task.sequence); found != clique.executed.end()) {
    return true;
  }
  auto& posted = clique.posted[task.sequence];
  posted.resize(size);
  posted[static_cast<std::size_t>(comm.rank)] = &task;
  if (std::count(posted.begin(), posted.end(), nullptr) != 0) return false;
  Collective const& first = posted[0]->call;
  for (Task const* const other : posted) {
    Collective const& call = other->call;
    // What NCCL does not check and hangs or corrupts on.
    if (call.kind != first.kind || call.count != first.count || call.dtype != first.dtype ||
        call.root != first.root) {
      return false;
    }
  }
  execute(posted);
  clique.posted.erase(task.sequence);
  clique.executed[task.sequence] = 1;
  return true;
}

inline bool World::advance_exchange(Task& task) {
  Comm& comm = *task.comm;
  if (!task.posted) {
    task.posted = true;
    comm.exchanges.push_back(&task);
  }
  bool done = true;
  for (Part& part : task.parts) {
    if (part.matched) continue;
    Comm* const peer = comm.clique->members[static_cast<std::size_t>(part.peer)];
    for (Task* const other : peer->exchanges) {
      // First come, first served: the oldest open part between the two ranks is the one.
      auto const found = std::find_if(other->parts.begin(), other->parts.end(), [&](Part const& p) {
        return !p.matched && p.peer == comm.rank && p.sends != part.sends && &p != &part;
      });
      if (found == other->parts.end()) continue;
      if (found->count != part.count || found->dtype != part.dtype) break;
      Part const& from = part.sends ? part : *found;
      Part const& to = part.sends ? *found : part;
      std::memmove(to.memory, from.memory, from.count * zero::size_of(from.dtype));
      part.matched = true;
      found->matched = true;
      break;
    }
    done = done && part.matched;
  }
  if (done) std::erase(comm.exchanges, &task);
  return done;
}

}  // namespace fake
