/// @file
/// The model that a fine-tuning run starts from.
#pragma once

#include "tensors.hpp"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace gpt {

/// A safetensors file in fp32, as `--export` writes it. Reads what it is asked for and no more.
class BaseFile {
 public:
  /// Reads the header.
  /// @throws std::runtime_error  it cannot be read, or is no such file
  explicit BaseFile(std::string path);

  /// What tells it from other bases: a hash of the first elements of each tensor.
  /// @throws std::runtime_error  it has other tensors than a model of these sizes
  [[nodiscard]] std::uint64_t identify(Config const& config);

  /// Of a tensor that the file has.
  [[nodiscard]] std::vector<std::size_t> const& shape(std::string const& name) const {
    return entries_.at(name).shape;
  }

  /// Elements [first, first + out.size()) of a tensor.
  /// @throws std::runtime_error  the file has become shorter
  void read(std::string const& name, std::size_t first, std::span<float> out);

  /// Bytes of the data.
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  /// Bytes of the data that have been read.
  [[nodiscard]] std::uint64_t bytes_read() const noexcept { return bytes_read_; }

 private:
  struct Entry {
    std::vector<std::size_t> shape;
    std::uint64_t place = 0;  // in bytes, from the beginning of the file
  };

  std::string path_;
  std::ifstream file_;
  std::map<std::string, Entry> entries_;
  std::uint64_t size_ = 0;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace gpt
