/// @file
/// What `FileTransfer` asks of the system. All that systems do not have alike is here.
#pragma once

#include "zero/base/config.hpp"

#include <fcntl.h>
#include <unistd.h>
#if defined(_WIN32)
#include <io.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace zero::inline ZERO_NAMESPACE::detail {

/// A new file in `directory`, which is gone when it is closed or the program ends, however it ends.
/// A handle, or -1 and errno.
[[nodiscard]] inline int open_temporary(std::string const& directory) {
  std::string path = directory + "/zero-XXXXXX";
  int const file = ::mkstemp(path.data());
  if (file < 0) return file;
#if defined(_WIN32)
  // An open file keeps its name there, but goes with its last handle where that was asked for.
  ::_close(file);
  return ::_open(path.c_str(), _O_RDWR | _O_BINARY | _O_TEMPORARY);
#else
  ::unlink(path.c_str());
  return file;
#endif
}

/// Moves all bytes between memory and a file; one thread at a time for each file.
/// 0, or an errno.
/// @param out  to the file: `memory` is only read then
[[nodiscard]] inline int move_bytes(
    int file, std::uint64_t offset, void* memory, std::size_t bytes, bool out) noexcept {
  // Systems that move more at once are few.
  constexpr std::size_t most = std::size_t{1} << 30;
  for (std::size_t done = 0; done < bytes;) {
    std::byte* const at = static_cast<std::byte*>(memory) + done;
    std::size_t const count = (std::min)(bytes - done, most);
#if defined(_WIN32)
    if (::_lseeki64(file, static_cast<std::int64_t>(offset + done), SEEK_SET) < 0) return errno;
    std::int64_t const moved = out ? ::_write(file, at, static_cast<unsigned>(count))
                                   : ::_read(file, at, static_cast<unsigned>(count));
#else
    auto const place = static_cast<off_t>(offset + done);
    std::int64_t const moved =
        out ? ::pwrite(file, at, count, place) : ::pread(file, at, count, place);
#endif
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno;
    if (moved == 0) return EIO;
    done += static_cast<std::size_t>(moved);
  }
  return 0;
}

/// Takes room from the file system by writing zeros. 0, or an errno.
[[nodiscard]] inline int write_zeros(int file, std::uint64_t bytes) noexcept {
  std::array<std::byte, 65536> zeros{};
  for (std::uint64_t done = 0; done < bytes;) {
    std::uint64_t const count = (std::min)(bytes - done, std::uint64_t{zeros.size()});
    int const error = move_bytes(file, done, zeros.data(), static_cast<std::size_t>(count), true);
    if (error != 0) return error;
    done += count;
  }
  return 0;
}

/// Takes room for so many bytes from the file system. 0, or an errno.
[[nodiscard]] inline int take_room(int file, std::uint64_t bytes) noexcept {
#if defined(__linux__)
  return bytes == 0 ? 0 : ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
#else
  return write_zeros(file, bytes);
#endif
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
