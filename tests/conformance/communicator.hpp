/// @file
/// What every communicator has to do, written once.
///
/// A model is tested through a `World`: `ranks` lists the group sizes to try, and `run(n, body)`
/// calls `body(comm)` on every rank of a new group of n and rethrows what a rank throws.
#pragma once

#include "support/random.hpp"
#include "support/test.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/kernel/norm.hpp"

namespace conformance {

/// Sanitizers look at interleavings and at ends of buffers, which do not depend on how much there
/// is between them, and take their time for each element; that for threads not on types, either.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool every_type = false;
#else
inline constexpr bool every_type = true;
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr std::size_t many = 10000;
#else
inline constexpr std::size_t many = 100000;
#endif

inline constexpr std::size_t counts[] = {0, 1, 7, 512, 4096 + 3, many};

/// Findings of all ranks; doctest is asked on the main thread only.
class Findings {
 public:
  /// Nothing is no finding.
  void add(std::string const& text) {
    std::lock_guard const lock(mutex_);
    if (!text.empty() && all_.size() < 1000) all_ += text + "; ";
  }
  void check() const { CHECK_MESSAGE(all_.empty(), all_); }

 private:
  std::mutex mutex_;
  std::string all_;
};

/// A value that depends on rank and place, and whose sums round differently in different orders.
template <class T>
[[nodiscard]] T element(int rank, std::size_t at) {
  std::uint64_t const x = mixed(static_cast<std::uint64_t>(rank), at);
  if constexpr (zero::FloatElement<T>) {
    float const mantissa = static_cast<float>(x >> 40) / 16777216.0f - 0.5f;
    return static_cast<T>(mantissa * static_cast<float>(1u << (x % 9)));
  } else {
    return static_cast<T>(x >> 3);
  }
}

template <class T>
[[nodiscard]] std::vector<T> elements(int rank, std::size_t count) {
  std::vector<T> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = element<T>(rank, i);
  return result;
}

/// The sum over ranks in rank order, rounded once: the definition, in the plainest words.
template <class T, class Acc>
[[nodiscard]] T naive_sum(int ranks, std::size_t at) {
  if constexpr (std::is_integral_v<T>) {
    std::uint64_t sum = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      sum += static_cast<std::uint64_t>(static_cast<std::int64_t>(element<T>(rank, at)));
    }
    return static_cast<T>(sum);
  } else {
    auto const wide = [at](int rank) {
      T const x = element<T>(rank, at);
      if constexpr (std::is_same_v<T, Acc>) return x;
      if constexpr (!std::is_same_v<T, Acc>) return static_cast<Acc>(static_cast<float>(x));
    };
    Acc sum = wide(0);
    for (int rank = 1; rank < ranks; ++rank) sum = sum + wide(rank);
    // fp64 sums of fp32 elements; a plain conversion rounds them once.
    return static_cast<T>(sum);
  }
}

/// Who adds in an order of its own leaves the rounding of each addition open.
enum class Sums { in_rank_order, in_any_order };

/// Is this the sum over all ranks of what they have there, but for the rounding of each addition?
/// Of doubles the elements have so few digits that nothing is rounded.
template <class T>
[[nodiscard]] bool is_sum(T got, int ranks, std::size_t at) {
  if constexpr (std::is_integral_v<T>) {
    return got == naive_sum<T, T>(ranks, at);
  } else {
    double sum = 0;
    double size = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      auto const x = static_cast<double>(element<T>(rank, at));
      sum += x;
      size += std::abs(x);
    }
    double const rounding = ranks * double{std::numeric_limits<float>::epsilon()} / 2;
    return std::abs(static_cast<double>(got) - sum) <=
           (std::is_same_v<T, double> ? 0 : rounding * size);
  }
}

template <class T>
[[nodiscard]] bool same_bits(T const* a, T const* b, std::size_t count) {
  return count == 0 || std::memcmp(a, b, count * sizeof(T)) == 0;
}

