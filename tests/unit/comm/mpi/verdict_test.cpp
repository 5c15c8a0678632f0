/// Who is to blame, by what ranks have told, in which words.
#include "zero/comm/mpi/verdict.hpp"

#include "support/test.hpp"

namespace verdict_test {
namespace {

using namespace zero::mpi::detail;
using zero::Op;

constexpr double deadline = 8;

/// What is known of a few ranks, in groups 1 (without a name) and 2.
struct Table {
  explicit Table(int size) : ranks(size) {}

  RankRecord& operator[](int rank) { return records[rank]; }
  /// A rank has reported so many calls of a group; the last one may be another than all others'.
  RankReport& calls(int rank, std::uint64_t group, std::uint64_t made, std::size_t odd = 0) {
    RankReport& report = (*this)[rank].report;
    Calls& calls = report.asked.made == 0 ? report.asked : report.other;
    calls.group = group;
    calls.made = made;
    copy_text(group == 1 ? "" : "model axis", calls.name);
    for (auto n = calls.first(); n < made; ++n) {
      calls.at(n) = call_of({.count = 100 * group + n, .bucket = 3});
    }
    calls.at(made - 1).count += odd;
    return report;
  }
  /// A rank has reported that it waits for others in the last of so many calls.
  RankReport& waits(int rank,
                    std::uint64_t group,
                    std::uint64_t made,
                    std::vector<int> const& others) {
    RankReport& report = calls(rank, group, made);
    report.waits = true;
    report.at = {group, made - 1};
    for (int const other : others) report.wait_on(other);
    return report;
  }
  void ends(int rank, Finding const& finding) {
    (*this)[rank].ends = true;
    (*this)[rank].finding = finding;
  }
  [[nodiscard]] std::string sentence(int decider = 0) const {
    return Verdict(records, ranks, decider, deadline).sentence();
  }

