#include "zero/comm/decorators/counting.hpp"

#include "conformance/communicator.hpp"
#include "zero/comm/run_ranks.hpp"

namespace counting_test {
namespace {

struct CountingWorld {
  static constexpr int ranks[] = {1, 2, 3, 4, 5, 8};
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::run_ranks(ranks, [&](zero::InProcess& inner) {
      zero::Counting comm{inner};
      body(comm);
    });
  }
};

TEST_CASE("Counting: operations") { conformance::check_operations<CountingWorld>(); }
TEST_CASE("Counting: collectives under way") { conformance::check_outstanding<CountingWorld>(); }
TEST_CASE("Counting: sub-groups") { conformance::check_groups<CountingWorld>(); }

}  // namespace
}  // namespace counting_test