/// Elements around a receive buffer that nobody may touch.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::size_t count, T fill = element<T>(98, 1))
      : memory_(count + 2 * margin, canary()), count_(count) {
    std::fill_n(data(), count, fill);
  }
  [[nodiscard]] T* data() { return memory_.data() + margin; }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] bool intact() const {
    for (std::size_t i = 0; i < margin; ++i) {
      T const expected = canary();
      if (!same_bits(&memory_[i], &expected, 1)) return false;
      if (!same_bits(&memory_[margin + count_ + i], &expected, 1)) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t margin = 33;
  [[nodiscard]] static T canary() { return element<T>(99, 7); }
  std::vector<T> memory_;
  std::size_t count_;
};

/// One operation on one rank: which buffers, and what they must hold afterwards.
template <class T, class Acc, Sums Order = Sums::in_rank_order>
class Case {
 public:
  Case(zero::Op op, int rank, int size, std::size_t count, bool in_place, int root)
      : op_(op),
        rank_(rank),
        size_(size),
        count_(count),
        root_(root),
        send_(elements<T>(rank, whole_send() ? count * ranks() : count)),
        recv_(whole_receive() ? count * ranks() : count) {
    if (!in_place) return;
    in_place_ = true;
    if (op == zero::Op::reduce_scatter) {
      shared_ = std::vector<T>(send_);
      return;
    }
    std::size_t const at = op == zero::Op::all_gather ? static_cast<std::size_t>(rank) * count : 0;
    if (op != zero::Op::broadcast || rank == root) {
      std::copy(send_.begin(), send_.end(), recv_.data() + at);
    }
  }

  [[nodiscard]] zero::Collective collective(int bucket) {
    zero::Collective op{.op = op_,
                        .dtype = zero::dtype_of<T>,
                        .accumulate = zero::dtype_of<Acc>,
                        .count = count_,
                        .send = send_.data(),
                        .recv = recv_.data(),
                        .root = root_,
                        .bucket = bucket};
    std::size_t const own = static_cast<std::size_t>(rank_) * count_;
    if (in_place_) {
      if (op_ == zero::Op::reduce_scatter) {
        op.send = shared_.data();
        op.recv = shared_.data() + own;
      } else {
        op.send = recv_.data() + (op_ == zero::Op::all_gather ? own : 0);
      }
    }
    if (op_ == zero::Op::broadcast && rank_ != root_ && !in_place_) op.send = nullptr;
    return op;
  }

  /// Empty, or what is wrong with the result.
  [[nodiscard]] std::string verdict() {
    std::string const what = std::string(name(op_)) + " of " + std::to_string(count_) + ' ' +
                             std::string(name(zero::dtype_of<T>)) + " on rank " +
                             std::to_string(rank_) + " of " + std::to_string(size_) +
                             (in_place_ ? ", in place" : "");
    if (!recv_.intact()) return what + " wrote outside its buffer";
    bool const own_block = in_place_ && op_ == zero::Op::reduce_scatter;
    T const* const result =
        own_block ? shared_.data() + static_cast<std::size_t>(rank_) * count_ : recv_.data();
    for (std::size_t i = 0; i < recv_.size(); ++i) {
      if (!is_right(result[i], i)) return what + " is wrong at " + std::to_string(i);
    }
    if (!in_place_ &&
        !same_bits(send_.data(), elements<T>(rank_, send_.size()).data(), send_.size())) {
      return what + " changed its send buffer";
    }
    if (own_block) {
      for (std::size_t i = 0; i < shared_.size(); ++i) {
        if (i / std::max<std::size_t>(count_, 1) == static_cast<std::size_t>(rank_)) continue;
        if (!same_bits(&shared_[i], &send_[i], 1)) return what + " changed another rank's block";
      }
    }
    return {};
  }

 private:
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(size_); }
  [[nodiscard]] bool whole_send() const {
    return op_ == zero::Op::reduce_scatter || op_ == zero::Op::all_to_all;
  }
  [[nodiscard]] bool whole_receive() const {
    return op_ == zero::Op::all_gather || op_ == zero::Op::all_to_all;
  }
  [[nodiscard]] bool is_right(T got, std::size_t i) const {
    bool const scatter = op_ == zero::Op::reduce_scatter;
    if constexpr (Order == Sums::in_any_order) {
      std::size_t const at = scatter ? static_cast<std::size_t>(rank_) * count_ + i : i;
      if (scatter || op_ == zero::Op::all_reduce) return is_sum(got, size_, at);
    }
    T const expected = value_at(i);
    return same_bits(&got, &expected, 1);
  }
  [[nodiscard]] T value_at(std::size_t i) const {
    std::size_t const own = static_cast<std::size_t>(rank_) * count_;
    switch (op_) {
      case zero::Op::reduce_scatter: return naive_sum<T, Acc>(size_, own + i);
      case zero::Op::all_reduce: return naive_sum<T, Acc>(size_, i);
      case zero::Op::all_gather: return element<T>(static_cast<int>(i / count_), i % count_);
      case zero::Op::all_to_all: return element<T>(static_cast<int>(i / count_), own + i % count_);
      case zero::Op::broadcast: return element<T>(root_, i);
    }
    return T{};
  }
  zero::Op op_;
  int rank_;
  int size_;
  std::size_t count_;
  int root_;
  bool in_place_ = false;
  std::vector<T> send_;
  std::vector<T> shared_;
  Guarded<T> recv_;
};

