#include "zero/comm/decorators/traced.hpp"

#include "conformance/communicator.hpp"
#include "zero/comm/run_ranks.hpp"

namespace traced_test {
namespace {

/// Fewer calls are remembered than the suite has under way.
struct TracedWorld {
  static constexpr int ranks[] = {1, 2, 3, 4, 5, 8};
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::run_ranks(ranks, [&](zero::InProcess& inner) {
      zero::Traced comm{inner, 100};
      body(comm);
    });
  }
};

TEST_CASE("Traced: operations") { conformance::check_operations<TracedWorld>(); }
TEST_CASE("Traced: collectives under way") { conformance::check_outstanding<TracedWorld>(); }
TEST_CASE("Traced: sub-groups") { conformance::check_groups<TracedWorld>(); }
TEST_CASE("Traced: arguments") { conformance::check_arguments<TracedWorld>(); }

}  // namespace
}  // namespace traced_test
