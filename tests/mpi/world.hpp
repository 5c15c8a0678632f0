/// @file
/// Groups of the running job's processes, for suites that are written once for all communicators.
#pragma once

#include "support/standard.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/mpi.hpp"
#include "zero/concepts/communicator.hpp"

#include <mpi.h>

namespace mpi_tests {

/// How the ranks of a job reach each other.
enum class Route {
  window,
  exchange,
  two_nodes,
  chain_of_ranks,  ///< every rank is a node
  chain_of_nodes,  ///< of two ranks, the last perhaps of one
  small_chunks,
  thread,
  sole_thread,
  sole_chain  ///< of nodes of two ranks, the last perhaps of one, with such a thread
};

inline constexpr Route routes[] = {Route::window,
                                   Route::exchange,
                                   Route::two_nodes,
                                   Route::chain_of_ranks,
                                   Route::chain_of_nodes,
                                   Route::small_chunks,
                                   Route::thread};

inline char const* name(Route route) {
  switch (route) {
    case Route::window: return "window";
    case Route::exchange: return "exchange";
    case Route::two_nodes: return "two nodes";
    case Route::chain_of_ranks: return "chain of ranks";
    case Route::chain_of_nodes: return "chain of nodes";
    case Route::small_chunks: return "small chunks";
    case Route::thread: return "progress thread";
    case Route::sole_chain: return "chain of nodes, and the only thread that calls MPI";
    case Route::sole_thread: return "the only thread that calls MPI";
  }
  return "?";
}

inline int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
inline int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

/// The job itself, and a group of two while others wait outside. Known once MPI runs.
struct Sizes {
  [[nodiscard]] int const* begin() const { return values().data(); }
  [[nodiscard]] int const* end() const { return begin() + (world_size() > 2 ? 2 : 1); }
  [[nodiscard]] int operator[](std::size_t i) const { return values()[i]; }

 private:
  static std::array<int, 2> const& values() {
    static std::array<int, 2> const both{world_size(), 2};
    return both;
  }
};

inline zero::mpi::Options options(Route route) {
  zero::mpi::Options result{.deadline_s = 60, .shared_bytes = 16 * zero::MiB};
  if (route == Route::exchange) result.shared_memory = false;
  if (route == Route::two_nodes) result.node = world_rank() % 2;
  bool const of_nodes = route == Route::chain_of_nodes || route == Route::sole_chain;
  if (of_nodes) result.node = world_rank() / 2;
  if (of_nodes || route == Route::chain_of_ranks) {
    result.shared_memory = of_nodes;
    result.sums = zero::mpi::Sums::chained;
  }
  if (route == Route::small_chunks) {
    result.shared_memory = false;
    result.message_bytes = 1000;
    result.exchange_bytes = 64 * zero::KiB;
  }
  if (route == Route::thread) result.progress_thread = zero::mpi::ProgressThread::multiple;
  if (route == Route::sole_thread) {
    result.progress_thread = zero::mpi::ProgressThread::sole;
    result.node = world_rank() % 2;
  }
  if (route == Route::sole_chain) result.progress_thread = zero::mpi::ProgressThread::sole;
  return result;
}

/// Calls `body(group)` on the first `ranks` processes, with MPI's group of them; all others wait.
template <class Body>
void with_first(int ranks, Body const& body) {
  bool const inside = world_rank() < ranks;
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, inside ? 0 : MPI_UNDEFINED, world_rank(), &part);
  if (inside) body(part);
  MPI_Barrier(MPI_COMM_WORLD);
  if (inside) MPI_Comm_free(&part);
}

/// The same with `body(comm)`.
template <class Body>
void with_group(int ranks, Route route, Body const& body) {
  with_first(ranks, [&](MPI_Comm part) {
    zero::Mpi<> comm(part, options(route));
    body(comm);
    comm.close();
  });
}

/// And on all processes.
template <class Body>
void on_all(Route route, Body const& body) {
  with_group(world_size(), route, body);
}

/// A collective over elements of a type.
template <class T>
zero::Collective collective(zero::Op op, std::size_t count, T const* send, T* recv) {
  return {.op = op,
          .dtype = zero::dtype_of<T>,
          .accumulate = sizeof(T) == 2 ? zero::DType::f32 : zero::dtype_of<T>,
          .count = count,
          .send = send,
          .recv = recv};
}

/// How many of so many elements are not `right(i)`.
template <class Right>
std::size_t wrong_of(std::size_t count, Right const& right) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) wrong += right(i) ? 0u : 1u;
  return wrong;
}

/// What a call throws, in words.
template <class Call>
std::string error_of(Call const& call) {
  try {
    call();
  } catch (zero::Error const& error) {
    return error.what();
  }
  return "no error";
}
inline bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

inline void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
/// Seconds since this was made.
class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace mpi_tests
