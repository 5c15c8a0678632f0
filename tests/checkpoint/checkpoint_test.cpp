// What a trainer asks of checkpoints, and what they refuse.
#include "zero/checkpoint.hpp"

#include "checkpoint/exact_trainer.hpp"
#include "checkpoint/temporary_directory.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace checkpoint_test {
namespace {

using checkpoint_tests::collect;
using checkpoint_tests::Held;
using checkpoint_tests::TemporaryDirectory;
using zero::stage::Pos;
using zero::stage::PosGP;

using Fp32 = zero::ShardedOptimizer<zero::InProcess, Pos>;
using Sharded = zero::ShardedOptimizer<zero::InProcess, PosGP, zero::Mixed<zero::bf16>>;

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

/// On so many ranks with an optimizer each, which has values and has taken so many steps.
template <class Optimizer, class Body>
void run(int ranks, long steps, Body const& body) {
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    Optimizer optimizer{comm, toy::model()};
    toy::load(optimizer);
    checkpoint_tests::train(optimizer, comm.rank(), ranks, 0, steps);
    body(optimizer, comm);
  });
}

/// The message on each rank.
template <class Optimizer, class Body>
std::vector<std::string> refusals(int ranks, Body const& body) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  run<Optimizer>(ranks, 1, [&](Optimizer& optimizer, zero::InProcess& comm) {
    said[static_cast<std::size_t>(comm.rank())] = message_of([&] { body(optimizer, comm); });
  });
  return said;
}

bool all_say(std::vector<std::string> const& said, std::string const& words) {
  for (std::string const& text : said) {
    INFO(text);
    CHECK(text.find(words) != std::string::npos);
    if (text.find(words) == std::string::npos) return false;
  }
  return !said.empty();
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
  for (auto const& entry : std::filesystem::directory_iterator(path)) count += entry.is_directory();
  return count;
}

/// A disk on which making anything durable takes longer than a communicator waits.
struct SlowFiles : zero::DiskFiles {
  zero::FileAnswer sync(zero::FileAnswer file) const {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    return zero::DiskFiles::sync(file);
  }
};

/// A disk that takes everything, and turns one bit of the second rank's data.
struct LyingFiles : zero::DiskFiles {
  zero::FileAnswer open(std::string const& path, zero::FileMode mode) const {
    auto const file = zero::DiskFiles::open(path, mode);
    if (path.find("rank-00001") != std::string::npos && mode == zero::FileMode::create) {
      *lied_about = file;
    }
    return file;
  }
  zero::FileAnswer write(zero::FileAnswer file,
                         void const* from,
                         std::size_t bytes,
                         std::uint64_t offset) const {
    std::vector<char> copy(static_cast<char const*>(from), static_cast<char const*>(from) + bytes);
    // The header comes last, and from the beginning.
    if (file == *lied_about && offset > 0) copy[bytes / 2] ^= 4;
    return zero::DiskFiles::write(file, copy.data(), bytes, offset);
  }
  std::shared_ptr<zero::FileAnswer> lied_about = std::make_shared<zero::FileAnswer>(-1);
};

}  // namespace

TEST_CASE("nothing is removed before what was written has been read back") {
  TemporaryDirectory const directory;
  run<Fp32>(2, 1, [&](Fp32& optimizer, zero::InProcess& comm) {
    zero::Checkpoints{directory.path()}.save(optimizer);
    {
      zero::BasicCheckpoints<LyingFiles> run{directory.path(), {.keep = 1, .lock = false}};
      std::string const said = message_of([&] { run.save(optimizer); });
      INFO(said);
      CHECK(said.find("data: on rank 1: ") == 0);
      CHECK(said.find("rank-00001.safetensors.tmp' of rank 1 is damaged") != std::string::npos);
    }
    zero::Checkpoints run{directory.path(), {.keep = 1, .lock = false}};
    CHECK(zero::verify_checkpoint(directory.path() + "/000001-step-1").empty());
    CHECK(run.latest(optimizer)->number == 1);
    CHECK(run.save(optimizer).step == 1);
    CHECK(run.latest(optimizer)->number == 3);
    if (comm.rank() == 0) CHECK(run.list().size() == 1);
  });
}

