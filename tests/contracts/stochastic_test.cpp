/// What is rounded stochastically has the bits of its definition, element by element: whatever the
/// stage, the ranks, the buckets, the memory, and after a resume.
#include "contracts/ranks.hpp"
#include "support/kinds_model.hpp"
#include "support/lent_memory.hpp"
#include "support/sanitized.hpp"
#include "support/test.hpp"
#include "zero/comm/grid.hpp"
#include "zero/kernel/random_bits.hpp"
#include "zero/kernel/update.hpp"
#include "zero/zero.hpp"

#include <array>
#include <map>

namespace stochastic_contract_test {
namespace {

using contracts::on_ranks;
using zero::bf16;
using zero::InProcess;
using zero::Seed;
using zero::Tensor;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;
using Rest8 = zero::Mixed<bf16, zero::Rest8>;
using Alone = zero::Bf16<zero::StochasticRounding>;

// What is watched needs twenty times as long, and more ranks and steps run the same code again.
using toy::worlds;
constexpr std::size_t steps = toy::sanitized ? 3 : 6;
constexpr std::size_t skipped = 2;
constexpr double max_norm = 40.;
constexpr zero::AdamW rule{.lr = 0.01f, .weight_decay = 0.1f};

/// Narrow states of an own precision, beside fp32 masters.
struct NarrowStates : zero::Mixed<bf16> {
  static constexpr std::string_view name = "narrow states";
  using State = bf16;
  friend bool operator==(NarrowStates const&, NarrowStates const&) = default;
};
/// And beside remainders of 8 bits.
struct NarrowThroughout : Rest8 {
  static constexpr std::string_view name = "narrow throughout";
  using State = bf16;
  friend bool operator==(NarrowThroughout const&, NarrowThroughout const&) = default;
};

/// Odd, tiny, tied, stacked, frozen and empty tensors, one that rests now and then, and two without
/// a gap between them.
std::vector<Tensor> model() {
  return {{.name = "wte", .shape = {37, 5}, .unit = 0},
          {.name = "w", .shape = {4097}, .unit = 1},
          {.name = "b", .shape = {}, .unit = 1, .weight_decay = 0.},
          {.name = "stack", .shape = {3, 35, 20}, .unit = 1, .stacked = true},
          {.name = "none", .shape = {0, 7}, .unit = 2},
          {.name = "ln", .shape = {511}, .unit = 2, .weight_decay = 0., .learning_rate = 0.5},
          {.name = "rests", .shape = {77}, .unit = 2},
          {.name = "near", .shape = {2, 32}, .unit = 2},
          {.name = "by", .shape = {96}, .unit = 2},
          {.name = "fixed", .shape = {40}, .unit = 3, .frozen = true},
          {.name = "head", .shape = {37, 5}, .unit = 3, .tied_to = "wte"}};
}
constexpr std::size_t resting = 6;
bool rests(std::size_t t, std::size_t step) { return t == resting && step % 3 == 1; }

float initial(std::size_t t, std::size_t element) { return toy::uniform(t, element, 1) - 0.5f; }

/// Multiples of 2^-4 that are exact in bf16, as are the sums of all ranks in any grouping.
float part(std::size_t t, std::size_t element, std::size_t step, int rank, int ranks) {
  auto const whole = [&](float range, std::uint64_t more) {
    return std::floor((toy::uniform(t, element, step * 97 + more) - 0.5f) * range);
  };
  if (rank + 1 < ranks) return whole(8.f, static_cast<std::uint64_t>(rank) + 1) / 16.f;
  float sum = whole(48.f, 0);
  for (int other = 0; other < rank; ++other) {
    sum -= whole(8.f, static_cast<std::uint64_t>(other) + 1);
  }
  return sum / 16.f;
}

/// Numbers of one element, widened.
struct Element {
  float master = 0.f;
  std::array<float, 2> state{};
  bf16 parameter{};
};
using Elements = std::map<std::string, std::vector<Element>>;

/// What a definition makes of a float, as a float.
float narrow(float x, std::uint32_t random, std::uint32_t cut) {
  auto const word = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((word + random) & ~cut);
}

/// One element after the other, with nothing of the engine but the element function of the rule.
template <class P>
class Reference {
 public:
  static constexpr bool masters = zero::RemainderPrecision<P>;
  static constexpr bool alone = !zero::has_master<P>;

