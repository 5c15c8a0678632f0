/// @file
/// From the files of a checkpoint into the arrays of an optimizer.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/base/float16.hpp"
#include "zero/checkpoint/catalog.hpp"
#include "zero/checkpoint/checksum.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/side_by_side.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Elements of a file, and where they belong.
struct Wanted {
  std::size_t file = 0;
  std::uint64_t offset = 0;  ///< bytes before them in the file's data
  std::uint64_t count = 0;
  DType from = DType::f32;
  DType to = DType::f32;
  std::byte* memory = nullptr;  ///< of the space
};

/// Bytes [first, first + count) of a file's data, whatever they are.
[[nodiscard]] inline Wanted all_of(std::size_t file,
                                   std::uint64_t first,
                                   std::uint64_t count,
                                   std::byte* memory = nullptr) {
  return {file, first, count, DType::u8, DType::u8, memory};
}

/// The pieces of one file's data, one at a time. What it hands out has its checksum.
class PieceReader {
 public:
  /// @param file  index into the catalog's files
  PieceReader(FileOperations& files, Catalog const& catalog, std::size_t file)
      : catalog_(&catalog),
        index_(file),
        file_(files, catalog.path + "/" + catalog.manifest.files[file].name, FileMode::read) {}

  [[nodiscard]] std::uint64_t data_bytes() const noexcept {
    SavedFile const& saved = catalog_->manifest.files[index_];
    return saved.bytes - saved.header_bytes;
  }
  /// The data from `offset` on, to the end of the piece that it lies in.
  /// @throws Error (data), naming file, tensor and rank, if the piece is not what was saved
  [[nodiscard]] std::span<std::byte const> at(std::uint64_t offset) {
    std::uint64_t const piece = offset / described().piece_bytes;
    if (bytes_.empty() || piece != piece_) {
      bytes_.resize(static_cast<std::size_t>(bytes_of(piece)));
      load(piece, bytes_);
      piece_ = piece;
    }
    return std::span<std::byte const>(bytes_).subspan(
        static_cast<std::size_t>(offset - piece * described().piece_bytes));
  }

  /// Reads the piece that begins at `offset` to where it belongs, if `room` holds all of it.
  /// @returns its bytes; 0 if it does not begin there, or is larger
  [[nodiscard]] std::size_t read_to(std::byte* to, std::uint64_t offset, std::uint64_t room) {
    std::uint64_t const piece = offset / described().piece_bytes;
    std::uint64_t const bytes = bytes_of(piece);
    if (offset % described().piece_bytes != 0 || bytes > room) return 0;
    load(piece, {to, static_cast<std::size_t>(bytes)});
    return static_cast<std::size_t>(bytes);
  }

 private:
  [[nodiscard]] CatalogFile const& described() const noexcept { return catalog_->files[index_]; }

  [[nodiscard]] std::uint64_t bytes_of(std::uint64_t piece) const noexcept {
    std::uint64_t const first = piece * described().piece_bytes;
    return (std::min)(described().piece_bytes, data_bytes() - first);
  }
  void load(std::uint64_t piece, std::span<std::byte> to) {
    SavedFile const& saved = catalog_->manifest.files[index_];
    std::uint64_t const first = piece * described().piece_bytes;
    file_.read(to.data(), to.size(), saved.header_bytes + first);
    std::string_view const sum =
        std::string_view(described().sums)
            .substr(static_cast<std::size_t>(piece) * checksum_digits, checksum_digits);
    if (checksum_text(checksum(to.data(), to.size())) == sum) return;
    fail(ErrorKind::data,
         {"'",
          file_.path(),
          "' of rank ",
          saved.rank,
          " is damaged between bytes ",
          saved.header_bytes + first,
          " and ",
          saved.header_bytes + first + to.size(),
          ", ",
          concerned(first, first + to.size())});
  }
  /// Whose bytes these are.
  [[nodiscard]] std::string concerned(std::uint64_t first, std::uint64_t last) const {
    auto const& entries = described().entries;
    auto const begin = std::partition_point(
        entries.begin(), entries.end(), [&](auto const& entry) { return entry.end <= first; });
    bool const several = begin + 1 < entries.end() && begin[1].begin < last;
    return several ? "in entries from '" + begin->name + "' on" : "in '" + begin->name + "'";
  }

  Catalog const* catalog_;
  std::size_t index_;
  File file_;
  std::vector<std::byte> bytes_;
  std::uint64_t piece_ = 0;
};

/// Calls `f(static_cast<T*>(nullptr))` with the floating-point type that a dtype stands for.
template <class F>
void with_real_type(DType type, F&& f) {
  switch (type) {
    case DType::f32: return f(static_cast<float*>(nullptr));
    case DType::f64: return f(static_cast<double*>(nullptr));
    case DType::bf16: return f(static_cast<bf16*>(nullptr));
    case DType::f16: return f(static_cast<fp16*>(nullptr));
    case DType::i32:
    case DType::i64:
    case DType::u8: break;
  }
  fail(ErrorKind::data, {"values of type ", name(type), " cannot be loaded"});
}

