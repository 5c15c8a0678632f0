/// @file
/// A training step of a transformer in virtual time: which products, which collectives, in the
/// order of a trainer's loop.
#pragma once

#include "../simulate/communicator.hpp"
#include "../simulate/timeline.hpp"
#include "cluster.hpp"
#include "collectives.hpp"
#include "device.hpp"
#include "transformer.hpp"
#include "world.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/optimizer/api/guards.hpp"
#include "zero/optimizer/api/step_options.hpp"
#include "zero/sharded_optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

namespace plan {

using namespace zero;

/// Where the data axis of a run lies on a cluster: ranks of one model are neighbours.
[[nodiscard]] inline Placement data_axis(Setup const& setup, Cluster const& cluster) {
  int const per_node = (std::max)(1, cluster.devices_per_node / setup.model_parallel);
  int const groups = (std::min)(setup.model_parallel, cluster.devices_per_node);
  return {.size = setup.models(), .per_node = per_node, .sharing = groups};
}
/// Where its model axis lies.
[[nodiscard]] inline Placement model_axis(Setup const& setup, Cluster const& cluster) {
  int const size = setup.model_parallel;
  return {.size = size, .per_node = (std::min)(size, cluster.devices_per_node)};
}

/// Floating-point operations of a step, for the figures that papers print.
struct Operations {
  double model = 0.;     ///< that the model needs: MFU counts them
  double hardware = 0.;  ///< and those of blocks that are computed again: HFU
};
/// Of all ranks of one model. For GPT-2's kind 72·b·s·L·h²·(1 + s/6h + V/12Lh), and a third of the
/// blocks' once more where they are computed again. All scores count, those of later words too.
/// @par Source  arXiv 2104.04473, §5.1; MFU: arXiv 2204.02311, appendix B
[[nodiscard]] Operations operations(Setup const& setup);

/// The pieces of a GPT's step, divided over a model axis as Megatron does (arXiv 1909.08053 §3):
/// matrix products, passes through memory, and the collectives of the model axis, whose results are
/// needed at once.
class Pass {
 public:
  /// @param world  whose time passes; outlives the pass
  /// @param setup  what is trained, and how
  Pass(World& world, Setup const& setup) : world_(&world), setup_(setup) {}

  /// The forward pass of a unit.
  void forward(int unit) const;
  /// Its backward pass, after what is computed again.
  void backward(int unit) const;

 private:
  /// Seconds of a block's forward pass.
  [[nodiscard]] double products() const;
  [[nodiscard]] double rows() const;
  [[nodiscard]] double attention(bool backward) const;
  void layer(bool backward, std::string_view what, int unit) const;
  void head(double times, std::string_view what, int unit) const;
  void checkpoint(bool stores, int unit) const;
  /// Of elements of 16 bits.
  void exchange(Op op, double block_bytes) const {
    if (setup_.model_parallel == 1) return;
    Placement const axis = model_axis(setup_, world_->cluster());
    auto const count = static_cast<std::uint64_t>(block_bytes / 2.);
    world_->timeline().block(op, world_->cost(axis, {op, count, 2, 4}), axis.nodes() > 1);
  }
  [[nodiscard]] double tokens() const {
    return static_cast<double>(setup_.batch) * static_cast<double>(setup_.model.sequence);
  }
  [[nodiscard]] double share(double of) const { return std::ceil(of / setup_.model_parallel); }

  static constexpr double read_and_written = 4.;  // of an element of 16 bits

  World* world_;
  Setup setup_;
};

/// Any model's computation: puts the passes of a unit on the timeline, as `Pass` does a GPT's.
struct Computation {
  std::function<void(int unit)> forward;   ///< computes one unit
  std::function<void(int unit)> backward;  ///< its gradients
};

/// What one step took.
struct StepTime {
  double seconds = 0.;      ///< of virtual time, refresh included
  double computed = 0.;     ///< of it, in kernels
  double exposed = 0.;      ///< of it, in which computation waited for collectives
  Operations operations{};  ///< of one device

