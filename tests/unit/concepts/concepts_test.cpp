/// What models each concept and what does not, and what the shipped models are.
#include "activations/late_transfer.hpp"
#include "archetypes.hpp"
#include "support/test.hpp"
#include <zero/comm/decorators/counting.hpp>
#include <zero/concepts/accumulation.hpp>
#include <zero/concepts/activation_placement.hpp>
#include <zero/concepts/bucket.hpp>
#include <zero/concepts/precision.hpp>
#include <zero/concepts/prefetch.hpp>
#include <zero/concepts/rule.hpp>
#include <zero/concepts/stage.hpp>
#include <zero/precision/fp32.hpp>
#include <zero/precision/mixed.hpp>
#include <zero/transfer/counting_transfer.hpp>
#include <zero/transfer/file_transfer.hpp>
#include <zero/transfer/host_transfer.hpp>

namespace concepts_test {
namespace {

using zero::bf16;
using zero::fp16;
using zero::Fp32;
using zero::Sharding;
using Bf16 = zero::Mixed<bf16>;
using Fp16 = zero::Mixed<fp16>;
using Name = std::string_view;

namespace stage {

struct Named {
  static constexpr Name name = "x";
};
/// Written as a user would: nothing in the library knows it.
struct Own : Named {
  static constexpr Sharding sharding{.optimizer = true};
};
struct Nameless {
  static constexpr Sharding sharding{};
};
struct GradientsOnly : Named {
  static constexpr Sharding sharding{.gradients = true};
};
struct ParametersWithoutGradients : Named {
  static constexpr Sharding sharding{.optimizer = true, .parameters = true};
};
struct WithState : Own {
  int state = 0;
};
static_assert(zero::Stage<Own>);
static_assert(!zero::Stage<Nameless> && !zero::Stage<Named> && !zero::Stage<WithState>);
static_assert(!zero::Stage<GradientsOnly> && !zero::Stage<ParametersWithoutGradients>);
static_assert(!zero::Stage<int> && !zero::Stage<Sharding>);

}  // namespace stage

namespace accumulation {

struct Full {
  static constexpr bool full_gradients = true;
};
struct Unsaid : Full {
  static constexpr Name name = "unsaid";
};
struct Nameless : Full {
  static constexpr bool reduced_shard = false;
};
struct Own : Unsaid {
  static constexpr bool reduced_shard = false;
};
struct Both : Unsaid {
  static constexpr bool reduced_shard = true;
};
struct WithState : Own {
  int state = 0;
};
static_assert(zero::Accumulation<Own>);
static_assert(!zero::Accumulation<Both> && !zero::Accumulation<Nameless>);
static_assert(!zero::Accumulation<Unsaid> && !zero::Accumulation<WithState>);
static_assert(!zero::Accumulation<bool>);

}  // namespace accumulation

namespace placement {

struct Own {
  static constexpr Name name = "own";
  static constexpr bool partitioned = true;
  static constexpr bool offloaded = false;
};
struct WholeElsewhere {
  static constexpr Name name = "x";
  static constexpr bool partitioned = false;
  static constexpr bool offloaded = true;
};
struct WithState : Own {
  int state = 0;
};
static_assert(zero::ActivationPlacement<Own> && !zero::ActivationPlacement<WholeElsewhere>);
static_assert(!zero::ActivationPlacement<WithState> && !zero::ActivationPlacement<int>);

}  // namespace placement

namespace precision {

struct NarrowAccumulate : archetype::Precision {
  using Accumulate = bf16;
};
struct Integers : archetype::Precision {
  using Master = int;
};
struct ScaledByNothing : archetype::Precision {
  static constexpr bool loss_scaled = true;
};
struct Nameless : archetype::Precision {
  static constexpr int name = 1;
};
struct OtherState : archetype::Precision {
  using State = float;
};
struct NotCompared : archetype::Precision {
  friend bool operator==(NotCompared const&, NotCompared const&) = delete;
};
static_assert(zero::Precision<archetype::Precision> && zero::Precision<OtherState>);
static_assert(!zero::Precision<NarrowAccumulate> && !zero::Precision<Integers>);
static_assert(!zero::Precision<ScaledByNothing> && !zero::Precision<Nameless>);
static_assert(!zero::Precision<NotCompared> && !zero::Precision<float>);

}  // namespace precision

namespace rule {

using zero::Rule;
using zero::StepScalars;

struct Described : archetype::Rule {
  [[nodiscard]] std::array<zero::RuleField, 1> fields() const { return {{{"lr", lr}}}; }
};
struct Nameless : archetype::Rule {
  static constexpr int name = 3;
};
struct NotCompared : archetype::Rule {
  friend bool operator==(NotCompared const&, NotCompared const&) = delete;
};
struct OtherScalars : archetype::Rule {
  [[nodiscard]] float scalars(long, float, float, float) const noexcept { return 0.f; }
};
struct ScalarsThrow : archetype::Rule {
  [[nodiscard]] StepScalars scalars(long, float, float, float) const { return {}; }
};
struct UpdateReturns : archetype::Rule {
  template <class V>
  V update(StepScalars const&, V& p, V const&, V*) const noexcept {
    return p;
  }
};
struct UpdateThrows : archetype::Rule {
  template <class V>
  void update(StepScalars const&, V&, V const&, V*) const {}
};
struct UpdateOfFloatOnly : archetype::Rule {
  void update(StepScalars const&, float&, float const&, float*) const noexcept {}
};
static_assert(Rule<archetype::Rule> && Rule<Described>);
static_assert(!Rule<Nameless> && !Rule<NotCompared> && !Rule<OtherScalars> && !Rule<ScalarsThrow>);
static_assert(!Rule<UpdateReturns> && !Rule<UpdateThrows> && !Rule<UpdateOfFloatOnly>);
static_assert(!Rule<float>);
static_assert(zero::DescribedRule<Described> && !zero::DescribedRule<archetype::Rule>);

}  // namespace rule

namespace space {

using zero::MemorySpace;
using zero::space::Host;

struct NoUpload : Host {
  static void upload(void*, void const*) noexcept {}
};
struct SaysNothingOfTheHost {
  static constexpr int host_accessible() { return 1; }
};
struct UpdatesWithoutTerms : Host {
  template <class Rule, class Arrays>
  static void update(Rule const&, zero::StepScalars const*, Arrays const&) {}
};
struct CannotBeCopied : Host {
  CannotBeCopied() = default;
  CannotBeCopied(CannotBeCopied const&) = delete;
};
static_assert(MemorySpace<Host> && !MemorySpace<NoUpload> && !MemorySpace<SaysNothingOfTheHost>);
static_assert(!MemorySpace<UpdatesWithoutTerms> && !MemorySpace<CannotBeCopied>);
// What lies in a space's memory can be copied as bytes, and starts as zeros or by upload.
static_assert(std::is_trivially_copyable_v<zero::StepTerms>);
static_assert(std::is_trivially_copyable_v<zero::ExactSum>);
static_assert(zero::StepTerms{}.gradient_scale == 1.f);

}  // namespace space

namespace transfer {

using zero::HostTransfer;
using zero::Transfer;

struct SettleMayThrow : HostTransfer {
  void settle() {}
};
struct WaitAnswers : HostTransfer {
  int wait(Ticket const&) { return 0; }
};
struct SlowIsNoAddress : HostTransfer {
  struct Slow {};
};
struct OfNoSpace : HostTransfer {
  using Space = int;
};
static_assert(Transfer<HostTransfer> && Transfer<zero::FileTransfer>);
static_assert(Transfer<zero::CountingTransfer<zero::FileTransfer>>);
static_assert(Transfer<activations::LateTransfer>);
static_assert(!Transfer<SettleMayThrow> && !Transfer<WaitAnswers> && !Transfer<SlowIsNoAddress>);
static_assert(!Transfer<OfNoSpace> && !Transfer<int>);

}  // namespace transfer

namespace memory {

using zero::Allocator;
using zero::Borrowed;
using zero::Memory;
using zero::Owned;

struct OfSomething {
  explicit OfSomething(int) {}
  void* allocate(std::size_t, std::size_t) { return nullptr; }
  void deallocate(void*, std::size_t, std::size_t) {}
};
struct CannotBeCopied : OfSomething {
  CannotBeCopied(CannotBeCopied const&) = delete;
};
struct WithoutAlignment {
  void* allocate(std::size_t) { return nullptr; }
  void deallocate(void*, std::size_t) {}
};
struct Undecided {
  zero::HostAllocator allocator{};
};
struct WithoutAllocator {
  static constexpr bool borrowed = false;
};
static_assert(Allocator<archetype::Allocator> && Allocator<zero::HostAllocator>);
static_assert(!Allocator<CannotBeCopied> && !Allocator<WithoutAlignment> && !Allocator<int>);
static_assert(Memory<archetype::Memory> && Memory<archetype::Lent>);
static_assert(Memory<Owned<>> && Memory<Borrowed<>> && Memory<Owned<archetype::Allocator>>);
static_assert(Memory<Owned<OfSomething>> && Memory<Borrowed<OfSomething>>);
static_assert(!std::is_default_constructible_v<Owned<OfSomething>>);
static_assert(!std::is_default_constructible_v<Borrowed<OfSomething>>);
static_assert(!std::is_default_constructible_v<Owned<archetype::Allocator>>);
static_assert(!Memory<Undecided> && !Memory<WithoutAllocator>);
static_assert(!Owned<>::borrowed && Borrowed<>::borrowed);
static_assert(std::is_empty_v<Owned<>> && std::is_empty_v<Borrowed<>>);
static_assert(std::same_as<decltype(Owned{archetype::Allocator{1}}), Owned<archetype::Allocator>>);
static_assert(
    std::same_as<decltype(Borrowed{archetype::Allocator{1}}), Borrowed<archetype::Allocator>>);
using zero::BorrowedInPlace;
using zero::reduces_in_place;
static_assert(Memory<BorrowedInPlace<OfSomething>> && std::is_empty_v<BorrowedInPlace<>>);
static_assert(BorrowedInPlace<>::borrowed && reduces_in_place<BorrowedInPlace<>>);
static_assert(!reduces_in_place<Borrowed<>> && !reduces_in_place<archetype::Lent>);
static_assert(std::same_as<decltype(BorrowedInPlace{archetype::Allocator{1}}),
                           BorrowedInPlace<archetype::Allocator>>);

}  // namespace memory

namespace communicator {

using zero::Communicator;

struct Splittable : archetype::Communicator {
  Splittable() = default;
  Splittable(Splittable&&) noexcept {}
  Splittable split(int, int) { return {}; }
};
struct Throwing : archetype::Communicator {
  [[nodiscard]] int rank() const { return 0; }
};
struct Spaceless : archetype::Communicator {
  using Space = int;
};
template <class T>
struct Plain {
  using Ticket = T;
  using Space = zero::space::Host;
  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }
  Ticket start(zero::Collective const&) { return {}; }
  void wait(Ticket&) {}
};
/// Its space cannot be made up, and it does not say which it is.
struct Silent : Plain<int> {
  using Space = archetype::Space;
};
struct CannotMove {
  CannotMove() = default;
  CannotMove(CannotMove const&) = delete;
};
struct Progressing : archetype::Communicator {
  int calls = 0;
  void progress() noexcept { ++calls; }
};
/// An optimizer's loop must not stop because a transfer failed; the next wait tells.
struct ProgressThrows : archetype::Communicator {
  void progress() {}
};
static_assert(Communicator<archetype::Communicator> && Communicator<Plain<int>>);
static_assert(Communicator<zero::Self> && Communicator<zero::InProcess>);
static_assert(!Communicator<Throwing> && !Communicator<Spaceless> && !Communicator<Silent>);
static_assert(!Communicator<Plain<CannotMove>> && !Communicator<int>);
static_assert(zero::SplittableCommunicator<Splittable>);
static_assert(zero::SplittableCommunicator<zero::InProcess>);
static_assert(!zero::SplittableCommunicator<archetype::Communicator>);
static_assert(zero::ProgressingCommunicator<Progressing>);
static_assert(!zero::ProgressingCommunicator<ProgressThrows>);
static_assert(!zero::ProgressingCommunicator<archetype::Communicator>);

}  // namespace communicator

namespace plain_values {

static_assert(zero::Bucket{}.bytes == 26'214'400 && zero::Bucket{.bytes = 7}.bytes == 7);
static_assert(std::regular<zero::Bucket> && sizeof(zero::Bucket) == sizeof(std::size_t));
static_assert(zero::Bucket{} == zero::Bucket{25 * zero::MiB} && zero::Bucket{1} != zero::Bucket{2});
static_assert(zero::Prefetch{}.depth == 1 && zero::Prefetch{3}.depth == 3);
static_assert(std::regular<zero::Prefetch>);
static_assert(zero::Prefetch{1} == zero::Prefetch{} && zero::Prefetch{0} != zero::Prefetch{});

}  // namespace plain_values

namespace states {

using zero::model_states;
using zero::ModelStates;

/// A rule of a user's own, with more state than any of ours.
struct FiveStates : archetype::Rule {
  static constexpr std::array states{zero::StateArray{"s0"},
                                     zero::StateArray{"s1"},
                                     zero::StateArray{"s2"},
                                     zero::StateArray{"s3"},
                                     zero::StateArray{"s4"}};
};
/// Five dtypes of five kinds: each of the three numbers has its own source.
struct Unusual : archetype::Precision {
  using Master = double;
  using State = fp16;
};
/// No master is held where it would be the parameters once more.
struct HalfThroughout : archetype::Precision {
  using Wire = bf16;
  using Master = bf16;
};
// Mixed-precision Adam is the paper's example: 2, 2 and K = 12 bytes.
static_assert(model_states<Bf16, zero::AdamW> == ModelStates{2, 2, 12});
static_assert(model_states<Fp16, zero::Adam> == ModelStates{2, 2, 12});
static_assert(model_states<Bf16, zero::AdamW> == ModelStates{});
static_assert(model_states<Fp32, zero::AdamW> == ModelStates{4, 4, 8});
static_assert(model_states<Bf16, zero::Lion> == ModelStates{2, 2, 8});
static_assert(model_states<Bf16, zero::Adagrad> == ModelStates{2, 2, 8});
static_assert(model_states<Fp32, zero::Adagrad> == ModelStates{4, 4, 4});
static_assert(model_states<zero::MixedFloatGradients<bf16>, zero::AdamW> == ModelStates{2, 4, 12});
static_assert(model_states<Bf16, zero::Sgd> == ModelStates{2, 2, 8});
static_assert(model_states<Fp32, zero::PlainSgd> == ModelStates{4, 4, 0});
static_assert(model_states<Unusual, FiveStates> == ModelStates{2, 4, 8 + 5 * 2});
static_assert(model_states<HalfThroughout, FiveStates> == ModelStates{2, 2, 5 * 2});
static_assert(model_states<HalfThroughout, zero::AdamW> == ModelStates{2, 2, 4});

}  // namespace states

template <class T, class... Expected>
constexpr bool has_types = (std::same_as<T, Expected> && ...);

}  // namespace

