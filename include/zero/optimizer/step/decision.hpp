/// @file
/// What all ranks must know before any of them updates, and how it is decided: in the memory of the
/// space, so that a device needs nothing from its host in between.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/base/hash.hpp"
#include "zero/base/number.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/space.hpp"
#include "zero/precision/loss_scale.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Why a step ended with an error instead of an update.
enum class StepFailure : std::int32_t {
  none,
  not_finite,
  no_weight,
  options_differ,
  units_differ,
  scale_exhausted,
  learning_rate,
};

/// What a host reads of a step.
struct StepOutcome {
  StepTerms terms{};
  StepFailure failure = StepFailure::none;  ///< of the first step that failed and was not reported
  std::int32_t differ = 0;                  ///< not 0 if ranks were told different options
  std::int32_t stop = 0;                    ///< not 0 if some rank asked for the run to end
};

/// The few words of one rank's steps that lie in the memory of its space.
struct StepControl {
  /// What ranks add up: squares, weights, ...
  static constexpr std::size_t word_count = 2 * ExactSum::word_count + 3;
  /// ... ranks with a failure that was not reported (and, above `stop_shift`, ranks that ask for
  /// the run to end; after the exchange no more), ...
  static constexpr std::size_t failed_word = 2 * ExactSum::word_count;
  static constexpr int stop_shift = 32;
  /// ... digests of options, ...
  static constexpr std::size_t options_word = failed_word + 1;
  /// ... and of the tensors about whose gradients nothing was said; after the exchange, whether
  /// they differ. Behind these words lie those of `TensorCounts`, which travel with them.
  static constexpr std::size_t unsaid_word = options_word + 1;

  ExactSum squares{};        ///< of this rank's reduced gradients; all bits zero before the first
  std::int64_t brought = 0;  ///< what this rank added to the word of options
  std::int64_t unsaid = 0;   ///< and to that of tensors
  LossScale loss_scale{};
  StepOutcome outcome{};
  /// Terms of a tensor that has rested, for its update; before that, those of the step before.
  StepTerms own{};
  std::int64_t words[word_count] = {};

  /// What rules compute of the terms, for as many combinations of a rule and scales, and behind
  /// them for one update at a time ...
  static constexpr std::size_t rates = failed_word * sizeof(std::int64_t) / sizeof(StepScalars) - 1;
  /// ... where sums of squares and weights were, which nobody reads once a step is decided.
  [[nodiscard]] StepScalars* scalars() noexcept { return reinterpret_cast<StepScalars*>(words); }
};
static_assert(std::is_trivially_copyable_v<StepControl>);
static_assert(offsetof(StepControl, words) % alignof(StepScalars) == 0);
static_assert(offsetof(StepControl, words) + sizeof(StepControl::words) == sizeof(StepControl));

/// What lies behind a `StepControl` for each tensor: on how many ranks it has a gradient in this
/// step, and how many of the run's updates it has missed. The first travels with a step's words.
struct TensorCounts {
  static constexpr int bits = 21;  ///< of a count of ranks, up to two million of them
  static constexpr std::size_t per_word = 3;
  static constexpr std::uint64_t bytes_of_three = (1 + per_word) * sizeof(std::int64_t);

  std::int64_t* words = nullptr;   ///< in the memory of the space
  std::int64_t* missed = nullptr;  ///< likewise; one of each tensor
  std::size_t tensors = 0;

  TensorCounts() = default;
  TensorCounts(StepControl* control, std::size_t count)
      : words(reinterpret_cast<std::int64_t*>(control + 1)),
        missed(words + word_count(count)),
        tensors(count) {}

  [[nodiscard]] static constexpr std::size_t word_count(std::size_t tensors) noexcept {
    return (tensors + per_word - 1) / per_word;
  }
  [[nodiscard]] ZERO_HOST_DEVICE std::int64_t ranks(std::size_t tensor) const noexcept {
    return words[tensor / per_word] >> (bits * static_cast<int>(tensor % per_word)) &
           ((std::int64_t{1} << bits) - 1);
  }
};

