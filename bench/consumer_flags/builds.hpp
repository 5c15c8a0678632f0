/// @file
/// The update kernel as two translation units of one program build it.
///
/// Both include the same headers with different flags. That is legal and links: what depends on the
/// instruction set carries it in its name (zero::kernel::Isa).
#pragma once

#include "../adamw_model.hpp"
#include <zero/kernel/update.hpp>
#include <zero/rule/adamw.hpp>

namespace bench {

/// The update in every precision that is measured.
struct Build {
  template <class P>
  using Update = void (*)(zero::AdamW const&, zero::StepScalars const&, AdamWArrays<P, P> const&);
  Update<float> fp32;
  Update<zero::bf16> bf16;
  Update<zero::fp16> fp16;
};

template <zero::kernel::Isa Isa, class P>
void built_update(zero::AdamW const& rule,
                  zero::StepScalars const& scalars,
                  AdamWArrays<P, P> const& arrays) {
  zero::kernel::update<Isa>(rule, scalars, 0.5f, arrays);
}

template <zero::kernel::Isa Isa>
inline constexpr Build build{
    built_update<Isa, float>, built_update<Isa, zero::bf16>, built_update<Isa, zero::fp16>};

/// Compiled with -O2 and nothing else.
extern Build const plain_build;
/// Compiled with -O3 -march=native -fno-math-errno.
extern Build const tuned_build;

}  // namespace bench
