/// The plan is what is held: every byte, by role, at all times; whoever sees the whole model leaves
/// nothing behind, and one reservation serves an optimizer and its trainer's activations.
#include "zero/memory.hpp"

#include "contracts/heap.hpp"
#include "contracts/lent_memory.hpp"
#include "contracts/ranks.hpp"
#include "support/lent_memory.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/concepts/model_states.hpp"
#include "zero/zero.hpp"

#include <ctime>

namespace memory_test {
namespace {

using Bf16 = zero::Mixed<zero::bf16>;
using contracts::Optimizer;
using zero::Role;

/// What an allocator gave out to one rank.
struct Tally {
  std::uint64_t live = 0;
  std::uint64_t peak = 0;
  std::uint64_t limit = ~std::uint64_t{0};
  bool throws = true;
  std::map<void*, std::size_t> blocks{};
  zero::MemoryBytes told{};  ///< bytes of each role, as the allocator was told
};

/// Not the global operator new, so that heap:: sees everything but the library's planned memory.
struct Tracking {
  Tally* tally = nullptr;

  void* allocate(std::size_t bytes, std::size_t alignment, Role role) {
    void* const memory = allocate(bytes, alignment);
    tally->told[role] += bytes;
    return memory;
  }
  void* allocate(std::size_t bytes, std::size_t alignment) {
    if (tally->live + bytes > tally->limit) {
      if (tally->throws) throw std::bad_alloc();
      return nullptr;
    }
    void* const memory =
        std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    // The library must not count on memory that happens to be zero.
    std::fill_n(static_cast<unsigned char*>(memory), bytes, static_cast<unsigned char>(0xa5));
    tally->blocks[memory] = bytes;
    tally->live += bytes;
    tally->peak = std::max(tally->peak, tally->live);
    return memory;
  }
  void deallocate(void* memory, std::size_t bytes, std::size_t) {
    auto const found = tally->blocks.find(memory);
    if (found == tally->blocks.end() || found->second != bytes) std::abort();
    tally->blocks.erase(found);
    tally->live -= bytes;
    std::free(memory);
  }
};

using Owned = zero::Owned<Tracking>;
using Borrowed = zero::Borrowed<Tracking>;
using InPlace = zero::BorrowedInPlace<Tracking>;

struct Case {
  int ranks = 1;
  std::size_t bucket_bytes = 1;
  int prefetch = 1;
  int micro_steps = 1;
};

/// Trains two steps and compares plan, report and allocator at every point on the way.
template <class O>
void check_case(std::vector<zero::Tensor> const& tensors, Case const& test) {
  INFO("stage " << O::Stage::name << ", precision " << O::Precision::name << ", accumulation "
                << O::Accumulation::name << ", borrowed " << O::borrowed << ", ranks " << test.ranks
                << ", bucket " << test.bucket_bytes << ", prefetch " << test.prefetch);
  zero::Bucket const bucket{test.bucket_bytes};
  zero::Prefetch const prefetch{test.prefetch};
  zero::Plan const plan = O::plan({.world_size = test.ranks}, tensors, bucket, prefetch);
  std::uint64_t const planned = plan.memory.total();
  contracts::on_ranks(test.ranks, [&](zero::InProcess& comm, auto const& expect) {
    Tally tally;
    {
      typename O::Memory const memory{Tracking{&tally}};
      O optimizer{comm, tensors, memory, bucket, prefetch};
      auto const compare = [&](char const* when) {
        expect(tally.live == planned, when);
        expect(tally.peak == planned, when);
        expect(tally.told == plan.memory, when);
        expect(optimizer.held() == plan.memory, when);
        expect(optimizer.plan().memory == plan.memory, when);
      };
      compare("after construction");
      bool zeroed = true;
      if constexpr (!O::borrowed) {
        for (std::byte const each : contracts::owned_bits(optimizer)) {
          zeroed = zeroed && each == std::byte{};
        }
      }
      expect(zeroed, "not zeroed");
      using contracts::LentMemory;
      LentMemory<typename O::Parameter> const parameters(tensors, true, true);
      LentMemory<typename O::Wire> const gradients(tensors, true, true);
      if constexpr (O::borrowed) contracts::lend(optimizer, true, parameters, gradients);
      contracts::load(optimizer);
      compare("after loading");
      for (long step = 0; step < 2; ++step) {
        for (int micro = 0; micro < test.micro_steps; ++micro) {
          if (test.micro_steps > 1) optimizer.micro_step({});
          contracts::pass(optimizer, {}, step, comm.rank());
          compare("after a pass");
        }
        optimizer.step();
        compare("after a step");
      }
    }
    expect(tally.live == 0 && tally.blocks.empty(), "not given back");
  });
}

template <class O>
void check(int micro_steps = 1) {
  for (int const ranks : {1, 3, 4}) {
    for (std::size_t const bucket : {std::size_t{1}, std::size_t{12345}, zero::MiB}) {
      check_case<O>(toy::model(),
                    {.ranks = ranks, .bucket_bytes = bucket, .micro_steps = micro_steps});
    }
  }
}

TEST_CASE("what is held is what was planned, after every call, whoever has the memory") {
  check<Optimizer<zero::stage::Pos, Bf16, Owned>>();
  check<Optimizer<zero::stage::PosG, zero::Fp32, Owned>>();
  check<Optimizer<zero::stage::PosGP, Bf16, Owned>>();
  check<Optimizer<zero::stage::PosG, Bf16, Owned, zero::AccumulateFull>>(2);
  check<Optimizer<zero::stage::PosGP, Bf16, Owned, zero::AccumulateShard>>(2);
  check<Optimizer<zero::stage::Replicated, Bf16, Borrowed>>();
  check<Optimizer<zero::stage::Pos, zero::Fp32, Borrowed, zero::AccumulateFull>>(2);
  check<Optimizer<zero::stage::PosG, Bf16, Borrowed, zero::AccumulateShard>>(2);
  check<Optimizer<zero::stage::PosG, zero::MixedFloatGradients<zero::fp16>, Borrowed>>();
  check<Optimizer<zero::stage::Replicated, zero::Fp32, InPlace>>();
  check<Optimizer<zero::stage::PosG, Bf16, InPlace, zero::AccumulateFull>>(2);
}

TEST_CASE("the gather pool holds one unit more than are gathered ahead, but no unit twice") {
  using O = Optimizer<zero::stage::PosGP, Bf16, Owned>;
  for (int const prefetch : {0, 1, 3, 100}) {
    check_case<O>(toy::model(), {.ranks = 2, .bucket_bytes = 12345, .prefetch = prefetch});
    auto const plan = O::plan({.world_size = 2}, contracts::even_model(), zero::Prefetch{prefetch});
    auto const slots = static_cast<std::uint64_t>(std::min(prefetch + 1, 4));
    CHECK(plan.memory[Role::gather_pool] == slots * 12288 * sizeof(zero::bf16));
  }
}

/// Bytes that the paper counts: model states, without pools and buckets.
std::uint64_t model_states(zero::Plan const& plan) {
  return plan.memory[Role::parameters] + plan.memory[Role::gradients] + plan.memory[Role::master] +
         plan.memory[Role::state];
}

/// The whole plan of a model that needs no padding, against formulas.
template <class O>
void check_formula(std::uint64_t numerator, std::uint64_t sharded_numerator) {
  constexpr std::uint64_t psi = 4 * 12288;
  for (int const ranks : {1, 2, 3, 4}) {
    INFO("stage " << O::Stage::name << ", precision " << O::Precision::name << ", ranks " << ranks);
    auto const n = static_cast<std::uint64_t>(ranks);
    std::size_t const bucket = 6144 * sizeof(typename O::Wire);
    auto const plan = O::plan({.world_size = ranks}, contracts::even_model(), zero::Bucket{bucket});
    CHECK(plan.trained_elements == psi);
    CHECK(plan.padding_elements == 0);
    CHECK(model_states(plan) == numerator * psi + sharded_numerator * psi / n);
    auto const states = zero::model_states<typename O::Precision, typename O::Rule>;
    auto const held = [&](bool sharded, std::uint64_t bytes) {
      return psi * bytes / (sharded ? n : 1);
    };
    CHECK(model_states(plan) == held(O::sharding.parameters, states.parameter) +
                                    held(O::sharding.gradients, states.gradient) +
                                    held(O::sharding.optimizer, states.optimizer));
    // Pools and staging, as stated: two units of gradients, two of parameters.
    constexpr std::uint64_t unit = 12288;
    std::uint64_t const pooled = O::sharding.gradients ? 2 * unit * sizeof(typename O::Wire) : 0;
    std::uint64_t const gathered =
        O::sharding.parameters ? 2 * unit * sizeof(typename O::Parameter) : 0;
    CHECK(plan.memory[Role::gather_pool] == gathered);
    CHECK(plan.memory[Role::staging] == 0);
    CHECK(plan.memory[Role::gradient_pool] == pooled);
    // And what a step decides: a few words whatever the model.
    std::uint64_t const control = plan.memory[Role::control];
    CHECK(control > 0);
    CHECK(control <= 5 * zero::KiB);
    CHECK(plan.memory.total() == model_states(plan) + pooled + gathered + control);
    check_case<O>(contracts::even_model(), {.ranks = ranks, .bucket_bytes = bucket});
  }
}

TEST_CASE("without padding the plan is the paper's: 16Ψ, 4Ψ+12Ψ/N, 2Ψ+14Ψ/N, 16Ψ/N") {
  check_formula<Optimizer<zero::stage::Replicated, Bf16, Owned>>(16, 0);
  check_formula<Optimizer<zero::stage::Pos, Bf16, Owned>>(4, 12);
  check_formula<Optimizer<zero::stage::PosG, Bf16, Owned>>(2, 14);
  check_formula<Optimizer<zero::stage::PosGP, Bf16, Owned>>(0, 16);
}

TEST_CASE("in fp32 the parameters are their own master: K is 8") {
  check_formula<Optimizer<zero::stage::Replicated, zero::Fp32, Owned>>(16, 0);
  check_formula<Optimizer<zero::stage::PosG, zero::Fp32, Owned>>(4, 12);
}

/// Many small tensors and buckets, so that bookkeeping has its largest share.
std::vector<zero::Tensor> many_tensors() {
  std::vector<zero::Tensor> tensors;
  for (int t = 0; t < 300; ++t) {
    tensors.push_back({.name = "tensor " + std::to_string(t), .shape = {20, 256}, .unit = t / 10});
  }
  return tensors;
}

TEST_CASE_TEMPLATE(
    "beyond the plan: at most 512 bytes per tensor, 256 per bucket, and nothing to load",
    O,
    Optimizer<zero::stage::Replicated, zero::Fp32, Owned>,
    Optimizer<zero::stage::PosGP, Bf16, Owned>) {
  auto const tensors = many_tensors();
  zero::Bucket const bucket{4096 * sizeof(typename O::Wire)};
  for (int const ranks : {1, 4}) {
    std::int64_t construction = 0;
    std::int64_t loading = 0;
    std::size_t buckets = 0;
    zero::run_ranks(ranks, [&](zero::InProcess& comm) {
      Tally tally;
      std::vector<zero::Tensor> copy = tensors;
      heap::reset_peak();
      auto const before = heap::mine();
      O optimizer{comm, std::move(copy), typename O::Memory{Tracking{&tally}}, bucket};
      auto const peak = heap::mine().peak_bytes - before.live_bytes;
      heap::reset_peak();
      auto const constructed = heap::mine().live_bytes;
      contracts::load(optimizer);
      if (comm.rank() != 0) return;
      construction = peak;
      loading = heap::mine().peak_bytes - constructed;
      buckets = optimizer.partition().bucket_count();
    });
    INFO("stage " << O::Stage::name << ", ranks " << ranks << ", peak " << construction);
    // A second copy would be 1.5 million elements.
    auto const bound = 16 * zero::KiB + static_cast<std::size_t>(ranks) * 2 * zero::KiB +
                       tensors.size() * 512 + buckets * 256;
    CHECK(bound < 300'000);
    CHECK(static_cast<std::size_t>(construction) < bound);
    CHECK(loading == 0);
  }
}

TEST_CASE("memory that is refused is named, and what was taken before is given back") {
  using O = Optimizer<zero::stage::PosGP, Bf16, Owned>;
  auto const plan = O::plan({}, toy::model());
  std::uint64_t taken = 0;
  for (Role const role : {Role::parameters,
                          Role::gradients,
                          Role::gradient_pool,
                          Role::control,
                          Role::master,
                          Role::state,
                          Role::gather_pool}) {
    for (bool const throws : {false, true}) {
      Tally tally;
      tally.limit = taken;
      tally.throws = throws;
      auto handles = zero::InProcess::group(1);
      std::string const message = refusal(
          [&] {
            O optimizer{handles[0], toy::model(), Owned{Tracking{&tally}}};
          },
          zero::ErrorKind::resource);
      INFO(message);
      CHECK(message.starts_with("cannot allocate "));
      CHECK(message.ends_with(" bytes for " + std::string(name(role))));
      CHECK(tally.live == 0);
      CHECK(tally.peak <= taken);
    }
    taken += plan.memory[role];
  }
  CHECK(taken == plan.memory.total());
}

TEST_CASE("a model that no memory holds is refused at once") {
  for (std::size_t const elements : {std::size_t{1} << 48, std::size_t{1} << 52}) {
    std::vector<zero::Tensor> const model{{.name = "w", .shape = {elements}}};
    Tally tally;
    tally.limit = zero::GiB;
    std::clock_t const start = std::clock();
    zero::run_ranks(2, [&](zero::InProcess& comm) {
      Tally own = tally;
      CHECK_THROWS_AS(
          (Optimizer<zero::stage::PosG, zero::Fp32, Owned>{comm, model, Owned{Tracking{&own}}}),
          zero::Error);
    });
    CHECK(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC < 1.);
  }
  std::vector<zero::Tensor> const absurd{{.name = "w", .shape = {std::size_t{1} << 63}}};
  using Owning = Optimizer<zero::stage::PosG, zero::Fp32, Owned>;
  CHECK_THROWS_AS(static_cast<void>(Owning::plan({.world_size = 64}, absurd)), zero::Error);
}

/// Bits of the whole model after a step, as each rank sees it, and what else it may see.
template <class Stage>
std::vector<std::vector<std::byte>> whole_model(zero::Prefetch prefetch) {
  std::vector<std::vector<std::byte>> result(3);
  contracts::on_ranks(3, [&](zero::InProcess& comm, auto const& expect) {
    auto& bits = result[static_cast<std::size_t>(comm.rank())];
    Tally tally;
    Optimizer<Stage, Bf16, Owned> optimizer{comm, toy::model(), Owned{Tracking{&tally}}, prefetch};
    contracts::load(optimizer);
    contracts::pass(optimizer, {}, 0, comm.rank());
    optimizer.step();
    auto const before = tally.live;
    tally.peak = before;
    {
      auto const all = optimizer.full_parameters();
      auto const beside = tally.peak - before;
      for (std::size_t t = 0; t < all.size(); ++t) {
        contracts::append(bits, all[t]);
        expect(all[optimizer.tensors()[t].name].data() == all[t].data(), "by name");
      }
      // Not the tied tensors; each begins at a cache line.
      expect((beside > 0) == Stage::sharding.parameters, "memory beside");
      expect(beside < bits.size() + 10 * 64, "memory beside");
      expect(all["head"].data() == all["wte"].data(), "tied tensors");
      for (int const unit : optimizer.units()) {
        auto const weights = optimizer.parameters(unit);
        contracts::for_each_tensor(optimizer, unit, [&](std::size_t t, std::size_t i) {
          expect(std::ranges::equal(weights[i], all[t]), "units");
        });
      }
      contracts::pass(optimizer, {}, 1, comm.rank());  // a step may be under way
      std::string const refused = refusal([&] { optimizer.step(); });
      expect(refused.find("parameters") != std::string::npos, "a step meanwhile: " + refused);
    }
    optimizer.step();
    expect(tally.live == before, "held afterwards");
  });
  return result;
}

TEST_CASE("full_parameters: the whole model on every rank, with the bits of every stage") {
  for (int const depth : {0, 2}) {
    auto const whole = whole_model<zero::stage::Replicated>({depth});
    CHECK(whole[0].size() > 1000);
    CHECK(whole[1] == whole[0]);
    CHECK(whole_model<zero::stage::PosG>({depth}) == whole);
    CHECK(whole_model<zero::stage::PosGP>({depth}) == whole);
  }
}

TEST_CASE("full_parameters: what the model does not have is refused by name") {
  contracts::Alone<contracts::Optimizer<zero::stage::PosGP, zero::Fp32>> alone(toy::model());
  auto const all = alone.optimizer.full_parameters();
  CHECK(all["head"].size() == 37 * 5);
  CHECK(all["wte"].data() != all["wpe"].data());
  CHECK(refusal([&] { return all["h9.w"]; }) == "the model has no tensor 'h9.w'");
  CHECK(refusal([&] { return all[all.size()]; }).starts_with("there is no tensor"));
}

TEST_CASE("full_parameters: on a device the host follows no pointer") {
  std::vector<std::vector<float>> seen(3);
  zero::run_ranks(3, [&](zero::InProcess& inner) {
    contracts::OnDevice<zero::stage::PosGP, zero::Fp32> rank(inner);
    auto const all = rank.optimizer.full_parameters();
    seen[static_cast<std::size_t>(inner.rank())] = toy::fetch(rank.space(), all["u2.w"]);
    rank.optimizer.settle();
  });
  for (auto const& rank : seen) CHECK(rank == seen[0]);
  CHECK(seen[0].front() != seen[0].back());
}

using Plain = Optimizer<zero::stage::PosGP, Bf16>;
using Managed = Optimizer<zero::stage::PosGP, Bf16, zero::Owned<zero::ContiguousMemory>>;

constexpr std::size_t activations = 32 * zero::KiB;

/// A pass of a trainer with activation checkpointing: what it keeps and what it does not is from
/// the same reservation, in turn.
/// @return is all as the trainer has written it?
[[nodiscard]] bool checkpointed_pass(Managed& optimizer,
                                     zero::ContiguousMemory& memory,
                                     std::vector<zero::MemoryBlock>& checkpoints,
                                     long step,
                                     int batch) {
  std::size_t const units = optimizer.units().size();
  bool untouched = true;
  auto const look = [&](zero::MemoryBlock const& block, float written) {
    untouched = untouched && std::ranges::all_of(block.as<float>(),
                                                 [&](float value) { return value == written; });
  };
  for (std::size_t u = 0; u < units; ++u) {
    auto const weights = optimizer.parameters(static_cast<int>(u));
    auto const scratch = memory.short_lived(activations - 2048 * u);
    checkpoints[u] = memory.long_lived(700 + 300 * u);
    std::ranges::fill(scratch.as<float>(), 1.f);
    std::ranges::fill(checkpoints[u].as<float>(), 2.f);
  }
  for (std::size_t u = units; u-- > 0;) {
    auto const scratch = memory.short_lived(activations - 1024 * u);
    std::ranges::fill(scratch.as<float>(), 3.f);
    optimizer.reduce(contracts::unit_backward(optimizer, static_cast<int>(u), {}, step, batch));
    look(scratch, 3.f);
    look(checkpoints[u], 2.f);
    checkpoints[u] = {};
  }
  return untouched;
}

TEST_CASE("a memory manager holds what was planned, at the end that its role is for") {
  for (int const ranks : {1, 3}) {
    zero::Plan const plan = Managed::plan({.world_size = ranks}, toy::model());
    std::uint64_t const passing = plan.memory[Role::gradient_pool] +
                                  plan.memory[Role::gather_pool] + plan.memory[Role::staging];
    contracts::on_ranks(ranks, [&](zero::InProcess& comm, auto const& expect) {
      zero::ContiguousMemory memory{zero::reservation_bytes(plan) + 2 * activations};
      {
        Managed optimizer{comm, toy::model(), zero::Owned{memory}};
        auto const now = memory.statistics();
        expect(optimizer.held() == plan.memory, "held is not planned");
        expect(now.live_bytes == plan.memory.total(), "live is not planned");
        expect(now.short_lived.live_bytes == passing, "the short-lived end");
        expect(now.long_lived.live_bytes == plan.memory.total() - passing, "the long-lived end");

        Plain reference{comm, toy::model()};
        contracts::load(optimizer);
        contracts::load(reference);
        std::vector<zero::MemoryBlock> checkpoints(optimizer.units().size());
        for (long step = 0; step < 3; ++step) {
          contracts::pass(reference, {}, step, comm.rank());
          reference.step();
          auto const allocations = heap::mine().allocations;
          bool const untouched =
              checkpointed_pass(optimizer, memory, checkpoints, step, comm.rank());
          optimizer.step();
          bool const quiet = heap::mine().allocations == allocations;
          expect(quiet || step == 0, "a step allocates");
          expect(untouched, "the trainer's own memory is overwritten");
          expect(memory.statistics().live_bytes == plan.memory.total(), "after a step");
        }
        expect(contracts::snapshot(optimizer) == contracts::snapshot(reference), "other bits");
      }
      expect(memory.statistics().live_bytes == 0, "not given back");
      expect(memory.statistics().largest_free_block == memory.statistics().reserved_bytes,
             "fragmented afterwards");
    });
  }
}

TEST_CASE("a memory manager is large enough for its plan, and says what does not fit") {
  zero::run_ranks(1, [](zero::InProcess& comm) {
    zero::Plan const plan = Managed::plan({}, toy::model());
    zero::ContiguousMemory enough{zero::reservation_bytes(plan)};
    { Managed const optimizer{comm, toy::model(), zero::Owned{enough}}; }
    std::uint64_t const needed = enough.statistics().needed_bytes;
    CHECK(needed >= plan.memory.total());
    { Managed const optimizer{comm, toy::model(), zero::Owned{zero::ContiguousMemory{needed}}}; }

    zero::ContiguousMemory small{needed - zero::ContiguousMemory::page};
    std::string const said = refusal(
        [&] {
          Managed const optimizer{comm, toy::model(), zero::Owned{small}};
        },
        zero::ErrorKind::resource);
    INFO(said);
    CHECK(said.find("no room for ") == 0);
    CHECK(said.find(" at a multiple of 4096: the largest free block for them has ") !=
          std::string::npos);
    CHECK(small.statistics().live_bytes == 0);
  });
}

}  // namespace
}  // namespace memory_test
