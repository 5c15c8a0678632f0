/// @file
/// The training loop: everything a trainer has to know of zero.
#pragma once

#include "adapters.hpp"
#include "keeper.hpp"
#include "model.hpp"
#include "options.hpp"
#include "rank_memory.hpp"
#include "result.hpp"
#include "sample.hpp"
#include "text.hpp"
#include "zero/zero.hpp"

#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace gpt {

/// A unit's tensors as the model wants them: a list of spans.
template <class Unit>
auto spans(Unit const& unit) {
  std::vector<decltype(unit[0])> list;
  for (std::size_t i = 0; i < unit.size(); ++i) list.push_back(unit[i]);
  return list;
}

/// A unit's passes, with adapters where there are any. A device has none.
template <class Network, class Weights>
void forward_unit(Network& network, Adapters& adapters, Weights const& weights) {
  if constexpr (std::is_same_v<Network, Gpt<>>) {
    if (adapters) return network.forward(weights.unit(), adapters.merge(weights));
  }
  network.forward(weights.unit(), spans(weights));
}
template <class Network, class Weights, class Gradients>
void backward_unit(Network& network,
                   Adapters& adapters,
                   Weights const& weights,
                   Gradients const& gradients) {
  int const unit = weights.unit();
  if constexpr (std::is_same_v<Network, Gpt<>>) {
    if (adapters) {
      network.backward(unit, adapters.merge(weights), adapters.zeros(unit));
      return adapters.add_gradients(weights, gradients);
    }
  }
  network.backward(unit, spans(weights), spans(gradients));
}

template <class Rule>
Rule rule_of(Options const& options) {
  return {.lr = options.learning_rate, .beta2 = 0.95, .weight_decay = 0.1f};
}

/// Trains on one rank. The loop is the same for every stage, precision, communicator and memory.
/// @param ranks  a communicator, or a grid where several ranks hold a model together
/// @param data   the ranks that have the same part of a model, each with data of its own
/// @param place  of this rank among those that hold its model together, on the same data
/// @param make_network  gives the model, whose activations are from the memory that it is called
///   with: all that differs where the weights are of a device
/// @param memory  Owned, with an allocator for all that the rank holds
template <class Stage,
          class Precision,
          class Rule,
          class Accumulation,
          class Ranks,
          class Communicator,
          class MakeNetwork,
          class World,
          class Memory>
void train_rank(Ranks& ranks,
                Communicator const& data,
                ModelRank const& place,
                MakeNetwork const& make_network,
                Options const& options,
                Text const& text,
                Recorder<World>& recorder,
                Memory memory) {
  zero::ShardedOptimizer optimizer{ranks,
                                   options.lora > 0 ? describe_adapted(options.model, options.lora)
                                                    : describe(options.model, place),
                                   Stage{},
                                   Precision{},
                                   Accumulation{},
                                   memory,
                                   rule_of<Rule>(options),
                                   zero::Bucket{options.bucket},
                                   zero::Seed{options.seed}};
  if (options.lora > 0) {
    auto const base = load_adapted(optimizer, options);
    recorder.say("rank 0 read " + std::to_string(base.bytes_read()) + " of the " +
                 std::to_string(base.size()) + " bytes of " + options.base);
  } else {
    optimizer.load_parameters(
        [&](zero::Tensor const& tensor, std::size_t first, std::span<float> values) {
          auto const index = static_cast<int>(&tensor - optimizer.tensors().data());
          initial_values(options.model, options.seed, index, first, values, place);
        });
  }

  Keeper keeper(
      optimizer, options, text, place, [&](std::string const& note) { recorder.say(note); });
  int const first = keeper.resume();

  Workspace workspace(memory.allocator);
  auto model = make_network(&workspace);
  Adapters adapters(options, &workspace);
  Batch batch;
  auto const forward = [&](auto& network) {
    for (int const unit : optimizer.units()) {
      auto const weights = optimizer.parameters(unit);
      forward_unit(network, adapters, weights);
    }
  };

  for (int step = first; step < options.steps && !recorder.stopped(); ++step) {
    for (int micro = 0; micro < options.accumulate; ++micro) {
      optimizer.micro_step({.last = micro + 1 == options.accumulate});
      int const number = data.rank() * options.accumulate + micro;
      sample_batch(
          text.training,
          {options.seed, static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(number)},
          options.batch,
          options.model.context,
          batch);
      model.set_batch(batch.inputs, batch.targets);
      forward(model);
      model.begin_backward(optimizer.loss_scale());
      for (int const unit : optimizer.units_backward()) {
        auto const weights = optimizer.parameters(unit);
        auto gradients = optimizer.gradients(unit);
        backward_unit(model, adapters, weights, gradients);
        optimizer.reduce(std::move(gradients));
      }
    }
    auto const report = optimizer.step({.learning_rate = options.scheduled_rate(step),
                                        .max_norm = options.clip,
                                        .stop = recorder.stop_requested()});
    // The model is asked once a step: on a device, an answer waits for all that is enqueued.
    if constexpr (requires { model.seconds(); }) recorder.add_model_seconds(model.seconds());
    recorder.end_step(step, report, model.take_losses());
    keeper.end_step(step, recorder.stopped());
  }

  recorder.end_training(optimizer, workspace);
  keeper.end_training(recorder.stopped());
  if (options.sample > 0 && !recorder.stopped()) {
    recorder.keep_sample(generate(model, forward, {.count = options.sample, .seed = options.seed}));
  }
}

}  // namespace gpt
