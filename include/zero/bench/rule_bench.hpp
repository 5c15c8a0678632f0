/// @file
/// Benches a rule's update against a kernel of the same traffic: a whole program in a line.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/bench/measure.hpp"
#include "zero/bench/program.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/space.hpp"
#include "zero/kernel/update.hpp"

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::bench {

/// What masters and states are where parameters are `P`: double, or float.
template <class P>
using MasterOf = kernel::RealOf<P>;

/// The arrays of a rule's update, with parameters and gradients of type `P`.
template <class R, class P>
using RuleArrays = kernel::UpdateArrays<MasterOf<P>, P, P, MasterOf<P>, R::states.size()>;

/// Parameters, gradients and states of a rule, cut between two threads: in fp32 or fp64 (the
/// parameters are the master), or mixed with 16-bit parameters and gradients.
template <Rule R, FloatElement P>
class RuleModel {
  using Master = MasterOf<P>;

 public:
  /// Allocates and fills the arrays; the thread that will work on a page touches it first.
  explicit RuleModel(std::size_t parameters) : parameters_(parameters) {
    for (auto& state : states_) state = untouched<Master>(parameters);
    timed([this](RuleArrays<R, P> const& part) {
      auto* const gradient = gradient_.get() + (part.gradient - gradient_.get());
      for (std::size_t i = 0; i < part.count; ++i) {
        part.master[i] = Master(0.5f - static_cast<float>(i % 1000) * 0x1p-10f);
        gradient[i] = static_cast<P>(static_cast<float>(i % 777) * 0x1p-12f - 0.1f);
        for (Master* const state : part.state) state[i] = 0;
        if (part.parameter != nullptr) part.parameter[i] = static_cast<P>(0.f);
      }
    });
  }

  /// Calls work(arrays) on two threads with their shares. @return seconds until both are done
  template <class Work>
  double timed(Work const& work) {
    double const start = seconds_now();
    std::thread other([&] { work(share(1)); });
    work(share(0));
    other.join();
    return seconds_now() - start;
  }

  /// What an update moves, by STREAM's convention: master and states in and out, gradients in. Of
  /// 16 bits a gradient takes 2 bytes less, and the parameter that is written 2 more.
  [[nodiscard]] double bytes() const {
    return (3. + 2. * R::states.size()) * sizeof(Master) * static_cast<double>(parameters_);
  }

 private:
  static constexpr bool mixed = !std::is_same_v<P, Master>;
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
  std::unique_ptr<Master[]> master_ = untouched<Master>(parameters_);
  std::unique_ptr<P[]> parameter_ = untouched<P>(mixed ? parameters_ : 1);
  std::unique_ptr<P[]> gradient_ = untouched<P>(parameters_);
  std::array<std::unique_ptr<Master[]>, R::states.size()>
      states_{};  ///< as an optimizer takes them
};

/// Reads and writes what a rule's update reads and writes, and computes next to nothing.
template <class M, class P, std::size_t K>
void same_traffic(kernel::UpdateArrays<M, P, P, M, K> const& a) {
  constexpr M half = M(0.5);
  M* __restrict const p = a.master;
  P* __restrict const out = a.parameter;
  P const* __restrict const g = a.gradient;
  // Named one by one, or the compiler would not know that they are apart.
  M* __restrict const m = K > 0 ? a.state[0] : nullptr;
  M* __restrict const v = K > 1 ? a.state[K - 1] : nullptr;
  for (std::size_t i = 0; i < a.count; ++i) {
    M gradient;
    if constexpr (sizeof(P) == 2) {
      std::uint32_t const bits = std::uint32_t{g[i].bits} << 16;
      std::memcpy(&gradient, &bits, 4);
    } else {
      gradient = g[i];
    }
    p[i] = p[i] * half + gradient;
    if constexpr (K > 0) m[i] = m[i] * half + gradient;
    for (std::size_t k = 1; k + 1 < K; ++k) a.state[k][i] = a.state[k][i] * half + gradient;
    if constexpr (K > 1) v[i] = v[i] * half + gradient;
    if constexpr (sizeof(P) == 2) {
      std::uint32_t bits;
      std::memcpy(&bits, p + i, 4);
      out[i].bits = static_cast<std::uint16_t>(bits >> 16);
    }
  }
}

namespace detail {

template <FloatElement P, Rule R>
void measure_rule(benchmark::State& state, R const& rule, std::size_t elements) {
  RuleModel<R, P> model(elements);
  double updates = 0, traffics = 0;
  long step = 0;
  for (auto _ : state) {
    traffics += model.timed([](auto const& a) { same_traffic(a); });
    using Number = MasterOf<P>;
    auto const scalars = rule.scalars(++step, static_cast<Number>(rule.lr), Number(1), Number(1));
    double const update =
        model.timed([&](auto const& a) { kernel::update(rule, scalars, 0.5f, a); });
    state.SetIterationTime(update);
    updates += update;
  }
  double const gigabytes = model.bytes() * static_cast<double>(state.iterations()) * 1e-9;
  state.counters["GB/s"] = gigabytes / updates;
  state.counters["raw GB/s"] = gigabytes / traffics;
  state.counters["vs_raw"] = traffics / updates;
}

}  // namespace detail

/// A whole program: takes Google Benchmark's options, measures a rule in fp32, mixed precision and,
/// if it can, fp64, prints a table, or JSON. An
/// iteration is one update and, before it, one run of a kernel of the same traffic, on two threads.
///
///     int main(int argc, char** argv) { return zero::bench::rule(argc, argv, MyRule{}); }
///
/// @param argc      of main
/// @param argv      of main
/// @param rule      as a trainer would hand it over
/// @param elements  parameters, at least 2; their arrays have to be well beyond the cache
/// @return main's: 0; 2 if options or elements are wrong
template <Rule R>
[[nodiscard]] int rule(int argc, char** argv, R const& rule, std::size_t elements = 64 * MiB) {
  return detail::run_program(argc, argv, [&](auto const& add) {
    if (elements < 2) fail(ErrorKind::invalid_argument, "two threads need 2 parameters to update");
    auto const add_type = [&]<class P>(P) {
      add("rule/" + std::string(R::name) + "/" + std::string(name(dtype_of<P>)),
          benchmark::kMillisecond,
          [&](benchmark::State& state) { detail::measure_rule<P>(state, rule, elements); });
    };
    add_type(float());
    if constexpr (RuleInDouble<R>) add_type(double());
    add_type(bf16());
    add_type(fp16());
  });
}

}  // namespace zero::inline ZERO_NAMESPACE::bench
