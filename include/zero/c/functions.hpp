/// @file
/// The functions of zero/c.h: each is a frame around what the library has.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/c.h"
#include "zero/c/definition.hpp"
#include "zero/c/handles.hpp"
#include "zero/c/optimizer.hpp"
#include "zero/c/rank.hpp"
#include "zero/c/structs.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/comm/self.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/kernel/convert.hpp"
#include "zero/layout/plan.hpp"
#include "zero/optimizer/setup/plan_of.hpp"
#include "zero/sharded_optimizer.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::c {

/// A function of the trainer's as C++ has them.
/// @tparam Value  that it writes: float or double
template <class Value>
class Filling {
 public:
  /// It.
  using Fill = std::int32_t (*)(std::int32_t, std::int64_t, std::int64_t, Value*, void*);

  /// @throws Error (invalid_argument) if there is none
  Filling(Fill fill, void* user, Optimizer const& of)
      : fill_(fill), user_(user), model_(&of.tensors()), type_(of.value()) {
    if (fill == nullptr) fail(ErrorKind::invalid_argument, "fill is null");
  }
  /// Calls it.
  void operator()(Tensor const& tensor, std::size_t first, zero::detail::Elements values) {
    bool const same = type_ == dtype_of<Value>;
    if (!same) values_.resize(values.count);
    std::int32_t const code = fill_(static_cast<std::int32_t>(&tensor - model_->data()),
                                    static_cast<std::int64_t>(first),
                                    static_cast<std::int64_t>(values.count),
                                    same ? static_cast<Value*>(values.first) : values_.data(),
                                    user_);
    if (code != 0) {
      fail_with(ZERO_CALLBACK,
                {"zero: callback: fill returned ", code, " for '", tensor.name, "'"});
    }
    if (same) return;
    using Other = std::conditional_t<std::is_same_v<Value, float>, double, float>;
    kernel::convert(static_cast<Other*>(values.first), values_.data(), values.count);
  }

 private:
  Fill fill_;
  void* user_;
  std::vector<Tensor> const* model_;
  DType type_;                   ///< that is asked for
  std::vector<Value> values_{};  ///< where that is another one
};

/// `zero_load` and its like.
template <class Value>
std::int32_t load(zero_optimizer* optimizer, typename Filling<Value>::Fill fill, void* user) {
  return with(optimizer, [&](Optimizer& inner) {
    Filling<Value> filling(fill, user, inner);
    inner.load(zero::detail::ValueSource(filling));
  });
}
/// `zero_broadcast_from` and its like.
template <class Value>
std::int32_t broadcast_from(zero_optimizer* optimizer,
                            typename Filling<Value>::Fill fill,
                            void* user,
                            std::int32_t root) {
  return with(optimizer, [&](Optimizer& inner) {
    Filling<Value> filling(fill, user, inner);
    inner.broadcast(zero::detail::ValueSource(filling), root);
  });
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
    c::require_options(options);
    c::Entry const entry = c::entry_of(c::choice_of(*options));
    auto made = std::make_shared<c::OptimizerObject>(
        c::OptimizerObject{&open,
                           std::make_shared<c::Optimizer>(
                               *open.rank, entry, c::tensors_of(tensors, count), *options)});
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
  if (options != nullptr && options->size == lent.size) {
    lent = *options;
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
    c::require_options(options);
    c::require_struct(plan, "zero_plan");
    PlanOptions const asked{.world_size = ranks,
                            .micro_steps = c::unsigned_of(micro_steps, "micro_steps")};
    c::Entry const entry = c::entry_of(c::choice_of(*options));
    c::write(*plan,
             zero::detail::plan_of(entry.policies,
                                   *entry.rule.calls,
                                   asked,
                                   c::tensors_of(tensors, count),
                                   c::bucket_of(*options),
                                   Prefetch{options->prefetch}));
  });
}
int32_t zero_get_plan(zero_optimizer* optimizer, int64_t micro_steps, zero_plan* plan) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    zero::c::require_struct(plan, "zero_plan");
    zero::c::write(*plan, inner.plan(zero::c::unsigned_of(micro_steps, "micro_steps")));
  });
}
int32_t zero_plan_text(zero_optimizer* optimizer, char* text, int64_t size) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    zero::c::require(text, "text");
    zero::c::Words{text, size}.write(zero::to_string(inner.plan(1)).c_str());
  });
}
int32_t zero_held(zero_optimizer* optimizer, int64_t held[ZERO_ROLES]) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    zero::c::require(held, "held");
    zero::c::write(held, inner.held());
  });
}
int32_t zero_units(zero_optimizer* optimizer, int32_t const** units, int32_t* count) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    zero::c::require(units, "units");
    zero::c::require(count, "count");
    *units = inner.units().data();
    *count = static_cast<int32_t>(inner.units().size());
  });
}

