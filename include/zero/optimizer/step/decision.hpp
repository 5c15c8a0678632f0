/// @file
/// What all ranks must know before any of them updates, and how it is decided: in the memory of the
/// space, so that a device needs nothing from its host in between.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/base/number.hpp"
#include "zero/base/unanimity.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/space.hpp"
#include "zero/optimizer/api/step_options.hpp"
#include "zero/precision/loss_scale.hpp"
#include "zero/rule/rated_rule.hpp"

#include <algorithm>
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
  all_empty,
  scale_exhausted,
  learning_rate,
  scales_differ,
  unsaid,
};

/// What a host reads of a step.
struct StepOutcome {
  StepTerms terms{};
  StepFailure failure = StepFailure::none;  ///< of the first step that failed and was not reported
  std::int32_t differ = 0;                  ///< not 0 if ranks were told different options
  std::int32_t ended = 0;                   ///< not 0 if the group had ended when it was decided
  std::int32_t stop = 0;                    ///< not 0 if some rank asked for the run to end
  std::int32_t rested = 0;                  ///< tensors that rested in this step
  /// One more than the number of the first tensor about which no rank said anything, in this step
  /// or in that which failed; or 0.
  std::int32_t unsaid = 0;

  /// What `differ` is where optimizers that step together have different loss scales.
  static constexpr std::int32_t loss_scales = 2;
};

/// The few words of one rank's steps that lie in the memory of its space.
struct StepControl {
  // What ranks add up: squares, weights, ...
  /// ... how many have a failure that was not reported, ...
  static constexpr std::size_t failed_word = 2 * ExactSum::word_count;
  /// ... how many ask for the run to end, ...
  static constexpr std::size_t stop_word = failed_word + 1;
  /// ... how many are in `step()`, ...
  static constexpr std::size_t known_word = stop_word + 1;
  /// ... whether all were told the same options, ...
  static constexpr std::size_t options_word = known_word + 1;
  /// ... about how many tensors they were told nothing (after the exchange: `on_some_ranks`, if
  /// some ranks alone were, or else `on_all_ranks`, if none was told of all that share memory), ...
  static constexpr std::size_t silent_word = options_word + Unanimity::word_count;
  /// ... and how many were lent no gradient at all (after the exchange: whether all were). Behind
  /// these words lie those of `TensorCounts`, which travel with them.
  static constexpr std::size_t empty_word = silent_word + 1;
  static constexpr std::size_t word_count = empty_word + 1;
  static constexpr std::int64_t on_some_ranks = 1;
  static constexpr std::int64_t on_all_ranks = 2;

  /// The words that are exchanged again where all others were before.
  static constexpr std::size_t repeated_words = silent_word - failed_word;

  /// What rules compute of the terms, for as many combinations of a rule and scales, and behind
  /// them for one update at a time.
  static constexpr std::size_t scalar_bytes = 2048;
  template <class Real>
  static constexpr std::size_t rates = scalar_bytes / sizeof(BasicStepScalars<Real>) - 1;

  ExactSum squares{};  ///< of this rank's reduced gradients; all bits zero before the first
  LossScale loss_scale{};
  StepOutcome outcome{};
  /// Terms of a tensor that has rested, for its update; before that, those of the step before.
  StepTerms own{};
  alignas(BasicStepScalars<double>) std::byte scalars[scalar_bytes] = {};
  std::int64_t words[word_count] = {};
};
static_assert(std::is_trivially_copyable_v<StepControl>);
static_assert(offsetof(StepControl, words) + sizeof(StepControl::words) == sizeof(StepControl));

/// What lies behind a `StepControl`: two words of each tensor. The first travels with a step's
/// words. A third of its bits counts the ranks on which the tensor has a gradient in this step, the
/// next one those that were told nothing about it nor about any that is tied to it, and the last
/// one those that were told nothing about it. The second word counts the updates that it has
/// missed.
struct TensorCounts {
  static constexpr std::uint64_t bytes_each = 2 * sizeof(std::int64_t);
  static constexpr int unsaid_shift = 21;
  static constexpr int silent_shift = 2 * unsaid_shift;
  static constexpr std::int64_t one_unsaid = std::int64_t{1} << unsaid_shift;
  static constexpr std::int64_t one_silent = std::int64_t{1} << silent_shift;
  static constexpr std::int64_t most_ranks = one_unsaid - 1;

