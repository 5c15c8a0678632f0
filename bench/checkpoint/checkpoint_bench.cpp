/// Checkpoints: what do saving and loading cost beside the bare writes and reads of as many bytes?
///
/// The raw baselines do what a checkpoint cannot do without: write all arrays to files, sync them,
/// give them their names and sync the directory; and read them back into memory that is there.
/// Both are done in turn, in one process, and the medians compared. `stall` holds the time that
/// `save_async` takes from a step beside one copy of the snapshot; `keep` that of a save that reads
/// back what it has written and removes an older one, beside one that does neither. Files are
/// written to the current directory, or to the one that ZERO_BENCH_DIRECTORY names.
#include "zero/checkpoint.hpp"
#include "zero/zero.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t units = 12;
constexpr std::size_t unit_elements = std::size_t{2621440};  // 378 MB with two states
constexpr int turns = 7;

using Optimizer = zero::ShardedOptimizer<zero::InProcess, zero::stage::PosG>;

std::vector<zero::Tensor> model() {
  std::vector<zero::Tensor> tensors;
  for (std::size_t u = 0; u < units; ++u) {
    tensors.push_back({.name = "w" + std::to_string(u),
                       .shape = {unit_elements / 1024, 1024},
                       .unit = static_cast<int>(u)});
  }
  return tensors;
}

std::string directory() {
  char const* const named = std::getenv("ZERO_BENCH_DIRECTORY");
  return std::string(named == nullptr ? "." : named) + "/checkpoint_bench_files";
}

template <class Work>
double seconds(Work&& work) {
  auto const start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + turns / 2, values.end());
  return values[turns / 2];
}

/// What a rank has to write, where it lies, without anything of this library.
struct Raw {
  std::vector<std::pair<std::byte*, std::size_t>> runs;
  std::string path;

  static constexpr std::size_t piece = std::size_t{1} << 20;

  void write(zero::FileOperations& files) const {
    auto const file = files.open(path + ".tmp", zero::FileMode::create);
    std::uint64_t at = 0;
    for (auto const& [memory, bytes] : runs) {
      for (std::size_t done = 0; done < bytes;) {
        auto const put =
            files.write(file, memory + done, (std::min)(piece, bytes - done), at + done);
        if (put <= 0) std::abort();
        done += static_cast<std::size_t>(put);
      }
      at += bytes;
    }
    bool const kept = files.sync(file) == 0 && files.close(file) == 0 &&
                      files.rename(path + ".tmp", path) == 0 &&
                      files.sync_directory(directory()) == 0;
    if (!kept) std::abort();
  }
  void read(zero::FileOperations& files) const {
    auto const file = files.open(path, zero::FileMode::read);
    std::uint64_t at = 0;
    for (auto const& [memory, bytes] : runs) {
      for (std::size_t done = 0; done < bytes;) {
        auto const got =
            files.read(file, memory + done, (std::min)(piece, bytes - done), at + done);
        if (got <= 0) std::abort();
        done += static_cast<std::size_t>(got);
      }
      at += bytes;
    }
    files.close(file);
  }
  void copy(std::byte* to) const {
    for (auto const& [memory, bytes] : runs) {
      std::memcpy(to, memory, bytes);
      to += bytes;
    }
  }
};

/// Everything in turn on so many ranks. The slowest rank counts, and waits for nobody else.
struct Times {
  std::vector<double> raw_write, save, save_all, raw_read, load, copy, stall;
  std::uint64_t bytes = 0;
};

