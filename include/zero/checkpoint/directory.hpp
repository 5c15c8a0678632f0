/// @file
/// A directory that holds checkpoints: names, the lock of who writes, what is removed when.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/checkpoint/watched_files.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <future>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// A checkpoint in a directory.
struct FoundCheckpoint {
  std::string path{};                  ///< its own directory
  std::uint64_t number = 0;            ///< counts saves into the directory, from 1
  long step = 0;                       ///< updates applied when it was saved
  std::vector<std::string> skipped{};  ///< newer ones that are damaged, and why
};

namespace detail {

/// The largest number that a save gives.
inline constexpr std::uint64_t most_number = 999'999'999'999'999;
/// A manifest that a save writes before anything else, and that says nothing of its files but their
/// names. It marks the directory as a save's whatever becomes of the save, and goes last.
inline constexpr std::string_view mark_name = "files.json";

/// Checkpoints in one directory, as one rank sees them. A checkpoint is a directory of its own that
/// has a manifest; one with a mark alone is what a save left that never ended. Whatever has neither
/// is somebody else's, and so is all that is not named in them.
class CheckpointDirectory {
 public:
  CheckpointDirectory(FileOperations& files, std::string path)
      : files_(files), path_(std::move(path)) {}
  CheckpointDirectory(CheckpointDirectory const&) = delete;
  CheckpointDirectory& operator=(CheckpointDirectory const&) = delete;
  ~CheckpointDirectory() {
    settle();
    if (lock_ >= 0) static_cast<void>(files_.close(lock_));
  }

  [[nodiscard]] WatchedFiles& files() noexcept { return files_; }
  [[nodiscard]] std::string const& path() const noexcept { return path_; }

  /// Checkpoints, oldest first.
  /// @param damaged  those that have a manifest and are not complete, too: `skipped` says why
  [[nodiscard]] std::vector<FoundCheckpoint> list(bool damaged = false) {
    settle();
    return find(damaged);
  }

  /// Takes the lock, removes what saves left that never ended, and makes a directory for the next
  /// checkpoint, with a mark.
  /// @param files  those that it is going to have, and the step
  /// @returns its number
  /// @throws Error (data) if there is no larger number
  [[nodiscard]] std::uint64_t begin(bool locks, Manifest const& files) {
    settle();
    make_root();
    if (locks && lock_ < 0) lock();
    std::uint64_t last = 0;
    for (DirectoryName const& name : names()) {
      std::string const path = path_ + "/" + name.text;
      bool const ended = has_manifest(path);
      bool const ours = (ended && name.exact) || list_in(path, ended ? manifest_name : mark_name);
      if (!ours || name.number > most_number) continue;
      if (name.number == most_number) {
        refuse_file(path,
                    "has the largest number that there is: give it a smaller one, and save "
                    "again");
      }
      last = name.number;
      if (!ended) remove(path);
    }
    std::string path;
    FileAnswer made = -EEXIST;
    // What has the name and is no checkpoint is passed over.
    while (made == -EEXIST && last < most_number) {
      path = path_of(++last, files.step);
      made = files_.make_directory(path);
    }
    require_answer(made, "make directory", path);
    try {
      require_answer(files_.sync_directory(path_), "sync", path_);
      write_file(files_, path, std::string(mark_name), manifest_text(files));
    } catch (Error const&) {
      // Without a mark nobody else could.
      static_cast<void>(files_.remove(path + "/" + temporary(std::string(mark_name))));
      static_cast<void>(files_.remove(path + "/" + std::string(mark_name)));
      static_cast<void>(files_.remove(path));
      throw;
    }
    return last;
  }
  [[nodiscard]] std::string path_of(std::uint64_t number, long step) const {
    std::string digits = std::to_string(number);
    if (digits.size() < least_digits) digits.insert(0, least_digits - digits.size(), '0');
    return path_ + "/" + digits + "-step-" + std::to_string(step);
  }

  /// Begins to remove all but the newest `keep` complete checkpoints, and damaged ones older than
  /// these that have a sound manifest or mark. Whatever looks at the directory next waits for it.
  /// @throws Error for what could not be removed the last time
  void keep_newest(int keep) {
    settle();
    RankFailure const before = std::exchange(removed_, {});
    removal_ = std::async(std::launch::async, [this, keep] {
      return attempt_alone([&] { remove_but(static_cast<std::size_t>(keep)); });
    });
    if (before.failed) fail(before.kind, before.text);
  }

