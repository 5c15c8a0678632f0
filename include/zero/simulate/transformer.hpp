/// @file
/// A training step of a transformer in virtual time: which products, which collectives, in the
/// order of a trainer's loop.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/api/guards.hpp"
#include "zero/simulate/cluster.hpp"
#include "zero/simulate/collectives.hpp"
#include "zero/simulate/communicator.hpp"
#include "zero/simulate/timeline.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::simulate {

/// GPT-2's shape, divided over a model axis as Megatron does (arXiv 1909.08053 §3).
struct Transformer {
  int layers = 1;          ///< L
  int hidden = 1;          ///< h
  int heads = 1;           ///< of attention
  int vocabulary = 51200;  ///< V
  int sequence = 1024;     ///< s, tokens
  int model_ranks = 1;     ///< ranks of the model axis

  /// Parameters of the whole model: 12·L·h² and what is beside it.
  [[nodiscard]] double parameters() const {
    double const h = hidden;
    return layers * (12. * h * h + 13. * h) + (vocabulary + sequence + 2.) * h;
  }
  /// Operations of a step on so many sequences, for the figures that papers print: 96·b·s·L·h²·(1 +
  /// s/6h + V/16Lh), one of the four passes being recomputation (arXiv 2104.04473 §5.1).
  [[nodiscard]] double operations(double sequences) const {
    double const h = hidden;
    double const s = sequence;
    double const L = layers;
    return 96. * sequences * s * L * h * h * (1. + s / (6. * h) + vocabulary / (16. * L * h));
  }
};

/// What one rank of the model axis has: unit 0 the embeddings, then the layers, then the last norm
/// and the output, which is tied to the embedding.
ZERO_APART [[nodiscard]] std::vector<Tensor> tensors(Transformer const& model);

/// How a trainer steps.
struct Training {
  int batch = 1;          ///< sequences of a micro-batch, of each rank of the data axis
  int micro_batches = 1;  ///< that a step has; more than one with AccumulateFull or -Shard
  bool recompute = true;  ///< layers keep their inputs alone, and are done again in backward passes
  bool partitioned = false;  ///< these inputs are divided over the model axis (Pa, §6.1)
  double slower_rate = 0.;   ///< bytes a second to the host, if they lie there (Pa+cpu); else 0
};

/// The pieces of a step, each put on the queue of the world.
class Pass {
 public:
  /// @param world  of which time passes; outlives the pass
  /// @param model  that is trained
  /// @param training  how
  Pass(World& world, Transformer const& model, Training const& training)
      : world_(&world), model_(model), training_(training) {}

  /// The forward pass of a unit.
  ZERO_APART void forward(int unit) const;
  /// Its backward pass, after what is done again.
  ZERO_APART void backward(int unit) const;

 private:
  ZERO_APART void layer(double times, char const* what, int unit) const;
  ZERO_APART void head(double times, char const* what, int unit) const;
  ZERO_APART void checkpoint(bool stores, int unit) const;
  void exchange(Op op, double block_bytes) const {
    Placement const axis{.size = model_.model_ranks,
                         .per_node = world_->cluster().devices_per_node};
    world_->timeline().block(op, cost(world_->cluster(), axis, op, block_bytes).seconds());
  }
  [[nodiscard]] double tokens() const {
    return static_cast<double>(training_.batch) * model_.sequence;
  }

  World* world_;
  Transformer model_;
  Training training_;
};

/// One step of an optimizer over a simulated communicator: forward and backward passes of all
/// micro-batches in the order of the units, and the update.
/// @returns seconds of virtual time, refresh included
template <class Optimizer, class Options>
double step(Optimizer& optimizer,
            World& world,
            Transformer const& model,
            Training const& training,
            Options const& options) {
  Pass const pass(world, model, training);
  double const begin = world.timeline().now();
  for (int micro = 0; micro < training.micro_batches; ++micro) {
    if (training.micro_batches > 1) optimizer.micro_step();
    for (int const unit : optimizer.units()) {
      auto const parameters = optimizer.parameters(unit);
      pass.forward(unit);
    }
    for (int const unit : optimizer.units_backward()) {
      auto const parameters = optimizer.parameters(unit);
      auto gradients = optimizer.gradients(unit, Overwrite{});
      pass.backward(unit);
      optimizer.reduce(std::move(gradients));
    }
  }
  optimizer.step(options);
  optimizer.settle();
  return world.timeline().now() - begin;
}

#if ZERO_BODIES

