/// @file
/// The engine behind every optimizer: one algorithm, whatever its policies. What it does is done
/// by its parts; here is the way through a step, and what each call of a trainer does to them.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/base/function_ref.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/plan.hpp"
#include "zero/optimizer/api/step_options.hpp"
#include "zero/optimizer/api/step_result.hpp"
#include "zero/optimizer/callables.hpp"
#include "zero/optimizer/held/elements.hpp"
#include "zero/optimizer/model.hpp"
#include "zero/optimizer/step/decision.hpp"
#include "zero/optimizer/tables/engine_setup.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

struct Parts;

/// What happens to parameters, or is about to, as far as somebody watches who lends them.
enum class WatchedUse : std::uint8_t {
  any,      ///< they, or masters, are about to be read or replaced
  masters,  ///< a step or a save is about to read them, and takes masters for their values
  set,      ///< they and masters have got values
};

/// One rank's optimizer. What a step decides (norm, clipping, loss scale, whether to skip) is
/// decided in the space; the host reads the outcome when somebody asks for it. `ShardedOptimizer`
/// documents what the functions do; where nothing is said, a function is local.
class Engine {
 public:
  /// Agrees with all ranks, then allocates. Collective; blocks.
  /// @param setup  tables, and what they are called with, outlive the engine
  ZERO_APART ZERO_COLD Engine(EngineSetup const& setup, std::vector<Tensor> tensors);
  Engine(Engine const&) = delete;
  Engine& operator=(Engine const&) = delete;
  ~Engine() { end_(parts_); }

  [[nodiscard]] Model const& model() const noexcept { return *model_; }
  /// Where all is: for what is built on top of an engine.
  [[nodiscard]] Parts& parts() const noexcept { return *parts_; }
  ZERO_APART [[nodiscard]] ZERO_COLD Plan plan(std::uint64_t micro_steps) const;
  ZERO_APART [[nodiscard]] MemoryBytes held() const;

  // Lent memory. What is not lent keeps what was: null for that.
  ZERO_APART void bind(LentSpans const* parameters, LentSpans const* gradients);
  ZERO_APART void bind_flat(std::optional<Elements> parameters, std::optional<Elements> gradients);
  /// Gradients are lent unit by unit.
  ZERO_APART void bind_unit(int unit, LentSpans const& gradients);
  ZERO_APART [[nodiscard]] bool gradients_free(int unit) const;
  ZERO_APART void on_gradients_free(FunctionRef<void(int)> callback);

  // Values that a run starts from. All but `adopt` are collective, and block.
  ZERO_APART ZERO_COLD void load(Content content, ValueSource values);
  ZERO_APART ZERO_COLD void load(LentSpans const& values);
  ZERO_APART ZERO_COLD void broadcast(int root);
  ZERO_APART ZERO_COLD void broadcast(Content content, ValueSource values, int root);
  ZERO_APART ZERO_COLD void adopt();
  ZERO_APART ZERO_COLD void fill(OwnedVisitor fill);
  ZERO_APART void visit(OwnedVisitor visit) const;
  ZERO_APART ZERO_COLD void fill_held(HeldVisitor fill);
  ZERO_APART void visit_held(HeldVisitor visit) const;
  /// Do all ranks have the same values?
  ZERO_APART ZERO_COLD void confirm_values();
  /// And is each parameter its master, rounded?
  ZERO_APART ZERO_COLD void check_values();
  /// Of these tensors, values and perhaps states are about to be replaced. They are lost, and
  /// nothing steps or saves, until a load has replaced as much of each of them.
  /// @param tensors  the same on all ranks; empty: all
  /// @param frozen   whether tensors that are frozen are among them
  ZERO_APART ZERO_COLD void begin_load(std::vector<bool> const& tensors,
                                       bool states,
                                       bool frozen = true);
  /// Parameters of these tensors follow their master weights. Collective; blocks.
  ZERO_APART ZERO_COLD void follow(std::vector<bool> const& tensors);
  /// They have been replaced.
  /// @param tensors, frozen  as above
  ZERO_APART ZERO_COLD void end_load(std::vector<bool> const& tensors,
                                     bool states,
                                     bool frozen = true);
  /// Parameters, and master weights with them, have got values.
  /// @param confirmed  whether all ranks are known to have got the same
  /// @param all        frozen tensors, too
  ZERO_APART void values_are_set(Content content, bool confirmed, bool all = true) noexcept;
  /// All of them have.
  ZERO_APART void values_are_set(bool confirmed) noexcept;
  /// Some have. Where they are the first ones of their content, no step begins until other calls
  /// have given values to the rest.
  /// @param given  by tensor; the same on all ranks
  ZERO_APART ZERO_COLD void values_are_set(std::vector<bool> const& given, bool confirmed);
  /// Is there anything to save? Lent parameters have values, but their masters may have none.
  ZERO_APART void require_values() const;
  /// Who sees what others do to lent parameters, and may refuse what is about to happen with an
  /// error.
  void watch_parameters(FunctionRef<void(WatchedUse)> watch) noexcept { watch_ = watch; }
  ZERO_APART void require_bound() const;
  /// @param call  what a trainer called
  ZERO_APART void require_between_steps(std::string_view call) const;
  /// A guard would go on to show what was there before.
  /// @param call  what a trainer called, which replaces parameters
  ZERO_APART void require_no_readers(std::string_view call) const;

