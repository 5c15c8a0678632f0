// Whole steps on the GPUs there are, through NCCL: 67 million parameters in bf16 with AdamW, beside
// NCCL's own calls for what such a step has to exchange, in plain memory and in registered windows.
#include "nccl_ranks.cuh"
#include "steps.cuh"
#include "zero/device/allocators.hpp"

namespace {

using zero::nccl::Registration;

/// Seconds that NCCL takes to add the gradients of all units and to gather their parameters, and
/// nothing else: the floor of a sharded step whose exchange is not hidden.
double exchange(int ranks, std::size_t unit_elements) {
  auto const id = zero::Nccl<>::unique_id();
  bench::Meeting meeting(ranks);
  double result = 0;
  bench::on_devices(ranks, ranks, [&](int rank, cudaStream_t stream) {
    bench::RawNccl nccl(id, rank, ranks, stream);
    auto const size = static_cast<std::size_t>(ranks);
    std::size_t const share = (unit_elements + size - 1) / size;
    std::size_t const bytes = bench::units * size * share * sizeof(zero::bf16);
    zero::device::MallocAllocator allocator(rank);
    auto* const gradients = static_cast<zero::bf16*>(allocator.allocate(bytes, 256));
    auto* const parameters = static_cast<zero::bf16*>(allocator.allocate(bytes, 256));
    bench::check(cudaMemsetAsync(gradients, 0, bytes, stream), "cudaMemsetAsync");
    bench::check(cudaMemsetAsync(parameters, 0, bytes, stream), "cudaMemsetAsync");
    auto const step = [&] {
      for (std::size_t unit = 0; unit < bench::units; ++unit) {
        auto* const whole = gradients + unit * size * share;
        nccl.run({.op = zero::Op::reduce_scatter,
                  .dtype = zero::DType::bf16,
                  .count = share,
                  .send = whole,
                  .recv = whole + static_cast<std::size_t>(rank) * share});
      }
      for (std::size_t unit = 0; unit < bench::units; ++unit) {
        auto* const whole = parameters + unit * size * share;
        nccl.run({.op = zero::Op::all_gather,
                  .dtype = zero::DType::bf16,
                  .count = share,
                  .send = whole + static_cast<std::size_t>(rank) * share,
                  .recv = whole});
      }
    };
    for (int i = 0; i < 3; ++i) step();
    int const repeat = bench::repetitions(unit_elements);
    double const seconds = bench::times_of(rank, stream, meeting, repeat, step, [] {}).median;
    if (rank == 0) result = seconds;
    nccl.close();
    allocator.deallocate(gradients, bytes, 256);
    allocator.deallocate(parameters, bytes, 256);
  });
  return result;
}

template <class R>
void steps(char const* backend,
           int ranks,
           Registration registration,
           std::size_t unit_elements,
           double floor) {
  bench::nccl_ranks<R>(
      ranks, bench::registered(registration), [&](auto& comm, bench::Meeting& meeting) {
        bench::all_steps(backend, comm, meeting, unit_elements, comm.allocator(), floor);
      });
}

}  // namespace

int main(int argc, char** argv) {
  using zero::nccl::Native;
  using zero::nccl::Ordered;
  std::size_t const size = bench::unit_elements(argc, argv);
  int const ranks = bench::devices_or_excuse();
  if (ranks == 0) return 77;
  double const floor = exchange(ranks, size);
  std::printf("%-22s %2d ranks  %-10s %9.3f ms for sums of gradients and gathers of parameters\n",
              "NCCL itself",
              ranks,
              "exchange",
              1e3 * floor);
  steps<Ordered>("NCCL, ordered", ranks, Registration::none, size, floor);
  steps<Native>("NCCL, native", ranks, Registration::none, size, floor);
  std::string const why = bench::no_windows(ranks);
  if (!why.empty()) {
    std::printf("not possible here: %s\n", why.c_str());
    return 0;
  }
  steps<Ordered>("NCCL, ordered, windows", ranks, Registration::windows, size, floor);
  steps<Native>("NCCL, native, windows", ranks, Registration::windows, size, floor);
  return 0;
}
