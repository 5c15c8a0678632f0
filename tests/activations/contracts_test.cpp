/// What activation checkpoints hold and move: planned, counted, and held against the paper.
#include "activations/late_transfer.hpp"
#include "activations/passes.hpp"
#include "contracts/heap.hpp"
#include "support/test.hpp"
#include "zero/activations.hpp"
#include "zero/comm/decorators/counting.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/transfer/counting_transfer.hpp"
#include "zero/transfer/host_transfer.hpp"

namespace contracts_test {
namespace {

using zero::ActivationCheckpoint;
using zero::ActivationPlan;
using zero::MicroBatches;
using zero::Prefetch;
using zero::Role;
namespace activation = zero::activation;

template <class Placement>
using Planned = zero::Activations<zero::InProcess, Placement, zero::HostTransfer>;

/// Blocks with one checkpoint each, all alike.
std::vector<ActivationCheckpoint> blocks(int layers, std::size_t elements, zero::DType dtype) {
  std::vector<ActivationCheckpoint> all;
  for (int l = 0; l < layers; ++l) all.push_back({"input", l, elements, dtype});
  return all;
}

/// Counts what is allocated by role, as the library's memory.
struct Allocations {
  std::mutex mutex;
  std::map<Role, std::uint64_t> bytes;
};
struct ByRole {
  Allocations* all;
  void* allocate(std::size_t bytes, std::size_t alignment) {
    return ::operator new (bytes, std::align_val_t{alignment});
  }
  void* allocate(std::size_t bytes, std::size_t alignment, Role role) {
    std::lock_guard const lock(all->mutex);
    all->bytes[role] += bytes;
    return allocate(bytes, alignment);
  }
  void deallocate(void* memory, std::size_t, std::size_t alignment) noexcept {
    ::operator delete (memory, std::align_val_t{alignment});
  }
};

TEST_CASE("100 billion parameters, 16 ranks, one checkpoint a layer: the paper's example") {
  // 125 layers, h = 8192, s = 1024, b = 32 (§6.1).
  constexpr std::size_t bsh = std::size_t{32} * 1024 * 8192;
  constexpr std::uint64_t all = 125 * std::uint64_t{bsh};
  CHECK(all == 33'554'432'000);
  auto const model = blocks(125, bsh, zero::DType::f16);
  ActivationPlan const whole = Planned<activation::Whole>::plan(16, model);
  ActivationPlan const pa = Planned<activation::Pa>::plan(16, model);
  ActivationPlan const pa_cpu = Planned<activation::PaCpu>::plan(16, model);
  // Corrected: 67.1 GB to 4.19 GB. Printed: "about 33 GB to about 2 GB", which is the number of
  // elements; in bytes it would be right for elements of one byte.
  CHECK(whole.memory[Role::activations] == 67'108'864'000);
  CHECK(pa.memory[Role::activations] == 4'194'304'000);
  auto const bytes = blocks(125, bsh, zero::DType::u8);
  CHECK(Planned<activation::Whole>::plan(16, bytes).memory[Role::activations] == 33'554'432'000);
  CHECK(Planned<activation::Pa>::plan(16, bytes).memory[Role::activations] == 2'097'152'000);
  CHECK(whole.memory[Role::activations] == 16 * pa.memory[Role::activations]);
  // To nearly nothing: the pool and what is on its way do not depend on the number of layers.
  CHECK(pa_cpu.memory[Role::activations] == 0);
  CHECK(pa_cpu.slower[Role::activations] == 4'194'304'000);
  CHECK(pa_cpu.memory.total() == 2 * bsh * 2 + 4 * bsh * 2 / 16);
  CHECK(pa_cpu.memory.total() ==
        Planned<activation::PaCpu>::plan(16, blocks(3, bsh, zero::DType::f16)).memory.total());
  CHECK(pa.memory[Role::activation_pool] == 2 * bsh * 2);
  CHECK(whole.memory.total() == whole.memory[Role::activations]);
  // One all-gather of b·s·h a block; Pa+cpu moves a share twice more.
  CHECK(pa.sent_elements == all / 16 * 15);
  CHECK(pa_cpu.sent_elements == pa.sent_elements);
  CHECK(whole.sent_elements == 0);
  CHECK(pa.slower_bytes == 0);
  CHECK(pa_cpu.slower_bytes == 2 * pa.memory[Role::activations]);
}

TEST_CASE("traffic beside the six all-reduces of a block: 1/12, and 1/10 where one is left out") {
  constexpr std::size_t bsh = 4 * 6 * 64;  // divides by 2, 3 and 4, and by the alignment
  for (int const ranks : {2, 3, 4}) {
    CHECK(activations::on_all(ranks, [&](zero::InProcess& inner) {
      zero::Counting comm{inner};
      zero::Activations store{comm, blocks(5, bsh, zero::DType::f16)};
      comm.reset();
      std::vector<zero::fp16> const x(bsh);
      std::vector<zero::fp16> sum(bsh);
      for (int l = 0; l < 5; ++l) store.store(l, std::span(x));
      for (int l = 5; l-- > 0;) {
        auto const layer = store.fetch(l);
        (void)layer.get<zero::fp16>();
      }
      store.end_step();
      std::uint64_t const gathered = comm.counts().bucket_total().elements;
      bool good = gathered == store.plan().sent_elements &&
                  comm.counts().bucket_total().bytes == store.plan().sent_bytes &&
                  comm.counts().bucket_of(zero::Op::all_gather).calls == 5 &&
                  comm.counts().control_total().calls == 0;
      // Megatron's, for each block: two in forward, two in recomputation, two in backward.
      auto const all_reduces = [&](int each) {
        comm.reset();
        for (int l = 0; l < 5; ++l) {
          for (int i = 0; i < each; ++i) {
            run(comm,
                {.op = zero::Op::all_reduce,
                 .dtype = zero::DType::f16,
                 .count = bsh,
                 .send = x.data(),
                 .recv = sum.data(),
                 .bucket = 0});
          }
        }
        return comm.counts().bucket_total().elements;
      };
      good = good && all_reduces(6) == 12 * gathered;
      // The last one of a recomputation has nobody who reads it.
      return good && all_reduces(5) == 10 * gathered;
    }));
  }
}

/// A step of a pipeline with three micro-batches in flight, counted.
template <class Placement>
void count(int ranks, int depth) {
  CAPTURE(ranks);
  CAPTURE(depth);
  std::vector<activations::Pass> const passes = activations::one_forward_one_backward(7, 3);
  CHECK(activations::on_all(ranks, [&](zero::InProcess& inner) {
    zero::Counting comm{inner};
    zero::HostTransfer plain;
    zero::CountingTransfer transfer{plain};
    Allocations all;
    zero::Activations store{comm,
                            activations::checkpoints(),
                            Placement{},
                            transfer,
                            MicroBatches{3},
                            Prefetch{depth},
                            zero::Owned{ByRole{&all}}};
    ActivationPlan const& plan = store.plan();
    bool good = plan.memory == store.held() && plan.slower == store.held_slower() &&
                transfer.held() == plan.slower.total();
    // Compared with what the allocator was asked for; agreement took some control memory.
    all.bytes.erase(Role::control);
    for (auto const& [role, bytes] : all.bytes) good = good && bytes == plan.memory[role];
    std::uint64_t sum = 0;
    for (auto const& [role, bytes] : all.bytes) sum += bytes;
    good = good && sum == plan.memory.total();
    for (int step = 0; step < 2; ++step) {
      comm.reset();
      transfer.reset();
      good = good && activations::keeps(store, passes);
      zero::TransferCounts const moved = transfer.counts();
      good = good && comm.counts().bucket_total().elements == 7 * plan.sent_elements &&
             comm.counts().bucket_total().bytes == 7 * plan.sent_bytes &&
             moved.sent_out_bytes + moved.brought_in_bytes == 7 * plan.slower_bytes &&
             moved.sent_out_bytes == moved.brought_in_bytes;
    }
    return good;
  }));
}

TEST_CASE("planned is held, and counted is planned") {
  for (int const ranks : {1, 2, 3, 4}) {
    for (int const depth : {0, 1, 2, 9}) {
      count<activation::Whole>(ranks, depth);
      count<activation::Pa>(ranks, depth);
      count<activation::PaCpu>(ranks, depth);
    }
  }
}

TEST_CASE("what is next is on its way: gathered ahead, and brought in one layer earlier") {
  for (int const depth : {0, 1, 2}) {
    CAPTURE(depth);
    CHECK(activations::on_all(2, [&](zero::InProcess& inner) {
      zero::Counting comm{inner};
      zero::HostTransfer plain;
      zero::CountingTransfer transfer{plain};
      zero::Activations store{
          comm, blocks(6, 1001, zero::DType::f32), activation::PaCpu{}, transfer, Prefetch{depth}};
      std::vector<float> const x(1001);
      for (int l = 0; l < 6; ++l) store.store(l, std::span(x));
      comm.reset();
      transfer.reset();
      bool good = true;
      for (int l = 6; l-- > 0;) {
        auto const layer = store.fetch(l);
        auto const fetched = static_cast<std::uint64_t>(6 - l);
        auto const ahead = static_cast<std::uint64_t>(depth);
        good = good &&
               comm.counts().bucket_total().calls == std::min<std::uint64_t>(6, fetched + ahead);
        good = good && transfer.counts().calls == std::min<std::uint64_t>(6, fetched + ahead + 1);
      }
      store.end_step();
      return good;
    }));
  }
}

template <class T>
std::vector<T> numbers(std::size_t count) {
  std::vector<T> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = static_cast<T>(1 + (i * 7 + count) % 251);
  return x;
}

/// Two layers of many checkpoints each, with sizes around whole shares.
template <class T, class Placement>
void any_size() {
  std::vector<std::size_t> sizes{0, 1, 2, 5};
  for (std::size_t const around : {16u, 32u, 48u, 64u, 128u, 192u, 256u}) {
    for (std::size_t const off : {0u, 1u, 2u, 3u}) sizes.push_back(around - 1 + off);
  }
  std::vector<ActivationCheckpoint> described;
  for (int const layer : {3, 8}) {
    for (std::size_t const size : sizes) {
      described.push_back({std::to_string(size), layer, size, zero::dtype_of<T>});
    }
  }
  for (int const ranks : {1, 2, 3, 4, 5}) {
    CAPTURE(ranks);
    CHECK(activations::on_all(ranks, [&](zero::InProcess& comm) {
      activations::LateTransfer transfer;
      zero::Activations store{comm, described, Placement{}, transfer};
      for (int const layer : {3, 8}) {
        for (std::size_t c = 0; c < sizes.size(); ++c) {
          store.store(layer, std::span<T const>(numbers<T>(sizes[c])), {.checkpoint = c});
        }
      }
      bool good = true;
      for (int const layer : {8, 3}) {
        auto const fetched = store.fetch(layer);
        for (std::size_t c = 0; c < sizes.size(); ++c) {
          auto const found = fetched.template get<T>(std::to_string(sizes[c]));
          auto const expected = numbers<T>(sizes[c]);
          good = good && std::equal(found.begin(), found.end(), expected.begin(), expected.end());
        }
      }
      return good;
    }));
  }
}

TEST_CASE("any size of any type on any number of ranks") {
  any_size<std::uint8_t, activation::Whole>();
  any_size<std::uint8_t, activation::Pa>();
  any_size<std::uint8_t, activation::PaCpu>();
  any_size<float, activation::Pa>();
  any_size<double, activation::PaCpu>();
}

TEST_CASE("a share is 1/N of each checkpoint, at most 63 bytes more; the rest is the stated pool") {
  auto const model = activations::checkpoints();
  constexpr std::uint64_t exact = 4 * 3 * (7 + 131 + 5) + 3 * 5;
  for (int const ranks : {1, 2, 3, 4, 64}) {
    auto const n = static_cast<std::uint64_t>(ranks);
    ActivationPlan const pa = Planned<activation::Pa>::plan(ranks, model, MicroBatches{4});
    CHECK(pa.memory[Role::activations] >= 4 * (exact / n));
    CHECK(pa.memory[Role::activations] <= 4 * (exact / n + model.size() * (1 + 63)));
    CHECK(pa.elements == 3 * (7 + 131 + 5) + 15);
    ActivationPlan const cpu = Planned<activation::PaCpu>::plan(ranks, model, MicroBatches{4});
    CHECK(cpu.slower[Role::activations] == pa.memory[Role::activations]);
    // One more micro-batch costs the device nothing.
    CHECK(cpu.memory == Planned<activation::PaCpu>::plan(ranks, model, MicroBatches{9}).memory);
  }
  // Layer 1 of two ranks: 393 fp32 as 2 x 208, 15 bytes as 2 x 64; two slots of it.
  CHECK(Planned<activation::Pa>::plan(2, model).memory[Role::activation_pool] ==
        2 * (2 * 208 * 4 + 2 * 64));
  CHECK(Planned<activation::Pa>::plan(2, model, Prefetch{0}).memory[Role::activation_pool] ==
        2 * 208 * 4 + 2 * 64);
}

TEST_CASE("nothing is allocated after construction") {
  auto const passes = activations::one_forward_one_backward(6, 2);
  auto const measure = [&](auto placement) {
    CHECK(activations::on_all(3, [&](zero::InProcess& comm) {
      zero::HostTransfer transfer;
      zero::Activations store{comm,
                              blocks(activations::layer_count, 1001, zero::DType::f32),
                              placement,
                              transfer,
                              MicroBatches{2}};
      std::vector<float> const x(1001, 1.f);
      bool right = true;
      std::uint64_t const before = heap::mine().allocations;
      for (activations::Pass const& pass : passes) {
        if (pass.forward) {
          store.store(pass.layer, std::span(x), {.micro_batch = pass.batch});
          continue;
        }
        auto const layer = store.fetch(pass.layer, pass.batch);
        right = right && layer.template get<float>()[1000] == 1.f;
      }
      store.end_step();
      return right && heap::mine().allocations == before;
    }));
  };
  measure(activation::Whole{});
  measure(activation::Pa{});
  measure(activation::PaCpu{});
}

TEST_CASE("the plan as text") {
  std::string const text = to_string(
      Planned<activation::PaCpu>::plan(16, blocks(125, 32 * 1024 * 8192, zero::DType::f16)));
  CAPTURE(text);
  for (char const* const words :
       {"placement Pa+cpu, N_m = 16, 33,554,432,000 elements a micro-batch, micro-batches at once: "
        "1",
        "activation_pool       1,073,741,824    1.0 GiB    the largest layer, times 2",
        "in the slower memory  4,194,304,000    3.9 GiB    host, 1/N_m of each",
        "one all-gather of each checkpoint",
        "to and from the slower memory"}) {
    CHECK(text.find(words) != std::string::npos);
  }
}

}  // namespace
}  // namespace contracts_test