TEST_CASE("the shipped stages, accumulations, placements and precisions") {
  namespace s = zero::stage;
  CHECK(s::Replicated::sharding == Sharding{false, false, false});
  CHECK(s::Pos::sharding == Sharding{true, false, false});
  CHECK(s::PosG::sharding == Sharding{true, true, false});
  CHECK(s::PosGP::sharding == Sharding{true, true, true});
  static_assert(!zero::AccumulateNone::full_gradients && !zero::AccumulateNone::reduced_shard);
  static_assert(zero::AccumulateFull::full_gradients && !zero::AccumulateFull::reduced_shard);
  static_assert(!zero::AccumulateShard::full_gradients && zero::AccumulateShard::reduced_shard);
  namespace activation = zero::activation;
  static_assert(!activation::Whole::partitioned && !activation::Whole::offloaded);
  static_assert(activation::Pa::partitioned && !activation::Pa::offloaded);
  static_assert(activation::PaCpu::partitioned && activation::PaCpu::offloaded);
  // 16 bits travel, 32 bits add up, only fp16 is scaled.
  static_assert(std::same_as<Bf16::Parameter, bf16> && std::same_as<Bf16::Wire, bf16>);
  static_assert(std::same_as<Fp16::Parameter, fp16> && std::same_as<Fp16::Wire, fp16>);
  static_assert(has_types<float, Bf16::Accumulate, Bf16::Master, Bf16::State>);
  static_assert(has_types<float, Fp16::Accumulate, Fp16::Master, Fp16::State>);
  using Wide = zero::MixedFloatGradients<fp16>;
  static_assert(std::same_as<Wide::Parameter, fp16>);
  static_assert(has_types<float, Wide::Wire, Wide::Accumulate, Wide::Master, Wide::State>);
  static_assert(!Wide::loss_scaled && zero::has_master<Wide>);
  static_assert(!Fp32::loss_scaled && !Bf16::loss_scaled && Fp16::loss_scaled);
  // A master is held where the parameters are not their own.
  static_assert(zero::has_master<archetype::Precision> && !zero::has_master<Fp32>);
  static_assert(zero::has_master<Bf16> && zero::has_master<Fp16>);
  std::vector<Name> const names{s::Replicated::name,
                                s::Pos::name,
                                s::PosG::name,
                                s::PosGP::name,
                                zero::AccumulateNone::name,
                                zero::AccumulateFull::name,
                                zero::AccumulateShard::name,
                                activation::PaCpu::name,
                                Fp32::name,
                                Bf16::name,
                                Fp16::name,
                                zero::MixedFloatGradients<bf16>::name,
                                Wide::name};
  CHECK((names == std::vector<Name>{"replicated",
                                    "Pos",
                                    "Pos+g",
                                    "Pos+g+p",
                                    "none",
                                    "full",
                                    "shard",
                                    "Pa+cpu",
                                    "fp32",
                                    "bf16",
                                    "fp16",
                                    "bf16+fp32 grads",
                                    "fp16+fp32 grads"}));
}

