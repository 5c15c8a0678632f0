// A rule that measures whole tensors: what is resumed on other ranks and under another stage has
// the bits of the run that went on.
#include "checkpoint/proof.hpp"

namespace lamb_checkpoint_test {
namespace {

using namespace checkpoint_tests;
using namespace zero::stage;
using zero::Checkpoints;
using zero::InProcess;
using Rest = zero::Mixed<zero::bf16, zero::Rest16>;
using Short = zero::Mixed<zero::bf16, zero::Rest8>;
template <class Stage, class Precision>
using Optimizer = zero::ShardedOptimizer<InProcess, Stage, Precision, zero::Lamb>;

/// Layers, a frozen tensor among trained ones, one that is tied, one of a single element, and one
/// that all ranks have a part of.
std::vector<zero::Tensor> model() {
  return {{.name = "embed", .shape = {37, 5}},
          {.name = "layers", .shape = {3, 23, 7}, .unit = 1, .stacked = true},
          {.name = "frozen", .shape = {40}, .unit = 1, .frozen = true},
          {.name = "b", .shape = {}, .unit = 1, .weight_decay = 0.},
          {.name = "w", .shape = {1031}, .unit = 4},
          {.name = "head", .shape = {37, 5}, .unit = 4, .tied_to = "embed"}};
}

/// Gradients of the first rank alone: their sums are the same on any number of ranks.
template <class O>
void train(O& optimizer, long step, bool first) {
  optimizer.micro_step({.weight = first ? 1. : 0.});
  for (int const unit : optimizer.units_backward()) {
    auto gradients = optimizer.gradients(unit);
    for (std::size_t k = 0; k < gradients.size(); ++k) {
      for (std::size_t i = 0; first && i < gradients[k].size(); ++i) {
        auto const at = static_cast<std::uint64_t>(100 * step + unit);
        gradients[k][i] += toy::uniform(k, i, at) - 0.5f;
      }
    }
    optimizer.reduce(std::move(gradients));
  }
  optimizer.step();
}

/// Masters and states of all tensors, by name and array, and parameters.
using Arrays = std::map<std::string, std::vector<float>>;
template <class O>
void collect(O& optimizer, Arrays& all, std::mutex& mutex) {
  auto const parameters = optimizer.full_parameters();
  std::lock_guard const lock(mutex);
  for (zero::Tensor const& tensor : optimizer.tensors()) {
    auto& to = all[tensor.name];
    to.clear();
    for (auto const each : parameters[tensor.name]) to.push_back(static_cast<float>(each));
  }
  optimizer.visit_owned(
      [&](zero::Tensor const& tensor, std::size_t first, auto masters, auto const& states) {
        auto const add = [&](std::string const& array, auto const& values) {
          auto& to = all[tensor.name + ":" + array];
          to.resize(zero::element_count(tensor));
          for (std::size_t i = 0; i < values.size(); ++i) {
            to[first + i] = static_cast<float>(values[i]);
          }
        };
        add("master", masters);
        for (std::size_t k = 0; k < states.size(); ++k) add(std::to_string(k), states[k]);
      });
}

constexpr long saved = 3, all_steps = 6;

template <class Stage, class Precision>
void resume(int ranks, zero::Bucket bucket, std::string const& path, Arrays const& wanted) {
  CAPTURE(ranks);
  Arrays arrays;
  std::mutex mutex;
  zero::run_ranks(ranks, [&](InProcess& comm) {
    Optimizer<Stage, Precision> optimizer{comm, model(), bucket};
    long const step = Checkpoints{path}.resume(optimizer).value().step;
    for (long next = step; next < all_steps; ++next) train(optimizer, next, comm.rank() == 0);
    collect(optimizer, arrays, mutex);
  });
  CHECK(arrays == wanted);
}

TEST_CASE_TEMPLATE("LAMB that is resumed has the bits of the run that went on",
                   Precision,
                   zero::Fp32,
                   Rest,
                   Short) {
  TemporaryDirectory const directory;
  Arrays wanted;
  std::mutex mutex;
  zero::run_ranks(3, [&](InProcess& comm) {
    Optimizer<PosGP, Precision> whole{comm, model(), zero::Bucket{1}, zero::Seed{7}};
    toy::load(whole);
    for (long step = 0; step < all_steps; ++step) {
      if (step == saved) Checkpoints{directory.path()}.save(whole);
      train(whole, step, comm.rank() == 0);
    }
    collect(whole, wanted, mutex);
  });
  CHECK(wanted.size() > 12);
  resume<Replicated, Precision>(1, zero::Bucket{4096}, directory.path(), wanted);
  resume<PosG, Precision>(2, zero::Bucket{1}, directory.path(), wanted);
}

}  // namespace
}  // namespace lamb_checkpoint_test
