// One program of those units that are linked into it. Prints what each of them trains, to be held
// against what it trains in a program of its own, and fails if what one throws another misses.
#include "unit.hpp"

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>

// The linker leaves the address of a unit null that is not there.
[[gnu::weak]] extern Unit const plain, vectors, fast_math, no_exceptions, no_rtti, compiled;

int main() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("fma") == 0) {
    std::puts("skipped: this processor cannot run what is compiled for x86-64-v3");
    return 0;
  }
#endif
  Unit const* const units[] = {&plain, &vectors, &fast_math, &no_exceptions, &no_rtti, &compiled};
  std::vector<zero::Tensor> const model = {{.name = "w", .shape = {701}}};
  bool good = true;
  for (Unit const* const unit : units) {
    if (unit == nullptr) continue;
    std::vector<float> result(model[0].shape[0]);
    zero::StepReport const report = unit->train(model, result);
    std::uint64_t hash = 0;
    for (float const value : result) hash = hash * 31 + std::bit_cast<std::uint32_t>(value);
    std::printf("%s: step %ld, norm %a, parameters %016llx\n",
                unit->name,
                report.step,
                report.grad_norm,
                static_cast<unsigned long long>(hash));
    zero::StepResult const failed = unit->fails();
    bool const told =
        !failed && std::strcmp(failed.error()->what(), "zero: data: no data, rank 3") == 0;
    if (!told) std::printf("the error of %s is another here\n", unit->name);
    good = good && told;
    for (Unit const* const other : units) {
      if (unit->throws == nullptr || other == nullptr || other->catches == nullptr) continue;
      if (other->catches(unit->throws)) continue;
      std::printf("%s misses what %s throws\n", other->name, unit->name);
      good = false;
    }
  }
  return good ? 0 : 1;
}
