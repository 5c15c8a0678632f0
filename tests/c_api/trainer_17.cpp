/// The trainer of trainer.c in C++17, under warnings that C does not have.
#include "c_api/trainer.h"

static_assert(__cplusplus < 202002L);

#pragma GCC diagnostic ignored "-Wold-style-cast"
#define TRAINER trainer_17
#include "c_api/trainer.c"
