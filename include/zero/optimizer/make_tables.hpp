/// @file
/// Tables from types: what an engine calls, for one communicator, space, allocator, rule and
/// precision.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/allocator.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/precision.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/space.hpp"
#include "zero/optimizer/tables/communicator_calls.hpp"
#include "zero/optimizer/tables/kernel_calls.hpp"
#include "zero/optimizer/tables/rule_calls.hpp"
#include "zero/optimizer/tables/space_calls.hpp"
#include "zero/precision/by_tensor.hpp"
#include "zero/rule/rated_rule.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

namespace zero::inline ZERO_NAMESPACE {

namespace kernel {
struct StochasticBf16;  // whole for spaces, which alone read and write it
template <bool... has_sign>
struct RootState;  // likewise
}

namespace detail {

template <Communicator C>
struct CommunicatorFunctions {
  using Ticket = typename C::Ticket;
  static Ticket& at(void* tickets, std::size_t place) noexcept {
    return static_cast<Ticket*>(tickets)[place];
  }
  static C& of(void* comm) noexcept { return *static_cast<C*>(comm); }
  static C const& of(void const* comm) noexcept { return *static_cast<C const*>(comm); }

  static void* make_tickets(std::size_t places) { return new Ticket[places](); }
  static void free_tickets(void* tickets) noexcept { delete[] static_cast<Ticket*>(tickets); }
  static void start(void* comm, void* tickets, std::size_t place, Collective const& op) {
    at(tickets, place) = of(comm).start(op);
  }
  static void wait(void* comm, void* tickets, std::size_t place) {
    of(comm).wait(at(tickets, place));
  }
  static void drop(void* tickets, std::size_t place) noexcept { at(tickets, place) = Ticket{}; }
  static void run(void* comm, Collective const& op) { zero::run(of(comm), op); }
  static void progress(void* comm) noexcept { zero::progress(of(comm)); }
  static std::uint64_t held(void const* comm) { return held_by(of(comm)); }
  static void confirm(void* comm) { zero::confirm(of(comm)); }
  static std::string_view group_name(void const* comm) { return detail::group_name(of(comm)); }

  static constexpr bool queues = ConfirmingCommunicator<C> && !C::Space::host_accessible;
  static constexpr auto ended() -> std::int64_t const* (*)(void const*) {
    if constexpr (queues) {
      return [](void const* comm) -> std::int64_t const* { return of(comm).ended(); };
    } else {
      return nullptr;
    }
  }
};

template <Communicator C, class F = CommunicatorFunctions<C>>
inline constexpr CommunicatorCalls communicator_calls{
    .make_tickets = F::make_tickets,
    .free_tickets = F::free_tickets,
    .start = F::start,
    .wait = F::wait,
    .drop = F::drop,
    .run = F::run,
    .progress = ProgressingCommunicator<C> ? &F::progress : nullptr,
    .held = HoldingCommunicator<C> ? &F::held : nullptr,
    .confirm = F::queues ? &F::confirm : nullptr,
    .ended = F::ended(),
    .group_name = NamingCommunicator<C> ? &F::group_name : nullptr,
    .adds_squares = SquaringCommunicator<C>};

/// A communicator that outlives what is made of this.
template <Communicator C>
[[nodiscard]] CommunicatorRef ref(C& comm) {
  return {&communicator_calls<C>, &comm, comm.rank(), comm.size()};
}

template <MemorySpace S>
struct SpaceFunctions {
  static S const& of(void const* space) noexcept { return *static_cast<S const*>(space); }

  static void zero(void const* space, void* memory, std::size_t bytes) {
    of(space).zero(memory, bytes);
  }
  static void copy(void const* space, void* to, void const* from, std::size_t bytes) {
    of(space).copy(to, from, bytes);
  }
  static void upload(void const* space, void* to, void const* host, std::size_t bytes) {
    of(space).upload(to, host, bytes);
  }
  static void download(void const* space, void* host, void const* from, std::size_t bytes) {
    of(space).download(host, from, bytes);
  }
  static constexpr auto capturing() -> bool (*)(void const*) {
    if constexpr (RecordingSpace<S>) {
      return [](void const* space) -> bool { return of(space).capturing(); };
    } else {
      return nullptr;
    }
  }

