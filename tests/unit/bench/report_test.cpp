#include "zero/bench/report.hpp"

#include "zero/base/error.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

namespace report_test {

using zero::bench::Row;

std::vector<Row> const rows{{.op = zero::Op::all_gather,
                             .ranks = 2,
                             .count = 128,
                             .bytes = 1024,
                             .seconds = 2e-6,
                             .best_seconds = 1e-6,
                             .raw = "a \"copy\"",
                             .raw_seconds = 4e-6,
                             .vs_raw = 2,
                             .best_vs_raw = 3,
                             .wrong = 0}};

TEST_CASE("what is no number is null, and quotes are escaped") {
  CHECK(zero::bench::number_text(0.5) == "0.5");
  CHECK(zero::bench::number_text(std::numeric_limits<double>::infinity()) == "null");
  CHECK(zero::bench::number_text(std::numeric_limits<double>::quiet_NaN()) == "null");
  CHECK(zero::bench::quoted("a\"b\\") == "\"a\\\"b\\\\\"");
}

TEST_CASE("a row and a fit are written by their names") {
  std::string const text = zero::bench::json_text(rows);
  CHECK(text.find("\"raw\": \"a \\\"copy\\\"\"") != std::string::npos);
  CHECK(text.find("\"bytes\": 1024, \"count\": 128, \"us\": 2, \"best_us\": 1, \"algbw\": 0.512, "
                  "\"busbw\": 0.256, \"raw_us\": 4, \"raw_algbw\": 0.256, \"vs_raw\": 2, "
                  "\"best_vs_raw\": 3, \"wrong\": 0}") != std::string::npos);
  // One size has no bandwidth.
  CHECK(text.find("\"latency_us\": 2, \"bandwidth\": null, \"error\": 0}") != std::string::npos);
  CHECK(zero::bench::csv_text(rows) ==
        "op,dtype,ranks,in_place,bytes,count,us,best_us,algbw,busbw,raw_us,raw_algbw,vs_raw,"
        "best_vs_raw,wrong\n"
        "\"all_gather\",\"fp32\",2,false,1024,128,2,1,0.512,0.256,4,0.256,2,3,0\n");
}

TEST_CASE("a plot draws the rows and the baseline") {
  std::string const script = zero::bench::plot_script(rows, "x.png");
  CHECK(script.find("set terminal pngcairo") == 0);
  CHECK(script.find("set output 'x.png'") != std::string::npos);
  CHECK(script.find("\n1024 0.256 0.128\n") != std::string::npos);
  for (char const* const path : {"x.pdf", "x", "it's.svg"}) {
    CHECK_THROWS_WITH_AS(static_cast<void>(zero::bench::plot_script(rows, path)),
                         doctest::Contains(path),
                         zero::Error);
  }
}

}  // namespace report_test