TEST_CASE("so many checkpoints are kept, and a damaged one is passed over") {
  TemporaryDirectory const directory;
  run<Fp32>(2, 1, [&](Fp32& optimizer, zero::InProcess& comm) {
    zero::Checkpoints run{directory.path() + "/a/run", {.keep = 2}};
    CHECK(run.latest(optimizer).has_value() == false);
    for (int i = 0; i < 3; ++i) run.save(optimizer);
    CHECK(run.latest(optimizer)->number == 3);
    if (comm.rank() != 0) return;
    auto const all = run.list();
    REQUIRE(all.size() == 2);
    CHECK(all[0].number == 2);
    CHECK(all[1].path == directory.path() + "/a/run/000003-step-1");
    CHECK(all[1].step == 1);
    CHECK(zero::verify_checkpoint(all[1].path).empty());
    std::filesystem::resize_file(all[1].path + "/rank-00001.safetensors", 100);
    auto const found = run.latest();
    REQUIRE(found.has_value());
    CHECK(found->number == 2);
    REQUIRE(found->skipped.size() == 1);
    CHECK(found->skipped[0].find("rank-00001.safetensors' has 100 bytes") != std::string::npos);
    damage(all[0].path + "/rank-00000.safetensors", 5);
    auto const problems = zero::verify_checkpoint(all[0].path);
    REQUIRE(problems.size() == 1);
    CHECK(problems[0].find("of rank 0 is damaged") != std::string::npos);
  });
  // Counted on, and what is damaged is removed with what is older than those kept.
  run<Fp32>(1, 1, [&](Fp32& optimizer, zero::InProcess&) {
    zero::Checkpoints run{directory.path() + "/a/run", {.keep = 1}};
    CHECK(run.save(optimizer).path == directory.path() + "/a/run/000004-step-1");
    // Who looks waits for what is being removed.
    CHECK(run.list().size() == 1);
    CHECK(directories(directory.path() + "/a/run") == 1);
  });
}

TEST_CASE("a directory has one writer at a time") {
  TemporaryDirectory const directory;
  run<Fp32>(2, 1, [&](Fp32& optimizer, zero::InProcess& comm) {
    {
      zero::Checkpoints first{directory.path()};
      first.save(optimizer);
      zero::Checkpoints second{directory.path()};
      std::string const said = message_of([&] { second.save(optimizer); });
      CHECK(said ==
            "resource: on rank 0: somebody else writes checkpoints to '" + directory.path() + "'");
      CHECK(second.latest(optimizer)->number == 1);
      zero::Checkpoints third{directory.path(), {.lock = false}};
      CHECK(third.save(optimizer).path.find("000002") != std::string::npos);
    }
    std::int64_t word = 0;
    zero::run(comm,
              {.op = zero::Op::all_reduce,
               .dtype = zero::DType::i64,
               .accumulate = zero::DType::i64,
               .count = 1,
               .send = &word,
               .recv = &word});
    zero::Checkpoints fourth{directory.path()};
    CHECK(fourth.save(optimizer).path.find("000003") != std::string::npos);
  });
}

TEST_CASE("saves that make no sense are refused on every rank, and leave nothing behind") {
  TemporaryDirectory const directory;
  zero::SaveOptions broken;
  broken.user["name"] = "\xff";
  CHECK(all_say(refusals<Fp32>(2,
                               [&](Fp32& optimizer, zero::InProcess&) {
                                 static_cast<void>(optimizer.gradients(0));
                                 zero::Checkpoints{directory.path()}.save(optimizer);
                               }),
                "save() in the middle of a step; call step() or discard_gradients() first"));
  CHECK(all_say(refusals<Fp32>(2,
                               [&](Fp32& optimizer, zero::InProcess&) {
                                 zero::Checkpoints{directory.path()}.save_async(optimizer);
                               }),
                "and CheckpointOptions::snapshot_bytes gave 0"));
  CHECK(all_say(
      refusals<Fp32>(2,
                     [&](Fp32& optimizer, zero::InProcess& comm) {
                       zero::Checkpoints{directory.path() + (comm.rank() == 0 ? "/a" : "/b")}.save(
                           optimizer);
                     }),
      "ranks save to different directories"));
  CHECK(all_say(
      refusals<Fp32>(
          3,
          [&](Fp32& optimizer, zero::InProcess& comm) {
            zero::Checkpoints{directory.path(), {.keep = comm.rank() / 2}}.save(optimizer);
          }),
      "or with different CheckpointOptions::keep; here '" + directory.path() + "' at step "));
  CHECK(all_say(refusals<Fp32>(2,
                               [&](Fp32& optimizer, zero::InProcess&) {
                                 zero::Checkpoints{directory.path()}.save(optimizer, broken);
                               }),
                "the user's JSON cannot be written"));
  CHECK(all_say(refusals<Fp32>(3,
                               [&](Fp32& optimizer, zero::InProcess&) {
                                 zero::SaveOptions options;
                                 options.parts = {{"wpe", {1030}, {{{0}, {1030}}}}};
                                 zero::Checkpoints{directory.path()}.save(optimizer, options);
                               }),
                "the part of tensor 'wpe' has 1030 elements, and the tensor 1031"));
  CHECK(zero::Checkpoints{directory.path()}.list().empty());
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    Fp32 optimizer{comm, toy::model()};
    CHECK(message_of([&] {
            zero::Checkpoints{directory.path()}.save(optimizer);
          }).find("the optimizer has no values yet") != std::string::npos);
  });
  CHECK(message_of([] {
          zero::Checkpoints{"", {}};
        }) == "invalid argument: checkpoints need the name of a directory");
  CHECK(message_of([] {
          zero::Checkpoints{"x", {.keep = -1}};
        }) == "invalid argument: CheckpointOptions::keep is -1, but must be at least 0 (all)");
}

