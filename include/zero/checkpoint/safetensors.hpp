/// @file
/// The header of a safetensors file: which tensor lies where. Read from files that nobody trusts.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/checkpoint/text.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::safetensors {

/// One tensor of a file.
struct Entry {
  std::string name{};                  ///< unique in its file
  std::string dtype{};                 ///< as the format spells it: "F32", "BF16", ...
  std::vector<std::uint64_t> shape{};  ///< extents, row-major; empty for a single element
  std::uint64_t begin = 0;             ///< first byte, counted from the end of the header
  std::uint64_t end = 0;               ///< one behind the last byte

  friend bool operator==(Entry const&, Entry const&) = default;
};

/// What stands before the data of a file.
struct Header {
  std::vector<Entry> entries{};                   ///< in the order of their bytes
  std::map<std::string, std::string> metadata{};  ///< texts by name, as the format allows

  /// Bytes of data, once it is known where entries lie.
  [[nodiscard]] std::uint64_t data_bytes() const noexcept {
    return entries.empty() ? 0 : entries.back().end;
  }
  friend bool operator==(Header const&, Header const&) = default;
};

static_assert(std::endian::native == std::endian::little,
              "zero: checkpoints need a processor that stores the lowest byte first, as files do");

/// What names of files end in.
inline constexpr std::string_view file_suffix = ".safetensors";
/// What names of indices of several files end in.
inline constexpr std::string_view index_suffix = ".safetensors.index.json";

/// Bytes before the text of a header: its length.
inline constexpr std::size_t length_bytes = 8;
/// No reader of the format takes a longer text, this one included.
inline constexpr std::uint64_t longest_text = 100'000'000;
/// Data begin at a multiple of so many bytes, so that who maps a file can use it in place.
inline constexpr std::size_t alignment = 64;

/// How the format spells an element type; empty for one that it does not have.
[[nodiscard]] constexpr std::string_view spelled(DType type) noexcept {
  switch (type) {
    case DType::f32: return "F32";
    case DType::f64: return "F64";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
    case DType::i32: return "I32";
    case DType::i64: return "I64";
    case DType::u8: return "U8";
  }
  return {};
}

/// The element type of that spelling, if the library has it.
[[nodiscard]] constexpr std::optional<DType> dtype_named(std::string_view spelling) noexcept {
  for (DType const type :
       {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8}) {
    if (spelled(type) == spelling) return type;
  }
  return std::nullopt;
}

/// Bytes of an element of that spelling, also of types that the library cannot use; 0 for a type
/// that the format does not have.
[[nodiscard]] constexpr std::size_t element_bytes(std::string_view spelling) noexcept {
  if (auto const type = dtype_named(spelling)) return size_of(*type);
  return FileDType(spelling).bytes();
}

/// The text's length, as the first `length_bytes` bytes of a file say.
[[nodiscard]] constexpr std::uint64_t text_length(
    std::span<unsigned char const, length_bytes> bytes) noexcept {
  std::uint64_t length = 0;
  for (std::size_t i = length_bytes; i-- > 0;) length = length << 8 | bytes[i];
  return length;
}

