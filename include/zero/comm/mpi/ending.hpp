/// @file
/// How a family of groups ends: with one sentence on all ranks. Pure logic, over messages.
#pragma once

#include "zero/base/clock.hpp"
#include "zero/base/config.hpp"
#include "zero/comm/mpi/report.hpp"
#include "zero/comm/mpi/verdict.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// What an ending asks of the rank that it runs on.
class EndingPeers {
 public:
  /// Messages from one rank to another arrive in order, or not at all if one of the two is gone.
  virtual void send(int rank, Notice const& notice) = 0;
  /// Has the ABOUT that was sent there arrived?
  [[nodiscard]] virtual bool is_matched(int rank) = 0;
  /// What this rank has to tell: its sentence, its last calls in the group asked for, if it is in
  /// it, and in the group where it waits.
  [[nodiscard]] virtual RankReport report(Question const& question) = 0;

 protected:
  ~EndingPeers() = default;
};

/// One rank's part in ending its family.
///
/// A rank that finds something wrong tells all others. They report to it; of several such ranks to
/// the lowest, before which come those that found calls that differ, since they know about which
/// group to ask. That rank decides once all have reported or have had the time to. It sends its
/// sentence twice, so that it stays the only one if the rank dies meanwhile: at first all keep it,
/// then they end with it. A rank that falls silent is given up by those that wait, and the next one
/// takes its place.
///
/// Time is counted by looks: a rank that did not look has not waited. Whoever begins looks until
/// the ending is over.
class Ending {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// @param peers  live longer
  Ending(int rank, int size, double deadline_s, EndingPeers& peers)
      : rank_(rank), size_(size), deadline_s_(deadline_s), peers_(&peers) {}

  /// Nothing is wrong that this rank knows. Only then data may move: what is reported stays true.
  [[nodiscard]] bool running() const noexcept { return state_ == State::running; }
  [[nodiscard]] bool ended() const noexcept { return state_ == State::ended; }
  /// The same on all ranks, once this one has ended.
  [[nodiscard]] std::string const& sentence() const noexcept { return sentence_; }
  /// What ranks have said that start nothing more in a group: which, and after how many calls.
  [[nodiscard]] std::vector<Finding> const& departures() const noexcept { return departures_; }

  /// This rank has found something wrong, or has words while another's finding is looked into. It
  /// has heard what has come; what it has found is in its report.
  ZERO_COLD void begin(Finding const& finding) {
    if (running()) {
      end(finding);
    } else if (finding.cause == EndCause::words && (collects() || state_ == State::following)) {
      note(rank_, peers_->report(records_[leader_].finding.at));
      if (!collects()) report_to(leader_);
    }
  }

  /// This rank starts nothing more in a group. That ends nothing.
  ZERO_COLD void depart(Finding const& finding) {
    if (!ended()) tell({.kind = NoticeKind::gone, .rank = rank_, .finding = finding});
  }

  /// A message has come.
  ZERO_COLD void hear(Notice const& notice) {
    int const rank = notice.rank;
    if (rank < 0 || rank >= size_ || ended()) return;
    switch (notice.kind) {
      case NoticeKind::gone: departures_.push_back(notice.finding); return;
      case NoticeKind::verdict:
        sentence_ = notice.report.text;
        state_ = State::ended;
        return;
      case NoticeKind::about:
        if (state_ != State::telling) sentence_ = notice.report.text;
        break;
      case NoticeKind::report:
        records_[rank].answered = true;
        note(rank, notice.report);
        break;
      case NoticeKind::end:
        // It may have been passed on before. Who tells a sentence already tells this rank, too.
        if (ends(rank) || state_ == State::telling) return;
        file_end(rank, notice.finding, notice.report);
        if (!knows(rank, rank_)) report_to(rank);
        follow();
        break;
    }
    if (state_ == State::following && rank == leader_) reset();
  }

