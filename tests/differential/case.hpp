/// @file
/// A random case as plain data: model, values of policies, and what its trainer calls. Whatever is
/// not stored is thrown again from the seed, the same by everybody who asks.
#pragma once

#include "support/random.hpp"
#include "support/standard.hpp"

namespace differential {

enum class Stage { replicated, pos, pos_g, pos_gp };
// wide: with gradients in fp32; away: rounded half away from zero, from masters or their remainders
enum class Number { fp32, bf16, fp16, bf16_wide, bf16_away, bf16_rest };
enum class Rule { plain_sgd, sgd, adagrad, adam, adamw, lion, rms_prop, lamb };
enum class Accumulation { none, full, shard };

/// The policies that are types.
struct Policies {
  Stage stage;
  Number number;
  Rule rule;
  Accumulation accumulation;
  bool borrowed = false;
  bool in_place = false;   ///< reduced gradients lie in lent ones
  bool by_tensor = false;  ///< tensors may be of 32 bits instead

  /// Does the library hold full gradients of units under way only?
  [[nodiscard]] constexpr bool pools() const {
    return !borrowed && stage >= Stage::pos_g && accumulation != Accumulation::full;
  }
  /// Are parameters gathered, which every rank has to do in the same order?
  [[nodiscard]] constexpr bool gathers() const { return stage == Stage::pos_gp; }
};
std::string name(Policies const& policies);

/// Random numbers that depend on all the keys, and on nothing else.
class Dice {
 public:
  template <class... Keys>
  explicit Dice(std::uint64_t seed, Keys... keys)
      : state_(mixed(seed, static_cast<std::uint64_t>(keys)..., 0)) {}
  std::uint64_t next() { return mixed(state_++); }
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(next() % end); }
  int to(int last) { return static_cast<int>(below(static_cast<std::size_t>(last) + 1)); }
  bool chance(std::size_t percent) { return below(100) < percent; }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[below(choices.size())];
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  std::uint64_t state_;
};

/// What a case may contain; taking one out leaves what the others do.
enum Feature : unsigned {
  micro_steps = 1u << 0,  ///< weights, and several micro-batches where they add up
  faults = 1u << 1,       ///< gradients that are not finite, weights of zero
  clipping = 1u << 2,     ///< by the library or by the trainer
  rates = 1u << 3,        ///< a learning rate per step
  disorder = 1u << 4,     ///< units in other orders, left out, dropped, asked for again
  holds = 1u << 5,        ///< forward passes in any order, several units at a time
  early = 1u << 6,        ///< reduce_all() and grad_norm() before the step
  queued = 1u << 7,       ///< enqueue_step(), and reports that come later
  overlap = 1u << 8,      ///< a refresh that is under way when step() returns
  reloads = 1u << 9,      ///< other parameters in the middle of the run
  moves = 1u << 10,       ///< lent memory that moves from step to step
  discards = 1u << 11,    ///< gradients that are thrown away
  directly = 1u << 12,    ///< gradients written where they lie, without asking for the unit
  overwrites = 1u << 13,  ///< gradients that are written instead of added to zeros
  groups = 1u << 14,      ///< rules of groups and tensors that change between steps
  counts = 1u << 15,      ///< steps that the trainer counts
  absences = 1u << 16,    ///< tensors of a unit that are declared to have no gradient
  kinds = 1u << 17,       ///< tensors of other types, and frozen bytes
  all_features = (1u << 18) - 1
};

/// Groups that tensors may be of.
inline constexpr int most_groups = 3;

/// One tensor; `tied` is the index of an earlier one.
struct TensorCase {
  int id;
  std::vector<std::size_t> shape;
  std::size_t count;
  int unit;
  float learning_rate = 1.f;
  float weight_decay = 1.f;
  float magnitude = 1.f;  ///< of its gradients
  bool frozen = false;
  bool whole = false;  ///< on every rank, if it is frozen
  bool wide = false;   ///< of 32 bits, where policies have those beside others
  bool bytes = false;  ///< no numbers, if it is frozen and the library's
  std::optional<std::size_t> tied{};
  int group = 0;       ///< from 1, or none
  std::string name{};  ///< or one made of the id
};
std::string name(TensorCase const& tensor);

/// Hyper-parameters of all rules; each takes what it has.
struct Hyper {
  float lr, weight_decay, momentum, lr_decay, eps;
  double beta1, beta2;
  bool nesterov;
};

/// The dynamic loss scale, for fp16.
struct ScaleCase {
  float initial, growth, backoff, minimum;
  int growth_interval, patience;
};

/// A case.
struct Case {
  std::uint64_t seed;
  Policies policies;
  int ranks;
  int steps;
  std::vector<TensorCase> tensors;
  std::size_t bucket_bytes;
  int prefetch;
  Hyper hyper;
  ScaleCase scale;
  unsigned features;

