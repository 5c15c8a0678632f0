/// @file
/// The training loop: everything a trainer has to know of zero.
#pragma once

#include "keeper.hpp"
#include "model.hpp"
#include "options.hpp"
#include "result.hpp"
#include "sample.hpp"
#include "text.hpp"
#include "zero/zero.hpp"

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// The model as the library wants it described.
inline std::vector<zero::Tensor> describe(Config const& config) {
  std::vector<zero::Tensor> described;
  auto const all = tensors(config);
  for (TensorInfo const& tensor : all) {
    described.push_back(
        {.name = tensor.name,
         .shape = tensor.shape,
         .unit = tensor.unit,
         .weight_decay = tensor.decay ? 1.f : 0.f,
         .tied_to = tensor.tied_to < 0 ? "" : all[static_cast<std::size_t>(tensor.tied_to)].name});
  }
  return described;
}

/// A unit's tensors as the model wants them: a list of spans.
template <class Unit>
auto spans(Unit const& unit) {
  std::vector<decltype(unit[0])> list;
  for (std::size_t i = 0; i < unit.size(); ++i) list.push_back(unit[i]);
  return list;
}

inline zero::AdamW adamw(Options const& options) {
  return {.lr = options.learning_rate, .beta2 = 0.95, .weight_decay = 0.1f};
}

/// Trains on one rank. The loop is the same for every stage, precision, communicator and memory.
template <class Stage,
          class Precision,
          class Accumulation,
          class Communicator,
          class World,
          class Memory>
void train_rank(Communicator& comm,
                Options const& options,
                Text const& text,
                Recorder<World>& recorder,
                Memory memory) {
  zero::ShardedOptimizer optimizer{
      comm, describe(options.model), Stage{}, Precision{}, Accumulation{}, memory, adamw(options)};
  optimizer.load_parameters(
      [&](zero::Tensor const& tensor, std::size_t first, std::span<float> values) {
        auto const index = static_cast<int>(&tensor - optimizer.tensors().data());
        initial_values(options.model, options.seed, index, first, values);
      });

  Keeper keeper(optimizer, options, text, [&](std::string const& note) { recorder.say(note); });
  int const first = keeper.resume();

  Gpt<> model(options.model, options.batch);
  Batch batch;
  auto const forward = [&](auto& network) {
    for (int const unit : optimizer.units()) {
      auto const weights = optimizer.parameters(unit);
      network.forward(unit, spans(weights));
    }
  };

  for (int step = first; step < options.steps && !recorder.stopped(); ++step) {
    for (int micro = 0; micro < options.accumulate; ++micro) {
      optimizer.micro_step({.last = micro + 1 == options.accumulate});
      int const number = comm.rank() * options.accumulate + micro;
      sample_batch(
          text.training,
          {options.seed, static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(number)},
          options.batch,
          options.model.context,
          batch);
      model.set_batch(batch.inputs, batch.targets);
      forward(model);
      recorder.add_loss(model.loss());
      model.begin_backward(optimizer.loss_scale());
      for (int const unit : optimizer.units_backward()) {
        auto const weights = optimizer.parameters(unit);
        auto gradients = optimizer.gradients(unit);
        model.backward(unit, spans(weights), spans(gradients));
        optimizer.reduce(std::move(gradients));
      }
    }
    recorder.end_step(step,
                      optimizer.step({.learning_rate = options.scheduled_rate(step),
                                      .max_norm = options.clip,
                                      .stop = recorder.stop_requested()}));
    keeper.end_step(step, recorder.stopped());
  }

  recorder.end_training(optimizer);
  keeper.end_training(recorder.stopped());
  if (options.sample > 0 && !recorder.stopped()) {
    recorder.keep_sample(generate(model, forward, {.count = options.sample, .seed = options.seed}));
  }
}

}  // namespace gpt
