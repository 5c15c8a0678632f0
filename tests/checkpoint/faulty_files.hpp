/// @file
/// Operations on files of which a chosen one goes wrong.
#pragma once

#include "checkpoint/model_files.hpp"
#include "support/standard.hpp"
#include "zero/checkpoint/files.hpp"

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
inline constexpr std::size_t file_calls = 13;

[[nodiscard]] inline std::string name(FileCall call) {
  std::istringstream words(
      "open read write size sync close rename remove make_directory sync_directory list kind lock");
  std::string word;
  for (int i = 0; i <= static_cast<int>(call); ++i) words >> word;
  return word;
}

/// What goes wrong, and when.
struct FileFault {
  std::optional<FileCall> only{};  ///< counts these operations and no others
  std::size_t at = 0;              ///< operations that go well before
  int error = EIO;                 ///< what is answered; 0: a write or read moves half of its bytes
  bool for_good = false;           ///< all that follow go wrong, too
  std::function<void(FileCall)> meanwhile{};  ///< is called instead, and the operation goes well
};

/// Passes operations on until it is time. Copies count together. A handle is closed also where
/// close() answers with an error; nothing else happens that is said to have failed.
template <class Inner>
class FaultyFiles final : public zero::FileOperations {
 public:
  using Answer = zero::FileAnswer;

  /// Without a fault, it only counts.
  explicit FaultyFiles(Inner inner = {}, std::optional<FileFault> fault = {})
      : inner_(std::move(inner)), state_(std::make_shared<State>()) {
    state_->fault = fault;
  }

  /// From now on; counts from here.
  void set(std::optional<FileFault> fault) {
    std::lock_guard const lock(state_->mutex);
    state_->fault = fault;
    state_->counted = 0;
    state_->struck = 0;
    state_->calls = {};
  }
  /// Operations so far, by kind.
  [[nodiscard]] std::array<std::size_t, file_calls> calls() const {
    std::lock_guard const lock(state_->mutex);
    return state_->calls;
  }
  /// Operations that went wrong.
  [[nodiscard]] std::size_t struck() const {
    std::lock_guard const lock(state_->mutex);
    return state_->struck;
  }

  Answer open(std::string const& path, zero::FileMode mode) override {
    return failing(FileCall::open, [&] { return inner_.open(path, mode); });
  }
  Answer read(Answer file, void* to, std::size_t bytes, std::uint64_t offset) override {
    return moving(FileCall::read, bytes, [&](std::size_t count) {
      return inner_.read(file, to, count, offset);
    });
  }
  Answer write(Answer file, void const* from, std::size_t bytes, std::uint64_t offset) override {
    return moving(FileCall::write, bytes, [&](std::size_t count) {
      return inner_.write(file, from, count, offset);
    });
  }
  Answer size(Answer file) override {
    return failing(FileCall::size, [&] { return inner_.size(file); });
  }
  Answer sync(Answer file) override {
    return failing(FileCall::sync, [&] { return inner_.sync(file); });
  }
  Answer close(Answer file) override {
    Answer const closed = inner_.close(file);
    return failing(FileCall::close, [&] { return closed; });
  }
  Answer rename(std::string const& from, std::string const& to) override {
    return failing(FileCall::rename, [&] { return inner_.rename(from, to); });
  }
  Answer remove(std::string const& path) override {
    return failing(FileCall::remove, [&] { return inner_.remove(path); });
  }
  Answer make_directory(std::string const& path) override {
    return failing(FileCall::make_directory, [&] { return inner_.make_directory(path); });
  }
  Answer sync_directory(std::string const& path) override {
    return failing(FileCall::sync_directory, [&] { return inner_.sync_directory(path); });
  }
  Answer list(std::string const& path, std::vector<std::string>& names) override {
    return failing(FileCall::list, [&] { return inner_.list(path, names); });
  }
  Answer kind(std::string const& path) override {
    return failing(FileCall::kind, [&] { return inner_.kind(path); });
  }
  Answer lock(std::string const& path) override {
    return failing(FileCall::lock, [&] { return inner_.lock(path); });
  }

 private:
  struct State {
    std::mutex mutex{};
    std::optional<FileFault> fault{};
    std::size_t counted = 0;
    std::size_t struck = 0;
    std::array<std::size_t, file_calls> calls{};
  };

  /// The error to answer with, if it is this operation's turn.
  [[nodiscard]] std::optional<int> turn(FileCall call) {
    std::unique_lock lock(state_->mutex);
    ++state_->calls[static_cast<std::size_t>(call)];
    auto const& fault = state_->fault;
    if (!fault || (fault->only && *fault->only != call)) return {};
    std::size_t const number = state_->counted++;
    if (number < fault->at || (number > fault->at && !fault->for_good)) return {};
    bool const moves = call == FileCall::read || call == FileCall::write;
    if (fault->error == 0 && !moves) return {};
    ++state_->struck;
    if (!fault->meanwhile) return fault->error;
    auto const meanwhile = fault->meanwhile;
    lock.unlock();
    meanwhile(call);
    return {};
  }
  template <class Call>
  Answer failing(FileCall call, Call const& operation) {
    auto const error = turn(call);
    return error ? -*error : operation();
  }
  template <class Call>
  Answer moving(FileCall call, std::size_t bytes, Call const& operation) {
    auto const error = turn(call);
    if (error && *error != 0) return -*error;
    return operation(error && bytes > 1 ? bytes / 2 : bytes);
  }

  Inner inner_;
  std::shared_ptr<State> state_;
};

}  // namespace checkpoint_tests
