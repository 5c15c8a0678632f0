/// Mistakes through zero/c.h: a code and words, on every rank, and nothing thrown across.
#include "c_api/trainer.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace misuse_test {
namespace {

std::int64_t const four[] = {4};

/// A rank alone, and an optimizer of two units on it.
class Alone {
 public:
  explicit Alone(std::int32_t stage = ZERO_POS_G, std::int32_t memory = ZERO_OWNED) {
    REQUIRE(zero_self(&comm, nullptr, 0) == ZERO_OK);
    options = zero_options_of(stage, ZERO_FP32, ZERO_ADAMW);
    options.memory = memory;
    REQUIRE(zero_create(comm, &options, model, 2, &opt) == ZERO_OK);
  }
  Alone(Alone const&) = delete;
  Alone& operator=(Alone const&) = delete;
  ~Alone() { CHECK(zero_comm_close(comm, nullptr, 0) == ZERO_OK); }

  /// Did the call fail with that code, and words in which these are?
  bool says(std::int32_t code, std::int32_t wanted, std::string const& words) const {
    CAPTURE(words);
    CAPTURE(std::string(zero_message(comm)));
    CHECK(code == wanted);
    return std::string(zero_message(comm)).find(words) != std::string::npos;
  }

  zero_comm* comm = nullptr;
  zero_optimizer* opt = nullptr;
  zero_options options{};
  zero_tensor model[2] = {zero_tensor_of("a", 0, 1, four), zero_tensor_of("b", 1, 1, four)};
};

std::int32_t fill(std::int32_t, std::int64_t, std::int64_t count, float* values, void*) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = 1.f;
  return 0;
}
std::int32_t refuse(std::int32_t, std::int64_t, std::int64_t, float*, void*) { return 42; }
std::int32_t throws(std::int32_t, std::int64_t, std::int64_t, float*, void*) {
  throw std::runtime_error("the trainer's own");
}
std::int32_t throws_int(std::int32_t, std::int64_t, std::int64_t, float*, void*) { throw 3; }

constexpr auto invalid = ZERO_INVALID_ARGUMENT;

TEST_CASE("C API misuse: null handles are an error, and nothing to end") {
  CHECK(zero_step(nullptr, nullptr, nullptr) == invalid);
  CHECK(zero_reduce_all(nullptr) == invalid);
  CHECK(zero_comm_sum(nullptr, nullptr) == invalid);
  CHECK(zero_create(nullptr, nullptr, nullptr, 0, nullptr) == invalid);
  CHECK(zero_comm_rank(nullptr) == -1);
  CHECK(zero_comm_size(nullptr) == -1);
  CHECK(std::string(zero_message(nullptr)).empty());
  zero_destroy(nullptr);
  zero_comm_progress(nullptr);
  char message[100] = "";
  CHECK(zero_comm_close(nullptr, message, sizeof(message)) == invalid);
  CHECK(std::string(message).find("comm is null") != std::string::npos);
  CHECK(zero_self(nullptr, message, sizeof(message)) == invalid);
  CHECK(zero_run_ranks(2, nullptr, nullptr, message, sizeof(message)) == invalid);
  CHECK(std::string(message).find("function of the ranks is null") != std::string::npos);
}

