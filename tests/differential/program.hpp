/// @file
/// Plays cases on threads, processes or devices.
#pragma once

#include "any_communicator.hpp"

#include <cstdint>
#include <functional>

namespace differential {

/// What every rank of a group does.
struct Body {
  std::function<void(AnyCommunicator&)> on_host;
  std::function<void(AnyDevice&)> on_device;
};

/// Ranks on which cases are played.
class World {
 public:
  World() = default;
  World(World const&) = delete;
  World& operator=(World const&) = delete;
  virtual ~World() = default;

  [[nodiscard]] virtual int most_ranks() const { return 8; }
  /// Has it the memory of devices?
  [[nodiscard]] virtual bool has_devices() const { return false; }
  /// Calls one of `body` on every rank of a new group; throws what one of them throws.
  virtual void run(int ranks, std::uint64_t seed, Body const& body) = 0;
  /// Does this process speak for all?
  [[nodiscard]] virtual bool leads() const { return true; }
  /// Does it survive a case that fails?
  [[nodiscard]] virtual bool survives() const { return true; }
};

/// Runs cases as the command line says, until one fails. Returns the program's status, which is 0
/// if none has.
int run_program(World& world, int argc, char** argv);
/// Runs cases 1 to `runs`.
int run_cases(World& world, std::uint64_t runs);

}  // namespace differential
