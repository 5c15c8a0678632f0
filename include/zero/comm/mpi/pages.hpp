/// @file
/// Pages of shared memory that are there before they are written to.
#pragma once

#if defined(__linux__)
#include "zero/base/config.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#endif

#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

#if defined(__linux__) && defined(MADV_POPULATE_WRITE)
/// Gets all pages of a range that lies in a mapping. Shared memory is a sparse file: where its file
/// system is full, the first write to a page would end the process with SIGBUS.
/// @return false if there is no room; true also where the system cannot tell
[[nodiscard]] inline bool get_pages(void* memory, std::size_t bytes) noexcept {
  auto const page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto const start = reinterpret_cast<std::uintptr_t>(memory);
  std::uintptr_t const before = start % page;
  // Linux before 5.14 answers EINVAL.
  return ::madvise(static_cast<std::byte*>(memory) - before,
                   static_cast<std::size_t>(before) + bytes,
                   MADV_POPULATE_WRITE) == 0 ||
         (errno != EFAULT && errno != ENOMEM);
}
#else
[[nodiscard]] inline bool get_pages(void* /*memory*/, std::size_t /*bytes*/) noexcept {
  return true;
}
#endif

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
