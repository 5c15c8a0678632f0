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

Library::Comm begin_init(int rank, int size) {
  Library::Comm comm = nullptr;
  REQUIRE(Library::init(&comm, size, {1}, rank, {}).pending());
  return comm;
}

TEST_CASE("Nccl: the trainer's own communicator may still be in progress") {
  for (int const polls : {0, 20}) {
    fake::World world(2, 1);
    auto const what = errors_of(world, 2, [&](fake::Process& process, auto* compute) {
      process.script.in_progress = polls;
      Comm comm(Existing{begin_init(process.rank, 2), compute, compute}, fake::quick_options());
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
    own = begin_init(0, 2);
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
    Library::Comm const own = begin_init(0, 1);
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
    Comm comm(Existing{begin_init(0, 2), compute, compute}, options);
  });
  CHECK_MESSAGE(contains(what[0], "deadline_s is not in"), what[0]);
}

}  // namespace
}  // namespace existing_test