/// Rounds elements to another type, which may be the same.
inline void convert_elements(
    DType to, std::byte* out, DType from, std::byte const* in, std::size_t count) {
  with_real_type(from, [&]<class From>(From const*) {
    with_real_type(to, [&]<class To>(To const*) {
      for (std::size_t i = 0; i < count; ++i) {
        From value;
        std::memcpy(&value, in + i * sizeof(From), sizeof(From));
        To rounded;
        if constexpr (std::is_same_v<To, From>) {
          rounded = value;
        } else if constexpr (std::is_same_v<To, double>) {
          rounded = static_cast<double>(static_cast<float>(value));
        } else {
          rounded = To(static_cast<float>(value));
        }
        std::memcpy(out + i * sizeof(To), &rounded, sizeof(To));
      }
    });
  });
}

/// Reads what is wanted once, in the order of the files, and checks every piece.
/// @param place  `place(to, from, bytes)` brings bytes of the host to the space; empty to check
///   alone
/// @param direct  whether the host may write to the space's memory itself; a piece is then checked
///   where it belongs
/// @param alive   called between pieces
/// @throws Error (data), naming file, tensor and rank; (resource)
inline void stream_in_order(FileOperations& files,
                            Catalog const& catalog,
                            std::span<Wanted const> wanted,
                            std::function<void(void*, void const*, std::size_t)> const& place,
                            bool direct,
                            std::function<void()> const& alive) {
  std::vector<std::byte> converted;
  for (std::size_t i = 0; i < wanted.size();) {
    std::size_t const file = wanted[i].file;
    PieceReader pieces(files, catalog, file);
    for (; i < wanted.size() && wanted[i].file == file; ++i) {
      Wanted const& each = wanted[i];
      std::size_t const width = size_of(each.from);
      for (std::uint64_t done = 0; done < each.count;) {
        alive();
        if (place && direct && each.from == each.to) {
          std::size_t const bytes = pieces.read_to(
              each.memory + done * width, each.offset + done * width, (each.count - done) * width);
          done += bytes / width;
          if (bytes > 0) continue;
        }
        std::span<std::byte const> const piece = pieces.at(each.offset + done * width);
        auto const count = static_cast<std::size_t>(
            (std::min)(each.count - done, std::uint64_t{piece.size() / width}));
        if (count == 0) fail(ErrorKind::data, "a checkpoint has pieces that cut its elements");
        if (place) {
          std::byte* const to = each.memory + done * size_of(each.to);
          if (each.from == each.to) {
            place(to, piece.data(), count * width);
          } else {
            converted.resize(count * size_of(each.to));
            convert_elements(each.to, converted.data(), each.from, piece.data(), count);
            place(to, converted.data(), converted.size());
          }
        }
        done += count;
      }
    }
  }
}

/// Takes the second half of what is to be read, by bytes. A run may be cut, between two pieces.
[[nodiscard]] inline std::vector<Wanted> second_half(std::vector<Wanted>& wanted,
                                                     Catalog const& catalog) {
  auto const bytes = [](Wanted const& each) { return each.count * size_of(each.from); };
  std::uint64_t left = 0;
  for (Wanted const& each : wanted) left += bytes(each);
  if (left < bytes_for_two_threads) return {};
  left /= 2;
  auto at = wanted.begin();
  for (; bytes(*at) <= left; ++at) left -= bytes(*at);
  std::uint64_t const piece = catalog.files[at->file].piece_bytes;
  std::uint64_t const cut = (at->offset + left) / piece * piece;
  std::vector<Wanted> second;
  if (cut > at->offset) {
    std::uint64_t const count = (cut - at->offset) / size_of(at->from);
    second.push_back(*at);
    second.front().offset += count * size_of(at->from);
    second.front().count -= count;
    // What is checked alone belongs nowhere.
    if (at->memory != nullptr) second.front().memory += count * size_of(at->to);
    (at++)->count = count;
  }
  second.insert(second.end(), at, wanted.end());
  wanted.erase(at, wanted.end());
  return second;
}

/// `stream_in_order`, in two threads if there is much to read and the host reaches the space.
inline void stream(FileOperations& files,
                   Catalog const& catalog,
                   std::vector<Wanted> wanted,
                   std::function<void(void*, void const*, std::size_t)> const& place,
                   bool direct,
                   std::function<void()> const& alive) {
  auto const read = [&](std::vector<Wanted> const& list) {
    return [&](std::function<void()> const& between) {
      stream_in_order(files, catalog, list, place, direct, between);
    };
  };
  std::vector<Wanted> second;
  if (direct || !place) second = second_half(wanted, catalog);
  if (second.empty()) return read(wanted)(alive);
  side_by_side(read(wanted), read(second), alive);
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
