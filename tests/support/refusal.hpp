/// @file
/// What the library says when something is refused.
#pragma once

#include <zero/base/error.hpp>

#include <string>

/// What the library says when it refuses `work` as a caller's mistake, or as `kind` says; empty if
/// it does not refuse.
template <class Work>
std::string refusal(Work&& work, zero::ErrorKind kind = zero::ErrorKind::invalid_argument) {
  try {
    work();
  } catch (zero::Error const& error) {
    return error.kind() == kind ? error.message() : "of another kind";
  }
  return "";
}

/// Is `work` refused as a caller's mistake?
template <class Work>
bool is_refused(Work&& work) {
  try {
    work();
  } catch (zero::Error const& error) {
    return error.kind() == zero::ErrorKind::invalid_argument;
  }
  return false;
}

/// All that an error of whatever kind says; empty if there is none.
template <class Work>
std::string message_of(Work&& work) {
  try {
    work();
  } catch (zero::Error const& error) {
    return error.what();
  }
  return "";
}
