/// @file
/// The library's version, and nothing else: cheap to include from anywhere.
#pragma once

/// Incompatible changes.
#define ZERO_VERSION_MAJOR 0
/// Additions; before 1.0 incompatible changes as well.
#define ZERO_VERSION_MINOR 1
/// Corrections.
#define ZERO_VERSION_PATCH 0

namespace zero::inline v0_1 {

/// Semantic version of the headers; ranks compare it at construction.
struct Version {
  int major = ZERO_VERSION_MAJOR;  ///< ZERO_VERSION_MAJOR
  int minor = ZERO_VERSION_MINOR;  ///< ZERO_VERSION_MINOR
  int patch = ZERO_VERSION_PATCH;  ///< ZERO_VERSION_PATCH
  friend constexpr bool operator==(Version const&, Version const&) = default;
};

/// The version of these headers.
inline constexpr Version version{};

}  // namespace zero::inline v0_1
