/// @file
/// Numbers of GPT-2, which a host and a device compute with.
#pragma once

namespace gpt {

// GELU: x/2 (1 + tanh(u)), u = √(2/π) (x + 0.044715 x³).
template <class Real>
inline constexpr Real gelu_slope = Real(0.79788456080286535588);
template <class Real>
inline constexpr Real gelu_cubic = Real(0.044715);

/// What a layer norm adds to a variance.
template <class Real>
inline constexpr Real norm_epsilon = Real(1e-5);

}  // namespace gpt
