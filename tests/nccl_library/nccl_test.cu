// The real NCCL on the GPUs there are, one rank on each: the suites that every communicator passes.
// Ranks are threads, with one device each.
#include "conformance/communicator.hpp"
#include "cuda/captured_step.cuh"
#include "cuda/staged.hpp"
#include "cuda/streams.hpp"
#include "differential/check_cases.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/comm/decorators/checked.hpp"
#include "zero/comm/nccl.hpp"
#include "zero/device/status.hpp"

#include <cuda_runtime_api.h>

#include <future>

namespace nccl_test {
namespace {

using captured_step::Graph;
using zero::device::check;
using zero::device::MallocAllocator;
using zero::nccl::Native;
using zero::nccl::NewGroup;
using zero::nccl::Options;
using zero::nccl::Ordered;
using zero::nccl::Registration;

/// None where there is no GPU: main has said so and skipped.
int device_count() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

Options test_options() {
  Options options;
  options.deadline_s = 60;
  // Sums travel in several pieces.
  options.staging_bytes = zero::MiB;
  return options;
}

/// Calls `body(comm)` on one thread for each of the first `ranks` devices; rethrows what the first
/// rank that failed threw. A group that is to fail is not closed.
template <class Reduction, class Body>
void run_group(int ranks, Options const& options, Body const& body, bool fails = false) {
  using Comm = zero::Nccl<Reduction>;
  auto const id = Comm::unique_id();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        check(cudaSetDevice(rank), "cudaSetDevice");
        cudaStream_t stream = nullptr;
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
        {
          Comm comm(NewGroup<zero::nccl::Library>{id, rank, ranks, stream}, options);
          body(comm);
          if (!fails) comm.close();
        }
        check(cudaStreamDestroy(stream), "cudaStreamDestroy");
        // What polling found unfinished is no error of the trainer's.
        check(cudaGetLastError(), "what was left by the communicator");
      } catch (...) {
        std::lock_guard const lock(mutex);
        if (first == nullptr) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first != nullptr) std::rethrow_exception(first);
}

/// Group sizes from 1 to the number of GPUs, at most 8.
std::vector<int> group_sizes() {
  std::vector<int> sizes;
  for (int ranks = 1; ranks <= std::min(device_count(), 8); ranks *= 2) sizes.push_back(ranks);
  return sizes;
}

/// Calls `body` with buffers that lie on the host and travel through the device.
template <class Reduction, class Body>
void run_staged(int ranks, Body const& body) {
  using Checked = zero::Checked<zero::Nccl<Reduction>, MallocAllocator>;
  run_group<Reduction>(ranks, test_options(), [&](zero::Nccl<Reduction>& comm) {
    MallocAllocator const allocator(comm.space().device());
    Staged<Checked, MallocAllocator> staged(Checked(comm, allocator), allocator);
    body(staged);
  });
}

struct StagedWorld {
  static inline std::vector<int> const ranks = group_sizes();
  template <class Body>
  static void run(int ranks, Body const& body) {
    run_staged<Ordered>(ranks, body);
  }
};

struct TrainingWorld {
  template <class Body>
  static void run(int ranks, Body const& body) {
    run_group<Ordered>(
        ranks, test_options(), [&](zero::Nccl<>& comm) { body(comm, comm.allocator()); });
  }
};

TEST_CASE("NCCL, ordered: operations") { conformance::check_operations<StagedWorld>(); }
TEST_CASE("NCCL, ordered: collectives under way") { conformance::check_outstanding<StagedWorld>(); }
TEST_CASE("NCCL, ordered: sub-groups") { conformance::check_groups<StagedWorld>(); }

TEST_CASE("NCCL, native: integers exactly, and floats where one rank adds nothing") {
  for (int const ranks : group_sizes()) {
    conformance::Findings findings;
    run_staged<Native>(ranks, [&](auto& comm) {
      conformance::every_operation<std::int32_t, std::int32_t>(comm, findings);
      conformance::every_operation<std::int64_t, std::int64_t>(comm, findings);
      if (ranks == 1) conformance::every_operation<zero::bf16, float>(comm, findings);
    });
    findings.check();
  }
}

TEST_CASE("NCCL: training has the host's bits under every stage") {
  differential::check_stages<TrainingWorld>(group_sizes().back(), 8);
}

template <class Stage>
void check_capture() {
  Options options = test_options();
  // Looks at what is under way while a stream is captured, too.
  options.watch_s = 1e-4;
  for (int const ranks : group_sizes()) {
    std::array<std::vector<std::vector<float>>, 2> results;
    for (std::size_t const replay : {0u, 1u}) {
      results[replay].resize(static_cast<std::size_t>(ranks));
      run_group<Ordered>(ranks, options, [&](zero::Nccl<>& comm) {
        results[replay][static_cast<std::size_t>(comm.rank())] =
            captured_step::train<Stage>(comm, replay != 0);
      });
    }
    CHECK(results[0] == results[1]);
    CHECK(results[0][0][0] != 0.f);
  }
}

TEST_CASE("NCCL: a captured step trains as one that was enqueued call by call") {
  check_capture<zero::stage::Replicated>();
  check_capture<zero::stage::PosG>();
  check_capture<zero::stage::PosGP>();
}

/// Twos on a device, and their sum over ranks.
struct Sum {
  explicit Sum(zero::Nccl<>& group) : comm(group) {}

