/// @file
/// The largest model, and the largest batch, that fit into the memory of a device.
#pragma once

#include "device.hpp"
#include "transformer.hpp"
#include "zero/base/error.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace plan {

using namespace zero;

namespace detail {

/// The last number of [1, most] that fits, where all before it do; 0 if none does. Tries small ones
/// first, since large ones take longer.
template <class Fits>
[[nodiscard]] std::uint64_t last_that_fits(std::uint64_t most, Fits const& fits) {
  std::uint64_t found = 0;
  std::uint64_t too_many = most + 1;
  while (found + 1 < too_many) {
    std::uint64_t const next = too_many > most
                                   ? (std::min)((std::max)(2 * found, std::uint64_t{1}), most)
                                   : found + (too_many - found) / 2;
    (fits(next) ? found : too_many) = next;
  }
  return found;
}

}  // namespace detail

/// The most sequences in a micro-batch with which a setup fits; 0 if not even one does.
/// @param setup   what is planned; its batch is not read
/// @param budget  bytes of a device
/// @par Cost  some twenty plans of activations, and one of the optimizer
[[nodiscard]] inline std::uint64_t largest_batch(Setup setup, std::uint64_t budget) {
  setup.batch = 1;
  DevicePlan plan = plan_device(setup);
  return detail::last_that_fits(std::uint64_t{1} << 24, [&](std::uint64_t batch) {
    setup.batch = batch;
    detail::plan_activations(setup, plan);
    return plan.total_bytes() <= budget;
  });
}

/// The same model with as many blocks as fit, of at most 16384; `layers` is 0 if not even one does.
/// @param setup   what is planned; its number of blocks is not read
/// @param budget  bytes of a device
/// @par Cost  some twenty plans
[[nodiscard]] inline Transformer largest_depth(Setup setup, std::uint64_t budget) {
  Transformer found = setup.model;
  found.layers = static_cast<int>(detail::last_that_fits(16384, [&](std::uint64_t layers) {
    setup.model.layers = static_cast<int>(layers);
    return plan_device(setup).total_bytes() <= budget;
  }));
  return found;
}

/// The largest model of the shapes that `transformer_of` gives that fits, among sizes in steps of
/// 0.1 % from 0.1 billion parameters (more for more than 30,000 words) up to 10 million times that;
/// `layers` is 0 if none does. Sizes whose heads the model-parallel ranks cannot share are passed
/// over.
/// @param setup   what is planned; of its model, vocab and sequence are read
/// @param budget  bytes of a device
/// @par Cost  some thirty plans
[[nodiscard]] inline Transformer largest_size(Setup setup, std::uint64_t budget) {
  Transformer found = setup.model;
  found.layers = 0;
  // The number of the size; a width is left out as a whole, so that what fits stays a beginning.
  std::uint64_t const sizes = 16000;
  auto const rows = static_cast<double>(setup.model.vocab + setup.model.sequence);
  double const smallest = (std::max)(1e8, rows * 3072.);
  static_cast<void>(detail::last_that_fits(sizes, [&](std::uint64_t size) {
    setup.model =
        transformer_of(smallest * std::pow(1.001, static_cast<double>(size)), setup.model);
    if (setup.model.heads % static_cast<std::size_t>(setup.model_parallel) != 0) return true;
    bool const fits = plan_device(setup).total_bytes() <= budget;
    if (fits) found = setup.model;
    return fits;
  }));
  return found;
}

}  // namespace plan
