/// @file
/// What activation checkpoints will hold and move, decided before anything is allocated.
#pragma once

#include "zero/activations/activation_layout.hpp"
#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/plan.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// Every byte that a rank will hold for activation checkpoints, and everything it will move for one
/// micro-batch. The same on all ranks, since shares are equal.
struct ActivationPlan {
  std::string placement{};          ///< such as "Pa"
  std::string slower_memory{};      ///< such as "file"; empty where nothing is placed there
  int group_size = 1;               ///< the paper's N_m
  int micro_batches = 1;            ///< held at once
  std::uint64_t elements = 0;       ///< of all checkpoints of one micro-batch, without padding
  MemoryBytes memory{};             ///< held from construction on, in the communicator's space
  MemoryBytes slower{};             ///< held from construction on, in the slower memory
  std::uint64_t sent_elements = 0;  ///< to other ranks for one micro-batch, padding included
  std::uint64_t sent_bytes = 0;     ///< the same in bytes
  std::uint64_t slower_bytes = 0;   ///< moved for one micro-batch to and from the slower memory
  std::uint64_t pool_layers = 0;    ///< slots of the gather pool, each of the largest layer
};

namespace detail {

/// Sends to the slower memory that may be under way: one share is copied while another one leaves.
inline constexpr std::uint64_t sends_in_flight = 2;

/// How much of what is allocated: the plan and the stores read the same numbers.
struct ActivationSizes {
  std::uint64_t stored = 0;         ///< bytes kept of all micro-batches under way
  std::uint64_t pool_slots = 0;     ///< of the gather pool
  std::uint64_t pool_slot = 0;      ///< bytes of one
  std::uint64_t send_slots = 0;     ///< on the way to the slower memory
  std::uint64_t send_slot = 0;      ///< bytes of one
  std::uint64_t arrival_slots = 0;  ///< on the way from it
  std::uint64_t arrival_slot = 0;   ///< bytes of one
};

[[nodiscard]] inline ActivationSizes activation_sizes(ActivationLayout const& layout,
                                                      int micro_batches,
                                                      int prefetch) {
  if (micro_batches < 1) {
    fail(ErrorKind::invalid_argument, "at least 1 micro-batch is in flight");
  }
  if (prefetch < 0) fail(ErrorKind::invalid_argument, "the prefetch depth must be at least 0");
  auto const batches = static_cast<std::uint64_t>(micro_batches);
  ActivationForm const form = layout.form();
  ActivationSizes sizes;
  sizes.stored = checked_mul(layout.block_bytes(), batches);
  if (form.gathered) {
    sizes.pool_slots = (std::min)(static_cast<std::uint64_t>(prefetch) + 1,
                                  checked_mul(layout.layers().size(), batches));
    sizes.pool_slot = layout.largest_layer_gathered();
  }
  if (form.offloaded) {
    sizes.send_slots = sends_in_flight;
    sizes.send_slot = layout.largest_stored();
    // As many as are being gathered, or one that is next.
    sizes.arrival_slots = sizes.pool_slots;
    sizes.arrival_slot = layout.largest_layer_stored();
  }
  return sizes;
}

[[nodiscard]] inline ActivationPlan make_activation_plan(ActivationLayout const& layout,
                                                         std::string_view placement,
                                                         std::string_view slower_memory,
                                                         int group_size,
                                                         int micro_batches,
                                                         int prefetch) {
  ActivationSizes const sizes = activation_sizes(layout, micro_batches, prefetch);
  ActivationForm const form = layout.form();
  ActivationPlan plan;
  plan.placement = placement;
  if (form.offloaded) plan.slower_memory = slower_memory;
  plan.group_size = group_size;
  plan.micro_batches = micro_batches;
  plan.pool_layers = sizes.pool_slots;
  (form.offloaded ? plan.slower : plan.memory)[Role::activations] = sizes.stored;
  plan.memory[Role::activation_pool] = checked_mul(sizes.pool_slot, sizes.pool_slots);
  plan.memory[Role::activation_staging] =
      checked_add(checked_mul(sizes.send_slot, sizes.send_slots),
                  checked_mul(sizes.arrival_slot, sizes.arrival_slots));
  auto const peers = static_cast<std::uint64_t>(group_size) - 1;
  for (std::size_t c = 0; c < layout.checkpoints().size(); ++c) {
    plan.elements = checked_add(plan.elements, layout.checkpoints()[c].elements);
    if (!form.gathered) continue;
    plan.sent_elements =
        checked_add(plan.sent_elements, checked_mul(layout.placed(c).stored_elements, peers));
    plan.sent_bytes =
        checked_add(plan.sent_bytes, checked_mul(layout.placed(c).stored_bytes, peers));
  }
  if (form.offloaded) plan.slower_bytes = checked_mul(2, layout.block_bytes());
  (void)plan.memory.total();
  return plan;
}

}  // namespace detail

/// The plan as a table for people. UTF-8; ends with a newline.
[[nodiscard]] inline std::string to_string(ActivationPlan const& plan) {
  std::string text =
      "activation checkpoints: placement " + plan.placement +
      ", N_m = " + std::to_string(plan.group_size) + ", " + detail::with_commas(plan.elements) +
      " elements a micro-batch, micro-batches at once: " + std::to_string(plan.micro_batches) +
      "\n\n";
  detail::TextTable held;
  held.add("held per rank", {"bytes", "", ""}, "");
  auto const add = [&held](std::string row, std::uint64_t bytes, std::string remark) {
    held.add(std::move(row),
             {detail::with_commas(bytes), detail::in_binary_units(bytes), ""},
             bytes == 0 ? "" : std::move(remark));
  };
  add(std::string(name(Role::activations)),
      plan.memory[Role::activations],
      plan.pool_layers == 0 ? "whole" : "1/N_m of each");
  add(std::string(name(Role::activation_pool)),
      plan.memory[Role::activation_pool],
      "the largest layer, times " + std::to_string(plan.pool_layers));
  add(std::string(name(Role::activation_staging)),
      plan.memory[Role::activation_staging],
      "shares on their way");
  add("total", plan.memory.total(), "");
  add("in the slower memory", plan.slower.total(), plan.slower_memory + ", 1/N_m of each");
  text += held.text() + "\n";
  detail::TextTable moved;
  moved.add("moved per rank and micro-batch", {"elements", "bytes", ""}, "");
  moved.add("sent to other ranks",
            {detail::with_commas(plan.sent_elements), detail::with_commas(plan.sent_bytes), ""},
            plan.sent_elements == 0 ? "" : "one all-gather of each checkpoint");
  moved.add("to and from the slower memory",
            {"", detail::with_commas(plan.slower_bytes), ""},
            plan.slower_bytes == 0 ? "" : "a share, twice");
  return text + moved.text();
}

}  // namespace zero::inline ZERO_NAMESPACE
