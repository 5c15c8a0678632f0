/// Programs as users write them, for program_test.py: `program KIND [OPTION]...`.
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
    if (rank() == 1 && op.count > 16) static_cast<std::byte*>(op.recv)[33] ^= std::byte{0x40};
    return {};
  }
  void wait(Ticket&) {}

 private:
  zero::InProcess* comm_;
};

}  // namespace

int main(int argc, char** argv) {
  std::string_view const kind = argc > 1 ? argv[1] : "";
  argv[1] = argv[0];
  if (kind == "rule") return zero::bench::rule(argc - 1, argv + 1, zero::AdamW{});
  if (kind == "self") {
    zero::Self comm;
    return zero::bench::collectives(argc - 1, argv + 1, comm);
  }
  return zero::bench::collectives(argc - 1, argv + 1, [kind](int ranks, auto body) {
    if (kind == "returns") return;
    zero::run_ranks(ranks, [&](zero::InProcess& comm) {
      if (kind == "throws" && comm.rank() == 1) throw std::runtime_error("rank 1 is out");
      if (kind == "ends" && comm.rank() == 0) throw std::runtime_error("rank 0 is out");
      if (kind == "corrupts") {
        Corrupting wrong(comm);
        return body(wrong);
      }
      body(comm);
    });
  });
}
