/// @file
/// Initial values into parameters and master weights, without a second copy of either.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/base/function_ref.hpp"
#include "zero/kernel/element_hash.hpp"
#include "zero/kernel/host_conversion.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/held/host_chunk.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/optimizer/setup/same_values.hpp"
#include "zero/optimizer/setup/value_limits.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Brings values to a space, chunk by chunk, rounded on the host.
class Loader {
 public:
  Loader(Parts& parts, ValueSource values, Overflow overflow)
      : parts_(&parts),
        values_(values),
        overflow_(overflow),
        chunk_(parts.space().host_accessible()),
        rounded_(parts.space().host_accessible()) {
    parts.now.refused = none_refused;
  }

  /// Asks for elements [first, first + count) of tensor t.
  /// @param hash  to which theirs are added, or null
  /// @param to    where they go, unless it is null
  /// @param also  where they go, too, unless it is null
  ZERO_APART ZERO_COLD void load(std::size_t t,
                                 std::uint64_t first,
                                 std::uint64_t count,
                                 std::uint64_t* hash,
                                 Array to,
                                 Array also = {});

 private:
  void upload(Array to,
              MasterForm const* masters,
              DType type,
              std::span<std::byte const> chunk,
              std::size_t count) {
    AnySpace const& space = parts_->space();
    bool const rests = is_rest(to.coding);
    if (to.dtype == type && !rests) return space.upload(to.first, chunk.data(), chunk.size());
    std::span<std::byte> const rounded = rounded_.first(count, to.width());
    if (masters != nullptr) {
      // Of a master's two parts, the one that `to` has.
      void* const parameters = rests ? nullptr : rounded.data();
      masters->split(parameters, rests ? rounded.data() : nullptr, chunk.data(), count);
    } else {
      kernel::convert_on_host(to.dtype, rounded.data(), type, chunk.data(), count);
    }
    space.upload(to.first, rounded.data(), rounded.size());
  }

  Parts* parts_;
  ValueSource values_;
  Overflow overflow_;
  HostChunk chunk_;
  HostChunk rounded_;
};

/// Asks for what this rank holds: its parameters, then its master weights, bucket by bucket, and in
/// the end frozen tensors likewise. Where it holds its share alone it also asks for that of the
/// next rank, so that every value that is stored somewhere was given by two ranks. Where they
/// differ, all is asked for again, tensor by tensor, to say where. Collective.
/// @param overflow   what becomes of values that do not fit
/// @param loaded     tensors that are; null for all
/// @param all_asked  called once this rank has asked for all, before ranks compare
ZERO_APART ZERO_COLD void load(Parts& parts,
                               ValueSource values,
                               Overflow overflow,
                               std::vector<bool> const* loaded,
                               std::optional<FunctionRef<void()>> all_asked = {});

/// Master weights from the parameters as they are.
ZERO_APART ZERO_COLD void adopt(Parts const& parts);

#if ZERO_BODIES

ZERO_BODY void Loader::load(std::size_t t,
                            std::uint64_t first,
                            std::uint64_t count,
                            std::uint64_t* hash,
                            Array to,
                            Array also) {
  Slice const& slice = parts_->slices[t];
  Tensor const& tensor = parts_->described[slice.described];
  DType const type = parts_->value_type(slice.described);
  std::size_t const width = size_of(type);
  MasterForm const* const masters = parts_->types[parts_->kind_of(slice.described)].masters;
  for (std::uint64_t done = 0; done < count;) {
    std::span<std::byte> const chunk = chunk_.first(count - done, width);
    std::size_t const here = chunk.size() / width;
    OwnedRun const run{
        &tensor, static_cast<std::size_t>(slice.first + first + done), here, chunk.data(), {}};
    values_(tensor, run.first, Elements(chunk.data(), here));
    if (!is_integral(type)) fit(*parts_, overflow_, type, run);
    if (hash != nullptr) {
      auto const add = [&](auto const* values) {
        kernel::add_hash(hash, values, here, hash_place(t, first + done));
      };
      // By the width of an element: bits alone count.
      switch (width) {
        case 1: add(reinterpret_cast<std::uint8_t const*>(chunk.data())); break;
        case 4: add(reinterpret_cast<float const*>(chunk.data())); break;
        default: add(reinterpret_cast<double const*>(chunk.data()));
      }
    }
    if (to.first != nullptr) upload(to.from(done), masters, type, chunk, here);
    if (also.first != nullptr) upload(also.from(done), masters, type, chunk, here);
    done += here;
  }
}

ZERO_BODY void load(Parts& parts,
                    ValueSource values,
                    Overflow overflow,
                    std::vector<bool> const* loaded,
                    std::optional<FunctionRef<void()>> all_asked) {
  Partition const& partition = parts.partition;
  int const rank = parts.comm().rank();
  int const ranks = parts.comm().size();
  Loader loader(parts, values, overflow);
  auto const ask = [&](bool stores, auto const& own, auto const& next) {
    auto const asked = [&](std::size_t t) { return loaded == nullptr || (*loaded)[t]; };
    auto const of_bucket = [&](BucketSpan const& bucket) {
      bool const share = parts.parameters.shares(bucket.kind());
      parts.held.of_bucket(bucket, Extent::read, [&](HeldPiece const& piece) {
        std::size_t const t = piece.tensor();
        if (!asked(t)) return;
        Array const to = stores ? piece.parameter() : Array();
        std::uint64_t hash = 0;
        loader.load(t, piece.first(), piece.count(), &hash, to);
        *own(t) += hash;
        // The next rank should have the same.
        if (!share) *next(t) += hash;
      });
      if (parts.types[bucket.kind()].has_master() && stores) {
        parts.held.of_bucket(bucket, Extent::updated, [&](HeldPiece const& piece) {
          if (!asked(piece.tensor())) return;
          loader.load(piece.tensor(), piece.first(), piece.count(), nullptr, piece.master());
        });
      }
      if (!share || ranks == 1) return;
      partition.for_each_segment(bucket.share((rank + 1) % ranks), [&](Segment const& piece) {
        std::size_t const t = piece.tensor;
        if (asked(t)) loader.load(t, piece.in_tensor.offset(), piece.count, next(t), {});
      });
    };
    partition.for_each_bucket(of_bucket);
    partition.for_each_bucket(of_bucket, true);
  };
  std::uint64_t own = 0;
  std::uint64_t next = 0;
  ask(
      true, [&](std::size_t) { return &own; }, [&](std::size_t) { return &next; });
  if (all_asked) (*all_asked)();
  require_fit(parts);
  if (ranks == 1 || same_around(control_words(parts), own, next)) return;
  TensorHashes owns(parts.tensors.size());
  TensorHashes nexts(owns);
  ask(
      false, [&](std::size_t t) { return &owns[t]; }, [&](std::size_t t) { return &nexts[t]; });
  refuse_values(parts.comm(), parts, owns, nexts);
}

ZERO_BODY void adopt(Parts const& parts) {
  parts.held.trained(Extent::updated, [&](HeldPiece const& piece) {
    if (!piece.types().has_master()) return;
    parts.kernels.of(piece.kind())
        .master_from_parameter(piece.master().first, piece.parameter().first, piece.count());
  });
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
