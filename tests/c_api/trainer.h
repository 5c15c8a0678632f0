/// What the trainers of these tests share: a model, its values, its gradients. C and C++.
#pragma once

#include "zero/c.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { trainer_tensors = 5, trainer_elements = 96 + 33 + 0 + 40 + 7 };

/// How the trainer's memory and gradients are.
enum trainer_mode {
  trainer_unit_by_unit,
  trainer_micro_steps,
  trainer_flat,       ///< lent, in one buffer; all modes from here on are
  trainer_separate,   ///< tensor by tensor
  trainer_spans,      ///< with sizes
  trainer_lent_units  ///< gradients in each step, unit by unit
};

/// One run, and where its parameters go at the end: all of them, on rank 0.
typedef struct trainer_run {
  int32_t stage;
  int32_t precision;
  int32_t rule;
  int32_t mode;
  int32_t steps;
  unsigned char* result;  ///< [trainer_elements * 4], or null
} trainer_run;

#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#else
/// For programs in C, which link a file that names every function of the headers.
typedef void (*function)(void);
function every_function(int i);

#define REQUIRE(condition)                                                       \
  do {                                                                           \
    if (!(condition)) {                                                          \
      fprintf(stderr, "%d: %s: %s\n", __LINE__, #condition, zero_message(comm)); \
      return ZERO_UNKNOWN;                                                       \
    }                                                                            \
  } while (0)
#endif

/// Elements of a tensor.
static inline int64_t trainer_count(int32_t tensor) {
  int64_t const counts[trainer_tensors] = {96, 33, 0, 40, 7};
  return counts[tensor];
}

static inline float trainer_value(int32_t tensor, int64_t i) {
  return (float)((i * 5 + tensor * 3) % 17) / 16.f - 0.5f;
}
/// So few bits that bf16 and fp16 have them, too, times any loss scale.
static inline float trainer_gradient(int32_t tensor, int64_t i, int32_t rank, int32_t step) {
  return (float)((i * 3 + tensor + rank * 5 + step * 7) % 15 - 7) / 8.f;
}

/// Writes a float as 4 bytes, or as the 2 of bf16.
static inline void trainer_put(void* to, int64_t i, float value, int32_t precision) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  if (precision == ZERO_FP32) {
    ((float*)to)[i] = value;
  } else {
    ((uint16_t*)to)[i] = (uint16_t)(bits >> 16);
  }
}

#ifdef __cplusplus
#pragma GCC diagnostic pop
extern "C" {
#endif
/// The trainer in C11 and in C++17. `user` is a trainer_run.
int32_t trainer_c(zero_comm* comm, void* user);
int32_t trainer_17(zero_comm* comm, void* user);
#ifdef __cplusplus
}
#endif
