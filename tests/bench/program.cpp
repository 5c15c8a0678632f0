/// Programs as users write them, for program_test.py: `program KIND [OPTION]...`, with options of
/// Google Benchmark's.
#include "zero/bench.hpp"
#include "zero/zero.hpp"

#include <cstddef>
#include <stdexcept>
#include <string_view>

namespace {

/// Leaves one element of what it gathers, sums or sends wrong on rank 1.
class Corrupting {
 public:
  using Space = zero::space::Host;
  using Ticket = zero::InProcess::Ticket;

  explicit Corrupting(zero::InProcess& comm) : comm_(&comm) {}
  [[nodiscard]] int rank() const noexcept { return comm_->rank(); }
  [[nodiscard]] int size() const noexcept { return comm_->size(); }
  Ticket start(zero::Collective const& op) {
    zero::run(*comm_, op);
    if (rank() == 1 && op.bucket >= 0) static_cast<std::byte*>(op.recv)[33] ^= std::byte{0x40};
    return {};
  }
  void wait(Ticket&) {}

 private:
  zero::InProcess* comm_;
};

/// What a kind measures.
zero::bench::CollectiveCases cases_of(std::string_view kind) {
  zero::bench::CollectiveCases cases{.largest = 4 * zero::KiB};
  if (kind == "everything") {
    cases.dtypes = {zero::DType::f32, zero::DType::bf16, zero::DType::f16};
    cases.ranks = {1, 2, 3};
    cases.in_place = true;
  }
  if (kind == "corrupts") cases.in_place = true;
  if (kind == "unchecked") cases.check = false;
  if (kind == "late") cases.late_us = 50'000;
  if (kind.ends_with("no_size")) cases.smallest = 2 * cases.largest;
  return cases;
}

}  // namespace

int main(int argc, char** argv) {
  std::string_view const kind = argc > 1 ? argv[1] : "";
  argv[1] = argv[0];
  --argc;
  ++argv;
  if (kind == "rule") return zero::bench::rule(argc, argv, zero::AdamW{}, 64 * zero::KiB);
  if (kind == "nothing") return zero::bench::rule(argc, argv, zero::AdamW{}, 0);
  if (kind.starts_with("self")) {
    zero::Self comm;
    if (kind == "self_returns") return 3 + zero::bench::collectives(argc, argv, comm);
    if (kind == "self") return zero::bench::collectives(argc, argv, comm);
    return zero::bench::collectives(argc, argv, comm, cases_of(kind));
  }
  auto const launch = [kind](int ranks, auto body) {
    if (kind == "returns") return;
    zero::run_ranks(ranks, [&](zero::InProcess& comm) {
      if (kind == "throws" && comm.rank() == 1) throw std::runtime_error("rank 1 is out");
      if (kind == "ends" && comm.rank() == 0) throw std::runtime_error("rank 0 is out");
      if (kind == "corrupts" || kind == "unchecked") {
        Corrupting wrong(comm);
        return body(wrong);
      }
      body(comm);
    });
  };
  return zero::bench::collectives(argc, argv, launch, cases_of(kind));
}