  void enqueue() {
    zero::run(comm,
              {.op = zero::Op::all_reduce,
               .count = 1000,
               .send = from.data(),
               .recv = to.data(),
               .bucket = 7});
  }

  zero::Nccl<>& comm;
  Array<float> from{comm.space(), std::vector<float>(1000, 2.f)};
  Array<float> to{comm.space(), std::vector<float>(1000)};
};

/// Calls `body(comm, lose)` on two ranks, if there are two GPUs. In it, `lose(work)` calls `work`
/// on rank 0 and lets the other wait until that is over; `work` gives what the rank was told.
template <class Body>
void check_lost(Options const& options, std::vector<char const*> const& words, Body const& body) {
  if (device_count() < 2) return;
  std::promise<void> over;
  std::shared_future<void> const all_over = over.get_future().share();
  std::string problem;
  auto const on_rank = [&](zero::Nccl<>& comm) {
    body(comm, [&](auto const& work) {
      if (comm.rank() != 0) return all_over.wait();
      problem = work();
      over.set_value();
    });
  };
  run_group<Ordered>(2, options, on_rank, true);
  for (char const* const word : words) {
    CHECK_MESSAGE(problem.find(word) != std::string::npos, problem);
  }
}

TEST_CASE("NCCL: a rank that never comes is given up on, and the device is of use afterwards") {
  Options options = test_options();
  options.deadline_s = 1;
  auto const body = [](zero::Nccl<>& comm, auto const& lose) {
    lose([&] {
      Sum sum(comm);
      std::string const problem = message_of([&] {
        sum.enqueue();
        // The stream holds a collective that will not end on its own.
        static_cast<void>(sum.to.values());
        sum.enqueue();
      });
      // What a trainer would do to save its state.
      CHECK(sum.from.values() == std::vector<float>(1000, 2.f));
      return problem;
    });
  };
  check_lost(options, {"all_reduce", "bucket 7", "without progress"}, body);
}

TEST_CASE(
    "NCCL: a rank that does not launch its graph is given up on at what others start behind it") {
  Options options = test_options();
  options.deadline_s = 1;
  options.watch_s = 0.05;
  options.grace_s = 1;
  auto const body = [](zero::Nccl<>& comm, auto const& lose) {
    cudaStream_t const stream = comm.space().stream();
    Sum sum(comm);
    sum.enqueue();
    Graph const graph(stream, cudaStreamCaptureModeThreadLocal, [&] { sum.enqueue(); });
    comm.space().zero(sum.to.data(), 1000 * sizeof(float));
    graph.launch();
    CHECK(sum.to.values() == std::vector<float>(1000, 4.f));
    lose([&] {
      graph.launch();
      sum.enqueue();
      // Comes back because the watching thread sees that what came behind the graph is late.
      static_cast<void>(sum.to.values());
      return message_of([&] { static_cast<void>(comm.poll()); });
    });
  };
  check_lost(options, {"all_reduce", "bucket 7", "without progress", "until all graphs"}, body);
}

/// Counts in memory of the host.
struct Count {
  std::int64_t* word;
  __host__ __device__ void operator()() const { ++*word; }
};

TEST_CASE("NCCL: close comes after the graphs that were launched") {
  auto const body = [&](zero::Nccl<>& comm) {
    auto const space = comm.space();
    Sum sum(comm);
    void* host = nullptr;
    check(cudaHostAlloc(&host, sizeof(std::int64_t), cudaHostAllocMapped), "cudaHostAlloc");
    auto* const word = static_cast<std::int64_t*>(host);
    *word = 0;
    auto const step = [&] {
      sum.enqueue();
      space.call(Count{word});
    };
    step();
    {
      Graph const graph(space.stream(), cudaStreamCaptureModeThreadLocal, step);
      for (int launch = 0; launch < 20; ++launch) graph.launch();
    }
    comm.close();
    CHECK(*static_cast<std::int64_t const volatile*>(word) == 21);
    check(cudaStreamSynchronize(space.stream()), "cudaStreamSynchronize");
    check(cudaFreeHost(host), "cudaFreeHost");
  };
  for (int const ranks : group_sizes()) run_group<Ordered>(ranks, test_options(), body);
}

/// A step that one rank never takes: what the others report of it, and what they would save.
template <class Stage>
void check_lost_step(bool reports) {
  Options options = test_options();
  options.deadline_s = 0.5;
  options.watch_s = 0.02;
  check_lost(options, {"without progress"}, [&](zero::Nccl<>& comm, auto const& lose) {
    captured_step::Trainer<zero::Nccl<>, Stage> trainer(comm);
    trainer.step();
    CHECK(trainer.steps() == 1);
    lose([&] {
      std::vector<float> const before = trainer.masters();
      std::string const problem = message_of([&] {
        trainer.step();
        if (reports) static_cast<void>(trainer.steps());
        check(cudaStreamSynchronize(comm.space().stream()), "cudaStreamSynchronize");
        static_cast<void>(trainer.steps());
      });
      CHECK(trainer.masters() == before);
      CHECK(trainer.saved_steps() == 1);
      return problem;
    });
  });
}

TEST_CASE("NCCL: a step that some rank never takes is an error, and leaves what can be saved") {
  for (bool const reports : {false, true}) {
    check_lost_step<zero::stage::Replicated>(reports);
    check_lost_step<zero::stage::PosG>(reports);
    check_lost_step<zero::stage::PosGP>(reports);
  }
}

TEST_CASE("NCCL: memory is given back after the work that uses it") {
  Options options = test_options();
  run_group<Ordered>(std::min(device_count(), 1), options, [](zero::Nccl<>& comm) {
    auto const space = comm.space();
    auto allocator = comm.allocator();
    constexpr std::size_t bytes = std::size_t{64} << 20;
    void* const memory = allocator.allocate(bytes, 4096);
    for (int i = 0; i < 20; ++i) space.zero(memory, bytes);
    allocator.deallocate(memory, bytes, 4096);
    check(cudaStreamSynchronize(space.stream()), "cudaStreamSynchronize");
  });
}

/// Allocates registered memory and gathers in it.
void check_registration(int ranks, Options const& options) {
  std::mutex mutex;
  run_group<Ordered>(ranks, options, [&](zero::Nccl<>& comm) {
    auto allocator = comm.allocator();
    auto const space = comm.space();
    auto const own = static_cast<std::size_t>(comm.rank());
    auto const size = static_cast<std::size_t>(comm.size());
    constexpr std::size_t count = std::size_t{1} << 18;
    std::size_t const bytes = size * count * sizeof(float);
    auto* const memory = static_cast<float*>(allocator.allocate(bytes, 4096));
    std::vector<float> values(count, static_cast<float>(own + 1));
    space.upload(memory + own * count, values.data(), count * sizeof(float));
    zero::run(comm,
              {.op = zero::Op::all_gather,
               .count = count,
               .send = memory + own * count,
               .recv = memory,
               .bucket = 0});
    std::vector<float> gathered(size * count);
    space.download(gathered.data(), memory, bytes);
    auto const report = comm.report();
    allocator.deallocate(memory, bytes, 4096);
    std::lock_guard const lock(mutex);
    bool right = true;
    for (std::size_t i = 0; i < gathered.size(); ++i) {
      std::size_t const rank = i / count;
      right = right && gathered[i] == static_cast<float>(rank + 1);
    }
    CHECK(right);
    CHECK(report.registration == options.registration);
    CHECK(report.registered_bytes == (options.registration == Registration::none ? 0 : bytes));
    CHECK(report.library_version >= report.header_version);
  });
}

TEST_CASE("NCCL: memory is registered as asked for, or that is an error") {
  for (Registration const registration :
       {Registration::none, Registration::buffers, Registration::windows}) {
    Options options = test_options();
    options.registration = registration;
    for (int const ranks : group_sizes()) {
      // Not every machine can: by driver, environment or topology.
      std::string const what = message_of([&] { check_registration(ranks, options); });
      if (!what.empty()) MESSAGE("not possible here: ", what);
      bool const refused = what.find("skipped the registration") != std::string::npos ||
                           what.find("made none") != std::string::npos;
      CHECK_MESSAGE((what.empty() || refused), what);
    }
  }
}

}  // namespace
}  // namespace nccl_test
