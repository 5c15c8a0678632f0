#include "archetypes.hpp"
#include "support/test.hpp"
#include <zero/concepts/policies.hpp>

namespace policies_test {
namespace {

using Comm = archetype::Communicator;
using zero::ShardedOptimizer;

std::vector<zero::Tensor> model() {
  return {{.name = "w", .shape = {600}}, {.name = "b", .shape = {3}, .unit = 1}};
}

/// Trains two steps from 8 with gradient 4: the state is 4, then 8, at a rate of 0.25. `lend` may
/// bind memory.
template <class Stage, class Memory, class Lend>
void train(Lend const& lend) {
  Comm comm;
  ShardedOptimizer<Comm,
                   Stage,
                   archetype::Precision,
                   archetype::Rule,
                   Memory,
                   archetype::Accumulation>
      optimizer{comm, model(), Memory{archetype::Allocator(1)}};
  lend(optimizer);
  optimizer.load_parameters([](zero::Tensor const&, std::size_t, std::span<float> out) {
    for (float& value : out) value = 8.f;
  });
  for (int step = 0; step < 2; ++step) {
    optimizer.micro_step({.last = true});
    for (int unit = 1; unit >= 0; --unit) {
      auto const weights = optimizer.parameters(unit);
      CHECK(static_cast<float>(weights[0][0]) == (step == 0 ? 8.f : 7.f));
      auto gradients = optimizer.gradients(unit);
      for (auto& g : gradients[0]) g = 4.f;
      optimizer.reduce(std::move(gradients));
    }
    CHECK(optimizer.step().weight == 1.);
  }
  optimizer.visit_owned([](auto const&, std::size_t, auto const& master, auto const& states) {
    CHECK(master.front() == 5.f);
    CHECK(master.back() == 5.f);
    CHECK(static_cast<float>(states[0].back()) == 8.f);
  });
  CHECK(optimizer.plan().memory == optimizer.held());
}

TEST_CASE("minimal models of all slots make an optimizer that trains, partitions and borrows") {
  train<archetype::Stage, archetype::Memory>([](auto&) {});
  train<archetype::WholeStage, archetype::Memory>([](auto&) {});
  std::vector<zero::bf16> parameters(603);
  std::vector<float> gradients(603);
  train<archetype::Stage, archetype::Lent>(
      [&](auto& optimizer) { optimizer.bind(std::span(parameters), std::span(gradients)); });
  CHECK(static_cast<float>(parameters[602]) == 5.f);
}

TEST_CASE("slots without a policy have the documented defaults") {
  using Default = ShardedOptimizer<Comm>;
  static_assert(std::same_as<Default::Stage, zero::stage::PosG>);
  static_assert(std::same_as<Default::Communicator, Comm>);
  static_assert(std::same_as<Default::Precision, zero::Fp32>);
  static_assert(std::same_as<Default::Rule, zero::AdamW>);
  static_assert(std::same_as<Default::Accumulation, zero::AccumulateNone>);
  static_assert(std::same_as<Default::Memory, zero::Owned<>>);
  static_assert(!Default::borrowed);
  static_assert(Default::sharding == zero::Sharding{true, true, false});
  static_assert(zero::Bucket{}.bytes == 25 * zero::MiB);
  static_assert(zero::Prefetch{}.depth == 1);
}

TEST_CASE("policies are taken in any order, as types or as values") {
  using Bf16 = zero::Mixed<zero::bf16>;
  using A = ShardedOptimizer<Comm, zero::stage::Pos, Bf16, zero::Sgd, zero::AccumulateFull>;
  using B = ShardedOptimizer<zero::AccumulateFull, zero::Sgd, Bf16, zero::stage::Pos, Comm>;
  static_assert(std::same_as<A::Stage, B::Stage>);
  static_assert(std::same_as<A::Precision, B::Precision>);
  static_assert(std::same_as<A::Rule, B::Rule>);
  static_assert(std::same_as<A::Accumulation, B::Accumulation>);
  static_assert(std::same_as<A::Memory, B::Memory>);
  static_assert(std::same_as<B::Stage, zero::stage::Pos>);
  static_assert(std::same_as<B::Rule, zero::Sgd>);
  static_assert(std::same_as<B::Precision, Bf16>);
  static_assert(std::same_as<B::Accumulation, zero::AccumulateFull>);

  using Deduced = decltype(ShardedOptimizer{std::declval<Comm&>(),
                                            model(),
                                            zero::Bucket{},
                                            zero::Borrowed<>{},
                                            zero::Sgd{},
                                            zero::stage::Pos{},
                                            zero::Prefetch{}});
  static_assert(std::same_as<Deduced::Communicator, Comm>);
  static_assert(std::same_as<Deduced::Rule, zero::Sgd>);
  static_assert(std::same_as<Deduced::Stage, zero::stage::Pos>);
  static_assert(std::same_as<Deduced::Memory, zero::Borrowed<>>);
}

TEST_CASE("values reach their slots in any order; the others keep their defaults") {
  using O = ShardedOptimizer<Comm, zero::Sgd>;
  Comm comm;
  O const one{comm, model(), zero::Bucket{4096}, zero::Sgd{.lr = 0.5f}};
  O const two{comm, model(), zero::Sgd{.lr = 0.5f}, zero::Bucket{4096}};
  O const none{comm, model()};
  CHECK(one.rule() == zero::Sgd{.lr = 0.5f});
  CHECK(two.rule() == one.rule());
  CHECK(none.rule() == zero::Sgd{});
  CHECK(one.partition().bucket_elements() == 1024);
  CHECK(two.partition().bucket_elements() == 1024);
  CHECK(none.partition().bucket_elements() == 25 * zero::MiB / 4);
}

/// What has a sentence where a trainer calls it, and is refused softly where somebody asks.
template <class O>
concept Lends = requires(O& optimizer, std::span<typename O::Parameter> memory) {
  optimizer.bind(memory, memory);
};
template <class O>
concept LendsGradients = requires(O& optimizer, std::span<typename O::Parameter> memory) {
  optimizer.bind_gradients(memory);
};
template <class O>
concept LendsParameters = requires(O& optimizer, std::span<typename O::Parameter> memory) {
  optimizer.bind_parameters(memory);
};
template <class O>
concept Broadcasts = requires(O& optimizer) {
  optimizer.broadcast_parameters();
};
template <class O>
concept BroadcastsFrom = requires(O& optimizer) {
  optimizer.broadcast_parameters(1);
};
template <class O>
concept BroadcastsValues = requires(O& optimizer) {
  optimizer.broadcast_parameters([](zero::Tensor const&, std::size_t, std::span<float>) {}, 1);
};
template <class O, class Gradients>
concept Reduces = requires(O& optimizer, Gradients gradients) {
  optimizer.reduce(static_cast<Gradients>(gradients));
};
template <class Guard>
concept Views = requires(Guard guard) {
  static_cast<Guard>(guard)["w"];
};
template <class Guard>
concept ViewsNumber = requires(Guard guard) {
  static_cast<Guard>(guard)[0];
};
template <class Guard>
concept Points = requires(Guard guard) {
  static_cast<Guard>(guard).data(0);
};
template <class First, class... Rest>
concept Deduces = requires(First first, Rest... rest) {
  ShardedOptimizer(static_cast<First>(first), static_cast<Rest>(rest)...);
};

TEST_CASE("a mistake is refused softly where a concept asks for it") {
  using Owner = ShardedOptimizer<Comm>;
  using Borrower = ShardedOptimizer<Comm, zero::Borrowed<>>;
  using Partitioner = ShardedOptimizer<Comm, zero::stage::PosGP>;
  static_assert(Lends<Borrower> && !Lends<Owner> && !Lends<Partitioner>);
  static_assert(LendsGradients<Borrower> && !LendsGradients<Owner>);
  static_assert(LendsParameters<Borrower> && !LendsParameters<Owner>);
  static_assert(Broadcasts<Owner> && Broadcasts<Borrower> && !Broadcasts<Partitioner>);
  static_assert(BroadcastsFrom<Owner> && !BroadcastsFrom<Partitioner>);
  static_assert(BroadcastsValues<Owner> && BroadcastsValues<Partitioner>);

  using Gradients = zero::UnitGradients<Owner>;
  static_assert(Reduces<Owner, Gradients&&>);
  static_assert(!Reduces<Owner, Gradients&> && !Reduces<Owner, Gradients const&>);
  static_assert(!Reduces<Partitioner, Gradients&&>);

  using Unit = zero::UnitParameters<Owner>;
  using Full = zero::FullParameters<Owner>;
  static_assert(Views<Unit&> && Views<Unit const&> && !Views<Unit&&>);
  static_assert(ViewsNumber<Unit&> && ViewsNumber<Full&> && !ViewsNumber<Unit&&>);
  static_assert(Views<Full&> && !Views<Full&&> && !ViewsNumber<Full&&>);
  static_assert(Points<Unit&> && !Points<Unit&&>);

  using Tensors = std::vector<zero::Tensor>;
  static_assert(std::is_constructible_v<Owner, Comm&, Tensors>);
  static_assert(std::is_constructible_v<Owner, Comm&, Tensors&, zero::AdamW>);
  static_assert(!std::is_constructible_v<Owner, zero::Self&, Tensors>);
  static_assert(!std::is_constructible_v<Owner, Comm, Tensors>);
  static_assert(!std::is_constructible_v<Owner, Comm const&, Tensors>);
  static_assert(!std::is_constructible_v<Owner, Tensors, Comm&>);
  static_assert(!std::is_constructible_v<Owner, Tensors>);
  static_assert(!std::is_constructible_v<Owner, zero::AdamW, Tensors, Comm&>);
  static_assert(!std::is_constructible_v<Owner, Comm&>);
  static_assert(!std::is_constructible_v<Owner> && !std::is_copy_constructible_v<Owner>);
  static_assert(Deduces<Comm&, Tensors> && Deduces<Comm&, Tensors, zero::Sgd>);
  static_assert(!Deduces<Tensors, Comm&> && !Deduces<Comm, Tensors> && !Deduces<Tensors>);
  static_assert(!Deduces<int, Tensors> && !Deduces<zero::Sgd, Tensors, Comm&>);
}

TEST_CASE("every shipped policy models exactly one slot") {
  using zero::detail::slots_of;
  static_assert(slots_of<zero::stage::Replicated> == 1 && slots_of<zero::stage::PosGP> == 1);
  static_assert(slots_of<zero::Self> == 1 && slots_of<zero::InProcess> == 1);
  static_assert(slots_of<zero::Counting<zero::InProcess>> == 1);
  static_assert(slots_of<zero::Fp32> == 1 && slots_of<zero::Mixed<zero::fp16>> == 1);
  static_assert(slots_of<zero::MixedFloatGradients<zero::bf16>> == 1);
  static_assert(slots_of<zero::Sgd> == 1 && slots_of<zero::PlainSgd> == 1);
  static_assert(slots_of<zero::Adam> == 1 && slots_of<zero::AdamW> == 1);
  static_assert(slots_of<zero::Adagrad> == 1 && slots_of<zero::Lion> == 1);
  static_assert(slots_of<zero::AccumulateNone> == 1 && slots_of<zero::AccumulateShard> == 1);
  static_assert(slots_of<zero::Owned<>> == 1 && slots_of<zero::Borrowed<>> == 1);
  static_assert(slots_of<zero::BorrowedInPlace<>> == 1);
  static_assert(slots_of<zero::Bucket> == 1 && slots_of<zero::Prefetch> == 1);
  static_assert(slots_of<int> == 0 && slots_of<zero::Tensor> == 0);
  static_assert(slots_of<zero::HostAllocator> == 0);
}

TEST_CASE("the first policy that fits is selected, or else the default") {
  using zero::detail::FitsRule;
  using zero::detail::named;
  using zero::detail::Selected;
  static_assert(std::same_as<Selected<FitsRule, zero::AdamW>, zero::AdamW>);
  static_assert(std::same_as<Selected<FitsRule, zero::AdamW, zero::Fp32>, zero::AdamW>);
  static_assert(std::same_as<Selected<FitsRule, zero::AdamW, zero::Fp32, zero::Lion>, zero::Lion>);
  static_assert(named<FitsRule, zero::Fp32> == 0);
  static_assert(named<FitsRule, zero::Sgd, zero::Fp32, zero::Lion> == 2);
}

}  // namespace
}  // namespace policies_test
