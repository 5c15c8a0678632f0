/// Compiled with -ffast-math, where a comparison may take every number for a sensible one.
#include "support/test.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/mpi.hpp"

#include <mpi.h>

namespace fast_math_test {
namespace {

TEST_CASE("a deadline that makes no sense is refused, whatever the compiler takes numbers for") {
  // From bits: compilers warn of the usual names.
  constexpr auto nan = std::bit_cast<double>(std::uint64_t{0x7ff8} << 48);
  constexpr auto infinity = std::bit_cast<double>(std::uint64_t{0x7ff0} << 48);
  for (double const bad : {nan, infinity, -1., 0., 1e9}) {
    std::string message;
    try {
      zero::Mpi<> const comm(MPI_COMM_WORLD, {.deadline_s = bad});
    } catch (zero::Error const& error) {
      message = error.message();
    }
    CHECK(message == "the deadline of an MPI group is not in (0, 1e9) s");
  }
}

}  // namespace
}  // namespace fast_math_test
