// Directories that have more in them than checkpoints: what is found there, and that a save removes
// nothing that is not shown to be a checkpoint's.
#include "checkpoint/proof.hpp"
#include "zero/checkpoint/offline.hpp"

#include <sys/stat.h>

#include <fstream>

namespace directory_test {
namespace {

namespace fs = std::filesystem;
using namespace checkpoint_tests;
using Trainer = checkpoint_tests::Trainer<zero::InProcess>;
using zero::Checkpoints;
using Tree = std::map<std::string, std::string>;

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
  alone([&](auto& optimizer) { path = Checkpoints{run, {.keep = keep}}.save(optimizer).path; });
  return fs::path(path).filename().string();
}

void write(fs::path const& path, std::string const& text = "mine") {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

/// All that lies below a path, links not followed, with the contents of files.
Tree tree(fs::path const& path) {
  Tree all;
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
    Checkpoints checkpoints{run, {.snapshot_bytes = Checkpoints::plan(optimizer), .lock = false}};
    checkpoints.save_async(optimizer);
  });
}

/// Turns the last byte of a file.
void damage(fs::path const& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('!');
}

/// A directory, and that of a run in it.
struct Place {
  TemporaryDirectory directory{};
  std::string top = directory.path();
  std::string run = top + "/run";
};

}  // namespace

TEST_CASE("a link with a checkpoint's name is never entered, and stays") {
  Place const at;
  std::string const other = at.top + "/other";
  std::string const saved = save(other);
  write(other + "/begun/rank-00000.safetensors");
  fs::create_directories(other + "/empty");
  auto const before = tree(other);
  fs::create_directories(at.run);
  int number = 0;
  for (std::string const& target :
       {saved, std::string("begun"), std::string("empty"), std::string("none")}) {
    fs::create_directory_symlink(other + "/" + target,
                                 at.run + "/00000" + std::to_string(++number) + "-step-0");
  }
  CHECK(Checkpoints{at.run}.list().empty());
  CHECK(!Checkpoints{at.run}.latest().has_value());
  for (int i = 0; i < 3; ++i) save(at.run, 1);
  CHECK(tree(other) == before);
  for (int i = 1; i <= 4; ++i) {
    CHECK(fs::is_symlink(at.run + "/00000" + std::to_string(i) + "-step-0"));
  }
  CHECK(Checkpoints{at.run}.list().size() == 1);
  // The directory of a run may be a link: its name is the user's own.
  fs::create_directory_symlink(at.run, at.top + "/link");
  CHECK(Checkpoints{at.top + "/link"}.list().size() == 1);
}

TEST_CASE("a link in a checkpoint, or in what was left of one, stays, and so does what it names") {
  Place const at;
  write(at.top + "/mine/file");
  auto const before = tree(at.top + "/mine");
  std::string const first = at.run + "/" + save(at.run);
  fs::create_directory_symlink(at.top + "/mine", first + "/link");
  fs::rename(first + "/rank-00000.safetensors", at.top + "/moved");
  fs::create_symlink(at.top + "/moved", first + "/rank-00000.safetensors");
  CHECK(Checkpoints{at.run}.list().size() == 1);
  save(at.run, 1);
  CHECK(Checkpoints{at.run}.list().size() == 1);
  CHECK(tree(at.top + "/mine") == before);
  CHECK(fs::is_symlink(first + "/rank-00000.safetensors"));
  CHECK(fs::is_symlink(first + "/link"));
  CHECK(fs::exists(at.top + "/moved"));
}

TEST_CASE("what is a user's stays, does not count, and hides no checkpoint") {
  Place const at;
  fs::create_directories(at.run + "/3-step-by-step-guide");
  write(at.run + "/3-step-notes");
  write(at.run + "/000005-step-7");
  write(at.run + "/18446744073709551615-step-0");
  write(at.run + "/6-step-site/manifest.json", R"({"name": "an app"})");
  write(at.run + "/6-step-site/rank-1.html");
  // As a version before marks left it, or as anybody made it.
  write(at.run + "/000007-step-9/rank-00000.safetensors");
  fs::create_directories(at.run + "/000008-step-9");
  Tree const users = tree(at.run);
  CHECK(!Checkpoints{at.run}.latest().has_value());
  CHECK(save(at.run) == "000001-step-0");
  for (int i = 0; i < 3; ++i) save(at.run, 1);
  auto const found = Checkpoints{at.run}.latest();
  REQUIRE(found.has_value());
  CHECK(found->number == 4);
  CHECK(found->skipped.empty());
  CHECK(Checkpoints{at.run}.list().size() == 1);
  Tree const after = tree(at.run);
  for (auto const& entry : users) {
    CAPTURE(entry.first);
    REQUIRE(after.count(entry.first) == 1);
    CHECK(after.at(entry.first) == entry.second);
  }
  // A name that is taken is passed over.
  fs::create_directories(at.run + "/000005-step-0");
  CHECK(save(at.run) == "000006-step-0");
}

