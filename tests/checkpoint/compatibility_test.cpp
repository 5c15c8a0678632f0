// What released versions wrote, every later one reads: format_1 is of 0.1, written_by_0_2 of 0.2.
#include "checkpoint/proof.hpp"
#include "zero/checkpoint/offline.hpp"
#include "zero/comm/grid.hpp"

namespace compatibility_test {
namespace {

using namespace checkpoint_tests;
using zero::InProcess;
using namespace zero::stage;
using Tensors = std::vector<zero::Tensor>;

Tensors model(std::size_t rows, std::size_t columns, std::size_t longest) {
  return {{.name = "wte", .shape = {rows, columns}, .unit = 0},
          {.name = "w", .shape = {longest}, .unit = 1, .learning_rate = 0.5},
          {.name = "scalar", .shape = {}, .unit = 1, .weight_decay = 0.},
          {.name = "frozen", .shape = {6}, .unit = 1, .frozen = true},
          {.name = "none", .shape = {0, 3}, .unit = 1},
          {.name = "head", .shape = {rows, columns}, .unit = 2, .tied_to = "wte"}};
}
Tensors small_model() { return model(7, 5, 601); }
/// Its layers at once, and the same layer by layer.
Tensors stacked() {
  return {{.name = "wte", .shape = {541}},
          {.name = "w", .shape = {2, 6, 5}, .unit = 1, .stacked = true, .group = "layers"},
          {.name = "frozen", .shape = {2, 7}, .unit = 1, .frozen = true, .stacked = true},
          {.name = "tied",
           .shape = {2, 6, 5},
           .unit = 3,
           .tied_to = "w",
           .stacked = true,
           .group = "layers"}};
}
Tensors layered() {
  return {{.name = "wte", .shape = {541}},
          {.name = "w[0]", .shape = {6, 5}, .unit = 1, .group = "layers"},
          {.name = "w[1]", .shape = {6, 5}, .unit = 2, .group = "layers"},
          {.name = "frozen[0]", .shape = {7}, .unit = 1, .frozen = true},
          {.name = "frozen[1]", .shape = {7}, .unit = 2, .frozen = true},
          {.name = "tied[0]", .shape = {6, 5}, .unit = 3, .tied_to = "w[0]", .group = "layers"},
          {.name = "tied[1]", .shape = {6, 5}, .unit = 4, .tied_to = "w[1]", .group = "layers"}};
}
/// Ranks of a model axis divide the columns of what is partitioned.
Tensors divided() {
  return {{.name = "up", .shape = {5, 8}, .partitioned = true},
          {.name = "norm", .shape = {541}},
          {.name = "frozen", .shape = {3, 4}, .unit = 1, .frozen = true, .partitioned = true}};
}

/// A run: what it trains, by which rule, and how far it has come.
template <class Precision_, class Rule_>
struct Run {
  using Precision = Precision_;
  using Rule = Rule_;
  Tensors tensors;
  zero::Counters counters;
  int model_ranks = 1;  ///< of a grid, if more than one
  Rule rule{};
};
zero::Counters counters(std::size_t tensors, long step) {
  return {.steps = std::vector<long>(tensors, step), .step = step};
}
zero::Counters scaled(std::size_t tensors, long step) {
  return {.steps = std::vector<long>(tensors, step),
          .loss_scale = 512.f,
          .loss_scale_streak = 3,
          .step = step};
}

using Fp16 = zero::Mixed<zero::fp16>;
using Bf16 = zero::Mixed<zero::bf16>;
Run<Fp16, zero::AdamW> const format_1{model(19, 13, 1031), scaled(6, 12)};
Run<zero::Fp32, zero::Sgd> const fp32{small_model(), counters(6, 4), 1, {.lr = 0.125}};
Run<Fp16, zero::AdamW> const fp16{small_model(), scaled(6, 12), 1, {.lr = 0.25, .beta1 = 0.75}};
Run<Bf16, zero::Lion> const bf16{small_model(), counters(6, 5), 1, {.lr = 0.5}};
Run<zero::Fp64, zero::AmsGrad> const fp64{small_model(), counters(6, 7), 1, {.lr = 0.1}};
/// The last layers have rested.
Run<zero::Fp32, zero::AdamW> const stack{stacked(), {.steps = {9, 9, 7, 9, 9, 9, 7}, .step = 9}};
Run<zero::Fp32, zero::AdamW> const layers{layered(), stack.counters};
Run<Bf16, zero::AdamW> const grid{divided(), counters(3, 6), 2};
Run<Bf16, zero::AdamW> const grid_as_one{divided(), counters(3, 6)};

/// What element `at` of a whole tensor was saved as: its master weight, or one of its states
/// from 1. Doubles have more digits than floats.
template <class T>
T value(std::string_view tensor, std::size_t array, std::size_t at) {
  std::size_t const name = tensor.substr(0, tensor.find('[')).size();
  auto const coarse = static_cast<T>(toy::uniform(name, at, array + 2));
  if constexpr (sizeof(T) <= 4) return coarse;
  return coarse + static_cast<T>(0x1p-26f * toy::uniform(name, at, array + 9));
}
float frozen_value(std::size_t at) { return static_cast<float>(at) * 0.5f; }

/// A rank of a run.
template <class Stage, class R>
class Member {
 public:
  using Optimizer =
      zero::ShardedOptimizer<InProcess, Stage, typename R::Precision, typename R::Rule>;

