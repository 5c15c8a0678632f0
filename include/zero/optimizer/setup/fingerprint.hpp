/// @file
/// What all ranks must agree on before they train together, compared field by field.
#pragma once

#include "zero/base/compare_fields.hpp"
#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/base/hash.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/setup/rank_words.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

ZERO_APART [[nodiscard]] ZERO_COLD std::uint64_t hash_of(Tensor const& tensor);

/// A fixed-size record of named values. All ranks fill in the same names in the same order.
class Fingerprint {
 public:
  static constexpr std::size_t capacity = 40;
  static constexpr std::size_t field_words = 3;

  /// Names must outlive the record; `owner` is put before the name in messages.
  void add(std::string_view field, std::int64_t value) {
    put({}, field, ValueKind::integer, value, 0);
  }
  void add(std::string_view field, std::uint64_t value) {
    put({}, field, ValueKind::natural, std::bit_cast<std::int64_t>(value), 0);
  }
  void add(std::string_view owner, std::string_view field, double value) {
    put(owner, field, ValueKind::real, std::bit_cast<std::int64_t>(value), 0);
  }
  /// Shown up to its first 16 bytes; the rest is compared by its hash.
  void add(std::string_view field, std::string_view text) { add({}, field, text); }
  ZERO_APART void add(std::string_view owner, std::string_view field, std::string_view text);
  void add_hash(std::string_view owner, std::string_view field, std::uint64_t hash) {
    put(owner, field, ValueKind::hash, std::bit_cast<std::int64_t>(hash), 0);
  }

  /// A hash of all of it.
  [[nodiscard]] std::uint64_t digest() const noexcept {
    Hash hash;
    hash.add(words_.data(), count_ * field_words * sizeof(words_[0]));
    return hash.value();
  }

  /// Exchanges the record and compares. Collective; blocks.
  /// @param here  which rank this is, for errors
  /// @throws Error (communication), on every rank, naming the field, the values and the ranks
  ZERO_APART ZERO_COLD void compare(ErrorContext const& here,
                                    std::vector<Tensor> const& tensors,
                                    RankWords const& ranks) const;
  /// Exchanges the record: the first field in which ranks differ, its values and the ranks; empty
  /// if there is none. Collective; blocks.
  /// @param more  `more()` says what is behind a hash that differs, as far as it can
  template <class More>
  [[nodiscard]] std::string difference(RankWords const& ranks, More const& more) const {
    auto const all = ranks.gather(words_);
    std::size_t const field = first_difference(all, words_.size(), field_words);
    if (field >= count_) return {};
    std::string text;
    if (kind_of(words_[field * field_words]) == ValueKind::hash) text = more();
    return text.empty() ? values(field, all) : text;
  }

 private:
  enum class ValueKind : std::int64_t { none, integer, natural, real, text, hash };

  /// The first word of a field has its kind in the lowest bits.
  static constexpr int kind_bits = 8;
  [[nodiscard]] static ValueKind kind_of(std::int64_t word) noexcept {
    return static_cast<ValueKind>(word & ((1 << kind_bits) - 1));
  }

  struct FieldName {
    std::string_view owner{};
    std::string_view field{};
  };

  ZERO_APART ZERO_COLD void put(std::string_view owner,
                                std::string_view field,
                                ValueKind kind,
                                std::int64_t first,
                                std::int64_t second);

  /// The first tensor in which models differ, and how; empty if there is none.
  ZERO_APART [[nodiscard]] ZERO_COLD static std::string difference_of(
      std::vector<Tensor> const& tensors, RankWords const& ranks);

  /// A field, and which ranks have which value.
  ZERO_APART [[nodiscard]] ZERO_COLD std::string values(std::size_t field,
                                                        std::span<std::int64_t const> all) const;

  /// @param single  numbers as those of 32 bits
  ZERO_APART ZERO_COLD static std::string show(std::int64_t const* words, bool single);

  std::string subject_{};  ///< whose fields these are, in messages
  std::array<FieldName, capacity> names_{};
  std::array<std::int64_t, field_words * capacity> words_{};
  std::size_t count_ = 0;
};

#if ZERO_BODIES

ZERO_BODY std::uint64_t hash_of(Tensor const& tensor) {
  Hash hash;
  hash.add(tensor.name);
  hash.add(tensor.shape.size());
  for (std::size_t const extent : tensor.shape) hash.add(extent);
  hash.add(static_cast<std::uint64_t>(tensor.unit));
  hash.add(tensor.dtype ? name(*tensor.dtype) : std::string_view());
  hash.add(tensor.file_dtype.name());
  hash.add(std::bit_cast<std::uint64_t>(tensor.weight_decay));
  hash.add(std::bit_cast<std::uint64_t>(tensor.learning_rate));
  hash.add((tensor.frozen ? 1u : 0u) + (tensor.partitioned ? 2u : 0u) + (tensor.whole ? 4u : 0u) +
           (tensor.full_states ? 8u : 0u));
  hash.add(tensor.tied_to);
  hash.add(tensor.group);
  return hash.value();
}

