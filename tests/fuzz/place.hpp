/// @file
/// Files of an input.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace fuzz {

inline std::string slurp(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void spill(std::string const& path, std::string const& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A directory that goes with the object.
struct Place {
  std::string path =
      std::filesystem::temp_directory_path() / ("zero-fuzz-" + std::to_string(::getpid()));

  explicit Place(std::string const& name) { std::filesystem::create_directories(path += name); }
  Place(Place const&) = delete;
  Place& operator=(Place const&) = delete;
  ~Place() { std::filesystem::remove_all(path); }
};

/// All names and bytes in a directory.
inline std::string contents(std::string const& directory) {
  std::string all;
  for (auto const& entry : std::filesystem::recursive_directory_iterator(directory)) {
    all += entry.path().string() + "\n";
    if (entry.is_regular_file()) all += slurp(entry.path().string());
  }
  return all;
}

}  // namespace fuzz
