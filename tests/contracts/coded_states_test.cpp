/// States of 8 bits: what a step makes of them, element by element, whatever the stage, the ranks
/// and the buckets; which tensors have them; and what they take.
#include "contracts/ranks.hpp"
#include "support/coded_model.hpp"
#include "support/lent_memory.hpp"
#include "support/refusal.hpp"
#include "support/sanitized.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

#include <array>

namespace coded_states_test {
namespace {

using namespace coded_model;
using contracts::on_ranks;
using zero::InProcess;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;

constexpr long steps = toy::sanitized ? 4 : 6;

/// A trainer's own rule: momentum in 8 bits.
struct OwnMomentum {
  static constexpr std::string_view name = "own momentum";
  static constexpr std::array states{
      zero::StateArray{.name = "momentum", .coding = zero::StateCoding::root}};
  double lr = 1e-2;
  double weight_decay = 0.;
  zero::StepScalars scalars(long, float lr_now, float lr_scale, float) const noexcept {
    return {.learning_rate = lr_now * lr_scale};
  }
  template <class V>
  void update(zero::StepScalars const& s, V& p, V const& g, V* state) const noexcept {
    state[0] = 0.75f * state[0] + g;
    p = p - s.learning_rate * state[0];
  }
  [[nodiscard]] OwnMomentum const& full() const noexcept { return *this; }
  [[maybe_unused]] friend bool operator==(OwnMomentum const&, OwnMomentum const&) = default;
};

/// What is wrong with what a rank has, in words; empty if nothing is.
template <class O>
std::string difference(O& optimizer, AllHeld const& wanted) {
  AllHeld own;
  collect(optimizer, own);
  // What this rank does not have is as it should be.
  auto& parts = zero::detail::EngineAccess::engine(optimizer).parts();
  std::string text;
  std::map<std::string, std::vector<std::pair<std::size_t, std::size_t>>> runs;
  parts.held.trained(zero::detail::Extent::updated, [&](auto const& piece) {
    auto const& slice = parts.slices[piece.tensor()];
    runs[parts.described[slice.described].name].emplace_back(slice.first + piece.first(),
                                                             piece.count());
  });
  for (auto const& entry : own) {
    std::string const& name = entry.first;
    HeldTensor const& held = entry.second;
    Tensor const& tensor = *std::find_if(parts.described.begin(),
                                         parts.described.end(),
                                         [&](auto const& t) { return t.name == name; });
    std::size_t const slice = slice_count(tensor);
    std::size_t const groups = (slice + 31) / 32;
    HeldTensor const& right = wanted.at(name);
    if (held.codes.size() != right.codes.size() || held.full.size() != right.full.size()) {
      return name + " is held otherwise";
    }
    auto const compare = [&](auto const& mine, auto const& theirs, char const* what) {
      for (auto const& [first, count] : runs[name]) {
        for (std::size_t i = first; i < first + count && text.empty(); ++i) {
          if (mine(i) == theirs(i)) continue;
          text = what + std::string(" of element ") + std::to_string(i) + " of " + name;
        }
      }
    };
    auto const words_of = [](std::vector<float> const& values) {
      return [&values](std::size_t i) { return word(values[i]); };
    };
    compare(words_of(held.masters), words_of(right.masters), "the master");
    for (auto const& [array, values] : held.full) {
      compare(words_of(values), words_of(right.full.at(array)), array.c_str());
    }
    auto const bytes_of = [](std::vector<std::uint8_t> const& bytes, auto const& place) {
      return [&bytes, place](std::size_t i) { return bytes[place(i)]; };
    };
    auto const code = [](std::size_t i) { return i; };
    auto const group = [=](std::size_t i) { return i / slice * groups + i % slice / 32; };
    for (auto const& [array, codes] : held.codes) {
      compare(bytes_of(codes, code), bytes_of(right.codes.at(array), code), "the code");
      compare(bytes_of(held.scales.at(array), group),
              bytes_of(right.scales.at(array), group),
              "the scale");
    }
  }
  return text;
}

template <class R>
R rule() {
  R rule;
  rule.lr = 1e-2;
  rule.weight_decay = 0.1;
  return rule;
}
/// The runs of the reference, after each step.
template <class R>
std::vector<AllHeld> const& wanted() {
  static std::vector<AllHeld> const all = [] {
    Reference<R> reference(rule<R>());
    std::vector<AllHeld> result{reference.held()};
    for (long number = 0; number < steps; ++number) {
      reference.step(number);
      result.push_back(reference.held());
    }
    return result;
  }();
  return all;
}

/// A step of gradients that are the same on all ranks, whose mean they are in any type.
template <class O>
void constant(O& optimizer, long number) {
  for (int const unit : optimizer.units_backward()) {
    auto gradients = optimizer.gradients(unit);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      using G = std::remove_cvref_t<decltype(gradients[i][0])>;
      for (std::size_t e = 0; e < gradients[i].size(); ++e) {
        gradients[i][e] = G(static_cast<float>(static_cast<long>(e % 13) - 6 + number) * 0.125f);
      }
    }
    optimizer.reduce(std::move(gradients));
  }
  optimizer.step();
}

template <class Stage, class Precision, class R, class... Accumulation>
void train_all() {
  INFO("stage " << Stage::name << ", rule " << R::name);
  for (int const ranks : toy::worlds) {
    for (std::size_t const bucket : {std::size_t{1}, std::size_t{12'345}, zero::MiB}) {
      if (toy::sanitized && bucket != 1) continue;
      CAPTURE(ranks);
      CAPTURE(bucket);
      on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
        contracts::Optimizer<Stage, Precision, R, Accumulation...> optimizer{
            comm, model(), rule<R>(), zero::Bucket{bucket}};
        optimizer.load_parameters(fill);
        for (long number = 0; number <= steps; ++number) {
          std::string const at = " after step " + std::to_string(number);
          std::string const wrong =
              difference(optimizer, wanted<R>()[static_cast<std::size_t>(number)]);
          expect(wrong.empty(), wrong + at);
          if (number == steps || !wrong.empty()) break;
          auto const report = step(optimizer, number, comm.rank(), ranks);
          expect(report.skipped == (kind_of(number) == Kind::skipped), "skipping" + at);
        }
        optimizer.check_parameters();
        auto const plan = optimizer.plan();
        expect(optimizer.held() == plan.memory, "what is held");
        std::uint64_t states = 0;
        for (auto const& array : plan.state_arrays) states += array.bytes;
        expect(states == plan.memory[zero::Role::state], "states by their names");
      });
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("states of 8 bits are those of the definition, wherever they are updated",
                   Stage,
                   Replicated,
                   Pos,
                   PosG,
                   PosGP) {
  train_all<Stage, zero::Fp32, zero::AdamW8bit>();
}

TEST_CASE("the same of other rules, masters and sums") {
  train_all<PosG, zero::Fp32, zero::Adam8bit>();
  train_all<PosGP, zero::Fp32, zero::Lion8bit>();
  train_all<PosGP, zero::Fp32, OwnMomentum>();
  train_all<PosG, zero::Fp32, zero::AdamW8bit, zero::AccumulateShard>();
}

TEST_CASE("states are coded alike beside masters in full and as remainders") {
  using Away = zero::Mixed<zero::bf16, zero::HalfAway>;
  using Rest = zero::Mixed<zero::bf16, zero::Rest16>;
  std::mutex mutex;
  AllHeld first;
  for (int const ranks : {1, 3}) {
    AllHeld all;
    AllHeld rests;
    on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
      contracts::Optimizer<PosG, Away, zero::AdamW8bit> fp32{
          comm, model(), rule<zero::AdamW8bit>(), zero::Bucket{1}};
      contracts::Optimizer<Replicated, Rest, zero::AdamW8bit> parts{
          comm, model(), rule<zero::AdamW8bit>(), zero::Bucket{12'345}};
      for (long number = -1; number < 3; ++number) {
        if (number < 0) fp32.load_parameters(fill);
        if (number < 0) parts.load_parameters(fill);
        if (number >= 0) constant(fp32, number);
        if (number >= 0) constant(parts, number);
      }
      expect(contracts::model_bits(fp32) == contracts::model_bits(parts), "parameters");
      std::lock_guard const lock(mutex);
      collect(fp32, all);
      collect(parts, rests);
    });
    CHECK(all == rests);
    if (ranks == 1) first = all;
    CHECK(all == first);
  }
}

TEST_CASE("the same in memory that is lent") {
  for (int const ranks : {1, 3}) {
    on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
      auto const train = [&](auto& lent, auto& memory) {
        memory.bind_to(lent);
        lent.load_parameters(fill);
        AllHeld const own = Reference<zero::AdamW8bit>(rule<zero::AdamW8bit>()).held();
        expect(difference(lent, own).empty(), "states to begin with");
        for (long number = 0; number < 2; ++number) {
          memory.zero_gradients();
          step(lent, number, comm.rank(), ranks);
          std::string const wrong =
              difference(lent, wanted<zero::AdamW8bit>()[static_cast<std::size_t>(number) + 1]);
          expect(wrong.empty(), wrong);
        }
        expect(memory.intact(), "what is not lent");
      };
      for (bool const flat : {false, true}) {
        toy::LentMemory<float, float, zero::space::Host, zero::HostAllocator> memory{
            {}, {}, model(), flat};
        contracts::Optimizer<Replicated, zero::Fp32, zero::AdamW8bit, zero::Borrowed<>> whole{
            comm, model(), rule<zero::AdamW8bit>(), zero::Bucket{5000}};
        train(whole, memory);
        contracts::Optimizer<PosG, zero::Fp32, zero::AdamW8bit, zero::Borrowed<>> shares{
            comm, model(), rule<zero::AdamW8bit>(), zero::Bucket{5000}};
        train(shares, memory);
      }
    });
  }
}

TEST_CASE("another seed is other codes, and the same masters in the first step") {
  AllHeld held[2];
  for (std::uint64_t const seed : {0u, 7u}) {
    on_ranks(1, [&](InProcess& comm, auto const& expect) {
      contracts::Optimizer<PosG, zero::Fp32, zero::AdamW8bit> optimizer{
          comm, model(), rule<zero::AdamW8bit>(), zero::Seed{seed}};
      optimizer.load_parameters(fill);
      step(optimizer, 0, 0, 1);
      Reference<zero::AdamW8bit> reference(rule<zero::AdamW8bit>(), seed);
      reference.step(0);
      expect(difference(optimizer, reference.held()).empty(), "its seed");
      collect(optimizer, held[seed / 7]);
    });
  }
  CHECK(held[0].at("torchao").masters == held[1].at("torchao").masters);
  CHECK(held[0].at("torchao").codes != held[1].at("torchao").codes);
  CHECK(held[0].at("full") == held[1].at("full"));
}

TEST_CASE("states of 8 bits take 2.0625 and 1.03125 bytes of an element") {
  std::vector<Tensor> const tensors{{.name = "w", .shape = {1 << 20}}};
  auto const bytes = []<class R>(R const& rule, std::vector<Tensor> const& all) {
    contracts::Alone<contracts::Optimizer<PosG, zero::Fp32, R>> one(all, rule);
    auto const plan = one.optimizer.plan();
    CHECK(one.optimizer.held() == plan.memory);
    CHECK(to_string(plan).find(" codes ") != std::string::npos);
    return static_cast<double>(plan.memory[zero::Role::state]) / (1 << 20);
  };
  CHECK(bytes(zero::AdamW8bit(), tensors) == 2.0625);
  CHECK(bytes(zero::Adam8bit(), tensors) == 2.0625);
  CHECK(bytes(zero::Lion8bit(), tensors) == 1.03125);
  contracts::Alone<contracts::Optimizer<PosG, zero::Fp32, zero::AdamW8bit>> one(tensors,
                                                                                zero::AdamW8bit());
  CHECK(to_string(one.optimizer.plan()).find("2.0625Ψ/N") != std::string::npos);
  // The parts of the states are those of a rule in full where nothing is large enough.
  std::vector<Tensor> const small{{.name = "w", .shape = {256, 4095}, .stacked = true}};
  contracts::Alone<contracts::Optimizer<PosG, zero::Fp32, zero::AdamW8bit>> full(small,
                                                                                 zero::AdamW8bit());
  contracts::Alone<contracts::Optimizer<PosG, zero::Fp32, zero::AdamW>> adamw(small, zero::AdamW());
  CHECK(full.optimizer.plan().memory[zero::Role::state] ==
        adamw.optimizer.plan().memory[zero::Role::state]);
}

TEST_CASE("a fill that changes nothing leaves codes as they are, and what it changes is coded") {
  on_ranks(2, [&](InProcess& comm, auto const& expect) {
    contracts::Optimizer<PosG, zero::Fp32, zero::AdamW8bit> optimizer{
        comm, model(), rule<zero::AdamW8bit>(), zero::Bucket{1}};
    optimizer.load_parameters(fill);
    for (long number = 0; number < steps; ++number) step(optimizer, number, comm.rank(), 2);
    optimizer.fill_owned([](Tensor const&, std::size_t, auto, auto const&) {});
    auto const& before = wanted<zero::AdamW8bit>().back();
    expect(difference(optimizer, before).empty(), "a fill of nothing");
    // One element of one group; its neighbours are rounded to nearest anew.
    optimizer.fill_owned(
        [](Tensor const& tensor, std::size_t first, auto masters, auto const& states) {
          if (tensor.name != "torchao" || first > 64 || first + masters.size() <= 64) return;
          states[0][64 - first] = 8.f;
          states[1][64 - first] = 4.f;
        });
    AllHeld after = before;
    HeldTensor& held = after.at("torchao");
    for (bool const sign : {true, false}) {
      std::string const array = sign ? "exp_avg" : "exp_avg_sq";
      std::array<float, 32> values{};
      for (std::size_t i = 0; i < 32; ++i) {
        values[i] = decoded(sign, held.codes[array][64 + i], held.scales[array][2]);
      }
      values[0] = sign ? 8.f : 4.f;
      held.scales[array][2] = scale_of(sign, values);
      for (std::size_t i = 0; i < 32; ++i) {
        held.codes[array][64 + i] = nearest(sign, values[i], held.scales[array][2]);
      }
    }
    std::string const wrong = difference(optimizer, after);
    expect(wrong.empty(), wrong);
  });
}

TEST_CASE("what is filled is shown, in tensors of several chunks") {
  zero::Self comm;
  std::vector<Tensor> const tensors{{.name = "w", .shape = {20'001}}};
  zero::ShardedOptimizer optimizer{comm, tensors, zero::AdamW8bit()};
  optimizer.adopt_parameters();
  // Powers of two, which are scales of their groups.
  auto const root = [](std::size_t i) { return std::ldexp(1.f, -static_cast<int>(i / 32 % 50)); };
  optimizer.fill_owned([&](Tensor const&, std::size_t first, auto masters, auto const& states) {
    for (std::size_t i = 0; i < masters.size(); ++i) {
      states[0][i] = -root(first + i);
      states[1][i] = root(first + i) * root(first + i);
    }
  });
  std::size_t right = 0;
  optimizer.visit_owned([&](Tensor const&, std::size_t first, auto masters, auto const& states) {
    for (std::size_t i = 0; i < masters.size(); ++i) {
      float const value = root(first + i);
      right += states[0][i] == -value && states[1][i] == value * value ? 1u : 0u;
    }
  });
  CHECK(right == 20'001);
}

TEST_CASE("what is coded is described alike: by ranks, and by what is tied") {
  auto handles = InProcess::group(1);
  auto tensors = model();
  tensors.back().full_states = true;
  CHECK(refusal([&] {
          contracts::Optimizer<PosG, zero::Fp32, zero::AdamW8bit> optimizer{
              handles[0], tensors, zero::AdamW8bit()};
        }) == "tensor 'head' is tied to 'wte', but only one of them has its states in full");
  auto const said = contracts::endings(2, [&](InProcess& comm) {
    auto own = model();
    own[1].full_states = comm.rank() == 1;
    contracts::Optimizer<PosG, zero::Fp32, zero::AdamW8bit> optimizer{comm, own, zero::AdamW8bit()};
  });
  for (std::string const& each : said) {
    CHECK_MESSAGE(each.find("full states flag: 0 on rank 0; 1 on rank 1") != std::string::npos,
                  each);
  }
}

TEST_CASE("means of squares follow gradients that fall, as those in float do") {
  // Half of each group's gradients fall to a quarter.
  constexpr std::size_t count = 4096;
  constexpr long settled = toy::sanitized ? 50 : 500;
  constexpr long later = toy::sanitized ? 400 : 4000;
  auto const gradient = [](std::size_t i, long number) {
    float const u = toy::uniform(3, i, static_cast<std::uint64_t>(number)) - 0.5f;
    return i % 2 == 1 && number >= settled ? u / 4 : u;
  };
  std::vector<Tensor> const tensors{{.name = "w", .shape = {count}}};
  zero::Self comm;
  auto const roots = [&]<class R>(R const& rule) {
    zero::ShardedOptimizer<zero::Self, Replicated, zero::Fp32, R> optimizer{comm, tensors, rule};
    optimizer.load_parameters(
        [](Tensor const&, std::size_t, std::span<float> out) { std::ranges::fill(out, 0.f); });
    for (long number = 0; number < settled + later; ++number) {
      auto gradients = optimizer.gradients(0);
      for (std::size_t i = 0; i < count; ++i) gradients[0][i] = gradient(i, number);
      optimizer.reduce(std::move(gradients));
      optimizer.step();
    }
    std::vector<float> all;
    optimizer.visit_owned([&](Tensor const&, std::size_t, auto, auto const& states) {
      for (float const v : states[1]) all.push_back(std::sqrt(v));
    });
    return all;
  };
  // As many fewer steps are remembered.
  constexpr double beta2 = toy::sanitized ? 0.99 : 0.999;
  auto const full = roots(zero::AdamW{.beta2 = beta2});
  auto const coded = roots(zero::AdamW8bit{.beta2 = beta2});
  std::vector<float> ratios;
  double sum = 0.;
  for (std::size_t i = 1; i < count; i += 2) {
    ratios.push_back(coded[i] / full[i]);
    sum += double{ratios.back()};
  }
  std::ranges::sort(ratios);
  double const mean = sum / static_cast<double>(ratios.size());
  MESSAGE("mean " << mean << ", 10 to 90 %: " << ratios[ratios.size() / 10] << " to "
                  << ratios[ratios.size() * 9 / 10]);
  CHECK(mean > 0.98);
  CHECK(mean < 1.02);
  CHECK(ratios[ratios.size() / 10] > 0.85f);
  CHECK(ratios[ratios.size() * 9 / 10] < 1.2f);
}

}  // namespace coded_states_test
