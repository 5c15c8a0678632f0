/// @file
/// Collectives over memory of the window, where reading too early or too late shows.
#pragma once

#include "conformance/communicator.hpp"
#include "mpi/world.hpp"
#include "support/test.hpp"

namespace mpi_tests {

/// Elements in a piece of the window, which is given back.
template <class T = float>
class Pooled {
 public:
  template <class Comm>
  Pooled(Comm& comm, std::size_t count)
      : allocator_(comm.allocator()),
        count_(count),
        data_(static_cast<T*>(allocator_.allocate(count * sizeof(T), 64))) {}
  Pooled(Pooled const&) = delete;
  Pooled& operator=(Pooled const&) = delete;
  ~Pooled() { allocator_.deallocate(data_, count_ * sizeof(T), 64); }
  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] T& operator[](std::size_t i) const { return data_[i]; }

  /// What `rank` brings to a collective.
  void fill(int rank) const {
    for (std::size_t i = 0; i < count_; ++i) data_[i] = conformance::element<T>(rank, i);
  }
  void set(T value) const { std::fill_n(data_, count_, value); }

 private:
  zero::mpi::SharedAllocator allocator_;
  std::size_t count_;
  T* data_;
};

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
  Pooled<> const memory(comm, send_count + recv_count);
  float* send = memory.data();
  float* recv = send + send_count;
  if (in_place && scatter) recv = send + rank * count;
  if (in_place && op == zero::Op::all_gather) send = recv + rank * count;
  if (in_place && op == zero::Op::all_reduce) send = recv;
  for (std::size_t i = 0; i < send_count; ++i) {
    send[i] = conformance::element<float>(comm.rank(), i);
  }
  auto ticket = comm.start(collective(op, count, send, recv));
  if (comm.rank() == late) sleep_ms(20);
  comm.wait(ticket);
  std::vector<float> const result(recv, recv + recv_count);
  // Nobody may read this any more.
  memory.set(-1.f);
  return wrong_of(recv_count, [&](std::size_t i) {
    return result[i] == (op == zero::Op::all_gather
                             ? conformance::element<float>(static_cast<int>(i / count), i % count)
                             : conformance::naive_sum<float, float>(
                                   comm.size(), scatter ? rank * count + i : i));
  });
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