TEST_CASE("progress is passed on to communicators that need it, and costs others nothing") {
  communicator::Progressing comm;
  zero::progress(comm);
  zero::progress(comm);
  CHECK(comm.calls == 2);
  archetype::Communicator other;
  zero::progress(other);
}

TEST_CASE("elements sent are those of the paper's algorithms, operations have names") {
  using zero::elements_sent;
  using zero::Op;
  static_assert(elements_sent(Op::reduce_scatter, 100, 4) == 300);
  static_assert(elements_sent(Op::all_gather, 100, 4) == 300);
  static_assert(elements_sent(Op::all_to_all, 100, 4) == 300);
  static_assert(elements_sent(Op::all_reduce, 100, 4) == 150);
  static_assert(elements_sent(Op::all_reduce, 101, 4) == 156);
  static_assert(elements_sent(Op::broadcast, 100, 4) == 100);
  std::string names;
  for (int i = 0; i < zero::op_count; ++i) {
    auto const op = static_cast<Op>(i);
    CHECK(elements_sent(op, 100, 1) == 0);
    CHECK(elements_sent(op, 0, 8) == 0);
    names += std::string(name(op)) + " ";
  }
  CHECK(names == "reduce_scatter all_gather all_to_all all_reduce broadcast ");
  CHECK(name(static_cast<Op>(77)) == "unknown");
  CHECK(zero::Collective{.dtype = zero::DType::bf16, .count = 3}.block_bytes() == 6);
  CHECK(zero::Collective{}.bucket == -1);
}

