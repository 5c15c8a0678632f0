#include "checkpoint/model_files.hpp"
#include "checkpoint/runs.hpp"
#include "checkpoint/trainer.hpp"
#include "zero/checkpoint.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Files that are not as they were written: whatever is wrong with them is found, and named.
namespace damage_test {
namespace {

using checkpoint_tests::ModelCheckpoints;
using checkpoint_tests::ModelFiles;
using zero::InProcess;

constexpr int ranks = 3;

std::string read(ModelFiles& files, std::string const& path) {
  zero::FileAnswer const file = files.open(path, zero::FileMode::read);
  std::string bytes(static_cast<std::size_t>(files.size(file)), '\0');
  files.read(file, bytes.data(), bytes.size(), 0);
  files.close(file);
  return bytes;
}
void write(ModelFiles& files, std::string const& path, std::string const& bytes) {
  zero::FileAnswer const file = files.open(path, zero::FileMode::create);
  files.write(file, bytes.data(), bytes.size(), 0);
  files.close(file);
}

/// More than one piece on every rank, and pieces of several tensors.
class Trainer {
 public:
  using Optimizer = zero::ShardedOptimizer<InProcess, zero::stage::Pos>;
  explicit Trainer(InProcess& comm, std::size_t rows = 300)
      : optimizer_(comm,
                   {{.name = "w", .shape = {rows, 300}},
                    {.name = "b", .shape = {1000}},
                    {.name = "fixed", .shape = {500}, .frozen = true}}) {
    toy::load(optimizer_);
  }
  [[nodiscard]] Optimizer& optimizer() noexcept { return optimizer_; }
  /// Master weights and states.
  [[nodiscard]] std::vector<float> contents() {
    std::vector<float> all;
    optimizer_.visit_owned([&](zero::Tensor const&, std::size_t, auto masters, auto const& states) {
      all.insert(all.end(), masters.begin(), masters.end());
      for (auto const& state : states) all.insert(all.end(), state.begin(), state.end());
    });
    return all;
  }
  /// Other values everywhere.
  void fill(float from) {
    optimizer_.fill_owned([&](zero::Tensor const&, std::size_t, auto masters, auto const& states) {
      for (float& value : masters) value = from += 0.5f;
      for (auto const& state : states) {
        for (float& value : state) value = from += 0.5f;
      }
    });
  }

 private:
  Optimizer optimizer_;
};

/// What is done to a file, and what has to be said about it.
struct Damage {
  std::string text{};                ///< what was done
  std::vector<std::string> names{};  ///< that one of the problems has to have, all of them
};

/// Where the data of a file begin, and whose they are.
struct Layout {
  std::uint64_t header_bytes = 0;
  std::vector<zero::safetensors::Entry> entries{};

