// Whole steps over threads as ranks, captured in a CUDA graph and replayed.
#include "cuda/captured_step.cuh"
#include "cuda/streams.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/in_process_cuda.hpp"
#include "zero/comm/run_ranks.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace capture_test {
namespace {

using zero::InProcessCuda;
using zero::device::check;

template <class Stage>
void check_one_rank() {
  std::vector<float> results[2];
  for (bool const replay : {false, true}) {
    Streams const streams(1);
    auto group = InProcessCuda::group(streams.spaces);
    results[replay ? 1 : 0] = captured_step::train<Stage>(group[0], replay);
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0][0] != 0.f);
}

TEST_CASE("cuda: a captured step trains as one that was enqueued call by call") {
  check_one_rank<zero::stage::PosG>();
  check_one_rank<zero::stage::PosGP>();
}

constexpr std::size_t fed_count = 600;

/// Gradients that are one word of the device, times the loss scale, so that every launch of a graph
/// may have others.
template <class Wire>
struct Feed {
  Wire* to;
  float const* word;
  float const* loss_scale;
  __host__ __device__ void operator()() const {
    for (std::size_t i = 0; i < fed_count; ++i) to[i] = Wire(*word * *loss_scale);
  }
};

/// A trainer whose step, with `replay`, is captured once and launched whenever it is called; its
/// learning rate then lies on the device.
template <class Precision>
class Fed {
 public:
  /// @param own  a learning rate of the tensor's own, unless below 0
  explicit Fed(Precision const& precision, bool replay, float own = -1.f)
      : streams_(1),
        group_(InProcessCuda::group(streams_.spaces)),
        allocator_(space().device()),
        word_(static_cast<float*>(allocator_.allocate(sizeof(float), 256))),
        rate_(replay ? static_cast<float*>(allocator_.allocate(sizeof(float), 256)) : nullptr),
        optimizer_{group_[0],
                   std::vector<zero::Tensor>{{.name = "w", .shape = {fed_count}}},
                   precision,
                   zero::AdamW{.lr = 0.1f},
                   zero::Owned{zero::device::MallocAllocator(space().device())}} {
    optimizer_.load_parameters([](zero::Tensor const&, std::size_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 0.5f);
    });
    if (own >= 0.f) optimizer_.set_lr("w", own);
    train(1.f);
    if (!replay) return;
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(space().stream(), cudaStreamCaptureModeGlobal),
          "cudaStreamBeginCapture");
    enqueue();
    check(cudaStreamEndCapture(space().stream(), &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable_, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  Fed(Fed const&) = delete;
  Fed& operator=(Fed const&) = delete;
  ~Fed() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    allocator_.deallocate(word_, sizeof(float), 256);
    if (rate_ != nullptr) allocator_.deallocate(rate_, sizeof(float), 256);
  }

  void train(float gradient, float rate = 0.1f) {
    space().upload(word_, &gradient, sizeof(float));
    if (rate_ != nullptr) space().upload(rate_, &rate, sizeof(float));
    options_ = {.learning_rate = rate, .learning_rate_address = rate_};
    if (executable_ == nullptr) {
      enqueue();
    } else {
      check(cudaGraphLaunch(executable_, space().stream()), "cudaGraphLaunch");
    }
  }
  [[nodiscard]] float master() {
    float first = 0.f;
    optimizer_.visit_owned(
        [&](zero::Tensor const&, std::size_t at, std::span<float const> values, auto const&) {
          if (at == 0) first = values[0];
        });
    return first;
  }
  [[nodiscard]] auto& optimizer() { return optimizer_; }

 private:
  using Optimizer = decltype(zero::ShardedOptimizer{std::declval<InProcessCuda&>(),
                                                    std::vector<zero::Tensor>{},
                                                    Precision{},
                                                    zero::AdamW{},
                                                    zero::Owned{zero::device::MallocAllocator()}});

  [[nodiscard]] zero::space::Cuda space() const { return group_[0].space(); }
  void enqueue() {
    auto gradients = optimizer_.gradients(0);
    space().call(Feed<typename Precision::Wire>{
        gradients[0].data(), word_, optimizer_.loss_scale_address()});
    optimizer_.reduce(std::move(gradients));
    optimizer_.enqueue_step(options_);
  }

  Streams streams_;
  std::vector<InProcessCuda> group_;
  zero::device::MallocAllocator allocator_;
  float* word_;
  float* rate_;
  zero::StepOptions options_;
  Optimizer optimizer_;
  cudaGraphExec_t executable_ = nullptr;
};

