/// @file
/// STREAM's triad, by which the speed of memory is known.
#pragma once

#include "zero/kernel/copy.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>

namespace plan {

/// One thread's part of STREAM's triad a = b + s * c over fp32, 12 bytes per element. Its stores
/// bypass the cache where the processor can, so that these are the bytes that move: with ordinary
/// stores each line of `a` is read before it is written, on some machines and not on others.
class TriadPart {
 public:
  /// Allocates and touches three arrays. @param elements  of each, rounded down to cache lines
  explicit TriadPart(std::size_t elements) : elements_(elements / width * width) {
    float value = 0.f;
    for (auto* const array : {&a_, &b_, &c_}) {
      array->reset(static_cast<float*>(::operator new(elements_ * sizeof(float), line)));
      std::fill_n(array->get(), elements_, value++);
    }
  }

  /// Runs it once.
  void run() {
    for (std::size_t i = 0; i < elements_; i += width) {
      // The constant trip count lets plain -O2 vectorise.
      float sums[width];
      for (std::size_t j = 0; j < width; ++j) sums[j] = b_[i + j] + 3.0f * c_[i + j];
      zero::kernel::detail::stream_lines<0>(a_.get() + i, sums, 1);
    }
    zero::kernel::publish_streaming_stores();
  }

  /// What one run moves.
  [[nodiscard]] double bytes() const { return 12. * static_cast<double>(elements_); }

 private:
  static constexpr std::size_t width = 16;
  static constexpr std::align_val_t line{64};

  struct Free {
    void operator()(float* memory) const { ::operator delete(memory, line); }
  };

  std::size_t elements_;
  std::unique_ptr<float[], Free> a_;
  std::unique_ptr<float[], Free> b_;
  std::unique_ptr<float[], Free> c_;
};

}  // namespace plan
