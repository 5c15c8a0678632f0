/// What the library itself does in a step: passes over model states, and collectives.
#include "measure.hpp"

#include <algorithm>
#include <utility>

namespace plan {

namespace {

using zero::Op;
using Body = std::function<void()>;

std::vector<double> const passes{4096., 65536., 1048576., 16777216.};

/// A kernel by the bytes that it moves, as the simulated memory space counts them.
/// @param element  bytes of one element, of all arrays together
/// @param make     makes the arrays of so many elements
template <class Make, class Run>
Work pass(std::string name, std::size_t element, Make make, Run run) {
  return {std::move(name), {passes}, [=](Place& place, Sizes sizes) -> Body {
            std::size_t const count = sizes[0] / element;
            return walk(
                state_window,
                sizes[0],
                [&] { return make(place, count); },
                [=](auto& set) { run(set, count); });
          }};
}

/// An array that is read and one that is written.
template <class From, class To>
struct Pair {
  From const* from;
  To* to;
};
template <class From, class To>
Pair<From, To> pair(Place& place, std::size_t count) {
  auto const floats = [&](std::size_t bytes) { return bytes / sizeof(float) + 1; };
  return {reinterpret_cast<From const*>(place.in.floats(floats(count * sizeof(From)))),
          reinterpret_cast<To*>(place.out.floats(floats(count * sizeof(To))))};
}

template <class T>
struct States {
  zero::UpdateArrays<float, T, T, float, 2> arrays{};
};
template <class T>
States<T> states(Place& place, std::size_t count) {
  auto const& [gradient, parameter] = pair<T, T>(place, count);
  States<T> set{{.master = place.out.floats(count), .gradient = gradient, .count = count}};
  for (float*& state : set.arrays.state) state = place.out.floats(count);
  if constexpr (sizeof(T) == 2) set.arrays.parameter = parameter;
  return set;
}

/// By the bytes of the larger buffer. Shares are reduced into an array of their own, and gathered
/// and summed in place, as the optimizer has them.
template <class T>
Work collective(Op op) {
  std::vector<double> bytes{64., 4096., 65536., 524288., 4194304., 16777216.};
  return {std::string(zero::name(op)), {bytes}, [op](Place& place, Sizes sizes) -> Body {
            auto const ranks = static_cast<std::size_t>(place.comm.size());
            bool const blocks = op == Op::reduce_scatter || op == Op::all_gather;
            std::size_t const count =
                std::max<std::size_t>(1, sizes[0] / sizeof(T) / (blocks ? ranks : 1));
            return walk(
                state_window / 4,
                sizes[0],
                [&] {
                  zero::Collective call{.op = op, .dtype = zero::dtype_of<T>, .count = count};
                  std::size_t const all = sizes[0] / sizeof(float) + ranks;
                  float* const to = place.out.floats(all);
                  call.recv = to;
                  call.send = to;
                  if (op == Op::reduce_scatter) call.send = place.in.floats(all);
                  if (op == Op::all_gather) {
                    call.send = reinterpret_cast<T*>(to) +
                                count * static_cast<std::size_t>(place.comm.rank());
                  }
                  return call;
                },
                [&comm = place.comm](zero::Collective& call) { zero::run(comm, call); });
          }};
}

template <class T>
std::vector<Work> work() {
  using Host = zero::space::Host;
  constexpr std::size_t size = sizeof(T);
  std::vector<Work> all;
  all.push_back(pass("zero", size, pair<T, T>, [](auto& set, std::size_t count) {
    Host::zero(set.to, count * size);
  }));
  all.push_back(pass("copy", 2 * size, pair<T, T>, [](auto& set, std::size_t count) {
    Host::copy(set.to, set.from, count * size);
  }));
  all.push_back(pass("convert", size + 4, pair<T, float>, [](auto& set, std::size_t count) {
    Host::convert(set.to, set.from, count);
  }));
  all.push_back(pass("add", size + 8, pair<T, float>, [](auto& set, std::size_t count) {
    Host::add(set.to, set.from, count);
  }));
  // Somebody has to want the sum, or nothing is added.
  auto const sum = std::make_shared<zero::ExactSum>();
  all.push_back(pass("norm", size, pair<T, T>, [sum](auto& set, std::size_t count) {
    zero::ExactSum own;
    Host::add_squares(&own, set.from, count);
    if (own.value() < 0.) *sum = own;
  }));
  all.push_back(pass("update", 28, states<T>, [](auto& set, std::size_t /*count*/) {
    zero::AdamW const rule{.weight_decay = 0.1F};
    zero::kernel::update(rule, rule.scalars(9, 1e-3F, 1.F, 1.F), 1.F, set.arrays);
  }));
  for (Op const op : {Op::reduce_scatter, Op::all_gather, Op::all_reduce, Op::broadcast}) {
    all.push_back(collective<T>(op));
  }
  return all;
}

}  // namespace

std::vector<Work> library_work(std::string const& precision) {
  if (precision == "fp32") return work<float>();
  if (precision == "bf16") return work<zero::bf16>();
  return work<zero::fp16>();
}

}  // namespace plan
