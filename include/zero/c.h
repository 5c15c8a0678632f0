/// @file
/// The C interface: for trainers in C11, in C++ older than C++20, and in whatever binds C.
///
/// One C++20 file of the program defines it, with the policies that the trainer chooses from:
///
///     #include <zero/c/define.hpp>
///     ZERO_C_DEFINE(zero::stage::Pos, zero::stage::PosG, zero::Fp32, zero::AdamW,
///     zero::Borrowed<>)
///
/// Functions return 0, or a code of `zero_code`; nothing is thrown across. What went wrong, in
/// words, is `zero_message(comm)` of the communicator that the handle belongs to; functions without
/// a handle take memory for these words, which may be null. A handle belongs to one thread at a
/// time. It is a number, and no address: one that has ended, or is of another kind, is an error,
/// with words where its communicator is still open. A null handle is an error without words. The
/// table of handles is the one thing that is global.
///
/// Structs begin with their size, as the functions that make them write it; `zero_span` alone is
/// two words and has none. What a newer version adds to a struct is at its end, and has its default
/// where a program was compiled before. What calls mean, cost and refuse is said in full where C++
/// has them: zero/sharded_optimizer.hpp. "Collective" means that all ranks make the call, in the
/// same order, and that it may block.
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/// What functions return.
enum zero_code {
  ZERO_OK = 0,                ///< done
  ZERO_INVALID_ARGUMENT = 1,  ///< the program is wrong: fix it
  ZERO_COMMUNICATION = 2,     ///< ranks disagree, failed or left: the communicator is unusable
  ZERO_RESOURCE = 3,          ///< memory or a file was refused
  ZERO_DATA = 4,              ///< the numbers are unusable, such as a gradient that is not finite
  ZERO_CALLBACK = 5,          ///< a function of the trainer's returned something but 0, or threw
  ZERO_NOT_DEFINED = 6,       ///< ZERO_C_DEFINE does not list that choice
  ZERO_UNKNOWN = 7            ///< an exception that is not the library's
};

/// What a rank keeps only 1/N of.
enum zero_stage_number { ZERO_REPLICATED = 0, ZERO_POS = 1, ZERO_POS_G = 2, ZERO_POS_G_P = 3 };
/// Types of parameters and gradients; sums, master weights and states are float, or all double.
enum zero_precision_number {
  ZERO_FP32 = 0,
  ZERO_BF16 = 1,
  ZERO_FP16 = 2,
  ZERO_FP64 = 3,
  ZERO_BF16_HALF_AWAY = 4,  ///< ZERO_BF16 whose parameters are rounded half away from zero
  ZERO_BF16_REST16 = 5,     ///< the same, with the 16 bits of masters that parameters lack
  ZERO_BF16_REST8 = 6,      ///< with 8 of them, rounded stochastically
  ZERO_BF16_STOCHASTIC = 7  ///< no masters: parameters and states of bf16, rounded stochastically
};
/// Types of a tensor's elements.
enum zero_dtype {
  ZERO_DTYPE_OF_PRECISION = 0,  ///< that of the precision's parameters
  ZERO_DTYPE_F32 = 1,
  ZERO_DTYPE_F64 = 2,
  ZERO_DTYPE_BF16 = 3,
  ZERO_DTYPE_F16 = 4,
  ZERO_DTYPE_I32 = 5,  ///< of frozen tensors: opaque, as the next two are
  ZERO_DTYPE_I64 = 6,
  ZERO_DTYPE_U8 = 7,
  // Held as the three before, and called so in model files and checkpoints.
  ZERO_DTYPE_I8 = 8,
  ZERO_DTYPE_BOOL = 9,
  ZERO_DTYPE_F8_E4M3 = 10,
  ZERO_DTYPE_F8_E5M2 = 11,
  ZERO_DTYPE_U32 = 12,
  ZERO_DTYPE_U64 = 13
};
/// How a parameter follows its gradient.
enum zero_rule_number {
  ZERO_ADAMW = 0,
  ZERO_ADAM = 1,
  ZERO_SGD = 2,
  ZERO_PLAIN_SGD = 3,
  ZERO_AMSGRAD = 4,
  ZERO_NADAM = 5,
  ZERO_ADAGRAD = 6,
  ZERO_RMSPROP = 7,
  ZERO_LION = 8,
  ZERO_ADAMW8BIT = 9,  ///< states of 8 bits, rounded stochastically, as of the next two
  ZERO_ADAM8BIT = 10,
  ZERO_LION8BIT = 11,
  ZERO_LAMB = 12,
  ZERO_LARS = 13
};
/// Where micro-batches add up: nowhere, in full gradients, in the owned share.
enum zero_accumulation_number {
  ZERO_ACCUMULATE_NONE = 0,
  ZERO_ACCUMULATE_FULL = 1,
  ZERO_ACCUMULATE_SHARD = 2
};
/// Who has the memory of parameters and gradients: the library, or the trainer, who lends it.
enum zero_memory_number { ZERO_OWNED = 0, ZERO_BORROWED = 1 };