/// A bit for each of some tensors, as an argument of what runs in a space.
struct TensorBits {
  static constexpr std::size_t capacity = 510;  ///< whole words of `TensorCounts`

  std::size_t first = 0;
  std::size_t end = 0;
  std::uint64_t bits[(capacity + 63) / 64] = {};

  [[nodiscard]] ZERO_HOST_DEVICE bool of(std::size_t tensor) const noexcept {
    return (bits[(tensor - first) / 64] >> ((tensor - first) % 64) & 1) != 0;
  }
};

/// Calls `work(TensorBits)` until all tensors had their turn.
template <class Bit, class Work>
void for_tensor_bits(std::size_t tensors, Bit const& bit, Work const& work) {
  for (std::size_t first = 0; first < tensors; first += TensorBits::capacity) {
    TensorBits chunk{.first = first, .end = (std::min)(tensors, first + TensorBits::capacity)};
    for (std::size_t t = first; t < chunk.end; ++t) {
      chunk.bits[(t - first) / 64] |= std::uint64_t{bit(t) ? 1u : 0u} << ((t - first) % 64);
    }
    work(chunk);
  }
}

/// Writes which tensors have a gradient on this rank to the words that travel.
struct BringTensors {
  TensorCounts counts{};
  TensorBits given{};

  ZERO_HOST_DEVICE void operator()() const noexcept {
    for (std::size_t t = given.first; t < given.end; ++t) {
      std::int64_t& word = counts.words[t / TensorCounts::per_word];
      auto const place = static_cast<int>(t % TensorCounts::per_word);
      if (place == 0) word = 0;
      word |= std::int64_t{given.of(t) ? 1 : 0} << (TensorCounts::bits * place);
    }
  }
};

/// Counts the update that is now decided for tensors that rest in it.
struct CountMissed {
  StepControl const* control = nullptr;
  TensorCounts counts{};
  TensorBits may_rest{};
  bool counted = false;  ///< from outside: all that do not rest have as many updates as the run

  ZERO_HOST_DEVICE void operator()() const noexcept {
    if (control->outcome.terms.skipped != 0) return;
    std::int64_t const more = control->outcome.terms.step - control->own.step;
    for (std::size_t t = may_rest.first; t < may_rest.end; ++t) {
      std::int64_t& missed = counts.missed[t];
      if (may_rest.of(t) && counts.ranks(t) == 0) {
        missed = missed + more > 0 ? missed + more : 0;
      } else if (counted) {
        missed = 0;
      }
    }
  }
};

/// Prepares the terms of one tensor that rests, or has rested.
struct OwnTerms {
  StepControl* control = nullptr;
  TensorCounts counts{};
  std::size_t tensor = 0;
  bool may_rest = false;

  ZERO_HOST_DEVICE void operator()() const noexcept {
    control->own = control->outcome.terms;
    control->own.step -= static_cast<long>(counts.missed[tensor]);
    if (may_rest && counts.ranks(tensor) == 0) control->own.skipped = 1;
  }
};

/// What a rank was told about a step, as far as numbers depend on it.
struct Told {
  bool known = false;              ///< in step(), and not in grad_norm() before it
  std::uint64_t options = 0;       ///< hash of all but the learning rate of the step
  float learning_rate = 0.f;       ///< of the step ...
  float const* address = nullptr;  ///< ... unless it lies here, in the memory of the space
  bool stop = false;               ///< this rank asks for the run to end; others may not

