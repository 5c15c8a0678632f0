/// @file
/// What the benchmarks under mpirun share: the job, time over all ranks, buffers, lines of JSON.
#pragma once

#include "../stream.hpp"
#include "zero/comm/mpi.hpp"

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace bench {

/// This process's place among all.
struct Job {
  int rank = 0;
  int size = 1;

  Job() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
  }

  /// Calls `work` on all ranks at once. @return seconds of the slowest rank
  template <class Work>
  [[nodiscard]] double timed(Work const& work) const {
    MPI_Barrier(MPI_COMM_WORLD);
    double const start = seconds_now();
    work();
    return slowest(seconds_now() - start);
  }
  [[nodiscard]] double slowest(double seconds) const {
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return seconds;
  }
  /// Rank 0 prints one object on one line.
  void print(std::string const& name,
             std::initializer_list<std::pair<std::string_view, double>> figures) const {
    if (rank != 0) return;
    std::printf("{\"name\": \"%s\"", name.c_str());
    for (auto const& [key, value] : figures) {
      std::printf(", \"%.*s\": %.6g", static_cast<int>(key.size()), key.data(), value);
    }
    std::printf("}\n");
    std::fflush(stdout);
  }
};

/// An array of floats from an allocator of the library, every page of it touched.
template <class Allocator>
class Floats {
 public:
  Floats(Allocator allocator, std::size_t count)
      : allocator_(std::move(allocator)),
        count_(count),
        data_(static_cast<float*>(allocator_.allocate(count * sizeof(float), alignment))) {
    std::fill(data_, data_ + count, 1.f);
  }
  Floats(Floats const&) = delete;
  Floats& operator=(Floats const&) = delete;
  ~Floats() { allocator_.deallocate(data_, count_ * sizeof(float), alignment); }
  [[nodiscard]] float* data() const noexcept { return data_; }

 private:
  static constexpr std::size_t alignment = 4096;
  Allocator allocator_;
  std::size_t count_;
  float* data_;
};

/// A number after `--name`, or `otherwise`.
[[nodiscard]] inline double argument(int argc,
                                     char** argv,
                                     std::string_view name,
                                     double otherwise) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (argv[i] == name) return std::strtod(argv[i + 1], nullptr);
  }
  return otherwise;
}

/// Initialises MPI and calls `body(job)` on every process; an error on one ends all.
/// @return what the body returns, or 0
template <class Body>
int run_job(int argc, char** argv, Body const& body) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  int status = 0;
  try {
    if constexpr (std::is_void_v<decltype(body(Job()))>) {
      body(Job());
    } else {
      status = body(Job());
    }
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return status;
}

}  // namespace bench
