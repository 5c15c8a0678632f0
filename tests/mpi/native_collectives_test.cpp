/// The example of a communicator over MPI's own collectives: the suite of the types that MPI adds.
#include "../../examples/mpi/native_collectives.hpp"

#include "conformance/communicator.hpp"
#include "mpi/world.hpp"
#include "support/test.hpp"

namespace native_collectives_test {
namespace {

struct NativeWorld {
  static constexpr mpi_tests::Sizes ranks{};
  template <class Body>
  static void run(int ranks, Body const& body) {
    mpi_tests::with_first(ranks, [&](MPI_Comm part) {
      NativeCollectives<> comm(part, 60.);
      body(comm);
      comm.close();
    });
  }
};

TEST_CASE("MPI's own collectives: the suite, but for the rounding of each addition") {
  conformance::check_operations_in_any_order<NativeWorld>();
  conformance::check_outstanding<NativeWorld, conformance::Sums::in_any_order>();
  conformance::check_groups<NativeWorld>();
  conformance::check_arguments<NativeWorld>();
}

TEST_CASE("MPI's own collectives: sums in 16 bits are refused, and an absent rank is found out") {
  mpi_tests::with_first(mpi_tests::world_size(), [](MPI_Comm all) {
    NativeCollectives<> comm(all, 0.3);
    zero::bf16 half{};
    CHECK(mpi_tests::contains(mpi_tests::error_of([&] {
                                run(comm,
                                    mpi_tests::collective(zero::Op::all_reduce, 1, &half, &half));
                              }),
                              "MPI adds fp32, fp64 and integers, each in its own type"));
    if (comm.rank() == 0 && comm.size() > 1) {
      NativeCollectives<> part = comm.split(0, 0);
      std::vector<float> x(5000);
      auto const op = mpi_tests::collective(zero::Op::all_reduce, x.size(), x.data(), x.data());
      for (auto* const group : {&comm, &part}) {
        CHECK(mpi_tests::contains(mpi_tests::error_of([&] { run(*group, op); }),
                                  "a rank missed the deadline"));
      }
    } else if (comm.size() > 1) {
      static_cast<void>(comm.split(0, 0));
    }
  });
}

}  // namespace
}  // namespace native_collectives_test
