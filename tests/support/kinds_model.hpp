/// @file
/// A model of tensors of several types, bytes among them, and a pass over it.
#pragma once

#include "support/standard.hpp"
#include "support/toy_model.hpp"
#include "zero/zero.hpp"

namespace kinds_model {

using zero::bf16;
using zero::DType;
using zero::Tensor;

/// The precisions of what is trained.
using Both = zero::ByTensor<zero::Mixed<bf16>, zero::Fp32>;

/// Matrices in bf16, norms in fp32, and a frozen base of bytes: units of three types, of one, and
/// of frozen tensors alone; tied, tiny, empty and odd ones; frozen ones of each type.
inline std::vector<Tensor> model() {
  return {{.name = "wte", .shape = {37, 5}, .unit = 0},
          {.name = "ln0", .shape = {77}, .unit = 0, .dtype = DType::f32},
          {.name = "codes", .shape = {1999}, .unit = 0, .dtype = DType::u8, .frozen = true},
          {.name = "qkv", .shape = {23, 89}, .unit = 1, .dtype = DType::bf16},
          {.name = "ln1", .shape = {511}, .unit = 1, .dtype = DType::f32, .weight_decay = 0.},
          {.name = "scales", .shape = {40}, .unit = 1, .dtype = DType::f32, .frozen = true},
          {.name = "old", .shape = {1031}, .unit = 1, .frozen = true},
          {.name = "none", .shape = {0, 7}, .unit = 2, .dtype = DType::f32},
          {.name = "c", .shape = {3}, .unit = 2, .learning_rate = 0.5},
          {.name = "base", .shape = {3}, .unit = 4, .dtype = DType::u8, .frozen = true},
          {.name = "w", .shape = {4097}, .unit = 5},
          {.name = "router", .shape = {1025}, .unit = 5, .dtype = DType::f32},
          {.name = "again", .shape = {77}, .unit = 6, .dtype = DType::f32, .tied_to = "ln0"},
          {.name = "head", .shape = {37, 5}, .unit = 6, .tied_to = "wte"},
          {.name = "more",
           .shape = {1999},
           .unit = 6,
           .dtype = DType::u8,
           .frozen = true,
           .tied_to = "codes"}};
}
inline DType type_of(Tensor const& tensor) { return tensor.dtype.value_or(DType::bf16); }
/// Calls `work` with an element of a tensor's type.
template <class Work>
void as_typed(Tensor const& tensor, Work const& work) {
  switch (type_of(tensor)) {
    case DType::f32: return work(float{});
    case DType::bf16: return work(bf16{});
    default: return work(std::uint8_t{});
  }
}
/// Bits of all parameters, in the order of tensors.
template <class O>
std::vector<std::byte> bits(O& optimizer) {
  std::vector<std::byte> all;
  auto const whole = optimizer.full_parameters();
  for (Tensor const& tensor : optimizer.tensors()) {
    as_typed(tensor, [&]<class T>(T) {
      auto const bytes = std::as_bytes(whole.template as<T>(tensor.name));
      all.insert(all.end(), bytes.begin(), bytes.end());
    });
  }
  return all;
}
/// The number of a name in the whole model; tied tensors begin as what they are tied to.
inline std::size_t number(std::string const& name) {
  static auto const all = model();
  auto const at =
      std::find_if(all.begin(), all.end(), [&](Tensor const& each) { return each.name == name; });
  return static_cast<std::size_t>(at - all.begin());
}
inline std::string const& storage(Tensor const& tensor) {
  return tensor.tied_to.empty() ? tensor.name : tensor.tied_to;
}

inline void fill(Tensor const& tensor, std::size_t first, std::span<float> out) {
  std::size_t const t = number(storage(tensor));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = toy::initial_value(t, first + i);
}
inline std::byte byte_of(std::size_t number, std::size_t i) {
  return static_cast<std::byte>(number * 31 + i * 7 + i / 256);
}
inline void fill_bytes(Tensor const& tensor, std::size_t first, std::span<std::byte> out) {
  std::size_t const t = number(storage(tensor));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = byte_of(t, first + i);
}
inline bool right(Tensor const& tensor, std::span<std::uint8_t const> bytes) {
  std::size_t const t = number(storage(tensor));
  bool same = bytes.size() == zero::element_count(tensor);
  for (std::size_t i = 0; same && i < bytes.size(); ++i) {
    same = static_cast<std::byte>(bytes[i]) == byte_of(t, i);
  }
  return same;
}

/// A micro-batch of all that an optimizer has, each tensor in the type that `type` says.
template <class O, class Type, class Expect>
void pass(O& optimizer, long step, int batch, Type const& type, Expect const& expect) {
  auto const look = [&](auto const& weights, Tensor const& tensor) {
    if (type(tensor) == DType::u8) {
      expect(right(tensor, weights.template as<std::uint8_t>(tensor.name)), tensor.name);
    }
  };
  auto const each = [&](int unit, auto const& work) {
    for (Tensor const& tensor : optimizer.tensors()) {
      if (tensor.unit == unit) work(tensor);
    }
  };
  for (int const unit : optimizer.units()) {
    auto const weights = optimizer.parameters(unit);
    each(unit, [&](Tensor const& tensor) { look(weights, tensor); });
  }
  for (int const unit : optimizer.units_backward()) {
    auto const weights = optimizer.parameters(unit);
    auto gradients = optimizer.gradients(unit);
    each(unit, [&](Tensor const& tensor) {
      look(weights, tensor);
      if (tensor.frozen) return;
      auto const add = [&]<class T>(T) {
        toy::backward({},
                      number(tensor.name),
                      step,
                      batch,
                      optimizer.loss_scale(),
                      weights.template as<T>(tensor.name),
                      gradients.template as<T>(tensor.name));
      };
      type(tensor) == DType::f32 ? add(float{}) : add(bf16{});
    });
    optimizer.reduce(std::move(gradients));
  }
}

}  // namespace kinds_model
