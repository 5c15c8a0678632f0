/// @file
/// What trainers of LibTorch say between steps, and what a step leaves behind in their tensors.
#pragma once

#include "zero/adapt/libtorch/model_description.hpp"
#include "zero/base/config.hpp"
#include "zero/base/function_ref.hpp"
#include "zero/optimizer/api/step_options.hpp"
#include "zero/optimizer/engine.hpp"
#include "zero/optimizer/engine_access.hpp"
#include "zero/optimizer/parts.hpp"

#include <torch/torch.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::libtorch::detail {

/// A norm for the next step, where its options name none.
class Settings {
 public:
  void clip_next(double max_norm) noexcept { max_norm_ = max_norm; }
  /// What a step's options leave open. The norm counts once.
  [[nodiscard]] StepOptions complete(StepOptions options) noexcept {
    std::optional<double> const max_norm = std::exchange(max_norm_, std::nullopt);
    if (!options.max_norm) options.max_norm = max_norm;
    return options;
  }

 private:
  std::optional<double> max_norm_{};
};

/// Whether lent parameters lie where they were lent, and whether somebody else has written into
/// those that have masters, which know nothing of it: autograd counts writes, but for the
/// library's.
template <class Core>
class WriteWatch {
 public:
  using Use = zero::detail::WatchedUse;

  /// @param core        over these parameters; is told, and outlives this
  /// @param parameters  likewise
  WriteWatch(Core& core, std::vector<torch::Tensor> const& parameters)
      : core_(&core), parameters_(&parameters) {
    zero::detail::EngineAccess::engine(core).watch_parameters(
        zero::detail::FunctionRef<void(Use)>(*this));
  }
  WriteWatch(WriteWatch const&) = delete;
  WriteWatch& operator=(WriteWatch const&) = delete;

  /// A step changes values under graphs that autograd may still hold: their backward pass has to
  /// find out.
  void count_step() {
    for (torch::Tensor const& each : *parameters_) each.unsafeGetTensorImpl()->bump_version();
    (*this)(Use::set);
  }
  /// What an engine tells.
  /// @throws Error (invalid_argument), naming the first parameter that was given other memory or,
  ///   where it matters, was written to
  void operator()(Use use) {
    if (use == Use::set) seen_.clear();
    for (std::size_t t = 0; t < parameters_->size(); ++t) {
      torch::Tensor const& parameter = (*parameters_)[t];
      Tensor const& tensor = core_->tensors()[t];
      auto const version = parameter._version();
      if (use == Use::set) {
        seen_.push_back(version);
        continue;
      }
      auto& engine = zero::detail::EngineAccess::engine(*core_);
      if constexpr (Core::borrowed) {
        if (parameter.data_ptr() != engine.whole_parameter(t).first) {
          refuse_other_memory(tensor.name);
        }
      }
      auto const& parts = engine.parts();
      bool const masters = Core::borrowed && parts.types[parts.kind_of(t)].has_whole_master();
      bool const asked = masters && use == Use::masters && !tensor.frozen && !seen_.empty();
      if (!asked || version == seen_[t]) continue;
      refuse("parameter",
             tensor.name,
             "was written to, but its master weight was not, so that the next update would undo "
             "it: change master weights with core().fill_owned() or core().load_parameters(), or "
             "have them start from what was written, with adopt_parameters()");
    }
  }

 private:
  Core* core_;
  std::vector<torch::Tensor> const* parameters_;
  std::vector<std::int64_t> seen_{};
};

}  // namespace zero::inline ZERO_NAMESPACE::libtorch::detail