TEST_CASE("C API misuse: handles that have ended, of another kind, or made up") {
  Alone one;
  auto* const comm_as_optimizer = reinterpret_cast<zero_optimizer*>(one.comm);
  CHECK(one.says(zero_discard(comm_as_optimizer),
                 invalid,
                 "the handle is of a zero_comm, but a zero_optimizer was expected"));
  double sum = 1.;
  CHECK(one.says(zero_comm_sum(reinterpret_cast<zero_comm*>(one.opt), &sum),
                 invalid,
                 "the handle is of a zero_optimizer, but a zero_comm was expected"));
  std::array<char, 64> const junk{};
  for (void const* const made_up : {static_cast<void const*>(junk.data()),
                                    static_cast<void const*>(junk.data() + 1),
                                    reinterpret_cast<void const*>(~std::uintptr_t{0})}) {
    auto* const optimizer = static_cast<zero_optimizer*>(const_cast<void*>(made_up));
    auto* const comm = static_cast<zero_comm*>(const_cast<void*>(made_up));
    CHECK(zero_step(optimizer, nullptr, nullptr) == invalid);
    CHECK(zero_destroy(optimizer) == invalid);
    CHECK(zero_comm_size(comm) == -1);
    CHECK(std::string(zero_message(comm)) == "zero: invalid argument: no open communicator");
  }

  zero_optimizer* const gone = one.opt;
  CHECK(zero_destroy(gone) == ZERO_OK);
  CHECK(
      one.says(zero_destroy(gone), invalid, "the handle is of a zero_optimizer, which has ended"));
  CHECK(one.says(zero_reduce_all(gone), invalid, "which has ended"));
  // What takes its place has another handle.
  REQUIRE(zero_create(one.comm, &one.options, one.model, 2, &one.opt) == ZERO_OK);
  CHECK(one.opt != gone);
  CHECK(zero_reduce_all(gone) == invalid);
  CHECK(zero_reduce_all(one.opt) == ZERO_OK);

  zero_comm* other = nullptr;
  zero_optimizer* of_other = nullptr;
  REQUIRE(zero_self(&other, nullptr, 0) == ZERO_OK);
  REQUIRE(zero_create(other, &one.options, one.model, 2, &of_other) == ZERO_OK);
  REQUIRE(zero_comm_close(other, nullptr, 0) == ZERO_OK);
  CHECK(zero_discard(of_other) == invalid);
  CHECK(zero_comm_rank(other) == -1);
  char message[100] = "";
  CHECK(zero_comm_close(other, message, sizeof(message)) == invalid);
  CHECK(std::string(message).find("comm is closed") != std::string::npos);
  zero_comm_progress(other);
}

TEST_CASE("C API misuse: numbers that are no flag, or reserved, or no loss scale") {
  Alone one;
  auto const create = [&] { return zero_create(one.comm, &one.options, one.model, 2, &one.opt); };
  one.options.reserved = 7;
  CHECK(one.says(create(), invalid, "reserved of a zero_options is 7, but must be 0"));
  one.options.reserved = 0;
  one.options.rule.reserved = 7;
  CHECK(one.says(create(), invalid, "reserved of a zero_rule is 7"));
  one.options.rule.reserved = 0;
  one.model[1].reserved = 7;
  CHECK(one.says(create(), invalid, "reserved of a zero_tensor is 7"));
  one.model[1].reserved = 0;
  one.options.loss_scale = -1.;  // of fp32, which has none
  CHECK(one.says(create(), invalid, "a loss scale of -1"));
  one.options.loss_scale = 0.;
  REQUIRE(create() == ZERO_OK);
  REQUIRE(zero_load(one.opt, fill, nullptr) == ZERO_OK);
  std::int32_t zero_step_options::*const flags[] = {&zero_step_options::stop,
                                                    &zero_step_options::skip_non_finite,
                                                    &zero_step_options::overlap_publish,
                                                    &zero_step_options::reserved};
  for (auto const flag : flags) {
    zero_step_options step = zero_step_options_of();
    step.*flag = 7;
    CHECK(one.says(zero_step(one.opt, &step, nullptr), invalid, " is 7, but "));
  }
  CHECK(one.says(zero_release_full(one.opt), invalid, "were not asked for"));
  // What a refused call took, it has given back.
  CHECK(one.says(zero_parameters(one.opt, 0, nullptr, 1), invalid, "data is null"));
  CHECK(zero_step(one.opt, nullptr, nullptr) == ZERO_OK);
}

