/// @file
/// What a collective of the emulated NCCL does with the buffers of all ranks.
#pragma once

#include "cuda/machine.hpp"

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace emulated {

/// Says what a program did wrong, and ends it.
[[noreturn]] void give_up(char const* what);

/// Bytes of an element.
[[nodiscard]] std::size_t size_of(ncclDataType_t type);

enum class Kind { reduce_scatter, all_gather, all_reduce, broadcast, exchange };

/// One ncclSend or ncclRecv.
struct Message {
  bool sends;
  void* data;
  std::size_t bytes;
  int peer;
};

/// What one rank has called.
struct Part {
  Kind kind = Kind::exchange;
  void const* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclNumTypes;
  int root = 0;
  std::vector<Message> messages;
  fake::Stream* queue = nullptr;
  std::size_t position = 0;  ///< of this in the queue
};

/// Does a collective that all ranks have come to; `parts` are in rank order. Ranks that disagree
/// end the program.
void carry_out(std::vector<Part> const& parts);

}  // namespace emulated