TEST_CASE("cuda: what is asked after a launch of a captured step is of that launch") {
  for (bool const replay : {false, true}) {
    CAPTURE(replay);
    Fed<zero::Fp32> fed(zero::Fp32{}, replay);
    auto& optimizer = fed.optimizer();
    CHECK(optimizer.report().step == 1);
    double const norm = optimizer.report().grad_norm;
    fed.train(2.f);
    CHECK(optimizer.report().step == 2);
    CHECK(optimizer.report().grad_norm == doctest::Approx(2. * norm));
    fed.train(3.f);
    CHECK(optimizer.steps() == 3);
    CHECK(optimizer.report().grad_norm == doctest::Approx(3. * norm));
  }
}

TEST_CASE("cuda: a captured step that fails is reported, and steps count again from then on") {
  for (bool const replay : {false, true}) {
    CAPTURE(replay);
    Fed<zero::Fp32> fed(zero::Fp32{}, replay);
    auto& optimizer = fed.optimizer();
    CHECK(optimizer.report().step == 1);
    float const before = fed.master();
    fed.train(std::numeric_limits<float>::quiet_NaN());
    fed.train(1.f);
    CHECK(fed.master() == before);
    std::string message;
    try {
      static_cast<void>(optimizer.report());
    } catch (zero::Error const& error) {
      message = error.message();
    }
    CHECK(message == "gradients are not finite");
    fed.train(1.f);
    CHECK(optimizer.report().step == 2);
    CHECK(fed.master() != before);
  }
}

TEST_CASE("cuda: a captured step that overflows is skipped and halves the loss scale") {
  using Fp16 = zero::Mixed<zero::fp16>;
  float results[2] = {};
  for (bool const replay : {false, true}) {
    CAPTURE(replay);
    Fed<Fp16> fed(Fp16{.loss_scale = {.initial = 1024.f}}, replay);
    auto& optimizer = fed.optimizer();
    CHECK(optimizer.loss_scale() == 1024.f);
    fed.train(1.f);
    float const before = fed.master();
    fed.train(100.f);
    CHECK(optimizer.loss_scale() == 512.f);
    zero::StepReport const skipped = optimizer.report();
    CHECK(skipped.skipped);
    CHECK(skipped.step == 2);
    CHECK(skipped.loss_scale == 1024.f);
    CHECK(fed.master() == before);
    fed.train(100.f);
    zero::StepReport const report = optimizer.report();
    CHECK_FALSE(report.skipped);
    CHECK(report.step == 3);
    CHECK(report.loss_scale == 512.f);
    results[replay ? 1 : 0] = fed.master();
  }
  CHECK(results[0] == results[1]);
}

TEST_CASE("cuda: a captured step reads the learning rate of each launch") {
  std::vector<float> results[2];
  for (bool const replay : {false, true}) {
    Fed<zero::Fp32> fed(zero::Fp32{}, replay);
    for (float const rate : {0.1f, 0.03f, 0.f, 0.7f}) {
      fed.train(1.f, rate);
      results[replay ? 1 : 0].push_back(fed.master());
    }
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0][1] == results[0][2]);
  CHECK(results[0][2] != results[0][3]);
}

TEST_CASE("cuda: a captured step keeps a learning rate of a tensor's own") {
  std::vector<float> results[2];
  for (bool const replay : {false, true}) {
    Fed<zero::Fp32> fed(zero::Fp32{}, replay, 0.25f);
    // What is said after the capture is for steps that are enqueued or captured from then on.
    if (replay) fed.optimizer().set_lr("w", 0.75f);
    for (float const rate : {0.1f, 0.f}) {
      float const before = fed.master();
      fed.train(1.f, rate);
      results[replay ? 1 : 0].push_back(fed.master());
      CHECK(fed.master() != before);
    }
  }
  CHECK(results[0] == results[1]);
}

TEST_CASE("cuda: a first step is not captured before ranks have compared what they start from") {
  Streams const streams(1);
  auto group = InProcessCuda::group(streams.spaces);
  zero::space::Cuda const space = group[0].space();
  zero::ShardedOptimizer optimizer{group[0],
                                   {{.name = "w", .shape = {fed_count}}},
                                   zero::Owned{zero::device::MallocAllocator(space.device())}};
  optimizer.adopt_parameters();
  for (bool const compared : {false, true}) {
    if (compared) optimizer.check_parameters();
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(space.stream(), cudaStreamCaptureModeGlobal),
          "cudaStreamBeginCapture");
    std::string message;
    try {
      optimizer.enqueue_step();
    } catch (zero::Error const& error) {
      CHECK(error.kind() == zero::ErrorKind::invalid_argument);
      message = error.message();
    }
    check(cudaStreamEndCapture(space.stream(), &graph), "cudaStreamEndCapture");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    CHECK(message == std::string(compared ? ""
                                          : "ranks cannot compare what they start from while a "
                                            "step is captured; call check_parameters() before"));
  }
}

