#include "checkpoint/model_files.hpp"
#include "support/toy_model.hpp"
#include "zero/checkpoint.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

// A disk that stands still holds one rank, and tells all.
namespace standing_test {
namespace {

using checkpoint_tests::ModelFiles;
using zero::FileAnswer;

enum class Where { nowhere, write, sync, read, list };

/// Operations of one kind wait until somebody lets them go on.
struct StandingFiles : ModelFiles {
  StandingFiles(ModelFiles const& files, Where kind, std::shared_ptr<std::atomic<bool>> gate)
      : ModelFiles(files), where(kind), opened(std::move(gate)) {}

  FileAnswer write(FileAnswer file, void const* from, std::size_t bytes, std::uint64_t offset) {
    wait(Where::write);
    return ModelFiles::write(file, from, bytes, offset);
  }
  FileAnswer sync(FileAnswer file) {
    wait(Where::sync);
    return ModelFiles::sync(file);
  }
  FileAnswer read(FileAnswer file, void* to, std::size_t bytes, std::uint64_t offset) {
    wait(Where::read);
    return ModelFiles::read(file, to, bytes, offset);
  }
  FileAnswer list(std::string const& path, std::vector<std::string>& names) {
    wait(Where::list);
    return ModelFiles::list(path, names);
  }
  void wait(Where here) const {
    while (where == here && !*opened) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  Where where;
  std::shared_ptr<std::atomic<bool>> opened;
};

/// What ranks are told where the file system of `victim` stands still.
std::vector<std::string> told(ModelFiles const& files, int victim, Where where, bool load) {
  constexpr int ranks = 3;
  std::vector<std::string> texts(ranks);
  auto const gate = std::make_shared<std::atomic<bool>>(false);
  std::atomic<int> heard{0};
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, toy::model(), zero::stage::PosGP{}};
    toy::load(optimizer);
    StandingFiles const own(files, comm.rank() == victim ? where : Where::nowhere, gate);
    zero::BasicCheckpoints<StandingFiles> run("run", {.file_deadline_s = 0.3}, own);
    try {
      if (load) static_cast<void>(run.resume(optimizer));
      if (!load) run.save(optimizer);
    } catch (zero::Error const& error) {
      CHECK(error.kind() == zero::ErrorKind::resource);
      texts[static_cast<std::size_t>(comm.rank())] = error.message();
    }
    // The others are free while the victim waits for its disk; it hears the same then.
    if (comm.rank() != victim && ++heard == ranks - 1) *gate = true;
  });
  return texts;
}

void check(ModelFiles const& files, int victim, Where where, bool load, std::string const& words) {
  CAPTURE(victim);
  auto const texts = told(files, victim, where, load);
  std::string const begin = "on rank " + std::to_string(victim) + ": '";
  for (std::string const& text : texts) {
    CHECK(text == texts[0]);
    CHECK_MESSAGE(text.starts_with(begin), text);
    CHECK_MESSAGE(text.find(words) != std::string::npos, text);
    CHECK_MESSAGE(text.ends_with(": the file system stands still"), text);
  }
}

TEST_CASE("a save that waits for a disk ends on all ranks, which are told whose file it is") {
  for (int const victim : {0, 2}) {
    std::string const file =
        "run/000001-step-0/rank-0000" + std::to_string(victim) + ".safetensors.tmp': ";
    std::string const end = " has not returned for 0.3 s";
    if (victim == 0)
      check({}, 0, Where::sync, false, "run/000001-step-0/files.json.tmp': sync" + end);
    if (victim == 2) check({}, 2, Where::write, false, file + "write" + end);
    if (victim == 2) check({}, 2, Where::sync, false, file + "sync" + end);
  }
}

TEST_CASE("a load that waits for a disk ends on all ranks, too") {
  ModelFiles files;
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, toy::model(), zero::stage::PosGP{}};
    toy::load(optimizer);
    zero::BasicCheckpoints<ModelFiles> run("run", {}, files);
    run.save(optimizer);
  });
  check(files, 0, Where::list, true, "'run': list has not returned");
  check(files, 2, Where::read, true, ": read has not returned");
}

TEST_CASE("a deadline of nothing is refused") {
  for (double const deadline : {0., -1., 0. / 0.}) {
    CHECK_THROWS_AS(zero::Checkpoints("run", {.file_deadline_s = deadline}), zero::Error);
  }
}

}  // namespace
}  // namespace standing_test