  explicit Reference(Seed seed, std::uint64_t cut = 0) : seed_(seed.value), part_(cut) {
    auto const tensors = model();
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (!tensors[t].tied_to.empty() || tensors[t].frozen) continue;
      auto& own = now[tensors[t].name];
      for (std::size_t i = 0; i < zero::element_count(tensors[t]); ++i) {
        float const x = initial(t, i);
        float const value = alone     ? static_cast<float>(bf16(x))
                            : masters ? narrow(x, 0x80, 0xff)
                                      : x;
        own.push_back({value, {}, parameter(value)});
      }
    }
  }

  void step(std::size_t number) {
    if (number == skipped) return;
    auto const tensors = model();
    double squares = 0.;
    std::map<std::string, std::vector<float>> gradients;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (tensors[t].frozen || rests(t, number)) continue;
      bool const tied = !tensors[t].tied_to.empty();
      auto& sums = gradients[tied ? tensors[t].tied_to : tensors[t].name];
      sums.resize(zero::element_count(tensors[t]));
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += part(t, i, number, 0, 1);
    }
    for (auto const& [name, sums] : gradients) {
      for (float const each : sums) squares += double{each} * double{each};
    }
    double const norm = std::sqrt(squares);
    double const scale = norm > max_norm ? max_norm / norm : 1.;
    for (auto const& tensor : tensors) {
      if (!gradients.contains(tensor.name)) continue;
      auto const count = static_cast<std::uint64_t>(++counts_[tensor.name]);
      auto const scalars = rule.scalars(static_cast<long>(count),
                                        static_cast<float>(rule.lr),
                                        static_cast<float>(tensor.learning_rate),
                                        static_cast<float>(tensor.weight_decay));
      auto const random = [&]<class Bits>(Bits, std::uint64_t array, std::size_t i) {
        auto const key = zero::kernel::random_key(tensor.name, tensor.partitioned ? part_ : 0);
        auto const stream =
            zero::kernel::random_stream(zero::kernel::random_key(key, array), seed_, count);
        return std::uint32_t{zero::kernel::random_bits<Bits>(stream, i)};
      };
      auto& own = now[tensor.name];
      for (std::size_t i = 0; i < own.size(); ++i) {
        Element& each = own[i];
        float const gradient = gradients[tensor.name][i];
        zero::UpdateArrays<float, float, float, float, 2> one;
        one.master = &each.master;
        one.gradient = &gradient;
        one.state = {&each.state[0], &each.state[1]};
        one.count = 1;
        zero::kernel::update(rule, scalars, scale, one);
        if (masters) each.master = narrow(each.master, random(std::uint8_t{}, 0, i), 0xff);
        if (alone) each.master = narrow(each.master, random(std::uint16_t{}, 0, i), 0xffff);
        each.parameter = parameter(each.master);
        if constexpr (std::is_same_v<typename P::State, bf16>) {
          for (std::size_t k = 0; k < 2; ++k) {
            each.state[k] = narrow(each.state[k], random(std::uint16_t{}, k + 1, i), 0xffff);
          }
        }
      }
    }
  }

  Elements now{};

 private:
  [[nodiscard]] static bf16 parameter(float master) {
    if (!masters) return bf16(master);
    bf16 rounded;
    rounded.bits =
        static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(master) + 0x8000u) >> 16);
    return rounded;
  }

  std::uint64_t seed_;
  std::uint64_t part_;
  std::map<std::string, long> counts_{};
};

