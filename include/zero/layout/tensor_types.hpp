/// @file
/// Which types each tensor is held in: a function of the model and of the precisions alone.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/layout/storage_types.hpp"
#include "zero/layout/tensor.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The types that a model's tensors are held in.
struct TensorTypes {
  KindTypes types{};  ///< those of precisions, then those that frozen tensors alone have
  /// Which of them each tensor has, as `Placement` takes it: empty if all have the first.
  std::vector<std::uint32_t> numbers{};
};

/// @param precisions  at least one; a tensor that says nothing has the first
/// @throws Error (invalid_argument), naming the tensor, if one that is trained is of a type that no
///   precision has, or one has a name in files that its type cannot have
ZERO_APART [[nodiscard]] ZERO_COLD TensorTypes
tensor_types(std::vector<Tensor> const& tensors, std::span<StorageTypes const> precisions);

#if ZERO_BODIES

ZERO_BODY TensorTypes tensor_types(std::vector<Tensor> const& tensors,
                                   std::span<StorageTypes const> precisions) {
  TensorTypes result;
  KindTypes& types = result.types;
  types.assign(precisions.begin(), precisions.end());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    Tensor const& tensor = tensors[t];
    DType const dtype = tensor.dtype.value_or(types.front().parameter);
    auto const known = std::find_if(types.begin(), types.end(), [&](StorageTypes const& each) {
      return each.parameter == dtype;
    });
    auto const number = static_cast<std::size_t>(known - types.begin());
    if (!tensor.frozen && number >= precisions.size()) {
      std::string listed;
      for (StorageTypes const& each : precisions) {
        listed += Message({listed.empty() ? "" : ", ", name(each.parameter)}).text();
      }
      Message const why = is_integral(dtype)
                              ? Message{", which has no gradients: only a frozen one can be"}
                              : Message{", which no precision here has: ", listed};
      fail(ErrorKind::invalid_argument,
           {"tensor '", tensor.name, "' is trained and of ", name(dtype), why});
    }
    FileDType const in_files = tensor.file_dtype;
    if (in_files != FileDType() && (!is_integral(dtype) || in_files.bytes() != size_of(dtype))) {
      fail(ErrorKind::invalid_argument,
           {"tensor '",
            tensor.name,
            "' is of ",
            name(dtype),
            ", so that files cannot call it ",
            in_files.known() ? in_files.name() : "that"});
    }
    if (known == types.end()) {
      types.push_back({.parameter = dtype, .wire = dtype, .accumulate = dtype});
    }
    if (number != 0 && result.numbers.empty()) result.numbers.resize(tensors.size(), 0);
    if (number != 0) result.numbers[t] = static_cast<std::uint32_t>(number);
  }
  return result;
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
