/// @file
/// Reads the header of a safetensors file: of a checkpoint, or of anybody's model.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/checksum.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/safetensors.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::detail {

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
    fail(
        ErrorKind::data,
        {"'", path, "' of rank ", saved->rank, " has ", bytes, " bytes instead of ", saved->bytes});
  }
  auto const refuse = [&](Message const& why) {
    fail(ErrorKind::data, {"'", path, "' is no safetensors file: ", why});
  };
  if (bytes < length_bytes) refuse({"it has ", bytes, " bytes"});
  unsigned char length[length_bytes];
  file.read(length, sizeof(length), 0);
  std::uint64_t const said = text_length(length);
  if (saved != nullptr && saved->header_bytes < length_bytes) {
    refuse({"it cannot have a header of ", saved->header_bytes, " bytes"});
  }
  // Where a sum is known, it decides whether the length that stands there is the one that was
  // saved.
  std::uint64_t const claimed = saved != nullptr ? saved->header_bytes - length_bytes : said;
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
  if (said != claimed) refuse("its header has another length than it says");
  return parse(path, std::string_view(text).substr(length_bytes), rest - claimed);
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
