#pragma once

namespace gpt {
/// Can this build save, resume and export?
inline constexpr bool has_checkpoints = true;
}  // namespace gpt
