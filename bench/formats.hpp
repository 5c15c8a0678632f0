/// @file
/// Updates of state formats, each timed in turn with a kernel that reads and writes the same arrays
/// and computes next to nothing: what is left is what the format's arithmetic costs.
#pragma once

#include "stream.hpp"
#include <zero/kernel/coded_update.hpp>
#include <zero/kernel/random_key.hpp>
#include <zero/kernel/remainder.hpp>
#include <zero/kernel/root_state.hpp>
#include <zero/kernel/stochastic_bf16.hpp>
#include <zero/rule/adamw.hpp>
#include <zero/rule/eight_bit.hpp>

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace bench {

using zero::bf16;

/// What an update by AdamW of bf16 parameters works on, cut between threads.
/// @tparam Master     what is held of a master: where it is the parameter, no other is written
/// @tparam Parameter  how parameters are written
/// @tparam State      of both moments
template <class Master, class Parameter, class State>
class Bf16Format {
  static constexpr bool has_master = !std::is_same_v<Master, Parameter>;

 public:
  using Arrays = zero::RandomUpdateArrays<Master, Parameter, bf16, State, 2>;

  /// Zeroed but for gradients; the thread that will work on a page touches it first.
  Bf16Format(std::size_t elements, int threads) : elements_(elements), threads_(threads) {
    timed([this](Arrays const& part) {
      std::size_t const first = static_cast<std::size_t>(part.master - master_.get());
      for (std::size_t i = 0; i < part.count; ++i) {
        part.master[i] = Master();
        if (has_master) part.parameter[i] = Parameter();
        gradient_[first + i] = bf16(static_cast<float>(i % 777) * 0x1p-12f - 0.1f);
        for (State* const state : part.state) state[i] = State();
      }
    });
  }

  /// Calls work(arrays) on the threads with their shares. @return seconds until all are done
  template <class Work>
  double timed(Work const& work) {
    double const start = seconds_now();
    std::vector<std::thread> others;
    for (int t = 1; t < threads_; ++t) others.emplace_back([&, t] { work(share(t)); });
    work(share(0));
    for (std::thread& other : others) other.join();
    return seconds_now() - start;
  }

 private:
  [[nodiscard]] Arrays share(int thread) const {
    Arrays part;
    part.count = elements_ / static_cast<std::size_t>(threads_);
    part.random = {
        .key = 1, .first = static_cast<std::size_t>(thread) * part.count, .seed = &seed_};
    part.master = master_.get() + part.random.first;
    if (has_master) part.parameter = parameter_.get() + part.random.first;
    part.gradient = gradient_.get() + part.random.first;
    for (std::size_t k = 0; k < 2; ++k) part.state[k] = state_[k].get() + part.random.first;
    return part;
  }
  /// Memory that nobody has touched.
  template <class T>
  [[nodiscard]] static std::unique_ptr<T[]> untouched(std::size_t count) {
    return std::make_unique_for_overwrite<T[]>(count);
  }

  std::size_t elements_;
  int threads_;
  std::uint64_t seed_ = 1;
  std::unique_ptr<Master[]> master_ = untouched<Master>(elements_);
  std::unique_ptr<Parameter[]> parameter_ = untouched<Parameter>(has_master ? elements_ : 1);
  std::unique_ptr<bf16[]> gradient_ = untouched<bf16>(elements_);
  std::array<std::unique_ptr<State[]>, 2> state_{untouched<State>(elements_),
                                                 untouched<State>(elements_)};
};

/// A word as wide as an element, whose bits may be read and written as those of any.
template <class T>
using WordOf = std::conditional_t<sizeof(T) == 1,
                                  std::uint8_t,
                                  std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>>;

/// Reads all arrays and writes all but gradients, which it leaves as they are: every word takes an
/// exclusive or with a part of the gradient that is 0, which the compiler cannot know.
template <class Master, class Parameter, class State>
void same_bytes(zero::UpdateArrays<Master, Parameter, bf16, State, 2> const& a) {
  static std::uint16_t volatile nothing = 0;
  std::uint16_t const none = nothing;
  // Named one by one, or the compiler would not know that they are apart.
  auto* __restrict const master = reinterpret_cast<WordOf<Master>*>(a.master);
  auto* __restrict const p = reinterpret_cast<std::uint16_t*>(a.parameter);
  auto const* __restrict const g = reinterpret_cast<std::uint16_t const*>(a.gradient);
  auto* __restrict const m = reinterpret_cast<WordOf<State>*>(a.state[0]);
  auto* __restrict const v = reinterpret_cast<WordOf<State>*>(a.state[1]);
  for (std::size_t i = 0; i < a.count; ++i) {
    auto const part = static_cast<std::uint16_t>(g[i] & none);
    master[i] = static_cast<WordOf<Master>>(master[i] ^ part);
    if constexpr (!std::is_same_v<Master, Parameter>)
      p[i] = static_cast<std::uint16_t>(p[i] ^ part);
    m[i] = static_cast<WordOf<State>>(m[i] ^ part);
    v[i] = static_cast<WordOf<State>>(v[i] ^ part);
  }
}

template <class Master, class Parameter, class State>
void update_format(benchmark::State& state) {
  using Format = Bf16Format<Master, Parameter, State>;
  constexpr std::size_t elements = std::size_t{64} << 20;
  Format model(elements, 2);
  zero::AdamW const rule{};
  std::vector<double> updates, traffics;
  long step = 0;
  for (auto _ : state) {
    auto const scalars = rule.scalars(++step, static_cast<float>(rule.lr), 1.f, 1.f);
    traffics.push_back(model.timed([](auto const& arrays) { same_bytes(arrays); }));
    updates.push_back(model.timed([&](auto const& arrays) {
      using namespace zero::kernel;
      if constexpr (RandomElement<Master> || RandomElement<State>) {
        update(rule, scalars, 0.5f, arrays, step);
      } else {
        update(rule,
               scalars,
               0.5f,
               static_cast<zero::UpdateArrays<Master, Parameter, bf16, State, 2> const&>(arrays));
      }
    }));
    state.SetIterationTime(updates.back());
  }
  state.counters["vs_same_traffic"] = median_ratio(traffics, updates);
  state.counters["best_vs_same_traffic"] = best_ratio(traffics, updates);
  state.counters["ns_per_element"] = median(updates) * 1e9 / elements;
}

/// AdamW with moments of 8 bits, beside AdamW of as many elements: both with masters and gradients
/// in fp32, one after the other, on one thread.
inline void eight_bits(benchmark::State& state) {
  using Code = zero::kernel::RootState<true, false>;
  constexpr std::size_t elements = std::size_t{32} << 20;
  std::uint64_t const seed = 1;
  std::array<std::vector<float>, 5> full;
  for (auto& array : full) array.resize(elements);
  std::vector<float>& gradient = full[0];
  for (std::size_t i = 0; i < elements; ++i) {
    gradient[i] = static_cast<float>(i % 777) * 0x1p-12f - 0.1f;
  }
  std::array<std::vector<Code>, 2> codes;
  std::array<std::vector<std::uint8_t>, 2> scales;
  for (auto& array : codes) array.resize(elements);
  for (auto& array : scales) array.resize(elements / zero::kernel::root_group);
  zero::UpdateArrays<float, float, float, float, 2> whole;
  whole.master = full[1].data();
  whole.gradient = gradient.data();
  whole.state = {full[2].data(), full[3].data()};
  whole.count = elements;
  zero::CodedUpdateArrays<float, float, float, Code, 2> coded;
  coded.master = full[4].data();
  coded.gradient = gradient.data();
  coded.state = {codes[0].data(), codes[1].data()};
  coded.count = elements;
  coded.random = {.key = 1, .first = 0, .seed = &seed};
  coded.scales = {scales[0].data(), scales[1].data()};
  std::vector<double> of_full, of_coded;
  long step = 0;
  for (auto _ : state) {
    auto const scalars = zero::AdamW().scalars(++step, 1e-3f, 1.f, 1.f);
    double const start = seconds_now();
    zero::kernel::update(zero::AdamW(), scalars, 0.5f, whole);
    double const middle = seconds_now();
    zero::kernel::update(zero::AdamW8bit(), scalars, 0.5f, coded, step);
    of_full.push_back(middle - start);
    of_coded.push_back(seconds_now() - middle);
    state.SetIterationTime(of_coded.back());
  }
  state.counters["vs_fp32"] = median_ratio(of_coded, of_full);
  state.counters["best_vs_fp32"] = best_ratio(of_coded, of_full);
  state.counters["ns_per_element"] = median(of_coded) * 1e9 / elements;
}

}  // namespace bench
