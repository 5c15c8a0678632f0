/// @file
/// A simulated network of ranks that end a family of groups: messages take their time, and ranks
/// die, sleep, compute, throw, leave and disagree at any moment.
#pragma once

#include "support/standard.hpp"
#include "zero/comm/mpi/ending.hpp"

namespace ending_test {

using namespace zero::mpi::detail;

inline Call call_of(std::uint64_t group, std::uint64_t number) {
  return zero::mpi::detail::call_of(zero::Collective{.count = 1000 * group + number});
}

/// What arrives of a message.
inline Notice arrived(Notice const& sent, int size) {
  Notice result;
  std::memcpy(static_cast<void*>(&result), &sent, sent.bytes(size));
  return result;
}

/// How long after the first message of an ending it is over, at the latest: answers are waited for,
/// and the sentence is told. Messages take up to 15 ms.
constexpr int tick_ms = 5;
constexpr int slack_ms = 100;

class World;

/// One rank: what it does when something goes wrong, and its part in the ending.
class Rank final : public EndingPeers {
 public:
  enum class Does { wait, compute, throws, sleep, leave };

  Rank(World& world, int rank, int size, double deadline_s)
      : ending(rank, size, deadline_s, *this), world_(&world), rank_(rank) {}

  void send(int rank, Notice const& notice) override;
  bool is_matched(int rank) override;
  RankReport report(Question const& question) override {
    RankReport result = state;
    for (Calls const& one : calls) {
      if (one.group == question.group) {
        result.asked = one;
      } else if (state.waits && one.group == state.at.group) {
        result.other = one;
      }
    }
    if (says != Says::nothing) result.say(says, sentence);
    return result;
  }
  /// From when on it says something.
  void say(Says what, std::string text) {
    says = what;
    sentence = std::move(text);
  }
  [[nodiscard]] bool looks(int now) const {
    return !dead && !ending.ended() && (now < sleeps_from || now >= wakes);
  }

  Does does = Does::wait;
  RankReport state{};  // as it is reported, with
  std::vector<Calls> calls{};
  Says says = Says::nothing;
  std::string sentence{};
  Finding finding{};   // with which it begins
  int begins = never;  // when, in ms
  int sleeps_from = never;
  int wakes = never;
  int sends_left = never;  // until it dies
  bool dead = false;
  bool reached = false;  // did the ending begin while it was there?
  int ended_at = never;
  Ending ending;

  static constexpr int never = 1 << 30;

 private:
  World* world_;
  int rank_;
};

/// Ranks, and what is on its way between them.
class World {
 public:
  World(int size, double deadline, unsigned seed) : random(seed), deadline_s(deadline) {
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(std::make_unique<Rank>(*this, rank, size, deadline));
    }
    links_.resize(static_cast<std::size_t>(size * size));
  }

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
  [[nodiscard]] Rank& operator[](int rank) { return *ranks[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int below(int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
  }
  [[nodiscard]] bool happens(int percent) { return below(100) < percent; }

  void send(int from, int to, Notice const& notice) {
    Rank& sender = (*this)[from];
    if (sender.dead) return;
    if (sender.sends_left == 0) {
      die(from);
      return;
    }
    --sender.sends_left;
    if (first_message == Rank::never && notice.kind != NoticeKind::gone) first_message = now;
    ++sent;
    link(from, to).push_back({arrived(notice, size()), now + tick_ms * below(4)});
  }
  [[nodiscard]] bool is_matched(int from, int to) {
    return std::none_of(link(from, to).begin(), link(from, to).end(), [](Sent const& one) {
      return one.notice.kind == NoticeKind::about;
    });
  }
  /// What it has sent may be lost.
  void die(int rank) {
    (*this)[rank].dead = true;
    ++deaths;
    for (int to = 0; to < size(); ++to) {
      auto& lost = link(rank, to);
      if (happens(50))
        lost.resize(static_cast<std::size_t>(below(static_cast<int>(lost.size()) + 1)));
    }
  }

  void step() {
    now += tick_ms;
    std::vector<int> order(ranks.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (int const rank : order) {
      Rank& self = (*this)[rank];
      if (!self.looks(now)) continue;
      std::vector<int> sources = order;
      std::shuffle(sources.begin(), sources.end(), random);
      for (int const from : sources) {
        auto& waiting = link(from, rank);
        while (!waiting.empty() && waiting.front().due <= now && self.looks(now)) {
          Notice const notice = waiting.front().notice;
          waiting.pop_front();
          self.ending.hear(notice);
        }
      }
      if (!self.looks(now)) {
        self.ended_at = std::min(self.ended_at, now);
        continue;
      }
      if (now >= self.begins) {
        self.begins = Rank::never;
        self.ending.begin(self.finding);
      }
      if (!self.dead) self.ending.look(time(), self.state.waits);
      if (self.ending.ended()) self.ended_at = now;
    }
  }
  [[nodiscard]] Ending::Time time() const {
    return Ending::Time() + std::chrono::milliseconds(1000 + now);
  }
  void run(int until_ms) {
    while (now < until_ms) step();
  }

  std::mt19937 random;
  std::vector<std::unique_ptr<Rank>> ranks;
  double deadline_s;
  int now = 0;
  int first_message = Rank::never;
  int deaths = 0;
  int sent = 0;

 private:
  struct Sent {
    Notice notice;
    int due;
  };
  [[nodiscard]] std::deque<Sent>& link(int from, int to) {
    return links_[static_cast<std::size_t>(from * size() + to)];
  }

  std::vector<std::deque<Sent>> links_;
};

inline void Rank::send(int rank, Notice const& notice) { world_->send(rank_, rank, notice); }
inline bool Rank::is_matched(int rank) { return world_->is_matched(rank_, rank); }

/// A rank that waits for others, in the last of so many calls of a group.
inline void wait_in(Rank& rank,
                    std::uint64_t group,
                    std::uint64_t made,
                    std::vector<int> const& others) {
  Calls& calls = rank.calls.emplace_back();
  calls.group = group;
  calls.made = made;
  copy_text(group == 1 ? "" : "other axis", calls.name);
  for (auto n = calls.first(); n < made; ++n) calls.at(n) = call_of(group, n);
  if (others.empty()) return;
  rank.state.waits = true;
  rank.state.at = {group, made - 1};
  for (int const other : others) rank.state.wait_on(other);
  rank.finding = {.cause = EndCause::late, .at = rank.state.at};
}

inline std::string sentence_of(World& world) {
  for (auto const& rank : world.ranks) {
    if (rank->ending.ended()) return rank->ending.sentence();
  }
  return "";
}

inline bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace ending_test
