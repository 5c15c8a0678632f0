/// @file
/// What collectives do to the buffers of all ranks, for every stand-in of NCCL and of devices.
#pragma once

#include "support/standard.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/kernel/reduce.hpp"

namespace fake {

using zero::DType;
using Bytes = std::vector<std::byte>;

enum class Kind { reduce_scatter, all_gather, all_reduce, broadcast };

/// What one rank calls.
struct Collective {
  Kind kind = Kind::all_gather;
  void const* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  DType dtype = DType::u8;
  int root = 0;

  [[nodiscard]] std::size_t bytes() const { return count * size_of(dtype); }
  /// Ranks that differ in this would hang, or have their memory damaged.
  [[nodiscard]] bool agrees(Collective const& other) const {
    return kind == other.kind && count == other.count && dtype == other.dtype && root == other.root;
  }
};

inline std::byte* at(void* memory, std::size_t bytes) {
  return static_cast<std::byte*>(memory) + bytes;
}
inline std::byte const* at(void const* memory, std::size_t bytes) {
  return static_cast<std::byte const*>(memory) + bytes;
}
inline Bytes read(void const* memory, std::size_t bytes) {
  return {at(memory, 0), at(memory, bytes)};
}

/// Blocks as a device's kernel adds them: in order, rounded once, with the squares of the sums.
inline Bytes sum(DType dtype,
                 DType accumulate,
                 std::vector<void const*> const& blocks,
                 std::size_t first,
                 std::size_t count,
                 zero::SumSquares const& squares = {}) {
  Bytes result(count * size_of(dtype));
  zero::kernel::SquaredSum squared{squares.sum, squares.count};
  zero::kernel::sum_and_square(dtype,
                               accumulate,
                               result.data(),
                               blocks.data(),
                               first,
                               static_cast<int>(blocks.size()),
                               count,
                               zero::kernel::Store::cached,
                               squared);
  squared.end();
  return result;
}

/// Blocks as a ring adds them: rounded after every addition.
inline Bytes ring_sum(DType dtype, std::vector<void const*> const& blocks, std::size_t count) {
  bool const half = dtype == DType::bf16 || dtype == DType::f16;
  Bytes result = read(blocks.front(), count * size_of(dtype));
  for (std::size_t block = 1; block < blocks.size(); ++block) {
    result = sum(dtype, half ? DType::f32 : dtype, {result.data(), blocks[block]}, 0, count);
  }
  return result;
}

/// True if two buffers share bytes.
inline bool overlap(void const* a, std::size_t a_bytes, void const* b, std::size_t b_bytes) {
  auto const x = reinterpret_cast<std::uintptr_t>(a);
  auto const y = reinterpret_cast<std::uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

/// NCCL's in-place rules; any other overlap is undefined.
inline bool places_are_legal(Collective const& call, int rank, int size) {
  std::size_t const block = call.bytes();
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

/// Carries out one collective for all ranks, which agree; `calls` are in rank order.
inline void execute(std::vector<Collective> const& calls) {
  Collective const& first = calls.front();
  std::size_t const bytes = first.bytes();
  // All is read before anything is written: buffers may be used in place, and aliasing shows.
  std::vector<Bytes> results;
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    std::size_t const offset = first.kind == Kind::reduce_scatter ? rank * bytes : 0;
    std::vector<void const*> blocks;
    for (Collective const& call : calls) blocks.push_back(at(call.send, offset));
    Bytes result;
    switch (first.kind) {
      case Kind::reduce_scatter:
      case Kind::all_reduce: result = ring_sum(first.dtype, blocks, first.count); break;
      case Kind::all_gather:
        for (void const* const block : blocks) {
          result.insert(result.end(), at(block, 0), at(block, bytes));
        }
        break;
      case Kind::broadcast:
        result = read(blocks[static_cast<std::size_t>(first.root)], bytes);
        break;
    }
    results.push_back(std::move(result));
  }
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    std::copy(results[rank].begin(), results[rank].end(), at(calls[rank].recv, 0));
  }
}

}  // namespace fake