  explicit Layout(std::string const& bytes) {
    namespace st = zero::safetensors;
    header_bytes = st::length_bytes +
                   st::text_length(std::span<unsigned char const, st::length_bytes>(
                       reinterpret_cast<unsigned char const*>(bytes.data()), st::length_bytes));
    entries =
        st::parse("it",
                  std::string_view(bytes).substr(st::length_bytes, header_bytes - st::length_bytes),
                  bytes.size() - header_bytes)
            .entries;
  }
  /// What is said about the piece of data that has a byte: the first entry in it, and whether there
  /// are more.
  [[nodiscard]] std::string concerned(std::uint64_t byte) const {
    std::uint64_t const piece = zero::detail::Pipe::piece;
    std::uint64_t const first = (byte - header_bytes) / piece * piece;
    std::vector<std::string> within;
    for (auto const& entry : entries) {
      if (entry.end > first && entry.begin < first + piece) within.push_back(entry.name);
    }
    return within.size() == 1 ? "in '" + within[0] + "'" : "in entries from '" + within[0] + "' on";
  }
};

/// Damages a file of the checkpoint at `path`.
Damage damage(ModelFiles& files,
              std::string const& path,
              std::string const& other,
              std::mt19937_64& random) {
  auto const below = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  std::size_t const rank = below(ranks + 1);
  bool const is_manifest = rank == ranks;
  auto const file_of = [](std::size_t r) {
    return "rank-0000" + std::to_string(r) + ".safetensors";
  };
  std::string const name = is_manifest ? "manifest.json" : file_of(rank);
  std::string const at = path + "/" + name;
  std::string bytes = read(files, at);
  std::string const of_rank = "of rank " + std::to_string(rank);
  std::size_t const kind = below(20);
  if (kind == 0) {
    files.remove(at);
    return {name + " is removed", {at}};
  }
  if (kind == 1 && !is_manifest) {
    std::size_t const peer = (rank + 1 + below(ranks - 1)) % ranks;
    std::string const peers = path + "/" + file_of(peer);
    write(files, at, read(files, peers));
    write(files, peers, bytes);
    return {name + " is swapped with that of rank " + std::to_string(peer), {at, of_rank}};
  }
  if (kind == 2 && !is_manifest) {
    write(files, at, read(files, other + "/" + name));
    return {name + " is an older checkpoint's", {at, of_rank}};
  }
  if (kind == 3) {
    bytes.append(1 + below(5000), below(2) == 0 ? '\0' : ' ');
    write(files, at, bytes);
    return {name + " is longer", is_manifest ? std::vector{at} : std::vector{at, of_rank}};
  }
  if (kind < 7) {
    bytes.resize(below(bytes.size()));
    write(files, at, bytes);
    return {name + " ends after " + std::to_string(bytes.size()) + " bytes",
            is_manifest ? std::vector{at} : std::vector{at, of_rank}};
  }
  // Headers are shorter than data, and are hit as often.
  std::size_t flipped = below(bytes.size());
  Damage done{.names = {at}};
  if (!is_manifest) {
    Layout const layout(bytes);
    if (below(2) == 0) flipped = below(layout.header_bytes);
    done.names.push_back(of_rank);
    if (flipped >= layout.header_bytes) done.names.push_back(layout.concerned(flipped));
  }
  auto const bit = below(8);
  bytes[flipped] = static_cast<char>(static_cast<unsigned char>(bytes[flipped]) ^ (1u << bit));
  write(files, at, bytes);
  done.text = name + ", bit " + std::to_string(bit) + " of byte " + std::to_string(flipped);
  return done;
}

bool says(std::string const& text, std::vector<std::string> const& names) {
  return std::all_of(names.begin(), names.end(), [&](std::string const& name) {
    return text.find(name) != std::string::npos;
  });
}

TEST_CASE(
    "flipped bits, cut, lengthened, swapped and missing files are found, named, and refused") {
  ModelFiles files;
  std::string path;
  std::string other;
  zero::run_ranks(ranks, [&](InProcess& comm) {
    Trainer trainer(comm);
    ModelCheckpoints checkpoints("run", {}, files);
    std::vector<std::byte> const blob(100, std::byte{7});
    zero::SaveReport const first = checkpoints.save(trainer.optimizer(), {.rank_blob = blob});
    trainer.optimizer().fill_owned([](zero::Tensor const&, std::size_t, auto masters, auto const&) {
      for (float& value : masters) value += 1;
    });
    zero::SaveReport const second = checkpoints.save(trainer.optimizer(), {.rank_blob = blob});
    if (comm.rank() == 0) path = second.path;
    if (comm.rank() == 0) other = first.path;
  });
  CHECK(zero::verify_checkpoint(path, files).empty());
  files.settle();
  std::mt19937_64 random(20261122);
  std::size_t const count = checkpoint_tests::runs(200);
  zero::run_ranks(1, [&](InProcess& comm) {
    Trainer trainer(comm);
    ModelCheckpoints sound("run", {}, files);
    zero::FoundCheckpoint const found{.path = path};
    sound.load(trainer.optimizer(), found);
    std::vector<float> const saved = trainer.contents();
    for (std::size_t i = 0; i < count; ++i) {
      ModelFiles damaged = files.crashed(0, 0);
      Damage const done = damage(damaged, path, other, random);
      CAPTURE(done.text);
      auto const problems = zero::verify_checkpoint(path, damaged);
      bool const named =
          std::any_of(problems.begin(), problems.end(), [&](std::string const& text) {
            return says(text, done.names);
          });
      CHECK_MESSAGE(named, (problems.empty() ? "not found" : problems[0]));
      std::string refused;
      try {
        ModelCheckpoints checkpoints("run", {}, damaged);
        checkpoints.load(trainer.optimizer(), found, {.verify_first = i % 2 == 0});
      } catch (zero::Error const& error) {
        refused = error.message();
      }
      CHECK_MESSAGE(says(refused, {path + '/'}), refused);
      // Nothing was changed if all was read before.
      if (i % 2 == 0) CHECK(trainer.contents() == saved);
      if (i % 2 != 0) sound.load(trainer.optimizer(), found);
    }
    CHECK(trainer.contents() == saved);
  });
  MESSAGE(count, " damages");
}

TEST_CASE("two threads that read a large file find what one would") {
  static constexpr std::size_t rows = 3001;
  ModelFiles files;
  zero::run_ranks(1, [&](InProcess& comm) {
    Trainer trainer(comm, rows);
    trainer.fill(1.f);
    ModelCheckpoints checkpoints("run", {}, files);
    std::string const path = checkpoints.save(trainer.optimizer()).path;
    std::string const name = path + "/rank-00000.safetensors";
    zero::FoundCheckpoint const found{.path = path};
    std::vector<float> const saved = trainer.contents();
    REQUIRE(saved.size() * sizeof(float) > 2 * zero::detail::bytes_for_two_threads);
    trainer.fill(7e6f);
    checkpoints.load(trainer.optimizer(), found);
    CHECK(trainer.contents() == saved);
    std::string const bytes = read(files, name);
    std::uint64_t const data = Layout(bytes).header_bytes;
    // The first and the last byte, and the pieces about the middle, where one hands over.
    std::uint64_t const middle = data + (bytes.size() - data) / 2;
    std::uint64_t const piece = zero::detail::Pipe::piece;
    for (std::uint64_t const at :
         {data, middle - piece, middle, middle + piece, std::uint64_t{bytes.size()} - 1}) {
      CAPTURE(at);
      std::string wrong = bytes;
      wrong[static_cast<std::size_t>(at)] ^= 1;
      write(files, name, wrong);
      auto const problems = zero::verify_checkpoint(path, files);
      REQUIRE(problems.size() == 1);
      CHECK(problems[0].find("of rank 0 is damaged between bytes") != std::string::npos);
      for (bool const before : {true, false}) {
        std::string refused;
        try {
          checkpoints.load(trainer.optimizer(), found, {.verify_first = before});
        } catch (zero::Error const& error) {
          refused = error.message();
        }
        CHECK(refused.ends_with(problems[0]));
        if (before) CHECK(trainer.contents() == saved);
      }
      write(files, name, bytes);
      checkpoints.load(trainer.optimizer(), found);
      CHECK(trainer.contents() == saved);
    }
  });
}

}  // namespace
}  // namespace damage_test
