#include "zero/comm/decorators/checked.hpp"

#include "zero/comm/decorators/counting.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace checked_test {
namespace {

static_assert(zero::SplittableCommunicator<zero::Checked<zero::InProcess>>);
static_assert(zero::SquaringCommunicator<zero::Checked<zero::InProcess>>);

using zero::Checked;
using zero::Collective;
using zero::Counting;
using zero::DType;
using zero::Error;
using zero::InProcess;
using zero::Op;

/// Ranks 0 and 1 make `usual`, rank 2 makes `odd`; returns what each rank was told.
std::vector<std::string> disagree(Collective const& usual, Collective const& odd) {
  std::vector<std::string> told(3);
  zero::run_ranks(3, [&](InProcess& comm) {
    Counting counted{comm};
    Checked checked{counted};
    std::vector<float> send(64, 1.0f);
    std::vector<float> recv(64, -1.0f);
    Collective op = comm.rank() == 2 ? odd : usual;
    op.send = send.data();
    op.recv = recv.data();
    std::string& text = told[static_cast<std::size_t>(comm.rank())];
    try {
      zero::run(checked, op);
    } catch (Error const& error) {
      text = error.message();
      if (error.kind() != zero::ErrorKind::communication) text = "another kind";
      if (error.rank() != comm.rank() || error.bucket() != op.bucket) text = "another context";
    }
    // The exchange is all that has moved.
    if (counted.counts().bucket_total().calls != 0) text = "data was sent";
    if (std::any_of(recv.begin(), recv.end(), [](float x) { return x != -1.0f; })) {
      text = "data was written";
    }
    try {
      zero::run(checked, op);
      text = "a later call succeeded";
    } catch (Error const& error) {
      if (error.message() != text) text = "a later call failed with " + error.message();
    }
  });
  return told;
}

TEST_CASE("Checked: every rank throws the same error, naming both sides, before data moves") {
  Collective const usual{.op = Op::all_gather, .count = 8, .bucket = 5};
  struct Change {
    char const* what;
    std::function<void(Collective&)> apply;
    char const* side;
  };
  Change const changes[] = {
      {"operation", [](Collective& op) { op.op = Op::all_reduce; }, "all_reduce of 8 fp32"},
      {"dtype", [](Collective& op) { op.dtype = DType::bf16; }, "all_gather of 8 bf16"},
      {"count", [](Collective& op) { op.count = 9; }, "all_gather of 9 fp32"},
      {"bucket", [](Collective& op) { op.bucket = 6; }, "bucket 6"},
      {"accumulate dtype", [](Collective& op) { op.accumulate = DType::f64; }, "all_gather"},
      {"root", [](Collective& op) { op.root = 1; }, "all_gather"},
  };
  for (Change const& change : changes) {
    Collective odd = usual;
    change.apply(odd);
    std::vector<std::string> const told = disagree(usual, odd);
    for (std::string const& text : told) {
      CHECK(text == told[0]);
      CHECK_MESSAGE(text.find("rank 2 called [") == 0, text);
      CHECK_MESSAGE(text.find(change.side) != std::string::npos, text);
      CHECK_MESSAGE(
          text.find("where rank 0 called [all_gather of 8 fp32, bucket 5]") != std::string::npos,
          text);
      CHECK_MESSAGE(text.find(std::string("they differ in ") + change.what) != std::string::npos,
                    text);
    }
  }
}

TEST_CASE("Checked: a rank that has made more calls is named") {
  std::vector<std::string> told(2);
  zero::run_ranks(2, [&](InProcess& comm) {
    Checked used{comm};
    Checked fresh{comm};
    float x = 1;
    Collective const op{.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x, .bucket = 0};
    zero::run(used, op);
    try {
      if (comm.rank() == 0) zero::run(used, op);
      if (comm.rank() == 1) zero::run(fresh, op);
    } catch (Error const& error) {
      told[static_cast<std::size_t>(comm.rank())] = error.message();
    }
  });
  CHECK(told[0] == told[1]);
  CHECK_MESSAGE(told[0].find("rank 1 makes call 0 [all_reduce") == 0, told[0]);
  CHECK_MESSAGE(told[0].find("rank 0 makes call 1 [all_reduce") != std::string::npos, told[0]);
}

TEST_CASE("Checked: costs one exchange of control traffic per collective") {
  zero::run_ranks(2, [](InProcess& comm) {
    Counting counted{comm};
    Checked checked{counted};
    float x = 1;
    for (int i = 0; i < 3; ++i) {
      zero::run(checked, {.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x, .bucket = i});
    }
    CHECK(counted.counts().control_of(Op::all_gather) == zero::Traffic{3, 24, 192});
    CHECK(counted.counts().bucket_of(Op::all_reduce).calls == 3);
  });
}

}  // namespace
}  // namespace checked_test
