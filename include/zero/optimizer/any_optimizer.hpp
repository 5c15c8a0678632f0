/// @file
/// What every optimizer has, whatever its policies.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/function_ref.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/plan.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/api/held_array.hpp"
#include "zero/optimizer/api/step_options.hpp"
#include "zero/optimizer/api/step_result.hpp"
#include "zero/optimizer/callables.hpp"
#include "zero/optimizer/engine.hpp"
#include "zero/optimizer/engine_access.hpp"
#include "zero/optimizer/tables/engine_setup.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// The functions of an optimizer whose types no policy decides: compiled once for all of a unit's
/// optimizers.
/// @tparam on_host  may any thread follow pointers to the communicator's buffers?
/// @tparam Value    of the values that a trainer loads: double where masters are, else float
template <bool on_host, class Value>
class AnyOptimizer {
 public:
  AnyOptimizer(AnyOptimizer const&) = delete;
  AnyOptimizer& operator=(AnyOptimizer const&) = delete;

  /// Units in the order of the forward pass, from 0; a number that no tensor names is empty.
  [[nodiscard]] std::span<int const> units() const noexcept { return engine_.model().units; }
  /// The same units in the order of the backward pass.
  [[nodiscard]] std::span<int const> units_backward() const noexcept {
    return engine_.model().units_backward;
  }
  /// The model as it was described.
  [[nodiscard]] std::vector<Tensor> const& tensors() const noexcept {
    return engine_.model().described;
  }
  /// Who owns which element. A stacked tensor is as many tensors there as it has layers.
  [[nodiscard]] Partition const& partition() const noexcept { return engine_.model().partition; }
  /// What this rank holds and sends in a step of so many micro-steps.
  [[nodiscard]] Plan plan(std::uint64_t micro_steps = 1) const { return engine_.plan(micro_steps); }
  /// Bytes this rank holds now, by role: equal to `plan().memory`.
  [[nodiscard]] MemoryBytes held() const { return engine_.held(); }

  /// Sets parameters and master weights from `values(Tensor const&, first, std::span<float>)`, or
  /// where masters are double `std::span<double>`, which fills elements [first, first + size) of a
  /// tensor. It is asked, chunk by chunk, for what this rank holds only, and where that is a share
  /// for the share of the next rank as well, so that ranks which are given different values are
  /// found. Opaque tensors are not asked for: `load_bytes` is. Resets nothing else. Parameters that
  /// the library owns have no values before, and the first step asks for this call,
  /// `broadcast_parameters`, `fill_owned` or `adopt_parameters`.
  /// @par Collective  yes; blocks
  /// @throws Error (communication), on every rank, naming the first tensor that differs and ranks;
  ///   (invalid_argument), on every rank, naming the first finite value that its type cannot hold,
  ///   unless the policy is `Overflow::saturate`. After an error every step is refused until all
  ///   values have been set
  /// @par Cost  where the host cannot reach the space's memory, two transient megabytes of the host
  ///   beside the plan
  template <std::invocable<Tensor const&, std::size_t, std::span<Value>> Values>
  void load_parameters(Values&& values) {
    auto const ask = [&](Tensor const& tensor, std::size_t first, detail::Elements out) {
      values(tensor, first, out.as<Value>());
    };
    engine_.load(detail::Content::numbers, detail::ValueSource(ask));
  }
  /// Sets parameters and master weights from whole tensors in registration order; spans of tied
  /// tensors, and of opaque ones, are not read. Otherwise as above.
  void load_parameters(std::span<std::span<Value const> const> values) {
    engine_.load(detail::LentSpans(values));
  }
  /// `load_parameters` from values that one rank alone has: only the root's are asked for, unit
  /// after unit, and every rank keeps what it holds of them. For all stages. Before the first
  /// backward pass, as `ShardedOptimizer::broadcast_parameters(root)` says.
  /// @param values  as for `load_parameters`; not called elsewhere than on the root
  /// @param root    the same on every rank
  /// @par Collective  yes; blocks
  /// @throws Error (invalid_argument) as `load_parameters`
  /// @par Cost  every element of every tensor is sent once, in fp32 or fp64, and one word; beside
  ///   the plan some megabytes of the host, and where it cannot reach the space's memory two more,
  ///   and one there
  template <std::invocable<Tensor const&, std::size_t, std::span<Value>> Values>
  void broadcast_parameters(Values&& values, int root = 0) {
    auto const ask = [&](Tensor const& tensor, std::size_t first, detail::Elements out) {
      values(tensor, first, out.as<Value>());
    };
    engine_.broadcast(detail::Content::numbers, detail::ValueSource(ask), root);
  }
  /// `load_parameters` of opaque tensors, those of integers, which it is not asked for: sets them
  /// from `values(Tensor const&, first, std::span<std::byte>)`, which has the bytes of elements
  /// from `first` on. Before or after that call; the first step asks for both where there are both.
  /// @par Collective  yes; blocks
  /// @throws Error (communication), on every rank, naming the first tensor that differs and ranks
  /// @par Cost  as `load_parameters`
  template <std::invocable<Tensor const&, std::size_t, std::span<std::byte>> Values>
  void load_bytes(Values&& values) {
    auto const ask = bytes_from(values);
    engine_.load(detail::Content::bytes, detail::ValueSource(ask));
  }
  /// `load_bytes` from bytes that one rank alone has, as `broadcast_parameters(values, root)`.
  /// @param values  as for `load_bytes`; not called elsewhere than on the root
  /// @param root    the same on every rank
  /// @par Collective  yes; blocks
  /// @par Cost  every byte of every opaque tensor is sent once; otherwise as
  ///   `broadcast_parameters(values, root)`
  template <std::invocable<Tensor const&, std::size_t, std::span<std::byte>> Values>
  void broadcast_bytes(Values&& values, int root = 0) {
    auto const ask = bytes_from(values);
    engine_.broadcast(detail::Content::bytes, detail::ValueSource(ask), root);
  }
  /// Takes the parameters' present values as they are, those that the trainer lends or has written
  /// through `parameter`; where it wrote none, memory that the library owns holds zeros. Master
  /// weights start from them. Local; the next step is the one that compares them with other ranks'.
  void adopt_parameters() { engine_.adopt(); }

