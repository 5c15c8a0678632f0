/// Ranks that disagree over NCCL, which would hang: Checked tells them first, without a host that
/// reads device memory.
#include "zero/comm/decorators/checked.hpp"

#include "nccl/world.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"

namespace checked_test {
namespace {

using zero::Checked;
using zero::Collective;
using zero::ErrorKind;
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

/// Calls `body(comm, checked)` on every rank, which are told nothing else.
template <class Body>
void run_checked(fake::World& world, double deadline_s, Body const& body) {
  auto const what = fake::errors_of(world, [&](fake::Process& process, fake::Stream* compute) {
    Comm comm(zero::nccl::NewGroup<DeviceLibrary>{{1}, process.rank, world.size(), compute},
              fake::quick_stream_options({.deadline_s = deadline_s}));
    Checked checked{comm, comm.allocator()};
    body(comm, checked);
  });
  for (std::string const& text : what) CHECK_MESSAGE(text.empty(), text);
  CHECK_MESSAGE(world.violations().empty(), world.violations());
}

// What ranks may disagree about is the same over all communicators; see unit/comm.
TEST_CASE("Checked over NCCL: a disagreement is told on all ranks before data moves") {
  fake::World world(3, 11);
  std::vector<std::string> told(3);
  std::vector<std::vector<float>> recv(3, std::vector<float>(64, -1.f));
  run_checked(world, 60, [&](Comm& comm, auto& checked) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    std::vector<float> const send(64, 1.f);
    Collective const op{.op = Op::all_reduce,
                        .count = rank == 2 ? 9u : 8u,
                        .send = send.data(),
                        .recv = recv[rank].data(),
                        .bucket = 5};
    told[rank] = refusal([&] { zero::run(checked, op); }, ErrorKind::communication);
    // Nobody launched what the others would have waited for.
    comm.close();
  });
  for (std::string const& text : told) CHECK(text.starts_with("rank 2 called ["));
  fake::check_told(told,
                   {"all_reduce of 9 fp32",
                    "where rank 0 called [all_reduce of 8 fp32",
                    "they differ in count"});
  for (auto const& values : recv) CHECK(values == std::vector<float>(64, -1.f));
  fake::check_clean(world);
}

TEST_CASE("Checked over NCCL: calls that agree sum, in sub-groups as well") {
  fake::World world(4, 3);
  run_checked(world, 60, [&](Comm& comm, auto& checked) {
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
  std::vector<std::string> told(2);
  run_checked(world, 0.3, [&](Comm& comm, auto& checked) {
    told[static_cast<std::size_t>(comm.rank())] =
        refusal([&] { fake::all_reduce(checked, 7); }, ErrorKind::communication);
  });
  for (std::string const& text : told) {
    CHECK(!text.empty());
    CHECK_MESSAGE(!fake::contains(text, "differ"), text);
    CHECK_MESSAGE(!fake::contains(text, "have not arrived"), text);
  }
}

}  // namespace
}  // namespace checked_test
