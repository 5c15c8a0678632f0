#include "reference.hpp"

#include "support/standard.hpp"

// What is fused is spelled out. nvcc does not know the pragma; it is told by an option.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__) && !defined(__NVCC__)
#pragma GCC optimize("fp-contract=off")
#endif

namespace differential {

/// As a sum with a number whose last bit is that of the result.
float rounded(Number number, float x) {
  if (number == Number::fp32 || !std::isfinite(x)) return x;
  bool const is_bf16 = number != Number::fp16;
  int const digits = is_bf16 ? 8 : 11;
  int const least = is_bf16 ? -133 : -24;
  double const largest = is_bf16 ? 0x1.fep127 : 65504.;
  auto const wide = static_cast<double>(x);
  auto const biased = static_cast<int>(std::bit_cast<std::uint64_t>(wide) >> 52 & 0x7ff);
  int const last = std::max(biased - 1023 - (digits - 1), least);
  bool const away = number == Number::bf16_away || number == Number::bf16_rest;
  auto const magic = std::bit_cast<double>(static_cast<std::uint64_t>(last + 52 + 1023) << 52 |
                                           std::uint64_t{1} << 51);
  double result = (wide + magic) - magic;
  if (away) result = std::floor(std::ldexp(std::fabs(wide), -last) + 0.5) * std::ldexp(1., last);
  if (std::fabs(result) > largest) result = std::numeric_limits<double>::infinity();
  return static_cast<float>(std::copysign(result, wide));
}

namespace {

using Tensors = std::vector<std::vector<float>>;

float mul_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return std::fma(a, b, c);
#else
  float const product = a * b;
  return product + c;
#endif
}

/// The sum of numbers, rounded once: what is left over from each addition is added as well.
/// Shewchuk's partial sums, rounded as Python's math.fsum does.
class Sum {
 public:
  void add(double x) {
    std::size_t kept = 0;
    for (double y : partials_) {
      if (std::fabs(x) < std::fabs(y)) std::swap(x, y);
      double const high = x + y;
      double const low = y - (high - x);
      if (low != 0.) partials_[kept++] = low;
      x = high;
    }
    partials_.resize(kept);
    partials_.push_back(x);
  }
  [[nodiscard]] double value() const {
    std::size_t i = partials_.size();
    if (i == 0) return 0.;
    double high = partials_[--i];
    double low = 0.;
    while (i > 0 && low == 0.) {
      double const x = high;
      double const y = partials_[--i];
      high = x + y;
      low = y - (high - x);
    }
    // Half of the last bit, and more below it: the tie was none.
    if (i > 0 && ((low < 0. && partials_[i - 1] < 0.) || (low > 0. && partials_[i - 1] > 0.))) {
      double const twice = 2. * low;
      double const other = high + twice;
      if (twice == other - high) return other;
    }
    return high;
  }

 private:
  std::vector<double> partials_;
};

double power(double base, long n) {
  double result = 1.;
  for (; n > 0; n /= 2, base *= base) {
    if (n % 2 != 0) result *= base;
  }
  return result;
}

/// One rule in one step, for one tensor.
class Updater {
 public:
  Updater(Rule rule, Hyper const& hyper, long step, float rate, TensorCase const& tensor)
      : rule_(rule),
        nesterov_(hyper.nesterov),
        momentum_(hyper.momentum),
        rate_(rate * tensor.learning_rate),
        decay_(hyper.weight_decay * tensor.weight_decay),
        eps_(hyper.eps),
        beta1_(static_cast<float>(hyper.beta1)),
        rest1_(static_cast<float>(1. - hyper.beta1)),
        beta2_(static_cast<float>(hyper.beta2)),
        rest2_(static_cast<float>(1. - hyper.beta2)) {
    if (rule == Rule::adagrad) {
      double const slowdown =
          1. + static_cast<double>(step - 1) * static_cast<double>(hyper.lr_decay);
      rate_ = static_cast<float>(static_cast<double>(rate_) / slowdown);
    }
    double const root = std::sqrt(1. - power(hyper.beta2, step));
    double const rate_then = rule == Rule::lamb ? 1. : static_cast<double>(rate_);
    double const corrected = rate_then * root / (1. - power(hyper.beta1, step));
    step_size_ = static_cast<float>(corrected);
    floor_ = static_cast<float>(static_cast<double>(hyper.eps) * root);
  }

