#include "emulated/grid.hpp"

#include "support/standard.hpp"

#include <ucontext.h>

#include <csetjmp>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulated {

namespace {

constexpr std::size_t stack_bytes = std::size_t{64} << 10;
constexpr unsigned warp = 32;

[[noreturn]] void give_up(char const* what) {
  std::fprintf(stderr, "emulated device: block %u, thread %u: %s\n", blockIdx.x, threadIdx.x, what);
  std::abort();
}

enum class State { running, at_barrier, ended };

/// The exchanges of a thread with one set of others. Two values, since it may be one exchange ahead
/// of those that still read.
struct Meeting {
  unsigned mask = 0;
  unsigned exchanges = 0;
  double values[2] = {};
};

struct Fiber {
  jmp_buf context{};
  bool made = false;
  std::unique_ptr<std::byte[]> stack{new std::byte[stack_bytes]};
  State state = State::ended;
  Meeting meetings[4]{};
  unsigned waits_for = 0;  ///< the mask of the exchange that it is in
  void* sanitizer = nullptr;

  Meeting& with(unsigned mask) {
    for (Meeting& meeting : meetings) {
      if (meeting.mask == mask) return meeting;
      if (meeting.mask == 0) {
        meeting = {.mask = mask};
        return meeting;
      }
    }
    give_up("exchanges with more sets of threads than are remembered");
  }
};

/// The threads of one block at a time.
class Block {
 public:
  void run(unsigned threads, bool backwards, std::function<void()> const& thread) {
    thread_ = &thread;
    if (fibers_.size() < threads) fibers_ = std::vector<Fiber>(threads);
    for (unsigned t = 0; t < threads; ++t) {
      fibers_[t].state = State::running;
      std::fill(std::begin(fibers_[t].meetings), std::end(fibers_[t].meetings), Meeting{});
      fibers_[t].waits_for = 0;
    }
    // A warp runs as far as it gets before another begins: what warps do not wait for is not there.
    for (;;) {
      for (unsigned first = 0; first < threads; first += warp) {
        std::size_t before = 0;
        do {
          before = progress_;
          for (unsigned t = first; t < std::min(first + warp, threads); ++t) {
            resume(backwards ? threads - 1 - t : t);
          }
        } while (progress_ != before);
      }
      bool ended = true;
      for (unsigned t = 0; t < threads; ++t) {
        if (fibers_[t].state == State::running) give_up("threads wait for one another for ever");
        ended = ended && fibers_[t].state == State::ended;
      }
      if (ended) return;
      for (unsigned t = 0; t < threads; ++t) {
        if (fibers_[t].state == State::at_barrier) fibers_[t].state = State::running;
      }
    }
  }

  void synchronize() {
    ++progress_;
    fiber().state = State::at_barrier;
    yield();
  }

  double exchange(unsigned mask, double value, unsigned distance, unsigned width) {
    unsigned const self = threadIdx.x;
    unsigned const lane = self % warp;
    unsigned const other = lane ^ distance;
    if ((mask >> lane & 1u) == 0) give_up("takes no part in its own exchange");
    if (lane / width != other / width) return value;
    if ((mask >> other & 1u) == 0) give_up("exchanges with a thread that takes no part");
    Meeting& own = fiber().with(mask);
    unsigned const slot = own.exchanges++ % 2;
    own.values[slot] = value;
    fiber().waits_for = mask;
    ++progress_;
    unsigned const first = self - lane;
    for (unsigned l = 0; l < warp; ++l) {
      if ((mask >> l & 1u) == 0) continue;
      Fiber& peer = fibers_[first + l];
      while (peer.with(mask).exchanges < own.exchanges) {
        if (peer.state == State::ended) give_up("exchanges with a thread that has ended");
        if (unsigned const others = peer.waits_for; others != mask && (others >> lane & 1u) != 0) {
          bool const waits = fiber().with(others).exchanges < peer.with(others).exchanges;
          if (waits) give_up("disagrees about who takes part in an exchange");
        }
        yield();
      }
    }
    fiber().waits_for = 0;
    return fibers_[first + other].with(mask).values[slot];
  }

 private:
  Fiber& fiber() { return fibers_[threadIdx.x]; }

  /// A fiber calls one thread after the other, as often as it is resumed.
  static void enter();

  void resume(unsigned t) {
    Fiber& fiber = fibers_[t];
    if (fiber.state != State::running) return;
    threadIdx.x = t;
#if defined(__SANITIZE_ADDRESS__)
    void* own = nullptr;
    __sanitizer_start_switch_fiber(&own, fiber.stack.get(), stack_bytes);
#endif
    switch_to(fiber);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(own, nullptr, nullptr);
#endif
  }

  /// A context is made once for a fiber; from then on it is jumped to, which takes no call of the
  /// system.
  void switch_to(Fiber& fiber) {
    if (_setjmp(scheduler_) != 0) return;
    if (std::exchange(fiber.made, true)) _longjmp(fiber.context, 1);
    ucontext_t first;
    if (::getcontext(&first) != 0) std::abort();
    first.uc_stack.ss_sp = fiber.stack.get();
    first.uc_stack.ss_size = stack_bytes;
    first.uc_link = nullptr;
    ::makecontext(&first, &Block::enter, 0);
    ::setcontext(&first);
    std::abort();
  }

  /// Back to the scheduler; returns when the thread is resumed.
  void yield() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fiber().sanitizer, scheduler_stack_, scheduler_bytes_);
#endif
    if (_setjmp(fiber().context) == 0) _longjmp(scheduler_, 1);
    arrive();
  }

  void arrive() {
#if defined(__SANITIZE_ADDRESS__)
    void* const own = std::exchange(fiber().sanitizer, nullptr);
    __sanitizer_finish_switch_fiber(own, &scheduler_stack_, &scheduler_bytes_);
#endif
  }

  std::vector<Fiber> fibers_;
  std::size_t progress_ = 0;
  std::function<void()> const* thread_ = nullptr;
  jmp_buf scheduler_{};
  void const* scheduler_stack_ = nullptr;
  std::size_t scheduler_bytes_ = 0;
};

thread_local Block block_of_this_thread;

void Block::enter() {
  Block& block = block_of_this_thread;
  block.arrive();
  for (;;) {
    (*block.thread_)();
    ++block.progress_;
    block.fiber().state = State::ended;
    block.yield();
  }
}

}  // namespace

void run_grid(dim3 grid, dim3 block, std::function<void()> const& thread) {
  gridDim = grid;
  blockDim = block;
  for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
    block_of_this_thread.run(block.x, blockIdx.x % 2 == 0, thread);
  }
}

void synchronize_block() { block_of_this_thread.synchronize(); }

double exchange(unsigned mask, double value, unsigned distance, unsigned width) {
  return block_of_this_thread.exchange(mask, value, distance, width);
}

}  // namespace emulated