  /// Words behind those, of each trained tensor: accumulators of what a rule measures. Only where
  /// it does.
  static constexpr std::size_t norm_words = measured_numbers * ExactSum::word_count;

  std::int64_t* words = nullptr;   ///< in the memory of the space
  std::int64_t* missed = nullptr;  ///< likewise
  std::size_t tensors = 0;

  TensorCounts() = default;
  TensorCounts(StepControl* control, std::size_t count)
      : words(reinterpret_cast<std::int64_t*>(control + 1)),
        missed(words + count),
        tensors(count) {}

  /// Those of one.
  /// @param trained  trained tensors before it; of all, for what lies behind
  [[nodiscard]] std::int64_t* norms(std::size_t trained) const noexcept {
    return missed + tensors + trained * norm_words;
  }
  /// What one rank adds to the first word.
  [[nodiscard]] ZERO_HOST_DEVICE static std::int64_t word_of(std::int64_t present,
                                                             std::int64_t unsaid,
                                                             std::int64_t silent) noexcept {
    return present + (unsaid != 0 ? one_unsaid : 0) + (silent != 0 ? one_silent : 0);
  }
  /// Ranks that have a gradient.
  [[nodiscard]] ZERO_HOST_DEVICE std::int64_t present(std::size_t tensor) const noexcept {
    return words[tensor] & most_ranks;
  }
  /// One more than the number of the first tensor about whose memory none of so many ranks was told
  /// anything; 0 if there is none.
  [[nodiscard]] ZERO_HOST_DEVICE std::int32_t first_unsaid(std::int64_t ranks) const noexcept {
    ZERO_UNROLL(1)
    for (std::size_t t = 0; t < tensors; ++t) {
      if ((words[t] >> unsaid_shift & most_ranks) == ranks) return static_cast<std::int32_t>(t + 1);
    }
    return 0;
  }
  /// Were some of so many ranks told nothing about a tensor, and others something?
  [[nodiscard]] ZERO_HOST_DEVICE bool differ(std::int64_t ranks) const noexcept {
    ZERO_UNROLL(1)
    for (std::size_t t = 0; t < tensors; ++t) {
      std::int64_t const silent = words[t] >> silent_shift;
      if (silent != 0 && silent != ranks) return true;
    }
    return false;
  }
};

/// A bit for each of some tensors, as an argument of what runs in a space.
struct TensorBits {
  static constexpr std::size_t capacity = 512;

  std::size_t first = 0;
  std::size_t end = 0;
  std::uint64_t bits[capacity / 64] = {};

  TensorBits() = default;
  /// @param bit  `bit(t)`, of tensors from `begin` on, as many as there is room for
  template <class Bit>
  TensorBits(std::size_t begin, std::size_t tensors, Bit const& bit)
      : first(begin), end((std::min)(tensors, begin + capacity)) {
    for (std::size_t t = first; t < end; ++t) {
      bits[(t - first) / 64] |= std::uint64_t{bit(t) ? 1u : 0u} << ((t - first) % 64);
    }
  }

  [[nodiscard]] ZERO_HOST_DEVICE std::int64_t of(std::size_t tensor) const noexcept {
    return static_cast<std::int64_t>(bits[(tensor - first) / 64] >> ((tensor - first) % 64) & 1u);
  }
};

/// Writes what this rank says of tensors to the words that travel.
struct WriteTensorCounts {
  TensorCounts counts{};
  TensorBits present{};
  TensorBits silent{};
  TensorBits unsaid{};

  ZERO_HOST_DEVICE void operator()() const noexcept {
    for (std::size_t t = present.first; t < present.end; ++t) {
      counts.words[t] = TensorCounts::word_of(present.of(t), unsaid.of(t), silent.of(t));
    }
  }
};

