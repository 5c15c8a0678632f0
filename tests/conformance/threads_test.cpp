#include "conformance/communicator.hpp"
#include "zero/comm/decorators/counting.hpp"
#include "zero/comm/decorators/traced.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/comm/self.hpp"

#include <cstddef>

namespace threads_test {

struct InProcess {
  static constexpr int ranks[] = {1, 2, 3, 4, 5, 8};
  template <class Body>
  static void run(int world_size, Body const& body) {
    zero::run_ranks(world_size, body);
  }
};
struct Counting {
  static constexpr auto& ranks = InProcess::ranks;
  template <class Body>
  static void run(int world_size, Body const& body) {
    zero::run_ranks(world_size, [&](zero::InProcess& inner) {
      zero::Counting comm{inner};
      body(comm);
    });
  }
};
/// Fewer calls are remembered than the suite has under way.
struct Traced {
  static constexpr auto& ranks = InProcess::ranks;
  template <class Body>
  static void run(int world_size, Body const& body) {
    zero::run_ranks(world_size, [&](zero::InProcess& inner) {
      zero::Traced comm{inner, 100};
      body(comm);
    });
  }
};
struct Self {
  static constexpr int ranks[] = {1};
  template <class Body>
  static void run(int, Body const& body) {
    zero::Self comm;
    body(comm);
  }
};

}  // namespace threads_test

// The thread sanitizer leaves out what passes calls on, and what is alone.
TYPE_TO_STRING_AS("InProcess", threads_test::InProcess);
TYPE_TO_STRING_AS("Counting [full]", threads_test::Counting);
TYPE_TO_STRING_AS("Traced [full]", threads_test::Traced);
TYPE_TO_STRING_AS("Self [full]", threads_test::Self);

namespace threads_test {
namespace {

TEST_CASE_TEMPLATE("operations", World, InProcess, Counting, Traced, Self) {
  conformance::check_operations<World>();
}
TEST_CASE_TEMPLATE("outstanding, groups, arguments", World, InProcess, Counting, Traced, Self) {
  conformance::check_outstanding<World>();
  conformance::check_groups<World>();
  conformance::check_arguments<World>();
}
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

}  // namespace
}  // namespace threads_test
