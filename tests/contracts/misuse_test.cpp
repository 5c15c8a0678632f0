/// Wrong calls end in words; calls in an unusual order do not end at all.
#include "contracts/loop.hpp"
#include "contracts/recording.hpp"
#include "support/refusal.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace misuse_test {
namespace {

using zero::ErrorKind;
using Bf16 = zero::Mixed<zero::bf16>;

using contracts::Optimizer;

using Pos = Optimizer<zero::stage::Pos, zero::Fp32>;
using PosG = Optimizer<zero::stage::PosG, zero::Fp32>;
using PosGP = Optimizer<zero::stage::PosGP, Bf16>;
using Full = Optimizer<zero::stage::PosG, zero::Fp32, zero::AccumulateFull>;

/// One rank of its own.
template <class O>
struct Alone {
  std::vector<zero::InProcess> handles = zero::InProcess::group(1);
  O optimizer;

  template <class... Values>
  explicit Alone(std::vector<zero::Tensor> tensors, Values const&... values)
      : optimizer(handles[0], std::move(tensors), values...) {
    contracts::load(optimizer);
  }
};

/// Three units of two tensors: w<unit> and b<unit>.
std::vector<zero::Tensor> small_model(int units = 3) {
  std::vector<zero::Tensor> tensors;
  for (int unit = 0; unit < units; ++unit) {
    auto const number = std::to_string(unit);
    tensors.push_back({.name = "w" + number, .shape = {700}, .unit = unit});
    tensors.push_back({.name = "b" + number, .shape = {9}, .unit = unit});
  }
  return tensors;
}

constexpr zero::Bucket tiny{1};

TEST_CASE("units and tensors that do not exist") {
  Alone<PosG> alone(small_model());
  auto& optimizer = alone.optimizer;
  CHECK(refusal([&] { static_cast<void>(optimizer.parameters(3)); }) ==
        "there is no unit 3; units are [0, 3)");
  CHECK(refusal([&] { static_cast<void>(optimizer.gradients(-1)); }) ==
        "there is no unit -1; units are [0, 3)");
  CHECK(refusal([&] { static_cast<void>(optimizer.parameter(6)); }) ==
        "there is no tensor 6; 6 are described");
  auto const weights = optimizer.parameters(1);
  auto const gradients = optimizer.gradients(1);
  CHECK(weights["w1"].size() == 700);
  CHECK(gradients["b1"].size() == 9);
  CHECK(refusal([&] { static_cast<void>(weights["w2"]); }) == "unit 1 has no tensor 'w2'");
  CHECK(refusal([&] { static_cast<void>(gradients["W1"]); }) == "unit 1 has no tensor 'W1'");
  CHECK(refusal([&] { static_cast<void>(weights[2]); }) ==
        "unit 1 has 2 tensors, there is no number 2");
  CHECK(refusal([&] { static_cast<void>(gradients[2]); }) ==
        "unit 1 has 2 tensors, there is no number 2");

  Alone<Full> full(small_model());
  CHECK(full.optimizer.gradient(5).size() == 9);
  CHECK(refusal([&] { static_cast<void>(full.optimizer.gradient(6)); }) ==
        "there is no tensor 6; 6 are described");
}

TEST_CASE("gradients that were reduced, given away or come too late") {
  Alone<PosG> alone(small_model());
  auto& optimizer = alone.optimizer;
  {
    auto first = optimizer.gradients(2);
    auto second = std::move(first);
    std::string const spent = "gradients are used after they were given to reduce()";
    // This is the misuse.
    CHECK(refusal([&] { static_cast<void>(first[0]); }) == spent);
    CHECK(refusal([&] { optimizer.reduce(std::move(first)); }) == spent);
    optimizer.reduce(std::move(second));
    CHECK(refusal([&] { static_cast<void>(second["w2"]); }) == spent);
    CHECK(refusal([&] { optimizer.reduce(std::move(second)); }) == spent);
  }
  std::string const again =
      "unit 2 was already reduced in this micro-step; call micro_step() before the next "
      "micro-batch";
  CHECK(refusal([&] { static_cast<void>(optimizer.gradients(2)); }) == again);
  auto one = optimizer.gradients(1);
  auto two = optimizer.gradients(1);
  optimizer.reduce(std::move(one));
  CHECK(refusal([&] { optimizer.reduce(std::move(two)); }).starts_with("unit 1 was already"));
  optimizer.reduce_all();
  CHECK(refusal([&] { static_cast<void>(optimizer.gradients(0)); }) ==
        "unit 0 is asked for after the gradients of this step were reduced; call step() or "
        "discard_gradients() first");
  CHECK(optimizer.step().step == 1);
  optimizer.reduce(optimizer.gradients(2));
  optimizer.discard_gradients();
  optimizer.reduce(optimizer.gradients(2));
  CHECK(optimizer.step().step == 2);
}

constexpr char const* ended =
    " is used through gradients that ended with their step or micro-step, or in reduce_all() or "
    "grad_norm(); ask for them again";

/// A guard of unit 1 and of the unit that shares its bucket, used after `ends(optimizer)`.
template <class O, class Ends>
void check_ended(Ends const& ends) {
  for (zero::Bucket const bucket : {tiny, zero::Bucket{}}) {
    CAPTURE(bucket.bytes);
    Alone<O> alone(small_model(), bucket);
    auto& optimizer = alone.optimizer;
    if constexpr (std::is_same_v<O, Full>) optimizer.micro_step();
    auto one = optimizer.gradients(1);
    auto const two = optimizer.gradients(2);
    ends(optimizer);
    CHECK(refusal([&] { static_cast<void>(one["w1"]); }) == std::string("unit 1") + ended);
    CHECK(refusal([&] { static_cast<void>(two[0]); }) == std::string("unit 2") + ended);
    CHECK(refusal([&] { optimizer.reduce(std::move(one)); }) == std::string("unit 1") + ended);
    optimizer.discard_gradients();
    optimizer.gradients(1)["w1"][3] = typename O::Wire(2.f);
    CHECK(optimizer.grad_norm() == 2.);
  }
}

TEST_CASE_TEMPLATE("a guard of gradients ends where they lose their memory", O, PosG, PosGP, Full) {
  check_ended<O>([](O& optimizer) { optimizer.step(); });
  check_ended<O>([](O& optimizer) { optimizer.discard_gradients(); });
  check_ended<O>([](O& optimizer) { optimizer.reduce_all(); });
  check_ended<O>([](O& optimizer) { static_cast<void>(optimizer.grad_norm()); });
}

TEST_CASE("a guard of gradients ends with its micro-step") {
  using Shard = Optimizer<zero::stage::PosG, zero::Fp32, zero::AccumulateShard>;
  check_ended<Full>([](Full& optimizer) { optimizer.micro_step(); });
  Alone<Shard> alone(small_model());
  alone.optimizer.micro_step();
  auto const one = alone.optimizer.gradients(1);
  alone.optimizer.micro_step();
  CHECK(refusal([&] { static_cast<void>(one[0]); }) == std::string("unit 1") + ended);
}

TEST_CASE("a second guard of a unit that was reduced reaches nothing") {
  for (zero::Bucket const bucket : {tiny, zero::Bucket{}}) {
    Alone<PosG> alone(small_model(), bucket);
    auto& optimizer = alone.optimizer;
    for (int const unit : optimizer.units_backward()) {
      auto first = optimizer.gradients(unit);
      auto const second = optimizer.gradients(unit);
      optimizer.reduce(std::move(first));
      CHECK(refusal([&] { static_cast<void>(second[0]); }) ==
            "unit " + std::to_string(unit) +
                " was already reduced in this micro-step; call micro_step() before the next "
                "micro-batch");
    }
  }
}

TEST_CASE("gradients of another optimizer are refused, and stay what they are") {
  Alone<PosG> a(small_model());
  Alone<PosG> b(small_model(9));
  auto gradients = b.optimizer.gradients(7);
  CHECK(refusal([&] { a.optimizer.reduce(std::move(gradients)); }) ==
        "reduce() is given gradients of another optimizer");
  // A refused guard was not moved from.
  b.optimizer.reduce(std::move(gradients));
  CHECK(b.optimizer.step().step == 1);
}

TEST_CASE_TEMPLATE(
    "what replaces parameters is refused while somebody reads them", O, Pos, PosG, PosGP) {
  Alone<O> alone(small_model());
  auto& optimizer = alone.optimizer;
  auto const values = [](zero::Tensor const&, std::size_t, std::span<float> out) {
    std::fill(out.begin(), out.end(), 5.f);
  };
  auto const fill = [](auto const&... /*what is owned*/) {};
  auto const before = contracts::snapshot(optimizer);
  {
    auto const guard = optimizer.parameters(1);
    float const first = static_cast<float>(guard[0][0]);
    auto const in_use = [](std::string const& call) {
      return call + "() while the parameters of unit 1 are in use";
    };
    CHECK(refusal([&] { optimizer.load_parameters(values); }) == in_use("load_parameters"));
    CHECK(refusal([&] { optimizer.broadcast_parameters(values); }) ==
          in_use("broadcast_parameters"));
    if constexpr (requires { optimizer.broadcast_parameters(); }) {
      CHECK(refusal([&] { optimizer.broadcast_parameters(); }) == in_use("broadcast_parameters"));
    }
    CHECK(refusal([&] { optimizer.adopt_parameters(); }) == in_use("adopt_parameters"));
    CHECK(refusal([&] { optimizer.fill_owned(fill); }) == in_use("fill_owned"));
    CHECK(static_cast<float>(guard[0][0]) == first);
  }
  CHECK(contracts::snapshot(optimizer) == before);
  optimizer.load_parameters(values);
  auto const guard = optimizer.parameters(1);
  CHECK(static_cast<float>(guard[0][0]) == 5.f);
}

TEST_CASE("one rank that reads while parameters are replaced ends the call on all") {
  std::vector<std::string> said(2);
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    PosGP optimizer{comm, small_model()};
    contracts::load(optimizer);
    std::optional<decltype(optimizer.parameters(0))> guard;
    try {
      // Gathering is collective; the guard of rank 0 alone lives on. Rank 0 may have ended the
      // group before rank 1 has seen that it gathered.
      guard.emplace(optimizer.parameters(0));
      if (comm.rank() == 1) guard.reset();
      contracts::load(optimizer);
    } catch (zero::Error const& error) {
      said[static_cast<std::size_t>(comm.rank())] = error.what();
      guard.reset();
      if (comm.rank() == 0) comm.report_failure(error.what());
    }
  });
  for (std::string const& words : said) {
    CHECK(words.find("load_parameters() while the parameters of unit 0 are in use") !=
          std::string::npos);
  }
}

