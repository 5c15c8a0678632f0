#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <vector>

/// Every float whose rounding to 16 bits is interesting: all upper halves, and lower halves at and
/// next to every tie.
inline std::vector<float> interesting_floats() {
  std::vector<float> result;
  for (std::uint32_t high = 0; high <= 0xffff; ++high) {
    for (std::uint32_t low : {0x0000u,
                              0x0001u,
                              0x0fffu,
                              0x1000u,
                              0x1001u,
                              0x2000u,
                              0x2fffu,
                              0x3000u,
                              0x3001u,
                              0x7fffu,
                              0x8000u,
                              0x8001u,
                              0xf000u,
                              0xffffu}) {
      result.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  while (result.size() % 16 != 0) result.push_back(0.f);
  return result;
}
