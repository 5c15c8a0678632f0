/// In-process collectives: how close to what one writes without a library, and to memory's speed?
/// The baseline is that: loops and memcpy between barriers. `--help` lists the options.
#include "command.hpp"
#include "zero/base/dtype.hpp"
#include "zero/bench.hpp"
#include "zero/comm/run_ranks.hpp"

#include <barrier>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

namespace {

using zero::Collective;
using zero::Op;

/// What the ranks of one group share.
struct Loops {
  static constexpr std::string_view name = "loops and memcpy between barriers";

  explicit Loops(int ranks) : calls(static_cast<std::size_t>(ranks)), barrier(ranks) {}

  void prepare(zero::InProcess& comm, Collective const& op) {
    calls[static_cast<std::size_t>(comm.rank())] = op;
  }
  void operator()(zero::InProcess& comm, Collective const& op) {
    switch (op.dtype) {
      case zero::DType::bf16: move<zero::bf16>(comm.rank(), op); break;
      case zero::DType::f16: move<zero::fp16>(comm.rank(), op); break;
      default: move<float>(comm.rank(), op);
    }
    barrier.arrive_and_wait();
  }

  template <class T>
  void move(int rank, Collective const& op) {
    bool const sums = op.op == Op::reduce_scatter || op.op == Op::all_reduce;
    bool const own = op.op == Op::reduce_scatter || op.op == Op::all_to_all;
    auto* out = static_cast<T*>(op.recv);
    for (std::size_t peer = 0; peer < calls.size(); ++peer) {
      if (op.op == Op::broadcast && peer != static_cast<std::size_t>(op.root)) continue;
      auto const* in = static_cast<T const*>(calls[peer].send);
      if (own) in += static_cast<std::size_t>(rank) * op.count;
      if (!sums || peer == 0) {
        std::memcpy(out, in, op.block_bytes());
      } else {
        for (std::size_t i = 0; i < op.count; ++i) {
          out[i] = static_cast<T>(static_cast<float>(out[i]) + static_cast<float>(in[i]));
        }
      }
      if (!sums) out += op.count;
    }
  }

  std::vector<Collective> calls;
  std::barrier<> barrier;
};

}  // namespace

int main(int argc, char** argv) {
  bench::Command const command = bench::read_command(argc, argv);
  if (command.status) return *command.status;
  auto const launch = [](int ranks, auto body) {
    Loops loops(ranks);
    zero::run_ranks(ranks, [&](zero::InProcess& comm) { body(comm, loops); });
  };
  return zero::bench::collectives(argc, argv, launch, command.cases);
}
