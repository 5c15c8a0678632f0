/// @file
/// JSON files that somebody else may have written.
#pragma once

#include "zero/base/error.hpp"

#include <nlohmann/json.hpp>

#include <exception>
#include <fstream>
#include <string>

namespace plan {

/// What `read(json)` makes of a file.
/// @param writer  what writes such files
/// @throws zero::Error (invalid_argument), naming the file, for whatever `read` throws
template <class Read>
[[nodiscard]] auto read_json(std::string const& path, char const* writer, Read const& read) {
  std::ifstream file(path);
  if (!file) {
    zero::fail(zero::ErrorKind::invalid_argument,
               {"cannot read '", path, "': ", writer, " writes it"});
  }
  std::string why;
  try {
    // Objects that keep their order copy what they have while they are read, by recursion.
    return read(nlohmann::json::parse(file));
  } catch (zero::Error const& error) {
    why = error.message();
  } catch (std::exception const& error) {
    why = error.what();
  }
  zero::fail(zero::ErrorKind::invalid_argument,
             {"'", path, "' is not what ", writer, " writes: ", why});
}

}  // namespace plan
