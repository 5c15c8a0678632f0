#pragma once

#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace gpt {

/// Draws an index from softmax(logits / temperature) by the uniform number `chance` in [0, 1).
/// Temperature 0 takes the largest score.
/// @throws std::invalid_argument  no logits, or a negative temperature
template <class Real>
[[nodiscard]] std::size_t choose(std::span<Real const> logits, double temperature, double chance) {
  if (logits.empty() || !(temperature >= 0)) {
    throw std::invalid_argument("gpt: needs logits and a temperature of at least 0");
  }
  auto const top = std::ranges::max_element(logits);
  auto const best = static_cast<std::size_t>(std::distance(logits.begin(), top));
  if (temperature == 0) return best;
  auto const weight = [&](Real logit) {
    return std::exp(static_cast<double>(logit - *top) / temperature);
  };
  double total = 0;
  for (Real const logit : logits) total += weight(logit);
  double left = chance * total;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    left -= weight(logits[i]);
    if (left < 0) return i;
  }
  return best;  // rounding left a crumb behind the last index
}

/// What to generate.
struct SampleOptions {
  std::string_view prompt = "\n";  ///< must not be empty
  int count = 200;                 ///< bytes to add
  double temperature = 0.8;
  std::uint64_t seed = 0;
};

/// Continues the prompt byte by byte and returns the new bytes only.
///
/// `forward(model)` must run all units forward. Where its weights are sharded it is collective, and
/// so is this function, as it is over the model's group: every rank calls it with the same options
/// and gets the same bytes.
/// @par Cost  `count` forward passes over up to `context` bytes; nothing is cached between them
/// @tparam Network  Gpt, or what has its functions
template <class Network, std::invocable<Network&> Forward>
[[nodiscard]] std::string generate(Network& model,
                                   Forward&& forward,
                                   SampleOptions const& options) {
  if (options.prompt.empty()) throw std::invalid_argument("gpt: the prompt must not be empty");
  std::vector<std::uint8_t> bytes(options.prompt.begin(), options.prompt.end());
  auto const context = static_cast<std::size_t>(model.config().context);
  std::string added;
  for (int i = 0; i < options.count; ++i) {
    std::size_t const seen = std::min(bytes.size(), context);
    model.set_batch(std::span(bytes).last(seen), {}, static_cast<int>(seen));
    std::invoke(forward, model);
    auto const last = model.next_scores();
    double const chance = static_cast<double>(random_bits(options.seed, i) >> 11U) * 0x1p-53;
    auto const next = static_cast<std::uint8_t>(choose(last, options.temperature, chance));
    bytes.push_back(next);
    added.push_back(static_cast<char>(next));
  }
  return added;
}

}  // namespace gpt
