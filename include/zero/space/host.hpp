/// @file
/// Host memory: where a communicator's buffers live and which kernels work on them.
#pragma once

#include <string_view>

namespace zero::inline v0_1::space {

/// Ordinary memory of the process.
struct Host {
  static constexpr std::string_view name = "host";
};

}  // namespace zero::inline v0_1::space
