#include "checkpoint/proof.hpp"

// Files that are not as they were written: whatever is wrong with them is found, and named.
namespace damage_test {
namespace {

using namespace checkpoint_tests;
using zero::InProcess;

constexpr int ranks = 3;
constexpr std::uint64_t piece = zero::detail::piece_bytes;

/// More than one piece on every rank, and pieces of several tensors.
struct Trainer : checkpoint_tests::Trainer<InProcess> {
  explicit Trainer(InProcess& comm, std::size_t rows = 300)
      : checkpoint_tests::Trainer<InProcess>(comm,
                                             {{.name = "w", .shape = {rows, 300}},
                                              {.name = "b", .shape = {1000}},
                                              {.name = "fixed", .shape = {500}, .frozen = true}},
                                             {}) {}
  /// Other values everywhere.
  void fill(float from) {
    optimizer().fill_owned([&](zero::Tensor const&, std::size_t, auto masters, auto const& states) {
      for (float& value : masters) value = from += 0.5f;
      for (auto const& state : states) {
        for (float& value : state) value = from += 0.5f;
      }
    });
  }
};

/// What is done to a file, and what has to be said about it.
struct Damage {
  std::string text{};                ///< what was done
  std::vector<std::string> names{};  ///< that one of the problems has to have, all of them
};

/// What is said about the piece of data that has a byte: the first entry in it, and whether there
/// are more.
std::string concerned(zero::safetensors::Header const& header, std::uint64_t byte) {
  std::uint64_t const first = byte / piece * piece;
  std::vector<std::string> within;
  for (auto const& entry : header.entries) {
    if (entry.end > first && entry.begin < first + piece) within.push_back(entry.name);
  }
  return within.size() == 1 ? "in '" + within[0] + "'" : "in entries from '" + within[0] + "' on";
}

/// Damages a file of the checkpoint at `path`.
Damage damage(ModelFiles& files,
              std::string const& path,
              std::string const& other,
              std::mt19937_64& random) {
  auto const below = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  std::size_t const rank = below(ranks + 1);
  bool const is_manifest = rank == ranks;
  std::string const name = is_manifest ? "manifest.json" : rank_file(rank);
  std::string const at = path + "/" + name;
  std::string bytes = read_all(files, at);
  Damage done{.names = {at}};
  std::size_t const kind = below(20);
  if (kind == 0) {
    files.remove(at);
    return {name + " is removed", {at}};
  }
  if (!is_manifest) done.names.push_back("of rank " + std::to_string(rank));
  if (kind == 1 && !is_manifest) {
    std::size_t const peer = (rank + 1 + below(ranks - 1)) % ranks;
    std::string const peers = path + "/" + rank_file(peer);
    write_all(files, at, read_all(files, peers));
    write_all(files, peers, bytes);
    done.text = name + " is swapped with that of rank " + std::to_string(peer);
    return done;
  }
  if (kind == 2 && !is_manifest) {
    done.text = name + " is an older checkpoint's";
    bytes = read_all(files, other + "/" + name);
  } else if (kind == 3) {
    done.text = name + " is longer";
    bytes.append(1 + below(5000), below(2) == 0 ? '\0' : ' ');
  } else if (kind < 7) {
    bytes.resize(below(bytes.size()));
    done.text = name + " ends after " + std::to_string(bytes.size()) + " bytes";
  } else {
    // Headers are shorter than data, and are hit as often.
    std::size_t flipped = below(bytes.size());
    if (!is_manifest) {
      auto const [header, data] = parted(bytes);
      std::size_t const begin = bytes.size() - data.size();
      if (below(2) == 0) flipped = below(begin);
      if (flipped >= begin) done.names.push_back(concerned(header, flipped - begin));
    }
    auto const bit = below(8);
    bytes[flipped] = static_cast<char>(static_cast<unsigned char>(bytes[flipped]) ^ (1u << bit));
    done.text = name + ", bit " + std::to_string(bit) + " of byte " + std::to_string(flipped);
  }
  write_all(files, at, bytes);
  return done;
}

bool says(std::string const& text, std::vector<std::string> const& names) {
  return std::ranges::all_of(names,
                             [&](std::string const& name) { return text.find(name) != text.npos; });
}

TEST_CASE(
    "flipped bits, cut, lengthened, swapped and missing files are found, named, and refused") {
  ModelFiles files;
  std::string path;
  std::string other;
  zero::run_ranks(ranks, [&](InProcess& comm) {
    Trainer trainer(comm);
    zero::Checkpoints checkpoints("run", {}, files);
    std::vector<std::byte> const blob(100, std::byte{7});
    auto const first = checkpoints.save(trainer.optimizer(), {.rank_blob = blob});
    trainer.optimizer().fill_owned([](zero::Tensor const&, std::size_t, auto masters, auto const&) {
      for (float& value : masters) value += 1;
    });
    auto const second = checkpoints.save(trainer.optimizer(), {.rank_blob = blob});
    if (comm.rank() == 0) path = second.path;
    if (comm.rank() == 0) other = first.path;
  });
  CHECK(zero::verify_checkpoint(path, files).empty());
  files.settle();
  std::mt19937_64 random(20261122);
  std::size_t const count = runs(200);
  zero::run_ranks(1, [&](InProcess& comm) {
    Trainer trainer(comm);
    zero::Checkpoints sound("run", {}, files);
    zero::FoundCheckpoint const found{.path = path};
    sound.load(trainer.optimizer(), found);
    std::vector<float> const saved = owned(trainer.optimizer());
    for (std::size_t i = 0; i < count; ++i) {
      ModelFiles damaged = files.crashed(0, 0);
      Damage const done = damage(damaged, path, other, random);
      CAPTURE(done.text);
      auto const problems = zero::verify_checkpoint(path, damaged);
      bool const named = std::ranges::any_of(
          problems, [&](std::string const& text) { return says(text, done.names); });
      CHECK_MESSAGE(named, (problems.empty() ? "not found" : problems[0]));
      std::string const refused = failure_of([&] {
        zero::Checkpoints checkpoints("run", {}, damaged);
        checkpoints.load(trainer.optimizer(), found, {.verify_first = i % 2 == 0});
      });
      CHECK_MESSAGE(says(refused, {path + '/'}), refused);
      // Nothing was changed if all was read before.
      if (i % 2 == 0) CHECK(owned(trainer.optimizer()) == saved);
      if (i % 2 != 0) sound.load(trainer.optimizer(), found);
    }
    CHECK(owned(trainer.optimizer()) == saved);
  });
  MESSAGE(count, " damages");
}

TEST_CASE("two threads that read a large file find what one would") {
  ModelFiles files;
  zero::run_ranks(1, [&](InProcess& comm) {
    Trainer trainer(comm, 3001);
    trainer.fill(1.f);
    zero::Checkpoints checkpoints("run", {}, files);
    std::string const path = checkpoints.save(trainer.optimizer()).path;
    std::string const name = path + "/rank-00000.safetensors";
    zero::FoundCheckpoint const found{.path = path};
    std::vector<float> const saved = owned(trainer.optimizer());
    REQUIRE(saved.size() * sizeof(float) > 2 * zero::detail::bytes_for_two_threads);
    trainer.fill(7e6f);
    checkpoints.load(trainer.optimizer(), found);
    CHECK(owned(trainer.optimizer()) == saved);
    std::string const bytes = read_all(files, name);
    std::size_t const data = bytes.size() - parted(bytes).second.size();
    // The first and the last byte, and the pieces about the middle, where one hands over.
    std::size_t const middle = data + (bytes.size() - data) / 2;
    for (std::size_t const at : {data, middle - piece, middle, middle + piece, bytes.size() - 1}) {
      CAPTURE(at);
      std::string wrong = bytes;
      wrong[at] ^= 1;
      write_all(files, name, wrong);
      auto const problems = zero::verify_checkpoint(path, files);
      REQUIRE(problems.size() == 1);
      CHECK(says(problems[0], {"of rank 0 is damaged between bytes"}));
      for (bool const before : {true, false}) {
        CHECK(failure_of([&] {
                checkpoints.load(trainer.optimizer(), found, {.verify_first = before});
              }).ends_with(problems[0]));
        if (before) CHECK(owned(trainer.optimizer()) == saved);
      }
      write_all(files, name, bytes);
      checkpoints.load(trainer.optimizer(), found);
      CHECK(owned(trainer.optimizer()) == saved);
    }
  });
}

}  // namespace
}  // namespace damage_test
