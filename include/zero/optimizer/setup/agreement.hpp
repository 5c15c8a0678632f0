/// @file
/// What construction begins with: all ranks agree on model, policies and values.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/number.hpp"
#include "zero/base/version.hpp"
#include "zero/concepts/bucket.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/prefetch.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/stacked.hpp"
#include "zero/optimizer/setup/fingerprint.hpp"
#include "zero/optimizer/stores/arena.hpp"
#include "zero/precision/loss_scale.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Whether ranks bring the same 64 bits, told by sums, which cost a rank no more for more ranks.
///
/// Each part of 16 bits is added up, and so is its square: N times the sum of the squares is the
/// square of the sum exactly where all parts are equal. Exact up to 2^31 ranks.
struct Unanimity {
  static constexpr std::size_t parts = 4;
  using Words = std::array<std::int64_t, 2 * parts>;

  /// What one rank adds.
  [[nodiscard]] static Words words(std::uint64_t value) noexcept {
    Words words{};
    for (std::size_t i = 0; i < parts; ++i) {
      auto const part = static_cast<std::int64_t>(value >> (16 * i) & 0xffffu);
      words[2 * i] = part;
      words[2 * i + 1] = part * part;
    }
    return words;
  }
  /// Of the sums over so many ranks.
  [[nodiscard]] static bool holds(Words const& sums, std::int64_t ranks) noexcept {
    bool same = true;
    for (std::size_t i = 0; i < parts; ++i) {
      std::int64_t const each = sums[2 * i] / ranks;
      same = same && each * ranks == sums[2 * i] && each * each * ranks == sums[2 * i + 1];
    }
    return same;
  }
};

/// One collective over words of the host.
/// @par Collective  yes; blocks
/// @par Cost        where the host cannot reach the space: memory for all words, until it returns
template <Communicator C, class ArenaT>
ZERO_COLD void exchange_words(C& comm,
                              ArenaT& arena,
                              Op op,
                              std::int64_t const* send,
                              std::int64_t* recv,
                              std::size_t count) {
  if (count == 0) return;
  Collective exchange{.op = op,
                      .dtype = DType::i64,
                      .accumulate = DType::i64,
                      .count = count,
                      .send = send,
                      .recv = recv};
  if constexpr (C::Space::host_accessible) {
    run(comm, exchange);
  } else {
    std::size_t const sent = count * sizeof(std::int64_t);
    std::size_t const received =
        sent * (op == Op::all_gather ? static_cast<std::size_t>(comm.size()) : 1);
    typename ArenaT::Scratch const scratch(arena, sent + received);
    auto* const memory = static_cast<std::byte*>(scratch.data());
    arena.space().upload(memory + received, send, sent);
    exchange.send = memory + received;
    exchange.recv = memory;
    run(comm, exchange);
    arena.space().download(recv, memory, received);
    confirm(comm);
  }
}

/// `exchange_words` of so many words of each rank, as a `Fingerprint` asks for it.
template <Communicator C, class ArenaT>
[[nodiscard]] auto gather_words(C& comm, ArenaT& arena) {
  return [&](std::int64_t const* own, std::size_t count) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()) * count);
    exchange_words(comm, arena, Op::all_gather, own, all.data(), count);
    return all;
  };
}

/// The values behind the policies.
template <class Slots>
struct PolicyValues {
  typename Slots::Precision precision;
  typename Slots::Rule rule;
  typename Slots::Memory memory;
  Bucket bucket;
  Prefetch prefetch;
};

/// The groups that an optimizer is over.
template <Communicator C>
struct Groups {
  C* comm;             ///< that model states are partitioned over: the data axis of a grid
  C* world;            ///< that decides what a step does: all ranks of a grid, else as `comm`
  C* model = nullptr;  ///< the model axis of a grid; null without one

  /// Which rank this is, for errors; on a grid with its place on the axes.
  [[nodiscard]] ZERO_COLD ErrorContext here(std::string_view operation) const {
    ErrorContext here{.rank = world->rank(), .operation = std::string(operation)};
    if (model == nullptr) {
      here.group = group_name(*world);
    } else {
      here.group = Message({"grid (data ",
                            comm->rank(),
                            " of ",
                            comm->size(),
                            ", model ",
                            model->rank(),
                            " of ",
                            model->size(),
                            ")"})
                       .text();
    }
    return here;
  }
};

/// What all ranks have agreed on, and what an optimizer is then assembled from.
template <class Slots>
struct Agreed {
  Groups<typename Slots::Communicator> groups;
  std::vector<Tensor> described;
  Slices slices;
  PolicyValues<Slots> values;
  Partition partition;
};

/// Do all ranks bring the same 64 bits?
/// @par Collective  yes; blocks
/// @par Cost        one all-reduce of 64 bytes
template <Communicator C, class ArenaT>
ZERO_COLD bool unanimous(C& comm, ArenaT& arena, std::uint64_t value) {
  auto words = Unanimity::words(value);
  exchange_words(comm, arena, Op::all_reduce, words.data(), words.data(), words.size());
  return Unanimity::holds(words, comm.size());
}

/// @par Collective  yes; blocks
/// @throws Error (communication) on every rank, naming the field, the values and the ranks
template <Communicator C, class ArenaT>
ZERO_COLD void require_same(Groups<C> const& groups,
                            ArenaT& arena,
                            Fingerprint const& print,
                            std::vector<Tensor> const& tensors) {
  if (unanimous(*groups.world, arena, print.digest())) return;
  print.compare(groups.here("construction"), tensors, gather_words(*groups.world, arena));
}

