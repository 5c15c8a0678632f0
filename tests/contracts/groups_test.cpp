/// Groups of tensors with rules of their own, which trainers change between steps, and steps that
/// they count.
#include "support/refusal.hpp"
#include "trapped_space.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace groups_test {
namespace {

using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;
using Bf16 = zero::Mixed<zero::bf16>;

constexpr int steps = 11;
constexpr int layers = 3;
constexpr zero::Bucket tiny{4};

std::vector<zero::Tensor> model() {
  return {{.name = "embedding", .shape = {37, 11}, .unit = 0, .group = "outer"},
          // Neighbours without a gap, which have one pass where they have one rule.
          {.name = "a.w", .shape = {704}, .unit = 1},
          {.name = "a.n", .shape = {64}, .unit = 1, .group = "near"},
          {.name = "a.m", .shape = {64}, .unit = 1, .group = "near"},
          {.name = "a.b", .shape = {3}, .unit = 1, .weight_decay = 0.f, .group = "bias"},
          {.name = "still", .shape = {5}, .unit = 1, .frozen = true, .group = "bias"},
          {.name = "b.w", .shape = {1300}, .unit = 2, .group = "outer"},
          {.name = "b.b", .shape = {1}, .unit = 2, .learning_rate = 0.5f, .group = "bias"},
          {.name = "none", .shape = {0}, .unit = 2, .group = "bias"},
          {.name = "stack", .shape = {layers, 129}, .unit = 2, .stacked = true},
          {.name = "c.w", .shape = {64}, .unit = 3},
          {.name = "head", .shape = {37, 11}, .unit = 4, .tied_to = "embedding", .group = "outer"},
          {.name = "d.w", .shape = {2049}, .unit = 4, .group = "late"}};
}

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
  return (x ^ x >> 29) * 0x94d049bb133111ebu >> 7;
}
/// Sums of these are exact in bf16.
float gradient_of(std::size_t t, int step, int batch, std::size_t i) {
  auto const bits =
      mix(mix(t * 100 + static_cast<std::size_t>(step), i), static_cast<std::uint64_t>(batch));
  return static_cast<float>(bits % 17) / 8.f - 1.f;
}
float initial(zero::Tensor const& tensor, std::size_t i) {
  return static_cast<float>((i + tensor.shape[0]) % 97) / 50.f - 0.9f;
}

/// What a run is told besides rules.
struct Told {
  int ranks = 1;
  int micro_steps = 1;
  bool rests = false;    ///< tensors are absent now and then
  bool counted = false;  ///< from outside
};
bool absent(Told const& told, std::string const& storage, int step) {
  if (!told.rests || step == 5) return false;
  if (storage == "c.w" && step >= 7) return true;
  auto const name = storage.size() * 31 + static_cast<std::size_t>(storage[0]);
  return mix(name, static_cast<std::uint64_t>(step)) % 3 == 0;
}
/// Grows in strides, and starts anew once.
long count_at(int step) { return step < 7 ? 5 + 3 * step : step - 4; }

/// Hyper-parameters that differ in all fields.
template <class R>
R varied(int k);
template <>
zero::AdamW varied(int k) {
  auto const f = static_cast<float>(k);
  return {.lr = 0.01f + 0.003f * f,
          .beta1 = 0.9 - 0.05 * k,
          .beta2 = 0.99 - 0.03 * k,
          .eps = 1e-6f * (f + 1.f),
          .weight_decay = 0.1f * f,
          .maximize = k == 3};
}
template <>
zero::Sgd varied(int k) {
  auto const f = static_cast<float>(k);
  return {.lr = 0.01f + 0.003f * f,
          .momentum = 0.9f - 0.1f * f,
          .weight_decay = 0.1f * f,
          .nesterov = k == 2,
          .dampening = k == 1 ? 0.25f : 0.f};
}

