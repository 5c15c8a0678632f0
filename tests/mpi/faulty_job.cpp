/// A training job in which one rank misbehaves; what the others print is judged by faults_test.py.
#include "faults/faulty.hpp"
#include "support/standard.hpp"
#include "support/toy_model.hpp"
#include "zero/activations.hpp"
#include "zero/comm/grid.hpp"
#include "zero/comm/mpi.hpp"
#include "zero/zero.hpp"

#include <mpi.h>
#include <unistd.h>

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// What goes wrong, on which rank, at which of its collectives. "hang@MPI_Ibarrier" does so
/// inside of that call of MPI's.
struct Fault {
  std::string kind;
  int rank = 0;
  int call = 0;
  std::string group{};  ///< whose collectives are counted; empty for the group of all ranks
};

void announce_fault() { std::fprintf(stderr, "fault at %.3f\n", now()); }
void hang() { std::this_thread::sleep_for(std::chrono::seconds(60)); }

/// A rank destroys its communicator, in order, and does nothing more.
struct Leaves {};

/// What the calls of MPI below ask for their fault; set on the guilty rank only.
Fault const* inside = nullptr;

void enter(char const* name) {
  static int calls = 0;
  if (inside == nullptr || !inside->kind.ends_with(std::string("@") + name)) return;
  if (calls++ != inside->call) return;
  announce_fault();
  if (inside->kind.starts_with("kill")) std::raise(SIGKILL);
  if (inside->kind.starts_with("stop")) std::raise(SIGSTOP);
  hang();
}

/// What goes wrong in a collective.
void misbehave(std::string const& kind, zero::Collective& op) {
  static float scratch[128] = {};
  announce_fault();
  if (kind == "throw") throw std::runtime_error("the disk is full");
  if (kind == "leave") throw Leaves{};
  if (kind == "kill") std::raise(SIGKILL);
  if (kind == "stop") std::raise(SIGSTOP);
  if (kind == "exit") ::_exit(7);
  if (kind == "hang") hang();
  if (kind == "bucket") op.bucket += 1000;
  if (kind == "count") op.count = op.count > 1 ? op.count / 2 : 2;
  if (kind != "op" && kind != "dtype") return;
  if (kind == "op") {
    bool const gathers = op.op == zero::Op::all_gather;
    op.op = gathers ? zero::Op::reduce_scatter : zero::Op::all_gather;
    op.dtype = zero::DType::f32;
  } else {
    op.dtype = op.dtype == zero::DType::i32 ? zero::DType::f32 : zero::DType::i32;
  }
  op.accumulate = op.dtype;
  op.count = 4;
  op.send = scratch;
  op.recv = scratch + 64;
}

template <class Optimizer>
void step(Optimizer& optimizer) {
  for (int const unit : optimizer.units_backward()) optimizer.reduce(optimizer.gradients(unit));
  optimizer.step();
}

template <class Comm, class Memory>
void train(Comm& comm, Memory const& memory) {
  zero::ShardedOptimizer optimizer{
      comm, toy::model(), zero::stage::PosG{}, memory, zero::Bucket{4096}};
  optimizer.adopt_parameters();
  for (long i = 0; i < 1000; ++i) step(optimizer);
}

/// The same on a grid of two model axes, with activation checkpoints and all-reduces on those.
template <class Comm, class Memory>
void train_on_grid(Comm& world, Memory const& memory) {
  zero::Grid grid{world, world.size() / 2, 2};
  zero::ShardedOptimizer optimizer{
      grid, toy::model(), zero::stage::PosG{}, memory, zero::Bucket{4096}};
  optimizer.adopt_parameters();
  std::vector<float> x(3000, 1.f);
  zero::Activations acts{
      grid.model(),
      {{"x", 0, x.size(), zero::DType::f32}, {"x", 1, x.size(), zero::DType::f32}},
      memory};
  for (long i = 0; i < 1000; ++i) {
    for (int const layer : {0, 1}) acts.store(layer, std::span<float const>(x));
    for (int const layer : {1, 0}) {
      auto const kept = acts.fetch(layer);
      zero::run(grid.model(),
                {.op = zero::Op::all_reduce,
                 .count = x.size(),
                 .send = kept.template get<float>().data(),
                 .recv = x.data(),
                 .bucket = 0});
      x.assign(x.size(), 1.f);
    }
    acts.end_step();
    step(optimizer);
  }
}

