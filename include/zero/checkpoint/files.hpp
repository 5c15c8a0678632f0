/// @file
/// What checkpoints ask of a file system, and the one that a program has.
#pragma once

#include "zero/base/config.hpp"

#if defined(_WIN32)
#error "zero: checkpoints need the files of POSIX, which Windows does not have"
#include ZERO_STOP
#endif

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// What a file is opened for.
enum class FileMode : std::uint8_t {
  read,    ///< there is one
  create,  ///< written from its beginning; what was there is gone
  write,   ///< there is one, which others may be writing to as well
};

/// What a name stands for.
enum class FileKind : std::uint8_t {
  file,       ///< a regular one
  directory,  ///< itself, not a link to one
  other,      ///< a symbolic link, whatever it names; a pipe, a socket, a device
};

/// What an operation on files answers: a handle or a number, or, below 0, an `errno` with its sign
/// turned.
using FileAnswer = std::int64_t;

/// The operations on files that a checkpoint is made of, so that tests can have them fail, or lose
/// what was not synced. They may be called by several threads at once, and may not throw.
class FileOperations {
 public:
  virtual ~FileOperations() = default;
  /// A handle to a regular file: -EISDIR for a directory, -ENXIO for what is neither, at once. A
  /// link is followed to be read, and refused with -ELOOP to be written.
  virtual FileAnswer open(std::string const& path, FileMode mode) = 0;
  /// Bytes read: fewer than wanted, 0 at the end.
  virtual FileAnswer read(FileAnswer file, void* to, std::size_t bytes, std::uint64_t offset) = 0;
  /// Bytes written: perhaps fewer than wanted.
  virtual FileAnswer write(FileAnswer file,
                           void const* from,
                           std::size_t bytes,
                           std::uint64_t offset) = 0;
  /// Bytes of a file.
  virtual FileAnswer size(FileAnswer file) = 0;
  /// Blocks until what was written is durable.
  virtual FileAnswer sync(FileAnswer file) = 0;
  /// The handle is gone, whatever it answers.
  virtual FileAnswer close(FileAnswer file) = 0;
  /// Within one file system; replaces what is there.
  virtual FileAnswer rename(std::string const& from, std::string const& to) = 0;
  /// A file, or a directory that is empty.
  virtual FileAnswer remove(std::string const& path) = 0;
  /// One level.
  virtual FileAnswer make_directory(std::string const& path) = 0;
  /// Blocks until the names in a directory are durable.
  virtual FileAnswer sync_directory(std::string const& path) = 0;
  /// Names in a directory, sorted; those of the directory itself and of the one above left out.
  virtual FileAnswer list(std::string const& path, std::vector<std::string>& names) = 0;
  /// A `FileKind`; links are not followed.
  virtual FileAnswer kind(std::string const& path) = 0;
  /// A handle to a file that nobody else can lock until it is closed or the process ends; -EAGAIN
  /// if somebody has it, -ENOLCK where the file system has no locks. What is no regular file is
  /// refused as by `open` for writing. The file may say who has it, as `LockOwner` is written.
  virtual FileAnswer lock(std::string const& path) = 0;
};

namespace detail {

/// Who holds a lock, as its file says: a line "process start machine host".
struct LockOwner {
  long process = 0;           ///< 0: nobody has said
  std::string start{};        ///< when it began, so that a later one of its number is another
  std::string machine{};      ///< until it boots, and its numbers of processes; empty if unknown
  std::string host = "host";  ///< for people

  friend bool operator==(LockOwner const&, LockOwner const&) = default;

