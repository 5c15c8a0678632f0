/// @file
/// A LibTorch model as the library describes models.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/api/lent_span.hpp"

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::libtorch {

/// A model: what the library is told of it, and the tensors themselves. `tensors` may be edited
/// (groups, scales) before an optimizer is made of it.
struct Description {
  std::vector<Tensor> tensors{};                  ///< in the order of `parameters`
  std::vector<torch::Tensor> parameters{};        ///< the module's own, not copies
  std::vector<torch::nn::Module const*> units{};  ///< by number: what `Sharded` calls
};

/// What becomes of a parameter that requires no gradient when it is described.
enum class Frozen {
  stays,     ///< it has no states, and a gradient that it gets nevertheless is an error
  may_thaw,  ///< it is described as trained: it has states, and rests while it has no gradient;
             ///< integers, which can have none, stay frozen
};

namespace detail {

/// The library's type for one of LibTorch: bytes for what it has no arithmetic for; none for what
/// has another width.
[[nodiscard]] inline std::optional<DType> library_type(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat: return DType::f32;
    case torch::kDouble: return DType::f64;
    case torch::kBFloat16: return DType::bf16;
    case torch::kHalf: return DType::f16;
    case torch::kInt: return DType::i32;
    case torch::kLong: return DType::i64;
    default: break;
  }
  return c10::elementSize(type) == 1 ? std::optional(DType::u8) : std::nullopt;
}
[[noreturn]] inline void refuse(std::string const& what,
                                std::string const& name,
                                std::string const& why) {
  fail(ErrorKind::invalid_argument, {"libtorch: ", what, " '", name, "' ", why});
}

/// What a parameter has among its dispatch keys whose memory is exchanged; of newer releases, only
/// while it has none. No release has an operation for it: it is reserved for modules that are
/// initialised later.
inline constexpr c10::DispatchKey exchanged = c10::DispatchKey::DeferredInit;

/// The tensors of an operation's argument, or of its result.
[[nodiscard]] inline std::vector<torch::Tensor> tensors_in(c10::IValue const& value) {
  if (value.isTensor()) return {value.toTensor()};
  return value.isTensorList() ? value.toTensorVector() : std::vector<torch::Tensor>();
}

/// What any tensor that is lent or moved has to be.
inline void require_plain(std::string const& what,
                          std::string const& name,
                          torch::Tensor const& tensor) {
  if (tensor.key_set().has(exchanged)) {
    refuse(what,
           name,
           "has no values: its module is, or was, of a Sharded under Pos+g+p, which holds them as "
           "long as it lives; save them before, and give a new module to what comes after");
  }
  if (tensor.layout() != torch::kStrided) {
    refuse(what, name, "is sparse; only dense ones are reduced: build its module without sparse()");
  }
  if (!tensor.device().is_cpu()) {
    refuse(what,
           name,
           "lies on " + tensor.device().str() + "; this adapter works in the host's memory");
  }
  if (!tensor.is_contiguous()) {
    refuse(what,
           name,
           "is a view whose elements do not lie one after the other; make it contiguous() before "
           "it is registered");
  }
}

/// Was a tensor given another storage than the one that is used here?
[[nodiscard]] inline bool has_storage_of(torch::Tensor const& tensor,
                                         torch::Tensor const& other) noexcept {
  return tensor.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
         tensor.scalar_type() == other.scalar_type() &&
         tensor.storage_offset() == other.storage_offset();
}
[[noreturn]] inline void refuse_other_memory(std::string const& name) {
  refuse(
      "parameter",
      name,
      "was given other memory, as set_data(), to() and torch::load() do: call "
      "adopt_parameters() of an Optimizer first; of a Sharded, do so before, or use its core()'s "
      "load_parameters() instead");
}

/// Is this module asked to make sparse gradients? The gradient itself would say so too late.
inline void refuse_sparse(std::string const& name, torch::nn::Module& module) {
  auto const* const embedding = module.as<torch::nn::EmbeddingImpl>();
  auto const* const bag = module.as<torch::nn::EmbeddingBagImpl>();
  if ((embedding != nullptr && embedding->options.sparse()) ||
      (bag != nullptr && bag->options.sparse())) {
    refuse(
        "module", name, "makes sparse gradients, which are not reduced: build it without sparse()");
  }
}

[[nodiscard]] inline std::uintptr_t begin_of(torch::Tensor const& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data_ptr());
}

