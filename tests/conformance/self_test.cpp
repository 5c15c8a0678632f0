#include "zero/comm/self.hpp"

#include "conformance/communicator.hpp"

namespace self_test {
namespace {

struct SelfWorld {
  static constexpr int ranks[] = {1};
  template <class Body>
  static void run(int, Body const& body) {
    zero::Self comm;
    body(comm);
  }
};

TEST_CASE("Self: operations") { conformance::check_operations<SelfWorld>(); }
TEST_CASE("Self: collectives under way") { conformance::check_outstanding<SelfWorld>(); }
TEST_CASE("Self: sub-groups") { conformance::check_groups<SelfWorld>(); }
TEST_CASE("Self: arguments") { conformance::check_arguments<SelfWorld>(); }

}  // namespace
}  // namespace self_test