TEST_CASE("of a checkpoint that is removed, only the files go that it says are its own") {
  Place const at;
  std::string const first = at.run + "/" + save(at.run);
  write(first + "/rank-notes.txt");
  write(first + "/rank-of-mine/file");
  std::string const second = save(at.run, 1);
  CHECK(tree(first) ==
        Tree{{"rank-notes.txt", "mine"}, {"rank-of-mine", ""}, {"rank-of-mine/file", "mine"}});
  save(at.run, 1);
  CHECK(!fs::exists(at.run + "/" + second));
  CHECK(fs::exists(first + "/rank-notes.txt"));
}

TEST_CASE("what a save left that never ended is removed, but for what is not the save's") {
  Place const at;
  abandon(at.run);
  REQUIRE(fs::exists(at.run + "/000001-step-0"));
  CHECK(save(at.run) == "000002-step-0");
  CHECK(!fs::exists(at.run + "/000001-step-0"));
  abandon(at.run);
  std::string const left = at.run + "/000003-step-0";
  REQUIRE(fs::exists(left));
  write(left + "/rank-00007.safetensors/file");
  fs::remove(left + "/rank-00000.safetensors");
  fs::remove(left + "/rank-00000.safetensors.tmp");
  write(left + "/rank-00000.safetensors/file");
  for (int i = 0; i < 2; ++i) save(at.run, 1);
  CHECK(Checkpoints{at.run}.list().size() == 1);
  CHECK(tree(left) == Tree{{"rank-00000.safetensors", ""},
                           {"rank-00000.safetensors/file", "mine"},
                           {"rank-00007.safetensors", ""},
                           {"rank-00007.safetensors/file", "mine"}});
}

TEST_CASE("a damaged checkpoint is removed with older ones while it can be shown to be one") {
  Place const at;
  std::vector<std::string> paths;
  for (int i = 0; i < 4; ++i) paths.push_back(at.run + "/" + save(at.run));
  // Its list of files is sound, or its mark is.
  fs::resize_file(paths[0] + "/rank-00000.safetensors", 10);
  fs::remove(paths[0] + "/files.json");
  damage(paths[1] + "/manifest.json");
  // Neither is.
  damage(paths[2] + "/manifest.json");
  damage(paths[2] + "/files.json");
  Tree const stays = tree(paths[2]);
  CHECK(Checkpoints{at.run}.list().size() == 1);
  save(at.run, 1);
  CHECK(!fs::exists(paths[0]));
  CHECK(!fs::exists(paths[1]));
  CHECK(tree(paths[2]) == stays);
  CHECK(!fs::exists(paths[3]));
  CHECK(Checkpoints{at.run}.latest()->skipped.empty());
}

TEST_CASE("a number beyond those that saves give is told of, and counts for nothing") {
  Place const at;
  for (std::string const number : {"18446744073709551615",
                                   "18446744073709551614",
                                   "9223372036854775807",
                                   "1000000000000000",
                                   "99999999999999999999999999"}) {
    CAPTURE(number);
    std::string const run = at.top + "/" + number;
    std::string const odd = run + "/" + number + "-step-0";
    fs::rename(run + "/" + save(run), odd);
    Tree const before = tree(odd);
    std::string const said = failure_of([&] { static_cast<void>(Checkpoints{run}.latest()); });
    CHECK(said.starts_with("data: "));
    check_says(said, "'" + odd + "' has a number above 999999999999999, which no save gives");
    CHECK(save(run, 1) == "000001-step-0");
    CHECK(save(run, 1) == "000002-step-0");
    auto const found = Checkpoints{run}.latest();
    REQUIRE(found.has_value());
    CHECK(found->path == run + "/000002-step-0");
    REQUIRE(found->skipped.size() == 1);
    check_says(found->skipped[0], odd);
    CHECK(Checkpoints{run}.list().size() == 1);
    CHECK(tree(odd) == before);
    CHECK(zero::verify_checkpoint(odd).empty());
  }
  // The largest that counts is the last.
  fs::rename(at.run + "/" + save(at.run), at.run + "/999999999999998-step-0");
  CHECK(save(at.run, 1) == "999999999999999-step-0");
  Tree const before = tree(at.run);
  CHECK(failure_of([&] { save(at.run, 1); }) ==
        "data: on rank 0: '" + at.run +
            "/999999999999999-step-0' has the largest number that there is: give it a smaller one, "
            "and save again");
  CHECK(tree(at.run) == before);
  CHECK(Checkpoints{at.run}.latest()->number == 999999999999999);
}

