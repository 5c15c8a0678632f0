/// @file
/// An optimizer behind the C interface: one abstract class, and one model of it for each choice.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/function_ref.hpp"
#include "zero/c.h"
#include "zero/c/communicator.hpp"
#include "zero/c/policies.hpp"
#include "zero/c/structs.hpp"
#include "zero/layout/plan.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/api/step.hpp"
#include "zero/optimizer/inside.hpp"
#include "zero/sharded_optimizer.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::c {

/// Pointers to fill or to read, as C has arrays.
template <class T>
struct Pointers {
  T* first = nullptr;      ///< null for none
  std::int32_t count = 0;  ///< of them
};

/// Fills elements [first, first + size) of a tensor.
using Fill = zero::detail::FunctionRef<void(Tensor const&, std::size_t, std::span<float>)>;

/// The functions of zero/c.h that have an optimizer, by the same names.
class Optimizer {
 public:
  Optimizer() = default;
  Optimizer(Optimizer const&) = delete;
  Optimizer& operator=(Optimizer const&) = delete;
  virtual ~Optimizer() = default;

  // Their comments are in zero/c.h.
  /// @cond
  [[nodiscard]] virtual std::vector<Tensor> const& tensors() const = 0;
  [[nodiscard]] virtual std::span<int const> units() const = 0;
  [[nodiscard]] virtual Plan plan(std::uint64_t micro_steps) const = 0;
  [[nodiscard]] virtual MemoryBytes held() const = 0;
  virtual void bind(Pointers<void* const> parameters, Pointers<void* const> gradients) = 0;
  virtual void bind(void* parameters, void* gradients, std::size_t count) = 0;
  virtual void bind_gradients(Pointers<void* const> gradients) = 0;
  virtual void bind_gradients(void* gradients, std::size_t count) = 0;
  virtual void load(Fill fill) = 0;
  virtual void broadcast(Fill fill, int root) = 0;
  virtual void broadcast(int root) = 0;
  virtual void adopt() = 0;
  [[nodiscard]] virtual void* parameter(std::size_t tensor) = 0;
  [[nodiscard]] virtual void* gradient(std::size_t tensor) = 0;
  virtual void parameters(int unit, Pointers<void const*> data) = 0;
  virtual void release(int unit) = 0;
  virtual void gradients(int unit, std::int32_t mode, Pointers<void*> data) = 0;
  virtual void reduce(int unit) = 0;
  virtual void without_gradient(int unit) = 0;
  virtual void without_tensor_gradient(std::size_t tensor) = 0;
  virtual void micro_step(MicroStep const& micro) = 0;
  virtual void reduce_all(std::optional<double> weight) = 0;
  [[nodiscard]] virtual double grad_norm() = 0;
  [[nodiscard]] virtual StepReport step(StepOptions const& options, double scale) = 0;
  [[nodiscard]] virtual StepReport report() = 0;
  virtual void discard() = 0;
  virtual void settle() = 0;
  [[nodiscard]] virtual float loss_scale() const = 0;
  virtual void set_lr(char const* name, float lr) = 0;
  virtual void set_rule(char const* name, zero_rule const& rule) = 0;
  virtual void full_parameters(Pointers<void const*> data) = 0;
  virtual void release_full() = 0;
  [[nodiscard]] virtual Counters counters() const = 0;
  virtual void restore(Counters const& counters) = 0;
  /// What ZERO_C_DEFINE was given beside policies; null without.
  [[nodiscard]] virtual void* extension() noexcept = 0;
  /// @endcond
};

/// Nothing beside policies.
struct NoExtension {
  /// For an optimizer.
  template <class O>
  struct Of {
    /// Which is not asked.
    explicit Of(O&) {}
    /// None.
    static void* address() noexcept { return nullptr; }
  };
};

/// The optimizer of one choice, and the guards that a trainer in C holds by their units.
template <class O, class Extension>
class OptimizerOf final : public Optimizer {
  using Parameter = typename O::Parameter;
  using Wire = typename O::Wire;
  using Form = StorageForm;
  static constexpr bool gathers = O::form.refresh == Form::Refresh::gather;
  static constexpr bool whole_gradients = O::form.gradients == Form::Gradients::whole;

 public:
  /// Agrees with all ranks, and allocates.
  OptimizerOf(AnyCommunicator& comm,
              Rank& rank,
              std::vector<Tensor> model,
              zero_options const& options)
      : rule_(rule_of<typename O::Rule>(options.rule)),
        optimizer_(comm,
                   std::move(model),
                   rule_,
                   precision_of<typename O::Precision>(options),
                   bucket_of(options),
                   Prefetch{options.prefetch},
                   typename O::Memory{RankAllocator{&rank}}),
        uses_(static_cast<std::size_t>(last_unit() + 1)),
        extension_(optimizer_) {}