  static std::size_t states(Rule rule) {
    constexpr std::size_t counts[] = {0, 1, 1, 2, 2, 1, 3, 2};
    return counts[static_cast<std::size_t>(rule)];
  }

  /// @param s  the state arrays' elements
  void operator()(float& p, float g, float* s) const {
    bool const decays_gradient = rule_ != Rule::adamw && rule_ != Rule::lion && rule_ != Rule::lamb;
    if (decays_gradient) g = mul_add(decay_, p, g);
    switch (rule_) {
      case Rule::plain_sgd: p = mul_add(-rate_, g, p); break;
      case Rule::sgd:
        s[0] = mul_add(momentum_, s[0], g);
        p = mul_add(-rate_, nesterov_ ? mul_add(momentum_, s[0], g) : s[0], p);
        break;
      case Rule::adagrad:
        s[0] = mul_add(g, g, s[0]);
        p = mul_add(-rate_, g / (std::sqrt(s[0]) + eps_), p);
        break;
      case Rule::adamw: p = mul_add(-(rate_ * decay_), p, p); [[fallthrough]];
      case Rule::adam:
        s[0] = mul_add(beta1_, s[0], rest1_ * g);
        s[1] = mul_add(beta2_, s[1], (rest2_ * g) * g);
        p = mul_add(-step_size_, s[0] / (std::sqrt(s[1]) + floor_), p);
        break;
      case Rule::lamb: p = mul_add(-rate_, direction(p, g, s), p); break;
      case Rule::lion: {
        float const direction = mul_add(beta1_, s[0], rest1_ * g);
        float const sign = direction > 0.f ? 1.f : direction < 0.f ? -1.f : direction;
        p = mul_add(-(rate_ * decay_), p, p);
        p = mul_add(-rate_, sign, p);
        s[0] = mul_add(beta2_, s[0], rest2_ * g);
        break;
      }
      case Rule::rms_prop:
        s[0] = mul_add(beta2_, s[0], (rest2_ * g) * g);
        s[2] = mul_add(beta2_, s[2], rest2_ * g);
        // Where that is not a number, 0.
        g /= std::sqrt(std::max(0.f, mul_add(-s[2], s[2], s[0]))) + eps_;
        s[1] = mul_add(momentum_, s[1], g);
        p = mul_add(-rate_, s[1], p);
        break;
    }
  }

  /// LAMB's, with moments that it moves.
  float direction(float p, float g, float* s) const {
    s[0] = mul_add(beta1_, s[0], rest1_ * g);
    s[1] = mul_add(beta2_, s[1], (rest2_ * g) * g);
    return mul_add(decay_, p, step_size_ * s[0] / (std::sqrt(s[1]) + floor_));
  }
  /// Multiplies the rate by the ratio of two norms.
  void adapt(double parameters, double directions) {
    if (parameters == 0. || directions == 0.) return;
    double const rate = static_cast<double>(rate_) * (parameters / directions);
    double const most = std::numeric_limits<float>::max();
    rate_ = static_cast<float>(rate > most ? most : rate);
  }