  /// To be called often, after all messages that have come were heard.
  /// @param waiting  is this rank inside `wait`? Others take nobody's place.
  void look(Time now, bool waiting) {
    if (running() || ended()) return;
    bool const brief =
        state_ == State::telling || (collects() ? brief_ : records_[leader_].finding.brief);
    double const window = window_s(brief, deadline_s_);
    std::chrono::duration<double> const since = now - looked_.value_or(now);
    looked_ = now;
    waited_s_ += (std::min)(since.count(), window / 4);
    bool const over = waited_s_ >= window;
    auto const has_answered = [&](int rank, RankRecord const* record) {
      return record != nullptr && (record->answered || knows(rank_, rank));
    };
    // Or it has not reported, and need not know.
    auto const has_sentence = [&](int rank, RankRecord const* record) {
      return record == nullptr || record->given_up || peers_->is_matched(rank);
    };
    if (collects() && (over || all(has_answered))) {
      // Another may have been told to all already, by a rank that is gone.
      if (sentence_.empty()) {
        sentence_ = Verdict(records_, size_, rank_, deadline_s_).sentence();
      }
      enter(State::telling);
      tell_sentence(NoticeKind::about);
    } else if (state_ == State::telling && (over || all(has_sentence))) {
      state_ = State::ended;
      tell_sentence(NoticeKind::verdict);
    } else if (state_ == State::following && waiting && waited_s_ >= 2 * window) {
      records_[leader_].given_up = true;
      Finding const finding{
          .cause = EndCause::silent, .at = records_[leader_].finding.at, .rank = leader_};
      if (!follow()) end(finding);
    }
  }

 private:
  enum class State : std::uint8_t {
    running,
    collecting,  ///< this rank ends the family: others report to it
    telling,     ///< all others are told its sentence
    following,   ///< another rank does
    ended,
  };

  [[nodiscard]] bool collects() const noexcept { return state_ == State::collecting; }
  [[nodiscard]] RankRecord const* find(int rank) const {
    auto const found = records_.find(rank);
    return found != records_.end() ? &found->second : nullptr;
  }
  [[nodiscard]] bool ends(int rank) const { return find(rank) != nullptr && find(rank)->ends; }
  /// Has what a rank said when it began the group that the other asks for?
  [[nodiscard]] bool knows(int asker, int rank) {
    return ends(rank) && records_[rank].finding.at.group == records_[asker].finding.at.group;
  }
  /// Is it so of all others, and what is known of them?
  template <class Condition>
  [[nodiscard]] bool all(Condition const& condition) const {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_ && !condition(rank, find(rank))) return false;
    }
    return true;
  }

  /// A report has come.
  void note(int rank, RankReport const& report) {
    RankRecord& record = records_[rank];
    record.report = report;
    brief_ |= record.finding.brief || report.says != Says::nothing;
  }
  void file_end(int rank, Finding const& finding, RankReport const& report) {
    records_[rank].ends = true;
    records_[rank].finding = finding;
    note(rank, report);
  }
  void tell(Notice const& notice, int but = -1) {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_ && rank != but) peers_->send(rank, notice);
    }
  }
  void tell_end(int rank) {
    RankRecord const& record = records_[rank];
    tell({NoticeKind::end, rank, record.finding, record.report}, rank);
  }
  void tell_sentence(NoticeKind kind) {
    Notice notice{.kind = kind, .rank = rank_};
    notice.report.say(Says::words, sentence_);
    tell(notice);
  }
  void report_to(int rank) {
    RankReport const report = peers_->report(records_[rank].finding.at);
    peers_->send(rank, {.kind = NoticeKind::report, .rank = rank_, .report = report});
  }

  void reset() noexcept {
    waited_s_ = 0;
    looked_.reset();
  }
  void enter(State state) noexcept {
    state_ = state;
    reset();
  }
  void end(Finding finding) {
    finding.brief =
        brief_ || (finding.cause != EndCause::late && finding.cause != EndCause::silent);
    file_end(rank_, finding, peers_->report(finding.at));
    leader_ = rank_;
    enter(State::collecting);
    tell_end(rank_);
  }
  /// Follows the first of those who end; false if there is none.
  bool follow() {
    int first = -1;
    bool differs = false;
    for (auto const& [rank, one] : records_) {
      if (!one.ends || one.given_up) continue;
      if (first >= 0 && (differs || one.finding.cause != EndCause::mismatch)) continue;
      first = rank;
      differs = one.finding.cause == EndCause::mismatch;
    }
    if (first < 0 || first == leader_) return first >= 0;
    leader_ = first;
    enter(first == rank_ ? State::collecting : State::following);
    // Those who follow this rank may not know the other, and would give up the wrong one.
    if (first != rank_ && ends(rank_)) tell_end(first);
    return true;
  }

  int rank_;
  int size_;
  double deadline_s_;
  EndingPeers* peers_;
  State state_ = State::running;
  int leader_ = -1;      ///< whom it follows; itself if it collects or tells
  bool brief_ = false;   ///< is there a reason that is known without reports?
  double waited_s_ = 0;  ///< since it entered the state, or since the leader was heard
  std::optional<Time> looked_{};
  std::string sentence_{};  ///< that is kept, or told
  RankRecords records_{};   ///< of ranks that have told about themselves
  std::vector<Finding> departures_{};
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