/// What a trainer says before step `step`, or in its middle.
template <class R>
void tell(auto& optimizer, int step) {
  auto const f = static_cast<float>(step);
  switch (step) {
    case 0: return;
    case 1: optimizer.set_lr("near", 0.125f); return optimizer.set_lr("bias", 0.03125f);
    case 2: return optimizer.set_rule("outer", varied<R>(1));
    case 3: return optimizer.set_rule(varied<R>(2));
    case 4: return optimizer.set_lr("b.w", 0.02f);
    case 5: return optimizer.set_rule("outer", varied<R>(3));
    case 6: optimizer.set_lr("stack", 0.01f); return optimizer.set_lr(0.004f);
    case 7: return;  // the step brings a rate
    case 8: return optimizer.set_rule("b.w", varied<R>(0));
    case 9: return optimizer.set_lr("late", 0.5f / f);
    default:
      optimizer.set_lr("outer", 0.1f / f);
      optimizer.set_lr("bias", 0.2f / f);
      optimizer.set_lr("", 0.3f / f);
      optimizer.set_lr("late", 0.4f / f);
  }
}
std::optional<float> rate_at(int step) { return step == 7 ? std::optional(0.005f) : std::nullopt; }

/// The same, spelled out for each tensor.
template <class R>
void tell(std::map<std::string, R>& rule_of, int step) {
  auto const f = static_cast<float>(step);
  auto const rates = [&](auto const& names, float lr) {
    for (char const* const name : names) rule_of.at(name).lr = lr;
  };
  auto const rules = [&](auto const& names, R const& rule) {
    for (char const* const name : names) rule_of.at(name) = rule;
  };
  std::array const bias{"a.b", "b.b"};
  if (step == 0) {
    for (char const* const name :
         {"embedding", "a.w", "a.n", "a.m", "a.b", "b.w", "b.b", "stack", "c.w", "d.w"})
      rule_of[name] = varied<R>(0);
  }
  if (step == 1) rates(std::array{"a.n", "a.m"}, 0.125f);
  if (step == 1) rates(bias, 0.03125f);
  if (step == 2) rules(std::array{"embedding", "b.w"}, varied<R>(1));
  if (step == 3) rules(std::array{"a.w", "stack", "c.w", "d.w"}, varied<R>(2));
  if (step == 4) rates(std::array{"b.w"}, 0.02f);
  if (step == 5) rules(std::array{"embedding"}, varied<R>(3));
  if (step == 6) rates(std::array{"stack"}, 0.01f);
  if (step == 6) rates(std::array{"a.w", "c.w", "d.w"}, 0.004f);
  if (step == 8) rules(std::array{"b.w"}, varied<R>(0));
  if (step == 9) rates(std::array{"d.w"}, 0.5f / f);
  if (step < 10) return;
  rates(std::array{"embedding"}, 0.1f / f);
  rates(bias, 0.2f / f);
  rates(std::array{"a.w", "c.w"}, 0.3f / f);
  rates(std::array{"d.w"}, 0.4f / f);
}

using Bits = std::vector<std::uint32_t>;
/// What a run ends with: master weights and states, parameters and counts of each storage.
struct End {
  std::map<std::string, std::vector<Bits>> arrays{};
  std::map<std::string, Bits> parameters{};
  std::map<std::string, long> counts{};
};

