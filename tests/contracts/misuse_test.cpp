/// Wrong calls end in words; calls in an unusual order do not end at all.
#include "contracts/ranks.hpp"
#include "contracts/recording.hpp"
#include "support/give_zeros.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace misuse_test {
namespace {

using zero::ErrorKind;
using Bf16 = zero::Mixed<zero::bf16>;

using contracts::Alone;
using contracts::Optimizer;

using Pos = Optimizer<zero::stage::Pos, zero::Fp32>;
using PosG = Optimizer<zero::stage::PosG, zero::Fp32>;
using PosGP = Optimizer<zero::stage::PosGP, Bf16>;
using Full = Optimizer<zero::stage::PosG, zero::Fp32, zero::AccumulateFull>;
using Shard = Optimizer<zero::stage::PosG, zero::Fp32, zero::AccumulateShard>;

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

/// What was asked for, and what the refusal says.
using Row = std::pair<std::function<void()>, std::string>;
void check(std::vector<Row> const& rows) {
  for (auto const& [work, message] : rows) CHECK(refusal(work) == message);
}

TEST_CASE("units and tensors that do not exist") {
  Alone<PosG> alone(small_model());
  Alone<Full> full(small_model());
  auto& optimizer = alone.optimizer;
  auto const weights = optimizer.parameters(1);
  auto const gradients = optimizer.gradients(1);
  CHECK(weights["w1"].size() == 700);
  CHECK(gradients["b1"].size() == 9);
  CHECK(full.optimizer.gradient(5).size() == 9);
  std::string const no_six = "there is no tensor 6; 6 are described";
  std::string const two = "unit 1 has 2 tensors, there is no number 2";
  check({
      {[&] { return optimizer.parameters(3); }, "there is no unit 3; units are [0, 3)"},
      {[&] { return optimizer.gradients(-1); }, "there is no unit -1; units are [0, 3)"},
      {[&] { return optimizer.parameter(6); }, no_six},
      {[&] { return full.optimizer.gradient(6); }, no_six},
      {[&] { return weights["w2"]; }, "unit 1 has no tensor 'w2'"},
      {[&] { return gradients["W1"]; }, "unit 1 has no tensor 'W1'"},
      {[&] { return weights[2]; }, two},
      {[&] { return gradients[2]; }, two},
  });
}

TEST_CASE("gradients that were reduced, given away or come too late") {
  Alone<PosG> alone(small_model());
  auto& optimizer = alone.optimizer;
  {
    auto first = optimizer.gradients(2);
    auto second = std::move(first);
    std::string const spent = "gradients are used after they were given to reduce()";
    // This is the misuse.
    CHECK(refusal([&] { return first[0]; }) == spent);
    CHECK(refusal([&] { optimizer.reduce(std::move(first)); }) == spent);
    optimizer.reduce(std::move(second));
    CHECK(refusal([&] { return second["w2"]; }) == spent);
    CHECK(refusal([&] { optimizer.reduce(std::move(second)); }) == spent);
  }
  std::string const again =
      "unit 2 was already reduced in this micro-step; call micro_step() before the next "
      "micro-batch";
  CHECK(refusal([&] { return optimizer.gradients(2); }) == again);
  optimizer.reduce_all();
  CHECK(refusal([&] { return optimizer.gradients(0); }) ==
        "unit 0 is asked for after the gradients of this step were reduced; call step() or "
        "discard_gradients() first");
  optimizer.discard_gradients();
  CHECK(give_zeros(optimizer).step().step == 1);
  optimizer.reduce(optimizer.gradients(2));
  optimizer.discard_gradients();
  CHECK(give_zeros(optimizer).step().step == 2);
}

constexpr char const* ended =
    " is used through gradients that ended with their step or micro-step, or in reduce_all() or "
    "grad_norm(); ask for them again";

template <class O>
constexpr bool several = std::is_same_v<O, Full> || std::is_same_v<O, Shard>;

/// A guard of unit 1 and of the unit that shares its bucket, used after `ends(optimizer)`.
template <class O, class Ends>
void check_ended(Ends const& ends) {
  for (zero::Bucket const bucket : {tiny, zero::Bucket{}}) {
    CAPTURE(bucket.bytes);
    Alone<O> alone(small_model(), bucket);
    auto& optimizer = alone.optimizer;
    if (several<O>) optimizer.micro_step();
    auto one = optimizer.gradients(1);
    auto const two = optimizer.gradients(2);
    ends(optimizer);
    CHECK(refusal([&] { return one["w1"]; }) == std::string("unit 1") + ended);
    CHECK(refusal([&] { return two[0]; }) == std::string("unit 2") + ended);
    CHECK(refusal([&] { optimizer.reduce(std::move(one)); }) == std::string("unit 1") + ended);
    optimizer.discard_gradients();
    optimizer.gradients(1)["w1"][3] = typename O::Wire(2.f);
    CHECK(optimizer.grad_norm() == 2.);
  }
}

TEST_CASE_TEMPLATE(
    "a guard of gradients ends where they lose their memory", O, PosG, PosGP, Full, Shard) {
  check_ended<O>([](O& optimizer) { optimizer.step({.unsaid = zero::Unsaid::zeros}); });
  check_ended<O>([](O& optimizer) { static_cast<void>(optimizer.try_step()); });
  check_ended<O>([](O& optimizer) { optimizer.discard_gradients(); });
  check_ended<O>([](O& optimizer) { optimizer.reduce_all(); });
  check_ended<O>([](O& optimizer) { return optimizer.grad_norm(); });
  if (several<O>) check_ended<O>([](O& optimizer) { optimizer.micro_step(); });
}

TEST_CASE("a second guard of a unit that was reduced reaches nothing") {
  for (zero::Bucket const bucket : {tiny, zero::Bucket{}}) {
    Alone<PosG> alone(small_model(), bucket);
    auto& optimizer = alone.optimizer;
    for (int const unit : optimizer.units_backward()) {
      auto first = optimizer.gradients(unit);
      auto const second = optimizer.gradients(unit);
      optimizer.reduce(std::move(first));
      CHECK(refusal([&] { return second[0]; }) ==
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
  for (int const unit : b.optimizer.units()) {
    if (unit != 7) b.optimizer.without_gradient(unit);
  }
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
    std::string const in_use = "() while the parameters of unit 1 are in use";
    check({
        {[&] { optimizer.load_parameters(values); }, "load_parameters" + in_use},
        {[&] { optimizer.broadcast_parameters(values); }, "broadcast_parameters" + in_use},
        {[&] { optimizer.adopt_parameters(); }, "adopt_parameters" + in_use},
        {[&] { optimizer.fill_owned(fill); }, "fill_owned" + in_use},
    });
    if constexpr (requires { optimizer.broadcast_parameters(); }) {
      CHECK(refusal([&] { optimizer.broadcast_parameters(); }) == "broadcast_parameters" + in_use);
    }
    CHECK(static_cast<float>(guard[0][0]) == first);
  }
  CHECK(contracts::snapshot(optimizer) == before);
  optimizer.load_parameters(values);
  auto const guard = optimizer.parameters(1);
  CHECK(static_cast<float>(guard[0][0]) == 5.f);
}

TEST_CASE("one rank that reads while parameters are replaced ends the call on all") {
  // Gathering is collective; the guard of rank 0 alone lives on. Rank 0 may have ended the group
  // before rank 1 has seen that it gathered.
  auto const said = contracts::endings(2, [](zero::InProcess& comm) {
    PosGP optimizer{comm, small_model()};
    contracts::load(optimizer);
    std::optional guard(optimizer.parameters(0));
    if (comm.rank() == 1) guard.reset();
    contracts::load(optimizer);
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
  CHECK(refusal([&] { return first["w1"]; }) ==
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
    CHECK(refusal([&] { return w.data("c"); }) == "unit 0 has no tensor 'c'");
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
    CHECK(give_zeros(optimizer).step().weight == 1.);
  }
  Alone<Full> alone(small_model());
  auto& optimizer = alone.optimizer;
  optimizer.micro_step({});
  optimizer.micro_step({.weight = 2., .last = true});
  give_zeros(optimizer);
  // What is refused does not count.
  CHECK(refusal([&] { optimizer.micro_step({.weight = 5.}); }) ==
        "micro_step() after the one that was said to be last");
  optimizer.reduce_all();
  CHECK(refusal([&] { optimizer.micro_step({}); }) ==
        "micro_step() after the gradients of this step were reduced; call step() first");
  CHECK(optimizer.step().weight == 3.);
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

TEST_CASE("a model without tensors is planned, and no optimizer is made of it") {
  using O = contracts::Optimizer<zero::stage::PosG, zero::Fp32>;
  CHECK(O::plan({.world_size = 2}, {}).trained_elements == 0);
  zero::run_ranks(2, [](zero::InProcess& comm) {
    CHECK(refusal([&] { O(comm, {}); }) ==
          "the model has no tensors, so that nothing can be trained");
    // Nor does one rank wait for others that have some.
    CHECK(message_of([&] {
            O(comm,
              comm.rank() == 0 ? std::vector<zero::Tensor>()
                               : std::vector<zero::Tensor>{{.name = "w", .shape = {3}}});
          }).find("ranks disagree on tensor 0: none on rank 0; 'w' [3] on rank 1") !=
          std::string::npos);
    // One of which none is trained may be, such as for evaluation.
    O frozen{comm, {{.name = "w", .shape = {3}, .frozen = true}}};
    frozen.adopt_parameters();
    CHECK(frozen.step().updated == 0);
  });
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
    auto const make = [&]<class Precision>(zero::LossScaleOptions const& options, Precision) {
      contracts::WatchedOptimizer<zero::stage::PosGP, Precision>{
          watched.comm, small_model(), Precision{.loss_scale = options}};
    };
    CHECK(refusal([&] {
            make({.backoff = 1.f}, Fp16{});
          }).starts_with("the loss scale's backoff must be"));
    CHECK(watched.counted.counts().bucket_total() == zero::Traffic{});
    CHECK(watched.counted.counts().control_total() == zero::Traffic{});
    CHECK(refusal([&] { make({}, Fp16{}); }) == "");
    // What no loss scale is made of is not looked at.
    CHECK(refusal([&] { make({.backoff = 2.f}, Bf16{}); }) == "");
  });
}

TEST_CASE("a gradient pool full of units that nobody reduces says which is to come") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    PosG optimizer{comm, small_model(5), tiny};
    contracts::load(optimizer);
    [[maybe_unused]] auto const third = optimizer.gradients(3);
    [[maybe_unused]] auto const second = optimizer.gradients(2);
    CHECK(refusal([&] { return optimizer.gradients(1); }) ==
          "unit 1 finds the gradient pool full of units that are yet to be reduced; unit 4 is the "
          "next one in the order of a backward pass. Pass a unit's gradients to reduce() before "
          "asking for those of further units");
    optimizer.discard_gradients();
    for (int unit = 4; unit >= 0; --unit) optimizer.reduce(optimizer.gradients(unit));
    CHECK(optimizer.step().step == 1);
  });
}

TEST_CASE_TEMPLATE("step() while parameters are in use, partitioned or not, and when they are not",
                   O,
                   PosG,
                   PosGP) {
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

TEST_CASE("a gather pool without a slot left says what to do, and serves again afterwards") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    for (int const depth : {0, 1, 3}) {
      PosGP optimizer{comm, small_model(6), zero::Prefetch{depth}};
      contracts::load(optimizer);
      for (int repeat = 0; repeat < 2; ++repeat) {
        std::vector<zero::UnitParameters<PosGP>> held;
        for (int unit = 0; unit <= depth; ++unit) held.push_back(optimizer.parameters(unit));
        auto const bits = [&] {
          std::vector<std::byte> all;
          for (auto const& weights : held) {
            contracts::append(all, weights[0]);
            contracts::append(all, weights[1]);
          }
          return all;
        };
        auto const before = bits();
        std::string const slots = std::to_string(depth + 1);
        CHECK(refusal([&] { return optimizer.parameters(depth + 1); }) ==
              "unit " + slots + " is asked for while all " + slots +
                  " slots of the gather pool are in use; release a unit's parameters before asking "
                  "for the next, or raise Prefetch.depth");
        CHECK(bits() == before);
        // A unit that is held needs no slot.
        auto const again = optimizer.parameters(0);
        CHECK(again["w0"].data() == held[0]["w0"].data());
        CHECK(bits() == before);
      }
    }
  });
}

