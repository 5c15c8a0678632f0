/// @file
/// Checkpoints that say something else than what was saved, with checksums that fit.
#pragma once

#include "checkpoint/model_files.hpp"
#include "zero/checkpoint/checksum.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/rank_file.hpp"
#include "zero/checkpoint/safetensors.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace checkpoint_tests {

inline std::string read_all(ModelFiles& files, std::string const& path) {
  zero::FileAnswer const file = files.open(path, zero::FileMode::read);
  std::string bytes(static_cast<std::size_t>(files.size(file)), '\0');
  files.read(file, bytes.data(), bytes.size(), 0);
  files.close(file);
  return bytes;
}
inline void write_all(ModelFiles& files, std::string const& path, std::string const& bytes) {
  zero::FileAnswer const file = files.open(path, zero::FileMode::create);
  files.write(file, bytes.data(), bytes.size(), 0);
  files.close(file);
}

/// A manifest's text with a checksum that fits.
inline std::string sealed(std::string const& body) {
  std::string text(zero::detail::seal_begin);
  text += zero::checksum_text(zero::checksum(body.data(), body.size()));
  text += zero::detail::seal_middle;
  return (text += body) += zero::detail::seal_end;
}

/// Writes a checkpoint's manifest as `change(json&)` leaves it.
template <class Change>
void reseal_manifest(ModelFiles& files, std::string const& path, Change const& change) {
  std::size_t const before =
      zero::detail::seal_begin.size() + zero::checksum_digits + zero::detail::seal_middle.size();
  std::string const text = read_all(files, path + "/manifest.json");
  nlohmann::json body = nlohmann::json::parse(
      text.substr(before, text.size() - before - zero::detail::seal_end.size()));
  change(body);
  write_all(files, path + "/manifest.json", sealed(body.dump()));
}

/// Writes a rank's file as `change(json& about, Header&)` leaves its header.
template <class Change>
void reseal_header(ModelFiles& files,
                   std::string const& path,
                   std::size_t rank,
                   Change const& change) {
  namespace st = zero::safetensors;
  std::string const name = "rank-0000" + std::to_string(rank) + ".safetensors";
  std::string const bytes = read_all(files, path + "/" + name);
  auto const length =
      static_cast<std::size_t>(st::text_length(std::span<unsigned char const, st::length_bytes>(
          reinterpret_cast<unsigned char const*>(bytes.data()), st::length_bytes)));
  std::string const data = bytes.substr(st::length_bytes + length);
  st::Header header =
      st::parse(name, std::string_view(bytes).substr(st::length_bytes, length), data.size());
  nlohmann::json about = nlohmann::json::parse(header.metadata[zero::detail::about_key]);
  change(about, header);
  header.metadata[zero::detail::about_key] = about.dump();
  std::size_t piece = data.size();
  if (about["piece_bytes"].is_number_unsigned()) {
    piece = (std::max)(std::size_t{1},
                       (std::min)(about["piece_bytes"].get<std::size_t>(), data.size()));
  }
  std::string& sums = header.metadata[zero::detail::sums_key];
  sums.clear();
  for (std::size_t i = 0; i < data.size(); i += piece) {
    std::size_t const count = std::min(piece, data.size() - i);
    sums += zero::checksum_text(zero::checksum(data.data() + i, count));
  }
  std::string const text = st::format(header);
  write_all(files, path + "/" + name, text + data);
  reseal_manifest(files, path, [&](nlohmann::json& body) {
    nlohmann::json& file = body["files"][rank];
    file["bytes"] = text.size() + data.size();
    file["header_bytes"] = text.size();
    file["header_xxh3"] = zero::checksum_text(zero::checksum(text.data(), text.size()));
  });
}

}  // namespace checkpoint_tests
