/// @file
/// What a borrowing trainer lends, in any memory space.
#pragma once

#include "support/standard.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/layout/tensor.hpp"

namespace toy {

/// Elements in a space's memory, from an allocator of it.
template <class T, zero::Allocator Allocator>
class Buffer {
 public:
  Buffer(Allocator allocator, std::size_t count)
      : allocator_(std::move(allocator)),
        memory_(static_cast<T*>(allocator_.allocate(count * sizeof(T), 256)), count) {}
  Buffer(Buffer const&) = delete;
  Buffer& operator=(Buffer const&) = delete;
  ~Buffer() { allocator_.deallocate(memory_.data(), memory_.size_bytes(), 256); }
  [[nodiscard]] std::span<T> span() const noexcept { return memory_; }

 private:
  Allocator allocator_;
  std::span<T> memory_;
};

/// A copy, on the host, of what lies in a space's memory.
template <class Space, class T>
std::vector<T> fetch(Space const& space, std::span<T const> values) {
  std::vector<T> copy(values.size());
  if (!copy.empty()) space.download(copy.data(), values.data(), values.size_bytes());
  return copy;
}

/// Parameters and gradients of a model, with canaries around every tensor, or around all of them
/// where they are lent as one flat buffer.
template <class Parameter, class Wire, class Space, class Allocator>
class LentMemory {
 public:
  static constexpr std::size_t margin = 16;

  LentMemory(Space space,
             Allocator const& allocator,
             std::vector<zero::Tensor> const& tensors,
             bool flat)
      : space_(std::move(space)),
        flat_(flat),
        pieces_(layout(tensors, flat)),
        parameters_(allocator, pieces_.back().end() + margin),
        gradients_(allocator, pieces_.back().end() + margin) {
    fill(parameters_.span());
    fill(gradients_.span());
    zero_gradients();
  }

  void zero_gradients() {
    for (Piece const& piece : pieces_) {
      std::span<Wire> const tensor = piece.of(gradients_.span());
      if (!tensor.empty()) space_.zero(tensor.data(), tensor.size_bytes());
    }
  }
  template <class Optimizer>
  void bind_to(Optimizer& optimizer) {
    if (flat_) {
      Piece const all{margin, pieces_.back().end() - margin};
      optimizer.bind(all.of(parameters_.span()), all.of(gradients_.span()));
      return;
    }
    std::vector<std::span<Parameter>> parameters;
    std::vector<std::span<Wire>> gradients;
    for (Piece const& piece : pieces_) {
      parameters.push_back(piece.of(parameters_.span()));
      gradients.push_back(piece.of(gradients_.span()));
    }
    optimizer.bind(std::span<std::span<Parameter> const>(parameters),
                   std::span<std::span<Wire> const>(gradients));
  }
  /// True if nothing was written outside a tensor.
  [[nodiscard]] bool intact() const {
    return canaries_live(parameters_.span()) && canaries_live(gradients_.span());
  }

 private:
  /// A tensor's elements within a buffer.
  struct Piece {
    std::size_t begin;
    std::size_t count;
    [[nodiscard]] std::size_t end() const { return begin + count; }
    template <class T>
    [[nodiscard]] std::span<T> of(std::span<T> memory) const {
      return memory.subspan(begin, count);
    }
  };

  static std::vector<Piece> layout(std::vector<zero::Tensor> const& tensors, bool flat) {
    std::vector<Piece> pieces;
    std::size_t end = margin;
    for (auto const& tensor : tensors) {
      std::size_t const count = tensor.tied_to.empty() ? zero::element_count(tensor) : 0;
      pieces.push_back({end, count});
      end += count + (flat ? 0 : margin);
    }
    return pieces;
  }
  template <class T>
  void fill(std::span<T> memory) const {
    std::vector<T> const canaries(memory.size(), T(-31337.f));
    space_.upload(memory.data(), canaries.data(), memory.size_bytes());
  }
  template <class T>
  [[nodiscard]] bool canaries_live(std::span<T> memory) const {
    std::vector<T> found = fetch(space_, std::span<T const>(memory));
    T const canary(-31337.f);
    for (Piece const& piece : pieces_) {
      auto const tensor = piece.of(std::span(found));
      std::fill(tensor.begin(), tensor.end(), canary);
    }
    return std::all_of(found.begin(), found.end(), [&](T const& value) {
      return std::memcmp(&value, &canary, sizeof(T)) == 0;
    });
  }

  Space space_;
  bool flat_;
  std::vector<Piece> pieces_;
  Buffer<Parameter, Allocator> parameters_;
  Buffer<Wire, Allocator> gradients_;
};

}  // namespace toy
