// Clusters of data sheets, durations that were measured in their place, and files of both and of
// models.
#include "plan/files.hpp"
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
  CHECK(
      refusal([] { static_cast<void>(plan::cluster_of("dgx")); }) ==
      "there is no cluster 'dgx': it is one of dgx2-v100, dgx-a100, dgx-h100, dgx-h200, dgx-b200, "
      "cpu2");
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

TEST_CASE("fused attention takes its operations, where there is such a kernel") {
  Device device{.name = "d", .flops = 1e12, .launch = 1.};
  CHECK(refusal([&] { static_cast<void>(device.attention(1.)); }) ==
        "of 'd' no fused attention is known: its attention is plain or selective");
  device.attention_fraction = 0.5;
  CHECK(device.attention(1e12) == Approx(3.));
}

TEST_CASE("a cluster is the same when its file is read, and files say what is wrong with them") {
  using nlohmann::json;
  for (plan::Cluster const& cluster : plan::known_clusters()) {
    json const file = json::parse(plan::json_of(cluster).dump());
    CHECK(plan::cluster_in(file) == cluster);
    CHECK(plan::cluster_in({{"clusters", {file}}}) == cluster);
  }
  json const good = json::parse(plan::json_of(plan::cluster_of("dgx-h100")).dump());
  auto const why = [&](char const* path, json const& value) {
    json changed = good;
    if (value.is_null()) {
      changed.erase(path);
    } else {
      changed[json::json_pointer(path)] = value;
    }
    try {
      static_cast<void>(plan::cluster_in(changed));
    } catch (zero::Error const& error) {
      return error.message();
    } catch (std::exception const& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(why("/device/memory", 1) == "");
  CHECK(why("error", nullptr) == "it has no 'error'");
  CHECK(why("/speed", 3) == "it has 'speed', which means nothing here");
  CHECK(why("/device/cores", 3) == "'device' has 'cores', which means nothing here");
  CHECK(why("/device/memory", 8.5).find("'memory' is 8.5, not a whole number") == 0);
  CHECK(why("/name", 3) == "'name' is 3");
  CHECK(why("/device", "H100") == "'device' is \"H100\"");
  CHECK(why("/inside/rate", 0) == "cluster 'dgx-h100': the rate inside a node is 0, not above 0");
  CHECK(why("/clusters", json::array()) == "'clusters' is not a list of one");
}

/// The number of parameters of a configuration, or why it is none.
std::string read(nlohmann::json const& config) {
  try {
    return std::to_string(plan::parameters(plan::transformer_in(config)));
  } catch (zero::Error const& error) {
    return error.message();
  } catch (std::exception const& error) {
    return error.what();
  }
}

TEST_CASE("configurations of published models have their parameters") {
  nlohmann::json gpt2{{"model_type", "gpt2"},
                      {"n_layer", 12},
                      {"n_embd", 768},
                      {"n_head", 12},
                      {"n_positions", 1024},
                      {"vocab_size", 50257},
                      {"n_inner", nullptr},
                      {"attn_pdrop", 0.1}};
  CHECK(read(gpt2) == "124439808");
  CHECK(plan::transformer_in(gpt2).dropout);
  for (char const* name : {"resid_pdrop", "attn_pdrop", "embd_pdrop"}) gpt2[name] = 0;
  CHECK_FALSE(plan::transformer_in(gpt2).dropout);

  nlohmann::json llama{{"model_type", "llama"},
                       {"architectures", {"LlamaForCausalLM"}},
                       {"num_hidden_layers", 80},
                       {"hidden_size", 8192},
                       {"num_attention_heads", 64},
                       {"num_key_value_heads", 8},
                       {"intermediate_size", 28672},
                       {"max_position_embeddings", 4096},
                       {"vocab_size", 32000},
                       {"rope_theta", 1e4}};
  CHECK(read(llama) == "68976648192");  // Llama 2 70B
  nlohmann::json const large = llama;
  llama["num_hidden_layers"] = 32;
  llama["hidden_size"] = 4096;
  llama["num_attention_heads"] = 32;
  llama["intermediate_size"] = 14336;
  llama["vocab_size"] = 128256;
  CHECK(read(llama) == "8030261248");  // Llama 3 8B
  llama["model_type"] = "mistral";
  llama["vocab_size"] = 32000;
  llama["sliding_window"] = nullptr;
  CHECK(read(llama) == "7241732096");  // Mistral 7B

  // Nothing is ignored that might matter.
  auto const with = [&](char const* name, nlohmann::json const& value) {
    nlohmann::json changed = large;
    changed[name] = value;
    return read(changed);
  };
  CHECK(with("num_local_experts", 8) ==
        "'num_local_experts' is not known here; whether it changes the model is not, either");
  CHECK(with("attention_bias", true) ==
        "a model whose 'attention_bias' is true cannot be described");
  CHECK(with("sliding_window", 4096) ==
        "a model whose 'sliding_window' is 4096 cannot be described");
  CHECK(with("model_type", "gemma") == "the model_type is \"gemma\", not gpt2, llama or mistral");
  CHECK(with("hidden_size", 0).find("'hidden_size' is 0, not a whole number from 1") == 0);
  CHECK(with("num_key_value_heads", 6) == "64 heads cannot share 6 of keys and values evenly");
  CHECK(with("tie_word_embeddings", true) == std::to_string(68976648192 - 32000ull * 8192));
  CHECK(read({{"n_layer", 3}}) == "it has no 'model_type'");
  CHECK(read(nlohmann::json::array()) == "it is array");
}

}  // namespace
}  // namespace cluster_test
