/// @file
/// Initial values into parameters and master weights, without a second copy of either.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/function_ref.hpp"
#include "zero/kernel/hash.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/assembly.hpp"
#include "zero/optimizer/setup/same_values.hpp"
#include "zero/optimizer/stores/host_chunk.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What fills elements [first, first + size) of a tensor.
using ValueSource = FunctionRef<void(Tensor const&, std::size_t first, std::span<float>)>;

/// Brings values to a space, chunk by chunk, rounded on the host.
template <class Space>
class Loader {
 public:
  Loader(Model const& model, Space const& space, ValueSource values)
      : model_(&model), space_(&space), values_(values) {}

  /// Asks for elements [first, first + count) of tensor t.
  /// @param hash  to which theirs are added, or null
  /// @param to    where they go, once for each that is not null
  template <class... T>
  ZERO_COLD void load(
      std::size_t t, std::uint64_t first, std::uint64_t count, std::uint64_t* hash, T*... to) {
    Slice const& slice = model_->slices[t];
    for (std::uint64_t done = 0; done < count;) {
      std::span<float> const chunk = chunk_.first(count - done);
      values_(model_->described[slice.described],
              static_cast<std::size_t>(slice.first + first + done),
              chunk);
      if (hash != nullptr) {
        kernel::add_hash(hash, chunk.data(), chunk.size(), hash_place(t, first + done));
      }
      ((to != nullptr ? upload(to + done, chunk) : void()), ...);
      done += chunk.size();
    }
  }

 private:
  template <class T>
  void upload(T* to, std::span<float const> chunk) {
    if constexpr (std::is_same_v<T, float>) {
      space_->upload(to, chunk.data(), chunk.size_bytes());
    } else {
      HostChunk<T, Space> memory;
      std::span<T> const rounded = memory.first(chunk.size());
      for (std::size_t i = 0; i < chunk.size(); ++i) rounded[i] = T(chunk[i]);
      space_->upload(to, rounded.data(), rounded.size_bytes());
    }
  }

  Model const* model_;
  Space const* space_;
  ValueSource values_;
  HostChunk<float, Space> chunk_;
};

/// Asks for what this rank holds: its parameters, then its master weights, then frozen tensors.
/// Where it holds its share alone it also asks for that of the next rank, so that every value that
/// is stored somewhere was given by two ranks. Where they differ, all is asked for again, tensor by
/// tensor, to say where. Collective.
/// @param kept       tensors that stay as they are; null for none
/// @param all_asked  called once this rank has asked for all, before ranks compare
template <class Slots>
ZERO_COLD void load(Assembly<Slots>& parts,
                    ValueSource values,
                    std::vector<bool> const* kept,
                    FunctionRef<void()> all_asked) {
  constexpr bool share = Slots::form.parameters == StorageForm::Parameters::share;
  using Parameter = typename Slots::Parameter;
  Partition const& partition = parts.partition;
  int const rank = parts.comm->rank();
  int const ranks = parts.comm->size();
  Loader<typename Slots::Space> loader(parts, parts.space(), values);
  auto const ask = [&](bool stores, auto const& own, auto const& next) {
    auto const range = [&](Range asked, auto const& address, auto const& hash) {
      partition.for_each_segment(asked, [&](Segment const& piece) {
        if (kept != nullptr && (*kept)[piece.tensor]) return;
        loader.load(piece.tensor,
                    piece.in_tensor.offset(),
                    piece.count,
                    hash(piece.tensor),
                    address(piece));
      });
    };
    partition.for_each_bucket([&](BucketSpan const& bucket) {
      auto const segment = [&](Segment const& piece) {
        return stores ? parts.parameters.segment(bucket, piece) : nullptr;
      };
      range(parts.parameters.held(bucket, rank), segment, own);
      if constexpr (Slots::has_master) {
        auto const master = [&](Segment const& piece) {
          return parts.states.master(bucket, piece, parts.parameters);
        };
        auto const none = [](std::size_t) -> std::uint64_t* { return nullptr; };
        if (stores) range(parts.states.updated(bucket), master, none);
      }
      if (!share || ranks == 1) return;
      auto const nowhere = [](Segment const&) -> Parameter* { return nullptr; };
      range(parts.parameters.held(bucket, (rank + 1) % ranks), nowhere, next);
    });
    for (std::size_t t = 0; t < parts.tensors.size(); ++t) {
      TensorPlace const& place = partition.placement().places()[t];
      if (!place.frozen || place.storage != t || (kept != nullptr && (*kept)[t])) continue;
      std::uint64_t hash = 0;
      loader.load(t, 0, place.count, &hash, stores ? parts.parameters.tensor(t) : nullptr);
      *own(t) += hash;
      *next(t) += hash;
    }
  };
  std::uint64_t own = 0;
  std::uint64_t next = 0;
  ask(
      true, [&](std::size_t) { return &own; }, [&](std::size_t) { return &next; });
  all_asked();
  if (ranks == 1 || same_around(*parts.comm, parts.space(), parts.control, own, share ? next : own))
    return;
  TensorHashes owns(parts.tensors.size());
  TensorHashes nexts(owns);
  ask(
      false, [&](std::size_t t) { return &owns[t]; }, [&](std::size_t t) { return &nexts[t]; });
  refuse_values(*parts.comm, parts.arena, parts.tensors, owns, share ? nexts : owns);
}

/// All tensors, from values that no rank waits for.
template <class Slots>
ZERO_COLD void load(Assembly<Slots>& parts, ValueSource values) {
  auto const go_on = [] {};
  load(parts, values, nullptr, FunctionRef<void()>(go_on));
}

/// Master weights from the parameters as they are.
template <class Slots>
ZERO_COLD void adopt(Assembly<Slots> const& parts) {
  if constexpr (Slots::has_master) {
    parts.partition.for_each_bucket([&](BucketSpan const& bucket) {
      parts.partition.for_each_segment(parts.states.updated(bucket), [&](Segment const& piece) {
        parts.space().convert(parts.states.master(bucket, piece, parts.parameters),
                              parts.parameters.segment(bucket, piece),
                              static_cast<std::size_t>(piece.count));
      });
    });
  }
}

inline void check_value_sizes(std::vector<Tensor> const& tensors,
                              std::span<std::span<float const> const> values) {
  if (tensors.size() != values.size()) {
    fail(ErrorKind::invalid_argument,
         {tensors.size(), " tensors are described but values of ", values.size(), " are given"});
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::uint64_t const count = element_count(tensors[t]);
    if (!tensors[t].tied_to.empty() || values[t].size() == count) continue;
    fail(ErrorKind::invalid_argument,
         {"tensor '",
          tensors[t].name,
          "' has ",
          count,
          " elements, but values for ",
          values[t].size(),
          " are given"});
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
