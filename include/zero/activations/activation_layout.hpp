/// @file
/// What a trainer will store between forward and backward pass, and where each of it lies.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_SHARED_NAMESPACE {

/// One tensor that is kept for the recomputation of a layer: usually the layer's input. All ranks
/// of the model-parallel group hold it whole when it is stored.
struct ActivationCheckpoint {
  std::string name;          ///< unique in its layer; messages and guards use it
  int layer = 0;             ///< in the order of the forward pass, from 0; numbers may be skipped
  std::size_t elements = 0;  ///< of one micro-batch
  DType dtype = DType::f16;  ///< of the elements
};

}  // namespace zero::inline ZERO_SHARED_NAMESPACE

namespace zero::inline ZERO_NAMESPACE::detail {

/// How checkpoints are held: what plan and stores read instead of the placement.
struct ActivationForm {
  bool gathered = false;   ///< kept as shares, which an all-gather brings together
  bool offloaded = false;  ///< kept in the slower memory
};

/// A checkpoint's places. What is kept of it, a share or all, and what is gathered begin at
/// multiples of 64 bytes: cache lines, and what vector loads ask for.
struct PlacedCheckpoint {
  std::size_t layer = 0;              ///< index into the layers
  std::uint64_t stored_elements = 0;  ///< of one rank, padding included
  std::uint64_t stored_bytes = 0;     ///< the same in bytes
  std::uint64_t stored_offset = 0;    ///< from the beginning of its layer's
  std::uint64_t gathered_offset = 0;  ///< in a slot of the gather pool
};

/// The checkpoints of one layer, which follow each other.
struct PlacedLayer {
  int number = 0;                    ///< the trainer's
  std::size_t first = 0;             ///< its first checkpoint
  std::size_t count = 0;             ///< how many it has
  std::uint64_t stored_offset = 0;   ///< from the beginning of the micro-batch's
  std::uint64_t stored_bytes = 0;    ///< of one rank
  std::uint64_t gathered_bytes = 0;  ///< of all ranks
};

/// Where everything lies. One micro-batch's checkpoints form a block; its layers follow each other.
class ActivationLayout {
 public:
  static constexpr std::uint64_t alignment = 64;

  ActivationLayout(std::vector<ActivationCheckpoint> checkpoints, int ranks, ActivationForm form)
      : checkpoints_(std::move(checkpoints)),
        ranks_(static_cast<std::uint64_t>(ranks)),
        form_(form) {
    if (ranks < 1) fail(ErrorKind::invalid_argument, {"a group has ranks, not ", ranks});
    placed_.reserve(checkpoints_.size());
    for (std::size_t c = 0; c < checkpoints_.size(); ++c) place(c);
    for (PlacedLayer const& layer : layers_) {
      largest_layer_stored_ = (std::max)(largest_layer_stored_, layer.stored_bytes);
      largest_layer_gathered_ = (std::max)(largest_layer_gathered_, layer.gathered_bytes);
      most_checkpoints_ = (std::max)(most_checkpoints_, layer.count);
    }
  }

  [[nodiscard]] ActivationForm form() const noexcept { return form_; }
  [[nodiscard]] std::vector<ActivationCheckpoint> const& checkpoints() const noexcept {
    return checkpoints_;
  }
  [[nodiscard]] std::vector<PlacedLayer> const& layers() const noexcept { return layers_; }
  [[nodiscard]] PlacedCheckpoint const& placed(std::size_t c) const noexcept { return placed_[c]; }
  /// Bytes that a rank keeps of one micro-batch.
  [[nodiscard]] std::uint64_t block_bytes() const noexcept { return block_bytes_; }
  [[nodiscard]] std::uint64_t largest_stored() const noexcept { return largest_stored_; }
  [[nodiscard]] std::uint64_t largest_layer_stored() const noexcept {
    return largest_layer_stored_;
  }
  [[nodiscard]] std::uint64_t largest_layer_gathered() const noexcept {
    return largest_layer_gathered_;
  }
  /// Of one layer.
  [[nodiscard]] std::size_t most_checkpoints() const noexcept { return most_checkpoints_; }