namespace detail {

/// Elements of a shape; nothing if 64 bits cannot count them.
[[nodiscard]] inline std::optional<std::uint64_t> count_of(
    std::vector<std::uint64_t> const& shape) noexcept {
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
  std::uint64_t count = 1;
  for (std::uint64_t const extent : shape) {
    if (count > (std::numeric_limits<std::uint64_t>::max)() / extent) return std::nullopt;
    count *= extent;
  }
  return count;
}

/// Takes a header's text piece by piece. Holds what it has read and nothing else, so that a file
/// cannot claim more memory than it is long; refuses whatever the format does not have.
class TextReader : public zero::detail::TextPieces {
 public:
  [[nodiscard]] Header& header() noexcept { return header_; }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 3 || (field_ == offsets && offsets_.size() == 2)) return other("a number");
    (field_ == offsets ? offsets_ : header_.entries.back().shape).push_back(value);
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ != 2 || !(metadata_ || field_ == dtype)) return other("a text");
    (metadata_ ? *text_ : header_.entries.back().dtype) = std::move(value);
    return true;
  }
  bool start_object(std::size_t /*count*/) override {
    if (depth_ >= 2) return other("an object");
    ++depth_;
    return true;
  }
  bool start_array(std::size_t /*count*/) override {
    if (depth_ != 2 || metadata_ || field_ == dtype) return other("a list");
    ++depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) return begin_value(name);
    if (metadata_) {
      auto const [at, added] = header_.metadata.try_emplace(name);
      text_ = &at->second;
      return added || refuse("the metadata have '" + shown(name) + "' twice");
    }
    static constexpr std::array<std::string_view, 3> fields{"dtype", "shape", "data_offsets"};
    field_ = static_cast<std::size_t>(
        std::find(fields.begin(), fields.end(), std::string_view(name)) - fields.begin());
    if (field_ == fields.size()) return refuse(subject() + "has a field '" + shown(name) + "'");
    if (has_[field_]) return refuse(subject() + "has '" + name + "' twice");
    has_[field_] = true;
    return true;
  }
  bool end_object() override {
    if (depth_ == 2 && !metadata_ && !(has_[dtype] && has_[shape] && has_[offsets])) {
      return refuse(subject() + "lacks dtype, shape or data_offsets");
    }
    --depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    if (field_ != offsets) return true;
    if (offsets_.size() != 2) {
      return refuse(subject() + "has data_offsets that are not two numbers");
    }
    header_.entries.back().begin = offsets_[0];
    header_.entries.back().end = offsets_[1];
    return true;
  }

 private:
  static constexpr std::size_t dtype = 0, shape = 1, offsets = 2;  ///< fields of a tensor

  [[nodiscard]] static std::string shown(std::string const& name) {
    constexpr std::size_t most = 64;
    return name.size() <= most ? name : name.substr(0, most) + "...";
  }
  [[nodiscard]] std::string subject() const {
    return "tensor '" + shown(header_.entries.back().name) + "' ";
  }
  bool other(std::string const& what) override {
    return refuse((metadata_ ? "" : subject()) + "has " + what + " where the format has none");
  }
  bool begin_value(std::string& name) {
    metadata_ = name == "__metadata__";
    if (metadata_) {
      return !std::exchange(has_metadata_, true) || refuse("it has '__metadata__' twice");
    }
    header_.entries.emplace_back().name = std::move(name);
    has_ = {};
    offsets_.clear();
    return true;
  }

  Header header_{};
  int depth_ = 0;                ///< within the header 1, a tensor or the metadata 2, a list 3
  bool metadata_ = false;        ///< what is being read is no tensor
  std::string* text_ = nullptr;  ///< of the metadata
  std::size_t field_ = dtype;
  std::array<bool, 3> has_{};
  std::vector<std::uint64_t> offsets_{};
  bool has_metadata_ = false;
};

/// Is it UTF-8, as JSON has to be?
[[nodiscard]] inline bool is_text(std::string const& name) {
  auto const ignore = nlohmann::json::error_handler_t::ignore;
  return nlohmann::json::parse(nlohmann::json(name).dump(-1, ' ', false, ignore)) == name;
}

/// What is wrong with a tensor by itself; empty if nothing is.
[[nodiscard]] inline std::string problem_of(Entry const& entry) {
  std::size_t const bytes = element_bytes(entry.dtype);
  if (bytes == 0) return "has the unknown dtype '" + entry.dtype.substr(0, 16) + "'";
  auto const count = count_of(entry.shape);
  if (!count || *count > (std::numeric_limits<std::uint64_t>::max)() / bytes) {
    return "has more elements than can be counted";
  }
  if (entry.begin > entry.end) return "ends before it begins";
  if (entry.end - entry.begin == *count * bytes) return {};
  return "has " + std::to_string(entry.end - entry.begin) + " bytes and a shape of " +
         std::to_string(*count * bytes);
}

}  // namespace detail