TEST_CASE("a guard of parameters that was moved from holds nothing") {
  Alone<PosGP> alone(small_model());
  auto first = alone.optimizer.parameters(1);
  auto const second = std::move(first);
  // This is the misuse.
  CHECK(refusal([&] { static_cast<void>(first["w1"]); }) ==
        "parameters are used after they were moved elsewhere");
  CHECK(second["w1"].size() == 700);
}

/// As C has it: reads its weights, and forgets to say so.
float sum_of(float* weights, int count) {
  float sum = 0.f;
  for (int i = 0; i < count; ++i) sum += weights[i];
  return sum;
}

using Whole = Optimizer<zero::stage::PosGP, zero::Fp32>;

TEST_CASE_TEMPLATE("a C kernel reads parameters through the pointer that it takes", O, Pos, Whole) {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    O optimizer{comm, {{.name = "a", .shape = {3}}, {.name = "b", .shape = {700}}}};
    optimizer.load_parameters([](zero::Tensor const& tensor, std::size_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), tensor.name == "a" ? 0.5f : 2.f);
    });
    auto const w = optimizer.parameters(0);
    CHECK(w.data("b") == w["b"].data());
    CHECK(sum_of(w.data(0), 3) == 1.5f);
    CHECK(sum_of(w.data("b"), 700) == 1400.f);
    CHECK(refusal([&] { static_cast<void>(w.data("c")); }) == "unit 0 has no tensor 'c'");
  });
}

