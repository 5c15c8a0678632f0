#include "checkpoint/faulty_files.hpp"
#include "checkpoint/proof.hpp"
#include "support/complaints.hpp"

#include <cerrno>

// An operation on files that goes wrong on one rank, and what all of them are told.
namespace faults_test {
namespace {

using namespace checkpoint_tests;
using zero::InProcess;

using Files = FaultyFiles<ModelFiles>;
using Trainer = checkpoint_tests::Trainer<InProcess>;
using zero::Checkpoints;

/// What is done while an operation goes wrong.
enum class Work { first_save, save, save_async, load };
constexpr std::array<char const*, 4> works{"first save", "save", "save_async", "load"};

/// Operations of one rank by kind, in a run without a fault.
using Calls = std::array<std::size_t, file_calls>;

struct Case {
  int ranks = 1;
  Work work = Work::save;
  int culprit = 0;
  std::optional<FileFault> fault{};

  [[nodiscard]] std::string text() const {
    std::string words = std::string(works[static_cast<std::size_t>(work)]) + " on " +
                        std::to_string(ranks) + " ranks";
    if (!fault) return words;
    return words + ", rank " + std::to_string(culprit) + ", " + name(*fault->only) + " number " +
           std::to_string(fault->at) + ", error " + std::to_string(fault->error) +
           (fault->for_good ? " for good" : "");
  }
};

/// What the ranks say.
struct Told {
  Complaints complaints{};
  std::vector<std::string> errors{};  ///< by rank; empty if there was none
  std::vector<Calls> calls{};
  std::atomic<bool> struck = false;
};

/// One rank: saves twice, has its work go wrong, finds the older checkpoint as it was, and goes on.
void play(Case const& the, InProcess& comm, ModelFiles const& disk, Told& told) {
  auto const rank = static_cast<std::size_t>(comm.rank());
  auto const require = [&](bool holds, std::string const& what) {
    told.complaints.require(holds, comm.rank(), what);
  };
  Trainer trainer(comm);
  auto& optimizer = trainer.optimizer();
  zero::CheckpointOptions const options{.keep = 2, .snapshot_bytes = Checkpoints::plan(optimizer)};
  Files files(disk);
  ModelFiles sound = disk;
  std::vector<float> older;
  zero::SaveReport before;
  if (the.work != Work::first_save) {
    // Of a job that has ended: the next one takes the lock anew, and cleans up.
    Checkpoints earlier("run", options, sound);
    trainer.step();
    earlier.save(optimizer);
    trainer.step();
    older = trainer.contents();
    before = earlier.save(optimizer);
    if (the.work != Work::load) {
      trainer.step();
      earlier.save_async(optimizer);
    }
  }
  meet(comm);
  Checkpoints checkpoints("run", options, files);
  trainer.step();
  std::vector<float> const newer = trainer.contents();
  if (comm.rank() == the.culprit) files.set(the.fault);
  std::string const error = failure_of([&] {
    if (the.work == Work::load) {
      auto const found = checkpoints.latest(optimizer);
      // An older one only if it is said why.
      bool const it = found && found->path == before.path;
      bool const says = found && !found->skipped.empty();
      require(it || says || rank != 0, "finds another checkpoint, and does not say why");
      if (it) checkpoints.load(optimizer, *found);
    } else if (the.work == Work::save_async) {
      checkpoints.save_async(optimizer);
      while (checkpoints.pending() && !checkpoints.poll()) {
      }
    } else {
      checkpoints.save(optimizer);
    }
  });
  // What is removed after the save is a part of it.
  static_cast<void>(failure_of([&] { static_cast<void>(checkpoints.list()); }));
  told.calls[rank] = files.calls();
  if (files.struck() > 0) told.struck = true;
  files.set({});
  told.errors[rank] = error;
  // Whether what cannot be read is damaged, a load does not know.
  require(error.empty() || error.starts_with("resource: ") ||
              (the.work == Work::load && error.starts_with("data: ")),
          "another kind of error: " + error);

  // The one before is as it was; the new one is whole, or is none.
  meet(comm);
  auto const found = checkpoints.latest(optimizer);
  bool const is_older = found ? found->path == before.path : before.path.empty();
  require(found || is_older, "no checkpoint is left");
  if (!found && !is_older) return;
  require(is_older || the.work != Work::load, "another checkpoint is there");
  require(!is_older || !error.empty() || the.work == Work::load, "no new checkpoint");
  if (found) {
    checkpoints.load(optimizer, *found);
    require(trainer.contents() == (is_older ? older : newer), "other values are loaded");
  }
  require(rank != 0 || before.path.empty() || zero::verify_checkpoint(before.path, sound).empty(),
          "the older checkpoint does not verify");

  // And the next save is one, even if the machine dies right then. It tells what could not be
  // removed before.
  trainer.step();
  std::string last;
  std::string const next = failure_of([&] { last = checkpoints.save(optimizer).path; });
  if (!next.empty()) {
    require(next.starts_with("resource: ") && error.empty(), "the next save fails: " + next);
    last = checkpoints.latest(optimizer)->path;
    require(last != (found ? found->path : ""), "the next save is none");
  }
  if (rank == 0) {
    static_cast<void>(checkpoints.list());
    ModelFiles left = disk.crashed(disk.changes(), 0);
    zero::Checkpoints later("run", {}, left);
    auto const durable = later.latest();
    require(durable && durable->path == last, "the next save is not durable");
    require(later.list().size() <= 2, "more than two checkpoints are kept");
  }
  meet(comm);
}

/// Plays a case; says whether its fault took place.
bool run(Case const& the, std::vector<Calls>* calls = nullptr) {
  INFO(the.text());
  Told told;
  told.errors.resize(static_cast<std::size_t>(the.ranks));
  told.calls.resize(static_cast<std::size_t>(the.ranks));
  ModelFiles disk;
  std::string const later = message_of(
      [&] { zero::run_ranks(the.ranks, [&](InProcess& comm) { play(the, comm, disk, told); }); });
  told.complaints.require(later.empty(), the.culprit, "later, " + later);
  std::string const& first = told.errors[0];
  auto const require = [&](bool holds, std::string const& what) {
    told.complaints.require(holds || first.empty(), the.culprit, what + first);
  };
  for (std::string const& error : told.errors)
    told.complaints.require(
        error == first, 0, "ranks are told '" + first + "' and '" + error + "'");
  require(told.struck, "without a fault: ");
  require(first.find("on rank " + std::to_string(the.culprit) + ": ") != first.npos,
          "names nobody: ");
  require(!the.fault || the.fault->error != 0, "half a read or write is an error: ");
  CHECK(told.complaints.text() == "");
  if (calls != nullptr) *calls = told.calls;
  return told.struck;
}

/// All cases of some work, as a run without a fault shows them.
std::vector<Case> cases_of(int ranks, Work work) {
  std::vector<Calls> calls;
  run({.ranks = ranks, .work = work}, &calls);
  std::vector<Case> cases;
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::size_t call = 0; call < file_calls; ++call) {
      auto const only = static_cast<FileCall>(call);
      std::vector<int> errors{ENOSPC, EIO};
      if (only == FileCall::read || only == FileCall::write) errors.push_back(0);
      for (std::size_t at = 0; at < calls[static_cast<std::size_t>(rank)][call]; ++at) {
        for (int const error : errors) {
          for (bool const for_good : {false, true})
            cases.push_back({ranks, work, rank, FileFault{only, at, error, for_good}});
        }
      }
    }
  }
  return cases;
}

