/// @file
/// What a family of groups ends with: reports in, one sentence out. Pure logic.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/mpi/report.hpp"
#include "zero/comm/shared/failure.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// How long the rank that collects reports waits for them.
/// @param brief  there is a reason already, which reports only make more precise
[[nodiscard]] constexpr double window_s(bool brief, double deadline_s) noexcept {
  return brief ? 0.1 : (std::max)(0.1, deadline_s / 20);
}

/// Finds who is to blame. But for ranks that wait for each other it names nobody who waits; and who
/// does not answer because it computes is named only if somebody needs it.
class Verdict {
 public:
  /// @param accounts  by rank
  /// @param decider   whose verdict it is
  Verdict(std::vector<Account> accounts, int decider, double deadline_s)
      : accounts_(std::move(accounts)), decider_(decider), deadline_s_(deadline_s) {
    // Of ranks that do not report their calls others may have heard.
    for (int rank : ranks_that([&](int one) { return ends(one, Cause::mismatch); })) {
      Finding const& finding = of(rank).finding;
      if (!finding.known) continue;
      Report& other = accounts_[static_cast<std::size_t>(finding.rank)].report;
      Calls const* const own = of(rank).report.calls_in(finding.at.group);
      if (own == nullptr) continue;
      other.calls.push_back({own->group, own->name, finding.at.number + 1, {finding.call}});
    }
  }

  /// The first that applies: words, a mismatch, who left, who fell silent, who is late, who waits
  /// for each other, MPI's error, nobody.
  [[nodiscard]] ZERO_COLD std::string sentence() const {
    std::string text = first_of(&Report::words);
    if (text.empty()) text = mismatch();
    if (text.empty()) text = left();
    if (text.empty()) text = missing();
    if (text.empty()) text = "a rank failed";
    text.resize((std::min)(text.size(), longest_text));
    return text;
  }

 private:
  using Failure = zero::detail::Failure;
  using Ranks = std::vector<int>;

  [[nodiscard]] Account const& of(int rank) const noexcept {
    return accounts_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] bool ends(int rank, Cause cause) const noexcept {
    return of(rank).ends && of(rank).finding.cause == cause;
  }
  template <class Condition>
  [[nodiscard]] Ranks ranks_that(Condition const& condition) const {
    Ranks result;
    for (int rank = 0; rank < static_cast<int>(accounts_.size()); ++rank) {
      if (condition(rank)) result.push_back(rank);
    }
    return result;
  }
  /// Of the lowest rank that has any.
  [[nodiscard]] std::string first_of(std::string Report::*text) const {
    for (Account const& account : accounts_) {
      if (!(account.report.*text).empty()) return account.report.*text;
    }
    return {};
  }
  /// A call as a rank has reported it, or null.
  [[nodiscard]] Collective const* call_at(int rank, Question at) const noexcept {
    Calls const* const calls = of(rank).report.calls_in(at.group);
    if (calls == nullptr || calls->made <= at.number) return nullptr;
    std::uint64_t const back = calls->made - at.number;
    return back > calls->last.size() ? nullptr : &*(calls->last.end() - static_cast<int>(back));
  }
  /// A failure in a call and a group as a rank has reported them.
  [[nodiscard]] Failure failure(int rank, Question at) const {
    Failure result;
    if (Collective const* const call = call_at(rank, at)) {
      result.call = *call;
      result.group = of(rank).report.calls_in(at.group)->name;
    }
    return result;
  }
  /// Where a rank waits, in words.
  [[nodiscard]] std::string in(int rank) const {
    Report const& report = of(rank).report;
    if (!report.waits || call_at(rank, report.at) == nullptr) return {};
    Failure const place = failure(rank, report.at);
    return " in [" + zero::detail::describe_call(place.call) + "]" +
           zero::detail::on_group(place.group);
  }
  [[nodiscard]] static std::string list(Ranks const& ranks) {
    std::string text;
    for (std::size_t i = 0; i < ranks.size() && i < 8; ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    }
    return ranks.size() <= 8 ? text : text + " and " + std::to_string(ranks.size() - 8) + " more";
  }

