#include "support/refusal.hpp"
#include "support/test.hpp"
#include "trapped_space.hpp"
#include "zero/comm/decorators/checked.hpp"
#include "zero/comm/run_ranks.hpp"

namespace checked_device_test {
namespace {

using zero::Checked;
using zero::Collective;
using zero::DType;
using zero::Error;
using zero::InProcess;
using zero::Op;

constexpr trapped::Collectives both[] = {trapped::Collectives::early, trapped::Collectives::late};

/// Calls `body(device, comm, checked)` on every rank.
template <class Body>
void run_checked(trapped::Collectives when, Body const& body) {
  zero::run_ranks(3, [&](InProcess& inner) {
    trapped::Device device;
    trapped::Communicator comm(inner, device, when);
    Checked checked{comm, trapped::Allocator{&device}};
    body(device, comm, checked);
  });
}

/// Ranks 0 and 1 make `usual`, rank 2 makes `odd`; returns what each rank was told.
std::vector<std::string> disagree(Collective const& usual,
                                  Collective const& odd,
                                  trapped::Collectives when) {
  constexpr std::size_t elements = 64;
  std::vector<std::string> told(3);
  run_checked(when, [&](trapped::Device& device, auto& comm, auto& checked) {
    auto* const send = static_cast<float*>(device.allocate(elements * sizeof(float), 64));
    auto* const recv = static_cast<float*>(device.allocate(elements * sizeof(float), 64));
    std::vector<float> const before(elements, -1.f);
    comm.space().upload(recv, before.data(), elements * sizeof(float));
    Collective op = comm.rank() == 2 ? odd : usual;
    op.send = send;
    op.recv = recv;
    std::string& text = told[static_cast<std::size_t>(comm.rank())];
    try {
      zero::run(checked, op);
    } catch (Error const& error) {
      text = error.message();
      if (error.kind() != zero::ErrorKind::communication) text = "another kind";
      if (error.rank() != comm.rank() || error.bucket() != op.bucket) text = "another context";
    }
    std::vector<float> after(elements);
    comm.space().download(after.data(), recv, elements * sizeof(float));
    if (after != before) text = "data was written";
    std::string const again =
        refusal([&] { zero::run(checked, op); }, zero::ErrorKind::communication);
    if (again != text) text = "a later call: " + again;
  });
  return told;
}

TEST_CASE("Checked on a device: all ranks throw the same error before data moves") {
  Collective const usual{.op = Op::all_gather, .count = 8, .bucket = 5};
  struct {
    char const* what;
    Collective odd;
    char const* side;
  } const cases[] = {
      {"operation", {.op = Op::all_reduce, .count = 8, .bucket = 5}, "all_reduce of 8 fp32"},
      {"dtype", {.dtype = DType::bf16, .count = 8, .bucket = 5}, "all_gather of 8 bf16"},
      {"count", {.count = 9, .bucket = 5}, "all_gather of 9 fp32"},
      {"bucket", {.count = 8, .bucket = 6}, "bucket 6"},
  };
  for (trapped::Collectives const when : both) {
    for (auto const& one : cases) {
      for (std::string const& text : disagree(usual, one.odd, when)) {
        CHECK_MESSAGE(text.find("rank 2 called [") == 0, text);
        CHECK_MESSAGE(text.find(one.side) != std::string::npos, text);
        CHECK_MESSAGE(
            text.find("where rank 0 called [all_gather of 8 fp32, bucket 5]") != std::string::npos,
            text);
        CHECK_MESSAGE(text.find(std::string("they differ in ") + one.what) != std::string::npos,
                      text);
      }
    }
  }
}

TEST_CASE("Checked on a device: calls that agree move data, and cost one download each") {
  for (trapped::Collectives const when : both) {
    run_checked(when, [](trapped::Device& device, auto& comm, auto& checked) {
      auto* const x = static_cast<float*>(device.allocate(sizeof(float), 64));
      float const one = 1.f;
      comm.space().upload(x, &one, sizeof(one));
      for (int i = 0; i < 4; ++i) {
        zero::run(checked, {.op = Op::all_reduce, .count = 1, .send = x, .recv = x, .bucket = i});
      }
      CHECK(device.downloads == 4);
      float sum = 0.f;
      comm.space().download(&sum, x, sizeof(sum));
      CHECK(sum == 81.f);
    });
  }
}

/// Has nothing to give, or counts what it gave.
struct Limited {
  trapped::Device* device = nullptr;
  std::size_t* held = nullptr;
  void* allocate(std::size_t bytes, std::size_t alignment) {
    if (device == nullptr) return nullptr;
    *held += bytes;
    return device->allocate(bytes, alignment);
  }
  void deallocate(void*, std::size_t bytes, std::size_t) noexcept { *held -= bytes; }
};

TEST_CASE("Checked on a device: 64 bytes per rank are taken, and given back once") {
  zero::run_ranks(2, [](InProcess& inner) {
    trapped::Device device;
    trapped::Communicator comm(inner, device, trapped::Collectives::early);
    CHECK_THROWS_WITH_AS((Checked{comm, Limited{}}),
                         doctest::Contains("cannot allocate 128 bytes to compare calls in"),
                         Error);
    std::size_t held = 0;
    {
      Checked first{comm, Limited{&device, &held}};
      CHECK(held == 128);
      Checked const second = std::move(first);
      CHECK(held == 128);
    }
    CHECK(held == 0);
  });
}

}  // namespace
}  // namespace checked_device_test