  /// Elements of a checkpoint that `rank` keeps, without padding: [first, second).
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> own(std::size_t c,
                                                            int rank) const noexcept {
    std::uint64_t const all = checkpoints_[c].elements;
    if (!form_.gathered) return {0, all};
    std::uint64_t const share = placed_[c].stored_elements;
    std::uint64_t const first = (std::min)(all, share * static_cast<std::uint64_t>(rank));
    return {first, (std::min)(all, first + share)};
  }

  /// Index of the layer with the trainer's number.
  /// @throws Error (invalid_argument) if there is none
  [[nodiscard]] std::size_t layer_index(int number) const {
    auto const found = std::lower_bound(
        layers_.begin(), layers_.end(), number, [](PlacedLayer const& layer, int wanted) {
          return layer.number < wanted;
        });
    if (found != layers_.end() && found->number == number) {
      return static_cast<std::size_t>(found - layers_.begin());
    }
    fail(ErrorKind::invalid_argument, {"layer ", number, " was described with no checkpoint"});
  }

 private:
  void place(std::size_t c) {
    ActivationCheckpoint const& checkpoint = checkpoints_[c];
    std::uint64_t const element = size_of(checkpoint.dtype);
    if (checkpoint.name.empty() || checkpoint.layer < 0 || element == 0) {
      fail(ErrorKind::invalid_argument,
           {"checkpoint ",
            c,
            " ('",
            checkpoint.name,
            "' of layer ",
            checkpoint.layer,
            ") needs a name, a layer from 0 on and an element type"});
    }
    if (layers_.empty() || layers_.back().number < checkpoint.layer) {
      layers_.push_back({.number = checkpoint.layer, .first = c, .stored_offset = block_bytes_});
    }
    PlacedLayer& layer = layers_.back();
    if (layer.number != checkpoint.layer) {
      fail(ErrorKind::invalid_argument,
           {"checkpoint '",
            checkpoint.name,
            "' of layer ",
            checkpoint.layer,
            " is described after layer ",
            layer.number,
            ": describe layers in the order of the ",
            "forward pass"});
    }
    for (std::size_t other = layer.first; other < c; ++other) {
      if (checkpoints_[other].name != checkpoint.name) continue;
      fail(ErrorKind::invalid_argument,
           {"layer ", layer.number, " has two checkpoints '", checkpoint.name, "'"});
    }
    ++layer.count;

    std::uint64_t const ranks = form_.gathered ? ranks_ : 1;
    PlacedCheckpoint placed;
    placed.layer = layers_.size() - 1;
    placed.stored_elements = round_up(ceil_div(checkpoint.elements, ranks), alignment / element);
    placed.stored_bytes = checked_mul(placed.stored_elements, element);
    placed.stored_offset = layer.stored_bytes;
    placed.gathered_offset = layer.gathered_bytes;
    layer.stored_bytes = checked_add(layer.stored_bytes, placed.stored_bytes);
    layer.gathered_bytes =
        checked_add(layer.gathered_bytes, checked_mul(placed.stored_bytes, ranks));
    block_bytes_ = checked_add(block_bytes_, placed.stored_bytes);
    largest_stored_ = (std::max)(largest_stored_, placed.stored_bytes);
    placed_.push_back(placed);
  }

  std::vector<ActivationCheckpoint> checkpoints_;
  std::uint64_t ranks_;
  ActivationForm form_;
  std::vector<PlacedCheckpoint> placed_;
  std::vector<PlacedLayer> layers_;
  std::uint64_t block_bytes_ = 0;
  std::uint64_t largest_stored_ = 0;
  std::uint64_t largest_layer_stored_ = 0;
  std::uint64_t largest_layer_gathered_ = 0;
  std::size_t most_checkpoints_ = 0;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
