/// The ending of a family of groups, over a simulated network: who decides, who is named, how long
/// it takes; with ranks that die, sleep, compute, throw, leave and disagree at any moment.
#include "zero/comm/mpi/ending.hpp"

#include "support/test.hpp"

namespace ending_test {
namespace {

using namespace zero::mpi::detail;

Call call_of(std::uint64_t group, std::uint64_t number) {
  return zero::mpi::detail::call_of(zero::Collective{.count = 1000 * group + number});
}

/// What arrives of a message.
Notice arrived(Notice const& sent, int size) {
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
class Rank final : public Surroundings {
 public:
  enum class Does { wait, compute, throws, sleep, leave };

  Rank(World& world, int rank, int size, double deadline_s)
      : ending(rank, size, deadline_s, *this), world_(&world), rank_(rank) {}

  void send(int rank, Notice const& notice) override;
  bool is_matched(int rank) override;
  Report report(Question const& question) override {
    Report result = state;
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
  Report state{};  // as it is reported, with
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
    if (first_message == Rank::never && notice.kind != Kind::gone) first_message = now;
    ++sent;
    link(from, to).push_back({arrived(notice, size()), now + tick_ms * below(4)});
  }
  [[nodiscard]] bool is_matched(int from, int to) {
    return std::none_of(link(from, to).begin(), link(from, to).end(), [](Sent const& one) {
      return one.notice.kind == Kind::about;
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

void Rank::send(int rank, Notice const& notice) { world_->send(rank_, rank, notice); }
bool Rank::is_matched(int rank) { return world_->is_matched(rank_, rank); }

/// A rank that waits for others, in the last of so many calls of a group.
void wait_in(Rank& rank, std::uint64_t group, std::uint64_t made, std::vector<int> const& others) {
  Calls& calls = rank.calls.emplace_back();
  calls.group = group;
  calls.made = made;
  copy_text(group == 1 ? "" : "other axis", calls.name);
  for (auto n = calls.first(); n < made; ++n) calls.at(n) = call_of(group, n);
  if (others.empty()) return;
  rank.state.waits = true;
  rank.state.at = {group, made - 1};
  for (int const other : others) rank.state.wait_on(other);
  rank.finding = {.cause = Cause::late, .at = rank.state.at};
}

std::string sentence_of(World& world) {
  for (auto const& rank : world.ranks) {
    if (rank->ending.ended()) return rank->ending.sentence();
  }
  return "";
}

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

/// All numbers in a part of a text.
std::set<int> numbers_in(std::string const& text) {
  std::set<int> result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (std::isdigit(static_cast<unsigned char>(text[i])) == 0) continue;
    std::size_t used = 0;
    result.insert(std::stoi(text.substr(i), &used));
    i += used;
  }
  return result;
}

/// A case of a few ranks, drawn at random.
class Case {
 public:
  static constexpr std::uint64_t next = 70;

  explicit Case(unsigned seed)
      : world(3 + static_cast<int>(seed % 3), seed % 2 == 0 ? 1 : 4, seed) {}

  /// Draws; false if it is nothing that calls of collectives can come to.
  [[nodiscard]] bool draw() {
    int const size = world.size();
    bool const differs = world.happens(15);
    int const deaths = std::max(0, world.below(6) - 3);
    bool const only_late = world.happens(50);
    std::vector<int> waits(ranks(), 0);
    for (int rank = 0; rank < size; ++rank) {
      Rank& self = world[rank];
      int const kind = world.below(100);
      bool const elsewhere = kind >= 50 && kind < 62;
      if (kind < 62) {
        std::vector<int> others;
        for (int other = 0; other < size; ++other) {
          if (other == rank || !world.happens(50)) continue;
          others.push_back(other);
          waits[index(rank)] |= 1 << other;
        }
        if (others.empty()) return false;
        wait_in(self, elsewhere ? 2 : 1, next + 1, others);
        if (elsewhere) {
          wait_in(self, 1, next, {});
        } else if (differs && world.happens(40)) {
          self.calls[0].at(next - 2).count += 5;
          odd |= 1 << rank;
        }
        self.begins = 20 + tick_ms * world.below(8) + stagger_ms(rank);
        if (deaths == 0 && world.happens(20)) self.begins += 700;  // its deadline is not over
        if (!only_late && world.happens(10)) {
          self.say(Says::error, "rank " + std::to_string(rank) + ": MPI reports 'x'");
          self.finding.cause = Cause::mpi_error;
          errors |= 1 << rank;
        }
        continue;
      }
      wait_in(self, 1, next, {});
      if (kind < 68) {
        self.does = Rank::Does::compute;
      } else if (kind < 84) {
        self.does = Rank::Does::sleep;
        self.sleeps_from = 0;
        int const wakes = world.below(3);
        if (wakes == 1) self.wakes = 10 + world.below(300);
        if (wakes == 2) self.wakes = 10 + world.below(1500);
        self.dead = wakes == 0;
      } else if (kind < 92) {
        self.does = Rank::Does::leave;
        self.sleeps_from = 5;
        self.wakes = 1200;
      } else {
        self.does = Rank::Does::throws;
        self.say(Says::words, "rank " + std::to_string(rank) + " failed: so");
        self.finding = {.cause = Cause::words, .at = {1, next}};
        self.begins = 10 + tick_ms * world.below(60);
      }
    }
    int needed = 0;
    for (int const one : waits) needed |= one;
    int begin = 0;
    for (int rank = 0; rank < size; ++rank) {
      Rank& self = world[rank];
      bool const is_needed = (needed >> rank & 1) != 0;
      bool const idle = self.does == Rank::Does::compute || self.does == Rank::Does::sleep;
      if (self.does == Rank::Does::wait || self.does == Rank::Does::throws) begin |= 1 << rank;
      if (self.does == Rank::Does::leave && is_needed) leavers |= 1 << rank;
      if ((idle || self.does == Rank::Does::leave) && is_needed) faulty |= 1 << rank;
    }
    if (begin == 0) return false;
    find_circles(waits);
    for (int rank = 0; rank < size; ++rank) {
      Rank& self = world[rank];
      if (!self.state.waits) continue;
      for (int other = 0; other < size; ++other) {
        bool const waited = self.state.waits_on(other);
        // It has found what the other's first chunk shows.
        bool const shown = (odd >> rank & 1) != (odd >> other & 1) && world[other].state.waits &&
                           world[other].state.at.group == 1 && self.state.at.group == 1;
        if (shown && world.happens(60)) {
          self.finding = {.cause = Cause::mismatch,
                          .at = {1, next - 2},
                          .rank = other,
                          .known = world.happens(70),
                          .call = world[other].calls[0].at(next - 2)};
        } else if (waited && world[other].does == Rank::Does::leave) {
          self.finding = {.cause = Cause::left, .at = self.state.at, .rank = other, .calls = next};
        }
      }
    }
    // Some die while they send.
    for (int i = 0; i < deaths; ++i) {
      Rank& self = world[world.below(size)];
      if (!self.state.waits && self.does != Rank::Does::throws) continue;
      self.sends_left = world.below(3 * size);
    }
    // One that waits, and is stopped before it finds anything.
    int const stopped = world.below(5 * size);
    if (deaths == 0 && stopped < size && world[stopped].state.waits) {
      Rank& self = world[stopped];
      self.sleeps_from = self.begins - tick_ms;
      self.wakes = self.sleeps_from + world.below(1000);
      faulty |= 1 << stopped;
    }
    return true;
  }

  /// True if all is well.
  void run() {
    int const window = static_cast<int>(1000 * window_s(false, world.deadline_s));
    world.run(1);
    for (int rank = 0; rank < world.size(); ++rank) {
      Rank& self = world[rank];
      if (self.does == Rank::Does::leave)
        self.ending.depart({.cause = Cause::left, .at = {1, next}, .rank = rank, .calls = next});
    }
    world.run(4000);
    int bound = window + 100 + slack_ms;
    // What one has said that died may have reached nobody: then the others begin.
    if (world.deaths > 0) bound += 250 + world.deaths * (3 * window + 100);
    std::string sentence;
    for (int rank = 0; rank < world.size(); ++rank) {
      Rank& self = world[rank];
      if (self.dead) faulty |= 1 << rank;
    }
    for (int rank = 0; rank < world.size(); ++rank) {
      Rank& self = world[rank];
      if (self.dead) continue;
      bool const stays = self.sleeps_from == Rank::never;
      // All end that wait, and the others if nobody dies; in time, if they look.
      if (world.first_message != Rank::never && (self.state.waits || world.deaths == 0)) {
        CHECK(self.ending.ended());
        if (stays) CHECK(self.ended_at - world.first_message <= bound);
      }
      if (!self.ending.ended()) continue;
      // Who did not look may come when all others are gone, if one of them died.
      if (!stays && world.deaths > 0) continue;
      if (sentence.empty()) sentence = self.ending.sentence();
      CHECK(self.ending.sentence() == sentence);
      judge(self.ending.sentence());
    }
    kind_of(sentence);
  }

  /// Is what it says true, and does it name no innocent?
  void judge(std::string const& text) {
    CHECK(!text.empty());
    CHECK(text.size() <= longest_text);
    std::size_t at = 0;
    auto const until = [&](std::string const& part) {
      at = text.find(part);
      return at != std::string::npos;
    };
    auto const named = [&] {
      int ranks = 0;
      for (int const rank : numbers_in(text.substr(0, at))) ranks |= 1 << rank;
      return ranks;
    };
    if (until(" failed: so")) {
      int const rank = *numbers_in(text.substr(0, at)).begin();
      CHECK(world[rank].does == Rank::Does::throws);
    } else if (until(" called [")) {
      int const wrong = named();
      CHECK((contains(text, "of 1068 fp32") && contains(text, "of 1073 fp32")));
      at = text.find(" called [", at + 1);
      std::size_t const where = text.find("where rank ");
      int const right = 1 << *numbers_in(text.substr(where, at - where)).begin();
      CHECK(((wrong & odd) == 0) != ((right & odd) == 0));
    } else if (until(" at or before [")) {
      CHECK(odd != 0);
    } else if (until(" left after 70 collectives, without [all_gather of")) {
      CHECK((named() & ~leavers) == 0);
    } else if (until(" fell silent for ")) {
      CHECK((named() & ~faulty) == 0);
      CHECK(named() != 0);
    } else if (until(" did not arrive within ")) {
      at = std::min(at, text.find(" and "));
      CHECK((named() & ~faulty) == 0);
      CHECK(named() != 0);
    } else if (until(" wait for each other")) {
      CHECK((named() & ~circles) == 0);
    } else {
      CHECK(until(": MPI reports 'x'"));
      CHECK((named() & ~errors) == 0);
    }
  }

  void kind_of(std::string const& text) const {
    for (char const* const kind : {" failed: so",
                                   " called [",
                                   " at or before [",
                                   " left after",
                                   "one of ranks",
                                   " fell silent",
                                   " did not arrive",
                                   " wait for each other",
                                   "MPI reports"}) {
      if (!contains(text, kind)) continue;
      ++kinds[kind];
      return;
    }
  }

  World world;
  int odd = 0;     // ranks whose calls differ from the others'
  int faulty = 0;  // who is waited for and does not come, or died
  int errors = 0;  // who has an error of MPI's
  int leavers = 0;
  int circles = 0;  // who waits for itself in the end
  static inline std::map<std::string, int> kinds{};

 private:
  [[nodiscard]] std::size_t ranks() const { return world.ranks.size(); }
  [[nodiscard]] static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] int stagger_ms(int rank) const {
    return static_cast<int>(1000 * window_s(false, world.deadline_s) * rank / world.size());
  }
  void find_circles(std::vector<int> reach) {
    for (int round = 0; round < world.size(); ++round) {
      for (int& one : reach) {
        int more = one;
        for (int other = 0; other < world.size(); ++other) {
          if ((one >> other & 1) != 0) more |= reach[index(other)];
        }
        one = more;
      }
    }
    for (int rank = 0; rank < world.size(); ++rank) {
      if ((reach[index(rank)] >> rank & 1) != 0) circles |= 1 << rank;
    }
  }
};

TEST_CASE("whatever happens, one sentence on all ranks that names no innocent, in time") {
  Case::kinds.clear();
  int cases = 0;
  for (unsigned seed = 1; cases < 20000; ++seed) {
    Case one(seed);
    if (!one.draw()) continue;
    ++cases;
    CAPTURE(seed);
    one.run();
  }
  // All of it was there.
  CHECK(Case::kinds.size() == 9);
}

/// Three or more ranks, of which all wait for the last, which sleeps.
World all_wait(int size, double deadline) {
  World world(size, deadline, 3);
  for (int rank = 0; rank + 1 < size; ++rank) wait_in(world[rank], 1, 5, {size - 1});
  world[size - 1].sleeps_from = 0;
  return world;
}

TEST_CASE("one that begins: everybody reports, and the sentence is told twice") {
  World world = all_wait(4, 1);
  world[3].sleeps_from = Rank::never;
  wait_in(world[3], 1, 4, {});
  world[1].begins = 10;
  world.run(200);
  CHECK(world.sent == 3 + 3 + 2 * 3);
  CHECK(sentence_of(world).starts_with("rank 3 did not arrive within 1.0"));
  for (auto const& rank : world.ranks) CHECK(rank->ending.ended());
  CHECK(world[1].ended_at <= 80);
}

TEST_CASE(
    "answers are waited for as long as the deadline allows, and briefly once words are known") {
  World late = all_wait(3, 40);
  late[0].begins = 10;
  late.run(1900);
  CHECK(late[1].ending.running() == false);
  CHECK(!late[1].ending.ended());
  late.run(2200);
  CHECK(late[1].ending.ended());

  World words = all_wait(4, 40);
  words[0].begins = 10;
  words.run(300);
  CHECK(!words[0].ending.ended());
  words[1].say(Says::words, "rank 1 failed: so");
  words[1].ending.begin({.cause = Cause::words});
  words.run(400);
  CHECK(words[2].ending.sentence() == "rank 1 failed: so");

  World brief = all_wait(3, 40);
  brief[1].say(Says::error, "rank 1: MPI reports 'x'");
  brief[1].finding.cause = Cause::mpi_error;
  brief[1].begins = 10;
  brief.run(200);
  CHECK(brief[0].ending.sentence() == "rank 1: MPI reports 'x' (no answer from rank 2)");
}

TEST_CASE("own words reach the one that collects, though it is this rank") {
  World world = all_wait(3, 40);
  world[0].begins = 10;
  world.run(300);
  world[0].say(Says::words, "rank 0 failed: so");
  world[0].ending.begin({.cause = Cause::words});
  world.run(400);
  CHECK(world[1].ending.sentence() == "rank 0 failed: so");
}

TEST_CASE("one that finds other calls comes first, and asks for their group") {
  World world(4, 40, 3);
  for (int const rank : {0, 1, 2, 3}) wait_in(world[rank], 2, 5, {});
  for (int const rank : {0, 1, 2}) wait_in(world[rank], 1, 5, {3});
  wait_in(world[3], 1, 4, {});
  world[3].calls[0].at(4).count = 1;
  world[0].ending.begin(world[0].finding);
  world[2].ending.begin({.cause = Cause::mismatch, .at = {2, 4}, .rank = 3});
  world.run(200);
  for (auto const& rank : world.ranks) CHECK(rank->ending.ended());
  CHECK(sentence_of(world).starts_with(
      "rank 3 called [all_gather of 1 fp32, no bucket] where rank 0 called [all_gather of 2004"));
}

TEST_CASE("who begins and follows another passes on what only it may have heard") {
  // Rank 0 dies with its first message, to rank 1, which has begun as well.
  World world = all_wait(5, 4);
  world[0].sends_left = 1;
  world[0].ending.begin(world[0].finding);
  world[1].ending.begin(world[1].finding);
  world.run(2000);
  for (int const rank : {1, 2, 3}) {
    CHECK(world[rank].ending.ended());
    CHECK(world[rank].ending.sentence().starts_with("one of ranks 0, 4 fell silent"));
  }
}

TEST_CASE("the sentence stays one if who tells it dies") {
  for (int sends = 4; sends < 12; ++sends) {
    World world = all_wait(5, 1);
    world[0].sends_left = sends;
    world[0].begins = 10;
    world.run(1000);
    std::string const sentence = sentence_of(world);
    for (int const rank : {1, 2, 3}) {
      CAPTURE(sends);
      CAPTURE(rank);
      CHECK(world[rank].ending.sentence() == sentence);
      CHECK(world[rank].ending.ended());
    }
  }
}

TEST_CASE(
    "who waits for nobody takes nobody's place, and a rank that did not look has not waited") {
  World world = all_wait(3, 1);
  world[0].begins = 10;
  world[0].sends_left = 1;
  world[1].state.waits = false;
  world.run(2000);
  CHECK(!world[1].ending.running());
  CHECK(!world[1].ending.ended());
  // Now it waits; but it has not looked for long.
  world.now += 100000;
  world[1].state.waits = true;
  world.step();
  CHECK(!world[1].ending.ended());

  World other = all_wait(3, 1);
  other[0].begins = 10;
  other[1].sleeps_from = 40;
  other[1].wakes = 30000;
  other[0].sleeps_from = 40;
  other.run(30000);
  other.run(30150);
  CHECK(!other[1].ending.ended());
  other.run(30500);
  CHECK(other[1].ending.ended());
}

TEST_CASE("a departure is filed, and ends nothing") {
  World world = all_wait(3, 1);
  world[1].ending.depart(
      {.cause = Cause::left, .at = {7, 9}, .rank = 1, .unwinding = true, .calls = 9});
  world.run(100);
  CHECK(world[0].ending.running());
  std::vector<Finding> const& departures = world[0].ending.departures();
  REQUIRE(departures.size() == 1);
  CHECK(departures[0].at == Question{7, 9});
  CHECK(departures[0].rank == 1);
  CHECK(departures[0].calls == 9);
  CHECK(departures[0].unwinding);
  CHECK(world[1].ending.departures().empty());
}

/// Keeps what is sent.
struct Outbox final : Surroundings {
  void send(int rank, Notice const& notice) override { sent.emplace_back(rank, notice); }
  bool is_matched(int /*rank*/) override { return false; }
  Report report(Question const& /*question*/) override { return state; }

  Report state{};
  std::vector<std::pair<int, Notice>> sent{};
};

/// What a rank hears, without a network.
struct Script {
  Script(int rank, int size, double deadline)
      : outboxes(static_cast<std::size_t>(size)), rank_(rank), deadline_(deadline) {
    for (Outbox& outbox : outboxes) outbox.state.waits = true;
  }
  /// What another rank would send first that begins.
  [[nodiscard]] Notice end_of(int other, Cause cause) {
    Ending begun(other, size(), deadline_, outboxes[static_cast<std::size_t>(other)]);
    begun.begin({.cause = cause, .at = {1, 4}});
    return outboxes[static_cast<std::size_t>(other)].sent.at(0).second;
  }
  [[nodiscard]] static Notice text_of(Kind kind, int other, std::string const& text) {
    Notice result{.kind = kind, .rank = other};
    result.report.say(Says::words, text);
    return result;
  }
  /// Looks, every 5 ms.
  void look_for(int ms) {
    for (int i = 0; i <= ms; i += tick_ms) {
      ending.look(Ending::Time(std::chrono::milliseconds(now_ += tick_ms)), true);
    }
  }
  [[nodiscard]] int size() const { return static_cast<int>(outboxes.size()); }
  [[nodiscard]] std::vector<std::pair<int, Notice>>& sent() {
    return outboxes[static_cast<std::size_t>(rank_)].sent;
  }
  [[nodiscard]] bool has_begun() {
    return std::any_of(
        sent().begin(), sent().end(), [](auto const& one) { return one.second.kind == Kind::end; });
  }

  std::vector<Outbox> outboxes;

 private:
  int rank_;
  double deadline_;
  int now_ = 1000;

 public:
  Ending ending{rank_, size(), deadline_, outboxes[static_cast<std::size_t>(rank_)]};
};

TEST_CASE("a rank is followed as long as it is heard, and reported to once") {
  Script script(2, 4, 4);
  Notice const end = script.end_of(0, Cause::late);
  script.ending.hear(end);
  script.ending.hear(end);
  CHECK(script.sent().size() == 1);
  script.look_for(350);
  script.ending.hear(Script::text_of(Kind::about, 0, "so"));
  script.look_for(350);
  CHECK(!script.has_begun());
  script.look_for(100);
  CHECK(script.has_begun());
  script.look_for(400);
  CHECK(script.ending.sentence() == "so");
}

TEST_CASE(
    "who is followed is given up soon if it knew a reason, and its answer is not waited for") {
  for (Cause const cause : {Cause::left, Cause::late}) {
    Script script(1, 2, 40);
    script.ending.hear(script.end_of(0, cause));
    script.look_for(250);
    CHECK(script.ending.ended() == (cause == Cause::left));
    script.look_for(3600);
    CHECK(!script.ending.ended() == (cause == Cause::late));
    script.look_for(400);
    CHECK(script.ending.ended());
  }
}

TEST_CASE("who tells a sentence stays with it, unless all end with another") {
  for (bool const other : {false, true}) {
    Script script(1, 3, 1);
    Notice const end = script.end_of(0, Cause::mismatch);
    script.outboxes[1].state.say(Says::words, "rank 1 failed: so");
    script.ending.begin({.cause = Cause::words, .at = {1, 4}});
    script.ending.hear(script.end_of(2, Cause::late));
    script.look_for(150);
    script.ending.hear(end);
    script.ending.hear(Script::text_of(Kind::about, 0, "something else"));
    if (other) script.ending.hear(Script::text_of(Kind::verdict, 0, "all else"));
    script.look_for(150);
    CHECK(script.ending.sentence() == (other ? "all else" : "rank 1 failed: so"));
    CHECK(script.ending.ended());
    script.ending.hear(Script::text_of(Kind::verdict, 0, "too late"));
    CHECK(script.ending.sentence() != "too late");
  }
}

TEST_CASE("messages are small, texts are cut, and what is from nobody is no harm") {
  // Most MPIs send that at once.
  CHECK(Notice{}.bytes(1000) <= 4000);
  CHECK(Notice{.kind = Kind::gone}.bytes(1000) <= 128);
  int const size = most_reported + 9;
  Notice notice{.kind = Kind::report, .rank = 1};
  for (int rank = 0; rank < size; ++rank) notice.report.wait_on(rank);
  CHECK(notice.bytes(size) <= sizeof notice);
  Report const report = arrived(notice, size).report;
  CHECK(report.waits_on(most_reported - 1));
  CHECK_FALSE(report.waits_on(most_reported));
  CHECK_FALSE(arrived(notice, 16).report.waits_on(16));
  CHECK(arrived(notice, 17).report.waits_on(16));
  notice.report.say(Says::error, std::string(5000, 'x'));
  CHECK(std::string(arrived(notice, 2).report.text) == std::string(longest_text, 'x'));
  copy_text(std::string(5000, 'y'), notice.report.asked.name);
  CHECK(std::string(arrived(notice, 2).report.asked.name) == std::string(longest_name, 'y'));
  Outbox outbox;
  for (int const rank : {-1, 3}) {
    Ending ending(1, 3, 1, outbox);
    ending.hear({.kind = Kind::end, .rank = rank});
    CHECK(ending.running());
  }
}

}  // namespace
}  // namespace ending_test