constexpr Seed seed{0x123456789abcdefu};

/// All elements after each step; the first are those that were loaded.
template <class P>
std::vector<Elements> const& trajectory() {
  static auto const all = [] {
    Reference<P> reference(seed);
    std::vector<Elements> found{reference.now};
    for (std::size_t step = 0; step < steps; ++step) {
      reference.step(step);
      found.push_back(reference.now);
    }
    return found;
  }();
  return all;
}

/// Elements of which something is not as expected: what this rank updates, and all parameters.
template <class O>
std::size_t wrong(O& optimizer, Elements const& expected) {
  std::size_t found = 0;
  auto const bits = [](auto const& x) {
    return std::bit_cast<std::uint32_t>(static_cast<float>(x));
  };
  optimizer.visit_owned(
      [&](Tensor const& tensor, std::size_t first, auto masters, auto const& states) {
        auto const& own = expected.at(tensor.name);
        for (std::size_t i = 0; i < masters.size(); ++i) {
          Element const& each = own[first + i];
          bool same = bits(masters[i]) == bits(each.master);
          for (std::size_t k = 0; k < 2; ++k)
            same = same && bits(states[k][i]) == bits(each.state[k]);
          found += same ? 0u : 1u;
        }
      });
  auto const all = optimizer.full_parameters();
  for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
    Tensor const& tensor = optimizer.tensors()[t];
    if (tensor.frozen || !tensor.tied_to.empty()) continue;
    auto const& own = expected.at(tensor.name);
    for (std::size_t i = 0; i < own.size(); ++i) {
      found += all[t][i].bits == own[i].parameter.bits ? 0u : 1u;
    }
  }
  return found;
}

/// The values that all begin with.
template <class O>
auto values_of(O const& optimizer) {
  return [&optimizer](Tensor const& tensor, std::size_t first, std::span<float> out) {
    auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = initial(t, first + i);
  };
}

/// The gradients of this rank, and the step.
/// @param split  into two micro-steps
template <class O>
zero::StepReport train(O& optimizer, std::size_t number, int rank, int ranks, bool split = false) {
  auto const& tensors = optimizer.tensors();
  for (int micro = 0; micro < (split ? 2 : 1); ++micro) {
    // As of one rank: the sum over all is what one would have.
    optimizer.micro_step({.weight = rank == 0 && micro == 0 ? 1. : 0.});
    for (int const unit : optimizer.units_backward()) {
      auto gradients = optimizer.gradients(unit);
      std::size_t use = 0;
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        auto const layer = static_cast<std::size_t>(unit - tensors[t].unit);
        bool const stacked = tensors[t].stacked && unit >= tensors[t].unit && layer < 3;
        if (!stacked && unit != tensors[t].unit) continue;
        auto const out = gradients[use++];
        for (std::size_t i = 0; i < out.size() && !rests(t, number); ++i) {
          std::size_t const element = (stacked ? layer * out.size() : 0) + i;
          float own = part(t, element, number, rank, ranks);
          // Halves of odd numbers would not be: one has what the other lacks.
          if (split) own = micro == 0 ? 0.25f : own - 0.25f;
          if (number == skipped && t == 1 && i == 1000)
            own = std::numeric_limits<float>::infinity();
          out[i] = bf16(static_cast<float>(out[i]) + own);
        }
      }
      if (unit == tensors[resting].unit && rests(resting, number)) {
        optimizer.without_gradient(tensors[resting]);
      }
      optimizer.reduce(std::move(gradients));
    }
  }
  return optimizer.step({.max_norm = max_norm, .non_finite = zero::NonFinite::skip});
}

