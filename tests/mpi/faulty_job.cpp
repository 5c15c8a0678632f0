/// A training job in which one rank misbehaves; what the others print is judged by faults_test.py.
#include "equivalence/toy_model.hpp"
#include "zero/comm/mpi.hpp"
#include "zero/zero.hpp"

#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// What goes wrong, on which rank, at which of its collectives.
struct Fault {
  std::string kind;
  int rank = 0;
  int call = 0;
};

/// Passes collectives on until it is time.
class Faulty {
 public:
  using Space = zero::space::Host;
  using Ticket = zero::Mpi<>::Ticket;

  Faulty(zero::Mpi<>& comm, Fault fault) : comm_(&comm), fault_(std::move(fault)) {}
  [[nodiscard]] int rank() const noexcept { return comm_->rank(); }
  [[nodiscard]] int size() const noexcept { return comm_->size(); }
  Ticket start(zero::Collective op) {
    if (rank() == fault_.rank && calls_++ == fault_.call) misbehave(op);
    return comm_->start(op);
  }
  void wait(Ticket& ticket) { comm_->wait(ticket); }
  void progress() noexcept { comm_->progress(); }

 private:
  void misbehave(zero::Collective& op) {
    std::fprintf(stderr, "fault at %.3f\n", now());
    if (fault_.kind == "throw") throw std::runtime_error("the disk is full");
    if (fault_.kind == "kill") std::raise(SIGKILL);
    if (fault_.kind == "stop") std::raise(SIGSTOP);
    if (fault_.kind == "exit") ::_exit(7);
    if (fault_.kind == "hang") std::this_thread::sleep_for(std::chrono::seconds(60));
    if (fault_.kind == "bucket") op.bucket += 1000;
    if (fault_.kind == "count") op.count = op.count > 1 ? op.count / 2 : 2;
    if (fault_.kind == "op") {
      bool const gathers = op.op == zero::Op::all_gather;
      op.op = gathers ? zero::Op::reduce_scatter : zero::Op::all_gather;
      op.dtype = op.accumulate = zero::DType::f32;
      op.count = 4;
      op.send = scratch_;
      op.recv = scratch_ + 64;
    }
    if (fault_.kind == "dtype") {
      op.dtype = op.dtype == zero::DType::i32 ? zero::DType::f32 : zero::DType::i32;
      op.accumulate = op.dtype;
      op.count = 4;
      op.send = scratch_;
      op.recv = scratch_ + 64;
    }
  }

  zero::Mpi<>* comm_;
  Fault fault_;
  int calls_ = 0;
  float scratch_[128] = {};
};

void train(zero::Mpi<>& inner, Fault const& fault) {
  Faulty comm{inner, fault};
  using Memory = zero::Owned<zero::mpi::SharedAllocator>;
  zero::ShardedOptimizer optimizer{
      comm, toy::model(), zero::stage::PosG{}, Memory{inner.allocator()}, zero::Bucket{4096}};
  for (long step = 0; step < 1000; ++step) {
    for (int const unit : optimizer.units_backward()) {
      optimizer.reduce(optimizer.gradients(unit));
    }
    optimizer.step();
  }
}

}  // namespace

/// Arguments: kind, rank, call, deadline in seconds, window|messages|nodes.
int main(int argc, char** argv) {
  if (argc != 6) return 64;
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  Fault const fault{argv[1], std::atoi(argv[2]), std::atoi(argv[3])};
  zero::mpi::Options options{.deadline_s = std::atof(argv[4])};
  std::string const route = argv[5];
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (route == "messages") options.shared_memory = false;
  if (route == "nodes") options.node = rank % 2;
  zero::Mpi<> comm(MPI_COMM_WORLD, options);
  try {
    train(comm, fault);
  } catch (std::exception const& error) {
    bool const first = comm.report_failure(error.what());
    std::fprintf(
        stderr, "rank %d at %.3f%s: %s\n", rank, now(), first ? " (origin)" : "", error.what());
    std::fflush(stderr);
  }
  // mpirun ends the whole job with the first process that leaves: the others need time to speak.
  // Under --enable-recovery it counts no exit status as a failure, only an abort.
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  MPI_Abort(MPI_COMM_WORLD, 3);
}
