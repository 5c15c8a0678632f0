/// @file
/// A training whose step can be captured in a CUDA graph.
#pragma once

#include "support/test.hpp"
#include "zero/device/allocators.hpp"
#include "zero/device/scope.hpp"
#include "zero/device/status.hpp"
#include "zero/space/cuda.hpp"
#include "zero/zero.hpp"

#include <cuda_runtime_api.h>

namespace captured_step {

/// Three units, so that gathers are asked for ahead.
inline constexpr int units = 3;
inline constexpr std::size_t count = 1 << 12;

inline std::vector<zero::Tensor> model() {
  std::vector<zero::Tensor> tensors;
  for (int unit = 0; unit < units; ++unit) {
    tensors.push_back({.name = "w" + std::to_string(unit), .shape = {count}, .unit = unit});
  }
  return tensors;
}

/// What `body` enqueues to a stream, captured.
class Graph {
 public:
  template <class Body>
  Graph(cudaStream_t stream, cudaStreamCaptureMode mode, Body const& body) : stream_(stream) {
    using zero::device::check;
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream, mode), "cudaStreamBeginCapture");
    body();
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable_, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  Graph(Graph const&) = delete;
  Graph& operator=(Graph const&) = delete;
  /// What was launched goes on.
  ~Graph() { cudaGraphExecDestroy(executable_); }

  void launch() const {
    zero::device::check(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch");
  }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

using Spaces = std::vector<zero::space::Cuda>;

/// What is enqueued to `second` from here on comes after what is in `first`.
inline void order(zero::space::Cuda const& first, zero::space::Cuda const& second) {
  using zero::device::check;
  cudaEvent_t event = nullptr;
  {
    zero::device::Scope const scope(first.device());
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    check(cudaEventRecord(event, first.stream()), "cudaEventRecord");
  }
  check(cudaStreamWaitEvent(second.stream(), event, 0), "cudaStreamWaitEvent");
  check(cudaEventDestroy(event), "cudaEventDestroy");
}
/// The streams of other ranks come after rank 0's, or it after them.
inline void fork(Spaces const& spaces) {
  for (std::size_t rank = 1; rank < spaces.size(); ++rank) order(spaces[0], spaces[rank]);
}
inline void join(Spaces const& spaces) {
  for (std::size_t rank = 1; rank < spaces.size(); ++rank) order(spaces[rank], spaces[0]);
}

/// Gradients of the parameter itself, on the device.
struct Gradient {
  float* to;
  float const* parameter;
  float target;
  __host__ __device__ void operator()() const {
    for (std::size_t i = 0; i < count; ++i) to[i] += parameter[i] - target;
  }
};

/// A schedule that the device follows on its own.
struct Decay {
  float* learning_rate;
  __host__ __device__ void operator()() const { *learning_rate *= 0.5f; }
};

/// A trainer's turn in a capture of several ranks' streams, where ranks are threads.
template <class C>
auto turn_of(C& comm) {
  if constexpr (requires { comm.capture_turn(); }) {
    return comm.capture_turn();
  } else {
    return 0;
  }
}

/// One rank's training, on the stream of its communicator's space.
template <class C, class Stage = zero::stage::PosG>
class Trainer {
 public:
  /// @param decay  in the memory of the space: a learning rate that is halved before every step
  explicit Trainer(C& comm, float* decay = nullptr)
      : comm_(&comm),
        space_(comm.space().device(), comm.space().stream()),
        target_(static_cast<float>(comm.rank() + 1)),
        decay_(decay),
        optimizer_{comm,
                   model(),
                   Stage{},
                   zero::AdamW{.lr = 0.1f},
                   zero::Owned{zero::device::MallocAllocator(space_.device())}} {
    optimizer_.load_parameters([](zero::Tensor const&, std::size_t first, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(first + i) * 1e-3f;
    });
  }

  /// Enqueues a step.
  /// @param rate  the learning rate, where none lies in the memory of the space
  void step(float rate = 0.1f) {
    if (decay_ != nullptr) {
      [[maybe_unused]] auto const turn = turn_of(*comm_);
      space_.call(Decay{decay_});
    }
    for (int const unit : optimizer_.units()) {
      auto const weights = optimizer_.parameters(unit);
    }
    for (int const unit : optimizer_.units_backward()) {
      auto const weights = optimizer_.parameters(unit);
      auto gradients = optimizer_.gradients(unit);
      {
        [[maybe_unused]] auto const turn = turn_of(*comm_);
        space_.call(Gradient{gradients[0].data(), weights[0].data(), target_});
      }
      optimizer_.reduce(std::move(gradients));
    }
    optimizer_.enqueue_step(
        {.learning_rate = rate, .learning_rate_address = decay_, .max_norm = 1.});
  }

  /// How many steps there have been on the device.
  [[nodiscard]] std::int64_t steps() { return optimizer_.report().step; }

  /// The same as it would be saved.
  [[nodiscard]] std::int64_t saved_steps() const { return optimizer_.steps(); }

  /// This rank's master weights, as it would save them.
  [[nodiscard]] std::vector<float> masters() {
    std::vector<float> all;
    optimizer_.visit_owned([&](auto const&, std::size_t, auto master, auto const&) {
      all.insert(all.end(), master.begin(), master.end());
    });
    return all;
  }

  [[nodiscard]] std::vector<float> parameters() {
    std::vector<float> result(units * count);
    for (int unit = 0; unit < units; ++unit) {
      auto const weights = optimizer_.parameters(unit);
      float* const to = result.data() + static_cast<std::size_t>(unit) * count;
      space_.download(to, weights[0].data(), count * sizeof(float));
    }
    return result;
  }

 private:
  using Optimizer = decltype(zero::ShardedOptimizer{std::declval<C&>(),
                                                    std::vector<zero::Tensor>{},
                                                    Stage{},
                                                    zero::AdamW{},
                                                    zero::Owned{zero::device::MallocAllocator()}});

  C* comm_;
  typename C::Space space_;  ///< the trainer's own: what it enqueues takes no turns by itself
  float target_;
  float* decay_;
  Optimizer optimizer_;
};

/// Trains four steps; with `replay`, steps 3 and 4 are replays of a graph. Returns the parameters.
template <class Stage = zero::stage::PosG, class C>
std::vector<float> train(C& comm, bool replay) {
  Trainer<C, Stage> trainer(comm);
  trainer.step();
  trainer.step();
  if (replay) {
    // The default, and the strictest; ranks that are threads may do more than a capture allows.
    auto const mode =
        comm.size() == 1 ? cudaStreamCaptureModeGlobal : cudaStreamCaptureModeThreadLocal;
    Graph const graph(comm.space().stream(), mode, [&] { trainer.step(); });
    graph.launch();
    graph.launch();
    CHECK(trainer.steps() == 4);
  } else {
    trainer.step();
    trainer.step();
  }
  return trainer.parameters();
}

}  // namespace captured_step
