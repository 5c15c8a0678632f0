/// @file
/// From the files of a checkpoint into the arrays of an optimizer.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/base/float16.hpp"
#include "zero/checkpoint/catalog.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/load_plan.hpp"
#include "zero/checkpoint/side_by_side.hpp"
#include "zero/checkpoint/verify.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

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
template <FileOperations Files>
void stream_in_order(Files& files,
                     Catalog const& catalog,
                     std::span<Wanted const> wanted,
                     std::function<void(void*, void const*, std::size_t)> const& place,
                     bool direct,
                     std::function<void()> const& alive) {
  std::vector<std::byte> converted;
  for (std::size_t i = 0; i < wanted.size();) {
    std::size_t const file = wanted[i].file;
    PieceReader<Files> pieces(files, catalog, file);
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
    second.front().memory += count * size_of(at->to);
    (at++)->count = count;
  }
  second.insert(second.end(), at, wanted.end());
  wanted.erase(at, wanted.end());
  return second;
}

/// `stream_in_order`, in two threads if there is much to read and the host reaches the space.
template <FileOperations Files>
void stream(Files& files,
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
