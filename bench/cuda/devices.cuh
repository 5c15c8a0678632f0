/// @file
/// Groups of ranks on GPUs, one thread each, and the clock of a stream.
#pragma once

#include "zero/comm/in_process_cuda.hpp"
#include "zero/device/scope.hpp"
#include "zero/device/status.hpp"
#include "zero/space/cuda.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace bench {

using zero::device::check;

/// Prints the first device's name and returns how many there are; says why if there is none.
inline int devices_or_excuse() {
  int devices = 0;
  cudaError_t const status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "no GPU to measure on (%s)\n", cudaGetErrorString(status));
    return 0;
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::fprintf(stderr, "%d x %s\n", devices, properties.name);
  return devices;
}

/// The number that a benchmark's only argument gives, or what is usual. Exits with what there is to
/// know if that is no number, or if it is asked for.
inline std::size_t size_option(int argc, char** argv, char const* what, std::size_t usual) {
  if (argc < 2) return usual;
  char* end = nullptr;
  unsigned long long const value = std::strtoull(argv[1], &end, 10);
  if (argc == 2 && *end == '\0' && value > 0) return static_cast<std::size_t>(value);
  std::printf("usage: %s [%s = %zu]\n", argv[0], what, usual);
  std::exit(std::string_view(argv[1]) == "--help" ? 0 : 2);
}

[[nodiscard]] inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// On the host's clock, which only goes forward.
[[nodiscard]] inline double host_seconds() {
  auto const now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

/// A pair of events around work in a stream.
class StreamClock {
 public:
  explicit StreamClock(cudaStream_t stream) : stream_(stream) {
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  StreamClock(StreamClock&& other) noexcept
      : stream_(other.stream_),
        begin_(std::exchange(other.begin_, nullptr)),
        end_(std::exchange(other.end_, nullptr)) {}
  StreamClock& operator=(StreamClock&&) = delete;
  ~StreamClock() {
    if (begin_ == nullptr) return;
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  void start() { check(cudaEventRecord(begin_, stream_), "cudaEventRecord"); }
  void stop() { check(cudaEventRecord(end_, stream_), "cudaEventRecord"); }
  /// Between the two; waits for the second.
  [[nodiscard]] double seconds() const {
    check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

/// Ranks that meet on the host, so that none is measured while it waits for another to begin.
class Meeting {
 public:
  explicit Meeting(int ranks) : barrier_(ranks), seconds_(static_cast<std::size_t>(ranks)) {}

  void meet() { barrier_.arrive_and_wait(); }
  /// The longest of all ranks' times, on every rank.
  [[nodiscard]] double longest(int rank, double seconds) {
    seconds_[static_cast<std::size_t>(rank)] = seconds;
    meet();
    double const result = *std::max_element(seconds_.begin(), seconds_.end());
    meet();
    return result;
  }

 private:
  std::barrier<> barrier_;
  std::vector<double> seconds_;
};

/// Calls `body(rank, stream)` on a thread for each rank, on device `rank % devices`. A rank that
/// throws ends the program, because the others would wait for it.
template <class Body>
void on_devices(int ranks, int devices, Body const& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&body, rank, devices] {
      try {
        check(cudaSetDevice(rank % devices), "cudaSetDevice");
        cudaStream_t stream = nullptr;
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
        body(rank, stream);
        check(cudaStreamDestroy(stream), "cudaStreamDestroy");
      } catch (std::exception const& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        std::_Exit(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Calls `body(comm, meeting)` on every rank of a group of InProcessCuda, all on the first device.
template <class Body>
void in_process_ranks(int ranks, Body const& body) {
  std::vector<cudaStream_t> streams(static_cast<std::size_t>(ranks));
  std::vector<zero::space::Cuda> spaces;
  for (cudaStream_t& stream : streams) {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    spaces.emplace_back(0, stream);
  }
  auto group = zero::InProcessCuda::group(spaces);
  Meeting meeting(ranks);
  on_devices(ranks, 1, [&](int rank, cudaStream_t) {
    zero::InProcessCuda comm = std::move(group[static_cast<std::size_t>(rank)]);
    body(comm, meeting);
    // Peers may still use this rank's memory.
    meeting.meet();
  });
  for (cudaStream_t const stream : streams) check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

}  // namespace bench