template <class Stage, class P, class... Accumulation>
void train_all() {
  INFO("stage " << Stage::name << ", " << P::name);
  auto const& expected = trajectory<P>();
  for (int const ranks : worlds) {
    for (std::size_t const bucket : {std::size_t{1}, std::size_t{12'345}, zero::MiB}) {
      CAPTURE(ranks);
      CAPTURE(bucket);
      on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
        contracts::Optimizer<Stage, P, Accumulation...> optimizer{
            comm, model(), zero::Bucket{bucket}, seed, rule};
        if (bucket == 1) {
          optimizer.broadcast_parameters(values_of(optimizer), ranks - 1);
        } else {
          optimizer.load_parameters(values_of(optimizer));
        }
        expect(wrong(optimizer, expected[0]) == 0, "values");
        for (std::size_t number = 0; number < steps; ++number) {
          auto const report =
              train(optimizer, number, comm.rank(), ranks, sizeof...(Accumulation) != 0);
          expect(report.skipped == (number == skipped), "skips");
          expect(wrong(optimizer, expected[number + 1]) == 0,
                 "step " + std::to_string(number) + ": " +
                     std::to_string(wrong(optimizer, expected[number + 1])) + " are wrong");
        }
        optimizer.check_parameters();
        expect(optimizer.held() == optimizer.plan().memory, "what is held");
      });
    }
  }
}

}  // namespace

static_assert(zero::model_states<Rest8, zero::AdamW> == zero::ModelStates{2, 2, 9});
static_assert(zero::model_states<Alone, zero::AdamW> == zero::ModelStates{2, 2, 4});
static_assert(zero::model_states<zero::Bf16<zero::StochasticRounding, float>, zero::AdamW> ==
              zero::ModelStates{2, 2, 8});

TEST_CASE_TEMPLATE("masters of 24 bits and bf16 alone have the bits of their definition",
                   Stage,
                   Replicated,
                   Pos,
                   PosG,
                   PosGP) {
  train_all<Stage, Rest8>();
  train_all<Stage, Alone>();
}

TEST_CASE("so have narrow states of other precisions, and sums over micro-steps") {
  train_all<Replicated, NarrowStates>();
  train_all<PosGP, NarrowThroughout>();
  train_all<PosG, Rest8, zero::AccumulateShard>();
  train_all<Pos, Alone, zero::AccumulateFull>();
}

TEST_CASE_TEMPLATE("the same in memory that is lent, and that the host cannot reach",
                   P,
                   Rest8,
                   Alone,
                   NarrowThroughout) {
  auto const& expected = trajectory<P>();
  for (int const ranks : {1, 3}) {
    on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
      for (bool const flat : {false, true}) {
        toy::LentMemory<bf16, bf16, zero::space::Host, zero::HostAllocator> memory{
            {}, {}, model(), flat};
        contracts::Optimizer<PosG, P, zero::Borrowed<>> lent{
            comm, model(), zero::Bucket{5000}, seed, rule};
        memory.bind_to(lent);
        lent.load_parameters(values_of(lent));
        for (std::size_t number = 0; number < 3; ++number) {
          memory.zero_gradients();
          train(lent, number, comm.rank(), ranks);
          expect(wrong(lent, expected[number + 1]) == 0, "lent");
        }
        expect(memory.intact(), "what is not lent");
      }
      contracts::OnHost<PosG, P> host{comm};
      contracts::OnDevice<PosG, P> device{comm};
      for (float const value : {0.5f, -2.f, 0.25f}) {
        contracts::constant_pass(host, value);
        host.optimizer.step();
        contracts::constant_pass(device, value);
        device.optimizer.step();
      }
      device.device.synchronize();
      expect(contracts::owned_bits(device.optimizer) == contracts::owned_bits(host.optimizer),
             "what a device holds");
    });
  }
}