/// Errors that may be passed over: what is not known to be wrong is not removed, and what is to be
/// removed is tried again by the next save.
TEST_CASE("a fault at any operation of any rank is one error on all, or none, and costs nothing") {
  std::vector<Case> cases;
  for (int const ranks : {1, 2, 3}) {
    for (Work const work : {Work::first_save, Work::save, Work::save_async, Work::load}) {
      auto const more = cases_of(ranks, work);
      cases.insert(cases.end(), more.begin(), more.end());
    }
  }
  std::size_t const most = runs(150);
  std::size_t const stride = std::max<std::size_t>(cases.size() / most, 1);
  std::size_t played = 0;
  std::size_t struck = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Case const& the = cases[i];
    bool const plain =
        !toy::sanitized && the.ranks == 1 && the.fault->error == EIO && !the.fault->for_good;
    if (i % stride != 0 && !plain) continue;
    ++played;
    if (run(the)) ++struck;
  }
  MESSAGE(played, " of ", cases.size(), " cases, ", struck, " faults");
  CHECK(struck * 10 > played * 9);
}

TEST_CASE("what could not be removed costs no checkpoint, and all ranks hear of it with the next") {
  ModelFiles disk;
  zero::run_ranks(2, [&](InProcess& comm) {
    Trainer trainer(comm);
    Files files(disk);
    Checkpoints run("run", {.keep = 1}, files);
    trainer.step();
    auto const first = run.save(trainer.optimizer()).path;
    if (comm.rank() == 0) {
      files.set(FileFault{.only = FileCall::remove, .at = 0, .error = EIO, .for_good = true});
    }
    trainer.step();
    auto const second = run.save(trainer.optimizer()).path;
    CHECK(run.latest(trainer.optimizer())->path == second);
    files.set({});
    trainer.step();
    CHECK(failure_of([&] {
            run.save(trainer.optimizer());
          }).starts_with("resource: on rank 0: cannot remove '" + first + "/manifest.json'"));
    auto const third = run.latest(trainer.optimizer());
    CHECK(third->step == 3);
    if (comm.rank() == 0) CHECK(run.list().size() == 1);
    meet(comm);
    trainer.step();
    CHECK(run.save(trainer.optimizer()).step == 4);
  });
}

}  // namespace
}  // namespace faults_test
