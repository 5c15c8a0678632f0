#include "zero/checkpoint/files.hpp"

#include "checkpoint/faulty_files.hpp"
#include "checkpoint/model_files.hpp"
#include "checkpoint/temporary_directory.hpp"
#include "support/test.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

// What a program's file system does, and that those which tests put in its place do the same.
namespace files_test {
namespace {

using checkpoint_tests::FaultyFiles;
using checkpoint_tests::ModelFiles;
using zero::DiskFiles;
using zero::FileAnswer;
using zero::FileKind;
using zero::FileMode;

using Names = std::vector<std::string>;

template <class Files>
Names names_in(Files& files, std::string const& path) {
  Names names{"from an earlier list"};
  FileAnswer const count = files.list(path, names);
  CHECK(count == static_cast<FileAnswer>(names.size()));
  return names;
}

template <class Files>
FileAnswer write(Files& files, std::string const& path, std::string const& text, FileMode mode) {
  FileAnswer const file = files.open(path, mode);
  if (file < 0) return file;
  FileAnswer const written = files.write(file, text.data(), text.size(), 0);
  CHECK(files.sync(file) == 0);
  CHECK(files.close(file) == 0);
  return written;
}

template <class Files>
std::string contents(Files& files, std::string const& path) {
  FileAnswer const file = files.open(path, FileMode::read);
  if (file < 0) return "error " + std::to_string(-file);
  std::string text(static_cast<std::size_t>(files.size(file)), '?');
  CHECK(files.read(file, text.data(), text.size(), 0) == static_cast<FileAnswer>(text.size()));
  CHECK(files.close(file) == 0);
  return text;
}

/// A directory to work in: on the disk, or in a model.
template <class Files>
struct Place {
  checkpoint_tests::TemporaryDirectory directory{};
  Files files{};
  std::string run = directory.path() + "/run";

