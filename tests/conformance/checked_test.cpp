#include "zero/comm/checked.hpp"

#include "conformance/communicator.hpp"
#include "zero/comm/run_ranks.hpp"

namespace {

struct CheckedWorld {
  static constexpr int ranks[] = {1, 2, 3, 4, 5, 8};
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::run_ranks(ranks, [&](zero::InProcess& inner) {
      zero::Checked comm{inner};
      body(comm);
    });
  }
};

TEST_CASE("Checked: operations") { conformance::check_operations<CheckedWorld>(); }
TEST_CASE("Checked: collectives under way") { conformance::check_outstanding<CheckedWorld>(); }
TEST_CASE("Checked: sub-groups") { conformance::check_groups<CheckedWorld>(); }

}  // namespace