TEST_CASE("a guard that is dropped leaves what was added where it is") {
  Alone<PosG> alone(small_model());
  auto& optimizer = alone.optimizer;
  optimizer.gradients(1)["w1"][3] += 2.f;
  optimizer.gradients(1)["w1"][3] += 1.f;
  optimizer.reduce(optimizer.gradients(1));
  CHECK(optimizer.grad_norm() == 3.);
}

TEST_CASE("micro-steps out of order") {
  std::string const weight = "a micro-step's weight must be in";
  {
    Alone<PosG> alone(small_model());
    auto& optimizer = alone.optimizer;
    for (double const bad : {-1., -1e-300, std::nan(""), 1e30}) {
      CHECK(refusal([&] { optimizer.micro_step({.weight = bad}); }).starts_with(weight));
    }
    static_cast<void>(optimizer.gradients(1));
    CHECK(refusal([&] { optimizer.micro_step(); }) ==
          "the first micro_step() of a step must come before its first gradients");
    optimizer.discard_gradients();
    optimizer.micro_step();
    CHECK(refusal([&] { optimizer.micro_step(); }) ==
          "a second micro_step() in one step needs AccumulateFull or AccumulateShard");
    CHECK(optimizer.step().weight == 1.);
  }
  Alone<Full> alone(small_model());
  auto& optimizer = alone.optimizer;
  optimizer.micro_step({});
  optimizer.micro_step({.last = true});
  CHECK(refusal([&] { optimizer.micro_step({}); }) ==
        "micro_step() after the one that was said to be last");
  optimizer.reduce_all();
  CHECK(refusal([&] { optimizer.micro_step({}); }) ==
        "micro_step() after the gradients of this step were reduced; call step() first");
  CHECK(optimizer.step().weight == 2.);
}

