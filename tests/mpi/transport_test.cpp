/// What the communicator over MPI promises beside the concept: memory, limits, errors, progress.
#include "mpi/pooled.hpp"
#include "mpi/world.hpp"
#include "zero/comm/decorators/counting.hpp"
#include "zero/concepts/communicator.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace transport_test {
namespace {

using mpi_tests::error_of;
using mpi_tests::Route;
using zero::Op;
using Comm = zero::Mpi<>;

static_assert(zero::ProgressingCommunicator<Comm>);
static_assert(zero::ProgressingCommunicator<zero::Counting<Comm>>);

TEST_CASE("construction refuses what cannot work") {
  CHECK(error_of([] { Comm comm(MPI_COMM_NULL); }).find("MPI_COMM_NULL") != std::string::npos);
  using Limits = std::numeric_limits<double>;
  for (double const bad : {Limits::quiet_NaN(), Limits::infinity(), -1., 0., 1e9}) {
    CHECK(error_of([=] { Comm comm(MPI_COMM_WORLD, {.deadline_s = bad}); }).find("deadline") !=
          std::string::npos);
  }
  CHECK(error_of([] { Comm comm(MPI_COMM_WORLD, {.message_bytes = 7}); }).find("message_bytes") !=
        std::string::npos);
}

TEST_CASE("where MPI allows threads, every call ends by the deadline, and the report says so") {
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  mpi_tests::with_group<zero::mpi::Ordered>(
      mpi_tests::world_size(), Route::window, [&](auto& comm) {
        CHECK(comm.transport().always_deadline == (provided >= MPI_THREAD_SERIALIZED));
      });
}

TEST_CASE("the window's pool: alignment, reuse, exhaustion") {
  mpi_tests::with_group<zero::mpi::Ordered>(mpi_tests::world_size(), Route::window, [](auto& comm) {
    auto allocator = comm.allocator();
    std::size_t const all = comm.transport().shared_left;
    void* const a = allocator.allocate(1000, 4096);
    void* const b = allocator.allocate(5000, 4096);
    CHECK(reinterpret_cast<std::uintptr_t>(a) % 4096 == 0);
    CHECK(reinterpret_cast<std::uintptr_t>(b) % 4096 == 0);
    CHECK(static_cast<std::byte*>(b) >= static_cast<std::byte*>(a) + 1000);
    CHECK(comm.transport().shared_left == all - 6000);
    CHECK(error_of([&] { comm.close(); }).find("2 blocks") != std::string::npos);
    std::string const text =
        error_of([&] { allocator.deallocate(allocator.allocate(all, 64), all, 64); });
    CHECK(text.find(std::to_string(all)) != std::string::npos);
    CHECK(text.find(std::to_string(all - 6000) + " of") != std::string::npos);
    CHECK(text.find("Options::shared_bytes") != std::string::npos);
    allocator.deallocate(a, 1000, 4096);
    CHECK(allocator.allocate(900, 64) == a);
    allocator.deallocate(a, 900, 64);
    allocator.deallocate(b, 5000, 4096);
    CHECK(comm.transport().shared_left == all);
  });
}

TEST_CASE("what a group holds is planned, and not what its allocator gives") {
  for (Route const route : mpi_tests::routes) {
    auto const check = [&](auto& comm) {
      int const nodes = comm.transport().window ? comm.transport().nodes : 1;
      std::uint64_t const planned =
          comm.planned_bytes(mpi_tests::options(route), comm.size(), nodes);
      CHECK(comm.held() <= planned);
      // From now on every rank has chunks for all others.
      std::vector<float> const send(5000 * static_cast<std::size_t>(comm.size()));
      std::vector<float> recv(send.size());
      zero::run(comm,
                {.op = Op::all_to_all, .count = 5000, .send = send.data(), .recv = recv.data()});
      std::uint64_t const held = comm.held();
      CHECK(held > 0);
      CHECK_MESSAGE(held <= planned, mpi_tests::name(route), ": ", held, " of ", planned);
      CHECK_MESSAGE(planned - held < 32768 + (nodes > 1 ? planned : 0),
                    mpi_tests::name(route),
                    ": ",
                    held,
                    " of ",
                    planned);
      auto allocator = comm.allocator();
      if (!comm.transport().window) return;
      void* const memory = allocator.allocate(4096, 64);
      CHECK(comm.held() == held);
      allocator.deallocate(memory, 4096, 64);
    };
    mpi_tests::with_group<zero::mpi::Ordered>(mpi_tests::world_size(), route, check);
    mpi_tests::with_group<zero::mpi::Native>(mpi_tests::world_size(), route, check);
  }
}

TEST_CASE("buffers in the window are read where they are, and not a moment too early or too late") {
  mpi_tests::with_group<zero::mpi::Ordered>(mpi_tests::world_size(), Route::window, [](auto& comm) {
    mpi_tests::check_pooled(comm);
    CHECK(comm.transport().exchanged_bytes == 0);
  });
}

TEST_CASE("one narrowing point: nothing beyond the limit gets through") {
  using zero::mpi::detail::narrow_count;
  CHECK(narrow_count(25, 4, 100) == 25);
  CHECK(error_of([] { static_cast<void>(narrow_count(26, 4, 100)); }).find("104 bytes") !=
        std::string::npos);
  CHECK(error_of([] { static_cast<void>(narrow_count(3'000'000'000, 1, SIZE_MAX)); }) !=
        "no error");
  CHECK(error_of([] { static_cast<void>(narrow_count(SIZE_MAX / 2, 4, SIZE_MAX)); }) != "no error");
}

TEST_CASE("messages keep to the limit, and what they carry is counted") {
  mpi_tests::with_group<zero::mpi::Ordered>(
      mpi_tests::world_size(), Route::small_chunks, [](auto& comm) {
        auto const ranks = static_cast<std::size_t>(comm.size());
        std::vector<float> send(5000, 1.f);
        std::vector<float> recv(5000 * ranks);
        zero::run(comm,
                  {.op = Op::all_gather, .count = 5000, .send = send.data(), .recv = recv.data()});
        CHECK(comm.transport().chunk_bytes == 1000);
        CHECK(comm.transport().exchanged_bytes == (ranks - 1) * 20000);
        CHECK(comm.transport().direct_bytes == 0);
        CHECK_FALSE(comm.transport().window);
      });
}

TEST_CASE("on one node memory outside the window takes one copy into it") {
  mpi_tests::with_group<zero::mpi::Ordered>(mpi_tests::world_size(), Route::window, [](auto& comm) {
    auto const ranks = static_cast<std::size_t>(comm.size());
    // Several chunks of a lane.
    constexpr std::size_t count = 3'000'001;
    std::vector<float> send(count, static_cast<float>(comm.rank() + 1));
    std::vector<float> recv(count * ranks, 0.f);
    zero::run(comm,
              {.op = Op::all_gather, .count = count, .send = send.data(), .recv = recv.data()});
    CHECK(comm.transport().exchanged_bytes == (ranks - 1) * count * sizeof(float));
    CHECK(comm.transport().direct_bytes == 0);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < recv.size(); ++i) {
      std::size_t const source = i / count;
      if (recv[i] != static_cast<float>(source + 1)) ++wrong;
    }
    CHECK(wrong == 0);
  });
}

/// Starts a reduce-scatter of ones and calls `meanwhile` until its result is there, which must be
/// soon; only then it is waited for.
template <class Comm, class Meanwhile>
void check_arrives(Comm& comm, Meanwhile const& meanwhile) {
  auto const ranks = static_cast<std::size_t>(comm.size());
  auto const sum = static_cast<float>(ranks);
  std::vector<float> send(300000 * ranks, 1.f);
  std::vector<float> recv(300000, 0.f);
  auto ticket = comm.start(
      {.op = Op::reduce_scatter, .count = recv.size(), .send = send.data(), .recv = recv.data()});
  std::atomic_ref<float> const last(recv.back());
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (last != sum && std::chrono::steady_clock::now() < end) meanwhile();
  CHECK(last == sum);
  comm.wait(ticket);
  CHECK(std::count(recv.begin(), recv.end(), sum) == static_cast<std::ptrdiff_t>(recv.size()));
}

TEST_CASE("progress() alone finishes a transfer that was started") {
  for (Route const route : {Route::window, Route::exchange}) {
    mpi_tests::with_group<zero::mpi::Ordered>(mpi_tests::world_size(), route, [](auto& comm) {
      check_arrives(comm, [&] {
        comm.progress();
        std::this_thread::yield();
      });
    });
  }
}

TEST_CASE("a thread alone finishes a transfer, whichever way its group allows it to call MPI") {
  for (Route const route : {Route::thread, Route::sole_thread}) {
    mpi_tests::with_group<zero::mpi::Ordered>(mpi_tests::world_size(), route, [](auto& comm) {
      CHECK(comm.transport().progress_thread);
      // Nothing of this rank's own advances it meanwhile.
      check_arrives(comm, [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
    });
  }
}

}  // namespace
}  // namespace transport_test
