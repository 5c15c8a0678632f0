/// Masters as 16-bit remainders: bit for bit the training of fp32 masters whose parameters are
/// rounded half away from zero, and what a write into a parameter does.
#include "contracts/ranks.hpp"
#include "support/kinds_model.hpp"
#include "support/lent_memory.hpp"
#include "support/refusal.hpp"
#include "support/sanitized.hpp"
#include "support/test.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/zero.hpp"

#include <array>

namespace remainder_contract_test {
namespace {

using contracts::on_ranks;
using zero::bf16;
using zero::InProcess;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;
using Away = zero::Mixed<bf16, zero::HalfAway>;
using Rest = zero::Mixed<bf16, zero::Rest16>;

// What is watched needs twenty times as long, and more ranks and steps run the same code again.
using toy::worlds;
constexpr long steps = toy::sanitized ? 2 : 6;

/// The nearest bf16, of two as near the larger: found by looking at both neighbours.
float half_away(float x) {
  auto const cut = std::bit_cast<std::uint32_t>(x) & 0xffff0000u;
  auto const low = std::bit_cast<float>(cut);
  auto const high = std::bit_cast<float>(cut + 0x10000u);
  double const below = std::abs(double{x} - double{low});
  double const above = std::abs(double{high} - double{x});
  return below < above ? low : high;
}
/// In the middle of two bf16, most of them.
float tie(std::size_t tensor, std::size_t element) {
  float const x = toy::initial_value(tensor, element);
  if (element % 5 == 0) return x;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) & 0xffff0000u) | 0x8000u);
}
template <class O>
auto ties_of(O const& optimizer) {
  return [&optimizer](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
    auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = tie(t, first + i);
  };
}
/// Are all parameters the values they were loaded from, rounded?
template <class O>
bool rounded_ties(O& optimizer) {
  bool right = true;
  auto const all = optimizer.full_parameters();
  for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
    if (!optimizer.tensors()[t].tied_to.empty()) continue;
    for (std::size_t i = 0; i < all[t].size(); ++i) {
      right = right && static_cast<float>(all[t][i]) == half_away(tie(t, i));
    }
  }
  return right;
}

/// Two optimizers that do the same, step by step.
template <class First, class Second, class Expect>
void compare(First& fp32, Second& rests, std::string const& at, Expect const& expect) {
  expect(contracts::snapshot(rests) == contracts::snapshot(fp32), at);
  rests.check_parameters();
}
template <class Optimizer>
zero::StepReport step(Optimizer& optimizer, long number, int rank) {
  toy::Run const run{.fault = {.step = 3}};
  contracts::pass(optimizer, run, number, rank);
  return optimizer.step(
      {.max_norm = number % 2 == 0 ? 5. : 1000., .non_finite = zero::NonFinite::skip});
}

template <class Stage, class... Accumulation>
void train_all() {
  INFO("stage " << Stage::name);
  for (int const ranks : worlds) {
    for (std::size_t const bucket : {std::size_t{1}, std::size_t{12'345}, zero::MiB}) {
      CAPTURE(ranks);
      CAPTURE(bucket);
      on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
        contracts::Optimizer<Stage, Away, Accumulation...> fp32{
            comm, toy::model(), zero::Bucket{bucket}};
        contracts::Optimizer<Stage, Rest, Accumulation...> rests{
            comm, toy::model(), zero::Bucket{bucket}};
        if (bucket == 1) {
          fp32.broadcast_parameters(ties_of(fp32), ranks - 1);
          rests.broadcast_parameters(ties_of(rests), ranks - 1);
        } else {
          fp32.load_parameters(ties_of(fp32));
          rests.load_parameters(ties_of(rests));
        }
        expect(rounded_ties(fp32) && rounded_ties(rests), "values, rounded");
        compare(fp32, rests, "values", expect);
        for (long number = 0; number < steps; ++number) {
          std::string const at = "step " + std::to_string(number);
          auto const wanted = step(fp32, number, comm.rank());
          auto const report = step(rests, number, comm.rank());
          expect(report.skipped == (number == 3) && report.skipped == wanted.skipped, at);
          expect(report.grad_norm == wanted.grad_norm || report.skipped, "norm of " + at);
          compare(fp32, rests, at, expect);
        }
        // Two bytes less for each element that is updated here, and no other difference.
        auto plan = rests.plan();
        expect(rests.held() == plan.memory, "what is held");
        expect(2 * plan.memory[zero::Role::master] == fp32.plan().memory[zero::Role::master],
               "half the bytes of masters");
        plan.memory[zero::Role::master] *= 2;
        expect(plan.memory == fp32.plan().memory, "other bytes");
      });
    }
  }
}