ZERO_BODY void Fingerprint::add(std::string_view owner,
                                std::string_view field,
                                std::string_view text) {
  std::array<std::int64_t, 2> words{};
  std::memcpy(words.data(), text.data(), text.size() < 16 ? text.size() : 16);
  put(owner, field, ValueKind::text, words[0], words[1]);
  if (text.size() <= 16) return;
  Hash rest;
  rest.add(text.substr(16));
  words_[(count_ - 1) * field_words] |= static_cast<std::int64_t>(rest.value() << kind_bits);
}

ZERO_BODY void Fingerprint::put(std::string_view owner,
                                std::string_view field,
                                ValueKind kind,
                                std::int64_t first,
                                std::int64_t second) {
  if (count_ == capacity) {
    fail(ErrorKind::invalid_argument, "a rule names more fields than a fingerprint holds");
  }
  names_[count_] = {owner, field};
  words_[count_ * field_words] = static_cast<std::int64_t>(kind);
  words_[count_ * field_words + 1] = first;
  words_[count_ * field_words + 2] = second;
  ++count_;
}

ZERO_BODY void Fingerprint::compare(ErrorContext const& here,
                                    std::vector<Tensor> const& tensors,
                                    RankWords const& ranks) const {
  std::string const text = difference(ranks, [&] { return difference_of(tensors, ranks); });
  if (!text.empty()) fail(ErrorKind::communication, {"ranks disagree on ", text}, here);
}

ZERO_BODY std::string Fingerprint::difference_of(std::vector<Tensor> const& tensors,
                                                 RankWords const& ranks) {
  auto const count = static_cast<std::int64_t>(tensors.size());
  auto const counts = ranks.gather({&count, 1});
  auto const common = static_cast<std::size_t>(*std::min_element(counts.begin(), counts.end()));
  std::vector<std::int64_t> hashes;
  for (std::size_t t = 0; t < common; ++t) {
    hashes.push_back(std::bit_cast<std::int64_t>(hash_of(tensors[t])));
  }
  std::size_t const t = first_difference(ranks.gather(hashes), common);
  std::string own = "none";
  if (t < tensors.size()) {
    own = "'" + tensors[t].name + "' [";
    for (std::size_t const extent : tensors[t].shape) {
      own += Message({own.back() == '[' ? "" : ", ", extent}).text();
    }
    own += "]";
  }
  std::array<std::int64_t, 32> words{};
  own.copy(reinterpret_cast<char*>(words.data()), sizeof(words) - 1);
  auto const all = ranks.gather(words);
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < all.size(); i += words.size()) {
    shown.push_back(std::string(reinterpret_cast<char const*>(&all[i])));
  }
  if (std::count(shown.begin(), shown.end(), shown[0]) != ranks.size()) {
    return values_of_ranks({"tensor ", t}, shown);
  }
  if (t == common) return {};
  Tensor const& tensor = tensors[t];
  Fingerprint record;
  record.subject_ = Message({"tensor ", t, ", ", shown[0], ", "}).text();
  record.add("name", tensor.name);
  record.add("unit", std::int64_t{tensor.unit});
  record.add("type", tensor.dtype ? name(*tensor.dtype) : "the precision's");
  record.add("type in files", tensor.file_dtype.name());
  record.add({}, "weight decay", tensor.weight_decay);
  record.add({}, "learning rate", tensor.learning_rate);
  record.add("frozen flag", std::int64_t{tensor.frozen});
  record.add("whole flag", std::int64_t{tensor.whole});
  record.add("partitioned flag", std::int64_t{tensor.partitioned});
  record.add("full states flag", std::int64_t{tensor.full_states});
  record.add("tie", tensor.tied_to);
  record.add("group", tensor.group);
  return record.difference(ranks, [] { return std::string(); });
}

ZERO_BODY std::string Fingerprint::values(std::size_t field,
                                          std::span<std::int64_t const> all) const {
  // A float, and the double of the same text, are different numbers.
  bool single = true;
  for (std::size_t i = field * field_words; i < all.size(); i += words_.size()) {
    single = single && kind_of(all[i]) == ValueKind::real &&
             is_single(std::bit_cast<double>(all[i + 1]));
  }
  std::vector<std::string> shown;
  for (std::size_t i = field * field_words; i < all.size(); i += words_.size()) {
    shown.push_back(show(&all[i], single));
  }
  return values_of_ranks({subject_, names_[field].owner, names_[field].field}, shown);
}

ZERO_BODY std::string Fingerprint::show(std::int64_t const* words, bool single) {
  char letters[32] = {};
  switch (kind_of(words[0])) {
    case ValueKind::integer: return Message({words[1]}).text();
    case ValueKind::natural: return Message({std::bit_cast<std::uint64_t>(words[1])}).text();
    case ValueKind::real: return number_text(std::bit_cast<double>(words[1]), single);
    case ValueKind::text:
      std::memcpy(letters, words + 1, 16);
      if (auto const rest = std::bit_cast<std::uint64_t>(words[0]) >> kind_bits; rest != 0) {
        return Message({"'", std::string_view(letters), "...' (hash ", rest, ")"}).text();
      }
      return Message({"'", std::string_view(letters), "'"}).text();
    case ValueKind::hash: return Message({"hash ", std::bit_cast<std::uint64_t>(words[1])}).text();
    case ValueKind::none: break;
  }
  return "nothing";
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE::detail