  // Parameters.
  // Whoever says what type elements are asked for as hears of it if they are of another.
  /// A described tensor that every rank holds all of.
  ZERO_APART [[nodiscard]] Elements whole_parameter(std::size_t tensor,
                                                    std::optional<DType> asked = {});
  /// Makes a unit's parameters whole until they are released. Collective where they are
  /// partitioned.
  ZERO_APART void acquire(int unit);
  ZERO_APART void release(int unit) noexcept;
  /// Says that somebody reads parameters of all units, which were acquired one by one before.
  ZERO_APART void acquire_all() noexcept;
  ZERO_APART void release_all() noexcept;
  /// A tensor of an acquired unit.
  ZERO_APART [[nodiscard]] Elements parameter(int unit, std::size_t t);
  /// @param of  which of a tensor's elements are asked for: parameters, or gradients on their wire
  /// @throws Error (invalid_argument) if they are of another type
  ZERO_APART void require_type(std::size_t t,
                               DType StorageTypes::*of,
                               std::optional<DType> asked) const;
  /// Waits for what was started ahead of its use. Collective; blocks.
  ZERO_APART void settle();

  // Gradients.
  /// A described tensor's, where all of them are held.
  ZERO_APART [[nodiscard]] Elements whole_gradient(std::size_t tensor,
                                                   std::optional<DType> asked = {});
  /// @param checked  fills what is to be overwritten with what no trainer writes
  /// @returns the epoch that a guard has
  ZERO_APART [[nodiscard]] std::uint64_t open(int unit, bool overwritten, bool checked = false);
  /// @throws Error (invalid_argument) if some of that is left
  ZERO_APART ZERO_COLD void require_written(int unit, std::uint64_t epoch) const;
  ZERO_APART [[nodiscard]] Elements gradient(int unit, std::uint64_t epoch, std::size_t t) const;
  ZERO_APART void reduce(int unit, std::uint64_t epoch);
  ZERO_APART void declare_absent(int unit);
  ZERO_APART void declare_absent(Tensor const& tensor);
  /// Collective: it finishes the reductions of the micro-step before.
  ZERO_APART void micro_step(MicroStep const& micro);
  /// Collective; blocks.
  ZERO_APART void reduce_all();
  ZERO_APART void reduce_all(double weight);
  ZERO_APART void discard_gradients();

