/// Ranks that start from different values hear of it before anything is updated.
#include "contracts/loop.hpp"
#include "contracts/recording.hpp"
#include "trapped_space.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace start_test {
namespace {

constexpr std::size_t ranks = 3;
using Bf16 = zero::Mixed<zero::bf16>;

std::vector<zero::Tensor> model() {
  return {{.name = "w", .shape = {7000}},
          {.name = "b", .shape = {9}, .unit = 1},
          {.name = "again", .shape = {9}, .unit = 2, .tied_to = "b"},
          {.name = "none", .shape = {0}, .unit = 2},
          {.name = "cold", .shape = {60}, .unit = 2, .frozen = true}};
}

/// What the work of each rank was refused with, or nothing.
template <class Work>
std::vector<std::string> on_ranks(Work const& work) {
  std::vector<std::string> messages(ranks);
  zero::run_ranks(int{ranks}, [&](zero::InProcess& comm) {
    try {
      work(comm);
    } catch (zero::Error const& error) {
      messages[static_cast<std::size_t>(comm.rank())] = error.message();
      if (error.kind() != zero::ErrorKind::communication) throw;
    }
  });
  return messages;
}

std::vector<std::string> const nothing(ranks);
std::vector<std::string> everywhere(std::string const& tensor, std::string const& pairs) {
  return std::vector<std::string>(
      ranks, "ranks start from different values of tensor '" + tensor + "': " + pairs);
}

/// Loads ones, but something else into one element on one rank.
template <class... Policies>
void load(zero::InProcess& comm, std::string const& tensor, std::size_t element) {
  contracts::Optimizer<Policies...> optimizer{comm, model(), zero::Bucket{4096}};
  optimizer.load_parameters([&](zero::Tensor const& asked, std::size_t first, auto values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      bool const odd = comm.rank() == 1 && asked.name == tensor && first + i == element;
      values[i] = odd ? 1.0001f : 1.f;
    }
  });
  optimizer.step();
  optimizer.check_parameters();
}

template <class Stage, class Precision>
void check_load() {
  using zero::InProcess;
  constexpr bool share = Stage::sharding.parameters;
  CHECK(on_ranks([](InProcess& comm) { load<Stage, Precision>(comm, "-", 0); }) == nothing);
  CHECK(on_ranks([](InProcess& comm) { load<Stage, Precision>(comm, "cold", 59); }) ==
        everywhere("cold", "0 and 1, 1 and 2"));
  // Of each bucket of 1536 elements rank 1 is asked for its share, and for that of rank 2.
  for (auto const& [element, pairs] :
       {std::pair{0, ""}, {600, "0 and 1"}, {1100, "1 and 2"}, {1600, ""}, {2100, "0 and 1"}}) {
    CHECK(on_ranks([odd = static_cast<std::size_t>(element)](InProcess& comm) {
            load<Stage, Precision>(comm, "w", odd);
          }) == (!share        ? everywhere("w", "0 and 1, 1 and 2")
                 : *pairs != 0 ? everywhere("w", pairs)
                               : nothing));
  }
}

TEST_CASE("ranks that load different values are told of the tensor") {
  check_load<zero::stage::Replicated, zero::Fp32>();
  check_load<zero::stage::Pos, Bf16>();
  check_load<zero::stage::PosG, zero::Fp32>();
  check_load<zero::stage::PosG, Bf16>();
  check_load<zero::stage::PosGP, zero::Fp32>();
  check_load<zero::stage::PosGP, Bf16>();
}

/// Lends ones, but something else in one element on one rank.
template <class Stage, class Precision>
struct Lent {
  using Parameter = typename Precision::Parameter;
  explicit Lent(zero::Communicator auto& comm, std::size_t odd)
      : memory(7069, Parameter(1.f)), gradients(7069) {
    if (comm.rank() == 2 && odd < memory.size()) memory[odd] = Parameter(1.5f);
  }
  std::vector<Parameter> memory;
  std::vector<Parameter> gradients;
};

