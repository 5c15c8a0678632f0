/// @file
/// How a family of groups ends: with one sentence on all ranks. Pure logic, over messages.
#pragma once

#include "zero/base/clock.hpp"
#include "zero/base/config.hpp"
#include "zero/comm/mpi/report.hpp"
#include "zero/comm/mpi/verdict.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// What an ending asks of the rank that it runs on.
class Surroundings {
 public:
  /// Messages from one rank to another arrive in order, or not at all if one of the two is gone.
  /// @param matched  will anybody ask whether it has arrived?
  virtual void send(int rank, std::span<std::byte const> message, bool matched) = 0;
  /// Is it to be told of departures by messages? Others see them.
  [[nodiscard]] virtual bool is_far(int rank) = 0;
  /// Has the last message that was sent there with `matched` arrived?
  [[nodiscard]] virtual bool is_matched(int rank) = 0;
  /// What this rank has to tell: its last calls in the group asked for, if it is in it, and in the
  /// group where it waits.
  [[nodiscard]] virtual Report report(Question const& question) = 0;

 protected:
  ~Surroundings() = default;
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

  /// @param surroundings  live longer
  Ending(int rank, int size, double deadline_s, Surroundings& surroundings)
      : rank_(rank), size_(size), deadline_s_(deadline_s), surroundings_(&surroundings) {}

  /// Nothing is wrong that this rank knows. Only then data may move: what is reported stays true.
  [[nodiscard]] bool running() const noexcept { return state_ == State::running; }
  [[nodiscard]] bool ended() const noexcept { return state_ == State::ended; }
  /// The same on all ranks, once this one has ended.
  [[nodiscard]] std::string const& sentence() const noexcept { return sentence_; }
  /// How long after the deadline this rank begins, looking meanwhile: ranks that are late at once
  /// would all begin.
  [[nodiscard]] double stagger_s() const noexcept {
    return window_s(false, deadline_s_) * rank_ / size_;
  }

  /// This rank has found something wrong, or has words while another's finding is looked into. It
  /// has heard what has come; what it has found is in its report.
  ZERO_COLD void begin(Finding const& finding) {
    if (running()) {
      end(finding);
    } else if (finding.cause == Cause::words && (collects() || state_ == State::following)) {
      account(rank_).report = surroundings_->report(account(leader_).finding.at);
      note(account(rank_));
      if (!collects()) report_to(leader_);
    }
  }

  /// This rank starts nothing more in a group. That ends nothing.
  ZERO_COLD void depart(Departure departure) {
    if (ended()) return;
    Packet packet = packet_of(Kind::gone, rank_);
    packet.pass(departure);
    for (int rank = 0; rank < size_; ++rank) {
      if (surroundings_->is_far(rank)) surroundings_->send(rank, packet.bytes(), false);
    }
  }
  /// Whether a rank has said that, or null.
  [[nodiscard]] Departure const* departed(std::uint64_t group, int rank) const noexcept {
    auto const found =
        std::find_if(departures_.begin(), departures_.end(), [&](Departure const& one) {
          return one.group == group && one.rank == rank;
        });
    return found == departures_.end() ? nullptr : &*found;
  }

  [[nodiscard]] bool has_departures() const noexcept { return !departures_.empty(); }
  /// How many were told to this rank.
  [[nodiscard]] std::uint64_t departures() const noexcept { return departures_.size(); }