TEST_CASE("C API misuse: null arguments are named") {
  Alone one;
  CHECK(one.says(
      zero_create(one.comm, nullptr, nullptr, 0, &one.opt), invalid, "zero_options is null"));
  CHECK(one.says(
      zero_create(one.comm, &one.options, nullptr, 2, &one.opt), invalid, "tensors is null"));
  CHECK(one.says(
      zero_create(one.comm, &one.options, one.model, 2, nullptr), invalid, "optimizer is null"));
  CHECK(one.opt == nullptr);
  REQUIRE(zero_create(one.comm, &one.options, one.model, 2, &one.opt) == ZERO_OK);
  CHECK(one.says(zero_load(one.opt, nullptr, nullptr), invalid, "fill is null"));
  CHECK(one.says(zero_grad_norm(one.opt, nullptr), invalid, "norm is null"));
  CHECK(one.says(zero_held(one.opt, nullptr), invalid, "held is null"));
  CHECK(one.says(zero_units(one.opt, nullptr, nullptr), invalid, "units is null"));
  CHECK(one.says(zero_plan_text(one.opt, nullptr, 5), invalid, "text is null"));
  CHECK(one.says(zero_loss_scale(one.opt, nullptr), invalid, "scale is null"));
  CHECK(one.says(zero_parameter(one.opt, 0, nullptr), invalid, "data is null"));
  CHECK(one.says(zero_parameters(one.opt, 0, nullptr, 1), invalid, "data is null"));
  CHECK(one.says(zero_full_parameters(one.opt, nullptr, 2), invalid, "data is null"));
  CHECK(one.says(zero_set_rule(one.opt, nullptr, nullptr), invalid, "zero_rule is null"));
}

TEST_CASE("C API misuse: a struct of another size") {
  Alone one;
  one.options.size = 0;
  CHECK(one.says(zero_create(one.comm, &one.options, one.model, 2, &one.opt),
                 invalid,
                 "a zero_options says it has 0 bytes"));
  one.options = zero_options_of(ZERO_POS_G, ZERO_FP32, ZERO_ADAMW);
  one.options.rule.size += 8;
  CHECK(one.says(
      zero_create(one.comm, &one.options, one.model, 2, &one.opt), invalid, "a zero_rule says"));
  one.options = zero_options_of(ZERO_POS_G, ZERO_FP32, ZERO_ADAMW);
  one.model[1].size = 8;
  CHECK(one.says(zero_create(one.comm, &one.options, one.model, 2, &one.opt),
                 invalid,
                 "a zero_tensor says it has 8 bytes"));
  one.model[1].size = one.model[0].size;
  REQUIRE(zero_create(one.comm, &one.options, one.model, 2, &one.opt) == ZERO_OK);
  REQUIRE(zero_load(one.opt, fill, nullptr) == ZERO_OK);
  zero_step_options step{};
  CHECK(one.says(zero_step(one.opt, &step, nullptr), invalid, "a zero_step_options says"));
  zero_report report{};
  CHECK(one.says(zero_step(one.opt, nullptr, &report), invalid, "a zero_report says"));
  zero_plan plan{};
  CHECK(one.says(zero_get_plan(one.opt, 1, &plan), invalid, "a zero_plan says"));
  CHECK(zero_step(one.opt, nullptr, nullptr) == ZERO_OK);  // none of these has changed anything
}

TEST_CASE("C API misuse: models that make no sense") {
  Alone one;
  auto const create = [&](std::int32_t count) {
    return zero_create(one.comm, &one.options, one.model, count, &one.opt);
  };
  one.model[1].name = nullptr;
  CHECK(one.says(create(2), invalid, "tensor 1 has no name"));
  one.model[1].name = "a";
  CHECK(one.says(create(2), invalid, "'a'"));
  one.model[1].name = "b";
  one.model[1].dims = 9;
  CHECK(one.says(create(2), invalid, "tensor 'b' has 9 dimensions"));
  one.model[1].dims = 1;
  one.model[1].shape[0] = -4;
  CHECK(one.says(create(2), invalid, "an extent of a shape is -4"));
  one.model[1].shape[0] = 4;
  one.model[1].flags = 64;
  CHECK(one.says(create(2), invalid, "tensor 'b' has unknown flags"));
  one.model[1].flags = 0;
  CHECK(one.says(create(-1), invalid, "the number of tensors is -1"));
  one.options.bucket_bytes = -1;
  CHECK(one.says(create(2), invalid, "bucket_bytes is -1"));
}