/// Each tensor by itself, element by element: no group, no bucket, no kernel.
template <class Precision, class R>
End reference(Told const& told) {
  using Parameter = typename Precision::Parameter;
  constexpr std::size_t arrays = 1 + R::states.size();
  auto const tensors = model();
  std::map<std::string, R> rule_of;
  std::map<std::string, std::array<std::vector<float>, arrays>> held;
  End end;
  for (int step = 0; step < steps; ++step) {
    tell(rule_of, step);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      zero::Tensor const& tensor = tensors[t];
      auto const found = rule_of.find(tensor.name);
      if (found == rule_of.end()) continue;
      auto const elements = static_cast<std::size_t>(zero::element_count(tensor));
      auto& own = held[tensor.name];
      for (std::size_t i = own[0].size(); i < elements; ++i) {
        own[0].push_back(initial(tensor, i));
        for (std::size_t k = 1; k < arrays; ++k) own[k].push_back(0.f);
      }
      long& count = end.counts[tensor.name];
      if (absent(told, tensor.name, step)) {
        if (told.counted) count = std::min(count, count_at(step));
        continue;
      }
      count = told.counted ? count_at(step) : count + 1;
      // Those with a rule of their own in step 7 keep its rate.
      bool const common = tensor.name == "a.w" || tensor.name == "c.w" || tensor.name == "d.w";
      float const rate = common ? rate_at(step).value_or(found->second.lr) : found->second.lr;
      auto const scalars =
          found->second.scalars(count, rate, tensor.learning_rate, tensor.weight_decay);
      int const batches = told.ranks * told.micro_steps;
      for (std::size_t i = 0; i < elements; ++i) {
        float sum = 0.f;
        for (int batch = 0; batch < batches; ++batch) {
          for (std::size_t use = t; use < tensors.size(); ++use) {
            if (use != t && tensors[use].tied_to != tensor.name) continue;
            sum += gradient_of(use, step, batch, i);
          }
        }
        float states[arrays] = {};
        for (std::size_t k = 1; k < arrays; ++k) states[k - 1] = own[k][i];
        found->second.template update<float>(
            scalars, own[0][i], sum * static_cast<float>(1. / batches), states);
        for (std::size_t k = 1; k < arrays; ++k) own[k][i] = states[k - 1];
      }
    }
  }
  for (auto const& [name, own] : held) {
    for (auto const& array : own) {
      end.arrays[name].emplace_back();
      for (float const x : array)
        end.arrays[name].back().push_back(std::bit_cast<std::uint32_t>(x));
    }
    for (float const x : own[0]) {
      end.parameters[name].push_back(
          std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<Parameter>(x))));
    }
  }
  return end;
}

void load(auto& optimizer) {
  optimizer.load_parameters(
      [](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = initial(tensor, first + i);
      });
}

/// A micro-batch's gradients; `middle()` is called when about half are reduced.
template <class O>
void backward(O& optimizer, Told const& told, int step, int batch, auto const& middle) {
  auto const& tensors = optimizer.tensors();
  for (int const unit : optimizer.units_backward()) {
    if (unit == 2) middle();
    auto gradients = optimizer.gradients(unit);
    std::size_t g = 0;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      zero::Tensor const& tensor = tensors[t];
      int const slice = unit - tensor.unit;
      if (slice < 0 || slice >= (tensor.stacked ? layers : 1)) continue;
      auto const out = gradients[g++];
      if (absent(told, tensor.tied_to.empty() ? tensor.name : tensor.tied_to, step)) {
        // All slices at once, before the first of their units is reduced.
        if (slice + 1 == (tensor.stacked ? layers : 1)) optimizer.without_gradient(tensor);
        continue;
      }
      std::size_t const first = static_cast<std::size_t>(slice) * out.size();
      for (std::size_t i = 0; i < out.size(); ++i) {
        float const now = static_cast<float>(out[i]) + gradient_of(t, step, batch, first + i);
        out[i] = static_cast<typename O::Wire>(now);
      }
    }
    optimizer.reduce(std::move(gradients));
  }
}

/// One step, whose rules are told before it or in the middle of it.
template <class R, class O>
void train_step(O& optimizer, Told const& told, int step, int rank) {
  bool const before = step % 2 == 0;
  if (before) tell<R>(optimizer, step);
  for (int micro = 0; micro < told.micro_steps; ++micro) {
    if (told.micro_steps > 1) optimizer.micro_step();
    backward(optimizer, told, step, rank * told.micro_steps + micro, [&] {
      if (!before && micro == 0) tell<R>(optimizer, step);
    });
  }
  zero::StepOptions options{.learning_rate = rate_at(step)};
  if (told.counted) options.count = count_at(step);
  CHECK(optimizer.step(options).step == (told.counted ? count_at(step) : step + 1));
}

/// What all ranks together hold.
template <class O>
void read(O& optimizer, End& end) {
  static std::mutex mutex;
  auto const all = optimizer.full_parameters();
  std::lock_guard const lock(mutex);
  for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
    zero::Tensor const& tensor = optimizer.tensors()[t];
    if (tensor.frozen || !tensor.tied_to.empty() || all[t].empty()) continue;
    Bits bits;
    for (auto const value : all[t]) {
      bits.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(value)));
    }
    auto const known = end.parameters.emplace(tensor.name, bits);
    CHECK(known.first->second == bits);
    CHECK(end.counts.emplace(tensor.name, optimizer.steps(t)).first->second == optimizer.steps(t));
  }
  optimizer.visit_owned(
      [&](zero::Tensor const& tensor, std::size_t first, auto master, auto const& states) {
        auto& arrays = end.arrays[tensor.name];
        arrays.resize(1 + states.size(), Bits(zero::element_count(tensor)));
        for (std::size_t i = 0; i < master.size(); ++i) {
          arrays[0][first + i] = std::bit_cast<std::uint32_t>(float{master[i]});
          for (std::size_t k = 0; k < states.size(); ++k) {
            arrays[1 + k][first + i] = std::bit_cast<std::uint32_t>(float{states[k][i]});
          }
        }
      });
}

