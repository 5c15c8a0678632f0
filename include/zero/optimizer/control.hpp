/// @file
/// What all ranks must know before any of them updates, and how it is decided: in the memory of the
/// space, so that a device needs nothing from its host in between.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/space.hpp"
#include "zero/layout/exact_sum.hpp"
#include "zero/optimizer/hash.hpp"
#include "zero/precision/loss_scale.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace zero::inline v0_1::detail {

/// Why a step ended with an error instead of an update.
enum class StepFailure : std::int32_t { none, not_finite, no_weight, options_differ };

/// What a host reads of a step.
struct StepOutcome {
  StepTerms terms{};
  StepFailure failure = StepFailure::none;  ///< of the first step that failed and was not reported
};

/// The few words of one rank's steps that lie in the memory of its space.
struct StepControl {
  /// What ranks add up: squares, weights, ...
  static constexpr std::size_t word_count = 2 * ExactSum::word_count + 2;
  /// ... ranks with a failure that was not reported, ...
  static constexpr std::size_t failed_word = 2 * ExactSum::word_count;
  /// ... and digests of options; after the exchange, whether they differ.
  static constexpr std::size_t options_word = failed_word + 1;

  ExactSum squares{};  ///< of this rank's reduced gradients; all bits zero before the first
  std::int64_t words[word_count] = {};
  LossScale loss_scale{};
  StepOutcome outcome{};
};
static_assert(std::is_trivially_copyable_v<StepControl>);

/// Writes what this rank brings to the exchange.
struct Seal {
  StepControl* control = nullptr;
  double weight = 0.;        ///< of this rank's micro-batches
  std::int64_t options = 0;  ///< digest of what this rank was told

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
    bool const failed = control->outcome.failure != StepFailure::none;
    control->words[StepControl::failed_word] = failed ? 1 : 0;
    control->words[StepControl::options_word] = options;
  }
};

/// Reads the sums of the exchange: norm, overflow, weight and whether options differ, the same on
/// every rank.
struct Conclude {
  StepControl* control = nullptr;
  std::int64_t options_sum = 0;  ///< of the digests, if all ranks were told the same

  ZERO_HOST_DEVICE void operator()() const noexcept {
    std::int64_t const* const squares = control->words;
    std::int64_t const* const weights = squares + ExactSum::word_count;
    std::int64_t& options = control->words[StepControl::options_word];
    options = options == options_sum ? 0 : 1;
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

  ZERO_HOST_DEVICE void operator()() const noexcept {
    StepTerms& terms = control->outcome.terms;
    terms.clip_coefficient = terms.grad_norm > max_norm ? max_norm / terms.grad_norm : scale;
    bool const failed = control->words[StepControl::failed_word] != 0;
    bool const differ = control->words[StepControl::options_word] != 0;
    // The host writes it while this may be running.
    if (ended != nullptr && *static_cast<std::int64_t const volatile*>(ended) != 0) {
      terms.skipped = 1;
      return;
    }
    terms.skipped = failed || differ || terms.overflow != 0 || terms.weight == 0. ? 1 : 0;
    if (terms.skipped == 0) {
      ++terms.step;
      terms.gradient_scale = static_cast<float>(
          terms.clip_coefficient / (terms.weight * static_cast<double>(terms.loss_scale)));
      if (loss_scaled) control->loss_scale.update(false);
    } else if (!failed && differ) {
      control->outcome.failure = StepFailure::options_differ;
    } else if (!failed && terms.overflow == 0) {
      control->outcome.failure = StepFailure::no_weight;
    } else if (!failed && !skip_non_finite) {
      control->outcome.failure = StepFailure::not_finite;
    } else if (!failed && loss_scaled) {
      control->loss_scale.update(true);
    }
    terms.next_loss_scale = control->loss_scale.value();
  }
};

/// What the numbers of a step depend on, as 40 bits: a few of these add up over a million ranks
/// without overflow, so that one rank that differs from all others is always found.
[[nodiscard]] inline std::int64_t digest(Decide const& decide, float learning_rate) noexcept {
  Hash hash;
  hash.add(std::bit_cast<std::uint32_t>(learning_rate));
  hash.add(std::bit_cast<std::uint64_t>(decide.max_norm));
  hash.add(std::bit_cast<std::uint64_t>(decide.scale));
  hash.add(decide.skip_non_finite ? 1u : 0u);
  return static_cast<std::int64_t>(hash.value() >> 24);
}

/// A failure was reported: steps count again.
struct Forgive {
  StepControl* control = nullptr;
  ZERO_HOST_DEVICE void operator()() const noexcept {
    control->outcome.failure = StepFailure::none;
  }
};

/// Adds up all ranks' squares, overflows, weights and digests, as integers: exact in any order.
/// @par Collective  yes
/// @par Cost        one all-reduce of `StepControl::word_count` 64-bit integers, about 1 KB
template <Communicator C>
void agree(C& comm,
           typename C::Space const& space,
           StepControl* control,
           double own_weight,
           std::int64_t options) {
  space.call(Seal{control, own_weight, options});
  run(comm,
      {.op = Op::all_reduce,
       .dtype = DType::i64,
       .accumulate = DType::i64,
       .count = StepControl::word_count,
       .send = control->words,
       .recv = control->words});
  space.call(Conclude{control, options * comm.size()});
}

}  // namespace zero::inline v0_1::detail