  int ranks;
  RankRecords records{};
};

TEST_CASE("words come first, of the lowest rank that has any") {
  Table table(4);
  table.waits(0, 1, 3, {3});
  table.ends(0, {.cause = EndCause::late, .at = {1, 2}});
  table.calls(1, 1, 3, 7);
  table[2].report.say(Says::words, "rank 2 failed: two");
  table[3].report.say(Says::words, "rank 3 failed: three");
  CHECK(table.sentence() == "rank 2 failed: two");
  table[2].report.say(Says::words, std::string(3000, 'x'));
  CHECK(table.sentence().size() == longest_text);
}

TEST_CASE("a mismatch names the lowest of the fewer, against the lowest of most") {
  Table table(5);
  for (int const rank : {0, 1, 2, 4}) table.calls(rank, 2, 5, rank == 2 || rank == 4 ? 50 : 0);
  table.ends(1, {.cause = EndCause::mismatch, .at = {2, 4}, .rank = 2});
  // Of equal numbers of ranks those with the lowest are right.
  CHECK(table.sentence(1) ==
        "rank 2 called [all_gather of 254 fp32, bucket 3] where rank 0 called [all_gather of 204 "
        "fp32, bucket 3]: they differ in count, on the model axis (usually because a rank alone "
        "makes a call that is for all, such as full_parameters(), or evaluates alone)");
  table.calls(3, 2, 5, 50);
  CHECK(table.sentence(1).starts_with(
      "rank 0 called [all_gather of 204 fp32, bucket 3] where rank 2"));
}

TEST_CASE("of three calls the lowest rank's of the fewer is told") {
  Table table(4);
  for (int const rank : {0, 1, 2, 3}) table.calls(rank, 1, 5, rank == 0 ? 1 : rank == 3 ? 3 : 0);
  CHECK(table.sentence().starts_with(
      "rank 0 called [all_gather of 105 fp32, bucket 3] where rank 1 called"));
  table[0] = table[1];
  table[2].report.asked.at(4).count = 9;
  CHECK(table.sentence().starts_with("rank 2 called [all_gather of 9 fp32"));
}

TEST_CASE("the lowest number under which calls differ counts, whoever was further") {
  Table table(3);
  table.calls(0, 1, 90);
  table.calls(1, 1, 100);
  table.calls(2, 1, 110);
  table[1].report.asked.at(96).count = 1;  // number 96, that rank 0 did not come to
  table[2].report.asked.at(109).count = 2;
  table.ends(0, {.cause = EndCause::late, .at = {1, 89}});
  CHECK(
      table.sentence().starts_with("rank 2 called [all_gather of 196 fp32, bucket 3] where rank 1 "
                                   "called [all_gather of 1 fp32"));
}

TEST_CASE("what others have heard of a rank counts once, if it does not answer") {
  Table table(4);
  Call const other = call_of({.op = Op::all_reduce, .count = 9});
  for (int const rank : {2, 1}) {
    table.calls(rank, 1, 5);
    table.ends(
        rank, {.cause = EndCause::mismatch, .at = {1, 4}, .rank = 0, .known = true, .call = other});
  }
  CHECK(table.sentence(1).starts_with("rank 0 called [all_reduce of 9"));
  table.calls(3, 1, 5);
  CHECK(table.sentence(1).starts_with("rank 0 called [all_reduce of 9"));
  // Its own report counts instead.
  table.calls(0, 1, 5, 2);
  CHECK(table.sentence(1).starts_with("rank 0 called [all_gather of 106"));
}

TEST_CASE("a mismatch that is not in the reports is told as it was found") {
  Table table(3);
  table.calls(1, 2, 5);
  table.ends(1, {.cause = EndCause::mismatch, .at = {2, 4}, .rank = 2});
  CHECK(table.sentence(1) ==
        "rank 2 made another call than rank 1 at or before [all_gather of 204 fp32, bucket 3], on "
        "the model axis");
}

TEST_CASE("calls are compared where ranks wait, too") {
  Table table(3);
  table.waits(0, 1, 5, {2});
  table.ends(0, {.cause = EndCause::late, .at = {1, 4}});
  for (int const rank : {1, 2}) {
    table.calls(rank, 1, 4);
    table.waits(rank, 2, 5, {3 - rank});
  }
  table[2].report.other.at(4).root = 1;
  CHECK(table.sentence().starts_with("rank 2 called"));
}

TEST_CASE("the lowest that left and is waited for") {
  Table table(4);
  for (int const rank : {0, 1}) {
    table.waits(rank, 2, 5, {2, 3});
    table.ends(rank, {.cause = EndCause::left, .at = {2, 4}, .rank = 3 - rank, .calls = 3});
  }
  table.calls(2, 1, 5);
  CHECK(table.sentence() ==
        "rank 2 left after 3 collectives, without [all_gather of 204 fp32, bucket 3], on the model "
        "axis");
}

TEST_CASE("who fell silent is found along those who wait; who is not waited for is no culprit") {
  Table table(6);
  table.waits(0, 2, 5, {1});
  table.ends(0, {.cause = EndCause::late, .at = {2, 4}});
  table.waits(1, 1, 7, {3});
  table.waits(2, 1, 7, {4});
  CHECK(table.sentence() == "rank 3 fell silent for 8 s in [all_gather of 106 fp32, bucket 3]");
  table[1].report.wait_on(5);
  table[0].report.say(Says::error, "rank 0: MPI reports 'x'");
  CHECK(table.sentence() ==
        "one of ranks 3, 5 fell silent for 8 s in [all_gather of 106 fp32, bucket 3]; rank "
        "0: MPI reports 'x'");
  // A collector that was given up.
  table[0].given_up = true;
  CHECK(table.sentence(1).starts_with("one of ranks 0, 3, 5 fell silent"));
  std::ranges::fill(table[1].report.waits_for, std::uint8_t{0});
  table[0].report.says = Says::nothing;
  CHECK(table.sentence(1) ==
        "rank 0 fell silent for 0.8 s in [all_gather of 204 fp32, bucket 3], on the model axis");
}

TEST_CASE("who answers and waits for nobody is late") {
  Table table(5);
  table.waits(0, 1, 5, {1, 2, 4});
  table.ends(0, {.cause = EndCause::late, .at = {1, 4}});
  table.waits(1, 2, 5, {2});
  for (int const rank : {2, 3, 4}) table.calls(rank, 1, 4);
  CHECK(table.sentence() ==
        "rank 2 and 1 more did not arrive within 8 s at [all_gather of 104 fp32, bucket 3]");
}

TEST_CASE("a circle names those in it alone") {
  Table table(4);
  table.waits(0, 1, 5, {1});
  table.ends(0, {.cause = EndCause::late, .at = {1, 4}});
  table.waits(1, 1, 5, {2});
  table.waits(2, 1, 6, {3});
  table.waits(3, 2, 5, {2});
  CHECK(table.sentence() ==
        "ranks 2, 3 wait for each other: rank 2 in [all_gather of 105 fp32, bucket 3], rank 3 in "
        "[all_gather of 204 fp32, bucket 3], on the model axis (usually because they wait for "
        "groups in different orders)");
}

TEST_CASE("an error of MPI's, without a deadline that is over, accuses nobody") {
  Table table(3);
  table.waits(0, 1, 5, {1});
  table[0].report.say(Says::error, "rank 0: MPI reports 'x' in [y]");
  table.ends(0, {.cause = EndCause::mpi_error, .at = {1, 4}});
  CHECK(table.sentence() == "rank 0: MPI reports 'x' in [y] (no answer from rank 1)");
  table.calls(1, 1, 4);
  CHECK(table.sentence() == "rank 0: MPI reports 'x' in [y]");
}

TEST_CASE("the one that decides does not accuse itself") {
  Table table(2);
  table.calls(0, 1, 4);
  table[0].report.say(Says::error, "rank 0: MPI reports 'x' in [y]");
  table.ends(0, {.cause = EndCause::mpi_error, .at = {1, 3}});
  table.waits(1, 1, 5, {0});
  table.ends(1, {.cause = EndCause::late, .at = {1, 4}});
  CHECK(table.sentence(0) == "rank 0: MPI reports 'x' in [y]");
}

TEST_CASE("many ranks are cut short") {
  Table table(60);
  std::vector<int> others(59);
  std::iota(others.begin(), others.end(), 1);
  table.waits(0, 1, 5, others);
  table.ends(0, {.cause = EndCause::late, .at = {1, 4}});
  CHECK(
      table.sentence().starts_with("one of ranks 1, 2, 3, 4, 5, 6, 7, 8 and 51 more fell silent"));
}

}  // namespace
}  // namespace verdict_test