void check_same(End const& found, End const& expected) {
  CHECK(found.counts == expected.counts);
  for (auto const& tensor : expected.arrays) {
    INFO(tensor.first);
    CHECK(found.arrays.at(tensor.first) == tensor.second);
    CHECK(found.parameters.at(tensor.first) == expected.parameters.at(tensor.first));
  }
}

template <class Stage, class Precision, class R, class... Policies>
void check(Told const& told, End const& expected) {
  End end;
  zero::run_ranks(told.ranks, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer<zero::InProcess, Stage, Precision, R, Policies...> optimizer{
        comm, model(), varied<R>(0), tiny};
    load(optimizer);
    for (int step = 0; step < steps; ++step) {
      train_step<R>(optimizer, told, step, comm.rank());
    }
    CHECK(optimizer.held() == optimizer.plan().memory);
    read(optimizer, end);
  });
  check_same(end, expected);
}

template <class Precision, class R>
void check_stages(Told told) {
  for (int const ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    told.ranks = ranks;
    End const expected = reference<Precision, R>(told);
    check<Replicated, Precision, R>(told, expected);
    check<Pos, Precision, R>(told, expected);
    check<PosG, Precision, R>(told, expected);
    check<PosGP, Precision, R>(told, expected);
  }
}

TEST_CASE("groups with rules that move have the bits of each tensor by itself, under every stage") {
  check_stages<zero::Fp32, zero::AdamW>({});
}
TEST_CASE("groups in mixed precision") { check_stages<Bf16, zero::AdamW>({}); }
TEST_CASE("groups of another rule, absent gradients and counts from outside") {
  for (bool const rests : {false, true}) {
    for (bool const counted : {false, true}) {
      CAPTURE(rests);
      CAPTURE(counted);
      check_stages<zero::Fp32, zero::Sgd>({.rests = rests, .counted = counted});
      Told const told{.ranks = 3, .rests = rests, .counted = counted};
      check<PosG, zero::Fp32, zero::AdamW>(told, reference<zero::Fp32, zero::AdamW>(told));
      check<PosGP, Bf16, zero::AdamW>(told, reference<Bf16, zero::AdamW>(told));
    }
  }
}
TEST_CASE("rules that are told in the middle of micro-batches are those of their step") {
  for (int const ranks : {1, 3}) {
    Told const told{.ranks = ranks, .micro_steps = 2};
    End const expected = reference<zero::Fp32, zero::AdamW>(told);
    check<PosG, zero::Fp32, zero::AdamW, zero::AccumulateShard>(told, expected);
    check<Pos, zero::Fp32, zero::AdamW, zero::AccumulateFull>(told, expected);
  }
}

std::string const differ = "ranks passed different options to step(): ";

/// An optimizer in memory that the host can reach, or cannot.
struct OnHost {
  explicit OnHost(zero::InProcess& comm) : optimizer{comm, model()} { load(optimizer); }
  zero::ShardedOptimizer<zero::InProcess, PosG> optimizer;
};
struct OnDevice {
  using Owned = zero::Owned<trapped::Allocator>;
  explicit OnDevice(zero::InProcess& inner)
      : comm(inner, device, trapped::Collectives::late),
        optimizer{comm, model(), Owned{{&device}}} {
    load(optimizer);
  }
  trapped::Device device{};
  trapped::Communicator comm;
  zero::ShardedOptimizer<trapped::Communicator, PosG, Owned> optimizer;
};

