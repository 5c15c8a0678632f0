/// The ending of a family of groups, over a simulated network: who decides, who is named, and how
/// long it takes.
#include "support/test.hpp"
#include "unit/comm/mpi/ending_world.hpp"

namespace ending_test {
namespace {

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
  CHECK(sentence_of(world).starts_with("rank 3 did not arrive within 1 s"));
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
  words[1].ending.begin({.cause = EndCause::words});
  words.run(400);
  CHECK(words[2].ending.sentence() == "rank 1 failed: so");

  World brief = all_wait(3, 40);
  brief[1].say(Says::error, "rank 1: MPI reports 'x'");
  brief[1].finding.cause = EndCause::mpi_error;
  brief[1].begins = 10;
  brief.run(200);
  CHECK(brief[0].ending.sentence() == "rank 1: MPI reports 'x' (no answer from rank 2)");
}

TEST_CASE("own words reach the one that collects, though it is this rank") {
  World world = all_wait(3, 40);
  world[0].begins = 10;
  world.run(300);
  world[0].say(Says::words, "rank 0 failed: so");
  world[0].ending.begin({.cause = EndCause::words});
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
  world[2].ending.begin({.cause = EndCause::mismatch, .at = {2, 4}, .rank = 3});
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
      {.cause = EndCause::left, .at = {7, 9}, .rank = 1, .unwinding = true, .calls = 9});
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
struct Outbox final : EndingPeers {
  void send(int rank, Notice const& notice) override { sent.emplace_back(rank, notice); }
  bool is_matched(int /*rank*/) override { return false; }
  RankReport report(Question const& /*question*/) override { return state; }

  RankReport state{};
  std::vector<std::pair<int, Notice>> sent{};
};

/// What a rank hears, without a network.
struct Script {
  Script(int rank, int size, double deadline)
      : outboxes(static_cast<std::size_t>(size)), rank_(rank), deadline_(deadline) {
    for (Outbox& outbox : outboxes) outbox.state.waits = true;
  }
  /// What another rank would send first that begins.
  [[nodiscard]] Notice end_of(int other, EndCause cause) {
    Ending begun(other, size(), deadline_, outboxes[static_cast<std::size_t>(other)]);
    begun.begin({.cause = cause, .at = {1, 4}});
    return outboxes[static_cast<std::size_t>(other)].sent.at(0).second;
  }
  [[nodiscard]] static Notice text_of(NoticeKind kind, int other, std::string const& text) {
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
    return std::any_of(sent().begin(), sent().end(), [](auto const& one) {
      return one.second.kind == NoticeKind::end;
    });
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
  Notice const end = script.end_of(0, EndCause::late);
  script.ending.hear(end);
  script.ending.hear(end);
  CHECK(script.sent().size() == 1);
  script.look_for(350);
  script.ending.hear(Script::text_of(NoticeKind::about, 0, "so"));
  script.look_for(350);
  CHECK(!script.has_begun());
  script.look_for(100);
  CHECK(script.has_begun());
  script.look_for(400);
  CHECK(script.ending.sentence() == "so");
}

TEST_CASE(
    "who is followed is given up soon if it knew a reason, and its answer is not waited for") {
  for (EndCause const cause : {EndCause::left, EndCause::late}) {
    Script script(1, 2, 40);
    script.ending.hear(script.end_of(0, cause));
    script.look_for(250);
    CHECK(script.ending.ended() == (cause == EndCause::left));
    script.look_for(3600);
    CHECK(!script.ending.ended() == (cause == EndCause::late));
    script.look_for(400);
    CHECK(script.ending.ended());
  }
}

TEST_CASE("who tells a sentence stays with it, unless all end with another") {
  for (bool const other : {false, true}) {
    Script script(1, 3, 1);
    Notice const end = script.end_of(0, EndCause::mismatch);
    script.outboxes[1].state.say(Says::words, "rank 1 failed: so");
    script.ending.begin({.cause = EndCause::words, .at = {1, 4}});
    script.ending.hear(script.end_of(2, EndCause::late));
    script.look_for(150);
    script.ending.hear(end);
    script.ending.hear(Script::text_of(NoticeKind::about, 0, "something else"));
    if (other) script.ending.hear(Script::text_of(NoticeKind::verdict, 0, "all else"));
    script.look_for(150);
    CHECK(script.ending.sentence() == (other ? "all else" : "rank 1 failed: so"));
    CHECK(script.ending.ended());
    script.ending.hear(Script::text_of(NoticeKind::verdict, 0, "too late"));
    CHECK(script.ending.sentence() != "too late");
  }
}

TEST_CASE("messages are small, texts are cut, and what is from nobody is no harm") {
  // Most MPIs send that at once.
  CHECK(Notice{}.bytes(1000) <= 4000);
  CHECK(Notice{.kind = NoticeKind::gone}.bytes(1000) <= 128);
  int const size = most_reported + 9;
  Notice notice{.kind = NoticeKind::report, .rank = 1};
  for (int rank = 0; rank < size; ++rank) notice.report.wait_on(rank);
  CHECK(notice.bytes(size) <= sizeof notice);
  RankReport const report = arrived(notice, size).report;
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
    ending.hear({.kind = NoticeKind::end, .rank = rank});
    CHECK(ending.running());
  }
}

}  // namespace
}  // namespace ending_test
