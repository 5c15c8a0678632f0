#include "checkpoint/faulty_files.hpp"
#include "checkpoint/model_files.hpp"
#include "checkpoint/runs.hpp"
#include "checkpoint/trainer.hpp"
#include "zero/checkpoint.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

// An operation on files that goes wrong on one rank, and what all of them are told.
namespace faults_test {
namespace {

using checkpoint_tests::FaultyFiles;
using checkpoint_tests::FileCall;
using checkpoint_tests::FileFault;
using checkpoint_tests::ModelFiles;
using checkpoint_tests::Trainer;
using zero::InProcess;

using Files = FaultyFiles<ModelFiles>;
using Checkpoints = zero::BasicCheckpoints<Files>;

/// What is done while an operation goes wrong.
enum class Work { first_save, save, save_async, load };
constexpr std::array<char const*, 4> works{"first save", "save", "save_async", "load"};

/// Operations of one rank by kind, in a run without a fault.
using Calls = std::array<std::size_t, checkpoint_tests::file_calls.size()>;

struct Case {
  int ranks = 1;
  Work work = Work::save;
  int culprit = 0;
  std::optional<FileFault> fault{};

  [[nodiscard]] std::string text() const {
    std::string words = std::string(works[static_cast<std::size_t>(work)]) + " on " +
                        std::to_string(ranks) + " ranks";
    if (!fault) return words;
    return words + ", rank " + std::to_string(culprit) + ", " + std::string(name(*fault->only)) +
           " number " + std::to_string(fault->at) + ", error " + std::to_string(fault->error) +
           (fault->for_good ? " for good" : "");
  }
};

/// What the ranks say.
struct Told {
  std::mutex mutex{};
  std::vector<std::string> errors{};  ///< by rank; empty if there was none
  std::vector<std::string> complaints{};
  std::vector<Calls> calls{};
  bool struck = false;

