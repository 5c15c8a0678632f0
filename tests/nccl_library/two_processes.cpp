/// One rank of a group of processes on real GPUs: sums and gathers integers that any way of adding
/// gets right. Started by two_processes_one_gpu.sh, which can put all ranks on one GPU.
///
/// Usage: two_processes <rank> <ranks> <file through which rank 0 hands out the id>
#include "support/standard.hpp"
#include "zero/comm/nccl.hpp"

#include <cuda_runtime_api.h>

namespace {

using Comm = zero::Nccl<zero::nccl::Native>;
using zero::Op;

/// Rank 0 writes the id beside its final name and renames it, so that nobody reads half of it.
Comm::UniqueId meet(int rank, std::string const& path) {
  Comm::UniqueId id{};
  if (rank == 0) {
    id = Comm::unique_id();
    std::ofstream(path + ".new", std::ios::binary).write(id.internal, sizeof(id.internal));
    std::filesystem::rename(path + ".new", path);
    return id;
  }
  for (int i = 0; i < 600 && !std::filesystem::exists(path); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file.read(id.internal, sizeof(id.internal))) throw std::runtime_error("no id from rank 0");
  return id;
}

void require(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

void work(int rank, int ranks, std::string const& path) {
  constexpr std::size_t count = 1000;
  auto const whole = count * static_cast<std::size_t>(ranks);
  zero::nccl::Options options;
  options.deadline_s = 60;
  options.waiting = zero::nccl::Waiting::host;
  Comm comm(zero::nccl::NewGroup<zero::nccl::Library>{meet(rank, path), rank, ranks, nullptr},
            options);
  auto allocator = comm.allocator();
  std::size_t const bytes = whole * sizeof(std::int32_t);
  auto* const memory = static_cast<std::int32_t*>(allocator.allocate(bytes, 4096));
  auto* const own = memory + count * static_cast<std::size_t>(rank);

  std::vector<std::int32_t> data(whole, rank + 1);
  require(cudaMemcpy(memory, data.data(), bytes, cudaMemcpyHostToDevice));
  zero::Collective op{.op = Op::reduce_scatter,
                      .dtype = zero::DType::i32,
                      .accumulate = zero::DType::i32,
                      .count = count,
                      .send = memory,
                      .recv = own,
                      .bucket = 0};
  zero::run(comm, op);
  op.op = Op::all_gather;
  op.send = own;
  op.recv = memory;
  zero::run(comm, op);
  require(cudaMemcpy(data.data(), memory, bytes, cudaMemcpyDeviceToHost));
  for (std::int32_t const x : data) {
    if (x != ranks * (ranks + 1) / 2) throw std::runtime_error("a sum is wrong");
  }
  allocator.deallocate(memory, bytes, 4096);
  comm.close();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s <rank> <ranks> <id file>\n", argv[0]);
    return 2;
  }
  try {
    work(std::atoi(argv[1]), std::atoi(argv[2]), argv[3]);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "rank %s: %s\n", argv[1], error.what());
    return 1;
  }
  std::printf("rank %s of %s: sums are right\n", argv[1], argv[2]);
  return 0;
}
