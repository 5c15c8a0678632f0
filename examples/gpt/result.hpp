/// @file
/// What a run leaves behind, and who writes it down while ranks train.
#pragma once

#include "options.hpp"
#include "zero/zero.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace gpt {

/// The outcome of training under one stage.
struct StageResult {
  std::string stage;
  std::string precision;
  std::string rule;
  int ranks = 0;
  int first_step = 0;          ///< that this run took; greater than 0 if it was resumed
  std::vector<double> losses;  ///< mean over all micro-batches of each step, in nats
  std::vector<double> norms;
  std::string configuration;    ///< by which the policies were named, or empty
  std::string activations;      ///< as `--activations` names them
  zero::MemoryBytes planned{};  ///< by optimizer and activation checkpoints
  zero::MemoryBytes held{};     ///< by them
  /// Of `planned`, what a trained parameter takes on a rank: itself, its gradient, what is held for
  /// its master and its optimizer states. The frozen base, pools and buckets are not counted.
  double bytes_per_parameter = 0.;
  std::uint64_t base = 0;         ///< of `held`, the parameters of a frozen base
  std::uint64_t held_slower = 0;  ///< of activation checkpoints, in the slower memory
  std::uint64_t working = 0;      ///< that the model computes with
  std::uint64_t needed = 0;  ///< the smallest budget that would have been enough, if there was one
  std::uint64_t predicted_elements = 0;  ///< sent per rank and step
  std::uint64_t counted_elements = 0;
  double tokens_per_s = 0.;
  std::vector<double> step_seconds;  ///< of all steps but the first, on rank 0
  /// On a device: of those steps, in which rank 0's stream was busy with the model's own work on
  /// the last micro-batch.
  std::vector<double> model_seconds;
  std::uint64_t device_bytes = 0;  ///< that a device has given to its ranks, as the device counts
  /// Of every bit of parameters, master weights and optimizer states at the end.
  std::uint64_t checksum = 0;
  bool interrupted = false;
  std::string sample;
};

/// Called on rank 0 after every step.
struct Progress {
  int step = 0;
  double loss = 0.;
  double grad_norm = 0.;
  double tokens_per_s = 0.;
  bool skipped = false;
  std::string note;  ///< something else to tell the user; there is no step then
};
using ShowProgress = std::function<void(Progress const&)>;

/// Measures one rank's run. Its exchanges go past the counted communicator, so that the traffic it
/// reports is the optimizer's alone.
template <zero::Communicator World>
class Recorder {
 public:
  using Clock = std::chrono::steady_clock;

  /// @param word  where the host cannot reach the ranks' memory, 8 bytes of it for numbers that are
  ///   added
  Recorder(World& world,
           zero::Counting<World>& counted,
           Options const& options,
           std::atomic<bool> const& stop_requested,
           ShowProgress show,
           void* word = nullptr)
      : world_(&world),
        counted_(&counted),
        options_(&options),
        stop_requested_(&stop_requested),
        show_(std::move(show)),
        word_(word) {
    result_.ranks = world.size();
    result_.configuration = options.configuration;
    result_.activations = options.activations;
  }

  /// Comes before `end_step`. Of the first step it is not written down, as its time is not.
  void add_model_seconds(double seconds) {
    if (!result_.losses.empty()) result_.model_seconds.push_back(seconds);
  }

  /// Agrees on the mean loss. Collective.
  /// @param losses  the sum of those of this rank's micro-batches
  void end_step(int step, zero::StepReport const& report, double losses) {
    if (result_.losses.empty()) {
      start_ = Clock::now();
      last_ = start_;
      result_.first_step = step;
    }
    stopped_ = report.stop;
    result_.losses.push_back(sum(losses) / (options_->ranks * options_->accumulate));
    result_.norms.push_back(report.grad_norm);
    if (!report.skipped) result_.counted_elements = counted_->counts().bucket_total().elements;
    counted_->reset();
    // The first step pays for page faults and caches; speed is measured from its end on.
    auto const now = Clock::now();
    double const seconds = std::chrono::duration<double>(now - start_).count();
    if (int const timed = step - result_.first_step; timed > 0) {
      result_.step_seconds.push_back(std::chrono::duration<double>(now - last_).count());
      last_ = now;
      result_.tokens_per_s =
          static_cast<double>(options_->tokens_per_step()) * static_cast<double>(timed) / seconds;
    }
    if (world_->rank() == 0 && show_) {
      show_({step + 1,
             result_.losses.back(),
             report.grad_norm,
             result_.tokens_per_s,
             report.skipped,
             {}});
    }
  }
  /// Tells the user something else, on rank 0.
  void say(std::string const& note) const {
    if (world_->rank() == 0 && show_) show_({.note = note});
  }