  /// A message has come.
  ZERO_COLD void hear(std::span<std::byte const> message) {
    Packet packet(message);
    auto kind = Kind::end;
    std::int32_t rank = -1;
    packet.pass(kind);
    packet.pass(rank);
    if (rank < 0 || rank >= size_ || ended()) return;
    switch (kind) {
      case Kind::gone:
        departures_.push_back({.rank = rank});
        packet.pass(departures_.back());
        return;
      case Kind::verdict:
        packet.pass(sentence_);
        state_ = State::ended;
        return;
      case Kind::about:
        if (state_ != State::telling) packet.pass(sentence_);
        break;
      case Kind::report:
        packet.pass(account(rank).report);
        account(rank).answered = true;
        note(account(rank));
        break;
      case Kind::end:
        // It may have been passed on before. Who tells a sentence already tells this rank, too.
        if (account(rank).ends || state_ == State::telling) return;
        packet.pass(account(rank).finding);
        packet.pass(account(rank).report);
        account(rank).ends = true;
        note(account(rank));
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
    bool const brief = state_ == State::telling || (collects() ? brief_ : leader().finding.brief);
    double const window = window_s(brief, deadline_s_);
    std::chrono::duration<double> const since = now - looked_.value_or(now);
    looked_ = now;
    passed_s_ += (std::min)(since.count(), window / 4);
    switch (state_) {
      case State::collecting:
        if (all_answered() || passed_s_ >= window) decide();
        break;
      case State::telling:
        if (all_keep() || passed_s_ >= window) finish();
        break;
      case State::following:
        if (waiting && passed_s_ >= 2 * window) give_up();
        break;
      default: break;
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
  [[nodiscard]] Account& account(int rank) {
    accounts_.resize(static_cast<std::size_t>(size_));
    return accounts_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] Account& leader() { return account(leader_); }

  /// A report has come.
  void note(Account& account) {
    account.reported = true;
    brief_ |=
        account.finding.brief || !account.report.words.empty() || !account.report.error.empty();
  }
  /// Has what a rank said when it began the group that the other asks for?
  [[nodiscard]] bool knows(int asker, int rank) {
    return account(rank).ends && account(rank).finding.at.group == account(asker).finding.at.group;
  }

  [[nodiscard]] static Packet packet_of(Kind kind, std::int32_t rank) {
    Packet packet;
    packet.pass(kind);
    packet.pass(rank);
    return packet;
  }
  void tell(Packet const& packet, bool matched = false, int but = -1) {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_ && rank != but) surroundings_->send(rank, packet.bytes(), matched);
    }
  }
  void tell_end(int rank) {
    Packet packet = packet_of(Kind::end, rank);
    packet.pass(account(rank).finding);
    packet.pass(account(rank).report);
    tell(packet, false, rank);
  }
  void tell_sentence(Kind kind) {
    Packet packet = packet_of(kind, rank_);
    packet.pass(sentence_);
    tell(packet, kind == Kind::about);
  }
  void report_to(int rank) {
    Packet packet = packet_of(Kind::report, rank_);
    Report report = surroundings_->report(account(rank).finding.at);
    packet.pass(report);
    surroundings_->send(rank, packet.bytes(), false);
  }

  void reset() noexcept {
    passed_s_ = 0;
    looked_.reset();
  }
  void enter(State state) noexcept {
    state_ = state;
    reset();
  }
  void end(Finding const& finding) {
    Account& own = account(rank_);
    own.finding = finding;
    own.finding.brief = brief_ || (finding.cause != Cause::late && finding.cause != Cause::silent);
    own.report = surroundings_->report(finding.at);
    own.ends = true;
    note(own);
    leader_ = rank_;
    enter(State::collecting);
    tell_end(rank_);
  }
  /// Follows the first of those who end; false if there is none.
  bool follow() {
    int first = -1;
    bool differs = false;
    for (int rank = 0; rank < size_; ++rank) {
      Account const& one = account(rank);
      if (!one.ends || one.given_up) continue;
      if (first >= 0 && (differs || one.finding.cause != Cause::mismatch)) continue;
      first = rank;
      differs = one.finding.cause == Cause::mismatch;
    }
    if (first < 0 || first == leader_) return first >= 0;
    leader_ = first;
    enter(first == rank_ ? State::collecting : State::following);
    // Those who follow this rank may not know the other, and would give up the wrong one.
    if (first != rank_ && account(rank_).ends) tell_end(first);
    return true;
  }
  void give_up() {
    leader().given_up = true;
    Finding const finding{.cause = Cause::silent, .at = leader().finding.at, .rank = leader_};
    if (!follow()) end(finding);
  }

  [[nodiscard]] bool all_answered() {
    for (int rank = 0; rank < size_; ++rank) {
      Account const& one = account(rank);
      if (rank != rank_ && !one.answered && !knows(rank_, rank)) return false;
    }
    return true;
  }
  /// Does every rank that has reported have the sentence?
  [[nodiscard]] bool all_keep() {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_ || !account(rank).reported || account(rank).given_up) continue;
      if (!surroundings_->is_matched(rank)) return false;
    }
    return true;
  }
  void decide() {
    // Another may have been told to all already, by a rank that is gone.
    if (sentence_.empty()) sentence_ = Verdict(accounts_, rank_, deadline_s_).sentence();
    enter(State::telling);
    tell_sentence(Kind::about);
  }
  void finish() {
    state_ = State::ended;
    tell_sentence(Kind::verdict);
  }

  int rank_;
  int size_;
  double deadline_s_;
  Surroundings* surroundings_;
  State state_ = State::running;
  int leader_ = -1;      ///< whom it follows; itself if it collects or tells
  bool brief_ = false;   ///< is there a reason that is known without reports?
  double passed_s_ = 0;  ///< since it entered the state, or since the leader was heard
  std::optional<Time> looked_{};
  std::string sentence_{};  ///< that is kept, or told
  std::vector<Account> accounts_{};
  std::vector<Departure> departures_{};
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
