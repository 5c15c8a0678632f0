/// The whole model under every stage: the same bits, no memory left behind, and no step meanwhile.
#include "contracts/loop.hpp"
#include "trapped_space.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace full_parameters_test {
namespace {

constexpr int ranks = 3;

/// Remembers how much is in use, and how much has been.
struct Meter {
  std::size_t now = 0;
  std::size_t most = 0;
};
struct Metered {
  Meter* meter;
  zero::HostAllocator host{};

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) {
    void* const memory = host.allocate(bytes, alignment);
    meter->now += bytes;
    meter->most = std::max(meter->most, meter->now);
    return memory;
  }
  void deallocate(void* memory, std::size_t bytes, std::size_t alignment) noexcept {
    meter->now -= bytes;
    host.deallocate(memory, bytes, alignment);
  }
};

/// What one rank of a run has seen.
struct Seen {
  std::vector<std::byte> bits;  ///< of all tensors, in registration order
  bool same_as_units = true;
  bool tied_in_one_place = false;
  bool same_by_name = true;
  bool held_as_before = false;
  std::size_t beside = 0;  ///< bytes taken for the guard
  std::string refusal;     ///< of a step meanwhile
};

template <class Stage, class Precision>
std::vector<Seen> run(zero::Prefetch prefetch) {
  std::vector<Seen> seen(ranks);
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    Seen& own = seen[static_cast<std::size_t>(comm.rank())];
    Meter meter;
    zero::ShardedOptimizer optimizer{
        comm, toy::model(), Stage{}, Precision{}, zero::Owned{Metered{&meter}}, prefetch};
    contracts::load(optimizer);
    toy::Run const toy_run{};
    contracts::pass(optimizer, toy_run, 0, comm.rank());
    optimizer.step();
    auto const before = meter.now;
    meter.most = before;
    {
      auto const all = optimizer.full_parameters();
      own.beside = meter.most - before;
      for (std::size_t t = 0; t < all.size(); ++t) {
        contracts::append(own.bits, all[t]);
        auto const named = all[optimizer.tensors()[t].name];
        own.same_by_name = own.same_by_name && named.data() == all[t].data();
      }
      own.tied_in_one_place = all["head"].data() == all["wte"].data();
      for (int const unit : optimizer.units()) {
        auto const weights = optimizer.parameters(unit);
        contracts::for_each_tensor(optimizer, unit, [&](std::size_t t, std::size_t i) {
          own.same_as_units = own.same_as_units && std::ranges::equal(weights[i], all[t]);
        });
      }
      contracts::pass(optimizer, toy_run, 1, comm.rank());  // a step may be under way
      try {
        optimizer.step();
      } catch (zero::Error const& error) {
        own.refusal = error.message();
      }
    }
    optimizer.step();
    own.held_as_before = meter.now == before;
  });
  return seen;
}

template <class Precision>
void same_under_every_stage() {
  for (int const depth : {0, 2}) {
    auto const whole = run<zero::stage::Replicated, Precision>({depth});
    auto const check = [&](std::vector<Seen> const& other, bool gathered) {
      for (Seen const& rank : other) {
        CHECK(rank.bits == whole[0].bits);
        CHECK(rank.same_as_units);
        CHECK(rank.same_by_name);
        CHECK(rank.tied_in_one_place);
        CHECK(rank.held_as_before);
        CHECK(rank.refusal.find("parameters") != std::string::npos);
        // Not the frozen and tied tensors; each begins at a cache line.
        CHECK((rank.beside > 0) == gathered);
        CHECK(rank.beside < rank.bits.size() + 10 * 64);
      }
    };
    CHECK(whole[0].bits.size() > 1000);
    check(whole, false);
    check(run<zero::stage::PosG, Precision>({depth}), false);
    check(run<zero::stage::PosGP, Precision>({depth}), true);
  }
}

TEST_CASE("full_parameters: the whole model on every rank, with the bits of every stage") {
  same_under_every_stage<zero::Fp32>();
  same_under_every_stage<zero::Mixed<zero::bf16>>();
}

TEST_CASE("full_parameters: a tied tensor is where the one is that it is tied to") {
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm,
                                   {{.name = "first", .shape = {700}},
                                    {.name = "wte", .shape = {30}},
                                    {.name = "head", .shape = {30}, .unit = 2, .tied_to = "wte"}},
                                   zero::stage::PosGP{}};
  contracts::load(optimizer);
  auto const all = optimizer.full_parameters();
  CHECK(all["head"].data() == all["wte"].data());
  CHECK(all["head"].size() == 30);
  CHECK(all["wte"].data() != all["first"].data());
}

TEST_CASE("full_parameters: what the model does not have is refused by name") {
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm, toy::model(), zero::stage::PosGP{}};
  contracts::load(optimizer);
  auto const all = optimizer.full_parameters();
  auto const refusal = [&](auto const& which) {
    try {
      static_cast<void>(all[which]);
    } catch (zero::Error const& error) {
      CHECK(error.kind() == zero::ErrorKind::invalid_argument);
      return error.message();
    }
    return std::string();
  };
  CHECK(refusal("h9.w") == "the model has no tensor 'h9.w'");
  CHECK(refusal(all.size()).find("there is no tensor") == 0);
}

TEST_CASE("full_parameters: on a device the host follows no pointer") {
  std::vector<std::vector<float>> seen(ranks);
  zero::run_ranks(ranks, [&](zero::InProcess& inner) {
    trapped::Device device;
    trapped::Communicator comm(inner, device, trapped::Collectives::late);
    zero::ShardedOptimizer optimizer{comm,
                                     contracts::even_model(),
                                     zero::stage::PosGP{},
                                     zero::Owned{trapped::Allocator{&device}}};
    contracts::load(optimizer);
    auto const all = optimizer.full_parameters();
    std::vector<float>& own = seen[static_cast<std::size_t>(comm.rank())];
    own.resize(all["u2.w"].size());
    comm.space().download(own.data(), all["u2.w"].data(), own.size() * sizeof(float));
    optimizer.settle();
  });
  for (auto const& rank : seen) CHECK(rank == seen[0]);
  CHECK(seen[0].front() != seen[0].back());
}

}  // namespace
}  // namespace full_parameters_test
