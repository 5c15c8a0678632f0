// Tensors of several types in checkpoints and model files: each in its own, bytes as they are, and
// back under any stage on any number of ranks.
#include "checkpoint/proof.hpp"
#include "support/kinds_model.hpp"
#include "support/refusal.hpp"

namespace kinds_checkpoint_test {
namespace {

using namespace checkpoint_tests;
using namespace kinds_model;
using namespace zero::stage;
using zero::Checkpoints;
using zero::InProcess;
template <class Stage>
using Optimizer = zero::ShardedOptimizer<InProcess, Stage, Both>;

/// Calls `body(optimizer)` on so many ranks.
template <class Stage, class Body>
void run(int ranks, Body const& body, std::vector<Tensor> const& tensors = model()) {
  zero::run_ranks(ranks, [&](InProcess& comm) {
    Optimizer<Stage> optimizer{comm, tensors, zero::Bucket{1}};
    body(optimizer, comm.rank());
  });
}
template <class O>
void train(O& optimizer, int rank, long step) {
  pass(optimizer, step, rank, type_of, [](bool holds, std::string const& what) {
    CHECK_MESSAGE(holds, what);
  });
  optimizer.step();
}

}  // namespace

TEST_CASE("tensors of several types are saved as they are, and go on anywhere") {
  TemporaryDirectory const directory;
  std::string const file = directory.path() + "/model.safetensors";
  std::vector<std::byte> saved;
  run<PosGP>(3, [&](auto& optimizer, int rank) {
    optimizer.load_parameters(fill);
    optimizer.load_bytes(fill_bytes);
    train(optimizer, rank, 0);
    Checkpoints{directory.path()}.save(optimizer);
    zero::export_model(optimizer, file);
    auto const own = bits(optimizer);
    if (rank == 0) saved = own;
  });
  zero::DiskFiles files;
  std::map<std::string, std::string> types;
  for (auto const& tensor : zero::detail::open_model(files, file).tensors) {
    types[tensor.entry.name] = tensor.entry.dtype;
  }
  CHECK(types["wte"] == "BF16");
  CHECK(types["ln0"] == "F32");
  CHECK(types["codes"] == "U8");
  CHECK(types["scales"] == "F32");
  CHECK(types["old"] == "BF16");
  auto const back = [&]<class Stage>(Stage, int ranks) {
    CAPTURE(ranks);
    run<Stage>(ranks, [&](auto& optimizer, int) {
      Checkpoints run{directory.path()};
      auto const found = run.latest(optimizer);
      REQUIRE(found.has_value());
      run.load(optimizer, *found);
      CHECK(bits(optimizer) == saved);
      optimizer.check_parameters();
    });
    run<Stage>(ranks, [&](auto& optimizer, int) {
      load_parameters_from(optimizer, file);
      CHECK(bits(optimizer) == saved);
      optimizer.check_parameters();
    });
  };
  back(Replicated{}, 2);
  back(Pos{}, 3);
  back(PosG{}, 1);
  back(PosGP{}, 2);
  back(PosGP{}, 5);
}

TEST_CASE("a tensor that names the type it has anyway is saved as one that names none") {
  auto const saved = [](std::optional<DType> type) {
    TemporaryDirectory const directory;
    std::vector<Tensor> const tensors{{.name = "w", .shape = {5}, .dtype = type},
                                      {.name = "n", .shape = {5}, .dtype = DType::f32}};
    run<PosG>(
        2,
        [&](auto& optimizer, int) {
          optimizer.adopt_parameters();
          Checkpoints{directory.path()}.save(optimizer);
        },
        tensors);
    std::map<std::string, std::string> files;
    for (auto const& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
      if (!entry.is_regular_file()) continue;
      std::string const name = std::filesystem::relative(entry.path(), directory.path()).string();
      files[name] = slurp(entry.path().string());
    }
    return files;
  };
  auto const files = saved(std::nullopt);
  CHECK(files.size() > 2);
  CHECK(saved(DType::bf16) == files);
}

TEST_CASE("bytes are loaded as bytes of the same type, or not at all") {
  TemporaryDirectory const directory;
  std::string const file = directory.path() + "/model.safetensors";
  std::vector<Tensor> tensors{{.name = "w", .shape = {5}},
                              {.name = "base", .shape = {5}, .dtype = DType::u8, .frozen = true}};
  run<PosG>(
      1,
      [&](auto& optimizer, int) {
        optimizer.adopt_parameters();
        Checkpoints{directory.path()}.save(optimizer);
        zero::export_model(optimizer, file);
      },
      tensors);
  auto const refused = [&](DType type, auto const& load) {
    std::string said;
    tensors[1].dtype = type;
    run<PosG>(
        1,
        [&](auto& optimizer, int) {
          said = refusal([&] { load(optimizer); }, zero::ErrorKind::data);
        },
        tensors);
    return said;
  };
  auto const checkpoint = [&](auto& optimizer) {
    Checkpoints run{directory.path()};
    run.load(optimizer, *run.latest(optimizer));
  };
  auto const model_file = [&](auto& optimizer) { load_parameters_from(optimizer, file); };
  CHECK(refused(DType::f32, checkpoint).find("'base' has numbers here and uint8") !=
        std::string::npos);
  CHECK(refused(DType::i32, checkpoint).find("'base' has int32 here and uint8") !=
        std::string::npos);
  CHECK(refused(DType::f32, model_file).find("'base' is U8 in the file, and none of F32") !=
        std::string::npos);
  CHECK(refused(DType::i32, model_file).find("'base' is U8 in the file, and int32 here") !=
        std::string::npos);
  CHECK(refused(DType::u8, checkpoint) == "");
  CHECK(refused(DType::u8, model_file) == "");
}

TEST_CASE("bytes are called in files as the trainer says, and loaded as those") {
  TemporaryDirectory const directory;
  std::string const file = directory.path() + "/model.safetensors";
  std::vector<Tensor> tensors{
      {.name = "w", .shape = {5}},
      {.name = "base", .shape = {5}, .dtype = DType::u8, .file_dtype = "F8_E4M3", .frozen = true}};
  run<PosG>(
      1,
      [&](auto& optimizer, int) {
        optimizer.adopt_parameters();
        Checkpoints{directory.path()}.save(optimizer);
        zero::export_model(optimizer, file);
      },
      tensors);
  zero::DiskFiles files;
  for (auto const& tensor : zero::detail::open_model(files, file).tensors) {
    if (tensor.entry.name == "base") CHECK(tensor.entry.dtype == "F8_E4M3");
  }
  auto const refused = [&](zero::FileDType type, bool whole) {
    std::string said;
    tensors[1].file_dtype = type;
    run<PosG>(
        1,
        [&](auto& optimizer, int) {
          said = refusal(
              [&] {
                Checkpoints run{directory.path()};
                whole ? static_cast<void>(run.load(optimizer, *run.latest(optimizer)))
                      : static_cast<void>(load_parameters_from(optimizer, file));
              },
              zero::ErrorKind::data);
        },
        tensors);
    return said;
  };
  for (bool const whole : {false, true}) {
    CHECK(refused("F8_E4M3", whole) == "");
    CHECK(refused({}, whole) == "");
  }
  CHECK(refused("I8", true).find("'base' is of I8 here and of F8_E4M3") != std::string::npos);
  CHECK(refused("I8", false).find("'base' is F8_E4M3 in the file, and I8 here") !=
        std::string::npos);
}

}  // namespace kinds_checkpoint_test
