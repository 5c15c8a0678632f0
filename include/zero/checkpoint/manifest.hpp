/// @file
/// The file that makes a directory a checkpoint: which files belong to it, and what they must be.
/// Reads their headers, too.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/version.hpp"
#include "zero/checkpoint/checksum.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/safetensors.hpp"
#include "zero/checkpoint/text.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// What a checkpoint's manifest says of one rank's file.
struct SavedFile {
  std::string name{};              ///< in the checkpoint's directory
  std::uint64_t bytes = 0;         ///< of the whole file
  std::uint64_t header_bytes = 0;  ///< before the data
  std::uint64_t header_sum = 0;    ///< checksum of these; the header has those of the data
  int leader = 0;                  ///< the file that describes this rank's optimizer
  int rank = 0;                    ///< of the optimizer's communicator
  int world_size = 1;              ///< of the optimizer's communicator
  std::string optimizer{};         ///< its name, of several that one rank saves; else empty

  friend bool operator==(SavedFile const&, SavedFile const&) = default;
};

/// What a checkpoint consists of.
struct Manifest {
  long step = 0;                                   ///< updates applied when it was saved
  nlohmann::json user = nlohmann::json::object();  ///< the trainer's own, of the first rank
  /// By rank of those that saved together; of one rank as the optimizers that it saved.
  std::vector<SavedFile> files{};
  bool coded = false;  ///< files have states that are codes, and their scales

  /// Names of the optimizers that each rank saved; one empty name if that was one without.
  [[nodiscard]] std::vector<std::string> optimizers() const {
    std::vector<std::string> names;
    for (SavedFile const& file : files) {
      if (std::find(names.begin(), names.end(), file.optimizer) == names.end()) {
        names.push_back(file.optimizer);
      }
    }
    return names;
  }
  /// What there would be if one of them had been saved alone.
  [[nodiscard]] Manifest of(std::string_view optimizer) const {
    Manifest part{.step = step, .user = user, .files = {}, .coded = coded};
    std::vector<int> places;
    int place = 0;
    for (SavedFile const& file : files) places.push_back(file.optimizer == optimizer ? place++ : 0);
    for (SavedFile const& file : files) {
      if (file.optimizer != optimizer) continue;
      part.files.push_back(file);
      part.files.back().optimizer.clear();
      part.files.back().leader = places[static_cast<std::size_t>(file.leader)];
    }
    return part;
  }
};

namespace detail {

inline constexpr std::string_view manifest_name = "manifest.json";
/// A manifest has some 150 bytes for each rank, and the trainer's own text.
inline constexpr std::uint64_t longest_manifest = std::uint64_t{1} << 30;
/// Raised when older readers would misunderstand what is written.
inline constexpr std::uint64_t checkpoint_format = 1;
/// The same with names of optimizers.
inline constexpr std::uint64_t format_of_several = 2;
/// The same with or without these, and with states that are codes.
inline constexpr std::uint64_t format_of_codes = 3;

// A manifest is one line of JSON that begins with a checksum of the rest.
inline constexpr std::string_view seal_begin = R"({"xxh3":")";
inline constexpr std::string_view seal_middle = R"(","checkpoint":)";
inline constexpr std::string_view seal_end = "}\n";

/// @param most  bytes that it may have
/// @throws Error (invalid_argument) if the trainer's JSON has text that is no UTF-8, or is too long
[[nodiscard]] inline std::string manifest_text(Manifest const& manifest,
                                               std::uint64_t most = longest_manifest) {
  nlohmann::json files = nlohmann::json::array();
  for (SavedFile const& file : manifest.files) {
    files.push_back({{"name", file.name},
                     {"bytes", file.bytes},
                     {"header_bytes", file.header_bytes},
                     {"header_xxh3", checksum_text(file.header_sum)},
                     {"leader", file.leader},
                     {"rank", file.rank},
                     {"world_size", file.world_size}});
    if (!file.optimizer.empty()) files.back()["optimizer"] = file.optimizer;
  }
  bool const several = !manifest.files.empty() && !manifest.files.front().optimizer.empty();
  nlohmann::json const body = {
      {"format",
       manifest.coded ? format_of_codes
       : several      ? format_of_several
                      : checkpoint_format},
      {"zero", Message({version.major, ".", version.minor, ".", version.patch}).text()},
      {"step", manifest.step},
      {"user", manifest.user},
      {"files", std::move(files)}};
  std::string text;
  try {
    text = body.dump();
  } catch (nlohmann::json::exception const& error) {
    fail(ErrorKind::invalid_argument, {"the user's JSON cannot be written: ", error.what()});
  }
  std::string sealed(seal_begin);
  sealed += checksum_text(checksum(text.data(), text.size()));
  sealed += seal_middle;
  sealed += text;
  sealed += seal_end;
  if (sealed.size() <= most) return sealed;
  fail(ErrorKind::invalid_argument,
       {"the manifest would have ",
        sealed.size(),
        " bytes with the user's JSON, and no more than ",
        most,
        " are read"});
}