 private:
  Rule rule_;
  bool nesterov_;
  float momentum_, rate_, decay_, eps_, beta1_, rest1_, beta2_, rest2_;
  float step_size_ = 0.f, floor_ = 0.f;
};

/// Where tensors begin in the element space in which the norm counts its blocks; tied and frozen
/// ones have no place.
std::vector<std::size_t> places(Case const& test) {
  std::vector<std::vector<int>> users(test.tensors.size());
  std::vector<std::size_t> order;
  for (std::size_t t = 0; t < test.tensors.size(); ++t) {
    users[test.storage(t)].push_back(test.tensors[t].unit);
    if (test.storage(t) == t && test.trained(t)) order.push_back(t);
  }
  for (auto& units : users) {
    std::sort(units.begin(), units.end());
    units.erase(std::unique(units.begin(), units.end()), units.end());
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    auto const key = [&](std::size_t t) {
      bool const alone = users[t].size() == 1;
      return std::tuple(test.wide(t), test.tensors[t].unit, alone, users[t]);
    };
    return key(a) < key(b);
  });
  std::vector<std::size_t> result(test.tensors.size(), 0);
  std::size_t end = 0;
  std::optional<std::size_t> before;
  for (std::size_t const t : order) {
    bool const follows = before && users[*before] == users[t] && test.wide(*before) == test.wide(t);
    std::size_t const step = follows ? 32 : 512;
    result[t] = (end + step - 1) / step * step;
    end = result[t] + test.tensors[t].count;
    before = t;
  }
  return result;
}

class Reference {
 public:
  explicit Reference(Case const& test)
      : test_(test),
        places_(places(test)),
        hyper_(test.hyper),
        of_groups_(most_groups + 1),
        of_tensors_(test.tensors.size()),
        loss_scale_(scaled() ? test.scale.initial : 1.f),
        missed_(test.tensors.size(), 0) {
    std::size_t const count = test.tensors.size();
    model_.parameters.resize(count);
    model_.masters.resize(count);
    model_.states.assign(Updater::states(test.policies.rule), Tensors(count));
    for (std::size_t t = 0; t < count; ++t) {
      if (test.storage(t) != t) continue;
      model_.parameters[t].resize(test.tensors[t].count);
      if (!test.trained(t)) continue;
      model_.masters[t].resize(test.tensors[t].count);
      for (Tensors& array : model_.states) array[t].resize(test.tensors[t].count);
    }
  }

  /// @param loaded  a checkpoint that is loaded before it; or null
  ExpectedStep step(int number, Loaded const* loaded) {
    StepPlan const plan = plan_step(test_, number);
    if (plan.load != Load::none) load(plan);
    for (Change const& change : plan.changes) apply(change);
    bool const all = loaded != nullptr && resume(*loaded);
    ExpectedStep expected{.before = model_, .loads_all = all, .after = {}, .report = {}};
    Tensors const sums = reduce_step(plan);
    Report& report = expected.report;
    report.loss_scale = loss_scale_;
    report.weight = weight_of(plan);
    bool const finite = is_finite(sums);
    double const divisor = report.weight * static_cast<double>(loss_scale_);
    report.grad_norm = finite ? norm_of(sums) / divisor : std::numeric_limits<double>::infinity();
    if (plan.call != Call::discard) {
      bool const failed_before = failed_;
      decide(plan, finite, report);
      expected.blames =
          failed_ && !failed_before && !finite && !scaled() && plan.call != Call::enqueue;
      expected.updates = !report.skipped;
      if (expected.updates) update(plan, sums, report);
      if (plan.call != Call::enqueue || plan.reports)
        expected.fails = std::exchange(failed_, false);
    }
    report.step = steps_;
    expected.next_loss_scale = loss_scale_;
    expected.streak = clean_ - at_minimum_;
    expected.after = model_;
    for (long const missed : missed_) expected.steps.push_back(steps_ - missed);
    return expected;
  }

 private:
  /// What trainers round to, who write parameters: half to even.
  [[nodiscard]] Number written(std::size_t t) const {
    return test_.number(t) > Number::bf16_wide ? Number::bf16 : test_.number(t);
  }
  [[nodiscard]] Number wire(std::size_t t) const {
    return test_.number(t) == Number::bf16_wide ? Number::fp32 : written(t);
  }
  [[nodiscard]] bool scaled() const { return test_.policies.number == Number::fp16; }
  [[nodiscard]] bool owns_gradients(std::size_t t) const {
    return test_.storage(t) == t && test_.trained(t);
  }