  Member(InProcess& world, R const& run) : run_(run) {
    Tensors tensors = run.tensors;
    if (run.model_ranks > 1) {
      grid_.emplace(world, world.size() / run.model_ranks, run.model_ranks);
      model_rank_ = static_cast<std::size_t>(grid_->model().rank());
    }
    for (zero::Tensor& tensor : tensors) {
      tensor.partitioned = tensor.partitioned && grid_;
      if (!tensor.partitioned) continue;
      std::uint64_t const rows = tensor.shape[0];
      std::uint64_t const columns = tensor.shape[1] /= 2;
      parts_.push_back(
          {tensor.name, {rows, columns * 2}, {{{0, columns * model_rank_}, {rows, columns}}}});
    }
    optimizer_ = grid_ ? std::make_unique<Optimizer>(*grid_, tensors, run.rule)
                       : std::make_unique<Optimizer>(world, tensors, run.rule);
    for (zero::Tensor const& tensor : tensors) {
      if (tensor.group != "layers") continue;
      // A group's rule is no part of a checkpoint: the trainer sets it again.
      typename R::Rule own = run.rule;
      own.lr = 0.75;
      optimizer_->set_rule(tensor.group, own);
    }
  }
  [[nodiscard]] Optimizer& optimizer() { return *optimizer_; }
  [[nodiscard]] std::vector<zero::TensorPart> const& parts() const { return parts_; }

  void set() {
    optimizer_->load_parameters([&](zero::Tensor const& tensor, std::size_t first, auto out) {
      using T = typename decltype(out)::value_type;
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = T(frozen_value(at(tensor, first + i)));
    });
    optimizer_->fill_owned(each_value([](auto& here, auto saved) { here = saved; }));
    optimizer_->restore(run_.counters);
  }
  /// Checks all that this rank reads, masters and states if they were loaded.
  /// @returns how many of those it owns
  std::size_t check(bool states) {
    std::size_t seen = 0;
    std::size_t other = 0;
    if (states) {
      CHECK(optimizer_->counters() == run_.counters);
      optimizer_->visit_owned(each_value([&](auto here, auto saved) {
        ++seen;
        if (here != saved) ++other;
      }));
    }
    auto const all = optimizer_->full_parameters();
    for (std::size_t t = 0; t < optimizer_->tensors().size(); ++t) {
      zero::Tensor const& tensor = optimizer_->tensors()[t];
      std::string const& name = tensor.tied_to.empty() ? tensor.name : tensor.tied_to;
      for (std::size_t i = 0; i < all[t].size(); ++i) {
        using Parameter = typename Optimizer::Parameter;
        using Master = typename Optimizer::Master;
        Parameter const saved = tensor.frozen ? Parameter(frozen_value(at(tensor, i)))
                                              : Parameter(value<Master>(name, 0, at(tensor, i)));
        if (all[t][i] != saved) ++other;
      }
    }
    CHECK(other == 0);
    return seen;
  }