/// Master weights of what this rank updates.
template <class Optimizer>
std::vector<float> masters_of(Optimizer& optimizer) {
  std::vector<float> all;
  optimizer.visit_owned([&](zero::Tensor const&, std::size_t, auto masters, auto const&) {
    all.insert(all.end(), masters.begin(), masters.end());
  });
  return all;
}

}  // namespace

static_assert(zero::model_states<Rest, zero::AdamW> == zero::ModelStates{2, 2, 10});
static_assert(zero::model_states<Away, zero::AdamW> == zero::ModelStates{2, 2, 12});

TEST_CASE_TEMPLATE("remainders train as fp32 masters whose parameters are rounded half away",
                   Stage,
                   Replicated,
                   Pos,
                   PosG,
                   PosGP) {
  train_all<Stage>();
}

TEST_CASE("the same of sums over micro-steps") { train_all<PosG, zero::AccumulateShard>(); }

TEST_CASE_TEMPLATE("the same in memory that is lent, and that the host cannot reach",
                   Stage,
                   Replicated,
                   PosG) {
  for (int const ranks : {1, 3}) {
    on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
      contracts::Optimizer<Stage, Away> fp32{comm, toy::model(), zero::Bucket{5000}};
      fp32.load_parameters(ties_of(fp32));
      for (bool const flat : {false, true}) {
        toy::LentMemory<bf16, bf16, zero::space::Host, zero::HostAllocator> memory{
            {}, {}, toy::model(), flat};
        contracts::Optimizer<Stage, Rest, zero::Borrowed<>> lent{
            comm, toy::model(), zero::Bucket{5000}};
        memory.bind_to(lent);
        lent.load_parameters(ties_of(lent));
        contracts::Optimizer<Stage, Away> own{comm, toy::model(), zero::Bucket{1}};
        own.load_parameters(ties_of(own));
        for (long number = 0; number < 3; ++number) {
          memory.zero_gradients();
          step(lent, number, comm.rank());
          step(own, number, comm.rank());
          expect(contracts::model_bits(lent) == contracts::model_bits(own), "lent parameters");
        }
        expect(memory.intact(), "what is not lent");
      }
      contracts::OnHost<Stage, Rest> host{comm};
      contracts::OnDevice<Stage, Rest> device{comm};
      for (float const value : {0.5f, -2.f, 0.25f}) {
        contracts::constant_pass(host, value);
        host.optimizer.step();
        contracts::constant_pass(device, value);
        device.optimizer.step();
      }
      device.device.synchronize();
      expect(contracts::owned_bits(device.optimizer) == contracts::owned_bits(host.optimizer),
             "masters of a device");
    });
  }
}

TEST_CASE("beside tensors of another type") {
  using Ones = zero::ByTensor<Away, zero::Fp32>;
  using Others = zero::ByTensor<Rest, zero::Fp32>;
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
      contracts::Optimizer<PosGP, Ones> fp32{comm, kinds_model::model(), zero::Bucket{1}};
      contracts::Optimizer<Pos, Others> rests{comm, kinds_model::model(), zero::Bucket{5000}};
      auto const wanted = train(fp32);
      expect(train(rests) == wanted, "the bits of fp32 masters");
    });
  }
}

