/// @file
/// One exception type, one throwing point.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/unit_flags.hpp"

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace zero::inline ZERO_SHARED_NAMESPACE {

/// What a caller can do about an error, not where it came from.
enum class ErrorKind : std::uint8_t {
  invalid_argument,  ///< the caller's program is wrong: fix it
  communication,     ///< ranks disagree, failed or left: the communicator is unusable afterwards
  resource,          ///< memory or a device was refused
  data,              ///< the numbers are unusable, such as a gradient that is not finite
};

/// A place in the source. `std::source_location` would do, but clang 14 lacks it.
struct SourceLocation {
  char const* file = "";  ///< path as the compiler was given it
  int line = 0;           ///< counted from 1

  /// No place.
  SourceLocation() = default;
  /// Were this an aggregate, nvcc could not tell whether the braces of a call hold one or a
  /// context.
  ZERO_ALWAYS_INLINE constexpr SourceLocation(char const* path, int number) noexcept
      : file(path), line(number) {}
  /// The place of the caller, where it is a default argument.
  [[nodiscard]] ZERO_ALWAYS_INLINE static constexpr SourceLocation current(
      char const* file = __builtin_FILE(), int line = __builtin_LINE()) noexcept {
    return {file, line};
  }
};

/// Where in the library's work an error happened; -1 and empty mean "does not apply".
struct ErrorContext {
  int rank = -1;            ///< as the communicator numbers it
  std::string operation{};  ///< such as "reduce_scatter"
  int bucket = -1;          ///< index into the partition's buckets
  std::string group{};      ///< that was called, such as an axis of a grid
};

}  // namespace zero::inline ZERO_SHARED_NAMESPACE

namespace zero::inline ZERO_NAMESPACE {

/// What messages call the kind.
[[nodiscard]] constexpr std::string_view name(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::invalid_argument: return "invalid argument";
    case ErrorKind::communication: return "communication";
    case ErrorKind::resource: return "resource";
    case ErrorKind::data: return "data";
  }
  return "unknown";
}

namespace detail {

/// Is the number one of 32 bits?
[[nodiscard]] constexpr bool is_single(double value) noexcept {
  return static_cast<double>(static_cast<float>(value)) == value;
}

/// A number as it was written: the shortest text, of six digits at least, that reads back as it.
/// @param single  as the same number of 32 bits, which it is
[[nodiscard]] ZERO_COLD inline std::string number_text(double value, bool single) {
  char letters[32];
  for (int digits = 6; digits <= 17; ++digits) {
    std::snprintf(letters, sizeof(letters), "%.*g", digits, value);
    if (single ? std::strtof(letters, nullptr) == static_cast<float>(value)
               : std::strtod(letters, nullptr) == value) {
      break;
    }
  }
  return letters;
}

}  // namespace detail

/// A sentence made of text and numbers.
///
/// Joining happens out of line, so that the many places that only fail when they are misused cost
/// the compiler next to nothing.
class Message {
 public:
  /// One piece of a sentence.
  class Piece {
   public:
    /// Text that is copied as it is.
    Piece(char const* text) : Piece(std::string_view(text)) {}
    /// @overload
    Piece(std::string_view text) : text_(text.data()), number_(text.size()) {}
    /// @overload
    Piece(std::string const& text) : Piece(std::string_view(text)) {}
    /// A whole message, as a part of another.
    Piece(Message const& message) : Piece(std::string_view(message.text())) {}
    /// An integer, written in decimal.
    template <std::integral Number>
    Piece(Number number) : number_(static_cast<std::uint64_t>(number)), is_(Is::count) {
      // nvcc warns of unsigned numbers that are asked whether they are less than zero.
      if constexpr (std::signed_integral<Number>) is_ = Is::integer;
    }
    /// Another number, with as many digits as tell it from its neighbours; a float from floats.
    Piece(double number) : number_(std::bit_cast<std::uint64_t>(number)), is_(Is::real) {}

   private:
    friend class Message;
    enum class Is : std::uint8_t { text, count, integer, real };
    char const* text_ = nullptr;
    std::uint64_t number_;  ///< an integer, the bits of another number, or the length of the text
    Is is_ = Is::text;
  };

  /// One piece of text.
  Message(char const* text) : text_(text) {}
  /// @overload
  Message(std::string text) : text_(std::move(text)) {}
  /// All pieces, one after the other.
  Message(std::initializer_list<Piece> pieces) { join(pieces); }

  /// The sentence.
  [[nodiscard]] std::string const& text() const noexcept { return text_; }