/// Counts the update that is now decided for tensors that rest in it.
struct CountMissed {
  StepControl* control = nullptr;
  TensorCounts counts{};
  TensorBits may_rest{};
  bool counted = false;  ///< from outside: all that do not rest have as many updates as the run

  ZERO_HOST_DEVICE void operator()() const noexcept {
    if (control->outcome.terms.skipped != 0) return;
    std::int64_t const more = control->outcome.terms.step - control->own.step;
    for (std::size_t t = may_rest.first; t < may_rest.end; ++t) {
      std::int64_t& missed = counts.missed[t];
      if (may_rest.of(t) != 0 && counts.present(t) == 0) {
        ++control->outcome.rested;
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
    if (may_rest && counts.present(tensor) == 0) control->own.skipped = 1;
  }
};

/// What a rank was told about a step, as far as numbers depend on it.
struct RankOptions {
  bool known = false;                    ///< in step(), and not in grad_norm() before it
  std::uint64_t digest = 0;              ///< hash of all but the learning rate of the step
  double learning_rate = 0.;             ///< of the step ...
  float const* address = nullptr;        ///< ... unless it lies here, in the memory of the space
  double const* wide_address = nullptr;  ///< ... or here
  bool in_double = false;                ///< rules compute in double, else rates are rounded
  bool stop = false;                     ///< this rank asks for the run to end; others may not
};

/// Writes what this rank brings to the exchange, and takes the learning rate, once for all that
/// follows, into the terms of the step.
struct WriteStepWords {
  StepControl* control = nullptr;
  RankOptions options{};
  bool all = true;          ///< else all but the options was exchanged before
  double weight = 0.;       ///< of this rank's micro-batches
  std::int64_t silent = 0;  ///< tensors about which it was told nothing
  bool empty = false;       ///< it was lent no gradient at all

  ZERO_HOST_DEVICE void operator()() const noexcept {
    std::int64_t* const words = control->words;
    std::int64_t const failed = control->outcome.failure != StepFailure::none ? 1 : 0;
    words[StepControl::failed_word] = failed;
    words[StepControl::stop_word] = options.stop ? 1 : 0;
    words[StepControl::known_word] = options.known ? 1 : 0;
    std::uint64_t digest = 0;
    if (options.known) {
      double rate = options.learning_rate;
      if (options.address != nullptr) rate = static_cast<double>(*options.address);
      if (options.wide_address != nullptr) rate = *options.wide_address;
      if (!options.in_double) rate = static_cast<double>(static_cast<float>(rate));
      control->outcome.terms.learning_rate = rate;
      // By an odd factor, so that two rates never have one digest.
      std::uint64_t const bits = __builtin_bit_cast(std::uint64_t, rate) * 0x9e3779b97f4a7c15u;
      digest = options.digest ^ bits;
    }
    Unanimity::write(digest, words + StepControl::options_word);
    if (!all) return;
    auto const& squares = control->squares.words();
    std::int64_t* const weights = words + ExactSum::word_count;
    for (std::size_t i = 0; i < ExactSum::word_count; ++i) {
      words[i] = squares[i];
      weights[i] = 0;
    }
    // In place, without an accumulator that a device would set aside for every thread it can run.
    ExactSum::Addend const parts = ExactSum::addend(weight);
    weights[parts.first] = parts.low;
    weights[parts.first + 1] = parts.middle;
    weights[parts.first + 2] = parts.high;
    words[StepControl::silent_word] = silent;
    words[StepControl::empty_word] = empty ? 1 : 0;
  }
};

/// Reads the sums of the exchange, the same on every rank: whether options differ, whether somebody
/// asks for the run to end, and unless that was exchanged before, norm, overflow and weight.
struct Conclude {
  StepControl* control = nullptr;
  std::int64_t ranks = 1;  ///< in the group
  bool all = true;         ///< as above
  TensorCounts counts{};

  ZERO_HOST_DEVICE void operator()() const noexcept {
    std::int64_t* const words = control->words;
    std::int64_t const known = words[StepControl::known_word];
    bool const same = (known == 0 || known == ranks) &&
                      Unanimity::holds(words + StepControl::options_word, ranks);
    control->outcome.differ = same ? 0 : 1;
    control->outcome.stop = words[StepControl::stop_word] != 0 ? 1 : 0;
    if (!all) return;
    std::int64_t& silent = words[StepControl::silent_word];
    std::int32_t const unsaid = silent != 0 ? counts.first_unsaid(ranks) : 0;
    silent = silent != 0 && counts.differ(ranks) ? StepControl::on_some_ranks
             : unsaid != 0                       ? StepControl::on_all_ranks
                                                 : 0;
    if (control->outcome.failure == StepFailure::none) control->outcome.unsaid = unsaid;
    std::int64_t& empty = words[StepControl::empty_word];
    empty = empty == ranks ? 1 : 0;
    StepTerms& terms = control->outcome.terms;
    // In a loop, so that a device has the code for a sum once.
    double squares = 0.;
    terms.weight = 0.;
    ZERO_UNROLL(1)
    for (std::size_t i = 0; i < 2; ++i) {
      squares = terms.weight;
      terms.weight = ExactSum::value(words + i * ExactSum::word_count);
    }
    terms.loss_scale = control->loss_scale.value();
    terms.overflow = ExactSum::finite(words) ? 0 : 1;
    terms.grad_norm = norm_of(squares, terms);
  }

  /// Of the mean gradient; infinite where a square is not finite.
  ZERO_HOST_DEVICE static double norm_of(double squares, StepTerms const& of) noexcept {
    double const sum = of.overflow == 0 ? squares : __builtin_huge_val();
    return __builtin_sqrt(sum) / (of.weight * static_cast<double>(of.loss_scale));
  }
};

/// Adds what another optimizer has concluded to what the one has that decides for both. Squares are
/// added as integers; where weights differ, after they were rounded.
struct Join {
  StepControl* lead = nullptr;
  StepControl const* other = nullptr;
  bool scaled = false;  ///< the other has a loss scale of its own

  ZERO_HOST_DEVICE void operator()() const noexcept {
    StepOutcome& outcome = lead->outcome;
    StepTerms& terms = outcome.terms;
    StepTerms const& own = other->outcome.terms;
    std::int64_t* const words = lead->words;
    words[StepControl::failed_word] += other->words[StepControl::failed_word];
    words[StepControl::silent_word] |= other->words[StepControl::silent_word];
    words[StepControl::empty_word] |= other->words[StepControl::empty_word];
    if (outcome.differ == 0 && scaled && own.loss_scale != terms.loss_scale) {
      outcome.differ = StepOutcome::loss_scales;
    }
    if (other->outcome.differ != 0) outcome.differ = other->outcome.differ;
    double const ratio = terms.weight / own.weight;
    if (is_finite(ratio) && ratio != 1.) {
      ExactSum::Addend const parts =
          ExactSum::addend(ExactSum::value(other->words) * ratio * ratio);
      words[parts.first] += parts.low;
      words[parts.first + 1] += parts.middle;
      words[parts.first + 2] += parts.high;
    } else {
      ZERO_UNROLL(1)
      for (std::size_t i = 0; i < ExactSum::word_count; ++i) words[i] += other->words[i];
    }
    if (own.weight == 0.) terms.weight = 0.;
    terms.overflow = ExactSum::finite(words) ? 0 : 1;
    terms.grad_norm = Conclude::norm_of(ExactSum::value(words), terms);
  }
};

/// Decides whether this step updates, and by what gradients are multiplied.
///
/// What a group that has ended was about to sum decides nothing: masters and states stay those of
/// the last step that all ranks took, and can be saved.
///
/// From a step that failed on, nothing is updated until all ranks have reported the failure: a
/// trainer that asks for reports now and then must not train on what it would have thrown away.
///
/// Of optimizers that step together one leads. It decides first, after a `Join` of each other one,
/// and the others decide as it did.
struct Decide {
  static constexpr double no_limit = __builtin_huge_val();

  StepControl* control = nullptr;
  std::int64_t const* ended = nullptr;  ///< not zero where the sums may be of nothing; or null
  double max_norm = no_limit;           ///< clip the mean gradient to this norm ...
  double scale = 1.;                    ///< ... or, below it, multiply it by this
  bool loss_scaled = false;
  bool skip_non_finite = false;  ///< gradients that are not finite are no failure
  Unsaid unsaid = Unsaid::fail;
  long count = 0;           ///< of this update, from outside; 0: one more than of the last
  std::uint64_t rules = 0;  ///< digest of what updates each tensor
  RankOptions options{};
  std::int64_t together = 1;          ///< optimizers that step
  StepControl const* lead = nullptr;  ///< of another one that leads; or null

  ZERO_HOST_DEVICE void operator()() const noexcept {
    StepTerms& terms = control->outcome.terms;
    control->own = terms;
    control->outcome.rested = 0;
    if (lead != nullptr) follow();
    terms.clip_coefficient = terms.grad_norm > max_norm ? max_norm / terms.grad_norm : scale;
    bool const failed = control->words[StepControl::failed_word] != 0;
    bool const differ = control->outcome.differ != 0;
    std::int64_t const silent = control->words[StepControl::silent_word];
    bool const some_silent = (silent & StepControl::on_some_ranks) != 0;
    bool const all_silent = unsaid == Unsaid::fail && (silent & StepControl::on_all_ranks) != 0;
    bool const units = some_silent || all_silent || control->words[StepControl::empty_word] != 0;
    bool const rate = is_finite(terms.learning_rate) && terms.learning_rate >= 0.;
    // The host writes it while this may be running.
    if (lead == nullptr) {
      bool const over = ended != nullptr && *static_cast<std::int64_t const volatile*>(ended) != 0;
      control->outcome.ended = over ? 1 : 0;
    }
    if (control->outcome.ended != 0) {
      terms.skipped = 1;
      return;
    }
    bool const usable = terms.overflow == 0 && terms.weight != 0. && rate;
    terms.skipped = failed || differ || units || !usable ? 1 : 0;
    if (terms.skipped == 0) {
      terms.step = count > 0 ? count : terms.step + 1;
      terms.gradient_scale =
          terms.clip_coefficient / (terms.weight * static_cast<double>(terms.loss_scale));
      if (loss_scaled) control->loss_scale.learn(false);
    } else if (!failed && differ) {
      control->outcome.failure = control->outcome.differ == StepOutcome::loss_scales
                                     ? StepFailure::scales_differ
                                     : StepFailure::options_differ;
    } else if (!failed && units) {
      control->outcome.failure = some_silent  ? StepFailure::units_differ
                                 : all_silent ? StepFailure::unsaid
                                              : StepFailure::all_empty;
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

 private:
  /// Takes over what was joined.
  ZERO_HOST_DEVICE void follow() const noexcept {
    StepOutcome const& joined = lead->outcome;
    StepTerms& terms = control->outcome.terms;
    control->outcome.differ = joined.differ;
    control->outcome.ended = joined.ended;
    control->words[StepControl::failed_word] = lead->words[StepControl::failed_word];
    control->words[StepControl::silent_word] = lead->words[StepControl::silent_word];
    control->words[StepControl::empty_word] = lead->words[StepControl::empty_word];
    terms.overflow = joined.terms.overflow;
    terms.grad_norm = joined.terms.grad_norm;
    terms.loss_scale = joined.terms.loss_scale;
    if (joined.terms.weight == 0.) terms.weight = 0.;
  }
};

/// Rules whose scalars a decision computes at once: as many as an argument of a kernel has room for
/// beside others.
template <Rule R, class Real>
inline constexpr std::size_t rates_at_once = std::clamp(
    std::size_t{2048} / sizeof(RatedRule<R, Real>), std::size_t{1}, StepControl::rates<Real>);

/// One call after the other.
template <class First, class Second>
struct InOrder {
  First first{};
  Second second{};

  ZERO_HOST_DEVICE void operator()() const noexcept {
    first();
    second();
  }
};
template <class First, class Second>
InOrder(First, Second) -> InOrder<First, Second>;

/// A failure was reported: steps count again.
struct ClearFailure {
  StepControl* control = nullptr;
  ZERO_HOST_DEVICE void operator()() const noexcept {
    control->outcome.failure = StepFailure::none;
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
