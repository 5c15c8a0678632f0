#pragma once

#include <zero/zero.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

/// What one translation unit believes about the library; every unit must believe the same.
struct Facts {
  zero::Version version{};
  std::size_t optimizer_bytes = 0;
  std::size_t error_bytes = 0;
  std::uint64_t planned_bytes = 0;
  std::uint64_t result = 0;  ///< of training: a hash of all parameters' bits
  double norm = 0.;
  friend bool operator==(Facts const&, Facts const&) = default;
};

/// Trains on two ranks for three steps. Static, so that each unit answers for itself instead of for
/// the copy the linker kept.
[[nodiscard]] static inline Facts facts() {
  using Optimizer =
      zero::ShardedOptimizer<zero::InProcess, zero::stage::PosGP, zero::Mixed<zero::bf16>>;
  std::vector<zero::Tensor> const model = {{.name = "w", .shape = {3, 701}},
                                           {.name = "b", .shape = {5}, .unit = 1}};
  Facts result;
  result.version = zero::version;
  result.optimizer_bytes = sizeof(Optimizer);
  result.error_bytes = sizeof(zero::Error);
  result.planned_bytes = Optimizer::plan({.world_size = 2}, model).memory.total();
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    Optimizer optimizer{comm, model};
    optimizer.load_parameters([](zero::Tensor const&, std::size_t first, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = 0.01f * static_cast<float>(first + i);
    });
    double norm = 0.;
    for (int step = 0; step < 3; ++step) {
      for (int unit = 1; unit >= 0; --unit) {
        auto const weights = optimizer.parameters(unit);
        auto gradients = optimizer.gradients(unit);
        for (std::size_t i = 0; i < weights[0].size(); ++i) {
          gradients[0][i] = zero::bf16(0.3f * static_cast<float>(weights[0][i]) + 0.1f);
        }
        optimizer.reduce(std::move(gradients));
      }
      norm = optimizer.step({.max_norm = 1.}).grad_norm;
    }
    std::uint64_t hash = 0;
    for (int const unit : optimizer.units()) {
      auto const weights = optimizer.parameters(unit);
      for (zero::bf16 const value : weights[0]) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, &value, sizeof(bits));
        hash = hash * 31 + bits;
      }
    }
    if (comm.rank() != 0) return;
    result.result = hash;
    result.norm = norm;
  });
  return result;
}
