/// @file
/// A LibTorch trainer under every stage: units are gathered for their passes, and released.
#pragma once

#include "zero/adapt/libtorch/exchanged_memory.hpp"
#include "zero/adapt/libtorch/model_description.hpp"
#include "zero/adapt/libtorch/module_optimizer.hpp"
#include "zero/adapt/libtorch/module_units.hpp"
#include "zero/adapt/libtorch/step_settings.hpp"
#include "zero/adapt/libtorch/unit_call.hpp"
#include "zero/adapt/libtorch/unit_gradients.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/policies.hpp"
#include "zero/kernel/host_conversion.hpp"
#include "zero/optimizer/engine_access.hpp"
#include "zero/sharded_optimizer.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::libtorch {

/// Takes the place of a `torch::optim` optimizer and of the averaging of gradients, under every
/// stage; units are called through it.
///
///     zero::libtorch::Sharded sharded{comm, *net, {net->in, net->out}, zero::stage::PosGP{}};
///     ...
///     auto x = torch::relu(sharded.forward(net->in, batch));
///     loss_of(sharded.forward(net->out, x)).backward();
///     sharded.step({.max_norm = 1.});
///
/// Under Pos+g+p a unit has its parameters while its forward pass runs, and from when the backward
/// pass reaches its outputs until it has been through the call; anywhere else LibTorch refuses to
/// work on them and on views of them, and pointers into them fault. Its gradients are reduced and
/// freed when the backward pass has been through all of its calls, at the latest in `step`: until
/// then `grad()` has this rank's own, afterwards none. Under other stages parameters stay in the
/// module.
///
/// A backward pass that keeps its graph has others after it, for which units wait, at the latest
/// until `step`; so derivatives of derivatives are right in any order. A pass that comes to a unit
/// after that is refused.
///
/// Units may lie in each other, share parameters, be called several times, and be computed again
/// within the backward pass. A unit that some ranks call and others do not is skipped by `skip`
/// there. Graphs are made and gone through by the thread that calls this.
/// @tparam Policies  as of `ShardedOptimizer`
/// @par Collective  construction and every call marked so: all ranks, in the same order; so are the
///   backward passes
template <class... Policies>
class Sharded {
  template <class... Each>
  using Default = std::conditional_t<
      zero::detail::Selected<zero::detail::FitsStage, stage::PosG, Each...>::sharding.parameters,
      Owned<>,
      Borrowed<>>;

 public:
  /// The library's own optimizer: over lent memory, but for Pos+g+p.
  using Core = typename detail::Core<Default<Policies...>, Policies...>::type;
  /// How ranks move data.
  // Not through Core: deduction tries the constructor with no policies at all, and must fail
  // softly.
  using Communicator = zero::detail::Selected<zero::detail::FitsCommunicator, void, Policies...>;
  using Parameter = typename Core::Parameter;  ///< type of a parameter
  using Wire = typename Core::Wire;            ///< type of a gradient

  static_assert(!reduces_in_place<typename Core::Memory>,
                "zero: a module's gradients are only read: Borrowed<>, not BorrowedInPlace<>");
  static_assert(Core::on_host, "zero: the LibTorch adapter works in the host's memory");

  /// Gives every rank the first one's parameters. Under Pos+g+p the module's own memory is freed,
  /// parameter by parameter, and on other ranks before.
  /// @param comm    must outlive this
  /// @param module  the whole model; it, too
  /// @param units   modules within it in the order of the forward pass, which have all parameters
  /// @param values  policies with values, as for `ShardedOptimizer`
  /// @par Collective  yes; blocks
  /// @par Cost  as of `ShardedOptimizer`; the parameters are sent once. Beside the module, a rank
  ///   holds what `plan()` says: no second whole model, unless it is the only rank
  /// @throws Error (invalid_argument) as `describe`, and for a parameter of another type than the
  ///   precision's, or that is a part of a larger storage; as the constructor of `ShardedOptimizer`
  template <class... Values>
  explicit Sharded(Communicator& comm,
                   torch::nn::Module& module,
                   std::vector<Unit> const& units,
                   Values const&... values)
      : Sharded(comm, describe(module, units), values...) {}
  /// The same of a description, whose tensors may have been edited.
  template <class... Values>
  explicit Sharded(Communicator& comm, Description model, Values const&... values)
      : parameters_(detail::checked(model).parameters),
        gradients_(core_, parameters_),
        core_(comm, std::move(model.tensors), values...),
        writes_(core_, parameters_),
        owner_(std::make_shared<Sharded*>(this)) {
    for (torch::nn::Module const* const unit : model.units) units_.emplace_back().module = unit;
    for (std::size_t t = 0; t < parameters_.size(); ++t) {
      auto const u = static_cast<std::size_t>(core_.tensors()[t].unit);
      if (u >= units_.size()) {
        detail::refuse("parameter", core_.tensors()[t].name, "is of a unit that is not there");
      }
      units_[u].tensors.push_back(t);
    }
    take_values(comm.rank());
  }
  Sharded(Sharded const&) = delete;
  Sharded& operator=(Sharded const&) = delete;
  /// Under Pos+g+p the module has no parameters afterwards: save them, or take them out of
  /// `full_parameters()`.
  ~Sharded() { *owner_ = nullptr; }