int32_t zero_bind_flat(zero_optimizer* optimizer,
                       void* parameters,
                       void* gradients,
                       int64_t count) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    inner.bind(parameters, gradients, zero::c::unsigned_of(count, "count"));
  });
}
int32_t zero_bind(zero_optimizer* optimizer,
                  void* const* parameters,
                  void* const* gradients,
                  int32_t count) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    inner.bind({parameters, count}, {gradients, count});
  });
}
int32_t zero_bind_spans(zero_optimizer* optimizer,
                        zero_span const* parameters,
                        zero_span const* gradients,
                        int32_t count) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    inner.bind({parameters, count}, {gradients, count});
  });
}
int32_t zero_bind_gradients(zero_optimizer* optimizer, void* const* gradients, int32_t count) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    inner.bind_gradients({gradients, count});
  });
}
int32_t zero_bind_gradients_spans(zero_optimizer* optimizer,
                                  zero_span const* gradients,
                                  int32_t count) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    inner.bind_gradients({gradients, count});
  });
}
int32_t zero_bind_gradients_flat(zero_optimizer* optimizer, void* gradients, int64_t count) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    inner.bind_gradients(gradients, zero::c::unsigned_of(count, "count"));
  });
}
int32_t zero_bind_parameters(zero_optimizer* optimizer,
                             zero_span const* parameters,
                             int32_t count) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    inner.bind_parameters({parameters, count});
  });
}
int32_t zero_bind_parameters_flat(zero_optimizer* optimizer, void* parameters, int64_t count) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    inner.bind_parameters(parameters, zero::c::unsigned_of(count, "count"));
  });
}
int32_t zero_bind_unit(zero_optimizer* optimizer,
                       int32_t unit,
                       zero_span const* gradients,
                       int32_t count) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    inner.bind_unit(unit, {gradients, count});
  });
}
int32_t zero_gradients_free(zero_optimizer* optimizer, int32_t unit, int32_t* is_free) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    zero::c::require(is_free, "is_free");
    *is_free = inner.gradients_free(unit) ? 1 : 0;
  });
}
int32_t zero_on_gradients_free(zero_optimizer* optimizer, zero_gradients_told told, void* user) {
  return zero::c::with(optimizer,
                       [&](zero::c::Optimizer& inner) { inner.on_gradients_free(told, user); });
}

int32_t zero_load(zero_optimizer* optimizer, zero_fill fill, void* user) {
  return zero::c::load<float>(optimizer, fill, user);
}
int32_t zero_load_double(zero_optimizer* optimizer, zero_fill_double fill, void* user) {
  return zero::c::load<double>(optimizer, fill, user);
}
int32_t zero_broadcast_from(zero_optimizer* optimizer, zero_fill fill, void* user, int32_t root) {
  return zero::c::broadcast_from<float>(optimizer, fill, user, root);
}
int32_t zero_broadcast_from_double(zero_optimizer* optimizer,
                                   zero_fill_double fill,
                                   void* user,
                                   int32_t root) {
  return zero::c::broadcast_from<double>(optimizer, fill, user, root);
}
int32_t zero_broadcast(zero_optimizer* optimizer, int32_t root) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) { inner.broadcast(root); });
}
int32_t zero_adopt(zero_optimizer* optimizer) {
  return zero::c::with(optimizer, [](zero::c::Optimizer& inner) { inner.adopt(); });
}
int32_t zero_parameter(zero_optimizer* optimizer, int32_t tensor, void** data) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    zero::c::require(data, "data");
    *data = inner.parameter(zero::c::unsigned_of(tensor, "tensor"));
  });
}
int32_t zero_gradient(zero_optimizer* optimizer, int32_t tensor, void** data) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    zero::c::require(data, "data");
    *data = inner.gradient(zero::c::unsigned_of(tensor, "tensor"));
  });
}

