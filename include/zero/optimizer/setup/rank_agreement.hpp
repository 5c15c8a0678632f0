/// @file
/// What construction begins with: all ranks agree on model, policies and values.
#pragma once

#include "zero/base/compare_fields.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/float_mode.hpp"
#include "zero/base/number.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/stacked.hpp"
#include "zero/optimizer/held/arena.hpp"
#include "zero/optimizer/setup/fingerprint.hpp"
#include "zero/optimizer/setup/plan_of.hpp"
#include "zero/optimizer/setup/rank_words.hpp"
#include "zero/optimizer/tables/communicator_calls.hpp"
#include "zero/optimizer/tables/engine_setup.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The groups that an optimizer is over.
class RankGroups {
 public:
  ZERO_APART ZERO_COLD explicit RankGroups(EngineSetup const& setup);

  /// That model states are partitioned over: the data axis of a grid.
  [[nodiscard]] Ranks& comm() noexcept { return comm_; }
  [[nodiscard]] Ranks const& comm() const noexcept { return comm_; }
  /// That decides what a step does: all ranks of a grid, else as `comm`.
  [[nodiscard]] Ranks& world() noexcept { return world_ ? *world_ : comm_; }
  /// The model axis of a grid; null without one.
  [[nodiscard]] Ranks* model() noexcept { return model_ ? &*model_ : nullptr; }
  [[nodiscard]] Ranks const* model() const noexcept { return model_ ? &*model_ : nullptr; }

  /// Which rank this is, for errors; on a grid with its place on the axes.
  ZERO_APART [[nodiscard]] ZERO_COLD ErrorContext here(std::string_view operation);

 private:
  Ranks comm_;
  std::optional<Ranks> world_;
  std::optional<Ranks> model_;
};

/// What all ranks have agreed on, and what an optimizer is then assembled from.
struct Agreed {
  EngineSetup setup;
  RankGroups groups;
  std::vector<Tensor> described;
  Slices slices;
  Partition partition;
  KindTypes types;
};

/// @par Collective  yes; blocks
/// @throws Error (communication) on every rank, naming the field, the values and the ranks
ZERO_APART ZERO_COLD void require_same(RankGroups& groups,
                                       Arena& arena,
                                       Fingerprint const& record,
                                       std::vector<Tensor> const& tensors);

/// Everything that must be the same on all ranks, by name.
/// @throws Error (invalid_argument) for values that make no sense
ZERO_APART [[nodiscard]] ZERO_COLD Fingerprint fingerprint(EngineSetup const& setup,
                                                           std::vector<Tensor> const& tensors);

/// Agrees with all ranks on what an optimizer is made of.
/// @par Collective  yes; blocks
/// @par Cost        one all-reduce of 64 bytes; where ranks differ, gathers of about 1 KB per rank
///   and of 8 bytes for each tensor, to say how
/// @throws Error (communication) on every rank, naming the field, the values and the ranks;
///   (invalid_argument) for a model or values that make no sense
ZERO_APART [[nodiscard]] ZERO_COLD Agreed agree(EngineSetup const& setup,
                                                std::vector<Tensor> described);

#if ZERO_BODIES

ZERO_BODY RankGroups::RankGroups(EngineSetup const& setup) : comm_(setup.comm) {
  if (setup.world.comm != setup.comm.comm) world_.emplace(setup.world);
  if (setup.model.comm != nullptr) model_.emplace(setup.model);
}

ZERO_BODY ErrorContext RankGroups::here(std::string_view operation) {
  ErrorContext here{.rank = world().rank(), .operation = std::string(operation)};
  if (!model_) {
    here.group = world().name();
  } else {
    here.group = Message({"grid (data ",
                          comm_.rank(),
                          " of ",
                          comm_.size(),
                          ", model ",
                          model_->rank(),
                          " of ",
                          model_->size(),
                          ")"})
                     .text();
  }
  return here;
}

ZERO_BODY void require_same(RankGroups& groups,
                            Arena& arena,
                            Fingerprint const& record,
                            std::vector<Tensor> const& tensors) {
  RankWords const words(groups.world(), arena);
  if (words.unanimous(record.digest())) return;
  record.compare(groups.here("construction"), tensors, words);
}

ZERO_BODY Agreed agree(EngineSetup const& setup, std::vector<Tensor> described) {
  if (setup.loss_scale != nullptr) require_valid(*setup.loss_scale);
  RankGroups groups(setup);
  Slices slices = take_apart(described);
  // To name the type that a tensor has anyway says nothing, to other ranks or in files.
  for (Tensor& tensor : slices.tensors) {
    if (tensor.dtype == setup.policies.types.front().parameter) tensor.dtype.reset();
  }
  TypedPartition model =
      partition_of(setup.policies, setup.comm.size, setup.bucket, slices.tensors);
  Arena scratch(setup.allocator, AnySpace(*setup.space_calls, setup.space));
  require_same(groups, scratch, fingerprint(setup, slices.tensors), slices.tensors);
  if (described.empty()) {
    fail(ErrorKind::invalid_argument, "the model has no tensors, so that nothing can be trained");
  }
  return {setup,
          std::move(groups),
          std::move(described),
          std::move(slices),
          std::move(model.partition),
          std::move(model.types)};
}

ZERO_BODY Fingerprint fingerprint(EngineSetup const& setup, std::vector<Tensor> const& tensors) {
  PolicyFacts const& facts = setup.policies;
  Fingerprint record;
  record.add("library version", version_number);
  record.add("world size", std::int64_t{setup.comm.size});
  record.add("stage", facts.stage);
  record.add("precision", facts.precision);
  record.add("rule", setup.rule_calls->name);
  std::string states;
  for (StateArray const& state : setup.rule_calls->states) {
    states += Message({states.empty() ? "" : ", ", state.name}).text();
  }
  record.add("the rule's states", states);
  record.add("accumulation", facts.accumulation);
  record.add("memory", facts.memory());
  // Ranks whose kernels fuse multiplications differently would drift apart in the last bit.
  record.add("the compiler's flags",
             std::string_view(ZERO_TEXT(ZERO_SHARED_NAMESPACE) ZERO_FLAGS_AS_TEXT));
  record.add("the floating-point mode", FloatMode::now().text());
  record.add("bucket bytes", static_cast<std::int64_t>(setup.bucket.bytes));
  record.add("prefetch depth", std::int64_t{setup.prefetch.depth});
  record.add("overflow", setup.overflow == Overflow::refuse ? "refuse" : "saturate");
  if (facts.random()) record.add("seed", setup.seed.value);
  if (setup.loss_scale != nullptr) {
    record.add({}, "initial loss scale", double{setup.loss_scale->initial});
    record.add({}, "loss scale growth", double{setup.loss_scale->growth});
    record.add("loss scale growth interval", std::int64_t{setup.loss_scale->growth_interval});
    record.add({}, "loss scale backoff", double{setup.loss_scale->backoff});
    record.add({}, "minimum loss scale", double{setup.loss_scale->minimum});
    record.add("loss scale patience", std::int64_t{setup.loss_scale->patience});
  }
  Hash model;
  model.add(tensors.size());
  for (Tensor const& tensor : tensors) model.add(hash_of(tensor));
  record.add_hash({}, "the model", model.value());
  require_number({"rule.lr"}, setup.rule_calls->rate(setup.rule), 0.);
  auto const add = [&](RuleField const& field) {
    require_number({"rule.", field.name}, field.value, field.low, field.below);
    record.add("rule.", field.name, field.value);
  };
  setup.rule_calls->fields(setup.rule, FunctionRef<void(RuleField const&)>(add));
  return record;
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
