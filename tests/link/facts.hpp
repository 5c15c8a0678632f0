#pragma once

#include <zero/base/version.hpp>

/// What one translation unit believes about the library; every unit must believe the same.
struct Facts {
  zero::Version version{};
  friend bool operator==(Facts const&, Facts const&) = default;
};

/// Static, so that each unit answers for itself instead of for the copy the linker kept.
[[nodiscard]] static inline Facts facts() { return {.version = zero::version}; }
