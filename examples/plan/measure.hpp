/// @file
/// How long kinds of work take on this machine, while all ranks do the same at once.
#pragma once

#include "model/cluster.hpp"
#include "zero/zero.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

namespace plan {

/// Memory that is handed out again and again from its beginning: who works on one piece of it after
/// the other finds each as cold as a training step does.
class Window final : public std::pmr::memory_resource {
 public:
  /// @param bytes  handed out before the first address comes again
  /// @param fill   of all elements, alternating in sign
  Window(std::size_t bytes, float fill);

  /// As an array, at least as aligned as a cache line.
  [[nodiscard]] float* floats(std::size_t count) {
    return static_cast<float*>(allocate(count * sizeof(float), alignment));
  }

 private:
  static constexpr std::size_t alignment = 64;

  void* do_allocate(std::size_t bytes, std::size_t /*aligned*/) override;
  void do_deallocate(void* /*memory*/, std::size_t /*bytes*/, std::size_t /*aligned*/) override {}
  [[nodiscard]] bool do_is_equal(memory_resource const& other) const noexcept override {
    return this == &other;
  }

  std::vector<float> memory_;
  std::size_t first_ = 0;
  std::size_t next_ = 0;
};

/// Two ranks that answer each other.
struct PingPong;

/// Where a rank works.
struct Place {
  zero::InProcess& comm;
  Window& in;   ///< nobody writes anything but what is there already
  Window& out;  ///< nobody reads what is there
  PingPong& ball;
};

using Sizes = std::span<std::size_t const>;

/// A kind of work, and the grid of sizes that it is measured at.
struct Work {
  std::string name;
  std::vector<std::vector<double>> sizes;
  /// Prepares one point on a rank; what it returns is the work, to be repeated.
  std::function<std::function<void()>(Place&, Sizes)> prepare;
};

/// Bytes that a rank's repetitions of a kernel of the model walk through: most of what one reads
/// was written by the one before.
inline constexpr std::size_t model_window = std::size_t{1} << 20;
/// The same of the library's passes: model states.
inline constexpr std::size_t state_window = std::size_t{32} << 20;

/// Of the smallest operands, so many sets are enough.
inline constexpr std::size_t most_sets = 512;

/// Repeats `run(set)` on as many sets of operands as lie in a window, one after the other.
/// @param bytes  of one set
/// @param make   makes a set
template <class Make, class Run>
[[nodiscard]] std::function<void()> walk(std::size_t window,
                                         std::size_t bytes,
                                         Make const& make,
                                         Run const& run) {
  using Set = std::invoke_result_t<Make const&>;
  auto const sets = std::make_shared<std::vector<Set>>();
  std::size_t const most = window / bytes;
  for (std::size_t i = 0; i == 0 || (i < most && i < most_sets); ++i) sets->push_back(make());
  return [sets, run = run, at = std::size_t{0}]() mutable {
    run((*sets)[at]);
    at = (at + 1) % sets->size();
  };
}

/// The library's own kernels and collectives.
/// @param precision  of parameters and gradients: fp32, bf16 or fp16
[[nodiscard]] std::vector<Work> library_work(std::string const& precision);
/// What the example GPT computes, by the functions that it computes it with.
/// @throws zero::Error (invalid_argument) if the program was built without them
[[nodiscard]] std::vector<Work> model_work(std::string const& precision);

/// The middle one of the values; 0 if there are none.
[[nodiscard]] double median(std::vector<double> values);

/// Called with the part of the work that is done, in [0, 1].
using ShowPart = std::function<void(double)>;

/// Measures all of the work in rounds until the time is over: at least once, after two rounds that
/// warm up. What counts is the median over the rounds of the mean over the ranks, all of which do
/// the same at once.
[[nodiscard]] std::vector<Timing> measure(std::vector<Work> const& work,
                                          int ranks,
                                          double seconds,
                                          ShowPart const& show);

/// STREAM's triad by bytes, and a ping-pong between the first two ranks: what tells one state of a
/// shared machine from another. Takes half a second.
[[nodiscard]] std::vector<Timing> witnesses(int ranks);

}  // namespace plan