/// @param file  what messages call it
/// @throws Error (data) for anything that `manifest_text` does not write
[[nodiscard]] inline Manifest parse_manifest(std::string const& file, std::string_view text) {
  std::size_t const before = seal_begin.size() + checksum_digits + seal_middle.size();
  bool const framed = text.size() >= before + seal_end.size() && text.starts_with(seal_begin) &&
                      text.substr(before - seal_middle.size()).starts_with(seal_middle) &&
                      text.ends_with(seal_end);
  if (!framed) refuse_file(file, "is no manifest of a checkpoint");
  std::string_view const body = text.substr(before, text.size() - before - seal_end.size());
  if (checksum_text(checksum(body.data(), body.size())) !=
      text.substr(seal_begin.size(), checksum_digits)) {
    refuse_file(file, "does not have the checksum that it says it has");
  }
  nlohmann::json const json = parse_text(file, body);
  Fields const fields(file, json);
  std::uint64_t const format = fields.count("format");
  if (format < checkpoint_format || format > format_of_codes) {
    refuse_file(file, {"has format ", format, ", which this version cannot read"});
  }
  Manifest manifest{.step = fields.steps("step"),
                    .user = fields.at("user"),
                    .files = {},
                    .coded = format == format_of_codes};
  bool several = format == format_of_several;
  for (nlohmann::json const& each : fields.list("files")) {
    Fields const entry(file, each);
    several = several || (manifest.coded && entry.has("optimizer"));
    SavedFile saved{.name = entry.text("name"),
                    .bytes = entry.count("bytes"),
                    .header_bytes = entry.count("header_bytes"),
                    .header_sum = parse_checksum(file, entry.text("header_xxh3")),
                    .leader = entry.integer("leader"),
                    .rank = entry.integer("rank"),
                    .world_size = entry.integer("world_size"),
                    .optimizer = several ? entry.text("optimizer") : std::string()};
    bool const sound = is_plain_name(saved.name) && (!several || is_plain_name(saved.optimizer)) &&
                       saved.header_bytes <= saved.bytes && saved.leader >= 0 && saved.rank >= 0 &&
                       saved.rank < saved.world_size;
    if (!sound) refuse_file(file, "has an entry of a file that no save writes");
    manifest.files.push_back(std::move(saved));
  }
  auto const count = manifest.files.size();
  std::set<std::string_view> names;
  for (SavedFile const& saved : manifest.files) {
    if (names.insert(saved.name).second) continue;
    refuse_file(file, {"names '", saved.name, "' twice"});
  }
  for (SavedFile const& saved : manifest.files) {
    if (static_cast<std::size_t>(saved.leader) < count &&
        manifest.files[static_cast<std::size_t>(saved.leader)].optimizer == saved.optimizer) {
      continue;
    }
    refuse_file(file, "has a leader that is none of its files");
  }
  if (count == 0) refuse_file(file, "names no files");
  return manifest;
}

/// Reads a manifest.
/// @param path  the directory that it lies in
/// @param name  of the file
/// @throws Error (data) for what `manifest_text` does not write; (resource) if it cannot be read
[[nodiscard]] inline Manifest read_manifest(FileOperations& files,
                                            std::string const& path,
                                            std::string_view name = manifest_name) {
  std::string const file = path + "/" + std::string(name);
  return parse_manifest(file, read_file(files, file, longest_manifest));
}

/// Reads and checks the header of a file, whose length and sum a manifest may have.
/// @param file   open to be read
/// @param saved  what the manifest says of it; null for a file of which nothing is known
/// @throws Error (data), naming the file, for what is no such header, or not the one that was
/// saved;
///   (resource) for a file that cannot be read
[[nodiscard]] inline safetensors::Header read_header(File const& file,
                                                     SavedFile const* saved = nullptr) {
  using namespace safetensors;
  std::string const& path = file.path();
  std::uint64_t const bytes = file.size();
  if (saved != nullptr && bytes != saved->bytes) {
    Message const instead{" bytes instead of ", saved->bytes};
    refuse_file(path, {"of rank ", saved->rank, " has ", bytes, instead});
  }
  auto const refuse = [&](Message const& why) {
    refuse_file(path, {"is no safetensors file: ", why});
  };
  if (bytes < length_bytes) refuse({"it has ", bytes, " bytes"});
  unsigned char length[length_bytes];
  file.read(length, sizeof(length), 0);
  std::uint64_t const stated = text_length(length);
  if (saved != nullptr && saved->header_bytes < length_bytes) {
    refuse({"it cannot have a header of ", saved->header_bytes, " bytes"});
  }
  // Where a sum is known, it decides whether the length that stands there is the one that was
  // saved.
  std::uint64_t const claimed = saved != nullptr ? saved->header_bytes - length_bytes : stated;
  std::uint64_t const rest = bytes - length_bytes;
  if (claimed > rest || claimed > longest_text) {
    refuse({"its header would have ", claimed, " bytes, and ", rest, " follow"});
  }
  std::string text(static_cast<std::size_t>(length_bytes + claimed), '\0');
  std::memcpy(text.data(), length, length_bytes);
  file.read(text.data() + length_bytes, static_cast<std::size_t>(claimed), length_bytes);
  if (saved != nullptr && checksum(text.data(), text.size()) != saved->header_sum) {
    fail(ErrorKind::data,
         {"the header of '", path, "' of rank ", saved->rank, " is not the one that was saved"});
  }
  if (stated != claimed) refuse("its header has another length than it says");
  return parse(path, std::string_view(text).substr(length_bytes), rest - claimed);
}

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
