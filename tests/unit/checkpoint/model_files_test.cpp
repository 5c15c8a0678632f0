#include "checkpoint/model_files.hpp"

#include "checkpoint/faulty_files.hpp"
#include "support/test.hpp"

// What the model of a file system loses in a crash, and what it must not lose; and operations that
// go wrong when they are told to.
namespace model_files_test {
namespace {

using namespace checkpoint_tests;
using Set = std::set<std::string>;

constexpr std::uint64_t many = 400;

void write(ModelFiles& files, FileAnswer file, std::string const& text, std::uint64_t offset = 0) {
  REQUIRE(files.write(file, text.data(), text.size(), offset) ==
          static_cast<FileAnswer>(text.size()));
}
/// A file that is synced, or not.
void make(ModelFiles& files, std::string const& path, std::string const& text, bool synced = true) {
  FileAnswer const file = files.open(path, FileMode::create);
  REQUIRE(file >= 0);
  write(files, file, text);
  if (synced) REQUIRE(files.sync(file) == 0);
  REQUIRE(files.close(file) == 0);
}
std::string contents(ModelFiles files, std::string const& path) {
  std::string const text = read_all(files, path);
  return text.starts_with("error ") ? "none" : text;
}
std::string names(ModelFiles files) {
  std::vector<std::string> names;
  files.list("", names);
  std::string all;
  for (std::string const& name : names) all += name + ' ';
  return all;
}
/// All that `show` says about states after so many changes.
template <class Show>
Set found(ModelFiles const& files, std::size_t changes, Show const& show) {
  Set all;
  for (std::uint64_t seed = 0; seed < many; ++seed) all.insert(show(files.crashed(changes, seed)));
  return all;
}
/// All that a file may have in the end.
Set found(ModelFiles const& files, std::string const& path = "a") {
  return found(files, files.changes(), [&](auto const& after) { return contents(after, path); });
}
std::string zeros(std::size_t count) { return std::string(count, '\0'); }

TEST_CASE("syncs keep what they say, and a size is that after any write") {
  struct Row {
    std::string text;
    std::function<void(ModelFiles&)> work;
    Set found;
  };
  // An old file, which was synced with its name.
  auto const old = [](ModelFiles& files) {
    make(files, "a", "old");
    files.sync_directory("");
  };
  std::vector<Row> const rows{
      {"a file's sync keeps its bytes, not its name",
       [](ModelFiles& files) { make(files, "a", "text"); },
       {"none", "text"}},
      {"a synced file under a synced name stays", old, {"old"}},
      // Of the size that it got, nothing may have been written.
      {"a directory's sync keeps names, not bytes",
       [](ModelFiles& files) {
         make(files, "a", "text", false);
         files.sync_directory("");
       },
       {"", "text", zeros(4)}},
      {"a truncation may have gone alone",
       [&](ModelFiles& files) {
         old(files);
         make(files, "a", "", false);
       },
       {"old", "", zeros(3)}},
      {"what is written over an old file is there when it is synced",
       [&](ModelFiles& files) {
         old(files);
         make(files, "a", "news!");
       },
       {"news!"}},
      {"settled: what was is durable",
       [](ModelFiles& files) {
         make(files, "a", "text", false);
         files.settle();
         CHECK(files.changes() == 0);
       },
       {"text"}},
  };
  for (Row const& row : rows) {
    CAPTURE(row.text);
    ModelFiles files;
    row.work(files);
    CHECK(found(files) == row.found);
  }
  ModelFiles files;
  old(files);
  make(files, "a", "news!", false);
  Set const all = found(files);
  for (std::string const& one : {std::string("old"), std::string(), std::string("news!"), zeros(5)})
    CHECK(all.contains(one));
}

TEST_CASE("a directory's sync does not keep its own name") {
  ModelFiles files;
  CHECK(files.make_directory("d") == 0);
  make(files, "d/a", "text");
  CHECK(files.sync_directory("d") == 0);
  CHECK(found(files, "d/a") == Set{"none", "text"});
  CHECK(files.sync_directory(".") == 0);
  CHECK(found(files, "d/a") == Set{"text"});
}

TEST_CASE("a file is torn at blocks, later ones kept without earlier ones") {
  ModelFiles files;
  make(files, "a", std::string(1536, '-'));
  CHECK(files.sync_directory("") == 0);
  FileAnswer const file = files.open("a", FileMode::write);
  write(files, file, std::string(1536, '1'));
  write(files, file, std::string(512, '2'), 1024);
  Set expected;
  for (char const a : {'-', '1'}) {
    for (char const b : {'-', '1'}) {
      for (char const c : {'-', '1', '2'})
        expected.insert(std::string(512, a) + std::string(512, b) + std::string(512, c));
    }
  }
  CHECK(found(files) == expected);
}

TEST_CASE("a rename is atomic, and may come before the bytes that it names") {
  auto const renamed = [](bool synced, bool named) {
    ModelFiles files;
    make(files, "a", "old");
    CHECK(files.sync_directory("") == 0);
    make(files, "a.tmp", "new", synced);
    if (named) CHECK(files.sync_directory("") == 0);
    CHECK(files.rename("a.tmp", "a") == 0);
    return files;
  };
  auto const shown = [](ModelFiles const& files) {
    return found(files, files.changes(), [](auto const& after) {
      return names(after) + contents(after, "a");
    });
  };
  ModelFiles files = renamed(true, false);
  CHECK(shown(files) == Set{"a old", "a a.tmp old", "a new"});
  CHECK(files.sync_directory("") == 0);
  CHECK(shown(files) == Set{"a new"});
  // What comes to the new name later does not come without it.
  files = renamed(true, true);
  CHECK(files.remove("a") == 0);
  CHECK(shown(files) == Set{"a a.tmp old", "a new", "none"});
  CHECK(shown(renamed(false, false)) ==
        Set{"a old", "a a.tmp old", "a new", "a ", "a " + zeros(3)});
}

TEST_CASE("names are lost one by one, in any order, and removed ones come back") {
  ModelFiles files;
  make(files, "a", "a");
  make(files, "b", "b");
  CHECK(files.sync_directory("") == 0);
  CHECK(files.remove("a") == 0);
  CHECK(files.remove("b") == 0);
  make(files, "c", "c");
  CHECK(found(files, files.changes(), names) ==
        Set{"", "a ", "b ", "c ", "a b ", "a c ", "b c ", "a b c "});
  // But what has come to a name later does not come without what came earlier.
  make(files, "a", "again");
  CHECK(found(files) == Set{"a", "none", "again"});
}

TEST_CASE("a crash happens behind any change, and the machine is as good as new") {
  ModelFiles files;
  FileAnswer const lock = files.lock("lock");
  CHECK(lock >= 0);
  make(files, "a", "text");
  CHECK(files.sync_directory("") == 0);
  CHECK(files.changes() == 5);
  CHECK(files.change(2) == "write a, 4 bytes at 0");
  CHECK(found(files, 0, names) == Set{""});
  CHECK(found(files, 2, names) == Set{"", "a ", "lock ", "a lock "});

  ModelFiles after = files.crashed(5, static_cast<std::uint64_t>(Loss::everything));
  CHECK(after.changes() == 0);
  CHECK(after.close(lock) < 0);
  CHECK(after.lock("lock") >= 0);
  CHECK(after.lock("lock") == -EAGAIN);
  make(after, "b", "more");
  CHECK(contents(after, "b") == "more");
  CHECK(contents(files, "b") == "none");
  // What a crash has left is durable.
  CHECK(found(after, 0, names) == Set{"a lock "});
}

using Faulty = FaultyFiles<ModelFiles>;
using Answers = std::vector<FileAnswer>;

Faulty faulty(std::optional<FileFault> fault) {
  ModelFiles inside;
  make(inside, "a", "0123456789");
  return Faulty(inside, fault);
}

/// Every operation once, in the order of FileCall but for the lock.
Answers all_of_them(Faulty files) {
  std::vector<std::string> names;
  char bytes[8] = {};
  FileAnswer const file = files.open("a", FileMode::read);
  FileAnswer const read = files.read(file, bytes, 8, 0);
  FileAnswer const other = files.lock("b");
  return {file < 0 ? file : 0,
          read,
          files.write(other, bytes, 8, 0),
          files.size(file),
          files.sync(other),
          files.close(file),
          files.rename("a", "c"),
          files.remove("c"),
          files.make_directory("d"),
          files.sync_directory("d"),
          files.list("d", names),
          files.kind("d"),
          other < 0 ? other : 0};
}

TEST_CASE("every operation can fail, and has then done nothing") {
  Faulty const sound = faulty({});
  CHECK(all_of_them(sound) == Answers{0, 8, 8, 10, 0, 0, 0, 0, 0, 0, 0, 1, 0});
  for (std::size_t const calls : sound.calls()) CHECK(calls == 1);
  CHECK(sound.struck() == 0);
  for (std::size_t i = 0; i < file_calls; ++i) {
    auto const call = static_cast<FileCall>(i);
    CAPTURE(name(call));
    Faulty const files = faulty(FileFault{.only = call, .error = ENOSPC});
    CHECK(all_of_them(files)[i] == -ENOSPC);
    CHECK(files.struck() == 1);
  }
  ModelFiles inside;
  Faulty files(inside, FileFault{.only = FileCall::make_directory});
  CHECK(files.make_directory("d") == -EIO);
  CHECK(inside.changes() == 0);
  CHECK(files.make_directory("d") == 0);
  CHECK(inside.changes() == 1);
  // A handle is gone also where close fails.
  files.set(FileFault{.only = FileCall::close});
  CHECK(files.close(files.lock("lock")) == -EIO);
  CHECK(files.lock("lock") >= 0);
}

TEST_CASE("the chosen operation fails once, or all from it on; copies count together") {
  for (bool const for_good : {false, true}) {
    Faulty files = faulty(FileFault{.at = 2, .for_good = for_good});
    Faulty copy = files;
    CHECK(files.make_directory("1") == 0);
    CHECK(copy.make_directory("2") == 0);
    CHECK(files.make_directory("3") == -EIO);
    CHECK(copy.make_directory("4") == (for_good ? -EIO : 0));
    CHECK(files.struck() == (for_good ? 2 : 1));
    files.set({});
    CHECK(copy.make_directory("5") == 0);
    CHECK(copy.calls()[static_cast<std::size_t>(FileCall::make_directory)] == 1);
  }
}

TEST_CASE("what is short moves half, and the rest later") {
  char bytes[8] = {};
  Faulty files = faulty(FileFault{.error = 0});
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
}  // namespace model_files_test