  void complain(std::string text) {
    std::lock_guard const lock(mutex);
    complaints.push_back(std::move(text));
  }
};

/// One rank: saves twice, has its work go wrong, finds the older checkpoint as it was, and goes on.
void play(Case const& the, InProcess& comm, ModelFiles const& disk, Told& told) {
  auto const rank = static_cast<std::size_t>(comm.rank());
  Trainer<InProcess> trainer(comm);
  auto& optimizer = trainer.optimizer();
  zero::CheckpointOptions const options{.keep = 2, .snapshot_bytes = Checkpoints::plan(optimizer)};
  Files files(disk);
  std::vector<float> older;
  zero::SaveReport before;
  if (the.work != Work::first_save) {
    // Of a job that has ended: the next one takes the lock anew, and cleans up.
    Checkpoints earlier("run", options, Files(disk));
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
  checkpoint_tests::meet(comm);
  Checkpoints checkpoints("run", options, files);
  trainer.step();
  std::vector<float> const newer = trainer.contents();
  if (comm.rank() == the.culprit) files.set(the.fault);
  std::string error;
  zero::ErrorKind kind{};
  try {
    if (the.work == Work::load) {
      auto const found = checkpoints.latest(optimizer);
      // An older one only if it is said why.
      bool const it = found && found->path == before.path;
      bool const says = rank == 0 && found && !found->skipped.empty();
      if (!it && !says && rank == 0)
        told.complain("finds another checkpoint, and does not say why");
      if (it) checkpoints.load(optimizer, *found);
    } else if (the.work == Work::save_async) {
      checkpoints.save_async(optimizer);
      while (checkpoints.pending() && !checkpoints.poll()) {
      }
    } else {
      checkpoints.save(optimizer);
    }
  } catch (zero::Error const& caught) {
    error = caught.message();
    kind = caught.kind();
  }
  try {
    // What is removed after the save is a part of it.
    static_cast<void>(checkpoints.list());
  } catch (zero::Error const&) {
  }
  for (std::size_t i = 0; i < checkpoint_tests::file_calls.size(); ++i) {
    told.calls[rank][i] = files.calls(static_cast<FileCall>(i));
  }
  if (files.struck() > 0) {
    std::lock_guard const lock(told.mutex);
    told.struck = true;
  }
  files.set({});
  told.errors[rank] = error;
  // Whether what cannot be read is damaged, a load does not know.
  bool const expected = kind == zero::ErrorKind::resource ||
                        (the.work == Work::load && kind == zero::ErrorKind::data);
  if (!error.empty() && !expected) {
    told.complain("another kind of error: " + error);
  }

  // The one before is as it was; the new one is whole, or is none.
  checkpoint_tests::meet(comm);
  auto const found = checkpoints.latest(optimizer);
  bool const is_older = found ? found->path == before.path : before.path.empty();
  if (!found && !is_older) return told.complain("no checkpoint is left");
  if (!is_older && the.work == Work::load) told.complain("another checkpoint is there");
  if (is_older && error.empty() && the.work != Work::load) told.complain("no new checkpoint");
  if (found) {
    checkpoints.load(optimizer, *found);
    if (trainer.contents() != (is_older ? older : newer)) told.complain("other values are loaded");
  }
  if (rank == 0 && !before.path.empty() && !zero::verify_checkpoint(before.path, disk).empty()) {
    told.complain("the older checkpoint does not verify");
  }

  // And the next save is one, even if the machine dies right then. It tells what could not be
  // removed before.
  trainer.step();
  zero::SaveReport last;
  try {
    last = checkpoints.save(optimizer);
  } catch (zero::Error const& caught) {
    if (caught.kind() != zero::ErrorKind::resource || !error.empty()) {
      told.complain("the next save fails: " + std::string(caught.what()));
    }
    last.path = checkpoints.latest(optimizer)->path;
    if (last.path == (found ? found->path : "")) told.complain("the next save is none");
  }
  if (rank == 0) static_cast<void>(checkpoints.list());
  if (comm.rank() == 0) {
    zero::BasicCheckpoints<ModelFiles> later("run", {}, disk.crashed(disk.changes(), 0));
    auto const durable = later.latest();
    if (!durable || durable->path != last.path) told.complain("the next save is not durable");
    if (later.list().size() > 2) told.complain("more than two checkpoints are kept");
  }
  checkpoint_tests::meet(comm);
}

/// Plays a case; says whether its fault took place.
bool run(Case const& the, std::vector<Calls>* calls = nullptr) {
  Told told;
  auto const ranks = static_cast<std::size_t>(the.ranks);
  told.errors.resize(ranks);
  told.calls.resize(ranks);
  ModelFiles disk;
  try {
    zero::run_ranks(the.ranks, [&](InProcess& comm) { play(the, comm, disk, told); });
  } catch (std::exception const& error) {
    told.complain(std::string("later, ") + error.what());
  }
  std::string const& first = told.errors[0];
  for (std::string const& error : told.errors) {
    if (error != first) told.complain("ranks are told '" + first + "' and '" + error + "'");
  }
  if (!first.empty() && !told.struck) told.complain("without a fault: " + first);
  std::string const who = "on rank " + std::to_string(the.culprit) + ": ";
  if (!first.empty() && first.find(who) == std::string::npos)
    told.complain("names nobody: " + first);
  bool const harmless = the.fault && the.fault->error == 0;
  if (harmless && !first.empty()) told.complain("half a read or write is an error: " + first);
  for (std::string const& text : told.complaints) FAIL_CHECK(the.text(), ": ", text);
  if (calls != nullptr) *calls = told.calls;
  return told.struck;
}

/// Errors that may be passed over: what is not known to be wrong is not removed, and what is to be
/// removed is tried again by the next save.
TEST_CASE("a fault at any operation of any rank is one error on all, or none, and costs nothing") {
  std::size_t const most = checkpoint_tests::runs(150);
  std::vector<Case> cases;
  for (int const ranks : {1, 2, 3}) {
    for (Work const work : {Work::first_save, Work::save, Work::save_async, Work::load}) {
      std::vector<Calls> calls;
      Case const sound{.ranks = ranks, .work = work};
      run(sound, &calls);
      for (int rank = 0; rank < ranks; ++rank) {
        for (std::size_t call = 0; call < checkpoint_tests::file_calls.size(); ++call) {
          std::size_t const count = calls[static_cast<std::size_t>(rank)][call];
          for (std::size_t at = 0; at < count; ++at) {
            for (int const error : {ENOSPC, EIO, 0}) {
              auto const only = static_cast<FileCall>(call);
              bool const moves = only == FileCall::read || only == FileCall::write;
              if (error == 0 && !moves) continue;
              for (bool const for_good : {false, true}) {
                cases.push_back(
                    {.ranks = ranks,
                     .work = work,
                     .culprit = rank,
                     .fault =
                         FileFault{.only = only, .at = at, .error = error, .for_good = for_good}});
              }
            }
          }
        }
      }
    }
  }
  std::size_t const stride = std::max<std::size_t>(cases.size() / most, 1);
  std::size_t played = 0;
  std::size_t struck = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Case const& the = cases[i];
    bool const plain = the.ranks == 1 && the.fault->error == EIO && !the.fault->for_good;
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
    Trainer<InProcess> trainer(comm);
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
    std::string said;
    try {
      run.save(trainer.optimizer());
    } catch (zero::Error const& error) {
      said = error.message();
    }
    INFO(said);
    CHECK(said.starts_with("on rank 0: cannot remove '" + first + "/manifest.json'"));
    auto const third = run.latest(trainer.optimizer());
    CHECK(third->step == 3);
    if (comm.rank() == 0) CHECK(run.list().size() == 1);
    checkpoint_tests::meet(comm);
    trainer.step();
    CHECK(run.save(trainer.optimizer()).step == 4);
  });
}

}  // namespace
}  // namespace faults_test
