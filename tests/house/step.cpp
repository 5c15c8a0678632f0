// One step, which says which functions it enters: built without optimisation, and instrumented.
#include <zero/zero.hpp>

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

// Not a std::array, whose functions are instrumented as well.
constexpr std::size_t capacity = 1 << 20;
void* entered[capacity];
std::size_t count = 0;
bool recording = false;

}  // namespace

// What the compiler calls at the beginning and the end of every function.
extern "C" {
__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void* function, void*) {
  if (recording && count < capacity) entered[count++] = function;
}
__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void*, void*) {}
}

int main() {
  std::vector<zero::Tensor> model;
  for (int unit = 0; unit < 4; ++unit) {
    model.push_back({.name = "w" + std::to_string(unit), .shape = {600}, .unit = unit});
  }
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm, model, zero::stage::PosG{}, zero::Bucket{1}};
  optimizer.load_parameters([](zero::Tensor const&, std::size_t, std::span<float> values) {
    for (float& value : values) value = 1.f;
  });
  recording = true;
  for (int const unit : optimizer.units_backward()) {
    auto gradients = optimizer.gradients(unit);
    gradients[0][0] = 1.f;
    optimizer.reduce(std::move(gradients));
  }
  optimizer.step();
  recording = false;
  for (std::size_t i = 0; i < count; ++i) {
    Dl_info info{};
    if (dladdr(entered[i], &info) == 0 || info.dli_sname == nullptr) continue;
    int status = 0;
    char* const name = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
    if (status == 0) std::puts(name);
    std::free(name);
  }
}
