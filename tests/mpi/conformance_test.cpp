#include "conformance/communicator.hpp"
#include "mpi/world.hpp"
#include "support/standard.hpp"
#include "zero/comm/decorators/checked.hpp"
#include "zero/comm/decorators/counting.hpp"

namespace conformance_test {
namespace {

using mpi_tests::Route;

template <Route Way>
struct MpiWorld {
  static constexpr mpi_tests::Sizes ranks{};
  template <class Body>
  static void run(int ranks, Body const& body) {
    mpi_tests::with_group(ranks, Way, body);
  }
};

template <Route Way>
void check_everything() {
  conformance::check_operations<MpiWorld<Way>>();
  conformance::check_outstanding<MpiWorld<Way>>();
  conformance::check_groups<MpiWorld<Way>>();
  conformance::check_arguments<MpiWorld<Way>>();
}

TEST_CASE("Mpi: everything within one window") { check_everything<Route::window>(); }
TEST_CASE("Mpi: everything by messages") { check_everything<Route::exchange>(); }
TEST_CASE("Mpi: everything over two nodes") { check_everything<Route::two_nodes>(); }
TEST_CASE("Mpi: everything in chains of ranks") { check_everything<Route::chain_of_ranks>(); }
TEST_CASE("Mpi: everything in messages of at most 1000 bytes") {
  check_everything<Route::small_chunks>();
}
TEST_CASE("Mpi: everything with a progress thread") { check_everything<Route::thread>(); }

}  // namespace
}  // namespace conformance_test