template <class Stage, class Precision>
void check_lent() {
  for (auto const& [element, tensor] : {std::pair{6999, "w"}, {7000, "b"}, {7068, "cold"}}) {
    auto const messages = on_ranks([&, odd = element](zero::InProcess& comm) {
      Lent<Stage, Precision> lent(comm, static_cast<std::size_t>(odd));
      contracts::Optimizer<Stage, Precision, zero::Borrowed<>> optimizer{comm, model()};
      auto const before = lent.memory;
      optimizer.bind(std::span(lent.memory), std::span(lent.gradients));
      optimizer.adopt_parameters();
      try {
        optimizer.step();
      } catch (zero::Error const&) {
        bool same = optimizer.steps() == 0;
        for (std::size_t i = 0; i < before.size(); ++i) {
          same = same && float(before[i]) == float(lent.memory[i]);
        }
        if (same) throw;
      }
    });
    CHECK(messages == everywhere(tensor, "1 and 2, 2 and 0"));
  }
}

TEST_CASE("ranks that lend different values are told of the tensor, and keep them") {
  check_lent<zero::stage::Replicated, zero::Fp32>();
  check_lent<zero::stage::Replicated, Bf16>();
  check_lent<zero::stage::Pos, zero::Fp32>();
  check_lent<zero::stage::PosG, Bf16>();
}

TEST_CASE("what a trainer writes into the library's parameters is compared as well") {
  auto const messages = on_ranks([](zero::InProcess& comm) {
    contracts::Optimizer<zero::stage::Pos, zero::Fp32> optimizer{comm, model()};
    optimizer.parameter(1)[8] = comm.rank() == 0 ? 1.f : 2.f;
    optimizer.adopt_parameters();
    optimizer.step();
  });
  CHECK(messages == everywhere("b", "0 and 1, 2 and 0"));
}

TEST_CASE("masters that every rank has are compared as well") {
  auto const messages = on_ranks([](zero::InProcess& comm) {
    contracts::Optimizer<zero::stage::Replicated, Bf16> optimizer{comm, model()};
    // Parameters round to the same.
    float const value = comm.rank() == 1 ? 1.0000001f : 1.f;
    optimizer.adopt_parameters();
    optimizer.fill_owned([&](zero::Tensor const&, std::size_t, auto masters, auto const& states) {
      for (float& master : masters) master = value;
      for (auto const& state : states) {
        for (float& each : state) each = 0.f;
      }
    });
    optimizer.step();
  });
  CHECK(messages == everywhere("w", "0 and 1, 1 and 2"));
}

TEST_CASE("a first step compares once; a later binding and later steps do not, a call does") {
  auto const messages = on_ranks([](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    auto& comm = watched.counted;
    Lent<zero::stage::PosG, zero::Fp32> lent(comm, 9999);
    contracts::WatchedOptimizer<zero::stage::PosG, zero::Fp32, zero::Borrowed<>> optimizer{
        watched.comm, model()};
    std::vector<std::uint64_t> elements;
    for (int step = 0; step < 3; ++step) {
      optimizer.bind(std::span(lent.memory), std::span(lent.gradients));
      auto const before = comm.counts().control_total().elements;
      optimizer.step();
      elements.push_back(comm.counts().control_total().elements - before);
    }
    if (elements[0] <= elements[1] || elements[1] != elements[2]) throw std::runtime_error("more");
    if (comm.rank() == 2) lent.memory[7005] += 1.f;
    optimizer.check_parameters();
  });
  CHECK(messages == everywhere("b", "1 and 2, 2 and 0"));
}

