/// @file
/// Until when the gradients that a trainer lends are read.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/function_ref.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Which units have lent gradients that may yet be read, and who is told when they may not.
class LentUnits {
 public:
  using Callback = FunctionRef<void(int)>;

  /// @param units  0 where the library owns gradients
  explicit LentUnits(std::size_t units) : in_use_(units, 0) {}

  [[nodiscard]] bool in_use(int unit) const noexcept {
    return in_use_[static_cast<std::size_t>(unit)] != 0;
  }
  /// From now on a unit's gradients may be read.
  void use(int unit) noexcept { in_use_[static_cast<std::size_t>(unit)] = 1; }
  void use_all() noexcept {
    for (std::uint8_t& each : in_use_) each = 1;
  }
  /// They are not read any more. Calls `forget(unit)` if they might have been until now, then who
  /// is told.
  template <class Forget>
  void free(int unit, Forget const& forget) {
    if (!in_use(unit)) return;
    in_use_[static_cast<std::size_t>(unit)] = 0;
    forget(unit);
    if (callback_) (*callback_)(unit);
  }
  template <class Forget>
  void free_all(Forget const& forget) {
    for (std::size_t u = in_use_.size(); u-- > 0;) free(static_cast<int>(u), forget);
  }
  void on_free(Callback callback) noexcept { callback_.emplace(callback); }

 private:
  std::vector<std::uint8_t> in_use_;
  std::optional<Callback> callback_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
