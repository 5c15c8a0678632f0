/// @file
/// From the files of a checkpoint into the arrays of an optimizer.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/catalog.hpp"
#include "zero/checkpoint/checksum.hpp"
#include "zero/checkpoint/file.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/concepts/overflow.hpp"
#include "zero/kernel/host_conversion.hpp"
#include "zero/optimizer/held/held_values.hpp"
#include "zero/optimizer/setup/value_limits.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

namespace detail {

/// Elements on their way to types that may not hold them, as messages call them.
struct Narrowed {
  Overflow overflow{};  ///< what becomes of those that do not fit
  std::string_view tensor{};
  std::string_view state{};  ///< of the tensor; empty: its values
  DType limit = DType::u8;   ///< type of what is rounded from masters, the parameters
  HeldValues parts{};        ///< of masters that are held in parts: where all of a run belong
  std::uint64_t begin = 0;   ///< number of the first of these in the tensor
  /// How bf16 parameters are rounded from fp32; null: to nearest even.
  MasterForm const* form = nullptr;

  /// Sees to it that elements fit into a type.
  /// @param values  of the host; changed where they saturate
  /// @param first   number of the first one in the tensor
  /// @throws Error (invalid_argument) for the first that does not fit, if that is refused
  void fit(DType into, Array values, std::size_t count, std::uint64_t first) const {
    float const least = rounds(into) ? form->least_infinite : 0.f;
    std::size_t const i =
        kernel::first_overflow(into, values.dtype, values.first, count, overflow, least);
    if (i == count) return;
    double value = 0.;
    kernel::convert_on_host(DType::f64, &value, values.dtype, values.at(i), 1);
    fail(ErrorKind::invalid_argument, overflow_text(tensor, first + i, value, into, state));
  }
  /// Rounds elements to another type, as whoever loads them otherwise has them: once, or where the
  /// precision says how, from fp32, in which a trainer would have given them.
  /// @param from   of the host; changed where they saturate
  /// @param first  number of the first one in the tensor
  /// @param out    has what they become
  /// @throws Error (invalid_argument) as `fit`
  [[nodiscard]] Array rounded(DType into,
                              Array from,
                              std::size_t count,
                              std::uint64_t first,
                              std::vector<std::byte>& out) const {
    std::vector<std::byte> fp32;
    if (rounds(into) && from.dtype != DType::f32) {
      fp32.resize(count * size_of(DType::f32));
      fit(DType::f32, from, count, first);
      kernel::convert_on_host(DType::f32, fp32.data(), from.dtype, from.first, count);
      from = {fp32.data(), DType::f32};
    }
    fit(into, from, count, first);
    out.resize(count * size_of(into));
    if (rounds(into)) {
      form->split(out.data(), nullptr, from.first, count);
    } else {
      kernel::convert_on_host(into, out.data(), from.dtype, from.first, count);
    }
    return {out.data(), into};
  }
  [[nodiscard]] bool rounds(DType into) const noexcept {
    return form != nullptr && into == DType::bf16;
  }
};
inline constexpr Narrowed not_narrowed{};

/// Elements of a file, and where they belong.
struct Wanted {
  std::size_t file = 0;
  std::uint64_t offset = 0;  ///< bytes before them in the file's data
  std::uint64_t count = 0;
  DType from = DType::f32;
  DType to = DType::f32;
  std::byte* memory = nullptr;               ///< of the space; null for masters in parts
  Narrowed const* narrowed = &not_narrowed;  ///< shared: files may have many runs
  std::uint64_t first = 0;                   ///< number of the first one in its tensor

  /// Where those behind the first `done` belong.
  [[nodiscard]] HeldValues behind(std::uint64_t done) const noexcept {
    if (narrowed->parts.plain()) return {{memory + done * size_of(to), to}};
    return narrowed->parts.from(first + done - narrowed->begin);
  }
};

/// Calls `visit(run, before)` for the saved runs of elements [first, first + count), cut to them;
/// `before` of these elements lie before the run.
template <class Visit>
void for_each_piece(SavedArray const& saved,
                    std::uint64_t first,
                    std::uint64_t count,
                    Visit&& visit) {
  std::uint64_t const end = first + count;
  auto at = std::partition_point(saved.runs.begin(), saved.runs.end(), [&](SavedRun const& run) {
    return run.first + run.count <= first;
  });
  for (; at != saved.runs.end() && at->first < end; ++at) {
    std::uint64_t const begin = (std::max)(at->first, first);
    std::uint64_t const last = (std::min)(at->first + at->count, end);
    SavedRun piece = *at;
    piece.offset += saved.bytes(begin - at->first);
    piece.first = begin;
    piece.count = last - begin;
    visit(piece, begin - first);
  }
}

/// Bytes [first, first + count) of a file's data, whatever they are.
[[nodiscard]] inline Wanted all_of(std::size_t file,
                                   std::uint64_t first,
                                   std::uint64_t count,
                                   std::byte* memory = nullptr) {
  return {file, first, count, DType::u8, DType::u8, memory};
}

/// Brings values of the host to where they belong.
using PlaceValues =
    std::function<void(HeldValues const& to, std::byte const* from, std::size_t count)>;

/// To memory that the host can write to, as they are.
inline void copy_values(HeldValues const& to, std::byte const* from, std::size_t count) {
  std::memcpy(to.array.first, from, to.array.bytes(count));
}

/// The pieces of files, one at a time. What it hands out has its checksum.
class PieceReader {
 public:
  /// @param files, catalog  outlive this
  PieceReader(FileOperations& files, Catalog const& catalog) : files_(&files), catalog_(&catalog) {}

