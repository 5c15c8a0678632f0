/// @file
/// Why a step failed, in words of all ranks: found after the fact, as no step that succeeds pays
/// for it.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/base/float_mode.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/range.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/api/step_result.hpp"
#include "zero/optimizer/held/elements.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/optimizer/setup/fingerprint.hpp"
#include "zero/optimizer/setup/rank_words.hpp"
#include "zero/optimizer/step/decision.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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

/// The first element whose summed gradient is not finite, who owns it, and which ranks brought
/// that, where they still hold what they brought; then the other tensors of which a rank has found
/// one.
/// @par Collective  yes; blocks
ZERO_APART [[nodiscard]] ZERO_COLD std::string not_finite(Parts& parts, RankWords const& ranks);

/// Which gradients some ranks gave, and about which others were told nothing: the first tensor.
/// @param all  what each rank said of each tensor
ZERO_APART [[nodiscard]] ZERO_COLD std::string forgotten(std::vector<std::int64_t> const& all,
                                                         std::vector<Tensor> const& tensors);

/// The first tensor about which no rank said anything, and its unit, where that is why a step
/// failed, and the tensor is one of this optimizer's; else nothing.
ZERO_APART [[nodiscard]] ZERO_COLD std::string unsaid_values(Parts const& parts,
                                                             StepFailure failure);

/// Why a step failed that these optimizers took together, in words of all ranks; of this rank alone
/// if some have reported an earlier failure, and know nothing of this one. The first of them that
/// has to do with it is named.
/// @par Collective  yes; blocks
ZERO_APART [[nodiscard]] ZERO_COLD Error explain_failure(std::span<Parts* const> stepped,
                                                         StepFailure failure);

#if ZERO_BODIES

ZERO_APART [[nodiscard]] ZERO_COLD bool are_finite(Parts& parts,
                                                   std::size_t kind,
                                                   Array gradients,
                                                   std::uint64_t count);
ZERO_BODY bool are_finite(Parts& parts, std::size_t kind, Array gradients, std::uint64_t count) {
  ExactSum sum;
  ExactSum* const squares = &parts.control->squares;
  parts.space().zero(squares, sizeof(sum));
  parts.kernels.of(kind).add_squares(squares, gradients.first, static_cast<std::size_t>(count));
  parts.space().download(&sum, squares, sizeof(sum));
  return ExactSum::finite(sum.words());
}

/// What a rank has found in its share.
struct FoundElement {
  std::int64_t tensor = -1;  ///< the first with a sum that is not finite; below 0 if there is none
  std::int64_t element = 0;  ///< the first of that tensor
  std::int64_t model_part = 0;  ///< the rank's place on the model axis
};

ZERO_APART [[nodiscard]] ZERO_COLD FoundElement first_not_finite(Parts& parts);
ZERO_BODY FoundElement first_not_finite(Parts& parts) {
  Ranks const* const model = parts.groups.model();
  FoundElement first{.model_part = model == nullptr ? 0 : model->rank()};
  parts.partition.for_each_bucket([&](BucketSpan const& bucket) {
    Array const share = parts.reduction.own(bucket);
    Range const range = bucket.share(parts.comm().rank());
    parts.partition.for_each_segment(range, [&](Segment const& piece) {
      auto const tensor = static_cast<std::int64_t>(piece.tensor);
      if (first.tensor >= 0 && first.tensor <= tensor) return;
      Array const run = share.from(piece.in_range);
      if (are_finite(parts, bucket.kind(), run, piece.count)) return;
      std::uint64_t begin = 0;
      for (std::uint64_t count = piece.count; count > 1;) {
        std::uint64_t const front = count / 2;
        bool const later = are_finite(parts, bucket.kind(), run.from(begin), front);
        if (later) begin += front;
        count = later ? count - front : front;
      }
      first.tensor = tensor;
      first.element = static_cast<std::int64_t>(piece.in_tensor.offset() + begin);
    });
  });
  return first;
}

enum class Brought : std::int64_t { unknown, finite, not_finite };

/// What this rank brought to the sum of an element that another rank owns.
ZERO_APART [[nodiscard]] ZERO_COLD Brought brought(Parts& parts, FoundElement const& found);
ZERO_BODY Brought brought(Parts& parts, FoundElement const& found) {
  using Form = StorageForm;
  auto const t = static_cast<std::size_t>(found.tensor);
  bool const kept =
      parts.form.reduced == Form::Reduced::in_place || parts.form.reduced == Form::Reduced::lent;
  // Where all ranks update everything, a space that queues its work has gathered the sums by now.
  bool const gathered =
      parts.form.update == Form::Update::whole && !parts.space().host_accessible();
  if (!kept || gathered) return Brought::unknown;
  // Then the memory may hold anything.
  if (parts.presence.empty(parts.partition.place(t).storage, true)) return Brought::finite;
  Elements const full = parts.gradients.tensor(t);
  auto const element = static_cast<std::uint64_t>(found.element);
  if (element >= full.count) return Brought::unknown;
  std::size_t const kind = parts.partition.place(t).kind;
  Array const all{static_cast<std::byte*>(full.first), parts.gradients.dtype(kind)};
  return are_finite(parts, kind, all.from(element), 1) ? Brought::finite : Brought::not_finite;
}

