// Frozen tensors in checkpoints and model files: each element once, from whatever rank has it, and
// back under any stage on any number of ranks.
#include "checkpoint/proof.hpp"
#include "support/frozen_model.hpp"

namespace frozen_checkpoint_test {
namespace {

using namespace checkpoint_tests;
using zero::Checkpoints;
using zero::InProcess;
using namespace zero::stage;
using Bf16 = zero::Mixed<zero::bf16>;
template <class Stage>
using Optimizer = zero::ShardedOptimizer<InProcess, Stage, Bf16, zero::PlainSgd>;

constexpr zero::PlainSgd rule{.lr = 1.f};

/// Calls `body(optimizer)` on so many ranks.
template <class Stage, class Body>
void run(int ranks, std::vector<zero::Tensor> const& tensors, Body const& body) {
  zero::run_ranks(ranks, [&](InProcess& comm) {
    Optimizer<Stage> optimizer{comm, tensors, rule, zero::Bucket{1}};
    body(optimizer);
  });
}

/// Has every rank the values after a step, and in this run no others?
template <class O>
void check(O& optimizer) {
  auto const all = optimizer.full_parameters();
  for (zero::Tensor const& tensor : optimizer.tensors()) {
    CAPTURE(tensor.name);
    using Parameter = typename O::Parameter;
    CHECK(frozen_model::right(tensor, std::span<Parameter const>(all[tensor.name]), 1));
  }
}

/// Saves and exports after a step. Masters are there once, and so is what is frozen.
template <class Stage>
void save(std::string const& path, int ranks, std::vector<zero::Tensor> const& tensors) {
  run<Stage>(ranks, tensors, [&](auto& optimizer) {
    optimizer.load_parameters(frozen_model::fill);
    frozen_model::pass(
        optimizer, 0, [](bool holds, std::string const& what) { CHECK_MESSAGE(holds, what); });
    optimizer.step();
    Checkpoints{path}.save(optimizer);
    zero::export_model(optimizer, path + "/model.safetensors");
  });
  auto const found = Checkpoints{path}.latest();
  REQUIRE(found.has_value());
  CHECK(zero::verify_checkpoint(found->path).empty());
  zero::DiskFiles files;
  std::uint64_t data = 0;
  for (auto const& file : zero::read_catalog(files, found->path).manifest.files) {
    data += file.bytes - file.header_bytes;
  }
  std::uint64_t bytes = 0;
  for (zero::Tensor const& tensor : tensors) {
    if (tensor.tied_to.empty()) bytes += zero::element_count(tensor) * (tensor.frozen ? 2 : 4);
  }
  CHECK(data == bytes);
}

template <class Stage>
void load(std::string const& path, int ranks, std::vector<zero::Tensor> const& tensors) {
  CAPTURE(Stage::name);
  CAPTURE(ranks);
  run<Stage>(ranks, tensors, [&](auto& optimizer) {
    Checkpoints run{path};
    auto const found = run.latest(optimizer);
    REQUIRE(found.has_value());
    run.load(optimizer, *found);
    CHECK(optimizer.steps() == 1);
    check(optimizer);
    // All ranks have the same.
    optimizer.check_parameters();
  });
  run<Stage>(ranks, tensors, [&](auto& optimizer) {
    load_parameters_from(optimizer, path + "/model.safetensors");
    check(optimizer);
    optimizer.check_parameters();
  });
}

template <class Stage>
void resume_everywhere(int ranks, std::vector<zero::Tensor> const& tensors) {
  INFO("saved under " << Stage::name << " on " << ranks << " ranks");
  TemporaryDirectory const directory;
  save<Stage>(directory.path(), ranks, tensors);
  load<Replicated>(directory.path(), 2, tensors);
  load<Pos>(directory.path(), 3, tensors);
  load<PosG>(directory.path(), 5, tensors);
  for (int const others : {1, 2, 3, 5}) load<PosGP>(directory.path(), others, tensors);
}

TEST_CASE("what is frozen goes on under other stages, on other numbers of ranks") {
  auto const tensors = frozen_model::tensors();
  resume_everywhere<PosGP>(1, tensors);
  resume_everywhere<PosGP>(3, tensors);
  resume_everywhere<Pos>(2, tensors);
  resume_everywhere<Replicated>(5, tensors);
  // Nothing but what is frozen.
  resume_everywhere<PosGP>(2, frozen_model::frozen_tensors());
}

TEST_CASE("whether a frozen tensor is whole is a choice of the run, and not of its checkpoints") {
  TemporaryDirectory const directory;
  auto tensors = frozen_model::tensors();
  save<PosGP>(directory.path(), 3, tensors);
  for (zero::Tensor& tensor : tensors) tensor.whole = tensor.frozen && !tensor.whole;
  load<PosGP>(directory.path(), 2, tensors);
  load<Pos>(directory.path(), 3, tensors);
}

}  // namespace
}  // namespace frozen_checkpoint_test