 private:
  __attribute__((noinline, cold)) void join(std::initializer_list<Piece> pieces) {
    for (Piece const& piece : pieces) {
      switch (piece.is_) {
        case Piece::Is::text:
          text_.append(piece.text_, static_cast<std::size_t>(piece.number_));
          break;
        case Piece::Is::count: text_ += std::to_string(piece.number_); break;
        case Piece::Is::integer:
          text_ += std::to_string(static_cast<std::int64_t>(piece.number_));
          break;
        case Piece::Is::real: {
          auto const number = std::bit_cast<double>(piece.number_);
          text_ += detail::number_text(number, detail::is_single(number));
        }
      }
    }
  }

  std::string text_;
};

namespace detail {

/// An error as one line.
[[nodiscard]] ZERO_COLD inline std::string error_text(ErrorKind kind,
                                                      std::string const& message,
                                                      ErrorContext const& context) {
  std::string text = Message({"zero: ", name(kind), ": ", message}).text();
  auto const add = [&](bool known, Message const& more) {
    if (known) text += more.text();
  };
  add(context.rank >= 0, {", rank ", context.rank});
  add(!context.operation.empty(), {", in ", context.operation});
  add(context.bucket >= 0, {", bucket ", context.bucket});
  add(!context.group.empty(), {", on the ", context.group});
  return text;
}

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE

namespace zero::inline ZERO_SHARED_NAMESPACE {

/// The library's only exception. `what()` is one line that names kind, rank, operation, bucket
/// and group.
class Error : public std::exception {
 public:
  /// Composes `what()`; use `fail`, which also serves builds without exceptions.
  ZERO_ALWAYS_INLINE Error(ErrorKind kind,
                           std::string message,
                           ErrorContext context,
                           SourceLocation where)
      : kind_(kind),
        message_(std::move(message)),
        context_(std::move(context)),
        where_(where),
        text_(detail::error_text(kind_, message_, context_)) {}

  /// Message and context as one line.
  [[nodiscard]] char const* what() const noexcept override { return text_.c_str(); }
  /// What the caller can do about it.
  [[nodiscard]] ZERO_ALWAYS_INLINE ErrorKind kind() const noexcept { return kind_; }
  /// The message without the context that `what()` appends.
  [[nodiscard]] ZERO_ALWAYS_INLINE std::string const& message() const noexcept { return message_; }
  /// Rank the error was found on, or -1.
  [[nodiscard]] ZERO_ALWAYS_INLINE int rank() const noexcept { return context_.rank; }
  /// What was being done, such as "reduce_scatter", or empty.
  [[nodiscard]] ZERO_ALWAYS_INLINE std::string const& operation() const noexcept {
    return context_.operation;
  }
  /// Bucket that was under way, or -1.
  [[nodiscard]] ZERO_ALWAYS_INLINE int bucket() const noexcept { return context_.bucket; }
  /// Name of the group that was called, such as "model axis (data 1 of 2)", or empty.
  [[nodiscard]] ZERO_ALWAYS_INLINE std::string const& group() const noexcept {
    return context_.group;
  }
  /// Where the library found it.
  [[nodiscard]] ZERO_ALWAYS_INLINE SourceLocation where() const noexcept { return where_; }

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

}  // namespace zero::inline ZERO_SHARED_NAMESPACE

namespace zero::inline ZERO_NAMESPACE {

/// The library's one throwing point.
/// @throws Error always; with exceptions disabled it calls `on_error` and aborts
[[noreturn]] __attribute__((noinline, cold)) inline void fail(
    ErrorKind kind,
    Message const& message,
    ErrorContext context,
    SourceLocation where = SourceLocation::current()) {
#if defined(__cpp_exceptions)
  throw Error(kind, message.text(), std::move(context), where);
#else
  Error const error(kind, message.text(), std::move(context), where);
  if (on_error != nullptr) on_error(error);
  // In one write: C libraries may print a format piece by piece, and lines of ranks would mix.
  std::string const line = std::string(error.what()) + '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::abort();
#endif
}

/// The same where no context applies, which is made in one place only: most calls are of this kind.
/// @throws Error always, as before
[[noreturn]] __attribute__((noinline, cold)) inline void fail(
    ErrorKind kind, Message const& message, SourceLocation where = SourceLocation::current()) {
  fail(kind, message, ErrorContext{}, where);
}

namespace detail {

/// Fails as before, with more to say: kind, context and place stay.
/// @throws Error always
ZERO_APART [[noreturn]] __attribute__((noinline, cold)) void fail_again(Error const& error,
                                                                        std::string_view more = {});

}  // namespace detail

#if ZERO_BODIES

ZERO_BODY void detail::fail_again(Error const& error, std::string_view more) {
  fail(error.kind(),
       {error.message(), more},
       {.rank = error.rank(),
        .operation = error.operation(),
        .bucket = error.bucket(),
        .group = error.group()},
       error.where());
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE
