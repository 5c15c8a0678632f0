#include "figures.hpp"

#include "fractions.hpp"
#include "plan/steps.hpp"

#include <cmath>

namespace plan {

namespace {

Cluster cluster_with(Fractions const& fractions) {
  Cluster cluster = cluster_of("dgx2-v100");
  cluster.device.matrix_fraction = fractions[0];
  cluster.device.memory_fraction = fractions[1];
  cluster.inside.fraction = fractions[2];
  cluster.between.fraction = fractions[3];
  return cluster;
}

/// Squares of logarithmic errors of the points that calibrate.
double misfit(std::vector<Point> const& points, Fractions const& fractions) {
  double sum = 0.;
  for (Point const& point : points) {
    if (!point.calibrates) continue;
    double const error = std::log(predict(point, fractions) / point.published);
    sum += error * error;
  }
  return sum;
}

}  // namespace

std::vector<Point> points() {
  return {{"2, ZeRO", "1.5B", true, 400, 1, 48, 1600, 16, 24, 30.3},
          {"2, ZeRO", "8B", true, 400, 4, 72, 3072, 24, 64, 36.9},
          {"2, ZeRO", "40B", true, 400, 4, 88, 6144, 32, 12, 36.0},
          {"2, ZeRO", "60B", true, 400, 16, 132, 6144, 32, 64, 36.5},
          {"2, ZeRO", "80B", true, 400, 16, 100, 8192, 64, 32, 37.5},
          {"2, ZeRO", "100B", true, 400, 16, 125, 8192, 64, 32, 38.7, true},
          {"2, ZeRO", "120B", true, 400, 16, 150, 8192, 64, 24, 28.1},
          {"2, ZeRO", "140B", true, 400, 16, 175, 8192, 64, 16, 27.0},
          {"2, ZeRO", "170B", true, 400, 16, 212, 8192, 64, 12, 20.9},
          {"2, baseline", "1.5B", false, 400, 2, 48, 1600, 16, 16, 26.0},
          {"2, baseline", "8B", false, 400, 8, 72, 3072, 24, 8, 23.2},
          {"2, baseline", "40B", false, 384, 32, 88, 6144, 64, 4, 4.9},
          {"2, baseline", "60B", false, 384, 64, 132, 6144, 64, 4, 6.3},
          {"2, baseline", "80B", false, 384, 128, 100, 8192, 128, 4, 5.2},
          {"2, baseline", "100B", false, 384, 128, 125, 8192, 128, 2, 3.8, true},
          {"2, baseline", "120B", false, 384, 128, 150, 8192, 128, 2, 3.8},
          {"2, baseline", "140B", false, 384, 128, 175, 8192, 128, 2, 3.9},
          {"2, baseline", "170B", false, 256, 256, 212, 8192, 256, 2, 2.2},
          {"3", "60B, 64 GPUs", true, 64, 16, 75, 8192, 32, 16, 25.5, true},
          {"3", "60B, 128 GPUs", true, 128, 16, 75, 8192, 32, 48, 37.5},
          {"3", "60B, 256 GPUs", true, 256, 16, 75, 8192, 32, 48, 39.0},
          {"3", "60B, 400 GPUs", true, 400, 16, 75, 8192, 32, 64, 36.5},
          {"4, ZeRO", "1.5B", true, 128, 1, 34, 1920, 16, 24, 40.1},
          {"4, ZeRO", "2.5B", true, 128, 1, 54, 1920, 16, 24, 41.5},
          {"4, ZeRO", "4B", true, 128, 1, 64, 2304, 24, 16, 43.3},
          {"4, ZeRO", "6B", true, 128, 1, 52, 3072, 24, 12, 46.7},
          {"4, ZeRO", "8B", true, 128, 1, 72, 3072, 24, 8, 46.7, true},
          {"4, ZeRO", "10B", true, 128, 1, 50, 4096, 32, 6, 40.8},
          {"4, ZeRO", "11B", true, 128, 1, 54, 4096, 32, 4, 35.4},
          {"4, ZeRO", "12B", true, 128, 1, 58, 4096, 32, 4, 32.6},
          {"4, ZeRO", "13B", true, 128, 1, 62, 4096, 32, 2, 21.0},
          {"4, DDP", "1.16B", false, 128, 1, 24, 1920, 16, 8, 39.4},
          {"4, DDP", "1.38B", false, 128, 1, 40, 1536, 16, 1, 18.1}};
}

double predict(Point const& point, Fractions const& fractions) {
  World world(cluster_with(fractions));
  return steady_step(world, point.setup()).rate() / 1e12;
}

Fractions calibrate(std::vector<Point> const& points, double smallest) {
  return best_fractions(
      Fractions{0.5, 0.8, 0.8, 0.5},
      [&](Fractions const& of) { return misfit(points, of); },
      smallest);
}

}  // namespace plan
