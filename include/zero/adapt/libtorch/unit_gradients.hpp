/// @file
/// The gradients that autograd has left in a unit's tensors, on their way to the library.
#pragma once

#include "zero/adapt/libtorch/model_description.hpp"
#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/layout/storage_types.hpp"
#include "zero/optimizer/engine_access.hpp"
#include "zero/sharded_optimizer.hpp"

#include <torch/torch.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::libtorch::detail {

/// Lends gradients, or copies them to where the library has buffers for them, and has them reduced.
template <class Core>
class ModuleGradients {
 public:
  /// @param core        may be constructed later; outlives this
  /// @param parameters  the module's, in the order of the core's tensors; they, too
  ModuleGradients(Core& core, std::vector<torch::Tensor> const& parameters)
      : core_(&core), parameters_(&parameters), ready_(parameters.size()) {}
  ModuleGradients(ModuleGradients const&) = delete;
  ModuleGradients& operator=(ModuleGradients const&) = delete;

  /// The first tensor that has this one's memory: itself, if it is not tied.
  [[nodiscard]] std::size_t storage_of(std::size_t t) const noexcept {
    return core_->partition().place(t).storage;
  }
  /// Does a tensor get gradients?
  [[nodiscard]] bool trained(std::size_t t) const noexcept {
    TensorPlace const& place = core_->partition().place(t);
    return !place.frozen && place.count > 0;
  }
  /// Refuses a gradient of a frozen tensor.
  /// @throws Error (invalid_argument), naming the parameter
  void require_described(std::size_t t) const {
    Tensor const& tensor = core_->tensors()[t];
    if (tensor.frozen) refuse_gradient_of_frozen(tensor.name, (*parameters_)[t]);
  }

  /// Reduces the gradients of a unit, which has these tensors, or says that there are none.
  void reduce(int u, std::vector<std::size_t> const& tensors) {
    std::vector<torch::Tensor> gradients;
    bool any = false;
    for (std::size_t const t : tensors) {
      gradients.push_back(take(t));
      any = any || gradients.back().defined();
    }
    if (!any) {
      core_->without_gradient(u);
    } else if constexpr (Core::borrowed) {
      lend(u, tensors, gradients);
    } else {
      copy(u, tensors, gradients);
    }
  }
  /// Called by the core when a unit's lent gradients are no longer read.
  void operator()(int unit) noexcept {
    for (std::size_t t = 0; t < ready_.size(); ++t) {
      if (core_->tensors()[t].unit == unit) ready_[storage_of(t)] = torch::Tensor();
    }
  }

 private:
  static constexpr bool accumulates_in_full = Core::Accumulation::full_gradients;

  /// What the backward pass has left of a tensor: nothing, if it did not come there.
  [[nodiscard]] torch::Tensor take(std::size_t t) {
    if (!trained(t)) return {};
    torch::Tensor gradient = std::exchange((*parameters_)[t].mutable_grad(), torch::Tensor());
    if (!gradient.defined()) return gradient;
    std::string const& name = core_->tensors()[t].name;
    require_plain("gradient of parameter", name, gradient);
    auto const& parts = zero::detail::EngineAccess::engine(*core_).parts();
    std::string const wire(zero::name(parts.types[parts.kind_of(t)].wire));
    if (zero::name(lent_span(gradient).dtype()) == wire) return gradient.detach();
    std::string const has = std::string("has the type ") + c10::toString(gradient.scalar_type());
    char const* const remedy = ": convert it with to(), or name a precision with such gradients";
    refuse("gradient of parameter", name, has + ", but is exchanged as " + wire + remedy);
  }
  void copy(int u,
            std::vector<std::size_t> const& tensors,
            std::vector<torch::Tensor> const& gradients) {
    torch::NoGradGuard const off;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      std::size_t const t = tensors[i];
      if (trained(t) && !gradients[i].defined()) core_->without_gradient(core_->tensors()[t]);
    }
    auto& engine = zero::detail::EngineAccess::engine(*core_);
    auto const epoch = engine.open(u, !accumulates_in_full);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      torch::Tensor buffer = torch::from_blob(engine.gradient(u, epoch, tensors[i]).first,
                                              gradients[i].sizes(),
                                              gradients[i].options().requires_grad(false));
      if (accumulates_in_full || tied(tensors[i])) {
        buffer.add_(gradients[i]);
      } else {
        buffer.copy_(gradients[i]);
      }
    }
    engine.reduce(u, epoch);
  }
  /// Lends them until they are free. What is tied, or adds up over micro-batches, stays where it
  /// was lent first.
  void lend(int u, std::vector<std::size_t> const& tensors, std::vector<torch::Tensor>& gradients) {
    torch::NoGradGuard const off;
    std::vector<LentSpan> lent;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      torch::Tensor& ready = ready_[storage_of(tensors[i])];
      if (gradients[i].defined() && ready.defined()) {
        ready.add_(gradients[i]);
      } else if (gradients[i].defined()) {
        ready = std::move(gradients[i]);
      }
      lent.push_back(ready.defined() ? lent_span(ready) : LentSpan());
    }
    core_->bind_gradients(u, lent);
    core_->reduce(core_->gradients(u));
  }
  [[nodiscard]] bool tied(std::size_t t) const noexcept {
    for (std::size_t other = 0; other < ready_.size(); ++other) {
      if (other != t && storage_of(other) == storage_of(t)) return true;
    }
    return false;
  }

  Core* core_;
  std::vector<torch::Tensor> const* parameters_;
  std::vector<torch::Tensor> ready_;  ///< lent gradients, by storage
};

}  // namespace zero::inline ZERO_NAMESPACE::libtorch::detail
