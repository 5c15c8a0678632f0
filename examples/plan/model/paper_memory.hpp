/// @file
/// The paper's memory formulas, in exact integers, and the rules by which its tables are printed.
///
/// | paper | here                                                     |
/// |-------|----------------------------------------------------------|
/// | Ψ     | `parameters`: elements that are trained                  |
/// | N_d   | `ranks`: ranks that share the optimizer states           |
/// | K     | `ModelStates::optimizer`: 12 for mixed-precision Adam    |
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/model_states.hpp"
#include "zero/layout/sharding.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>

namespace plan {

using namespace zero;

/// A number of bytes that need not be whole, since N need not divide anything:
/// whole + numerator / denominator, in lowest terms, so that `==` compares values.
struct ExactBytes {
  std::uint64_t whole = 0;        ///< rounded down
  std::uint64_t numerator = 0;    ///< less than `denominator`
  std::uint64_t denominator = 1;  ///< a divisor of N
  friend constexpr bool operator==(ExactBytes const&, ExactBytes const&) = default;
};

/// Model states of one element, split by what a stage does with them.
struct SplitStates {
  std::uint64_t replicated = 0;
  std::uint64_t sharded = 0;
};

[[nodiscard]] constexpr SplitStates split(Sharding sharding, ModelStates const& states) {
  SplitStates result;
  auto const put = [&](bool sharded, std::uint64_t bytes) {
    std::uint64_t& sum = sharded ? result.sharded : result.replicated;
    sum = checked_add(sum, bytes);
  };
  put(sharding.parameters, states.parameter);
  put(sharding.gradients, states.gradient);
  put(sharding.optimizer, states.optimizer);
  return result;
}

constexpr void require_ranks(std::uint64_t ranks) {
  if (ranks == 0) fail(ErrorKind::invalid_argument, "the memory model needs at least 1 rank");
}

/// Bytes of model states that one rank holds, before padding, pools and buckets.
///
/// With p, g and K the bytes of `states`:
///   | sharding     | bytes per rank       |
///   |--------------|----------------------|
///   | none         | (p + g + K)Ψ         |
///   | Pos          | (p + g)Ψ + KΨ/N      |
///   | Pos+g        | pΨ + (g + K)Ψ/N      |
///   | Pos+g+p      | (p + g + K)Ψ/N       |
/// @throws Error (invalid_argument) for 0 ranks, and if a size does not fit in 64 bits
/// @par Source  ZeRO §5, Figure 1
[[nodiscard]] constexpr ExactBytes model_state_bytes(std::uint64_t parameters,
                                                     std::uint64_t ranks,
                                                     Sharding sharding,
                                                     ModelStates const& states = {}) {
  require_ranks(ranks);
  SplitStates const element = split(sharding, states);
  std::uint64_t const shared = checked_mul(parameters, element.sharded);
  std::uint64_t const common = std::gcd(shared % ranks, ranks);
  return {.whole = checked_add(checked_mul(parameters, element.replicated), shared / ranks),
          .numerator = shared % ranks / common,
          .denominator = ranks / common};
}

/// The largest number of parameters whose model states fit into `memory_bytes` on each of `ranks`
/// ranks: the inverse of `model_state_bytes`, rounded down.
/// @throws Error (invalid_argument) for 0 ranks, for states of 0 bytes, and if a number does not
///   fit in 64 bits
/// @par Source  ZeRO §5.4, Table 2
[[nodiscard]] constexpr std::uint64_t largest_model(std::uint64_t memory_bytes,
                                                    std::uint64_t ranks,
                                                    Sharding sharding,
                                                    ModelStates const& states = {}) {
  require_ranks(ranks);
  SplitStates const element = split(sharding, states);
  // aΨ + bΨ/N <= M exactly where Ψ <= MN / (aN + b). M is divided first so that MN, which may not
  // fit, is never formed.
  std::uint64_t const divisor =
      checked_add(checked_mul(element.replicated, ranks), element.sharded);
  if (divisor == 0) {
    fail(ErrorKind::invalid_argument, "model states of 0 bytes: any model fits");
  }
  std::uint64_t const rest = checked_mul(memory_bytes % divisor, ranks) / divisor;
  return checked_add(checked_mul(memory_bytes / divisor, ranks), rest);
}

/// How the paper prints its numbers. Its tables mix two roundings; these functions state which.
/// A gigabyte is 10^9 bytes, a billion parameters 10^9.
namespace paper {

inline constexpr std::uint64_t billion = 1'000'000'000;

/// `scaled` / 10^decimals, without the zeros that would end the fraction.
[[nodiscard]] inline std::string decimal(std::uint64_t scaled, int decimals) {
  while (decimals > 0 && scaled % 10 == 0) {
    scaled /= 10;
    --decimals;
  }
  std::string digits = std::to_string(scaled);
  if (decimals == 0) return digits;
  auto const fraction = static_cast<std::size_t>(decimals);
  if (digits.size() <= fraction) digits.insert(0, fraction + 1 - digits.size(), '0');
  return digits.insert(digits.size() - fraction, 1, '.');
}

/// Gigabytes with that many decimals, half rounded up. A fraction of a byte cannot decide: half of
/// the last digit printed is a whole number of bytes.
[[nodiscard]] inline std::string gigabytes(std::uint64_t bytes, int decimals) {
  std::uint64_t unit = billion;
  for (int d = 0; d < decimals; ++d) unit /= 10;
  std::uint64_t const up = bytes % unit >= unit / 2 ? 1 : 0;
  return decimal(bytes / unit + up, decimals);
}

/// A cell of Table 1: gigabytes per device.
///
/// Rule: from 100 GB on an integer, truncated; below that three digits (one decimal from 10 GB on,
/// two below 10 GB), half rounded up, zeros at the end of the fraction dropped. 46 of the paper's
/// 54 cells agree with rounding everywhere; the truncation accounts for the other 8.
[[nodiscard]] inline std::string table_1(ExactBytes const& bytes) {
  std::uint64_t const whole = bytes.whole;
  if (whole >= 100 * billion) return std::to_string(whole / billion);
  return gigabytes(whole, whole >= 10 * billion ? 1 : 2);
}

/// A number of Figure 1: gigabytes per device, one decimal, half rounded up, ".0" dropped.
[[nodiscard]] inline std::string figure_1(ExactBytes const& bytes) {
  return gigabytes(bytes.whole, 1);
}

/// A cell of Table 2's theory: the largest model on groups of `model_parallel` devices, one group
/// for each data-parallel rank, where `largest` parameters fit on one device.
///
/// Rule: the number for one device is truncated to 0.1 billion and then multiplied by
/// `model_parallel`; from 500 billion on the product is given in trillions, truncated to 0.1;
/// ".0" is dropped.
/// @throws Error (invalid_argument) if the product does not fit in 64 bits
[[nodiscard]] inline std::string table_2(std::uint64_t largest, std::uint64_t model_parallel) {
  std::uint64_t const tenths = checked_mul(largest / (billion / 10), model_parallel);
  if (tenths >= 5000) return decimal(tenths / 1000, 1) + "T";
  return decimal(tenths, 1) + "B";
}

}  // namespace paper

}  // namespace plan
