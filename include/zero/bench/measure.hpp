/// @file
/// Measures one collective on one rank of a group, beside its raw baseline, and checks its result.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/float16.hpp"
#include "zero/bench/figures.hpp"
#include "zero/bench/stream.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/memory.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::bench {

/// What is to be measured, as all ranks are told.
struct Case {
  Op op = Op::all_gather;    ///< operation
  DType dtype = DType::f32;  ///< of the elements: fp32, bf16 or fp16
  bool in_place = false;     ///< by the table of `Collective`
  std::size_t bytes = 0;     ///< of the larger buffer of one rank
  int rounds = 10;           ///< of which each times everything in turn
  int iterations = 0;        ///< collectives in a row in each; 0: as many as 8 MB take, at most 200
  double late = 0;           ///< seconds that the last rank begins each round after the others
  bool check = true;         ///< look at every element of one result
  bool triad = false;        ///< run a STREAM triad on all ranks in each round, too
  bool ordinary = false;     ///< memory as any, where the communicator has an allocator of its own
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

/// One rank's side of a measurement in elements of `T`. All ranks do the same in the same order.
template <class T, Communicator C, class Raw, class Allocator>
class Measurement {
 public:
  Measurement(C& comm, Case const& work, Raw& raw, Allocator const& allocator)
      : comm_(comm),
        space_(zero::detail::space_of(comm)),
        work_(work),
        raw_(raw),
        op_{.op = work.op,
            .dtype = dtype_of<T>,
            .count = block_count(work.op, dtype_of<T>, work.bytes, comm.size()),
            .bucket = 0},
        bytes_(zero::detail::larger_bytes(op_, comm.size())),
        send_(allocator, bytes_),
        recv_(allocator, bytes_),
        told_(allocator, (static_cast<std::size_t>(comm.size()) + 1) * sizeof(float)) {
    space_.zero(send_.data(), bytes_);
    space_.zero(recv_.data(), bytes_);
    op_.send = send_.data();
    op_.recv = recv_.data();
    std::size_t const own = static_cast<std::size_t>(comm.rank()) * op_.block_bytes();
    if (!work.in_place) return;
    // Both are in `recv_`, of which the smaller one may be a block.
    op_.send = recv_.data() + (work.op == Op::all_gather ? own : 0);
    op_.recv = recv_.data() + (work.op == Op::reduce_scatter ? own : 0);
  }

  [[nodiscard]] Row run() {
    Row row{.op = work_.op,
            .dtype = op_.dtype,
            .ranks = comm_.size(),
            .in_place = work_.in_place,
            .count = op_.count,
            .bytes = bytes_,
            .raw = Raw::name};
    if (work_.check) row.wrong = wrong();
    space_.zero(recv_.data(), bytes_);  // sums in place stay what they are
    auto const fitting = static_cast<int>((std::min)(std::size_t{200}, (8u << 20) / bytes_ + 1));
    int const repeat = work_.iterations > 0 ? work_.iterations : fitting;
    Collective apart = op_;
    apart.send = send_.data();
    apart.recv = recv_.data();
    if constexpr (requires { raw_.prepare(comm_, std::as_const(apart)); }) {
      raw_.prepare(comm_, std::as_const(apart));
    }
    std::unique_ptr<TriadPart> triad;
    if (work_.triad) {
      triad = std::make_unique<TriadPart>((std::size_t{32} << 20) /
                                          static_cast<std::size_t>(row.ranks));
    }
    // The first round warms up.
    std::vector<double> own, raw, streams, over_triad;
    for (int round = -1; round < work_.rounds; ++round) {
      double const before = triad ? timed(1, [&] { triad->run(); }) : 0;
      double const seconds = timed(repeat, [&] { zero::run(comm_, op_); });
      double const after = triad ? timed(1, [&] { triad->run(); }) : 0;
      double const baseline = timed(repeat, [&] { raw_(comm_, std::as_const(apart)); });
      if (round < 0) continue;
      own.push_back(seconds);
      raw.push_back(baseline);
      streams.push_back((std::min)(before, after));
    }
    row.seconds = median(own);
    row.best_seconds = *std::min_element(own.begin(), own.end());
    row.raw_seconds = median(raw);
    row.vs_raw = median_ratio(raw, own);
    row.best_vs_raw = best_ratio(raw, own);
    if (triad) {
      double const bytes = triad->bytes() * row.ranks;
      row.triad_gbs = bytes / *std::min_element(streams.begin(), streams.end()) * 1e-9;
      row.best_over_triad = row.traffic() / bytes * best_ratio(streams, own);
      row.typical_over_triad = row.traffic() / bytes * median_ratio(streams, own);
    }
    return row;
  }

