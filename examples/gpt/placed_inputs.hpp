/// @file
/// Activation checkpoints that a model-parallel group holds together: everything a trainer has to
/// know of zero's.
#pragma once

#include "block_inputs.hpp"
#include "options.hpp"
#include "zero/activations.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/transfer/host_transfer.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// The inputs of blocks as a placement holds them. On a host the slower memory is the same memory:
/// what would leave a device is copied there and back.
template <class Placement, zero::Communicator C, class Memory>
class PlacedInputs final : public BlockInputs<float> {
 public:
  /// @param group   the model-parallel ranks; must outlive this
  /// @param memory  where the memory is from that is not the slower
  PlacedInputs(C& group, Options const& options, Memory memory)
      : held_(group, described(options), Placement{}, slower_, std::move(memory)) {}

  void store(int layer, std::span<float const> input) override {
    in_use_.reset();
    // Nothing is left of the micro-batch before, or its backward pass was not complete.
    if (layer == 0) held_.end_step();
    held_.store(layer, input);
  }

  [[nodiscard]] std::span<float const> fetch(int layer) override {
    in_use_.reset();
    in_use_.emplace(held_.fetch(layer));
    return in_use_->template get<float>();
  }

  [[nodiscard]] auto const& held() const noexcept { return held_; }

 private:
  using Held = zero::Activations<C, Placement, zero::HostTransfer, Memory>;

  static std::vector<zero::ActivationCheckpoint> described(Options const& options) {
    std::vector<zero::ActivationCheckpoint> inputs;
    for (int layer = 0; layer < options.model.layers; ++layer) {
      auto const tokens = static_cast<std::size_t>(options.batch * options.model.context);
      inputs.push_back({.name = "input of block " + std::to_string(layer),
                        .layer = layer,
                        .elements = tokens * static_cast<std::size_t>(options.model.channels),
                        .dtype = zero::DType::f32});
    }
    return inputs;
  }

  zero::HostTransfer slower_;
  Held held_;
  std::optional<typename Held::Fetched> in_use_;
};

/// What `--activations` names; null to keep all activations of all blocks.
/// @param group     the model-parallel ranks; must outlive what is returned
/// @param memory    where the memory is from that is not the slower
/// @param recorder  is told how much is planned and held
template <zero::Communicator C, class Memory, class Recorder>
std::unique_ptr<BlockInputs<float>> block_inputs(C& group,
                                                 Options const& options,
                                                 Memory const& memory,
                                                 Recorder& recorder) {
  auto const placed = [&]<class Placement>(Placement) -> std::unique_ptr<BlockInputs<float>> {
    auto inputs = std::make_unique<PlacedInputs<Placement, C, Memory>>(group, options, memory);
    recorder.hold_activations(inputs->held());
    return inputs;
  };
  if (options.activations == "recompute") return placed(zero::activation::Whole{});
  if (options.activations == "partitioned") return placed(zero::activation::Pa{});
  if (options.activations == "partitioned+host") return placed(zero::activation::PaCpu{});
  return nullptr;
}

}  // namespace gpt
