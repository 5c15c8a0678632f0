// What a trainer asks of checkpoints, and what they refuse.
#include "checkpoint/exact_trainer.hpp"
#include "checkpoint/faulty_files.hpp"
#include "checkpoint/proof.hpp"
#include "support/standard.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace checkpoint_test {
namespace {

namespace fs = std::filesystem;
using namespace checkpoint_tests;
using zero::Checkpoints;
using zero::InProcess;
using Names = std::vector<std::string>;

using Fp32 = zero::ShardedOptimizer<InProcess, zero::stage::Pos>;
using Sharded = zero::ShardedOptimizer<InProcess, zero::stage::PosGP, zero::Mixed<zero::bf16>>;
using Replicated =
    zero::ShardedOptimizer<InProcess, zero::stage::Replicated, zero::Mixed<zero::bf16>>;

/// On so many ranks with an optimizer each, which has values and has taken so many steps.
template <class Optimizer, class Body>
void run(int ranks, long steps, Body const& body) {
  zero::run_ranks(ranks, [&](InProcess& comm) {
    Optimizer optimizer{comm, toy::model()};
    toy::load(optimizer);
    checkpoint_tests::train(optimizer, comm.rank(), ranks, 0, steps);
    body(optimizer, comm);
  });
}

/// Turns a byte of a file, as far behind its end.
void damage(std::string const& path, std::streamoff before_end) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-before_end, std::ios::end);
  char const byte = static_cast<char>(file.get() ^ 1);
  file.seekp(-before_end, std::ios::end);
  file.put(byte);
}

std::size_t directories(std::string const& path) {
  std::size_t count = 0;
  for (auto const& entry : fs::directory_iterator(path)) count += entry.is_directory();
  return count;
}

/// A disk that takes everything, and turns one bit of the second rank's data.
struct LyingFiles : zero::DiskFiles {
  zero::FileAnswer open(std::string const& path, zero::FileMode mode) override {
    auto const file = zero::DiskFiles::open(path, mode);
    bool const lies = path.find("rank-00001") != path.npos && mode == zero::FileMode::create;
    if (lies) lied_about = file;
    return file;
  }
  zero::FileAnswer write(zero::FileAnswer file,
                         void const* from,
                         std::size_t bytes,
                         std::uint64_t offset) override {
    std::vector<char> copy(static_cast<char const*>(from), static_cast<char const*>(from) + bytes);
    // The header comes last, and from the beginning.
    if (file == lied_about && offset > 0) copy[bytes / 2] ^= 4;
    return zero::DiskFiles::write(file, copy.data(), bytes, offset);
  }
  zero::FileAnswer lied_about = -1;
};

}  // namespace

TEST_CASE("nothing is removed before what was written has been read back") {
  TemporaryDirectory const directory;
  run<Fp32>(2, 1, [&](Fp32& optimizer, InProcess& comm) {
    Checkpoints{directory.path()}.save(optimizer);
    {
      LyingFiles files;
      Checkpoints run{directory.path(), {.keep = 1, .lock = false}, files};
      std::string const said = failure_of([&] { run.save(optimizer); });
      CHECK(said.starts_with("data: on rank 1: "));
      check_says(said, "rank-00001.safetensors.tmp' of rank 1 is damaged");
    }
    Checkpoints run{directory.path(), {.keep = 1, .lock = false}};
    CHECK(zero::verify_checkpoint(directory.path() + "/000001-step-1").empty());
    CHECK(run.latest(optimizer)->number == 1);
    CHECK(run.save(optimizer).step == 1);
    CHECK(run.latest(optimizer)->number == 3);
    if (comm.rank() == 0) CHECK(run.list().size() == 1);
  });
}

