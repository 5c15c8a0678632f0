/// The counters of collectives in graphs: there are so many, and trainers may capture for ever.
#include "nccl/world.hpp"
#include "support/test.hpp"
#include "zero/comm/nccl/nccl_replays.hpp"

namespace replays_test {
namespace {

using fake::Library;
using zero::Op;
using Replays = zero::detail::NcclReplays<Library>;

zero::Collective bucket(int number) { return {.op = Op::all_reduce, .count = 4, .bucket = number}; }

TEST_CASE("Nccl: counters of old captures are used again, but of none that runs [full]") {
  fake::World world(1, 1);
  fake::run_clean(world, [&](fake::Process&, fake::Stream* stream) {
    Replays replays;
    REQUIRE(replays.create().ok());
    std::size_t const running = replays.number_of(bucket(0), 1);
    CHECK(replays.number_of(bucket(0), 1) == running);
    CHECK(replays.number_of(bucket(1), 1) != running);
    CHECK(replays.number_of(bucket(0), 2) != running);
    REQUIRE(replays.count_begin(running, stream).ok());
    Library::synchronize(stream);
    bool taken = false;
    bool lacking = false;
    for (std::uint64_t capture = 3; capture < 3 * Replays::most; ++capture) {
      std::size_t const number = replays.number_of(bucket(2), capture);
      taken = taken || number == running;
      lacking = lacking || number >= Replays::most;
    }
    CHECK_FALSE(taken);
    CHECK_FALSE(lacking);
    CHECK_FALSE(replays.update());
    REQUIRE(replays.oldest() != nullptr);
    CHECK(replays.oldest()->op.bucket == 0);
    REQUIRE(replays.count_end(running, stream).ok());
    Library::synchronize(stream);
    CHECK(replays.update());
    CHECK(replays.oldest() == nullptr);
    replays.destroy();
  });
}

TEST_CASE("Nccl: a capture of more collectives than there are counters shares none of them") {
  fake::World world(1, 1);
  fake::run_clean(world, [&](fake::Process&, fake::Stream* stream) {
    Replays replays;
    REQUIRE(replays.create().ok());
    for (std::size_t i = 0; i < Replays::most; ++i) {
      REQUIRE(replays.number_of(bucket(static_cast<int>(i)), 1) == i);
    }
    std::size_t const none = replays.number_of(bucket(-1), 1);
    CHECK(none == Replays::most);
    // Counts nothing, and writes nowhere.
    CHECK(replays.count_begin(none, stream).ok());
    CHECK(replays.count_end(none, stream).ok());
    Library::synchronize(stream);
    CHECK_FALSE(replays.update());
    replays.destroy();
  });
}

}  // namespace
}  // namespace replays_test
