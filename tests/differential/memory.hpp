/// @file
/// Memory around which somebody watches: what a trainer lends, and what the library allocates.
#pragma once

#include "any_communicator.hpp"
#include "case.hpp"
#include "support/lent_memory.hpp"
#include "support/standard.hpp"
#include "trapped_space.hpp"

namespace differential {

/// Calls `use(elements)` in the order of the space's queue. What runs nothing of the host's is
/// fetched, and brought back where it may have been written.
template <class Space, class T, class Use>
void reach(Space const& space, std::span<T> elements, Use const& use) {
  if constexpr (Space::host_accessible) {
    use(elements);
  } else if constexpr (std::is_same_v<Space, trapped::Space>) {
    space.call([=] { use(elements); });
  } else {
    auto copy = toy::fetch(space, std::span<std::remove_const_t<T> const>(elements));
    use(std::span<T>(copy));
    if constexpr (!std::is_const_v<T>) {
      if (!copy.empty()) space.upload(elements.data(), copy.data(), elements.size_bytes());
    }
  }
}

/// What an allocator gave out.
struct Meter {
  AnyAllocator source;
  bool watches;        ///< can the host reach the memory?
  std::size_t margin;  ///< bytes watched on either side of a block; 0 leaves that to a sanitizer
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
    auto* const memory = static_cast<unsigned char*>(meter->source.allocate(whole, alignment));
    unsigned char* const block = memory + meter->margin;
    if (meter->watches) {
      std::memset(memory, Meter::canary, whole);
      std::memset(block, 0xa5, bytes);
    }
    meter->blocks[block] = bytes;
    meter->live += bytes;
    ++meter->calls;
    return block;
  }
  void deallocate(void* memory, std::size_t bytes, std::size_t alignment) const {
    auto* const block = static_cast<unsigned char*>(memory);
    if (!meter->blocks.contains(block) || meter->blocks.at(block) != bytes) std::abort();
    meter->blocks.erase(block);
    meter->live -= bytes;
    meter->source.deallocate(block - meter->margin, bytes + 2 * meter->margin, alignment);
  }
};

/// One array per tensor, in one flat buffer or scattered in any order, with and without gaps.
template <class T, class Space>
class Lent {
 public:
  /// @param which  tells the places apart that memory moves to
  Lent(Space const& space, AnyAllocator const& allocator, Case const& test, int which, bool flat)
      : space_(space),
        begin_(test.tensors.size()),
        count_(test.tensors.size(), 0),
        memory_(allocator, place(test, which, flat)) {
    spoil();
    zero();
  }

  [[nodiscard]] std::span<T> all() const {
    return memory_.span().subspan(margin, memory_.span().size() - 2 * margin);
  }
  [[nodiscard]] std::span<T> operator[](std::size_t t) const {
    return memory_.span().subspan(begin_[t], count_[t]);
  }
  [[nodiscard]] std::vector<std::span<T>> spans() const {
    std::vector<std::span<T>> result;
    for (std::size_t t = 0; t < begin_.size(); ++t) result.push_back((*this)[t]);
    return result;
  }
  /// The array in which a tensor lies, tied or not.
  [[nodiscard]] std::span<T> storage(std::size_t t) const { return (*this)[storage_[t]]; }
  void zero() const {
    for (std::span<T> const tensor : spans()) {
      if (!tensor.empty()) space_.zero(tensor.data(), tensor.size_bytes());
    }
  }
  /// Nobody should look here any more.
  void spoil() const {
    reach(space_, memory_.span(), [](std::span<T> all) {
      std::fill(all.begin(), all.end(), T(canary));
    });
  }
  /// Waits for all that is queued.
  void settle() const { toy::fetch(space_, std::span<T const>(memory_.span().first(1))); }
  /// Calls `found()` if anything outside the tensors is not as it was.
  template <class Found>
  void look_around(Found const& found) const {
    std::vector<bool> inside(memory_.span().size(), false);
    for (std::size_t t = 0; t < begin_.size(); ++t) {
      for (std::size_t i = 0; i < count_[t]; ++i) inside[begin_[t] + i] = true;
    }
    reach(space_, std::span<T const>(memory_.span()), [inside, found](std::span<T const> all) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (!inside[i] && static_cast<float>(all[i]) != static_cast<float>(T(canary)))
          return found();
      }
    });
  }

 private:
  static constexpr std::size_t margin = 16;
  static constexpr float canary = -31337.f;

  /// Decides where tensors lie; returns the size of all.
  std::size_t place(Case const& test, int which, bool flat) {
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
    for (std::size_t t = 0; t < begin_.size(); ++t) {
      begin_[t] = begin_[storage_[t]];
      if (storage_[t] == t || repeats_ties) count_[t] = test.tensors[t].count;
    }
    return end + margin;
  }

  Space space_;
  std::vector<std::size_t> begin_;
  std::vector<std::size_t> count_;
  std::vector<std::size_t> storage_{};
  toy::Buffer<T, AnyAllocator> memory_;
};

}  // namespace differential
