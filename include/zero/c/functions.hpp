/// @file
/// The functions of zero/c.h: each is a frame around what the library has.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/c.h"
#include "zero/c/callbacks.hpp"
#include "zero/c/definition.hpp"
#include "zero/c/handles.hpp"
#include "zero/c/optimizer.hpp"
#include "zero/c/rank.hpp"
#include "zero/c/structs.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/comm/self.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/plan.hpp"
#include "zero/optimizer/engine_access.hpp"
#include "zero/optimizer/setup/plan_of.hpp"
#include "zero/sharded_optimizer.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::c {

/// `zero_load` and its like.
template <class Value>
void load(COptimizer& optimizer, typename FillFunction<Value>::Fill fill, void* user) {
  FillFunction<Value> filling(fill, user, zero::detail::EngineAccess::engine(optimizer).parts());
  optimizer.load(content_of<Value>, zero::detail::ValueSource(filling));
}
/// `zero_broadcast_from` and its like.
template <class Value>
void broadcast_from(COptimizer& optimizer,
                    typename FillFunction<Value>::Fill fill,
                    void* user,
                    std::int32_t root) {
  FillFunction<Value> filling(fill, user, zero::detail::EngineAccess::engine(optimizer).parts());
  optimizer.broadcast(content_of<Value>, zero::detail::ValueSource(filling), root);
}

}  // namespace zero::inline ZERO_NAMESPACE::c