TEST_CASE("a run that is resumed by hand goes on with its bits") {
  on_ranks(3, [&](InProcess& comm, auto const& expect) {
    contracts::Optimizer<PosG, Rest> whole{comm, toy::model(), zero::Bucket{1}};
    whole.load_parameters(ties_of(whole));
    for (long number = 0; number < 2; ++number) step(whole, number, comm.rank());
    contracts::Optimizer<PosG, Rest> half{comm, toy::model(), zero::Bucket{1}};
    // What is frozen comes from elsewhere.
    half.load_parameters(ties_of(half));
    std::vector<float> saved;
    whole.visit_owned([&](zero::Tensor const&, std::size_t, auto masters, auto const& states) {
      saved.insert(saved.end(), masters.begin(), masters.end());
      for (auto const& state : states) saved.insert(saved.end(), state.begin(), state.end());
    });
    std::size_t at = 0;
    half.fill_owned([&](zero::Tensor const&, std::size_t, auto masters, auto const& states) {
      for (auto& master : masters) master = saved[at++];
      for (auto const& state : states) {
        for (auto& each : state) each = saved[at++];
      }
    });
    half.restore(whole.counters());
    compare(whole, half, "what was resumed", expect);
    for (long number = 2; number < 5; ++number) {
      step(whole, number, comm.rank());
      step(half, number, comm.rank());
    }
    expect(masters_of(half) == masters_of(whole), "three steps later");
  });
}

TEST_CASE("a write into a parameter is a write of its master, but for half a unit of bf16") {
  for (int const ranks : {1, 2}) {
    on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
      std::vector<zero::Tensor> const model{{.name = "w", .shape = {3000}}};
      std::vector<bf16> lent(3000);
      std::vector<bf16> gradients(3000);
      contracts::Optimizer<Pos, Rest, zero::Borrowed<>> optimizer{comm, model};
      std::span<bf16> const parameters(lent);
      optimizer.bind(std::array{parameters}, std::array{std::span<bf16>(gradients)});
      optimizer.load_parameters(ties_of(optimizer));
      auto const before = masters_of(optimizer);
      // All ranks write: masters follow at once, and nothing is wrong.
      for (bf16& each : lent) each = bf16(2.f * static_cast<float>(each));
      optimizer.check_parameters();
      auto const after = masters_of(optimizer);
      bool near = true;
      bool remain = true;
      auto const word = [](float x) { return std::bit_cast<std::uint32_t>(x) & 0xffffu; };
      for (std::size_t i = 0; i < after.size(); ++i) {
        near = near && std::abs(after[i] - 2.f * before[i]) <= std::abs(after[i]) * 0x1p-7f;
        remain = remain && word(after[i]) == word(before[i]);
      }
      expect(near, "masters follow what is written");
      expect(remain, "remainders stay");
      // Exact once they are adopted.
      optimizer.adopt_parameters();
      bool exact = true;
      for (float const master : masters_of(optimizer)) exact = exact && word(master) == 0;
      expect(exact, "masters are what was written");
      optimizer.check_parameters();
      if (comm.size() == 1) return;
      // One rank alone: found where each has all parameters.
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

TEST_CASE("under Pos+g+p nobody has another copy of a parameter that is written to") {
  on_ranks(2, [&](InProcess& comm, auto const& expect) {
    contracts::Optimizer<PosGP, Rest> rests{comm, {{.name = "w", .shape = {3000}}}};
    rests.load_parameters(ties_of(rests));
    auto const before = masters_of(rests);
    // Where no trainer can write to.
    zero::detail::EngineAccess::engine(rests).parts().held.trained(
        zero::detail::Extent::updated, [&](zero::detail::HeldPiece const& piece) {
          if (comm.rank() == 1) *reinterpret_cast<bf16*>(piece.parameter().first) = bf16(99.f);
        });
    rests.check_parameters();
    bool const follows = std::abs(masters_of(rests).front() - 99.f) < 0.5f;
    expect(follows == (comm.rank() == 1), "its master has followed");
    expect(comm.rank() == 1 || masters_of(rests) == before, "others are as they were");
  });
}

}  // namespace remainder_contract_test
