/// @file
/// Activation checkpoints on devices, stored and fetched without a call that waits for one.
#pragma once

#include "conformance/transfer.hpp"
#include "cuda/streams.hpp"
#include "support/test.hpp"
#include "zero/activations.hpp"
#include "zero/transfer/counting_transfer.hpp"
#include "zero/transfer/cuda_transfer.hpp"

namespace placements {

using zero::device::MallocAllocator;
using zero::space::Cuda;

/// Device memory, worked on in the order of the space's stream.
class DeviceMemory {
 public:
  explicit DeviceMemory(Cuda space) : space_(std::move(space)), allocator_(space_.device()) {}
  DeviceMemory(DeviceMemory const&) = delete;
  ~DeviceMemory() {
    for (auto const& [memory, bytes] : blocks_) allocator_.deallocate(memory, bytes, 256);
  }
  [[nodiscard]] std::byte* make(std::size_t bytes) {
    blocks_.emplace_back(allocator_.allocate(bytes + 1, 256), bytes + 1);
    return static_cast<std::byte*>(blocks_.back().first);
  }
  /// The host waits, as the upload of a space does; what is queued stays in order.
  void write(std::byte* to, conformance::Bytes const& values) {
    // By way of other device memory, so that the write itself is only queued.
    std::byte* const aside = make(values.size());
    uploads_.upload(aside, values.data(), values.size());
    space_.copy(to, aside, values.size());
  }
  void copy(std::byte* to, std::byte const* from, std::size_t bytes) {
    space_.copy(to, from, bytes);
  }
  [[nodiscard]] conformance::Bytes read(std::byte const* from, std::size_t bytes) const {
    conformance::Bytes result(bytes);
    space_.download(result.data(), from, bytes);
    return result;
  }

 private:
  Streams other_{1};
  Cuda space_;
  Cuda uploads_{other_.spaces[0]};
  MallocAllocator allocator_;
  std::vector<std::pair<void*, std::size_t>> blocks_;
};

inline constexpr int layers = 5;
inline constexpr std::size_t elements = 1003;

[[nodiscard]] inline std::vector<zero::ActivationCheckpoint> described() {
  std::vector<zero::ActivationCheckpoint> all;
  for (int l = 0; l < layers; ++l) all.push_back({"input", l, elements, zero::DType::f32});
  return all;
}

/// Stores and fetches two micro-batches for some steps; what comes back is copied to `out`, where
/// it is compared in the end: until then no call but construction waits for a device.
template <class Placement, class Waits>
void round_trips(int ranks, Waits const& waits) {
  std::atomic<int> right{0};
  DeviceWorld::run(ranks, [&](zero::InProcessCuda& comm, MallocAllocator const& allocator) {
    Cuda const space = comm.space();
    zero::CudaTransfer cuda(space);
    zero::CountingTransfer transfer(cuda);
    DeviceMemory memory(space);
    zero::Activations store{
        comm, described(), Placement{}, transfer, zero::MicroBatches{2}, zero::Owned{allocator}};
    bool good = store.plan().memory == store.held() && store.plan().slower == store.held_slower();
    constexpr std::size_t bytes = elements * sizeof(float);
    constexpr int steps = 2;
    auto* const x = reinterpret_cast<float*>(memory.make(bytes));
    std::byte* const data = memory.make(bytes * 2 * layers);
    std::byte* const out = memory.make(bytes * steps * 2 * layers);
    conformance::Bytes const values = conformance::pattern(bytes * 2 * layers, 7);
    space.upload(data, values.data(), values.size());
    auto const at = [](int batch, int l) {
      return static_cast<std::size_t>(batch * layers + l) * bytes;
    };
    std::size_t const before = waits();
    for (int step = 0; step < steps; ++step) {
      for (int batch = 0; batch < 2; ++batch) {
        for (int l = 0; l < layers; ++l) {
          space.copy(x, data + at(batch, l), bytes);
          store.store(l, std::span<float const>(x, elements), {.micro_batch = batch});
        }
      }
      for (int batch = 0; batch < 2; ++batch) {
        for (int l = layers; l-- > 0;) {
          auto const layer = store.fetch(l, batch);
          space.copy(out + static_cast<std::size_t>(step) * values.size() + at(batch, l),
                     layer.template get<float>().data(),
                     bytes);
        }
      }
      store.end_step();
    }
    good = good && waits() == before;
    for (int step = 0; step < steps; ++step) {
      good = good && memory.read(out + static_cast<std::size_t>(step) * values.size(),
                                 values.size()) == values;
    }
    std::uint64_t const moved =
        transfer.counts().sent_out_bytes + transfer.counts().brought_in_bytes;
    good = good && moved == steps * 2 * store.plan().slower_bytes;
    right += good ? 1 : 0;
  });
  CHECK(right == ranks);
}

/// Every placement.
template <class Waits>
void check(int ranks, Waits const& waits) {
  CAPTURE(ranks);
  round_trips<zero::activation::Whole>(ranks, waits);
  round_trips<zero::activation::Pa>(ranks, waits);
  round_trips<zero::activation::PaCpu>(ranks, waits);
}

}  // namespace placements