/// Flags of a tensor.
enum zero_tensor_flag {
  ZERO_FROZEN = 1,       ///< no gradient and no state; partitioned where parameters are
  ZERO_STACKED = 2,      ///< its first dimension is the layer: slice i belongs to unit `unit + i`
  ZERO_PARTITIONED = 4,  ///< this rank's part of a larger tensor
  ZERO_WHOLE = 8,        ///< frozen, and every rank has all of it under every stage
  ZERO_FULL_STATES = 16  ///< states in full where the rule's have 8 bits
};

/// What `zero_gradients` is to find in a unit's buffers.
enum zero_gradients_mode {
  ZERO_ADD = 0,               ///< zeros, to add to
  ZERO_OVERWRITE = 1,         ///< anything: every element is written before it is read
  ZERO_OVERWRITE_CHECKED = 2  ///< the same, and `zero_reduce` finds elements that were not written
};

/// What a step does about tensors of which no rank has said anything: not one asked for their unit
/// with `zero_gradients`, lent them, or said `zero_without_gradient`. Memory that `zero_bind` lends
/// counts as given, and so does what `zero_gradient` has ever shown.
enum zero_unsaid {
  ZERO_UNSAID_FAIL = 0,   ///< is an error on all ranks that names the first one; nothing is changed
  ZERO_UNSAID_ZEROS = 1,  ///< takes their gradients for zeros
  ZERO_UNSAID_REST = 2    ///< leaves them as they are, as `zero_without_gradient` on all ranks
};

/// What becomes of a finite value that would be infinite in the type of an array, such as 1e5 in
/// fp16, where values are given, loaded or exported. Infinities and NaNs pass.
enum zero_overflow {
  ZERO_OVERFLOW_REFUSE = 0,   ///< an error on all ranks, which names tensor, element and value
  ZERO_OVERFLOW_SATURATE = 1  ///< takes the largest finite number of that sign
};

/// What an entry of an array is that `zero_visit_held` shows.
enum zero_coding {
  ZERO_CODING_VALUES = 0,           ///< the number of an element
  ZERO_CODING_ROOT = 1,             ///< the code of an element: a byte
  ZERO_CODING_ROOT_OF_SQUARES = 2,  ///< likewise, where numbers have no sign
  ZERO_CODING_ROOT_SCALES = 3       ///< the scale of a group of 32 such codes: a byte
};

/// What bytes are held for: indices into `zero_plan::held`.
enum zero_role {
  ZERO_ROLE_PARAMETERS = 0,
  ZERO_ROLE_GRADIENTS = 1,
  ZERO_ROLE_MASTER = 2,
  ZERO_ROLE_STATE = 3,
  ZERO_ROLE_GRADIENT_POOL = 4,
  ZERO_ROLE_GATHER_POOL = 5,
  ZERO_ROLE_STAGING = 6,
  ZERO_ROLE_CONTROL = 7,
  ZERO_ROLE_COMMUNICATOR = 8,
  ZERO_ROLES = 9
};

/// Dimensions that a tensor has at most.
#define ZERO_MAX_DIMS 8
/// Precisions that options list at most beside the first.
#define ZERO_MAX_OTHERS 3
/// Of a number: what the rule, or the library, has by default. No number that makes sense.
#define ZERO_DEFAULT (-1e300)

/// A rank of a group: a thread, a process, or one alone.
typedef struct zero_comm zero_comm;
/// An optimizer of one rank. It ends with its communicator at the latest.
typedef struct zero_optimizer zero_optimizer;

