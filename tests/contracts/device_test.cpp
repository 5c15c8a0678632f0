/// What a device trainer is promised: nothing waits but what says so, failures are not lost,
/// skipped steps change nothing, and memory is the space's alone.
#include "contracts/ranks.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

#include <unistd.h>

namespace device_test {
namespace {

using Fp16 = zero::Mixed<zero::fp16>;

constexpr int ranks = 3;

using Plain = contracts::OnDevice<zero::stage::PosG, zero::Fp32>;
/// What every rank of a test holds, with a loss scale.
struct Scaled : contracts::OnDevice<zero::stage::PosGP, Fp16> {
  Scaled(zero::InProcess& inner, Fp16 const& precision)
      : OnDevice(inner, toy::model(), precision) {}
};
using contracts::constant_pass;
using contracts::owned_bits;

template <class Body>
void on_ranks(Body const& body) {
  contracts::on_ranks(ranks, body);
}

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

template <class Optimizer>
std::string error_of(Optimizer& optimizer) {
  return refusal([&] { return optimizer.report(); }, zero::ErrorKind::data);
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
    Scaled rank(inner, {.loss_scale = {.initial = 8.f, .growth_interval = 2}});
    auto const before = rank.device.downloads;
    for (int step = 0; step < 4; ++step) {
      constant_pass(rank, 0.5f);
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
    contracts::OnDevice<zero::stage::PosGP, zero::Fp32> rank(inner,
                                                             {{.name = "w", .shape = {count}}});
    auto& [device, comm, optimizer] = rank;
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
    Scaled rank(inner, {.loss_scale = {.initial = 8.f}});
    constant_pass(rank, 0.5f);
    rank.optimizer.enqueue_step();
    auto const before = owned_bits(rank.optimizer);
    constant_pass(rank, inner.rank() == 1 ? nan : 0.5f);
    rank.optimizer.enqueue_step();
    expect(rank.optimizer.report().skipped, "skipped");
    expect(owned_bits(rank.optimizer) == before, "something changed");
    expect(rank.optimizer.loss_scale() == 4.f, "the scale backs off");
    expect(rank.optimizer.steps() == 1, "step count");
    constant_pass(rank, 0.5f);
    rank.optimizer.enqueue_step();
    expect(owned_bits(rank.optimizer) != before, "training goes on");
  });
}

TEST_CASE("a failure waits for the report, and no step after it counts until then") {
  on_ranks([](zero::InProcess& inner, auto const& expect) {
    Plain rank(inner, toy::model());
    constant_pass(rank, 0.5f);
    rank.optimizer.enqueue_step();
    auto const before = owned_bits(rank.optimizer);
    constant_pass(rank, inner.rank() == 2 ? nan : 0.5f);
    rank.optimizer.enqueue_step();
    constant_pass(rank, 0.5f);
    rank.optimizer.enqueue_step();
    expect(owned_bits(rank.optimizer) == before, "trained on after a failure");
    expect(error_of(rank.optimizer) == "gradients are not finite", "the failure");
    expect(error_of(rank.optimizer) == "", "told once");
    expect(rank.optimizer.report().skipped && rank.optimizer.steps() == 1, "skipped meanwhile");
    constant_pass(rank, 0.5f);
    rank.optimizer.enqueue_step();
    expect(error_of(rank.optimizer) == "" && rank.optimizer.steps() == 2, "training goes on");
  });
}

TEST_CASE("a loss scale that can go no lower fails on the device, without an answer to the host") {
  on_ranks([](zero::InProcess& inner, auto const& expect) {
    Scaled rank(inner, {.loss_scale = {.initial = 2.f, .patience = 3}});
    auto const before = owned_bits(rank.optimizer);
    auto const enqueue = [&](bool bad) {
      constant_pass(rank, bad && inner.rank() == 1 ? nan : 0.5f);
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
    expect(owned_bits(rank.optimizer) == before, "trained on after a failure");
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
    Plain rank(inner, toy::model());
    constant_pass(rank, nan);
    rank.optimizer.enqueue_step();
    if (inner.rank() == 0) expect(error_of(rank.optimizer) != "", "the failure");
    auto const before = owned_bits(rank.optimizer);
    constant_pass(rank, 0.5f);
    rank.optimizer.enqueue_step();
    expect(owned_bits(rank.optimizer) == before, "a rank went ahead");
    if (inner.rank() != 0) expect(error_of(rank.optimizer) != "", "the failure");
    constant_pass(rank, 0.5f);
    expect(rank.optimizer.step().step == 1, "all go on together");
  });
}

TEST_CASE("step() and grad_norm() on a device fail as on the host") {
  on_ranks([](zero::InProcess& inner, auto const& expect) {
    Plain rank(inner, toy::model(), {}, zero::Bucket{12345});
    auto const before = owned_bits(rank.optimizer);
    constant_pass(rank, inner.rank() == 1 ? nan : 0.5f);
    std::string message = refusal(
        [&] {
          double const norm = rank.optimizer.grad_norm();
          expect(norm == std::numeric_limits<double>::infinity(), "norm");
          rank.optimizer.step();
        },
        zero::ErrorKind::data);
    expect(
        message ==
            "gradients are not finite: first element 0 of 'wte', which rank 0 owns; also in 'wpe'",
        "message: " + message);
    expect(owned_bits(rank.optimizer) == before, "something changed");
    rank.optimizer.micro_step({.weight = 0.});
    constant_pass(rank, 0.5f);
    message = refusal([&] { rank.optimizer.step(); }, zero::ErrorKind::data);
    expect(message == "all micro-batches of this step have weight 0", "message: " + message);
    expect(owned_bits(rank.optimizer) == before, "something changed");
  });
}

}  // namespace device_test
