/// @file
/// A step's report, or why there is none: errors as values.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/optimizer/api/step_options.hpp"
#include "zero/optimizer/step/decision.hpp"

#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace zero::inline ZERO_SHARED_NAMESPACE {

/// What `try_step()` returns: the report of a step, or the error that `step()` would have thrown.
///
///     if (auto const result = opt.try_step(); !result) std::puts(result.error()->what());
class [[nodiscard]] StepResult {
 public:
  /// Of a step that took place, or was skipped as it was told to be.
  ZERO_ALWAYS_INLINE StepResult(StepReport const& report) noexcept : report_(report) {}
  /// Of a step that failed.
  ZERO_ALWAYS_INLINE StepResult(Error error) noexcept : error_(std::move(error)) {}

  /// Is there a report, and no error?
  [[nodiscard]] ZERO_ALWAYS_INLINE explicit operator bool() const noexcept {
    return !error_.has_value();
  }
  /// What the step did; a default-constructed report if there is an error.
  [[nodiscard]] ZERO_ALWAYS_INLINE StepReport const& report() const noexcept { return report_; }
  /// What `step()` would have thrown, as long as this result lives; null if there is a report.
  [[nodiscard]] ZERO_ALWAYS_INLINE Error const* error() const noexcept {
    return error_ ? &*error_ : nullptr;
  }

 private:
  StepReport report_{};
  std::optional<Error> error_{};
};
static_assert(std::is_nothrow_move_constructible_v<StepResult>);

}  // namespace zero::inline ZERO_SHARED_NAMESPACE

namespace zero::inline ZERO_NAMESPACE {

namespace detail {

/// Why a step failed whose numbers, or options, cannot be used; on every rank alike.
/// @param values  which tensors, on which ranks, or to which call which values; empty where ranks
///   have not told each other
/// @param here    which rank this is
[[nodiscard]] ZERO_COLD inline Error error_of(StepFailure failure,
                                              std::string const& values = {},
                                              ErrorContext const& here = {}) {
  if (failure == StepFailure::options_differ) {
    return {ErrorKind::invalid_argument,
            "ranks passed different " +
                (values.empty() ? "options to step(), or values to set_lr() or set_rule(): "
                                  "learning rate, max_norm, scale, non_finite, unsaid, count, "
                                  "floating-point mode, or rules of tensors"
                                : values),
            here,
            SourceLocation::current()};
  }
  if (failure == StepFailure::units_differ) {
    return {ErrorKind::invalid_argument,
            "some ranks reduced gradients that others neither reduced nor declared absent with "
            "without_gradient()" +
                (values.empty() ? "" : ": " + values),
            here,
            SourceLocation::current()};
  }
  if (failure == StepFailure::unsaid) {
    return {ErrorKind::invalid_argument,
            "in this step no rank has asked for the gradients of " +
                (values.empty() ? "some tensor" : values) +
                ", or declared them absent: pass gradients(unit) to reduce(), or call "
                "without_gradient(unit) for what has none; StepOptions::unsaid can say that such "
                "gradients are zeros, or that the tensors rest",
            here,
            SourceLocation::current()};
  }
  if (failure == StepFailure::all_empty) {
    return {ErrorKind::invalid_argument,
            "all gradients that were lent are empty, on all ranks: call bind() or bind_gradients() "
            "once they are allocated, such as after the first backward pass; a step without any is "
            "declared by without_gradient()",
            {},
            SourceLocation::current()};
  }
  if (failure == StepFailure::scales_differ) {
    return {ErrorKind::invalid_argument,
            "optimizers that step together have different loss scales: give them the same "
            "LossScaleOptions, and let none of them step alone",
            {},
            SourceLocation::current()};
  }
  if (failure == StepFailure::learning_rate) {
    return {ErrorKind::invalid_argument,
            "what lies at learning_rate_address is not finite, or less than 0",
            {},
            SourceLocation::current()};
  }
  if (failure == StepFailure::scale_exhausted) {
    return {ErrorKind::data,
            "gradients were not finite for as many steps in a row at the minimum loss scale as "
            "LossScaleOptions::patience allows: training has diverged; go back to earlier weights "
            "and lower the learning rate or max_norm, or use bf16",
            {},
            SourceLocation::current()};
  }
  return {ErrorKind::data,
          failure == StepFailure::no_weight ? "all micro-batches of this step have weight 0"
                                            : "gradients are not finite" + values,
          here,
          SourceLocation::current()};
}

/// @throws Error if that is what there is
[[nodiscard]] inline StepReport report_of(StepResult const& result) {
  if (!result) fail_again(*result.error());
  return result.report();
}

#if defined(__cpp_exceptions)
/// The exception that is being handled. One that is not the library's is a communicator's, which
/// nobody can rely on any more. Ends the program if there is no memory for its text.
[[nodiscard]] ZERO_COLD inline StepResult caught() noexcept {
  try {
    throw;
  } catch (Error const& error) {
    return error;
  } catch (std::exception const& error) {
    return Error(ErrorKind::communication, error.what(), {}, SourceLocation::current());
  } catch (...) {
    return Error(ErrorKind::communication,
                 "an exception that is not a std::exception",
                 {},
                 SourceLocation::current());
  }
}
#endif

/// Returns what `work()` returns or, where there are exceptions, throws.
template <class Work>
[[nodiscard]] StepResult attempt(Work const& work) noexcept {
#if defined(__cpp_exceptions)
  try {
    return work();
  } catch (...) {
    return caught();
  }
#else
  return work();
#endif
}

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