/// One tensor of the model.
typedef struct zero_tensor {
  int64_t size;                  ///< of this struct
  char const* name;              ///< unique in the model; copied
  char const* tied_to;           ///< an earlier tensor whose memory this one shares, or null
  char const* group;             ///< by which `zero_set_lr` and `zero_set_rule` find it, or null
  int64_t shape[ZERO_MAX_DIMS];  ///< row-major
  int32_t dims;                  ///< how many of these there are; 0: a scalar
  int32_t unit;                  ///< what is gathered and reduced together: usually a layer, from 0
  int32_t flags;                 ///< of `zero_tensor_flag`, added
  float learning_rate;           ///< times the rule's
  float weight_decay;            ///< times the rule's
  int32_t dtype;                 ///< of `zero_dtype`; a trained one's is that of a precision
} zero_tensor;

/// A rule and its hyper-parameters: those that are not ZERO_DEFAULT. Flags are 0 or 1. One that the
/// rule does not have is refused.
typedef struct zero_rule {
  int64_t size;                      ///< of this struct
  int32_t number;                    ///< of `zero_rule_number`
  int32_t eps_hat;                   ///< Adam: 1: eps meets the root before its bias correction
  double lr;                         ///< learning rate
  double weight_decay;               ///< of each rule, as it says
  double beta1;                      ///< Adam, AdamW, AMSGrad, NAdam, Lion, LAMB
  double beta2;                      ///< Adam, AdamW, AMSGrad, NAdam, Lion, LAMB
  double eps;                        ///< all but SGD, Lion and LARS
  double momentum;                   ///< SGD, RMSProp, LARS
  double dampening;                  ///< SGD
  double nesterov;                   ///< SGD
  double alpha;                      ///< RMSProp
  double lr_decay;                   ///< Adagrad
  double initial_accumulator_value;  ///< Adagrad
  double momentum_decay;             ///< NAdam
  double decoupled;                  ///< AMSGrad, NAdam
  double maximize;                   ///< all but Lion
  double min_ratio;                  ///< LAMB, LARS
  double max_ratio;                  ///< LAMB, LARS
  double trust;                      ///< LARS
} zero_rule;

/// What an optimizer is made with.
typedef struct zero_options {
  int64_t size;                 ///< of this struct
  int32_t stage;                ///< of `zero_stage_number`
  int32_t precision;            ///< of `zero_precision_number`
  int32_t accumulation;         ///< of `zero_accumulation_number`
  int32_t memory;               ///< of `zero_memory_number`
  int32_t prefetch;             ///< units gathered ahead, where parameters are partitioned
  int32_t loss_scale_interval;  ///< fp16: clean steps until the scale grows; 0: 2000
  int64_t bucket_bytes;         ///< that travel together; 0: 25 MiB
  double loss_scale;            ///< fp16: of the first step; 0: 65536
  int32_t loss_scale_patience;  ///< fp16: overflows at the smallest scale until an error; 0: 10
  int32_t reserved;             ///< 0
  zero_rule rule;               ///< of all tensors
  int32_t overflow;             ///< of `zero_overflow`: for values that are given, not for files
  int32_t reserved_2;           ///< 0
  int32_t others;               ///< precisions beside the first, for tensors that have their type
  int32_t other_precisions[ZERO_MAX_OTHERS];  ///< [others], of `zero_precision_number`
  uint64_t seed;  ///< chooses the random bits of what is rounded stochastically; any number will do
} zero_options;

/// Options of one step, the same on every rank but for `overlap_publish` and `stop`.
typedef struct zero_step_options {
  int64_t size;             ///< of this struct
  double learning_rate;     ///< of what has no rule of its own, or ZERO_DEFAULT: the rule's
  double max_norm;          ///< clip the mean gradient to this norm, or ZERO_DEFAULT: do not
  double scale;             ///< multiplies the mean gradient, by those who clip on their own
  int64_t count;            ///< number of this update from outside, from 1; 0: counted here
  int32_t skip_non_finite;  ///< 1: gradients that are not finite skip the step; 0: are an error
  int32_t
      overlap_publish;  ///< 1: return while parameters are on their way; `zero_parameters` waits
  int32_t stop;         ///< 1: this rank asks for the run to end; `zero_report::stop` tells all
  int32_t reserved;     ///< 0
  int32_t unsaid;       ///< of `zero_unsaid`
  int32_t reserved_2;   ///< 0
} zero_step_options;