TEST_CASE("run() starts a collective and waits for it") {
  archetype::Communicator comm;
  float from = 3.f;
  float to = 0.f;
  zero::run(comm, {.count = 1, .send = &from, .recv = &to});
  CHECK(to == 3.f);
}

TEST_CASE("sum: a value of every rank in one line, wide enough and the same on all of them") {
  struct Seen {
    double tenths = 0., wide = 0.;
    std::int64_t large = 0, negative = 0, votes = 0;
    std::uint64_t calls = 0;
    bool operator==(Seen const&) const = default;
  };
  std::vector<Seen> seen(3);
  zero::run_ranks(3, [&](zero::InProcess& ranks) {
    zero::Counting comm{ranks};
    int const rank = comm.rank();
    Seen& own = seen[static_cast<std::size_t>(rank)];
    own.tenths = zero::sum(comm, 0.1 + rank);
    own.wide = zero::sum(comm, rank == 0 ? 16777216.f : 1.f);  // in float, the first one's
    own.large = zero::sum(comm, std::uint32_t{4000000000U});
    own.negative = zero::sum(comm, -rank);
    own.votes = zero::sum(comm, rank == 1);
    own.calls = comm.counts().control_total().calls;
  });
  Seen const expected{.tenths = 0.1 + 1.1 + 2.1,
                      .wide = 16777218.,
                      .large = 12000000000,
                      .negative = -3,
                      .votes = 1,
                      .calls = 5};
  for (Seen const& rank : seen) CHECK(rank == expected);
}