 private:
  /// A number of every rank, on every rank: nobody has it before all have arrived.
  std::vector<float> tell(double value) {
    auto const own = static_cast<float>(value);
    std::vector<float> all(static_cast<std::size_t>(comm_.size()));
    std::byte* const to = told_.data() + sizeof(float);
    space_.upload(told_.data(), &own, sizeof(float));
    zero::run(comm_, {.op = Op::all_gather, .count = 1, .send = told_.data(), .recv = to});
    space_.download(all.data(), to, all.size() * sizeof(float));
    confirm(comm_);
    return all;
  }

  /// Seconds of one call of `work`, made again and again on all ranks at once: the slowest rank's,
  /// from when the last one began.
  template <class Work>
  double timed(int repeat, Work const& work) {
    tell(0);
    double const start = seconds_now() + work_.late;
    while (comm_.rank() + 1 == comm_.size() && seconds_now() < start) continue;
    for (int i = 0; i < repeat; ++i) work();
    if constexpr (!C::Space::host_accessible) {
      float last;  // a space that queues its work is done when this has come
      space_.download(&last, told_.data(), sizeof(last));
    }
    auto const all = tell(seconds_now() - start);
    return double{*std::max_element(all.begin(), all.end())} / repeat;
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
    for (float const rank : tell(static_cast<double>(count))) sum += double{rank};
    return sum;
  }

  C& comm_;
  typename C::Space space_;
  Case work_;
  Raw& raw_;
  Collective op_;
  std::size_t bytes_;
  Buffer<Allocator> send_;
  Buffer<Allocator> recv_;
  Buffer<Allocator> told_;
};

/// A communicator that makes memory it moves faster, as those of processes and GPUs do.
template <class C>
concept AllocatingCommunicator = Communicator<C> && requires(C const& comm) {
  { comm.allocator() } -> Allocator;
};

}  // namespace detail

/// Stands for the communicator's own allocator, or ordinary memory where it has none.
struct CommunicatorMemory {};

/// Measures on this rank. Collective; blocks.
/// @param comm       of a group of any size
/// @param work       the same on all ranks
/// @param raw        what one would do without the library: called as raw(comm, op) on all ranks,
/// out
///   of place, with buffers of the larger one's size. Its `name` is a static member. If it has
///   prepare(comm, op), that is called before, and no rank goes on until all have done so
/// @param allocator  of memory in the communicator's space
/// @return the same on all ranks
/// @throws Error as the communicator, or (resource) if there is no memory
template <Communicator C, class Raw = CopyOfBuffer const, class A = CommunicatorMemory>
[[nodiscard]] Row measure(C& comm,
                          Case const& work,
                          Raw& raw = copy_of_buffer,
                          A const& allocator = {}) {
  if constexpr (std::same_as<A, CommunicatorMemory>) {
    constexpr bool makes_memory = detail::AllocatingCommunicator<C>;
    static_assert(makes_memory || C::Space::host_accessible,
                  "zero: hand an allocator of the space's memory to the body, after the baseline");
    if constexpr (makes_memory) {
      if (!work.ordinary) return measure(comm, work, raw, comm.allocator());
    }
    if constexpr (C::Space::host_accessible) return measure(comm, work, raw, HostAllocator());
    fail(ErrorKind::invalid_argument, "--ordinary is for memory of the host");
  } else {
    switch (work.dtype) {
      case DType::f32:
        return detail::Measurement<float, C, Raw, A>(comm, work, raw, allocator).run();
      case DType::bf16:
        return detail::Measurement<bf16, C, Raw, A>(comm, work, raw, allocator).run();
      case DType::f16:
        return detail::Measurement<fp16, C, Raw, A>(comm, work, raw, allocator).run();
      default:
        fail(ErrorKind::invalid_argument, {"no benchmark has elements of ", name(work.dtype)});
    }
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::bench
