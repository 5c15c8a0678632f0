// The kernels of a step, for kernels_test.py to look at what nvcc makes of them.
#include "zero/device/call.cuh"
#include "zero/device/coded_update.cuh"
#include "zero/device/elementwise.cuh"
#include "zero/device/gather.cuh"
#include "zero/device/hash.cuh"
#include "zero/device/measure.cuh"
#include "zero/device/norm.cuh"
#include "zero/device/random_update.cuh"
#include "zero/device/rounded.cuh"
#include "zero/device/sum.cuh"
#include "zero/device/update.cuh"
#include "zero/kernel/root_state.hpp"
#include "zero/optimizer/step/decision.hpp"
#include "zero/precision/bf16.hpp"
#include "zero/precision/mixed.hpp"
#include "zero/rule/adamw.hpp"
#include "zero/rule/eight_bit.hpp"
#include "zero/rule/lamb.hpp"
#include "zero/rule/rated_rule.hpp"

#include <cstddef>
#include <cstdint>

using zero::bf16;
using zero::fp16;
using zero::device::Queue;
using OfStep = zero::detail::
    ComputeScalars<zero::AdamW, float, zero::detail::rates_at_once<zero::AdamW, float>>;
using OfOne = zero::detail::ComputeScalars<zero::AdamW, float, 1>;
using OfFew = zero::detail::ComputeScalars<zero::AdamW, float, 2>;
using Step = zero::detail::InOrder<zero::detail::Decide, OfStep>;
using FewStep = zero::detail::InOrder<zero::detail::Decide, OfFew>;
using Rested = zero::detail::InOrder<zero::detail::OwnTerms, OfOne>;

// The updates of a precision, and its norm.
template <class P>
using Arrays = zero::UpdateArrays<float, P, P, float, 2>;
#define ZERO_KERNELS_OF(P)                                                                       \
  template void zero::device::update(Queue const&,                                               \
                                     zero::AdamW const&,                                         \
                                     zero::StepTerms const*,                                     \
                                     zero::StepScalars const*,                                   \
                                     Arrays<P> const&);                                          \
  template void zero::device::add_squares(Queue const&, zero::ExactSum*, P const*, std::size_t); \
  template void zero::device::add_hash(                                                          \
      Queue const&, std::uint64_t*, P const*, std::size_t, std::uint64_t)

ZERO_KERNELS_OF(float);
ZERO_KERNELS_OF(bf16);
ZERO_KERNELS_OF(fp16);

// Those of a rule that measures tensors.
#define ZERO_MEASURE_OF(M, P, G)                                                    \
  template void zero::device::measure(Queue const&,                                 \
                                      zero::Lamb const&,                            \
                                      zero::StepTerms const*,                       \
                                      zero::StepScalars const*,                     \
                                      zero::UpdateArrays<M, P, G, float, 2> const&, \
                                      std::int64_t*)

ZERO_MEASURE_OF(float, float, float);
ZERO_MEASURE_OF(float, bf16, bf16);
ZERO_MEASURE_OF(zero::Rest16::Held, zero::Rest16::Parameter, bf16);
using OfMeasured = zero::detail::InOrder<zero::detail::ComputeScalars<zero::Lamb, float, 1>,
                                         zero::detail::AdjustScalars<zero::Lamb, float>>;
template void zero::device::call(Queue const&, OfMeasured const&);

// Those of precisions that round stochastically.
template <class M, class P, class S>
using RoundedArrays = zero::RandomUpdateArrays<M, P, bf16, S, 2>;
using Stochastic = zero::StochasticRounding::Parameter;
#define ZERO_RANDOM_UPDATE(...)                                \
  template void zero::device::update(Queue const&,             \
                                     zero::AdamW const&,       \
                                     zero::StepTerms const*,   \
                                     zero::StepScalars const*, \
                                     RoundedArrays<__VA_ARGS__> const&)

ZERO_RANDOM_UPDATE(zero::Rest8::Held, zero::Rest8::Parameter, float);
ZERO_RANDOM_UPDATE(Stochastic, Stochastic, Stochastic);
ZERO_RANDOM_UPDATE(Stochastic, Stochastic, float);

// Those of rules whose states are codes.
using Codes = zero::kernel::RootState<true, false>;
#define ZERO_CODED_UPDATE(M, P, G)                             \
  template void zero::device::update(Queue const&,             \
                                     zero::AdamW8bit const&,   \
                                     zero::StepTerms const*,   \
                                     zero::StepScalars const*, \
                                     zero::CodedUpdateArrays<M, P, G, Codes, 2> const&)

ZERO_CODED_UPDATE(float, bf16, bf16);
ZERO_CODED_UPDATE(zero::Rest8::Held, zero::Rest8::Parameter, bf16);
template void zero::device::add_hash(
    Queue const&, std::uint64_t*, std::uint8_t const*, std::size_t, std::uint64_t);
template void zero::device::add_hash(
    Queue const&, std::uint64_t*, double const*, std::size_t, std::uint64_t);
template void zero::device::call(Queue const&, zero::detail::WriteStepWords const&);
template void zero::device::call(Queue const&, zero::detail::Conclude const&);
template void zero::device::call(Queue const&, zero::detail::Join const&);
template void zero::device::call(Queue const&, zero::detail::WriteTensorCounts const&);
template void zero::device::call(Queue const&, zero::detail::CountMissed const&);
template void zero::device::call(Queue const&, Rested const&);
template void zero::device::call(Queue const&, Step const&);
template void zero::device::call(Queue const&, FewStep const&);
template void zero::device::call(Queue const&, OfOne const&);
template void zero::device::find_unrounded(
    Queue const&, std::uint64_t*, bf16 const*, float const*, std::size_t, std::uint64_t);
template void zero::device::find_unrounded(
    Queue const&, std::uint64_t*, fp16 const*, float const*, std::size_t, std::uint64_t);
template void zero::device::convert(Queue const&, bf16*, float const*, std::size_t);
template void zero::device::convert(Queue const&, float*, bf16 const*, std::size_t);
template void zero::device::add(Queue const&, float*, bf16 const*, std::size_t);
template cudaError_t zero::device::try_sum_ranks(Queue const&,
                                                 zero::DType,
                                                 zero::DType,
                                                 zero::device::SumTargets const&,
                                                 zero::device::BufferList const&,
                                                 int,
                                                 std::size_t,
                                                 zero::SumSquares const*);
template cudaError_t zero::device::try_sum_ranks(Queue const&,
                                                 zero::DType,
                                                 zero::DType,
                                                 zero::device::SumTargets const&,
                                                 zero::device::BufferBlocks const&,
                                                 int,
                                                 std::size_t,
                                                 zero::SumSquares const*);

// Not a template; whatever is called here is compiled.
cudaError_t gather(Queue const& queue, void* to, zero::device::BufferList const& from) {
  return zero::device::try_gather_ranks(queue, {.at = {to}}, from, 8, 0, 4096);
}
