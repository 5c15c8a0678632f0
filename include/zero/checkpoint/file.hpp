/// @file
/// Files that are read and written whole, or not at all, with errors that name them.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/files.hpp"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What is wrong with a file, or a directory.
/// @throws Error (data): "'file' why"
[[noreturn]] ZERO_COLD inline void refuse_file(std::string_view file,
                                               Message const& why,
                                               SourceLocation where = SourceLocation::current()) {
  fail(ErrorKind::data, {"'", file, "' ", why}, {}, where);
}

/// @param did  such as "write"
/// @throws Error (resource), naming file and reason, for an answer below 0
inline FileAnswer require_answer(FileAnswer answer, std::string_view did, std::string const& path) {
  if (answer >= 0) return answer;
  std::string const reason = std::generic_category().message(static_cast<int>(-answer));
  fail(ErrorKind::resource, {"cannot ", did, " '", path, "': ", reason});
}

/// A handle to a regular file.
/// @param answer  of the operation that was to open or lock it
/// @throws Error (data) where something else has its name; (resource) if there is another reason
inline FileAnswer require_file(FileAnswer answer,
                               std::string_view did,
                               std::string const& path,
                               FileMode mode) {
  bool const reads = mode == FileMode::read;
  if (answer == -ENXIO || (answer == -EISDIR && reads)) {
    refuse_file(path, "is no regular file");
  }
  if (answer == -ELOOP && !reads) {
    refuse_file(path, "is a link, which no save makes");
  }
  return require_answer(answer, did, path);
}

/// An open file; its destructor closes it. All functions throw Error (resource) that names the
/// file.
class File {
 public:
  /// @throws Error (data) where something else than a regular file has its name
  File(FileOperations& files, std::string path, FileMode mode)
      : files_(&files),
        path_(std::move(path)),
        handle_(require_file(
            files.open(path_, mode), mode == FileMode::create ? "create" : "open", path_, mode)) {}
  File(File&& other) noexcept
      : files_(other.files_),
        path_(std::move(other.path_)),
        handle_(std::exchange(other.handle_, -1)) {}
  File& operator=(File&&) = delete;
  ~File() {
    if (handle_ >= 0) static_cast<void>(files_->close(handle_));
  }

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t size() const {
    return static_cast<std::uint64_t>(
        require_answer(files_->size(handle_), "ask for the size of", path_));
  }
  /// So many bytes, from `offset` on.
  /// @throws Error (data) if the file ends before
  void read(void* to, std::size_t bytes, std::uint64_t offset) const {
    for (std::size_t done = 0; done < bytes;) {
      FileAnswer const got =
          files_->read(handle_, static_cast<char*>(to) + done, bytes - done, offset + done);
      if (got == -EINTR) continue;
      if (require_answer(got, "read", path_) == 0) {
        refuse_file(path_, {"ends after ", offset + done, " bytes"});
      }
      done += static_cast<std::size_t>(got);
    }
  }
  void write(void const* from, std::size_t bytes, std::uint64_t offset) {
    for (std::size_t done = 0; done < bytes;) {
      FileAnswer const put = files_->write(
          handle_, static_cast<char const*>(from) + done, bytes - done, offset + done);
      if (put == -EINTR) continue;
      // Nothing written, and no reason given: not to be tried for ever.
      require_answer(put == 0 ? -ENOSPC : put, "write", path_);
      done += static_cast<std::size_t>(put);
    }
  }
  /// What was written is durable. A sync that failed has lost data: it is not tried again.
  void sync() { require_answer(files_->sync(handle_), "sync", path_); }
  void close() { require_answer(files_->close(std::exchange(handle_, -1)), "close", path_); }

 private:
  FileOperations* files_;
  std::string path_;
  FileAnswer handle_;
};

/// The directory that a path lies in.
[[nodiscard]] inline std::string directory_of(std::string const& path) {
  std::size_t const slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// What a file is called until it is complete.
[[nodiscard]] inline std::string temporary(std::string const& name) { return name + ".tmp"; }

/// Gives a file its name, durably, once what was written to it is.
/// @param file  of the directory, with the temporary name
inline void name_file(FileOperations& files,
                      File& file,
                      std::string const& directory,
                      std::string const& name) {
  file.close();
  std::string const path = directory + "/" + name;
  require_answer(files.rename(temporary(path), path), "rename what becomes", path);
  require_answer(files.sync_directory(directory), "sync", directory);
}

/// A small file at once: temporary name, sync, rename, sync of the directory.
inline void write_file(FileOperations& files,
                       std::string const& directory,
                       std::string const& name,
                       std::string_view text) {
  File file(files, temporary(directory + "/" + name), FileMode::create);
  file.write(text.data(), text.size(), 0);
  file.sync();
  name_file(files, file, directory, name);
}

/// A small file at once.
/// @param most  bytes it may have
/// @throws Error (data) if it has more
[[nodiscard]] inline std::string read_file(FileOperations& files,
                                           std::string const& path,
                                           std::uint64_t most) {
  File const file(files, path, FileMode::read);
  std::uint64_t const bytes = file.size();
  if (bytes > most) refuse_file(path, {"has ", bytes, " bytes, more than it may"});
  std::string text(static_cast<std::size_t>(bytes), '\0');
  file.read(text.data(), text.size(), 0);
  return text;
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
