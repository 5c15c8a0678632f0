// The real NCCL on the GPUs there are, one rank on each: the suites that every communicator passes.
// Ranks are threads with one device each, or processes, which processes.sh starts.
#include "../bench/cuda/nccl_ranks.cuh"
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

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <latch>

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

/// This process, which may be one rank of several that processes.sh has started.
struct Process {
  int rank = 0;
  int ranks = 0;        ///< that are processes
  std::string meeting;  ///< a folder of all ranks
  int groups = 0;       ///< that all processes have begun alike

  [[nodiscard]] bool alone() const { return ranks == 0; }  ///< ranks are threads
};

Process& process() {
  static Process instance = [] {
    char const* const rank = std::getenv("ZERO_TEST_RANK");
    char const* const ranks = std::getenv("ZERO_TEST_RANKS");
    char const* const meeting = std::getenv("ZERO_TEST_MEETING");
    if (rank == nullptr || ranks == nullptr || meeting == nullptr) return Process{};
    return Process{.rank = std::atoi(rank), .ranks = std::atoi(ranks), .meeting = meeting};
  }();
  return instance;
}

/// How many ranks the largest group has: there are as many processes, or a device for each thread.
int most_ranks() { return process().alone() ? std::min(device_count(), 8) : process().ranks; }

/// The id of a new group of threads, or of all processes: rank 0 writes it beside its final name
/// and renames the file, so that nobody reads half of it.
template <class Comm>
typename Comm::UniqueId next_id(int ranks) {
  if (process().alone()) return Comm::unique_id();
  std::string const path = process().meeting + "/" + std::to_string(++process().groups);
  typename Comm::UniqueId id{};
  if (process().rank == 0) {
    id = Comm::unique_id();
    std::ofstream(path + ".new", std::ios::binary).write(id.internal, sizeof(id.internal));
    std::filesystem::rename(path + ".new", path);
  } else if (process().rank < ranks) {
    for (int i = 0; i < 6000 && !std::filesystem::exists(path); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::ifstream file(path, std::ios::binary);
    if (!file.read(id.internal, sizeof(id.internal))) throw std::runtime_error("no id from rank 0");
  }
  return id;
}

Options test_options() {
  Options options;
  options.deadline_s = 60;
  // Sums travel in several pieces.
  options.staging_bytes = zero::MiB;
  return options;
}

/// Those of groups that a rank leaves. NCCL itself takes seconds to begin, the emulated one none;
/// and processes may share a device, in which they take turns.
Options options_of_loss() {
#if defined(__NVCC__)
  constexpr double patience_s = 10;
#else
  constexpr double patience_s = 1;
#endif
  Options options = test_options();
  options.deadline_s = process().alone() ? patience_s : 2 * patience_s;
  options.watch_s = 0.02;
  return options;
}

/// Calls `body(comm)` on one thread for each of the first `ranks` devices, or in each of so many
/// processes; rethrows what the first rank that failed threw. A group that is to fail is not
/// closed.
template <class Reduction, class Body>
void run_group(int ranks, Options const& options, Body const& body, bool fails = false) {
  using Comm = zero::Nccl<Reduction>;
  auto const id = next_id<Comm>(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  auto const run_rank = [&](int rank) {
    try {
      // Several processes may share a device.
      check(cudaSetDevice(rank % device_count()), "cudaSetDevice");
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
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    if (process().alone() || process().rank == rank) threads.emplace_back(run_rank, rank);
  }
  for (std::thread& thread : threads) thread.join();
  if (first != nullptr) std::rethrow_exception(first);
}

/// Sizes of groups: up to one of all devices, or the group of all processes.
std::vector<int> group_sizes() {
  std::vector<int> sizes;
  int const most = most_ranks();
  for (int ranks = 1; process().alone() && ranks < most; ranks *= 2) sizes.push_back(ranks);
  if (most > 0) sizes.push_back(most);
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
  static bool takes_part(int ranks) { return process().rank < ranks; }
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

TEST_CASE("NCCL, native: what benchmarks call without the library has the same results") {
  for (int const ranks : group_sizes()) {
    auto const id = next_id<zero::Nccl<Native>>(ranks);
    run_group<Native>(ranks, test_options(), [&](zero::Nccl<Native>& comm) {
      auto const space = comm.space();
      bench::RawNccl raw(id, comm.rank(), ranks, space.stream());
      std::vector<float> values(1000 * static_cast<std::size_t>(ranks));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(i % 97) + 100.f * static_cast<float>(comm.rank());
      }
      Array<float> const from(space, values);
      for (int number = 0; number < zero::op_count; ++number) {
        Array<float> const ours(space, std::vector<float>(values.size()));
        Array<float> const plain(space, std::vector<float>(values.size()));
        zero::Collective call{
            .op = static_cast<zero::Op>(number), .count = 1000, .send = from.data()};
        call.recv = ours.data();
        zero::run(comm, call);
        call.recv = plain.data();
        raw.run(call);
        CHECK_MESSAGE(ours.values() == plain.values(), number);
      }
      raw.close();
    });
  }
}

TEST_CASE("NCCL: training has the host's bits under every stage") {
  // Processes that share a device take turns in it, and a group of them takes a second to begin.
  differential::check_stages<TrainingWorld>(most_ranks(), process().alone() ? 8 : 2);
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
    CHECK(results[0][static_cast<std::size_t>(process().rank)][0] != 0.f);
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

/// Calls `body(comm, lose)` on all ranks, if there are two. In it, `lose(work)` calls `work` on all
/// ranks but the last, and gets from it what the rank was told. The last one is killed if it is a
/// process, and otherwise waits until the others are through. One of them was told all `words`;
/// of a process that is gone, NCCL may know more than that nothing comes.
template <class Body>
void check_lost(Options const& options, std::vector<char const*> const& words, Body const& body) {
  int const ranks = most_ranks();
  if (ranks < 2) {
    MESSAGE("not possible here: a rank can only be lost where there are two GPUs");
    return;
  }
  std::latch through(ranks - 1);
  std::mutex mutex;
  std::vector<std::string> problems;
  auto const on_rank = [&](zero::Nccl<>& comm) {
    bool const lost = comm.rank() + 1 == ranks;
    struct Through {
      std::latch* latch;
      ~Through() {
        if (latch != nullptr) latch->count_down();
      }
    } const at_the_end{lost ? nullptr : &through};
    body(comm, [&](auto const& work) {
      if (lost && !process().alone()) std::raise(SIGKILL);
      if (lost) return through.wait();
      std::string const problem = work();
      std::lock_guard const lock(mutex);
      problems.push_back(problem);
    });
  };
  run_group<Ordered>(ranks, options, on_rank, true);
  CHECK(problems.size() == (process().alone() ? static_cast<std::size_t>(ranks - 1) : 1u));
  bool told = !process().alone();
  for (std::string const& problem : problems) {
    CHECK(!problem.empty());
    told = told || std::all_of(words.begin(), words.end(), [&](char const* word) {
             return problem.find(word) != std::string::npos;
           });
  }
  CHECK_MESSAGE(told, (problems.empty() ? std::string("nothing") : problems.front()));
}

TEST_CASE("NCCL: a rank that never comes is given up on, and the device is of use afterwards") {
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
  check_lost(options_of_loss(), {"all_reduce", "bucket 7", "without progress"}, body);
}

TEST_CASE(
    "NCCL: a rank that does not launch its graph is given up on at what others start behind it") {
  Options options = options_of_loss();
  options.grace_s = 1;
  auto const body = [](zero::Nccl<>& comm, auto const& lose) {
    cudaStream_t const stream = comm.space().stream();
    Sum sum(comm);
    sum.enqueue();
    Graph const graph(stream, cudaStreamCaptureModeThreadLocal, [&] { sum.enqueue(); });
    comm.space().zero(sum.to.data(), 1000 * sizeof(float));
    graph.launch();
    CHECK(sum.to.values() == std::vector<float>(1000, 2.f * static_cast<float>(comm.size())));
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
  check_lost(options_of_loss(), {"without progress"}, [&](zero::Nccl<>& comm, auto const& lose) {
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
  // A process dies once.
  if (!process().alone()) return check_lost_step<zero::stage::PosGP>(true);
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
                           what.find("made none") != std::string::npos ||
                           what.find("windows need NCCL") != std::string::npos;
      CHECK_MESSAGE((what.empty() || refused), what);
    }
  }
}

}  // namespace
}  // namespace nccl_test
