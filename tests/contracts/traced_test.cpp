/// Training over Traced: the same bits, and an error that says where each rank was.
#include "contracts/loop.hpp"
#include "contracts/recording.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace traced_test {
namespace {

using Bf16 = zero::Mixed<zero::bf16>;
template <class Stage>
using Watched = contracts::WatchedOptimizer<Stage, Bf16>;

/// Bits of everything after three steps.
template <class Optimizer>
std::vector<std::byte> train(typename Optimizer::Communicator& comm) {
  Optimizer optimizer{comm, toy::model(), zero::Bucket{6144}};
  contracts::load(optimizer);
  for (long step = 0; step < 3; ++step) {
    contracts::pass(optimizer, {}, step, comm.rank());
    optimizer.step({.max_norm = 1.});
  }
  return contracts::snapshot(optimizer);
}

template <class Stage>
void check_bits() {
  INFO("stage " << Stage::name);
  zero::run_ranks(3, [](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    CHECK(train<Watched<Stage>>(watched.comm) == train<contracts::Optimizer<Stage, Bf16>>(inner));
    CHECK(watched.traced.calls().size() > 10);
  });
}

TEST_CASE("training over Traced gives the bits of training without") {
  check_bits<zero::stage::Replicated>();
  check_bits<zero::stage::Pos>();
  check_bits<zero::stage::PosG>();
  check_bits<zero::stage::PosGP>();
}

TEST_CASE("exposed communication of a step is a part of its time, and begins anew when told") {
  zero::run_ranks(2, [](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    auto& comm = watched.traced;
    Watched<zero::stage::PosGP> optimizer{watched.comm, toy::model()};
    contracts::load(optimizer);
    for (long step = 0; step < 3; ++step) {
      comm.reset_seconds();
      auto const begin = std::chrono::steady_clock::now();
      contracts::pass(optimizer, {}, step, inner.rank());
      optimizer.step();
      std::chrono::duration<double> const all = std::chrono::steady_clock::now() - begin;
      CHECK(comm.seconds_inside() > 0.);
      CHECK(comm.seconds_inside() < all.count());
    }
  });
}

TEST_CASE("a rank that fails while training: every other rank says where it was") {
  std::vector<std::string> told(3);
  try {
    zero::run_ranks(3, [&](zero::InProcess& inner) {
      contracts::Watched watched{inner};
      auto& comm = watched.traced;
      Watched<zero::stage::PosGP> optimizer{watched.comm, toy::model()};
      contracts::load(optimizer);
      try {
        for (long step = 0; step < 4; ++step) {
          contracts::pass(optimizer, {}, step, inner.rank());
          if (step == 2 && inner.rank() == 1) throw std::runtime_error("no disk");
          optimizer.step();
        }
      } catch (zero::Error const& error) {
        CHECK(error.kind() == zero::ErrorKind::communication);
        told[static_cast<std::size_t>(inner.rank())] = error.message() + '\n' + comm.describe();
        throw;
      }
    });
  } catch (std::runtime_error const& error) {
    CHECK(std::string(error.what()) == "no disk");
  }
  for (int const rank : {0, 2}) {
    std::string const& text = told[static_cast<std::size_t>(rank)];
    INFO(text);
    std::string const where = "; rank " + std::to_string(rank) + " of 3 was ";
    CHECK(text.find("rank 1 failed: no disk") == 0);
    CHECK(text.find(where) != std::string::npos);
    CHECK(text.find("\nrank " + std::to_string(rank) + " of 3: ") != std::string::npos);
    CHECK(text.find(", did not succeed\n") != std::string::npos);
  }
}

}  // namespace
}  // namespace traced_test