  // A step.
  /// The norm of the mean gradient. Collective; blocks.
  ZERO_APART [[nodiscard]] double grad_norm();
  /// Calls `visit` for all reduced gradients, each on one rank. Collective; blocks.
  ZERO_APART ZERO_COLD void visit_gradients(GradientVisitor visit);
  /// The same to change them, before their norm is taken. Collective; blocks.
  ZERO_APART ZERO_COLD void change_gradients(GradientVisitor change);
  /// Exchange, decision, update, refresh. `taken()` or `discard_gradients()` ends it. Where the
  /// host can read the space it sees a step that is skipped and leaves; elsewhere all is queued,
  /// and the space skips what it must. Collective.
  /// @param scale  what to multiply the mean gradient by where `max_norm` does not
  ZERO_APART void step(StepOptions const& options, double scale);
  // Its parts, for several that step together.
  /// What is to be decided, unless this rank can tell that the step is wrong. Local.
  ZERO_APART [[nodiscard]] Decide prepare(StepOptions const& options, double scale);
  /// Of gradients that are all reduced: brings ranks' squares, overflows, weights and what they
  /// were told together; that alone where all else was exchanged before. Collective.
  ZERO_APART void conclude(RankOptions const& options);
  /// Decides, updates and refreshes, unless the host sees that the step is skipped. Collective.
  ZERO_APART void update(Decide const& decide, StepOptions const& options);
  /// What the step just taken did, for a trainer that waits for it. Where it failed, all ranks have
  /// found that in the same exchange, and tell each other what they were told, or have found.
  /// @par Collective  where it failed; blocks
  ZERO_APART [[nodiscard]] StepResult taken();
  ZERO_APART [[nodiscard]] StepResult result();
  ZERO_APART [[nodiscard]] StepTerms const& terms() const;
  ZERO_APART [[nodiscard]] StepTerms const* terms_address() const noexcept;
  ZERO_APART [[nodiscard]] long steps(std::size_t tensor) const;

  // Rules and counters.
  ZERO_APART [[nodiscard]] void const* rule() const noexcept;
  ZERO_APART [[nodiscard]] void const* rule(std::size_t tensor) const;
  ZERO_APART void set_rule(std::string_view name, void const* rule);
  ZERO_APART void set_rate(std::string_view name, double rate);
  ZERO_APART [[nodiscard]] ZERO_COLD Counters counters() const;
  /// Collective; blocks.
  ZERO_APART ZERO_COLD void restore(Counters const& counters);

 private:
  /// Of a frozen tensor there are no gradients, of whatever type.
  ZERO_APART ZERO_COLD void refuse_type(std::size_t t,
                                        DType StorageTypes::*of,
                                        DType type,
                                        DType asked) const;
  ZERO_APART ZERO_COLD void mark_unwritten(int unit);
  ZERO_APART void prepare_to_bind();
  ZERO_APART void end_bind(bool all_gradients);
  /// What a call does that replaces all parameters.
  /// @param call  its name
  ZERO_APART ZERO_COLD void begin_values(std::string_view call);
  /// The same of what gives all ranks one rank's. Gradients of other values are not from then on.
  ZERO_APART ZERO_COLD void begin_broadcast(int root, std::string_view call);
  /// Has `work(tensors)` replace them, null for all: values that are lost if it fails.
  template <class Work>
  void replace(Content content, Work const& work);
  /// Has `fill()` replace masters and states, which parameters follow. Collective; blocks.
  template <class Fill>
  void fill_with(std::string_view call, Fill const& fill);
  ZERO_APART void count_missed(StepOptions const& options) const;
  /// Has the rule measure whole tensors. Collective; blocks.
  ZERO_APART void measure();
  /// Calls `visit` for this rank's reduced gradients, but for those of tensors that rest.
  /// @param changes  whether they are changed, so that their squares are added anew
  ZERO_APART ZERO_COLD void walk_gradients(GradientVisitor visit, bool changes);
  /// Updates that a tensor has missed.
  ZERO_APART [[nodiscard]] ZERO_COLD long missed(std::size_t tensor) const;
  /// Others are in `step()`. Where the host can read the space they have seen it as well, and tell
  /// this rank; elsewhere they have queued all of the step, which this rank will never join.
  ZERO_APART [[noreturn]] ZERO_COLD void refuse_other_call();
  ZERO_APART void require_found() const;
  ZERO_APART [[noreturn]] ZERO_COLD void refuse_lost() const;
  /// Lent parameters have values of their own, which masters that were never set would replace.
  ZERO_APART [[noreturn]] ZERO_COLD void refuse_no_masters() const;

  Parts* parts_ = nullptr;
  Model const* model_ = nullptr;
  void (*end_)(Parts*) noexcept = nullptr;
  std::optional<FunctionRef<void(WatchedUse)>> watch_{};
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
