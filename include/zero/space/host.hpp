/// @file
/// Host memory: where a communicator's buffers live and which kernels work on them.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/concepts/space.hpp"
#include "zero/kernel/clear.hpp"
#include "zero/kernel/coded_update.hpp"
#include "zero/kernel/convert.hpp"
#include "zero/kernel/copy.hpp"
#include "zero/kernel/element_hash.hpp"
#include "zero/kernel/measure.hpp"
#include "zero/kernel/norm.hpp"
#include "zero/kernel/root_state.hpp"
#include "zero/kernel/rounded.hpp"
#include "zero/kernel/update.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::space {

/// Ordinary memory of the process. The optimizer reaches memory through these functions only.
struct Host {
  static constexpr std::string_view name = "host";  ///< of the space, for people
  static constexpr bool host_accessible = true;     ///< any thread may follow pointers

  /// Sets `bytes` bytes to zero.
  static void zero(void* memory, std::size_t bytes) noexcept { kernel::clear(memory, bytes); }
  /// Copies `bytes` bytes between buffers that do not overlap, or are the same.
  static void copy(void* to, void const* from, std::size_t bytes) noexcept {
    kernel::copy(to, from, bytes);
  }
  /// Copies from memory of the host, which is this memory.
  static void upload(void* to, void const* host, std::size_t bytes) noexcept {
    kernel::copy(to, host, bytes);
  }
  /// Copies to memory of the host, which is this memory.
  static void download(void* host, void const* from, std::size_t bytes) noexcept {
    kernel::copy(host, from, bytes);
  }
  /// out[i] = To(in[i]), rounded to nearest even.
  template <class To, class From>
  static void convert(To* out, From const* in, std::size_t count) noexcept {
    kernel::convert(out, in, count);
  }
  /// out[i] += in[i].
  template <class Sum, class From>
  static void add(Sum* out, From const* in, std::size_t count) noexcept {
    kernel::add(out, in, count);
  }
  /// Adds squares over blocks from x[0] on, each block's sum exactly.
  template <class T>
  static void add_squares(ExactSum* sum, T const* x, std::size_t count) noexcept {
    kernel::add_squares(*sum, x, count);
  }
  /// Adds the hashes of elements at places from `first` on.
  template <class T>
  static void add_hash(std::uint64_t* hash,
                       T const* x,
                       std::size_t count,
                       std::uint64_t first) noexcept {
    kernel::add_hash(hash, x, count, first);
  }
  /// Finds the first parameter that is not its master, rounded.
  template <class P, class M>
  static void find_unrounded(std::uint64_t* first,
                             P const* parameter,
                             M const* master,
                             std::size_t count,
                             std::uint64_t place) noexcept {
    kernel::find_unrounded(first, parameter, master, count, place);
  }
  /// Calls `function()`.
  template <class F>
  static void call(F const& function) noexcept {
    function();
  }
  /// One pass of rule and cast over contiguous arrays, unless the step is skipped.
  template <class Rule, class Real, class Arrays>
  static void update(Rule const& rule,
                     StepTerms const* terms,
                     BasicStepScalars<Real> const* scalars,
                     Arrays const& arrays) noexcept {
    if (terms->skipped != 0) return;
    if constexpr (RandomArrays<Arrays>) {
      kernel::update(rule, *scalars, terms->gradient_scale, arrays, terms->step);
    } else {
      kernel::update(rule, *scalars, terms->gradient_scale, arrays);
    }
  }
  /// Adds what a rule measures of contiguous arrays to a tensor's words, unless the step is
  /// skipped.
  template <class Rule, class Real, class Arrays>
  static void measure(Rule const& rule,
                      StepTerms const* terms,
                      BasicStepScalars<Real> const* scalars,
                      Arrays const& arrays,
                      std::int64_t* words) noexcept {
    if (terms->skipped != 0) return;
    kernel::measure(rule, *scalars, terms->gradient_scale, arrays, words);
  }
};

static_assert(MemorySpace<Host>);

}  // namespace zero::inline ZERO_NAMESPACE::space