TEST_CASE("beside tensors of another type") {
  for (int const ranks : {1, 3}) {
    on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
      auto const train = [&](auto& optimizer) {
        optimizer.load_parameters(kinds_model::fill);
        optimizer.load_bytes(kinds_model::fill_bytes);
        for (long number = 0; number < 3; ++number) {
          kinds_model::pass(optimizer, number, comm.rank(), kinds_model::type_of, expect);
          optimizer.step({.max_norm = 10.});
        }
        optimizer.check_parameters();
        return kinds_model::bits(optimizer);
      };
      auto const compare = [&]<class P>(std::type_identity<P>) {
        using Types = zero::ByTensor<P, zero::Fp32>;
        contracts::Optimizer<PosGP, Types> one{comm, kinds_model::model(), zero::Bucket{1}, seed};
        contracts::Optimizer<Pos, Types> other{
            comm, kinds_model::model(), zero::Bucket{5000}, seed};
        contracts::Optimizer<Pos, Types> third{comm, kinds_model::model(), Seed{1}};
        auto const wanted = train(one);
        expect(train(other) == wanted, "the same bits");
        expect(train(third) != wanted, "other bits of another seed");
      };
      compare(std::type_identity<Rest8>());
      compare(std::type_identity<Alone>());
    });
  }
}

TEST_CASE("another seed has other bits, and nobody has one where nothing is random") {
  auto const& expected = trajectory<Alone>();
  on_ranks(2, [&](InProcess& comm, auto const& expect) {
    contracts::Optimizer<PosG, Alone> optimizer{comm, model(), Seed{seed.value + 1}, rule};
    optimizer.load_parameters(values_of(optimizer));
    train(optimizer, 0, comm.rank(), 2);
    expect(wrong(optimizer, expected[1]) > 1000, "most are different");
    // One word of a seed, and none elsewhere.
    zero::PlanOptions const options{.world_size = 2};
    auto const control = [&](zero::Plan const& plan) { return plan.memory[zero::Role::control]; };
    using Even = contracts::Optimizer<PosG, zero::Mixed<bf16>>;
    auto const without = control(Even::plan(options, model()));
    expect(control(Even::plan(options, model(), Seed{7})) == without, "no seed is held");
    expect(control(optimizer.plan()) == without + sizeof(Seed), "one is");
    Even any{comm, model(), Seed{static_cast<std::uint64_t>(comm.rank())}};
  });
  auto const said = contracts::endings(
      2,
      [](InProcess& comm) {
        contracts::Optimizer<PosG, Alone> optimizer{
            comm, model(), Seed{(std::uint64_t{1} << 63) + static_cast<unsigned>(comm.rank())}};
      },
      true);
  CHECK_MESSAGE(said[0].find("ranks disagree on seed: 9223372036854775808 on rank 0; "
                             "9223372036854775809 on rank 1") != std::string::npos,
                said[0]);
}

TEST_CASE("a run that is resumed by hand goes on with its bits") {
  auto const& expected = trajectory<NarrowThroughout>();
  on_ranks(3, [&](InProcess& comm, auto const& expect) {
    contracts::Optimizer<PosG, NarrowThroughout> whole{comm, model(), zero::Bucket{1}, seed, rule};
    whole.load_parameters(values_of(whole));
    for (std::size_t number = 0; number < 2; ++number) train(whole, number, comm.rank(), 3);
    contracts::Optimizer<Pos, NarrowThroughout> half{comm, model(), zero::Bucket{5000}, seed, rule};
    half.load_parameters(values_of(half));
    half.fill_owned([&](Tensor const& tensor, std::size_t first, auto masters, auto const& states) {
      auto const& own = expected[2].at(tensor.name);
      for (std::size_t i = 0; i < masters.size(); ++i) {
        masters[i] = own[first + i].master;
        for (std::size_t k = 0; k < 2; ++k) states[k][i] = bf16(own[first + i].state[k]);
      }
    });
    half.restore(whole.counters());
    for (std::size_t number = 2; number < steps; ++number) {
      train(half, number, comm.rank(), 3);
      expect(wrong(half, expected[number + 1]) == 0, "step " + std::to_string(number));
    }
  });
}

