/// @file
/// The memory space: what the optimizer asks of the memory a communicator's buffers live in.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/concepts/rule.hpp"

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// What the ranks agreed on for one step. It lies in the memory of the space and is written there,
/// so that a step over a device never waits for its host.
struct StepTerms {
  long step = 0;                 ///< updates applied so far, this one included unless it is skipped
  double grad_norm = 0.;         ///< L2 norm of the mean gradient before clipping
  double weight = 0.;            ///< of all micro-batches on all ranks
  double clip_coefficient = 1.;  ///< what clipping multiplies the mean gradient by
  double learning_rate = 0.;     ///< of the step, before tensors' scales, where they have none
  double gradient_scale = 1.;    ///< from summed, scaled gradients to the clipped mean
  float loss_scale = 1.f;        ///< that the gradients of this step carried
  float next_loss_scale = 1.f;   ///< that the gradients of the next step are to carry
  std::int32_t overflow = 0;     ///< 1 if some element of the summed gradients is not finite
  std::int32_t skipped = 0;      ///< not 0 if the update must change nothing
};

/// The arrays of one update. All hold `count` elements, need no alignment beyond their element's
/// and do not overlap.
template <class Master, class Parameter, class Gradient, class State, std::size_t StateCount>
struct UpdateArrays {
  Master* master = nullptr;            ///< read and written
  Parameter* parameter = nullptr;      ///< written unless null; null where master is the parameter
  Gradient const* gradient = nullptr;  ///< read: still scaled
  std::array<State*, StateCount> state{};  ///< read and written
  std::size_t count = 0;                   ///< elements in each array
};

/// Where random bits of an update are from.
struct RandomOrigin {
  std::uint64_t key = 0;    ///< `kernel::random_key` of the tensor, of which all elements are
  std::uint64_t first = 0;  ///< number of the first element in the whole tensor, or in its stack
  std::uint64_t const* seed = nullptr;  ///< of the optimizer: in the memory of the space
};

/// The same where some elements are rounded stochastically.
template <class Master, class Parameter, class Gradient, class State, std::size_t StateCount>
struct RandomUpdateArrays : UpdateArrays<Master, Parameter, Gradient, State, StateCount> {
  RandomOrigin random{};  ///< of their random bits
};
/// The same where states are codes: of groups of 32 elements, the first of which begins with the
/// arrays, each group has a scale.
template <class Master, class Parameter, class Gradient, class State, std::size_t StateCount>
struct CodedUpdateArrays : RandomUpdateArrays<Master, Parameter, Gradient, State, StateCount> {
  std::array<std::uint8_t*, StateCount> scales{};  ///< read and written
};
/// Are they arrays with random bits?
template <class Arrays>
concept RandomArrays = requires(Arrays const& arrays) {
  { arrays.random } -> std::convertible_to<RandomOrigin>;
};

namespace detail {

/// Stands for any function object that a space may be asked to call.
struct AnyCall {
  ZERO_HOST_DEVICE void operator()() const noexcept {}
};

/// Stands for any rule.
struct AnyRule {
  static constexpr std::string_view name = "any";
  static constexpr std::array states{StateArray{"any"}};
  double lr = 0.;
  [[nodiscard]] ZERO_HOST_DEVICE StepScalars scalars(long, float, float, float) const noexcept {
    return {};
  }
  template <class V>
  ZERO_HOST_DEVICE void update(StepScalars const&, V&, V const&, V*) const noexcept {}
  friend bool operator==(AnyRule const&, AnyRule const&) = default;
};

}  // namespace detail