  /// Calls `visit(Tensor const&, HeldArray const&, std::span<std::byte const>)` for every run of
  /// master weights and states that this rank holds, array by array, in the form in which
  /// checkpoints have it: numbers in their type, states of 8 bits as codes and scales. What
  /// `visit_owned` shows of codes is numbers, which may be other codes once they are rounded again.
  /// Local; blocks where the host cannot reach the space's memory.
  /// @par Cost  as of `visit_owned`
  template <std::invocable<Tensor const&, HeldArray const&, std::span<std::byte const>> Visit>
  void visit_held(Visit&& visit) const {
    auto const show = [&](Tensor const& tensor, HeldArray const& array, std::span<std::byte> run) {
      visit(tensor, array, std::span<std::byte const>(run));
    };
    engine_.visit_held(detail::HeldVisitor(show));
  }
  /// The writing twin of `visit_held`: `fill(Tensor const&, HeldArray const&,
  /// std::span<std::byte>)` finds the bytes as they are, and changes what it will. Parameters then
  /// follow, as after `fill_owned`; under `Replicated` every rank changes all elements alike.
  ///
  /// What one run showed, whatever its stage, ranks and buckets, another of the same rule takes:
  /// with `restore(counters())`, and the same `Seed`, it goes on to the same bits. Frozen tensors
  /// are not asked for.
  /// @par Collective  yes; blocks
  /// @throws Error (invalid_argument), on every rank, naming the first code that stands for no
  ///   number, or as of `fill_owned`; every step is refused then, until all values have been set
  /// @par Cost  as of `fill_owned`
  template <std::invocable<Tensor const&, HeldArray const&, std::span<std::byte>> Fill>
  void fill_held(Fill&& fill) {
    engine_.fill_held(detail::HeldVisitor(fill));
  }

  /// Compares what every rank holds all of, as the first step does by itself, and the next one
  /// after `adopt_parameters` and `fill_owned`; not what it holds its share of, which
  /// `load_parameters` compares. Before a first step that is captured in a CUDA graph it has to be
  /// called.
  ///
  /// Where there are master weights it also finds parameters that are not their masters, rounded:
  /// what a trainer writes into such parameters between steps is shown as written until the next
  /// update undoes it. No step looks for that.
  /// @par Collective  yes; blocks
  /// @par Cost        one pass over the parameters, in their memory, and an exchange of 72 bytes;
  ///   another pass over what this rank updates and its masters, and 8 bytes, where there are some
  /// @throws Error (communication), on every rank, naming the first tensor that differs and ranks;
  ///   (invalid_argument), on every rank, naming the first element that is not its master, and
  ///   ranks; or if on one of them parameters that the library owns have no values yet
  void check_parameters() { engine_.check_values(); }