TEST_CASE("C API misuse: what is not defined says what to add, and what there is") {
  Alone one;
  one.options.precision = ZERO_FP16;
  CHECK(one.says(zero_create(one.comm, &one.options, one.model, 2, &one.opt),
                 ZERO_NOT_DEFINED,
                 "zero: not defined: zero::Mixed<zero::fp16>; add it to ZERO_C_DEFINE, which has "
                 "zero::stage::Replicated, zero::stage::Pos, zero::stage::PosG, "
                 "zero::stage::PosGP, zero::Fp32, zero::Mixed<zero::bf16>, zero::AdamW, "));
  one.options.rule.number = ZERO_LION;
  CHECK(one.says(zero_create(one.comm, &one.options, one.model, 2, &one.opt),
                 ZERO_NOT_DEFINED,
                 "zero::Mixed<zero::fp16>, zero::Lion; add"));
  one.options = zero_options_of(77, ZERO_FP32, 1000);
  CHECK(one.says(zero_create(one.comm, &one.options, one.model, 2, &one.opt),
                 ZERO_NOT_DEFINED,
                 "the stage of number 77, the rule of number 1000; add"));
  one.options = zero_options_of(ZERO_POS_G_P, ZERO_FP32, ZERO_ADAMW);
  one.options.memory = ZERO_BORROWED;
  CHECK(one.says(zero_create(one.comm, &one.options, one.model, 2, &one.opt),
                 invalid,
                 "lent memory cannot be partitioned"));
}

TEST_CASE("C API misuse: hyper-parameters that the rule does not have, or that make no sense") {
  Alone one;
  one.options.rule.momentum = 0.9;
  CHECK(one.says(zero_create(one.comm, &one.options, one.model, 2, &one.opt),
                 invalid,
                 "the rule AdamW has no momentum"));
  one.options.rule.momentum = ZERO_DEFAULT;
  one.options.rule.lr = -1;
  CHECK(one.says(zero_create(one.comm, &one.options, one.model, 2, &one.opt), invalid, "lr"));
}

TEST_CASE("C API misuse: functions of the trainer's that fail or throw") {
  Alone one;
  CHECK(one.says(zero_load(one.opt, refuse, nullptr), ZERO_CALLBACK, "fill returned 42 for 'a'"));
  CHECK(one.says(zero_load(one.opt, throws, nullptr), ZERO_UNKNOWN, "the trainer's own"));
  CHECK(one.says(zero_load(one.opt, throws_int, nullptr), ZERO_UNKNOWN, "not a std::exception"));
  // The handle goes on being good.
  CHECK(zero_load(one.opt, fill, nullptr) == ZERO_OK);
  CHECK(zero_step(one.opt, nullptr, nullptr) == ZERO_OK);
}

