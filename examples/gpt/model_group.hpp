/// @file
/// The ranks that hold a model together, and all that the model asks of them.
#pragma once

#include "tensors.hpp"
#include "zero/base/dtype.hpp"
#include "zero/concepts/communicator.hpp"

#include <cstddef>
#include <functional>
#include <span>

namespace gpt {

/// Model-parallel ranks, over any communicator of the library. Its functions are collective, and
/// block; they move nothing in a group of one.
class ModelGroup {
 public:
  /// One rank that holds the whole model.
  ModelGroup() = default;

  /// The ranks of `comm`, which must outlive the group.
  template <zero::Communicator C>
    requires(C::Space::host_accessible)
  explicit ModelGroup(C& comm)
      : place_{comm.rank(), comm.size()},
        run_([&comm](zero::Collective const& collective) { zero::run(comm, collective); }) {}

  [[nodiscard]] ModelRank const& place() const noexcept { return place_; }

  /// Replaces the values by their sums over the ranks: the same bits on all of them.
  /// @throws zero::Error  a rank disagrees or has failed
  template <class Real>
  void all_reduce(std::span<Real> values) const {
    if (place_.size == 1) return;
    run_({.op = zero::Op::all_reduce,
          .dtype = zero::dtype_of<Real>,
          .accumulate = zero::dtype_of<Real>,
          .count = values.size(),
          .send = values.data(),
          .recv = values.data()});
  }

  /// Of one block per rank, of equal sizes, fills in those of the others.
  /// @throws zero::Error  a rank disagrees or has failed
  template <class Real>
  void all_gather(std::span<Real> blocks) const {
    if (place_.size == 1) return;
    std::size_t const count = blocks.size() / static_cast<std::size_t>(place_.size);
    run_({.op = zero::Op::all_gather,
          .dtype = zero::dtype_of<Real>,
          .accumulate = zero::dtype_of<Real>,
          .count = count,
          .send = blocks.data() + count * static_cast<std::size_t>(place_.rank),
          .recv = blocks.data()});
  }

 private:
  ModelRank place_;
  std::function<void(zero::Collective const&)> run_;
};

}  // namespace gpt