/// Reads a header.
/// @param file        what messages call the file
/// @param text        what follows the length
/// @param data_bytes  bytes of the file behind the text
/// @throws Error (data), naming file and tensor, for anything that the format does not have: text
///   that is no such JSON, names given twice, dtypes nobody knows, shapes that overflow or do not
///   fit their bytes, bytes that overlap, are missing or belong to no tensor
/// @par Cost  memory of a few times the text's length
/// @par Source  the format's description in the safetensors project
[[nodiscard]] inline Header parse(std::string_view file,
                                  std::string_view text,
                                  std::uint64_t data_bytes) {
  auto const refuse = [&](Message const& why) {
    zero::detail::refuse_file(file, {"is no safetensors file: ", why});
  };
  if (text.size() > longest_text) refuse({"its header has ", text.size(), " bytes"});
  if (text.empty() || text.front() != '{') refuse("its header does not begin with '{'");
  detail::TextReader reader;
  bool const read = zero::detail::parse_pieces(text, reader);
  if (!read || !reader.problem().empty()) refuse(reader.problem());
  Header header = std::move(reader.header());
  auto& entries = header.entries;
  for (Entry const& entry : entries) {
    if (std::string const problem = detail::problem_of(entry); !problem.empty()) {
      refuse({"tensor '", entry.name, "' ", problem});
    }
  }

  std::sort(entries.begin(), entries.end(), [](Entry const& a, Entry const& b) {
    return a.name < b.name;
  });
  auto const twice =
      std::adjacent_find(entries.begin(), entries.end(), [](Entry const& a, Entry const& b) {
        return a.name == b.name;
      });
  if (twice != entries.end()) refuse({"it has tensor '", twice->name, "' twice"});

  // Tensors without bytes may lie anywhere between others.
  std::stable_sort(entries.begin(), entries.end(), [](Entry const& a, Entry const& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::uint64_t end = 0;
  for (Entry const& entry : entries) {
    if (entry.begin != end) {
      refuse({"tensor '",
              entry.name,
              entry.begin < end ? "' overlaps the one before it" : "' lies behind bytes of none"});
    }
    end = entry.end;
  }
  if (end != data_bytes) {
    refuse({"its tensors have ", end, " bytes, and ", data_bytes, " follow its header"});
  }
  return header;
}

/// Lays tensors out one after the other, in the order of the entries, and says so.
/// @param header  `begin` and `end` of its entries are set here
/// @param spare   bytes that its text is to have left below `longest_text`
/// @returns length and text: the first bytes of the file, up to where data begin
/// @throws Error (invalid_argument) for entries that the format cannot hold, or more of them than
///   readers take
[[nodiscard]] inline std::string format(Header& header, std::uint64_t spare = 0) {
  auto const require_readable = [&](std::uint64_t bytes) {
    if (bytes + spare <= longest_text) return;
    zero::fail(ErrorKind::invalid_argument,
               {"the header of a safetensors file would have ",
                bytes + spare,
                " bytes or more, and no reader takes more than ",
                longest_text,
                ": a file has to have fewer tensors, or shorter names"});
  };
  // What cannot fit is found before it is spelled out.
  std::uint64_t least = 0;
  for (auto const& [name, text] : header.metadata) least += name.size() + text.size();
  for (Entry const& entry : header.entries) least += entry.name.size();
  require_readable(least);
  nlohmann::json json = nlohmann::json::object();
  for (auto const& [name, text] : header.metadata) {
    if (!detail::is_text(name) || !detail::is_text(text)) {
      zero::fail(ErrorKind::invalid_argument, {"metadata '", name, "' are no UTF-8"});
    }
  }
  if (!header.metadata.empty()) json["__metadata__"] = header.metadata;
  std::uint64_t end = 0;
  for (Entry& entry : header.entries) {
    auto const count = detail::count_of(entry.shape);
    std::size_t const bytes = element_bytes(entry.dtype);
    if (!count || bytes == 0 || json.contains(entry.name) || entry.name == "__metadata__" ||
        !detail::is_text(entry.name)) {
      zero::fail(ErrorKind::invalid_argument,
                 {"a safetensors file cannot hold tensor '", entry.name, "' as described"});
    }
    entry.begin = end;
    entry.end = end = checked_add(end, checked_mul(*count, bytes));
    json[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = json.dump();
  text.resize(
      static_cast<std::size_t>(round_up(text.size() + length_bytes, alignment)) - length_bytes,
      ' ');
  require_readable(text.size());
  std::string bytes(length_bytes, '\0');
  for (std::size_t i = 0; i < length_bytes; ++i) {
    bytes[i] = static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * i) & 0xffu);
  }
  return bytes + text;
}

}  // namespace zero::inline ZERO_NAMESPACE::safetensors