  /// Takes the learning rate, once for all that follows, into the terms of the step. Returns a
  /// digest of 41 bits, 0 before step(): these add up over a million ranks without overflow, so
  /// that one rank that differs from all others is always found.
  ZERO_HOST_DEVICE std::int64_t hear(StepControl* control) const noexcept {
    if (!known) return 0;
    float const rate = address != nullptr ? *address : learning_rate;
    control->outcome.terms.learning_rate = rate;
    // Stirred, one to one: of three rates at equal distances the digests must not be so, too, or
    // the one in the middle would take the sum for its own times three.
    std::uint32_t bits = __builtin_bit_cast(std::uint32_t, rate);
    bits = (bits ^ bits >> 16) * 0x85ebca6bu;
    bits = (bits ^ bits >> 13) * 0xc2b2ae35u;
    bits ^= bits >> 16;
    // The factor is 2^64 over the golden ratio. Its multiples by less than 2^32 stay 2^25 away from
    // those of 2^64, so that two rates never have one digest.
    return (std::int64_t{1} << 40) +
           static_cast<std::int64_t>((options ^ bits) * 0x9e3779b97f4a7c15u >> 24);
  }
};

/// Writes what this rank brings of what it was told: two words that lie side by side.
struct SealOptions {
  StepControl* control = nullptr;
  Told told{};

  ZERO_HOST_DEVICE void operator()() const noexcept {
    std::int64_t const failed = control->outcome.failure != StepFailure::none ? 1 : 0;
    std::int64_t const stop = std::int64_t{1} << StepControl::stop_shift;
    control->words[StepControl::failed_word] = told.stop ? failed + stop : failed;
    control->words[StepControl::options_word] = control->brought = told.hear(control);
  }
};

/// Reads their sums: whether options differ and whether somebody asks for the run to end, the same
/// on every rank.
struct ConcludeOptions {
  StepControl* control = nullptr;
  std::int64_t ranks = 1;  ///< in the group

  ZERO_HOST_DEVICE void operator()() const noexcept {
    std::int64_t const digests = control->words[StepControl::options_word];
    control->outcome.differ = digests == control->brought * ranks ? 0 : 1;
    std::int64_t& failed = control->words[StepControl::failed_word];
    control->outcome.stop = failed >> StepControl::stop_shift != 0 ? 1 : 0;
    failed &= (std::int64_t{1} << StepControl::stop_shift) - 1;
  }
};

/// Writes what this rank brings to the exchange.
struct Seal {
  SealOptions options{};
  double weight = 0.;       ///< of this rank's micro-batches
  std::int64_t unsaid = 0;  ///< digest of the tensors about which this rank was told nothing

  ZERO_HOST_DEVICE void operator()() const noexcept {
    options();
    StepControl* const control = options.control;
    auto const& squares = control->squares.words();
    std::int64_t* const weights = control->words + ExactSum::word_count;
    for (std::size_t i = 0; i < ExactSum::word_count; ++i) {
      control->words[i] = squares[i];
      weights[i] = 0;
    }
    // In place, without an accumulator that a device would set aside for every thread it can run.
    ExactSum::Addend const parts = ExactSum::addend(weight);
    weights[parts.first] = parts.low;
    weights[parts.first + 1] = parts.middle;
    weights[parts.first + 2] = parts.high;
    control->words[StepControl::unsaid_word] = control->unsaid = unsaid;
  }
};

/// Reads the sums of the exchange: norm, overflow and weight as well, the same on every rank.
struct Conclude {
  ConcludeOptions options{};

  ZERO_HOST_DEVICE void operator()() const noexcept {
    options();
    StepControl* const control = options.control;
    std::int64_t const* const squares = control->words;
    std::int64_t const* const weights = squares + ExactSum::word_count;
    std::int64_t& unsaid = control->words[StepControl::unsaid_word];
    unsaid = unsaid == control->unsaid * options.ranks ? 0 : 1;
    StepTerms& terms = control->outcome.terms;
    bool const finite = ExactSum::finite(squares);
    terms.overflow = finite ? 0 : 1;
    terms.weight = ExactSum::value(weights);
    terms.loss_scale = control->loss_scale.value();
    double const norm_of_sum =
        finite ? __builtin_sqrt(ExactSum::value(squares)) : __builtin_huge_val();
    terms.grad_norm = norm_of_sum / (terms.weight * static_cast<double>(terms.loss_scale));
  }
};

