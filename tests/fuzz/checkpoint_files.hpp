/// @file
/// Checkpoints that were changed and sealed again.
#pragma once

#include "fuzz/ranks.hpp"
#include "fuzz/sealed.hpp"
#include "zero/checkpoint.hpp"
#include "zero/checkpoint/offline.hpp"

#include <sys/stat.h>

#include <map>

namespace fuzz {

/// The disk, without waiting for it.
struct QuickFiles : zero::DiskFiles {
  zero::FileAnswer sync(zero::FileAnswer /*file*/) const noexcept { return 0; }
  zero::FileAnswer sync_directory(std::string const& /*path*/) const noexcept { return 0; }
};
using Checkpoints = zero::BasicCheckpoints<QuickFiles>;

/// A checkpoint in its parts.
struct Saved {
  struct File {
    std::string name{};
    json header{};
    json about{};
    std::string data{};
  };
  json manifest{};
  std::vector<File> files{};
};

inline constexpr char const* first_name = "/000001-step-2";

/// A sound checkpoint of a group, made once.
inline Saved const& sound(std::size_t kind, Group const& group) {
  static std::map<std::size_t, Saved> all;
  if (all.contains(kind)) return all[kind];
  Place const place("-sound");
  with_ranks(1, group, [&](auto& rank, int /*number*/) {
    for (int step = 0; step < 2; ++step) rank.step();
    std::byte const blob[5]{};
    Checkpoints(place.path)
        .save(*rank, {.user = {{"epoch", 1}}, .rank_blob = blob, .parts = rank.parts()});
  });
  std::string const path = place.path + first_name + "/";
  Saved& saved = all[kind];
  saved.manifest = json::parse(slurp(path + "manifest.json"))["checkpoint"];
  for (json const& each : saved.manifest["files"]) {
    std::string const bytes = slurp(path + each["name"].get<std::string>());
    std::size_t const header = each["header_bytes"];
    Saved::File& file = saved.files.emplace_back();
    file.name = each["name"];
    file.header = json::parse(bytes.substr(8, header - 8));
    file.about = json::parse(file.header["__metadata__"]["zero"].get<std::string>());
    file.data = bytes.substr(header);
  }
  return saved;
}

/// Writes it with checksums that fit, and changes its manifest; now and then, one bit afterwards.
inline void write(Saved saved, std::string const& directory, Input& input) {
  bool const damaged = input.below(16) == 1;
  for (std::size_t i = 0; i < saved.files.size(); ++i) {
    auto& [name, header, about, data] = saved.files[i];
    std::uint64_t piece = 0;
    if (about.is_object() && about["piece_bytes"].is_number_integer()) {
      piece = about["piece_bytes"].get<std::uint64_t>();
    }
    if (header.is_object() && header["__metadata__"].is_object()) {
      header["__metadata__"]["zero"] = text_of(about);
      std::string sums;
      for (std::size_t at = 0; piece > data.size() / 1000 && at < data.size(); at += piece) {
        std::size_t const size = std::min<std::size_t>(piece, data.size() - at);
        sums += zero::checksum_text(zero::checksum(data.data() + at, size));
      }
      if (!sums.empty()) header["__metadata__"]["zero.checksums"] = sums;
    }
    if (damaged && !data.empty()) data[input.below(data.size())] ^= 1;
    std::string const text = framed(text_of(header));
    json& listed = saved.manifest["files"][i];
    listed["header_bytes"] = text.size();
    listed["header_xxh3"] = zero::checksum_text(zero::checksum(text.data(), text.size()));
    listed["bytes"] = text.size() + data.size();
    spill(directory + "/" + name, text + data);
  }
  for (std::size_t times = input.below(3); times > 0; --times) change(saved.manifest, input);
  spill(directory + "/manifest.json", sealed(text_of(saved.manifest)));
}

/// Puts something into the run's directory that may look like a checkpoint.
inline void put_beside(std::string const& run, std::string const& outside, Input& input) {
  namespace fs = std::filesystem;
  char const* const numbers[] = {"1", "2", "000000", "18446744073709551615", "9223372036854775807"};
  char const* const ends[] = {"0", "3", "notes", "-1"};
  std::string path = run + "/" + numbers[input.below(5)] + "-step-" + ends[input.below(4)];
  if (input.below(16) == 1) path = run + "/lock";
  std::size_t const what = input.below(8);
  std::error_code none;
  if (what == 0) spill(path, "");
  if (what == 1) fs::create_directory_symlink(outside + first_name, path, none);
  if (what == 2) fs::create_symlink(outside + "/new", path, none);
  if (what == 3) fs::copy(run + first_name, path, fs::copy_options::recursive, none);
  if (what >= 4) fs::create_directory(path, none);
  if (what == 5) static_cast<void>(::mkfifo((path + "/manifest.json").c_str(), 0666));
  if (what == 6) fs::create_symlink(outside + "/new", path + "/rank-00000.safetensors", none);
  if (what == 7) fs::create_directories(path + "/rank-00000/x", none);
}

/// What a checkpoint has for an array of a tensor, read without an optimizer.
inline std::vector<float> saved_values(std::string const& path, std::string name, int array) {
  QuickFiles files;
  zero::Catalog const catalog = zero::read_catalog(files, path);
  while (!catalog.tensors.at(name).about.tied_to.empty()) {
    name = std::string(catalog.tensors.at(name).about.tied_to);
  }
  zero::CatalogTensor const& tensor = catalog.tensors.at(name);
  char const* const states[] = {"exp_avg", "exp_avg_sq"};
  auto const& saved = tensor.arrays.at(array > 0             ? states[array - 1]
                                       : tensor.about.frozen ? "parameter"
                                                             : "master");
  std::vector<float> all(zero::detail::volume(tensor.about.shape));
  zero::CheckpointReader<QuickFiles>(files, catalog)
      .read(saved, 0, all.size(), zero::DType::f32, reinterpret_cast<std::byte*>(all.data()));
  return all;
}

/// Looks at a changed checkpoint, loads it, takes a step, and saves.
inline void load_checkpoint(Input& input) {
  std::size_t const kind = much(input.below(64) == 63) ? 4 : input.below(4);
  Group const groups[] = {{1}, {2}, {3}, {.grid = true}, {.large = true}};
  Group const group = groups[kind == 4 ? 4 : input.below(4)];
  std::size_t const stage = input.below(3);
  zero::LoadOptions const options{.strict = input.flag(),
                                  .parameters_only = input.below(4) == 1,
                                  .verify_first = input.below(4) == 1};
  Saved saved = sound(kind, groups[kind]);
  Place const place("");
  std::string const run = place.path + "/run";
  std::string const outside = place.path + "/outside";
  std::string const path = run + first_name;
  std::filesystem::create_directories(path);
  std::filesystem::create_directory(outside);
  for (std::size_t times = input.below(4); times > 0; --times) {
    Saved::File& file = saved.files[input.below(saved.files.size())];
    std::size_t const what = input.below(4);
    if (what == 0) file.data[input.below(file.data.size())] = static_cast<char>(input.number(1));
    if (what > 0) change(what == 1 ? file.header : file.about, input);
  }
  write(std::move(saved), path, input);
  std::size_t const others = input.below(8) == 1 ? 1 + input.below(2) : 0;
  if (others > 0) std::filesystem::copy(path, outside + first_name);
  for (std::size_t i = 0; i < others; ++i) put_beside(run, outside, input);
  std::string const before = contents(outside);

  static_cast<void>(failure({ErrorKind::data}, [&] {
    Checkpoints look(run);
    if (look.latest()) require(!look.list().empty(), "the latest checkpoint is not in the list");
  }));
  bool const clean = zero::verify_checkpoint(path, QuickFiles{}).empty();
  with_ranks(stage, group, [&](auto& rank, int number) {
    zero::LoadOptions own = options;
    own.parts = rank.parts();
    std::vector<Piece> expected = rank.held();
    long const step = (*rank).counters().step;
    Checkpoints checkpoints(run, {.keep = 1});
    zero::LoadReport report;
    std::string const why = failure({ErrorKind::data, ErrorKind::resource},
                                    [&] { report = checkpoints.load(*rank, {.path = path}, own); });
    std::vector<Piece> const held = rank.held();
    if (why.empty()) {
      for (Piece& piece : expected) {
        std::string const name = piece.tensor == "head" ? "w" : piece.tensor;
        if (named(report.missing, name) || named(report.unfit, "'" + name + "'") ||
            (options.parameters_only && piece.array > 0)) {
          continue;
        }
        auto const whole = saved_values(path, name, piece.array);
        for (std::size_t e = 0; e < piece.values.size(); ++e)
          piece.values[e] = whole.at(piece.first + e);
      }
      require((*rank).counters().step == (options.parameters_only ? step : report.step), "a step");
    }
    for (std::size_t i = 0; why.empty() && i < held.size(); ++i) {
      require(held[i] == expected[i], "'" + held[i].tensor + "' is not what the checkpoint says");
    }
    bool const untouched = held == expected && (!why.empty() <= ((*rank).counters().step == step));
    require(why.empty() || untouched || !(clean || options.verify_first),
            "a load that is refused has changed something: " + why);
    std::string const refused = failure({ErrorKind::invalid_argument}, [&] { rank.step(); });
    require(refused.empty() == untouched, "after '" + why + "' a step says '" + refused + "'");
    std::string const unsaved =
        failure({ErrorKind::invalid_argument, ErrorKind::data, ErrorKind::resource}, [&] {
          std::string const made = checkpoints.save(*rank, {.parts = rank.parts()}).path;
          auto const list = checkpoints.list();
          require(number != 0 || (!list.empty() && list.back().path == made), "a save is lost");
        });
    require(others > 0 || !refused.empty() || unsaved.empty(), "no save is possible: " + unsaved);
  });
  require(contents(outside) == before, "something outside was changed");
}

}  // namespace fuzz