 private:
  std::vector<FoundCheckpoint> find(bool damaged) {
    std::vector<FoundCheckpoint> all;
    for (DirectoryName const& name : names()) {
      FoundCheckpoint found{.path = path_ + "/" + name.text, .number = name.number};
      if (!has_manifest(found.path)) continue;
      RankFailure const failure = attempt_alone([&] {
        if (name.number > most_number) {
          refuse_file(found.path, {"has a number above ", most_number, ", which no save gives"});
        }
        found.step = complete_step(found.path);
      });
      // Another program's manifest is no damage, unless the name says that it is a save's.
      bool const ours = !failure.failed || name.exact || failure.kind != ErrorKind::data ||
                        list_in(found.path, manifest_name);
      if (failure.failed) found.skipped = {failure.text};
      if (!failure.failed || (ours && damaged)) all.push_back(std::move(found));
    }
    return all;
  }
  /// Waits for what is being removed.
  void settle() {
    if (removal_.valid()) removed_ = removal_.get();
  }
  void remove_but(std::size_t most) {
    std::vector<FoundCheckpoint> const all = find(true);
    std::vector<std::uint64_t> complete;
    for (FoundCheckpoint const& each : all) {
      if (each.skipped.empty()) complete.push_back(each.number);
    }
    if (complete.size() <= most) return;
    std::uint64_t const oldest = complete[complete.size() - most];
    for (FoundCheckpoint const& each : all) {
      if (each.number < oldest) remove(each.path);
    }
  }
  static constexpr std::ptrdiff_t least_digits = 6;  ///< of a number in a name

  struct DirectoryName {
    std::uint64_t number = 0;  ///< at most the largest that there is, also where it says more
    bool exact = false;        ///< as saves give it; otherwise it was renamed, or is a user's
    std::string text{};
  };

  /// Directories with names such as checkpoints have, by number. A link to one is none.
  [[nodiscard]] std::vector<DirectoryName> names() {
    std::vector<std::string> all;
    FileAnswer const listed = files_.list(path_, all);
    if (listed == -ENOENT) return {};
    require_answer(listed, "list", path_);
    std::vector<DirectoryName> found;
    for (std::string& text : all) {
      char const* const end = text.data() + text.size();
      DirectoryName name;
      auto const number = std::from_chars(text.data(), end, name.number);
      if (number.ec == std::errc::result_out_of_range) {
        name.number = (std::numeric_limits<std::uint64_t>::max)();
      } else if (number.ec != std::errc()) {
        continue;
      }
      constexpr std::string_view middle = "-step-";
      std::string_view rest(number.ptr, static_cast<std::size_t>(end - number.ptr));
      if (!rest.starts_with(middle)) continue;
      rest.remove_prefix(middle.size());
      FileAnswer const kind = files_.kind(path_ + "/" + text);
      // What cannot be looked at may be one.
      if (kind == -ENOENT || (kind >= 0 && !is(kind, FileKind::directory))) continue;
      name.exact = number.ptr - text.data() >= least_digits && !rest.empty() &&
                   rest.find_first_not_of("0123456789") == std::string_view::npos;
      name.text = std::move(text);
      found.push_back(std::move(name));
    }
    std::sort(found.begin(), found.end(), [](DirectoryName const& a, DirectoryName const& b) {
      return a.number != b.number ? a.number < b.number : a.text < b.text;
    });
    return found;
  }
  [[nodiscard]] static bool is(FileAnswer answer, FileKind kind) noexcept {
    return answer == static_cast<FileAnswer>(kind);
  }
  [[nodiscard]] bool has_manifest(std::string const& path) {
    FileAnswer const file = files_.open(path + "/" + std::string(manifest_name), FileMode::read);
    if (file >= 0) static_cast<void>(files_.close(file));
    // What cannot be looked at may be there.
    return file != -ENOENT;
  }
  /// The sound manifest of that name in a directory. Nothing if there is none, or it is a link.
  [[nodiscard]] std::optional<Manifest> list_in(std::string const& path, std::string_view name) {
    std::optional<Manifest> found;
    if (!is(files_.kind(path + "/" + std::string(name)), FileKind::file)) return found;
    static_cast<void>(attempt_alone([&] { found = read_manifest(files_, path, name); }));
    return found;
  }
  /// The step of a checkpoint whose manifest is sound and whose files are there, with their sizes.
  [[nodiscard]] long complete_step(std::string const& path) {
    Manifest const manifest = read_manifest(files_, path);
    for (SavedFile const& saved : manifest.files) {
      File const file(files_, path + "/" + saved.name, FileMode::read);
      if (file.size() == saved.bytes) continue;
      refuse_file(file.path(), {"has ", file.size(), " bytes instead of ", saved.bytes});
    }
    return manifest.step;
  }