TEST_CASE("so many checkpoints are kept, and a damaged one is passed over") {
  TemporaryDirectory const directory;
  std::string const path = directory.path() + "/a/run";
  run<Fp32>(2, 1, [&](Fp32& optimizer, InProcess& comm) {
    Checkpoints run{path, {.keep = 2}};
    CHECK(!run.latest(optimizer).has_value());
    for (int i = 0; i < 3; ++i) run.save(optimizer);
    CHECK(run.latest(optimizer)->number == 3);
    if (comm.rank() != 0) return;
    auto const all = run.list();
    REQUIRE(all.size() == 2);
    CHECK(all[0].number == 2);
    CHECK(all[1].path == path + "/000003-step-1");
    CHECK(all[1].step == 1);
    CHECK(zero::verify_checkpoint(all[1].path).empty());
    fs::resize_file(all[1].path + "/rank-00001.safetensors", 100);
    auto const found = run.latest();
    REQUIRE(found.has_value());
    CHECK(found->number == 2);
    REQUIRE(found->skipped.size() == 1);
    check_says(found->skipped[0], "rank-00001.safetensors' has 100 bytes");
    damage(all[0].path + "/rank-00000.safetensors", 5);
    auto const problems = zero::verify_checkpoint(all[0].path);
    REQUIRE(problems.size() == 1);
    check_says(problems[0], "of rank 0 is damaged");
  });
  // Counted on, and what is damaged is removed with what is older than those kept.
  run<Fp32>(1, 1, [&](Fp32& optimizer, InProcess&) {
    Checkpoints run{path, {.keep = 1}};
    CHECK(run.save(optimizer).path == path + "/000004-step-1");
    // Who looks waits for what is being removed.
    CHECK(run.list().size() == 1);
    CHECK(directories(path) == 1);
  });
}

TEST_CASE("who writes to a directory is named to other processes") {
  TemporaryDirectory const directory;
  int ready[2] = {};
  REQUIRE(::pipe(ready) == 0);
  pid_t const child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    char const locked = zero::disk().lock(directory.path() + "/lock") >= 0 ? 'y' : 'n';
    if (::write(ready[1], &locked, 1) != 1) ::_exit(1);
    while (true) ::pause();
  }
  char locked = 'n';
  CHECK(::read(ready[0], &locked, 1) == 1);
  CHECK(locked == 'y');
  char host[256] = "";
  REQUIRE(::gethostname(host, sizeof(host) - 1) == 0);
  run<Fp32>(1, 1, [&](Fp32& optimizer, InProcess&) {
    CHECK(failure_of([&] { Checkpoints{directory.path()}.save(optimizer); }) ==
          "resource: on rank 0: process " + std::to_string(child) + " on " + host +
              " writes checkpoints to '" + directory.path() + "'");
  });
  CHECK(::kill(child, SIGKILL) == 0);
  CHECK(::waitpid(child, nullptr, 0) == child);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("a directory has one writer at a time") {
  TemporaryDirectory const directory;
  run<Fp32>(2, 1, [&](Fp32& optimizer, InProcess& comm) {
    {
      Checkpoints first{directory.path()};
      first.save(optimizer);
      Checkpoints second{directory.path()};
      CHECK(failure_of([&] { second.save(optimizer); }) ==
            "resource: on rank 0: another Checkpoints object of this process writes checkpoints to "
            "'" +
                directory.path() + "'");
      CHECK(second.latest(optimizer)->number == 1);
      Checkpoints third{directory.path(), {.lock = false}};
      check_says(third.save(optimizer).path, "000002");
    }
    meet(comm);
    Checkpoints fourth{directory.path()};
    check_says(fourth.save(optimizer).path, "000003");
  });
}

