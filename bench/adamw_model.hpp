/// @file
/// What the benchmarks of the update run on: AdamW's arrays, cut between two threads.
#pragma once

#include "stream.hpp"
#include <zero/base/dtype.hpp>
#include <zero/kernel/update.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <vector>

namespace bench {

inline constexpr int update_threads = 2;

/// Memory of which each page is first touched by the thread that will work on it.
template <class T>
class Uninitialised {
 public:
  explicit Uninitialised(std::size_t count) : memory_(new std::byte[count * sizeof(T)]) {}
  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_.get()); }

 private:
  std::unique_ptr<std::byte[]> memory_;
};

template <class P, class G>
using AdamWArrays = zero::kernel::UpdateArrays<float, P, G, float, 2>;

/// Parameters, gradients and states of AdamW: in fp32 (P = G = float, the parameters are the
/// master) or mixed (P = G = a 16-bit type).
template <class P, class G>
class AdamWModel {
 public:
  /// Counted by STREAM's convention. Mixed reads 2 bytes of gradient instead of 4, and writes 2
  /// more of parameter.
  static constexpr double bytes_per_parameter = 28.;

  explicit AdamWModel(std::size_t parameters) : parameters_(parameters) {
    timed([this](AdamWArrays<P, G> const& part) {
      auto* const gradient = gradient_.data() + (part.gradient - gradient_.data());
      for (std::size_t i = 0; i < part.count; ++i) {
        part.master[i] = 0.5f - static_cast<float>(i % 1000) * 0x1p-10f;
        gradient[i] = static_cast<G>(static_cast<float>(i % 777) * 0x1p-12f - 0.1f);
        part.state[0][i] = 0.f;
        part.state[1][i] = 0.f;
        if (part.parameter != nullptr) part.parameter[i] = static_cast<P>(0.f);
      }
    });
  }

  /// Calls work(arrays) on every thread with its share. @return seconds until all are done
  template <class Work>
  double timed(Work const& work) {
    double const start = seconds_now();
    team_.run([&](int rank) { work(share(rank)); });
    return seconds_now() - start;
  }

  [[nodiscard]] double bytes() const {
    return bytes_per_parameter * static_cast<double>(parameters_);
  }

 private:
  static constexpr bool mixed = !std::is_same_v<P, float>;

  [[nodiscard]] AdamWArrays<P, G> share(int rank) const {
    std::size_t const count = parameters_ / update_threads;
    std::size_t const first = static_cast<std::size_t>(rank) * count;
    return {.master = master_.data() + first,
            .parameter = mixed ? parameter_.data() + first : nullptr,
            .gradient = gradient_.data() + first,
            .state = {m_.data() + first, v_.data() + first},
            .count = count};
  }

  std::size_t parameters_;
  Uninitialised<float> master_{parameters_};
  Uninitialised<P> parameter_{mixed ? parameters_ : 1};
  Uninitialised<G> gradient_{parameters_};
  Uninitialised<float> m_{parameters_};
  Uninitialised<float> v_{parameters_};
  Team team_{update_threads};
};

/// The elements [first, first + count) of `all`.
template <class P, class G>
[[nodiscard]] AdamWArrays<P, G> piece(AdamWArrays<P, G> const& all,
                                      std::size_t first,
                                      std::size_t count) {
  return {.master = all.master + first,
          .parameter = all.parameter == nullptr ? nullptr : all.parameter + first,
          .gradient = all.gradient + first,
          .state = {all.state[0] + first, all.state[1] + first},
          .count = count};
}

/// The median over the rounds of one duration over another.
[[nodiscard]] inline double median_ratio(std::vector<double> const& over,
                                         std::vector<double> const& under) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < over.size(); ++i) ratios.push_back(over[i] / under[i]);
  return median(ratios);
}

/// The same of the fastest rounds: what remains when no one else was at work.
[[nodiscard]] inline double best_ratio(std::vector<double> const& over,
                                       std::vector<double> const& under) {
  return *std::min_element(over.begin(), over.end()) /
         *std::min_element(under.begin(), under.end());
}

}  // namespace bench