  /// Has somebody asked this rank to stop?
  [[nodiscard]] bool stop_requested() const noexcept { return stop_requested_->load(); }
  /// Have all ranks agreed to?
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }

  /// Writes down what a rank holds of the inputs of blocks, and tells the user.
  template <class Activations>
  void hold_activations(Activations const& inputs) {
    using zero::Role;
    zero::MemoryBytes const& here = inputs.held();
    add(inputs.plan().memory, result_.planned);
    add(here, result_.held);
    result_.held_slower = inputs.held_slower()[Role::activations];
    say("activations: " + std::to_string(here[Role::activations]) + " bytes a rank, " +
        std::to_string(result_.held_slower) + " in slower memory, " +
        std::to_string(here[Role::activation_pool] + here[Role::activation_staging]) + " in pools");
  }

  /// Collective.
  template <class Optimizer, class Workspace>
  void end_training(Optimizer const& optimizer, Workspace const& workspace) {
    result_.stage = std::string(Optimizer::Stage::name);
    result_.precision = std::string(Optimizer::Precision::name);
    result_.rule = std::string(Optimizer::Rule::name);
    auto const plan = optimizer.plan(static_cast<std::uint64_t>(options_->accumulate));
    add(plan.memory, result_.planned);
    add(optimizer.held(), result_.held);
    std::size_t const shares = Optimizer::sharding.parameters ? std::size_t(plan.world_size) : 1;
    for (std::size_t k = 0; k < plan.types.size(); ++k) {
      if (!plan.types[k].frozen()) continue;
      result_.base += plan.kind_elements[k] / shares * zero::size_of(plan.types[k].parameter);
    }
    using zero::Role;
    std::uint64_t const states = plan.memory[Role::parameters] + plan.memory[Role::gradients] +
                                 plan.memory[Role::master] + plan.memory[Role::state];
    result_.bytes_per_parameter =
        static_cast<double>(states - result_.base) / static_cast<double>(plan.trained_elements);
    result_.working = workspace.held();
    result_.needed = workspace.allocator().needed();
    // Norms are no elements of parameters or gradients, and are counted apart.
    result_.predicted_elements = plan.traffic.total() - plan.traffic.norms;
    result_.interrupted = stopped_;
    result_.checksum = checksum(optimizer);
  }

  void keep_sample(std::string sample) { result_.sample = std::move(sample); }
  [[nodiscard]] StageResult const& result() const noexcept { return result_; }

 private:
  static void add(zero::MemoryBytes const& bytes, zero::MemoryBytes& sum) {
    for (int r = 0; r < zero::role_count; ++r) {
      sum[static_cast<zero::Role>(r)] += bytes[static_cast<zero::Role>(r)];
    }
  }

  /// A sum over elements, modulo 2^48, of a hash of place and bits: the same however elements are
  /// shared out. Ranks' sums are added as signed numbers, which must not overflow.
  template <class Optimizer>
  std::uint64_t checksum(Optimizer const& optimizer) const {
    constexpr std::uint64_t modulus = std::uint64_t{1} << 48;
    std::uint64_t hashes = 0;
    auto const add = [&](std::size_t tensor, std::size_t array, std::size_t first, auto values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, &values[i], sizeof(values[i]));
        hashes += random_bits(bits, tensor, array, first + i);
      }
    };
    optimizer.visit_owned(
        [&](zero::Tensor const& tensor, std::size_t first, auto master, auto const& states) {
          // Where every rank holds everything, one of them speaks for all.
          if (!Optimizer::sharding.optimizer && counted_->rank() > 0) return;
          auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
          add(t, 0, first, master);
          for (std::size_t k = 0; k < states.size(); ++k) add(t, k + 1, first, states[k]);
        });
    return static_cast<std::uint64_t>(sum(static_cast<std::int64_t>(hashes % modulus))) % modulus;
  }

  /// The sum over ranks of a number of 8 bytes. Collective; blocks.
  template <class T>
  T sum(T value) const {
    if constexpr (World::Space::host_accessible) {
      return zero::sum(*world_, value);
    } else {
      auto const space = world_->space();
      space.upload(word_, &value, sizeof(value));
      zero::run(*world_,
                {.op = zero::Op::all_reduce,
                 .dtype = zero::dtype_of<T>,
                 .accumulate = zero::dtype_of<T>,
                 .count = 1,
                 .send = word_,
                 .recv = word_});
      space.download(&value, word_, sizeof(value));
      zero::confirm(*world_);
      return value;
    }
  }

  World* world_;
  zero::Counting<World>* counted_;
  Options const* options_;
  std::atomic<bool> const* stop_requested_;
  ShowProgress show_;
  StageResult result_;
  Clock::time_point start_{};
  Clock::time_point last_{};
  void* word_;
  bool stopped_ = false;
};

}  // namespace gpt
