/// @file
/// A hash by which ranks compare what they were told.
#pragma once

#include "zero/base/config.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::detail {

/// 64-bit FNV-1a: not cryptographic; tells honest configurations apart.
class Hash {
 public:
  void add(void const* data, std::size_t bytes) noexcept {
    auto const* const octets = static_cast<unsigned char const*>(data);
    for (std::size_t i = 0; i < bytes; ++i) value_ = (value_ ^ octets[i]) * 0x100000001b3u;
  }
  void add(std::uint64_t value) noexcept { add(&value, sizeof(value)); }
  void add(std::string_view text) noexcept {
    add(text.size());
    add(text.data(), text.size());
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
