/// @file
/// Files of which it is known which operations are under way, and since when: a disk that stands
/// still answers nothing.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/files.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Operations under way, of any number of threads.
class FileWatch {
  using Clock = std::chrono::steady_clock;

 public:
  /// One operation, for as long as the object lives. Allocates nothing.
  class Operation {
   public:
    /// @param verb  such as "write"
    /// @param path  outlives this
    Operation(FileWatch& watch, char const* verb, std::string_view path)
        : watch_(&watch), verb_(verb), path_(path) {
      std::lock_guard const lock(watch.mutex_);
      add();
    }
    /// Of an open file.
    Operation(FileWatch& watch, char const* verb, FileAnswer file) : watch_(&watch), verb_(verb) {
      std::lock_guard const lock(watch.mutex_);
      auto const found = watch.paths_.find(file);
      if (found != watch.paths_.end()) path_ = found->second;
      add();
    }
    Operation(Operation const&) = delete;
    Operation& operator=(Operation const&) = delete;
    ~Operation() {
      std::lock_guard const lock(watch_->mutex_);
      (before_ != nullptr ? before_->after_ : watch_->first_) = after_;
      (after_ != nullptr ? after_->before_ : watch_->last_) = before_;
    }

   private:
    friend class FileWatch;
    void add() noexcept {
      before_ = watch_->last_;
      (before_ != nullptr ? before_->after_ : watch_->first_) = this;
      watch_->last_ = this;
    }

    FileWatch* watch_;
    char const* verb_;
    std::string_view path_{};
    Clock::time_point begun_ = Clock::now();
    Operation* before_ = nullptr;
    Operation* after_ = nullptr;
  };

  FileWatch() = default;
  FileWatch(FileWatch const&) = delete;
  FileWatch& operator=(FileWatch const&) = delete;

  /// That handle is of that file.
  void opened(FileAnswer file, std::string const& path) {
    std::lock_guard const lock(mutex_);
    paths_[file] = path;
  }
  /// That handle is about to be closed, and from then on may be of another file.
  /// @returns the path of the one that it is of
  [[nodiscard]] std::string forget(FileAnswer file) noexcept {
    std::lock_guard const lock(mutex_);
    auto node = paths_.extract(file);
    return node.empty() ? std::string() : std::move(node.mapped());
  }
  /// The oldest operation, in words, if it has been under way for longer; else empty.
  [[nodiscard]] std::string stalled(double seconds) const {
    std::lock_guard const lock(mutex_);
    if (first_ == nullptr) return {};
    std::chrono::duration<double> const since = Clock::now() - first_->begun_;
    if (since.count() < seconds) return {};
    return Message({"'",
                    first_->path_,
                    "': ",
                    first_->verb_,
                    " has not returned for ",
                    seconds,
                    " s: the file system stands still"})
        .text();
  }

 private:
  mutable std::mutex mutex_;
  std::map<FileAnswer, std::string> paths_;
  Operation* first_ = nullptr;  ///< the oldest
  Operation* last_ = nullptr;
};

/// Operations on files that say what they are doing.
class WatchedFiles final : public FileOperations {
 public:
  /// @param files  outlive this
  explicit WatchedFiles(FileOperations& files) : files_(&files) {}

  [[nodiscard]] FileWatch const& watch() const noexcept { return watch_; }

  FileAnswer open(std::string const& path, FileMode mode) override {
    return opened(path, on("open", path, [&] { return files_->open(path, mode); }));
  }
  FileAnswer lock(std::string const& path) override {
    return opened(path, on("lock", path, [&] { return files_->lock(path); }));
  }
  FileAnswer read(FileAnswer file, void* to, std::size_t bytes, std::uint64_t offset) override {
    return on("read", file, [&] { return files_->read(file, to, bytes, offset); });
  }
  FileAnswer write(FileAnswer file,
                   void const* from,
                   std::size_t bytes,
                   std::uint64_t offset) override {
    return on("write", file, [&] { return files_->write(file, from, bytes, offset); });
  }
  FileAnswer size(FileAnswer file) override {
    return on("size", file, [&] { return files_->size(file); });
  }
  FileAnswer sync(FileAnswer file) override {
    return on("sync", file, [&] { return files_->sync(file); });
  }
  FileAnswer close(FileAnswer file) override {
    std::string const path = watch_.forget(file);
    return on("close", path, [&] { return files_->close(file); });
  }
  FileAnswer rename(std::string const& from, std::string const& to) override {
    return on("rename", from, [&] { return files_->rename(from, to); });
  }
  FileAnswer remove(std::string const& path) override {
    return on("remove", path, [&] { return files_->remove(path); });
  }
  FileAnswer make_directory(std::string const& path) override {
    return on("make", path, [&] { return files_->make_directory(path); });
  }
  FileAnswer sync_directory(std::string const& path) override {
    return on("sync", path, [&] { return files_->sync_directory(path); });
  }
  FileAnswer list(std::string const& path, std::vector<std::string>& names) override {
    return on("list", path, [&] { return files_->list(path, names); });
  }
  FileAnswer kind(std::string const& path) override {
    return on("look", path, [&] { return files_->kind(path); });
  }

 private:
  template <class Of, class Work>
  FileAnswer on(char const* verb, Of const& of, Work const& work) {
    FileWatch::Operation const operation(watch_, verb, of);
    return work();
  }
  FileAnswer opened(std::string const& path, FileAnswer file) {
    if (file >= 0) watch_.opened(file, path);
    return file;
  }

  FileOperations* files_;
  FileWatch watch_{};
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