TEST_CASE("a refused micro-step does not count") {
  Alone<Full> alone(small_model());
  auto& optimizer = alone.optimizer;
  optimizer.micro_step({.weight = 2., .last = true});
  CHECK(is_refused([&] { optimizer.micro_step({.weight = 5.}); }));
  CHECK(optimizer.step().weight == 2.);
}

TEST_CASE("values of wrong sizes to load") {
  Alone<PosG> alone(small_model());
  auto& optimizer = alone.optimizer;
  std::vector<float> const memory(700, 1.f);
  std::span<float const> const all(memory);
  std::vector<std::span<float const>> values{
      all, all.first(9), all, all.first(9), all, all.first(9)};
  using Spans = std::span<std::span<float const> const>;
  optimizer.load_parameters(Spans(values));
  CHECK(optimizer.parameter(5)[8] == 1.f);
  values[3] = all.first(8);
  CHECK(refusal([&] { optimizer.load_parameters(Spans(values)); }) ==
        "tensor 'b1' has 9 elements, but values for 8 are given");
  values.pop_back();
  CHECK(refusal([&] { optimizer.load_parameters(Spans(values)); }) ==
        "6 tensors are described but values of 5 are given");
}

TEST_CASE("a negative prefetch depth") {
  std::string const message =
      refusal([] { Alone<PosGP> alone(small_model(), zero::Prefetch{-1}); });
  CHECK(message == "the prefetch depth must be at least 0");
}

TEST_CASE("a loss scale out of range is refused before a word is said to other ranks") {
  using Fp16 = zero::Mixed<zero::fp16>;
  zero::run_ranks(2, [](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    auto& comm = watched.counted;
    auto const refused = [&](zero::LossScaleOptions const& options) {
      return refusal([&] {
        contracts::WatchedOptimizer<zero::stage::PosGP, Fp16> optimizer{
            watched.comm, small_model(), Fp16{.loss_scale = options}};
      });
    };
    CHECK(refused({.initial = 0.5f}).starts_with("the loss scale's initial value must be"));
    CHECK(refused({.growth = 0.5f}).starts_with("the loss scale's growth must be"));
    CHECK(refused({.growth_interval = 0}).starts_with("the loss scale's growth_interval must be"));
    CHECK(refused({.backoff = 1.f}).starts_with("the loss scale's backoff must be"));
    CHECK(refused({.minimum = 0.f}).starts_with("the loss scale's minimum must be"));
    CHECK(refused({.patience = 0}).starts_with("the loss scale's patience must be"));
    CHECK(comm.counts().bucket_total() == zero::Traffic{});
    CHECK(comm.counts().control_total() == zero::Traffic{});
    CHECK(refused({}) == "");
    // What no loss scale is made of is not looked at.
    contracts::WatchedOptimizer<zero::stage::PosG, Bf16> unscaled{
        watched.comm, small_model(), Bf16{.loss_scale = {.backoff = 2.f}}};
    unscaled.adopt_parameters();
    CHECK(unscaled.step().step == 1);
  });
}

TEST_CASE("a gradient pool full of units that nobody reduces says which is to come") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    PosG optimizer{comm, small_model(5), tiny};
    contracts::load(optimizer);
    auto const third = optimizer.gradients(3);
    auto const second = optimizer.gradients(2);
    CHECK(refusal([&] { static_cast<void>(optimizer.gradients(1)); }) ==
          "unit 1 finds the gradient pool full of units that are yet to be reduced; unit 4 is the "
          "next one in the order of a backward pass. Pass a unit's gradients to reduce() before "
          "asking for those of further units");
    optimizer.discard_gradients();
    for (int unit = 4; unit >= 0; --unit) optimizer.reduce(optimizer.gradients(unit));
    CHECK(optimizer.step().step == 1);
  });
}

