/// @file
/// Passes of micro-batches through three layers, whose inputs are stored and fetched.
#pragma once

#include "support/random.hpp"
#include "support/refusal.hpp"
#include "support/standard.hpp"
#include "zero/activations.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/run_ranks.hpp"

namespace activations {

inline constexpr int layer_count = 3;
/// Nothing divides evenly by 2, 3 or 4; the input of layer 1 is the largest.
inline constexpr std::size_t inputs[] = {21, 393, 15};

/// The input of each layer, and a mask of other type and size for layer 1.
[[nodiscard]] inline std::vector<zero::ActivationCheckpoint> checkpoints() {
  return {{"input", 0, inputs[0], zero::DType::f32},
          {"input", 1, inputs[1], zero::DType::f32},
          {"mask", 1, 15, zero::DType::u8},
          {"input", 2, inputs[2], zero::DType::f32}};
}

/// One pass of a micro-batch through a layer.
struct Pass {
  bool forward;
  int layer;
  int batch;
};

/// Micro-batches one after the other.
[[nodiscard]] inline std::vector<Pass> in_turn(int batches) {
  std::vector<Pass> passes;
  for (int batch = 0; batch < batches; ++batch) {
    for (int l = 0; l < layer_count; ++l) passes.push_back({true, l, batch});
    for (int l = layer_count; l-- > 0;) passes.push_back({false, l, batch});
  }
  return passes;
}

/// One forward and one backward pass in turn, with `in_flight` micro-batches at once: a pipeline.
[[nodiscard]] inline std::vector<Pass> one_forward_one_backward(int batches, int in_flight) {
  std::vector<Pass> passes;
  int next = 0;
  auto const forward = [&] {
    for (int l = 0; l < layer_count; ++l) passes.push_back({true, l, next});
    ++next;
  };
  while (next < in_flight && next < batches) forward();
  for (int batch = 0; batch < batches; ++batch) {
    for (int l = layer_count; l-- > 0;) passes.push_back({false, l, batch});
    if (next < batches) forward();
  }
  return passes;
}

/// Two micro-batches whose layers take turns, forward and backward at once: virtual stages.
[[nodiscard]] inline std::vector<Pass> layers_in_turn() {
  std::vector<Pass> passes;
  for (int l = 0; l < layer_count; ++l) passes.push_back({true, l, 0});
  for (int l = 0; l < layer_count; ++l) {
    passes.push_back({false, layer_count - 1 - l, 0});
    passes.push_back({true, l, 1});
  }
  for (int l = 0; l < layer_count; ++l) passes.push_back({true, l, 2});
  for (int l = layer_count; l-- > 0;) {
    passes.push_back({false, l, 2});
    passes.push_back({false, l, 1});
  }
  return passes;
}

/// What a micro-batch stores of a layer.
template <class T>
[[nodiscard]] std::vector<T> content(Pass const& pass, std::size_t count) {
  std::vector<T> values(count);
  auto const key = static_cast<std::uint64_t>(pass.layer * 100 + pass.batch);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(mixed(key, i) % 251);
  return values;
}

/// A step. Does all that is fetched come back as it was stored?
template <class Store>
[[nodiscard]] bool keeps(Store& store, std::vector<Pass> const& passes) {
  bool right = true;
  for (Pass const& pass : passes) {
    auto input = content<float>(pass, inputs[pass.layer]);
    auto mask = content<std::uint8_t>(pass, pass.layer == 1 ? 15 : 0);
    if (pass.forward) {
      store.store(pass.layer, std::span<float const>(input), {.micro_batch = pass.batch});
      if (!mask.empty())
        store.store(pass.layer,
                    std::span<std::uint8_t const>(mask),
                    {.checkpoint = 1, .micro_batch = pass.batch});
      // What was stored may be overwritten, and is.
      std::ranges::fill(input, -777.f);
      std::ranges::fill(mask, std::uint8_t{99});
      continue;
    }
    auto const fetched = store.fetch(pass.layer, pass.batch);
    right = right && std::ranges::equal(fetched.template get<float>(0), input);
    if (!mask.empty())
      right = right && std::ranges::equal(fetched.template get<std::uint8_t>(1), mask);
  }
  store.end_step();
  return right;
}

/// Does `body(comm)` say on every rank that all is well?
template <class Body>
[[nodiscard]] bool on_all(int ranks, Body const& body) {
  std::atomic<int> right{0};
  zero::run_ranks(ranks, [&](zero::InProcess& comm) { right += body(comm) ? 1 : 0; });
  return right == ranks;
}

/// What each rank is told, empty where nothing went wrong.
template <class Body>
[[nodiscard]] std::vector<std::string> told(int ranks, Body const& body) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  auto const on_rank = [&](zero::InProcess& comm) {
    try {
      body(comm);
    } catch (zero::Error const& error) {
      texts[static_cast<std::size_t>(comm.rank())] = error.message();
      throw;
    }
  };
  static_cast<void>(message_of([&] { zero::run_ranks(ranks, on_rank); }));
  return texts;
}

}  // namespace activations
