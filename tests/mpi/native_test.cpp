/// Reductions that MPI carries out, and those it need not.
#include "conformance/communicator.hpp"
#include "mpi/world.hpp"
#include "zero/concepts/communicator.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace native_test {
namespace {

using mpi_tests::Route;
using zero::Op;

/// Sums that MPI forms: integers exactly, the others within the rounding of every addition.
template <class T>
void check_native(zero::Mpi<zero::mpi::Native>& comm, double tolerance) {
  auto const ranks = static_cast<std::size_t>(comm.size());
  constexpr std::size_t count = 30001;
  auto const send = conformance::elements<T>(comm.rank(), count * ranks);
  std::vector<T> scattered(count);
  std::vector<T> reduced(count);
  zero::DType const sums = sizeof(T) == 2 ? zero::DType::f32 : zero::dtype_of<T>;
  zero::Collective op{.op = Op::reduce_scatter,
                      .dtype = zero::dtype_of<T>,
                      .accumulate = sums,
                      .count = count,
                      .send = send.data(),
                      .recv = scattered.data()};
  conformance::Squares<T> squares(comm, op);
  zero::run(comm, op);
  CHECK(squares.verdict(op) == "");
  op.squares = nullptr;
  op.op = Op::all_reduce;
  op.recv = reduced.data();
  zero::run(comm, op);
  std::size_t wrong = 0;
  auto const compare = [&](T got, std::size_t at) {
    double sum = 0;
    double size = 0;
    std::uint64_t exact = 0;
    for (int rank = 0; rank < comm.size(); ++rank) {
      T const x = conformance::element<T>(rank, at);
      if constexpr (std::is_integral_v<T>) {
        exact += static_cast<std::uint64_t>(x);
      } else {
        sum += static_cast<double>(static_cast<float>(x));
        size += std::abs(static_cast<double>(static_cast<float>(x)));
      }
    }
    if constexpr (std::is_integral_v<T>) {
      if (got != static_cast<T>(exact)) ++wrong;
    } else {
      if (std::abs(static_cast<double>(static_cast<float>(got)) - sum) > tolerance * size) ++wrong;
    }
  };
  auto const own = static_cast<std::size_t>(comm.rank()) * count;
  for (std::size_t i = 0; i < count; ++i) {
    compare(scattered[i], own + i);
    compare(reduced[i], i);
  }
  CHECK(wrong == 0);
}

TEST_CASE("Native: MPI's own reductions") {
  for (Route const route :
       {Route::exchange, Route::two_nodes, Route::small_chunks, Route::sole_thread}) {
    mpi_tests::with_group<zero::mpi::Native>(mpi_tests::world_size(), route, [](auto& comm) {
      int const terms = comm.size();
      check_native<float>(comm, terms * 0x1p-23);
      check_native<zero::bf16>(comm, terms * 0x1p-8);
      check_native<zero::fp16>(comm, terms * 0x1p-10);
      check_native<std::int32_t>(comm, 0);
      check_native<std::int64_t>(comm, 0);
      if (comm.size() > 1) CHECK(comm.transport().native_bytes > 0);
    });
  }
}

TEST_CASE("Native within one window adds in rank order, as Ordered does") {
  mpi_tests::with_group<zero::mpi::Native>(mpi_tests::world_size(), Route::window, [](auto& comm) {
    conformance::Findings findings;
    std::size_t const small[] = {7, 64};
    conformance::every_operation<float, float>(comm, findings, small);
    findings.check();
    CHECK(comm.transport().native_bytes == 0);
  });
}

TEST_CASE("Native: a reduction after more other collectives than can be under way") {
  mpi_tests::with_group<zero::mpi::Native>(
      mpi_tests::world_size(), Route::exchange, [](auto& comm) {
        std::int32_t const mine = comm.rank();
        std::vector<std::int32_t> all(static_cast<std::size_t>(comm.size()));
        for (int i = 0; i < 150; ++i) {
          zero::run(comm,
                    {.op = Op::all_gather,
                     .dtype = zero::DType::i32,
                     .count = 1,
                     .send = &mine,
                     .recv = all.data()});
        }
        check_native<std::int32_t>(comm, 0);
      });
}

}  // namespace
}  // namespace native_test