Times measure(int ranks) {
  Times times;
  std::filesystem::create_directories(directory());
  auto const one = [&](std::vector<double>& all, zero::InProcess& comm, auto const& work) {
    auto const meet = [&] {
      std::int64_t word = 0;
      zero::run(comm,
                {.op = zero::Op::all_reduce,
                 .dtype = zero::DType::i64,
                 .accumulate = zero::DType::i64,
                 .count = 1,
                 .send = &word,
                 .recv = &word});
    };
    meet();
    double const took = seconds([&] {
      work();
      meet();
    });
    if (comm.rank() == 0) all.push_back(took);
  };
  zero::run_ranks(zero::InProcess::group(ranks, {.deadline_s = 600.}), [&](zero::InProcess& comm) {
    Optimizer optimizer{comm, model()};
    optimizer.load_parameters([](zero::Tensor const&, std::size_t first, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(first + i) * 1e-3f;
    });
    for (int const unit : optimizer.units_backward()) {
      auto gradients = optimizer.gradients(unit);
      for (float& value : gradients[0]) value = 0.25f;
      optimizer.reduce(std::move(gradients));
    }
    optimizer.step();
    zero::DiskFiles files;
    Raw raw{.runs = {}, .path = directory() + "/raw" + std::to_string(comm.rank())};
    std::uint64_t bytes = 0;
    optimizer.visit_owned([&](zero::Tensor const&, std::size_t, auto masters, auto const& states) {
      auto const add = [&](auto values) {
        auto* const memory = const_cast<float*>(values.data());
        raw.runs.emplace_back(reinterpret_cast<std::byte*>(memory), values.size_bytes());
        bytes += values.size_bytes();
      };
      add(masters);
      for (auto const& state : states) add(state);
    });
    zero::Checkpoints run{directory() + "/run",
                          {.keep = 1, .snapshot_bytes = zero::Checkpoints::plan(optimizer)}};
    zero::Checkpoints all{directory() + "/all"};
    std::vector<std::byte> copy(static_cast<std::size_t>(bytes));
    // The first turn warms up, and is not counted.
    Times cold;
    for (int turn = 0; turn <= turns; ++turn) {
      Times& to = turn == 0 ? cold : times;
      one(to.raw_write, comm, [&] { raw.write(files); });
      one(to.save, comm, [&] { run.save(optimizer); });
      // What is removed after a save is not to be in the way of the next.
      if (comm.rank() == 0) static_cast<void>(run.list());
      zero::SaveReport kept;
      one(to.save_all, comm, [&] { kept = all.save(optimizer); });
      if (comm.rank() == 0) std::filesystem::remove_all(kept.path);
      one(to.raw_read, comm, [&] { raw.read(files); });
      zero::FoundCheckpoint const found = *run.latest(optimizer);
      one(to.load, comm, [&] { run.load(optimizer, found); });
      one(to.copy, comm, [&] { raw.copy(copy.data()); });
      one(to.stall, comm, [&] { run.save_async(optimizer); });
      run.finish();
    }
    if (comm.rank() == 0) times.bytes = bytes * static_cast<std::uint64_t>(ranks);
  });
  std::filesystem::remove_all(directory());
  return times;
}

void checkpoint(benchmark::State& state) {
  auto const ranks = static_cast<int>(state.range(0));
  for (auto _ : state) {
    Times const times = measure(ranks);
    state.SetIterationTime(median(times.save));
    state.counters["save_vs_raw"] = median(times.raw_write) / median(times.save);
    state.counters["keep_over_all"] = median(times.save) / median(times.save_all);
    state.counters["load_vs_raw"] = median(times.raw_read) / median(times.load);
    state.counters["stall_over_copy"] = median(times.stall) / median(times.copy);
    state.counters["raw_write_ms"] = median(times.raw_write) * 1e3;
    state.counters["raw_read_ms"] = median(times.raw_read) * 1e3;
    state.counters["copy_ms"] = median(times.copy) * 1e3;
    state.counters["MB"] = static_cast<double>(times.bytes) * 1e-6;
  }
}
BENCHMARK(checkpoint)
    ->Name("checkpoint/fp32")
    ->ArgName("ranks")
    ->Arg(1)
    ->Arg(2)
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// Checksums beside a copy, of memory that no cache holds.
void checksums(benchmark::State& state) {
  std::size_t const bytes = std::size_t{256} << 20;
  std::vector<std::byte> from(bytes, std::byte{1});
  std::vector<std::byte> to(bytes);
  std::vector<double> hashed, copied;
  for (auto _ : state) {
    for (int turn = 0; turn < turns; ++turn) {
      hashed.push_back(seconds([&] {
        std::uint64_t sum = 0;
        for (std::size_t at = 0; at < bytes; at += zero::detail::piece_bytes) {
          sum += zero::checksum(from.data() + at, zero::detail::piece_bytes);
        }
        benchmark::DoNotOptimize(sum);
      }));
      copied.push_back(seconds([&] { std::memcpy(to.data(), from.data(), bytes); }));
      benchmark::DoNotOptimize(to.data());
    }
    state.SetIterationTime(median(hashed));
    state.counters["over_copy"] = median(hashed) / median(copied);
  }
}
BENCHMARK(checksums)
    ->Name("checksums")
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