/// The communicator asked for squares of a result, beside those of the space's own pass over it.
template <class T>
class Squares {
 public:
  template <class C>
  Squares(C const& /*comm*/, zero::Collective& op)
      : asked_(zero::SquaringCommunicator<C> && op.op == zero::Op::reduce_scatter &&
               zero::kernel::has_squares(op.dtype)) {
    if (!asked_) return;
    op.squares = &taken_;
    op.squares_count = op.count - op.count / 3;
    taken_.add(0.125);
  }
  /// Empty, or what is wrong with them.
  [[nodiscard]] std::string verdict(zero::Collective const& op) {
    if constexpr (zero::kernel::has_squares(zero::dtype_of<T>)) {
      if (!asked_) return {};
      zero::ExactSum expected;
      expected.add(0.125);
      zero::kernel::add_squares(expected, static_cast<T const*>(op.recv), op.squares_count);
      if (std::ranges::equal(taken_.words(), expected.words())) return {};
      return "squares of " + std::to_string(op.squares_count) + ' ' + std::string(name(op.dtype)) +
             " differ";
    }
    return {};
  }

 private:
  bool asked_;
  zero::ExactSum taken_;
};

template <class T, class Acc, Sums Order = Sums::in_rank_order, zero::Communicator C>
void every_operation(C& comm, Findings& findings, std::span<std::size_t const> sizes = counts) {
  auto const ranks = static_cast<std::size_t>(comm.size());
  for (std::size_t const count : sizes) {
    // All ranks together look at this many elements several times; sanitizers make that slow.
    if (count * ranks * ranks > 1'000'000 && sizes.size() > 1) continue;
    for (int number = 0; number < zero::op_count; ++number) {
      auto const op = static_cast<zero::Op>(number);
      bool const sums = op == zero::Op::reduce_scatter || op == zero::Op::all_reduce;
      if (sums && std::is_same_v<T, std::uint8_t>) continue;
      for (bool const in_place : {false, true}) {
        if (in_place && op == zero::Op::all_to_all) continue;
        int const root = static_cast<int>(count % static_cast<std::size_t>(comm.size()));
        Case<T, Acc, Order> subject(op, comm.rank(), comm.size(), count, in_place, root);
        zero::Collective call = subject.collective(static_cast<int>(count % 5) - 1);
        Squares<T> squares(comm, call);
        zero::run(comm, call);
        findings.add(subject.verdict());
        findings.add(squares.verdict(call));
      }
    }
  }
}

