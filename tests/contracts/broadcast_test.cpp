/// Ranks that start from different values take one rank's.
#include "contracts/loop.hpp"
#include "contracts/recording.hpp"
#include "trapped_space.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace broadcast_test {
namespace {

using zero::InProcess;
using Bf16 = zero::Mixed<zero::bf16>;
using Bits = std::vector<std::byte>;

/// Values that every rank has differently.
float value(int rank, std::size_t t, std::size_t element) {
  return toy::initial_value(t + 100 * static_cast<std::size_t>(rank + 1), element);
}

/// A loader of one rank's values, as T rounds them.
template <class T, class Optimizer>
auto values_of(Optimizer const& optimizer, int rank) {
  return [&optimizer, rank](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
    auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = float(T(value(rank, t, first + i)));
  };
}

/// What the optimizer lends or owns, with gradients.
template <class Optimizer>
struct Lent {
  using Parameter = typename Optimizer::Parameter;
  std::vector<Parameter> parameters;
  std::vector<typename Optimizer::Wire> gradients;

  explicit Lent(Optimizer& optimizer) {
    if constexpr (Optimizer::borrowed) {
      std::size_t count = 0;
      auto const& places = optimizer.partition().placement().places();
      for (std::size_t t = 0; t < places.size(); ++t) {
        if (places[t].storage == t) count += static_cast<std::size_t>(places[t].count);
      }
      parameters.resize(count);
      gradients.resize(count);
      optimizer.bind(std::span(parameters), std::span(gradients));
    }
  }
};

/// Two steps of training: bits of all that a rank can see.
template <class Optimizer>
Bits train(Optimizer& optimizer, Lent<Optimizer>& lent, int rank) {
  for (long step = 0; step < 2; ++step) {
    for (auto& gradient : lent.gradients) gradient = typename Optimizer::Wire(0.f);
    contracts::pass(optimizer, {}, step, rank);
    optimizer.step({.max_norm = 1.});
  }
  return contracts::snapshot(optimizer);
}

/// Ranks that took the root's values go on as ranks do that all loaded them.
template <class... Policies, class C>
void check_group(C& comm, int root, std::mutex& mutex) {
  using Optimizer = zero::ShardedOptimizer<C, Policies...>;
  using Parameter = typename Optimizer::Parameter;
  zero::Bucket const bucket{4096};
  auto const compare = [&](char const* what, Bits const& bits, Bits const& expected) {
    std::lock_guard const lock(mutex);
    CHECK_MESSAGE(bits == expected, what << ", rank " << comm.rank() << " of " << comm.size());
  };
  auto const loaded = [&]<class T>(T) {
    Optimizer optimizer{comm, toy::model(), bucket};
    Lent<Optimizer> lent(optimizer);
    optimizer.load_parameters(values_of<T>(optimizer, root));
    return train(optimizer, lent, comm.rank());
  };
  {
    Optimizer optimizer{comm, toy::model(), bucket};
    Lent<Optimizer> lent(optimizer);
    optimizer.broadcast_parameters(
        [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
          if (comm.rank() != root) FAIL("a rank is asked that is not the root");
          values_of<float>(optimizer, comm.rank())(tensor, first, out);
        },
        root);
    compare("given", train(optimizer, lent, comm.rank()), loaded(0.f));
    CHECK(optimizer.held() == optimizer.plan().memory);
  }
  if constexpr (!Optimizer::sharding.parameters) {
    Optimizer optimizer{comm, toy::model(), bucket};
    Lent<Optimizer> lent(optimizer);
    for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
      if (!optimizer.tensors()[t].tied_to.empty()) continue;
      std::size_t i = 0;
      for (Parameter& each : optimizer.parameter(t)) each = Parameter(value(comm.rank(), t, i++));
    }
    optimizer.broadcast_parameters(root);
    compare("held", train(optimizer, lent, comm.rank()), loaded(Parameter(0.f)));
    CHECK(optimizer.held() == optimizer.plan().memory);
  }
}

