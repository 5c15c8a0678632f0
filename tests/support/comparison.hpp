/// @file
/// Compares what a rank has with the reference, bit for bit, in whatever memory it lies.
#pragma once

#include "support/lent_memory.hpp"
#include "support/toy_model.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace toy {

/// How many ranks own each trained element, tensor after tensor.
using Owners = std::vector<std::int64_t>;

/// Are these a tensor's values from `first` on?
template <class T>
bool same_bits(std::span<T const> values, std::vector<T> const& expected, std::size_t first) {
  return values.empty() ||
         std::memcmp(values.data(), expected.data() + first, values.size_bytes()) == 0;
}

/// Are this rank's master weights and states the reference's? Notes in `owners` what it has.
template <class Optimizer, class Expected>
bool owned_match(Optimizer const& optimizer, Expected const& expected, Owners& owners) {
  std::vector<std::size_t> begins;
  std::size_t total = 0;
  for (auto const& tensor : expected.master) {
    begins.push_back(total);
    total += tensor.size();
  }
  owners.assign(total, 0);
  bool match = true;
  optimizer.visit_owned(
      [&](zero::Tensor const& tensor, std::size_t first, auto const& master, auto const& states) {
        auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
        std::size_t const count = expected.master[t].size();
        bool const inside = first <= count && master.size() <= count - first;
        match = match && inside && same_bits(master, expected.master[t], first);
        match = match && states.size() == expected.states.size();
        for (std::size_t k = 0; match && k < states.size(); ++k) {
          match = match && same_bits(states[k], expected.states[k][t], first);
        }
        for (std::size_t i = 0; inside && i < master.size(); ++i) ++owners[begins[t] + first + i];
      });
  return match;
}

/// Does this rank see Parameter(master) of every tensor, and frozen tensors unchanged? Collective
/// where parameters are partitioned.
template <class Optimizer, class Space, class Expected>
bool views_match(Optimizer& optimizer, Space const& space, Expected const& expected) {
  using Parameter = typename Optimizer::Parameter;
  auto const& places = optimizer.partition().placement().places();
  bool match = true;
  for (int const unit : optimizer.units()) {
    auto const weights = optimizer.parameters(unit);
    std::size_t i = 0;
    for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
      if (optimizer.tensors()[t].unit != unit) continue;
      std::vector<Parameter> const view = fetch(space, std::span<Parameter const>(weights[i++]));
      std::size_t const storage = places[t].storage;
      match = match && view.size() == places[t].count;
      for (std::size_t e = 0; match && e < view.size(); ++e) {
        Parameter const wanted = places[t].frozen ? Parameter(initial_value(storage, e))
                                                  : Parameter(expected.master[storage][e]);
        match = std::memcmp(&view[e], &wanted, sizeof(Parameter)) == 0;
      }
    }
  }
  return match;
}

/// Does every element have so many owners in the whole group? Collective.
template <class C, class Allocator>
bool covered(C& comm, Allocator const& allocator, Owners owners, std::int64_t times) {
  auto const space = zero::detail::space_of(comm);
  Buffer<std::int64_t, Allocator> const buffer(allocator, owners.size());
  std::span<std::int64_t> const sums = buffer.span();
  space.upload(sums.data(), owners.data(), sums.size_bytes());
  zero::run(comm,
            {.op = zero::Op::all_reduce,
             .dtype = zero::DType::i64,
             .accumulate = zero::DType::i64,
             .count = sums.size(),
             .send = sums.data(),
             .recv = sums.data()});
  owners = fetch(space, std::span<std::int64_t const>(sums));
  return std::all_of(owners.begin(), owners.end(), [&](auto count) { return count == times; });
}

}  // namespace toy
