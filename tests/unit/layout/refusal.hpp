#pragma once

#include <zero/base/error.hpp>

#include <string>

/// What the library says when it refuses `work` as a caller's mistake; empty if it does not refuse.
template <class Work>
std::string refusal(Work&& work) {
  try {
    work();
  } catch (zero::Error const& error) {
    return error.kind() == zero::ErrorKind::invalid_argument ? error.message() : "of another kind";
  }
  return "";
}
