// Whole steps over threads as ranks, captured in a CUDA graph and replayed.
#include "cuda/captured_step.cuh"
#include "cuda/streams.hpp"
#include "support/refusal.hpp"
#include "support/standard.hpp"
#include "zero/comm/in_process.hpp"

namespace capture_test {
namespace {

using captured_step::fork;
using captured_step::Graph;
using captured_step::join;
using captured_step::Spaces;
using zero::InProcessCuda;
using zero::device::check;

/// What `train(replay)` gives is the same, whether steps are enqueued call by call or replayed.
template <class Train>
auto check_same(Train const& train) {
  auto const enqueued = train(false);
  CHECK(train(true) == enqueued);
  return enqueued;
}

template <class Stage>
void check_one_rank() {
  auto const result = check_same([](bool replay) {
    Streams const streams(1);
    auto group = InProcessCuda::group(streams.spaces);
    return captured_step::train<Stage>(group[0], replay);
  });
  CHECK(result[0] != 0.f);
}

TEST_CASE("cuda: a captured step trains as one that was enqueued call by call") {
  check_one_rank<zero::stage::PosG>();
  check_one_rank<zero::stage::PosGP>();
}

constexpr std::size_t fed_count = 600;
/// As many as a tensor has at least whose states are of 8 bits.
constexpr std::size_t coded_count = 4096;

/// Gradients that are one word of the device, times the loss scale, so that every launch of a graph
/// may have others.
template <class Wire, std::size_t count>
struct Feed {
  Wire* to;
  float const* word;
  float const* loss_scale;
  __host__ __device__ void operator()() const {
    for (std::size_t i = 0; i < count; ++i) to[i] = Wire(*word * *loss_scale);
  }
};

/// A trainer whose step, with `replay`, is captured once and launched whenever it is called; its
/// learning rate then lies on the device.
template <class Precision, class Rule = zero::AdamW, std::size_t count = fed_count>
class Fed {
 public:
  /// @param own  a learning rate of the tensor's own, unless below 0
  explicit Fed(Precision const& precision, bool replay, float own = -1.f)
      : streams_(1),
        group_(InProcessCuda::group(streams_.spaces)),
        word_(space(), {0.f}),
        rate_(space(), {0.f}),
        rate_address_(replay ? rate_.data() : nullptr),
        optimizer_{group_[0],
                   std::vector<zero::Tensor>{{.name = "w", .shape = {count}}},
                   precision,
                   Rule{.lr = 0.1f},
                   zero::Owned{zero::device::MallocAllocator(space().device())}} {
    optimizer_.load_parameters([](zero::Tensor const&, std::size_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 0.5f);
    });
    if (own >= 0.f) optimizer_.set_lr("w", own);
    train(1.f);
    if (!replay) return;
    graph_.emplace(space().stream(), cudaStreamCaptureModeGlobal, [this] { enqueue(); });
  }
  void train(float gradient, float rate = 0.1f) {
    space().upload(word_.data(), &gradient, sizeof(float));
    space().upload(rate_.data(), &rate, sizeof(float));
    options_ = {.learning_rate = rate, .learning_rate_address = rate_address_};
    if (graph_) {
      graph_->launch();
    } else {
      enqueue();
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
  [[nodiscard]] std::vector<float> masters() {
    std::vector<float> all;
    optimizer_.visit_owned(
        [&](zero::Tensor const&, std::size_t, std::span<float const> values, auto const&) {
          all.insert(all.end(), values.begin(), values.end());
        });
    return all;
  }
  [[nodiscard]] auto& optimizer() { return optimizer_; }

 private:
  using Optimizer = decltype(zero::ShardedOptimizer{std::declval<InProcessCuda&>(),
                                                    std::vector<zero::Tensor>{},
                                                    Precision{},
                                                    Rule{},
                                                    zero::Owned{zero::device::MallocAllocator()}});

  [[nodiscard]] zero::space::Cuda space() const { return group_[0].space(); }
  void enqueue() {
    auto gradients = optimizer_.gradients(0);
    space().call(Feed<typename Precision::Wire, count>{
        gradients[0].data(), word_.data(), optimizer_.loss_scale_address()});
    optimizer_.reduce(std::move(gradients));
    optimizer_.enqueue_step(options_);
  }

  Streams streams_;
  std::vector<InProcessCuda> group_;
  Array<float> word_;
  Array<float> rate_;
  float* rate_address_;
  zero::StepOptions options_;
  Optimizer optimizer_;
  std::optional<Graph> graph_;
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
    CHECK(refusal([&] { static_cast<void>(optimizer.report()); }, zero::ErrorKind::data) ==
          "gradients are not finite");
    fed.train(1.f);
    CHECK(optimizer.report().step == 2);
    CHECK(fed.master() != before);
  }
}

TEST_CASE("cuda: a captured step that overflows is skipped and halves the loss scale") {
  using Fp16 = zero::Mixed<zero::fp16>;
  check_same([](bool replay) {
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
    return fed.master();
  });
}

TEST_CASE("cuda: a captured step reads the learning rate of each launch, or keeps a tensor's own") {
  for (float const own : {-1.f, 0.25f}) {
    CAPTURE(own);
    auto const masters = check_same([own](bool replay) {
      Fed<zero::Fp32> fed(zero::Fp32{}, replay, own);
      // What is said after the capture is for steps that are enqueued or captured from then on.
      if (replay && own >= 0.f) fed.optimizer().set_lr("w", 0.75f);
      std::vector<float> result;
      for (float const rate : {0.1f, 0.03f, 0.f, 0.7f}) {
        fed.train(1.f, rate);
        result.push_back(fed.master());
      }
      return result;
    });
    CHECK(masters[0] != masters[1]);
    CHECK((masters[1] == masters[2]) == (own < 0.f));
    CHECK(masters[2] != masters[3]);
  }
}

template <class Fed>
void check_random_bits() {
  auto const masters = check_same([](bool replay) {
    Fed fed({}, replay);
    for (int step = 0; step < 3; ++step) fed.train(1.f);
    return fed.masters();
  });
  // They differ by their random bits alone.
  CHECK(std::set<float>(masters.begin(), masters.end()).size() > 1);
}

TEST_CASE("cuda: a captured step rounds with the random bits of each launch") {
  check_random_bits<Fed<zero::Mixed<zero::bf16, zero::Rest8>>>();
  check_random_bits<Fed<zero::Fp32, zero::AdamW8bit, coded_count>>();
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
    std::string message;
    Graph const graph(space.stream(), cudaStreamCaptureModeGlobal, [&] {
      message = refusal([&] { optimizer.enqueue_step(); });
    });
    CHECK(message == std::string(compared ? ""
                                          : "ranks cannot compare what they start from while a "
                                            "step is captured; call check_parameters() before"));
  }
}

/// Launches what `enqueue` enqueues to all streams twice, as one graph, on rank 0's stream.
template <class Enqueue>
void replay_twice(Spaces const& spaces, Enqueue const& enqueue) {
  // The graph comes after what is in this stream, and no other.
  join(spaces);
  Graph const graph(spaces[0].stream(), cudaStreamCaptureModeRelaxed, [&] {
    fork(spaces);
    enqueue();
    join(spaces);
  });
  graph.launch();
  graph.launch();
  fork(spaces);
  check(cudaStreamSynchronize(spaces[0].stream()), "cudaStreamSynchronize");
}

/// A thread for each rank: rank 0's stream is captured, the others join it, and one launch on it is
/// a step of all ranks.
/// @param decays  with a learning rate that is halved before each step, on the device if `replay`
template <class Stage>
std::vector<std::vector<float>> train_group(int ranks, bool replay, bool decays) {
  Streams const streams(ranks);
  auto hosts = zero::InProcess::group(ranks);
  std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
  zero::run_ranks(InProcessCuda::group(streams.spaces), [&](InProcessCuda& comm) {
    // This thread's own, so that one that throws leaves nobody waiting.
    zero::InProcess host = std::move(hosts[static_cast<std::size_t>(comm.rank())]);
    auto const meet = [&] {
      zero::run(host, {.op = zero::Op::all_gather, .dtype = zero::DType::i32, .count = 0});
    };
    float rate = decays ? 0.8f : 0.1f;
    Array<float> const decay(comm.space(), {rate});
    captured_step::Trainer<InProcessCuda, Stage> trainer(comm,
                                                         replay && decays ? decay.data() : nullptr);
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
        auto const capture = comm.capture();
        replay_twice(streams.spaces, captured);
      } else {
        captured();
      }
      meet();
    }
    CHECK(trainer.steps() == 4);
    results[static_cast<std::size_t>(comm.rank())] = trainer.parameters();
  });
  return results;
}