TEST_CASE("C API misuse: calls that this choice does not have") {
  {
    Alone one(ZERO_POS_G_P);
    void* data = nullptr;
    CHECK(one.says(zero_parameter(one.opt, 0, &data), invalid, "call zero_parameters"));
    CHECK(one.says(zero_broadcast(one.opt, 0), invalid, "call zero_broadcast_from"));
    CHECK(one.says(zero_gradient(one.opt, 0, &data), invalid, "call zero_gradients"));
    float flat[8] = {};
    CHECK(one.says(zero_bind_flat(one.opt, flat, flat, 8), invalid, "memory = ZERO_BORROWED"));
    CHECK(one.says(zero_bind(one.opt, &data, &data, 1), invalid, "memory = ZERO_BORROWED"));
    CHECK(one.says(zero_bind_gradients(one.opt, &data, 1), invalid, "ZERO_BORROWED"));
    CHECK(one.says(zero_bind_gradients_flat(one.opt, flat, 8), invalid, "ZERO_BORROWED"));
  }
  Alone one(ZERO_POS, ZERO_BORROWED);
  float flat[8] = {}, gradients[8] = {};
  void* data[2] = {flat, flat + 4};
  CHECK(one.says(zero_step(one.opt, nullptr, nullptr), invalid, "bind"));
  CHECK(one.says(zero_bind_flat(one.opt, flat, gradients, 7), invalid, "8"));
  CHECK(one.says(zero_bind_flat(one.opt, flat, gradients, -7), invalid, "count is -7"));
  CHECK(one.says(zero_bind_flat(one.opt, flat, flat, 8), invalid, "overlap"));
  CHECK(one.says(zero_bind_flat(one.opt, nullptr, gradients, 8), invalid, "null"));
  CHECK(one.says(zero_bind(one.opt, data, data, 1), invalid, "parameters has 1 elements"));
  CHECK(one.says(zero_bind(one.opt, nullptr, data, 2), invalid, "parameters is null"));
  CHECK(one.says(zero_bind_gradients(one.opt, data, -2), invalid, "gradients has -2 elements"));
}

TEST_CASE("C API misuse: guards") {
  Alone one;
  void const* w[2] = {};
  void* g[2] = {};
  REQUIRE(zero_load(one.opt, fill, nullptr) == ZERO_OK);
  CHECK(one.says(zero_parameters(one.opt, 0, w, 2), invalid, "unit 0, which has 1 tensors"));
  CHECK(one.says(zero_release(one.opt, 0), invalid, "were not asked for"));
  CHECK(one.says(zero_parameters(one.opt, 2, w, 1), invalid, "there is no unit 2"));
  CHECK(one.says(zero_release(one.opt, -1), invalid, "there is no unit -1"));
  CHECK(one.says(zero_reduce(one.opt, 0), invalid, "zero_gradients was not called"));
  CHECK(one.says(zero_gradients(one.opt, 0, 9, g, 1), invalid, "there is no mode 9"));
  CHECK(one.says(zero_gradients(one.opt, 0, ZERO_ADD, g, 2), invalid, "which has 1 tensors"));
  REQUIRE(zero_parameters(one.opt, 1, w, 1) == ZERO_OK);
  REQUIRE(zero_parameters(one.opt, 1, nullptr, 0) == ZERO_OK);
  REQUIRE(zero_release(one.opt, 1) == ZERO_OK);
  CHECK(one.says(zero_step(one.opt, nullptr, nullptr), invalid, "unit 1"));
  REQUIRE(zero_release(one.opt, 1) == ZERO_OK);
  REQUIRE(zero_gradients(one.opt, 0, ZERO_OVERWRITE_CHECKED, g, 1) == ZERO_OK);
  CHECK(one.says(zero_reduce(one.opt, 0), invalid, "'a'"));  // nothing was written
  CHECK(zero_discard(one.opt) == ZERO_OK);
  REQUIRE(zero_full_parameters(one.opt, w, 2) == ZERO_OK);
  CHECK(zero_step(one.opt, nullptr, nullptr) == invalid);
  REQUIRE(zero_release_full(one.opt) == ZERO_OK);
  CHECK(zero_step(one.opt, nullptr, nullptr) == ZERO_OK);
}

