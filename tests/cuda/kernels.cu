// The kernels of a step, for kernels_test.py to look at what nvcc makes of them.
#include "zero/device/call.cuh"
#include "zero/device/elementwise.cuh"
#include "zero/device/gather.cuh"
#include "zero/device/hash.cuh"
#include "zero/device/norm.cuh"
#include "zero/device/sum.cuh"
#include "zero/device/update.cuh"
#include "zero/optimizer/stations/control.hpp"
#include "zero/rule/adamw.hpp"

#include <cstddef>
#include <cstdint>

using zero::bf16;
using zero::device::Queue;

template void zero::device::update(Queue const&,
                                   zero::AdamW const&,
                                   zero::StepTerms const*,
                                   zero::UpdateRates const&,
                                   zero::UpdateArrays<float, float, float, float, 2> const&);
template void zero::device::update(Queue const&,
                                   zero::AdamW const&,
                                   zero::StepTerms const*,
                                   zero::UpdateRates const&,
                                   zero::UpdateArrays<float, bf16, bf16, float, 2> const&);
template void zero::device::call(Queue const&, zero::detail::Seal const&);
template void zero::device::call(Queue const&, zero::detail::Conclude const&);
template void zero::device::call(Queue const&, zero::detail::SealOptions const&);
template void zero::device::call(Queue const&, zero::detail::ConcludeOptions const&);
template void zero::device::call(Queue const&, zero::detail::Decide const&);
template void zero::device::convert(Queue const&, bf16*, float const*, std::size_t);
template void zero::device::convert(Queue const&, float*, bf16 const*, std::size_t);
template void zero::device::add(Queue const&, float*, bf16 const*, std::size_t);
template void zero::device::add_squares(Queue const&, zero::ExactSum*, float const*, std::size_t);
template void zero::device::add_squares(Queue const&, zero::ExactSum*, bf16 const*, std::size_t);
template void zero::device::add_hash(
    Queue const&, std::uint64_t*, float const*, std::size_t, std::uint64_t);
template cudaError_t zero::device::try_sum_ranks(Queue const&,
                                                 zero::DType,
                                                 zero::DType,
                                                 zero::device::SumTargets const&,
                                                 zero::device::BufferList const&,
                                                 int,
                                                 std::size_t,
                                                 std::size_t,
                                                 zero::SumSquares const&);
template cudaError_t zero::device::try_sum_ranks(Queue const&,
                                                 zero::DType,
                                                 zero::DType,
                                                 zero::device::SumTargets const&,
                                                 zero::device::BufferBlocks const&,
                                                 int,
                                                 std::size_t,
                                                 std::size_t,
                                                 zero::SumSquares const&);

// Not a template; whatever is called here is compiled.
cudaError_t gather(Queue const& queue, void* to, zero::device::BufferList const& from) {
  return zero::device::try_gather_ranks(queue, to, from, 8, 0, 4096);
}