  /// Says that this rank has no gradient for a unit in this step, or micro-step: it was frozen for
  /// a while, a branch was not taken, no token went to an expert.
  ///
  /// What is absent on all ranks rests: parameter, master weight and states stay as they are, decay
  /// included, and its own count of updates does (`steps(tensor)`). What is absent on some ranks
  /// counts as zeros there. About every unit each rank says something in at least one micro-step:
  /// it asks for its gradients, or declares them absent. If some ranks do, and others do neither,
  /// `step()` fails on every rank and names them; if none does, it fails as well, unless
  /// `StepOptions::unsaid` says that such a unit has zeros, or rests. Local; it may start
  /// reductions, as `reduce` does.
  /// @param unit  not reduced in this micro-step; one that was asked for is passed to `reduce`
  /// @throws Error (invalid_argument) after the unit, or the step's gradients, were reduced
  void without_gradient(int unit) { engine_.declare_absent(unit); }
  /// The same for one tensor of a unit; others of the unit are reduced as ever. Before the unit is
  /// passed to `reduce`.
  /// @param tensor  one of `tensors()`, or one of the same name
  void without_gradient(Tensor const& tensor) { engine_.declare_absent(tensor); }

  /// Begins the next micro-batch of a step; not needed where a step has one of weight 1.
  /// @par Collective  yes: it finishes the reductions of the micro-step before
  void micro_step(MicroStep const& micro = {}) { engine_.micro_step(micro); }

  /// What to multiply the loss by in this step's backward pass; 1 without a loss scale. Where the
  /// host cannot reach the space's memory, blocks for the step before.
  [[nodiscard]] float loss_scale() const noexcept(on_host) {
    return engine_.terms().next_loss_scale;
  }
  /// Where the loss scale of the next step lies in the memory of the communicator's space, for
  /// kernels that read it there when their turn comes; valid as long as the optimizer.
  [[nodiscard]] float const* loss_scale_address() const noexcept {
    return &engine_.terms_address()->next_loss_scale;
  }

  /// Reduces what is left. Units that this rank has no gradients for travel as zeros; whether it
  /// should have had some is what `step` finds. Collective; blocks.
  void reduce_all() { engine_.reduce_all(); }
  /// The same for a trainer that has added up several micro-batches in its own buffers.
  /// Otherwise they would count as one, with a gradient so many times as large.
  /// @param weight  of all of them together, as in `MicroStep`: their number if each is a mean over
  ///   as many samples as every other. It is no factor: gradients are not multiplied by it
  /// @throws Error (invalid_argument) if a micro-step has begun, or a unit was reduced
  void reduce_all(double weight) { engine_.reduce_all(weight); }

  /// L2 norm of the mean gradient, the same bits on every rank and under every stage; infinity if
  /// it is not finite. If all weights are 0, a sum that is not zero is infinity, too, and one that
  /// is zero not a number. Reduces what is left first. The step that follows exchanges nine words
  /// more, since ranks have not told each other its options yet.
  /// @par Collective  yes; blocks
  /// @throws Error (invalid_argument), on every rank, if others are in `step()`
  [[nodiscard]] double grad_norm() { return engine_.grad_norm(); }

  /// Unscales, agrees on overflow and norm, clips, updates, casts and publishes.
  ///
  /// Over a space that queues its work, all of it is queued; this call then waits once, for the few
  /// words of the report. `enqueue_step` does not.
  /// @par Collective  yes; blocks
  /// @throws Error (data), on every rank, if gradients are not finite, no loss scale watches for
  ///   that and the options do not say to skip, naming the first such tensor of each rank's share;
  ///   if one does, but they were not finite at its minimum for as many steps in a row as its
  ///   `patience` says, after which it counts anew; or if all weights are 0. Nothing is changed.
  ///   (invalid_argument) for options that make no sense; if lent parameters have masters of
  ///   another type that were never set; on every rank, if parameters that the library owns have
  ///   no values on one of them; on every rank, if all gradients that were lent are empty, on all
  ///   ranks, and none was declared absent; on every rank, if no rank has said anything about the
  ///   gradients of a trained tensor, naming the first one and its unit, unless
  ///   `StepOptions::unsaid` says what becomes of such tensors; on every rank, if they were told
  ///   different options, naming one, its values and the ranks; this changes nothing either
  StepReport step(StepOptions const& options = {}) {
    engine_.step(options, 1.);
    return detail::report_of(engine_.taken());
  }
  /// The same for trainers that clip on their own: the mean gradient is multiplied by `scale`,
  /// which is not rounded before it meets the weights, so that `max_norm / grad_norm()` gives the
  /// bits of `StepOptions::max_norm`. Both are finite and at least 0.
  StepReport step(double learning_rate, double scale) {
    engine_.step({.learning_rate = learning_rate}, scale);
    return detail::report_of(engine_.taken());
  }