[[nodiscard]] inline std::string joined(std::string const& prefix, std::string const& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

/// What a parameter has to be rid of that is described as frozen.
inline void refuse_gradient_of_frozen(std::string const& name, torch::Tensor const& parameter) {
  if (!parameter.grad().defined()) return;
  refuse("parameter",
         name,
         "has a gradient, but required none when it was described, and is not trained: describe "
         "the model with Frozen::may_thaw if it is to train later, or else clear the gradient");
}

/// Adds one parameter: described, and tied to the one before that has its memory.
inline void add(
    Description& model, std::string name, torch::Tensor const& parameter, int unit, Frozen frozen) {
  require_plain("parameter", name, parameter);
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.unit = unit;
  tensor.dtype = library_type(parameter.scalar_type());
  if (parameter.scalar_type() == torch::kChar) tensor.file_dtype = "I8";
  if (parameter.scalar_type() == torch::kBool) tensor.file_dtype = "BOOL";
  bool const stays = frozen == Frozen::stays || !parameter.is_floating_point();
  tensor.frozen = stays && !parameter.requires_grad();
  for (auto const extent : parameter.sizes()) {
    tensor.shape.push_back(static_cast<std::size_t>(extent));
  }
  for (std::size_t t = 0; t < model.parameters.size(); ++t) {
    torch::Tensor const& other = model.parameters[t];
    Tensor const& described = model.tensors[t];
    if (!described.tied_to.empty() || parameter.nbytes() == 0 || other.nbytes() == 0) continue;
    if (begin_of(parameter) >= begin_of(other) + other.nbytes() ||
        begin_of(other) >= begin_of(parameter) + parameter.nbytes()) {
      continue;
    }
    if (begin_of(parameter) != begin_of(other) || described.shape != tensor.shape ||
        described.dtype != tensor.dtype) {
      refuse("parameter",
             tensor.name,
             "shares a part of its memory with '" + described.name +
                 "'; tied parameters have the same elements in the same shape");
    }
    if (described.frozen != tensor.frozen) {
      refuse("parameter",
             tensor.name,
             "is tied to '" + described.name + "', and one of them is frozen, the other not");
    }
    tensor.tied_to = described.name;
  }
  model.tensors.push_back(std::move(tensor));
  model.parameters.push_back(parameter);
}

/// The same, as memory that is lent; of a type that the library lacks, as bytes.
[[nodiscard]] inline LentSpan lent_span(torch::Tensor const& tensor) {
  return {tensor.data_ptr(),
          static_cast<std::size_t>(tensor.numel()),
          library_type(tensor.scalar_type()).value_or(DType::u8)};
}

/// The description, whose tensors are of the types that parameters have, if it fits these.
[[nodiscard]] inline Description& checked(Description& model) {
  if (model.tensors.size() != model.parameters.size()) {
    fail(ErrorKind::invalid_argument,
         {"libtorch: ",
          model.tensors.size(),
          " tensors are described, but there are ",
          model.parameters.size(),
          " parameters"});
  }
  for (std::size_t t = 0; t < model.parameters.size(); ++t) {
    Tensor& tensor = model.tensors[t];
    auto const type = model.parameters[t].scalar_type();
    std::optional<DType> const own = library_type(type);
    std::string const has = std::string("has the type ") + c10::toString(type);
    if (!own) refuse("parameter", tensor.name, has + ", and the library none of its width");
    if (tensor.dtype.value_or(*own) != *own) {
      refuse("parameter",
             tensor.name,
             has + ", but was described as " + std::string(zero::name(*tensor.dtype)));
    }
    tensor.dtype = own;
  }
  return model;
}

}  // namespace detail

/// Describes all parameters of a module, with the names and in the order of `named_parameters()`:
/// shapes; ties, where two are one tensor or have one memory; frozen where they require no
/// gradient. All are of unit 0, the module itself. Buffers are not parameters, and stay the rank's
/// own. Local.
/// @param module  defined on the host, without sparse gradients
/// @param frozen  whether what requires no gradient now may do so later
/// @throws Error (invalid_argument), naming the parameter: on a device, sparse, a view with
///   gaps, or with a part of another's memory
[[nodiscard]] inline Description describe(torch::nn::Module& module,
                                          Frozen frozen = Frozen::stays) {
  // Without itself, which a module that is no shared pointer's cannot list.
  detail::refuse_sparse(module.name(), module);
  for (auto const& each : module.named_modules("", false)) {
    detail::refuse_sparse(each.key(), *each.value());
  }
  Description model;
  model.units.push_back(&module);
  for (auto const& each : module.named_parameters())
    detail::add(model, each.key(), each.value(), 0, frozen);
  return model;
}

}  // namespace zero::inline ZERO_NAMESPACE::libtorch