  /// Operations of the hardware a second, of one device.
  [[nodiscard]] double rate() const { return operations.hardware / seconds; }
};

/// One step of an optimizer over a simulated communicator: forward and backward passes of all
/// micro-batches in the order of the units, and the update.
/// @param optimizer  on that communicator
/// @param world      its
/// @param setup      what is trained, and how
/// @param pass       puts computation on the timeline by `forward(unit)` and `backward(unit)`
/// @param options    of the update
template <class P, class... Policies>
StepTime step(ShardedOptimizer<Policies...>& optimizer,
              World& world,
              Setup const& setup,
              P const& pass,
              StepOptions const& options = {.max_norm = 1.}) {
  simulate::Timeline const& time = world.timeline();
  StepTime taken{.seconds = -time.now(),
                 .computed = -time.computed(),
                 .exposed = -time.exposed(),
                 .operations = operations(setup)};
  taken.operations.model /= setup.model_parallel;
  taken.operations.hardware /= setup.model_parallel;
  for (std::uint64_t micro = 0; micro < setup.micro_steps; ++micro) {
    if (setup.micro_steps > 1) optimizer.micro_step();
    for (int const unit : optimizer.units()) {
      auto const parameters = optimizer.parameters(unit);
      pass.forward(unit);
    }
    for (int const unit : optimizer.units_backward()) {
      auto const parameters = optimizer.parameters(unit);
      auto gradients = optimizer.gradients(unit);
      pass.backward(unit);
      optimizer.reduce(std::move(gradients));
    }
  }
  optimizer.step(options);
  optimizer.settle();
  taken.seconds += time.now();
  taken.computed += time.computed();
  taken.exposed += time.exposed();
  return taken;
}

/// The second step of a run: the first one gathers what others have in advance.
/// @tparam First     one policy
/// @tparam Policies  the others: stage, precision, accumulation, rule
/// @param world  a fresh one; its timeline keeps events of that step alone, if of any
/// @param setup  what is trained, and how; its names of policies are not read
/// @param pass   computes: see `step`
/// @throws Error (invalid_argument) as `plan_device` for a setup that makes no sense
template <class First, class... Policies, class P>
StepTime steady_step(World& world, Setup const& setup, P const& pass) {
  bool const keeps = world.timeline().keep_events(false);
  simulate::Communicator comm(world, data_axis(setup, world.cluster()));
  ShardedOptimizer<simulate::Communicator, Owned<simulate::Allocator>, First, Policies...>
      optimizer(comm,
                describe(setup.model, setup.model_parallel),
                world.memory(),
                setup.bucket,
                setup.prefetch);
  optimizer.adopt_parameters();
  optimizer.check_parameters();
  step(optimizer, world, setup, pass);
  world.timeline().keep_events(keeps);
  return step(optimizer, world, setup, pass);
}

inline Operations operations(Setup const& setup) {
  Transformer const& model = setup.model;
  auto const h = static_cast<double>(model.hidden);
  auto const queries = static_cast<double>(model.query_width());
  auto const inner = static_cast<double>(model.inner_width());
  double const weights = h * (2. * queries + 2. * static_cast<double>(model.key_width())) +
                         (model.gated ? 3. : 2.) * h * inner;
  double const tokens = static_cast<double>(setup.tokens() * setup.micro_steps);
  double const scores = 2. * static_cast<double>(model.sequence) * queries;
  double const blocks = 2. * tokens * model.layers * (weights + scores);
  double const head = 2. * tokens * h * static_cast<double>(model.vocab);
  double const again = setup.activations == "keep" ? 0. : blocks;
  return {.model = 3. * (blocks + head), .hardware = 3. * (blocks + head) + again};
}

inline void Pass::forward(int unit) const {
  if (unit == 0) return;
  if (unit > setup_.model.layers) return head(1., "forward", unit);
  checkpoint(true, unit);
  layer(false, "forward", unit);
}

inline void Pass::backward(int unit) const {
  if (unit == 0) return;
  if (unit > setup_.model.layers) return head(2., "backward", unit);
  if (setup_.activations != "keep") {
    checkpoint(false, unit);
    layer(false, "recompute", unit);
  }
  layer(true, "backward", unit);
}

inline double Pass::products() const {
  Device const& device = world_->cluster().device;
  Transformer const& model = setup_.model;
  double const T = tokens();
  auto const h = static_cast<double>(model.hidden);
  auto const queries = static_cast<double>(model.query_width());
  auto const inner = static_cast<double>(model.inner_width());
  double const all_three = queries + 2. * static_cast<double>(model.key_width());
  return device.product(T, share(all_three), h) + device.product(T, h, share(queries)) +
         device.product(T, share(model.gated ? 2. * inner : inner), h) +
         device.product(T, h, share(inner));
}

inline double Pass::attention(bool backward) const {
  Device const& device = world_->cluster().device;
  Transformer const& model = setup_.model;
  auto const s = static_cast<double>(model.sequence);
  auto const width = static_cast<double>(model.query_width());
  if (setup_.attention == "fused") {
    // Of each sequence's scores, the half that looks back; in the backward pass five products of
    // this size instead of two.
    double const forward = 2. * tokens() * s * share(width);
    return device.attention(backward ? 2.5 * forward : forward);
  }
  auto const heads = static_cast<double>(model.heads);
  double const pieces = share(heads) * static_cast<double>(setup_.batch);
  double const seconds = device.product(s, s, width / heads, pieces) +
                         device.product(s, width / heads, s, pieces) +
                         3. * device.pass(read_and_written * pieces * s * s);
  if (!backward) return seconds;
  return setup_.attention == "selective" ? 3. * seconds : 2. * seconds;
}

inline double Pass::rows() const {
  Device const& device = world_->cluster().device;
  auto const h = static_cast<double>(setup_.model.hidden);
  auto const inner = static_cast<double>(setup_.model.inner_width());
  double const narrow = read_and_written * tokens() * (setup_.sequence_parallel ? share(h) : h);
  // Norms, dropout and sums; the activation and what gates it.
  return (setup_.fused_rows ? 4. : 6.) * device.pass(narrow) +
         (setup_.model.gated ? 3. : 2.) * device.pass(read_and_written * tokens() * share(inner));
}

inline void Pass::layer(bool backward, std::string_view what, int unit) const {
  double const times = backward ? 2. : 1.;
  double const seconds = times * products() + attention(backward) + times * rows();
  world_->timeline().compute(seconds, what, unit);
  // Of the results of attention and of the wide rows; in backward passes of gradients.
  double const h = static_cast<double>(setup_.model.hidden);
  for (int i = 0; i < 2; ++i) exchange(Op::all_reduce, 2. * tokens() * h);
}

inline void Pass::head(double times, std::string_view what, int unit) const {
  Device const& device = world_->cluster().device;
  double const T = tokens();
  auto const h = static_cast<double>(setup_.model.hidden);
  double const words = share(static_cast<double>(setup_.model.vocab));
  // The loss reads and writes scores in fp32.
  double const seconds = device.product(T, words, h) + 3. * device.pass(8. * T * words);
  world_->timeline().compute(times * seconds, what, unit);
  exchange(Op::all_reduce, 2. * T * h);
}

inline void Pass::checkpoint(bool stores, int unit) const {
  bool const slower = setup_.activations == "pa+cpu";
  if (!slower && setup_.activations != "pa") return;
  double const bytes = 2. * tokens() * share(static_cast<double>(setup_.model.hidden));
  Link const& host = world_->cluster().host;
  if (slower) {
    double const seconds = host.latency + bytes / host.rate_of(bytes);
    world_->timeline().compute(seconds, stores ? "store checkpoint" : "fetch checkpoint", unit);
  }
  if (!stores) exchange(Op::all_gather, bytes);
}

}  // namespace plan
