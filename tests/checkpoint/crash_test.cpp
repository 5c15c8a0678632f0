#include "checkpoint/proof.hpp"

// A machine that dies at any operation of a save, and what it finds afterwards.
namespace crash_test {
namespace {

using namespace checkpoint_tests;
using zero::InProcess;
using Trainer = checkpoint_tests::Trainer<InProcess>;

using Contents = std::vector<std::vector<float>>;  ///< by rank

/// What a run does: a letter for each step that it makes and what follows it, (s)ave, save as an
/// (o)lder version did, without a mark, save_async and (f)inish, or save_async that is (a)bandoned.
struct Script {
  int ranks = 1;
  int keep = 0;
  std::string_view saves{};
};

/// A run that was recorded.
struct Recorded {
  ModelFiles files{};
  std::vector<Contents> saved{};       ///< after each step, that before the first included
  std::vector<std::size_t> durable{};  ///< changes after which a step's save had returned
};

Recorded record(Script const& script) {
  Recorded run;
  auto const ranks = static_cast<std::size_t>(script.ranks);
  run.saved.resize(script.saves.size() + 1, Contents(ranks));
  run.durable.resize(script.saves.size() + 1);
  zero::run_ranks(script.ranks, [&](InProcess& comm) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    Trainer trainer(comm);
    zero::CheckpointOptions const options{
        .keep = script.keep, .snapshot_bytes = zero::Checkpoints::plan(trainer.optimizer())};
    std::optional<zero::Checkpoints> checkpoints;
    for (std::size_t i = 1; i <= script.saves.size(); ++i) {
      if (!checkpoints) checkpoints.emplace("run", options, run.files);
      trainer.step();
      run.saved[i][rank] = trainer.contents();
      char const save = script.saves[i - 1];
      if (save == 's' || save == 'o') {
        auto const saved = checkpoints->save(trainer.optimizer(), {.user = {{"step", i}}});
        if (save == 'o' && rank == 0) {
          CHECK(run.files.remove(saved.path + "/files.json") == 0);
          CHECK(run.files.sync_directory(saved.path) == 0);
        }
      } else {
        checkpoints->save_async(trainer.optimizer(), {.user = {{"step", i}}});
        if (save == 'f') checkpoints->finish();
      }
      if (save == 'a') checkpoints.reset();
      if (rank == 0) run.durable[i] = save == 'a' ? 0 : run.files.changes();
    }
  });
  return run;
}

/// What is wrong after a crash; empty if nothing is. Collective.
class Survivor {
 public:
  Survivor(Recorded const& run, InProcess& comm)
      : run_(run), rank_(static_cast<std::size_t>(comm.rank())), trainer_(comm) {
    trainer_.step();
  }

  std::string look(ModelFiles files, std::size_t changes) {
    // The newest that was durable, and all that may have been on their way since.
    std::size_t oldest = 0;
    std::size_t newest = 0;
    for (std::size_t i = 1; i < run_.durable.size(); ++i) {
      newest = i;
      if (run_.durable[i] == 0) continue;
      if (run_.durable[i] > changes) break;
      oldest = i;
    }
    files_ = std::move(files);
    zero::Checkpoints checkpoints("run", {.keep = 1}, files_);
    auto const found = checkpoints.latest(trainer_.optimizer());
    if (!found) return oldest == 0 ? again(checkpoints, 1) : "no checkpoint is found";
    auto const step = static_cast<std::size_t>(found->step);
    std::string const name = "the checkpoint of step " + std::to_string(step);
    if (step < oldest || step > newest || run_.durable[step] == 0) return name + " is found";
    zero::LoadReport const report = checkpoints.load(trainer_.optimizer(), *found);
    if (trainer_.contents() != run_.saved[step][rank_]) return name + " has other values";
    if (report.user != nlohmann::json{{"step", step}}) return name + " has other JSON";
    if (auto const problems = zero::verify_checkpoint(found->path, files_); !problems.empty()) {
      return name + " does not verify: " + problems[0];
    }
    return again(checkpoints, found->number + 1);
  }

