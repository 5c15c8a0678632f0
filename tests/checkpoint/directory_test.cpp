// Directories that have more in them than checkpoints: what is found there, and that a save removes
// nothing that is not shown to be a checkpoint's.
#include "checkpoint/temporary_directory.hpp"
#include "checkpoint/trainer.hpp"
#include "zero/checkpoint.hpp"
#include "zero/checkpoint/offline.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace directory_test {
namespace {

namespace fs = std::filesystem;
using checkpoint_tests::TemporaryDirectory;
using Trainer = checkpoint_tests::Trainer<zero::InProcess>;

/// Kind and text of the error that `work` ends with; empty if it does not.
template <class Work>
std::string message_of(Work&& work) {
  try {
    work();
  } catch (zero::Error const& error) {
    return std::string(name(error.kind())) + ": " + error.message();
  }
  return "";
}

/// A job of one rank, with a trainer.
template <class Body>
void alone(Body const& body) {
  zero::run_ranks(1, [&](zero::InProcess& comm) {
    Trainer trainer(comm);
    body(trainer.optimizer());
  });
}

/// One save by a job of its own. Returns the name of the checkpoint's directory.
std::string save(std::string const& run, int keep = 0) {
  std::string path;
  alone([&](auto& optimizer) {
    path = zero::Checkpoints{run, {.keep = keep}}.save(optimizer).path;
  });
  return fs::path(path).filename().string();
}

/// A path in a directory.
std::string in(std::string const& directory, std::string const& name) {
  return (fs::path(directory) / name).string();
}

void write(fs::path const& path, std::string const& text = "mine") {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

/// All that lies below a path, links not followed, with the contents of files.
std::map<std::string, std::string> tree(fs::path const& path) {
  std::map<std::string, std::string> all;
  for (auto const& entry : fs::recursive_directory_iterator(path)) {
    std::string& text = all[entry.path().lexically_relative(path).string()];
    if (entry.is_symlink()) {
      text = "-> " + fs::read_symlink(entry.path()).string();
    } else if (entry.is_regular_file()) {
      std::ifstream file(entry.path(), std::ios::binary);
      text.assign(std::istreambuf_iterator<char>(file), {});
    }
  }
  return all;
}

/// What a machine leaves that dies before the manifest is written.
void abandon(std::string const& run) {
  alone([&](auto& optimizer) {
    zero::Checkpoints checkpoints{
        run, {.snapshot_bytes = zero::Checkpoints::plan(optimizer), .lock = false}};
    checkpoints.save_async(optimizer);
  });
}

/// Turns the last byte of a file.
void damage(fs::path const& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('!');
}

}  // namespace

TEST_CASE("a link with a checkpoint's name is never entered, and stays") {
  TemporaryDirectory const directory;
  std::string const run = directory.path() + "/run";
  std::string const other = directory.path() + "/other";
  std::string const saved = save(other);
  write(other + "/begun/rank-00000.safetensors");
  write(other + "/empty/x");
  fs::remove(other + "/empty/x");
  auto const before = tree(other);
  fs::create_directories(run);
  fs::create_directory_symlink(other + "/" + saved, run + "/000001-step-0");
  fs::create_directory_symlink(other + "/begun", run + "/000002-step-0");
  fs::create_directory_symlink(other + "/empty", run + "/000003-step-0");
  fs::create_directory_symlink(other + "/none", run + "/000004-step-0");
  CHECK(zero::Checkpoints{run}.list().empty());
  CHECK(!zero::Checkpoints{run}.latest().has_value());
  for (int i = 0; i < 3; ++i) save(run, 1);
  CHECK(tree(other) == before);
  for (int i = 1; i <= 4; ++i) {
    CHECK(fs::is_symlink(run + "/00000" + std::to_string(i) + "-step-0"));
  }
  CHECK(zero::Checkpoints{run}.list().size() == 1);
  // The directory of a run may be a link: its name is the user's own.
  fs::create_directory_symlink(run, directory.path() + "/link");
  CHECK(zero::Checkpoints{directory.path() + "/link"}.list().size() == 1);
}

TEST_CASE("a link in a checkpoint, or in what was left of one, stays, and so does what it names") {
  TemporaryDirectory const directory;
  std::string const run = directory.path() + "/run";
  write(directory.path() + "/mine/file");
  auto const before = tree(directory.path() + "/mine");
  std::string const first = run + "/" + save(run);
  fs::create_directory_symlink(directory.path() + "/mine", first + "/link");
  fs::rename(first + "/rank-00000.safetensors", directory.path() + "/moved");
  fs::create_symlink(directory.path() + "/moved", first + "/rank-00000.safetensors");
  CHECK(zero::Checkpoints{run}.list().size() == 1);
  save(run, 1);
  CHECK(zero::Checkpoints{run}.list().size() == 1);
  CHECK(tree(directory.path() + "/mine") == before);
  CHECK(fs::is_symlink(first + "/rank-00000.safetensors"));
  CHECK(fs::is_symlink(first + "/link"));
  CHECK(fs::exists(directory.path() + "/moved"));
}

TEST_CASE("what is a user's stays, does not count, and hides no checkpoint") {
  TemporaryDirectory const directory;
  std::string const run = directory.path() + "/run";
  fs::create_directories(run + "/3-step-by-step-guide");
  write(run + "/3-step-notes");
  write(run + "/000005-step-7");
  write(run + "/18446744073709551615-step-0");
  write(run + "/6-step-site/manifest.json", R"({"name": "an app"})");
  write(run + "/6-step-site/rank-1.html");
  // As a version before marks left it, or as anybody made it.
  write(run + "/000007-step-9/rank-00000.safetensors");
  fs::create_directories(run + "/000008-step-9");
  auto const users = tree(run);
  CHECK(!zero::Checkpoints{run}.latest().has_value());
  CHECK(save(run) == "000001-step-0");
  for (int i = 0; i < 3; ++i) save(run, 1);
  auto const found = zero::Checkpoints{run}.latest();
  REQUIRE(found.has_value());
  CHECK(found->number == 4);
  CHECK(found->skipped.empty());
  CHECK(zero::Checkpoints{run}.list().size() == 1);
  auto const after = tree(run);
  for (auto const& entry : users) {
    CAPTURE(entry.first);
    REQUIRE(after.count(entry.first) == 1);
    CHECK(after.at(entry.first) == entry.second);
  }
  // A name that is taken is passed over.
  fs::create_directories(run + "/000005-step-0");
  CHECK(save(run) == "000006-step-0");
}

TEST_CASE("of a checkpoint that is removed, only the files go that it says are its own") {
  TemporaryDirectory const directory;
  std::string const run = directory.path() + "/run";
  std::string const first = run + "/" + save(run);
  write(first + "/rank-notes.txt");
  write(first + "/rank-of-mine/file");
  std::string const second = save(run, 1);
  CHECK(tree(first) == std::map<std::string, std::string>{{"rank-notes.txt", "mine"},
                                                          {"rank-of-mine", ""},
                                                          {"rank-of-mine/file", "mine"}});
  save(run, 1);
  CHECK(!fs::exists(run + "/" + second));
  CHECK(fs::exists(first + "/rank-notes.txt"));
}

TEST_CASE("what a save left that never ended is removed, but for what is not the save's") {
  TemporaryDirectory const directory;
  std::string const run = directory.path() + "/run";
  abandon(run);
  REQUIRE(fs::exists(run + "/000001-step-0"));
  CHECK(save(run) == "000002-step-0");
  CHECK(!fs::exists(run + "/000001-step-0"));
  abandon(run);
  std::string const left = run + "/000003-step-0";
  REQUIRE(fs::exists(left));
  write(left + "/rank-00007.safetensors/file");
  fs::remove(left + "/rank-00000.safetensors");
  fs::remove(left + "/rank-00000.safetensors.tmp");
  write(left + "/rank-00000.safetensors/file");
  for (int i = 0; i < 2; ++i) save(run, 1);
  CHECK(zero::Checkpoints{run}.list().size() == 1);
  CHECK(tree(left) == std::map<std::string, std::string>{{"rank-00000.safetensors", ""},
                                                         {"rank-00000.safetensors/file", "mine"},
                                                         {"rank-00007.safetensors", ""},
                                                         {"rank-00007.safetensors/file", "mine"}});
}

TEST_CASE("a damaged checkpoint is removed with older ones while it can be shown to be one") {
  TemporaryDirectory const directory;
  std::string const run = directory.path() + "/run";
  std::vector<std::string> paths;
  for (int i = 0; i < 4; ++i) paths.push_back(run + "/" + save(run));
  // Its list of files is sound, or its mark is.
  fs::resize_file(paths[0] + "/rank-00000.safetensors", 10);
  fs::remove(paths[0] + "/files.json");
  damage(paths[1] + "/manifest.json");
  // Neither is.
  damage(paths[2] + "/manifest.json");
  damage(paths[2] + "/files.json");
  auto const stays = tree(paths[2]);
  CHECK(zero::Checkpoints{run}.list().size() == 1);
  save(run, 1);
  CHECK(!fs::exists(paths[0]));
  CHECK(!fs::exists(paths[1]));
  CHECK(tree(paths[2]) == stays);
  CHECK(!fs::exists(paths[3]));
  CHECK(zero::Checkpoints{run}.latest()->skipped.empty());
}

TEST_CASE("a number beyond those that saves give is told of, and counts for nothing") {
  TemporaryDirectory const directory;
  for (std::string const number : {"18446744073709551615",
                                   "18446744073709551614",
                                   "9223372036854775807",
                                   "1000000000000000",
                                   "99999999999999999999999999"}) {
    CAPTURE(number);
    std::string const run = directory.path() + "/" + number;
    std::string const odd = in(run, number + "-step-0");
    fs::rename(run + "/" + save(run), odd);
    auto const before = tree(odd);
    std::string const said =
        message_of([&] { static_cast<void>(zero::Checkpoints{run}.latest()); });
    INFO(said);
    CHECK(said.starts_with("data: "));
    CHECK(said.find("'" + odd + "' has a number above 999999999999999, which no save gives") !=
          std::string::npos);
    CHECK(save(run, 1) == "000001-step-0");
    CHECK(save(run, 1) == "000002-step-0");
    auto const found = zero::Checkpoints{run}.latest();
    REQUIRE(found.has_value());
    CHECK(found->path == run + "/000002-step-0");
    REQUIRE(found->skipped.size() == 1);
    CHECK(found->skipped[0].find(odd) != std::string::npos);
    CHECK(zero::Checkpoints{run}.list().size() == 1);
    CHECK(tree(odd) == before);
    CHECK(zero::verify_checkpoint(odd).empty());
  }
  // The largest that counts is the last.
  std::string const run = directory.path() + "/last";
  fs::rename(run + "/" + save(run), run + "/999999999999998-step-0");
  CHECK(save(run, 1) == "999999999999999-step-0");
  auto const before = tree(run);
  std::string const said = message_of([&] { save(run, 1); });
  INFO(said);
  CHECK(said == "data: on rank 0: '" + run +
                    "/999999999999999-step-0' has the largest number "
                    "that there is: give it a smaller one, and save again");
  CHECK(tree(run) == before);
  CHECK(zero::Checkpoints{run}.latest()->number == 999999999999999);
}

TEST_CASE("a lock that is no file is refused, and nothing is made elsewhere") {
  TemporaryDirectory const directory;
  std::string const run = directory.path() + "/run";
  fs::create_directories(run);
  fs::create_symlink(directory.path() + "/elsewhere", run + "/lock");
  std::string const said = message_of([&] { save(run); });
  INFO(said);
  CHECK(said == "data: on rank 0: '" + run + "/lock' is a link, which no save makes");
  CHECK(!fs::exists(directory.path() + "/elsewhere"));
  CHECK(fs::is_symlink(run + "/lock"));
  fs::remove(run + "/lock");
  REQUIRE(::mkfifo((run + "/lock").c_str(), 0600) == 0);
  CHECK(message_of([&] { save(run); }) == "data: on rank 0: '" + run + "/lock' is no regular file");
  CHECK(tree(run).size() == 1);
}

TEST_CASE("a checkpoint that was renamed is found and loaded on any number of ranks") {
  TemporaryDirectory const directory;
  for (std::string const renamed :
       {"1-step-0", "000001-step-7", "000001-step-0-before-the-change", "0000000000000001-step-"}) {
    CAPTURE(renamed);
    std::string const run = directory.path() + "/" + renamed;
    fs::rename(in(run, save(run)), in(run, renamed));
    for (int const ranks : {1, 3}) {
      zero::run_ranks(ranks, [&](zero::InProcess& comm) {
        Trainer trainer(comm);
        zero::Checkpoints checkpoints{run};
        auto const found = checkpoints.latest(trainer.optimizer());
        REQUIRE(found.has_value());
        CHECK(found->path == in(run, renamed));
        CHECK(found->number == 1);
        CHECK(found->step == 0);
        CHECK(message_of([&] { checkpoints.load(trainer.optimizer(), *found); }).empty());
      });
    }
    CHECK(save(run) == "000002-step-0");
  }
}

TEST_CASE("where a file should be and something else is, that is said, and nobody waits for it") {
  TemporaryDirectory const directory;
  std::string const run = directory.path() + "/run";
  save(run);
  std::string const newest = run + "/" + save(run);
  std::string const words = "' is no regular file";
  for (std::string const name : {"manifest.json", "rank-00000.safetensors", "files.json"}) {
    for (bool const pipe : {true, false}) {
      CAPTURE(name);
      CAPTURE(pipe);
      std::string const path = in(newest, name);
      std::string const refused = std::string("'").append(path).append("' is no regular file");
      fs::rename(path, directory.path() + "/aside");
      if (pipe) {
        REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
      } else {
        fs::create_directories(path);
      }
      auto const found = zero::Checkpoints{run}.latest();
      REQUIRE(found.has_value());
      if (name == "files.json") {
        CHECK(found->path == newest);
      } else {
        REQUIRE(found->skipped.size() == 1);
        CHECK(found->skipped[0] == refused);
        CHECK(zero::verify_checkpoint(newest) == std::vector<std::string>{refused});
        alone([&](auto& optimizer) {
          std::string const said = message_of(
              [&] { zero::Checkpoints{run}.load(optimizer, {.path = newest, .number = 2}); });
          CHECK(said == "data: on rank 0: " + refused);
        });
        std::string const next = in(run, save(run));
        CHECK(zero::Checkpoints{run}.latest()->path == next);
        CHECK(zero::Checkpoints{run}.latest()->skipped.empty());
        fs::remove_all(next);
      }
      fs::remove_all(path);
      fs::rename(directory.path() + "/aside", path);
    }
  }
  std::string const model = directory.path() + "/model.safetensors";
  REQUIRE(::mkfifo(model.c_str(), 0600) == 0);
  alone([&](auto& optimizer) {
    CHECK(message_of([&] { zero::load_parameters_from(optimizer, model); }) ==
          "data: on rank 0: '" + model + words);
  });
  // Also where an export would put what becomes the file.
  REQUIRE(::mkfifo((directory.path() + "/out.tmp").c_str(), 0600) == 0);
  CHECK(message_of([&] { zero::export_checkpoint(newest, directory.path() + "/out"); }) ==
        "data: '" + directory.path() + "/out.tmp" + words);
  write(directory.path() + "/precious");
  fs::remove(directory.path() + "/out.tmp");
  fs::create_symlink(directory.path() + "/precious", directory.path() + "/out.tmp");
  CHECK(message_of([&] { zero::export_checkpoint(newest, directory.path() + "/out"); }) ==
        "data: '" + directory.path() + "/out.tmp' is a link, which no save makes");
  CHECK(fs::file_size(directory.path() + "/precious") == 4);
}

}  // namespace directory_test