TEST_CASE("barrier: none returns before all have called it") {
  constexpr int ranks = 3;
  std::atomic<int> entered = 0;
  std::atomic<int> early = 0;
  zero::run_ranks(ranks, [&](zero::InProcess& inner) {
    zero::Counting comm{inner};
    for (int turn = 1; turn <= 20; ++turn) {
      // Another rank is late each time.
      if (turn % ranks == comm.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++entered;
      zero::barrier(comm);
      if (entered < turn * ranks) ++early;
    }
    if (comm.counts().control_total().calls != 20) ++early;
  });
  CHECK(early == 0);
  zero::Self alone;
  zero::barrier(alone);
}

TEST_CASE("the host allocator keeps to the alignment that is asked for") {
  zero::HostAllocator allocator;
  for (std::size_t const bytes : {std::size_t{100}, std::size_t{1} << 20}) {
    for (std::size_t alignment = 8; alignment <= std::size_t{1} << 21; alignment *= 2) {
      void* const memory = allocator.allocate(bytes, alignment);
      CHECK(reinterpret_cast<std::uintptr_t>(memory) % alignment == 0);
      std::memset(memory, 1, bytes);
      allocator.deallocate(memory, bytes, alignment);
    }
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The sanitizers end a program that asks for so much.
TEST_CASE("the host allocator refuses what would wrap around") {
  zero::HostAllocator allocator;
  std::size_t const volatile bytes = SIZE_MAX - 4096;
  CHECK_THROWS_AS(static_cast<void>(allocator.allocate(bytes, 64)), std::bad_alloc);
}
#endif

TEST_CASE("large blocks of a power of two do not lie about multiples of it apart") {
  zero::HostAllocator allocator;
  constexpr std::size_t bytes = std::size_t{1} << 26;
  std::vector<char*> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(static_cast<char*>(allocator.allocate(bytes, 4096)));
  }
  std::sort(blocks.begin(), blocks.end());
  int close = 0;  // what lay in between by chance may make one so
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    if ((blocks[i] - blocks[i - 1]) % (2 << 20) <= 16 << 10) ++close;
  }
  CHECK(close <= 1);
  for (char* const block : blocks) allocator.deallocate(block, bytes, 4096);
}

}  // namespace concepts_test
