#include "zero/checkpoint/watched_files.hpp"

#include "support/test.hpp"

namespace watched_files_test {
namespace {

using zero::FileAnswer;
using zero::FileMode;
using zero::detail::WatchedFiles;

/// Each operation does what the test says while it is under way, and answers 5.
struct AskedFiles final : zero::FileOperations {
  explicit AskedFiles(std::function<void(char const*)> asked) : within(std::move(asked)) {}
  std::function<void(char const*)> within;

  FileAnswer answer(char const* verb) {
    within(verb);
    return 5;
  }
  FileAnswer open(std::string const&, FileMode) override { return answer("open"); }
  FileAnswer lock(std::string const&) override { return answer("lock"); }
  FileAnswer read(FileAnswer, void*, std::size_t, std::uint64_t) override { return answer("read"); }
  FileAnswer write(FileAnswer, void const*, std::size_t, std::uint64_t) override {
    return answer("write");
  }
  FileAnswer size(FileAnswer) override { return answer("size"); }
  FileAnswer sync(FileAnswer) override { return answer("sync"); }
  FileAnswer close(FileAnswer) override { return answer("close"); }
  FileAnswer rename(std::string const&, std::string const&) override { return answer("rename"); }
  FileAnswer remove(std::string const&) override { return answer("remove"); }
  FileAnswer make_directory(std::string const&) override { return answer("make"); }
  FileAnswer sync_directory(std::string const&) override { return answer("sync"); }
  FileAnswer list(std::string const&, std::vector<std::string>&) override { return answer("list"); }
  FileAnswer kind(std::string const&) override { return answer("look"); }
};

TEST_CASE("WatchedFiles: every operation is told with its file while it is under way, no longer") {
  WatchedFiles const* watch = nullptr;
  std::string path;
  int told = 0;
  AskedFiles asked([&](char const* verb) {
    CHECK(watch->stalled(1e6) == "");
    CHECK(watch->stalled(0.) ==
          "'" + path + "': " + verb + " has not returned for 0 s: the file system stands still");
    ++told;
  });
  WatchedFiles files(asked);
  watch = &files;
  std::byte bytes[1]{};
  std::vector<std::string> names;
  for (bool const locks : {false, true}) {
    path = locks ? "lock" : "a";
    CHECK((locks ? files.lock(path) : files.open(path, FileMode::create)) == 5);
    CHECK(files.read(5, bytes, 1, 0) == 5);
    CHECK(files.write(5, bytes, 1, 0) == 5);
    CHECK(files.size(5) == 5);
    CHECK(files.sync(5) == 5);
    CHECK(files.close(5) == 5);
  }
  path = "b";
  CHECK(files.rename(path, "c") == 5);
  CHECK(files.remove(path) == 5);
  CHECK(files.make_directory(path) == 5);
  CHECK(files.sync_directory(path) == 5);
  CHECK(files.list(path, names) == 5);
  CHECK(files.kind(path) == 5);
  CHECK(told == 18);
  CHECK(watch->stalled(0.) == "");
}

TEST_CASE("WatchedFiles: a handle may be another file's before its close has returned") {
  WatchedFiles* other = nullptr;
  std::string said;
  AskedFiles asked([&](char const* verb) {
    if (verb == std::string("close")) static_cast<void>(other->open("new", FileMode::read));
    if (verb == std::string("sync")) said = other->stalled(0.);
  });
  WatchedFiles files(asked);
  other = &files;
  static_cast<void>(files.open("old", FileMode::read));
  static_cast<void>(files.close(5));
  static_cast<void>(files.sync(5));
  CHECK(said == "'new': sync has not returned for 0 s: the file system stands still");
}

}  // namespace
}  // namespace watched_files_test