/// What every rank hears where rank 1 is told something else, by a step that waits, by one that
/// does not, and by the one after a norm was asked for. Then they go on together.
template <class Trainer>
void check_refused(auto const& tell_all, auto const& tell_odd, std::string const& values) {
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    Trainer trainer(comm);
    auto& optimizer = trainer.optimizer;
    auto const tell = [&](bool odd) { odd ? tell_odd(optimizer) : tell_all(optimizer); };
    bool const odd = comm.rank() == 1;
    tell(odd);
    auto const step = [&] { static_cast<void>(optimizer.step()); };
    CHECK(refusal(step) == differ + values);
    optimizer.enqueue_step();
    CHECK(refusal([&] {
            static_cast<void>(optimizer.report());
          }).ends_with("count, or rules of tensors"));
    CHECK(optimizer.steps() == 0);
    static_cast<void>(optimizer.grad_norm());
    CHECK(refusal(step) == differ + values);
    CHECK(optimizer.steps() == 0);
    tell(false);
    static_cast<void>(optimizer.grad_norm());
    CHECK(refusal(step) == "");
    CHECK(optimizer.steps() == 1);
  });
}

template <class Trainer>
void check_all_refused() {
  check_refused<Trainer>([](auto& optimizer) { optimizer.set_lr("bias", 0.25f); },
                         [](auto& optimizer) { optimizer.set_lr("bias", 0.5f); },
                         "tensor 'a.b' of group 'bias', rule.lr: 0.25 on rank 0 2; 0.5 on rank 1");
  check_refused<Trainer>(
      [](auto& optimizer) { optimizer.set_rule("stack", {.lr = 0.25f}); },
      [](auto& optimizer) { optimizer.set_rule("stack", {.lr = 0.25f, .beta2 = 0.5}); },
      "tensor 'stack[0]', rule.beta2: 0.999 on rank 0 2; 0.5 on rank 1");
  check_refused<Trainer>([](auto& optimizer) { optimizer.set_rule({.weight_decay = 0.f}); },
                         [](auto& optimizer) { optimizer.set_rule({.weight_decay = 0.5f}); },
                         "rule.weight_decay: 0 on rank 0 2; 0.5 on rank 1");
}
TEST_CASE("rules that differ between ranks are refused on all of them, on the host") {
  check_all_refused<OnHost>();
}
TEST_CASE("rules that differ between ranks are refused on all of them, on a device") {
  check_all_refused<OnDevice>();
}

TEST_CASE("a group of which only one rank has said something, and rates that differ for all") {
  zero::run_ranks(3, [](zero::InProcess& comm) {
    OnHost trainer(comm);
    auto& optimizer = trainer.optimizer;
    // Its numbers are those of the others, until these change.
    if (comm.rank() == 2) optimizer.set_lr("late", optimizer.rule().lr);
    CHECK(refusal([&] { optimizer.step(); }) ==
          differ +
              "tensor 'd.w' of group 'late', a rule of its own: 'no' on rank 0 1; 'yes' on "
              "rank 2");
    optimizer.set_lr("late", 0.5f);
    optimizer.set_lr(comm.rank() == 0 ? 0.25f : 0.125f);
    CHECK(refusal([&] { optimizer.step(); }) ==
          differ + "learning_rate: 0.25 on rank 0; 0.125 on rank 1 2");
    // No rank uses what it was told.
    CHECK(optimizer.step({.learning_rate = 0.5f}).step == 1);
    optimizer.set_lr(0.125f);
    CHECK(optimizer.step().step == 2);
    CHECK(refusal([&] { optimizer.step({.count = comm.rank() == 0 ? 7 : 8}); }) ==
          differ + "count: 7 on rank 0; 8 on rank 1 2");
    CHECK(optimizer.step({.count = 7}).step == 7);
  });
}

