/// @file
/// Comparing times, of which a microsecond matters.
#pragma once

#include <doctest/doctest.h>

namespace tests {

/// Relative: beside the absolute term of doctest's own microseconds are nothing.
inline doctest::Approx Approx(double value) { return doctest::Approx(value).scale(0.); }

}  // namespace tests
