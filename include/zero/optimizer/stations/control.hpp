/// @file
/// What all ranks must know before any of them updates, and how it is decided: in the memory of the
/// space, so that a device needs nothing from its host in between.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/number.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/space.hpp"
#include "zero/layout/exact_sum.hpp"
#include "zero/optimizer/setup/hash.hpp"
#include "zero/precision/loss_scale.hpp"

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
  scale_exhausted,
  learning_rate,
};

/// What a host reads of a step.
struct StepOutcome {
  StepTerms terms{};
  StepFailure failure = StepFailure::none;  ///< of the first step that failed and was not reported
  float rate_before = 0.f;                  ///< the learning rate of the step before
  std::int32_t stop = 0;                    ///< not 0 if some rank asked for the run to end
};

/// The few words of one rank's steps that lie in the memory of its space.
struct StepControl {
  /// What ranks add up: squares, weights, ...
  static constexpr std::size_t word_count = 2 * ExactSum::word_count + 2;
  /// ... ranks with a failure that was not reported (and, above `stop_shift`, ranks that ask for
  /// the run to end; after the exchange no more), ...
  static constexpr std::size_t failed_word = 2 * ExactSum::word_count;
  static constexpr int stop_shift = 32;
  /// ... and digests of options; after the exchange, whether they differ.
  static constexpr std::size_t options_word = failed_word + 1;

  ExactSum squares{};  ///< of this rank's reduced gradients; all bits zero before the first
  std::int64_t words[word_count] = {};
  std::int64_t brought = 0;    ///< what this rank added to the word of options
  std::int64_t unchecked = 0;  ///< digest of the last step's, where ranks agreed before it
  std::int64_t stop = 0;       ///< what this rank asked for in the last step, where they did
  LossScale loss_scale{};
  StepOutcome outcome{};
};
static_assert(std::is_trivially_copyable_v<StepControl>);

/// What a rank was told about a step, as far as numbers depend on it.
struct Told {
  bool known = false;              ///< there has been a call of step()
  std::uint64_t options = 0;       ///< hash of all but the learning rate
  float learning_rate = 0.f;       ///< of the step ...
  float const* address = nullptr;  ///< ... unless it lies here, in the memory of the space
  bool stop = false;               ///< this rank asks for the run to end; others may not

  /// Takes the learning rate, once for all that follows, into the terms of the step. Returns a
  /// digest of 40 bits: a few of these add up over a million ranks without overflow, so that one
  /// rank that differs from all others is always found.
  ZERO_HOST_DEVICE std::int64_t hear(StepControl* control) const noexcept {
    float const rate = address != nullptr ? *address : learning_rate;
    control->outcome.rate_before = control->outcome.terms.learning_rate;
    control->outcome.terms.learning_rate = rate;
    // Stirred, one to one: of three rates at equal distances the digests must not be so, too, or
    // the one in the middle would take the sum for its own times three.
    std::uint32_t bits = __builtin_bit_cast(std::uint32_t, rate);
    bits = (bits ^ bits >> 16) * 0x85ebca6bu;
    bits = (bits ^ bits >> 13) * 0xc2b2ae35u;
    bits ^= bits >> 16;
    // The factor is 2^64 over the golden ratio. Its multiples by less than 2^32 stay 2^25 away from
    // those of 2^64, so that two rates never have one digest.
    return static_cast<std::int64_t>((options ^ bits) * 0x9e3779b97f4a7c15u >> 24);
  }
};

/// Writes what this rank brings to the exchange.
struct Seal {
  StepControl* control = nullptr;
  double weight = 0.;  ///< of this rank's micro-batches
  Told told{};

  ZERO_HOST_DEVICE void operator()() const noexcept {
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
    std::int64_t const failed = control->outcome.failure != StepFailure::none ? 1 : 0;
    std::int64_t const stop = told.stop || control->stop != 0 ? 1 : 0;
    control->words[StepControl::failed_word] = failed + (stop << StepControl::stop_shift);
    // A difference in the step before must not be balanced by one in this step.
    control->brought = (told.known ? told.hear(control) : 0) + 3 * control->unchecked;
    control->words[StepControl::options_word] = control->brought;
  }
};

/// Reads the sums of the exchange: norm, overflow, weight, whether options differ and whether
/// somebody asks for the run to end, the same on every rank.
struct Conclude {
  StepControl* control = nullptr;
  std::int64_t ranks = 1;  ///< in the group

  ZERO_HOST_DEVICE void operator()() const noexcept {
    std::int64_t const* const squares = control->words;
    std::int64_t const* const weights = squares + ExactSum::word_count;
    std::int64_t& options = control->words[StepControl::options_word];
    options = options == control->brought * ranks ? 0 : 1;
    std::int64_t& failed = control->words[StepControl::failed_word];
    control->outcome.stop = failed >> StepControl::stop_shift != 0 ? 1 : 0;
    failed &= (std::int64_t{1} << StepControl::stop_shift) - 1;
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
  Told told{};
  bool concluded_before = false;  ///< before the ranks knew what they are told

  ZERO_HOST_DEVICE void operator()() const noexcept {
    control->unchecked = concluded_before ? told.hear(control) : 0;
    control->stop = concluded_before && told.stop ? 1 : 0;
    StepTerms& terms = control->outcome.terms;
    terms.clip_coefficient = terms.grad_norm > max_norm ? max_norm / terms.grad_norm : scale;
    bool const failed = control->words[StepControl::failed_word] != 0;
    bool const differ = control->words[StepControl::options_word] != 0;
    bool const rate = is_finite(terms.learning_rate) && terms.learning_rate >= 0.f;
    // The host writes it while this may be running.
    if (ended != nullptr && *static_cast<std::int64_t const volatile*>(ended) != 0) {
      terms.skipped = 1;
      return;
    }
    terms.skipped = failed || differ || terms.overflow != 0 || terms.weight == 0. ? 1 : 0;
    // Where ranks are yet to learn what they were told, this may be news to the others.
    if (terms.skipped == 0 && !rate) terms.skipped = StepTerms::skipped_alone;
    if (terms.skipped == 0) {
      ++terms.step;
      terms.gradient_scale = static_cast<float>(
          terms.clip_coefficient / (terms.weight * static_cast<double>(terms.loss_scale)));
      if (loss_scaled) control->loss_scale.learn(false);
    } else if (!failed && differ) {
      control->outcome.failure = StepFailure::options_differ;
    } else if (terms.skipped == StepTerms::skipped_alone) {
      control->outcome.failure = StepFailure::learning_rate;
    } else if (!failed && terms.overflow == 0) {
      control->outcome.failure = StepFailure::no_weight;
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
  return hash.value();
}

/// A failure was reported: steps count again.
struct Forgive {
  StepControl* control = nullptr;
  ZERO_HOST_DEVICE void operator()() const noexcept {
    control->outcome.failure = StepFailure::none;
  }
};

/// Adds up all ranks' squares, overflows, weights, digests and wishes to stop, as integers: exact
/// in any order.
/// @par Collective  yes
/// @par Cost        one all-reduce of `StepControl::word_count` 64-bit integers, about 1 KB
template <Communicator C>
void exchange_terms(C& comm,
                    typename C::Space const& space,
                    StepControl* control,
                    double own_weight,
                    Told const& told) {
  space.call(Seal{control, own_weight, told});
  run(comm,
      {.op = Op::all_reduce,
       .dtype = DType::i64,
       .accumulate = DType::i64,
       .count = StepControl::word_count,
       .send = control->words,
       .recv = control->words});
  space.call(Conclude{control, comm.size()});
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
