/// Reductions that MPI carries out, and those it need not.
#include "mpi/pooled.hpp"
#include "mpi/world.hpp"
#include "support/test.hpp"

namespace native_test {
namespace {

using mpi_tests::collective;
using mpi_tests::on_all;
using mpi_tests::Route;
using zero::Op;

/// Sums that MPI forms: integers exactly, the others within the rounding of every addition.
template <class T>
void check_native(zero::Mpi<zero::mpi::Native>& comm, double tolerance) {
  constexpr std::size_t count = 30001;
  auto const send =
      conformance::elements<T>(comm.rank(), count * static_cast<std::size_t>(comm.size()));
  std::vector<T> scattered(count), reduced(count);
  auto op = collective(Op::reduce_scatter, count, send.data(), scattered.data());
  conformance::Squares<T> squares(comm, op);
  zero::run(comm, op);
  CHECK(squares.verdict(op) == "");
  zero::run(comm, collective(Op::all_reduce, count, send.data(), reduced.data()));
  auto const own = static_cast<std::size_t>(comm.rank()) * count;
  CHECK(mpi_tests::wrong_of(count, [&](std::size_t i) {
          return mpi_tests::is_sum(scattered[i], comm.size(), own + i, tolerance) &&
                 mpi_tests::is_sum(reduced[i], comm.size(), i, tolerance);
        }) == 0);
}

TEST_CASE("Native: MPI's own reductions") {
  for (Route const route :
       {Route::exchange, Route::two_nodes, Route::small_chunks, Route::sole_thread}) {
    on_all<zero::mpi::Native>(route, [](auto& comm) {
      int const terms = comm.size();
      check_native<float>(comm, terms * 0x1p-23);
      check_native<zero::bf16>(comm, terms * 0x1p-8);
      check_native<zero::fp16>(comm, terms * 0x1p-10);
      check_native<std::int32_t>(comm, 0);
      check_native<std::int64_t>(comm, 0);
      // Nodes of several ranks add by themselves.
      bool const alone = comm.size() > 1 && comm.transport().nodes == comm.size();
      CHECK((comm.transport().native_bytes > 0) == alone);
    });
  }
}

TEST_CASE("Native within one window adds in rank order, as Ordered does") {
  on_all<zero::mpi::Native>(Route::window, [](auto& comm) {
    conformance::Findings findings;
    std::size_t const small[] = {7, 64};
    conformance::every_operation<float, float>(comm, findings, small);
    findings.check();
    CHECK(comm.transport().native_bytes == 0);
  });
}

TEST_CASE("Native: a reduction after more other collectives than can be under way") {
  on_all<zero::mpi::Native>(Route::exchange, [](auto& comm) {
    std::int32_t const mine = comm.rank();
    std::vector<std::int32_t> all(static_cast<std::size_t>(comm.size()));
    for (int i = 0; i < 150; ++i) {
      zero::run(comm, collective(Op::all_gather, 1, &mine, all.data()));
    }
    check_native<std::int32_t>(comm, 0);
  });
}

}  // namespace
}  // namespace native_test
