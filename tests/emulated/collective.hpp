/// @file
/// What a collective of the emulated NCCL does with the buffers of all ranks.
#pragma once

#include "cuda/machine.hpp"
#include "fake_collective.hpp"

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace emulated {

/// Says what a program did wrong, and ends it.
[[noreturn]] void give_up(char const* what);

[[nodiscard]] zero::DType dtype_of(ncclDataType_t type);

/// One ncclSend or ncclRecv.
struct Message {
  bool sends;
  void* data;
  std::size_t bytes;
  int peer;
};

/// What one rank has called: a collective, or a group of messages.
struct Part {
  fake::Collective call{};
  std::vector<Message> messages{};
  fake::Stream* queue = nullptr;
  std::size_t position = 0;  ///< of this in the queue
};

/// Does a collective that all ranks have come to; `parts` are in rank order. Ranks that disagree
/// end the program.
void carry_out(std::vector<Part> const& parts);

}  // namespace emulated
