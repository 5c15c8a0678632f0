/// Trainers in C and C++17 through zero/c.h: the bits of the one in C++.
#include "c_api/trainer.h"
#include "contracts/heap.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace c_api_test {
namespace {

using Bytes = std::vector<unsigned char>;

/// The model of the trainers.
std::vector<zero::Tensor> model() {
  return {{.name = "a.w", .shape = {12, 8}, .unit = 0},
          {.name = "a.b", .shape = {33}, .unit = 0, .weight_decay = 0.f},
          {.name = "empty", .shape = {4, 0}, .unit = 1},
          {.name = "b.w", .shape = {5, 8}, .unit = 1, .learning_rate = 0.5f},
          {.name = "c.b", .shape = {7}, .unit = 2}};
}

/// Unit by unit in C++, whatever the mode and the stage of the trainer: they never decide a result.
template <class Precision, class Accumulation>
Bytes reference_of(int ranks, trainer_run const& run) {
  Bytes result(trainer_elements * 4);
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer opt{comm,
                               model(),
                               zero::stage::Pos{},
                               Precision{},
                               Accumulation{},
                               zero::Bucket{256},
                               zero::AdamW{.lr = 0.0625f, .weight_decay = 0.125f}};
    opt.load_parameters([&](auto const& tensor, std::size_t first, std::span<float> values) {
      auto const t = static_cast<std::int32_t>(&tensor - opt.tensors().data());
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = trainer_value(t, static_cast<std::int64_t>(first + i));
      }
    });
    auto const backward = [&](int seed) {
      for (int const unit : opt.units_backward()) {
        auto g = opt.gradients(unit);
        for (std::size_t k = 0; k < g.size(); ++k) {
          auto const t = 2 * unit + static_cast<std::int32_t>(k);
          for (std::int64_t i = 0; i < trainer_count(t); ++i) {
            auto const value = trainer_gradient(t, i, comm.rank(), seed);
            trainer_put(g[k].data(), i, value, run.precision);
          }
        }
        opt.reduce(std::move(g));
      }
    };
    for (int step = 0; step < run.steps; ++step) {
      if (run.mode == trainer_micro_steps) {
        opt.micro_step({.weight = 1. + comm.rank()});
        backward(step);
        opt.micro_step({.weight = 2., .last = true});
        backward(step + 1);
      } else {
        backward(step);
      }
      opt.step({.max_norm = 2.});
    }
    auto const all = opt.full_parameters();
    std::size_t place = 0;
    for (std::size_t t = 0; t < all.size(); ++t) {
      std::span const bytes = std::as_bytes(all[t]);
      if (comm.rank() == 0 && !bytes.empty()) {
        std::memcpy(result.data() + place, bytes.data(), bytes.size());
      }
      place += bytes.size();
    }
  });
  return result;
}
template <class Precision>
Bytes reference(int ranks, trainer_run const& run) {
  return run.mode == trainer_micro_steps
             ? reference_of<Precision, zero::AccumulateShard>(ranks, run)
             : reference_of<Precision, zero::AccumulateNone>(ranks, run);
}

Bytes train(zero_rank_function trainer, int ranks, trainer_run run) {
  Bytes result(trainer_elements * 4);
  run.result = result.data();
  std::string message(500, '\0');
  auto const code = zero_run_ranks(ranks, trainer, &run, message.data(), 500);
  CAPTURE(message);
  REQUIRE(code == ZERO_OK);
  return result;
}

TEST_CASE("C API: trainers in C and C++17 have the bits of the one in C++, under every stage") {
  for (int const ranks : {1, 3}) {
    for (int const mode :
         {trainer_unit_by_unit, trainer_micro_steps, trainer_flat, trainer_separate}) {
      for (int const precision : {ZERO_FP32, ZERO_BF16}) {
        trainer_run run{ZERO_POS, precision, ZERO_ADAMW, mode, 4, nullptr};
        Bytes const wanted = precision == ZERO_FP32
                                 ? reference<zero::Fp32>(ranks, run)
                                 : reference<zero::Mixed<zero::bf16>>(ranks, run);
        bool const lent = mode == trainer_flat || mode == trainer_separate;
        for (int stage = ZERO_REPLICATED; stage <= (lent ? ZERO_POS_G : ZERO_POS_G_P); ++stage) {
          CAPTURE(ranks);
          CAPTURE(mode);
          CAPTURE(precision);
          CAPTURE(stage);
          run.stage = stage;
          CHECK(train(trainer_c, ranks, run) == wanted);
          CHECK(train(trainer_17, ranks, run) == wanted);
        }
      }
    }
  }
}

/// A step of each kind, on a rank of two.
std::int32_t count_allocations(zero_comm* comm, void* user) {
  bool const lent = *static_cast<bool const*>(user);
  std::int64_t const shapes[] = {300, 40};
  zero_tensor const tensors[] = {zero_tensor_of("a", 0, 1, shapes),
                                 zero_tensor_of("b", 1, 1, shapes + 1)};
  zero_options options = zero_options_of(lent ? ZERO_POS_G : ZERO_POS_G_P, ZERO_FP32, ZERO_ADAMW);
  options.memory = lent ? ZERO_BORROWED : ZERO_OWNED;
  options.bucket_bytes = 512;
  zero_optimizer* opt = nullptr;
  std::int32_t code = zero_create(comm, &options, tensors, 2, &opt);
  std::vector<float> parameters(340), gradients(340);
  void* p[] = {parameters.data(), parameters.data() + 300};
  void* g[] = {gradients.data(), gradients.data() + 300};
  if (lent) code |= zero_bind(opt, p, g, 2) | zero_adopt(opt);
  if (!lent) {
    auto const fill = [](std::int32_t, std::int64_t, std::int64_t n, float* values, void*) {
      std::fill_n(values, n, 1.f);
      return std::int32_t{0};
    };
    code |= zero_load(opt, fill, nullptr);
  }
  std::uint64_t before = 0;
  for (int step = 0; step < 4; ++step) {
    if (step == 1) before = heap::mine().allocations;
    double norm = 0.;
    if (lent) code |= zero_bind_gradients(opt, g, 2);
    for (int unit = 1; !lent && unit >= 0; --unit) {
      void const* w = nullptr;
      void* slope = nullptr;
      code |= zero_parameters(opt, unit, &w, 1) | zero_gradients(opt, unit, ZERO_ADD, &slope, 1);
      code |= zero_reduce(opt, unit) | zero_release(opt, unit);
    }
    code |= zero_grad_norm(opt, &norm) | zero_step(opt, nullptr, nullptr);
  }
  return code != 0 ? code : heap::mine().allocations == before ? 0 : 77;
}

TEST_CASE("C API: no step after the first allocates anything") {
  for (bool lent : {true, false}) {
    CAPTURE(lent);
    char message[300] = "";
    CHECK(zero_run_ranks(2, count_allocations, &lent, message, sizeof(message)) == ZERO_OK);
    CHECK(std::string(message).empty());
  }
}

TEST_CASE("C API: what is trained differs from what it began with, and with the steps") {
  trainer_run run{ZERO_POS_G, ZERO_FP32, ZERO_ADAMW, trainer_unit_by_unit, 0, nullptr};
  Bytes after[3];
  for (; run.steps < 3; ++run.steps) after[run.steps] = train(trainer_c, 2, run);
  CHECK(after[0] != after[1]);
  CHECK(after[1] != after[2]);
  float first = 0.f;
  std::memcpy(&first, after[0].data(), sizeof(first));
  CHECK(first == trainer_value(0, 0));
}

}  // namespace
}  // namespace c_api_test
