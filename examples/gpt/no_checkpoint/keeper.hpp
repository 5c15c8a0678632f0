/// @file
/// In the place of checkpoint/keeper.hpp where the library's checkpoints cannot be built.
#pragma once

#include "options.hpp"
#include "tensors.hpp"
#include "text.hpp"

#include <functional>
#include <string>

namespace gpt {

template <class Optimizer>
class Keeper {
 public:
  Keeper(Optimizer&,
         Options const&,
         Text const&,
         ModelRank const&,
         std::function<void(std::string const&)> const&) {}
  int resume() { return 0; }
  void end_step(int, bool) {}
  void end_training(bool) {}
};

}  // namespace gpt
