#include "support/refusal.hpp"
#include <zero/bench/plot.hpp>

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace plot_test {

using namespace zero::bench;

TEST_CASE("charts become one script with their data inside") {
  Chart const curve{.title = "it's fast",
                    .x_label = "ranks",
                    .y_label = "GB",
                    .log_x = true,
                    .series = {{"one", {{1, 2.5}, {2, 1e10}}}, {"two", {{4, 0.125}}}}};
  Chart const bars{.title = "held",
                   .bars = {"pos", "pos+g"},
                   .series = {{"state", {{0, 3}, {0, 4}}}, {"pool", {{0, 0}, {0, 5}}}}};
  CHECK(chart_script({curve, bars}, "x/a.svg") == R"(set terminal svg size 900,900
set output 'x/a.svg'
set termoption noenhanced
set key outside right
set grid
set multiplot layout 2,1
set title 'it''s fast'
set xlabel 'ranks'
set ylabel 'GB'
unset logscale
set xtics autofreq norotate
set logscale x 2
set yrange [*:*]
$c0_0 << EOD
1 2.5
2 1e+10
EOD
$c0_1 << EOD
4 0.125
EOD
plot $c0_0 using 1:2 with linespoints title 'one', \
  $c0_1 using 1:2 with linespoints title 'two'
set title 'held'
set xlabel ''
set ylabel ''
unset logscale
set xtics autofreq norotate
set style data histograms
set style histogram rowstacked
set boxwidth 0.6
set style fill solid 0.8
set yrange [0:*]
$c1 << EOD
"pos" 3 0
"pos+g" 4 5
EOD
plot $c1 using 2:xtic(1) title 'state', \
  $c1 using 3:xtic(1) title 'pool'
unset multiplot
)");
}

TEST_CASE("only pictures that gnuplot draws, by names that its scripts can have") {
  CHECK(plot_head("a.png").find("pngcairo") != std::string::npos);
  for (char const* path : {"a.pdf", "svg", "", "it's.svg", "a.svg.gz"}) {
    CAPTURE(path);
    CHECK(refusal([&] {
            static_cast<void>(chart_script({}, path));
          }).find("ends in .svg or .png") != std::string::npos);
  }
}

TEST_CASE("many bars have their names turned, and the next chart has not") {
  Chart chart{.bars = std::vector<std::string>(6, "bar"),
              .series = {{"a", std::vector<std::pair<double, double>>(6)}}};
  CHECK(chart_script({chart}, "a.svg").find("rotate by -30") != std::string::npos);
  chart.bars.resize(5);
  CHECK(chart_script({chart}, "a.svg").find("rotate by -30") == std::string::npos);
}

}  // namespace plot_test
