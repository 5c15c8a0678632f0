/// What a device trainer is promised: nothing waits but what says so, failures are not lost,
/// skipped steps change nothing, and memory is the space's alone.
#include "contracts/loop.hpp"
#include "trapped_space.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace device_test {
namespace {

using Fp16 = zero::Mixed<zero::fp16>;
using Owned = zero::Owned<trapped::Allocator>;

constexpr int ranks = 3;

/// What every rank of a test holds.
template <class Optimizer>
struct Rank {
  explicit Rank(zero::InProcess& inner, typename Optimizer::Precision precision = {})
      : comm(inner, device, trapped::Collectives::late),
        optimizer(comm, toy::model(), precision, Owned{{&device}}, zero::Bucket{12345}) {
    optimizer.load_parameters([](zero::Tensor const&, std::size_t first, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = toy::initial_value(1, first + i);
    });
  }

  /// Adds `value` to every gradient, by uploads.
  void fill_gradients(float value) {
    for (int const unit : optimizer.units_backward()) {
      auto gradients = optimizer.gradients(unit);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        using Wire = typename Optimizer::Wire;
        std::vector<Wire> const host(gradients[i].size(), Wire(value));
        if (host.empty()) continue;
        comm.space().upload(gradients[i].data(), host.data(), host.size() * sizeof(Wire));
      }
      optimizer.reduce(std::move(gradients));
    }
  }

  /// Bits of master weights and states.
  std::vector<std::byte> snapshot() {
    std::vector<std::byte> bits;
    auto const append = [&](auto const& values) {
      auto const bytes = std::as_bytes(values);
      bits.insert(bits.end(), bytes.begin(), bytes.end());
    };
    optimizer.visit_owned(
        [&](zero::Tensor const&, std::size_t, auto const& master, auto const& states) {
          append(master);
          for (auto const& state : states) append(state);
        });
    return bits;
  }

  trapped::Device device{};
  trapped::Communicator comm;
  Optimizer optimizer;
};

/// Runs `body(inner, expect)` on every rank; `expect(holds, what)` collects what did not hold.
template <class Body>
void on_ranks(Body const& body) {
  std::string complaints;
  std::mutex mutex;
  zero::run_ranks(ranks, [&](zero::InProcess& inner) {
    body(inner, [&](bool holds, std::string const& what) {
      if (holds) return;
      std::lock_guard const lock(mutex);
      complaints += "rank " + std::to_string(inner.rank()) + ": " + what + "; ";
    });
  });
  CHECK(complaints == "");
}

template <class Stage, class Precision>
using Optimizer = zero::ShardedOptimizer<trapped::Communicator, Stage, Precision, Owned>;
using Plain = Optimizer<zero::stage::PosG, zero::Fp32>;
using Scaled = Optimizer<zero::stage::PosGP, Fp16>;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

template <class Optimizer>
std::string error_of(Optimizer& optimizer) {
  try {
    static_cast<void>(optimizer.report());
  } catch (zero::Error const& error) {
    return error.kind() == zero::ErrorKind::data ? error.message() : "another kind";
  }
  return "";
}

}  // namespace

TEST_CASE("the memory of the test's device cannot be read by the host") {
  trapped::Device device;
  void* const memory = device.allocate(64, 64);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  CHECK(::write(ends[1], memory, 1) == -1);
  CHECK(errno == EFAULT);
  ::close(ends[0]);
  ::close(ends[1]);
  int host = 0;
  CHECK_THROWS_AS(trapped::Space(device).zero(&host, sizeof(host)), std::logic_error);
}

TEST_CASE("queued steps wait for nothing; each question waits once, and once only") {
  on_ranks([](zero::InProcess& inner, auto const& expect) {
    Rank<Scaled> rank(inner, {.loss_scale = {.initial = 8.f, .growth_interval = 2}});
    auto const before = rank.device.downloads;
    for (int step = 0; step < 4; ++step) {
      rank.fill_gradients(0.5f);
      rank.optimizer.enqueue_step({.max_norm = 1.});
    }
    expect(rank.device.downloads == before, "a queued step brought something to the host");
    expect(rank.optimizer.steps() == 4, "steps");
    expect(rank.device.downloads == before + 1, "one question, one download");
    expect(rank.optimizer.loss_scale() == 32.f, "loss scale");
    auto const report = rank.optimizer.report();
    expect(report.step == 4 && !report.skipped && report.loss_scale == 16.f, "report");
    expect(report.clip_coefficient < 1., "clipped");
    expect(rank.device.downloads == before + 1, "nothing new to fetch");
  });
}

