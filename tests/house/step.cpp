// A step of Pos+g, and a gather of Pos+g+p, on two ranks that say which functions they enter: built
// without optimisation, and instrumented.
#include <zero/zero.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

// Not a std::array, whose functions are instrumented as well.
constexpr std::size_t capacity = 1 << 18;
void* entered[2][capacity];
std::size_t count[2] = {};
// The rank whose thread this is, between two marks.
thread_local int recorded = -1;

}  // namespace

// What the compiler calls at the beginning and the end of every function.
extern "C" {
__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void* function, void*) {
  if (recorded >= 0 && count[recorded] < capacity) entered[recorded][count[recorded]++] = function;
}
__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void*, void*) {}
}

namespace {

template <class Optimizer>
void load(Optimizer& optimizer) {
  optimizer.load_parameters([](zero::Tensor const&, std::size_t, std::span<float> values) {
    for (float& value : values) value = 1.f;
  });
}

// The first rank has come to where it waits before the second one begins: so that what is entered
// does not depend on who is faster.
void begin(int rank) {
  if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  recorded = rank;
}

// Addresses less that of a function whose name the script knows, as programs are loaded anywhere.
void print(char const* walk) {
  auto const known = reinterpret_cast<std::intptr_t>(&__cyg_profile_func_enter);
  for (int rank = 0; rank < 2; ++rank) {
    if (count[rank] == capacity) std::abort();  // what came later was not kept
    for (std::size_t i = 0; i < count[rank]; ++i) {
      auto const at = reinterpret_cast<std::intptr_t>(entered[rank][i]);
      std::printf("%s %d %td\n", walk, rank, at - known);
    }
    count[rank] = 0;
  }
}

}  // namespace

int main() {
  std::vector<zero::Tensor> model;
  for (int unit = 0; unit < 4; ++unit) {
    model.push_back({.name = "w" + std::to_string(unit), .shape = {600}, .unit = unit});
  }
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, model, zero::stage::PosG{}, zero::Bucket{1}};
    load(optimizer);
    begin(comm.rank());
    for (int const unit : optimizer.units_backward()) {
      auto gradients = optimizer.gradients(unit);
      gradients[0][0] = 1.f;
      optimizer.reduce(std::move(gradients));
    }
    optimizer.step();
    recorded = -1;
  });
  print("step");
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, model, zero::stage::PosGP{}, zero::Bucket{1}};
    load(optimizer);
    begin(comm.rank());
    {
      auto const first = optimizer.parameters(0);
      recorded = -1;
    }
    for (int const unit : optimizer.units()) {
      auto const rest = optimizer.parameters(unit);
    }
    recorded = -1;
  });
  print("gather");
}
