/// Random cases on threads as ranks: on communicators of theirs, and on devices that are none.
#include "cuda/fake_runtime.hpp"
#include "differential/program.hpp"
#include "support/standard.hpp"
#include "trapped_space.hpp"
#include "zero/comm/decorators/checked.hpp"
#include "zero/comm/decorators/counting.hpp"
#include "zero/comm/decorators/traced.hpp"
#include "zero/comm/device_threads/device_group.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"

namespace {

using differential::AnyAllocator;
using differential::AnyCommunicator;
using differential::AnyDevice;
using differential::Body;

template <class C>
void play(C& comm, Body const& body) {
  AnyCommunicator any(comm, zero::space::Host{});
  body.on_host(any);
}
void in_process(zero::InProcess& comm, std::uint64_t, Body const& body) { play(comm, body); }
void checked(zero::InProcess& comm, std::uint64_t, Body const& body) {
  zero::Checked decorated{comm};
  play(decorated, body);
}
void counting(zero::InProcess& comm, std::uint64_t, Body const& body) {
  zero::Counting decorated{comm};
  play(decorated, body);
}
void traced(zero::InProcess& comm, std::uint64_t, Body const& body) {
  zero::Traced decorated{comm, 100};
  play(decorated, body);
}

/// Memory of a trapped device, which is not zero.
struct Spoiled : trapped::Allocator {
  void* allocate(std::size_t bytes, std::size_t alignment) {
    void* const memory = trapped::Allocator::allocate(bytes, alignment);
    device->enqueue([=] { std::memset(memory, 0xa5, bytes); });
    return memory;
  }
};
void trapping(zero::InProcess& comm, std::uint64_t seed, Body const& body) {
  auto const when = static_cast<trapped::Collectives>(seed / 13 % 2);
  trapped::Device device;
  trapped::Communicator on_device(comm, device, when);
  AnyDevice any(on_device, on_device.space(), AnyAllocator(Spoiled{{&device}}));
  body.on_device(any);
}

/// A stream of a fake runtime, over memory that anybody can reach.
class Stream : public trapped::Device {
 public:
  explicit Stream(fake::Space space) : space_(std::move(space)) {}
  void require(void const*, std::size_t) const override {}
  void enqueue(std::function<void()> work) override { space_.call(work); }
  void synchronize() override { space_.synchronize(); }

 private:
  fake::Space space_;
};
void device_group(int ranks, std::uint64_t seed, Body const& body) {
  using Group = zero::DeviceGroup<fake::Api>;
  auto const transfers = static_cast<fake::Transfers>(seed / 13 % 2);
  auto const machine = std::make_shared<fake::Machine>(transfers);
  int const devices = 1 + static_cast<int>(seed / 29 % 4);
  zero::run_ranks(Group::group(fake::spaces(ranks, machine, devices)), [&](Group& comm) {
    Stream stream(comm.space());
    AnyDevice any(comm, trapped::Space(stream));
    body.on_device(any);
  });
}

struct Kind {
  char const* name;
  bool has_devices;
  void (*play)(zero::InProcess& comm, std::uint64_t seed, Body const& body);
};
constexpr Kind kinds[] = {{"in_process", false, in_process},
                          {"checked", false, checked},
                          {"counting", false, counting},
                          {"traced", false, traced},
                          {"trapped", true, trapping},
                          {"device_group", true, nullptr}};

class Threads : public differential::World {
 public:
  explicit Threads(Kind const& kind) : kind_(kind) {}
  [[nodiscard]] bool has_devices() const override { return kind_.has_devices; }
  void run(int ranks, std::uint64_t seed, Body const& body) override {
    if (kind_.play == nullptr) return device_group(ranks, seed, body);
    auto const on_rank = [&](zero::InProcess& comm) { kind_.play(comm, seed, body); };
    zero::run_ranks(ranks, on_rank, {.deadline_s = 60});
  }

 private:
  Kind kind_;
};

}  // namespace

int main(int argc, char** argv) {
  for (Kind const& kind : kinds) {
    if (argc < 2 || std::strcmp(argv[1], kind.name) != 0) continue;
    Threads world(kind);
    return differential::run_program(world, argc - 1, argv + 1);
  }
  std::printf("usage: %s COMMUNICATOR [--help] ..., of these:", argv[0]);
  for (Kind const& kind : kinds) std::printf(" %s", kind.name);
  std::printf("\n");
  return 2;
}