TEST_CASE("a save goes on while training does, and becomes a checkpoint when all have written") {
  TemporaryDirectory const directory;
  std::mutex mutex;
  Held then;
  Held loaded;
  run<Sharded>(3, 2, [&](Sharded& optimizer, zero::InProcess& comm) {
    std::uint64_t const bytes = zero::Checkpoints::plan(optimizer, 4);
    zero::Checkpoints run{directory.path(), {.snapshot_bytes = bytes}};
    CHECK(run.held() == bytes);
    std::array<std::byte, 4> blob{};
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
  CHECK(zero::Checkpoints{directory.path()}.list().size() == 4);
  CHECK(directories(directory.path()) == 5);
  run<Sharded>(2, 0, [&](Sharded& optimizer, zero::InProcess&) {
    zero::Checkpoints run{directory.path()};
    zero::LoadReport const report = run.load(optimizer, run.list().front());
    CHECK(report.user == nlohmann::json{{"epoch", 7}});
    collect(optimizer, loaded, mutex);
    run.save(optimizer);
  });
  CHECK(loaded == then);
  CHECK(directories(directory.path()) == 5);
}

TEST_CASE("a file system that is slower than a communicator's deadline is no failure") {
  TemporaryDirectory const directory;
  zero::run_ranks(zero::InProcess::group(2, {.deadline_s = 0.5}), [&](zero::InProcess& comm) {
    Fp32 optimizer{comm, toy::model()};
    toy::load(optimizer);
    zero::BasicCheckpoints<SlowFiles> run{directory.path(),
                                          {.snapshot_bytes = zero::Checkpoints::plan(optimizer)}};
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
  auto const values = [](zero::Tensor const&, std::size_t first, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(first + i + 1);
  };
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    Fp32 optimizer{comm, saved, zero::AdamW{.lr = 0.5f}};
    optimizer.load_parameters(values);
    zero::Checkpoints{directory.path()}.save(optimizer);
  });
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    zero::Checkpoints run{directory.path()};
    zero::FoundCheckpoint const found = *run.latest();
    Fp32 optimizer{comm, wanted, zero::AdamW{.lr = 0.25f}};
    optimizer.load_parameters([](auto&&, auto&&, std::span<float> out) {
      for (float& value : out) value = -1.f;
    });
    std::string const said = message_of([&] { run.load(optimizer, found); });
    INFO(said);
    CHECK(said.starts_with("data: on rank 0: "));
    CHECK(said.find("not in the checkpoint: 'new', 'd'; not in the optimizer: 'c', 'old'; "
                    "different: 'b' has shape [3, 5] here and [5, 3] in the checkpoint") !=
          std::string::npos);
    std::string const renamed = message_of([&] {
      run.load(optimizer, found, {.names = {{"older", "new"}}});
    });
    CHECK(renamed.find("not in the checkpoint: 'new' (there 'older'), 'd'; not in the optimizer: "
                       "'c', 'old'; ") != std::string::npos);
    CHECK(optimizer.parameter(0)[3] == -1.f);
    zero::LoadReport const report =
        run.load(optimizer, found, {.strict = false, .names = {{"old", "new"}}});
    CHECK(report.missing == std::vector<std::string>{"d"});
    CHECK(report.unexpected == std::vector<std::string>{"c"});
    CHECK(report.unfit.size() == 1);
    CHECK(report.differing == std::vector<std::string>{"rule.fields.lr: 0.5 saved, 0.25 here",
                                                       "'a'.weight_decay: 1.0 saved, 0.0 here"});
    CHECK(optimizer.rule().lr == 0.25f);
    CHECK(optimizer.parameter(0)[3] == 4.f);
    CHECK(optimizer.parameter(1)[3] == -1.f);
    CHECK(optimizer.parameter(2)[3] == 4.f);
    CHECK(optimizer.parameter(3)[1] == -1.f);

    zero::ShardedOptimizer<zero::InProcess, Pos, zero::Sgd> other{
        comm, saved, zero::Sgd{.momentum = 0.9f}};
    CHECK(message_of([&] { run.load(other, found); })
              .find("states of 'a' are of the rule AdamW, and would mean something else to SGD; "
                    "load parameters alone") != std::string::npos);
    run.load(other, found, {.parameters_only = true});
    CHECK(other.parameter(3)[3] == 4.f);
    CHECK(other.steps() == 0);
  });
}

