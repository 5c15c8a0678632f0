#include "zero/comm/in_process.hpp"

#include "conformance/communicator.hpp"
#include "zero/comm/run_ranks.hpp"

namespace in_process_test {
namespace {

struct InProcessWorld {
  static constexpr int ranks[] = {1, 2, 3, 4, 5, 8};
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::run_ranks(ranks, body);
  }
};

TEST_CASE("InProcess: operations") { conformance::check_operations<InProcessWorld>(); }
TEST_CASE("InProcess: collectives under way") { conformance::check_outstanding<InProcessWorld>(); }
TEST_CASE("InProcess: sub-groups") { conformance::check_groups<InProcessWorld>(); }
TEST_CASE("InProcess: results that are streamed and shared out in parts") {
  for (int const ranks : {2, 3}) {
    conformance::Findings findings;
    zero::run_ranks(ranks, [&](zero::InProcess& comm) {
      std::size_t const counts[] = {300001};
      conformance::every_operation<float, float>(comm, findings, counts);
    });
    findings.check();
  }
}
TEST_CASE("InProcess: arguments") { conformance::check_arguments<InProcessWorld>(); }

}  // namespace
}  // namespace in_process_test