  void make_root() {
    for (std::size_t at = 0; at != std::string::npos;) {
      at = path_.find('/', at + 1);
      std::string const part = path_.substr(0, at);
      FileAnswer const made = files_.make_directory(part);
      bool const there = made == -EEXIST;
      if ((there && rooted_) || (made < 0 && !there && at != std::string::npos)) continue;
      if (!there) require_answer(made, "make directory", part);
      std::string const parent = directory_of(part);
      FileAnswer const synced = files_.sync_directory(parent);
      // Whoever made it may not have come to sync it. Not all that lies above can be opened.
      if (!there || synced != -EACCES) require_answer(synced, "sync", parent);
    }
    rooted_ = true;
  }
  void lock() {
    std::string const path = path_ + "/lock";
    FileAnswer const answer = files_.lock(path);
    if (answer == -EAGAIN) {
      LockOwner const owner = LockOwner::parse(read_file(files_, path, 1024));
      std::string who = Message({"process ", owner.process, " on ", owner.host}).text();
      if (owner.process == 0) who = "somebody else";
      if (owner == LockOwner::own()) who = "another Checkpoints object of this process";
      fail(ErrorKind::resource, {who, " writes checkpoints to '", path_, "'"});
    }
    if (answer == -ENOLCK) {
      fail(ErrorKind::resource,
           {"the file system of '",
            path_,
            "' has no locks, so that a second writer would not be "
            "noticed; with CheckpointOptions::lock = false nobody asks"});
    }
    lock_ = require_file(answer, "lock", path, FileMode::write);
  }
  /// Removes the files that a checkpoint's mark or manifest names, and the directory if nothing
  /// else is in it. First it stops to be a checkpoint; last goes what says that it was one, so that
  /// after a crash the next save goes on. Without a sound mark or manifest, nothing is touched.
  void remove(std::string const& path) {
    auto const in = [&](std::string_view name) { return path + "/" + std::string(name); };
    // Saves make files alone.
    auto const drop = [&](std::string const& file) {
      FileAnswer const kind = files_.kind(file);
      if (kind == -ENOENT) return;
      if (!is(require_answer(kind, "look at", file), FileKind::file)) return;
      FileAnswer const answer = files_.remove(file);
      if (answer != -ENOENT) require_answer(answer, "remove", file);
    };
    std::string const manifest = in(manifest_name);
    std::string const mark = in(mark_name);
    for (std::string const& file : {manifest, mark}) {
      FileAnswer const kind = files_.kind(file);
      if (kind != -ENOENT && !is(kind, FileKind::file)) return;
    }
    std::optional<Manifest> own = list_in(path, mark_name);
    if (own) {
      drop(manifest);
    } else {
      own = list_in(path, manifest_name);
      if (!own) return;
      require_answer(files_.rename(manifest, mark), "rename what becomes", mark);
    }
    require_answer(files_.sync_directory(path), "sync", path);
    for (SavedFile const& file : own->files) {
      drop(in(file.name));
      drop(temporary(in(file.name)));
    }
    drop(temporary(manifest));
    drop(temporary(mark));
    require_answer(files_.sync_directory(path), "sync", path);
    drop(mark);
    FileAnswer const answer = files_.remove(path);
    if (answer != -ENOTEMPTY && answer != -EEXIST && answer != -ENOENT) {
      require_answer(answer, "remove", path);
    }
    require_answer(files_.sync_directory(path_), "sync", path_);
  }

  WatchedFiles files_;
  std::string path_;
  FileAnswer lock_ = -1;
  bool rooted_ = false;  ///< the directory's own name is durable
  std::future<RankFailure> removal_;
  RankFailure removed_{};  ///< what became of the last one
};

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