  /// A file's data from `offset` on, to the end of the piece that it lies in.
  /// @param file  index into the catalog's files
  /// @throws Error (data), naming file, tensor and rank, if the piece is not what was saved
  [[nodiscard]] std::span<std::byte> at(std::size_t file, std::uint64_t offset) {
    open(file);
    std::uint64_t const piece = offset / described().piece_bytes;
    if (piece_ != piece) {
      piece_.reset();
      bytes_.resize(bytes_of(piece));
      load(piece, bytes_);
      piece_ = piece;
    }
    return std::span(bytes_).subspan(
        static_cast<std::size_t>(offset - piece * described().piece_bytes));
  }

  /// Reads the piece that begins at `offset` to where it belongs, if `room` holds all of it.
  /// @returns its bytes; 0 if it does not begin there, or is larger
  [[nodiscard]] std::size_t read_to(std::size_t file,
                                    std::uint64_t offset,
                                    std::byte* to,
                                    std::uint64_t room) {
    open(file);
    std::uint64_t const piece = offset / described().piece_bytes;
    std::size_t const bytes = bytes_of(piece);
    if (offset % described().piece_bytes != 0 || bytes > room) return 0;
    load(piece, {to, bytes});
    return bytes;
  }

 private:
  [[nodiscard]] CatalogFile const& described() const noexcept { return catalog_->files[index_]; }
  [[nodiscard]] SavedFile const& saved() const noexcept { return catalog_->manifest.files[index_]; }

  void open(std::size_t file) {
    if (file_ && index_ == file) return;
    piece_.reset();
    file_.reset();
    index_ = file;
    file_.emplace(*files_, catalog_->path + "/" + saved().name, FileMode::read);
  }
  [[nodiscard]] std::size_t bytes_of(std::uint64_t piece) const noexcept {
    std::uint64_t const left =
        saved().bytes - saved().header_bytes - piece * described().piece_bytes;
    return static_cast<std::size_t>((std::min)(described().piece_bytes, left));
  }
  void load(std::uint64_t piece, std::span<std::byte> to) {
    std::uint64_t const first = piece * described().piece_bytes;
    std::uint64_t const begin = saved().header_bytes + first;
    file_->read(to.data(), to.size(), begin);
    std::string_view const sum =
        std::string_view(described().sums)
            .substr(static_cast<std::size_t>(piece) * checksum_digits, checksum_digits);
    if (checksum_text(checksum(to.data(), to.size())) == sum) return;
    Message const where{" is damaged between bytes ", begin, " and ", begin + to.size(), ", "};
    refuse_file(file_->path(),
                {"of rank ", saved().rank, where, concerned(first, first + to.size())});
  }
  /// Whose bytes these are.
  [[nodiscard]] std::string concerned(std::uint64_t first, std::uint64_t last) const {
    auto const& entries = described().entries;
    auto const begin = std::partition_point(
        entries.begin(), entries.end(), [&](auto const& entry) { return entry.end <= first; });
    bool const several = begin + 1 < entries.end() && begin[1].begin < last;
    return several ? "in entries from '" + begin->name + "' on" : "in '" + begin->name + "'";
  }

