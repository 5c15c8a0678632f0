// What a collective of threads asks of the runtime, and what a step does: events, launches, copies.
#include "cuda/captured_step.cuh"
#include "cuda/streams.hpp"
#include "emulated/runtime.hpp"
#include "support/test.hpp"
#include "zero/comm/in_process_cuda.hpp"

#include <cuda_runtime.h>

namespace collective_calls_test {
namespace {

using zero::InProcessCuda;
using zero::Op;

/// Ranks that take turns on so many devices.
struct Group {
  Group(int ranks, int devices) {
    for (int rank = 0; rank < ranks; ++rank) {
      int const device = rank % devices;
      zero::device::Scope const scope(device);
      cudaStream_t stream = nullptr;
      zero::device::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
      handles.push_back(stream);
      spaces.emplace_back(device, stream);
    }
    comms = InProcessCuda::group(spaces);
  }
  Group(Group const&) = delete;
  Group& operator=(Group const&) = delete;
  ~Group() {
    comms.clear();
    for (cudaStream_t const stream : handles) cudaStreamDestroy(stream);
  }

  std::vector<cudaStream_t> handles;
  std::vector<zero::space::Cuda> spaces;
  std::vector<InProcessCuda> comms;
};

/// What one collective takes after the first, with squares where sums of ranks ask for them. One
/// thread plays all ranks: none of them waits before the last has started.
emulated::Enqueued calls(Op op, int ranks, int devices, std::size_t count, bool squares = false) {
  Group group(ranks, devices);
  auto const size = static_cast<std::size_t>(ranks);
  std::vector<std::unique_ptr<Array<float>>> sends, recvs;
  std::vector<std::unique_ptr<Array<zero::ExactSum>>> sums;
  for (zero::space::Cuda const& space : group.spaces) {
    sends.push_back(std::make_unique<Array<float>>(space, std::vector<float>(size * count)));
    recvs.push_back(std::make_unique<Array<float>>(space, std::vector<float>(size * count)));
    sums.push_back(std::make_unique<Array<zero::ExactSum>>(space, std::vector{zero::ExactSum{}}));
  }
  auto const collective = [&] {
    std::vector<InProcessCuda::Ticket> tickets;
    for (std::size_t rank = 0; rank < size; ++rank) {
      zero::Collective all{
          .op = op, .count = count, .send = sends[rank]->data(), .recv = recvs[rank]->data()};
      if (squares) {
        all.squares = sums[rank]->data();
        all.squares_count = count;
      }
      tickets.push_back(group.comms[rank].start(all));
    }
    for (std::size_t rank = 0; rank < size; ++rank) group.comms[rank].wait(tickets[rank]);
  };
  collective();
  emulated::Enqueued const before = emulated::enqueued();
  collective();
  return emulated::enqueued() - before;
}

constexpr Op all_ops[] = {
    Op::reduce_scatter, Op::all_gather, Op::all_reduce, Op::broadcast, Op::all_to_all};

TEST_CASE("emulated: a collective on one device is one launch between two events of each rank") {
  for (Op const op : all_ops) {
    for (std::size_t const ranks : {2u, 4u}) {
      CAPTURE(ranks);
      CHECK(calls(op, static_cast<int>(ranks), 1, 1024) ==
            emulated::Enqueued{ranks + 1, 2 * ranks, 1, 0});
    }
  }
  // With the norm of what is reduced as well.
  CHECK(calls(Op::reduce_scatter, 4, 1, 1024, true) == emulated::Enqueued{5, 8, 1, 0});
}

TEST_CASE("emulated: several devices meet once before a collective and once after it") {
  for (Op const op : all_ops) {
    CHECK(calls(op, 2, 2, 1024) == emulated::Enqueued{2 + 3, 4 + 2, 2, 0});
    CHECK(calls(op, 4, 2, 1024) == emulated::Enqueued{4 + 3, 8 + 2, 2, 0});
  }
}

TEST_CASE("emulated: ranges that begin elsewhere in a vector take a launch each") {
  CHECK(calls(Op::reduce_scatter, 4, 1, 1023).launches == 4);
  CHECK(calls(Op::all_reduce, 4, 1, 1023).launches == 1);
  // One launch of whole blocks with their squares, then what is left of each rank's: added,
  // squared.
  CHECK(calls(Op::reduce_scatter, 4, 1, 1028, true).launches == 1 + 1 + 4);
}

/// What a step of four ranks on one device takes, all ranks together.
template <class Stage>
emulated::Enqueued step_calls(Stage stage) {
  Group group(4, 1);
  emulated::Enqueued taken;
  auto hosts = zero::InProcess::group(4);
  zero::run_ranks(std::move(group.comms), [&](InProcessCuda& comm) {
    zero::InProcess host = std::move(hosts[static_cast<std::size_t>(comm.rank())]);
    auto const meet = [&] {
      zero::run(host, {.op = Op::all_gather, .dtype = zero::DType::i32, .count = 0});
    };
    std::vector<zero::Tensor> tensors;
    for (int unit = 0; unit < 4; ++unit) {
      tensors.push_back({.name = "w" + std::to_string(unit), .shape = {4096}, .unit = unit});
    }
    zero::ShardedOptimizer optimizer{
        comm,
        tensors,
        stage,
        zero::Mixed<zero::bf16>{},
        zero::AdamW{},
        zero::Bucket{4096 * sizeof(zero::bf16)},
        zero::Owned{zero::device::MallocAllocator(comm.space().device())}};
    optimizer.adopt_parameters();
    auto const step = [&] {
      for (int const unit : optimizer.units()) static_cast<void>(optimizer.parameters(unit));
      for (int const unit : optimizer.units_backward()) {
        auto const weights = optimizer.parameters(unit);
        auto gradients = optimizer.gradients(unit);
        optimizer.reduce(std::move(gradients));
      }
      optimizer.enqueue_step();
    };
    step();
    static_cast<void>(optimizer.report());
    meet();
    emulated::Enqueued const before = emulated::enqueued();
    meet();
    step();
    meet();
    if (comm.rank() == 0) taken = emulated::enqueued() - before;
    meet();
  });
  return taken;
}

TEST_CASE("emulated: what a step of four buckets takes on four ranks of a device") {
  // Reductions, an agreement, gathers; and for each rank, four updates and four short kernels.
  constexpr std::size_t own = 4 * (4 + 4);
  constexpr auto taken = [](std::size_t collectives, std::size_t copies) {
    return emulated::Enqueued{5 * collectives, 8 * collectives, collectives + own, copies};
  };
  CHECK(step_calls(zero::stage::Replicated{}) == taken(4 + 1 + 4, 8));
  CHECK(step_calls(zero::stage::Pos{}) == taken(4 + 1 + 4, 8));
  CHECK(step_calls(zero::stage::PosG{}) == taken(4 + 1 + 4, 20));
  CHECK(step_calls(zero::stage::PosGP{}) == taken(4 + 1 + 8, 20));
}

}  // namespace
}  // namespace collective_calls_test
