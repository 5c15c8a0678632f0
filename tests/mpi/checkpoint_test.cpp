#include "zero/checkpoint.hpp"

#include "checkpoint/exact_trainer.hpp"
#include "checkpoint/temporary_directory.hpp"
#include "mpi/world.hpp"
#include "support/test.hpp"
#include "zero/comm/mpi.hpp"
#include "zero/zero.hpp"

#include <mpi.h>

// What processes save threads load, and what threads save processes load, with the same bits.
namespace checkpoint_test {
namespace {

using checkpoint_tests::Held;
using checkpoint_tests::TemporaryDirectory;
using checkpoint_tests::train;
using mpi_tests::Route;

constexpr long saved_at = 3;
constexpr long ends_at = 5;

template <class Stage, class C>
using Optimizer = zero::ShardedOptimizer<C, Stage>;

/// What two threads of this process hold after `work(optimizer, rank)`.
template <class Work>
Held on_threads(Work const& work) {
  Held held;
  std::mutex mutex;
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    Optimizer<zero::stage::PosG, zero::InProcess> optimizer{comm, toy::model()};
    work(optimizer, comm.rank());
    checkpoint_tests::collect(optimizer, held, mutex);
  });
  CHECK(held.ranks_agree);
  return held;
}

/// What threads hold that train until then, and never stop.
Held trained(long steps) {
  return on_threads([&](auto& optimizer, int rank) {
    toy::load(optimizer);
    train(optimizer, rank, 2, 0, steps);
  });
}

/// Is what this rank owns, and what it reads, the same as there?
template <class O>
bool holds(O& optimizer, Held const& expected) {
  Held own;
  std::mutex mutex;
  checkpoint_tests::collect(optimizer, own, mutex);
  bool same = own.counters == expected.counters && own.parameters == expected.parameters;
  optimizer.visit_owned(
      [&](zero::Tensor const& tensor, std::size_t first, auto masters, auto const& states) {
        auto const equal = [&](auto values, std::size_t array) {
          auto const at = expected.arrays.at(tensor.name).at(array).begin();
          same = same && std::equal(values.begin(), values.end(), at + static_cast<long>(first));
        };
        equal(masters, 0);
        for (std::size_t k = 0; k < states.size(); ++k) equal(states[k], 1 + k);
      });
  return same;
}

/// A directory that all processes see, which the first one removes when all have left.
template <class Work>
void with_directory(Work const& work) {
  std::unique_ptr<TemporaryDirectory> directory;
  char path[256] = {};
  if (mpi_tests::world_rank() == 0) {
    directory = std::make_unique<TemporaryDirectory>();
    directory->path().copy(path, sizeof(path) - 1);
  }
  MPI_Bcast(path, sizeof(path), MPI_CHAR, 0, MPI_COMM_WORLD);
  work(std::string(path));
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("Mpi: what processes save, threads load") {
  for (Route const route : {Route::window, Route::two_nodes}) {
    CAPTURE(mpi_tests::name(route));
    with_directory([&](std::string const& path) {
      mpi_tests::on_all(route, [&](auto& comm) {
        using C = std::remove_reference_t<decltype(comm)>;
        Optimizer<zero::stage::PosGP, C> optimizer{comm, toy::model(), zero::Bucket{4096}};
        toy::load(optimizer);
        train(optimizer, comm.rank(), comm.size(), 0, saved_at);
        zero::Checkpoints checkpoints{path};
        checkpoints.save(optimizer);
        CHECK(checkpoints.latest(optimizer)->step == saved_at);
      });
      zero::Checkpoints checkpoints{path};
      Held const loaded = on_threads([&](auto& optimizer, int) {
        zero::Checkpoints own{path};
        own.load(optimizer, *own.latest());
      });
      CHECK(loaded == trained(saved_at));
    });
  }
}

TEST_CASE("Mpi: what threads save, processes load, and go on from") {
  // The whole job, and a part of it.
  for (int const size : {mpi_tests::world_size(), (mpi_tests::world_size() + 1) / 2}) {
    CAPTURE(size);
    with_directory([&](std::string const& path) {
      if (mpi_tests::world_rank() == 0) {
        static_cast<void>(on_threads([&](auto& optimizer, int rank) {
          toy::load(optimizer);
          train(optimizer, rank, 2, 0, saved_at);
          zero::Checkpoints{path}.save(optimizer);
        }));
      }
      MPI_Barrier(MPI_COMM_WORLD);
      mpi_tests::with_group(size, Route::window, [&](auto& comm) {
        using C = std::remove_reference_t<decltype(comm)>;
        Optimizer<zero::stage::PosGP, C> optimizer{comm, toy::model(), zero::Bucket{4096}};
        zero::Checkpoints checkpoints{path};
        checkpoints.load(optimizer, *checkpoints.latest(optimizer));
        CHECK(holds(optimizer, trained(saved_at)));
        train(optimizer, comm.rank(), comm.size(), saved_at, ends_at);
        CHECK(holds(optimizer, trained(ends_at)));
      });
    });
  }
}

}  // namespace
}  // namespace checkpoint_test
