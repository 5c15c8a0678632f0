/// @file
/// Memory around which somebody watches: what a trainer lends, and what the library allocates.
#pragma once

#include "case.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <vector>

namespace differential {

/// What an allocator gave out.
struct Meter {
  std::size_t margin =
      0;  ///< bytes watched on either side of a block; 0 leaves that to a sanitizer
  std::size_t live = 0;
  std::size_t calls = 0;
  std::map<unsigned char*, std::size_t> blocks{};

  static constexpr unsigned char canary = 0x5c;
  [[nodiscard]] bool intact() const {
    auto const untouched = [this](unsigned char const* from) {
      return std::all_of(from, from + margin, [](unsigned char byte) { return byte == canary; });
    };
    return std::all_of(blocks.begin(), blocks.end(), [&](auto const& block) {
      return untouched(block.first - margin) && untouched(block.first + block.second);
    });
  }
};

/// Memory that is not zero, with canaries around it.
struct Metered {
  Meter* meter = nullptr;

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) const {
    std::size_t const whole = bytes + 2 * meter->margin;
    auto* const memory = static_cast<unsigned char*>(
        std::aligned_alloc(alignment, (whole + alignment) / alignment * alignment));
    unsigned char* const block = memory + meter->margin;
    std::memset(memory, Meter::canary, whole);
    std::memset(block, 0xa5, bytes);
    meter->blocks[block] = bytes;
    meter->live += bytes;
    ++meter->calls;
    return block;
  }
  void deallocate(void* memory, std::size_t bytes, std::size_t) const {
    auto* const block = static_cast<unsigned char*>(memory);
    if (!meter->blocks.contains(block) || meter->blocks.at(block) != bytes) std::abort();
    meter->blocks.erase(block);
    meter->live -= bytes;
    std::free(block - meter->margin);
  }
};

/// One array per tensor, in one flat buffer or scattered in any order, with and without gaps.
template <class T>
class Lent {
 public:
  /// @param which  tells the places apart that memory moves to
  Lent(Case const& test, int which, bool flat)
      : begin_(test.tensors.size()), count_(test.tensors.size(), 0) {
    Dice dice(test.seed, which, 'l');
    bool const shuffles = dice.chance(60);
    bool const repeats_ties = dice.chance(50);
    std::size_t const gap = dice.pick<std::size_t>({0, 1, 16});
    std::vector<std::size_t> order;
    for (std::size_t t = 0; t < begin_.size(); ++t) {
      storage_.push_back(test.storage(t));
      if (storage_[t] == t) order.push_back(t);
    }
    if (!flat && shuffles) dice.shuffle(order);
    std::size_t end = margin;
    for (std::size_t const t : order) {
      begin_[t] = end;
      end += test.tensors[t].count + (flat ? 0 : gap);
    }
    memory_.assign(end + margin, T(canary));
    for (std::size_t t = 0; t < begin_.size(); ++t) {
      begin_[t] = begin_[storage_[t]];
      if (storage_[t] == t || repeats_ties) count_[t] = test.tensors[t].count;
    }
    zero();
  }

  [[nodiscard]] std::span<T> all() {
    return std::span<T>(memory_).subspan(margin, memory_.size() - 2 * margin);
  }
  [[nodiscard]] std::span<T> operator[](std::size_t t) {
    return std::span<T>(memory_).subspan(begin_[t], count_[t]);
  }
  [[nodiscard]] std::vector<std::span<T>> spans() {
    std::vector<std::span<T>> result;
    for (std::size_t t = 0; t < begin_.size(); ++t) result.push_back((*this)[t]);
    return result;
  }
  /// The array in which a tensor lies, tied or not.
  [[nodiscard]] std::span<T> storage(std::size_t t) { return (*this)[storage_[t]]; }
  void zero() {
    for (std::size_t t = 0; t < begin_.size(); ++t) {
      std::fill((*this)[t].begin(), (*this)[t].end(), T(0.f));
    }
  }
  /// Nobody should look here any more.
  void spoil() { std::fill(memory_.begin(), memory_.end(), T(canary)); }
  /// Is everything outside the tensors as it was?
  [[nodiscard]] bool intact() const {
    std::vector<bool> inside(memory_.size(), false);
    for (std::size_t t = 0; t < begin_.size(); ++t) {
      for (std::size_t i = 0; i < count_[t]; ++i) inside[begin_[t] + i] = true;
    }
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (!inside[i] && static_cast<float>(memory_[i]) != static_cast<float>(T(canary)))
        return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t margin = 16;
  static constexpr float canary = -31337.f;

  std::vector<std::size_t> begin_;
  std::vector<std::size_t> count_;
  std::vector<std::size_t> storage_;
  std::vector<T> memory_;
};

}  // namespace differential
