/// @file
/// Text from anywhere, made fit for a terminal.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

/// A letter at the beginning of a text, and the bytes that it takes.
struct Letter {
  char32_t code = 0;
  std::size_t bytes = 1;
};

/// The first letter of a text in UTF-8. A byte that belongs to none is taken alone, as code 0.
inline Letter first_letter(std::string_view text) {
  auto const lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  std::size_t const bytes = lead < 0xc0   ? 0
                            : lead < 0xe0 ? 2
                            : lead < 0xf0 ? 3
                            : lead < 0xf8 ? 4
                                          : 0;
  if (bytes == 0 || bytes > text.size()) return {};
  char32_t code = lead & (0x7fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    auto const next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0u) != 0x80) return {};
    code = code << 6 | (next & 0x3fu);
  }
  // Longer than it needs to be, half of a UTF-16 pair, or beyond the last.
  constexpr std::array<char32_t, 5> least{0, 0, 0x80, 0x800, 0x10000};
  if (code < least[bytes] || (code >= 0xd800 && code <= 0xdfff) || code > 0x10ffff) return {};
  return {code, bytes};
}

/// Is this letter seen where it stands? Control characters command a terminal; others are not seen,
/// turn the direction of what follows, or mean what somebody has agreed on.
inline bool is_seen(char32_t code) {
  struct Range {
    char32_t first;
    char32_t last;
  };
  constexpr std::array<Range, 13> unseen{{{0x00, 0x1f},
                                          {0x7f, 0x9f},
                                          {0xad, 0xad},
                                          {0x61c, 0x61c},
                                          {0x180e, 0x180e},
                                          {0x200b, 0x200f},
                                          {0x2028, 0x202e},
                                          {0x2060, 0x206f},
                                          {0xe000, 0xf8ff},
                                          {0xfeff, 0xfeff},
                                          {0xfff9, 0xfffb},
                                          {0xfffe, 0xffff},
                                          {0xe0000, 0x10ffff}}};
  for (Range const& range : unseen) {
    if (code >= range.first && code <= range.last) return false;
  }
  return true;
}

/// The text on one line, with `?` for each letter that is not seen, and each byte that is no UTF-8.
inline std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    Letter const letter = first_letter(text);
    if (is_seen(letter.code)) {
      shown += text.substr(0, letter.bytes);
    } else {
      shown += '?';
    }
    text.remove_prefix(letter.bytes);
  }
  return shown;
}