  /// @cond
  std::vector<Tensor> const& tensors() const override { return optimizer_.tensors(); }
  std::span<int const> units() const override { return optimizer_.units(); }
  Plan plan(std::uint64_t micro_steps) const override { return optimizer_.plan(micro_steps); }
  MemoryBytes held() const override { return optimizer_.held(); }

  void bind(Pointers<void* const> parameters, Pointers<void* const> gradients) override {
    if constexpr (O::borrowed) {
      auto const lent = list(lent_parameters_, parameters, "parameters");
      optimizer_.bind(lent, list(lent_gradients_, gradients, "gradients"));
    } else {
      refuse_to_bind();
    }
  }
  void bind(void* parameters, void* gradients, std::size_t count) override {
    if constexpr (O::borrowed) {
      optimizer_.bind(std::span(static_cast<Parameter*>(parameters), count),
                      std::span(static_cast<Wire*>(gradients), count));
    } else {
      refuse_to_bind();
    }
  }
  void bind_gradients(Pointers<void* const> gradients) override {
    if constexpr (O::borrowed) {
      optimizer_.bind_gradients(list(lent_gradients_, gradients, "gradients"));
    } else {
      refuse_to_bind();
    }
  }
  void bind_gradients(void* gradients, std::size_t count) override {
    if constexpr (O::borrowed) {
      optimizer_.bind_gradients(std::span(static_cast<Wire*>(gradients), count));
    } else {
      refuse_to_bind();
    }
  }

  void load(Fill fill) override { optimizer_.load_parameters(fill); }
  void broadcast(Fill fill, int root) override { optimizer_.broadcast_parameters(fill, root); }
  void broadcast(int root) override {
    if constexpr (gathers) {
      fail(ErrorKind::invalid_argument,
           "zero_broadcast needs a stage under which ranks hold all parameters: call "
           "zero_broadcast_from");
    } else {
      optimizer_.broadcast_parameters(root);
    }
  }
  void adopt() override { optimizer_.adopt_parameters(); }

  void* parameter(std::size_t tensor) override {
    if constexpr (gathers) {
      fail(ErrorKind::invalid_argument,
           "zero_parameter needs a stage under which ranks hold all parameters: call "
           "zero_parameters");
    } else {
      return optimizer_.parameter(tensor).data();
    }
  }
  void* gradient(std::size_t tensor) override {
    if constexpr (whole_gradients) {
      return optimizer_.gradient(tensor).data();
    } else {
      fail(ErrorKind::invalid_argument,
           "zero_gradient needs full gradients that the library holds: call zero_gradients");
    }
  }

  void parameters(int unit, Pointers<void const*> data) override {
    Use& use = use_of(unit);
    bool const fresh = use.held == 0;
    if (fresh) use.parameters.emplace(optimizer_.parameters(unit));
    ++use.held;
    // A wrong count gives back what this call took.
    if (data.first == nullptr && data.count == 0) return;
    std::size_t const size = use.parameters->size();
    if (data.first == nullptr || static_cast<std::size_t>(data.count) != size) {
      release(unit);
      if (static_cast<std::size_t>(data.count) != size) refuse_count(unit, data.count, size);
      require(data.first, "data");
    }
    for (std::size_t i = 0; i < use.parameters->size(); ++i) {
      data.first[i] = (*use.parameters)[i].data();
    }
  }
  void release(int unit) override {
    Use& use = use_of(unit);
    if (use.held == 0) {
      fail(ErrorKind::invalid_argument,
           {"the parameters of unit ", unit, " are released, but were not asked for"});
    }
    if (--use.held == 0) use.parameters.reset();
  }