template <class O>
void check_step_in_use() {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    O optimizer{comm, small_model()};
    contracts::load(optimizer);
    for (int unit = 2; unit >= 0; --unit) optimizer.reduce(optimizer.gradients(unit));
    auto weights = std::make_unique<zero::UnitParameters<O>>(optimizer.parameters(1));
    auto same = std::make_unique<zero::UnitParameters<O>>(optimizer.parameters(1));
    std::string const message = "step() while the parameters of unit 1 are in use";
    CHECK(refusal([&] { optimizer.step(); }) == message);
    weights.reset();
    CHECK(refusal([&] { optimizer.step(); }) == message);
    CHECK((*same)["w1"].size() == 700);
    same.reset();
    CHECK(optimizer.step().step == 1);
  });
}

TEST_CASE("step() while parameters are in use, partitioned or not, and when they are not") {
  check_step_in_use<PosG>();
  check_step_in_use<PosGP>();
}

/// Are these the initial values of a unit's tensors?
template <class O>
bool initial(O& optimizer, zero::UnitParameters<O> const& weights) {
  bool same = true;
  contracts::for_each_tensor(optimizer, weights.unit(), [&](std::size_t t, std::size_t i) {
    auto const& place = optimizer.partition().placement().places()[t];
    auto const view = weights[i];
    same = same && view.size() == place.count;
    for (std::size_t e = 0; same && e < view.size(); ++e) {
      float const expected = toy::initial_value(place.storage, e);
      same = static_cast<float>(view[e]) == static_cast<float>(typename O::Parameter(expected));
    }
  });
  return same;
}

TEST_CASE("a gather pool without a slot left says what to do, and serves again afterwards") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    for (int const depth : {0, 1, 3}) {
      PosGP optimizer{comm, small_model(6), zero::Prefetch{depth}};
      contracts::load(optimizer);
      for (int repeat = 0; repeat < 2; ++repeat) {
        std::vector<zero::UnitParameters<PosGP>> held;
        for (int unit = 0; unit <= depth; ++unit) held.push_back(optimizer.parameters(unit));
        std::string const message =
            refusal([&] { static_cast<void>(optimizer.parameters(depth + 1)); });
        CHECK(message == "unit " + std::to_string(depth + 1) + " is asked for while all " +
                             std::to_string(depth + 1) +
                             " slots of the gather pool are in use; release a unit's parameters "
                             "before asking for the next, or raise Prefetch.depth");
        for (auto const& weights : held) CHECK(initial(optimizer, weights));
        // A unit that is held needs no slot.
        CHECK(initial(optimizer, optimizer.parameters(0)));
        for (auto const& weights : held) CHECK(initial(optimizer, weights));
      }
    }
  });
}

TEST_CASE("any order of units gives the right values; nested use of one unit as well") {
  for (int const ranks : {2, 3}) {
    for (int const depth : {0, 1, 3, 50}) {
      int wrong = 0;
      std::mutex mutex;
      zero::run_ranks(ranks, [&](zero::InProcess& comm) {
        PosGP optimizer{comm, toy::model(), zero::Prefetch{depth}, tiny};
        contracts::load(optimizer);
        std::mt19937 random(static_cast<unsigned>(depth) + 1);
        std::list<std::pair<int, zero::UnitParameters<PosGP>>> held;
        int bad = 0;
        for (int i = 0; i < 300; ++i) {
          for (auto const& [unit, weights] : held) bad += initial(optimizer, weights) ? 0 : 1;
          auto const choice = random();
          int const unit = static_cast<int>(choice % optimizer.units().size());
          // Units without elements to gather need no slot; others as many as are held at once.
          std::vector<int> distinct{unit};
          for (auto const& each : held) distinct.push_back(each.first);
          std::sort(distinct.begin(), distinct.end());
          auto const end = std::unique(distinct.begin(), distinct.end());
          bool const fits = end - distinct.begin() <= depth + 1;
          if (!fits || (held.size() > 1 && choice % 7 < 3)) {
            held.erase(std::next(held.begin(), std::ptrdiff_t(choice / 8 % held.size())));
            continue;
          }
          held.emplace_back(unit, optimizer.parameters(unit));
        }
        held.clear();
        optimizer.settle();
        std::lock_guard const lock(mutex);
        wrong += bad;
      });
      CHECK(wrong == 0);
    }
  }
}