  [[nodiscard]] bool has(Feature feature) const { return (features & feature) != 0; }
  /// The tensor in whose memory a tensor lies.
  [[nodiscard]] std::size_t storage(std::size_t t) const {
    while (tensors[t].tied) t = *tensors[t].tied;
    return t;
  }
  [[nodiscard]] bool trained(std::size_t t) const { return !tensors[t].frozen; }
  /// Is there an element that is trained?
  [[nodiscard]] bool any_trained() const {
    for (TensorCase const& tensor : tensors) {
      if (!tensor.frozen && !tensor.tied && tensor.count > 0) return true;
    }
    return false;
  }
  [[nodiscard]] bool bytes(std::size_t t) const {
    return has(kinds) && !policies.borrowed && tensors[t].frozen && tensors[t].bytes;
  }
  [[nodiscard]] bool wide(std::size_t t) const {
    return has(kinds) && policies.by_tensor && tensors[t].wide && !bytes(t);
  }
  /// Bytes are numbers that nothing rounds.
  [[nodiscard]] Number number(std::size_t t) const {
    return wide(t) || bytes(t) ? Number::fp32 : policies.number;
  }
  /// Does another tensor lie in its memory?
  [[nodiscard]] bool tied(std::size_t t) const;
  /// Units, empty ones included.
  [[nodiscard]] int units() const;
  /// Units of which anything would have to be gathered.
  [[nodiscard]] int units_with_elements() const;
};

/// Draws a case for at most so many ranks.
Case draw(std::uint64_t seed, Policies const& policies, int most_ranks);
/// The case for people, call by call; words with parentheses are what is counted.
std::string describe(Case const& test);
/// The same case with something left out.
std::vector<Case> simpler(Case const& test);

enum class Load { none, streamed, whole, broadcast, broadcast_held, adopted, written_and_adopted };
enum class Move { none, gradients, everything };
enum class Call { step, try_step, step_scaled, try_step_scaled, enqueue, discard };
enum class FaultKind { none, nan, infinity, huge };

/// An element of one rank's micro-batch that is not what it should be.
struct Fault {
  FaultKind kind = FaultKind::none;
  int rank = 0;
  int micro = 0;
  std::size_t tensor = 0;
  std::size_t element = 0;
};

/// Other hyper-parameters from a step on.
struct Change {
  int group = 0;  ///< whose; or a tensor's, or those of all that have none of their own
  std::optional<std::size_t> tensor{};
  Hyper hyper{};
  bool rate_only = false;
};

/// What all ranks do alike in one step.
struct StepPlan {
  int number = 0;
  Move move = Move::none;
  Load load = Load::none;
  int root = 0;         ///< whose values are broadcast
  int micro_steps = 0;  ///< calls of micro_step(); none is one micro-batch, too
  bool weightless = false;
  bool says_last = false;
  bool reduces_all = false;
  bool asks_norm = false;
  Call call = Call::step;
  bool reports = true;  ///< asks for the report of a step that was queued
  bool tries_report = false;
  std::optional<float> learning_rate{};
  bool rate_by_address = false;
  std::optional<double> max_norm{};
  double scale = 1.;
  bool skips = false;  ///< steps whose gradients are not finite, where no loss scale watches
  bool overlaps = false;
  bool views = false;   ///< looks at all parameters afterwards
  bool visits = false;  ///< looks at all masters and states afterwards
  Fault fault{};
  std::vector<Change> changes{};
  std::optional<long> count{};

  [[nodiscard]] int passes() const { return micro_steps > 0 ? micro_steps : 1; }
};
StepPlan plan_step(Case const& test, int step);

/// What a rank does with one unit in a backward pass.
struct Visit {
  int unit;
  int adds;  ///< how often the unit is asked for and added to
  bool closes;
  bool by_name;
  bool overwrites = false;            ///< is written first, not added to zeros
  bool checked = false;               ///< and has that checked
  std::vector<std::size_t> absent{};  ///< tensors that are declared to have no gradient
};

/// One rank's forward and backward pass.
struct Pass {
  double weight = 1.;
  bool directly = false;   ///< adds to every tensor once before it asks for units
  std::size_t window = 1;  ///< units held at a time
  std::vector<int> forward;
  std::vector<Visit> backward;
};
Pass plan_pass(Case const& test, StepPlan const& plan, int micro, int rank);
/// Is every tensor that lies in this one's memory declared absent by every rank?
bool rests(Case const& test, StepPlan const& plan, std::size_t storage);
/// Does every unit's turn come once, in the order that traffic is planned for?
bool regular(Case const& test);

/// The gradients that one micro-batch adds to one tensor at a time.
class Gradient {
 public:
  /// @param use  0 where it lies, then the visits of its unit from 1
  Gradient(
      Case const& test, StepPlan const& plan, int micro, int rank, std::size_t tensor, int use);
  [[nodiscard]] float operator()(std::size_t element) const {
    if (fault_ && element == fault_->element) return faulty(fault_->kind);
    std::uint64_t const bits = mixed(key_ + element);
    if (bits % 16 == 0) return bits % 32 == 0 ? 0.f : -0.f;
    return (static_cast<float>(bits >> 40) * 0x1p-24f - 0.5f) * magnitude_;
  }

 private:
  static float faulty(FaultKind kind);

  std::uint64_t key_;
  float magnitude_;
  std::optional<Fault> fault_;
};

/// What is loaded, or written and adopted, before a step.
float value(Case const& test, int step, std::size_t tensor, std::size_t element);

}  // namespace differential
