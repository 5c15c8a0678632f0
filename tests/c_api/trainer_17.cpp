/// The trainer of trainer.c in C++17, with what C++17 has.
#include "c_api/trainer.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

static_assert(__cplusplus < 202002L);

namespace {

struct Refused {
  std::int32_t code;
};
void require(std::int32_t code) {
  if (code != ZERO_OK) throw Refused{code};
}
template <std::size_t N>
zero_tensor tensor(char const* name, int unit, std::array<std::int64_t, N> const& shape) {
  return zero_tensor_of(name, unit, static_cast<int>(N), shape.data());
}

void backward(zero_optimizer* opt, trainer_run const& run, int rank, int seed) {
  std::int32_t const* units = nullptr;
  std::int32_t count = 0;
  require(zero_units(opt, &units, &count));
  for (std::int32_t u = count; u-- > 0;) {
    int const first = 2 * units[u];
    std::vector<void*> g(units[u] == 2 ? 1 : 2);
    auto const size = static_cast<std::int32_t>(g.size());
    require(zero_gradients(opt, units[u], seed % 2 ? ZERO_ADD : ZERO_OVERWRITE, g.data(), size));
    for (std::int32_t t = 0; t < size; ++t) {
      for (std::int64_t i = 0; i < trainer_count(first + t); ++i) {
        auto const value = trainer_gradient(first + t, i, rank, seed);
        trainer_put(g[static_cast<std::size_t>(t)], i, value, run.precision);
      }
    }
    require(zero_reduce(opt, units[u]));
  }
}

void train(zero_comm* comm, trainer_run const& run) {
  auto const width = static_cast<std::size_t>(run.precision == ZERO_FP32 ? 4 : 2);
  std::array<zero_tensor, trainer_tensors> model{tensor<2>("a.w", 0, {12, 8}),
                                                 tensor<1>("a.b", 0, {33}),
                                                 tensor<2>("empty", 1, {4, 0}),
                                                 tensor<2>("b.w", 1, {5, 8}),
                                                 tensor<1>("c.b", 2, {7})};
  model[1].weight_decay = 0;
  model[3].learning_rate = 0.5F;
  zero_options options = zero_options_of(run.stage, run.precision, run.rule);
  options.rule.lr = 0.0625;
  options.rule.weight_decay = 0.125;
  options.bucket_bytes = 256;
  bool const lent = run.mode == trainer_flat || run.mode == trainer_separate;
  if (lent) options.memory = ZERO_BORROWED;
  if (run.mode == trainer_micro_steps) options.accumulation = ZERO_ACCUMULATE_SHARD;

  zero_optimizer* opt = nullptr;
  require(zero_create(comm, &options, model.data(), trainer_tensors, &opt));
  std::vector<char> parameters(trainer_elements * width);
  std::vector<char> gradients(trainer_elements * width);
  std::array<void*, trainer_tensors> lent_parameters{};
  std::array<void*, trainer_tensors> lent_gradients{};
  std::size_t place = 0;
  for (int t = 0; t < trainer_tensors; ++t) {
    lent_parameters[static_cast<std::size_t>(t)] = parameters.data() + place;
    lent_gradients[static_cast<std::size_t>(t)] = gradients.data() + place;
    place += static_cast<std::size_t>(trainer_count(t)) * width;
  }
  if (run.mode == trainer_flat) {
    require(zero_bind_flat(opt, parameters.data(), gradients.data(), trainer_elements));
  } else if (lent) {
    require(zero_bind(opt, lent_parameters.data(), lent_gradients.data(), trainer_tensors));
  }
  require(zero_load(
      opt,
      [](std::int32_t t, std::int64_t first, std::int64_t count, float* values, void*) {
        for (std::int64_t i = 0; i < count; ++i) values[i] = trainer_value(t, first + i);
        return std::int32_t{0};
      },
      nullptr));

  int const rank = zero_comm_rank(comm);
  zero_step_options step_options = zero_step_options_of();
  for (int step = 0; step < run.steps; ++step) {
    if (lent) {
      for (int t = 0; t < trainer_tensors; ++t) {
        for (std::int64_t i = 0; i < trainer_count(t); ++i) {
          auto const value = trainer_gradient(t, i, rank, step);
          trainer_put(lent_gradients[static_cast<std::size_t>(t)], i, value, run.precision);
        }
      }
      if (run.mode == trainer_flat) {
        require(zero_bind_gradients_flat(opt, gradients.data(), trainer_elements));
      }
      double norm = 0;
      require(zero_grad_norm(opt, &norm));
      step_options.learning_rate = 0.0625;
      step_options.scale = norm > 2 ? 2 / norm : 1;
    } else if (run.mode == trainer_micro_steps) {
      require(zero_micro_step(opt, 1 + rank, 0));
      backward(opt, run, rank, step);
      require(zero_micro_step(opt, 2, 1));
      backward(opt, run, rank, step + 1);
      step_options.max_norm = 2;
    } else {
      backward(opt, run, rank, step);
      step_options.max_norm = 2;
    }
    require(zero_step(opt, &step_options, nullptr));
  }

  std::array<void const*, trainer_tensors> all{};
  require(zero_full_parameters(opt, all.data(), trainer_tensors));
  place = 0;
  for (int t = 0; t < trainer_tensors; ++t) {
    std::size_t const bytes = static_cast<std::size_t>(trainer_count(t)) * width;
    if (rank == 0 && run.result != nullptr && bytes > 0) {
      std::memcpy(run.result + place, all[static_cast<std::size_t>(t)], bytes);
    }
    place += bytes;
  }
}

}  // namespace

std::int32_t trainer_17(zero_comm* comm, void* user) {
  try {
    train(comm, *static_cast<trainer_run const*>(user));
  } catch (Refused const& refused) {
    return refused.code;
  }
  return ZERO_OK;
}