TEST_CASE("another precision starts from the master weights") {
  TemporaryDirectory const directory;
  std::mutex mutex;
  Held then;
  Held wide;
  run<Sharded>(2, 3, [&](Sharded& optimizer, zero::InProcess&) {
    collect(optimizer, then, mutex);
    zero::Checkpoints{directory.path()}.save(optimizer);
  });
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    Fp32 optimizer{comm, toy::model()};
    zero::Checkpoints run{directory.path()};
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
  auto const half_of = [](bool right) {
    std::size_t const width = right ? 29 : 17;
    return zero::TensorPart{"w", {rows, columns}, {{{0, right ? 17u : 0u}, {rows, width}}}};
  };
  // Tensor-parallel ranks {0, 1} x data-parallel ranks {0, 1, 2}.
  zero::run_ranks(6, [&](zero::InProcess& world) {
    bool const right = world.rank() % 2 == 1;
    std::size_t const width = right ? 29 : 17;
    zero::InProcess comm = world.split(right ? 1 : 0, world.rank());
    Fp32 optimizer{comm, {{.name = "w", .shape = {rows, width}}, {.name = "b", .shape = {3}}}};
    optimizer.load_parameters([&](zero::Tensor const& t, std::size_t first, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        std::size_t const at = first + i;
        out[i] = t.name == "b" ? 5.f : value(at / width, at % width + (right ? 17 : 0));
      }
    });
    zero::Checkpoints run{directory.path()};
    zero::SaveOptions options;
    options.parts = {half_of(right), {"b", {6}, {{{right ? 3u : 0u}, {3}}}}};
    zero::SaveReport const report = run.save(optimizer, options, world);
    CHECK(report.path.find("000001") != std::string::npos);
  });
  CHECK(zero::verify_checkpoint(directory.path() + "/000001-step-0").empty());
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    Fp32 optimizer{comm, {{.name = "w", .shape = {rows, columns}}, {.name = "b", .shape = {6}}}};
    zero::Checkpoints run{directory.path()};
    run.load(optimizer, *run.latest());
    bool same = true;
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) {
        same = same && optimizer.parameter(0)[r * columns + c] == value(r, c);
      }
    }
    CHECK(same);
    run.save(optimizer);
  });
  // And back, into another cut.
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    Fp32 optimizer{comm, {{.name = "w", .shape = {2 * rows, 10}}}};
    zero::Checkpoints run{directory.path()};
    zero::LoadOptions options{.strict = false};
    options.parts = {{"w", {rows, columns}, {{{0, 30}, {rows, 10}}, {{0, 2}, {rows, 10}}}}};
    zero::LoadReport const report = run.load(optimizer, *run.latest(), options);
    CHECK(report.unexpected == std::vector<std::string>{"b"});
    bool same = true;
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < 10; ++c) {
        same = same && optimizer.parameter(0)[r * 10 + c] == value(r, 30 + c) &&
               optimizer.parameter(0)[(rows + r) * 10 + c] == value(r, 2 + c);
      }
    }
    CHECK(same);
  });
}

