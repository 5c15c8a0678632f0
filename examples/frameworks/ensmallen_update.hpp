// An update policy for ensmallen's optimizers: what `ens::MomentumUpdate` does with a gradient is
// done by all ranks, each of which minimizes over its own samples.
#pragma once

#include <zero/zero.hpp>

#include <armadillo>
#include <cstddef>
#include <span>

/// Stands where `ens::MomentumUpdate` stood.
template <class Communicator, class Stage>
struct ShardedUpdate {
  Communicator* comm = nullptr;
  zero::Sgd rule{};

  /// What ensmallen makes of it for one `Optimize`.
  template <class Values, class Gradients>
  class Policy {
   public:
    Policy(ShardedUpdate const& parent, std::size_t rows, std::size_t columns)
        : opt_(*parent.comm, {{.name = "iterate", .shape = {columns, rows}}}, parent.rule) {}

    void Update(Values& iterate, double step_size, Gradients const& gradient) {
      opt_.bind(std::span(iterate.memptr(), iterate.n_elem),
                std::span(gradient.memptr(), gradient.n_elem));
      if (opt_.steps() == 0) opt_.adopt_parameters();
      opt_.set_lr(step_size);
      opt_.step();
    }

   private:
    zero::ShardedOptimizer<Communicator, Stage, zero::Fp64, zero::Borrowed<>, zero::Sgd> opt_;
  };
};
