/// @file
/// What is said of a measured collective: bandwidths as nccl-tests defines them, and a fit.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::bench {

/// busbw over algbw: the part of the larger buffer that a rank's link has to carry.
[[nodiscard]] constexpr double bus_factor(Op op, int ranks) noexcept {
  double const peers = static_cast<double>(ranks - 1) / ranks;
  if (op == Op::broadcast) return 1.;
  return op == Op::all_reduce ? 2. * peers : peers;
}

/// True if a rank's larger buffer has one block for each rank.
[[nodiscard]] constexpr bool has_block_per_rank(Op op) noexcept {
  return op != Op::all_reduce && op != Op::broadcast;
}

/// Elements of a rank's block where its larger buffer has `bytes`, rounded down, but at least one.
[[nodiscard]] constexpr std::size_t block_count(Op op,
                                                DType dtype,
                                                std::size_t bytes,
                                                int ranks) noexcept {
  std::size_t const blocks = has_block_per_rank(op) ? static_cast<std::size_t>(ranks) : 1;
  return (std::max)(bytes / size_of(dtype) / blocks, std::size_t{1});
}

/// One line of the table. Times are medians over rounds, each of the slowest rank.
struct Row {
  Op op = Op::all_gather;         ///< what was measured
  DType dtype = DType::f32;       ///< of its elements
  int ranks = 1;                  ///< in the group
  bool in_place = false;          ///< by the table of `Collective`
  std::size_t count = 0;          ///< elements of one rank's block
  std::size_t bytes = 0;          ///< of the larger buffer of one rank, nccl-tests' size
  double seconds = 0;             ///< of one collective
  double best_seconds = 0;        ///< in the fastest round
  std::string_view raw{};         ///< what the baseline is called
  double raw_seconds = 0;         ///< of the baseline
  double vs_raw = 0;              ///< speed over the baseline's: median of ratios inside a round
  double best_vs_raw = 0;         ///< the same of the fastest rounds
  double triad_gbs = 0;           ///< of a STREAM triad on all ranks; 0 where none was run
  double best_over_triad = 0;     ///< `traffic` over a triad's, of the fastest rounds
  double typical_over_triad = 0;  ///< the same, the median over rounds
  double wrong = -1;              ///< elements that differ, on all ranks; -1 if nobody looked

  /// GB of the larger buffer per second.
  [[nodiscard]] double algbw() const { return static_cast<double>(bytes) / seconds * 1e-9; }
  /// What a rank's link carries, in GB per second.
  [[nodiscard]] double busbw() const { return algbw() * bus_factor(op, ranks); }
  /// `algbw` of the baseline.
  [[nodiscard]] double raw_gbs() const { return static_cast<double>(bytes) / raw_seconds * 1e-9; }
  /// Bytes that all ranks together have to read and write.
  [[nodiscard]] double traffic() const {
    bool const one_side = op == Op::reduce_scatter || op == Op::broadcast;
    return (one_side ? ranks + 1. : 2. * ranks) * static_cast<double>(bytes);
  }
};

/// seconds = latency + bytes / bandwidth, of one operation on one group.
struct Fit {
  Op op = Op::all_gather;       ///< of all rows of the fit
  DType dtype = DType::f32;     ///< of all rows of the fit
  int ranks = 1;                ///< of all rows of the fit
  bool in_place = false;        ///< of all rows of the fit
  std::size_t rows = 0;         ///< how many there were
  std::size_t min_bytes = 0;    ///< smallest size
  std::size_t max_bytes = 0;    ///< largest size
  double latency = 0;           ///< seconds; not negative
  double seconds_per_byte = 0;  ///< 1 / bandwidth of the larger buffer; not negative
  double error = 0;             ///< root of the mean square of (fitted - measured) / measured

  /// algbw that large buffers approach, in GB per second; infinite if more bytes take no longer.
  [[nodiscard]] double gbs() const { return 1e-9 / seconds_per_byte; }
  /// Seconds that a collective takes whose larger buffer has so many bytes.
  [[nodiscard]] double operator()(double size) const { return latency + size * seconds_per_byte; }
};

/// Fits rows of one kind by least squares of the relative error, so that small sizes count.
[[nodiscard]] inline Fit fit_rows(std::vector<Row> const& rows) {
  Row const& first = rows.front();
  Fit fit{.op = first.op,
          .dtype = first.dtype,
          .ranks = first.ranks,
          .in_place = first.in_place,
          .rows = rows.size(),
          .min_bytes = first.bytes,
          .max_bytes = first.bytes};
  // Of x = 1 / t and y = bytes / t, latency x + seconds_per_byte y is to be 1.
  double xx = 0, xy = 0, yy = 0, x = 0, y = 0;
  for (Row const& row : rows) {
    double const u = 1. / row.seconds;
    double const v = static_cast<double>(row.bytes) / row.seconds;
    xx += u * u, xy += u * v, yy += v * v, x += u, y += v;
    fit.min_bytes = (std::min)(fit.min_bytes, row.bytes);
    fit.max_bytes = (std::max)(fit.max_bytes, row.bytes);
  }
  double const determinant = xx * yy - xy * xy;
  if (determinant > 1e-12 * xx * yy) {
    fit.latency = (x * yy - y * xy) / determinant;
    fit.seconds_per_byte = (y * xx - x * xy) / determinant;
  }
  // One size, or times that no line follows: what explains them alone.
  if (fit.seconds_per_byte <= 0) fit.seconds_per_byte = 0, fit.latency = x / xx;
  if (fit.latency < 0) fit.latency = 0, fit.seconds_per_byte = y / yy;
  double squares = 0;
  for (Row const& row : rows) {
    double const off = fit(static_cast<double>(row.bytes)) / row.seconds - 1.;
    squares += off * off;
  }
  fit.error = std::sqrt(squares / static_cast<double>(rows.size()));
  return fit;
}

/// One fit for each operation, dtype, number of ranks and place, in the order of the rows.
[[nodiscard]] inline std::vector<Fit> fit_all(std::vector<Row> rows) {
  std::vector<Fit> fits;
  while (!rows.empty()) {
    Row const kind = rows.front();
    auto const others = std::stable_partition(rows.begin(), rows.end(), [&](Row const& row) {
      return row.op == kind.op && row.dtype == kind.dtype && row.ranks == kind.ranks &&
             row.in_place == kind.in_place;
    });
    fits.push_back(fit_rows({rows.begin(), others}));
    rows.erase(rows.begin(), others);
  }
  return fits;
}

}  // namespace zero::inline ZERO_NAMESPACE::bench
