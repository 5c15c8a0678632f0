/// @file
/// Manifests whose checksum fits, whatever stands in them.
#pragma once

#include "zero/checkpoint/manifest.hpp"

namespace fuzz {

inline std::string sealed(std::string_view body) {
  std::string text(zero::detail::seal_begin);
  text += zero::checksum_text(zero::checksum(body.data(), body.size()));
  (text += zero::detail::seal_middle) += body;
  return text += zero::detail::seal_end;
}

}  // namespace fuzz