TEST_CASE("rules on a device have the host's bits") {
  for (bool const counted : {false, true}) {
    Told const told{.ranks = 2, .rests = true, .counted = counted};
    std::array<std::map<std::string, Bits>, 2> ends;
    std::array<std::vector<long>, 2> counts;
    auto const train = [&](auto& optimizer, std::size_t end, int rank) {
      for (int step = 0; step < steps; ++step) {
        tell<zero::AdamW>(optimizer, step);
        for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
          zero::Tensor const& tensor = optimizer.tensors()[t];
          bool const tied = !tensor.tied_to.empty();
          if (absent(told, tied ? tensor.tied_to : tensor.name, step)) {
            optimizer.without_gradient(tensor);
          }
        }
        zero::StepOptions options{.learning_rate = rate_at(step)};
        if (counted) options.count = count_at(step);
        optimizer.enqueue_step(options);
      }
      static_cast<void>(optimizer.report());
      if (rank != 0) return;
      counts[end] = optimizer.counters().steps;
      optimizer.visit_owned(
          [&](zero::Tensor const& tensor, std::size_t, auto master, auto const& states) {
            Bits& bits = ends[end][tensor.name];
            for (auto const x : master) bits.push_back(std::bit_cast<std::uint32_t>(float{x}));
            for (auto const& state : states) {
              for (auto const x : state) bits.push_back(std::bit_cast<std::uint32_t>(float{x}));
            }
          });
    };
    zero::run_ranks(2, [&](zero::InProcess& comm) {
      OnHost host(comm);
      train(host.optimizer, 0, comm.rank());
    });
    zero::run_ranks(2, [&](zero::InProcess& comm) {
      OnDevice device(comm);
      train(device.optimizer, 1, comm.rank());
    });
    CHECK(ends[0] == ends[1]);
    CHECK(counts[0] == counts[1]);
    CHECK(ends[0].at("d.w").size() > 2049);
  }
}

TEST_CASE("names, and what rule a tensor has") {
  zero::Self comm;
  zero::ShardedOptimizer opt{comm, model(), zero::AdamW{.lr = 0.5f}};
  auto const rates = [&] {
    std::vector<float> all;
    for (std::size_t t = 0; t < opt.tensors().size(); ++t) all.push_back(opt.rule(t).lr);
    return all;
  };
  using Rates = std::vector<float>;
  // embedding, a.w, a.n, a.m, a.b, still, b.w, b.b, none, stack, c.w, head, d.w
  opt.set_lr("bias", 1.f);
  CHECK(rates() == Rates{.5f, .5f, .5f, .5f, 1.f, 1.f, .5f, 1.f, 1.f, .5f, .5f, .5f, .5f});
  opt.set_lr("b.b", 2.f);
  opt.set_lr("stack", 3.f);
  opt.set_lr(.25f);
  CHECK(rates() == Rates{.25f, .25f, .25f, .25f, 1.f, 1.f, .25f, 2.f, 1.f, 3.f, .25f, .25f, .25f});
  opt.set_lr("bias", 4.f);
  CHECK(rates() == Rates{.25f, .25f, .25f, .25f, 4.f, 4.f, .25f, 2.f, 4.f, 3.f, .25f, .25f, .25f});
  // Tied tensors have one rule, whichever name is used, and how often.
  for (float const lr : {5.f, 6.f}) {
    opt.set_lr("head", lr);
    CHECK(opt.rule(0).lr == lr);
    opt.set_lr("embedding", lr + 10.f);
    CHECK(opt.rule(11).lr == lr + 10.f);
  }
  opt.set_lr("outer", 7.f);
  CHECK(rates() == Rates{16.f, .25f, .25f, .25f, 4.f, 4.f, 7.f, 2.f, 4.f, 3.f, .25f, 16.f, .25f});
  CHECK(opt.rule().lr == .25f);

  std::string const groups = "; the groups are 'outer', 'near', 'bias', 'late'";
  CHECK(refusal([&] { opt.set_lr("biases", 1.f); }) ==
        "there is no group or tensor 'biases'" + groups);
  CHECK(refusal([&] { opt.set_rule("stack[0]", {}); }) ==
        "there is no group or tensor 'stack[0]'" + groups);
  CHECK(refusal([&] { opt.set_lr("bias", NAN); }) ==
        "rule.lr of 'bias' is nan, but must be finite and at least 0");
  CHECK(refusal([&] { opt.set_lr(-1.f); }) == "rule.lr is -1, but must be finite and at least 0");
  CHECK(refusal([&] { opt.set_rule("late", {.beta1 = 1.}); }) ==
        "rule.beta1 of 'late' is 1, but must be at least 0 and less than 1");
  CHECK(refusal([&] { opt.set_rule({.lr = INFINITY}); }) ==
        "rule.lr is inf, but must be finite and at least 0");
  for (long const count : {0l, zero::most_steps + 1}) {
    CHECK(refusal([&] { opt.step({.count = count}); }) ==
          "the count of a step is " + std::to_string(count) + ", but updates count from 1 to " +
              std::to_string(zero::most_steps));
  }
  // Nothing of that has changed anything.
  CHECK(rates() == Rates{16.f, .25f, .25f, .25f, 4.f, 4.f, 7.f, 2.f, 4.f, 3.f, .25f, 16.f, .25f});

  zero::ShardedOptimizer part{comm,
                              {{.name = "a", .shape = {3}, .frozen = true, .group = "backbone"},
                               {.name = "b", .shape = {3}, .frozen = true, .group = "backbone"},
                               {.name = "c", .shape = {3}, .frozen = true, .group = "head"},
                               {.name = "d", .shape = {3}, .group = "head"}}};
  CHECK(refusal([&] { part.set_lr("backbone", 1.f); }) ==
        "all tensors of the group 'backbone' are frozen: no rule and no learning rate is ever used "
        "for what is never updated");
  CHECK(refusal([&] { part.set_rule("a", {}); }).starts_with("the tensor 'a' is frozen: no rule"));
  part.set_lr("head", 1.f);
  CHECK(part.rule(3).lr == 1.f);

  zero::ShardedOptimizer plain{comm, {{.name = "w", .shape = {3}}}};
  CHECK(refusal([&] { plain.set_lr("v", 1.f); }) ==
        "there is no group or tensor 'v'; no tensor has a Tensor::group");
  zero::ShardedOptimizer both{
      comm, {{.name = "w", .shape = {3}}, {.name = "v", .shape = {3}, .group = "w"}}};
  CHECK(refusal([&] { both.set_lr("w", 1.f); }) ==
        "'w' is a group, and a tensor that is not of it: give one of them another name");
  CHECK(refusal([&] {
          zero::ShardedOptimizer tied{comm,
                                      {{.name = "w", .shape = {3}},
                                       {.name = "v", .shape = {3}, .tied_to = "w", .group = "g"}}};
        }) == "tensor 'v' is tied to 'w', which is of another group");
}

