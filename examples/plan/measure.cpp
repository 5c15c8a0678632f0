#include "measure.hpp"

#include "triad.hpp"
#include "zero/bench/measure.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <new>
#include <thread>
#include <utility>

namespace plan {

using zero::bench::seconds_now;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Window::Window(std::size_t bytes, float fill) : memory_(bytes / sizeof(float) + alignment) {
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    float const size = fill * static_cast<float>(i * 2654435761U % 1999 + 1) * 1e-3F;
    // Either half is a number of 16 bits, too.
    auto const half = std::bit_cast<std::uint32_t>(i % 2 == 0 ? size : -size) >> 16U;
    memory_[i] = std::bit_cast<float>(half << 16U | half);
  }
  void* at = memory_.data();
  std::size_t room = memory_.size() * sizeof(float);
  std::align(alignment, bytes, at, room);
  first_ = static_cast<std::size_t>(static_cast<float*>(at) - memory_.data());
}

void* Window::do_allocate(std::size_t bytes, std::size_t /*aligned*/) {
  std::size_t const count = (bytes + alignment - 1) / alignment * (alignment / sizeof(float));
  std::size_t const all = memory_.size() - alignment;
  if (count > all) throw std::bad_alloc();
  if (next_ + count > all) next_ = 0;
  float* const at = memory_.data() + first_ + next_;
  next_ += count;
  return at;
}

struct PingPong {
  std::atomic<int> turn{0};
};

std::vector<Timing> witnesses(int ranks) {
  auto const triad = [](Place& place, Sizes sizes) -> std::function<void()> {
    auto const part = std::make_shared<TriadPart>(sizes[0] / 12);
    static_cast<void>(place);
    return [part] { part->run(); };
  };
  auto const answer = [](Place& place, Sizes) -> std::function<void()> {
    int const rank = place.comm.rank();
    int const others = place.comm.size() > 1 ? 1 : 0;
    if (rank > 1) return [] {};
    return [&ball = place.ball, rank, others] {
      // Whoever has lost the processor is not waited for at full speed.
      for (int looks = 0; ball.turn.load(std::memory_order_acquire) != rank; ++looks) {
        if (looks > 20'000) std::this_thread::yield();
      }
      ball.turn.store(others - rank, std::memory_order_release);
    };
  };
  std::vector<Work> const both = {{"triad", {{48. * (1 << 20)}}, triad},
                                  {"ping-pong", {{1.}}, answer}};
  return measure(both, ranks, 0.5, {});
}

namespace {

/// One point of one kind of work.
struct Spot {
  Work const* work;
  std::vector<std::size_t> sizes;
  std::vector<double> rounds{};
  int repeat = 1;
};

std::vector<Spot> spots(std::vector<Work> const& all) {
  std::vector<Spot> result;
  for (Work const& work : all) {
    std::size_t points = 1;
    for (auto const& dimension : work.sizes) points *= dimension.size();
    for (std::size_t point = 0; point < points; ++point) {
      std::vector<std::size_t> sizes(work.sizes.size());
      std::size_t rest = point;
      for (std::size_t d = sizes.size(); d-- > 0;) {
        sizes[d] = static_cast<std::size_t>(work.sizes[d][rest % work.sizes[d].size()]);
        rest /= work.sizes[d].size();
      }
      result.push_back({&work, std::move(sizes)});
    }
  }
  return result;
}

}  // namespace

std::vector<Timing> measure(std::vector<Work> const& work,
                            int ranks,
                            double seconds,
                            ShowPart const& show) {
  constexpr double long_enough = 1e-3;
  std::vector<Spot> all = spots(work);
  std::vector<double> taken(static_cast<std::size_t>(ranks));
  PingPong ball;
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    Window in(state_window, 1.F);
    Window out(state_window, 0.F);
    Place place{comm, in, out, ball};
    std::vector<std::function<void()>> bodies;
    for (Spot const& spot : all) bodies.push_back(spot.work->prepare(place, spot.sizes));
    bool const first = comm.rank() == 0;
    double const start = seconds_now();
    auto const meet = [&] { return zero::barrier(comm); };
    // Before the first round that counts everything runs once, and then as often as is long enough.
    for (int round = -2;; ++round) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        Spot& spot = all[i];
        meet();
        double const begin = seconds_now();
        for (int n = 0; n < spot.repeat; ++n) bodies[i]();
        taken[static_cast<std::size_t>(comm.rank())] = (seconds_now() - begin) / spot.repeat;
        meet();
        if (!first) continue;
        double mean = 0.;
        for (double const one : taken) mean += one / ranks;
        if (round >= 0)
          spot.rounds.push_back(mean);
        else
          spot.repeat = static_cast<int>(std::clamp(long_enough / mean, 1., 10'000.));
      }
      double const part = (seconds_now() - start) / seconds;
      if (first && show) show(std::min(part, 1.));
      bool const more = first && (part < 1. || round < 0);
      if (zero::sum(comm, std::int64_t{more}) == 0) break;
    }
  });
  std::vector<Timing> result;
  for (Work const& one : work) result.push_back({one.name, one.sizes, {}});
  for (Spot const& spot : all) {
    auto const at = static_cast<std::size_t>(spot.work - work.data());
    result[at].seconds.push_back(median(spot.rounds));
  }
  return result;
}

}  // namespace plan
