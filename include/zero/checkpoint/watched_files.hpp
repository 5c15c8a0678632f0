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
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Operations on files, of any number of threads, that say what they are doing.
class WatchedFiles final : public FileOperations {
 public:
  /// @param files  outlive this
  explicit WatchedFiles(FileOperations& files) : files_(&files) {}

  /// The oldest operation under way, in words, if it has been for longer; else empty.
  [[nodiscard]] std::string stalled(double seconds) const {
    std::lock_guard const lock(mutex_);
    if (under_way_.empty()) return {};
    Operation const& oldest = under_way_.front();
    std::chrono::duration<double> const since = Clock::now() - oldest.begun;
    if (since.count() < seconds) return {};
    Message const how_long{" has not returned for ", seconds, " s: the file system stands still"};
    return Message({"'", oldest.path, "': ", oldest.verb, how_long}).text();
  }

  FileAnswer open(std::string const& path, FileMode mode) override {
    return opened(path, on("open", path, [&] { return files_->open(path, mode); }));
  }
  FileAnswer lock(std::string const& path) override {
    return opened(path, on("lock", path, [&] { return files_->lock(path); }));
  }
  FileAnswer read(FileAnswer file, void* to, std::size_t bytes, std::uint64_t offset) override {
    return on("read", path_of(file), [&] { return files_->read(file, to, bytes, offset); });
  }
  FileAnswer write(FileAnswer file,
                   void const* from,
                   std::size_t bytes,
                   std::uint64_t offset) override {
    return on("write", path_of(file), [&] { return files_->write(file, from, bytes, offset); });
  }
  FileAnswer size(FileAnswer file) override {
    return on("size", path_of(file), [&] { return files_->size(file); });
  }
  FileAnswer sync(FileAnswer file) override {
    return on("sync", path_of(file), [&] { return files_->sync(file); });
  }
  FileAnswer close(FileAnswer file) override {
    // From now on the handle may be of another file.
    std::unique_lock lock(mutex_);
    auto const node = paths_.extract(file);
    lock.unlock();
    std::string const path = node.empty() ? std::string() : node.mapped();
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
  using Clock = std::chrono::steady_clock;
  struct Operation {
    char const* verb;
    std::string_view path;
    Clock::time_point begun;
  };

  template <class Work>
  FileAnswer on(char const* verb, std::string_view path, Work const& work) {
    std::unique_lock lock(mutex_);
    auto const here = under_way_.insert(under_way_.end(), {verb, path, Clock::now()});
    lock.unlock();
    FileAnswer const answer = work();
    lock.lock();
    under_way_.erase(here);
    return answer;
  }
  FileAnswer opened(std::string const& path, FileAnswer file) {
    std::lock_guard const lock(mutex_);
    if (file >= 0) paths_[file] = path;
    return file;
  }
  [[nodiscard]] std::string_view path_of(FileAnswer file) const {
    std::lock_guard const lock(mutex_);
    auto const found = paths_.find(file);
    return found == paths_.end() ? std::string_view() : found->second;
  }

  FileOperations* files_;
  mutable std::mutex mutex_;
  std::map<FileAnswer, std::string> paths_;
  std::list<Operation> under_way_;  ///< the oldest first
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