TEST_CASE("a device's values pass in large pieces, each of which the host waits for") {
  on_ranks([](zero::InProcess& inner, auto const& expect) {
    constexpr std::size_t count = 900'000;
    trapped::Device device;
    trapped::Communicator comm(inner, device, trapped::Collectives::late);
    Optimizer<zero::stage::PosGP, zero::Fp32> optimizer{
        comm, {{.name = "w", .shape = {count}}}, Owned{{&device}}};
    std::size_t asked = 0;
    std::size_t smallest = count;
    optimizer.load_parameters([&](zero::Tensor const&, std::size_t first, std::span<float> out) {
      ++asked;
      smallest = out.size() < smallest ? out.size() : smallest;
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(first + i);
    });
    // A third of the model is a piece and a rest of more than 32 thousand elements; this rank's,
    // and the next one's.
    expect(asked == 4 && smallest > 32'000, "pieces that were asked for");
    auto const before = device.downloads;
    std::size_t visited = 0;
    bool right = true;
    optimizer.visit_owned(
        [&](zero::Tensor const&, std::size_t first, auto const& master, auto const& states) {
          visited += master.size();
          for (std::size_t i = 0; i < master.size(); ++i) {
            right = right && master[i] == static_cast<float>(first + i);
            for (auto const& state : states) right = right && state[i] == 0.f;
          }
        });
    expect(visited > 299'000 && right, "what was visited");
    expect(device.downloads == before + 2 * 3, "downloads of two pieces of three arrays");
  });
}

TEST_CASE("a step that is skipped on a device changes no bit there") {
  on_ranks([](zero::InProcess& inner, auto const& expect) {
    Rank<Scaled> rank(inner, {.loss_scale = {.initial = 8.f}});
    rank.fill_gradients(0.5f);
    rank.optimizer.enqueue_step();
    auto const before = rank.snapshot();
    rank.fill_gradients(inner.rank() == 1 ? nan : 0.5f);
    rank.optimizer.enqueue_step();
    expect(rank.optimizer.report().skipped, "skipped");
    expect(rank.snapshot() == before, "something changed");
    expect(rank.optimizer.loss_scale() == 4.f, "the scale backs off");
    expect(rank.optimizer.steps() == 1, "step count");
    rank.fill_gradients(0.5f);
    rank.optimizer.enqueue_step();
    expect(rank.snapshot() != before, "training goes on");
  });
}

TEST_CASE("a failure waits for the report, and no step after it counts until then") {
  on_ranks([](zero::InProcess& inner, auto const& expect) {
    Rank<Plain> rank(inner);
    rank.fill_gradients(0.5f);
    rank.optimizer.enqueue_step();
    auto const before = rank.snapshot();
    rank.fill_gradients(inner.rank() == 2 ? nan : 0.5f);
    rank.optimizer.enqueue_step();
    rank.fill_gradients(0.5f);
    rank.optimizer.enqueue_step();
    expect(rank.snapshot() == before, "trained on after a failure");
    expect(error_of(rank.optimizer) == "gradients are not finite", "the failure");
    expect(error_of(rank.optimizer) == "", "told once");
    expect(rank.optimizer.report().skipped && rank.optimizer.steps() == 1, "skipped meanwhile");
    rank.fill_gradients(0.5f);
    rank.optimizer.enqueue_step();
    expect(error_of(rank.optimizer) == "" && rank.optimizer.steps() == 2, "training goes on");
  });
}

TEST_CASE("a loss scale that can go no lower fails on the device, without an answer to the host") {
  on_ranks([](zero::InProcess& inner, auto const& expect) {
    Rank<Scaled> rank(inner, {.loss_scale = {.initial = 2.f, .patience = 3}});
    auto const before = rank.snapshot();
    auto const enqueue = [&](bool bad) {
      rank.fill_gradients(bad && inner.rank() == 1 ? nan : 0.5f);
      rank.optimizer.enqueue_step();
    };
    auto const exhausted = [&] {
      return error_of(rank.optimizer).find("at the minimum loss scale") != std::string::npos;
    };
    auto const downloads = rank.device.downloads;
    for (int i = 0; i < 1 + 2; ++i) enqueue(true);
    expect(rank.device.downloads == downloads, "a queued step brought something to the host");
    expect(error_of(rank.optimizer) == "" && rank.optimizer.report().skipped, "only skipped yet");
    // Nothing but the first of these counts, since it fails.
    enqueue(true);
    enqueue(false);
    enqueue(true);
    // A rank that reports earlier than others does not go ahead.
    if (inner.rank() == 0) expect(exhausted(), "the failure");
    enqueue(false);
    expect(rank.snapshot() == before, "trained on after a failure");
    if (inner.rank() != 0) expect(exhausted(), "the failure");
    expect(error_of(rank.optimizer) == "", "told once");
    expect(rank.optimizer.loss_scale() == 1.f, "the minimum");
    for (int i = 0; i < 2; ++i) enqueue(true);
    expect(error_of(rank.optimizer) == "", "counted anew after the report");
    enqueue(false);
    expect(rank.optimizer.report().step == 1, "training goes on");
    for (int i = 0; i < 2; ++i) enqueue(true);
    expect(error_of(rank.optimizer) == "", "counted anew after a clean step");
    enqueue(true);
    expect(exhausted(), "the next failure");
  });
}

TEST_CASE("ranks that report at different times still skip the same steps") {
  on_ranks([](zero::InProcess& inner, auto const& expect) {
    Rank<Plain> rank(inner);
    rank.fill_gradients(nan);
    rank.optimizer.enqueue_step();
    if (inner.rank() == 0) expect(error_of(rank.optimizer) != "", "the failure");
    auto const before = rank.snapshot();
    rank.fill_gradients(0.5f);
    rank.optimizer.enqueue_step();
    expect(rank.snapshot() == before, "a rank went ahead");
    if (inner.rank() != 0) expect(error_of(rank.optimizer) != "", "the failure");
    rank.fill_gradients(0.5f);
    expect(rank.optimizer.step().step == 1, "all go on together");
  });
}

TEST_CASE("step() and grad_norm() on a device fail as on the host") {
  on_ranks([](zero::InProcess& inner, auto const& expect) {
    Rank<Plain> rank(inner);
    auto const before = rank.snapshot();
    rank.fill_gradients(inner.rank() == 1 ? nan : 0.5f);
    std::string message;
    try {
      expect(rank.optimizer.grad_norm() == std::numeric_limits<double>::infinity(), "norm");
      rank.optimizer.step();
    } catch (zero::Error const& error) {
      message = error.message();
    }
    expect(message ==
               "gradients are not finite: first 'wte' in the share of rank 0, 'wpe' in the share "
               "of rank 1 2",
           "message: " + message);
    expect(rank.snapshot() == before, "something changed");
    rank.optimizer.micro_step({.weight = 0.});
    rank.fill_gradients(0.5f);
    message.clear();
    try {
      rank.optimizer.step();
    } catch (zero::Error const& error) {
      message = error.message();
    }
    expect(message == "all micro-batches of this step have weight 0", "message: " + message);
    expect(rank.snapshot() == before, "something changed");
  });
}

TEST_CASE("enqueue_step over host memory is a step whose report comes later") {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    contracts::Optimizer<zero::stage::PosG, zero::Fp32> now{comm, toy::model()};
    contracts::Optimizer<zero::stage::PosG, zero::Fp32> later{comm, toy::model()};
    now.adopt_parameters();
    later.adopt_parameters();
    for (int step = 0; step < 3; ++step) {
      for (auto* const each : {&now, &later}) {
        for (int const unit : each->units_backward()) {
          auto gradients = each->gradients(unit);
          for (std::size_t i = 0; i < gradients.size(); ++i) {
            for (float& g : gradients[i]) g += step == 1 && comm.rank() == 0 ? nan : 0.25f;
          }
          each->reduce(std::move(gradients));
        }
      }
      auto const report = now.step({.non_finite = zero::NonFinite::skip});
      later.enqueue_step({.non_finite = zero::NonFinite::skip});
      auto const same = later.report();
      bool const equal = report.step == same.step && report.skipped == same.skipped &&
                         report.grad_norm == same.grad_norm && report.weight == same.weight;
      expect(equal, "the reports differ");
    }
    expect(now.steps() == 2 && later.steps() == 2, "step count");
  });
}

}  // namespace device_test