  /// This process.
  [[nodiscard]] static LockOwner own() {
    char host[256] = "";
    if (::gethostname(host, sizeof(host) - 1) != 0 || host[0] == '\0') host[0] = '?';
    char numbers[64] = "";
    bool const known = ::readlink("/proc/self/ns/pid", numbers, sizeof(numbers) - 1) > 0;
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    return {.process = static_cast<long>(::getpid()),
            .start = start_of(::getpid()),
            .machine = known && !boot.empty() ? boot + numbers : "-",
            .host = host};
  }
  [[nodiscard]] static LockOwner parse(std::string const& text) {
    LockOwner owner;
    std::istringstream words(text);
    if (words >> owner.process >> owner.start >> owner.machine >> owner.host) return owner;
    return {};
  }
  [[nodiscard]] std::string text() const {
    return std::to_string(process) + " " + start + " " + machine + " " + host + "\n";
  }
  /// Is it known that it has ended? A process that it forked may still have the lock.
  [[nodiscard]] bool dead() const {
    if (process <= 0 || machine == "-" || machine != own().machine) return false;
    auto const number = static_cast<pid_t>(process);
    if (::kill(number, 0) != 0 && errno == ESRCH) return true;
    std::string const now = start_of(number);
    return now != "-" && start != "-" && now != start;
  }

 private:
  /// "-" if it cannot be known.
  [[nodiscard]] static std::string start_of(pid_t process) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string text;
    std::getline(file, text);
    // The second field is a name in parentheses; the 22nd is the time.
    std::istringstream fields(text.substr((std::min)(text.rfind(')'), text.size())));
    std::string field;
    for (int i = 2; i <= 22; ++i) fields >> field;
    return fields ? field : "-";
  }
};

}  // namespace detail

/// The file system of the operating system (POSIX). Holds nothing: copies are the same.
struct DiskFiles : FileOperations {
  /// Never waits for another process, as opening a pipe would.
  FileAnswer open(std::string const& path, FileMode mode) override {
    return open_regular(path,
                        mode == FileMode::read    ? O_RDONLY
                        : mode == FileMode::write ? O_WRONLY | O_NOFOLLOW
                                                  : O_WRONLY | O_NOFOLLOW | O_CREAT | O_TRUNC);
  }
  FileAnswer read(FileAnswer file, void* to, std::size_t bytes, std::uint64_t offset) override {
    return answer(::pread(handle(file), to, bytes, static_cast<off_t>(offset)));
  }
  FileAnswer write(FileAnswer file,
                   void const* from,
                   std::size_t bytes,
                   std::uint64_t offset) override {
    return answer(::pwrite(handle(file), from, bytes, static_cast<off_t>(offset)));
  }
  FileAnswer size(FileAnswer file) override {
    struct stat about {};
    FileAnswer const result = answer(::fstat(handle(file), &about));
    return result < 0 ? result : static_cast<FileAnswer>(about.st_size);
  }
  FileAnswer sync(FileAnswer file) override { return answer(::fsync(handle(file))); }
  FileAnswer close(FileAnswer file) override { return answer(::close(handle(file))); }
  FileAnswer rename(std::string const& from, std::string const& to) override {
    return answer(::rename(from.c_str(), to.c_str()));
  }
  FileAnswer remove(std::string const& path) override { return answer(std::remove(path.c_str())); }
  FileAnswer make_directory(std::string const& path) override {
    return answer(::mkdir(path.c_str(), 0777));
  }
  FileAnswer sync_directory(std::string const& path) override {
    FileAnswer const directory = answer(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory < 0) return directory;
    FileAnswer const synced = sync(directory);
    close(directory);
    return synced;
  }
  FileAnswer list(std::string const& path, std::vector<std::string>& names) override {
    struct Close {
      void operator()(DIR* open) const noexcept { ::closedir(open); }
    };
    std::unique_ptr<DIR, Close> const directory(::opendir(path.c_str()));
    if (directory == nullptr) return -errno;
    names.clear();
    errno = 0;
    while (dirent const* const entry = ::readdir(directory.get())) {
      std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(std::move(name));
    }
    if (errno != 0) return -errno;
    std::sort(names.begin(), names.end());
    return static_cast<FileAnswer>(names.size());
  }
  FileAnswer kind(std::string const& path) override {
    struct stat about {};
    FileAnswer const result = answer(::lstat(path.c_str(), &about));
    if (result < 0) return result;
    return static_cast<FileAnswer>(S_ISREG(about.st_mode)   ? FileKind::file
                                   : S_ISDIR(about.st_mode) ? FileKind::directory
                                                            : FileKind::other);
  }
  /// The kernel gives the lock back with the last handle, or with the process. It is one
  /// of an open file: two opens within a process exclude each other, too. Processes that the owner
  /// has forked have the handle as well; once the owner is dead, its file is replaced.
  FileAnswer lock(std::string const& path) override {
    FileAnswer const file = open_regular(path, O_RDWR | O_CREAT | O_NOFOLLOW);
    if (file < 0) return file;
    FileAnswer result = lock_byte(file, 0);
    if (result == 0) result = is_at(file, path) ? say(file) : -EAGAIN;
    if (result == 0) return file;
    // Whoever has the second byte of the file of that name is alone to replace it.
    if (result == -EAGAIN && owner_of(file).dead() && lock_byte(file, 1) == 0 &&
        is_at(file, path)) {
      FileAnswer const made = lock(path + ".tmp");
      result = made < 0 ? made : rename(path + ".tmp", path);
      if (result < 0 && made >= 0) close(made);
      if (result == 0) result = made;
    }
    close(file);
    return result;
  }