/// Bits of everything after four steps.
/// @param shuffled  walks through the units of every forward pass in a random order
template <class O>
std::vector<std::byte> train(zero::StepOptions const& options, int depth, bool shuffled) {
  std::vector<std::byte> bits;
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    O optimizer{comm, toy::model(), zero::Prefetch{depth}, tiny};
    contracts::load(optimizer);
    std::mt19937 random(7);
    std::vector<int> order(optimizer.units().begin(), optimizer.units().end());
    for (long step = 0; step < 4; ++step) {
      if (shuffled) {
        std::shuffle(order.begin(), order.end(), random);
        for (int const unit : order) static_cast<void>(optimizer.parameters(unit).size());
      }
      contracts::pass(optimizer, {}, step, comm.rank());
      optimizer.step(options);
    }
    auto const mine = contracts::snapshot(optimizer);
    if (comm.rank() == 0) bits = mine;
  });
  return bits;
}

TEST_CASE("the order of a forward pass and the prefetch depth change no bit") {
  auto const expected = train<PosGP>({.max_norm = 1.}, 1, false);
  for (int const depth : {0, 1, 3}) {
    CHECK(train<PosGP>({.max_norm = 1.}, depth, false) == expected);
    CHECK(train<PosGP>({.max_norm = 1.}, depth, true) == expected);
  }
}

TEST_CASE("a refresh that goes on behind the step's back gives the same bits") {
  auto const expected = train<Pos>({.max_norm = 1.}, 1, false);
  CHECK(train<Pos>({.max_norm = 1., .overlap_publish = true}, 1, false) == expected);
  CHECK(train<Pos>({.max_norm = 1., .overlap_publish = true}, 1, true) == expected);
  CHECK(train<PosG>({.max_norm = 1., .overlap_publish = true}, 1, true) == expected);
}

TEST_CASE("what a rank alone asks for that is for all is told with its usual cause") {
  std::string first;
  try {
    zero::run_ranks(2, [](zero::InProcess& comm) {
      PosGP optimizer{comm, small_model()};
      contracts::load(optimizer);
      if (comm.rank() == 0) static_cast<void>(optimizer.full_parameters());
      static_cast<void>(optimizer.step());
    });
  } catch (zero::Error const& error) {
    first = error.message();
  }
  CHECK_MESSAGE(
      first.find("a rank alone makes a call that is for all, such as full_parameters()") !=
          std::string::npos,
      first);
}

TEST_CASE("ranks that walk through units in different orders are told, not mixed up") {
  std::string first;
  try {
    zero::run_ranks(2, [](zero::InProcess& comm) {
      PosGP optimizer{comm, small_model(), zero::Prefetch{0}};
      contracts::load(optimizer);
      static_cast<void>(optimizer.parameters(comm.rank() == 0 ? 0 : 2).size());
    });
  } catch (zero::Error const& error) {
    CHECK(error.kind() == ErrorKind::communication);
    first = error.message();
  }
  INFO(first);
  CHECK(first.find("they differ in bucket") != std::string::npos);
  CHECK(first.find("bucket 0") != std::string::npos);
  CHECK(first.find("bucket 2") != std::string::npos);
}

TEST_CASE("a rank that evaluates alone is told what it was at, and so are the others") {
  std::vector<std::string> told(3);
  auto const evaluate = [&](zero::InProcess& comm) {
    PosGP optimizer{comm, small_model(), zero::Prefetch{0}};
    contracts::load(optimizer);
    try {
      if (comm.rank() == 1) static_cast<void>(optimizer.parameters(2).size());
      optimizer.step();
    } catch (zero::Error const& error) {
      told[static_cast<std::size_t>(comm.rank())] = error.message();
      throw;
    }
  };
  CHECK_THROWS_AS(zero::run_ranks(3, evaluate), zero::Error);
  std::string const at = "; this rank was in parameters(), for unit 2 with tensor 'w2'";
  for (std::size_t rank = 0; rank < 3; ++rank) {
    INFO(told[rank]);
    CHECK(told[rank].find("all_gather") != std::string::npos);
    CHECK((told[rank].find(at) != std::string::npos) == (rank == 1));
  }
}

}  // namespace
}  // namespace misuse_test
