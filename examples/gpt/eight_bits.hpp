/// @file
/// A matrix in 8 bits. Up to 32 neighbours in a row are a block: a scale in fp32, and behind it a
/// whole number from -127 to 127 for each of them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace gpt {

/// Where the bytes of such a matrix are, and what they mean. The last block of a row is shorter
/// where 32 does not divide the number of columns.
class EightBits {
 public:
  explicit EightBits(std::size_t columns) : columns_(columns) {}

  [[nodiscard]] std::size_t row_bytes() const noexcept {
    return (columns_ + most - 1) / most * sizeof(float) + columns_;
  }

  /// Writes bytes [first, first + out.size()), which may begin and end within a block.
  /// @param read  read(first, std::span<float>) gives elements of the matrix; asked once, for the
  ///   elements of whole blocks
  template <class Read>
  void encode(std::size_t first, std::span<std::byte> out, Read const& read) const {
    if (out.empty()) return;
    std::size_t const end = first + out.size();
    Block const begin = block_at(first);
    Block const last = block_at(end - 1);
    std::vector<float> values(last.element + last.count - begin.element);
    read(begin.element, std::span(values));
    for (Block at = begin; at.place < end; at = block_at(at.end())) {
      std::array<std::byte, sizeof(float) + most> bytes{};
      write(std::span(values).subspan(at.element - begin.element, at.count), bytes);
      std::size_t const from = std::max(first, at.place);
      std::copy(bytes.data() + (from - at.place),
                bytes.data() + (std::min(end, at.end()) - at.place),
                out.data() + (from - first));
    }
  }

  /// The elements that all bytes of a matrix stand for.
  void decode(std::span<std::uint8_t const> bytes, std::span<float> out) const {
    for (std::size_t place = 0; place < bytes.size(); place = block_at(place).end()) {
      Block const at = block_at(place);
      float scale = 0.F;
      std::memcpy(&scale, &bytes[place], sizeof(scale));
      for (std::size_t i = 0; i < at.count; ++i) {
        auto const code = static_cast<std::int8_t>(bytes[place + sizeof(scale) + i]);
        out[at.element + i] = scale * static_cast<float>(code);
      }
    }
  }

 private:
  static constexpr std::size_t most = 32;

  struct Block {
    std::size_t place;    // its first byte
    std::size_t element;  // its first
    std::size_t count;    // of its elements

    [[nodiscard]] std::size_t end() const noexcept { return place + sizeof(float) + count; }
  };

  /// The block that a byte is in.
  [[nodiscard]] Block block_at(std::size_t byte) const noexcept {
    std::size_t const row = byte / row_bytes();
    std::size_t const block = byte % row_bytes() / (sizeof(float) + most);
    return {row * row_bytes() + block * (sizeof(float) + most),
            row * columns_ + block * most,
            std::min(most, columns_ - block * most)};
  }

  static void write(std::span<float const> values, std::span<std::byte> bytes) {
    float largest = 0.F;
    for (float const value : values) largest = std::max(largest, std::abs(value));
    float const scale = largest / 127.F;
    std::memcpy(bytes.data(), &scale, sizeof(scale));
    for (std::size_t i = 0; i < values.size(); ++i) {
      float const code = scale > 0.F ? std::nearbyint(values[i] / scale) : 0.F;
      bytes[sizeof(scale) + i] = static_cast<std::byte>(static_cast<std::int8_t>(code));
    }
  }

  std::size_t columns_;
};

}  // namespace gpt