template <class... Policies>
void check() {
  std::mutex mutex;
  for (int const ranks : {1, 3}) {
    for (int const root : {0, ranks - 1}) {
      zero::run_ranks(ranks, [&](InProcess& comm) { check_group<Policies...>(comm, root, mutex); });
    }
  }
}

TEST_CASE("after a broadcast ranks train as if all had loaded the root's values") {
  check<zero::stage::Replicated, zero::Fp32>();
  check<zero::stage::Replicated, Bf16>();
  check<zero::stage::Pos, zero::Fp32>();
  check<zero::stage::Pos, Bf16>();
  check<zero::stage::PosG, zero::Fp32>();
  check<zero::stage::PosG, Bf16>();
  check<zero::stage::PosGP, zero::Fp32>();
  check<zero::stage::PosGP, Bf16>();
}

TEST_CASE("after a broadcast into lent memory, too") {
  using Memory = zero::Borrowed<>;
  check<zero::stage::Replicated, zero::Fp32, Memory>();
  check<zero::stage::Replicated, Bf16, Memory>();
  check<zero::stage::Pos, zero::Fp32, Memory>();
  check<zero::stage::Pos, Bf16, Memory>();
  check<zero::stage::PosG, zero::Fp32, Memory>();
  check<zero::stage::PosG, Bf16, Memory>();
}

TEST_CASE("a root is a rank of the group that the optimizer is over") {
  std::mutex mutex;
  zero::run_ranks(5, [&](InProcess& comm) {
    InProcess group = comm.split(comm.rank() % 2, comm.rank());
    for (int const root : {0, group.size() - 1}) {
      check_group<zero::stage::PosG, Bf16>(group, root, mutex);
      check_group<zero::stage::PosGP, Bf16>(group, root, mutex);
    }
    zero::ShardedOptimizer<InProcess, zero::stage::PosG, Bf16> optimizer{group, toy::model()};
    for (int const nobody : {-1, group.size()}) {
      std::string const message =
          "there is no rank " + std::to_string(nobody) + " to broadcast from; ranks are [0, ";
      auto const refused = [&](auto const& broadcast) {
        try {
          broadcast();
        } catch (zero::Error const& error) {
          return error.kind() == zero::ErrorKind::invalid_argument &&
                 error.message().starts_with(message);
        }
        return false;
      };
      std::lock_guard const lock(mutex);
      CHECK(refused([&] { optimizer.broadcast_parameters(nobody); }));
      CHECK(
          refused([&] { optimizer.broadcast_parameters(values_of<float>(optimizer, 0), nobody); }));
    }
  });
}

/// Every element of every tensor that is not tied, once.
std::uint64_t elements() {
  std::uint64_t count = 0;
  for (auto const& tensor : toy::model()) {
    if (tensor.tied_to.empty()) count += zero::element_count(tensor);
  }
  return count;
}

template <class Stage>
void check_traffic() {
  zero::run_ranks(3, [](InProcess& inner) {
    contracts::Watched watched{inner};
    auto& comm = watched.counted;
    contracts::WatchedOptimizer<Stage, Bf16> optimizer{
        watched.comm, toy::model(), zero::Bucket{4096}};
    comm.reset();
    optimizer.broadcast_parameters(values_of<float>(optimizer, 0), 2);
    CHECK(comm.counts().control_total().elements == elements());
    if constexpr (!Stage::sharding.parameters) {
      comm.reset();
      optimizer.broadcast_parameters(2);
      CHECK(comm.counts().control_total().elements == elements());
    }
    CHECK(comm.counts().bucket_total().elements == 0);
    // Nothing is left to compare.
    optimizer.step();
    auto const first = comm.counts().control_total().elements;
    comm.reset();
    optimizer.step();
    CHECK(first == elements() + comm.counts().control_total().elements);
  });
}

TEST_CASE("a broadcast sends every element once") {
  check_traffic<zero::stage::Pos>();
  check_traffic<zero::stage::PosGP>();
}

