/// @file
/// Checkpoints that say something else than what was saved, with checksums that fit.
#pragma once

#include "checkpoint/model_files.hpp"
#include "support/standard.hpp"
#include "zero/checkpoint/checksum.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/rank_file.hpp"
#include "zero/checkpoint/safetensors.hpp"

#include <nlohmann/json.hpp>

namespace checkpoint_tests {

/// The checksums of all pieces of data, as a header has them.
inline std::string sums_of(std::string_view data, std::size_t piece) {
  std::string sums;
  for (std::size_t i = 0; i < data.size(); i += piece) {
    std::string_view const part = data.substr(i, piece);
    sums += zero::checksum_text(zero::checksum(part.data(), part.size()));
  }
  return sums;
}

/// A header's text with its length before it.
inline std::string framed(std::string const& text) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(std::uint64_t{text.size()} >> (8 * i));
  return bytes + text;
}

/// A manifest's text with a checksum that fits.
inline std::string sealed(std::string_view body) {
  std::string text(zero::detail::seal_begin);
  text += zero::checksum_text(zero::checksum(body.data(), body.size()));
  text += zero::detail::seal_middle;
  return (text += body) += zero::detail::seal_end;
}

/// What stands in a manifest's text without it.
inline std::string unsealed(std::string const& text) {
  std::size_t const before =
      zero::detail::seal_begin.size() + zero::checksum_digits + zero::detail::seal_middle.size();
  return text.substr(before, text.size() - before - zero::detail::seal_end.size());
}

/// Writes a checkpoint's manifest as `change(json&)` leaves it.
template <class Change>
void reseal_manifest(ModelFiles& files, std::string const& path, Change const& change) {
  auto body = nlohmann::json::parse(unsealed(read_all(files, path + "/manifest.json")));
  change(body);
  write_all(files, path + "/manifest.json", sealed(body.dump()));
}

inline std::string rank_file(std::size_t rank) {
  return "rank-0000" + std::to_string(rank) + ".safetensors";
}

/// A file's header and its data.
inline std::pair<zero::safetensors::Header, std::string> parted(std::string const& bytes) {
  namespace st = zero::safetensors;
  auto const length =
      static_cast<std::size_t>(st::text_length(std::span<unsigned char const, st::length_bytes>(
          reinterpret_cast<unsigned char const*>(bytes.data()), st::length_bytes)));
  std::string data = bytes.substr(st::length_bytes + length);
  auto const text = std::string_view(bytes).substr(st::length_bytes, length);
  return {st::parse("it", text, data.size()), std::move(data)};
}

/// Writes a rank's file as `change(json& about, Header&)` leaves its header.
template <class Change>
void reseal_header(ModelFiles& files,
                   std::string const& path,
                   std::size_t rank,
                   Change const& change) {
  std::string const name = rank_file(rank);
  auto parts = parted(read_all(files, path + "/" + name));
  zero::safetensors::Header& header = parts.first;
  std::string const& data = parts.second;
  nlohmann::json about = nlohmann::json::parse(header.metadata[zero::detail::about_key]);
  change(about, header);
  header.metadata[zero::detail::about_key] = about.dump();
  std::size_t piece = data.size();
  if (about["piece_bytes"].is_number_unsigned()) {
    piece = (std::max)(std::size_t{1},
                       (std::min)(about["piece_bytes"].get<std::size_t>(), data.size()));
  }
  header.metadata[zero::detail::sums_key] = sums_of(data, piece);
  std::string const text = zero::safetensors::format(header);
  write_all(files, path + "/" + name, text + data);
  reseal_manifest(files, path, [&](nlohmann::json& body) {
    nlohmann::json& file = body["files"][rank];
    file["bytes"] = text.size() + data.size();
    file["header_bytes"] = text.size();
    file["header_xxh3"] = zero::checksum_text(zero::checksum(text.data(), text.size()));
  });
}

}  // namespace checkpoint_tests
