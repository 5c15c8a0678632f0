/// @file
/// Runs one function on every rank of a group of threads.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/float_mode.hpp"
#include "zero/base/function_ref.hpp"
#include "zero/comm/in_process.hpp"

#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

namespace detail {

template <class C>
ZERO_COLD void run_on_threads(std::vector<C> handles, FunctionRef<void(C&)> body) {
  std::vector<std::thread> threads;
  threads.reserve(handles.size());
#if defined(__cpp_exceptions)
  std::mutex mutex;
  std::exception_ptr origin;
  std::exception_ptr follower;
  auto const keep = [&](bool first) {
    std::lock_guard const lock(mutex);
    std::exception_ptr& place = first ? origin : follower;
    if (place == nullptr) place = std::current_exception();
  };
  auto const run_rank = [&](C comm) {
    FloatMode::reset();
    try {
      body(comm);
    } catch (std::exception const& error) {
      keep(comm.report_failure(error.what()));
    } catch (...) {
      keep(comm.report_failure("an exception that is not a std::exception"));
    }
  };
  try {
    for (C& handle : handles) threads.emplace_back(run_rank, std::move(handle));
  } catch (...) {
    // A thread was refused: the handles that remain leave, which releases the ranks that run.
    keep(true);
    handles.clear();
  }
  for (std::thread& thread : threads) thread.join();
  if (origin != nullptr) std::rethrow_exception(origin);
  if (follower != nullptr) std::rethrow_exception(follower);
#else
  auto const run_rank = [&](C comm) {
    FloatMode::reset();
    body(comm);
  };
  for (C& handle : handles) threads.emplace_back(run_rank, std::move(handle));
  for (std::thread& thread : threads) thread.join();
#endif
}

}  // namespace detail

/// Calls `body(handle)` on one thread per handle of a group and returns when all have ended. The
/// threads round to nearest and keep subnormal numbers, whatever the calling one does.
///
/// If a rank throws, its peers are released with Error (communication) that carries the exception's
/// text, and the exception that came first, not one of those that followed from it, is rethrown on
/// the calling thread.
/// @tparam C  a communicator of threads, with `report_failure`, such as InProcess
/// @par Cost  starts and joins a thread per rank
template <class C, class Body>
void run_ranks(std::vector<C> handles, Body body) {
  detail::run_on_threads(std::move(handles), detail::FunctionRef<void(C&)>(body));
}

/// Calls `body(InProcess&)` on `ranks` threads, one per rank of a new group: see above.
/// @throws Error (invalid_argument) if `ranks` is not in [1, InProcess::max_ranks]
template <class Body>
void run_ranks(int ranks, Body body, InProcess::Options options = {}) {
  run_ranks(InProcess::group(ranks, options), std::move(body));
}

}  // namespace zero::inline ZERO_NAMESPACE