/// A life without training: everything that MPI makes all ranks wait for.
void live(zero::mpi::Options const& options) {
  zero::Mpi<> comm(MPI_COMM_WORLD, options);
  zero::Mpi<> part = comm.split(0, -comm.rank());
  part.close();
  comm.close();
}

void say(char const* what, bool first) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  char head[64];
  std::snprintf(head, sizeof head, "rank %d at %.3f%s: ", rank, now(), first ? " (origin)" : "");
  // In one write, so that lines of ranks do not mix: a format may be printed piece by piece.
  std::string const line = std::string(head) + what + '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

/// Trains until the fault ends it.
void run(zero::mpi::Options const& options, std::vector<Fault> const& faults, bool on_grid) {
  zero::Mpi<> comm(MPI_COMM_WORLD, options);
  int calls = 0;
  auto meet = [&](std::string_view group, zero::Collective& op) {
    for (Fault const& fault : faults) {
      bool const counted =
          comm.rank() == fault.rank && group.substr(0, group.find(' ')) == fault.group;
      if (counted && calls++ == fault.call) misbehave(fault.kind, op);
    }
  };
  faults::Faulty world{comm, meet};
  zero::Owned const memory{comm.allocator()};
  try {
    if (on_grid) {
      train_on_grid(world, memory);
    } else {
      train(world, memory);
    }
  } catch (std::exception const& error) {
    say(error.what(), comm.report_failure(error.what()));
  } catch (Leaves const&) {
  }
}

}  // namespace

// MPI lets a program put itself between its callers and the library.
extern "C" {
int MPI_Comm_idup(MPI_Comm comm, MPI_Comm* copy, MPI_Request* request) {
  enter("MPI_Comm_idup");
  return PMPI_Comm_idup(comm, copy, request);
}
int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request) {
  enter("MPI_Ibarrier");
  return PMPI_Ibarrier(comm, request);
}
int MPI_Iallgather(void const* send,
                   int send_count,
                   MPI_Datatype send_type,
                   void* recv,
                   int recv_count,
                   MPI_Datatype recv_type,
                   MPI_Comm comm,
                   MPI_Request* request) {
  enter("MPI_Iallgather");
  return PMPI_Iallgather(send, send_count, send_type, recv, recv_count, recv_type, comm, request);
}
int MPI_Isend(void const* data,
              int count,
              MPI_Datatype type,
              int target,
              int tag,
              MPI_Comm comm,
              MPI_Request* request) {
  enter("MPI_Isend");
  return PMPI_Isend(data, count, type, target, tag, comm, request);
}
int MPI_Issend(void const* data,
               int count,
               MPI_Datatype type,
               int target,
               int tag,
               MPI_Comm comm,
               MPI_Request* request) {
  enter("MPI_Issend");
  return PMPI_Issend(data, count, type, target, tag, comm, request);
}
}

/// Arguments: deadline in seconds; live|window|messages|nodes|each; which of the groups of a
/// grid goes wrong, world|data|model, or none where there is no grid; and one to three faults of a
/// kind, a rank and a call each.
int main(int argc, char** argv) {
  if (argc < 7 || argc % 3 != 1) return 64;
  std::string const route = argv[2];
  // Construction, split and close have a deadline at every level.
  int const level = route == "live" ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE;
  int provided = 0;
  MPI_Init_thread(&argc, &argv, level, &provided);
  zero::mpi::Options options{.deadline_s = std::atof(argv[1])};
  std::string const group = argv[3];
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::vector<Fault> faults;
  for (int i = 4; i < argc; i += 3) {
    faults.push_back({argv[i], std::atoi(argv[i + 1]), std::atoi(argv[i + 2])});
    if (group == "data" || group == "model") faults.back().group = group;
  }
  for (Fault const& fault : faults) {
    if (fault.kind.find('@') != std::string::npos && rank == fault.rank) inside = &fault;
  }
  if (route == "messages") options.shared_memory = false;
  if (route == "nodes") options.node = rank % 2;
  if (route == "each") options.node = rank;
  try {
    if (route == "live") {
      live(options);
    } else {
      run(options, faults, group != "none");
    }
  } catch (std::exception const& error) {
    say(error.what(), false);
  }
  // mpirun ends the whole job with the first process that leaves: the others need time to speak.
  // Under --enable-recovery it counts no exit status as a failure, only an abort.
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  MPI_Abort(MPI_COMM_WORLD, 3);
}
