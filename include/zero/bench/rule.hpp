/// @file
/// Benches a rule's update against a kernel of the same traffic: a whole program in a line.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/bench/options.hpp"
#include "zero/bench/report.hpp"
#include "zero/bench/stream.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/space.hpp"
#include "zero/kernel/update.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::bench {

/// The arrays of a rule's update, with parameters and gradients of type `P`.
template <class R, class P>
using RuleArrays = kernel::UpdateArrays<float, P, P, float, R::states.size()>;

/// Parameters, gradients and states of a rule, cut between two threads: in fp32 (the parameters are
/// the master), or mixed with 16-bit parameters and gradients.
template <Rule R, FloatElement P>
class RuleModel {
 public:
  /// Allocates and fills the arrays; the thread that will work on a page touches it first.
  explicit RuleModel(std::size_t parameters) : parameters_(parameters) {
    for (auto& state : states_) state = untouched<float>(parameters);
    timed([this](RuleArrays<R, P> const& part) {
      auto* const gradient = gradient_.get() + (part.gradient - gradient_.get());
      for (std::size_t i = 0; i < part.count; ++i) {
        part.master[i] = 0.5f - static_cast<float>(i % 1000) * 0x1p-10f;
        gradient[i] = static_cast<P>(static_cast<float>(i % 777) * 0x1p-12f - 0.1f);
        for (float* const state : part.state) state[i] = 0.f;
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

  /// What an update moves, by STREAM's convention: master and states in and out, gradients in. Of
  /// 16 bits a gradient takes 2 bytes less, and the parameter that is written 2 more.
  [[nodiscard]] double bytes() const {
    return (12. + 8. * R::states.size()) * static_cast<double>(parameters_);
  }

 private:
  static constexpr bool mixed = !std::is_same_v<P, float>;
  static constexpr int threads = 2;

  [[nodiscard]] RuleArrays<R, P> share(int rank) const {
    std::size_t const count = parameters_ / threads;
    std::size_t const first = static_cast<std::size_t>(rank) * count;
    RuleArrays<R, P> part{.master = master_.get() + first,
                          .parameter = mixed ? parameter_.get() + first : nullptr,
                          .gradient = gradient_.get() + first,
                          .state = {},
                          .count = count};
    for (std::size_t k = 0; k < part.state.size(); ++k) part.state[k] = states_[k].get() + first;
    return part;
  }

  /// Memory that nobody has touched.
  template <class T>
  static std::unique_ptr<T[]> untouched(std::size_t count) {
    return std::make_unique_for_overwrite<T[]>(count);
  }

  std::size_t parameters_;
  std::unique_ptr<float[]> master_ = untouched<float>(parameters_);
  std::unique_ptr<P[]> parameter_ = untouched<P>(mixed ? parameters_ : 1);
  std::unique_ptr<P[]> gradient_ = untouched<P>(parameters_);
  std::array<std::unique_ptr<float[]>, R::states.size()> states_{};  ///< as an optimizer takes them
  Team team_{threads};
};

/// Reads and writes what a rule's update reads and writes, and computes next to nothing.
template <class P, std::size_t K>
void same_traffic(kernel::UpdateArrays<float, P, P, float, K> const& a) {
  float* __restrict const p = a.master;
  P* __restrict const out = a.parameter;
  P const* __restrict const g = a.gradient;
  // Named one by one, or the compiler would not know that they are apart.
  float* __restrict const m = K > 0 ? a.state[0] : nullptr;
  float* __restrict const v = K > 1 ? a.state[K - 1] : nullptr;
  for (std::size_t i = 0; i < a.count; ++i) {
    float gradient;
    if constexpr (sizeof(P) == 2) {
      std::uint32_t const bits = std::uint32_t{g[i].bits} << 16;
      std::memcpy(&gradient, &bits, 4);
    } else {
      gradient = g[i];
    }
    p[i] = p[i] * 0.5f + gradient;
    if constexpr (K > 0) m[i] = m[i] * 0.5f + gradient;
    for (std::size_t k = 1; k + 1 < K; ++k) a.state[k][i] = a.state[k][i] * 0.5f + gradient;
    if constexpr (K > 1) v[i] = v[i] * 0.5f + gradient;
    if constexpr (sizeof(P) == 2) {
      std::uint32_t bits;
      std::memcpy(&bits, p + i, 4);
      out[i].bits = static_cast<std::uint16_t>(bits >> 16);
    }
  }
}

/// What came out for one type of elements.
struct RuleRow {
  DType dtype = DType::f32;  ///< of parameters and gradients
  double bytes = 0;          ///< that an update moves
  double seconds = 0;        ///< of an update: the median over rounds
  double raw_seconds = 0;    ///< of the kernel of the same traffic
  double vs_raw = 0;         ///< speed over that kernel's: the median of ratios inside a round
  double best_vs_raw = 0;    ///< the same of the fastest rounds
};

/// Measures a rule's update and a kernel of the same traffic in turn, on two threads.
/// @param rule      as a trainer would hand it over
/// @param elements  parameters; their arrays have to be well beyond the cache
/// @param rounds    of which each runs both once
template <FloatElement P, Rule R>
[[nodiscard]] RuleRow measure_rule(R const& rule, std::size_t elements, int rounds) {
  RuleModel<R, P> model(elements);
  std::vector<double> updates, traffics;
  for (int step = 1; step <= rounds; ++step) {
    traffics.push_back(model.timed([](auto const& arrays) { same_traffic(arrays); }));
    auto const scalars = rule.scalars(step, rule.lr, 1.f, 1.f);
    updates.push_back(
        model.timed([&](auto const& arrays) { kernel::update(rule, scalars, 0.5f, arrays); }));
  }
  return {.dtype = dtype_of<P>,
          .bytes = model.bytes(),
          .seconds = median(updates),
          .raw_seconds = median(traffics),
          .vs_raw = median_ratio(traffics, updates),
          .best_vs_raw = best_ratio(traffics, updates)};
}

/// A whole program: parses options, measures a rule, prints a table, or JSON.
///
///     int main(int argc, char** argv) { return zero::bench::rule(argc, argv, MyRule{}); }
///
/// @param argc   of main
/// @param argv   of main; `--help` lists the options
/// @param rule   as a trainer would hand it over
/// @return main's: 0; 2 if the options are wrong
template <Rule R>
[[nodiscard]] int rule(int argc, char** argv, R const& rule) {
  std::vector<DType> const known{DType::f32, DType::bf16, DType::f16};
  std::vector<DType> dtypes = known;
  std::size_t elements = 64 * MiB;
  std::size_t rounds = 15;
  bool json = false, help = false;
  using Text = std::string_view;
  std::vector<Option> const options{
      {"--dtype",
       "of parameters and gradients, with commas: fp32, bf16, fp16 [all]",
       [&](Text list) { dtypes = choose(list, known); }},
      {"--elements", "parameters [64M]", [&](Text text) { elements = parse_size(text); }},
      {"--rounds",
       "times that both are measured in turn [15]",
       [&](Text text) { rounds = parse_size(text); }},
      {"--json", "an object per line instead of the table", [&](Text) { json = true; }, true},
      {"--help", "this, and nothing else", [&](Text) { help = true; }, true}};
  try {
    if (parse_options(argc, argv, options).size() > 1) {
      fail(ErrorKind::invalid_argument, "a rule has no use for Google Benchmark's options");
    }
  } catch (Error const& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.message().c_str());
    return 2;
  }
  if (help) return print_help(argv[0], options), 0;
  std::string const title(R::name);
  if (!json) {
    std::printf(
        "# %s, %zu parameters; raw: a kernel of the same traffic, in turn with it\n"
        "%-8s %9s %9s %9s %9s\n",
        title.c_str(),
        elements,
        "# dtype",
        "ms",
        "GB/s",
        "raw",
        "vs raw");
  }
  for (DType const dtype : dtypes) {
    auto const count = static_cast<int>(rounds);
    RuleRow const row = dtype == DType::f32    ? measure_rule<float>(rule, elements, count)
                        : dtype == DType::bf16 ? measure_rule<bf16>(rule, elements, count)
                                               : measure_rule<fp16>(rule, elements, count);
    char const* const format =
        json ? "{\"rule\": \"%s\", \"dtype\": \"%s\", \"ms\": %.6g, \"gbs\": %.6g, "
               "\"raw_gbs\": %.6g, \"vs_raw\": %.6g, \"best_vs_raw\": %.6g}\n"
             : "%.0s%-8s %9.2f %9.2f %9.2f %9.2f\n";
    std::printf(format,
                title.c_str(),
                std::string(name(dtype)).c_str(),
                row.seconds * 1e3,
                row.bytes / row.seconds * 1e-9,
                row.bytes / row.raw_seconds * 1e-9,
                row.vs_raw,
                row.best_vs_raw);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace zero::inline ZERO_NAMESPACE::bench
