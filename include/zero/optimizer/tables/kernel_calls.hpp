/// @file
/// Work on elements and on the words of a step, for a space, a rule and dtypes of any type, as the
/// engine calls it.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/base/function_ref.hpp"
#include "zero/concepts/space.hpp"
#include "zero/layout/storage_types.hpp"
#include "zero/optimizer/held/elements.hpp"
#include "zero/optimizer/step/decision.hpp"

#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::detail {

/// One of the function objects that a step has a space call; each is a kernel of a device.
struct ControlWork {
  enum class Which : std::uint8_t {
    write_counts,
    write_words,
    conclude,
    join,
    count_missed,
    clear_failure
  };

  Which which;
  union {
    WriteTensorCounts write_counts;
    WriteStepWords write_words;
    Conclude conclude;
    Join join;
    CountMissed count_missed;
    ClearFailure clear_failure;
  };

  ControlWork(WriteTensorCounts const& work) noexcept
      : which(Which::write_counts), write_counts(work) {}
  ControlWork(WriteStepWords const& work) noexcept : which(Which::write_words), write_words(work) {}
  ControlWork(Conclude const& work) noexcept : which(Which::conclude), conclude(work) {}
  ControlWork(Join const& work) noexcept : which(Which::join), join(work) {}
  ControlWork(CountMissed const& work) noexcept : which(Which::count_missed), count_missed(work) {}
  ControlWork(ClearFailure const& work) noexcept
      : which(Which::clear_failure), clear_failure(work) {}

  /// Calls `visit` with the one that it is.
  template <class Visit>
  void visit(Visit const& visit) const {
    switch (which) {
      case Which::write_counts: return visit(write_counts);
      case Which::write_words: return visit(write_words);
      case Which::conclude: return visit(conclude);
      case Which::join: return visit(join);
      case Which::count_missed: return visit(count_missed);
      case Which::clear_failure: return visit(clear_failure);
    }
  }
};

/// A rule of any type, with what tells one tensor's update from another's.
struct TensorRule {
  void const* rule = nullptr;
  double learning_rate_scale = 1.;      ///< of the tensor
  double weight_decay_scale = 1.;       ///< of the tensor
  bool own_rate = false;                ///< the learning rate is the rule's, not the step's
  std::int64_t const* norms = nullptr;  ///< words of what was measured of the tensor; or null
};

/// The arrays of one update, which hold `count` elements.
struct UpdateBuffers {
  void* master = nullptr;
  void* parameter = nullptr;  ///< null where master is the parameter
  void const* gradient = nullptr;
  void* const* state = nullptr;  ///< one of each state array
  std::size_t count = 0;
  RandomOrigin random{};  ///< where something is rounded stochastically
};

/// Functions of a space, a precision, a type of reduced gradients and a rule. Each has the space
/// for its first argument.
struct KernelCalls {
  using Convert = void(void const* space, void* out, void const* in, std::size_t count);

  StorageTypes types;
  DType gradient;  ///< of reduced gradients
  void (*call)(void const* space, ControlWork const& work);
  /// Calls `work(space)` with a space whose functions load kernels and do nothing else; null where
  /// nothing needs to be loaded.
  void (*with_loading)(void const* space, FunctionRef<void(void const*)> work);
  Convert* parameter_from_master;  ///< null: no whole master
  Convert* master_from_parameter;  ///< null: no separate master
  Convert* sums_from_wire;         ///< both null: no sums
  Convert* add_wire_to_sums;
  void (*add_squares)(void const* space, ExactSum* sum, void const* gradients, std::size_t count);
  /// Of elements of any type, by the bytes that they have.
  void (*add_hash)(void const* space,
                   std::uint64_t* hash,
                   void const* x,
                   std::size_t element,
                   std::size_t count,
                   std::uint64_t first);
  void (*find_unrounded)(void const* space,
                         std::uint64_t* first,
                         void const* parameter,
                         void const* master,
                         std::size_t count,
                         std::uint64_t place);