TEST_CASE("ranks agree on groups when they are made") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    std::string message;
    try {
      zero::ShardedOptimizer{comm,
                             {{.name = "w", .shape = {3}, .group = comm.rank() == 0 ? "a" : "b"}}};
    } catch (zero::Error const& error) {
      message = error.message();
    }
    CHECK(message == "ranks disagree on tensor 0, here 'w', group: 'a' on rank 0; 'b' on rank 1");
  });
}

/// One without `fields()`: its learning rate is what is known of it.
struct Bare {
  static constexpr std::string_view name = "bare";
  static constexpr std::array<zero::StateArray, 0> states{};
  double lr = 1.;
  [[nodiscard]] zero::StepScalars scalars(long, float now, float scale, float) const noexcept {
    return {.learning_rate = now * scale};
  }
  template <class V>
  void update(zero::StepScalars const& s, V& p, V const& g, V*) const noexcept {
    p = p - s.learning_rate * g;
  }
  friend constexpr bool operator==(Bare const&, Bare const&) = default;
};

TEST_CASE("a rule that lists no fields has groups, too") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    zero::ShardedOptimizer opt{
        comm, {{.name = "w", .shape = {3}}, {.name = "v", .shape = {3}, .group = "g"}}, Bare{}};
    opt.adopt_parameters();
    opt.set_lr("g", comm.rank() == 0 ? 0.5f : 0.25f);
    CHECK(refusal([&] { opt.step(); }) ==
          differ + "tensor 'v' of group 'g', rule.lr: 0.5 on rank 0; 0.25 on rank 1");
    opt.set_rule("g", {.lr = 0.25});
    auto gradients = opt.gradients(0);
    for (std::size_t t = 0; t < 2; ++t) {
      for (float& g : gradients[t]) g = 1.f;
    }
    opt.reduce(std::move(gradients));
    opt.step();
    auto const all = opt.full_parameters();
    CHECK(all[0][2] == -1.f);
    CHECK(all[1][2] == -0.25f);
  });
}

}  // namespace
}  // namespace groups_test
