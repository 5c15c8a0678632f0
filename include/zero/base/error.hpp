/// @file
/// One exception type, one throwing point.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace zero::inline v0_1 {

/// What a caller can do about an error, not where it came from.
enum class ErrorKind : std::uint8_t {
  invalid_argument,  ///< the caller's program is wrong: fix it
  communication,     ///< ranks disagree, failed or left: the communicator is unusable afterwards
  resource,          ///< memory or a device was refused
  data,              ///< the numbers are unusable, such as a gradient that is not finite
};

[[nodiscard]] constexpr std::string_view name(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::invalid_argument: return "invalid argument";
    case ErrorKind::communication: return "communication";
    case ErrorKind::resource: return "resource";
    case ErrorKind::data: return "data";
  }
  return "unknown";
}

/// A place in the source. `std::source_location` would do, but clang 14 lacks it.
struct SourceLocation {
  char const* file = "";
  int line = 0;

  [[nodiscard]] static constexpr SourceLocation current(char const* file = __builtin_FILE(),
                                                        int line = __builtin_LINE()) noexcept {
    return {file, line};
  }
};

/// Where in the library's work an error happened; -1 and empty mean "does not apply".
struct ErrorContext {
  int rank = -1;
  std::string operation{};
  int bucket = -1;
};

/// The library's only exception. `what()` is one line that names kind, rank, operation and bucket.
class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message, ErrorContext context, SourceLocation where)
      : kind_(kind), message_(std::move(message)), context_(std::move(context)), where_(where) {
    text_ = "zero: ";
    text_ += name(kind_);
    text_ += ": ";
    text_ += message_;
    if (context_.rank >= 0) text_ += ", rank " + std::to_string(context_.rank);
    if (!context_.operation.empty()) text_ += ", in " + context_.operation;
    if (context_.bucket >= 0) text_ += ", bucket " + std::to_string(context_.bucket);
  }

  [[nodiscard]] char const* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  /// The message without the context that `what()` appends.
  [[nodiscard]] std::string const& message() const noexcept { return message_; }
  /// Rank the error was found on, or -1.
  [[nodiscard]] int rank() const noexcept { return context_.rank; }
  [[nodiscard]] std::string const& operation() const noexcept { return context_.operation; }
  [[nodiscard]] int bucket() const noexcept { return context_.bucket; }
  [[nodiscard]] SourceLocation where() const noexcept { return where_; }

 private:
  ErrorKind kind_;
  std::string message_;
  ErrorContext context_;
  SourceLocation where_;
  std::string text_;
};

#if !defined(__cpp_exceptions)
/// Called instead of throwing where exceptions are disabled; it must not return. Define it in one
/// translation unit to be told of errors: a link-time hook needs no global state. Without it the
/// error is printed to stderr.
[[noreturn]] __attribute__((weak)) void on_error(Error const& error) noexcept;
#endif

/// The library's one throwing point.
/// @throws Error always; with exceptions disabled it calls `on_error` and aborts
[[noreturn]] inline void fail(ErrorKind kind,
                              std::string message,
                              ErrorContext context = {},
                              SourceLocation where = SourceLocation::current()) {
#if defined(__cpp_exceptions)
  throw Error(kind, std::move(message), std::move(context), where);
#else
  Error const error(kind, std::move(message), std::move(context), where);
  if (on_error != nullptr) on_error(error);
  std::fprintf(stderr, "%s\n", error.what());
  std::abort();
#endif
}

}  // namespace zero::inline v0_1