/// What a step did; the same on every rank.
typedef struct zero_report {
  int64_t size;             ///< of this struct
  int64_t step;             ///< updates applied so far
  double grad_norm;         ///< of the mean gradient before clipping
  double clip_coefficient;  ///< what clipping multiplied it by
  double weight;            ///< of all micro-batches of all ranks
  double loss_scale;        ///< that its gradients carried
  int32_t skipped;          ///< 1: gradients overflowed; nothing was changed but the loss scale
  int32_t stop;             ///< 1: some rank asked for the run to end
} zero_report;

/// What a rank holds and sends. In bytes, but for elements.
typedef struct zero_plan {
  int64_t size;              ///< of this struct
  int64_t held[ZERO_ROLES];  ///< by `zero_role`
  int64_t total;             ///< all of them
  int64_t trained_elements;  ///< of the model
  int64_t padding_elements;  ///< of one full-size array, all ranks together
  int64_t sent_elements;     ///< in a step
  int64_t sent_bytes;        ///< in a step
} zero_plan;

/// Memory of a tensor that is lent, with its size. Null and 0: nothing is lent.
typedef struct zero_span {
  void* data;     ///< the first element
  int64_t count;  ///< elements
} zero_span;

/// Elements [first, first + count) of one array of a tensor: its master weights, or a state.
typedef struct zero_owned {
  int64_t size;           ///< of this struct
  char const* name;       ///< of the tensor
  char const* array;      ///< "master", or as the rule calls the state, such as "exp_avg"
  int32_t tensor;         ///< its number in the model
  int32_t number;         ///< of the array: 0 for master weights, from 1 for states
  int64_t first;          ///< element of the tensor
  int64_t count;          ///< elements
  int64_t element_bytes;  ///< of one of them: 4, a float, unless a precision of your own says else
  void* data;             ///< [count]
} zero_owned;

/// Entries [first, first + count) of one array of a tensor in the form in which checkpoints have
/// it: of its master weights, of a state, or of the scales of a state's codes, which have the
/// state's name and number. The last group of a tensor may be short. A stacked tensor has the
/// entries of its slices one after the other, and each slice begins with a group of its own.
typedef struct zero_held_array {
  int64_t size;         ///< of this struct
  char const* name;     ///< of the tensor
  char const* array;    ///< "master", or as the rule calls the state, such as "exp_avg"
  int32_t tensor;       ///< its number in the model
  int32_t number;       ///< of the array: 0 for master weights, from 1 for states
  int32_t dtype;        ///< of an entry, of `zero_dtype`
  int32_t coding;       ///< what an entry is, of `zero_coding`
  int64_t first;        ///< entry of the array of the whole tensor
  int64_t count;        ///< entries
  int64_t entry_bytes;  ///< of one of them
  void* data;           ///< [count]
} zero_held_array;

/// The work of one rank. Anything but 0 is a failure, which ends the others as well.
typedef int32_t (*zero_rank_function)(zero_comm* comm, void* user);
/// Writes elements [first, first + count) of a tensor to `values`. Anything but 0 is a failure.
typedef int32_t (*zero_fill)(
    int32_t tensor, int64_t first, int64_t count, float* values, void* user);
/// The same of doubles.
typedef int32_t (*zero_fill_double)(
    int32_t tensor, int64_t first, int64_t count, double* values, void* user);
/// Writes the bytes of elements [first, first + count) of an opaque tensor. Anything but 0 is a
/// failure.
typedef int32_t (*zero_fill_bytes)(
    int32_t tensor, int64_t first, int64_t count, uint8_t* bytes, void* user);
/// Reads what a rank owns, or sets all of it. Valid until it returns. Anything but 0 is a failure.
typedef int32_t (*zero_visit)(zero_owned const* owned, void* user);
/// Reads entries of an array that a rank holds, or changes them. Valid until it returns. Anything
/// but 0 is a failure.
typedef int32_t (*zero_held_function)(zero_held_array const* held, void* user);
/// Hears that the gradients which are lent for a unit are not read any more. It does not call the
/// optimizer. An exception of it ends the program.
typedef void (*zero_gradients_told)(int32_t unit, void* user);

