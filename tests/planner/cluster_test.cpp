// Clusters of data sheets, and durations that were measured in their place.
#include "plan/model/cluster.hpp"

#include "support/refusal.hpp"
#include "support/test.hpp"

namespace cluster_test {
namespace {

using doctest::Approx;
using plan::Device;
using plan::Timing;

TEST_CASE("clusters are found by name, and complete") {
  for (plan::Cluster const& cluster : plan::known_clusters()) {
    CAPTURE(cluster.name);
    CHECK(plan::cluster_of(cluster.name) == cluster);
    CHECK(cluster.devices_per_node >= 1);
    CHECK_NOTHROW(cluster.validate());
    CHECK(cluster.device.memory > 0);
    CHECK(cluster.host_memory > cluster.device.memory);
    CHECK(cluster.inside.rate >= cluster.network_rate());
  }
  // The paper's: 800 Gb/s out of a node of 16.
  plan::Cluster const dgx2 = plan::cluster_of("dgx2-v100");
  CHECK(dgx2.network_rate() * 16 * 8 == 800e9);
  CHECK(dgx2.device.memory == 32'000'000'000);
  CHECK(refusal([] { static_cast<void>(plan::cluster_of("dgx")); }) ==
        "there is no cluster 'dgx': it is one of dgx2-v100, dgx-a100, dgx-h100, cpu2");
}

TEST_CASE("a timing is what was measured at its points, and a power between and beyond them") {
  Timing const one{.name = "copy", .sizes = {{10., 1000., 4000.}}, .seconds = {1., 100., 200.}};
  one.validate();
  CHECK(one.at({10.}) == Approx(1.));
  CHECK(one.at({1000.}) == Approx(100.));
  CHECK(one.at({4000.}) == Approx(200.));
  CHECK(one.at({100.}) == Approx(10.));         // in proportion to the size
  CHECK(one.at({1.}) == Approx(0.1));           // and so before the first point
  CHECK(one.at({2000.}) == Approx(141.42136));  // by its root
  CHECK(one.at({16000.}) == Approx(400.));
}

TEST_CASE("of a product every size counts by itself") {
  // 2e-9 m n^2 / k: any power of each comes out between points.
  auto const seconds = [](double m, double n, double k) { return 2e-9 * m * n * n / k; };
  Timing timing{
      .name = "product", .sizes = {{16., 64., 256.}, {8., 32.}, {1., 10.}}, .seconds = {}};
  for (double const m : timing.sizes[0]) {
    for (double const n : timing.sizes[1]) {
      for (double const k : timing.sizes[2]) timing.seconds.push_back(seconds(m, n, k));
    }
  }
  timing.validate();
  for (double const m : {5., 16., 100., 256., 999.}) {
    for (double const n : {3., 8., 20., 32., 77.}) {
      for (double const k : {0.5, 3., 10., 40.}) {
        CHECK(timing.at({m, n, k}) == Approx(seconds(m, n, k)));
      }
    }
  }
  CHECK(refusal([&] {
          static_cast<void>(timing.at({1., 2.}));
        }).find("'product' was measured by 3 sizes, not by 2") != std::string::npos);
}

TEST_CASE("a dimension of one point does not count") {
  Timing const one{.name = "ping-pong", .sizes = {{1.}}, .seconds = {7.}};
  CHECK(one.at({1.}) == Approx(7.));
  CHECK(one.at({5.}) == Approx(7.));
}

TEST_CASE("what is no grid, or takes no time, is refused") {
  auto const why = [](std::vector<std::vector<double>> sizes, std::vector<double> seconds) {
    Timing const timing{.name = "x", .sizes = std::move(sizes), .seconds = std::move(seconds)};
    return refusal([&] { timing.validate(); });
  };
  CHECK(why({{1., 2.}}, {1., 1.}).empty());
  CHECK(why({}, {1.}).find("'x' is no grid") != std::string::npos);
  CHECK(why({{}}, {}).find("is no grid") != std::string::npos);
  CHECK(why({{1., 2.}}, {1.}).find("is no grid") != std::string::npos);
  CHECK(why({{2., 1.}}, {1., 1.}).find("is no grid") != std::string::npos);
  CHECK(why({{0., 1.}}, {1., 1.}).find("is no grid") != std::string::npos);
  CHECK(why({{1., 2.}}, {1., 0.}).find("not above 0") != std::string::npos);
}

TEST_CASE("what a device was measured to take counts before its rates") {
  Device const device{.name = "d",
                      .memory_rate = 1e9,
                      .launch = 1.,
                      .measured = {{.name = "copy", .sizes = {{10., 100.}}, .seconds = {1., 10.}}}};
  CHECK(device.pass(1e9, "copy") == Approx(1e8));
  CHECK(device.pass(1e9, "update") == Approx(2.));
  CHECK(device.pass(0., "copy") == Approx(1.));
  CHECK(device.timed("copy", {50.}) == Approx(5.));
  CHECK(device.timing("update") == nullptr);
  CHECK(refusal([&] {
          static_cast<void>(device.timed("gelu", {1.}));
        }).find("of 'd' it was not measured how long 'gelu' takes") != std::string::npos);
}

}  // namespace
}  // namespace cluster_test
