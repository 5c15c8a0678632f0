/// Mistakes through zero/c.h: a code and words, on every rank, and nothing thrown across.
#include "c_api/trainer.h"
#include "support/test.hpp"

namespace misuse_test {
namespace {

constexpr auto invalid = ZERO_INVALID_ARGUMENT;
std::int64_t const four[] = {4};

bool contains(std::string const& text, char const* words) {
  return text.find(words) != std::string::npos;
}

/// A rank alone, and an optimizer of two units on it.
class Alone {
 public:
  explicit Alone(std::int32_t stage = ZERO_POS_G, std::int32_t memory = ZERO_OWNED) {
    REQUIRE(zero_self(&comm, nullptr, 0) == ZERO_OK);
    options = zero_options_of(stage, ZERO_FP32, ZERO_ADAMW);
    options.memory = memory;
    REQUIRE(create() == ZERO_OK);
  }
  Alone(Alone const&) = delete;
  Alone& operator=(Alone const&) = delete;
  ~Alone() { CHECK(zero_comm_close(comm, nullptr, 0) == ZERO_OK); }

  std::int32_t create() { return zero_create(comm, &options, model, 2, &opt); }
  std::int32_t step(zero_step_options const* how = nullptr, zero_report* report = nullptr) {
    return zero_step(opt, how, report);
  }
  /// Gradients of both units, which are zero.
  std::int32_t give() {
    std::int32_t code = ZERO_OK;
    for (std::int32_t const unit : {1, 0}) {
      code |= zero_gradients(opt, unit, ZERO_ADD, nullptr, 0) | zero_reduce(opt, unit);
    }
    return code;
  }
  /// Checks that a call failed with that code, and words in which these are.
  void refuses(std::int32_t code, char const* words, std::int32_t wanted = invalid) const {
    CAPTURE(words);
    CHECK(code == wanted);
    std::string const message = zero_message(comm);
    CHECK_MESSAGE(contains(message, words), message);
  }

