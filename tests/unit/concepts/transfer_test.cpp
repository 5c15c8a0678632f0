#include "activations/late_transfer.hpp"
#include <zero/concepts/transfer.hpp>
#include <zero/transfer/counting.hpp>
#include <zero/transfer/file.hpp>
#include <zero/transfer/host.hpp>

#include <doctest/doctest.h>

#include <cstddef>

namespace transfer_test {
namespace {

using zero::HostTransfer;
using zero::Transfer;

struct SettleMayThrow : HostTransfer {
  void settle() {}
};
struct WaitAnswers : HostTransfer {
  int wait(Ticket const&) { return 0; }
};
struct SlowIsNoAddress : HostTransfer {
  struct Slow {};
};
struct OfNoSpace : HostTransfer {
  using Space = int;
};

}  // namespace

TEST_CASE("a transfer moves bytes both ways, with tickets, between a space and an address") {
  static_assert(Transfer<HostTransfer>);
  static_assert(Transfer<zero::FileTransfer>);
  static_assert(Transfer<zero::CountingTransfer<zero::FileTransfer>>);
  static_assert(Transfer<activations::LateTransfer>);
  static_assert(!Transfer<SettleMayThrow>);
  static_assert(!Transfer<WaitAnswers>);
  static_assert(!Transfer<SlowIsNoAddress>);
  static_assert(!Transfer<OfNoSpace>);
  static_assert(!Transfer<int>);
  CHECK(Transfer<HostTransfer>);
}

}  // namespace transfer_test
