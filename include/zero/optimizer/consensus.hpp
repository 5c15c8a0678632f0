/// @file
/// Builds the fingerprint of one rank's configuration and compares it with everybody's.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/version.hpp"
#include "zero/concepts/bucket.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/prefetch.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/fingerprint.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline v0_1::detail {

/// The words of all ranks, on the host, in the order of ranks.
/// @par Collective  yes; blocks
/// @par Cost        where the host cannot reach the space: memory for all words, until it returns
template <Communicator C, class ArenaT>
ZERO_COLD std::vector<std::int64_t> gather_words(C& comm,
                                                 ArenaT& arena,
                                                 std::int64_t const* own,
                                                 std::size_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()) * count);
  if (all.empty()) return all;
  Collective exchange{.op = Op::all_gather,
                      .dtype = DType::i64,
                      .accumulate = DType::i64,
                      .count = count,
                      .send = own,
                      .recv = all.data()};
  if constexpr (C::Space::host_accessible) {
    run(comm, exchange);
  } else {
    std::size_t const own_bytes = count * sizeof(std::int64_t);
    std::size_t const all_bytes = all.size() * sizeof(std::int64_t);
    typename ArenaT::Scratch const scratch(arena, own_bytes + all_bytes);
    auto* const received = static_cast<std::int64_t*>(scratch.data());
    arena.space().upload(received + all.size(), own, own_bytes);
    exchange.send = received + all.size();
    exchange.recv = received;
    run(comm, exchange);
    arena.space().download(all.data(), received, all_bytes);
    confirm(comm);
  }
  return all;
}

/// Ends construction on every rank if model, policies or values differ on any.
/// @par Collective  yes; blocks
/// @par Cost        one all-gather of about 1 KB per rank
/// @throws Error (communication) on every rank, naming the field, the values and the ranks
template <class Slots, class ArenaT>
ZERO_COLD void require_consensus(typename Slots::Communicator& comm,
                                 ArenaT& arena,
                                 std::vector<Tensor> const& tensors,
                                 Partition const& partition,
                                 typename Slots::Precision const& precision,
                                 typename Slots::Rule const& rule,
                                 Bucket const& bucket,
                                 Prefetch const& prefetch) {
  Fingerprint print;
  print.add(
      "library version",
      std::int64_t{version.major} * 1000000 + std::int64_t{version.minor} * 1000 + version.patch);
  print.add("world size", std::int64_t{comm.size()});
  print.add("stage", std::string_view(Slots::Stage::name));
  print.add("precision", std::string_view(Slots::Precision::name));
  print.add("rule", std::string_view(Slots::Rule::name));
  print.add("accumulation", std::string_view(Slots::Accumulation::name));
  print.add("memory", std::string_view(Slots::borrowed ? "borrowed" : "owned"));
  // Ranks whose kernels fuse multiplications differently would drift apart in the last bit.
  if constexpr (requires { Slots::Space::instruction_set; }) {
    print.add("instruction set of the kernels", std::int64_t{Slots::Space::instruction_set});
  }
  print.add("bucket bytes", static_cast<std::int64_t>(bucket.bytes));
  print.add("prefetch depth", std::int64_t{prefetch.depth});
  if constexpr (Slots::Precision::loss_scaled) {
    print.add({}, "initial loss scale", double{precision.loss_scale.initial});
    print.add({}, "loss scale growth", double{precision.loss_scale.growth});
    print.add("loss scale growth interval", std::int64_t{precision.loss_scale.growth_interval});
    print.add({}, "loss scale backoff", double{precision.loss_scale.backoff});
    print.add({}, "minimum loss scale", double{precision.loss_scale.minimum});
    print.add("loss scale patience", std::int64_t{precision.loss_scale.patience});
  }
  print.add("number of tensors", static_cast<std::int64_t>(tensors.size()));
  print.add("trained elements",
            static_cast<std::int64_t>(partition.placement().trainable_elements()));
  Hash model;
  for (Tensor const& tensor : tensors) model.add(hash_of(tensor));
  print.add_hash("the model", model.value());
  if constexpr (DescribedRule<typename Slots::Rule>) {
    for (RuleField const& field : rule.fields()) {
      print.add("rule.", field.name, field.value);
    }
  } else {
    print.add("rule.", "lr", double{rule.lr});
  }
  print.compare(comm.rank(), tensors, [&](std::int64_t const* own, std::size_t count) {
    return gather_words(comm, arena, own, count);
  });
}

}  // namespace zero::inline v0_1::detail