 private:
  /// Training goes on, and so do saves: only the newest is left then, and is durable.
  std::string again(zero::Checkpoints& checkpoints, std::uint64_t number) {
    trainer_.step();
    zero::SaveReport const report = checkpoints.save(trainer_.optimizer());
    // The first rank removes, and waits for that before it looks; then others look.
    static_cast<void>(checkpoints.latest(trainer_.optimizer()));
    auto const list = checkpoints.list();
    if (list.size() != 1 || list[0].path != report.path || list[0].number < number) {
      return "after the next save there are " + std::to_string(list.size()) + " checkpoints";
    }
    if (rank_ != 0) return {};
    if (std::string const left = files_left(list[0].path); !left.empty()) {
      return "after the next save there is still " + left;
    }
    ModelFiles found = files_.crashed(files_.changes(), 0);
    zero::Checkpoints later("run", {}, found);
    auto const durable = later.latest();
    return durable && durable->path == report.path ? "" : "the next save is not durable";
  }

  /// A file that belongs to no checkpoint, if there is one. Directories may be left, and marks that
  /// were not written to their end.
  std::string files_left(std::string const& checkpoint) {
    std::vector<std::string> names;
    files_.list("run", names);
    for (std::string const& name : names) {
      std::string const path = "run/" + name;
      std::vector<std::string> files;
      if (path == checkpoint || files_.list(path, files) < 0) continue;
      for (std::string const& file : files) {
        if (!file.starts_with("files.json")) return path + "/" + file;
      }
    }
    return {};
  }

  Recorded const& run_;
  std::size_t rank_;
  ModelFiles files_{};
  Trainer trainer_;
};

TEST_CASE("after a crash anywhere, the old or the new checkpoint loads, and training goes on") {
  std::size_t const wanted = runs(1'000);
  std::vector<Script> scripts;
  for (int const ranks : {1, 2, 3}) {
    scripts.push_back({.ranks = ranks, .keep = 0, .saves = "ss"});
    scripts.push_back({.ranks = ranks, .keep = 1, .saves = "sfsa"});
    scripts.push_back({.ranks = ranks, .keep = 2, .saves = "fasfss"});
    scripts.push_back({.ranks = ranks, .keep = 1, .saves = "oos"});
  }
  std::vector<Recorded> runs;
  std::size_t places = 0;
  for (Script const& script : scripts) {
    runs.push_back(record(script));
    places += runs.back().files.changes() + 1;
  }
  std::size_t const seeds = std::max<std::size_t>(wanted / places, 1);
  std::size_t states = 0;
  std::mutex mutex;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    Recorded const& run = runs[r];
    std::size_t const last = run.files.changes();
    // One state, made once for all ranks.
    ModelFiles state;
    zero::run_ranks(scripts[r].ranks, [&](InProcess& comm) {
      Survivor survivor(run, comm);
      for (std::size_t i = 0; i < (last + 1) * seeds; ++i) {
        std::size_t const changes = i / seeds;
        // With few seeds, places take turns with them.
        std::uint64_t const seed = seeds < 8 ? i % 8 : i % seeds;
        meet(comm);
        if (comm.rank() == 0) state = run.files.crashed(changes, seed);
        meet(comm);
        std::string const problem = survivor.look(state, changes);
        if (problem.empty()) continue;
        std::lock_guard const lock(mutex);
        INFO(scripts[r].ranks << " ranks, " << scripts[r].saves << ", seed " << seed);
        INFO("crash behind change " << changes << " of " << last);
        INFO((changes > 0 ? run.files.change(changes - 1) : "none"));
        FAIL_CHECK(problem);
      }
    });
    states += (last + 1) * seeds;
  }
  CHECK(states >= places);
  MESSAGE(states, " states after crashes at ", places, " places");
}

}  // namespace
}  // namespace crash_test
