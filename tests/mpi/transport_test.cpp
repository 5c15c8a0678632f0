/// What the communicator over MPI promises beside the concept: memory, limits, errors, progress.
#include "mpi/pooled.hpp"
#include "mpi/world.hpp"
#include "support/test.hpp"
#include "zero/comm/decorators/counting.hpp"

namespace transport_test {
namespace {

using mpi_tests::collective;
using mpi_tests::contains;
using mpi_tests::error_of;
using mpi_tests::on_all;
using mpi_tests::Route;
using zero::Op;
using Comm = zero::Mpi<>;

static_assert(zero::ProgressingCommunicator<Comm>);
static_assert(zero::ProgressingCommunicator<zero::Counting<Comm>>);

TEST_CASE("construction refuses what cannot work") {
  CHECK(contains(error_of([] { Comm comm(MPI_COMM_NULL); }), "MPI_COMM_NULL"));
  auto const make = [] { Comm comm(MPI_COMM_WORLD, {.message_bytes = 7}); };
  CHECK(contains(error_of(make), "message_bytes"));
}

TEST_CASE("the window's pool: what is left of it, and who is told when it does not suffice") {
  on_all(Route::window, [](auto& comm) {
    auto allocator = comm.allocator();
    std::size_t const all = comm.transport().shared_left;
    void* const a = allocator.allocate(1000, 4096);
    void* const b = allocator.allocate(5000, 4096);
    CHECK(reinterpret_cast<std::uintptr_t>(b) % 4096 == 0);
    CHECK(comm.transport().shared_left == all - 6000);
    CHECK(contains(error_of([&] { comm.close(); }), "2 blocks"));
    std::string const text = error_of([&] { static_cast<void>(allocator.allocate(all, 64)); });
    CHECK(contains(text, std::to_string(all)));
    CHECK(contains(text, std::to_string(all - 6000) + " of"));
    CHECK(contains(text, "Options::shared_bytes"));
    allocator.deallocate(a, 1000, 4096);
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
      std::vector<float> send(5000 * static_cast<std::size_t>(comm.size())), recv(send.size());
      zero::run(comm, collective(Op::all_to_all, 5000, send.data(), recv.data()));
      std::uint64_t const held = comm.held();
      INFO(mpi_tests::name(route), ": ", held, " of ", planned);
      CHECK(held > 0);
      CHECK(held <= planned);
      CHECK(planned - held < 32768 + (nodes > 1 ? planned : 0));
      auto allocator = comm.allocator();
      if (!comm.transport().window) return;
      void* const memory = allocator.allocate(4096, 64);
      CHECK(comm.held() == held);
      allocator.deallocate(memory, 4096, 64);
    };
    on_all(route, check);
  }
}

TEST_CASE("buffers in the window are read where they are, and not a moment too early or too late") {
  on_all(Route::window, [](auto& comm) {
    mpi_tests::check_pooled(comm);
    CHECK(comm.transport().exchanged_bytes == 0);
  });
}

TEST_CASE("one narrowing point: nothing beyond the limit gets through") {
  using zero::mpi::detail::narrow_count;
  auto const refused = [](std::size_t count, std::size_t size, std::size_t limit) {
    return error_of([=] { static_cast<void>(narrow_count(count, size, limit)); });
  };
  CHECK(narrow_count(25, 4, 100) == 25);
  CHECK(contains(refused(26, 4, 100), "104 bytes"));
  CHECK(refused(3'000'000'000, 1, SIZE_MAX) != "no error");
  CHECK(refused(SIZE_MAX / 2, 4, SIZE_MAX) != "no error");
}

/// Gathers blocks of memory outside the window, which all go through chunks.
void check_gather(Comm& comm, std::size_t count) {
  auto const ranks = static_cast<std::size_t>(comm.size());
  std::vector<float> const send(count, static_cast<float>(comm.rank() + 1));
  std::vector<float> recv(count * ranks, 0.f);
  zero::run(comm, collective(Op::all_gather, count, send.data(), recv.data()));
  CHECK(comm.transport().exchanged_bytes == (ranks - 1) * count * sizeof(float));
  CHECK(comm.transport().direct_bytes == 0);
  CHECK(mpi_tests::wrong_of(recv.size(), [&](std::size_t i) {
          return recv[i] == static_cast<float>(i / count + 1);
        }) == 0);
}

TEST_CASE("messages keep to the limit, and what they carry is counted") {
  on_all(Route::small_chunks, [](auto& comm) {
    check_gather(comm, 5000);
    CHECK(comm.transport().chunk_bytes == 1000);
    CHECK_FALSE(comm.transport().window);
  });
}

TEST_CASE("on one node memory outside the window takes one copy into it") {
  // Several chunks of a lane.
  on_all(Route::window, [](auto& comm) { check_gather(comm, 3'000'001); });
}

/// Starts a reduce-scatter of ones and calls `meanwhile` until its result is there, which must be
/// soon; only then it is waited for.
template <class Meanwhile>
void check_arrives(Comm& comm, Meanwhile const& meanwhile) {
  auto const ranks = static_cast<std::size_t>(comm.size());
  auto const sum = static_cast<float>(ranks);
  std::vector<float> send(300000 * ranks, 1.f);
  std::vector<float> recv(300000, 0.f);
  auto ticket = comm.start(collective(Op::reduce_scatter, recv.size(), send.data(), recv.data()));
  std::atomic_ref<float> const last(recv.back());
  mpi_tests::Stopwatch const watch;
  while (last != sum && watch.seconds() < 20) meanwhile();
  CHECK(last == sum);
  comm.wait(ticket);
  CHECK(std::count(recv.begin(), recv.end(), sum) == static_cast<std::ptrdiff_t>(recv.size()));
}

TEST_CASE("progress() alone finishes a transfer that was started") {
  for (Route const route : {Route::window, Route::exchange}) {
    on_all(route, [](auto& comm) {
      check_arrives(comm, [&] {
        comm.progress();
        std::this_thread::yield();
      });
    });
  }
}

TEST_CASE("a thread alone finishes a transfer, whichever way its group allows it to call MPI") {
  for (Route const route : {Route::thread, Route::sole_thread}) {
    on_all(route, [](auto& comm) {
      CHECK(comm.transport().progress_thread);
      // Nothing of this rank's own advances it meanwhile.
      check_arrives(comm, [] { mpi_tests::sleep_ms(1); });
    });
  }
}

}  // namespace
}  // namespace transport_test