extern "C" {

int32_t zero_run_ranks(
    int32_t ranks, zero_rank_function body, void* user, char* message, int64_t size) {
  using namespace zero;
  return c::attempt({message, size}, [&] {
    if (body == nullptr) fail(ErrorKind::invalid_argument, "the function of the ranks is null");
    run_ranks(ranks, [&](InProcess& inner) {
      c::Comm comm(std::make_unique<c::RankOf<InProcess&>>(inner), false);
      std::int32_t const code = body(comm.handle(), user);
      if (code == 0) return;
      // What was under way is withdrawn while this is thrown, so that it is the reason peers hear.
      if (code == comm.code) c::fail_with(code, comm.message);
      c::fail_with(code,
                   {"zero: callback: the function of rank ",
                    inner.rank(),
                    " returned ",
                    code,
                    comm.code != ZERO_OK ? "; its last error was " : "",
                    comm.message});
    });
  });
}
int32_t zero_self(zero_comm** comm, char* message, int64_t size) {
  using namespace zero;
  return c::attempt({message, size}, [&] {
    c::require(comm, "comm");
    c::hand_out(comm, std::make_unique<c::RankOf<Self>>(Self{}));
  });
}
int32_t zero_comm_close(zero_comm* comm, char* message, int64_t size) {
  using namespace zero;
  return c::attempt({message, size}, [&] {
    c::require(comm, "comm");
    auto* const open = c::object_of<c::Comm>(comm);
    if (open == nullptr) fail(ErrorKind::invalid_argument, "comm is closed, or was never one");
    if (!open->closable) {
      fail(ErrorKind::invalid_argument, "the communicator of zero_run_ranks ends by itself");
    }
    std::unique_ptr<c::Comm> const gone(open);
    gone->end_owned();
    gone->rank->close();
  });
}
int32_t zero_comm_rank(zero_comm const* comm) {
  auto* const open = zero::c::object_of<zero::c::Comm>(comm);
  return open == nullptr ? -1 : open->rank->number();
}
int32_t zero_comm_size(zero_comm const* comm) {
  auto* const open = zero::c::object_of<zero::c::Comm>(comm);
  return open == nullptr ? -1 : open->rank->ranks();
}
int32_t zero_comm_sum(zero_comm* comm, double* value) {
  return zero::c::with(comm, [&](zero::c::Comm& open) {
    zero::c::require(value, "value");
    zero::detail::Ranks ranks(open.rank->ref());
    ranks.run({.op = zero::Op::all_reduce,
               .dtype = zero::DType::f64,
               .accumulate = zero::DType::f64,
               .count = 1,
               .send = value,
               .recv = value});
  });
}
int32_t zero_comm_fail(zero_comm* comm, char const* reason) {
  return zero::c::with(comm, [&](zero::c::Comm& open) {
    open.rank->fail_group(reason != nullptr ? reason : "no reason given");
  });
}
void zero_comm_progress(zero_comm* comm) {
  auto* const open = zero::c::object_of<zero::c::Comm>(comm);
  if (open != nullptr) zero::detail::Ranks(open->rank->ref()).progress();
}
char const* zero_message(zero_comm const* comm) {
  if (comm == nullptr) return "";
  auto* const open = zero::c::object_of<zero::c::Comm>(comm);
  return open != nullptr ? open->message : "zero: invalid argument: no open communicator";
}

int32_t zero_create(zero_comm* comm,
                    zero_options const* options,
                    zero_tensor const* tensors,
                    int32_t count,
                    zero_optimizer** optimizer) {
  using namespace zero;
  return c::with(comm, [&](c::Comm& open) {
    c::require(optimizer, "optimizer");
    *optimizer = nullptr;
    zero_options const from = c::options_from(options);
    auto made = std::make_shared<c::OptimizerObject>(c::OptimizerObject{
        &open, std::make_shared<c::COptimizer>(*open.rank, c::tensors_of(tensors, count), from)});
    *optimizer = static_cast<zero_optimizer*>(open.own(std::move(made)));
  });
}
int32_t zero_create_flat(zero_comm* comm,
                         zero_options const* options,
                         zero_tensor const* tensors,
                         int32_t count,
                         void* parameters,
                         void* gradients,
                         int64_t elements,
                         zero_optimizer** optimizer) {
  zero_options lent = zero_options_of(ZERO_POS_G, ZERO_FP32, ZERO_ADAMW);
  auto const first = static_cast<std::int64_t>(zero::c::first_size<zero_options>);
  if (options != nullptr && (options->size == lent.size || options->size == first)) {
    std::memcpy(&lent, options, static_cast<std::size_t>(options->size));
    lent.memory = ZERO_BORROWED;
    options = &lent;
  }
  std::int32_t code = zero_create(comm, options, tensors, count, optimizer);
  if (code == ZERO_OK) code = zero_bind_flat(*optimizer, parameters, gradients, elements);
  if (code == ZERO_OK) code = zero_adopt(*optimizer);
  if (code == ZERO_OK || comm == nullptr || optimizer == nullptr) return code;
  static_cast<void>(zero_destroy(*optimizer));
  *optimizer = nullptr;
  return code;
}
int32_t zero_destroy(zero_optimizer* optimizer) {
  return zero::c::end<zero::c::OptimizerObject>(optimizer);
}
int32_t zero_plan_ahead(zero_options const* options,
                        zero_tensor const* tensors,
                        int32_t count,
                        int32_t ranks,
                        int64_t micro_steps,
                        zero_plan* plan,
                        char* message,
                        int64_t size) {
  using namespace zero;
  return c::attempt({message, size}, [&] {
    zero_options const from = c::options_from(options);
    c::require_struct(plan, "zero_plan");
    PlanOptions const asked{.world_size = ranks,
                            .micro_steps = c::unsigned_of(micro_steps, "micro_steps")};
    c::ChosenOptimizer const entry(from);
    c::write(*plan,
             zero::detail::plan_of(entry.policies,
                                   *entry.rule.calls,
                                   asked,
                                   c::tensors_of(tensors, count),
                                   c::bucket_of(from),
                                   Prefetch{from.prefetch}));
  });
}
int32_t zero_get_plan(zero_optimizer* optimizer, int64_t micro_steps, zero_plan* plan) {
  return zero::c::with(optimizer, [&](zero::c::COptimizer& inner) {
    zero::c::require_struct(plan, "zero_plan");
    zero::c::write(*plan, inner.plan(zero::c::unsigned_of(micro_steps, "micro_steps")));
  });
}
int32_t zero_plan_text(zero_optimizer* optimizer, char* text, int64_t size) {
  return zero::c::with(optimizer, [&](zero::c::COptimizer& inner) {
    zero::c::require(text, "text");
    zero::c::Words{text, size}.write(zero::to_string(inner.plan(1)).c_str());
  });
}
int32_t zero_held(zero_optimizer* optimizer, int64_t held[ZERO_ROLES]) {
  return zero::c::with(optimizer, [&](zero::c::COptimizer& inner) {
    zero::c::require(held, "held");
    zero::c::write(held, inner.held());
  });
}
int32_t zero_units(zero_optimizer* optimizer, int32_t const** units, int32_t* count) {
  return zero::c::with(optimizer, [&](zero::c::COptimizer& inner) {
    zero::c::require(units, "units");
    zero::c::require(count, "count");
    *units = inner.units().data();
    *count = static_cast<int32_t>(inner.units().size());
  });
}

int32_t zero_step(zero_optimizer* optimizer,
                  zero_step_options const* options,
                  zero_report* report) {
  return zero::c::with(optimizer, [&](zero::c::COptimizer& inner) {
    zero_step_options const from =
        zero::c::struct_or(options, zero_step_options_of(), "zero_step_options");
    if (report != nullptr) zero::c::require_struct(report, "zero_report");
    zero::StepReport const done = inner.step(zero::c::step_options_of(from), from.scale);
    if (report != nullptr) zero::c::write(*report, done);
  });
}
int32_t zero_get_report(zero_optimizer* optimizer, zero_report* report) {
  return zero::c::with(optimizer, [&](zero::c::COptimizer& inner) {
    zero::c::require_struct(report, "zero_report");
    zero::c::write(*report, inner.report());
  });
}
int32_t zero_set_rule(zero_optimizer* optimizer, char const* name, zero_rule const* rule) {
  return zero::c::with(optimizer, [&](zero::c::COptimizer& inner) {
    zero::c::require(rule, "zero_rule");
    inner.set_rule(name, zero::c::struct_or(rule, zero_rule_of(0), "zero_rule"));
  });
}
int32_t zero_get_counters(
    zero_optimizer* optimizer, int64_t* steps, int32_t count, float* loss_scale, int32_t* streak) {
  return zero::c::with(optimizer, [&](zero::c::COptimizer& inner) {
    zero::c::require(loss_scale, "loss_scale");
    zero::c::require(streak, "streak");
    zero::Counters const counters = inner.counters();
    zero::c::require_all(counters.steps.size(), count, steps, "steps");
    for (std::size_t t = 0; t < counters.steps.size(); ++t) steps[t] = counters.steps[t];
    *loss_scale = counters.loss_scale;
    *streak = counters.loss_scale_streak;
  });
}
int32_t zero_set_counters(zero_optimizer* optimizer,
                          int64_t const* steps,
                          int32_t count,
                          float loss_scale,
                          int32_t streak) {
  return zero::c::with(optimizer, [&](zero::c::COptimizer& inner) {
    zero::c::require_all(inner.counted(), count, steps, "steps");
    zero::Counters counters{.loss_scale = loss_scale, .loss_scale_streak = streak};
    for (std::int32_t t = 0; t < count; ++t) counters.steps.push_back(static_cast<long>(steps[t]));
    inner.restore(counters);
  });
}

}  // extern "C"

