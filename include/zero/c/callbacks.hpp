/// @file
/// Functions of a trainer in C as the library calls them: what they return becomes an error.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/c.h"
#include "zero/c/structs.hpp"
#include "zero/kernel/convert.hpp"
#include "zero/layout/storage_types.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/api/held_array.hpp"
#include "zero/optimizer/callables.hpp"
#include "zero/optimizer/held/elements.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/optimizer/setup/value_limits.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::c {

/// What a function writes of that type.
template <class Value>
inline constexpr zero::detail::Content content_of =
    std::is_same_v<Value, std::uint8_t> ? zero::detail::Content::bytes
                                        : zero::detail::Content::numbers;

/// Writes the values of tensors.
/// @tparam Value  that it writes: float or double, or bytes of opaque tensors
template <class Value>
class FillFunction {
 public:
  /// The trainer's.
  using Fill = std::int32_t (*)(std::int32_t, std::int64_t, std::int64_t, Value*, void*);

  /// @param fill    the function
  /// @param user    passed to it
  /// @param parts   whose values are asked for, by the numbers of tensors
  /// @throws Error (invalid_argument) if there is none
  FillFunction(Fill fill, void* user, zero::detail::Parts& parts)
      : fill_(fill), user_(user), parts_(&parts) {
    if (fill == nullptr) fail(ErrorKind::invalid_argument, "fill is null");
  }
  /// Calls it.
  void operator()(Tensor const& tensor, std::size_t first, zero::detail::Elements values) {
    constexpr bool opaque = content_of<Value> == zero::detail::Content::bytes;
    bool const same = opaque || parts_->kernels.types().value() == dtype_of<Value>;
    if (!same) values_.resize(values.count);
    std::int32_t const code = fill_(static_cast<std::int32_t>(&tensor - parts_->described.data()),
                                    static_cast<std::int64_t>(first),
                                    static_cast<std::int64_t>(values.count),
                                    same ? static_cast<Value*>(values.first) : values_.data(),
                                    user_);
    if (code != 0) {
      fail_with(ZERO_CALLBACK,
                {"zero: callback: fill returned ", code, " for '", tensor.name, "'"});
    }
    if constexpr (!opaque) {
      if (same) return;
      zero::detail::fit(*parts_,
                        parts_->overflow,
                        dtype_of<Value>,
                        {&tensor, first, values.count, values_.data(), {}});
      using Other = std::conditional_t<std::is_same_v<Value, float>, double, float>;
      kernel::convert(static_cast<Other*>(values.first), values_.data(), values.count);
    }
  }

 private:
  Fill fill_;
  void* user_;
  zero::detail::Parts* parts_;
  std::vector<Value> values_{};  ///< where another type is asked for
};

/// Numbers of `zero_coding`.
inline std::int32_t coding_of(Coding coding) noexcept {
  static_assert(static_cast<int>(Coding::root_scales) - static_cast<int>(Coding::root) + 1 ==
                ZERO_CODING_ROOT_SCALES);
  if (coding < Coding::root) return ZERO_CODING_VALUES;
  return static_cast<std::int32_t>(coding) - static_cast<std::int32_t>(Coding::root) + 1;
}

/// Is shown each array of a run of elements that a rank owns.
/// @tparam Shown  what it is given of an array: zero_owned or zero_held_array
template <class Shown>
class VisitFunction {
 public:
  /// @param visit  the function
  /// @param user   passed to it
  /// @param name   what messages call it
  /// @param model  whose tensors these are
  /// @param types  of each storage kind: which arrays there are. Constants, or the optimizer's
  /// @throws Error (invalid_argument) if there is none
  VisitFunction(std::int32_t (*visit)(Shown const*, void*),
                void* user,
                char const* name,
                std::vector<Tensor> const& model,
                std::span<StorageTypes const> types)
      : visit_(visit), user_(user), name_(name), model_(&model), types_(types) {
    if (visit == nullptr) fail(ErrorKind::invalid_argument, {name, " is null"});
    for (ArrayForm const& form : types.front().arrays) {
      if (form.coding != Coding::root_scales) arrays_.emplace_back(form.name);
    }
  }
  /// Calls it for each array of numbers.
  void operator()(zero::detail::OwnedRun const& run) const {
    for (std::size_t a = 0; a < arrays_.size(); ++a) {
      show({.size = sizeof(Shown),
            .name = run.tensor->name.c_str(),
            .array = arrays_[a].c_str(),
            .tensor = static_cast<std::int32_t>(run.tensor - model_->data()),
            .number = static_cast<std::int32_t>(a),
            .first = static_cast<std::int64_t>(run.first),
            .count = static_cast<std::int64_t>(run.count),
            .element_bytes = static_cast<std::int64_t>(size_of(types_[run.kind].arrays[a].dtype)),
            .data = a == 0 ? run.master : run.states[a - 1]});
    }
  }
  /// Calls it for an array as it is saved.
  void operator()(Tensor const& tensor, HeldArray const& held, std::span<std::byte> bytes) const {
    auto const array = std::find(arrays_.begin(), arrays_.end(), held.name);
    std::size_t const entry = size_of(held.dtype);
    static_assert(static_cast<int>(DType::u8) + 1 == ZERO_DTYPE_U8);
    show({.size = sizeof(Shown),
          .name = tensor.name.c_str(),
          .array = array->c_str(),
          .tensor = static_cast<std::int32_t>(&tensor - model_->data()),
          .number = static_cast<std::int32_t>(array - arrays_.begin()),
          .dtype = static_cast<std::int32_t>(held.dtype) + 1,
          .coding = coding_of(held.coding),
          .first = static_cast<std::int64_t>(held.first),
          .count = static_cast<std::int64_t>(bytes.size() / entry),
          .entry_bytes = static_cast<std::int64_t>(entry),
          .data = bytes.data()});
  }

 private:
  void show(Shown const& shown) const {
    std::int32_t const code = visit_(&shown, user_);
    if (code == 0) return;
    fail_with(ZERO_CALLBACK,
              {"zero: callback: ", name_, " returned ", code, " for '", shown.name, "'"});
  }

  std::int32_t (*visit_)(Shown const*, void*);
  void* user_;
  char const* name_;
  std::vector<Tensor> const* model_;
  std::span<StorageTypes const> types_;
  std::vector<std::string> arrays_{};  ///< their names, as C has them
};

/// Hears which unit's lent gradients are not read any more.
struct GradientsFreeFunction {
  zero_gradients_told function = nullptr;  ///< null for none
  void* user = nullptr;                    ///< passed to it
  /// Calls it.
  void operator()(int unit) const noexcept {
    if (function != nullptr) function(unit, user);
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::c
