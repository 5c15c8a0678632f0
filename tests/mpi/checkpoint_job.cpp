/// A training job that saves all the time, to be killed; checkpoint_kill_test.py starts it again.
#include "checkpoint/trainer.hpp"
#include "support/standard.hpp"
#include "zero/checkpoint.hpp"
#include "zero/comm/mpi.hpp"

#include <mpi.h>
#include <unistd.h>

namespace {

/// The disk, until it is to be done with a manifest what `kill_at` says.
struct KillingFiles : zero::DiskFiles {
  std::string kill_at;

  explicit KillingFiles(std::string at) : kill_at(std::move(at)) {}

  void pass(char const* call, std::string const& path) const {
    if (kill_at == call && path.ends_with("manifest.json.tmp")) std::raise(SIGKILL);
  }
  zero::FileAnswer open(std::string const& path, zero::FileMode mode) override {
    if (mode == zero::FileMode::create) pass("create", path);
    return zero::DiskFiles::open(path, mode);
  }
  zero::FileAnswer rename(std::string const& from, std::string const& to) override {
    pass("rename", from);
    zero::FileAnswer const told = zero::DiskFiles::rename(from, to);
    if (kill_at == "renamed") pass("renamed", from);
    return told;
  }
};

using zero::Checkpoints;

void say(int rank, char const* what, long step) {
  if (rank == 0) std::printf("%s %ld\n", what, step);
  std::fflush(stdout);
}

/// @param mode  "save" or "save_async"
void train(std::string const& directory, std::string const& mode, std::string const& kill_at) {
  zero::Mpi<> comm(MPI_COMM_WORLD);
  checkpoint_tests::Trainer<zero::Mpi<>> trainer(comm);
  auto& optimizer = trainer.optimizer();
  std::size_t const bytes = 4 * trainer.contents().size();
  KillingFiles files(kill_at);
  Checkpoints checkpoints(
      directory, {.keep = 2, .snapshot_bytes = Checkpoints::plan(optimizer, bytes)}, files);
  long first = 0;
  if (auto const found = checkpoints.latest(optimizer)) {
    zero::LoadReport const report = checkpoints.load(optimizer, *found);
    // Each rank has saved what it had, apart from what the checkpoint has of it.
    std::vector<float> const here = trainer.contents();
    auto const* const blob = report.own_blob(comm.rank(), comm.size());
    bool const same = blob != nullptr && blob->bytes.size() == bytes && here.size() * 4 == bytes &&
                      std::memcmp(blob->bytes.data(), here.data(), bytes) == 0;
    if (!same || report.user != nlohmann::json{{"step", found->step}}) {
      throw std::runtime_error("another state is loaded");
    }
    first = found->step;
  }
  std::printf("process %d\n", static_cast<int>(::getpid()));
  say(comm.rank(), "resumed", first);
  for (int i = 0; i < 10'000; ++i) {
    trainer.step();
    std::vector<float> const contents = trainer.contents();
    zero::SaveOptions const options{.user = {{"step", optimizer.steps()}},
                                    .rank_blob = std::as_bytes(std::span(contents))};
    if (mode == "save") {
      say(comm.rank(), "saved", checkpoints.save(optimizer, options).step);
      continue;
    }
    checkpoints.save_async(optimizer, options);
    while (checkpoints.pending()) {
      trainer.step();
      if (auto const report = checkpoints.poll()) say(comm.rank(), "saved", report->step);
    }
  }
}

}  // namespace

/// Arguments: directory, save|save_async, create|rename|renamed|never.
int main(int argc, char** argv) {
  if (argc != 4) return 64;
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  try {
    train(argv[1], argv[2], argv[3]);
  } catch (std::exception const& error) {
    std::printf("failed: %s\n", error.what());
    std::fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 3);
  }
  MPI_Finalize();
}