  /// Calls a unit's `forward`, with its parameters at hand, and has autograd gather them again.
  /// @param unit       a module of the units
  /// @param arguments  what its `forward` takes
  /// @returns what it returns: tensors, or tuples, ranges or optionals of them
  /// @par Collective  yes; blocks for the unit's parameters. So does its backward pass
  /// @throws Error (invalid_argument) for a module that is no unit; as `ShardedOptimizer`
  template <detail::HasModule M, class... Arguments>
  [[nodiscard]] auto forward(M&& unit, Arguments&&... arguments) {
    auto& module = detail::module_of(unit);
    UnitScope scope(*this, number_of(module));
    auto outputs = module.forward(std::forward<Arguments>(arguments)...);
    scope.record(outputs);
    return outputs;
  }
  /// Takes part where other ranks call a unit and this one does not, in both passes: no token went
  /// to an expert. What it returns is the input, and has to lead to the loss; its gradients count
  /// as zeros.
  /// @param unit   a module of the units, without others within it
  /// @param input  what would be the unit's input, or whatever else goes on from here
  /// @par Collective  yes; blocks for the unit's parameters. So does its backward pass
  /// @throws Error (invalid_argument) for integers, which no gradient passes
  template <detail::HasModule M>
  [[nodiscard]] torch::Tensor skip(M&& unit, torch::Tensor input) {
    int const u = number_of(detail::module_of(unit));
    if (!input.is_floating_point()) {
      fail(ErrorKind::invalid_argument,
           {"libtorch: unit ", u, " is skipped with integers: no backward pass goes through them"});
    }
    bool const trains = std::ranges::any_of(record(u).tensors,
                                            [&](std::size_t t) { return gradients_.trained(t); });
    UnitScope scope(*this, u);
    scope.record(input, torch::GradMode::is_enabled() && trains);
    return input;
  }

  /// The whole model, in the module, on every rank: to evaluate it, to save it. Units need not be
  /// called through this meanwhile. Between passes: under Pos+g+p, a backward pass of what is
  /// computed meanwhile is refused after the end. `step()` refuses to change the model.
  class FullModel {
   public:
    FullModel(FullModel const&) = delete;
    FullModel& operator=(FullModel const&) = delete;
    ~FullModel() {
      ended_->yes = true;
      sharded_->full_ = nullptr;
      sharded_->place_all();
    }

   private:
    friend Sharded;
    /// No unit is told of what is computed meanwhile.
    struct End {
      void enter(bool /*outputs*/) const {
        if (!yes) return;
        fail(ErrorKind::invalid_argument,
             "libtorch: a backward pass after the full_parameters() that its forward pass was in");
      }
      bool yes = false;
    };
    explicit FullModel(Sharded& sharded) : sharded_(&sharded), parameters_(sharded.engine()) {
      sharded.full_ = &parameters_;
      sharded.place_all();
      if (exchanged()) operations_.emplace(ended_);
    }
    Sharded* sharded_;
    zero::detail::WholeModel parameters_;
    std::shared_ptr<End> ended_ = std::make_shared<End>();
    std::optional<detail::CallOperations<End>> operations_{};
  };
  /// Gathers the whole model; it stays until the guard ends.
  /// @par Collective  under Pos+g+p; blocks
  /// @par Cost  there, memory for all parameters beside the plan, and one gather of each unit
  [[nodiscard]] FullModel full_parameters() {
    require_same_memory();
    return FullModel(*this);
  }