/// A kind of memory and the work that is done in it: ordinary memory and the processor's own
/// threads, or a device's memory and one of its streams.
///
/// A space is a small value; copies stand for the same memory and the same queue of work. Its
/// functions take effect in the order of the calls. Except where said, they may return before they
/// are done, never block, and allocate nothing. All pointers but those said to be of the host are
/// of the space; no other code ever reads or writes what they point to.
///
///     struct MySpace {
///       static constexpr std::string_view name = "mine";
///       static constexpr bool host_accessible = false;  // may any thread follow its pointers?
///
///       // All bits zero.
///       void zero(void* memory, std::size_t bytes) const;
///       // Between buffers that do not overlap, or are the same.
///       void copy(void* to, void const* from, std::size_t bytes) const;
///       // The host's memory is free on return.
///       void upload(void* to, void const* host, std::size_t bytes) const;
///       // Blocks until the bytes are there.
///       void download(void* host, void const* from, std::size_t bytes) const;
///       // out[i] = To(in[i]), rounded once, to nearest even; kernel::HalfAwayBf16 half away.
///       template <class To, class From>
///       void convert(To* out, From const* in, std::size_t count) const;
///       // out[i] += in[i], rounded once, in Sum.
///       template <class Sum, class From>
///       void add(Sum* out, From const* in, std::size_t count) const;
///       // See below.
///       template <class T>
///       void add_squares(zero::ExactSum* sum, T const* x, std::size_t count) const;
///       // *hash += kernel::element_hash(x[i], first + i) for all i.
///       template <class T>
///       void add_hash(std::uint64_t* hash, T const* x, std::size_t count, std::uint64_t first)
///       const;
///       // *first = min(*first, place + i) for all i with !kernel::is_rounded(p[i], master[i]).
///       template <class P, class M>
///       void find_unrounded(std::uint64_t* first,
///                           P const* p,
///                           M const* master,
///                           std::size_t count,
///                           std::uint64_t place) const;
///       // function(), once.
///       template <class F>
///       void call(F const& function) const;
///       // See below.
///       template <class Rule, class Scalars, class Arrays>
///       void update(Rule const& rule,
///                   zero::StepTerms const* terms,
///                   Scalars const* scalars,
///                   Arrays const& arrays) const;
///     };
///
/// `add_squares` adds Σ x[i]² over each block of 512 elements from x[0] on, the last one shorter:
/// within a block in fp64, x[i]² to lane i % 8 in the order of i, then the lanes as
/// ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)); each block's sum exactly, to `sum`, where those that
/// are not finite are counted. The square of a double is rounded before it is added; one beyond
/// 1.3e154 is not finite. These are the same bits in every space (`ExactSum::addend` is what
/// integer atomics need).
///
/// `call` runs a trivially copyable function object that reads and writes a few words of the space.
///
/// `update` does nothing at all where `terms->skipped`. Elsewhere it updates every element by
/// `rule.update` with `*scalars`, which were computed in the space before, and gradients times
/// `terms->gradient_scale`, in one pass, as kernel::update says. `arrays` is an `UpdateArrays`, and
/// `scalars` are `BasicStepScalars` of what the rule computes in: a space that serves fp32 and
/// mixed precision alone may have `zero::StepScalars` there. Elements of masters and states may be
/// a kernel::CodedElement. Where one of these is a kernel::RandomElement, `arrays` is a
/// `RandomUpdateArrays`, and its bits are those of the update that `terms->step` counts. Where
/// states are codes, it is a `CodedUpdateArrays`, and states are a kernel::RootState.
template <class S>
concept MemorySpace = std::copy_constructible<S> &&
    requires(S const& space,
             void* memory,
             void const* from,
             std::size_t count,
             float* wide,
             float const* narrow,
             ExactSum* sum,
             std::uint64_t* hash,
             StepTerms const* terms,
             StepScalars const* scalars,
             detail::AnyCall const& function,
             detail::AnyRule const& rule,
             UpdateArrays<float, float, float, float, 1> const& arrays) {
  { S::name } -> std::convertible_to<std::string_view>;
  { S::host_accessible } -> std::convertible_to<bool>;
  { space.zero(memory, count) } -> std::same_as<void>;
  { space.copy(memory, from, count) } -> std::same_as<void>;
  { space.upload(memory, from, count) } -> std::same_as<void>;
  { space.download(memory, from, count) } -> std::same_as<void>;
  { space.convert(wide, narrow, count) } -> std::same_as<void>;
  { space.add(wide, narrow, count) } -> std::same_as<void>;
  { space.add_squares(sum, narrow, count) } -> std::same_as<void>;
  { space.add_hash(hash, narrow, count, *hash) } -> std::same_as<void>;
  { space.find_unrounded(hash, narrow, narrow, count, *hash) } -> std::same_as<void>;
  { space.call(function) } -> std::same_as<void>;
  { space.update(rule, terms, scalars, arrays) } -> std::same_as<void>;
};

/// A space that measures tensors for rules that ask for it (see `MeasuringRule`):
///
///       template <class Rule, class Scalars, class Arrays>
///       void measure(Rule const& rule, zero::StepTerms const* terms, Scalars const* scalars,
///                    Arrays const& arrays, std::int64_t* words) const;
///
/// does nothing where `terms->skipped`, and elsewhere adds to the words of an `ExactSum` for each
/// number what `rule.measure` computes of every element, as kernel::measure says. `arrays` are
/// those of an update, and are only read.
/// @tparam R        a rule that measures
/// @tparam Scalars  that it gets
/// @tparam Arrays   an `UpdateArrays`
template <class S, class R, class Scalars, class Arrays>
concept MeasuringSpace = MemorySpace<S> && requires(S const& space,
                                                    R const& rule,
                                                    StepTerms const* terms,
                                                    Scalars const* scalars,
                                                    Arrays const& arrays,
                                                    std::int64_t* words) {
  space.measure(rule, terms, scalars, arrays, words);
};

/// A space whose work can be recorded, to be done again without another call: `capturing()` says
/// whether it is being recorded now. What was recorded may change the space's memory at any time
/// from then on, and nobody but the trainer knows when.
template <class S>
concept RecordingSpace = MemorySpace<S> && requires(S const& space) {
  { space.capturing() } -> std::same_as<bool>;
};

/// A space whose functions may first have to be loaded, at a time when that is not possible any
/// more, such as while work is recorded. `loading()` gives one whose `add_squares`, `call`,
/// `update` and `measure` do so and nothing else; they may wait and allocate. The arguments they
/// get stand for their types.
template <class S>
concept LoadingSpace = MemorySpace<S> && requires(S const& space) {
  { space.loading() } -> std::same_as<S>;
};

}  // namespace zero::inline ZERO_NAMESPACE