 private:
  /// Where element `i` of a tensor here lies in the whole one.
  [[nodiscard]] std::size_t at(zero::Tensor const& tensor, std::size_t i) const {
    if (tensor.name.ends_with("[1]")) return zero::element_count(tensor) + i;
    if (!tensor.partitioned) return i;
    std::size_t const columns = tensor.shape[1];
    return (i / columns * 2 + model_rank_) * columns + i % columns;
  }
  /// Calls `see(value here, value as it was saved)` for everything of a part that a rank owns.
  template <class See>
  auto each_value(See const& see) const {
    return [this, see](zero::Tensor const& tensor, std::size_t first, auto masters, auto states) {
      for (std::size_t i = 0; i < masters.size(); ++i) {
        std::size_t const place = at(tensor, first + i);
        see(masters[i], value<typename Optimizer::Master>(tensor.name, 0, place));
        for (std::size_t k = 0; k < states.size(); ++k)
          see(states[k][i], value<typename Optimizer::State>(tensor.name, k + 1, place));
      }
    };
  }

  R const& run_;
  std::optional<zero::Grid<InProcess>> grid_{};
  std::size_t model_rank_ = 0;
  std::vector<zero::TensorPart> parts_{};
  std::unique_ptr<Optimizer> optimizer_{};
};

std::string folder(std::string const& name) {
  return (std::filesystem::path(__FILE__).parent_path() / name).string();
}
std::string const written = folder("written_by_0_2") + "/";

/// Checks what a load has said and, with what other ranks have, that it was all.
void check_report(zero::LoadReport const& report, zero::Counters const& counters, int saved_by) {
  CHECK(report.step == counters.step);
  CHECK(report.missing.empty());
  CHECK(report.user == nlohmann::json{{"epoch", 2}});
  REQUIRE(report.blobs.size() == static_cast<std::size_t>(saved_by));
  for (int rank = 0; rank < saved_by; ++rank) {
    auto const& bytes = report.blobs[static_cast<std::size_t>(rank)].bytes;
    CHECK(bytes == std::vector<std::byte>(2, static_cast<std::byte>(5 + rank)));
  }
}

/// Loads a run's only checkpoint on so many ranks, and checks all that it has.
/// @param elements  that it trains
/// @returns where this run and that one have different options
template <class Stage, class R>
std::vector<std::string> check_loaded(
    std::string const& path, R const& run, int saved_by, int ranks, std::size_t elements) {
  auto const found = zero::Checkpoints{path}.list();
  REQUIRE(found.size() == 1);
  CHECK(zero::verify_checkpoint(found[0].path).empty());
  std::atomic<std::size_t> seen = 0;
  std::vector<std::string> differing;
  zero::run_ranks(ranks, [&](InProcess& world) {
    Member<Stage, R> member(world, run);
    zero::LoadReport const report =
        zero::Checkpoints{path}.load(member.optimizer(), found[0], {.parts = member.parts()});
    check_report(report, run.counters, saved_by);
    seen += member.check(true);
    if (world.rank() == 0) differing = report.differing;
  });
  CHECK(seen == elements * (1 + R::Rule::states.size()));
  return differing;
}

/// Loads a model file on so many ranks, and checks all parameters.
template <class Stage, class R>
void check_imported(std::string const& file, R const& run, int ranks) {
  zero::run_ranks(ranks, [&](InProcess& world) {
    Member<Stage, R> member(world, run);
    CHECK(zero::load_parameters_from(member.optimizer(), written + file).text().empty());
    member.check(false);
  });
}

constexpr std::size_t trained = 7 * 5 + 601 + 1;  // of small_model

TEST_CASE("a checkpoint of 0.1 is loaded") {
  check_loaded<Pos>(folder("format_1"), format_1, 3, 2, 19 * 13 + 1031 + 1);
}

TEST_CASE("checkpoints of 0.2 are loaded, on other ranks and stages") {
  CHECK(check_loaded<Pos>(written + "fp32", fp32, 3, 2, trained).empty());
  CHECK(check_loaded<PosG>(written + "fp16", fp16, 3, 4, trained).empty());
  CHECK(check_loaded<Replicated>(written + "bf16", bf16, 3, 1, trained).empty());
  CHECK(check_loaded<Pos>(written + "fp64", fp64, 3, 2, trained).empty());
  CHECK(check_loaded<PosG>(written + "stacked", stack, 3, 2, 541 + 60).empty());
  CHECK(check_loaded<Pos>(written + "stacked", layers, 3, 1, 541 + 60).empty());
  CHECK(check_loaded<Pos>(written + "grid", grid, 4, 2, 40 + 2 * 541).empty());
  CHECK(check_loaded<PosGP>(written + "grid", grid_as_one, 4, 3, 40 + 541).empty());
}

TEST_CASE("several optimizers that 0.2 saved together are loaded together") {
  std::string const path = written + "several";
  zero::run_ranks(3, [&](InProcess& world) {
    Member<PosG, decltype(fp32)> generator(world, fp32);
    Member<Pos, decltype(fp16)> critic(world, fp16);
    auto const report = zero::Checkpoints{path}.load(
        {{"critic", &critic.optimizer()}, {"generator", &generator.optimizer()}},
        zero::Checkpoints{path}.list().at(0));
    check_report(report, fp32.counters, 2);
    CHECK(report.differing.empty());
    generator.check(true);
    critic.check(true);
  });
}

TEST_CASE("model files of 0.2 are loaded") {
  check_imported<Pos>("fp32.safetensors", fp32, 2);
  check_imported<PosG>("fp16.safetensors", fp16, 3);
  check_imported<PosG>("fp16.master.safetensors", fp16, 1);
  check_imported<PosGP>("bf16.safetensors.index.json", bf16, 2);
  check_imported<Pos>("fp64.safetensors", fp64, 2);
  check_imported<PosG>("stacked.safetensors", stack, 3);
  check_imported<PosGP>("grid.safetensors", grid_as_one, 3);
  check_imported<PosG>("critic.safetensors", fp16, 2);  // by the tool, of several
}

/// Saves a run, and writes its model, into written_by_0_2 below the working directory.
template <class R>
void write(std::string const& name,
           R const& run,
           int ranks = 3,
           std::uint64_t file_bytes = 1 << 20) {
  std::string const path = "written_by_0_2/" + name;
  zero::run_ranks(ranks, [&](InProcess& world) {
    Member<PosGP, R> member(world, run);
    member.set();
    std::vector<std::byte> const blob(2, static_cast<std::byte>(5 + world.rank()));
    zero::Checkpoints{path, {.lock = false}}.save(
        member.optimizer(), {.user = {{"epoch", 2}}, .rank_blob = blob, .parts = member.parts()});
    zero::ExportOptions options{.max_file_bytes = file_bytes, .parts = member.parts()};
    zero::export_model(member.optimizer(), path + ".safetensors", options);
    if (name != "fp16") return;
    options.dtype = zero::ExportDType::master;
    zero::export_model(member.optimizer(), path + ".master.safetensors", options);
  });
}

/// This was compiled with the headers of 0.2.0, commit 98f892b.
TEST_CASE("checkpoints and models of this version are written" * doctest::skip()) {
  write("fp32", fp32);
  write("fp16", fp16);
  write("bf16", bf16, 3, 200);
  write("fp64", fp64);
  write("stacked", stack);
  write("grid", grid, 4);
  std::string const path = "written_by_0_2/several";
  zero::run_ranks(2, [&](InProcess& world) {
    Member<PosGP, decltype(fp32)> generator(world, fp32);
    Member<PosG, decltype(fp16)> critic(world, fp16);
    generator.set();
    critic.set();
    std::vector<zero::NamedOptimizer> const both{{"generator", &generator.optimizer()},
                                                 {"critic", &critic.optimizer()}};
    std::vector<std::byte> const blob(2, static_cast<std::byte>(5 + world.rank()));
    zero::Checkpoints run{path,
                          {.snapshot_bytes = zero::Checkpoints::plan(both, 2), .lock = false}};
    run.save_async(both, {.user = {{"epoch", 2}}, .rank_blob = blob});
    run.finish();
  });
  zero::export_checkpoint(zero::Checkpoints{path}.list().at(0).path,
                          "written_by_0_2/critic.safetensors",
                          {.optimizer = "critic"});
}

}  // namespace
}  // namespace compatibility_test