TEST_CASE("saves that make no sense are refused on every rank, and leave nothing behind") {
  TemporaryDirectory const directory;
  std::string const& at = directory.path();
  struct Mistake {
    std::string words;
    std::function<void(Fp32&, int rank)> save;
  };
  auto const with = [&](zero::SaveOptions options) {
    return [&at, options](Fp32& optimizer, int) { Checkpoints{at}.save(optimizer, options); };
  };
  std::vector<Mistake> const mistakes{
      {"save() in the middle of a step; call step() or discard_gradients() first",
       [&](Fp32& optimizer, int) {
         static_cast<void>(optimizer.gradients(0));
         Checkpoints{at}.save(optimizer);
       }},
      {"and CheckpointOptions::snapshot_bytes gave 0",
       [&](Fp32& optimizer, int) { Checkpoints{at}.save_async(optimizer); }},
      {"ranks save to different directories",
       [&](Fp32& optimizer, int rank) {
         Checkpoints{at + (rank == 0 ? "/a" : "/b")}.save(optimizer);
       }},
      {"or with different CheckpointOptions::keep or SaveOptions::frozen; here '" + at +
           "' at step ",
       [&](Fp32& optimizer, int rank) {
         Checkpoints{at, {.keep = rank / 2}}.save(optimizer);
       }},
      {"the user's JSON cannot be written", with({.user = {{"name", "\xff"}}})},
      {"the part of tensor 'wpe' has 1030 elements, and the tensor 1031",
       with({.parts = {{"wpe", {1030}, {{{0}, {1030}}}}}})},
  };
  for (Mistake const& mistake : mistakes) {
    run<Fp32>(3, 1, [&](Fp32& optimizer, InProcess& comm) {
      check_says(failure_of([&] { mistake.save(optimizer, comm.rank()); }), mistake.words);
    });
  }
  CHECK(Checkpoints{at}.list().empty());
  zero::run_ranks(2, [&](InProcess& comm) {
    Fp32 optimizer{comm, toy::model()};
    check_says(failure_of([&] { Checkpoints{at}.save(optimizer); }),
               "the optimizer has no values yet");
  });
  CHECK(failure_of([] {
          Checkpoints{"", {}};
        }) == "invalid argument: checkpoints need the name of a directory");
  CHECK(failure_of([] {
          Checkpoints{"x", {.keep = -1}};
        }) == "invalid argument: CheckpointOptions::keep is -1, but must be at least 0 (all)");
}

TEST_CASE("a save goes on while training does, and becomes a checkpoint when all have written") {
  TemporaryDirectory const directory;
  std::mutex mutex;
  Held then;
  Held loaded;
  run<Sharded>(3, 2, [&](Sharded& optimizer, InProcess& comm) {
    std::uint64_t const bytes = Checkpoints::plan(optimizer, 4);
    Checkpoints run{directory.path(), {.snapshot_bytes = bytes}};
    CHECK(run.held() == bytes);
    std::byte const blob[4]{};
    collect(optimizer, then, mutex);
    CHECK(!run.poll().has_value());
    CHECK(!run.save_async(optimizer, {.user = {{"epoch", 7}}, .rank_blob = blob}));
    CHECK(run.pending());
    checkpoint_tests::train(optimizer, comm.rank(), 3, 2, 4);
    std::optional<zero::SaveReport> report;
    while (!report) report = run.poll();
    CHECK(report->step == 2);
    CHECK(!run.pending());
    // A second save waits for the first, and says so.
    CHECK(!run.save_async(optimizer));
    CHECK(run.save_async(optimizer));
    CHECK(run.save(optimizer).waited);
    CHECK(!run.finish().has_value());
    // Given up: no checkpoint, and the next save cleans up.
    run.save_async(optimizer);
  });
  CHECK(Checkpoints{directory.path()}.list().size() == 4);
  CHECK(directories(directory.path()) == 5);
  run<Sharded>(2, 0, [&](Sharded& optimizer, InProcess&) {
    Checkpoints run{directory.path()};
    CHECK(run.load(optimizer, run.list().front()).user == nlohmann::json{{"epoch", 7}});
    collect(optimizer, loaded, mutex);
    run.save(optimizer);
  });
  CHECK(loaded == then);
  CHECK(directories(directory.path()) == 5);
}

TEST_CASE("a file system that is slower than a communicator's deadline is no failure") {
  using Files = FaultyFiles<zero::DiskFiles>;
  TemporaryDirectory const directory;
  zero::run_ranks(InProcess::group(2, {.deadline_s = 0.5}), [&](InProcess& comm) {
    Fp32 optimizer{comm, toy::model()};
    toy::load(optimizer);
    Files slow({}, {{.only = FileCall::sync, .for_good = true, .meanwhile = [](auto) {
                       std::this_thread::sleep_for(std::chrono::milliseconds(700));
                     }}});
    Checkpoints run{directory.path(), {.snapshot_bytes = Checkpoints::plan(optimizer)}, slow};
    run.save(optimizer);
    run.save_async(optimizer);
    CHECK(run.finish().has_value());
    CHECK(run.latest(optimizer)->number == 2);
  });
}

