/// A trainer in C11: what a C++ one does, through zero/c.h. trainer_17.cpp compiles it as C++17.
#include "c_api/trainer.h"

#include <stdlib.h>

#ifndef TRAINER
#define TRAINER trainer_c
#endif
#define TRY(call)                     \
  do {                                \
    int32_t const code = (call);      \
    if (code != ZERO_OK) return code; \
  } while (0)

static int32_t fill(int32_t tensor, int64_t first, int64_t count, float* values, void* user) {
  (void)user;
  for (int64_t i = 0; i < count; ++i) values[i] = trainer_value(tensor, first + i);
  return 0;
}

static int32_t unit_tensors(int32_t unit) { return unit == 2 ? 1 : 2; }

/// One pass over all units, in the backward order.
static int32_t backward(zero_optimizer* opt, trainer_run const* run, int32_t rank, int32_t seed) {
  int32_t const* units = NULL;
  int32_t count = 0;
  TRY(zero_units(opt, &units, &count));
  for (int32_t u = count; u-- > 0;) {
    void* g[2] = {NULL, NULL};
    int32_t const tensors = unit_tensors(units[u]);
    int32_t const first = 2 * units[u];
    TRY(zero_gradients(opt, units[u], seed % 2 ? ZERO_ADD : ZERO_OVERWRITE, g, tensors));
    for (int32_t t = 0; t < tensors; ++t) {
      for (int64_t i = 0; i < trainer_count(first + t); ++i) {
        trainer_put(g[t], i, trainer_gradient(first + t, i, rank, seed), run->precision);
      }
    }
    TRY(zero_reduce(opt, units[u]));
  }
  return ZERO_OK;
}

/// Gradients of tensors that are lent unit by unit, and who was told that they are free.
typedef struct lent_units {
  zero_span gradients[trainer_tensors];
  int64_t width;
  int32_t told;
} lent_units;

/// What would change a result if it were read later: no numbers.
static void told(int32_t unit, void* user) {
  lent_units* const lent = (lent_units*)user;
  lent->told += 1 << unit;
  for (int32_t t = 2 * unit; t < 2 * unit + unit_tensors(unit); ++t) {
    size_t const bytes = (size_t)(lent->gradients[t].count * lent->width);
    if (bytes > 0) memset(lent->gradients[t].data, 0xff, bytes);
  }
}

/// A backward pass whose gradients are lent as they come.
static int32_t lend_units(zero_optimizer* opt, lent_units* lent) {
  int32_t free = 1;
  lent->told = 0;
  for (int32_t unit = 3; unit-- > 0;) {
    TRY(zero_bind_unit(opt, unit, lent->gradients + 2 * unit, unit_tensors(unit)));
    TRY(zero_gradients_free(opt, unit, &free));
    if (free != 0) return ZERO_UNKNOWN;
    TRY(zero_reduce(opt, unit));
  }
  TRY(zero_reduce_all(opt));
  for (int32_t unit = 0; unit < 3; ++unit) {
    TRY(zero_gradients_free(opt, unit, &free));
    if (free != 1) return ZERO_UNKNOWN;
  }
  return lent->told == 7 ? ZERO_OK : ZERO_UNKNOWN;  // each of them, once
}

