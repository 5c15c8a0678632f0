/// How the time of a step grows with the number of tensors, and with how many of them a unit has.
///
/// Tensors have eight elements, which AdamW updates on one rank, so that the time is that of names,
/// addresses and tables. `grows` compares so many tensors with a tenth of them: `per_doubling` is
/// by how much the time of a step grows when their number doubles; the goal is 2.2. `one_unit`
/// compares 40,000 tensors in one unit with the same in units of ten: the goal is 1.5 for those
/// that are looked up by name. Both runs are measured alternately, and the fastest step of each
/// counts, in time of the processor.
///
/// `raw` is the baseline without a library: it looks every name up in a std::unordered_map, or
/// sorts the addresses that are lent, and updates plain arrays. What grows faster to 100,000
/// tensors than to 10,000 there, too, does so because caches no longer hold the arrays.
#include <zero/zero.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <ctime>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t elements = 8;

std::vector<zero::Tensor> describe(std::size_t count, std::size_t each) {
  std::vector<zero::Tensor> model;
  for (std::size_t t = 0; t < count; ++t) {
    model.push_back(
        {.name = "block." + std::to_string(t / 10) + ".weight." + std::to_string(t % 10),
         .shape = {elements},
         .unit = static_cast<int>(t / each)});
  }
  return model;
}

void add_to(std::span<float> gradient, std::span<float const> values) {
  for (std::size_t i = 0; i < elements; ++i) gradient[i] += values[i] + 1.f;
}

/// The library's memory: a trainer looks every tensor up by name, or says that it is absent.
class Owned {
 public:
  Owned(std::size_t count, std::size_t each, bool with_absent)
      : optimizer_(comm_, describe(count, each)), each_(each), with_absent_(with_absent) {
    optimizer_.adopt_parameters();
  }
  void step() {
    std::vector<zero::Tensor> const& model = optimizer_.tensors();
    for (int const unit : optimizer_.units_backward()) {
      auto const parameters = optimizer_.parameters(unit);
      auto gradients = optimizer_.gradients(unit);
      std::size_t const first = static_cast<std::size_t>(unit) * each_;
      for (std::size_t t = first; t < std::min(first + each_, model.size()); ++t) {
        if (with_absent_ && t % 4 == 0) {
          optimizer_.without_gradient(model[t]);
        } else {
          add_to(gradients[model[t].name], parameters[model[t].name]);
        }
      }
      optimizer_.reduce(std::move(gradients));
    }
    optimizer_.step();
  }

 private:
  zero::Self comm_;
  zero::ShardedOptimizer<zero::Self> optimizer_;
  std::size_t each_;
  bool with_absent_;
};

/// Memory of a trainer, with room between tensors: at ascending addresses, as most allocators give
/// it, or shuffled.
struct Memory {
  std::vector<float> values, slopes;
  std::vector<std::span<float>> parameters, gradients;
  std::vector<std::size_t> order;

  Memory(std::size_t count, bool shuffled) : values(12 * count, 0.5f), slopes(12 * count, 1.f) {
    order.resize(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (shuffled) std::shuffle(order.begin(), order.end(), std::mt19937(1));
    for (std::size_t const at : order) {
      parameters.push_back(std::span(values).subspan(12 * at, elements));
      gradients.push_back(std::span(slopes).subspan(12 * at, elements));
    }
  }
};

/// Such memory, lent unit by unit in every step, or all of it anew by one call.
class Lent {
 public:
  Lent(std::size_t count, std::size_t each, bool shuffled, bool at_once)
      : memory_(count, shuffled),
        optimizer_(comm_, describe(count, each), zero::Borrowed<>{}),
        each_(each),
        at_once_(at_once) {
    optimizer_.bind(memory_.parameters, memory_.gradients);
    optimizer_.adopt_parameters();
    if (!at_once) optimizer_.bind_parameters(memory_.parameters);
  }
  void step() {
    if (at_once_) {
      optimizer_.bind(memory_.parameters, memory_.gradients);
      optimizer_.reduce_all();
    } else {
      std::span<std::span<float> const> const gradients = memory_.gradients;
      for (int const unit : optimizer_.units_backward()) {
        std::size_t const first = static_cast<std::size_t>(unit) * each_;
        std::size_t const count = std::min(each_, gradients.size() - first);
        optimizer_.bind_gradients(unit, gradients.subspan(first, count));
        optimizer_.reduce(optimizer_.gradients(unit));
      }
    }
    optimizer_.step();
  }