TEST_CASE("what does not fit is named, all of it, or left out and reported") {
  TemporaryDirectory const directory;
  std::vector<zero::Tensor> const saved = {{.name = "a", .shape = {7}},
                                           {.name = "b", .shape = {5, 3}, .unit = 1},
                                           {.name = "c", .shape = {2}, .unit = 1},
                                           {.name = "old", .shape = {4}, .unit = 1}};
  std::vector<zero::Tensor> const wanted = {{.name = "a", .shape = {7}, .weight_decay = 0.f},
                                            {.name = "b", .shape = {3, 5}, .unit = 1},
                                            {.name = "new", .shape = {4}, .unit = 1},
                                            {.name = "d", .shape = {2}, .unit = 1}};
  zero::run_ranks(2, [&](InProcess& comm) {
    Fp32 optimizer{comm, saved, zero::AdamW{.lr = 0.5f}};
    optimizer.load_parameters([](auto const&, std::size_t first, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(first + i + 1);
    });
    Checkpoints{directory.path()}.save(optimizer);
  });
  zero::run_ranks(3, [&](InProcess& comm) {
    Checkpoints run{directory.path()};
    zero::FoundCheckpoint const found = *run.latest();
    Fp32 optimizer{comm, wanted, zero::AdamW{.lr = 0.25f}};
    optimizer.load_parameters([](auto const&, std::size_t, std::span<float> out) {
      for (float& value : out) value = -1.f;
    });
    std::string const said = failure_of([&] { run.load(optimizer, found); });
    CHECK(said.starts_with("data: on rank 0: "));
    check_says(said,
               "not in the checkpoint: 'new', 'd'; not in the optimizer: 'c', 'old'; "
               "different: 'b' has shape [3, 5] here and [5, 3] in the checkpoint");
    check_says(failure_of([&] {
                 run.load(optimizer, found, {.names = {{"older", "new"}}});
               }),
               "not in the checkpoint: 'new' (there 'older'), 'd'; not in the optimizer: 'c', "
               "'old'; ");
    CHECK(optimizer.parameter(0)[3] == -1.f);
    auto const report = run.load(optimizer, found, {.strict = false, .names = {{"old", "new"}}});
    CHECK(report.missing == Names{"d"});
    CHECK(report.unexpected == Names{"c"});
    CHECK(report.unfit.size() == 1);
    CHECK(report.differing ==
          Names{"rule.fields.lr: 0.5 saved, 0.25 here", "'a'.weight_decay: 1.0 saved, 0.0 here"});
    CHECK(optimizer.rule().lr == 0.25f);
    CHECK(optimizer.parameter(0)[3] == 4.f);
    CHECK(optimizer.parameter(1)[3] == -1.f);
    CHECK(optimizer.parameter(2)[3] == 4.f);
    CHECK(optimizer.parameter(3)[1] == -1.f);
  });
}

TEST_CASE("another precision starts from the master weights") {
  TemporaryDirectory const directory;
  std::mutex mutex;
  Held then;
  Held wide;
  run<Sharded>(2, 3, [&](Sharded& optimizer, InProcess&) {
    collect(optimizer, then, mutex);
    Checkpoints{directory.path()}.save(optimizer);
  });
  zero::run_ranks(3, [&](InProcess& comm) {
    Fp32 optimizer{comm, toy::model()};
    Checkpoints run{directory.path()};
    run.load(optimizer, *run.latest());
    collect(optimizer, wide, mutex);
  });
  CHECK(wide.arrays == then.arrays);
  CHECK(wide.counters == then.counters);
  CHECK(wide.parameters.at("h2.w") == then.arrays.at("h2.w")[0]);
  CHECK(wide.parameters.at("h2.w") != then.parameters.at("h2.w"));
  CHECK(wide.parameters.at("h0.frozen") == then.parameters.at("h0.frozen"));
}

