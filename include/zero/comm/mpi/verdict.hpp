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
#include <map>
#include <set>
#include <string>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// What is known of a rank that has told about itself.
struct RankRecord {
  bool answered = false;  ///< has reported to this rank
  bool ends = false;      ///< has begun to end
  bool given_up = false;  ///< was followed, and fell silent
  Finding finding{};
  RankReport report{};
};
using RankRecords = std::map<int, RankRecord>;

/// How long the rank that collects reports waits for them.
/// @param brief  there is a reason already, which reports only make more precise
[[nodiscard]] constexpr double window_s(bool brief, double deadline_s) noexcept {
  return brief ? 0.1 : (std::max)(0.1, deadline_s / 20);
}

/// Finds who is to blame. But for ranks that wait for each other it names nobody who waits; and who
/// does not answer because it computes is named only if somebody needs it.
class Verdict {
 public:
  /// @param decider  whose verdict it is
  Verdict(RankRecords const& records, int size, int decider, double deadline_s)
      : records_(&records), size_(size), decider_(decider), deadline_s_(deadline_s) {}

  /// The first that applies: words, a mismatch, who left, who fell silent, who is late, who waits
  /// for each other, MPI's error, nobody.
  [[nodiscard]] ZERO_COLD std::string sentence() const {
    std::string text = first_that_says(Says::words);
    if (text.empty()) text = mismatch();
    if (text.empty()) text = left();
    if (text.empty()) text = missing();
    return text.empty() ? "a rank failed" : text.substr(0, longest_text);
  }

 private:
  using Failure = zero::detail::Failure;
  using Ranks = std::vector<int>;

  [[nodiscard]] RankRecord const& of(int rank) const { return records_->at(rank); }
  [[nodiscard]] bool reported(int rank) const { return records_->contains(rank); }
  [[nodiscard]] bool waits(int rank) const { return reported(rank) && of(rank).report.waits; }
  [[nodiscard]] Ranks enders(EndCause cause) const {
    Ranks result;
    for (auto const& [rank, record] : *records_) {
      if (record.ends && record.finding.cause == cause) result.push_back(rank);
    }
    return result;
  }
  [[nodiscard]] std::string first_that_says(Says what) const {
    for (auto const& [rank, record] : *records_) {
      if (record.report.says == what) return record.report.text;
    }
    return {};
  }
  /// A call as a rank has reported it or, of one that has not, as others have heard it; or null.
  [[nodiscard]] Call const* call_at(int rank, Question at) const {
    if (reported(rank)) {
      Calls const* const calls = of(rank).report.calls_in(at.group);
      if (calls != nullptr) return calls->find(at.number);
    }
    for (int const finder : finders_) {
      Finding const& finding = of(finder).finding;
      if (finding.known && finding.rank == rank && finding.at == at) return &finding.call;
    }
    return nullptr;
  }
  [[nodiscard]] std::string group_name(std::uint64_t group) const {
    for (auto const& [rank, record] : *records_) {
      Calls const* const calls = record.report.calls_in(group);
      if (calls != nullptr) return calls->name;
    }
    return {};
  }
  [[nodiscard]] Failure failure(Failure::Cause cause, int culprit, int witness, Question at) const {
    Failure result{.cause = cause, .rank = culprit, .group = group_name(at.group)};
    if (Call const* const call = call_at(witness, at)) result.call = call->collective();
    return result;
  }
  /// Where a rank was, in words.
  [[nodiscard]] std::string place(std::string const& before, int rank, Question at) const {
    Call const* const call = call_at(rank, at);
    if (call == nullptr) return {};
    return before + "[" + zero::detail::describe_call(call->collective()) + "]" +
           zero::detail::on_group(group_name(at.group));
  }
  [[nodiscard]] std::string in(int rank) const {
    return waits(rank) ? place(" in ", rank, of(rank).report.at) : "";
  }
  [[nodiscard]] static std::string list(Ranks const& ranks) {
    std::string text;
    for (std::size_t i = 0; i < ranks.size() && i < 8; ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    }
    return ranks.size() <= 8 ? text : text + " and " + std::to_string(ranks.size() - 8) + " more";
  }