  Place() {
    // In a model nothing is there yet; on the disk all is but the last.
    for (std::size_t i = 1; i <= run.size(); ++i) {
      if (i < run.size() && run[i] != '/') continue;
      FileAnswer const made = files.make_directory(run.substr(0, i));
      CHECK((made == 0 || made == -EEXIST));
    }
  }
  [[nodiscard]] std::string operator/(std::string const& name) const { return run + '/' + name; }
};

#define ZERO_TEST_FILES DiskFiles, ModelFiles, FaultyFiles<DiskFiles>

TEST_CASE_TEMPLATE("what is written is read, written over, or begun anew", Files, ZERO_TEST_FILES) {
  Place<Files> at;
  CHECK(write(at.files, at / "a", "0123456789", FileMode::write) == -ENOENT);
  CHECK(write(at.files, at / "a", "0123456789", FileMode::create) == 10);
  CHECK(contents(at.files, at / "a") == "0123456789");
  // To the end and no further, wherever it begins.
  FileAnswer file = at.files.open(at / "a", FileMode::read);
  REQUIRE(file >= 0);
  std::string some(8, '?');
  CHECK(at.files.read(file, some.data(), 8, 7) == 3);
  CHECK(some == "789?????");
  CHECK(at.files.read(file, some.data(), 8, 10) == 0);
  CHECK(at.files.read(file, some.data(), 8, 1000) == 0);
  CHECK(at.files.write(file, "x", 1, 0) == -EBADF);
  CHECK(at.files.close(file) == 0);
  CHECK(at.files.close(file) == -EBADF);
  CHECK(at.files.size(file) == -EBADF);

  CHECK(write(at.files, at / "a", "xy", FileMode::write) == 2);
  CHECK(contents(at.files, at / "a") == "xy23456789");
  CHECK(write(at.files, at / "a", "z", FileMode::create) == 1);
  CHECK(contents(at.files, at / "a") == "z");
  // What nobody has written is zero.
  file = at.files.open(at / "a", FileMode::write);
  CHECK(at.files.write(file, "!", 1, 3) == 1);
  CHECK(at.files.size(file) == 4);
  CHECK(at.files.close(file) == 0);
  CHECK(contents(at.files, at / "a") == std::string("z\0\0!", 4));
}

TEST_CASE_TEMPLATE("names: made, listed in order, renamed, removed", Files, ZERO_TEST_FILES) {
  Place<Files> at;
  CHECK(names_in(at.files, at.run).empty());
  CHECK(at.files.make_directory(at / "d") == 0);
  CHECK(at.files.make_directory(at / "d") == -EEXIST);
  CHECK(write(at.files, at / "c", "c", FileMode::create) == 1);
  CHECK(write(at.files, at / "a", "a", FileMode::create) == 1);
  CHECK(names_in(at.files, at.run) == Names{"a", "c", "d"});
  CHECK(at.files.sync_directory(at.run) == 0);

  CHECK(at.files.rename(at / "a", at / "b") == 0);
  CHECK(names_in(at.files, at.run) == Names{"b", "c", "d"});
  CHECK(at.files.rename(at / "b", at / "c") == 0);
  CHECK(names_in(at.files, at.run) == Names{"c", "d"});
  CHECK(contents(at.files, at / "c") == "a");

  CHECK(write(at.files, at / "d/e", "e", FileMode::create) == 1);
  CHECK(at.files.remove(at / "d") == -ENOTEMPTY);
  CHECK(at.files.rename(at / "d", at / "f") == 0);
  CHECK(contents(at.files, at / "f/e") == "e");
  CHECK(at.files.remove(at / "f/e") == 0);
  CHECK(at.files.remove(at / "f") == 0);
  CHECK(names_in(at.files, at.run) == Names{"c"});
}

TEST_CASE_TEMPLATE("what cannot be done is answered by an errno", Files, ZERO_TEST_FILES) {
  Place<Files> at;
  Names names{"as it was"};
  CHECK(write(at.files, at / "a", "a", FileMode::create) == 1);
  CHECK(at.files.open(at / "none", FileMode::read) == -ENOENT);
  CHECK(at.files.open(at / "none/b", FileMode::create) == -ENOENT);
  CHECK(at.files.open(at / "a/b", FileMode::create) == -ENOTDIR);
  CHECK(at.files.open(at.run, FileMode::create) == -EISDIR);
  CHECK(at.files.open(at.run, FileMode::write) == -EISDIR);
  CHECK(at.files.rename(at / "none", at / "a") == -ENOENT);
  CHECK(at.files.rename(at / "a", at / "none/a") < 0);
  CHECK(at.files.remove(at / "none") == -ENOENT);
  CHECK(at.files.make_directory(at / "none/d") == -ENOENT);
  CHECK(at.files.make_directory(at / "a") == -EEXIST);
  CHECK(at.files.sync_directory(at / "none") == -ENOENT);
  CHECK(at.files.sync_directory(at / "a") == -ENOTDIR);
  CHECK(at.files.list(at / "none", names) == -ENOENT);
  CHECK(at.files.list(at / "a", names) == -ENOTDIR);
  CHECK(at.files.open(at.run, FileMode::read) == -EISDIR);
  CHECK(at.files.kind(at / "none") == -ENOENT);
  CHECK(at.files.kind(at / "a/b") == -ENOTDIR);
  CHECK(at.files.kind(at / "a") == static_cast<FileAnswer>(FileKind::file));
  CHECK(at.files.kind(at.run) == static_cast<FileAnswer>(FileKind::directory));
  CHECK(at.files.lock(at / "none/lock") == -ENOENT);
  CHECK(at.files.lock(at.run) == -EISDIR);
  CHECK(at.files.sync(1'000'000) == -EBADF);
  char byte = 0;
  CHECK(at.files.read(1'000'000, &byte, 1, 0) == -EBADF);
  CHECK(at.files.write(1'000'000, &byte, 1, 0) == -EBADF);
  CHECK(contents(at.files, at / "a") == "a");
}

TEST_CASE_TEMPLATE("a lock is one holder's until the handle is closed", Files, ZERO_TEST_FILES) {
  Place<Files> at;
  Files others = at.files;
  FileAnswer const held = at.files.lock(at / "lock");
  REQUIRE(held >= 0);
  CHECK(others.lock(at / "lock") == -EAGAIN);
  CHECK(at.files.lock(at / "lock") == -EAGAIN);
  FileAnswer const another = at.files.lock(at / "another");
  CHECK(another >= 0);
  CHECK(at.files.close(held) == 0);
  FileAnswer const next = others.lock(at / "lock");
  CHECK(next >= 0);
  CHECK(names_in(at.files, at.run) == Names{"another", "lock"});
  CHECK(others.close(next) == 0);
  CHECK(at.files.close(another) == 0);
}

TEST_CASE("what is no regular file is refused at once, and a link is read and nothing else") {
  Place<DiskFiles> at;
  auto const other = static_cast<FileAnswer>(FileKind::other);
  REQUIRE(::mkfifo((at / "pipe").c_str(), 0600) == 0);
  CHECK(at.files.kind(at / "pipe") == other);
  for (FileMode const mode : {FileMode::read, FileMode::write, FileMode::create}) {
    CHECK(at.files.open(at / "pipe", mode) == -ENXIO);
  }
  CHECK(at.files.lock(at / "pipe") == -ENXIO);
  CHECK(at.files.open("/dev/null", FileMode::read) == -ENXIO);

  CHECK(write(at.files, at / "a", "a", FileMode::create) == 1);
  REQUIRE(::symlink((at / "a").c_str(), (at / "link").c_str()) == 0);
  REQUIRE(::symlink((at / "none").c_str(), (at / "dangling").c_str()) == 0);
  REQUIRE(::symlink(at.run.c_str(), (at / "up").c_str()) == 0);
  CHECK(contents(at.files, at / "link") == "a");
  for (char const* const name : {"link", "dangling", "up"}) {
    CAPTURE(name);
    CHECK(at.files.kind(at / name) == other);
    CHECK(at.files.open(at / name, FileMode::write) == -ELOOP);
    CHECK(at.files.open(at / name, FileMode::create) == -ELOOP);
    CHECK(at.files.lock(at / name) == -ELOOP);
  }
  CHECK(contents(at.files, at / "a") == "a");
  CHECK(at.files.kind(at / "none") == -ENOENT);
}

TEST_CASE("a lock excludes other processes, and is gone with the one that held it") {
  Place<DiskFiles> at;
  int ready[2] = {};
  REQUIRE(::pipe(ready) == 0);
  pid_t const child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    char const got_it = at.files.lock(at / "lock") >= 0 ? 'y' : 'n';
    if (::write(ready[1], &got_it, 1) != 1) ::_exit(1);
    while (true) ::pause();
  }
  char answer = 0;
  CHECK(::read(ready[0], &answer, 1) == 1);
  CHECK(answer == 'y');
  CHECK(at.files.lock(at / "lock") == -EAGAIN);
  CHECK(::kill(child, SIGKILL) == 0);
  CHECK(::waitpid(child, nullptr, 0) == child);
  FileAnswer const held = at.files.lock(at / "lock");
  CHECK(held >= 0);
  CHECK(at.files.close(held) == 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("a lock whose owner is dead holds nobody up, whatever processes it has left") {
  Place<DiskFiles> at;
  int ready[2] = {};
  REQUIRE(::pipe(ready) == 0);
  pid_t const child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (at.files.lock(at / "lock") < 0) ::_exit(1);
    pid_t const worker = ::fork();
    if (worker > 0 && ::write(ready[1], &worker, sizeof(worker)) < 0) ::_exit(1);
    while (true) ::pause();
  }
  pid_t worker = 0;
  REQUIRE(::read(ready[0], &worker, sizeof(worker)) == sizeof(worker));
  CHECK(at.files.lock(at / "lock") == -EAGAIN);
  CHECK(contents(at.files, at / "lock").starts_with(std::to_string(child) + " "));
  CHECK(::kill(child, SIGKILL) == 0);
  CHECK(::waitpid(child, nullptr, 0) == child);
  CHECK(::kill(worker, 0) == 0);
  FileAnswer const held = at.files.lock(at / "lock");
  CHECK(held >= 0);
  CHECK(contents(at.files, at / "lock").starts_with(std::to_string(::getpid()) + " "));
  CHECK(names_in(at.files, at.run) == Names{"lock"});
  CHECK(at.files.lock(at / "lock") == -EAGAIN);
  CHECK(::kill(worker, SIGKILL) == 0);
  CHECK(at.files.lock(at / "lock") == -EAGAIN);
  CHECK(at.files.close(held) == 0);
  FileAnswer const next = at.files.lock(at / "lock");
  CHECK(next >= 0);
  CHECK(at.files.close(next) == 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("an owner is dead only if that can be known") {
  using zero::detail::LockOwner;
  LockOwner const own = LockOwner::own();
  CHECK(LockOwner::parse(own.text()) == own);
  CHECK(!own.dead());
  CHECK(!LockOwner::parse("").dead());
  LockOwner other = own;
  other.start = "-";  // when is not known
  CHECK(!other.dead());
  other.start = "1";  // of the same number, and long ago
  CHECK(other.dead() == (own.start != "-"));
  other.machine = "another";
  CHECK(!other.dead());
  other.machine = "-";
  CHECK(!other.dead());
}

}  // namespace
}  // namespace files_test
