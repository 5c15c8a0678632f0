/// @file
/// The program around the cases, the same for threads and for processes.
#pragma once

#include "any_communicator.hpp"

#include <cstdint>
#include <functional>

namespace differential {

/// Ranks on which cases are played.
class World {
 public:
  using Body = std::function<void(AnyCommunicator&)>;

  World() = default;
  World(World const&) = delete;
  World& operator=(World const&) = delete;
  virtual ~World() = default;

  [[nodiscard]] virtual int most_ranks() const = 0;
  /// Calls `body` on every rank of a new group; throws what one of them throws.
  virtual void run(int ranks, std::uint64_t seed, Body const& body) = 0;
  /// Does this process speak for all?
  [[nodiscard]] virtual bool leads() const = 0;
  /// The leader's answer.
  virtual bool agree(bool answer) = 0;
  /// Does it survive a case that fails?
  [[nodiscard]] virtual bool survives() const = 0;
};

/// Runs cases as the command line says, until one fails. Returns the program's status.
int run_program(World& world, int argc, char** argv);

}  // namespace differential
