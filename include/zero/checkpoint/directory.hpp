/// @file
/// A directory that holds checkpoints: names, the lock of who writes, what is removed when.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/catalog.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/together.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
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

/// Checkpoints in one directory, as one rank sees them. A checkpoint is a directory of its own that
/// has a manifest; one without is what a save left that never ended.
template <FileOperations Files>
class CheckpointDirectory {
 public:
  CheckpointDirectory(Files files, std::string path)
      : files_(std::move(files)), path_(std::move(path)) {}
  CheckpointDirectory(CheckpointDirectory const&) = delete;
  CheckpointDirectory& operator=(CheckpointDirectory const&) = delete;
  ~CheckpointDirectory() {
    if (lock_ >= 0) static_cast<void>(files_.close(lock_));
  }

  [[nodiscard]] Files& files() noexcept { return files_; }
  [[nodiscard]] std::string const& path() const noexcept { return path_; }

  /// Complete checkpoints, oldest first.
  /// @param damaged  those that have a manifest and are not complete, with reasons; unless null
  [[nodiscard]] std::vector<FoundCheckpoint> list(std::vector<FoundCheckpoint>* damaged = nullptr) {
    std::vector<FoundCheckpoint> complete;
    for (Name const& name : names()) {
      FoundCheckpoint found{.path = path_ + "/" + name.text, .number = name.number};
      if (!has_manifest(found.path)) continue;
      RankFailure const failure = attempt_alone([&] { found.step = complete_step(found.path); });
      if (!failure.failed) {
        complete.push_back(std::move(found));
      } else if (damaged != nullptr) {
        found.skipped = {failure.text};
        damaged->push_back(std::move(found));
      }
    }
    return complete;
  }

  /// Takes the lock, removes what saves left that never ended, and makes a directory for the next
  /// checkpoint.
  /// @returns its number
  [[nodiscard]] std::uint64_t begin(bool locks, long step) {
    make_root();
    if (locks && lock_ < 0) lock();
    std::uint64_t last = 0;
    for (Name const& name : names()) {
      last = (std::max)(last, name.number);
      std::string const path = path_ + "/" + name.text;
      if (!has_manifest(path)) remove(path);
    }
    std::string const path = path_of(last + 1, step);
    require_answer(files_.make_directory(path), "make directory", path);
    require_answer(files_.sync_directory(path_), "sync", path_);
    return last + 1;
  }
  [[nodiscard]] std::string path_of(std::uint64_t number, long step) const {
    std::string digits = std::to_string(number);
    if (digits.size() < 6) digits.insert(0, 6 - digits.size(), '0');
    return path_ + "/" + digits + "-step-" + std::to_string(step);
  }

  /// Are there more complete checkpoints than these?
  [[nodiscard]] bool exceeds(int keep) { return list().size() > static_cast<std::size_t>(keep); }
  /// Removes all but the newest `keep` complete checkpoints, and damaged ones older than these.
  void keep_newest(int keep) {
    std::vector<FoundCheckpoint> damaged;
    std::vector<FoundCheckpoint> complete = list(&damaged);
    auto const most = static_cast<std::size_t>(keep);
    if (complete.size() <= most) return;
    std::uint64_t const oldest = complete[complete.size() - most].number;
    complete.insert(complete.end(), damaged.begin(), damaged.end());
    for (FoundCheckpoint const& each : complete) {
      if (each.number < oldest) remove(each.path);
    }
  }

 private:
  struct Name {
    std::uint64_t number = 0;
    std::string text{};
  };

  /// Names that checkpoints have, by number.
  [[nodiscard]] std::vector<Name> names() {
    std::vector<std::string> all;
    FileAnswer const listed = files_.list(path_, all);
    if (listed == -ENOENT) return {};
    require_answer(listed, "list", path_);
    std::vector<Name> found;
    for (std::string& text : all) {
      char const* const end = text.data() + text.size();
      Name name;
      auto const number = std::from_chars(text.data(), end, name.number);
      constexpr std::string_view middle = "-step-";
      std::string_view const rest(number.ptr, static_cast<std::size_t>(end - number.ptr));
      if (number.ec != std::errc() || !rest.starts_with(middle)) continue;
      name.text = std::move(text);
      found.push_back(std::move(name));
    }
    std::sort(found.begin(), found.end(), [](Name const& a, Name const& b) {
      return a.number != b.number ? a.number < b.number : a.text < b.text;
    });
    return found;
  }
  [[nodiscard]] bool has_manifest(std::string const& path) {
    FileAnswer const file = files_.open(path + "/" + std::string(manifest_name), FileMode::read);
    if (file >= 0) static_cast<void>(files_.close(file));
    // What cannot be looked at may be there.
    return file != -ENOENT;
  }
  /// The step of a checkpoint whose manifest is sound and whose files are there, with their sizes.
  [[nodiscard]] long complete_step(std::string const& path) {
    std::string const name = path + "/" + std::string(manifest_name);
    Manifest const manifest = parse_manifest(name, read_file(files_, name, longest_manifest));
    for (SavedFile const& saved : manifest.files) {
      File<Files> const file(files_, path + "/" + saved.name, FileMode::read);
      if (file.size() == saved.bytes) continue;
      fail(ErrorKind::data,
           {"'", file.path(), "' has ", file.size(), " bytes instead of ", saved.bytes});
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
    FileAnswer const told = files_.lock(path);
    if (told == -EAGAIN) {
      fail(ErrorKind::resource, {"somebody else writes checkpoints to '", path_, "'"});
    }
    if (told == -ENOLCK) {
      fail(ErrorKind::resource,
           {"the file system of '",
            path_,
            "' has no locks, so that a second writer would not be "
            "noticed; with CheckpointOptions::lock = false nobody asks"});
    }
    lock_ = require_answer(told, "lock", path);
  }
  /// A directory and the files in it that checkpoints have; the manifest goes first, so that what
  /// is left of it is no checkpoint. One with files of somebody else's stays.
  void remove(std::string const& path) {
    std::vector<std::string> all;
    if (files_.list(path, all) < 0) return;
    auto const drop = [&](std::string const& name) {
      FileAnswer const told = files_.remove(path + "/" + name);
      if (told != -ENOENT) require_answer(told, "remove", path + "/" + name);
    };
    if (has_manifest(path)) {
      drop(std::string(manifest_name));
      require_answer(files_.sync_directory(path), "sync", path);
    }
    for (std::string const& name : all) {
      if (name.starts_with("rank-") || name == temporary(std::string(manifest_name))) drop(name);
    }
    FileAnswer const told = files_.remove(path);
    if (told != -ENOTEMPTY && told != -EEXIST && told != -ENOENT) {
      require_answer(told, "remove", path);
    }
    require_answer(files_.sync_directory(path_), "sync", path_);
  }

  Files files_;
  std::string path_;
  FileAnswer lock_ = -1;
  bool rooted_ = false;  ///< the directory's own name is durable
};

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