  /// Begins the next micro-batch of a step; not needed where a step has one of weight 1.
  /// @param micro  as for `ShardedOptimizer::micro_step`
  /// @par Collective  yes: it finishes the reductions of the micro-batch before
  void micro_step(MicroStep const& micro = {}) {
    require_all_reduced();
    core_.micro_step(micro);
    begin_step();
    begun_ = true;
  }
  /// L2 norm of the mean gradient over all ranks; reduces what is left first.
  /// @par Collective  yes; blocks
  [[nodiscard]] double grad_norm() {
    finish_pass();
    return core_.grad_norm();
  }
  /// Has the next step clip the mean gradient to this norm.
  /// @param max_norm  as `StepOptions::max_norm`
  /// @returns the norm before
  /// @par Collective  yes; blocks
  double clip_grad_norm(double max_norm) {
    double const norm = grad_norm();
    settings_.clip_next(max_norm);
    return norm;
  }
  /// Takes over what was written into the module's parameters, which lie where they lay; otherwise
  /// as `Optimizer::adopt_parameters`.
  void adopt_parameters() requires(Core::borrowed) {
    require_same_memory();
    core_.adopt_parameters();
  }
  /// Reduces what is left and updates. A parameter that no backward pass has reached, on any rank,
  /// rests, as in torch; one that was reached on some ranks counts as zeros on the others.
  /// @param options  the same on every rank
  /// @par Collective  yes; blocks
  /// @throws Error as `ShardedOptimizer::step`; (invalid_argument), naming the parameter, for
  ///   gradients that are sparse, of another type, of what was described as frozen, or that came
  ///   after those of their unit were reduced; for parameters that were given other memory; for
  ///   those with master weights that an operation of LibTorch has written to, as `Optimizer::step`
  StepReport step(StepOptions options = {}) {
    writes_(decltype(writes_)::Use::masters);
    finish_pass();
    options = settings_.complete(options);
    begin_step();
    StepReport const report = core_.step(options);
    if (!report.skipped) writes_.count_step();
    return report;
  }
  /// Forgets the gradients of this step, here and where they are reduced; after a step there are
  /// none.
  /// @par Collective  if a backward pass has begun since the last step
  void zero_grad() {
    close_passes();
    for (torch::Tensor& parameter : parameters_) parameter.mutable_grad() = torch::Tensor();
    if (!begun_) return;
    core_.discard_gradients();
    begin_step();
  }

  /// The library's own optimizer, for all that is not here: what `Checkpoints` saves and loads, the
  /// plan, counters.
  [[nodiscard]] Core& core() noexcept { return core_; }
  /// Steps that have updated something. Local.
  [[nodiscard]] long steps() const noexcept { return core_.steps(); }
  /// The rule's learning rate. Local.
  [[nodiscard]] double lr() const noexcept { return core_.rule().lr; }
  /// Another learning rate from the next step on, where its options name none; the same on every
  /// rank. Groups of parameters have theirs through `core()`. Local.
  void set_lr(double lr) { core_.set_lr(lr); }
  /// What to multiply the loss by; 1 without a loss scale.
  [[nodiscard]] float loss_scale() const noexcept { return core_.loss_scale(); }

 private:
  using Call = detail::UnitCall<Sharded>;
  friend Call;

  struct Record {
    torch::nn::Module const* module = nullptr;
    std::vector<std::size_t> tensors{};  ///< in the order of the unit's guards
    std::optional<UnitParameters<Core>> parameters{};
    int windows = 0;       ///< that are open
    int calls = 0;         ///< whose backward pass is expected
    bool reduced = false;  ///< in this micro-batch
  };
  /// A unit's parameters, for the time of a call.
  class UnitScope {
   public:
    UnitScope(Sharded& sharded, int unit)
        : sharded_(&sharded), unit_(unit), around_(sharded.calling_) {
      // Also where no graph is wanted: a module may make one nevertheless.
      begin_->call = std::make_shared<Call>(sharded.owner_, unit, around_);
      sharded.close_passes();
      sharded.open(unit);
      sharded.calling_ = begin_->call;
      // Elsewhere, nodes that are not found read what is there.
      if (exchanged()) operations_.emplace(begin_->call);
    }
    UnitScope(UnitScope const&) = delete;
    UnitScope& operator=(UnitScope const&) = delete;
    ~UnitScope() {
      sharded_->calling_ = around_;
      sharded_->close(unit_);
    }
    /// Has autograd tell of the call, whose outputs are these.
    template <class T>
    void record(T& outputs, bool all = false) {
      operations_.reset();  // what is added here is no part of the call
      detail::for_each_tensor(outputs, [&](torch::Tensor& output) {
        // It would be gone with the unit's parameters.
        if (exchanged() && sharded_->memory_->holds(output)) output = output.clone();
      });
      detail::record_call<Sharded>(begin_, outputs, all);
    }