  /// The lowest rank that made another call than most, and the lowest of those. Of equal numbers of
  /// ranks those with the lowest are right.
  [[nodiscard]] std::string mismatch_at(Question at) const {
    std::vector<Ranks> classes;
    for (int const rank : ranks_that([&](int one) { return call_at(one, at) != nullptr; })) {
      auto same = std::find_if(classes.begin(), classes.end(), [&](Ranks const& known) {
        return zero::detail::is_same_call(*call_at(known[0], at), *call_at(rank, at));
      });
      if (same == classes.end()) same = classes.insert(same, Ranks{});
      same->push_back(rank);
    }
    if (classes.size() < 2) return {};
    auto const right =
        std::max_element(classes.begin(), classes.end(), [](Ranks const& a, Ranks const& b) {
          return a.size() < b.size();
        });
    Ranks const& wrong = right == classes.begin() ? classes[1] : classes[0];
    Failure result = failure(wrong[0], at);
    result.cause = Failure::Cause::mismatch;
    result.rank = wrong[0];
    result.other = (*right)[0];
    result.other_call = *call_at(result.other, at);
    return zero::detail::describe(result);
  }
  /// The first number under which calls of a group differ, or what somebody else has seen of it.
  [[nodiscard]] std::string mismatch() const {
    Ranks const finders = ranks_that([&](int rank) { return ends(rank, Cause::mismatch); });
    std::vector<Question> groups;  // and how many calls were made there
    auto const add = [&](std::uint64_t group, std::uint64_t made) {
      auto const known = std::find_if(
          groups.begin(), groups.end(), [&](Question const& one) { return one.group == group; });
      if (known == groups.end()) {
        groups.push_back({group, made});
      } else {
        known->number = (std::max)(known->number, made);
      }
    };
    for (Account const& account : accounts_) {
      for (Calls const& calls : account.report.calls) add(calls.group, calls.made);
    }
    for (auto const& [group, made] : groups) {
      // No two ranks are further apart than the calls that may be under way.
      for (std::uint64_t number = made - (std::min<std::uint64_t>)(made, 2 * reported_calls);
           number < made;
           ++number) {
        std::string text = mismatch_at({group, number});
        if (!text.empty()) return text;
      }
    }
    if (finders.empty()) return {};
    Finding const& finding = of(finders[0]).finding;
    Failure const place = failure(finders[0], finding.at);
    std::string const who = finding.rank < 0 ? "some rank" : "rank " + std::to_string(finding.rank);
    return who + " made another call than rank " + std::to_string(finders[0]) + " at or before [" +
           zero::detail::describe_call(place.call) + "]" + zero::detail::on_group(place.group);
  }

  /// The lowest rank that has left and is waited for.
  [[nodiscard]] std::string left() const {
    Ranks const finders = ranks_that([&](int rank) { return ends(rank, Cause::left); });
    if (finders.empty()) return {};
    int const finder = *std::min_element(finders.begin(), finders.end(), [&](int a, int b) {
      return of(a).finding.rank < of(b).finding.rank;
    });
    Finding const& finding = of(finder).finding;
    Question const dropped{finding.at.group, finding.calls};
    bool const known = finding.abandoned && call_at(finder, dropped) != nullptr;
    Failure result = failure(finder, known ? dropped : finding.at);
    result.cause = finding.abandoned ? Failure::Cause::abandoned : Failure::Cause::left;
    result.rank = finding.rank;
    result.calls = finding.calls;
    return zero::detail::describe(result);
  }