  // What a device has kernels for.
  static void call(void const* space, ControlWork const& work) {
    work.visit([&](auto const& function) { of(space).call(function); });
  }
  static constexpr auto with_loading() -> void (*)(void const*, FunctionRef<void(void const*)>) {
    if constexpr (LoadingSpace<S>) {
      return [](void const* space, FunctionRef<void(void const*)> work) {
        S const loading = of(space).loading();
        work(&loading);
      };
    } else {
      return nullptr;
    }
  }
  template <class To, class From>
  static void convert(void const* space, void* out, void const* in, std::size_t count) {
    of(space).convert(static_cast<To*>(out), static_cast<From const*>(in), count);
  }
  template <class Sum, class From>
  static void add(void const* space, void* out, void const* in, std::size_t count) {
    of(space).add(static_cast<Sum*>(out), static_cast<From const*>(in), count);
  }
  template <class T>
  static void add_squares(void const* space, ExactSum* sum, void const* x, std::size_t count) {
    of(space).add_squares(sum, static_cast<T const*>(x), count);
  }
  static void add_hash(void const* space,
                       std::uint64_t* hash,
                       void const* x,
                       std::size_t element,
                       std::size_t count,
                       std::uint64_t first) {
    auto const add = [&]<class T>(T const* typed) {
      of(space).add_hash(hash, typed, count, first);
    };
    // A type for each width: bits alone count.
    switch (element) {
      case 1: return add(static_cast<std::uint8_t const*>(x));
      case 2: return add(static_cast<bf16 const*>(x));
      case 4: return add(static_cast<float const*>(x));
      default: return add(static_cast<double const*>(x));
    }
  }
  template <class P, class M>
  static void find_unrounded(void const* space,
                             std::uint64_t* first,
                             void const* parameter,
                             void const* master,
                             std::size_t count,
                             std::uint64_t place) {
    of(space).find_unrounded(
        first, static_cast<P const*>(parameter), static_cast<M const*>(master), count, place);
  }
};

template <MemorySpace S, class F = SpaceFunctions<S>>
inline constexpr SpaceCalls space_calls{.host_accessible = S::host_accessible,
                                        .zero = F::zero,
                                        .copy = F::copy,
                                        .upload = F::upload,
                                        .download = F::download,
                                        .capturing = F::capturing()};

template <Allocator A>
struct AllocatorFunctions {
  static void* allocate(void* allocator, std::size_t bytes, std::size_t alignment, Role role) {
    if constexpr (RoleAllocator<A>) {
      return static_cast<A*>(allocator)->allocate(bytes, alignment, role);
    } else {
      return static_cast<A*>(allocator)->allocate(bytes, alignment);
    }
  }
  static void deallocate(void* allocator, void* memory, std::size_t bytes, std::size_t alignment) {
    static_cast<A*>(allocator)->deallocate(memory, bytes, alignment);
  }
};

template <Allocator A>
inline constexpr AllocatorCalls allocator_calls{.allocate = AllocatorFunctions<A>::allocate,
                                                .deallocate = AllocatorFunctions<A>::deallocate};

/// An allocator that outlives what is made of this.
template <Allocator A>
[[nodiscard]] AllocatorRef ref(A& allocator) noexcept {
  return {&allocator_calls<A>, &allocator};
}

template <Rule R>
struct RuleFunctions {
  static R const& of(void const* rule) noexcept { return *static_cast<R const*>(rule); }

  static constexpr std::array<StateArray, R::states.size()> states = [] {
    std::array<StateArray, R::states.size()> result{};
    std::size_t k = 0;
    for (StateArray const state : R::states) result[k++] = state;
    return result;
  }();
  static constexpr auto states_of = [] {
    if constexpr (requires { R::states_of; }) {
      std::array<std::string_view, std::size(R::states_of)> result{};
      std::size_t k = 0;
      for (std::string_view const name : R::states_of) result[k++] = name;
      return result;
    } else {
      return std::array<std::string_view, 0>{};
    }
  }();

