/// The transfers of the host: copies, a file, what counts, and the latest that is allowed.
#include "conformance/transfer.hpp"

#include "activations/late_transfer.hpp"
#include "checkpoint/temporary_directory.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/base/error.hpp"
#include "zero/transfer/counting_transfer.hpp"
#include "zero/transfer/file_transfer.hpp"
#include "zero/transfer/host_transfer.hpp"

namespace transfer_test {
namespace {

TEST_CASE("every transfer: out and back, in the order of starts, after the work before it") {
  conformance::HostMemory fast;
  zero::HostTransfer host;
  conformance::check_transfer(host, fast);
  activations::LateTransfer late;
  conformance::check_transfer(late, fast);
  checkpoint_tests::TemporaryDirectory const directory;
  zero::FileTransfer file(directory.path());
  conformance::check_transfer(file, fast);
  zero::CountingTransfer counting(host);
  conformance::check_transfer(counting, fast);
  CHECK(counting.held() == 0);
}

TEST_CASE("CountingTransfer counts bytes each way, and what is allocated") {
  zero::HostTransfer inner;
  zero::CountingTransfer transfer(inner);
  auto const slow = transfer.allocate(1000);
  CHECK(transfer.held() == 1000);
  std::vector<std::byte> memory(1000);
  transfer.send_out(slow, memory.data(), 300);
  transfer.send_out(slow + 300, memory.data(), 200);
  transfer.bring_in(memory.data(), slow, 400);
  CHECK(transfer.counts() ==
        zero::TransferCounts{.sent_out_bytes = 500, .brought_in_bytes = 400, .calls = 3});
  transfer.reset();
  CHECK(transfer.counts() == zero::TransferCounts{});
  transfer.deallocate(slow, 1000);
}

TEST_CASE("FileTransfer: its files have no names, their room is taken, and go with it") {
  checkpoint_tests::TemporaryDirectory const directory;
  zero::FileTransfer transfer(directory.path());
  auto const slow = transfer.allocate(100000);
  CHECK(std::filesystem::is_empty(directory.path()));
  CHECK(::lseek(slow.file, 0, SEEK_END) == 100000);
  transfer.deallocate(slow, 100000);
  CHECK(::lseek(slow.file, 0, SEEK_END) == -1);
}

TEST_CASE("FileTransfer: what it cannot have is an error that says what") {
  zero::FileTransfer transfer("/nowhere at all");
  std::string const text = refusal([&] { (void)transfer.allocate(10); }, zero::ErrorKind::resource);
  CHECK(text.find("cannot make a file in '/nowhere at all': No such file") != std::string::npos);
}

TEST_CASE("FileTransfer: a transfer that fails is an error at its wait and from then on") {
  checkpoint_tests::TemporaryDirectory const directory;
  zero::FileTransfer transfer(directory.path());
  auto const slow = transfer.allocate(100);
  std::vector<std::byte> memory(200);
  auto const good = transfer.bring_in(memory.data(), slow, 100);
  auto const bad = transfer.bring_in(memory.data(), slow, 200);  // more than there is
  transfer.wait(good);
  CHECK_THROWS_AS(transfer.wait(bad), zero::Error);
  CHECK_THROWS_AS(transfer.send_out(slow, memory.data(), 1), zero::Error);
  transfer.wait(good);
  transfer.settle();
  transfer.deallocate(slow, 100);
}

}  // namespace
}  // namespace transfer_test
