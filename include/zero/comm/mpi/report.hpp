/// @file
/// What ranks tell each other once something has gone wrong, in messages of one form.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/call.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Longer texts are cut: MPI sends what is small at once.
inline constexpr std::size_t longest_text = 1000;
inline constexpr std::size_t longest_name = 100;
/// Of ranks beyond these a report does not say who waits for them.
inline constexpr int most_reported = 1 << 16;

template <std::size_t Size>
void copy_text(std::string_view from, char (&to)[Size]) noexcept {
  to[from.copy(to, Size - 1)] = '\0';
}

/// A collective, by its place among those of its group.
struct Question {
  std::uint64_t group = 0;   ///< the same on all of its ranks
  std::uint64_t number = 0;  ///< of the call, from 0

  [[nodiscard]] auto operator<=>(Question const&) const = default;
};

/// Why a rank ends its family.
enum class EndCause : std::uint8_t {
  words,      ///< it has the words of an exception
  mismatch,   ///< another rank made another call
  left,       ///< it waits for a rank that has left
  mpi_error,  ///< MPI reported an error
  late,       ///< nothing has moved for the deadline
  silent,     ///< who collected reports fell silent
};

/// What a rank has found; or, when it leaves a group, that it did. Ranks are numbered as in the
/// family.
struct Finding {
  EndCause cause = EndCause::late;
  Question at{};            ///< the collective in question; all ranks report about its group
  int rank = -1;            ///< mismatch, left, silent: who
  bool known = false;       ///< mismatch: does it know the call of `rank` at that number?
  bool unwinding = false;   ///< left: was an exception on its way, whose words may follow?
  bool brief = false;       ///< is there a reason for which answers are waited for briefly?
  std::uint64_t calls = 0;  ///< left: that `rank` had made in the group
  Call call{};              ///< mismatch: the call of `rank`, where that is known
};

/// A rank's calls in one group.
struct Calls {
  std::uint64_t group = ~std::uint64_t{0};
  std::uint64_t made = 0;            ///< so far
  char name[longest_name + 1] = {};  ///< of the group; may be empty
  Call last[ring_slots] = {};        ///< by number; no more are under way

  [[nodiscard]] std::uint64_t first() const noexcept {
    return made - (std::min<std::uint64_t>)(made, ring_slots);
  }
  [[nodiscard]] Call& at(std::uint64_t number) noexcept { return last[number % ring_slots]; }
  [[nodiscard]] Call const* find(std::uint64_t number) const noexcept {
    return number >= first() && number < made ? &last[number % ring_slots] : nullptr;
  }
};

/// Whose sentence a rank has.
enum class Says : std::uint8_t { nothing, words, error };

/// What a rank tells of itself.
struct RankReport {
  Says says = Says::nothing;
  bool waits = false;  ///< inside `wait` for something that is not done?
  Question at{};       ///< where it waits: the oldest that is not done
  Calls asked{};       ///< in the group asked for
  union {
    Calls other{};                ///< where it waits, if that is another group, and
    char text[longest_text + 1];  ///< the sentence of an exception or of MPI's, if it has one
  };
  std::uint8_t waits_for[most_reported / 8] = {};  ///< a bit for every rank of the family

  void say(Says what, std::string_view sentence) noexcept {
    says = what;
    copy_text(sentence, text);
  }
  [[nodiscard]] bool waits_on(int rank) const noexcept {
    return rank < most_reported && (waits_for[rank / 8] >> rank % 8 & 1) != 0;
  }
  void wait_on(int rank) noexcept {
    if (rank >= most_reported) return;
    waits_for[rank / 8] = static_cast<std::uint8_t>(waits_for[rank / 8] | 1 << rank % 8);
  }
  [[nodiscard]] Calls const* calls_in(std::uint64_t group) const noexcept {
    if (asked.group == group) return &asked;
    return says == Says::nothing && other.group == group ? &other : nullptr;
  }
};

/// Kinds of messages. ABOUT has the sentence that VERDICT repeats.
enum class NoticeKind : std::uint8_t { end, report, about, verdict, gone };

/// A message. As many bytes of it are sent as have a meaning.
struct Notice {
  NoticeKind kind = NoticeKind::end;
  int rank = -1;        ///< whose it is
  Finding finding{};    ///< END, GONE
  RankReport report{};  ///< END, REPORT; of ABOUT and VERDICT the text

  [[nodiscard]] std::size_t bytes(int size) const noexcept {
    if (kind == NoticeKind::gone) return offsetof(Notice, report);
    auto const ranks = static_cast<std::size_t>((std::min)(size, most_reported));
    return offsetof(Notice, report) + offsetof(RankReport, waits_for) + (ranks + 7) / 8;
  }
};
static_assert(std::is_trivially_copyable_v<Notice> && std::is_standard_layout_v<Notice>);

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