TEST_CASE("C API misuse: options of a step, and counters") {
  Alone one;
  REQUIRE(zero_load(one.opt, fill, nullptr) == ZERO_OK);
  zero_step_options step = zero_step_options_of();
  step.max_norm = -1;
  CHECK(one.says(zero_step(one.opt, &step, nullptr), invalid, "max_norm"));
  step = zero_step_options_of();
  step.learning_rate = -1;
  CHECK(one.says(zero_step(one.opt, &step, nullptr), invalid, "learning rate"));
  std::int64_t steps[2] = {1, 1};
  float scale = 0.f;
  std::int32_t streak = 0;
  CHECK(one.says(zero_get_counters(one.opt, steps, 1, &scale, &streak),
                 invalid,
                 "steps has 1 elements, but the model has 2"));
  steps[0] = -1;
  CHECK(zero_set_counters(one.opt, steps, 2, 1.f, 0) == invalid);
  CHECK(one.says(zero_get_plan(one.opt, -1, nullptr), invalid, "zero_plan is null"));
}

struct Failing {
  int rank = 1;
  std::int32_t code = 42;
  std::vector<std::string> heard = std::vector<std::string>(3);
};

TEST_CASE("C API misuse: a rank that fails ends the others, with its words") {
  Failing failing;
  auto const body = [](zero_comm* comm, void* user) -> std::int32_t {
    auto& given = *static_cast<Failing*>(user);
    if (zero_comm_rank(comm) == given.rank) return given.code;
    double value = 1.;
    std::int32_t const code = zero_comm_sum(comm, &value);
    given.heard[static_cast<std::size_t>(zero_comm_rank(comm))] = zero_message(comm);
    return code;
  };
  char message[300] = "";
  CHECK(zero_run_ranks(3, body, &failing, message, sizeof(message)) == 42);
  CHECK(std::string(message) == "zero: callback: the function of rank 1 returned 42");
  for (int const rank : {0, 2}) {
    CHECK(failing.heard[static_cast<std::size_t>(rank)].find("rank 1 returned 42") !=
          std::string::npos);
  }

  auto const throwing = [](zero_comm* comm, void*) -> std::int32_t {
    if (zero_comm_rank(comm) == 2) throw std::runtime_error("out of batches");
    double value = 1.;
    return zero_comm_sum(comm, &value);
  };
  CHECK(zero_run_ranks(3, throwing, nullptr, message, sizeof(message)) == ZERO_UNKNOWN);
  CHECK(std::string(message).find("out of batches") != std::string::npos);

  auto const giving_up = [](zero_comm* comm, void*) -> std::int32_t {
    if (zero_comm_rank(comm) == 0) return zero_comm_fail(comm, "no data here");
    double value = 1.;
    std::int32_t const code = zero_comm_sum(comm, &value);
    return code == ZERO_COMMUNICATION && zero_comm_sum(comm, &value) == code ? code : ZERO_OK;
  };
  CHECK(zero_run_ranks(3, giving_up, nullptr, message, sizeof(message)) == ZERO_COMMUNICATION);
  CHECK(std::string(message).find("no data here") != std::string::npos);

  auto const other_order = [](zero_comm* comm, void*) -> std::int32_t {
    zero_options options = zero_options_of(ZERO_POS, ZERO_FP32, ZERO_ADAMW);
    if (zero_comm_rank(comm) == 1) options.stage = ZERO_POS_G;
    zero_tensor const tensor = zero_tensor_of("a", 0, 1, four);
    zero_optimizer* opt = nullptr;
    return zero_create(comm, &options, &tensor, 1, &opt);
  };
  CHECK(zero_run_ranks(2, other_order, nullptr, message, sizeof(message)) == ZERO_COMMUNICATION);
  CHECK(std::string(message).find("stage") != std::string::npos);
  CHECK(zero_run_ranks(0, other_order, nullptr, message, sizeof(message)) == invalid);
}

TEST_CASE("C API misuse: gradients that are not finite are data, and the run goes on") {
  Alone one(ZERO_POS, ZERO_BORROWED);
  float parameters[8] = {}, gradients[8] = {};
  gradients[3] = 1.f / 0.f;
  REQUIRE(zero_bind_flat(one.opt, parameters, gradients, 8) == ZERO_OK);
  REQUIRE(zero_adopt(one.opt) == ZERO_OK);
  CHECK(one.says(zero_step(one.opt, nullptr, nullptr), ZERO_DATA, "not finite"));
  zero_step_options step = zero_step_options_of();
  step.skip_non_finite = 1;
  zero_report report = zero_report_of();
  CHECK(zero_step(one.opt, &step, &report) == ZERO_OK);
  CHECK(report.skipped == 1);
  CHECK(report.step == 0);
  gradients[3] = 1.f;
  CHECK(zero_step(one.opt, &step, &report) == ZERO_OK);
  CHECK(report.step == 1);
  CHECK(report.grad_norm == 1.);
}