  /// The hyper-parameters of its own that a tensor has, or its group.
  [[nodiscard]] std::optional<Hyper> own(std::size_t t) const {
    if (auto const& single = of_tensors_[test_.storage(t)]) return single;
    int const group = test_.tensors[t].group;
    return group > 0 ? of_groups_[static_cast<std::size_t>(group)] : std::nullopt;
  }
  void apply(Change const& change) {
    auto const set = [&](Hyper const& before) {
      Hyper now = change.hyper;
      if (change.rate_only) {
        now = before;
        now.lr = change.hyper.lr;
      }
      return now;
    };
    if (change.tensor) {
      of_tensors_[test_.storage(*change.tensor)] = set(own(*change.tensor).value_or(hyper_));
    } else if (change.group > 0) {
      auto& group = of_groups_[static_cast<std::size_t>(change.group)];
      group = set(group.value_or(hyper_));
    } else {
      hyper_ = set(hyper_);
    }
  }

  void load(StepPlan const& plan) {
    for (std::size_t t = 0; t < test_.tensors.size(); ++t) {
      auto& parameters = model_.parameters[t];
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        float const loaded = value(test_, plan.number, t, i);
        bool const keeps = plan.load == Load::adopted && plan.number > 0;
        bool const exact = plan.load <= Load::broadcast;
        if (!keeps) parameters[i] = rounded(exact ? test_.number(t) : written(t), loaded);
        if (!model_.masters[t].empty()) {
          model_.masters[t][i] = exact ? loaded : parameters[i];
        }
      }
    }
  }

  /// @returns whether all tensors of numbers, or all of bytes, got their values
  bool resume(Loaded const& loaded) {
    bool any[2] = {};
    bool missing[2] = {};
    if (loaded.counts) steps_ = loaded.step;
    if (loaded.counts && loaded.loss_scale) {
      loss_scale_ = *loaded.loss_scale;
      clean_ = std::max(loaded.streak, 0);
      at_minimum_ = std::max(-loaded.streak, 0);
    }
    for (std::size_t t = 0; t < test_.tensors.size(); ++t) {
      LoadedTensor const& own = loaded.tensors[test_.storage(t)];
      // What lies in lent memory, and is not trained, needs none.
      bool const needs =
          test_.tensors[t].count > 0 && (test_.trained(t) || !test_.policies.borrowed);
      any[test_.bytes(t)] = true;
      missing[test_.bytes(t)] = missing[test_.bytes(t)] || (needs && !own.values);
      if (loaded.counts) missed_[t] = steps_ - own.count;
      if (test_.storage(t) != t) continue;
      for (std::size_t i = 0; own.values && i < own.values->size(); ++i) {
        float const value = (*own.values)[i];
        model_.parameters[t][i] = rounded(test_.number(t), value);
        if (test_.trained(t)) model_.masters[t][i] = value;
      }
      for (std::size_t k = 0; loaded.counts && k < model_.states.size(); ++k) {
        auto& state = model_.states[k][t];
        state = own.states ? (*own.states)[k] : std::vector<float>(state.size());
      }
    }
    return (any[0] && !missing[0]) || (any[1] && !missing[1]);
  }

  /// What a rank leaves in its gradients after micro-steps [first, last).
  [[nodiscard]] Tensors local(StepPlan const& plan, int rank, int first, int last) const {
    Tensors sums(test_.tensors.size());
    for (std::size_t t = 0; t < sums.size(); ++t) {
      if (owns_gradients(t)) sums[t].assign(test_.tensors[t].count, 0.f);
    }
    for (int micro = first; micro < last; ++micro) {
      auto const add = [&](std::size_t t, int use) {
        if (!test_.trained(t)) return;
        Gradient const gradient(test_, plan, micro, rank, t, use);
        auto& to = sums[test_.storage(t)];
        for (std::size_t i = 0; i < to.size(); ++i) {
          float const brought = gradient(i) * loss_scale_;
          to[i] = rounded(wire(t), to[i] + brought);
        }
      };
      Pass const pass = plan_pass(test_, plan, micro, rank);
      for (std::size_t t = 0; pass.directly && t < sums.size(); ++t) add(t, 0);
      for (Visit const& visit : pass.backward) {
        for (int use = 1; use <= visit.adds; ++use) {
          for (std::size_t t = sums.size(); t-- > 0;) {
            bool const absent = std::ranges::count(visit.absent, t) > 0;
            if (test_.tensors[t].unit == visit.unit && !absent) add(t, use);
          }
        }
      }
    }
    return sums;
  }

  /// Ranks in order in fp32, then rounded once.
  [[nodiscard]] Tensors reduce(StepPlan const& plan, int first, int last) const {
    Tensors sums = local(plan, 0, first, last);
    for (int rank = 1; rank < test_.ranks; ++rank) {
      Tensors const next = local(plan, rank, first, last);
      for (std::size_t t = 0; t < sums.size(); ++t) {
        for (std::size_t i = 0; i < sums[t].size(); ++i) sums[t][i] += next[t][i];
      }
    }
    for (std::size_t t = 0; t < sums.size(); ++t) {
      for (float& sum : sums[t]) sum = rounded(wire(t), sum);
    }
    return sums;
  }

  [[nodiscard]] Tensors reduce_step(StepPlan const& plan) const {
    if (test_.policies.accumulation != Accumulation::shard) return reduce(plan, 0, plan.passes());
    Tensors sums = reduce(plan, 0, 1);
    for (int micro = 1; micro < plan.passes(); ++micro) {
      Tensors const next = reduce(plan, micro, micro + 1);
      for (std::size_t t = 0; t < sums.size(); ++t) {
        for (std::size_t i = 0; i < sums[t].size(); ++i) sums[t][i] += next[t][i];
      }
    }
    return sums;
  }

  /// Each rank adds up its own, then all are added at once.
  [[nodiscard]] double weight_of(StepPlan const& plan) const {
    Sum total;
    for (int rank = 0; rank < test_.ranks; ++rank) {
      double own = 0.;
      for (int micro = 0; micro < plan.passes(); ++micro) {
        own += plan_pass(test_, plan, micro, rank).weight;
      }
      total.add(own);
    }
    return total.value();
  }

  static bool is_finite(Tensors const& sums) {
    for (auto const& tensor : sums) {
      for (float const sum : tensor) {
        if (!std::isfinite(sum)) return false;
      }
    }
    return true;
  }

  [[nodiscard]] double norm_of(Tensors const& sums) const {
    std::vector<double> space;
    for (std::size_t t = 0; t < sums.size(); ++t) {
      if (sums[t].empty()) continue;
      space.resize(std::max(space.size(), places_[t] + sums[t].size()), 0.);
      std::copy(
          sums[t].begin(), sums[t].end(), space.begin() + static_cast<std::ptrdiff_t>(places_[t]));
    }
    Sum total;
    for (std::size_t begin = 0; begin < space.size(); begin += 512) {
      double lanes[8] = {};
      for (std::size_t i = begin; i < std::min(begin + 512, space.size()); ++i) {
        lanes[i % 8] += space[i] * space[i];
      }
      total.add(((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
                ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7])));
    }
    return std::sqrt(total.value());
  }

  /// Skipped, failed or updated, and what becomes of the loss scale.
  void decide(StepPlan const& plan, bool finite, Report& report) {
    report.clip_coefficient = plan.max_norm && report.grad_norm > *plan.max_norm
                                  ? *plan.max_norm / report.grad_norm
                                  : plan.scale;
    bool const waits = failed_;  // for a report of an earlier failure
    report.skipped = waits || !finite || report.weight == 0.;
    if (waits) return;
    if (!report.skipped) {
      steps_before_ = std::exchange(steps_, plan.count.value_or(steps_ + 1));
      if (scaled()) keep_scale();
    } else if (finite) {
      failed_ = true;
    } else if (scaled()) {
      failed_ = reduce_scale();
    } else {
      failed_ = !plan.skips;
    }
  }

  void keep_scale() {
    at_minimum_ = 0;
    if (++clean_ < test_.scale.growth_interval) return;
    clean_ = 0;
    float const grown = loss_scale_ * test_.scale.growth;
    if (grown < 0x1p126f) loss_scale_ = grown;
  }
  /// Is that of no use any more?
  bool reduce_scale() {
    clean_ = 0;
    if (loss_scale_ > test_.scale.minimum) {
      loss_scale_ = std::max(loss_scale_ * test_.scale.backoff, test_.scale.minimum);
      at_minimum_ = 0;
      return false;
    }
    if (++at_minimum_ < test_.scale.patience) return false;
    at_minimum_ = 0;
    return true;
  }

  void update(StepPlan const& plan, Tensors const& sums, Report& report) {
    auto const factor = static_cast<float>(
        report.clip_coefficient / (report.weight * static_cast<double>(report.loss_scale)));
    for (std::size_t t = 0; t < sums.size(); ++t) {
      long& missed = missed_[t];
      if (owns_gradients(t) && rests(test_, plan, t)) {
        missed = std::max(0L, missed + steps_ - steps_before_);
        continue;
      }
      if (plan.count) missed = 0;
      if (!owns_gradients(t)) continue;
      report.updated += sums[t].empty() ? 0 : 1;
      auto const single = own(t);
      Updater updater(test_.policies.rule,
                      single.value_or(hyper_),
                      steps_ - missed,
                      single ? single->lr : plan.learning_rate.value_or(hyper_.lr),
                      test_.tensors[t]);
      if (test_.policies.rule == Rule::lamb) measure(t, sums[t], factor, updater);
      for (std::size_t i = 0; i < sums[t].size(); ++i) {
        float states[3] = {};
        for (std::size_t k = 0; k < model_.states.size(); ++k) states[k] = model_.states[k][t][i];
        float const g = sums[t][i] * factor;
        updater(model_.masters[t][i], g, states);
        for (std::size_t k = 0; k < model_.states.size(); ++k) model_.states[k][t][i] = states[k];
        model_.parameters[t][i] = rounded(test_.number(t), model_.masters[t][i]);
      }
    }
  }

  /// Norms of a whole tensor, in blocks of 32 elements.
  void measure(std::size_t t, std::vector<float> const& sums, float factor, Updater& updater) {
    std::vector<float> numbers[2];
    for (std::size_t i = 0; i < sums.size(); ++i) {
      float states[] = {model_.states[0][t][i], model_.states[1][t][i]};
      float const p = model_.masters[t][i];
      numbers[0].push_back(p);
      numbers[1].push_back(updater.direction(p, sums[i] * factor, states));
    }
    double norms[2];
    for (int k = 0; k < 2; ++k) {
      Sum total;
      bool finite = true;
      for (std::size_t first = 0; first < sums.size(); first += 32) {
        double lanes[8] = {};
        for (std::size_t i = first; i < std::min(first + 32, sums.size()); ++i) {
          double const number = static_cast<double>(numbers[k][i]);
          lanes[i % 8] += number * number;
        }
        double const sum = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
                           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
        finite = finite && std::isfinite(sum);
        if (finite) total.add(sum);
      }
      norms[k] = finite ? std::sqrt(total.value()) : std::numeric_limits<double>::quiet_NaN();
    }
    updater.adapt(norms[0], norms[1]);
  }

  Case const& test_;
  std::vector<std::size_t> places_;
  Hyper hyper_;  ///< of tensors that have none of their own
  std::vector<std::optional<Hyper>> of_groups_;
  std::vector<std::optional<Hyper>> of_tensors_;
  Model model_;
  float loss_scale_;
  int clean_ = 0;
  int at_minimum_ = 0;
  long steps_ = 0;
  long steps_before_ = 0;
  std::vector<long> missed_;  ///< updates, by tensor
  bool failed_ = false;
};

}  // namespace

std::vector<ExpectedStep> expect(Case const& test, Loaded const* loaded) {
  Reference reference(test);
  std::vector<ExpectedStep> steps;
  for (int step = 0; step < test.steps; ++step) {
    bool const here = loaded != nullptr && loaded->before == step;
    steps.push_back(reference.step(step, here ? loaded : nullptr));
  }
  return steps;
}

}  // namespace differential