 private:
  Memory memory_;
  zero::Self comm_;
  zero::ShardedOptimizer<zero::Self, zero::stage::PosG, zero::Fp32, zero::AdamW, zero::Borrowed<>>
      optimizer_;
  std::size_t each_;
  bool at_once_;
};

/// No library.
class Raw {
 public:
  Raw(std::size_t count, std::size_t, bool named, bool shuffled)
      : memory_(count, shuffled),
        master_(elements * count),
        first_(elements * count),
        second_(elements * count),
        named_(named) {
    for (std::size_t t = 0; t < count; ++t) {
      names_.push_back("block." + std::to_string(t / 10) + ".weight." + std::to_string(t % 10));
      index_[names_.back()] = t;
    }
  }
  void step() {
    if (named_) {
      for (std::string const& name : names_) {
        add_to(memory_.gradients[index_.find(name)->second],
               memory_.parameters[index_.find(name)->second]);
      }
    } else {
      // This is how two tensors that overlap are found.
      std::sort(memory_.order.begin(), memory_.order.end(), [&](std::size_t a, std::size_t b) {
        return memory_.gradients[a].data() < memory_.gradients[b].data();
      });
      for (std::size_t i = 1; i < memory_.order.size(); ++i) {
        auto const& before = memory_.gradients[memory_.order[i - 1]];
        benchmark::DoNotOptimize(before.data() + elements <=
                                 memory_.gradients[memory_.order[i]].data());
      }
      std::shuffle(memory_.order.begin(), memory_.order.end(), random_);
    }
    double squares = 0;
    for (auto const& gradient : memory_.gradients) {
      for (float const x : gradient) squares += double{x} * x;
    }
    benchmark::DoNotOptimize(squares);
    for (std::size_t t = 0; t < memory_.gradients.size(); ++t) {
      for (std::size_t i = 0; i < elements; ++i) {
        float& slope = memory_.gradients[t][i];
        std::size_t const at = elements * t + i;
        first_[at] += 0.1f * (slope - first_[at]);
        second_[at] += 0.001f * (slope * slope - second_[at]);
        master_[at] -=
            1e-3f * (first_[at] / (std::sqrt(second_[at]) + 1e-8f) + 0.01f * master_[at]);
        memory_.parameters[t][i] = master_[at];
        if (named_) slope = 0;
      }
    }
  }

 private:
  Memory memory_;
  std::vector<float> master_, first_, second_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::size_t> index_;
  std::mt19937 random_{1};
  bool named_;
};

double seconds_of_step(auto& job) {
  std::clock_t const begin = std::clock();
  job.step();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

/// Measures both alternately.
/// @returns the fastest step of the other over that of the one
double compare(benchmark::State& state, auto& one, auto& other) {
  double fastest[] = {1e9, 1e9};
  for (auto _ : state) {
    double const seconds[] = {seconds_of_step(one), seconds_of_step(other)};
    for (int i = 0; i < 2; ++i) fastest[i] = std::min(fastest[i], seconds[i]);
    state.SetIterationTime(seconds[1]);
  }
  state.counters["ms"] = 1e3 * fastest[1];
  return fastest[1] / fastest[0];
}

/// @param few      tensors; there are ten times as many in the other run
/// @param in_unit  tensors of a unit; 0: all
template <class Job, class... Options>
void grows(benchmark::State& state, std::size_t few, std::size_t in_unit, Options... options) {
  std::size_t const many = 10 * few;
  auto const one = std::make_unique<Job>(few, in_unit == 0 ? few : in_unit, options...);
  auto const other = std::make_unique<Job>(many, in_unit == 0 ? many : in_unit, options...);
  state.counters["per_doubling"] = std::pow(compare(state, *one, *other), 1 / std::log2(10.));
}

template <class Job, class... Options>
void in_one_unit(benchmark::State& state, Options... options) {
  auto const units_of_ten = std::make_unique<Job>(40'000, 10, options...);
  auto const one = std::make_unique<Job>(40'000, 40'000, options...);
  state.counters["over_units_of_ten"] = compare(state, *units_of_ten, *one);
}

template <class Run>
void add_row(std::string const& name, Run run) {
  benchmark::RegisterBenchmark(name.c_str(), run)
      ->UseManualTime()
      ->Iterations(15)
      ->Unit(benchmark::kMillisecond);
}

template <class Job, class... Options>
void add_growth(std::string const& name, std::size_t in_unit, Options... options) {
  for (std::size_t const few : {std::size_t{1'000}, std::size_t{10'000}}) {
    add_row("grows/" + name + "/tensors:" + std::to_string(10 * few),
            [=](benchmark::State& state) { grows<Job>(state, few, in_unit, options...); });
  }
}

template <class Job, class... Options>
void add(std::string const& name, Options... options) {
  add_growth<Job>(name + "/units_of_one", 1, options...);
  add_growth<Job>(name + "/one_unit", 0, options...);
  add_row("one_unit/" + name,
          [=](benchmark::State& state) { in_one_unit<Job>(state, options...); });
}

int const registered = [] {
  add<Owned>("named", false);
  add<Owned>("absent", true);
  for (bool const shuffled : {false, true}) {
    std::string const order = shuffled ? "_shuffled" : "";
    add<Lent>("lent" + order, shuffled, false);
    add<Lent>("bound" + order, shuffled, true);
    add_growth<Raw>("raw_named" + order, 0, true, shuffled);
    add_growth<Raw>("raw_bound" + order, 0, false, shuffled);
  }
  return 0;
}();

}  // namespace