TEST_CASE("every rank's own bytes are there after a load, and are a rank's own on as many ranks") {
  TemporaryDirectory const directory;
  run<Fp32>(3, 1, [&](Fp32& optimizer, zero::InProcess& comm) {
    std::vector<std::byte> const blob(static_cast<std::size_t>(comm.rank()),
                                      static_cast<std::byte>(comm.rank()));
    zero::Checkpoints{directory.path()}.save(optimizer, {.rank_blob = blob});
  });
  for (int const ranks : {2, 3}) {
    run<Fp32>(ranks, 0, [&](Fp32& optimizer, zero::InProcess& comm) {
      zero::Checkpoints run{directory.path()};
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
  run<Sharded>(3, 2, [&](Sharded& optimizer, zero::InProcess& comm) {
    zero::Checkpoints run{directory.path()};
    run.save(optimizer);
    run.save(optimizer);
    zero::FoundCheckpoint const found = *run.latest(optimizer);
    zero::FoundCheckpoint const older{directory.path() + "/000001-step-2", 1, 2};
    if (comm.rank() == 0) damage(found.path + "/rank-00002.safetensors", 40);
    checkpoint_tests::train(optimizer, comm.rank(), 3, 2, 3);
    std::string const checked =
        message_of([&] { run.load(optimizer, found, {.verify_first = true}); });
    INFO(checked);
    CHECK(checked.find("rank-00002.safetensors' of rank 2 is damaged between bytes") !=
          std::string::npos);
    // Nothing was changed.
    checkpoint_tests::train(optimizer, comm.rank(), 3, 3, 4);
    CHECK(optimizer.steps() == 4);
    CHECK(message_of([&] { run.load(optimizer, found); }) == checked);
    zero::Checkpoints other{directory.path() + "/other"};
    CHECK(message_of([&] { optimizer.step(); }).find("a load failed halfway") != std::string::npos);
    CHECK(message_of([&] { other.save(optimizer); }).find("a load failed halfway") !=
          std::string::npos);
    optimizer.discard_gradients();
    run.load(optimizer, older, {.parameters_only = true});
    CHECK(message_of([&] { optimizer.step(); }).find("a load failed halfway") != std::string::npos);
    optimizer.discard_gradients();
    run.load(optimizer, older);
    checkpoint_tests::train(optimizer, comm.rank(), 3, 2, 3);
    CHECK(optimizer.steps() == 3);
  });
  CHECK(!std::filesystem::exists(directory.path() + "/other"));
}

TEST_CASE("ranks that load different checkpoints, or none, are told so") {
  TemporaryDirectory const directory;
  run<Fp32>(2, 1, [&](Fp32& optimizer, zero::InProcess& comm) {
    zero::Checkpoints run{directory.path()};
    run.save(optimizer);
    checkpoint_tests::train(optimizer, comm.rank(), 2, 1, 2);
    run.save(optimizer);
    CHECK(run.latest(optimizer)->number == 2);
    auto const all = run.list();
    CHECK(message_of([&] { run.load(optimizer, all[comm.rank() == 0 ? 0 : 1]); }) ==
          "invalid argument: ranks load different checkpoints; here '" +
              all[comm.rank() == 0 ? 0 : 1].path + "'");
    zero::FoundCheckpoint none = all[0];
    if (comm.rank() == 1) none.path += "x";
    CHECK(message_of([&] {
            run.load(optimizer, none);
          }).find("resource: on rank 1: cannot open '" + all[0].path + "x/manifest.json'") !=
          std::string::npos);
    {
      auto const guard = optimizer.parameters(0);
      CHECK(message_of([&] {
              run.load(optimizer, all[1]);
            }).find("load() while the parameters of unit 0 are in use") != std::string::npos);
    }
    checkpoint_tests::train(optimizer, comm.rank(), 2, 2, 3);
  });
}

TEST_CASE("a checkpoint has each element once, whatever the stage") {
  std::uint64_t trained = 0;
  std::uint64_t frozen = 0;
  for (zero::Tensor const& tensor : toy::model()) {
    if (!tensor.tied_to.empty()) continue;
    (tensor.frozen ? frozen : trained) += zero::element_count(tensor);
  }
  auto const check = [&]<class Optimizer>(Optimizer*, int ranks) {
    TemporaryDirectory const directory;
    run<Optimizer>(ranks, 0, [&](Optimizer& optimizer, zero::InProcess& comm) {
      zero::Checkpoints run{directory.path()};
      zero::SaveReport const report = run.save(optimizer);
      if (comm.rank() != 0) return;
      zero::DiskFiles files;
      zero::Catalog const catalog = zero::read_catalog(files, report.path);
      std::uint64_t data = 0;
      std::uint64_t all = 0;
      for (zero::SavedFile const& file : catalog.manifest.files) {
        data += file.bytes - file.header_bytes;
        all += file.bytes;
        CHECK(std::filesystem::file_size(report.path + "/" + file.name) == file.bytes);
      }
      CHECK(all == report.bytes);
      // Master weights and two states, and frozen parameters.
      CHECK(data == trained * 3 * sizeof(float) + frozen * sizeof(typename Optimizer::Parameter));
    });
  };
  for (int const ranks : {1, 3, 8}) {
    check(static_cast<Fp32*>(nullptr), ranks);
    check(static_cast<Sharded*>(nullptr), ranks);
    check(static_cast<zero::ShardedOptimizer<zero::InProcess, zero::stage::Replicated>*>(nullptr),
          ranks);
  }
}

}  // namespace checkpoint_test