  static constexpr std::string_view in_full = [] {
    if constexpr (requires(R const& rule) { rule.full().name; }) {
      using Full = std::remove_cvref_t<decltype(std::declval<R const&>().full())>;
      return std::string_view(Full::name);
    } else {
      return std::string_view();
    }
  }();

  static void* clone(void const* rule) { return new R(of(rule)); }
  static void assign(void* to, void const* from) { *static_cast<R*>(to) = of(from); }
  static void destroy(void* rule) noexcept { delete static_cast<R*>(rule); }
  static double rate(void const* rule) { return static_cast<double>(of(rule).lr); }
  static void set_rate(void* rule, double rate) {
    static_cast<R*>(rule)->lr = static_cast<decltype(R::lr)>(rate);
  }
  static void fields(void const* rule, FunctionRef<void(RuleField const&)> visit) {
    if constexpr (DescribedRule<R>) {
      for (RuleField const& field : of(rule).fields()) visit(field);
    } else {
      visit(RuleField{"lr", rate(rule), 0.});
    }
  }
};

template <Rule R, class F = RuleFunctions<R>>
inline constexpr RuleCalls rule_calls{.name = R::name,
                                      .states = F::states,
                                      .states_of = F::states_of,
                                      .in_full = F::in_full,
                                      .described = DescribedRule<R>,
                                      .clone = F::clone,
                                      .assign = F::assign,
                                      .destroy = F::destroy,
                                      .rate = F::rate,
                                      .set_rate = F::set_rate,
                                      .fields = F::fields};

/// What a precision says of masters that are not just fp32, as values and types.
template <class P>
struct MastersOf {
  using Parameter = typename P::Parameter;  ///< as kernels write it
  using Held = typename P::Master;          ///< as an update finds it
  static constexpr MasterForm const* form = nullptr;
};
template <RoundingPrecision P>
struct MastersOf<P> {
  using Parameter = typename P::Masters::Parameter;
  using Held = typename P::Master;
  static constexpr MasterForm whole{P::Masters::split, nullptr};
  static constexpr MasterForm const* form = &whole;
};
/// Parameters are their own masters: updates round them in this way, conversions as ever.
template <RoundingPrecision P>
  requires(!has_master<P>)
struct MastersOf<P> {
  using Parameter = typename P::Masters::Parameter;
  using Held = Parameter;
  static constexpr MasterForm const* form = nullptr;
};
template <RemainderPrecision P>
struct MastersOf<P> {
  using Parameter = typename P::Masters::Parameter;
  using Held = typename P::Masters::Held;
  static constexpr MasterForm parts{
      P::Masters::split, P::Masters::join, P::Masters::least_infinite};
  static constexpr MasterForm const* form = &parts;
};

/// How many states of a rule are codes.
template <Rule R>
inline constexpr std::size_t coded_states = static_cast<std::size_t>(
    std::count_if(R::states.begin(), R::states.end(), [](StateArray const& state) {
      return state.coding != StateCoding::none;
    }));

/// States of bf16 are rounded stochastically: to nearest they would stand still where a step
/// changes them by less than half a unit.
template <Precision P, Rule R>
inline constexpr bool random_states = std::same_as<typename P::State, bf16>&& R::states.size() != 0;
/// A state as an update finds it.
template <Precision P, Rule R, bool coded>
struct StateOf {
  using Type = std::conditional_t<random_states<P, R>, kernel::StochasticBf16, typename P::State>;
};
template <Precision P, Rule R>
struct StateOf<P, R, true> {
  static_assert(coded_states<R> == R::states.size(),
                "zero: a rule has a coding for each of its state arrays, or for none");
  template <std::size_t... K>
  static kernel::RootState<R::states[K].coding == StateCoding::root...>* element(
      std::index_sequence<K...>);
  using Type =
      std::remove_pointer_t<decltype(element(std::make_index_sequence<R::states.size()>()))>;
};
/// Are masters rounded with random bits?
template <Precision P>
inline constexpr bool random_masters = requires {
  typename MastersOf<P>::Held::Random;
  requires !std::is_void_v<typename MastersOf<P>::Held::Random>;
};

template <Precision P, Rule R, bool coded>
[[nodiscard]] constexpr ArrayForm state_form(StateArray const& state) noexcept {
  ArrayForm form{
      state.name, dtype_of<typename P::State>, Coding::values, coded || random_states<P, R>};
  if constexpr (coded) {
    form.coding = state.coding == StateCoding::root ? Coding::root : Coding::root_of_squares;
    form.codes = &StateOf<P, R, true>::Type::form(form.coding);
  }
  return form;
}

/// The arrays of what a rule trains in a precision. No loop, which GCC does not evaluate any more
/// once it has found an error: the error would then have more lines.
/// @tparam coded  whether states that are to be codes are
template <Precision P, Rule R, bool coded, std::size_t... K>
[[nodiscard]] constexpr auto array_forms_of(std::index_sequence<K...>) noexcept {
  Coding const rests = master_bytes<P> == 1 ? Coding::rest8 : Coding::rest16;
  Coding const masters = RemainderPrecision<P> ? rests
                         : has_master<P>       ? Coding::values
                                               : Coding::parameter;
  constexpr ArrayForm master{"master", dtype_of<typename P::Master>, masters, random_masters<P>};
  if constexpr (coded) {
    return std::array<ArrayForm, 2 * sizeof...(K) + 1>{
        master,
        state_form<P, R, true>(R::states[K])...,
        ArrayForm{R::states[K].name, DType::u8, Coding::root_scales}...};
  } else {
    return std::array<ArrayForm, sizeof...(K) + 1>{master,
                                                   state_form<P, R, false>(R::states[K])...};
  }
}
template <Precision P, Rule R, bool coded>
inline constexpr auto array_forms =
    array_forms_of<P, R, coded>(std::make_index_sequence<R::states.size()>());

/// @tparam coded  whether states that are to be codes are
template <Precision P, Rule R, bool coded>
inline constexpr StorageTypes storage_types{.parameter = dtype_of<typename P::Parameter>,
                                            .wire = dtype_of<typename P::Wire>,
                                            .accumulate = dtype_of<typename P::Accumulate>,
                                            .arrays = array_forms<P, R, coded>,
                                            .masters = MastersOf<P>::form};

/// A precision for each storage kind of trained tensors. Where a rule has states that are codes,
/// each is there a second time, for tensors whose states are in full.
template <Rule R, class List>
struct PrecisionsOfKinds;
template <Rule R, Precision... P>
struct PrecisionsOfKinds<R, PrecisionList<P...>> {
  using Type =
      std::conditional_t<coded_states<R> == 0, PrecisionList<P...>, PrecisionList<P..., P...>>;
};

/// The types of each of these kinds.
template <Rule R, class List>
inline constexpr std::array<StorageTypes, 0> listed_types{};
template <Rule R, Precision... P>
inline constexpr auto listed_types<R, PrecisionList<P...>> = [] {
  if constexpr (coded_states<R> == 0) {
    return std::array{storage_types<P, R, false>...};
  } else {
    return std::array{storage_types<P, R, true>..., storage_types<P, R, false>...};
  }
}();

template <class S, class R, class Scalars, class Arrays>
concept UpdatingSpace = requires(S const& space, R const& rule, Scalars const* s, Arrays const& a) {
  space.update(rule, static_cast<StepTerms const*>(nullptr), s, a);
};

/// What a space does for a rule's steps.
/// @tparam Real  what the rule computes in
template <MemorySpace S, Rule R, class Real>
struct RuleKernels {
  static constexpr std::size_t capacity = rates_at_once<R, Real>;
  using Values = BasicStepScalars<Real>;
  static constexpr std::size_t few = (std::min)(capacity, std::size_t{2});