  FileOperations* files_;
  Catalog const* catalog_;
  std::optional<File> file_{};
  std::size_t index_ = 0;
  std::optional<std::uint64_t> piece_{};  ///< that `bytes_` are, once they are known to be
  std::vector<std::byte> bytes_{};
};

/// Reads what is wanted, in its order, and checks every piece.
/// @param place   brings them to the space; empty to check alone
/// @param direct  whether the host may write to the space's memory itself; a piece is then checked
///   where it belongs, if its values lie there as they are
/// @param alive   called between pieces
/// @throws Error (data), naming file, tensor and rank; (resource); (invalid_argument) as `Narrowed`
inline void stream_in_order(PieceReader& pieces,
                            std::span<Wanted const> wanted,
                            PlaceValues const& place,
                            bool direct,
                            Alive const& alive) {
  std::vector<std::byte> converted;
  for (Wanted const& each : wanted) {
    std::size_t const width = size_of(each.from);
    DType const into = each.to;
    Narrowed const& narrowed = *each.narrowed;
    for (std::uint64_t done = 0; done < each.count;) {
      alive();
      std::uint64_t const offset = each.offset + done * width;
      HeldValues const to = place ? each.behind(done) : HeldValues();
      if (place && direct && each.from == into && to.plain()) {
        std::size_t const bytes =
            pieces.read_to(each.file, offset, to.array.first, (each.count - done) * width);
        narrowed.fit(narrowed.limit, to.array, bytes / width, each.first + done);
        done += bytes / width;
        if (bytes > 0) continue;
      }
      std::span<std::byte> const piece = pieces.at(each.file, offset);
      auto const count = static_cast<std::size_t>(
          (std::min)(each.count - done, std::uint64_t{piece.size() / width}));
      if (count == 0) fail(ErrorKind::data, "a checkpoint has pieces that cut its elements");
      Array elements{piece.data(), each.from};
      if (each.from != into) {
        if (is_integral(each.from) || is_integral(into)) {
          fail(ErrorKind::data, {name(each.from), " cannot be loaded as ", name(into)});
        }
        elements = narrowed.rounded(into, elements, count, each.first + done, converted);
      }
      narrowed.fit(narrowed.limit, elements, count, each.first + done);
      if (place) place(to, elements.first, count);
      done += count;
    }
  }
}

/// From this many bytes on a second thread is worth while: one that reads and checks is slower than
/// a disk's cache.
inline constexpr std::uint64_t bytes_for_two_threads = std::uint64_t{4} << 20;

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
    second.front().first += count;
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
                   PlaceValues const& place,
                   bool direct,
                   Alive const& alive) {
  auto const read = [&](std::vector<Wanted> const& list) {
    return [&](Alive const& between) {
      PieceReader pieces(files, catalog);
      stream_in_order(pieces, list, place, direct, between);
    };
  };
  std::vector<Wanted> second;
  if (direct || !place) second = second_half(wanted, catalog);
  if (second.empty()) return read(wanted)(alive);
  side_by_side(read(wanted), read(second), alive);
}

/// Reads the data of one file.
/// @param alive  called between pieces
/// @throws Error (data), naming file, tensor and rank, if a piece is not what was saved
inline void verify_data(FileOperations& files,
                        Catalog const& catalog,
                        std::size_t file,
                        Alive const& alive) {
  SavedFile const& saved = catalog.manifest.files[file];
  stream(files, catalog, {all_of(file, 0, saved.bytes - saved.header_bytes)}, {}, false, alive);
}

/// Reads one file of a checkpoint, header and data.
/// @param path   the checkpoint's directory
/// @param alive  called between pieces
/// @throws Error (data) if it is not as it was saved
inline void verify_file(FileOperations& files,
                        std::string const& path,
                        SavedFile const& saved,
                        Alive const& alive) {
  Catalog alone{.path = path};
  alone.manifest.files = {saved};
  CatalogBuilder(alone).read(files, 0);
  verify_data(files, alone, 0, alive);
}

}  // namespace detail

/// Reads a whole checkpoint.
/// @param path   its directory
/// @param files  through which
/// @returns what is wrong, a sentence for each file at most; empty if all is as it was saved
/// @par Cost  every byte is read once, on this rank
[[nodiscard]] inline std::vector<std::string> verify_checkpoint(std::string const& path,
                                                                FileOperations& files = disk()) {
  std::vector<std::string> problems;
  auto const look = [&](auto const& work) {
    detail::RankFailure const failure = detail::attempt_alone(work);
    if (failure.failed) problems.push_back(failure.text);
    return !failure.failed;
  };
  Catalog catalog{.path = path};
  if (!look([&] { catalog.manifest = detail::read_manifest(files, path); })) return problems;
  // Each file by itself, so that all that are damaged are named.
  detail::CatalogBuilder builder(catalog);
  for (std::size_t file = 0; file < catalog.manifest.files.size(); ++file) {
    if (!look([&] { builder.read(files, file); })) catalog.files.resize(file + 1);
  }
  if (!problems.empty()) return problems;
  if (!look([&] { builder.finish(); })) return problems;
  for (std::size_t file = 0; file < catalog.files.size(); ++file) {
    look([&] { detail::verify_data(files, catalog, file, [] {}); });
  }
  return problems;
}

}  // namespace zero::inline ZERO_NAMESPACE
