/// @file
/// Memory that a trainer lends to an optimizer, between two pages that nobody
/// may touch (POSIX).
#pragma once

#include "contracts/recording.hpp"
#include "support/standard.hpp"
#include "zero/zero.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace contracts {

template <class Stage, class Precision>
using Borrower = WatchedOptimizer<Stage, Precision, zero::Borrowed<>>;
template <class Stage, class Precision>
using InPlace = WatchedOptimizer<Stage, Precision, zero::BorrowedInPlace<>>;

/// Are lent gradients written?
template <class O>
inline constexpr bool writes_lent = O::form.reduced == zero::StorageForm::Reduced::lent;

/// `count` elements with a forbidden page directly behind them (`at_end`) or directly before them:
/// a read or write outside ends the program.
template <class T>
class Guarded {
 public:
  Guarded(std::size_t count, bool at_end) : count_(count) {
    auto const page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    std::size_t const used = (count * sizeof(T) + page - 1) / page * page;
    bytes_ = used + 2 * page;
    void* const memory = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<std::byte*>(memory);
    inside_ = base_ + page;
    inside_bytes_ = used;
    allow(PROT_READ | PROT_WRITE);
    first_ = inside_ + (at_end ? used - count * sizeof(T) : 0);
  }
  Guarded(Guarded&& other) noexcept
      : count_(other.count_),
        bytes_(other.bytes_),
        inside_bytes_(other.inside_bytes_),
        base_(std::exchange(other.base_, nullptr)),
        inside_(other.inside_),
        first_(other.first_) {}
  Guarded& operator=(Guarded&&) = delete;
  ~Guarded() {
    if (base_ != nullptr) munmap(base_, bytes_);
  }

  [[nodiscard]] std::span<T> span() const noexcept {
    return {reinterpret_cast<T*>(first_), count_};
  }
  void forbid_writing() { allow(PROT_READ); }
  void allow_writing() { allow(PROT_READ | PROT_WRITE); }

 private:
  void allow(int protection) {
    if (inside_bytes_ > 0 && mprotect(inside_, inside_bytes_, protection) != 0) {
      throw std::bad_alloc();
    }
  }

  std::size_t count_;
  std::size_t bytes_ = 0;
  std::size_t inside_bytes_ = 0;
  std::byte* base_ = nullptr;
  std::byte* inside_ = nullptr;
  std::byte* first_ = nullptr;
};

[[nodiscard]] inline std::size_t lent_count(zero::Tensor const& tensor) {
  return tensor.tied_to.empty() ? zero::element_count(tensor) : 0;
}

/// A trainer's memory, every buffer of it between forbidden pages: one for all tensors (`flat`) or
/// one each.
template <class T>
class LentMemory {
 public:
  LentMemory(std::vector<zero::Tensor> const& tensors, bool flat, bool at_end) {
    std::size_t total = 0;
    for (auto const& tensor : tensors) total += lent_count(tensor);
    if (flat) buffers_.emplace_back(total, at_end);
    std::size_t used = 0;
    for (auto const& tensor : tensors) {
      std::size_t const count = lent_count(tensor);
      if (flat) {
        tensors_.push_back(buffers_.front().span().subspan(used, count));
        used += count;
      } else {
        buffers_.emplace_back(count, at_end);
        tensors_.push_back(buffers_.back().span());
      }
    }
  }

  [[nodiscard]] std::span<T> flat() const { return buffers_.front().span(); }
  [[nodiscard]] std::vector<std::span<T>> const& list() const { return tensors_; }
  void clear() {
    for (auto& buffer : buffers_) buffer.allow_writing();
    for (auto const& tensor : tensors_) std::fill(tensor.begin(), tensor.end(), T(0.f));
  }
  void forbid_writing() {
    for (auto& buffer : buffers_) buffer.forbid_writing();
  }
  void copy_from(LentMemory const& other) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      std::copy(other.tensors_[t].begin(), other.tensors_[t].end(), tensors_[t].begin());
    }
  }

 private:
  std::vector<Guarded<T>> buffers_;
  std::vector<std::span<T>> tensors_;
};

/// Lends both, in the form they have.
template <class O>
void lend(O& optimizer,
          bool flat,
          LentMemory<typename O::Parameter> const& parameters,
          LentMemory<typename O::Wire> const& gradients) {
  if (flat) {
    optimizer.bind(parameters.flat(), gradients.flat());
  } else {
    optimizer.bind(parameters.list(), gradients.list());
  }
}

}  // namespace contracts
