// An own communicator: threads that meet at a barrier, written outside the library.
//
// A backend has one verb for all five operations. This one is done when it returns; others hand out
// a ticket. Missing for real use: a rank that throws must end the others' waiting with an Error.
// prints: 3 ranks at a barrier: x = 2.00

#include <zero/zero.hpp>

#include <barrier>
#include <cstddef>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

using zero::Op;
struct Table {  // what the ranks of one group share
  explicit Table(int ranks) : calls(static_cast<std::size_t>(ranks)), all(ranks) {}
  std::vector<zero::Collective> calls;
  std::barrier<> all;
};

class Meeting {
 public:
  using Space = zero::space::Host;  // where the buffers lie
  struct Ticket {};                 // nothing is ever left to wait for

  Meeting(Table& table, int rank) : table_(table), rank_(rank) {}
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(table_.calls.size()); }

  Ticket start(zero::Collective const& call) {
    auto const own = static_cast<std::size_t>(rank_);
    table_.calls[own] = call;
    table_.all.arrive_and_wait();  // all calls are on the table
    bool const sums = call.op == Op::reduce_scatter || call.op == Op::all_reduce;
    bool const for_each_rank = call.op == Op::reduce_scatter || call.op == Op::all_to_all;
    std::size_t const first = for_each_rank ? own * call.count : 0;  // where a sender has our block
    std::vector<std::byte> result(sums ? call.block_bytes() : 0);
    std::vector<void const*> sent;
    for (int peer = 0; peer < size(); ++peer) {
      sent.push_back(table_.calls[static_cast<std::size_t>(peer)].send);
      if (sums || (call.op == Op::broadcast && peer != call.root)) continue;
      auto const* block = static_cast<std::byte const*>(sent.back()) + first * size_of(call.dtype);
      result.insert(result.end(), block, block + call.block_bytes());
    }
    if (sums) {
      auto const sum = zero::kernel::sum_function(call.dtype, call.accumulate);
      sum(result.data(), sent.data(), first, size(), call.count, {});
    }
    table_.all.arrive_and_wait();  // all ranks have read: buffers may change, even in place
    zero::kernel::copy(call.recv, result.data(), result.size());
    return {};
  }
  void wait(Ticket&) {}

 private:
  Table& table_;
  int rank_;
};
static_assert(zero::Communicator<Meeting>);

/// Every rank wants x to be its own number, from 1; the mean of their wishes wins.
void train(Meeting comm) {
  zero::ShardedOptimizer opt{comm, {{.name = "x", .shape = {1}}}, zero::Sgd{.lr = 0.02f}};
  opt.adopt_parameters();  // zeros
  for (int step = 0; step < 500; ++step) {
    auto gradients = opt.gradients(0);
    gradients["x"][0] = 2.f * (opt.parameter(0)[0] - static_cast<float>(comm.rank() + 1));
    opt.reduce(std::move(gradients));
    opt.step();
  }
  if (comm.rank() > 0) return;
  std::printf("3 ranks at a barrier: x = %.2f\n", double{opt.parameter(0)[0]});
}

int main() {
  Table table(3);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back(train, Meeting(table, rank));
}