  bool in_double;             ///< rules compute in double, else in float
  bool random;                ///< updates take random bits
  std::size_t scalar_bytes;   ///< of the scalars of one rule
  std::size_t rates_at_once;  ///< rules that `decide` takes at most
  /// Decides the step, and unless it is skipped computes the scalars of some rules.
  void (*decide)(void const* space,
                 Decide const& decide,
                 StepTerms const* terms,
                 void* scalars,
                 TensorRule const* rules,
                 std::size_t count);
  /// Computes those of one rule, after `own` where that is not null.
  void (*prepare)(void const* space,
                  OwnTerms const* own,
                  StepTerms const* terms,
                  void* scalars,
                  TensorRule const& rule);
  void (*update)(void const* space,
                 void const* rule,
                 StepTerms const* terms,
                 void const* scalars,
                 UpdateBuffers const& arrays);
  /// Adds what the rule measures of some elements to a tensor's words; null where it measures
  /// nothing.
  void (*measure)(void const* space,
                  void const* rule,
                  StepTerms const* terms,
                  void const* scalars,
                  UpdateBuffers const& arrays,
                  std::int64_t* words);
};

/// These functions, a table of them for each storage kind, and the space that they work in, which
/// outlive it. What is not asked for by kind is the same of all.
class Kernels {
 public:
  Kernels(KernelCalls const* const* tables, void const* space) noexcept
      : Kernels(tables, tables[0], space) {}

  /// Those of a kind.
  [[nodiscard]] Kernels of(std::size_t kind) const noexcept {
    return {tables_, tables_[kind], space_};
  }

  [[nodiscard]] StorageTypes const& types() const noexcept { return calls_->types; }
  [[nodiscard]] DType gradient() const noexcept { return calls_->gradient; }
  void call(ControlWork const& work) const { calls_->call(space_, work); }
  void parameter_from_master(void* out, void const* in, std::size_t count) const {
    calls_->parameter_from_master(space_, out, in, count);
  }
  void master_from_parameter(void* out, void const* in, std::size_t count) const {
    calls_->master_from_parameter(space_, out, in, count);
  }
  void sums_from_wire(void* out, void const* in, std::size_t count) const {
    calls_->sums_from_wire(space_, out, in, count);
  }
  void add_wire_to_sums(void* out, void const* in, std::size_t count) const {
    calls_->add_wire_to_sums(space_, out, in, count);
  }
  void add_squares(ExactSum* sum, void const* gradients, std::size_t count) const {
    calls_->add_squares(space_, sum, gradients, count);
  }
  void add_hash(std::uint64_t* hash, Array const& x, std::size_t count, std::uint64_t first) const {
    calls_->add_hash(space_, hash, x.first, x.width(), count, first);
  }
  void find_unrounded(std::uint64_t* first,
                      void const* parameter,
                      void const* master,
                      std::size_t count,
                      std::uint64_t place) const {
    calls_->find_unrounded(space_, first, parameter, master, count, place);
  }
  [[nodiscard]] bool in_double() const noexcept { return calls_->in_double; }
  [[nodiscard]] std::size_t scalar_bytes() const noexcept { return calls_->scalar_bytes; }
  [[nodiscard]] std::size_t rates_at_once() const noexcept { return calls_->rates_at_once; }
  void decide(Decide const& decide,
              StepTerms const* terms,
              void* scalars,
              TensorRule const* rules,
              std::size_t count) const {
    calls_->decide(space_, decide, terms, scalars, rules, count);
  }
  void prepare(OwnTerms const* own,
               StepTerms const* terms,
               void* scalars,
               TensorRule const& rule) const {
    calls_->prepare(space_, own, terms, scalars, rule);
  }
  void update(void const* rule,
              StepTerms const* terms,
              void const* scalars,
              UpdateBuffers const& arrays) const {
    calls_->update(space_, rule, terms, scalars, arrays);
  }
  [[nodiscard]] bool random() const noexcept { return calls_->random; }
  [[nodiscard]] bool measures() const noexcept { return calls_->measure != nullptr; }
  void measure(void const* rule,
               StepTerms const* terms,
               void const* scalars,
               UpdateBuffers const& arrays,
               std::int64_t* words) const {
    calls_->measure(space_, rule, terms, scalars, arrays, words);
  }
  /// Calls `work(Kernels)` with those that load, where they have to be.
  template <class Work>
  void load(Work const& work) const {
    if (calls_->with_loading == nullptr) return;
    auto const with = [&](void const* loading) { work(Kernels(tables_, loading)); };
    calls_->with_loading(space_, FunctionRef<void(void const*)>(with));
  }

 private:
  Kernels(KernelCalls const* const* tables, KernelCalls const* calls, void const* space) noexcept
      : tables_(tables), calls_(calls), space_(space) {}

  KernelCalls const* const* tables_;
  KernelCalls const* calls_;  ///< of one kind
  void const* space_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
