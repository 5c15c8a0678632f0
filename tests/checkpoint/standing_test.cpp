#include "checkpoint/faulty_files.hpp"
#include "checkpoint/proof.hpp"
#include "support/standard.hpp"

// A disk that stands still holds one rank, and tells all.
namespace standing_test {
namespace {

using namespace checkpoint_tests;
using Files = FaultyFiles<ModelFiles>;

/// What ranks are told where operations of one kind stand still for `victim`.
void check(
    ModelFiles const& disk, int victim, FileCall where, bool load, std::string const& words) {
  CAPTURE(victim);
  constexpr int ranks = 3;
  auto const opened = std::make_shared<std::atomic<bool>>(false);
  std::atomic<int> heard = 0;
  std::string const text = failure_of_all(ranks, [&](zero::InProcess& comm) {
    checkpoint_tests::Trainer<zero::InProcess> trainer(comm);
    Files files(disk);
    if (comm.rank() == victim) {
      files.set({{.only = where, .for_good = true, .meanwhile = [opened](FileCall) {
                    while (!*opened) std::this_thread::sleep_for(std::chrono::milliseconds(5));
                  }}});
    }
    zero::Checkpoints run("run", {.file_deadline_s = 0.3}, files);
    try {
      if (load) static_cast<void>(run.resume(trainer.optimizer()));
      if (!load) run.save(trainer.optimizer());
    } catch (zero::Error const&) {
      // The others are free while the victim waits for its disk; it hears the same then.
      if (comm.rank() != victim && ++heard == ranks - 1) *opened = true;
      throw;
    }
  });
  CHECK_MESSAGE(text.starts_with("resource: on rank " + std::to_string(victim) + ": '"), text);
  check_says(text, words);
  CHECK_MESSAGE(text.ends_with(": the file system stands still"), text);
}

TEST_CASE("a save that waits for a disk ends on all ranks, which are told whose file it is") {
  std::string const run = "run/000001-step-0/";
  std::string const end = " has not returned for 0.3 s";
  check({}, 0, FileCall::sync, false, run + "files.json.tmp': sync" + end);
  check({}, 2, FileCall::write, false, run + "rank-00002.safetensors.tmp': write" + end);
  check({}, 2, FileCall::sync, false, run + "rank-00002.safetensors.tmp': sync" + end);
}

TEST_CASE("a load that waits for a disk ends on all ranks, too") {
  ModelFiles files;
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    checkpoint_tests::Trainer<zero::InProcess> trainer(comm);
    zero::Checkpoints("run", {}, files).save(trainer.optimizer());
  });
  check(files, 0, FileCall::list, true, "'run': list has not returned");
  check(files, 2, FileCall::read, true, ": read has not returned");
}

TEST_CASE("a deadline of nothing is refused") {
  for (double const deadline : {0., -1., 0. / 0.}) {
    CHECK_THROWS_AS(zero::Checkpoints("run", {.file_deadline_s = deadline}), zero::Error);
  }
}

}  // namespace
}  // namespace standing_test