/// Many collectives under way, more than any ring holds, waited for in an order of each rank's own.
template <Sums Order = Sums::in_rank_order, zero::Communicator C>
void many_outstanding(C& comm, Findings& findings) {
  constexpr int outstanding = 150;
  for (int round = 0; round < 3; ++round) {
    std::vector<Case<float, float, Order>> cases;
    std::vector<typename C::Ticket> tickets;
    cases.reserve(outstanding);
    for (int i = 0; i < outstanding; ++i) {
      auto const op = static_cast<zero::Op>(i % zero::op_count);
      std::size_t const count = i % 10 == 3 ? many / 3 : static_cast<std::size_t>(i * 7 % 40);
      cases.emplace_back(
          op, comm.rank(), comm.size(), count, i % 3 == 0 && i % 5 != 2, i % comm.size());
      tickets.push_back(comm.start(cases.back().collective(i)));
    }
    std::vector<std::size_t> order(outstanding);
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = (i * 37 + static_cast<std::size_t>(comm.rank() * 11 + round)) % order.size();
    }
    for (std::size_t const i : order) comm.wait(tickets[i]);
    for (std::size_t const i : order) comm.wait(tickets[i]);  // waiting again is nothing
    for (auto& subject : cases) findings.add(subject.verdict());
  }
}

/// Groups of a grid: parity of the rank, in reverse order, and a group of everybody at once.
template <zero::SplittableCommunicator C>
void sub_groups(C& comm, Findings& findings) {
  C half = comm.split(comm.rank() % 2, -comm.rank());
  C again = comm.split(7, 0);
  C alone = half.split(comm.rank(), 0);
  int const expected = (comm.size() + (comm.rank() % 2 == 0 ? 1 : 0)) / 2;
  if (half.size() != expected) findings.add("a half has the wrong size");
  if (again.size() != comm.size() || again.rank() != comm.rank())
    findings.add("equal keys moved a rank");
  if (alone.size() != 1 || alone.rank() != 0) findings.add("a group of one is not");
  std::vector<std::int32_t> members(static_cast<std::size_t>(half.size()));
  std::int32_t const mine = comm.rank();
  // Several groups at work at once, in an order that differs between ranks.
  std::int64_t total = comm.rank();
  auto first = again.start({.op = zero::Op::all_reduce,
                            .dtype = zero::DType::i64,
                            .accumulate = zero::DType::i64,
                            .count = 1,
                            .send = &total,
                            .recv = &total});
  auto second = half.start({.op = zero::Op::all_gather,
                            .dtype = zero::DType::i32,
                            .count = 1,
                            .send = &mine,
                            .recv = members.data()});
  if (comm.rank() % 3 == 0) {
    half.wait(second);
    again.wait(first);
  } else {
    again.wait(first);
    half.wait(second);
  }
  if (total != std::int64_t{comm.size()} * (comm.size() - 1) / 2) findings.add("a sum is wrong");
  for (std::size_t i = 0; i < members.size(); ++i) {
    std::int32_t const last = comm.size() - 1 - (comm.size() - 1 + comm.rank()) % 2;
    if (members[i] != last - 2 * static_cast<std::int32_t>(i)) findings.add("keys do not order");
  }
  if (members[static_cast<std::size_t>(half.rank())] != mine) findings.add("a rank is misplaced");
  if constexpr (zero::NamingCommunicator<C>) {
    C named = comm.split(comm.rank() % 2, 0, "parity");
    if (named.group_name() != "parity" || !half.group_name().empty()) findings.add("a wrong name");
    // A mistake of the call alone, which ends nothing.
    try {
      run(named, {.op = zero::Op::broadcast, .root = named.size()});
      findings.add("a root that is no rank was not refused");
    } catch (zero::Error const& error) {
      if (error.group() != "parity") findings.add("an error without the group's name");
    }
  }
}

/// Calls `body(comm, findings)` on the ranks of groups of every size.
template <class World, class Body>
void on_every_size(Body const& body) {
  for (int const ranks : World::ranks) {
    CAPTURE(ranks);
    Findings findings;
    World::run(ranks, [&](auto& comm) {
      if (comm.size() != ranks) findings.add("the group has the wrong size");
      body(comm, findings);
    });
    findings.check();
  }
}

