/// @file
/// The least that each slot's concept asks for, and nothing else: if the optimizer needs more of a
/// policy than its concept says, these do not compile.
#pragma once

#include "support/standard.hpp"
#include "zero/zero.hpp"

namespace archetype {

struct Stage {
  static constexpr std::string_view name = "archetype";
  static constexpr zero::Sharding sharding{.optimizer = true, .gradients = true};
};

/// Shards everything, so that gathers are instantiated too.
struct WholeStage {
  static constexpr std::string_view name = "whole";
  static constexpr zero::Sharding sharding{true, true, true};
};

/// The functions through which the optimizer reaches memory, of an object that is not made up.
class Space {
 public:
  static constexpr std::string_view name = "archetype";
  static constexpr bool host_accessible = true;

  explicit Space(int) {}

  void zero(void* memory, std::size_t bytes) const { std::memset(memory, 0, bytes); }
  void copy(void* to, void const* from, std::size_t bytes) const { std::memmove(to, from, bytes); }
  void upload(void* to, void const* host, std::size_t bytes) const { copy(to, host, bytes); }
  void download(void* host, void const* from, std::size_t bytes) const { copy(host, from, bytes); }
  template <class To, class From>
  void convert(To* out, From const* in, std::size_t count) const {
    zero::space::Host::convert(out, in, count);
  }
  template <class Sum, class From>
  void add(Sum* out, From const* in, std::size_t count) const {
    zero::space::Host::add(out, in, count);
  }
  template <class T>
  void add_squares(zero::ExactSum* sum, T const* x, std::size_t count) const {
    zero::space::Host::add_squares(sum, x, count);
  }
  template <class T>
  void add_hash(std::uint64_t* hash, T const* x, std::size_t count, std::uint64_t first) const {
    zero::space::Host::add_hash(hash, x, count, first);
  }
  template <class P, class M>
  void find_unrounded(std::uint64_t* first,
                      P const* parameter,
                      M const* master,
                      std::size_t count,
                      std::uint64_t place) const {
    zero::space::Host::find_unrounded(first, parameter, master, count, place);
  }
  template <class F>
  void call(F const& function) const {
    function();
  }
  template <class Rule, class Arrays>
  void update(Rule const& rule,
              zero::StepTerms const* terms,
              zero::StepScalars const* scalars,
              Arrays const& arrays) const {
    zero::space::Host::update(rule, terms, scalars, arrays);
  }
};

/// One rank. Neither copied nor moved; its tickets are moved only.
class Communicator {
 public:
  using Space = archetype::Space;
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&&) = default;
    Ticket& operator=(Ticket&&) = default;
  };

  Communicator() = default;
  Communicator(Communicator&&) = delete;

  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }
  [[nodiscard]] Space space() const { return Space(1); }
  Ticket start(zero::Collective const& op) {
    space().copy(op.recv, op.send, op.block_bytes());
    return {};
  }
  void wait(Ticket&) {}
};

/// Five types, some of them unusual: states are narrower than master weights.
struct Precision {
  static constexpr std::string_view name = "archetype";
  using Parameter = zero::bf16;
  using Wire = float;
  using Accumulate = float;
  using Master = float;
  using State = zero::bf16;
  static constexpr bool loss_scaled = false;
  friend bool operator==(Precision const&, Precision const&) = default;
};

/// Does not list its fields.
struct Rule {
  static constexpr std::string_view name = "archetype";
  static constexpr std::array states{zero::StateArray{"s0"}};
  float lr = 0.25f;

  [[nodiscard]] zero::StepScalars scalars(long,
                                          float lr_now,
                                          float lr_scale,
                                          float) const noexcept {
    return {.learning_rate = lr_now * lr_scale};
  }
  template <class V>
  void update(zero::StepScalars const& s, V& p, V const& g, V* state) const noexcept {
    state[0] = state[0] + g;
    p = p - s.learning_rate * state[0];
  }
  friend bool operator==(Rule const&, Rule const&) = default;
};

/// Neither default-constructed nor compared.
class Allocator {
 public:
  explicit Allocator(int) {}
  void* allocate(std::size_t bytes, std::size_t alignment) {
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  void deallocate(void* memory, std::size_t, std::size_t) { std::free(memory); }
};

struct Memory {
  static constexpr bool borrowed = false;
  Allocator allocator;
};

struct Lent {
  static constexpr bool borrowed = true;
  Allocator allocator;
};

struct Accumulation {
  static constexpr std::string_view name = "archetype";
  static constexpr bool full_gradients = false;
  static constexpr bool reduced_shard = true;
};

static_assert(zero::Stage<Stage> && zero::Stage<WholeStage>);
static_assert(zero::MemorySpace<Space>);
static_assert(zero::Communicator<Communicator> && zero::OwnSpace<Communicator>);
static_assert(!zero::SplittableCommunicator<Communicator>);
static_assert(zero::Precision<Precision>);
static_assert(zero::Rule<Rule> && !zero::DescribedRule<Rule>);
static_assert(zero::Allocator<Allocator>);
static_assert(zero::Memory<Memory> && zero::Memory<Lent>);
static_assert(zero::Accumulation<Accumulation>);

}  // namespace archetype