/// What must be the same on all ranks beside the model.
struct PolicyFacts {
  int world_size = 1;
  std::string_view stage{};
  std::string_view precision{};
  std::string_view rule{};
  std::span<StateArray const> states{};
  double learning_rate = 0.;
  std::vector<RuleField> fields{};  ///< of the rule; its learning rate alone where it has none
  std::string_view accumulation{};
  bool borrowed = false;
  Bucket bucket{};
  Prefetch prefetch{};
  LossScaleOptions const* loss_scale = nullptr;  ///< null where nothing is scaled
};

/// Everything that must be the same on all ranks, by name.
/// @throws Error (invalid_argument) for values that make no sense
ZERO_APART ZERO_COLD Fingerprint fingerprint(PolicyFacts const& facts,
                                             std::vector<Tensor> const& tensors,
                                             Partition const& partition);

/// Agrees with all ranks on what an optimizer is made of.
/// @par Collective  yes; blocks
/// @par Cost        one all-reduce of 64 bytes; where ranks differ, two gathers of about 1 KB per
///   rank to say how
/// @throws Error (communication) on every rank, naming the field, the values and the ranks;
///   (invalid_argument) for a model or values that make no sense
template <class Slots>
ZERO_COLD Agreed<Slots> agree(Groups<typename Slots::Communicator> const& groups,
                              std::vector<Tensor> described,
                              PolicyValues<Slots> values,
                              PartitionOptions const& options) {
  PolicyFacts facts{.world_size = groups.comm->size(),
                    .stage = Slots::Stage::name,
                    .precision = Slots::Precision::name,
                    .rule = Slots::Rule::name,
                    .states = Slots::Rule::states,
                    .learning_rate = values.rule.lr,
                    .accumulation = Slots::Accumulation::name,
                    .borrowed = Slots::Memory::borrowed,
                    .bucket = values.bucket,
                    .prefetch = values.prefetch};
  if constexpr (Slots::Precision::loss_scaled) facts.loss_scale = &values.precision.loss_scale;
  if constexpr (DescribedRule<typename Slots::Rule>) {
    for (RuleField const& field : values.rule.fields()) facts.fields.push_back(field);
  }
  if (facts.loss_scale != nullptr) require_valid(*facts.loss_scale);
  Slices slices = take_apart(described);
  std::vector<Tensor> const& tensors = slices.tensors;
  Partition partition(tensors, options);
  Arena<decltype(Slots::Memory::allocator), typename Slots::Space> scratch(values.memory.allocator,
                                                                           space_of(*groups.comm));
  require_same(groups, scratch, fingerprint(facts, tensors, partition), tensors);
  return {groups, std::move(described), std::move(slices), std::move(values), std::move(partition)};
}

#if ZERO_BODIES

ZERO_BODY Fingerprint fingerprint(PolicyFacts const& facts,
                                  std::vector<Tensor> const& tensors,
                                  Partition const& partition) {
  Fingerprint print;
  print.add(
      "library version",
      std::int64_t{version.major} * 1000000 + std::int64_t{version.minor} * 1000 + version.patch);
  print.add("world size", std::int64_t{facts.world_size});
  print.add("stage", facts.stage);
  print.add("precision", facts.precision);
  print.add("rule", facts.rule);
  std::string states;
  for (StateArray const& state : facts.states) {
    states += Message({states.empty() ? "" : ", ", state.name}).text();
  }
  print.add("the rule's states", states);
  print.add("accumulation", facts.accumulation);
  print.add("memory", std::string_view(facts.borrowed ? "borrowed" : "owned"));
  // Ranks whose kernels fuse multiplications differently would drift apart in the last bit.
  print.add("the compiler's flags", std::string_view(ZERO_TEXT(ZERO_NAMESPACE)));
  print.add("bucket bytes", static_cast<std::int64_t>(facts.bucket.bytes));
  print.add("prefetch depth", std::int64_t{facts.prefetch.depth});
  if (facts.loss_scale != nullptr) {
    print.add({}, "initial loss scale", double{facts.loss_scale->initial});
    print.add({}, "loss scale growth", double{facts.loss_scale->growth});
    print.add("loss scale growth interval", std::int64_t{facts.loss_scale->growth_interval});
    print.add({}, "loss scale backoff", double{facts.loss_scale->backoff});
    print.add({}, "minimum loss scale", double{facts.loss_scale->minimum});
    print.add("loss scale patience", std::int64_t{facts.loss_scale->patience});
  }
  print.add("number of tensors", static_cast<std::int64_t>(tensors.size()));
  print.add("trained elements",
            static_cast<std::int64_t>(partition.placement().trainable_elements()));
  Hash model;
  for (Tensor const& tensor : tensors) model.add(hash_of(tensor));
  print.add_hash({}, "the model", model.value());
  require_number({"rule.lr"}, facts.learning_rate, 0.);
  if (facts.fields.empty()) print.add("rule.", "lr", facts.learning_rate);
  for (RuleField const& field : facts.fields) {
    require_number({"rule.", field.name}, field.value, field.low, field.below);
    print.add("rule.", field.name, field.value);
  }
  return print;
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