template <class World>
void check_operations() {
  on_every_size<World>([](auto& comm, Findings& findings) {
    every_operation<float, float>(comm, findings);
    every_operation<zero::bf16, float>(comm, findings);
    if (!every_type) return;
    every_operation<double, double>(comm, findings);
    every_operation<zero::fp16, float>(comm, findings);
    every_operation<std::int32_t, std::int32_t>(comm, findings);
    every_operation<std::int64_t, std::int64_t>(comm, findings);
    every_operation<std::uint8_t, float>(comm, findings);
    every_operation<float, double>(comm, findings);
  });
}

/// Of a communicator that adds in an order of its own, and no 16-bit types.
template <class World>
void check_operations_in_any_order() {
  on_every_size<World>([](auto& comm, Findings& findings) {
    constexpr Sums order = Sums::in_any_order;
    every_operation<float, float, order>(comm, findings);
    every_operation<double, double, order>(comm, findings);
    every_operation<std::int32_t, std::int32_t, order>(comm, findings);
    every_operation<std::int64_t, std::int64_t, order>(comm, findings);
    every_operation<std::uint8_t, float, order>(comm, findings);
  });
}

template <class World, Sums Order = Sums::in_rank_order>
void check_outstanding() {
  on_every_size<World>(
      [](auto& comm, Findings& findings) { many_outstanding<Order>(comm, findings); });
}

template <class World>
void check_groups() {
  on_every_size<World>([](auto& comm, Findings& findings) { sub_groups(comm, findings); });
}

/// Calls that one rank alone can refuse, before any peer is involved.
template <class World>
void check_arguments() {
  Findings findings;
  World::run(World::ranks[0], [&](auto& comm) {
    auto const refuses = [&](zero::Collective const& op, char const* what) {
      try {
        zero::run(comm, op);
        findings.add(std::string("accepted ") + what);
      } catch (zero::Error const& error) {
        if (error.kind() != zero::ErrorKind::invalid_argument) findings.add(what);
      }
    };
    std::vector<float> memory(64 * static_cast<std::size_t>(comm.size()) + 64);
    float* const x = memory.data();
    using enum zero::Op;
    refuses({.op = all_gather, .count = 4, .send = x}, "a null receive buffer");
    refuses({.op = all_reduce, .count = 4, .recv = x}, "a null send buffer");
    refuses({.op = all_reduce, .count = 4, .send = x, .recv = x + 1}, "overlapping buffers");
    refuses({.op = all_to_all, .count = 4, .send = x, .recv = x}, "an all_to_all in place");
    refuses({.op = broadcast, .count = 4, .send = x, .recv = x, .root = comm.size()}, "a far root");
    refuses({.op = broadcast, .count = 4, .send = x, .recv = x, .root = -1}, "a negative root");
    refuses({.op = all_reduce, .accumulate = zero::DType::bf16, .count = 4, .send = x, .recv = x},
            "a sum in a narrower type");
    refuses({.op = all_reduce, .dtype = zero::DType::u8, .count = 4, .send = x, .recv = x},
            "a sum of bytes");
    refuses({.op = all_gather, .count = SIZE_MAX / 2, .send = x, .recv = x}, "an absurd count");
    refuses({.op = all_gather, .count = 4, .send = reinterpret_cast<char*>(x) + 1, .recv = x + 40},
            "a misaligned buffer");
    zero::ExactSum squares;
    zero::Collective squared{.op = reduce_scatter,
                             .count = 4,
                             .send = x,
                             .recv = memory.data() + 4 * comm.size() + 8,
                             .squares = &squares,
                             .squares_count = 5};
    refuses(squared, "more squares than elements");
    squared.squares_count = 1;
    squared.op = all_to_all;
    refuses(squared, "squares of what is no sum");
  });
  findings.check();
}

}  // namespace conformance
