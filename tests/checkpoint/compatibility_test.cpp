// What this version wrote, every later one reads.
#include "checkpoint/proof.hpp"

namespace compatibility_test {
namespace {

using Fp16 = zero::Mixed<zero::fp16>;

std::vector<zero::Tensor> model() {
  return {{.name = "wte", .shape = {19, 13}, .unit = 0},
          {.name = "w", .shape = {1031}, .unit = 1, .learning_rate = 0.5f},
          {.name = "scalar", .shape = {}, .unit = 1, .weight_decay = 0.f},
          {.name = "frozen", .shape = {6}, .unit = 1, .frozen = true},
          {.name = "none", .shape = {0, 3}, .unit = 1},
          {.name = "head", .shape = {19, 13}, .unit = 2, .tied_to = "wte"}};
}

zero::Counters const counters{
    .steps = std::vector<long>(6, 12), .loss_scale = 512.f, .loss_scale_streak = 3, .step = 12};

float value(std::string const& tensor, std::size_t array, std::size_t element) {
  return toy::uniform(tensor.size(), element, array + 2);
}

/// Calls `see(value here, value as it was saved)` for everything of a part that a rank owns.
template <class See>
auto each_value(See const& see) {
  return [see](zero::Tensor const& tensor, std::size_t first, auto masters, auto const& states) {
    for (std::size_t i = 0; i < masters.size(); ++i) {
      see(masters[i], value(tensor.name, 0, first + i));
      for (std::size_t k = 0; k < states.size(); ++k) {
        see(states[k][i], value(tensor.name, k + 1, first + i));
      }
    }
  };
}

std::string folder() {
  return (std::filesystem::path(__FILE__).parent_path() / "format_1").string();
}

}  // namespace

TEST_CASE("a checkpoint of format 1 is loaded") {
  zero::Checkpoints run{folder()};
  REQUIRE(run.list().size() == 1);
  CHECK(zero::verify_checkpoint(run.list()[0].path).empty());
  std::atomic<std::size_t> seen = 0;
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer<zero::InProcess, zero::stage::Pos, Fp16> optimizer{comm, model()};
    zero::LoadReport const report = zero::Checkpoints{folder()}.load(optimizer, run.list()[0]);
    CHECK(report.step == 12);
    CHECK(report.user == nlohmann::json{{"epoch", 2}});
    REQUIRE(report.blobs.size() == 3);
    CHECK(report.blobs[2].bytes == std::vector<std::byte>(2, std::byte{7}));
    CHECK(optimizer.counters() == counters);
    bool same = true;
    optimizer.visit_owned(each_value([&](float here, float saved) {
      same = same && here == saved;
      ++seen;
    }));
    CHECK(same);
    for (std::size_t i = 0; i < 6; ++i) {
      CHECK(static_cast<float>(optimizer.parameter(3)[i]) == static_cast<float>(i) * 0.5f);
    }
  });
  CHECK(seen == (19 * 13 + 1031 + 1) * 3);
}

TEST_CASE("a checkpoint of this format is written" * doctest::skip()) {
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer<zero::InProcess, zero::stage::PosGP, Fp16> optimizer{comm, model()};
    optimizer.load_parameters([](zero::Tensor const&, std::size_t first, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(first + i) * 0.5f;
    });
    optimizer.fill_owned(each_value([](float& here, float saved) { here = saved; }));
    optimizer.restore(counters);
    std::vector<std::byte> const blob(2, static_cast<std::byte>(5 + comm.rank()));
    zero::Checkpoints{"format", {.lock = false}}.save(optimizer,
                                                      {.user = {{"epoch", 2}}, .rank_blob = blob});
  });
}

}  // namespace compatibility_test