/// What one optimizer has to do with it: options or tensors; nothing, if nothing.
ZERO_APART [[nodiscard]] ZERO_COLD std::string failure_values(Parts& parts, StepFailure failure);
ZERO_BODY std::string failure_values(Parts& parts, StepFailure failure) {
  std::int64_t failed_before = 0;
  parts.space().download(
      &failed_before, parts.control->words + StepControl::failed_word, sizeof(failed_before));
  if (failed_before != 0) return {};
  if (failure == StepFailure::unsaid) return unsaid_values(parts, failure);
  RankWords const ranks(parts.groups.world(), parts.arena);
  if (failure == StepFailure::not_finite) return not_finite(parts, ranks);
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
  constexpr std::string_view unsaid[] = {"fail", "zeros", "rest"};
  Fingerprint record;
  record.add(options, "the call", std::string_view(decide.options.known ? "step" : "grad_norm"));
  record.add(options, "optimizers that step together", static_cast<double>(decide.together));
  record.add(calls, "learning_rate", decide.options.known ? rate : 0.);
  record.add(options, "max_norm", decide.max_norm);
  record.add(options, "scale", decide.scale);
  record.add(options, "non_finite", std::string_view(decide.skip_non_finite ? "skip" : "fail"));
  record.add(options, "unsaid", unsaid[static_cast<std::size_t>(decide.unsaid)]);
  record.add(options, "count", static_cast<double>(decide.count));
  record.add(options, "floating-point mode", mode.text());
  record.add_hash({}, "rules of tensors", decide.rules);
  return record;
}

ZERO_BODY std::string unsaid_values(Parts const& parts, StepFailure failure) {
  std::int32_t const first = parts.outcome.get().unsaid;
  if (failure != StepFailure::unsaid || first == 0) return {};
  Tensor const& tensor = parts.tensors[static_cast<std::size_t>(first - 1)];
  return Message({"tensor '", tensor.name, "' of unit ", tensor.unit}).text();
}

ZERO_BODY std::string not_finite(Parts& parts, RankWords const& ranks) {
  FoundElement const own = first_not_finite(parts);
  auto const words = ranks.gather(std::array{own.tensor, own.element, own.model_part});
  std::vector<FoundElement> all(words.size() / 3);
  auto const place = [](FoundElement const& one) {
    // The largest of all, where nothing was found.
    return std::pair(static_cast<std::uint64_t>(one.tensor), one.element);
  };
  std::size_t owner = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::int64_t const* const said = &words[3 * rank];
    all[rank] = {said[0], said[1], said[2]};
    if (place(all[rank]) < place(all[owner])) owner = rank;
  }
  FoundElement const& first = all[owner];
  if (first.tensor < 0) return {};
  // Ranks with other parts of the model had nothing to do with it.
  bool const other =
      static_cast<std::size_t>(ranks.rank()) != owner && own.model_part == first.model_part;
  auto const mine = static_cast<std::int64_t>(other ? brought(parts, first) : Brought::unknown);
  std::string text = Message({": first element ",
                              first.element,
                              " of '",
                              parts.tensors[static_cast<std::size_t>(first.tensor)].name,
                              "', which rank ",
                              owner,
                              " owns"})
                         .text();
  std::string from;
  int finite = 0;
  int others = -1;
  auto const answers = ranks.gather({&mine, 1});
  std::vector<std::size_t> more;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    auto const answer = static_cast<Brought>(answers[rank]);
    if (answer == Brought::not_finite) from += Message({" ", rank}).text();
    finite += answer == Brought::finite;
    others += all[rank].model_part == first.model_part;
    if (all[rank].tensor > first.tensor) {
      more.push_back(static_cast<std::size_t>(all[rank].tensor));
    }
  }
  if (!from.empty()) {
    text += "; it came from the gradients of rank" + from;
  } else if (finite > 0 && finite == others) {
    text += "; the gradients of all other ranks are finite there";
  }
  sort_indices(more, [](std::size_t a, std::size_t b) { return a < b; });
  more.erase(std::unique(more.begin(), more.end()), more.end());
  for (std::size_t const t : more) {
    text += Message({t == more.front() ? "; also in '" : ", '", parts.tensors[t].name, "'"}).text();
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