  template <std::size_t room>
  static void decide_with(void const* space,
                          Decide const& decide,
                          StepTerms const* terms,
                          void* scalars,
                          TensorRule const* rules,
                          std::size_t count) {
    InOrder<Decide, ComputeScalars<R, Real, room>> work{
        decide, {terms, static_cast<Values*>(scalars), count}};
    for (std::size_t i = 0; i < count; ++i) work.second.rules[i] = rated(rules[i]);
    SpaceFunctions<S>::of(space).call(work);
  }
  static RatedRule<R, Real> rated(TensorRule const& rule) {
    R const& own = RuleFunctions<R>::of(rule.rule);
    return {own, rule.learning_rate_scale, rule.weight_decay_scale, rule.own_rate};
  }
  static void decide(void const* space,
                     Decide const& decide,
                     StepTerms const* terms,
                     void* scalars,
                     TensorRule const* rules,
                     std::size_t count) {
    // Most models have one or two: what is not there need not be copied.
    if (count <= few) return decide_with<few>(space, decide, terms, scalars, rules, count);
    decide_with<capacity>(space, decide, terms, scalars, rules, count);
  }
  static void prepare(void const* space,
                      OwnTerms const* own,
                      StepTerms const* terms,
                      void* scalars,
                      TensorRule const& rule) {
    ComputeScalars<R, Real, 1> const compute{
        terms, static_cast<Values*>(scalars), 1, {rated(rule)}};
    if constexpr (MeasuringRule<R>) {
      // As one: on a device each call is a launch, and each tensor has one.
      AdjustScalars<R, Real> const adjust{
          compute.rules[0].rule, terms, rule.norms, static_cast<Values*>(scalars)};
      call_after(space, own, InOrder{compute, adjust});
    } else {
      call_after(space, own, compute);
    }
  }
  template <class Work>
  static void call_after(void const* space, OwnTerms const* own, Work const& work) {
    if (own != nullptr) {
      SpaceFunctions<S>::of(space).call(InOrder{*own, work});
    } else {
      SpaceFunctions<S>::of(space).call(work);
    }
  }
  template <class Master,
            class Parameter,
            class Gradient,
            class State,
            bool random,
            bool coded = false>
  static auto typed_of(UpdateBuffers const& buffers) {
    constexpr std::size_t arrays = R::states.size();
    using Coded = CodedUpdateArrays<Master, Parameter, Gradient, State, arrays>;
    using Random = RandomUpdateArrays<Master, Parameter, Gradient, State, arrays>;
    using Plain = UpdateArrays<Master, Parameter, Gradient, State, arrays>;
    std::conditional_t<coded, Coded, std::conditional_t<random, Random, Plain>> typed;
    typed.master = static_cast<Master*>(buffers.master);
    typed.parameter = static_cast<Parameter*>(buffers.parameter);
    typed.gradient = static_cast<Gradient const*>(buffers.gradient);
    typed.count = buffers.count;
    if constexpr (random) typed.random = buffers.random;
    for (std::size_t k = 0; k != arrays; ++k)
      typed.state[k] = static_cast<State*>(buffers.state[k]);
    for (std::size_t k = 0; k != (coded ? arrays : 0); ++k) {
      if constexpr (coded) {
        typed.scales[k] = static_cast<std::uint8_t*>(buffers.state[arrays + k]);
      }
    }
    return typed;
  }
  template <class Master, class Parameter, class Gradient, class State, bool random, bool coded>
  static void update(void const* space,
                     void const* rule,
                     StepTerms const* terms,
                     void const* scalars,
                     UpdateBuffers const& buffers) {
    auto const typed = typed_of<Master, Parameter, Gradient, State, random, coded>(buffers);
    static_assert(std::same_as<Real, float> || UpdatingSpace<S, R, Values, decltype(typed)>,
                  "zero: this space updates in float alone: its update must take any scalars");
    static_assert(!coded || UpdatingSpace<S, R, Values, decltype(typed)>,
                  "zero: this space has no update for states of 8 bits: its update must take "
                  "CodedUpdateArrays");
    SpaceFunctions<S>::of(space).update(
        RuleFunctions<R>::of(rule), terms, static_cast<Values const*>(scalars), typed);
  }
  /// Null where the rule measures nothing.
  template <class Master, class Parameter, class Gradient, class State>
  static constexpr auto measure() -> decltype(KernelCalls::measure) {
    if constexpr (!MeasuringRule<R>) {
      return nullptr;
    } else {
      using Arrays = decltype(typed_of<Master, Parameter, Gradient, State, false>({}));
      constexpr bool able = MeasuringSpace<S, R, Values, Arrays>;
      static_assert(able,
                    "zero: this space cannot measure tensors: a rule with measure() needs a "
                    "communicator whose space has measure() too");
      if constexpr (able) {
        return [](void const* space,
                  void const* rule,
                  StepTerms const* terms,
                  void const* scalars,
                  UpdateBuffers const& buffers,
                  std::int64_t* words) {
          SpaceFunctions<S>::of(space).measure(
              RuleFunctions<R>::of(rule),
              terms,
              static_cast<Values const*>(scalars),
              typed_of<Master, Parameter, Gradient, State, false>(buffers),
              words);
        };
      } else {
        return nullptr;
      }
    }
  }
};

/// @tparam sums   whether micro-steps add up in the accumulate dtype
/// @tparam coded  whether states that are to be codes are
template <MemorySpace S, Precision P, Rule R, bool sums, bool coded>
[[nodiscard]] constexpr KernelCalls make_kernel_calls() {
  using F = SpaceFunctions<S>;
  using Parameter = typename MastersOf<P>::Parameter;
  using Wire = typename P::Wire;
  using Accumulate = typename P::Accumulate;
  using Master = typename P::Master;
  using State = typename StateOf<P, R, coded>::Type;
  using Gradient = ReducedGradient<P, sums>;
  using Real = RuleReal<P, sums>;
  using K = RuleKernels<S, R, Real>;
  using Held = typename MastersOf<P>::Held;
  constexpr bool random = coded || random_masters<P> || random_states<P, R>;
  KernelCalls calls{.types = storage_types<P, R, coded>,
                    .gradient = dtype_of<Gradient>,
                    .call = F::call,
                    .with_loading = F::with_loading(),
                    .parameter_from_master = nullptr,
                    .master_from_parameter = nullptr,
                    .sums_from_wire = nullptr,
                    .add_wire_to_sums = nullptr,
                    .add_squares = F::template add_squares<Gradient>,
                    .add_hash = F::add_hash,
                    .find_unrounded = nullptr,
                    .in_double = std::same_as<Real, double>,
                    .random = random,
                    .scalar_bytes = sizeof(BasicStepScalars<Real>),
                    .rates_at_once = K::capacity,
                    .decide = K::decide,
                    .prepare = K::prepare,
                    .update = K::template update<Held, Parameter, Gradient, State, random, coded>,
                    .measure = K::template measure<Held, Parameter, Gradient, State>()};
  if constexpr (RemainderPrecision<P>) {
    // A parameter that nothing lacks is its master.
    calls.master_from_parameter = [](void const* space, void* out, void const*, std::size_t count) {
      F::zero(space, out, count * sizeof(Held));
    };
  } else if constexpr (has_master<P>) {
    calls.parameter_from_master = F::template convert<Parameter, Master>;
    calls.master_from_parameter = F::template convert<Master, typename P::Parameter>;
    calls.find_unrounded = F::template find_unrounded<Parameter, Master>;
  }
  if constexpr (sums) {
    calls.sums_from_wire = F::template convert<Accumulate, Wire>;
    calls.add_wire_to_sums = F::template add<Accumulate, Wire>;
  }
  return calls;
}

template <MemorySpace S, Precision P, Rule R, bool sums, bool coded = false>
inline constexpr KernelCalls kernel_calls = make_kernel_calls<S, P, R, sums, coded>();

/// A table for each kind of `listed_types`.
template <MemorySpace S, Rule R, bool sums, class List>
inline constexpr std::array<KernelCalls const*, 0> kernel_tables{};
template <MemorySpace S, Rule R, bool sums, Precision... P>
inline constexpr auto kernel_tables<S, R, sums, PrecisionList<P...>> = [] {
  if constexpr (coded_states<R> == 0) {
    return std::array{&kernel_calls<S, P, R, sums, false>...};
  } else {
    return std::array{&kernel_calls<S, P, R, sums, true>...,
                      &kernel_calls<S, P, R, sums, false>...};
  }
}();

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
