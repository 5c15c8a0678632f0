/// @file
/// One collective on one rank of a group, as the others do the same: in step, beside its raw
/// baseline, with its result checked.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/float16.hpp"
#include "zero/bench/clock.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/memory.hpp"

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::bench {

/// busbw over algbw: the part of the larger buffer that a rank's link has to carry.
[[nodiscard]] constexpr double bus_factor(Op op, int ranks) noexcept {
  double const peers = static_cast<double>(ranks - 1) / ranks;
  if (op == Op::broadcast) return 1.;
  return op == Op::all_reduce ? 2. * peers : peers;
}

/// Elements of a rank's block where its larger buffer has `bytes`, rounded down, but at least one.
[[nodiscard]] constexpr std::size_t block_count(Op op,
                                                DType dtype,
                                                std::size_t bytes,
                                                int ranks) noexcept {
  bool const whole = op == Op::all_reduce || op == Op::broadcast;
  std::size_t const blocks = whole ? 1 : static_cast<std::size_t>(ranks);
  return (std::max)(bytes / size_of(dtype) / blocks, std::size_t{1});
}

/// What is to be measured, as rank 0 tells all ranks.
struct Case {
  Op op = Op::all_gather;       ///< operation
  DType dtype = DType::f32;     ///< of the elements: fp32, bf16 or fp16
  bool in_place = false;        ///< by the table of `Collective`
  std::size_t bytes = 0;        ///< of the larger buffer of one rank
  std::int64_t iterations = 1;  ///< collectives in a row in a round
  std::int64_t late_us = 0;     ///< microseconds that the last rank begins after the others
  bool check = true;            ///< look at every element of one result
  bool ordinary = false;        ///< memory as any, where the communicator has its own allocator

  /// Is it the same but for its iterations?
  [[nodiscard]] bool is_like(Case other) const {
    other.iterations = iterations;
    return other == *this;
  }
  bool operator==(Case const&) const = default;
};

/// What one round has found. Times are of one collective, and of the slowest rank.
struct Round {
  std::size_t count = 0;      ///< elements of one rank's block
  std::size_t bytes = 0;      ///< of the larger buffer of one rank, nccl-tests' size
  double seconds = 0;         ///< from when the last rank began
  double raw_seconds = 0;     ///< of the baseline
  double wrong = 0;           ///< elements that differ, on all ranks; 0 if nobody looked
  std::string_view raw = {};  ///< what the baseline is called
};

/// The baseline of a communicator that says nothing else: a copy of the larger buffer.
struct CopyOfBuffer {
  static constexpr std::string_view name = "copy";  ///< what the table calls it
  /// Runs it once on this rank, as if it were `op`, whose buffers have the larger buffer's size.
  template <Communicator C>
  void operator()(C& comm, Collective const& op) const {
    zero::detail::space_of(comm).copy(
        op.recv, op.send, zero::detail::larger_bytes(op, comm.size()));
  }
};

/// Its only value.
inline constexpr CopyOfBuffer copy_of_buffer{};

namespace detail {

/// What rank `rank` sends at `i`: small enough for sums to be exact in 16 bits on 40 ranks, and
/// without a period that a shifted block could hide in.
[[nodiscard]] inline float sent_value(Op op, int rank, std::size_t i) noexcept {
  std::uint32_t const mixed = (static_cast<std::uint32_t>(i) * 2654435761u) >> 13;
  std::uint32_t const range = zero::detail::is_reduction(op) ? 7 : 251;
  return static_cast<float>((mixed + static_cast<std::uint32_t>(rank) * 3) % range);
}

/// What has to arrive on rank `rank` at `i`.
[[nodiscard]] inline float expected_value(Collective const& op, int rank, int size, std::size_t i) {
  auto const own = static_cast<std::size_t>(rank);
  auto const peer = static_cast<int>(i / op.count);
  if (op.op == Op::all_gather) return sent_value(op.op, peer, i % op.count);
  if (op.op == Op::all_to_all) return sent_value(op.op, peer, own * op.count + i % op.count);
  if (op.op == Op::broadcast) return sent_value(op.op, op.root, i);
  float sum = 0;
  std::size_t const at = op.op == Op::reduce_scatter ? own * op.count + i : i;
  for (int from = 0; from < size; ++from) sum += sent_value(op.op, from, at);
  return sum;
}

/// An array in the memory of a space.
template <class Allocator>
class Buffer {
 public:
  Buffer(Allocator allocator, std::size_t bytes)
      : allocator_(std::move(allocator)),
        bytes_(bytes),
        data_(static_cast<std::byte*>(allocator_.allocate(bytes, alignment))) {
    if (data_ == nullptr)
      fail(ErrorKind::resource, {"no memory for a buffer of ", bytes, " bytes"});
  }
  Buffer(Buffer const&) = delete;
  Buffer& operator=(Buffer const&) = delete;
  ~Buffer() { allocator_.deallocate(data_, bytes_, alignment); }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 private:
  static constexpr std::size_t alignment = 4096;
  Allocator allocator_;
  std::size_t bytes_;
  std::byte* data_;
};

/// What ranks tell each other between rounds, through the communicator that is measured.
template <Communicator C, class A>
class Talk {
 public:
  Talk(C& comm, A const& allocator)
      : comm_(comm),
        space_(zero::detail::space_of(comm)),
        told_(allocator, (static_cast<std::size_t>(comm.size()) + 1) * sizeof(float)),
        orders_(allocator, sizeof(Words)) {}

  /// A number of every rank, on every rank: nobody has it before all have arrived.
  std::vector<float> all(double value) {
    auto const own = static_cast<float>(value);
    std::vector<float> all(static_cast<std::size_t>(comm_.size()));
    std::byte* const to = told_.data() + sizeof(float);
    space_.upload(told_.data(), &own, sizeof(float));
    zero::run(comm_, {.op = Op::all_gather, .count = 1, .send = told_.data(), .recv = to});
    space_.download(all.data(), to, all.size() * sizeof(float));
    confirm(comm_);
    return all;
  }
  double most(double value) {
    auto const values = all(value);
    return double{*std::max_element(values.begin(), values.end())};
  }
  /// Waits for what was queued.
  void drain() {
    if constexpr (!C::Space::host_accessible) {
      float last;
      space_.download(&last, told_.data(), sizeof(last));
    }
  }

  /// Rank 0's case and status, on every rank. No iterations: there is nothing more to measure.
  std::pair<Case, int> order(Case const& work, int status) {
    Words words{};
    if (comm_.rank() == 0) {
      words = {static_cast<std::int64_t>(work.op),
               static_cast<std::int64_t>(work.dtype),
               work.in_place ? 1 : 0,
               static_cast<std::int64_t>(work.bytes),
               work.iterations,
               work.late_us,
               work.check ? 1 : 0,
               work.ordinary ? 1 : 0,
               status};
    }
    space_.upload(orders_.data(), words.data(), sizeof(Words));
    zero::run(comm_,
              {.op = Op::all_reduce,
               .dtype = DType::i64,
               .accumulate = DType::i64,
               .count = words.size(),
               .send = orders_.data(),
               .recv = orders_.data()});
    space_.download(words.data(), orders_.data(), sizeof(Words));
    return {{.op = static_cast<Op>(words[0]),
             .dtype = static_cast<DType>(words[1]),
             .in_place = words[2] != 0,
             .bytes = static_cast<std::size_t>(words[3]),
             .iterations = words[4],
             .late_us = words[5],
             .check = words[6] != 0,
             .ordinary = words[7] != 0},
            static_cast<int>(words[8])};
  }

 private:
  using Words = std::array<std::int64_t, 9>;

  C& comm_;
  typename C::Space space_;
  Buffer<A> told_;
  Buffer<A> orders_;
};

/// One rank's side of a case in elements of `T`. All ranks do the same in the same order.
template <class T, Communicator C, class Raw, class A, class Talker>
class Measurement {
 public:
  Measurement(C& comm, Case const& work, Raw& raw, A const& allocator, Talker& talk)
      : comm_(comm),
        space_(zero::detail::space_of(comm)),
        work_(work),
        raw_(raw),
        talk_(talk),
        op_{.op = work.op,
            .dtype = dtype_of<T>,
            .count = block_count(work.op, dtype_of<T>, work.bytes, comm.size()),
            .bucket = 0},
        bytes_(zero::detail::larger_bytes(op_, comm.size())),
        send_(allocator, bytes_),
        recv_(allocator, bytes_) {
    space_.zero(send_.data(), bytes_);
    op_.send = send_.data();
    op_.recv = recv_.data();
    apart_ = op_;
    if (work.in_place) {
      // Both are in `recv_`, of which the smaller one may be a block.
      std::size_t const own = static_cast<std::size_t>(comm.rank()) * op_.block_bytes();
      op_.send = recv_.data() + (work.op == Op::all_gather ? own : 0);
      op_.recv = recv_.data() + (work.op == Op::reduce_scatter ? own : 0);
    }
    if (work.check) wrong_ = wrong();
    space_.zero(recv_.data(), bytes_);  // sums in place stay what they are
    if constexpr (requires { raw_.prepare(comm_, std::as_const(apart_)); }) {
      raw_.prepare(comm_, std::as_const(apart_));
    }
    static_cast<void>(round(1));  // what is slow at first does not count
  }

  [[nodiscard]] Round round(std::int64_t iterations) {
    double const own = timed(iterations, [&] { zero::run(comm_, op_); });
    double const raw = timed(iterations, [&] { raw_(comm_, std::as_const(apart_)); });
    return {.count = op_.count,
            .bytes = bytes_,
            .seconds = own,
            .raw_seconds = raw,
            .wrong = wrong_,
            .raw = Raw::name};
  }

 private:
  /// Seconds of one call of `work`, made again and again on all ranks at once: the slowest rank's,
  /// from when the last one began.
  template <class Work>
  double timed(std::int64_t iterations, Work const& work) {
    talk_.all(0);
    double const start = seconds_now() + 1e-6 * static_cast<double>(work_.late_us);
    while (comm_.rank() + 1 == comm_.size() && seconds_now() < start) continue;
    for (std::int64_t i = 0; i < iterations; ++i) work();
    talk_.drain();
    return talk_.most(seconds_now() - start) / static_cast<double>(iterations);
  }

  /// Elements that one collective leaves wrong, on all ranks together.
  double wrong() {
    bool const sends = work_.op != Op::broadcast || comm_.rank() == op_.root;
    std::vector<T> values(zero::detail::send_count(op_, comm_.size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<T>(sent_value(work_.op, comm_.rank(), i));
    }
    std::vector<std::byte> poison(bytes_, std::byte{0xff});  // not a number
    space_.upload(recv_.data(), poison.data(), bytes_);
    if (sends) space_.upload(const_cast<void*>(op_.send), values.data(), values.size() * sizeof(T));
    zero::run(comm_, op_);
    values.resize(zero::detail::receive_count(op_, comm_.size()));
    space_.download(values.data(), op_.recv, values.size() * sizeof(T));
    std::size_t count = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      auto const expected = static_cast<T>(expected_value(op_, comm_.rank(), comm_.size(), i));
      if (static_cast<float>(values[i]) != static_cast<float>(expected)) ++count;
    }
    double sum = 0;
    for (float const rank : talk_.all(static_cast<double>(count))) sum += double{rank};
    return sum;
  }

  C& comm_;
  typename C::Space space_;
  Case work_;
  Raw& raw_;
  Talker& talk_;
  Collective op_;
  Collective apart_;  ///< what the baseline gets: out of place
  std::size_t bytes_;
  Buffer<A> send_;
  Buffer<A> recv_;
  double wrong_ = 0;
};

/// A communicator that makes memory it moves faster, as those of processes and GPUs do.
template <class C>
concept AllocatingCommunicator = Communicator<C> && requires(C const& comm) {
  { comm.allocator() } -> Allocator;
};

/// Stands for the communicator's own allocator, or ordinary memory where it has none.
struct CommunicatorMemory {};

/// Does on this rank what rank 0 says, until there is nothing more. Collective; blocks.
/// @param desk  rank 0's: says what is next (`next()`) and takes what came of it (`answer(round)`)
/// @return rank 0's status
template <class Desk, Communicator C, class Raw = CopyOfBuffer const, class A = CommunicatorMemory>
int serve(C& comm, Desk& desk, Raw& raw = copy_of_buffer, A const& allocator = {}) {
  if constexpr (std::same_as<A, CommunicatorMemory>) {
    static_assert(AllocatingCommunicator<C> || C::Space::host_accessible,
                  "zero: hand an allocator of the space's memory to the body, after the baseline");
    if constexpr (AllocatingCommunicator<C>) {
      return serve(comm, desk, raw, comm.allocator());
    } else {
      return serve(comm, desk, raw, HostAllocator());
    }
  } else {
    using Talker = Talk<C, A>;
    Talker talk(comm, allocator);
    std::function<Round(std::int64_t)> round;
    Case standing{.bytes = 0};
    for (;;) {
      std::pair<Case, int> order;
      if (comm.rank() == 0) order = desk.next();
      order = talk.order(order.first, order.second);
      Case const& work = order.first;
      if (work.iterations == 0) return order.second;
      if (!round || !work.is_like(standing)) {
        auto const make = [&]<class T, class Memory>(T, Memory const& memory) {
          round = [one = std::make_shared<Measurement<T, C, Raw, Memory, Talker>>(
                       comm, work, raw, memory, talk)](std::int64_t n) { return one->round(n); };
        };
        auto const make_in = [&](auto const& memory) {
          if (work.dtype == DType::bf16) return make(bf16(), memory);
          if (work.dtype == DType::f16) return make(fp16(), memory);
          make(float(), memory);
        };
        round = nullptr;  // one case's memory at a time
        if constexpr (C::Space::host_accessible) {
          if (work.ordinary) {
            make_in(HostAllocator());
          } else {
            make_in(allocator);
          }
        } else {
          if (work.ordinary) fail(ErrorKind::invalid_argument, "--ordinary is for host memory");
          make_in(allocator);
        }
        standing = work;
      }
      Round const found = round(work.iterations);
      if (comm.rank() == 0) desk.answer(found);
    }
  }
}

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE::bench
