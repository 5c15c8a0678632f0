#include "checkpoint/faulty_files.hpp"

#include "checkpoint/model_files.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace faulty_files_test {
namespace {

using checkpoint_tests::FaultyFiles;
using checkpoint_tests::FileCall;
using checkpoint_tests::FileFault;
using checkpoint_tests::ModelFiles;
using zero::FileAnswer;
using zero::FileMode;

using Files = FaultyFiles<ModelFiles>;
using Answers = std::vector<FileAnswer>;

/// Every operation once, in the order of FileCall but for the lock.
Answers all_of_them(Files& files) {
  Answers told;
  std::vector<std::string> names;
  char bytes[8] = {};
  FileAnswer const file = files.open("a", FileMode::read);
  told.push_back(file < 0 ? file : 0);
  told.push_back(files.read(file, bytes, 8, 0));
  FileAnswer const other = files.lock("b");
  told.push_back(files.write(other, bytes, 8, 0));
  told.push_back(files.size(file));
  told.push_back(files.sync(other));
  told.push_back(files.close(file));
  told.push_back(files.rename("a", "c"));
  told.push_back(files.remove("c"));
  told.push_back(files.make_directory("d"));
  told.push_back(files.sync_directory("d"));
  told.push_back(files.list("d", names));
  told.push_back(files.kind("d"));
  told.push_back(other < 0 ? other : 0);
  return told;
}

Files some_files(std::optional<FileFault> fault) {
  ModelFiles inside;
  FileAnswer const file = inside.open("a", FileMode::create);
  inside.write(file, "0123456789", 10, 0);
  inside.close(file);
  return Files(inside, fault);
}

TEST_CASE("without a fault nothing is other, and calls are counted") {
  Files files = some_files({});
  CHECK(all_of_them(files) == Answers{0, 8, 8, 10, 0, 0, 0, 0, 0, 0, 0, 1, 0});
  CHECK(files.calls() == checkpoint_tests::file_calls.size());
  CHECK(files.calls(FileCall::rename) == 1);
  CHECK(files.struck() == 0);
}

TEST_CASE("every operation can fail, and has then done nothing") {
  for (std::size_t i = 0; i < checkpoint_tests::file_calls.size(); ++i) {
    auto const call = static_cast<FileCall>(i);
    CAPTURE(name(call));
    Files files = some_files(FileFault{.only = call, .error = ENOSPC});
    CHECK(all_of_them(files)[i] == -ENOSPC);
    CHECK(files.struck() == 1);
  }
  ModelFiles inside;
  Files files(inside, FileFault{.only = FileCall::make_directory});
  CHECK(files.make_directory("d") == -EIO);
  CHECK(inside.changes() == 0);
  CHECK(files.make_directory("d") == 0);
  CHECK(inside.changes() == 1);
}

TEST_CASE("a handle is gone also where close fails") {
  ModelFiles inside;
  Files files(inside, FileFault{.only = FileCall::close});
  FileAnswer const lock = files.lock("lock");
  CHECK(files.close(lock) == -EIO);
  CHECK(files.lock("lock") >= 0);
}

TEST_CASE("the chosen operation fails once, or all from it on; copies count together") {
  for (bool const for_good : {false, true}) {
    Files files = some_files(FileFault{.at = 2, .for_good = for_good});
    Files copy = files;
    CHECK(files.make_directory("1") == 0);
    CHECK(copy.make_directory("2") == 0);
    CHECK(files.make_directory("3") == -EIO);
    CHECK(copy.make_directory("4") == (for_good ? -EIO : 0));
    CHECK(files.struck() == (for_good ? 2 : 1));
    files.set({});
    CHECK(copy.make_directory("5") == 0);
    CHECK(copy.calls() == 1);
  }
}

TEST_CASE("what is short moves half, and the rest later") {
  char bytes[8] = {};
  Files files = some_files(FileFault{.error = 0});
  // Other operations have no half.
  CHECK(files.make_directory("d") == 0);
  CHECK(files.struck() == 0);
  files.set(FileFault{.at = 1, .error = 0});
  FileAnswer const file = files.open("a", FileMode::write);
  CHECK(files.write(file, "abcdefg", 7, 0) == 3);
  CHECK(files.write(file, "defg", 4, 3) == 4);
  CHECK(files.struck() == 1);
  files.set(FileFault{.only = FileCall::read, .error = 0, .for_good = true});
  FileAnswer const read = files.open("a", FileMode::read);
  CHECK(files.read(read, bytes, 8, 0) == 4);
  CHECK(files.read(read, bytes + 4, 4, 4) == 2);
  CHECK(files.read(read, bytes + 6, 1, 6) == 1);
  CHECK(std::string(bytes, 7) == "abcdefg");
}

}  // namespace
}  // namespace faulty_files_test