TEST_CASE("what a rank alone asks for that is for all is told with its usual cause") {
  auto const told = contracts::endings(2, [](zero::InProcess& comm) {
    PosGP optimizer{comm, small_model()};
    contracts::load(optimizer);
    if (comm.rank() == 0) static_cast<void>(optimizer.full_parameters());
    static_cast<void>(optimizer.step());
  });
  std::string const cause = "a rank alone makes a call that is for all, such as full_parameters()";
  for (auto const& text : told) CHECK_MESSAGE(text.find(cause) != std::string::npos, text);
}

TEST_CASE("ranks that walk through units in different orders are told, not mixed up") {
  auto const told = contracts::endings(2, [](zero::InProcess& comm) {
    PosGP optimizer{comm, small_model(), zero::Prefetch{0}};
    contracts::load(optimizer);
    static_cast<void>(optimizer.parameters(comm.rank() == 0 ? 0 : 2).size());
  });
  for (char const* const part : {"they differ in bucket", "bucket 0", "bucket 2"}) {
    for (auto const& text : told) CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  }
}

TEST_CASE("a rank that evaluates alone is told what it was at, and so are the others") {
  auto const told = contracts::endings(3, [](zero::InProcess& comm) {
    PosGP optimizer{comm, small_model(), zero::Prefetch{0}};
    contracts::load(optimizer);
    if (comm.rank() == 1) static_cast<void>(optimizer.parameters(2).size());
    optimizer.step();
  });
  std::string const at = "; this rank was in parameters(), for unit 2 with tensor 'w2'";
  for (std::size_t rank = 0; rank < 3; ++rank) {
    INFO(told[rank]);
    CHECK(told[rank].find("all_gather") != std::string::npos);
    CHECK((told[rank].find(at) != std::string::npos) == (rank == 1));
  }
}

}  // namespace
}  // namespace misuse_test
