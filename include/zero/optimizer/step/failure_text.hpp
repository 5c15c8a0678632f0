/// @file
/// Why a step failed, in words of all ranks: found after the fact, as no step that succeeds pays
/// for it.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/base/float_mode.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/range.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/api/step_result.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/optimizer/setup/fingerprint.hpp"
#include "zero/optimizer/setup/rank_words.hpp"
#include "zero/optimizer/step/decision.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The options of a step, to compare with other ranks'.
/// @param rate   the learning rate, wherever it lay ...
/// @param calls  ... and by which calls ranks got it; outlives the record
/// @param mode   of the thread that called it
ZERO_APART [[nodiscard]] ZERO_COLD Fingerprint fingerprint_of(Decide const& decide,
                                                              double rate,
                                                              std::string_view calls,
                                                              FloatMode mode);

/// Which tensors have gradients that are not finite, and on which ranks.
/// @param all  the first that each rank has found, below 0 if there is none
ZERO_APART [[nodiscard]] ZERO_COLD std::string not_finite(std::vector<std::int64_t> const& all,
                                                          std::vector<Tensor> const& tensors);

/// Which gradients some ranks gave, and about which others were told nothing: the first tensor.
/// @param all  what each rank said of each tensor
ZERO_APART [[nodiscard]] ZERO_COLD std::string forgotten(std::vector<std::int64_t> const& all,
                                                         std::vector<Tensor> const& tensors);

/// Why a step failed that these optimizers took together, in words of all ranks; of this rank alone
/// if some have reported an earlier failure, and know nothing of this one. The first of them that
/// has to do with it is named.
/// @par Collective  yes; blocks
ZERO_APART [[nodiscard]] ZERO_COLD Error explain_failure(std::span<Parts* const> stepped,
                                                         StepFailure failure);

#if ZERO_BODIES

/// The first tensor whose summed gradient is not finite in this rank's share; below 0 if none is.
ZERO_APART [[nodiscard]] ZERO_COLD std::int64_t first_not_finite(Parts& parts);
ZERO_BODY std::int64_t first_not_finite(Parts& parts) {
  std::int64_t first = -1;
  AnySpace const& space = parts.space();
  ExactSum* const squares = &parts.control->squares;
  parts.partition.for_each_bucket([&](BucketSpan const& bucket) {
    Array const share = parts.reduction.own(bucket);
    Range const range = bucket.share(parts.comm().rank());
    parts.partition.for_each_segment(range, [&](Segment const& piece) {
      if (first >= 0 && static_cast<std::size_t>(first) <= piece.tensor) return;
      ExactSum sum;
      space.zero(squares, sizeof(sum));
      parts.kernels.add_squares(
          squares, share.at(piece.in_range), static_cast<std::size_t>(piece.count));
      space.download(&sum, squares, sizeof(sum));
      if (!ExactSum::finite(sum.words())) first = static_cast<std::int64_t>(piece.tensor);
    });
  });
  return first;
}

/// What one optimizer has to do with it: options or tensors; nothing, if nothing.
ZERO_APART [[nodiscard]] ZERO_COLD std::string failure_values(Parts& parts, StepFailure failure);
ZERO_BODY std::string failure_values(Parts& parts, StepFailure failure) {
  std::int64_t failed_before = 0;
  parts.space().download(
      &failed_before, parts.control->words + StepControl::failed_word, sizeof(failed_before));
  if (failed_before != 0) return {};
  RankWords const ranks(parts.groups.world(), parts.arena);
  if (failure == StepFailure::not_finite) {
    std::int64_t const first = first_not_finite(parts);
    return not_finite(ranks.gather({&first, 1}), parts.tensors);
  }
  if (failure == StepFailure::units_differ) {
    std::vector<std::int64_t> statements;
    for (std::size_t t = 0; t < parts.tensors.size(); ++t) {
      statements.push_back(static_cast<std::int64_t>(parts.presence.statement(t)));
    }
    return forgotten(ranks.gather(statements), parts.tensors);
  }
  if (failure != StepFailure::options_differ) return {};
  std::string const calls = calls_of_ranks(ranks, parts.now.rate_from);
  Fingerprint const record = fingerprint_of(
      parts.now.decided, parts.outcome.get().terms.learning_rate, calls, parts.now.float_mode);
  auto const more = [&] { return parts.rules.difference(ranks); };
  return record.difference(ranks, more);
}

ZERO_BODY Error explain_failure(std::span<Parts* const> stepped, StepFailure failure) {
  for (Parts* const parts : stepped) {
    std::string const values = failure_values(*parts, failure);
    if (values.empty()) continue;
    RankGroups& groups = parts->groups;
    return error_of(
        failure, values, groups.model() == nullptr ? ErrorContext{} : groups.here("step"));
  }
  return error_of(failure);
}

ZERO_BODY Fingerprint fingerprint_of(Decide const& decide,
                                     double rate,
                                     std::string_view calls,
                                     FloatMode mode) {
  constexpr std::string_view options = "options to step(): ";
  Fingerprint record;
  record.add(options, "the call", std::string_view(decide.options.known ? "step" : "grad_norm"));
  record.add(options, "optimizers that step together", static_cast<double>(decide.together));
  record.add(calls, "learning_rate", decide.options.known ? rate : 0.);
  record.add(options, "max_norm", decide.max_norm);
  record.add(options, "scale", decide.scale);
  record.add(options, "non_finite", std::string_view(decide.skip_non_finite ? "skip" : "fail"));
  record.add(options, "count", static_cast<double>(decide.count));
  record.add(options, "floating-point mode", mode.text());
  record.add_hash({}, "rules of tensors", decide.rules);
  return record;
}

ZERO_BODY std::string not_finite(std::vector<std::int64_t> const& all,
                                 std::vector<Tensor> const& tensors) {
  std::string text;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::string ranks;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank] == static_cast<std::int64_t>(t)) ranks += Message({" ", rank}).text();
    }
    if (ranks.empty()) continue;
    text +=
        (text.empty() ? ": first '" : ", '") + tensors[t].name + "' in the share of rank" + ranks;
  }
  return text;
}

ZERO_BODY std::string forgotten(std::vector<std::int64_t> const& all,
                                std::vector<Tensor> const& tensors) {
  std::size_t const ranks = all.size() / tensors.size();
  auto const list = [&](std::size_t t, bool nothing) {
    std::string text;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      bool const silent = all[rank * tensors.size() + t] == 0;
      if (silent == nothing) text += Message({text.empty() ? "" : ", ", rank}).text();
    }
    return text;
  };
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::string const silent = list(t, true);
    std::string const others = list(t, false);
    if (silent.empty() || others.empty()) continue;
    return Message({"unit ",
                    tensors[t].unit,
                    ", tensor '",
                    tensors[t].name,
                    "': nothing was said on rank ",
                    silent,
                    ", but on rank ",
                    others})
        .text();
  }
  return {};
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
