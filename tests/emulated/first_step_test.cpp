// A first step may be captured: what it launches was loaded when the optimizer was made.
#include "cuda/captured_step.cuh"
#include "cuda/streams.hpp"
#include "emulated/runtime.hpp"
#include "support/test.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/nccl.hpp"
#include "zero/comm/run_ranks.hpp"

namespace first_step_test {
namespace {

using captured_step::Graph;
using captured_step::model;
using zero::InProcessCuda;
using zero::device::MallocAllocator;

/// A step in which all is used that a step may use: two micro-batches where sums over them are
/// kept, and a count from outside.
template <class Optimizer>
void enqueue_step(Optimizer& optimizer) {
  constexpr int batches = Optimizer::Accumulation::reduced_shard ? 2 : 1;
  for (int batch = 0; batch < batches; ++batch) {
    optimizer.micro_step({.last = batch == batches - 1});
    for (int const unit : optimizer.units()) {
      auto const weights = optimizer.parameters(unit);
    }
    for (int const unit : optimizer.units_backward()) {
      auto const weights = optimizer.parameters(unit);
      auto gradients = optimizer.gradients(unit);
      optimizer.reduce(std::move(gradients));
    }
  }
  optimizer.enqueue_step({.max_norm = 1., .count = 1});
}

/// How many kernels the first step of `ranks` ranks loads while it is captured.
template <class... Policies>
std::size_t captured_loads(std::vector<zero::Tensor> const& tensors,
                           int ranks,
                           Policies const&... policies) {
  Streams const streams(ranks);
  auto hosts = zero::InProcess::group(ranks);
  emulated::forget_loads();
  std::size_t const before = emulated::captured_loads();
  zero::run_ranks(InProcessCuda::group(streams.spaces), [&](InProcessCuda& comm) {
    zero::InProcess host = std::move(hosts[static_cast<std::size_t>(comm.rank())]);
    auto const meet = [&] {
      zero::run(host, {.op = zero::Op::all_gather, .dtype = zero::DType::i32, .count = 0});
    };
    zero::ShardedOptimizer optimizer{
        comm, tensors, policies..., zero::Owned{MallocAllocator(comm.space().device())}};
    optimizer.adopt_parameters();
    optimizer.check_parameters();
    auto const step = [&] {
      meet();
      enqueue_step(optimizer);
      meet();
    };
    meet();
    if (comm.rank() == 0) {
      auto const capture = comm.capture();
      captured_step::join(streams.spaces);
      Graph const graph(streams.handles[0], cudaStreamCaptureModeRelaxed, [&] {
        captured_step::fork(streams.spaces);
        step();
        captured_step::join(streams.spaces);
      });
      meet();
    } else {
      step();
      meet();
    }
  });
  return emulated::captured_loads() - before;
}

using Bf16 = zero::Mixed<zero::bf16>;
using Fp16 = zero::Mixed<zero::fp16>;
using Random = zero::Bf16<zero::StochasticRounding>;

TEST_CASE("emulated: a first step that is captured loads no kernel") {
  for (int const ranks : {1, 2}) {
    CAPTURE(ranks);
    CHECK(captured_loads(model(), ranks, zero::stage::Pos{}) == 0);
    CHECK(captured_loads(model(), ranks, zero::stage::PosG{}, zero::AccumulateShard{}) == 0);
    CHECK(captured_loads(model(), ranks, zero::stage::PosGP{}, Bf16{}, zero::Lion{}) == 0);
    CHECK(captured_loads(model(), ranks, zero::stage::PosGP{}, Fp16{}, zero::AccumulateShard{}) ==
          0);
    CHECK(captured_loads(model(), ranks, zero::stage::PosG{}, Random{}) == 0);
    CHECK(captured_loads(model(), ranks, zero::stage::PosG{}, zero::Lamb{}) == 0);
    CHECK(captured_loads(model(), ranks, zero::stage::Pos{}, zero::AdamW8bit{}) == 0);
  }
}

TEST_CASE("emulated: nor does one of tensors of several types") {
  using Both = zero::ByTensor<Bf16, zero::Fp32>;
  std::vector<zero::Tensor> tensors = model();
  tensors.front().dtype = zero::DType::f32;
  tensors.push_back({.name = "codes", .shape = {999}, .dtype = zero::DType::u8, .frozen = true});
  for (int const ranks : {1, 2}) {
    CAPTURE(ranks);
    CHECK(captured_loads(tensors, ranks, zero::stage::Pos{}, Both{}) == 0);
    CHECK(captured_loads(tensors, ranks, zero::stage::PosG{}, Both{}, zero::AccumulateShard{}) ==
          0);
    CHECK(captured_loads(tensors, ranks, zero::stage::PosGP{}, Both{}, zero::Lion{}) == 0);
  }
}

TEST_CASE("emulated: a group that no optimizer uses has loaded all after its first collective") {
  for (int const ranks : {1, 2}) {
    CAPTURE(ranks);
    Streams const streams(ranks);
    emulated::forget_loads();
    std::size_t const before = emulated::captured_loads();
    auto group = InProcessCuda::group(streams.spaces);
    auto const capture = group[0].capture();
    Array<float> const memory(streams.spaces[0], std::vector<float>(4));
    // One thread plays all ranks: none of them waits before the last has started.
    auto const sum = [&] {
      std::vector<InProcessCuda::Ticket> tickets;
      for (InProcessCuda& comm : group) {
        tickets.push_back(comm.start({.op = zero::Op::all_reduce,
                                      .count = 1,
                                      .send = memory.data() + comm.rank(),
                                      .recv = memory.data() + comm.rank()}));
      }
      for (std::size_t rank = 0; rank < group.size(); ++rank) group[rank].wait(tickets[rank]);
    };
    sum();
    // In this mode a load is refused.
    captured_step::join(streams.spaces);
    Graph const graph(streams.handles[0], cudaStreamCaptureModeGlobal, [&] {
      captured_step::fork(streams.spaces);
      sum();
      captured_step::join(streams.spaces);
    });
    CHECK(emulated::captured_loads() == before);
  }
}

TEST_CASE("emulated: nor does one over NCCL, where each rank captures its own") {
  emulated::forget_loads();
  std::size_t const before = emulated::captured_loads();
  auto const id = zero::Nccl<>::unique_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < emulated::devices; ++rank) {
    threads.emplace_back([rank, id] {
      zero::device::check(cudaSetDevice(rank), "cudaSetDevice");
      cudaStream_t stream = nullptr;
      zero::device::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
      {
        zero::Nccl<> comm(
            zero::nccl::NewGroup<zero::nccl::Library>{id, rank, emulated::devices, stream}, {});
        zero::ShardedOptimizer optimizer{
            comm, model(), zero::stage::PosG{}, Bf16{}, zero::Owned{comm.allocator()}};
        optimizer.adopt_parameters();
        optimizer.check_parameters();
        {
          Graph const graph(
              stream, cudaStreamCaptureModeThreadLocal, [&] { enqueue_step(optimizer); });
        }
        comm.close();
      }
      zero::device::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(emulated::captured_loads() == before);
}

}  // namespace
}  // namespace first_step_test
