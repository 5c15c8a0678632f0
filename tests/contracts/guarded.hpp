/// @file
/// Memory between two pages that nobody may touch (POSIX).
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <new>
#include <span>
#include <utility>

namespace contracts {

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

}  // namespace contracts