  /// The first number under which calls of a group differ: there the lowest rank that made another
  /// call than most, and the lowest of those. Of equal numbers of ranks those with the lowest are
  /// right. Or what somebody has seen of it.
  [[nodiscard]] std::string mismatch() const {
    std::set<Question> numbers;
    for (auto const& [rank, record] : *records_) {
      for (std::uint64_t const group : {record.report.asked.group, record.report.at.group}) {
        Calls const* const calls = record.report.calls_in(group);
        if (calls == nullptr) continue;
        for (auto n = calls->first(); n < calls->made; ++n) numbers.insert({group, n});
      }
    }
    for (Question const at : numbers) {
      std::vector<Ranks> classes;
      for (int rank = 0; rank < size_; ++rank) {
        Call const* const call = call_at(rank, at);
        if (call == nullptr) continue;
        auto same = std::find_if(classes.begin(), classes.end(), [&](Ranks const& known) {
          return *call_at(known[0], at) == *call;
        });
        if (same == classes.end()) same = classes.insert(same, Ranks{});
        same->push_back(rank);
      }
      if (classes.size() < 2) continue;
      auto const right =
          std::max_element(classes.begin(), classes.end(), [](Ranks const& a, Ranks const& b) {
            return a.size() < b.size();
          });
      int const wrong = (right == classes.begin() ? classes[1] : classes[0])[0];
      Failure result = failure(Failure::Cause::mismatch, wrong, wrong, at);
      result.other = (*right)[0];
      result.other_call = call_at(result.other, at)->collective();
      return zero::detail::describe(result);
    }
    if (finders_.empty()) return {};
    Finding const& finding = of(finders_[0]).finding;
    return "rank " + std::to_string(finding.rank) + " made another call than rank " +
           std::to_string(finders_[0]) + place(" at or before ", finders_[0], finding.at);
  }

  /// The lowest rank that has left and is waited for.
  [[nodiscard]] std::string left() const {
    Ranks const found = enders(EndCause::left);
    if (found.empty()) return {};
    int const witness = *std::min_element(found.begin(), found.end(), [&](int a, int b) {
      return of(a).finding.rank < of(b).finding.rank;
    });
    Finding const& finding = of(witness).finding;
    Failure result = failure(Failure::Cause::left, finding.rank, witness, finding.at);
    result.calls = finding.calls;
    return zero::detail::describe(result);
  }

  /// Is it `other` for whom a rank waits?
  [[nodiscard]] bool waits_for(int rank, int other) const {
    return rank != other && of(rank).report.waits_on(other);
  }
  /// Follows who waits for whom, from those on whom nothing has moved.
  [[nodiscard]] std::string missing() const {
    Ranks waiting = enders(EndCause::late);
    bool const late = !waiting.empty();
    for (int const rank : enders(EndCause::mpi_error)) waiting.push_back(rank);
    std::vector<int> waiter(static_cast<std::size_t>(size_), -1);  // of those who are missed
    auto const waiter_of = [&](int rank) -> int& { return waiter[static_cast<std::size_t>(rank)]; };
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      for (int rank = 0; rank < size_; ++rank) {
        if (waiter_of(rank) >= 0 || !waits_for(waiting[i], rank)) continue;
        waiter_of(rank) = waiting[i];
        if (waits(rank)) waiting.push_back(rank);
      }
    }
    Ranks silent;
    Ranks idle;
    for (int rank = 0; rank < size_; ++rank) {
      bool const missed = waiter_of(rank) >= 0;
      if (reported(rank) ? of(rank).given_up : missed) silent.push_back(rank);
      if (missed && !waits(rank) && rank != decider_) idle.push_back(rank);
    }
    std::string const error = first_that_says(Says::error);
    if (!late) {
      // Nobody's deadline is over: who does not answer need not be at fault.
      return error + (silent.empty() ? "" : " (no answer from rank " + list(silent) + ")");
    }
    auto const fell_silent = [](double seconds) {
      return Message({" fell silent for ", seconds, " s"}).text();
    };
    if (!silent.empty()) {
      int const who = waiter_of(silent[0]);
      return (silent.size() > 1 ? "one of ranks " : "rank ") + list(silent) +
             (who >= 0 ? fell_silent(deadline_s_) + in(who)
                       : fell_silent(2 * window_s(of(silent[0]).finding.brief, deadline_s_)) +
                             in(silent[0])) +
             (error.empty() ? "" : "; " + error);
    }
    if (!idle.empty()) {
      int const who = waiter_of(idle[0]);
      Failure result = failure(Failure::Cause::late, idle[0], who, of(who).report.at);
      result.seconds = deadline_s_;
      result.more = static_cast<int>(idle.size()) - 1;
      return zero::detail::describe(result);
    }
    // All wait: following them leads back to a rank that was seen.
    Ranks path{waiting[0]};
    for (int rank = 0; rank < size_; ++rank) {
      if (!waits_for(path.back(), rank)) continue;
      auto const seen = std::find(path.begin(), path.end(), rank);
      if (seen == path.end()) {
        path.push_back(rank);
        rank = -1;
        continue;
      }
      path.erase(path.begin(), seen);
      std::sort(path.begin(), path.end());
      return "ranks " + list(path) + " wait for each other: rank " + std::to_string(path[0]) +
             in(path[0]) + ", rank " + std::to_string(path[1]) + in(path[1]) +
             " (usually because they wait for groups in different orders)";
    }
    if (!error.empty()) return error;
    return "some rank" + fell_silent(deadline_s_) + in(waiting[0]);
  }

  RankRecords const* records_;
  int size_;
  int decider_;
  double deadline_s_;
  Ranks finders_ = enders(EndCause::mismatch);
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