  /// Is it `other` for whom a rank waits?
  [[nodiscard]] bool waits_for(int rank, int other) const {
    Report const& report = of(rank).report;
    if (!report.waits_on(other)) return false;
    if (!report.native || !of(other).reported) return true;
    Calls const* const calls = of(other).report.calls_in(report.at.group);
    return calls == nullptr || calls->made <= report.at.number;
  }
  /// The first of some ranks that waits for another, or -1.
  [[nodiscard]] int waiter(Ranks const& ranks, int other) const {
    auto const found =
        std::find_if(ranks.begin(), ranks.end(), [&](int one) { return waits_for(one, other); });
    return found == ranks.end() ? -1 : *found;
  }
  /// Follows who waits for whom, from those on whom nothing has moved.
  [[nodiscard]] std::string missing() const {
    Ranks waiting = ranks_that([&](int rank) { return ends(rank, Cause::late); });
    bool const late = !waiting.empty();
    Ranks const complaining = ranks_that([&](int rank) { return ends(rank, Cause::mpi_error); });
    waiting.insert(waiting.end(), complaining.begin(), complaining.end());
    std::vector<bool> missed(accounts_.size());
    auto const is_missed = [&](int rank) { return missed[static_cast<std::size_t>(rank)]; };
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      int const one = waiting[i];
      for (int rank : ranks_that([&](int r) { return !is_missed(r) && waits_for(one, r); })) {
        missed[static_cast<std::size_t>(rank)] = true;
        if (of(rank).report.waits) waiting.push_back(rank);
      }
    }
    std::string const error = first_of(&Report::error);
    Ranks const silent = ranks_that(
        [&](int rank) { return of(rank).given_up || (is_missed(rank) && !of(rank).reported); });
    if (!late) {
      // Nobody's deadline is over: who does not answer need not be at fault.
      return error + (silent.empty() ? "" : " (no answer from rank " + list(silent) + ")");
    }
    std::string const fell_silent = " fell silent for ";
    if (!silent.empty()) {
      int const who = waiter(waiting, silent[0]);
      double const still =
          who >= 0 ? deadline_s_ : 2 * window_s(of(silent[0]).finding.brief, deadline_s_);
      return (silent.size() > 1 ? "one of ranks " : "rank ") + list(silent) + fell_silent +
             std::to_string(still) + " s" + in(who >= 0 ? who : silent[0]) +
             (error.empty() ? "" : "; " + error);
    }
    Ranks const idle = ranks_that(
        [&](int rank) { return is_missed(rank) && !of(rank).report.waits && rank != decider_; });
    if (!idle.empty()) {
      int const who = waiter(waiting, idle[0]);
      Failure result = failure(who, of(who).report.at);
      result.cause = Failure::Cause::late;
      result.rank = idle[0];
      result.seconds = deadline_s_;
      result.more = static_cast<int>(idle.size()) - 1;
      return zero::detail::describe(result);
    }
    // All wait: following them leads back to a rank that was passed.
    Ranks circle;
    std::vector<bool> passed(accounts_.size());
    for (Ranks next{waiting[0]}; !next.empty();) {
      int const one = next[0];
      if (passed[static_cast<std::size_t>(one)]) {
        circle.erase(circle.begin(), std::find(circle.begin(), circle.end(), one));
        std::sort(circle.begin(), circle.end());
        return "ranks " + list(circle) + " wait for each other: rank " + std::to_string(circle[0]) +
               in(circle[0]) + ", rank " + std::to_string(circle[1]) + in(circle[1]) +
               " (usually because they wait for groups in different orders)";
      }
      passed[static_cast<std::size_t>(one)] = true;
      circle.push_back(one);
      next = ranks_that([&](int rank) { return rank != one && waits_for(one, rank); });
    }
    if (!error.empty()) return error;
    return "some rank" + fell_silent + std::to_string(deadline_s_) + " s" + in(waiting[0]) +
           (of(waiting[0]).report.native ? ", which MPI reduces: MPI does not tell which rank"
                                         : "");
  }

  std::vector<Account> accounts_;
  int decider_;
  double deadline_s_;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