 private:
  static FileAnswer open_regular(std::string const& path, int flags) noexcept {
    flags |= O_CLOEXEC | O_NOCTTY;
    FileAnswer file = answer(::open(path.c_str(), flags | O_NONBLOCK, 0666));
    // A lease on the file has to be given back first. Only regular files have any.
    if (file == -EAGAIN) file = answer(::open(path.c_str(), flags, 0666));
    if (file < 0) return file;
    struct stat about {};
    FileAnswer result = answer(::fstat(handle(file), &about));
    if (result == 0 && !S_ISREG(about.st_mode)) result = S_ISDIR(about.st_mode) ? -EISDIR : -ENXIO;
    if (result == 0) return file;
    ::close(handle(file));
    return result;
  }
  static FileAnswer lock_byte(FileAnswer file, off_t byte) noexcept {
#if defined(F_OFD_SETLK)
    struct flock one {};
    one.l_type = F_WRLCK;
    one.l_whence = SEEK_SET;
    one.l_start = byte;
    one.l_len = 1;
    FileAnswer const result = answer(::fcntl(handle(file), F_OFD_SETLK, &one));
    if (result == -EACCES) return -EAGAIN;
    return result == -EINVAL || result == -EOPNOTSUPP || result == -ENOSYS ? -ENOLCK : result;
#else
    return -ENOLCK;
#endif
  }
  /// Is it the file that has the name?
  static bool is_at(FileAnswer file, std::string const& path) noexcept {
    struct stat own {};
    struct stat there {};
    return ::fstat(handle(file), &own) == 0 && ::lstat(path.c_str(), &there) == 0 &&
           own.st_dev == there.st_dev && own.st_ino == there.st_ino;
  }
  detail::LockOwner owner_of(FileAnswer file) {
    char text[1024];
    FileAnswer const count = read(file, text, sizeof(text), 0);
    return detail::LockOwner::parse(
        {text, static_cast<std::size_t>((std::max)(count, FileAnswer{0}))});
  }
  FileAnswer say(FileAnswer file) {
    std::string const text = detail::LockOwner::own().text();
    FileAnswer const cut = answer(::ftruncate(handle(file), 0));
    FileAnswer const count = cut < 0 ? cut : write(file, text.data(), text.size(), 0);
    return (std::min)(count, FileAnswer{0});
  }
  static FileAnswer answer(FileAnswer result) noexcept { return result < 0 ? -errno : result; }
  static int handle(FileAnswer file) noexcept { return static_cast<int>(file); }
};

/// The file system that a program has, where nothing else is said. It holds nothing.
[[nodiscard]] inline FileOperations& disk() noexcept {
  static constinit DiskFiles files;
  return files;
}

}  // namespace zero::inline ZERO_NAMESPACE