TEST_CASE("C API: what has no gradient rests") {
  Alone one(ZERO_POS, ZERO_BORROWED);
  float parameters[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  float gradients[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  REQUIRE(zero_bind_flat(one.opt, parameters, gradients, 8) == ZERO_OK);
  REQUIRE(zero_without_tensor_gradient(one.opt, 1) == ZERO_OK);
  REQUIRE(zero_step(one.opt, nullptr, nullptr) == ZERO_OK);
  CHECK(parameters[0] < 1.f);
  CHECK(parameters[4] == 1.f);
  float const before = parameters[0];
  REQUIRE(zero_without_gradient(one.opt, 0) == ZERO_OK);
  REQUIRE(zero_step(one.opt, nullptr, nullptr) == ZERO_OK);
  CHECK(parameters[0] == before);
  CHECK(parameters[4] < 1.f);
  CHECK(one.says(zero_without_gradient(one.opt, 77), invalid, "no unit 77"));
}

TEST_CASE("C API: groups, and steps that are counted outside") {
  Alone one(ZERO_POS, ZERO_BORROWED);
  one.model[1].group = "still";
  zero_destroy(one.opt);
  REQUIRE(zero_create(one.comm, &one.options, one.model, 2, &one.opt) == ZERO_OK);
  float parameters[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  float gradients[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  REQUIRE(zero_bind_flat(one.opt, parameters, gradients, 8) == ZERO_OK);
  REQUIRE(zero_set_lr(one.opt, nullptr, 0.5f) == ZERO_OK);
  REQUIRE(zero_set_lr(one.opt, "still", 0.f) == ZERO_OK);
  REQUIRE(zero_step(one.opt, nullptr, nullptr) == ZERO_OK);
  CHECK(parameters[0] < 0.75f);
  CHECK(parameters[4] == 1.f);
  CHECK(one.says(zero_set_lr(one.opt, "gone", 0.f), invalid, "no group or tensor 'gone'"));
  zero_rule rule = zero_rule_of(ZERO_ADAMW);
  rule.lr = 0.;
  REQUIRE(zero_set_rule(one.opt, nullptr, &rule) == ZERO_OK);
  rule.lr = 0.5;
  REQUIRE(zero_set_rule(one.opt, "still", &rule) == ZERO_OK);
  float const before = parameters[0];
  zero_step_options step = zero_step_options_of();
  step.count = 7;
  zero_report report = zero_report_of();
  REQUIRE(zero_step(one.opt, &step, &report) == ZERO_OK);
  CHECK(report.step == 7);
  CHECK(parameters[0] == before);
  CHECK(parameters[4] < 0.75f);
  REQUIRE(zero_without_tensor_gradient(one.opt, 1) == ZERO_OK);
  REQUIRE(zero_step(one.opt, nullptr, nullptr) == ZERO_OK);
  std::int64_t steps[2] = {};
  float scale = 0.f;
  std::int32_t streak = 0;
  REQUIRE(zero_get_counters(one.opt, steps, 2, &scale, &streak) == ZERO_OK);
  CHECK(steps[0] == 8);
  CHECK(steps[1] == 7);
  step.count = -1;
  CHECK(one.says(zero_step(one.opt, &step, nullptr), invalid, "count of a step is -1"));
  rule = zero_rule_of(ZERO_SGD);
  CHECK(one.says(zero_set_rule(one.opt, nullptr, &rule),
                 invalid,
                 "a rule of number 2 is given to an optimizer whose rule is AdamW"));
  CHECK(one.says(zero_without_tensor_gradient(one.opt, 2), invalid, "no tensor number 2"));
}

TEST_CASE("C API: a stacked tensor has a unit for each layer") {
  Alone one;
  std::int64_t const shape[] = {3, 4};
  one.model[1] = zero_stack_of("b", 1, 2, shape);
  zero_destroy(one.opt);
  REQUIRE(zero_create(one.comm, &one.options, one.model, 2, &one.opt) == ZERO_OK);
  std::int32_t const* units = nullptr;
  std::int32_t count = 0;
  REQUIRE(zero_units(one.opt, &units, &count) == ZERO_OK);
  CHECK(count == 4);
  void const* data[1] = {};
  CHECK(zero_parameters(one.opt, 3, data, 1) == ZERO_OK);
  CHECK(zero_release(one.opt, 3) == ZERO_OK);
}

TEST_CASE("C API: words are cut off where their memory ends") {
  char message[8] = "unread!";
  CHECK(zero_run_ranks(
            -1, [](zero_comm*, void*) { return 0; }, nullptr, message, 8) == invalid);
  CHECK(std::string(message) == "zero: i");
  CHECK(zero_run_ranks(
            -1, [](zero_comm*, void*) { return 0; }, nullptr, message, 0) == invalid);
  CHECK(std::string(message) == "zero: i");
}

TEST_CASE("C API: plans, memory and counters are those of C++") {
  Alone one;
  REQUIRE(zero_load(one.opt, fill, nullptr) == ZERO_OK);
  zero_plan plan = zero_plan_of(), ahead = zero_plan_of();
  REQUIRE(zero_get_plan(one.opt, 1, &plan) == ZERO_OK);
  REQUIRE(zero_plan_ahead(&one.options, one.model, 2, 1, 1, &ahead, nullptr, 0) == ZERO_OK);
  std::int64_t held[ZERO_ROLES] = {};
  REQUIRE(zero_held(one.opt, held) == ZERO_OK);
  std::int64_t total = 0;
  for (int role = 0; role < ZERO_ROLES; ++role) {
    CHECK(held[role] == plan.held[role]);
    CHECK(ahead.held[role] == plan.held[role]);
    total += held[role];
  }
  CHECK(plan.total == total);
  CHECK(plan.held[ZERO_ROLE_STATE] == 2 * plan.held[ZERO_ROLE_PARAMETERS]);
  CHECK(plan.trained_elements == 8);
  REQUIRE(zero_plan_ahead(&one.options, one.model, 2, 4, 1, &ahead, nullptr, 0) == ZERO_OK);
  CHECK(ahead.sent_elements > 0);
  CHECK(ahead.sent_bytes == 4 * ahead.sent_elements);
  char text[4000] = "";
  REQUIRE(zero_plan_text(one.opt, text, sizeof(text)) == ZERO_OK);
  CHECK(std::string(text).find("plan: stage Pos+g, precision fp32, rule AdamW") == 0);

  REQUIRE(zero_step(one.opt, nullptr, nullptr) == ZERO_OK);
  zero_report report = zero_report_of();
  REQUIRE(zero_get_report(one.opt, &report) == ZERO_OK);
  CHECK(report.step == 1);
  std::int64_t steps[2] = {7, 7};
  float scale = 0.f;
  std::int32_t streak = -1;
  REQUIRE(zero_set_counters(one.opt, steps, 2, 1.f, 0) == ZERO_OK);
  steps[0] = steps[1] = 0;
  REQUIRE(zero_get_counters(one.opt, steps, 2, &scale, &streak) == ZERO_OK);
  CHECK(steps[0] == 7);
  CHECK(steps[1] == 7);
  CHECK(scale == 1.f);
  REQUIRE(zero_loss_scale(one.opt, &scale) == ZERO_OK);
  CHECK(scale == 1.f);
}

}  // namespace
}  // namespace misuse_test