/// Decides whether this step updates, and by what gradients are multiplied.
///
/// What a group that has ended was about to sum decides nothing: masters and states stay those of
/// the last step that all ranks took, and can be saved.
///
/// From a step that failed on, nothing is updated until all ranks have reported the failure: a
/// trainer that asks for reports now and then must not train on what it would have thrown away.
struct Decide {
  static constexpr double no_limit = __builtin_huge_val();

  StepControl* control = nullptr;
  std::int64_t const* ended = nullptr;  ///< not zero where the sums may be of nothing; or null
  double max_norm = no_limit;           ///< clip the mean gradient to this norm ...
  double scale = 1.;                    ///< ... or, below it, multiply it by this
  bool loss_scaled = false;
  bool skip_non_finite = false;  ///< gradients that are not finite are no failure
  long count = 0;                ///< of this update, from outside; 0: one more than of the last
  std::uint64_t rules = 0;       ///< digest of what updates each tensor
  Told told{};

  ZERO_HOST_DEVICE void operator()() const noexcept {
    StepTerms& terms = control->outcome.terms;
    control->own = terms;
    terms.clip_coefficient = terms.grad_norm > max_norm ? max_norm / terms.grad_norm : scale;
    bool const failed = control->words[StepControl::failed_word] != 0;
    bool const differ = control->outcome.differ != 0;
    bool const units = control->words[StepControl::unsaid_word] != 0;
    bool const rate = is_finite(terms.learning_rate) && terms.learning_rate >= 0.f;
    // The host writes it while this may be running.
    if (ended != nullptr && *static_cast<std::int64_t const volatile*>(ended) != 0) {
      terms.skipped = 1;
      return;
    }
    bool const usable = terms.overflow == 0 && terms.weight != 0. && rate;
    terms.skipped = failed || differ || units || !usable ? 1 : 0;
    if (terms.skipped == 0) {
      terms.step = count > 0 ? count : terms.step + 1;
      terms.gradient_scale = static_cast<float>(
          terms.clip_coefficient / (terms.weight * static_cast<double>(terms.loss_scale)));
      if (loss_scaled) control->loss_scale.learn(false);
    } else if (!failed && differ) {
      control->outcome.failure = StepFailure::options_differ;
    } else if (!failed && units) {
      control->outcome.failure = StepFailure::units_differ;
    } else if (!failed && terms.overflow == 0) {
      control->outcome.failure =
          terms.weight == 0. ? StepFailure::no_weight : StepFailure::learning_rate;
    } else if (!failed && !skip_non_finite) {
      control->outcome.failure = StepFailure::not_finite;
    } else if (!failed && loss_scaled) {
      control->loss_scale.learn(true);
      if (control->loss_scale.exhausted()) {
        control->outcome.failure = StepFailure::scale_exhausted;
      }
    }
    terms.next_loss_scale = control->loss_scale.value();
  }
};

/// What the numbers of a step depend on, besides the learning rate.
[[nodiscard]] inline std::uint64_t hash(Decide const& decide) noexcept {
  Hash hash;
  hash.add(std::bit_cast<std::uint64_t>(decide.max_norm));
  hash.add(std::bit_cast<std::uint64_t>(decide.scale));
  hash.add(decide.skip_non_finite ? 1u : 0u);
  hash.add(static_cast<std::uint64_t>(decide.count));
  hash.add(decide.rules);
  return hash.value();
}

/// A failure was reported: steps count again.
struct Forgive {
  StepControl* control = nullptr;
  ZERO_HOST_DEVICE void operator()() const noexcept {
    control->outcome.failure = StepFailure::none;
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