static int32_t train(zero_comm* comm, trainer_run const* run, char* parameters, char* gradients) {
  int64_t const width = run->precision == ZERO_FP32 ? 4 : 2;
  int64_t const shapes[trainer_tensors][2] = {{12, 8}, {33, 0}, {4, 0}, {5, 8}, {7, 0}};
  zero_tensor model[trainer_tensors] = {zero_tensor_of("a.w", 0, 2, shapes[0]),
                                        zero_tensor_of("a.b", 0, 1, shapes[1]),
                                        zero_tensor_of("empty", 1, 2, shapes[2]),
                                        zero_tensor_of("b.w", 1, 2, shapes[3]),
                                        zero_tensor_of("c.b", 2, 1, shapes[4])};
  model[1].weight_decay = 0;
  model[3].learning_rate = 0.5f;
  zero_options options = zero_options_of(run->stage, run->precision, run->rule);
  options.rule.lr = 0.0625;
  options.rule.weight_decay = 0.125;
  options.bucket_bytes = 256;
  int const lent = run->mode >= trainer_flat;
  if (lent) options.memory = ZERO_BORROWED;
  if (run->mode == trainer_micro_steps) options.accumulation = ZERO_ACCUMULATE_SHARD;

  zero_optimizer* opt = NULL;
  TRY(zero_create(comm, &options, model, trainer_tensors, &opt));
  void *lent_parameters[trainer_tensors], *lent_gradients[trainer_tensors];
  zero_span spans[trainer_tensors];
  lent_units by_unit = {{{NULL, 0}}, width, 0};
  int64_t place = 0;
  for (int32_t t = 0; t < trainer_tensors; ++t) {
    lent_parameters[t] = parameters + place * width;
    lent_gradients[t] = gradients + place * width;
    spans[t].data = lent_parameters[t];
    by_unit.gradients[t].data = lent_gradients[t];
    spans[t].count = by_unit.gradients[t].count = trainer_count(t);
    place += trainer_count(t);
  }
  if (run->mode == trainer_flat) {
    TRY(zero_bind_flat(opt, parameters, gradients, trainer_elements));
  } else if (run->mode == trainer_spans) {
    TRY(zero_bind_spans(opt, spans, by_unit.gradients, trainer_tensors));
  } else if (run->mode == trainer_lent_units) {
    TRY(zero_on_gradients_free(opt, told, &by_unit));
    if (run->stage == ZERO_POS) TRY(zero_bind_parameters_flat(opt, parameters, trainer_elements));
    if (run->stage != ZERO_POS) TRY(zero_bind_parameters(opt, spans, trainer_tensors));
  } else if (lent) {
    TRY(zero_bind(opt, lent_parameters, lent_gradients, trainer_tensors));
  }
  TRY(zero_load(opt, fill, NULL));

  int32_t const rank = zero_comm_rank(comm);
  zero_report report = zero_report_of();
  zero_step_options step_options = zero_step_options_of();
  for (int32_t step = 0; step < run->steps; ++step) {
    if (lent) {
      for (int32_t t = 0; t < trainer_tensors; ++t) {
        for (int64_t i = 0; i < trainer_count(t); ++i) {
          float const value = trainer_gradient(t, i, rank, step);
          trainer_put(lent_gradients[t], i, value, run->precision);
        }
      }
      if (run->mode == trainer_separate) {
        TRY(zero_bind_gradients(opt, lent_gradients, trainer_tensors));
      } else if (run->mode == trainer_spans) {
        TRY(zero_bind_gradients_spans(opt, by_unit.gradients, trainer_tensors));
      } else if (run->mode == trainer_lent_units) {
        TRY(lend_units(opt, &by_unit));
      } else if (step % 2 == 0) {
        TRY(zero_bind_gradients_flat(opt, gradients, trainer_elements));
      }
      // A norm reduces what is not reduced yet.
      if (step < 2 && run->mode != trainer_lent_units) TRY(zero_reduce_all(opt));
      double norm = 0;
      TRY(zero_grad_norm(opt, &norm));
      step_options.learning_rate = 0.0625;
      step_options.scale = norm > 2 ? 2 / norm : 1;
    } else if (run->mode == trainer_micro_steps) {
      TRY(zero_micro_step(opt, 1 + rank, 0));
      TRY(backward(opt, run, rank, step));
      TRY(zero_micro_step(opt, 2, 1));
      TRY(backward(opt, run, rank, step + 1));
      step_options.max_norm = 2;
    } else {
      TRY(backward(opt, run, rank, step));
      step_options.max_norm = 2;
    }
    TRY(zero_step(opt, &step_options, &report));
    if (report.step != step + 1) return ZERO_UNKNOWN;
  }

  void const* all[trainer_tensors];
  TRY(zero_full_parameters(opt, all, trainer_tensors));
  place = 0;
  for (int32_t t = 0; t < trainer_tensors; ++t) {
    size_t const bytes = (size_t)(trainer_count(t) * width);
    if (rank == 0 && run->result != NULL && bytes > 0) memcpy(run->result + place, all[t], bytes);
    place += (int64_t)bytes;
  }
  TRY(zero_release_full(opt));
  zero_destroy(opt);
  return ZERO_OK;
}

int32_t TRAINER(zero_comm* comm, void* user) {
  char* const parameters = (char*)calloc(trainer_elements, 4);
  char* const gradients = (char*)calloc(trainer_elements, 4);
  int32_t const code = train(comm, (trainer_run const*)user, parameters, gradients);
  free(parameters);
  free(gradients);
  return code;
}
