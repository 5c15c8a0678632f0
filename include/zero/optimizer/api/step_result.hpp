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
#include <string_view>
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
  ErrorKind kind = ErrorKind::invalid_argument;
  std::string_view before;
  std::string_view between;
  std::string_view what = values;
  std::string_view after;
  bool named = true;  // says which rank this is
  switch (failure) {
    case StepFailure::options_differ:
      before = "ranks passed different ";
      if (!what.empty()) break;
      what =
          "options to step(), or values to set_lr() or set_rule(): learning rate, max_norm, scale, "
          "non_finite, unsaid, count, floating-point mode, or rules of tensors";
      break;
    case StepFailure::units_differ:
      before =
          "some ranks reduced gradients that others neither reduced nor declared absent with "
          "without_gradient()";
      if (!what.empty()) between = ": ";
      break;
    case StepFailure::unsaid:
      before = "in this step no rank has asked for the gradients of ";
      if (what.empty()) what = "some tensor";
      after =
          ", or declared them absent: pass gradients(unit) to reduce(), or call "
          "without_gradient(unit) for what has none; StepOptions::unsaid can say that such "
          "gradients are zeros, or that the tensors rest";
      break;
    case StepFailure::all_empty:
      what =
          "all gradients that were lent are empty, on all ranks: call bind() or bind_gradients() "
          "once they are allocated, such as after the first backward pass; a step without any is "
          "declared by without_gradient()";
      named = false;
      break;
    case StepFailure::scales_differ:
      what =
          "optimizers that step together have different loss scales: give them the same "
          "LossScaleOptions, and let none of them step alone";
      named = false;
      break;
    case StepFailure::learning_rate:
      what = "what lies at learning_rate_address is not finite, or less than 0";
      named = false;
      break;
    case StepFailure::scale_exhausted:
      kind = ErrorKind::data;
      what =
          "gradients were not finite for as many steps in a row at the minimum loss scale as "
          "LossScaleOptions::patience allows: training has diverged; go back to earlier weights "
          "and lower the learning rate or max_norm, or use bf16";
      named = false;
      break;
    case StepFailure::no_weight:
      kind = ErrorKind::data;
      what = "all micro-batches of this step have weight 0";
      break;
    case StepFailure::not_finite:
    case StepFailure::none:
      kind = ErrorKind::data;
      before = "gradients are not finite";
      break;
  }
  return {kind,
          Message({before, between, what, after}).text(),
          named ? here : ErrorContext{},
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
