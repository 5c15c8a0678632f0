/// @file
/// The operations on files by name, for tests that choose among them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace checkpoint_tests {

/// What is asked of a file system.
enum class FileCall : std::uint8_t {
  open,
  read,
  write,
  size,
  sync,
  close,
  rename,
  remove,
  make_directory,
  sync_directory,
  list,
  kind,
  lock,
};
inline constexpr std::array<std::string_view, 13> file_calls{"open",
                                                             "read",
                                                             "write",
                                                             "size",
                                                             "sync",
                                                             "close",
                                                             "rename",
                                                             "remove",
                                                             "make_directory",
                                                             "sync_directory",
                                                             "list",
                                                             "kind",
                                                             "lock"};

[[nodiscard]] constexpr std::string_view name(FileCall call) noexcept {
  return file_calls[static_cast<std::size_t>(call)];
}

}  // namespace checkpoint_tests