   private:
    Sharded* sharded_;
    int unit_;
    std::shared_ptr<Call> around_;
    detail::NodePointer<detail::CallBegin<Sharded>> begin_ =
        detail::make_node<detail::CallBegin<Sharded>>();
    std::optional<detail::CallOperations<Call>> operations_{};
  };

  /// Do parameters move between the module and the library?
  static constexpr bool exchanged() noexcept { return !Core::borrowed; }

  [[nodiscard]] Record& record(int unit) noexcept { return units_[static_cast<std::size_t>(unit)]; }
  [[nodiscard]] int number_of(torch::nn::Module const& module) const {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (units_[u].module == &module) return static_cast<int>(u);
    }
    detail::refuse("module", module.name(), "is no unit of this model");
  }

  void take_values(int rank) {
    if constexpr (!exchanged()) {
      std::vector<LentSpan> lent;
      for (torch::Tensor const& each : parameters_) {
        lent.push_back(detail::lent_span(each));
        lent_.push_back(each.variable_data());
      }
      core_.bind_parameters(lent);
      core_.on_gradients_free(gradients_);
      core_.broadcast_parameters();
    } else {
      memory_.emplace(parameters_, core_.tensors());
      constexpr int root = 0;
      for (std::size_t t = 0; t < parameters_.size(); ++t) {
        if (rank != root) memory_->give_up(t);
      }
      // Each is asked for once, in order.
      auto const give = [&](Tensor const& tensor, std::size_t first, DType to, auto out) {
        auto const t = static_cast<std::size_t>(&tensor - core_.tensors().data());
        auto const* const own = static_cast<std::byte const*>(parameters_[t].data_ptr());
        std::size_t const count = out.size_bytes() / size_of(to);
        auto const* const from = own + first * size_of(*tensor.dtype);
        if (is_integral(to)) {
          std::memcpy(out.data(), from, out.size_bytes());
        } else {
          kernel::convert_on_host(to, out.data(), *tensor.dtype, from, count);
        }
        if (first + count == element_count(tensor)) memory_->give_up(t);
      };
      core_.broadcast_parameters(
          [&](Tensor const& tensor, std::size_t first, auto out) {
            give(tensor, first, dtype_of<typename decltype(out)::value_type>, out);
          },
          root);
      auto const opaque = [](Tensor const& tensor) { return is_integral(*tensor.dtype); };
      if (std::any_of(core_.tensors().begin(), core_.tensors().end(), opaque)) {
        core_.broadcast_bytes(
            [&](Tensor const& tensor, std::size_t first, std::span<std::byte> out) {
              give(tensor, first, *tensor.dtype, out);
            },
            root);
      }
      for (std::size_t t = 0; t < parameters_.size(); ++t) memory_->give_up(t);
    }
  }

  /// Does a parameter lie where the library reads and writes it?
  void require_same_memory(std::size_t t) const {
    if constexpr (exchanged()) {
      memory_->require_same_memory(t);
    } else if (!detail::has_storage_of(parameters_[t], lent_[t])) {
      detail::refuse_other_memory(core_.tensors()[t].name);
    }
  }
  void require_same_memory() const {
    for (std::size_t t = 0; t < parameters_.size(); ++t) require_same_memory(t);
  }

  /// Gives a unit its parameters. Collective under Pos+g+p.
  void open(int u) {
    Record& unit = record(u);
    for (std::size_t const t : unit.tensors) require_same_memory(t);
    if (!unit.parameters) unit.parameters.emplace(core_.parameters(u));
    ++unit.windows;
    place(unit);
  }
  void close(int u) noexcept {
    Record& unit = record(u);
    if (--unit.windows > 0) return;
    unit.parameters.reset();
    place(unit);
  }
  /// Points a unit's tensors, and what is tied to them, to where they can be read now.
  void place(Record const& unit) noexcept {
    if constexpr (exchanged()) {
      for (std::size_t const t : unit.tensors) {
        std::size_t const storage = gradients_.storage_of(t);
        void const* const memory = place_of(storage);
        for (std::size_t other = storage; other < parameters_.size(); ++other) {
          if (gradients_.storage_of(other) == storage) memory_->lend(other, memory);
        }
      }
    }
  }
  void place_all() noexcept {
    for (Record const& unit : units_) place(unit);
  }
  /// Where a storage can be read: in a unit that is open, or in the whole model.
  [[nodiscard]] void const* place_of(std::size_t storage) noexcept {
    for (Record const& unit : units_) {
      for (std::size_t i = 0; unit.parameters && i < unit.tensors.size(); ++i) {
        std::size_t const t = unit.tensors[i];
        if (gradients_.storage_of(t) == storage) {
          return engine().parameter(unit.parameters->unit(), t).first;
        }
      }
    }
    return full_ != nullptr ? (*full_)[storage].first : nullptr;
  }
  [[nodiscard]] auto& engine() noexcept { return zero::detail::EngineAccess::engine(core_); }

  // What UnitCall tells.
  std::vector<Call*>& entered() noexcept { return entered_; }
  void expect(int u) noexcept { ++record(u).calls; }
  void forget(int u) noexcept { --record(u).calls; }
  /// @param whole  the pass adds to gradients; else it is for some inputs alone
  void enter(int u, bool whole) {
    if (whole && record(u).reduced) {
      fail(ErrorKind::invalid_argument,
           {"libtorch: a backward pass comes to unit ",
            u,
            " ('",
            core_.tensors()[record(u).tensors.front()].name,
            "') after its gradients were reduced: keep the graph (retain_graph) in all backward "
            "passes but the last, so that the unit waits for them, call micro_step() before the "
            "next micro-batch, and compute a unit again once at most in a backward pass"});
    }
    open(u);
  }
  void leave(int u) {
    if (--record(u).calls == 0) reduce(u);
  }
  /// Of a pass that has failed, calls may be open still.
  void close_passes() noexcept {
    if (torch::autograd::get_current_graph_task_exec_info() != nullptr) return;
    while (!entered_.empty()) entered_.back()->exit();
  }

  void reduce(int u) {
    Record& unit = record(u);
    for (std::size_t const t : unit.tensors) gradients_.require_described(t);
    unit.reduced = begun_ = true;
    gradients_.reduce(u, unit.tensors);
  }

  /// Reduces what no backward pass has ended.
  void finish_pass() {
    close_passes();
    require_same_memory();
    for (int const u : core_.units_backward()) {
      if (!record(u).reduced) reduce(u);
    }
    require_all_reduced();
  }
  /// A gradient that came later would be a part of the next step's.
  void require_all_reduced() const {
    for (std::size_t t = 0; t < parameters_.size(); ++t) {
      int const u = core_.tensors()[t].unit;
      if (!units_[static_cast<std::size_t>(u)].reduced || !gradients_.trained(t)) continue;
      if (!parameters_[t].grad().defined()) continue;
      detail::refuse(
          "parameter",
          core_.tensors()[t].name,
          "got a gradient after those of unit " + std::to_string(u) +
              " were reduced: keep the graph (retain_graph) in all backward passes but the last; "
              "whatever uses it outside of its unit comes after the unit's calls, and shares their "
              "backward pass");
    }
  }
  void begin_step() noexcept {
    for (Record& unit : units_) unit.reduced = false;
    begun_ = false;
  }

  std::vector<torch::Tensor> parameters_;
  detail::ModuleGradients<Core> gradients_;
  Core core_;
  detail::WriteWatch<Core> writes_;
  std::optional<detail::ExchangedMemory> memory_{};  ///< where it is exchanged
  std::vector<torch::Tensor> lent_{};                ///< else, what is lent, as it was then
  std::shared_ptr<Sharded*> owner_;
  std::vector<Record> units_{};
  std::shared_ptr<Call> calling_{};  ///< the innermost call whose forward pass this is
  std::vector<Call*> entered_{};     ///< by backward passes, and open
  zero::detail::WholeModel const* full_ = nullptr;
  detail::Settings settings_;
  bool begun_ = false;  ///< since the last step, gradients were reduced, or a micro-batch begun
};

/// Policies from the constructor's arguments.
template <zero::Communicator C, class... Values>
Sharded(C&, torch::nn::Module&, std::vector<Unit>, Values...) -> Sharded<C, Values...>;
/// @overload
template <zero::Communicator C, class... Values>
Sharded(C&, Description, Values...) -> Sharded<C, Values...>;

}  // namespace zero::inline ZERO_NAMESPACE::libtorch