using Spaces = std::vector<zero::space::Cuda>;

/// What is enqueued to `second` from here on comes after what is in `first`.
void order(zero::space::Cuda const& first, zero::space::Cuda const& second) {
  cudaEvent_t event = nullptr;
  {
    zero::device::Scope const scope(first.device());
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    check(cudaEventRecord(event, first.stream()), "cudaEventRecord");
  }
  check(cudaStreamWaitEvent(second.stream(), event, 0), "cudaStreamWaitEvent");
  check(cudaEventDestroy(event), "cudaEventDestroy");
}
void fork(Spaces const& spaces) {
  for (std::size_t rank = 1; rank < spaces.size(); ++rank) order(spaces[0], spaces[rank]);
}
void join(Spaces const& spaces) {
  for (std::size_t rank = 1; rank < spaces.size(); ++rank) order(spaces[rank], spaces[0]);
}

/// Launches what `enqueue` enqueues to all streams twice, as one graph, on rank 0's stream.
template <class Enqueue>
void replay_twice(Spaces const& spaces, Enqueue const& enqueue) {
  cudaStream_t const stream = spaces[0].stream();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  // The graph comes after what is in this stream, and no other.
  join(spaces);
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  fork(spaces);
  enqueue();
  join(spaces);
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
  check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
  fork(spaces);
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

/// A thread for each rank: rank 0's stream is captured, the others join it, and one launch on it is
/// a step of all ranks.
/// @param decays  with a learning rate that is halved before each step, on the device if `replay`
template <class Stage>
std::vector<float> train_group(int ranks, bool replay, bool decays) {
  Streams const streams(ranks);
  auto hosts = zero::InProcess::group(ranks);
  std::mutex mutex;
  constexpr std::size_t whole = captured_step::units * captured_step::count;
  std::vector<float> result(static_cast<std::size_t>(ranks) * whole);
  zero::run_ranks(InProcessCuda::group(streams.spaces), [&](InProcessCuda& comm) {
    // This thread's own, so that one that throws leaves nobody waiting.
    zero::InProcess host = std::move(hosts[static_cast<std::size_t>(comm.rank())]);
    auto const meet = [&] {
      zero::run(host, {.op = zero::Op::all_gather, .dtype = zero::DType::i32, .count = 0});
    };
    zero::device::MallocAllocator allocator(comm.space().device());
    auto* const decay = static_cast<float*>(allocator.allocate(sizeof(float), 256));
    float rate = decays ? 0.8f : 0.1f;
    comm.space().upload(decay, &rate, sizeof(float));
    captured_step::Trainer<InProcessCuda, Stage> trainer(comm, replay && decays ? decay : nullptr);
    auto const step = [&] {
      if (decays) rate *= 0.5f;
      // Where the trainer reads its own, this value is not used.
      trainer.step(rate);
    };
    step();
    step();
    auto const captured = [&] {
      meet();
      step();
      meet();
    };
    if (!replay) {
      step();
      step();
    } else {
      meet();
      if (comm.rank() == 0) {
        replay_twice(streams.spaces, captured);
      } else {
        captured();
      }
      meet();
    }
    CHECK(trainer.steps() == 4);
    std::vector<float> const own = trainer.parameters();
    allocator.deallocate(decay, sizeof(float), 256);
    std::lock_guard const lock(mutex);
    auto const at = static_cast<std::size_t>(comm.rank()) * whole;
    std::copy(own.begin(), own.end(), result.data() + at);
  });
  return result;
}

template <class Stage>
void check_group(int ranks, bool decays) {
  std::vector<float> const enqueued = train_group<Stage>(ranks, false, decays);
  std::vector<float> const replayed = train_group<Stage>(ranks, true, decays);
  CHECK(enqueued == replayed);
  CHECK(enqueued[0] != 0.f);
}

TEST_CASE("cuda: a step of several ranks is captured in one graph") {
  for (int const ranks : {2, 3}) {
    for (bool const decays : {false, true}) {
      check_group<zero::stage::PosG>(ranks, decays);
      check_group<zero::stage::PosGP>(ranks, decays);
    }
  }
}

}  // namespace
}  // namespace capture_test
