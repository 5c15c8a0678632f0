/// @file
/// The library's version, and nothing else: cheap to include from anywhere.
#pragma once

/// Incompatible changes.
#define ZERO_VERSION_MAJOR 0
/// Additions; before 1.0 incompatible changes as well.
#define ZERO_VERSION_MINOR 3
/// Corrections.
#define ZERO_VERSION_PATCH 0

namespace zero::inline v0_3 {

/// Semantic version of the headers; ranks compare it at construction.
struct Version {
  int major = ZERO_VERSION_MAJOR;  ///< incompatible changes
  int minor = ZERO_VERSION_MINOR;  ///< additions; before 1.0 incompatible changes as well
  int patch = ZERO_VERSION_PATCH;  ///< corrections
  friend constexpr bool operator==(Version const&, Version const&) = default;
};

/// The version of these headers.
inline constexpr Version version{};

}  // namespace zero::inline v0_3
