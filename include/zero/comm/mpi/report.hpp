/// @file
/// What ranks tell each other once something has gone wrong, as messages. Pure logic.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Longer texts are cut: MPI sends what is small at once.
inline constexpr std::size_t longest_text = 1000;
/// How many calls of a group a rank reports. It has no more under way.
inline constexpr std::size_t reported_calls = 64;

/// A collective, by its place among those of its group.
struct Question {
  std::uint64_t group = 0;   ///< the same on all of its ranks
  std::uint64_t number = 0;  ///< of the call, from 0
};

/// Why a rank ends its family.
enum class Cause : std::uint8_t {
  words,      ///< it has the words of an exception
  mismatch,   ///< another rank made another call
  left,       ///< it waits for a rank that has left
  mpi_error,  ///< MPI reported an error
  late,       ///< nothing has moved for the deadline
  silent,     ///< who collected reports fell silent
};

/// What a rank has found. Ranks are numbered as in the family.
struct Finding {
  Cause cause = Cause::late;
  Question at{};            ///< the collective in question; all ranks report about its group
  int rank = -1;            ///< mismatch, left, silent: who
  bool known = false;       ///< mismatch: does it know the call of `rank` at that number?
  bool abandoned = false;   ///< left: a ticket was dropped, of the call after `calls` others
  bool brief = false;       ///< is there a reason for which answers are waited for briefly?
  std::uint64_t calls = 0;  ///< left: that `rank` had made in the group
  Collective call{};        ///< mismatch: the call of `rank`, where that is known
};

/// A rank's calls in one group.
struct Calls {
  std::uint64_t group = 0;
  std::string name{};              ///< of the group; may be empty
  std::uint64_t made = 0;          ///< so far
  std::vector<Collective> last{};  ///< of them, up to `reported_calls`
};

/// What a rank tells of itself.
struct Report {
  std::string words{};                    ///< the sentence of an exception; empty without one
  std::string error{};                    ///< the sentence of MPI's error; empty without one
  std::vector<Calls> calls{};             ///< in the group asked for, and where it waits
  bool waits = false;                     ///< inside `wait` for something that is not done?
  Question at{};                          ///< where it waits: the oldest that is not done
  std::vector<std::uint8_t> waits_for{};  ///< a bit for every rank of the family; if it waits
  /// MPI reduces: `waits_for` has all other ranks of the group, of whom those are in question that
  /// have not made the call.
  bool native = false;

  [[nodiscard]] bool waits_on(int rank) const noexcept {
    auto const bit = static_cast<std::size_t>(rank);
    return bit / 8 < waits_for.size() && (waits_for[bit / 8] >> bit % 8 & 1) != 0;
  }
  /// Sets the rank's bit in `waits_for`.
  void wait_on(int rank) {
    auto const bit = static_cast<std::size_t>(rank);
    if (waits_for.size() <= bit / 8) waits_for.resize(bit / 8 + 1);
    waits_for[bit / 8] = static_cast<std::uint8_t>(waits_for[bit / 8] | 1u << bit % 8);
  }
  [[nodiscard]] Calls const* calls_in(std::uint64_t group) const noexcept {
    auto const found = std::find_if(
        calls.begin(), calls.end(), [&](Calls const& one) { return one.group == group; });
    return found == calls.end() ? nullptr : &*found;
  }
};

/// That a rank starts nothing more in a group.
struct Departure {
  enum class Kind : std::uint8_t {
    left,       ///< its handle is gone
    unwinding,  ///< the same, while an exception was on its way out
    abandoned,  ///< it dropped the ticket of its next call but `calls`
  };

  std::int32_t rank = 0;
  std::uint64_t group = 0;
  std::uint64_t calls = 0;  ///< that it has made, or waited for
  Kind kind = Kind::left;
};

/// What is known of one rank.
struct Account {
  bool reported = false;  ///< has told about itself
  bool answered = false;  ///< has reported to this rank
  bool ends = false;      ///< has begun to end
  bool given_up = false;  ///< was followed, and fell silent
  Finding finding{};
  Report report{};
};

/// Kinds of messages.
enum class Kind : std::uint8_t { end, report, about, verdict, gone };

/// A message that is written or read, by the same calls. What was cut off reads as nothing.
class Packet {
 public:
  Packet() = default;
  explicit Packet(std::span<std::byte const> bytes)
      : bytes_(bytes.begin(), bytes.end()), reads_(true) {}

  [[nodiscard]] std::span<std::byte const> bytes() const noexcept { return bytes_; }

  template <class Number>
    requires std::is_arithmetic_v<Number> || std::is_enum_v<Number>
  void pass(Number& value) { pass_bytes(&value, sizeof(value)); }
  void pass(std::string& text) {
    text.resize(pass_size((std::min)(text.size(), longest_text)));
    pass_bytes(text.data(), text.size());
  }
  template <class Element>
  void pass(std::vector<Element>& elements) {
    elements.resize(pass_size(elements.size()));
    for (Element& element : elements) pass(element);
  }
  void pass(Collective& op) { pass(op.count, op.op, op.dtype, op.accumulate, op.root, op.bucket); }
  void pass(Question& at) { pass(at.group, at.number); }
  void pass(Calls& calls) { pass(calls.group, calls.name, calls.made, calls.last); }
  void pass(Finding& finding) {
    pass(finding.cause, finding.at, finding.rank, finding.known, finding.abandoned);
    pass(finding.brief, finding.calls, finding.call);
  }
  void pass(Report& report) {
    pass(report.words, report.error, report.calls, report.waits);
    pass(report.at, report.waits_for, report.native);
  }
  void pass(Departure& departure) { pass(departure.group, departure.calls, departure.kind); }
  /// One after the other.
  template <class First, class... Others>
    requires(sizeof...(Others) > 0)
  void pass(First& first, Others&... others) {
    pass(first);
    (pass(others), ...);
  }

 private:
  /// A number of elements; not more than there are bytes to read.
  [[nodiscard]] std::size_t pass_size(std::size_t size) {
    auto number = static_cast<std::uint32_t>(size);
    pass(number);
    return reads_ ? (std::min)(std::size_t{number}, bytes_.size() - at_) : size;
  }
  void pass_bytes(void* data, std::size_t size) {
    if (!reads_) {
      auto const* const first = static_cast<std::byte const*>(data);
      bytes_.insert(bytes_.end(), first, first + size);
      return;
    }
    size = (std::min)(size, bytes_.size() - at_);
    if (size > 0) std::memcpy(data, bytes_.data() + at_, size);
    at_ += size;
  }

  std::vector<std::byte> bytes_;
  std::size_t at_ = 0;
  bool reads_ = false;
};

/// No message is longer in a family of so many ranks, whose reports have two groups at most.
[[nodiscard]] constexpr std::size_t largest_notice(int size) noexcept {
  return 8192 + static_cast<std::size_t>(size) / 8;
}

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