  zero_comm* comm = nullptr;
  zero_optimizer* opt = nullptr;
  zero_options options{};
  zero_tensor model[2] = {zero_tensor_of("a", 0, 1, four), zero_tensor_of("b", 1, 1, four)};
};

/// The same, with all parameters and gradients 1 in memory that is lent.
struct Lent : Alone {
  explicit Lent(char const* group = nullptr) : Alone(ZERO_POS, ZERO_BORROWED) {
    model[1].group = group;
    zero_destroy(opt);
    REQUIRE(create() == ZERO_OK);
    REQUIRE(zero_bind_flat(opt, parameters, gradients, 8) == ZERO_OK);
  }
  float parameters[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  float gradients[8] = {1, 1, 1, 1, 1, 1, 1, 1};
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
  CHECK(contains(message, "comm is null"));
  CHECK(zero_self(nullptr, message, sizeof(message)) == invalid);
  CHECK(zero_run_ranks(2, nullptr, nullptr, message, sizeof(message)) == invalid);
  CHECK(contains(message, "function of the ranks is null"));
}

TEST_CASE("C API misuse: handles that have ended, of another kind, or made up") {
  Alone one;
  one.refuses(zero_discard(reinterpret_cast<zero_optimizer*>(one.comm)),
              "the handle is of a zero_comm, but a zero_optimizer was expected");
  double sum = 1.;
  one.refuses(zero_comm_sum(reinterpret_cast<zero_comm*>(one.opt), &sum),
              "the handle is of a zero_optimizer, but a zero_comm was expected");
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
  one.refuses(zero_destroy(gone), "the handle is of a zero_optimizer, which has ended");
  one.refuses(zero_reduce_all(gone), "which has ended");
  // What takes its place has another handle.
  REQUIRE(one.create() == ZERO_OK);
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
  CHECK(contains(message, "comm is closed"));
  zero_comm_progress(other);
}

TEST_CASE("C API misuse: null arguments are named") {
  Alone one;
  one.refuses(zero_create(one.comm, nullptr, nullptr, 0, &one.opt), "zero_options is null");
  one.refuses(zero_create(one.comm, &one.options, nullptr, 2, &one.opt), "tensors is null");
  one.refuses(zero_create(one.comm, &one.options, one.model, 2, nullptr), "optimizer is null");
  CHECK(one.opt == nullptr);
  REQUIRE(one.create() == ZERO_OK);
  one.refuses(zero_load(one.opt, nullptr, nullptr), "fill is null");
  one.refuses(zero_grad_norm(one.opt, nullptr), "norm is null");
  one.refuses(zero_get_updated(one.opt, nullptr), "tensors is null");
  one.refuses(zero_held(one.opt, nullptr), "held is null");
  one.refuses(zero_units(one.opt, nullptr, nullptr), "units is null");
  one.refuses(zero_plan_text(one.opt, nullptr, 5), "text is null");
  one.refuses(zero_loss_scale(one.opt, nullptr), "scale is null");
  one.refuses(zero_parameter(one.opt, 0, nullptr), "data is null");
  one.refuses(zero_parameters(one.opt, 0, nullptr, 1), "data is null");
  one.refuses(zero_full_parameters(one.opt, nullptr, 2), "data is null");
  one.refuses(zero_set_rule(one.opt, nullptr, nullptr), "zero_rule is null");
  one.refuses(zero_get_plan(one.opt, -1, nullptr), "zero_plan is null");
}

/// What is changed of sound options and of a sound model's second tensor.
struct Change {
  void (*change)(zero_options& options, zero_tensor& b);
  char const* words;
  std::int32_t code = invalid;
};
Change const changes[] = {
    {[](auto& o, auto&) { o.size = 0; }, "a zero_options says it has 0 bytes"},
    {[](auto& o, auto&) { o.rule.size += 8; }, "a zero_rule says"},
    {[](auto&, auto& b) { b.size = 8; }, "a zero_tensor says it has 8 bytes"},
    {[](auto& o, auto&) { o.reserved = 7; }, "reserved of a zero_options is 7, but must be 0"},
    {[](auto& o, auto&) { o.reserved_2 = 7; }, "reserved of a zero_options is 7, but must be 0"},
    {[](auto& o, auto&) { o.overflow = 7; }, "overflow is 7, but a flag is 0 or 1"},
    {[](auto& o, auto&) { o.rule.eps_hat = 7; }, "eps_hat is 7, but a flag is 0 or 1"},
    {[](auto&, auto& b) { b.dtype = 14; }, "tensor 'b' has the type 14, which zero_dtype lacks"},
    {[](auto&, auto& b) { b.dtype = ZERO_DTYPE_U8; }, "tensor 'b' is trained and of uint8"},
    {[](auto& o, auto&) { o.others = 4; }, "options list 4 other precisions; at most 3"},
    {[](auto& o, auto&) { o.others = 1, o.other_precisions[0] = o.precision; },
     "has parameters of fp32, as another that options list"},
    // Of fp32, which has none.
    {[](auto& o, auto&) { o.loss_scale = -1.; }, "a loss scale of -1"},
    {[](auto&, auto& b) { b.name = nullptr; }, "tensor 1 has no name"},
    {[](auto&, auto& b) { b.name = "a"; }, "'a'"},
    {[](auto&, auto& b) { b.dims = 9; }, "tensor 'b' has 9 dimensions"},
    {[](auto&, auto& b) { b.shape[0] = -4; }, "an extent of a shape is -4"},
    {[](auto&, auto& b) { b.flags = 64; }, "tensor 'b' has unknown flags"},
    {[](auto&, auto& b) { b.flags = ZERO_WHOLE; },
     "tensor 'b' is whole, which only a frozen tensor can be"},
    {[](auto& o, auto&) { o.bucket_bytes = -1; }, "bucket_bytes is -1"},
    {[](auto& o, auto&) { o.rule.momentum = 0.9; }, "the rule AdamW has no momentum"},
    {[](auto& o, auto&) { o.rule.lr = -1; }, "lr"},
    // What is not defined says what to add, and what there is.
    {[](auto& o, auto&) { o.precision = ZERO_FP16; },
     "zero: not defined: zero::Mixed<zero::fp16>; add it to ZERO_C_DEFINE, which has "
     "zero::stage::Replicated, zero::stage::Pos, zero::stage::PosG, "
     "zero::stage::PosGP, zero::Fp32, zero::Mixed<zero::bf16>, zero::AdamW, ",
     ZERO_NOT_DEFINED},
    {[](auto& o, auto&) {
       o.precision = ZERO_FP16;
       o.rule.number = ZERO_LION;
     },
     "zero::Mixed<zero::fp16>, zero::Lion; add",
     ZERO_NOT_DEFINED},
    {[](auto& o, auto&) { o = zero_options_of(77, ZERO_FP32, 1000); },
     "the stage of number 77, the rule of number 1000; add",
     ZERO_NOT_DEFINED},
    {[](auto& o, auto&) {
       o.stage = ZERO_POS_G_P;
       o.memory = ZERO_BORROWED;
     },
     "lent memory cannot be partitioned"},
};

TEST_CASE("C API misuse: options and models that make no sense, are of another size or undefined") {
  Alone one;
  for (Change const& row : changes) {
    zero_options options = one.options;
    zero_tensor model[2] = {one.model[0], one.model[1]};
    row.change(options, model[1]);
    one.refuses(zero_create(one.comm, &options, model, 2, &one.opt), row.words, row.code);
  }
  one.refuses(zero_create(one.comm, &one.options, one.model, -1, &one.opt),
              "the number of tensors is -1");
  CHECK(one.create() == ZERO_OK);
}

TEST_CASE("C API misuse: options of a program that was compiled with 0.2 end where they did") {
  Alone one;
  float memory[16] = {};
  one.options.size = offsetof(zero_options, rule) + offsetof(zero_rule, min_ratio);
  one.options.overflow = 7;  // not of the struct
  CHECK(one.create() == ZERO_OK);
  CHECK(zero_create_flat(one.comm, &one.options, one.model, 2, memory, memory + 8, 8, &one.opt) ==
        ZERO_OK);
}

TEST_CASE("C API misuse: options of a step, structs of another size, counters") {
  Alone one;
  REQUIRE(zero_load(one.opt, fill, nullptr) == ZERO_OK);
  struct {
    void (*change)(zero_step_options& step);
    char const* words;
  } const rows[] = {
      {[](auto& step) { step = {}; }, "a zero_step_options says"},
      {[](auto& step) { step.stop = 7; }, " is 7, but "},
      {[](auto& step) { step.skip_non_finite = 7; }, " is 7, but "},
      {[](auto& step) { step.overlap_publish = 7; }, " is 7, but "},
      {[](auto& step) { step.reserved = 7; }, " is 7, but "},
      {[](auto& step) { step.reserved_2 = 7; }, " is 7, but "},
      {[](auto& step) { step.unsaid = 3; }, "there is no 3 of zero_unsaid"},
      {[](auto& step) { step.unsaid = -1; }, "there is no -1 of zero_unsaid"},
      {[](auto& step) { step.size -= 4; }, "says it has 60 bytes, but it has 64 here"},
      {[](auto& step) { step.max_norm = -1; }, "max_norm"},
      {[](auto& step) { step.learning_rate = -1; }, "learning rate"},
      {[](auto& step) { step.count = -1; }, "count of a step is -1"},
  };
  for (auto const& row : rows) {
    zero_step_options step = zero_step_options_of();
    row.change(step);
    one.refuses(one.step(&step), row.words);
  }
  zero_report report{};
  one.refuses(one.step(nullptr, &report), "a zero_report says");
  zero_plan plan{};
  one.refuses(zero_get_plan(one.opt, 1, &plan), "a zero_plan says");
  std::int64_t steps[2] = {1, 1};
  float scale = 0.f;
  std::int32_t streak = 0;
  one.refuses(zero_get_counters(one.opt, steps, 1, &scale, &streak),
              "steps has 1 elements, but the model has 2");
  steps[0] = -1;
  CHECK(zero_set_counters(one.opt, steps, 2, 1.f, 0) == invalid);
  // None of these has changed anything.
  CHECK((one.give() | one.step()) == ZERO_OK);
}

TEST_CASE("C API misuse: functions of the trainer's that fail or throw") {
  Alone one;
  one.refuses(zero_load(one.opt, refuse, nullptr), "fill returned 42 for 'a'", ZERO_CALLBACK);
  one.refuses(zero_load(one.opt, throws, nullptr), "the trainer's own", ZERO_UNKNOWN);
  one.refuses(zero_load(one.opt, throws_int, nullptr), "not a std::exception", ZERO_UNKNOWN);
  // The handle goes on being good.
  CHECK(zero_load(one.opt, fill, nullptr) == ZERO_OK);
  CHECK((one.give() | one.step()) == ZERO_OK);
}

TEST_CASE("C API misuse: calls that this choice does not have") {
  Alone owned(ZERO_POS_G_P);
  void* data[2] = {};
  float flat[8] = {}, gradients[8] = {};
  owned.refuses(zero_parameter(owned.opt, 0, data), "call zero_parameters");
  owned.refuses(zero_broadcast(owned.opt, 0), "call zero_broadcast_from");
  owned.refuses(zero_gradient(owned.opt, 0, data), "call zero_gradients");
  owned.refuses(zero_bind_flat(owned.opt, flat, flat, 8), "memory = ZERO_BORROWED");
  owned.refuses(zero_bind(owned.opt, data, data, 1), "memory = ZERO_BORROWED");
  owned.refuses(zero_bind_gradients(owned.opt, data, 1), "ZERO_BORROWED");
  owned.refuses(zero_bind_gradients_flat(owned.opt, flat, 8), "ZERO_BORROWED");
  zero_span const spans[] = {{flat, 4}, {flat + 4, 4}};
  std::int32_t free = 0;
  owned.refuses(zero_bind_spans(owned.opt, spans, spans, 2), "memory = ZERO_BORROWED");
  owned.refuses(zero_bind_gradients_spans(owned.opt, spans, 2), "memory = ZERO_BORROWED");
  owned.refuses(zero_bind_parameters(owned.opt, spans, 2), "memory = ZERO_BORROWED");
  owned.refuses(zero_bind_parameters_flat(owned.opt, flat, 8), "memory = ZERO_BORROWED");
  owned.refuses(zero_bind_unit(owned.opt, 0, spans, 1), "memory = ZERO_BORROWED");
  owned.refuses(zero_gradients_free(owned.opt, 0, &free), "memory = ZERO_BORROWED");
  owned.refuses(zero_on_gradients_free(owned.opt, nullptr, nullptr), "memory = ZERO_BORROWED");

  Alone lent(ZERO_POS, ZERO_BORROWED);
  data[0] = flat;
  data[1] = flat + 4;
  lent.refuses(lent.step(), "bind");
  lent.refuses(zero_bind_flat(lent.opt, flat, gradients, 7), "8");
  lent.refuses(zero_bind_flat(lent.opt, flat, gradients, -7), "count is -7");
  lent.refuses(zero_bind_flat(lent.opt, flat, flat, 8), "overlap");
  lent.refuses(zero_bind_flat(lent.opt, nullptr, gradients, 8), "null");
  lent.refuses(zero_bind(lent.opt, data, data, 1), "parameters has 1 elements");
  lent.refuses(zero_bind(lent.opt, nullptr, data, 2), "parameters is null");
  lent.refuses(zero_bind_gradients(lent.opt, data, -2), "gradients has -2 elements");
}

TEST_CASE("C API misuse: sizes that are not the model's, tensors in another order") {
  Lent one;
  zero_destroy(one.opt);
  std::int64_t const three[] = {3};
  one.model[1] = zero_tensor_of("b", 0, 1, three);
  REQUIRE(one.create() == ZERO_OK);
  float* const p = one.parameters;
  float* const g = one.gradients;
  zero_span const parameters[] = {{p, 4}, {p + 4, 3}};
  zero_span const gradients[] = {{g, 4}, {g + 4, 3}};
  zero_span const swapped[] = {{g + 4, 3}, {g, 4}};
  zero_span const negative[] = {{g, 4}, {g + 4, -3}};
  zero_span const no_memory[] = {{g, 4}, {nullptr, 3}};
  REQUIRE(zero_bind_spans(one.opt, parameters, gradients, 2) == ZERO_OK);

  struct {
    zero_span const* wrong;
    char const* words;
  } const rows[] = {{swapped, "tensor 'a' has 4 elements, but 3 are lent"},
                    {negative, "of tensor 'b', -3 elements are lent"},
                    {no_memory, "tensor 'b' is lent as a null pointer"}};
  for (auto const& [wrong, words] : rows) {
    one.refuses(zero_bind_spans(one.opt, wrong, gradients, 2), words);
    one.refuses(zero_bind_spans(one.opt, parameters, wrong, 2), words);
    one.refuses(zero_bind_parameters(one.opt, wrong, 2), words);
    one.refuses(zero_bind_gradients_spans(one.opt, wrong, 2), words);
    REQUIRE(zero_bind_parameters(one.opt, parameters, 2) == ZERO_OK);
    one.refuses(zero_bind_unit(one.opt, 0, wrong, 2), words);
    REQUIRE(zero_discard(one.opt) == ZERO_OK);
  }
  one.refuses(zero_bind_spans(one.opt, parameters, parameters, 2), "overlap");
  one.refuses(zero_bind_spans(one.opt, parameters, nullptr, 2), "gradients is null");
  one.refuses(zero_bind_spans(one.opt, parameters, gradients, 1), "parameters has 1 elements");
  one.refuses(zero_bind_parameters_flat(one.opt, p, 8), "7 elements");
  one.refuses(zero_bind_parameters_flat(one.opt, p, -8), "count is -8");
  one.refuses(zero_bind_unit(one.opt, 0, gradients, 1),
              "gradients has 1 elements, but the unit has 2 tensors");
  one.refuses(zero_bind_unit(one.opt, 0, nullptr, 2), "gradients is null");
  one.refuses(zero_bind_unit(one.opt, 7, gradients, 2), "there is no unit 7");
}

TEST_CASE("C API misuse: gradients that are lent unit by unit") {
  Lent one;
  std::int32_t free = 7;
  zero_span const b[] = {{one.gradients + 4, 4}};
  zero_span const none[] = {{nullptr, 0}};
  one.refuses(zero_gradients_free(one.opt, 0, nullptr), "is_free is null");
  one.refuses(zero_gradients_free(one.opt, 2, &free), "there is no unit 2");
  one.refuses(zero_gradients_free(one.opt, -1, &free), "there is no unit -1");
  REQUIRE(zero_adopt(one.opt) == ZERO_OK);
  REQUIRE(zero_bind_parameters_flat(one.opt, one.parameters, 8) == ZERO_OK);
  std::vector<int> heard;
  auto const told = [](std::int32_t unit, void* user) {
    static_cast<std::vector<int>*>(user)->push_back(unit);
  };
  REQUIRE(zero_on_gradients_free(one.opt, told, &heard) == ZERO_OK);
  // A unit that is not lent, or lends nothing, rests.
  REQUIRE(zero_bind_unit(one.opt, 1, b, 1) == ZERO_OK);
  REQUIRE(zero_reduce(one.opt, 1) == ZERO_OK);
  one.refuses(zero_bind_unit(one.opt, 1, b, 1), "unit 1");
  REQUIRE(zero_bind_unit(one.opt, 0, none, 1) == ZERO_OK);
  REQUIRE(zero_reduce(one.opt, 0) == ZERO_OK);
  REQUIRE(one.step() == ZERO_OK);
  CHECK(heard == std::vector{1, 0});
  CHECK(one.parameters[0] == 1.f);
  CHECK(one.parameters[4] < 1.f);
  // They were lent once.
  one.refuses(zero_reduce(one.opt, 1), "tensor 'b' is used, but not lent in this step");
  REQUIRE(zero_discard(one.opt) == ZERO_OK);
  heard.clear();
  REQUIRE(zero_on_gradients_free(one.opt, nullptr, nullptr) == ZERO_OK);
  REQUIRE(zero_bind_unit(one.opt, 1, b, 1) == ZERO_OK);
  REQUIRE(zero_reduce(one.opt, 1) == ZERO_OK);
  REQUIRE(one.step() == ZERO_OK);
  CHECK(heard.empty());
}

TEST_CASE("C API misuse: what is owned is shown, and set, by functions that fail") {
  Alone one;
  REQUIRE(zero_load(one.opt, fill, nullptr) == ZERO_OK);
  auto const refuse_second = [](auto const* shown, void*) {
    return shown->tensor == 1 && shown->number == 2 ? 42 : 0;
  };
  auto const throws_it = [](auto const*, void*) -> std::int32_t {
    throw std::runtime_error("the trainer's own");
  };
  auto const check = [&](auto const call, std::string const& name) {
    one.refuses(call(one.opt, nullptr, nullptr), (name + " is null").c_str());
    one.refuses(call(one.opt, refuse_second, nullptr),
                (name + " returned 42 for 'b'").c_str(),
                ZERO_CALLBACK);
    one.refuses(call(one.opt, throws_it, nullptr), "the trainer's own", ZERO_UNKNOWN);
  };
  check(zero_visit_owned, "visit");
  check(zero_fill_owned, "fill");
  check(zero_visit_held, "visit");
  check(zero_fill_held, "fill");
  CHECK((one.give() | one.step()) == ZERO_OK);
}

TEST_CASE("C API misuse: guards") {
  Alone one;
  void const* w[2] = {};
  void* g[2] = {};
  REQUIRE(zero_load(one.opt, fill, nullptr) == ZERO_OK);
  one.refuses(zero_release_full(one.opt), "were not asked for");
  // What a refused call took, it has given back.
  one.refuses(zero_parameters(one.opt, 0, nullptr, 1), "data is null");
  CHECK((one.give() | one.step()) == ZERO_OK);
  one.refuses(zero_parameters(one.opt, 0, w, 2), "unit 0, which has 1 tensors");
  one.refuses(zero_release(one.opt, 0), "were not asked for");
  one.refuses(zero_parameters(one.opt, 2, w, 1), "there is no unit 2");
  one.refuses(zero_release(one.opt, -1), "there is no unit -1");
  one.refuses(zero_reduce(one.opt, 0), "zero_gradients was not called");
  one.refuses(zero_gradients(one.opt, 0, 9, g, 1), "there is no mode 9");
  one.refuses(zero_gradients(one.opt, 0, ZERO_ADD, g, 2), "which has 1 tensors");
  REQUIRE(zero_parameters(one.opt, 1, w, 1) == ZERO_OK);
  REQUIRE(zero_parameters(one.opt, 1, nullptr, 0) == ZERO_OK);
  REQUIRE(zero_release(one.opt, 1) == ZERO_OK);
  one.refuses(one.step(), "unit 1");
  REQUIRE(zero_release(one.opt, 1) == ZERO_OK);
  REQUIRE(zero_gradients(one.opt, 0, ZERO_OVERWRITE_CHECKED, g, 1) == ZERO_OK);
  one.refuses(zero_reduce(one.opt, 0), "'a'");  // nothing was written
  CHECK(zero_discard(one.opt) == ZERO_OK);
  REQUIRE(zero_full_parameters(one.opt, w, 2) == ZERO_OK);
  CHECK(one.step() == invalid);
  REQUIRE(zero_release_full(one.opt) == ZERO_OK);
  CHECK((one.give() | one.step()) == ZERO_OK);
}

/// A sum over all ranks; what each of them was told is `heard`.
std::int32_t sum(zero_comm* comm, void* heard) {
  double value = 1.;
  std::int32_t const code = zero_comm_sum(comm, &value);
  static_cast<std::string*>(heard)[zero_comm_rank(comm)] = zero_message(comm);
  return code;
}

TEST_CASE("C API misuse: a rank that fails ends the others, with its words") {
  struct {
    zero_rank_function body;
    std::int32_t code;
    char const* words;
  } const rows[] = {
      {[](zero_comm* comm, void* heard) {
         return zero_comm_rank(comm) == 1 ? std::int32_t{42} : sum(comm, heard);
       },
       42,
       "callback: the function of rank 1 returned 42"},
      {[](zero_comm* comm, void* heard) {
         if (zero_comm_rank(comm) == 1) throw std::runtime_error("out of batches");
         return sum(comm, heard);
       },
       ZERO_UNKNOWN,
       "out of batches"},
      {[](zero_comm* comm, void* heard) -> std::int32_t {
         if (zero_comm_rank(comm) == 1) return zero_comm_fail(comm, "no data here");
         std::int32_t const code = sum(comm, heard);
         return code == ZERO_COMMUNICATION && sum(comm, heard) == code ? code : ZERO_OK;
       },
       ZERO_COMMUNICATION,
       "no data here"},
      {[](zero_comm* comm, void* heard) {
         zero_options options = zero_options_of(ZERO_POS, ZERO_FP32, ZERO_ADAMW);
         if (zero_comm_rank(comm) == 1) options.stage = ZERO_POS_G;
         zero_tensor const tensor = zero_tensor_of("a", 0, 1, four);
         zero_optimizer* opt = nullptr;
         std::int32_t const code = zero_create(comm, &options, &tensor, 1, &opt);
         static_cast<std::string*>(heard)[zero_comm_rank(comm)] = zero_message(comm);
         return code;
       },
       ZERO_COMMUNICATION,
       "stage"},
  };
  char message[300] = "";
  for (auto const& row : rows) {
    std::string heard[3];
    CHECK(zero_run_ranks(3, row.body, heard, message, sizeof(message)) == row.code);
    for (std::string const& text : {std::string(message), heard[0], heard[2]}) {
      CHECK_MESSAGE(contains(text, row.words), text);
    }
  }
  CHECK(zero_run_ranks(0, rows[0].body, nullptr, message, sizeof(message)) == invalid);
}

TEST_CASE("C API misuse: gradients that are not finite are data, and the run goes on") {
  Lent one;
  one.gradients[3] = 1.f / 0.f;
  REQUIRE(zero_adopt(one.opt) == ZERO_OK);
  one.refuses(one.step(), "not finite", ZERO_DATA);
  zero_step_options step = zero_step_options_of();
  step.skip_non_finite = 1;
  zero_report report = zero_report_of();
  CHECK(one.step(&step, &report) == ZERO_OK);
  CHECK(report.skipped == 1);
  CHECK(report.step == 0);
  one.gradients[3] = 1.f;
  for (int i : {0, 1, 2, 4, 5, 6, 7}) one.gradients[i] = 0.f;
  CHECK(one.step(&step, &report) == ZERO_OK);
  CHECK(report.step == 1);
  CHECK(report.grad_norm == 1.);
}

TEST_CASE("C API: what has no gradient rests") {
  Lent one;
  REQUIRE(zero_without_tensor_gradient(one.opt, 1) == ZERO_OK);
  REQUIRE(one.step() == ZERO_OK);
  CHECK(one.parameters[0] < 1.f);
  CHECK(one.parameters[4] == 1.f);
  float const before = one.parameters[0];
  REQUIRE(zero_without_gradient(one.opt, 0) == ZERO_OK);
  REQUIRE(one.step() == ZERO_OK);
  CHECK(one.parameters[0] == before);
  CHECK(one.parameters[4] < 1.f);
  one.refuses(zero_without_gradient(one.opt, 77), "no unit 77");
  one.refuses(zero_without_tensor_gradient(one.opt, 2), "no tensor number 2");
}

TEST_CASE("C API: a unit that no rank names fails the step, is zeros or rests") {
  Alone one(ZERO_POS);
  REQUIRE(zero_load(one.opt, fill, nullptr) == ZERO_OK);
  auto const give = [&](std::int32_t unit) {
    REQUIRE(zero_gradients(one.opt, unit, ZERO_ADD, nullptr, 0) == ZERO_OK);
    REQUIRE(zero_reduce(one.opt, unit) == ZERO_OK);
  };
  void *a = nullptr, *b = nullptr;
  REQUIRE(zero_parameter(one.opt, 0, &a) == ZERO_OK);
  REQUIRE(zero_parameter(one.opt, 1, &b) == ZERO_OK);
  auto const first = [](void* data) { return *static_cast<float const*>(data); };
  zero_step_options step = zero_step_options_of();
  // As by a program that was compiled with 0.2, whose struct ended before, too.
  for (auto const size : {sizeof(step), offsetof(zero_step_options, unsaid)}) {
    step.size = static_cast<std::int64_t>(size);
    step.unsaid = size == sizeof(step) ? 0 : 77;
    give(0);
    one.refuses(one.step(&step), "asked for the gradients of tensor 'b' of unit 1");
    CHECK(first(a) == 1.f);
    give(1);
    one.refuses(one.step(), "asked for the gradients of tensor 'a' of unit 0");
  }
  step = zero_step_options_of();
  step.unsaid = ZERO_UNSAID_ZEROS;
  give(0);
  REQUIRE(one.step(&step) == ZERO_OK);
  float const decayed = first(b);
  CHECK(decayed < 1.f);
  step.unsaid = ZERO_UNSAID_REST;
  give(0);
  REQUIRE(one.step(&step) == ZERO_OK);
  CHECK(first(b) == decayed);
  std::int64_t updated = 0;
  REQUIRE(zero_get_updated(one.opt, &updated) == ZERO_OK);
  CHECK(updated == 1);
}

TEST_CASE("C API: full gradients that were ever shown may have been added to") {
  Alone one(ZERO_POS);
  REQUIRE(zero_load(one.opt, fill, nullptr) == ZERO_OK);
  void* gradient = nullptr;
  REQUIRE(zero_gradient(one.opt, 1, &gradient) == ZERO_OK);
  one.refuses(one.step(), "asked for the gradients of tensor 'a' of unit 0");
  REQUIRE(zero_gradient(one.opt, 0, &gradient) == ZERO_OK);
  CHECK(one.step() == ZERO_OK);
  CHECK(one.step() == ZERO_OK);
}

TEST_CASE("C API: groups, and steps that are counted outside") {
  Lent one("still");
  REQUIRE(zero_set_lr(one.opt, nullptr, 0.5f) == ZERO_OK);
  REQUIRE(zero_set_lr(one.opt, "still", 0.f) == ZERO_OK);
  REQUIRE(one.step() == ZERO_OK);
  CHECK(one.parameters[0] < 0.75f);
  CHECK(one.parameters[4] == 1.f);
  one.refuses(zero_set_lr(one.opt, "gone", 0.f), "no group or tensor 'gone'");
  zero_rule rule = zero_rule_of(ZERO_ADAMW);
  rule.lr = 0.;
  REQUIRE(zero_set_rule(one.opt, nullptr, &rule) == ZERO_OK);
  rule.lr = 0.5;
  REQUIRE(zero_set_rule(one.opt, "still", &rule) == ZERO_OK);
  float const before = one.parameters[0];
  zero_step_options step = zero_step_options_of();
  step.count = 7;
  zero_report report = zero_report_of();
  REQUIRE(one.step(&step, &report) == ZERO_OK);
  CHECK(report.step == 7);
  CHECK(one.parameters[0] == before);
  CHECK(one.parameters[4] < 0.75f);
  REQUIRE(zero_without_tensor_gradient(one.opt, 1) == ZERO_OK);
  REQUIRE(one.step() == ZERO_OK);
  std::int64_t steps[2] = {};
  float scale = 0.f;
  std::int32_t streak = 0;
  REQUIRE(zero_get_counters(one.opt, steps, 2, &scale, &streak) == ZERO_OK);
  CHECK(steps[0] == 8);
  CHECK(steps[1] == 7);
  rule = zero_rule_of(ZERO_SGD);
  one.refuses(zero_set_rule(one.opt, nullptr, &rule),
              "a rule of number 2 is given to an optimizer whose rule is AdamW");
}

TEST_CASE("C API: a stacked tensor has a unit for each layer") {
  Alone one;
  std::int64_t const shape[] = {3, 4};
  one.model[1] = zero_stack_of("b", 1, 2, shape);
  zero_destroy(one.opt);
  REQUIRE(one.create() == ZERO_OK);
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
  auto const body = [](zero_comm*, void*) { return 0; };
  for (int const size : {8, 0}) {
    CHECK(zero_run_ranks(-1, body, nullptr, message, size) == invalid);
    CHECK(std::string(message) == "zero: i");
  }
}

TEST_CASE("C API: a frozen tensor is partitioned under Pos+g+p, unless it is said to be whole") {
  zero_options const options = zero_options_of(ZERO_POS_G_P, ZERO_FP32, ZERO_ADAMW);
  std::int64_t const shape[]{4096};
  zero_tensor model[]{zero_tensor_of("w", 0, 1, shape), zero_tensor_of("base", 0, 1, shape)};
  std::int64_t parameters[2] = {};
  for (std::int32_t const whole : {0, 1}) {
    model[1].flags = ZERO_FROZEN | (whole != 0 ? ZERO_WHOLE : 0);
    zero_plan plan = zero_plan_of();
    REQUIRE(zero_plan_ahead(&options, model, 2, 4, 1, &plan, nullptr, 0) == ZERO_OK);
    parameters[whole] = plan.held[ZERO_ROLE_PARAMETERS];
    // Reduced once, and gathered twice, as what is frozen and not whole.
    CHECK(plan.sent_elements == (whole != 0 ? 3 : 5) * 4096 / 4 * 3);
  }
  CHECK(parameters[0] == 4 * (1024 + 1024));
  CHECK(parameters[1] == 4 * (1024 + 4096));
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
  CHECK(std::string(text).starts_with("plan: stage Pos+g, precision fp32, rule AdamW"));

  REQUIRE((one.give() | one.step()) == ZERO_OK);
  zero_report report = zero_report_of();
  REQUIRE(zero_get_report(one.opt, &report) == ZERO_OK);
  CHECK(report.step == 1);
  std::int64_t updated = 0;
  REQUIRE(zero_get_updated(one.opt, &updated) == ZERO_OK);
  CHECK(updated == 2);
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
