// Rules that measure whole tensors, over devices: the host's bits, enqueued, skipped and captured.
#include "cuda/captured_step.cuh"
#include "cuda/streams.hpp"
#include "support/standard.hpp"
#include "support/test.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/zero.hpp"

namespace norms_test {
namespace {

using zero::Lamb;
using zero::Lars;
using zero::stage::PosG;
using zero::stage::PosGP;

/// Tensors of parts of a block and of many, in more than one bucket, one of zeros whose norm is
/// none, and one that rests now and then.
std::vector<zero::Tensor> model() {
  return {{.name = "w", .shape = {4097}, .unit = 0},
          {.name = "b", .shape = {7}, .unit = 0, .weight_decay = 0.},
          {.name = "zeros", .shape = {640}, .unit = 1},
          {.name = "v", .shape = {33, 31}, .unit = 1, .learning_rate = 0.5},
          {.name = "rests", .shape = {1500}, .unit = 2}};
}
constexpr std::size_t of_zeros = 2, of_rests = 4;
constexpr long steps = 5, skipped_step = 2;
bool rests(long step) { return step % 3 == 1; }

template <class O>
void load(O& optimizer) {
  optimizer.load_parameters([&](zero::Tensor const& tensor, std::size_t first, auto out) {
    auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
    for (std::size_t i = 0; i < out.size(); ++i) {
      float const value = static_cast<float>((first + i) * 7 % 31) / 64.f - 0.2f;
      out[i] = t == of_zeros ? 0.f : value;
    }
  });
}

/// The bytes of whole parameters, and those of masters and states of a rank.
template <class Space, class O>
std::vector<std::byte> bytes_of(Space const& space, O& optimizer) {
  std::vector<std::byte> all;
  auto const add = [&](auto const& values) {
    auto const bytes = std::as_bytes(std::span(values));
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  auto const whole = optimizer.full_parameters();
  for (std::size_t t = 0; t < whole.size(); ++t) {
    std::vector<std::byte> values(whole[t].size_bytes());
    space.download(values.data(), whole[t].data(), values.size());
    add(values);
  }
  optimizer.visit_owned([&](auto const&, std::size_t, auto masters, auto const& states) {
    add(masters);
    for (auto const& state : states) add(state);
  });
  return all;
}

/// Some steps of a rank, one of which is skipped since a gradient is not finite.
template <class C, class Memory, class... Policies>
std::vector<std::byte> train(C& comm, Memory const& memory, Policies const&... policies) {
  zero::ShardedOptimizer optimizer{comm, model(), zero::Bucket{4096}, memory, policies...};
  using Wire = typename decltype(optimizer)::Wire;
  auto const space = zero::detail::space_of(comm);
  norms_test::load(optimizer);
  for (long step = 0; step < steps; ++step) {
    for (int const unit : optimizer.units_backward()) {
      auto gradients = optimizer.gradients(unit);
      std::size_t at = 0;
      for (zero::Tensor const& tensor : optimizer.tensors()) {
        if (tensor.unit != unit) continue;
        auto const out = gradients[at++];
        if (&tensor == &optimizer.tensors()[of_rests] && rests(step)) {
          optimizer.without_gradient(tensor);
          continue;
        }
        std::vector<Wire> values;
        for (std::size_t i = 0; i < out.size(); ++i) {
          auto const rank = static_cast<std::size_t>(comm.rank());
          auto const turn = static_cast<std::size_t>(step);
          std::size_t const drawn = (i * 13 + 5 * rank + 11 * turn) % 29;
          values.push_back(static_cast<Wire>((static_cast<float>(drawn) - 13.f) / 64.f));
        }
        if (step == skipped_step && comm.rank() == 0) {
          values[0] = static_cast<Wire>(std::numeric_limits<float>::infinity());
        }
        space.upload(out.data(), values.data(), values.size() * sizeof(Wire));
      }
      optimizer.reduce(std::move(gradients));
    }
    auto const report = optimizer.step({.max_norm = 1., .non_finite = zero::NonFinite::skip});
    CHECK(report.skipped == (step == skipped_step));
  }
  CHECK(optimizer.held() == optimizer.plan().memory);
  return bytes_of(space, optimizer);
}

template <class... Policies>
void check(Policies const&... policies) {
  for (int const ranks : {1, 3}) {
    CAPTURE(ranks);
    std::vector<std::vector<std::byte>> here(static_cast<std::size_t>(ranks)), there(here);
    zero::run_ranks(ranks, [&](zero::InProcess& comm) {
      here[static_cast<std::size_t>(comm.rank())] = train(comm, zero::Owned{}, policies...);
    });
    DeviceWorld::run(ranks, [&](auto& comm, auto const& allocator) {
      there[static_cast<std::size_t>(comm.rank())] =
          train(comm, zero::Owned{allocator}, policies...);
    });
    CHECK(here == there);
  }
}

TEST_CASE("cuda: LAMB and LARS have the host's bits") {
  check(PosG{}, zero::Fp32{}, Lamb{.lr = 0.01, .max_ratio = 2.});
  check(PosGP{}, zero::Mixed<zero::bf16, zero::Rest16>{}, Lars{.weight_decay = 0.1});
  check(PosG{}, zero::Bf16<zero::StochasticRounding>{}, Lamb{.lr = 0.01});
}

/// Gradients that are a word of the device in some places, and twice that in others.
struct Feed {
  float* to;
  std::size_t count;
  float const* word;
  __host__ __device__ void operator()() const {
    for (std::size_t i = 0; i < count; ++i) to[i] = i % 3 == 0 ? *word + *word : *word;
  }
};

/// What is left after some steps, each of which has a word of its own. With `replay` the first is
/// captured, and launched for each of them.
std::vector<std::byte> fed(bool replay) {
  Streams const streams(1);
  auto group = zero::InProcessCuda::group(streams.spaces);
  zero::space::Cuda const space = group[0].space();
  Array<float> const word(space, {0.f});
  zero::ShardedOptimizer optimizer{group[0],
                                   model(),
                                   PosG{},
                                   Lamb{.lr = 0.01},
                                   zero::Owned{zero::device::MallocAllocator(space.device())}};
  norms_test::load(optimizer);
  auto const enqueue = [&] {
    for (int const unit : optimizer.units_backward()) {
      auto gradients = optimizer.gradients(unit);
      for (std::size_t t = 0; t < gradients.size(); ++t) {
        space.call(Feed{gradients[t].data(), gradients[t].size(), word.data()});
      }
      optimizer.reduce(std::move(gradients));
    }
    optimizer.enqueue_step({.non_finite = zero::NonFinite::skip});
  };
  std::optional<captured_step::Graph> graph;
  if (replay) graph.emplace(space.stream(), cudaStreamCaptureModeGlobal, enqueue);
  for (float const value : {1.f, 0.25f, std::numeric_limits<float>::infinity(), 3.f}) {
    space.upload(word.data(), &value, sizeof(value));
    if (replay) {
      graph->launch();
    } else {
      enqueue();
    }
    CHECK(optimizer.report().skipped == std::isinf(value));
  }
  CHECK(optimizer.steps() == 3);
  return bytes_of(space, optimizer);
}

TEST_CASE("cuda: captured steps measure tensors anew in every launch") {
  CHECK(fed(true) == fed(false));
}

}  // namespace
}  // namespace norms_test