/// A tensor of that name, unit and shape [dims]; all else by default. Too many dimensions are
/// refused where it is used.
static inline zero_tensor zero_tensor_of(char const* name,
                                         int32_t unit,
                                         int32_t dims,
                                         int64_t const* shape) {
  zero_tensor tensor;
  memset(&tensor, 0, sizeof(tensor));
  tensor.size = sizeof(tensor);
  tensor.name = name;
  tensor.unit = unit;
  tensor.dims = dims;
  for (int32_t i = 0; i < dims && i < ZERO_MAX_DIMS; ++i) tensor.shape[i] = shape[i];
  tensor.learning_rate = 1;
  tensor.weight_decay = 1;
  return tensor;
}
/// A stack of layers: the first dimension is the layer, and slice i belongs to unit `unit + i`.
static inline zero_tensor zero_stack_of(char const* name,
                                        int32_t unit,
                                        int32_t dims,
                                        int64_t const* shape) {
  zero_tensor tensor = zero_tensor_of(name, unit, dims, shape);
  tensor.flags = ZERO_STACKED;
  return tensor;
}
#if !defined(__cplusplus)
/// In C: ZERO_TENSOR("layer.w", unit, 32, 64).
#define ZERO_TENSOR(name, unit, ...)                                            \
  zero_tensor_of(name,                                                          \
                 unit,                                                          \
                 (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
                 (int64_t[]){__VA_ARGS__})
#endif

/// A rule with its defaults.
static inline zero_rule zero_rule_of(int32_t number) {
  zero_rule const rule = {sizeof(zero_rule), number,       0,
                          ZERO_DEFAULT,      ZERO_DEFAULT, ZERO_DEFAULT,
                          ZERO_DEFAULT,      ZERO_DEFAULT, ZERO_DEFAULT,
                          ZERO_DEFAULT,      ZERO_DEFAULT, ZERO_DEFAULT,
                          ZERO_DEFAULT,      ZERO_DEFAULT, ZERO_DEFAULT,
                          ZERO_DEFAULT,      ZERO_DEFAULT, ZERO_DEFAULT,
                          ZERO_DEFAULT,      ZERO_DEFAULT};
  return rule;
}
/// Options of that choice; all else by default, and owned memory.
static inline zero_options zero_options_of(int32_t stage, int32_t precision, int32_t rule) {
  zero_options options;
  memset(&options, 0, sizeof(options));
  options.size = sizeof(options);
  options.stage = stage;
  options.precision = precision;
  options.prefetch = 1;
  options.rule = zero_rule_of(rule);
  return options;
}
/// Options of a step as `zero_step` has them without any.
static inline zero_step_options zero_step_options_of(void) {
  zero_step_options const options = {
      sizeof(zero_step_options), ZERO_DEFAULT, ZERO_DEFAULT, 1, 0, 0, 0, 0, 0, 0, 0};
  return options;
}
/// A report to be written.
static inline zero_report zero_report_of(void) {
  zero_report const report = {sizeof(zero_report), 0, 0, 0, 0, 0, 0, 0};
  return report;
}
/// A plan to be written.
static inline zero_plan zero_plan_of(void) {
  zero_plan plan;
  memset(&plan, 0, sizeof(plan));
  plan.size = sizeof(plan);
  return plan;
}

// Ranks.

/// Calls `body(comm, user)` on `ranks` threads, one for each rank of a new group, and returns when
/// all have ended. If a rank fails, the others' calls do, with its words.
/// @returns the code of the rank that failed first, with its words in `message` [size]
int32_t zero_run_ranks(
    int32_t ranks, zero_rank_function body, void* user, char* message, int64_t size);
/// A rank alone, until `zero_comm_close`. Processes: zero/c_mpi.h.
int32_t zero_self(zero_comm** comm, char* message, int64_t size);
/// Ends a communicator with all its optimizers; the handle is gone even if that failed. That of
/// `zero_run_ranks` ends by itself. Collective over processes.
int32_t zero_comm_close(zero_comm* comm, char* message, int64_t size);
/// This rank's number, from 0; -1 of null.
int32_t zero_comm_rank(zero_comm const* comm);
/// How many ranks there are; -1 of null.
int32_t zero_comm_size(zero_comm const* comm);
/// The sum over all ranks of one value each, such as a loss. Collective.
int32_t zero_comm_sum(zero_comm* comm, double* value);
/// Ends the group because this rank cannot go on: every peer's next call fails with this reason.
int32_t zero_comm_fail(zero_comm* comm, char const* reason);
/// Advances what is under way between processes: for long backward passes. Never blocks.
void zero_comm_progress(zero_comm* comm);
/// Words for the last error of this communicator and its optimizers; "" if there was none.
char const* zero_message(zero_comm const* comm);

// An optimizer, from its model to its values.

/// Agrees with all ranks on model and options, then allocates what the plan says. Collective.
int32_t zero_create(zero_comm* comm,
                    zero_options const* options,
                    zero_tensor const* tensors,
                    int32_t count,
                    zero_optimizer** optimizer);
/// Ends it, between steps; nothing for null. Local.
int32_t zero_destroy(zero_optimizer* optimizer);
/// What a rank of so many will hold, and send in a step of so many micro-steps, before anything is
/// allocated. Local.
int32_t zero_plan_ahead(zero_options const* options,
                        zero_tensor const* tensors,
                        int32_t count,
                        int32_t ranks,
                        int64_t micro_steps,
                        zero_plan* plan,
                        char* message,
                        int64_t size);
/// What this rank holds and sends in a step of so many micro-steps. Local.
int32_t zero_get_plan(zero_optimizer* optimizer, int64_t micro_steps, zero_plan* plan);
/// The same as a table for people, cut off where `text` [size] ends.
int32_t zero_plan_text(zero_optimizer* optimizer, char* text, int64_t size);
/// Bytes held now, by role: equal to `zero_plan::held`.
int32_t zero_held(zero_optimizer* optimizer, int64_t held[ZERO_ROLES]);
/// Units in the order of the forward pass; valid as long as the optimizer.
int32_t zero_units(zero_optimizer* optimizer, int32_t const** units, int32_t* count);

/// Lends two flat buffers in which tensors lie one after the other in registration order, without
/// gaps and without tied ones, `count` elements each. Call again when they move. Local.
int32_t zero_bind_flat(zero_optimizer* optimizer, void* parameters, void* gradients, int64_t count);
/// `zero_create` of ZERO_BORROWED, `zero_bind_flat` and `zero_adopt` in one. Collective.
int32_t zero_create_flat(zero_comm* comm,
                         zero_options const* options,
                         zero_tensor const* tensors,
                         int32_t count,
                         void* parameters,
                         void* gradients,
                         int64_t elements,
                         zero_optimizer** optimizer);
/// Lends separate tensors: `count` pointers each, one per tensor in registration order, null for
/// tied ones and for gradients of frozen ones. Gradients are only read. Local.
int32_t zero_bind(zero_optimizer* optimizer,
                  void* const* parameters,
                  void* const* gradients,
                  int32_t count);
/// `zero_bind` with the size of everything that is lent, so that an order which is not the model's
/// is found: an error names the first tensor whose size differs. Null and 0 where `zero_bind` has
/// null. Local.
int32_t zero_bind_spans(zero_optimizer* optimizer,
                        zero_span const* parameters,
                        zero_span const* gradients,
                        int32_t count);
/// Lends other gradients: for trainers whose gradients move from step to step. A null pointer says
/// that this rank has none for that tensor until the next bind. Local.
int32_t zero_bind_gradients(zero_optimizer* optimizer, void* const* gradients, int32_t count);
/// The same with sizes.
int32_t zero_bind_gradients_spans(zero_optimizer* optimizer,
                                  zero_span const* gradients,
                                  int32_t count);
/// The same for a flat buffer.
int32_t zero_bind_gradients_flat(zero_optimizer* optimizer, void* gradients, int64_t count);

/// Lends parameters alone, as `zero_bind_spans`: `zero_bind_unit` lends gradients in every step.
/// Local.
int32_t zero_bind_parameters(zero_optimizer* optimizer, zero_span const* parameters, int32_t count);
/// The same for a flat buffer.
int32_t zero_bind_parameters_flat(zero_optimizer* optimizer, void* parameters, int64_t count);
/// Lends one unit's gradients until they are free, before `zero_reduce` of it: for trainers that
/// allocate gradients in every backward pass. `count` spans, one per tensor of the unit in
/// registration order; null and 0 where this rank has no gradient, and for what a tied tensor of
/// another unit has lent in this step. A unit that is not lent in a step has no gradient. Local.
int32_t zero_bind_unit(zero_optimizer* optimizer,
                       int32_t unit,
                       zero_span const* gradients,
                       int32_t count);
/// Writes 1 if a unit's lent gradients are not read any more, else 0: their memory may be freed, or
/// written to. So they are after `zero_reduce_all` and `zero_step` at the latest. Under ZERO_POS_G,
/// `zero_reduce` returns when units reduced before are free. Local; never blocks.
int32_t zero_gradients_free(zero_optimizer* optimizer, int32_t unit, int32_t* is_free);
/// Calls `told(unit, user)` whenever a unit's lent gradients become free, from within the call that
/// finds it, such as `zero_reduce`. Null ends that. Local.
int32_t zero_on_gradients_free(zero_optimizer* optimizer, zero_gradients_told told, void* user);

/// Sets parameters from `fill`, which is asked for what this rank holds; not for opaque tensors.
/// Collective.
int32_t zero_load(zero_optimizer* optimizer, zero_fill fill, void* user);
/// The same from values that `root` alone has: `fill` is called there only. Collective.
int32_t zero_broadcast_from(zero_optimizer* optimizer, zero_fill fill, void* user, int32_t root);
/// `zero_load` of opaque tensors, those of integers. Collective.
int32_t zero_load_bytes(zero_optimizer* optimizer, zero_fill_bytes fill, void* user);
/// `zero_broadcast_from` of opaque tensors. Collective.
int32_t zero_broadcast_bytes_from(zero_optimizer* optimizer,
                                  zero_fill_bytes fill,
                                  void* user,
                                  int32_t root);
/// `zero_load` of doubles: for ZERO_FP64, whose values float would round. Elsewhere they are
/// rounded.
int32_t zero_load_double(zero_optimizer* optimizer, zero_fill_double fill, void* user);
/// `zero_broadcast_from` of doubles, likewise.
int32_t zero_broadcast_from_double(zero_optimizer* optimizer,
                                   zero_fill_double fill,
                                   void* user,
                                   int32_t root);
/// Gives all ranks what lies in the root's memory, where ranks hold all parameters. Collective.
int32_t zero_broadcast(zero_optimizer* optimizer, int32_t root);
/// Takes what lies in memory. Local; the next step compares it with other ranks'.
int32_t zero_adopt(zero_optimizer* optimizer);
/// A tensor's parameters, to stay where they are, where every rank holds all of them. Local.
int32_t zero_parameter(zero_optimizer* optimizer, int32_t tensor, void** data);
/// A tensor's full gradients, to add to, where the library holds all of them. Local.
int32_t zero_gradient(zero_optimizer* optimizer, int32_t tensor, void** data);

// A step.

/// A unit's full parameters: `count` pointers for its tensors, in registration order, valid until
/// they are released as often as they were asked for. Or null and 0. Collective where partitioned.
int32_t zero_parameters(zero_optimizer* optimizer, int32_t unit, void const** data, int32_t count);
/// Ends this use of a unit's parameters. Before the step. Local.
int32_t zero_release(zero_optimizer* optimizer, int32_t unit);
/// Full-size buffers for a unit's gradients, valid until `zero_reduce`: as above, null for frozen
/// tensors. `mode` is one of `zero_gradients_mode`. Local.
int32_t zero_gradients(
    zero_optimizer* optimizer, int32_t unit, int32_t mode, void** data, int32_t count);
/// The unit's gradients are complete and may travel. Those of lent memory need not be asked for
/// before.
int32_t zero_reduce(zero_optimizer* optimizer, int32_t unit);
/// This rank has no gradient for the unit in this step. Absent on all ranks it rests: nothing of it
/// changes. Absent on some it counts as zeros there. Where no rank says this or calls
/// `zero_gradients`, `zero_step_options::unsaid` says what the step does: by default it fails.
int32_t zero_without_gradient(zero_optimizer* optimizer, int32_t unit);
/// The same for a tensor.
int32_t zero_without_tensor_gradient(zero_optimizer* optimizer, int32_t tensor);
/// Begins the next micro-batch of a step, of that weight; `last` is 1 if none follows. Collective.
int32_t zero_micro_step(zero_optimizer* optimizer, double weight, int32_t last);
/// Reduces what is left. Collective.
int32_t zero_reduce_all(zero_optimizer* optimizer);
/// The same for micro-batches that were added up in lent memory, of that weight together.
int32_t zero_reduce_all_of(zero_optimizer* optimizer, double weight);
/// The mean gradient's norm, the same bits on every rank and under every stage. Collective.
int32_t zero_grad_norm(zero_optimizer* optimizer, double* norm);
/// Reduces what is left, then clips, updates and publishes. Options and report may be null.
/// Collective.
int32_t zero_step(zero_optimizer* optimizer, zero_step_options const* options, zero_report* report);
/// Forgets this step's gradients: the alternative to `zero_step`. Collective.
int32_t zero_discard(zero_optimizer* optimizer);
/// Waits for what was started ahead of its use. Collective.
int32_t zero_settle(zero_optimizer* optimizer);
/// What the last step did. Local.
int32_t zero_get_report(zero_optimizer* optimizer, zero_report* report);
/// How many tensors the last step updated; each layer of a stacked one counts. Local.
int32_t zero_get_updated(zero_optimizer* optimizer, int64_t* tensors);
/// What to multiply the next loss by; 1 without a loss scale. Local.
int32_t zero_loss_scale(zero_optimizer* optimizer, float* scale);

// Between steps.

/// The learning rate of a group of tensors, or else of a tensor of that name, which from then on
/// has a rule of its own; for null, of all that have none. A tensor's goes before its group's.
/// Local; ranks compare at the next step.
int32_t zero_set_lr(zero_optimizer* optimizer, char const* name, float lr);
/// The same of a double, which ZERO_FP64 has all digits of; elsewhere it is rounded to float.
int32_t zero_set_lr_double(zero_optimizer* optimizer, char const* name, double lr);
/// The same for a rule. What is ZERO_DEFAULT is as the optimizer was made with.
int32_t zero_set_rule(zero_optimizer* optimizer, char const* name, zero_rule const* rule);
/// All parameters at once: `count` pointers, one per tensor, until `zero_release_full`. Collective
/// where partitioned.
int32_t zero_full_parameters(zero_optimizer* optimizer, void const** data, int32_t count);
/// Gives back what `zero_full_parameters` has gathered. Local.
int32_t zero_release_full(zero_optimizer* optimizer);
/// Shows master weights and states that this rank updates, array by array of each run of elements;
/// frozen tensors have none. Nothing may be written. Local.
int32_t zero_visit_owned(zero_optimizer* optimizer, zero_visit visit, void* user);
/// The writing twin: `fill` sets every element that it is shown. Parameters then follow on every
/// rank. With `zero_set_counters`, a run goes on from what another was shown, whatever its stage
/// and ranks; states of 8 bits are the numbers that they stand for, which are rounded to nearest
/// again, so that `zero_fill_held` alone goes on to the same bits there. Collective.
int32_t zero_fill_owned(zero_optimizer* optimizer, zero_visit fill, void* user);
/// Shows the same in the form in which checkpoints have it, array by array: numbers in their type,
/// states of 8 bits as codes and scales. Nothing may be written. Local.
int32_t zero_visit_held(zero_optimizer* optimizer, zero_held_function visit, void* user);
/// The writing twin: `fill` finds the entries as they are, and changes what it will. Parameters
/// then follow on every rank. With `zero_set_counters` and the same seed, a run goes on to the same
/// bits from what another of the same rule was shown, whatever its stage, ranks and buckets. A code
/// that stands for no number is an error on all ranks, which names the first one; steps are refused
/// then, until all values have been set. Collective.
int32_t zero_fill_held(zero_optimizer* optimizer, zero_held_function fill, void* user);
/// Updates of each tensor [count], loss scale, and its streak of clean steps. A stacked tensor has
/// those of each layer. Local.
int32_t zero_get_counters(
    zero_optimizer* optimizer, int64_t* steps, int32_t count, float* loss_scale, int32_t* streak);
/// Goes on counting from there. Collective.
int32_t zero_set_counters(zero_optimizer* optimizer,
                          int64_t const* steps,
                          int32_t count,
                          float loss_scale,
                          int32_t streak);

#ifdef __cplusplus
}  // extern "C"
#endif
