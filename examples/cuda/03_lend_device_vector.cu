// Borrowed memory on a GPU: a trainer keeps its thrust::device_vectors and lends them in one line.
//
// Two ranks share the GPU. The library holds its share of states and a staging bucket.
//
// prints: Pos fp32 .*loss fell from 0\.0312 to 0\.0000

#include <zero/comm/in_process_cuda.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/device/allocators.hpp>
#include <zero/zero.hpp>

#include <cub/device/device_transform.cuh>
#include <thrust/device_vector.h>

#include <cstddef>
#include <cstdio>
#include <vector>

/// Of the loss (weight - 0.25)² / 2 of every weight.
struct Slope {
  __host__ __device__ float operator()(float weight) const { return weight - 0.25f; }
};

void train(zero::InProcessCuda& comm) {
  zero::space::Cuda const space = comm.space();  // a device, and the stream of this rank
  thrust::device_vector<float> weights(1000, 0.5f), gradients(1000);
  zero::ShardedOptimizer opt{comm,
                             std::vector<zero::Tensor>{{.name = "w", .shape = {weights.size()}}},
                             zero::stage::Pos{},
                             zero::Adam{.lr = 0.02f},
                             zero::Borrowed{zero::device::MallocAllocator(space.device())}};
  opt.bind({weights.data().get(), weights.size()}, {gradients.data().get(), gradients.size()});
  opt.adopt_parameters();  // training starts from the values that lie there

  auto const loss = [&] {
    float weight = 0.f;
    space.download(&weight, weights.data().get(), sizeof(weight));
    return (weight - 0.25) * (weight - 0.25) / 2.;
  };
  double const first_loss = loss();
  for (int step = 0; step < 60; ++step) {
    zero::device::check(cub::DeviceTransform::Transform(cuda::std::make_tuple(weights.data().get()),
                                                        gradients.data().get(),
                                                        weights.size(),
                                                        Slope{},
                                                        space.stream()),
                        "the backward pass");
    opt.reduce_all();
    opt.enqueue_step({});  // the host waits for nothing
  }
  if (opt.report().skipped || comm.rank() != 0) return;
  std::printf("%s\n", zero::to_line(opt.plan()).c_str());
  std::printf("loss fell from %.4f to %.4f\n", first_loss, loss());
}

int main() {
  std::vector<zero::space::Cuda> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    cudaStream_t stream = nullptr;
    zero::device::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    ranks.emplace_back(0, stream);  // both on device 0
  }
  zero::run_ranks(zero::InProcessCuda::group(ranks), train);
}