ZERO_BODY std::vector<Tensor> tensors(Transformer const& model) {
  auto const h = static_cast<std::size_t>(model.hidden);
  auto const parts = static_cast<std::size_t>(model.model_ranks);
  auto const s = static_cast<std::size_t>(model.sequence);
  if (model.layers < 1 || h < 1 || parts < 1 || s < 1 || model.vocabulary < 1 || model.heads < 1) {
    fail(ErrorKind::invalid_argument,
         {"a transformer without layers, width, heads, tokens or ranks"});
  }
  // As Megatron pads what its ranks do not divide.
  auto const part = [&](std::size_t count) { return (count + parts - 1) / parts; };
  std::size_t const vocabulary = part(static_cast<std::size_t>(model.vocabulary));
  bool const divided = parts > 1;
  std::vector<Tensor> all{
      {.name = "wte", .shape = {vocabulary, h}, .unit = 0, .partitioned = divided},
      {.name = "wpe", .shape = {s, h}, .unit = 0}};
  for (int l = 0; l < model.layers; ++l) {
    std::string const name = "h" + std::to_string(l) + ".";
    auto const add = [&](char const* which, std::vector<std::size_t> shape, bool partitioned) {
      all.push_back({.name = name + which,
                     .shape = std::move(shape),
                     .unit = l + 1,
                     .partitioned = partitioned});
    };
    add("ln_1.weight", {h}, false);
    add("ln_1.bias", {h}, false);
    add("attn.weight", {part(3 * h), h}, divided);
    add("attn.bias", {part(3 * h)}, divided);
    add("attn.proj.weight", {h, part(h)}, divided);
    add("attn.proj.bias", {h}, false);
    add("ln_2.weight", {h}, false);
    add("ln_2.bias", {h}, false);
    add("mlp.weight", {part(4 * h), h}, divided);
    add("mlp.bias", {part(4 * h)}, divided);
    add("mlp.proj.weight", {h, part(4 * h)}, divided);
    add("mlp.proj.bias", {h}, false);
  }
  int const last = model.layers + 1;
  all.push_back({.name = "ln_f.weight", .shape = {h}, .unit = last});
  all.push_back({.name = "ln_f.bias", .shape = {h}, .unit = last});
  all.push_back({.name = "lm_head",
                 .shape = {vocabulary, h},
                 .unit = last,
                 .tied_to = "wte",
                 .partitioned = divided});
  return all;
}

ZERO_BODY void Pass::forward(int unit) const {
  if (unit == 0) return;
  if (unit > model_.layers) return head(1., "forward", unit);
  checkpoint(true, unit);
  layer(1., "forward", unit);
}

ZERO_BODY void Pass::backward(int unit) const {
  if (unit == 0) return;
  if (unit > model_.layers) return head(2., "backward", unit);
  if (training_.recompute) {
    checkpoint(false, unit);
    layer(1., "recompute", unit);
  }
  layer(2., "backward", unit);
}

ZERO_BODY void Pass::layer(double times, char const* what, int unit) const {
  Device const& device = world_->cluster().device;
  double const T = tokens();
  double const h = model_.hidden;
  double const s = model_.sequence;
  double const m = model_.model_ranks;
  double const heads = std::ceil(model_.heads / m) * training_.batch;
  double const width = h / model_.heads;
  double seconds = device.product(T, std::ceil(3. * h / m), h);
  seconds += device.product(s, s, width, heads) + device.product(s, width, s, heads);
  seconds += device.product(T, h, std::ceil(h / m));
  seconds += device.product(T, std::ceil(4. * h / m), h);
  seconds += device.product(T, h, std::ceil(4. * h / m));
  // Norms, dropout and sums of T·h, in 16 bits: read and written; softmax and its dropout; GELU.
  constexpr double passes = 2. * 2.;
  seconds += 6. * device.pass(passes * T * h);
  seconds += 3. * device.pass(passes * heads * s * s);
  seconds += 2. * device.pass(passes * T * 4. * h / m);
  world_->timeline().compute(times * seconds, what, unit);
  if (model_.model_ranks > 1) {
    // Of the results of both halves; in backward passes of the gradients of their inputs.
    for (int i = 0; i < 2; ++i) exchange(Op::all_reduce, 2. * T * h);
  }
}

ZERO_BODY void Pass::head(double times, char const* what, int unit) const {
  Device const& device = world_->cluster().device;
  double const T = tokens();
  double const columns = std::ceil(model_.vocabulary / static_cast<double>(model_.model_ranks));
  double const seconds =
      device.product(T, columns, model_.hidden) + 3. * device.pass(2. * 4. * T * columns);
  world_->timeline().compute(times * seconds, what, unit);
  if (model_.model_ranks > 1) exchange(Op::all_reduce, 2. * T * model_.hidden);
}

ZERO_BODY void Pass::checkpoint(bool stores, int unit) const {
  if (!training_.recompute || !training_.partitioned) return;
  double const share = 2. * tokens() * model_.hidden / model_.model_ranks;
  if (training_.slower_rate > 0.) {
    world_->timeline().compute(share / training_.slower_rate, stores ? "store" : "fetch", unit);
  }
  if (!stores && model_.model_ranks > 1) exchange(Op::all_gather, share);
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE::simulate