TEST_CASE("two optimizers that hold the halves of a matrix are saved as one, and loaded into one") {
  TemporaryDirectory const directory;
  constexpr std::size_t rows = 37;
  constexpr std::size_t columns = 46;
  auto const value = [](std::size_t row, std::size_t column) {
    return static_cast<float>(row * 100 + column);
  };
  // Tensor-parallel ranks {0, 1} x data-parallel ranks {0, 1, 2}.
  zero::run_ranks(6, [&](InProcess& world) {
    bool const right = world.rank() % 2 == 1;
    std::size_t const width = right ? 29 : 17;
    std::size_t const column = right ? 17 : 0;
    InProcess comm = world.split(right ? 1 : 0, world.rank());
    Fp32 optimizer{comm, {{.name = "w", .shape = {rows, width}}, {.name = "b", .shape = {3}}}};
    optimizer.load_parameters([&](zero::Tensor const& t, std::size_t first, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        std::size_t const at = first + i;
        out[i] = t.name == "b" ? 5.f : value(at / width, at % width + column);
      }
    });
    Checkpoints run{directory.path()};
    zero::SaveOptions options;
    options.parts = {{"w", {rows, columns}, {{{0, column}, {rows, width}}}},
                     {"b", {6}, {{{right ? 3u : 0u}, {3}}}}};
    check_says(run.save(optimizer, options, world).path, "000001");
  });
  CHECK(zero::verify_checkpoint(directory.path() + "/000001-step-0").empty());
  zero::run_ranks(2, [&](InProcess& comm) {
    Checkpoints run{directory.path()};
    // Does a tensor have this part of the matrix?
    auto const has = [&](auto const& matrix, std::size_t first, std::size_t width, std::size_t at) {
      bool same = true;
      for (std::size_t i = 0; i < rows * width; ++i)
        same = same && matrix[first + i] == value(i / width, at + i % width);
      return same;
    };
    Fp32 one{comm, {{.name = "w", .shape = {rows, columns}}, {.name = "b", .shape = {6}}}};
    run.load(one, *run.latest());
    CHECK(has(one.parameter(0), 0, columns, 0));
    run.save(one);
    // And back, into another cut.
    Fp32 cut{comm, {{.name = "w", .shape = {2 * rows, 10}}}};
    zero::LoadOptions options{.strict = false};
    options.parts = {{"w", {rows, columns}, {{{0, 30}, {rows, 10}}, {{0, 2}, {rows, 10}}}}};
    CHECK(run.load(cut, *run.latest(cut), options).unexpected == Names{"b"});
    CHECK(has(cut.parameter(0), 0, 10, 30));
    CHECK(has(cut.parameter(0), rows * 10, 10, 2));
  });
}

TEST_CASE("every rank's own bytes are there after a load, and are a rank's own on as many ranks") {
  TemporaryDirectory const directory;
  run<Fp32>(3, 1, [&](Fp32& optimizer, InProcess& comm) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    std::vector<std::byte> const blob(rank, static_cast<std::byte>(rank));
    Checkpoints{directory.path()}.save(optimizer, {.rank_blob = blob});
  });
  for (int const ranks : {2, 3}) {
    run<Fp32>(ranks, 0, [&](Fp32& optimizer, InProcess& comm) {
      Checkpoints run{directory.path()};
      zero::LoadReport const report = run.load(optimizer, *run.latest());
      REQUIRE(report.blobs.size() == 2);
      CHECK(report.blobs[1].rank == 2);
      CHECK(report.blobs[1].world_size == 3);
      CHECK(report.blobs[1].bytes == std::vector<std::byte>(2, std::byte{2}));
      zero::RankBlob const* const own = report.own_blob(comm.rank(), ranks);
      CHECK((own != nullptr) == (ranks == 3 && comm.rank() > 0));
    });
  }
}

