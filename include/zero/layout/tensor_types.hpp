/// @file
/// Which types each tensor is held in: a function of the model and of the precisions alone.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/layout/storage_types.hpp"
#include "zero/layout/tensor.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The types that a model's tensors are held in.
struct TensorTypes {
  KindTypes types{};  ///< those of precisions, then those that frozen tensors alone have
  /// Which of them each tensor has, as `Placement` takes it: empty if all have the first.
  std::vector<std::uint32_t> numbers{};
};

/// @param precisions  at least one, as `precision_count` says; a tensor that says nothing has the
///   first
/// @throws Error (invalid_argument), naming the tensor, if one that is trained is of a type that no
///   precision has, or one has a name in files that its type cannot have
ZERO_APART [[nodiscard]] ZERO_COLD TensorTypes
tensor_types(std::vector<Tensor> const& tensors, std::span<StorageTypes const> precisions);

#if ZERO_BODIES

ZERO_BODY TensorTypes tensor_types(std::vector<Tensor> const& tensors,
                                   std::span<StorageTypes const> precisions) {
  TensorTypes result{.types = KindTypes(precisions.begin(), precisions.end()), .numbers = {}};
  KindTypes& types = result.types;
  std::size_t const known = precision_count(precisions);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    Tensor const& tensor = tensors[t];
    auto const refuse = [&](Message const& why) {
      fail(ErrorKind::invalid_argument, {"tensor '", tensor.name, "' is ", why});
    };
    DType const dtype = tensor.dtype.value_or(types.front().parameter);
    std::size_t number = 0;
    while (number < types.size() && types[number].parameter != dtype) ++number;
    if (!tensor.frozen && number >= precisions.size()) {
      std::string why = ", which has no gradients: only a frozen one can be";
      if (!is_integral(dtype)) {
        why = ", which no precision here has";
        for (StorageTypes const& each : precisions.first(known)) {
          why += Message({&each == &precisions.front() ? ": " : ", ", name(each.parameter)}).text();
        }
      }
      refuse({"trained and of ", name(dtype), why});
    }
    FileDType const in_files = tensor.file_dtype;
    if (in_files != FileDType() && (!is_integral(dtype) || in_files.bytes() != size_of(dtype))) {
      std::string_view const called = in_files.known() ? in_files.name() : "that";
      refuse({"of ", name(dtype), ", so that files cannot call it ", called});
    }
    if (number == types.size()) {
      types.push_back({.parameter = dtype, .wire = dtype, .accumulate = dtype});
    }
    bool const in_full = tensor.full_states || element_count(tensor) < coded_from;
    if (!tensor.frozen && known < precisions.size() && in_full) number += known;
    if (number == 0) continue;
    if (result.numbers.empty()) result.numbers = std::vector<std::uint32_t>(tensors.size(), 0);
    result.numbers[t] = static_cast<std::uint32_t>(number);
  }
  return result;
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