  void gradients(int unit, std::int32_t mode, Pointers<void*> data) override {
    Use& use = use_of(unit);
    use.gradients.reset();
    if (mode == ZERO_ADD) {
      use.gradients.emplace(optimizer_.gradients(unit));
    } else if (mode == ZERO_OVERWRITE || mode == ZERO_OVERWRITE_CHECKED) {
      if constexpr (O::Accumulation::full_gradients) {
        fail(ErrorKind::invalid_argument,
             "gradients that add up over micro-batches cannot be overwritten: ask for ZERO_ADD");
      } else {
        use.gradients.emplace(
            optimizer_.gradients(unit, Overwrite{.checked = mode == ZERO_OVERWRITE_CHECKED}));
      }
    } else {
      fail(ErrorKind::invalid_argument, {"there is no mode ", mode, " of zero_gradients"});
    }
    if (data.first == nullptr && data.count == 0) return;
    std::size_t const size = use.gradients->size();
    if (static_cast<std::size_t>(data.count) != size) refuse_count(unit, data.count, size);
    require(data.first, "data");
    for (std::size_t i = 0; i < size; ++i) data.first[i] = (*use.gradients)[i].data();
  }
  void reduce(int unit) override {
    Use& use = use_of(unit);
    if (O::borrowed && !use.gradients) use.gradients.emplace(optimizer_.gradients(unit));
    if (!use.gradients) {
      fail(ErrorKind::invalid_argument,
           {"unit ", unit, " is reduced, but zero_gradients was not called for it before"});
    }
    auto guard = std::move(*use.gradients);
    use.gradients.reset();
    optimizer_.reduce(std::move(guard));
  }
  void without_gradient(int unit) override { optimizer_.without_gradient(unit); }
  void without_tensor_gradient(std::size_t tensor) override {
    if (tensor >= tensors().size()) {
      fail(ErrorKind::invalid_argument, {"the model has no tensor number ", tensor});
    }
    optimizer_.without_gradient(tensors()[tensor]);
  }
  void micro_step(MicroStep const& micro) override { optimizer_.micro_step(micro); }
  void reduce_all(std::optional<double> weight) override {
    weight ? optimizer_.reduce_all(*weight) : optimizer_.reduce_all();
  }
  double grad_norm() override { return optimizer_.grad_norm(); }
  StepReport step(StepOptions const& options, double scale) override {
    auto& engine = zero::detail::Inside::engine(optimizer_);
    engine.step(options, scale);
    return zero::detail::report_of(engine.taken());
  }
  StepReport report() override { return optimizer_.report(); }
  void discard() override { optimizer_.discard_gradients(); }
  void settle() override { optimizer_.settle(); }
  float loss_scale() const override { return optimizer_.loss_scale(); }

  void set_lr(char const* name, float lr) override {
    optimizer_.set_lr(name != nullptr ? name : "", lr);
  }
  void set_rule(char const* name, zero_rule const& rule) override {
    optimizer_.set_rule(name != nullptr ? name : "", rule_of<typename O::Rule>(rule, rule_));
  }
  void full_parameters(Pointers<void const*> data) override {
    require_all(tensors().size(), data.count, data.first, "data");
    full_.reset();  // a second one would need as much memory again
    full_.reset(new FullParameters<O>(optimizer_.full_parameters()));
    for (std::size_t t = 0; t < full_->size(); ++t) data.first[t] = (*full_)[t].data();
  }
  void release_full() override {
    if (!full_) {
      fail(ErrorKind::invalid_argument, "all parameters are released, but were not asked for");
    }
    full_.reset();
  }
  Counters counters() const override { return optimizer_.counters(); }
  void restore(Counters const& counters) override { optimizer_.restore(counters); }
  void* extension() noexcept override { return extension_.address(); }
  /// @endcond

 private:
  /// What the trainer holds of a unit.
  struct Use {
    std::optional<UnitParameters<O>> parameters{};
    int held = 0;  ///< how often they were asked for, and not released
    std::optional<UnitGradients<O>> gradients{};
  };

  [[nodiscard]] int last_unit() const {
    return optimizer_.units().empty() ? -1 : optimizer_.units().back();
  }
  [[nodiscard]] Use& use_of(int unit) {
    if (unit < 0 || unit > last_unit()) {
      fail(ErrorKind::invalid_argument,
           {"there is no unit ", unit, ": the model has units 0 to ", last_unit()});
    }
    return uses_[static_cast<std::size_t>(unit)];
  }
  [[noreturn]] static void refuse_count(int unit, std::int32_t count, std::size_t size) {
    fail(ErrorKind::invalid_argument,
         {"room for ",
          count,
          " pointers is given for unit ",
          unit,
          ", which has ",
          size,
          " tensors"});
  }
  [[noreturn]] static void refuse_to_bind() {
    fail(ErrorKind::invalid_argument,
         "memory is lent to an optimizer that has its own: make it with memory = ZERO_BORROWED");
  }

  /// One span per tensor, in memory that stays: trainers bind in every step. Null is empty.
  template <class T>
  std::span<std::span<T> const> list(std::vector<std::span<T>>& spans,
                                     Pointers<void* const> data,
                                     std::string_view name) const {
    require_all(tensors().size(), data.count, data.first, name);
    spans.clear();
    for (std::size_t t = 0; t < tensors().size(); ++t) {
      auto const count = static_cast<std::size_t>(element_count(tensors()[t]));
      auto* const first = static_cast<T*>(data.first[t]);
      spans.emplace_back(first, first == nullptr ? 0 : count);
    }
    return spans;
  }

  typename O::Rule rule_;
  O optimizer_;
  std::vector<Use> uses_;
  std::vector<std::span<Parameter>> lent_parameters_;
  std::vector<std::span<Wire>> lent_gradients_;
  std::unique_ptr<FullParameters<O>> full_;
  typename Extension::template Of<O> extension_;
};

}  // namespace zero::inline ZERO_NAMESPACE::c
