// A unit that is only given a communicator compiles none of what is behind it.
#include "given.hpp"

double sum_of(zero::Mpi<>& comm, double mine) {
  double result = 0.;
  zero::run(comm,
            {.op = zero::Op::all_reduce,
             .dtype = zero::DType::f64,
             .accumulate = zero::DType::f64,
             .count = 1,
             .send = &mine,
             .recv = &result});
  comm.progress();
  return comm.transport().nodes == 1 ? result : -1.;
}
