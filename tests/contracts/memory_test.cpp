/// The plan is what is held: every byte, by role, at all times.
#include "contracts/heap.hpp"
#include "contracts/loop.hpp"
#include "zero/concepts/model_states.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <map>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <vector>

namespace memory_test {
namespace {

using Bf16 = zero::Mixed<zero::bf16>;
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

template <class... Policies>
using Optimizer = zero::ShardedOptimizer<zero::InProcess, Policies...>;

struct Case {
  int ranks = 1;
  std::size_t bucket_bytes = 1;
  int prefetch = 1;
  int micro_steps = 1;
};

/// Trains two steps and compares plan, report and allocator at every point on the way.
template <class O>
void check_case(std::vector<zero::Tensor> const& tensors, Case const& test) {
  using Parameter = typename O::Parameter;
  using Wire = typename O::Wire;
  INFO("stage " << O::Stage::name << ", precision " << O::Precision::name << ", accumulation "
                << O::Accumulation::name << ", borrowed " << O::borrowed << ", ranks " << test.ranks
                << ", bucket " << test.bucket_bytes << ", prefetch " << test.prefetch);
  zero::Bucket const bucket{test.bucket_bytes};
  zero::Prefetch const prefetch{test.prefetch};
  zero::Plan const plan = O::plan({.world_size = test.ranks}, tensors, bucket, prefetch);
  std::uint64_t const planned = plan.memory.total();
  std::string complaints;
  std::mutex mutex;
  zero::run_ranks(test.ranks, [&](zero::InProcess& comm) {
    Tally tally;
    auto const expect = [&](bool holds, char const* what) {
      if (holds) return;
      std::lock_guard const lock(mutex);
      complaints += "rank " + std::to_string(comm.rank()) + ": " + what + "; ";
    };
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
      auto const see = [&](auto const&, std::size_t, auto const& master, auto const& states) {
        for (auto const value : master) zeroed = zeroed && static_cast<float>(value) == 0.f;
        for (auto const& state : states) {
          for (auto const value : state) zeroed = zeroed && static_cast<float>(value) == 0.f;
        }
      };
      if constexpr (!O::borrowed) optimizer.visit_owned(see);
      expect(zeroed, "not zeroed");
      std::size_t elements = 0;
      for (auto const& tensor : tensors) {
        elements += tensor.tied_to.empty() ? zero::element_count(tensor) : 0;
      }
      std::vector<Parameter> parameters(O::borrowed ? elements : 0);
      std::vector<Wire> gradients(parameters.size());
      if constexpr (O::borrowed) optimizer.bind(std::span(parameters), std::span(gradients));
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
  CHECK(complaints == "");
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

TEST_CASE("owned memory: what is held is what was planned, after every call") {
  check<Optimizer<zero::stage::Replicated, zero::Fp32, Owned>>();
  check<Optimizer<zero::stage::Pos, Bf16, Owned>>();
  check<Optimizer<zero::stage::PosG, zero::Fp32, Owned>>();
  check<Optimizer<zero::stage::PosGP, Bf16, Owned>>();
}

TEST_CASE("owned memory: the same while micro-batches add up") {
  check<Optimizer<zero::stage::Replicated, Bf16, Owned, zero::AccumulateShard>>(2);
  check<Optimizer<zero::stage::PosG, Bf16, Owned, zero::AccumulateFull>>(2);
  check<Optimizer<zero::stage::PosGP, zero::Fp32, Owned, zero::AccumulateShard>>(2);
}

TEST_CASE("borrowed memory: what is held is what was planned, after every call") {
  check<Optimizer<zero::stage::Replicated, Bf16, Borrowed>>();
  check<Optimizer<zero::stage::Pos, zero::Fp32, Borrowed, zero::AccumulateFull>>(2);
  check<Optimizer<zero::stage::PosG, Bf16, Borrowed, zero::AccumulateShard>>(2);
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
    auto const model = zero::model_state_bytes(
        psi, n, O::sharding, zero::model_states<typename O::Precision, typename O::Rule>);
    CHECK(model == zero::ExactBytes{.whole = model_states(plan)});
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
    CHECK(control <= 2 * zero::KiB);
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

template <class O>
void check_bookkeeping() {
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

TEST_CASE("beyond the plan: at most 512 bytes per tensor, 256 per bucket, and nothing to load") {
  check_bookkeeping<Optimizer<zero::stage::Replicated, zero::Fp32, Owned>>();
  check_bookkeeping<Optimizer<zero::stage::PosGP, Bf16, Owned>>();
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
      std::string message;
      try {
        O optimizer{handles[0], toy::model(), Owned{Tracking{&tally}}};
      } catch (zero::Error const& error) {
        CHECK(error.kind() == zero::ErrorKind::resource);
        message = error.message();
      }
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
      CHECK_THROWS_AS((Optimizer<zero::stage::PosG, Owned>{comm, model, Owned{Tracking{&own}}}),
                      zero::Error);
    });
    CHECK(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC < 1.);
  }
  std::vector<zero::Tensor> const absurd{{.name = "w", .shape = {~std::size_t{0}}}};
  using Owning = Optimizer<zero::stage::PosG, Owned>;
  CHECK_THROWS_AS(static_cast<void>(Owning::plan({.world_size = 64}, absurd)), zero::Error);
}

}  // namespace
}  // namespace memory_test