  /// `step()` that throws nothing: what it would throw is in the result, with the same effects on
  /// this rank and the others. So is any other exception of a communicator of the trainer's own, as
  /// an Error (communication) with its text. Without memory for a text it ends the program.
  ///
  /// With exceptions disabled the result has what numbers and options are to blame for: gradients
  /// that are not finite, a loss scale that can go no lower, weights that are all 0, ranks that
  /// were told different options. These can be gone on from. Everything else calls `on_error`
  /// there, as it does in every other function: communication that failed, and steps that this rank
  /// alone can tell are wrong.
  /// @par Collective  yes; blocks
  /// @par Cost  that of `step()`; allocates where there is an error, for its text, and only there
  StepResult try_step(StepOptions const& options = {}) noexcept { return tried(options, 1.); }
  /// The same for trainers that clip on their own, as `step(learning_rate, scale)`.
  StepResult try_step(double learning_rate, double scale) noexcept {
    return tried({.learning_rate = learning_rate}, scale);
  }

  /// A step that reports nothing. Over a space that queues its work it waits for nothing either:
  /// norm, overflow and loss scale stay in the space, where an update that must be skipped changes
  /// nothing. What `step()` would throw is thrown by `report()`, without the values of options that
  /// differ; until every rank has asked for it, the steps that follow are skipped. All ranks queue
  /// a step, or all wait for it.
  ///
  /// It can be captured in a CUDA graph. The options and the weights of the micro-batches are then
  /// those of the capture in every launch; step count, loss scale, norm and whether to skip are
  /// decided anew, and a learning rate that `learning_rate_address` points to is read anew. From
  /// then on whoever asks for an outcome waits for what was launched until then.
  /// @par Collective  yes; blocks only where the communicator does
  void enqueue_step(StepOptions const& options = {}) {
    engine_.step(options, 1.);
    engine_.discard_gradients();
  }

  /// What the last step did: all zeros before the first. Local; blocks for a step that was queued.
  /// @throws Error (data, invalid_argument), once, for the first step since the last report that
  ///   failed as `step()` says
  [[nodiscard]] StepReport report() { return detail::report_of(engine_.result()); }
  /// `report()` that throws nothing, as `try_step()`. Local; blocks for a step that was queued.
  StepResult try_report() noexcept {
    return detail::attempt([&] { return engine_.result(); });
  }

  /// Forgets the gradients of this step; the alternative to `step()`. Every rank must do it, having
  /// reduced the same units: it waits for reductions that are under way.
  void discard_gradients() { engine_.discard_gradients(); }

  /// Waits for what was started ahead of its use: a refresh left under way by
  /// `StepOptions::overlap_publish`, or gathers of the next units. Needed before the optimizer is
  /// destroyed in the middle of a pass: destructors never wait, and a collective that one rank
  /// drops ends the group. Collective; blocks.
  void settle() { engine_.settle(); }

  /// Updates applied so far; skipped steps do not count. Where the host cannot reach the space's
  /// memory, blocks for the last step.
  [[nodiscard]] long steps() const noexcept(on_host) { return engine_.terms().step; }
  /// Updates of one tensor: those of all steps in which it did not rest. Of a stacked one those of
  /// the slice that has most.
  [[nodiscard]] long steps(std::size_t tensor) const { return engine_.steps(tensor); }
  /// `set_rule` of another learning rate alone.
  void set_lr(double lr) { engine_.set_rate({}, lr); }
  /// The same for a group or a tensor. What has no rule of its own gets one that is otherwise as it
  /// was: a tensor's of its group, a group's of all.
  void set_lr(std::string_view name, double lr) { engine_.set_rate(name, lr); }

  /// What counts steps and scales; with master weights and states all that a run goes on from.
  /// Where the host cannot reach the space's memory, blocks for the last step.
  [[nodiscard]] Counters counters() const { return engine_.counters(); }
  /// Goes on counting from there: the twin of `counters()`, between steps.
  /// @par Collective  yes; blocks
  /// @throws Error (invalid_argument) for counts or a scale that make no sense, in the middle of a
  ///   step, and on every rank if ranks bring different ones
  void restore(Counters const& counters) { engine_.restore(counters); }

 protected:
  /// Makes what is behind it.
  /// @param setup    as for an `Engine`
  /// @param tensors  the model
  AnyOptimizer(detail::EngineSetup const& setup, std::vector<Tensor> tensors)
      : engine_(setup, std::move(tensors)) {}
  ~AnyOptimizer() = default;

  friend struct detail::EngineAccess;
  detail::Engine engine_;  ///< what is behind it

 private:
  /// `values`, as the engine asks for them.
  template <class Values>
  [[nodiscard]] static auto bytes_from(Values& values) {
    return [&values](Tensor const& tensor, std::size_t first, detail::Elements out) {
      // What is opaque says of what type it is.
      values(tensor,
             first,
             std::span(static_cast<std::byte*>(out.first), out.count * size_of(*tensor.dtype)));
    };
  }
  [[nodiscard]] StepResult tried(StepOptions const& options, double scale) noexcept {
    return detail::attempt([&] {
      engine_.step(options, scale);
      return engine_.taken();
    });
  }
};

}  // namespace zero::inline ZERO_NAMESPACE