template <class Stage>
void check_group(int ranks, bool decays) {
  auto const results =
      check_same([&](bool replay) { return train_group<Stage>(ranks, replay, decays); });
  CHECK(results[0][0] != 0.f);
}

TEST_CASE("cuda: a step of several ranks is captured in one graph") {
  for (int const ranks : {2, 3}) {
    for (bool const decays : {false, true}) {
      check_group<zero::stage::PosG>(ranks, decays);
      check_group<zero::stage::PosGP>(ranks, decays);
    }
  }
}

TEST_CASE("cuda: a collective of ranks that are captured together without turns is refused") {
  constexpr int ranks = 2;
  Streams const streams(ranks);
  auto hosts = zero::InProcess::group(ranks);
  zero::run_ranks(InProcessCuda::group(streams.spaces), [&](InProcessCuda& comm) {
    zero::InProcess host = std::move(hosts[static_cast<std::size_t>(comm.rank())]);
    auto const meet = [&] {
      zero::run(host, {.op = zero::Op::all_gather, .dtype = zero::DType::i32, .count = 0});
    };
    Array<float> const all(comm.space(), std::vector<float>(ranks));
    auto const gather = [&] {
      zero::run(comm,
                {.op = zero::Op::all_gather,
                 .count = 1,
                 .send = all.data() + comm.rank(),
                 .recv = all.data()});
    };
    gather();  // the first loads kernels
    std::string message;
    auto const captured = [&] {
      meet();
      message = refusal(gather);
      meet();
    };
    for (bool const turns : {false, true, false}) {
      CAPTURE(turns);
      meet();
      auto const capture = [&] {
        join(streams.spaces);
        Graph const graph(streams.handles[0], cudaStreamCaptureModeRelaxed, [&] {
          fork(streams.spaces);
          captured();
          join(streams.spaces);
        });
      };
      if (comm.rank() != 0) {
        captured();
      } else if (turns) {
        auto const held = comm.capture();
        capture();
      } else {
        capture();
      }
      meet();
      bool const refused = message.find("comm.capture()") != std::string::npos;
      CHECK((turns ? message.empty() : refused));
      gather();  // the group goes on
    }
  });
}

}  // namespace
}  // namespace capture_test
