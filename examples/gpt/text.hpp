#pragma once

#include "model.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpt {

/// Bytes to learn from, and bytes kept back to measure on.
struct Text {
  std::vector<std::uint8_t> training, validation;
  std::uint64_t base = 0;  ///< what identifies the base of a run that fine-tunes

  /// Appends one document: its last `held_back` share goes to validation. Every document gives its
  /// part, so both halves speak of the same things.
  void append(std::span<std::uint8_t const> document, double held_back = 0.1) {
    if (!(held_back >= 0 && held_back <= 1)) {
      throw std::invalid_argument("gpt: the share held back lies between 0 and 1");
    }
    auto const kept =
        static_cast<std::ptrdiff_t>(static_cast<double>(document.size()) * (1 - held_back));
    training.insert(training.end(), document.begin(), document.begin() + kept);
    validation.insert(validation.end(), document.begin() + kept, document.end());
  }
};

/// Reads files as bytes, in the order given; ranks must pass the same order.
/// @throws std::runtime_error  a file cannot be read
[[nodiscard]] inline Text load_text(std::span<std::filesystem::path const> files,
                                    double held_back = 0.1) {
  Text text;
  for (auto const& file : files) {
    std::ifstream stream(file, std::ios::binary);
    std::string const bytes{std::istreambuf_iterator<char>(stream), {}};
    if (!stream) throw std::runtime_error("gpt: cannot read " + file.string());
    text.append(std::vector<std::uint8_t>(bytes.begin(), bytes.end()), held_back);
  }
  return text;
}

/// Which micro-batch of a run is meant.
struct BatchKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  /// Counted over all ranks: rank · accumulation + micro-step. Any division of the same number of
  /// micro-batches over ranks then trains on the same data.
  std::uint64_t micro_batch = 0;
};

/// Sequences one after the other; `targets` are the inputs one byte later.
struct Batch {
  std::vector<std::uint8_t> inputs, targets;
};

/// Fills `batch` with `sequences` windows of `length` bytes from random places of `bytes`.
/// A pure function of its arguments; allocates only when `batch` must grow.
/// @throws std::invalid_argument  fewer than length + 1 bytes to draw from
inline void sample_batch(std::span<std::uint8_t const> bytes,
                         BatchKey const& key,
                         int sequences,
                         int length,
                         Batch& batch) {
  if (sequences < 1 || length < 1 || bytes.size() <= static_cast<std::size_t>(length)) {
    throw std::invalid_argument("gpt: the text is shorter than one sequence");
  }
  auto const window = static_cast<std::size_t>(length);
  batch.inputs.resize(static_cast<std::size_t>(sequences) * window);
  batch.targets.resize(batch.inputs.size());
  std::size_t const places = bytes.size() - window;
  for (std::size_t i = 0; i < static_cast<std::size_t>(sequences); ++i) {
    std::size_t const place = random_bits(key.seed, key.step, key.micro_batch, i) % places;
    auto const offset = static_cast<std::ptrdiff_t>(i * window);
    std::ranges::copy(bytes.subspan(place, window), batch.inputs.begin() + offset);
    std::ranges::copy(bytes.subspan(place + 1, window), batch.targets.begin() + offset);
  }
}

}  // namespace gpt