TEST_CASE("over memory that the host cannot reach hashes are compared, and no value downloaded") {
  using Memory = zero::Owned<trapped::Allocator>;
  for (bool const differ : {false, true}) {
    auto const messages = on_ranks([&](zero::InProcess& inner) {
      trapped::Device device{};
      trapped::Communicator comm(inner, device, trapped::Collectives::late);
      zero::ShardedOptimizer<trapped::Communicator, zero::stage::Pos, Bf16, Memory> optimizer{
          comm, model(), Memory{{&device}}};
      if (differ && inner.rank() == 1) {
        zero::bf16 const value(3.f);
        comm.space().upload(&optimizer.parameter(0)[6000], &value, sizeof(value));
      }
      optimizer.adopt_parameters();
      auto const before = device.downloaded_bytes;
      auto const check = [&] {
        if (device.downloaded_bytes - before > 5 * 100) throw std::runtime_error("downloads");
      };
      try {
        optimizer.enqueue_step();
      } catch (zero::Error const&) {
        check();
        throw;
      }
      check();
    });
    CHECK(messages == (differ ? everywhere("w", "0 and 1, 1 and 2") : nothing));
  }
}

/// Every rank refuses to step from values that nobody set, and goes on once they are.
template <class Stage, class Precision>
void check_unset() {
  using Optimizer = contracts::Optimizer<Stage, Precision>;
  std::string const how =
      " ranks: before the first step call load_parameters(), broadcast_parameters() or "
      "fill_owned(), which leaves out frozen tensors; or adopt_parameters(), to start from what "
      "lies there, zeros where nothing was written";
  auto const fill = [](auto const&, std::size_t, auto masters, auto const& states) {
    for (auto& master : masters) master = 1.f;
    for (auto const& state : states) {
      for (auto& each : state) each = 0.f;
    }
  };
  auto const refusal = [](auto const& work) -> std::string {
    try {
      work();
    } catch (zero::Error const& error) {
      return error.kind() == zero::ErrorKind::invalid_argument ? error.message() : error.what();
    }
    return "";
  };
  for (int const size : {1, 3}) {
    auto const unset = [&](int on) {
      return "parameters have no values on " + std::to_string(on) + " of " + std::to_string(size) +
             how;
    };
    std::vector<std::string> complaints(ranks);
    zero::run_ranks(size, [&](zero::InProcess& comm) {
      auto const expect = [&](std::string const& message, std::string const& expected) {
        if (message == expected) return;
        complaints[static_cast<std::size_t>(comm.rank())] += message + "; ";
      };
      Optimizer optimizer{comm, model()};
      auto const step = [&] { optimizer.step(); };
      expect(refusal(step), unset(size));
      expect(refusal([&] { optimizer.check_parameters(); }), unset(size));
      auto const tried = optimizer.try_step();
      expect(tried ? "" : tried.error()->message(), unset(size));
      // Frozen tensors have no values yet.
      optimizer.fill_owned(fill);
      expect(refusal(step), unset(size));
      // The others know nothing of one rank's call.
      if (comm.rank() == 0) optimizer.adopt_parameters();
      expect(refusal(step), size == 1 ? "" : unset(size - 1));
      if (comm.rank() != 0) optimizer.adopt_parameters();
      expect(refusal(step), "");
      expect(std::to_string(optimizer.steps()), size == 1 ? "2" : "1");

      Optimizer filled{comm, {{.name = "w", .shape = {7000}}}};
      filled.fill_owned(fill);
      expect(refusal([&] { filled.step(); }), "");
      Optimizer taken{comm, model()};
      taken.broadcast_parameters([](auto const&, std::size_t, auto) {});
      expect(refusal([&] { taken.step(); }), "");
    });
    for (std::string const& complaint : complaints) CHECK(complaint == "");
  }
}

TEST_CASE("a step from values that nobody set is refused on every rank, unless that is asked for") {
  check_unset<zero::stage::Replicated, zero::Fp32>();
  check_unset<zero::stage::Pos, Bf16>();
  check_unset<zero::stage::PosG, zero::Fp32>();
  check_unset<zero::stage::PosGP, Bf16>();
}

}  // namespace
}  // namespace start_test
