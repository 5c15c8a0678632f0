/// @file
/// The update kernel as two translation units of one program build it.
///
/// Both include the same headers with different flags, which the names of what they contain carry:
/// only plain data gets from one to the other.
#pragma once

#include <zero/kernel/update.hpp>
#include <zero/rule/adamw.hpp>

#include <cstddef>

namespace bench {

/// A step of AdamW in every precision that is measured.
struct Build {
  template <class P>
  using Update = void (*)(long step,
                          float* master,
                          P* parameter,
                          P const* gradient,
                          float* const* states,
                          std::size_t count);
  Update<float> fp32;
  Update<zero::bf16> bf16;
  Update<zero::fp16> fp16;
};

template <class P>
static void update(long step,
                   float* master,
                   P* parameter,
                   P const* gradient,
                   float* const* states,
                   std::size_t count) {
  zero::AdamW const rule{};
  zero::kernel::UpdateArrays<float, P, P, float, 2> const arrays{.master = master,
                                                                 .parameter = parameter,
                                                                 .gradient = gradient,
                                                                 .state = {states[0], states[1]},
                                                                 .count = count};
  zero::kernel::update(
      rule, rule.scalars(step, static_cast<float>(rule.lr), 1.f, 1.f), 0.5f, arrays);
}

/// Compiled with -O2 and nothing else.
extern Build const plain_build;
/// Compiled with -O3 -march=native -fno-math-errno.
extern Build const tuned_build;

}  // namespace bench