int32_t zero_parameters(zero_optimizer* optimizer, int32_t unit, void const** data, int32_t count) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    inner.parameters(unit, {data, count});
  });
}
int32_t zero_release(zero_optimizer* optimizer, int32_t unit) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) { inner.release(unit); });
}
int32_t zero_gradients(
    zero_optimizer* optimizer, int32_t unit, int32_t mode, void** data, int32_t count) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    inner.gradients(unit, mode, {data, count});
  });
}
int32_t zero_reduce(zero_optimizer* optimizer, int32_t unit) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) { inner.reduce(unit); });
}
int32_t zero_without_gradient(zero_optimizer* optimizer, int32_t unit) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) { inner.without_gradient(unit); });
}
int32_t zero_without_tensor_gradient(zero_optimizer* optimizer, int32_t tensor) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    inner.without_tensor_gradient(zero::c::unsigned_of(tensor, "tensor"));
  });
}
int32_t zero_micro_step(zero_optimizer* optimizer, double weight, int32_t last) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    inner.micro_step({.weight = weight, .last = last != 0});
  });
}
int32_t zero_reduce_all(zero_optimizer* optimizer) {
  return zero::c::with(optimizer,
                       [](zero::c::Optimizer& inner) { inner.reduce_all(std::nullopt); });
}
int32_t zero_reduce_all_of(zero_optimizer* optimizer, double weight) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) { inner.reduce_all(weight); });
}
int32_t zero_grad_norm(zero_optimizer* optimizer, double* norm) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    zero::c::require(norm, "norm");
    *norm = inner.grad_norm();
  });
}
int32_t zero_step(zero_optimizer* optimizer,
                  zero_step_options const* options,
                  zero_report* report) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    zero_step_options given = zero_step_options_of();
    if (options != nullptr) {
      zero::c::require_struct(options, "zero_step_options");
      given = *options;
    }
    if (report != nullptr) zero::c::require_struct(report, "zero_report");
    zero::StepReport const done = inner.step(zero::c::step_options_of(given), given.scale);
    if (report != nullptr) zero::c::write(*report, done);
  });
}
int32_t zero_discard(zero_optimizer* optimizer) {
  return zero::c::with(optimizer, [](zero::c::Optimizer& inner) { inner.discard(); });
}
int32_t zero_settle(zero_optimizer* optimizer) {
  return zero::c::with(optimizer, [](zero::c::Optimizer& inner) { inner.settle(); });
}
int32_t zero_get_report(zero_optimizer* optimizer, zero_report* report) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    zero::c::require_struct(report, "zero_report");
    zero::c::write(*report, inner.report());
  });
}
int32_t zero_get_updated(zero_optimizer* optimizer, int64_t* tensors) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    zero::c::require(tensors, "tensors");
    *tensors = static_cast<std::int64_t>(inner.report().updated);
  });
}
int32_t zero_loss_scale(zero_optimizer* optimizer, float* scale) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    zero::c::require(scale, "scale");
    *scale = inner.loss_scale();
  });
}

int32_t zero_set_lr(zero_optimizer* optimizer, char const* name, float lr) {
  return zero_set_lr_double(optimizer, name, static_cast<double>(lr));
}
int32_t zero_set_lr_double(zero_optimizer* optimizer, char const* name, double lr) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) { inner.set_lr(name, lr); });
}
int32_t zero_set_rule(zero_optimizer* optimizer, char const* name, zero_rule const* rule) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    zero::c::require_struct(rule, "zero_rule");
    inner.set_rule(name, *rule);
  });
}
int32_t zero_full_parameters(zero_optimizer* optimizer, void const** data, int32_t count) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    inner.full_parameters({data, count});
  });
}
int32_t zero_release_full(zero_optimizer* optimizer) {
  return zero::c::with(optimizer, [](zero::c::Optimizer& inner) { inner.release_full(); });
}
int32_t zero_visit_owned(zero_optimizer* optimizer, zero_visit visit, void* user) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) { inner.visit(visit, user); });
}
int32_t zero_fill_owned(zero_optimizer* optimizer, zero_visit fill, void* user) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) { inner.fill(fill, user); });
}
int32_t zero_get_counters(
    zero_optimizer* optimizer, int64_t* steps, int32_t count, float* loss_scale, int32_t* streak) {
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
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
  return zero::c::with(optimizer, [&](zero::c::Optimizer& inner) {
    zero::c::require_all(inner.counted(), count, steps, "steps");
    zero::Counters counters{.loss_scale = loss_scale, .loss_scale_streak = streak};
    for (std::int32_t t = 0; t < count; ++t) counters.steps.push_back(static_cast<long>(steps[t]));
    inner.restore(counters);
  });
}

}  // extern "C"