/// @cond
// The functions that do one thing with the optimizer behind their handle, as a list. Their comments
// are in zero/c.h, which the compiler compares their types with.

/// Defines one.
/// @param name        of it
/// @param parameters  that follow `zero_optimizer*`, in parentheses
/// @param ...         what it does with `optimizer`, a COptimizer; what that throws becomes a code
#define ZERO_C_CALL(name, parameters, ...)                            \
  int32_t name(zero_optimizer* handle ZERO_C_MORE parameters) {       \
    using namespace zero::c;                                          \
    return with(handle, [&](COptimizer& optimizer) { __VA_ARGS__; }); \
  }
/// Defines one that answers with a value.
/// @param result  the parameter that the value is written to
/// @param ...     the value
#define ZERO_C_VALUE(name, parameters, result, ...) \
  ZERO_C_CALL(name, parameters, require(result, #result); *result = __VA_ARGS__)
/// More parameters, if there are any.
#define ZERO_C_MORE(...) __VA_OPT__(, ) __VA_ARGS__

extern "C" {

ZERO_C_CALL(zero_bind_flat,
            (void* parameters, void* gradients, int64_t count),
            optimizer.bind(parameters, gradients, unsigned_of(count, "count")))
ZERO_C_CALL(zero_bind,
            (void* const* parameters, void* const* gradients, int32_t count),
            optimizer.bind({parameters, count}, {gradients, count}))
ZERO_C_CALL(zero_bind_spans,
            (zero_span const* parameters, zero_span const* gradients, int32_t count),
            optimizer.bind({parameters, count}, {gradients, count}))
ZERO_C_CALL(zero_bind_gradients,
            (void* const* gradients, int32_t count),
            optimizer.bind_gradients({gradients, count}))
ZERO_C_CALL(zero_bind_gradients_spans,
            (zero_span const* gradients, int32_t count),
            optimizer.bind_gradients({gradients, count}))
ZERO_C_CALL(zero_bind_gradients_flat,
            (void* gradients, int64_t count),
            optimizer.bind_gradients(gradients, unsigned_of(count, "count")))
ZERO_C_CALL(zero_bind_parameters,
            (zero_span const* parameters, int32_t count),
            optimizer.bind_parameters({parameters, count}))
ZERO_C_CALL(zero_bind_parameters_flat,
            (void* parameters, int64_t count),
            optimizer.bind_parameters(parameters, unsigned_of(count, "count")))
ZERO_C_CALL(zero_bind_unit,
            (int32_t unit, zero_span const* gradients, int32_t count),
            optimizer.bind_unit(unit, {gradients, count}))
ZERO_C_VALUE(zero_gradients_free,
             (int32_t unit, int32_t* is_free),
             is_free,
             optimizer.gradients_free(unit) ? 1 : 0)
ZERO_C_CALL(zero_on_gradients_free,
            (zero_gradients_told function, void* user),
            optimizer.on_gradients_free(function, user))

ZERO_C_CALL(zero_load, (zero_fill fill, void* user), load<float>(optimizer, fill, user))
ZERO_C_CALL(zero_load_bytes,
            (zero_fill_bytes fill, void* user),
            load<std::uint8_t>(optimizer, fill, user))
ZERO_C_CALL(zero_broadcast_bytes_from,
            (zero_fill_bytes fill, void* user, int32_t root),
            broadcast_from<std::uint8_t>(optimizer, fill, user, root))
ZERO_C_CALL(zero_load_double,
            (zero_fill_double fill, void* user),
            load<double>(optimizer, fill, user))
ZERO_C_CALL(zero_broadcast_from,
            (zero_fill fill, void* user, int32_t root),
            broadcast_from<float>(optimizer, fill, user, root))
ZERO_C_CALL(zero_broadcast_from_double,
            (zero_fill_double fill, void* user, int32_t root),
            broadcast_from<double>(optimizer, fill, user, root))
ZERO_C_CALL(zero_broadcast, (int32_t root), optimizer.broadcast(root))
ZERO_C_CALL(zero_adopt, (), optimizer.adopt())
ZERO_C_VALUE(zero_parameter,
             (int32_t tensor, void** data),
             data,
             optimizer.parameter(unsigned_of(tensor, "tensor")))
ZERO_C_VALUE(zero_gradient,
             (int32_t tensor, void** data),
             data,
             optimizer.gradient(unsigned_of(tensor, "tensor")))

ZERO_C_CALL(zero_parameters,
            (int32_t unit, void const** data, int32_t count),
            optimizer.parameters(unit, {data, count}))
ZERO_C_CALL(zero_release, (int32_t unit), optimizer.release(unit))
ZERO_C_CALL(zero_gradients,
            (int32_t unit, int32_t mode, void** data, int32_t count),
            optimizer.gradients(unit, mode, {data, count}))
ZERO_C_CALL(zero_reduce, (int32_t unit), optimizer.reduce(unit))
ZERO_C_CALL(zero_without_gradient, (int32_t unit), optimizer.without_gradient(unit))
ZERO_C_CALL(zero_without_tensor_gradient,
            (int32_t tensor),
            optimizer.without_tensor_gradient(unsigned_of(tensor, "tensor")))
ZERO_C_CALL(zero_micro_step,
            (double weight, int32_t last),
            optimizer.micro_step({.weight = weight, .last = last != 0}))
ZERO_C_CALL(zero_reduce_all, (), optimizer.reduce_all(std::nullopt))
ZERO_C_CALL(zero_reduce_all_of, (double weight), optimizer.reduce_all(weight))
ZERO_C_VALUE(zero_grad_norm, (double* norm), norm, optimizer.grad_norm())
ZERO_C_CALL(zero_discard, (), optimizer.discard())
ZERO_C_CALL(zero_settle, (), optimizer.settle())
ZERO_C_VALUE(zero_get_updated,
             (int64_t * tensors),
             tensors,
             static_cast<int64_t>(optimizer.report().updated))
ZERO_C_VALUE(zero_loss_scale, (float* scale), scale, optimizer.loss_scale())

ZERO_C_CALL(zero_set_lr,
            (char const* name, float lr),
            optimizer.set_lr(name, static_cast<double>(lr)))
ZERO_C_CALL(zero_set_lr_double, (char const* name, double lr), optimizer.set_lr(name, lr))
ZERO_C_CALL(zero_full_parameters,
            (void const** data, int32_t count),
            optimizer.full_parameters({data, count}))
ZERO_C_CALL(zero_release_full, (), optimizer.release_full())
ZERO_C_CALL(zero_visit_owned, (zero_visit visit, void* user), optimizer.visit(visit, user))
ZERO_C_CALL(zero_fill_owned, (zero_visit fill, void* user), optimizer.fill(fill, user))
ZERO_C_CALL(zero_visit_held,
            (zero_held_function visit, void* user),
            optimizer.visit_held(visit, user))
ZERO_C_CALL(zero_fill_held, (zero_held_function fill, void* user), optimizer.fill_held(fill, user))

}  // extern "C"

#undef ZERO_C_MORE
#undef ZERO_C_VALUE
#undef ZERO_C_CALL
/// @endcond
