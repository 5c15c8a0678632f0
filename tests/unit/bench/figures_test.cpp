#include "zero/bench/figures.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <vector>

namespace figures_test {

using zero::DType;
using zero::Op;
using zero::bench::Fit;
using zero::bench::Row;

Row row(std::size_t bytes, double seconds, Op op = Op::all_gather) {
  return {.op = op, .ranks = 2, .bytes = bytes, .seconds = seconds, .raw_seconds = 1};
}

/// 5 us and 10 GB/s, from 1 KiB to 256 MiB.
std::vector<Row> exact_rows() {
  std::vector<Row> rows;
  for (std::size_t bytes = 1024; bytes <= std::size_t{256} << 20; bytes *= 4) {
    rows.push_back(row(bytes, 5e-6 + static_cast<double>(bytes) / 10e9));
  }
  return rows;
}

TEST_CASE("bus bandwidth is nccl-tests'") {
  for (int const n : {1, 2, 3, 8}) {
    double const peers = (n - 1.) / n;
    for (Op const op : {Op::reduce_scatter, Op::all_gather, Op::all_to_all}) {
      CHECK(zero::bench::bus_factor(op, n) == doctest::Approx(peers));
    }
    CHECK(zero::bench::bus_factor(Op::all_reduce, n) == doctest::Approx(2 * peers));
    CHECK(zero::bench::bus_factor(Op::broadcast, n) == 1.);
  }
  Row const four{.op = Op::all_reduce, .ranks = 4, .bytes = 6'000'000'000, .seconds = 2};
  CHECK(four.algbw() == doctest::Approx(3));
  CHECK(four.busbw() == doctest::Approx(4.5));
  CHECK(four.traffic() == doctest::Approx(48e9));
}

TEST_CASE("a size is the larger buffer of one rank") {
  using zero::bench::block_count;
  CHECK(block_count(Op::reduce_scatter, DType::f32, 1024, 2) == 128);
  CHECK(block_count(Op::all_gather, DType::bf16, 1024, 2) == 256);
  CHECK(block_count(Op::all_to_all, DType::f32, 1024, 3) == 85);
  CHECK(block_count(Op::all_reduce, DType::f32, 1024, 4) == 256);
  CHECK(block_count(Op::broadcast, DType::f16, 1024, 4) == 512);
  CHECK(block_count(Op::all_gather, DType::f32, 4, 8) == 1);
}

TEST_CASE("a fit finds latency and bandwidth") {
  Fit const fit = zero::bench::fit_rows(exact_rows());
  CHECK(fit.latency == doctest::Approx(5e-6).epsilon(1e-6));
  CHECK(fit.gbs() == doctest::Approx(10).epsilon(1e-6));
  CHECK(fit.error < 1e-6);
  CHECK(fit.rows == 10);
  CHECK(fit.min_bytes == 1024);
  CHECK(fit.max_bytes == std::size_t{256} << 20);
}

TEST_CASE("a large size that is off does not drown small ones") {
  auto rows = exact_rows();
  rows.back().seconds *= 1.3;  // 8 ms more, a thousand times the latency
  Fit const fit = zero::bench::fit_rows(rows);
  CHECK(std::abs(fit.latency - 5e-6) < 0.5e-6);
  CHECK(fit.gbs() == doctest::Approx(10).epsilon(0.2));
  CHECK(fit.error > 0.02);
}

TEST_CASE("neither part of a fit is negative") {
  Fit const steeper = zero::bench::fit_rows({row(1000, 1e-6), row(2000, 3e-6)});
  CHECK(steeper.latency == 0);
  CHECK(steeper.gbs() > 0.6);
  CHECK(steeper.gbs() < 1.1);
  Fit const falling = zero::bench::fit_rows({row(1000, 3e-6), row(2000, 3e-6), row(4000, 2e-6)});
  CHECK(falling.seconds_per_byte == 0);
  CHECK(falling.latency > 2e-6);
  CHECK(falling.latency < 3e-6);
  Fit const alone = zero::bench::fit_rows({row(1000, 2e-6)});
  CHECK(alone.latency == doctest::Approx(2e-6));
  CHECK(alone.seconds_per_byte == 0);
}

TEST_CASE("there is a fit for each kind of rows") {
  auto rows = exact_rows();
  for (Row const& one : exact_rows()) {
    rows.push_back(row(one.bytes, 2 * one.seconds, Op::broadcast));
    rows.push_back(one);
    rows.back().in_place = true;
    rows.push_back(one);
    rows.back().dtype = DType::bf16;
    rows.push_back(one);
    rows.back().ranks = 3;
  }
  auto const fits = zero::bench::fit_all(rows);
  REQUIRE(fits.size() == 5);
  CHECK(fits[1].op == Op::broadcast);
  CHECK(fits[1].latency == doctest::Approx(1e-5));
  CHECK(fits[2].in_place);
  CHECK(fits[3].dtype == DType::bf16);
  CHECK(fits[4].ranks == 3);
  for (Fit const& fit : fits) CHECK(fit.rows == 10);
}

}  // namespace figures_test
