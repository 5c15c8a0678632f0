/// A trainer's own communicator that is still being built when it is handed over.
#include "nccl/world.hpp"
#include "zero/base/error.hpp"

#include <doctest/doctest.h>

#include <string>

namespace existing_test {
namespace {

using fake::contains;
using fake::errors_of;
using fake::Library;
using zero::nccl::Options;
using Comm = fake::Nccl<>;
using Existing = zero::nccl::Existing<Library>;

/// NCCL writes to `comm` once more when the call has settled.
void begin_init(Library::Comm& comm, int rank, int size) {
  REQUIRE(Library::init(&comm, size, {1}, rank, {}).pending());
}

TEST_CASE("Nccl: the trainer's own communicator may still be in progress") {
  for (int const polls : {0, 20}) {
    fake::World world(2, 1);
    auto const what = errors_of(world, 2, [&](fake::Process& process, auto* compute) {
      process.script.in_progress = polls;
      Library::Comm own = nullptr;
      begin_init(own, process.rank, 2);
      Comm comm(Existing{own, compute, compute}, fake::quick_options());
      CHECK(comm.rank() == process.rank);
      CHECK(comm.size() == 2);
      fake::all_reduce(comm, 0);
      comm.close();
    });
    for (std::string const& text : what) CHECK_MESSAGE(text.empty(), text);
    fake::check_clean(world);
  }
}

TEST_CASE("Nccl: the trainer's own communicator that is never ready is given up, and left alone") {
  fake::World world(2, 1);
  Library::Comm own = nullptr;
  auto const what = errors_of(world, 2, [&](fake::Process& process, auto* compute) {
    if (process.rank == 1) return;
    begin_init(own, 0, 2);
    Options options = fake::quick_options();
    options.deadline_s = 0.1;
    Comm comm(Existing{own, compute, compute}, options);
  });
  CHECK_MESSAGE(contains(what[0], "communication"), what[0]);
  CHECK_MESSAGE(contains(what[0], "not ready after 0.1"), what[0]);
  CHECK_FALSE(own->dead);
  CHECK_FALSE(own->revoked);
  fake::check_clean(world);
}

TEST_CASE("Nccl: the trainer's own communicator that could not be built is refused, with why") {
  fake::World world(1, 1);
  auto const what = errors_of(world, 1, [&](auto&, auto* compute) {
    Library::Comm own = nullptr;
    begin_init(own, 0, 1);
    own->error = zero::nccl::Result::remote_error;
    Comm comm(Existing{own, compute, compute}, fake::quick_options());
  });
  CHECK_MESSAGE(contains(what[0], "communication"), what[0]);
  CHECK_MESSAGE(contains(what[0], "remote error: a peer has closed its socket"), what[0]);
  fake::check_clean(world);
}

TEST_CASE("Nccl: options that no group can have are refused before a wait for the trainer's own") {
  fake::World world(2, 1);
  auto const what = errors_of(world, 2, [&](fake::Process& process, auto* compute) {
    if (process.rank == 1) return;
    Options options = fake::quick_options();
    options.deadline_s = 0;
    Library::Comm own = nullptr;
    begin_init(own, 0, 2);
    Comm comm(Existing{own, compute, compute}, options);
  });
  CHECK_MESSAGE(contains(what[0], "deadline_s is not in"), what[0]);
}

}  // namespace
}  // namespace existing_test
