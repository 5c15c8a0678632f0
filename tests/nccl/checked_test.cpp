/// Ranks that disagree over NCCL, which would hang: Checked tells them first, without a host that
/// reads device memory.
#include "zero/comm/decorators/checked.hpp"

#include "nccl/world.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace checked_test {
namespace {

using zero::Checked;
using zero::Collective;
using zero::DType;
using zero::Error;
using zero::Op;

/// The fake's memory as a device's: its host functions work in the order of a stream.
class StreamSpace : public zero::space::Host {
 public:
  static constexpr std::string_view name = "stream";
  static constexpr bool host_accessible = false;

  StreamSpace(int /*device*/, fake::Stream* stream) : stream_(stream) {}

  void upload(void* to, void const* host, std::size_t bytes) const {
    REQUIRE(fake::Library::upload(to, host, bytes, stream_).ok());
  }
  void download(void* host, void const* from, std::size_t bytes) const {
    fake::Library::synchronize(stream_);
    REQUIRE(fake::Library::download(host, from, bytes, stream_).ok());
  }

 private:
  fake::Stream* stream_;
};

struct DeviceLibrary : fake::Library {
  using Space = StreamSpace;
};

using Comm = zero::BasicNccl<DeviceLibrary>;

/// Calls `body(comm, checked)` on every rank.
template <class Body>
void run_checked(fake::World& world,
                 int ranks,
                 zero::nccl::Options const& options,
                 Body const& body) {
  fake::run_processes(world, ranks, [&](fake::Process& process) {
    fake::Stream* const compute = fake::world_stream(world, process);
    Comm comm(zero::nccl::NewGroup<DeviceLibrary>{{1}, process.rank, ranks, compute}, options);
    Checked checked{comm, comm.allocator()};
    body(comm, checked);
  });
}

TEST_CASE("Checked over NCCL: a disagreement is told on all ranks before data moves") {
  Collective const usual{.op = Op::all_reduce, .count = 8, .bucket = 5};
  struct {
    char const* what;
    Collective odd;
    char const* side;
  } const cases[] = {
      {"operation", {.op = Op::all_gather, .count = 8, .bucket = 5}, "all_gather of 8 fp32"},
      {"dtype",
       {.op = Op::all_reduce, .dtype = DType::bf16, .count = 8, .bucket = 5},
       "all_reduce of 8 bf16"},
      {"count", {.op = Op::all_reduce, .count = 9, .bucket = 5}, "all_reduce of 9 fp32"},
      {"bucket", {.op = Op::all_reduce, .count = 8, .bucket = 6}, "bucket 6"},
  };
  for (auto const& one : cases) {
    fake::World world(3, 11);
    std::vector<std::string> told(3);
    std::vector<std::vector<float>> recv(3, std::vector<float>(64, -1.f));
    run_checked(world, 3, fake::quick_stream_options(), [&](Comm& comm, auto& checked) {
      auto const rank = static_cast<std::size_t>(comm.rank());
      std::vector<float> const send(64, 1.f);
      Collective op = rank == 2 ? one.odd : usual;
      op.send = send.data();
      op.recv = recv[rank].data();
      try {
        zero::run(checked, op);
      } catch (Error const& error) {
        told[rank] = error.message();
      }
      // Nobody launched what the others would have waited for.
      comm.close();
    });
    for (std::size_t rank = 0; rank < 3; ++rank) {
      std::string const& text = told[rank];
      CHECK_MESSAGE(text.find("rank 2 called [") == 0, text);
      CHECK_MESSAGE(text.find(one.side) != std::string::npos, text);
      CHECK_MESSAGE(text.find("where rank 0 called [all_reduce of 8 fp32") != std::string::npos,
                    text);
      CHECK_MESSAGE(text.find(std::string("they differ in ") + one.what) != std::string::npos,
                    text);
      CHECK(recv[rank] == std::vector<float>(64, -1.f));
    }
    fake::check_clean(world);
  }
}

TEST_CASE("Checked over NCCL: calls that agree sum, in sub-groups as well") {
  fake::World world(4, 3);
  run_checked(world, 4, fake::quick_stream_options(), [&](Comm& comm, auto& checked) {
    std::vector<float> x(16, 1.f);
    Collective const sum{
        .op = Op::all_reduce, .count = x.size(), .send = x.data(), .recv = x.data(), .bucket = 0};
    zero::run(checked, sum);
    {
      auto half = checked.split(comm.rank() % 2, comm.rank());
      zero::run(half, sum);
    }
    std::vector<float> read(x.size());
    comm.space().download(read.data(), x.data(), x.size() * sizeof(float));
    CHECK(read == std::vector<float>(16, 8.f));
    comm.close();
  });
  fake::check_clean(world);
}

TEST_CASE("Checked over NCCL: a comparison that hangs is reported as that, not as a difference") {
  fake::World world(2, 5);
  world.process(1).script.hang_at = 1;  // after the agreement at construction
  zero::nccl::Options options = fake::quick_stream_options();
  options.deadline_s = 0.3;
  std::vector<std::string> told(2);
  run_checked(world, 2, options, [&](Comm& comm, auto& checked) {
    float x = 1.f;
    try {
      zero::run(checked, {.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x, .bucket = 7});
    } catch (Error const& error) {
      told[static_cast<std::size_t>(comm.rank())] = error.message();
    }
  });
  for (std::string const& text : told) {
    CHECK(!text.empty());
    CHECK_MESSAGE(text.find("differ") == std::string::npos, text);
    CHECK_MESSAGE(text.find("have not arrived") == std::string::npos, text);
  }
  CHECK_MESSAGE(world.violations().empty(), world.violations());
}

}  // namespace
}  // namespace checked_test