TEST_CASE("data that turn out to be damaged stop every step until a load succeeds") {
  TemporaryDirectory const directory;
  run<Sharded>(3, 2, [&](Sharded& optimizer, InProcess& comm) {
    auto const train = [&](long first, long last) {
      checkpoint_tests::train(optimizer, comm.rank(), 3, first, last);
    };
    std::string const halfway = "a load failed halfway";
    Checkpoints run{directory.path()};
    run.save(optimizer);
    run.save(optimizer);
    zero::FoundCheckpoint const found = *run.latest(optimizer);
    zero::FoundCheckpoint const older{directory.path() + "/000001-step-2", 1, 2};
    if (comm.rank() == 0) damage(found.path + "/rank-00002.safetensors", 40);
    train(2, 3);
    std::string const checked =
        failure_of([&] { run.load(optimizer, found, {.verify_first = true}); });
    check_says(checked, "rank-00002.safetensors' of rank 2 is damaged between bytes");
    // Nothing was changed.
    train(3, 4);
    CHECK(optimizer.steps() == 4);
    CHECK(failure_of([&] { run.load(optimizer, found); }) == checked);
    Checkpoints other{directory.path() + "/other"};
    check_says(failure_of([&] { optimizer.step(); }), halfway);
    check_says(failure_of([&] { other.save(optimizer); }), halfway);
    optimizer.discard_gradients();
    run.load(optimizer, older, {.parameters_only = true});
    check_says(failure_of([&] { optimizer.step(); }), halfway);
    optimizer.discard_gradients();
    run.load(optimizer, older);
    train(2, 3);
    CHECK(optimizer.steps() == 3);
  });
  CHECK(!fs::exists(directory.path() + "/other"));
}

TEST_CASE("ranks that load different checkpoints, or none, are told so") {
  TemporaryDirectory const directory;
  run<Fp32>(2, 1, [&](Fp32& optimizer, InProcess& comm) {
    Checkpoints run{directory.path()};
    run.save(optimizer);
    checkpoint_tests::train(optimizer, comm.rank(), 2, 1, 2);
    run.save(optimizer);
    CHECK(run.latest(optimizer)->number == 2);
    auto const all = run.list();
    auto const& own = all[comm.rank() == 0 ? 0 : 1];
    CHECK(failure_of([&] { run.load(optimizer, own); }) ==
          "invalid argument: ranks load different checkpoints; here '" + own.path + "'");
    zero::FoundCheckpoint none = all[0];
    if (comm.rank() == 1) none.path += "x";
    check_says(failure_of([&] { run.load(optimizer, none); }),
               "resource: on rank 1: cannot open '" + all[0].path + "x/manifest.json'");
    {
      auto const guard = optimizer.parameters(0);
      check_says(failure_of([&] { run.load(optimizer, all[1]); }),
                 "load() while the parameters of unit 0 are in use");
    }
    checkpoint_tests::train(optimizer, comm.rank(), 2, 2, 3);
  });
}

/// Saves under a stage and precision, and counts what is in the files.
template <class Optimizer>
void check_bytes(int ranks) {
  std::uint64_t trained = 0;
  std::uint64_t frozen = 0;
  for (zero::Tensor const& tensor : toy::model()) {
    if (tensor.tied_to.empty()) (tensor.frozen ? frozen : trained) += zero::element_count(tensor);
  }
  TemporaryDirectory const directory;
  run<Optimizer>(ranks, 0, [&](Optimizer& optimizer, InProcess& comm) {
    zero::SaveReport const report = Checkpoints{directory.path()}.save(optimizer);
    if (comm.rank() != 0) return;
    zero::DiskFiles files;
    std::uint64_t data = 0;
    std::uint64_t all = 0;
    for (auto const& file : zero::read_catalog(files, report.path).manifest.files) {
      data += file.bytes - file.header_bytes;
      all += file.bytes;
      CHECK(fs::file_size(report.path + "/" + file.name) == file.bytes);
    }
    CHECK(all == report.bytes);
    // Master weights and two states, and frozen parameters.
    CHECK(data == trained * 3 * sizeof(float) + frozen * sizeof(typename Optimizer::Parameter));
  });
}

TEST_CASE("a checkpoint has each element once, whatever the stage") {
  for (int const ranks : {1, 3, 8}) {
    check_bytes<Fp32>(ranks);
    check_bytes<Sharded>(ranks);
    check_bytes<Replicated>(ranks);
  }
}

}  // namespace checkpoint_test
