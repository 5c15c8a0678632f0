#include "checkpoint/model_files.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

// What the model of a file system loses in a crash, and what it must not lose.
namespace model_files_test {
namespace {

using checkpoint_tests::Loss;
using checkpoint_tests::ModelFiles;
using zero::FileAnswer;
using zero::FileMode;

constexpr std::uint64_t many = 400;

FileAnswer opened(ModelFiles& files, std::string const& path, FileMode mode) {
  FileAnswer const file = files.open(path, mode);
  REQUIRE(file >= 0);
  return file;
}
void write(ModelFiles& files, FileAnswer file, std::string const& text, std::uint64_t offset = 0) {
  REQUIRE(files.write(file, text.data(), text.size(), offset) ==
          static_cast<FileAnswer>(text.size()));
}
void make(ModelFiles& files, std::string const& path, std::string const& text) {
  FileAnswer const file = opened(files, path, FileMode::create);
  write(files, file, text);
  REQUIRE(files.sync(file) == 0);
  REQUIRE(files.close(file) == 0);
}
std::string contents(ModelFiles files, std::string const& path) {
  FileAnswer const file = files.open(path, FileMode::read);
  if (file < 0) return "none";
  std::string text(static_cast<std::size_t>(files.size(file)), '?');
  files.read(file, text.data(), text.size(), 0);
  return text;
}
std::string names_in(ModelFiles files, std::string const& path) {
  std::vector<std::string> names;
  if (files.list(path, names) < 0) return "none";
  std::string all;
  for (std::string const& name : names) all += name + ' ';
  return all;
}
/// All that `show` says about states after so many changes.
template <class Show>
std::set<std::string> found(ModelFiles const& files, std::size_t changes, Show const& show) {
  std::set<std::string> all;
  for (std::uint64_t seed = 0; seed < many; ++seed) all.insert(show(files.crashed(changes, seed)));
  return all;
}
template <class Show>
std::set<std::string> found(ModelFiles const& files, Show const& show) {
  return found(files, files.changes(), show);
}
using Set = std::set<std::string>;

TEST_CASE("a synced file under a synced name stays") {
  ModelFiles files;
  make(files, "a", "text");
  CHECK(files.sync_directory("") == 0);
  CHECK(found(files, [](auto const& after) { return contents(after, "a"); }) == Set{"text"});
}

TEST_CASE("a file's sync keeps its bytes, not its name") {
  ModelFiles files;
  make(files, "a", "text");
  CHECK(found(files, [](auto const& after) { return contents(after, "a"); }) ==
        Set{"none", "text"});
}

TEST_CASE("a directory's sync keeps names, not bytes") {
  ModelFiles files;
  FileAnswer const file = opened(files, "a", FileMode::create);
  write(files, file, "text");
  CHECK(files.sync_directory("") == 0);
  // Of the size that it got, nothing may have been written.
  CHECK(found(files, [](auto const& after) { return contents(after, "a"); }) ==
        Set{"", "text", std::string(4, '\0')});
}

TEST_CASE("a directory's sync does not keep its own name") {
  ModelFiles files;
  CHECK(files.make_directory("d") == 0);
  make(files, "d/a", "text");
  CHECK(files.sync_directory("d") == 0);
  CHECK(found(files, [](auto const& after) { return contents(after, "d/a"); }) ==
        Set{"none", "text"});
  CHECK(files.sync_directory(".") == 0);
  CHECK(found(files, [](auto const& after) { return contents(after, "d/a"); }) == Set{"text"});
}

TEST_CASE("a file is torn at blocks, later ones kept without earlier ones") {
  ModelFiles files;
  make(files, "a", std::string(1536, '-'));
  CHECK(files.sync_directory("") == 0);
  FileAnswer const file = opened(files, "a", FileMode::write);
  write(files, file, std::string(1536, '1'));
  write(files, file, std::string(512, '2'), 1024);
  auto const blocks = [](ModelFiles const& after) {
    std::string const text = contents(after, "a");
    CHECK(text.size() == 1536);
    std::string shown;
    for (std::size_t i = 0; i < text.size(); i += 512) {
      CHECK(text.substr(i, 512) == std::string(512, text[i]));
      shown += text[i];
    }
    return shown;
  };
  Set expected;
  for (char const a : {'-', '1'}) {
    for (char const b : {'-', '1'}) {
      for (char const c : {'-', '1', '2'}) expected.insert({a, b, c});
    }
  }
  CHECK(found(files, blocks) == expected);
}

TEST_CASE("a size is that after any write, and a truncation may have gone alone") {
  ModelFiles files;
  make(files, "a", "old");
  CHECK(files.sync_directory("") == 0);
  FileAnswer const file = opened(files, "a", FileMode::create);
  write(files, file, "news!");
  auto const show = [](ModelFiles const& after) { return contents(after, "a"); };
  Set const all = found(files, show);
  CHECK(all.contains("old"));
  CHECK(all.contains(""));
  CHECK(all.contains("news!"));
  CHECK(all.contains(std::string(5, '\0')));
  CHECK(files.sync(file) == 0);
  CHECK(found(files, show) == Set{"news!"});
}

TEST_CASE("a rename is atomic, and may come before the bytes that it names") {
  ModelFiles files;
  make(files, "a", "old");
  CHECK(files.sync_directory("") == 0);
  auto const show = [](ModelFiles const& after) {
    return names_in(after, "") + contents(after, "a");
  };
  SUBCASE("of a synced file") {
    make(files, "a.tmp", "new");
    CHECK(files.rename("a.tmp", "a") == 0);
    CHECK(found(files, show) == Set{"a old", "a a.tmp old", "a new"});
    CHECK(files.sync_directory("") == 0);
    CHECK(found(files, show) == Set{"a new"});
  }
  SUBCASE("and what comes to the new name later does not come without it") {
    make(files, "a.tmp", "new");
    CHECK(files.sync_directory("") == 0);
    CHECK(files.rename("a.tmp", "a") == 0);
    CHECK(files.remove("a") == 0);
    CHECK(found(files, show) == Set{"a a.tmp old", "a new", "none"});
  }
  SUBCASE("of one that was not") {
    write(files, opened(files, "a.tmp", FileMode::create), "new");
    CHECK(files.rename("a.tmp", "a") == 0);
    CHECK(found(files, show) ==
          Set{"a old", "a a.tmp old", "a new", "a ", "a " + std::string(3, '\0')});
  }
}

TEST_CASE("names are lost one by one, in any order, and removed ones come back") {
  ModelFiles files;
  make(files, "a", "a");
  make(files, "b", "b");
  CHECK(files.sync_directory("") == 0);
  CHECK(files.remove("a") == 0);
  CHECK(files.remove("b") == 0);
  make(files, "c", "c");
  auto const show = [](ModelFiles const& after) { return names_in(after, ""); };
  CHECK(found(files, show) == Set{"", "a ", "b ", "c ", "a b ", "a c ", "b c ", "a b c "});
  // But what has come to a name later does not come without what came earlier.
  make(files, "a", "again");
  for (std::string const& text :
       found(files, [](ModelFiles const& after) { return contents(after, "a"); })) {
    CHECK_MESSAGE((text == "a" || text == "none" || text == "again"), text);
  }
}

TEST_CASE("a crash happens behind any change, and the machine is as good as new") {
  ModelFiles files;
  FileAnswer const lock = files.lock("lock");
  CHECK(lock >= 0);
  make(files, "a", "text");
  CHECK(files.sync_directory("") == 0);
  CHECK(files.changes() == 5);
  CHECK(files.change(2) == "write a, 4 bytes at 0");
  CHECK(found(files, 0, [](auto const& after) { return names_in(after, ""); }) == Set{""});
  CHECK(found(files, 2, [](auto const& after) { return names_in(after, ""); }) ==
        Set{"", "a ", "lock ", "a lock "});

  ModelFiles after = files.crashed(5, static_cast<std::uint64_t>(Loss::everything));
  CHECK(after.changes() == 0);
  CHECK(after.close(lock) < 0);
  CHECK(after.lock("lock") >= 0);
  CHECK(after.lock("lock") == -EAGAIN);
  make(after, "b", "more");
  CHECK(contents(after, "b") == "more");
  CHECK(contents(files, "b") == "none");
  // What a crash has left is durable.
  CHECK(found(after, 0, [](auto const& later) { return names_in(later, ""); }) == Set{"a lock "});
}

TEST_CASE("settled: what was is durable, and forgotten") {
  ModelFiles files;
  FileAnswer const file = opened(files, "a", FileMode::create);
  write(files, file, "text");
  files.settle();
  CHECK(files.changes() == 0);
  CHECK(found(files, [](auto const& after) { return contents(after, "a"); }) == Set{"text"});
  write(files, file, "T");
  CHECK(contents(files, "a") == "Text");
}

}  // namespace
}  // namespace model_files_test
