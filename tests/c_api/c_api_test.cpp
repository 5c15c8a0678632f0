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
    for (int mode = trainer_unit_by_unit; mode <= trainer_lent_units; ++mode) {
      for (int const precision : {ZERO_FP32, ZERO_BF16}) {
        trainer_run run{ZERO_POS, precision, ZERO_ADAMW, mode, 4, nullptr};
        Bytes const wanted = precision == ZERO_FP32
                                 ? reference<zero::Fp32>(ranks, run)
                                 : reference<zero::Mixed<zero::bf16>>(ranks, run);
        bool const lent = mode >= trainer_flat;
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

/// Two steps, then what is owned is shown; or what was shown is set, then one step more.
struct Shown {
  std::int32_t stage;
  std::int32_t precision;
  std::map<std::string, std::vector<float>> arrays{};              ///< "tensor.array"
  std::size_t elements = 0;                                        ///< that were shown
  std::vector<std::int64_t> steps = std::vector<std::int64_t>(4);  ///< of 3 layers and b
  std::mutex mutex{};
  std::vector<Bytes> result{2, Bytes(4 * 300)};  ///< parameters after the last step
};
constexpr std::int64_t shown_shapes[] = {3, 100, 40};

/// What lies in an array of `Shown`.
std::span<float> place_of(Shown& all, zero_owned const& owned) {
  REQUIRE(owned.size == sizeof(zero_owned));
  REQUIRE(owned.element_bytes == sizeof(float));
  REQUIRE(std::string(owned.name) == (owned.tensor == 0 ? "a" : "b"));
  REQUIRE(std::string(owned.array) ==
          std::array{"master", "exp_avg", "exp_avg_sq"}[static_cast<std::size_t>(owned.number)]);
  auto& array = all.arrays[std::string(owned.name) + '.' + owned.array];
  array.resize(owned.tensor == 0 ? 300 : 40);
  return std::span(array).subspan(static_cast<std::size_t>(owned.first),
                                  static_cast<std::size_t>(owned.count));
}

template <bool resumes>
std::int32_t train_owned(zero_comm* comm, void* user) {
  Shown& all = *static_cast<Shown*>(user);
  zero_tensor const tensors[] = {zero_stack_of("a", 0, 2, shown_shapes),
                                 zero_tensor_of("b", 3, 1, shown_shapes + 2)};
  zero_options options = zero_options_of(all.stage, all.precision, ZERO_ADAMW);
  options.bucket_bytes = 512;
  zero_optimizer* opt = nullptr;
  std::int32_t code = zero_create(comm, &options, tensors, 2, &opt);
  float scale = 0.f;
  std::int32_t streak = 0;
  if (resumes) {
    auto const fill = [](zero_owned const* owned, void* from) {
      Shown& shown = *static_cast<Shown*>(from);
      std::lock_guard const lock(shown.mutex);
      auto const place = place_of(shown, *owned);
      std::memcpy(owned->data, place.data(), place.size_bytes());
      return std::int32_t{0};
    };
    code |= zero_fill_owned(opt, fill, &all);
    code |= zero_set_counters(opt, all.steps.data(), 4, 1.f, 0);
  } else {
    auto const fill = [](std::int32_t t, std::int64_t first, std::int64_t n, float* to, void*) {
      for (std::int64_t i = 0; i < n; ++i) to[i] = trainer_value(t, first + i);
      return std::int32_t{0};
    };
    code |= zero_load(opt, fill, nullptr);
  }
  for (int step = resumes ? 2 : 0; step < 3; ++step) {
    for (std::int32_t unit = 4; unit-- > 0;) {
      void* g = nullptr;
      code |= zero_gradients(opt, unit, ZERO_OVERWRITE, &g, 1);
      for (std::int64_t i = 0; i < (unit == 3 ? 40 : 100); ++i) {
        trainer_put(g, i, trainer_gradient(unit, i, 0, step), all.precision);
      }
      code |= zero_reduce(opt, unit);
    }
    code |= zero_step(opt, nullptr, nullptr);
    if (step != 1) continue;
    auto const visit = [](zero_owned const* owned, void* to) {
      Shown& shown = *static_cast<Shown*>(to);
      std::lock_guard const lock(shown.mutex);
      auto const place = place_of(shown, *owned);
      std::memcpy(place.data(), owned->data, place.size_bytes());
      shown.elements += place.size();
      return std::int32_t{0};
    };
    code |= zero_visit_owned(opt, visit, &all);
    std::lock_guard const lock(all.mutex);
    code |= zero_get_counters(opt, all.steps.data(), 4, &scale, &streak);
  }
  void const* full[2] = {};
  code |= zero_full_parameters(opt, full, 2);
  if (zero_comm_rank(comm) == 0) {
    for (std::size_t t = 0; t < 2; ++t) {
      std::size_t const elements = t == 0 ? 300 : 40;
      std::memcpy(all.result[t].data(), full[t], elements * (all.precision == ZERO_BF16 ? 2 : 4));
    }
  }
  return code;
}

TEST_CASE("C API: what one run is shown of what it owns, another goes on from") {
  for (int const precision : {ZERO_FP32, ZERO_BF16}) {
    CAPTURE(precision);
    Shown all{ZERO_POS, precision};
    char message[300] = "";
    CHECK(zero_run_ranks(3, train_owned<false>, &all, message, sizeof(message)) == ZERO_OK);
    CHECK(all.elements == 3 * 340);  // each by one of the ranks
    CHECK(all.arrays.size() == 6);
    auto const wanted = std::exchange(all.result, {2, Bytes(4 * 300)});
    all.stage = ZERO_POS_G_P;
    CHECK(zero_run_ranks(2, train_owned<true>, &all, message, sizeof(message)) == ZERO_OK);
    CAPTURE(message);
    CHECK(all.result == wanted);
    CHECK(wanted[0] != Bytes(4 * 300));
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
  zero_span const spans[] = {{g[0], 300}, {g[1], 40}};
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
    if (lent) code |= zero_bind_gradients(opt, g, 2) | zero_bind_gradients_spans(opt, spans, 2);
    for (int unit = 1; lent && unit >= 0; --unit) {
      code |= zero_bind_unit(opt, unit, spans + unit, 1) | zero_reduce(opt, unit);
    }
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
