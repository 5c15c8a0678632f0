// Double precision in checkpoints and in model files.
#include "checkpoint/temporary_directory.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/checkpoint.hpp"
#include "zero/checkpoint/export.hpp"
#include "zero/checkpoint/import.hpp"
#include "zero/checkpoint/offline.hpp"
#include "zero/zero.hpp"

namespace double_checkpoint_test {
namespace {

using checkpoint_tests::TemporaryDirectory;
using zero::Fp64;
using zero::InProcess;
using namespace zero::stage;
constexpr std::size_t batches = 6;

template <class Stage, class Precision = Fp64>
using Optimizer = zero::ShardedOptimizer<InProcess, Stage, Precision>;

std::vector<zero::Tensor> model() {
  return {{.name = "a", .shape = {41, 17}}, {.name = "b", .shape = {1200}, .unit = 1}};
}

/// Values with more digits than a float has.
template <class O>
void load(O& optimizer) {
  optimizer.load_parameters([](zero::Tensor const& tensor, std::size_t first, auto out) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      double const x = 1. / static_cast<double>(3 + first + i + tensor.name.size());
      out[i] = static_cast<std::remove_reference_t<decltype(out[i])>>(x);
    }
  });
}

/// Steps [first, last) of gradients whose sums are exact; a rank has its part of the batches.
template <class O>
void train(O& optimizer, InProcess& comm, std::size_t first, std::size_t last) {
  auto const ranks = static_cast<std::size_t>(comm.size());
  auto const rank = static_cast<std::size_t>(comm.rank());
  for (std::size_t step = first; step < last; ++step) {
    optimizer.micro_step({.weight = static_cast<double>(batches / ranks), .last = true});
    for (int const unit : optimizer.units_backward()) {
      auto gradients = optimizer.gradients(unit);
      for (std::size_t i = 0; i < gradients[0].size(); ++i) {
        for (std::size_t batch = rank; batch < batches; batch += ranks) {
          auto const x = static_cast<double>((i * 7919 + batch * 104729 + step * 31) % 1009);
          gradients[0][i] += x * 0x1p-30 + (x - 504.) * 0x1p-8;
        }
      }
      optimizer.reduce(std::move(gradients));
    }
    (void)optimizer.step({.max_norm = 5.});
  }
}

template <class O>
std::vector<double> values(O& optimizer) {
  std::vector<double> result;
  auto const all = optimizer.full_parameters();
  for (std::size_t t = 0; t < 2; ++t) result.insert(result.end(), all[t].begin(), all[t].end());
  return result;
}

TEST_CASE("a run in fp64 goes on from a checkpoint to the same bits, on other ranks and stages") {
  TemporaryDirectory const directory;
  std::vector<double> expected;
  zero::run_ranks(3, [&](InProcess& comm) {
    Optimizer<PosGP> optimizer{comm, model()};
    load(optimizer);
    train(optimizer, comm, 0, 4);
    zero::Checkpoints{directory.path()}.save(optimizer);
    train(optimizer, comm, 4, 9);
    auto const all = values(optimizer);
    if (comm.rank() == 0) expected = all;
  });
  zero::run_ranks(2, [&](InProcess& comm) {
    Optimizer<Pos> optimizer{comm, model(), zero::Bucket{1}};
    auto const report = zero::Checkpoints{directory.path()}.resume(optimizer).value();
    bool const same_options = report.differing.empty();
    train(optimizer, comm, 4, 9);
    bool const equal = values(optimizer) == expected;
    if (comm.rank() == 0) CHECK((equal && same_options));
  });
}

TEST_CASE("model files of doubles are read in double, and those of floats are") {
  TemporaryDirectory const directory;
  std::string const wide = directory.path() + "/wide.safetensors";
  std::string const single = directory.path() + "/single.safetensors";
  zero::run_ranks(2, [&](InProcess& comm) {
    Optimizer<PosGP> optimizer{comm, model()};
    load(optimizer);
    auto const before = values(optimizer);
    zero::export_model(optimizer, wide);
    Optimizer<PosG, zero::Fp32> narrow{comm, model()};
    load(narrow);
    zero::export_model(narrow, single);

    Optimizer<PosG> again{comm, model()};
    zero::load_parameters_from(again, wide);
    bool const equal = values(again) == before;
    zero::load_parameters_from(again, single);
    auto const rounded = values(again);
    bool near = true;
    for (std::size_t i = 0; i < before.size(); ++i) {
      near = near && rounded[i] == static_cast<double>(static_cast<float>(before[i]));
    }
    std::string const told = message_of([&] { zero::load_parameters_from(narrow, wide); });
    if (comm.rank() != 0) return;
    CHECK(equal);
    CHECK(near);
    CHECK(told.find("'a' is F64 in the file, and none of F32, F16 and BF16") != std::string::npos);
  });
}

/// What `Precision` loads of doubles that lie just above halfway between 1 and the next number of
/// bf16, and of fp16. Floats between would be halfway, and rounded to 1.
template <class Precision>
std::vector<float> loaded_as(std::string const& directory) {
  zero::Self comm;
  zero::ShardedOptimizer<zero::Self, Pos, Precision> optimizer{
      comm, {{.name = "w", .shape = {2}}, {.name = "f", .shape = {2}, .frozen = true}}};
  zero::Checkpoints run{directory};
  if constexpr (std::is_same_v<Precision, Fp64>) {
    optimizer.load_parameters([](zero::Tensor const&, std::size_t first, auto out) {
      double const values[] = {1. + 0x1p-8 + 0x1p-40, 1. + 0x1p-11 + 0x1p-40};
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = values[first + i];
    });
    run.save(optimizer);
  }
  run.load(optimizer, run.latest(optimizer).value());
  auto const all = optimizer.full_parameters();
  return {static_cast<float>(all[1][0]), static_cast<float>(all[1][1])};
}

TEST_CASE("doubles of a checkpoint are rounded once") {
  using Pair = std::vector<float>;
  TemporaryDirectory const directory;
  std::string const& path = directory.path();
  CHECK(loaded_as<Fp64>(path) == Pair{1.f + 0x1p-8f, 1.f + 0x1p-11f});
  CHECK(loaded_as<zero::Mixed<zero::bf16>>(path) == Pair{1.f + 0x1p-7f, 1.f});
  CHECK(loaded_as<zero::Mixed<zero::fp16>>(path) == Pair{1.f + 0x1p-8f, 1.f + 0x1p-10f});
  // And by a tool.
  zero::DiskFiles files;
  zero::Catalog const catalog = zero::read_catalog(files, path + "/000001-step-0");
  zero::bf16 read[2];
  zero::CheckpointReader(files, catalog)
      .read(catalog.tensors.at("w").arrays.at("master"),
            0,
            2,
            zero::DType::bf16,
            reinterpret_cast<std::byte*>(read));
  CHECK(static_cast<float>(read[0]) == 1.f + 0x1p-7f);
  CHECK(static_cast<float>(read[1]) == 1.f);
}

}  // namespace
}  // namespace double_checkpoint_test
