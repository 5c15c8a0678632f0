/// @file
/// Several optimizers that are saved as one checkpoint, by name.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/boxes.hpp"
#include "zero/optimizer/engine.hpp"
#include "zero/optimizer/engine_access.hpp"
#include "zero/optimizer/parts.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// One of several optimizers that are saved as one checkpoint: `{"critic", &critic}`.
class NamedOptimizer {
 public:
  /// @param name       1 to 64 letters and digits of ASCII, '-', '_' and '.'
  /// @param optimizer  outlives this
  template <class Optimizer>
  NamedOptimizer(std::string name, Optimizer* optimizer)
      : name_(std::move(name)), engine_(&detail::EngineAccess::engine(*optimizer)) {}

  /// In messages and in names of files.
  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  /// What is behind it.
  [[nodiscard]] detail::Engine& engine() const noexcept { return *engine_; }

 private:
  std::string name_;
  detail::Engine* engine_;
};

namespace detail {

/// One optimizer, where a list of them is another overload.
template <class T>
concept OneOptimizer = !std::same_as<T, std::vector<NamedOptimizer>>;

/// What of "optimizer/tensor" is behind the name of an optimizer; all of it where that is empty,
/// and nothing if it is another one's.
[[nodiscard]] inline std::string_view tensor_of(std::string_view optimizer, std::string_view name) {
  if (optimizer.empty()) return name;
  bool const own = name.size() > optimizer.size() && name.starts_with(optimizer) &&
                   name[optimizer.size()] == '/';
  return own ? name.substr(optimizer.size() + 1) : std::string_view();
}

/// Those of the tensors of one optimizer.
[[nodiscard]] inline std::vector<TensorPart> parts_of(std::string_view optimizer,
                                                      std::vector<TensorPart> const& parts) {
  std::vector<TensorPart> own;
  for (TensorPart const& part : parts) {
    std::string const tensor(tensor_of(optimizer, part.tensor));
    if (tensor.empty()) continue;
    own.push_back(part);
    own.back().tensor = tensor;
  }
  return own;
}

/// @param optimizers  one without a name, or several with names
/// @param parts       of their tensors
/// @throws Error (invalid_argument) for names, optimizers and parts that make no sense
inline void require_distinct(std::span<NamedOptimizer const> optimizers,
                             std::vector<TensorPart> const& parts) {
  auto const refuse = [](Message const& why) { fail(ErrorKind::invalid_argument, why); };
  auto const comm_of = [](NamedOptimizer const& each) {
    return each.engine().parts().groups.world().ref().comm;
  };
  auto const letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  bool const alone = optimizers.size() == 1 && optimizers[0].name().empty();
  for (std::size_t i = 0; i < optimizers.size() && !alone; ++i) {
    std::string const& name = optimizers[i].name();
    if (name.empty() || name.size() > 64 || !std::all_of(name.begin(), name.end(), letter)) {
      refuse({"'",
              name,
              "' cannot be the name of an optimizer: it has 1 to 64 letters and digits "
              "of ASCII, '-', '_' and '.'"});
    }
    for (std::size_t k = 0; k < i; ++k) {
      NamedOptimizer const& before = optimizers[k];
      if (before.name() == name) refuse({"two optimizers are named '", name, "'"});
      if (&before.engine() == &optimizers[i].engine()) {
        refuse({"'", before.name(), "' and '", name, "' are one optimizer"});
      }
    }
    if (comm_of(optimizers[i]) != comm_of(optimizers[0])) {
      refuse({"'", optimizers[0].name(), "' and '", name, "' live over different communicators"});
    }
  }
  for (TensorPart const& part : parts) {
    auto const has = [&](NamedOptimizer const& each) {
      return !tensor_of(each.name(), part.tensor).empty();
    };
    if (std::any_of(optimizers.begin(), optimizers.end(), has)) continue;
    refuse({"the part of tensor '", part.tensor, "' is of none of these optimizers"});
  }
}

/// 'a', 'b'.
[[nodiscard]] inline std::string quoted(std::vector<std::string> const& names) {
  std::string text;
  for (std::string const& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
