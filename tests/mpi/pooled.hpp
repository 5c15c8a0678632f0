/// @file
/// Collectives over memory of the window, where reading too early or too late shows.
#pragma once

#include "conformance/communicator.hpp"
#include "zero/comm/mpi.hpp"
#include "zero/concepts/communicator.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

namespace mpi_tests {

/// One collective over buffers that peers read where they are, while one rank comes to its wait
/// late.
/// @return elements that are wrong
template <class Comm>
std::size_t wrong_elements(Comm& comm, zero::Op op, bool in_place, int late) {
  auto const ranks = static_cast<std::size_t>(comm.size());
  auto const rank = static_cast<std::size_t>(comm.rank());
  std::size_t const count = op == zero::Op::all_reduce ? 300001 * ranks : 200003;
  bool const scatter = op == zero::Op::reduce_scatter;
  std::size_t const send_count = scatter ? count * ranks : count;
  std::size_t const recv_count = op == zero::Op::all_gather ? count * ranks : count;
  auto allocator = comm.allocator();
  std::size_t const bytes = (send_count + recv_count) * sizeof(float);
  auto* const memory = static_cast<float*>(allocator.allocate(bytes, 64));
  float* send = memory;
  float* recv = memory + send_count;
  if (in_place && scatter) recv = send + rank * count;
  if (in_place && op == zero::Op::all_gather) send = recv + rank * count;
  if (in_place && op == zero::Op::all_reduce) send = recv;
  for (std::size_t i = 0; i < send_count; ++i) {
    send[i] = conformance::element<float>(comm.rank(), i);
  }
  auto ticket = comm.start({.op = op, .count = count, .send = send, .recv = recv});
  if (comm.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  comm.wait(ticket);
  std::size_t wrong = 0;
  std::vector<float> const result(recv, recv + recv_count);
  // Nobody may read this any more.
  std::fill_n(memory, send_count + recv_count, -1.f);
  for (std::size_t i = 0; i < recv_count; ++i) {
    float const expected =
        op == zero::Op::all_gather
            ? conformance::element<float>(static_cast<int>(i / count), i % count)
            : conformance::naive_sum<float, float>(comm.size(), scatter ? rank * count + i : i);
    if (result[i] != expected) ++wrong;
  }
  allocator.deallocate(memory, bytes, 64);
  return wrong;
}

/// Every operation with every rank late, over buffers of their own and in place.
template <class Comm>
void check_pooled(Comm& comm) {
  using zero::Op;
  for (int late = 0; late < comm.size(); ++late) {
    for (Op const op : {Op::reduce_scatter, Op::all_gather, Op::all_reduce}) {
      for (bool const in_place : {false, true}) {
        INFO(std::string(zero::name(op)) << ", in place " << in_place << ", late " << late);
        CHECK(wrong_elements(comm, op, in_place, late) == 0);
      }
    }
  }
}

}  // namespace mpi_tests