template <class Stage>
void check_pieces() {
  static constexpr std::size_t count = 600'001;
  // The second begins where no share does: some of what is asked for lies in two pieces.
  std::vector<zero::Tensor> const model{{.name = "b", .shape = {40}},
                                        {.name = "w", .shape = {count}}};
  zero::run_ranks(2, [&](InProcess& inner) {
    contracts::Watched watched{inner};
    contracts::WatchedOptimizer<Stage, Bf16> optimizer{watched.comm, model, zero::Bucket{}};
    watched.counted.reset();
    std::size_t largest = 0;
    optimizer.broadcast_parameters(
        [&](zero::Tensor const&, std::size_t first, std::span<float> out) {
          largest = out.size() > largest ? out.size() : largest;
          for (std::size_t i = 0; i < out.size(); ++i)
            out[i] = static_cast<float>((first + i) % 251);
        },
        1);
    CHECK(largest * sizeof(float) <= 1 << 20);
    CHECK(watched.counted.counts().control_total().elements == 40 + count);
    auto const weights = optimizer.parameters(0);
    std::size_t right = 0;
    while (right < count && float(weights[1][right]) == static_cast<float>(right % 251)) ++right;
    CHECK(right == count);
  });
}

TEST_CASE("a tensor of more than two megabytes passes one megabyte at a time") {
  check_pieces<zero::stage::Pos>();
  check_pieces<zero::stage::PosGP>();
}

/// Masters, states and parameters after a broadcast over memory that the host cannot reach.
template <class Stage>
void check_on_devices(trapped::Collectives when) {
  using Memory = zero::Owned<trapped::Allocator>;
  zero::run_ranks(3, [&](InProcess& inner) {
    trapped::Device device{};
    trapped::Communicator comm(inner, device, when);
    using Optimizer = zero::ShardedOptimizer<trapped::Communicator, Stage, Bf16, Memory>;
    auto const bits = [&](Optimizer& optimizer) {
      optimizer.check_parameters();
      Bits result;
      optimizer.visit_owned([&](zero::Tensor const&, std::size_t, auto masters, auto const&) {
        contracts::append(result, masters);
      });
      for (int const unit : optimizer.units()) {
        auto const weights = optimizer.parameters(unit);
        for (std::size_t i = 0; i < weights.size(); ++i) {
          std::vector<zero::bf16> host(weights[i].size());
          if (!host.empty()) {
            comm.space().download(host.data(), weights[i].data(), weights[i].size_bytes());
          }
          contracts::append(result, std::span(host));
        }
      }
      return result;
    };
    auto const make = [&] { return Optimizer{comm, toy::model(), Memory{{&device}}}; };
    Optimizer given = make();
    given.broadcast_parameters(values_of<float>(given, inner.rank()), 2);
    Optimizer loaded = make();
    loaded.load_parameters(values_of<float>(loaded, 2));
    CHECK(bits(given) == bits(loaded));
    if constexpr (!Stage::sharding.parameters) {
      Optimizer held = make();
      for (std::size_t t = 0; t < held.tensors().size(); ++t) {
        std::vector<zero::bf16> host;
        for (std::size_t i = 0; i < held.parameter(t).size(); ++i) {
          host.push_back(zero::bf16(value(inner.rank(), t, i)));
        }
        if (!held.tensors()[t].tied_to.empty() || host.empty()) continue;
        comm.space().upload(
            held.parameter(t).data(), host.data(), host.size() * sizeof(zero::bf16));
      }
      held.broadcast_parameters(2);
      Optimizer rounded = make();
      rounded.load_parameters(values_of<zero::bf16>(rounded, 2));
      CHECK(bits(held) == bits(rounded));
    }
  });
}

TEST_CASE("a broadcast over memory that the host cannot reach") {
  for (auto const when : {trapped::Collectives::early, trapped::Collectives::late}) {
    check_on_devices<zero::stage::Pos>(when);
    check_on_devices<zero::stage::PosGP>(when);
  }
}

}  // namespace
}  // namespace broadcast_test
