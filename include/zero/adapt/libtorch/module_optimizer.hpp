/// @file
/// The optimizer of a LibTorch trainer that keeps its whole model: every stage up to Pos+g.
#pragma once

#include "zero/adapt/libtorch/model_description.hpp"
#include "zero/adapt/libtorch/step_settings.hpp"
#include "zero/base/config.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/policies.hpp"
#include "zero/sharded_optimizer.hpp"

#include <torch/torch.h>

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::libtorch {

namespace detail {

/// The library's optimizer over the adapter's memory policy, unless the trainer names one.
template <class Default, class... Policies>
using Core = std::conditional_t<(zero::detail::FitsMemory<Policies>::value || ...),
                                std::type_identity<ShardedOptimizer<Policies...>>,
                                std::type_identity<ShardedOptimizer<Policies..., Default>>>;

}  // namespace detail

/// Takes the place of a `torch::optim` optimizer and of the averaging of gradients.
///
///     zero::libtorch::Optimizer opt{comm, *model, zero::stage::PosG{}, zero::AdamW{.lr = 3e-4f}};
///     ...
///     loss.backward();
///     opt.step({.max_norm = 1.});
///     opt.zero_grad();
///
/// Parameters and gradients stay in the module, where they are lent from. After a step every rank
/// has the new parameters; `grad()` has what this rank's backward pass left there: it is neither
/// averaged nor clipped. A parameter whose gradient is undefined on all ranks rests, as in torch;
/// one that is undefined on some counts as zeros there.
/// @tparam Policies  as of `ShardedOptimizer`; stages up to `PosG`
/// @par Collective  construction and every call marked so: all ranks, in the same order
template <class... Policies>
class Optimizer {
 public:
  /// The library's own optimizer, over lent memory.
  using Core = typename detail::Core<Borrowed<>, Policies...>::type;
  /// How ranks move data.
  // Not through Core: deduction tries the constructor with no policies at all, and must fail
  // softly.
  using Communicator = zero::detail::Selected<zero::detail::FitsCommunicator, void, Policies...>;
  using Parameter = typename Core::Parameter;  ///< type of a parameter
  using Wire = typename Core::Wire;            ///< type of a gradient

  static_assert(Core::borrowed, "zero: a module's parameters are lent: Borrowed<>, not Owned<>");
  static_assert(!reduces_in_place<typename Core::Memory>,
                "zero: a module's gradients are only read: Borrowed<>, not BorrowedInPlace<>");
  static_assert(Core::on_host, "zero: the LibTorch adapter works in the host's memory");

  /// Gives every rank the first one's parameters and lends them.
  /// @param comm    must outlive the optimizer
  /// @param module  as for `describe`; its parameters are kept alive
  /// @param values  policies with values, as for `ShardedOptimizer`
  /// @par Collective  yes; blocks
  /// @par Cost  as `ShardedOptimizer` with `Borrowed<>`; the parameters are sent once
  /// @throws Error (invalid_argument) as `describe`, and for parameters of another type than the
  ///   precision's; as the constructor of `ShardedOptimizer`
  template <class... Values>
  explicit Optimizer(Communicator& comm, torch::nn::Module& module, Values const&... values)
      : Optimizer(comm, describe(module), values...) {}
  /// The same of a description, whose tensors may have been edited.
  template <class... Values>
  explicit Optimizer(Communicator& comm, Description model, Values const&... values)
      : parameters_(detail::checked(model).parameters),
        core_(comm, std::move(model.tensors), values...),
        writes_(core_, parameters_),
        lent_(parameters_.size()),
        gradients_(parameters_.size()) {
    bind();
    core_.broadcast_parameters();
  }
  Optimizer(Optimizer const&) = delete;
  Optimizer& operator=(Optimizer const&) = delete;

  /// The library's own optimizer, for all that is not here: what `Checkpoints` saves and loads, the
  /// plan, counters. Its gradients are those that the last call here has lent.
  [[nodiscard]] Core& core() noexcept { return core_; }
  /// Steps that have updated something. Local.
  [[nodiscard]] long steps() const noexcept { return core_.steps(); }

  /// Sums this step's gradients over all ranks, for a trainer that has added up several
  /// micro-batches in `grad()`; `step` does it otherwise.
  /// @param weight  of all of them together: their number if each is a mean
  /// @par Collective  yes; blocks
  /// @throws Error (invalid_argument), naming the parameter, for a gradient that is sparse or a
  ///   view with gaps; as `ShardedOptimizer::reduce_all`
  void reduce_all(double weight = 1.) {
    bind_for_step();
    core_.reduce_all(weight);
    reduced_ = true;
  }
  /// L2 norm of the mean gradient over all ranks; sums them first.
  /// @par Collective  yes; blocks
  [[nodiscard]] double grad_norm() {
    bind_for_step();
    reduced_ = true;
    return core_.grad_norm();
  }
  /// Has the next step clip the mean gradient to this norm. What lies in `grad()` is not changed:
  /// it is not what the update reads.
  /// @param max_norm  as `StepOptions::max_norm`
  /// @returns the norm before
  /// @par Collective  yes; blocks
  double clip_grad_norm(double max_norm) {
    double const norm = grad_norm();
    settings_.clip_next(max_norm);
    return norm;
  }

  /// Takes over what was written into the module's parameters, such as by `torch::load`, the same
  /// on every rank: master weights start from it. Local; the next step compares it with other
  /// ranks'.
  void adopt_parameters() {
    bind();
    core_.adopt_parameters();
  }
  /// Updates the parameters, in place. Where these have master weights of another type, whatever
  /// else is to change them goes through `core()`, with `fill_owned` or `load_parameters`, or is
  /// followed by `adopt_parameters`.
  /// @param options  the same on every rank
  /// @par Collective  yes; blocks
  /// @throws Error as `ShardedOptimizer::step` and `reduce_all`; (invalid_argument), naming the
  ///   parameter, if an operation of LibTorch has written into one that has a master weight. A
  ///   checkpoint is refused then as well
  StepReport step(StepOptions options = {}) {
    bind_for_step();
    options = settings_.complete(options);
    reduced_ = false;
    StepReport const report = core_.step(options);
    if (!report.skipped) writes_.count_step();
    return report;
  }
  /// Forgets the gradients of the module. Local.
  /// @param set_to_none  undefined ones, which the next step takes as absent, instead of zeros
  void zero_grad(bool set_to_none = true) {
    for (torch::Tensor& parameter : parameters_) {
      torch::Tensor& gradient = parameter.mutable_grad();
      if (set_to_none) {
        gradient = torch::Tensor();
      } else if (gradient.defined()) {
        gradient.detach_();
        gradient.zero_();
      }
    }
  }

  /// The rule's learning rate. Local.
  [[nodiscard]] double lr() const noexcept { return core_.rule().lr; }
  /// Another learning rate from the next step on, where its options name none; the same on every
  /// rank. Groups of parameters have theirs through `core()`. Local.
  void set_lr(double lr) { core_.set_lr(lr); }
  /// What to multiply the loss by; 1 without a loss scale.
  [[nodiscard]] float loss_scale() const noexcept { return core_.loss_scale(); }

 private:
  /// Lends parameters and gradients where they lie now.
  void bind() {
    if (reduced_) return;
    auto const& places = core_.partition().placement().places();
    bool moved = false;
    for (std::size_t t = 0; t < parameters_.size(); ++t) {
      torch::Tensor& parameter = parameters_[t];
      std::string const& name = core_.tensors()[t].name;
      detail::require_plain("parameter", name, parameter);
      LentSpan const lent = detail::lent_span(parameter);
      moved = moved || lent_[t].data() != lent.data() || lent_[t].dtype() != lent.dtype();
      lent_[t] = lent;
      if (places[t].storage != t) join_gradients(parameters_[places[t].storage], parameter);
    }
    for (std::size_t t = 0; t < parameters_.size(); ++t) {
      gradients_[t] = {};
      std::string const& name = core_.tensors()[t].name;
      if (places[t].frozen) detail::refuse_gradient_of_frozen(name, parameters_[t]);
      torch::Tensor const& gradient = parameters_[t].grad();
      if (places[t].storage != t || !gradient.defined()) continue;
      detail::require_plain("gradient of parameter", name, gradient);
      gradients_[t] = detail::lent_span(gradient);
    }
    if (moved) {
      core_.bind(lent_, gradients_);
    } else {
      core_.bind_gradients(gradients_);
    }
  }
  /// The same, for a step. Without any gradient torch steps, and all rest: that is said, or it
  /// would be a mistake.
  void bind_for_step() {
    if (reduced_) return;
    bind();
    auto const& places = core_.partition().placement().places();
    std::size_t absent = gradients_.size();
    for (std::size_t t = 0; t < gradients_.size(); ++t) {
      if (gradients_[t].size() != 0) return;
      if (places[t].storage == t && !places[t].frozen) absent = t;
    }
    if (absent < gradients_.size()) core_.without_gradient(core_.tensors()[absent]);
  }
  /// Two tensors of one memory have gradients of their own. From now on these are one, too: what
  /// autograd adds to either is added to their sum.
  static void join_gradients(torch::Tensor& first, torch::Tensor& tied) {
    torch::Tensor& sum = first.mutable_grad();
    torch::Tensor& other = tied.mutable_grad();
    if (!other.defined() || (sum.defined() && sum.data_ptr() == other.data_ptr())) return;
    sum = sum.defined() ? torch::Tensor(sum.detach() + other.detach()) : other;
    other = sum;
  }

  std::vector<torch::Tensor> parameters_;
  Core core_;
  detail::WriteWatch<Core> writes_;
  std::vector<LentSpan> lent_;
  std::vector<LentSpan> gradients_;
  detail::Settings settings_;
  bool reduced_ = false;
};

/// Policies from the constructor's arguments.
template <zero::Communicator C, class... Values>
Optimizer(C&, torch::nn::Module&, Values...) -> Optimizer<C, Values...>;
/// @overload
template <zero::Communicator C, class... Values>
Optimizer(C&, Description, Values...) -> Optimizer<C, Values...>;

}  // namespace zero::inline ZERO_NAMESPACE::libtorch