TEST_CASE("parts that a model axis cuts have random bits of their own, and others the same") {
  using O = contracts::Optimizer<PosG, Alone>;
  std::vector<std::vector<float>> shared(4);
  std::vector<std::vector<float>> cut(4);
  zero::run_ranks(4, [&](InProcess& world) {
    zero::Grid<InProcess> grid(world, 2, 2);
    O optimizer{
        grid,
        {{.name = "all", .shape = {700}}, {.name = "cut", .shape = {700}, .partitioned = true}},
        seed};
    optimizer.load_parameters([](Tensor const&, std::size_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 1.f);
    });
    for (int step = 0; step < 4; ++step) {
      auto gradients = optimizer.gradients(0);
      for (std::size_t t = 0; t < 2; ++t) {
        for (bf16& each : gradients[t]) each = bf16(0.5f);
      }
      optimizer.reduce(std::move(gradients));
      optimizer.step();
    }
    auto const all = optimizer.full_parameters();
    auto const rank = static_cast<std::size_t>(world.rank());
    for (bf16 const each : all[0]) shared[rank].push_back(static_cast<float>(each));
    for (bf16 const each : all[1]) cut[rank].push_back(static_cast<float>(each));
  });
  CHECK(shared[0].size() == 700);
  for (std::size_t rank = 1; rank < 4; ++rank) CHECK(shared[rank] == shared[0]);
  CHECK(std::adjacent_find(shared[0].begin(), shared[0].end(), std::not_equal_to<>()) !=
        shared[0].end());
  // Two parts, each on two ranks, and neither rounds as what is not cut.
  auto sorted = cut;
  std::sort(sorted.begin(), sorted.end());
  CHECK(sorted[0] == sorted[1]);
  CHECK(sorted[2] == sorted[3]);
  CHECK(sorted[1] != sorted[2]);
}

TEST_CASE("a write into a parameter is a write of its 24-bit master, but for half a unit of bf16") {
  for (int const ranks : {1, 2}) {
    on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
      std::vector<bf16> lent(3000);
      std::vector<bf16> gradients(3000);
      contracts::Optimizer<Pos, Rest8, zero::Borrowed<>> optimizer{
          comm, {{.name = "w", .shape = {3000}}}};
      std::span<bf16> const parameters(lent);
      optimizer.bind(std::array{parameters}, std::array{std::span<bf16>(gradients)});
      optimizer.load_parameters(values_of(optimizer));
      auto const masters = [&] {
        std::vector<float> all;
        optimizer.visit_owned([&](Tensor const&, std::size_t, auto run, auto const&) {
          all.insert(all.end(), run.begin(), run.end());
        });
        return all;
      };
      auto const low = [](float x) { return std::bit_cast<std::uint32_t>(x) & 0xffffu; };
      auto const before = masters();
      for (bf16& each : lent) each = bf16(2.f * static_cast<float>(each));
      optimizer.check_parameters();
      auto const after = masters();
      bool near = true;
      bool remain = true;
      for (std::size_t i = 0; i < after.size(); ++i) {
        near = near && std::abs(after[i] - 2.f * before[i]) <= std::abs(after[i]) * 0x1p-7f;
        remain = remain && low(after[i]) == low(before[i]);
      }
      expect(near, "masters follow what is written");
      expect(remain, "remainders stay");
      optimizer.adopt_parameters();
      bool exact = true;
      for (float const master : masters()) exact = exact && low(master) == 0;
      expect(exact, "masters are what was written");
      optimizer.check_parameters();
      if (comm.size() == 1) return;
      if (comm.rank() == 1) lent[17] = bf16(99.f);
      std::string said;
      try {
        optimizer.check_parameters();
      } catch (zero::Error const& error) {
        said = error.message();
      }
      expect(said.find("'w'") != std::string::npos, "the tensor is named: " + said);
    });
  }
}

}  // namespace stochastic_contract_test
