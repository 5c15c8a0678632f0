/// @file
/// What all ranks must agree on before they train together, compared field by field.
#pragma once

#include "zero/base/error.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/tensor.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline v0_1::detail {

/// 64-bit FNV-1a: not cryptographic; tells honest configurations apart.
class Hash {
 public:
  void add(void const* data, std::size_t bytes) noexcept {
    auto const* const octets = static_cast<unsigned char const*>(data);
    for (std::size_t i = 0; i < bytes; ++i) value_ = (value_ ^ octets[i]) * 0x100000001b3u;
  }
  void add(std::uint64_t value) noexcept { add(&value, sizeof(value)); }
  void add(std::string_view text) noexcept {
    add(text.size());
    add(text.data(), text.size());
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

[[nodiscard]] inline std::uint64_t hash_of(Tensor const& tensor) {
  Hash hash;
  hash.add(tensor.name);
  hash.add(tensor.shape.size());
  for (std::size_t const extent : tensor.shape) hash.add(extent);
  hash.add(static_cast<std::uint64_t>(tensor.unit));
  hash.add(std::bit_cast<std::uint32_t>(tensor.weight_decay));
  hash.add(std::bit_cast<std::uint32_t>(tensor.learning_rate));
  hash.add(tensor.frozen ? 1u : 0u);
  hash.add(tensor.tied_to);
  return hash.value();
}

/// A fixed-size record of named values. All ranks fill in the same names in the same order.
class Fingerprint {
 public:
  static constexpr std::size_t capacity = 40;

  void add(std::string_view field, std::int64_t value) { put(field, Kind::integer, value, 0); }
  void add(std::string_view field, double value) {
    put(field, Kind::real, std::bit_cast<std::int64_t>(value), 0);
  }
  /// Compared and shown up to its first 16 bytes.
  void add(std::string_view field, std::string_view text) {
    std::array<std::int64_t, 2> words{};
    std::memcpy(words.data(), text.data(), text.size() < 16 ? text.size() : 16);
    put(field, Kind::text, words[0], words[1]);
  }
  void add_hash(std::string_view field, std::uint64_t hash) {
    put(field, Kind::hash, std::bit_cast<std::int64_t>(hash), 0);
  }

  /// Exchanges the record and compares. Collective; blocks.
  /// @throws Error (communication), on every rank, naming the field, the values and the ranks
  template <Communicator C>
  void compare(C& comm, std::vector<Tensor> const& tensors) const {
    auto const ranks = static_cast<std::size_t>(comm.size());
    std::vector<std::int64_t> all(ranks * words_.size());
    exchange(comm, words_.data(), all.data(), words_.size());
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      auto const value = [&](std::size_t rank) { return &all[rank * words_.size() + 3 * f]; };
      if (agree(ranks, 3, value)) continue;
      if (value(0)[0] == static_cast<std::int64_t>(Kind::hash)) name_tensor(comm, tensors);
      fail(ErrorKind::communication,
           "ranks disagree on " + fields_[f] + ": " + describe(ranks, value),
           {.rank = comm.rank(), .operation = "construction"});
    }
  }

 private:
  enum class Kind : std::int64_t { none, integer, real, text, hash };

  void put(std::string_view field, Kind kind, std::int64_t first, std::int64_t second) {
    if (fields_.size() == capacity) {
      fail(ErrorKind::invalid_argument, "a rule names more fields than a fingerprint holds");
    }
    std::size_t const at = 3 * fields_.size();
    fields_.emplace_back(field);
    words_[at] = static_cast<std::int64_t>(kind);
    words_[at + 1] = first;
    words_[at + 2] = second;
  }

  template <Communicator C>
  static void exchange(C& comm, std::int64_t const* own, std::int64_t* all, std::size_t count) {
    run(comm,
        {.op = Op::all_gather,
         .dtype = DType::i64,
         .accumulate = DType::i64,
         .count = count,
         .send = own,
         .recv = all});
  }

  template <class Value>
  static bool agree(std::size_t ranks, std::size_t words, Value const& value) {
    for (std::size_t rank = 1; rank < ranks; ++rank) {
      for (std::size_t w = 0; w < words; ++w) {
        if (value(rank)[w] != value(0)[w]) return false;
      }
    }
    return true;
  }

  /// If the models have as many tensors, the first one that differs can be named.
  template <Communicator C>
  static void name_tensor(C& comm, std::vector<Tensor> const& tensors) {
    auto const ranks = static_cast<std::size_t>(comm.size());
    std::vector<std::int64_t> own;
    own.reserve(tensors.size());
    for (Tensor const& tensor : tensors)
      own.push_back(std::bit_cast<std::int64_t>(hash_of(tensor)));
    std::vector<std::int64_t> all(ranks * own.size());
    exchange(comm, own.data(), all.data(), own.size());
    for (std::size_t t = 0; t < own.size(); ++t) {
      if (agree(ranks, 1, [&](std::size_t rank) { return &all[rank * own.size() + t]; })) continue;
      fail(ErrorKind::communication,
           "ranks disagree on tensor " + std::to_string(t) + ", here '" + tensors[t].name +
               "': its name, shape, unit, scales, frozen flag or tie differs",
           {.rank = comm.rank(), .operation = "construction"});
    }
  }

  template <class Value>
  static std::string describe(std::size_t ranks, Value const& value) {
    std::string text;
    std::vector<bool> told(ranks, false);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (told[rank]) continue;
      if (!text.empty()) text += "; ";
      text += show(value(rank)) + " on rank";
      for (std::size_t other = rank; other < ranks; ++other) {
        bool const same = std::memcmp(value(other), value(rank), 3 * sizeof(std::int64_t)) == 0;
        if (!same) continue;
        told[other] = true;
        text += " " + std::to_string(other);
      }
    }
    return text;
  }

  static std::string show(std::int64_t const* words) {
    switch (static_cast<Kind>(words[0])) {
      case Kind::integer: return std::to_string(words[1]);
      case Kind::real: {
        char digits[32];
        std::snprintf(digits, sizeof(digits), "%.9g", std::bit_cast<double>(words[1]));
        return digits;
      }
      case Kind::text: {
        char letters[17] = {};
        std::memcpy(letters, words + 1, 16);
        return std::string("'") + letters + "'";
      }
      case Kind::hash: return "hash " + std::to_string(std::bit_cast<std::uint64_t>(words[1]));
      case Kind::none: break;
    }
    return "nothing";
  }

  std::vector<std::string> fields_;
  std::array<std::int64_t, 3 * capacity> words_{};
};

}  // namespace zero::inline v0_1::detail