TEST_CASE("a lock that is no file is refused, and nothing is made elsewhere") {
  Place const at;
  std::string const lock = at.run + "/lock";
  fs::create_directories(at.run);
  fs::create_symlink(at.top + "/elsewhere", lock);
  CHECK(failure_of([&] { save(at.run); }) ==
        "data: on rank 0: '" + lock + "' is a link, which no save makes");
  CHECK(!fs::exists(at.top + "/elsewhere"));
  CHECK(fs::is_symlink(lock));
  fs::remove(lock);
  REQUIRE(::mkfifo(lock.c_str(), 0600) == 0);
  CHECK(failure_of([&] { save(at.run); }) == "data: on rank 0: '" + lock + "' is no regular file");
  CHECK(tree(at.run).size() == 1);
}

TEST_CASE("a checkpoint that was renamed is found and loaded on any number of ranks") {
  Place const at;
  for (std::string const renamed :
       {"1-step-0", "000001-step-7", "000001-step-0-before-the-change", "0000000000000001-step-"}) {
    CAPTURE(renamed);
    std::string const run = at.top + "/" + renamed;
    std::string const path = run + "/" + renamed;
    fs::rename(run + "/" + save(run), path);
    for (int const ranks : {1, 3}) {
      zero::run_ranks(ranks, [&](zero::InProcess& comm) {
        Trainer trainer(comm);
        Checkpoints checkpoints{run};
        auto const found = checkpoints.latest(trainer.optimizer());
        REQUIRE(found.has_value());
        CHECK(found->path == path);
        CHECK(found->number == 1);
        CHECK(found->step == 0);
        CHECK(failure_of([&] { checkpoints.load(trainer.optimizer(), *found); }).empty());
      });
    }
    CHECK(save(run) == "000002-step-0");
  }
}

TEST_CASE("where a file should be and something else is, that is said, and nobody waits for it") {
  Place const at;
  save(at.run);
  std::string const newest = at.run + "/" + save(at.run);
  for (std::string const name : {"/manifest.json", "/rank-00000.safetensors", "/files.json"}) {
    for (bool const pipe : {true, false}) {
      CAPTURE(name);
      CAPTURE(pipe);
      std::string const path = newest + name;
      std::string const refused = "'" + path + "' is no regular file";
      fs::rename(path, at.top + "/aside");
      if (pipe) {
        REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
      } else {
        fs::create_directories(path);
      }
      auto const found = Checkpoints{at.run}.latest();
      REQUIRE(found.has_value());
      if (name == "/files.json") {
        CHECK(found->path == newest);
      } else {
        REQUIRE(found->skipped.size() == 1);
        CHECK(found->skipped[0] == refused);
        CHECK(zero::verify_checkpoint(newest) == std::vector<std::string>{refused});
        alone([&](auto& optimizer) {
          CHECK(failure_of([&] {
                  Checkpoints{at.run}.load(optimizer, {.path = newest, .number = 2});
                }) == "data: on rank 0: " + refused);
        });
        std::string const next = at.run + "/" + save(at.run);
        CHECK(Checkpoints{at.run}.latest()->path == next);
        CHECK(Checkpoints{at.run}.latest()->skipped.empty());
        fs::remove_all(next);
      }
      fs::remove_all(path);
      fs::rename(at.top + "/aside", path);
    }
  }
  std::string const model = at.top + "/model.safetensors";
  REQUIRE(::mkfifo(model.c_str(), 0600) == 0);
  alone([&](auto& optimizer) {
    CHECK(failure_of([&] { zero::load_parameters_from(optimizer, model); }) ==
          "data: on rank 0: '" + model + "' is no regular file");
  });
  // Also where an export would put what becomes the file.
  std::string const out = at.top + "/out";
  auto const exported = [&] { zero::export_checkpoint(newest, out); };
  REQUIRE(::mkfifo((out + ".tmp").c_str(), 0600) == 0);
  CHECK(failure_of(exported) == "data: '" + out + ".tmp' is no regular file");
  write(at.top + "/precious");
  fs::remove(out + ".tmp");
  fs::create_symlink(at.top + "/precious", out + ".tmp");
  CHECK(failure_of(exported) == "data: '" + out + ".tmp' is a link, which no save makes");
  CHECK(fs::file_size(at.top + "/precious") == 4);
}

}  // namespace directory_test
