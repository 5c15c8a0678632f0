#include "checkpoint/proof.hpp"
#include "contracts/heap.hpp"
#include "zero/checkpoint/loading.hpp"
#include "zero/checkpoint/offline.hpp"

// What a checkpoint from elsewhere can cost its readers: memory and time in proportion to its
// bytes.
namespace bounds_test {
namespace {

using namespace checkpoint_tests;
using Entries = std::vector<std::pair<std::string, std::uint64_t>>;
using Tensors = std::vector<zero::SavedTensor>;

/// A checkpoint of one rank with a description and entries of its own, of two bytes an element.
ModelFiles crafted(Tensors const& tensors, Entries const& entries) {
  zero::safetensors::Header header;
  std::uint64_t count = 0;
  for (auto const& [name, elements] : entries) {
    header.entries.push_back({.name = name, .dtype = "BF16", .shape = {elements}});
    count += elements;
  }
  std::string const data(2 * count, '\1');
  nlohmann::json const about = {
      {"piece_bytes", zero::detail::piece_bytes},
      {"optimizer", zero::detail::json_of(zero::SavedOptimizer{.tensors = tensors})}};
  header.metadata[zero::detail::about_key] = about.dump();
  header.metadata[zero::detail::sums_key] = sums_of(data, zero::detail::piece_bytes);
  std::string const text = zero::safetensors::format(header);
  ModelFiles files;
  files.make_directory("run");
  write_all(files, "run/rank-00000.safetensors", text + data);
  zero::Manifest manifest{.step = 0};
  manifest.files = {{.name = "rank-00000.safetensors",
                     .bytes = text.size() + data.size(),
                     .header_bytes = text.size(),
                     .header_sum = zero::checksum(text.data(), text.size())}};
  write_all(files, "run/manifest.json", zero::detail::manifest_text(manifest));
  return files;
}

/// What an export says; empty if it succeeds.
std::string exported(ModelFiles& files) {
  return failure_of([&] { zero::export_checkpoint("run", "run/model.safetensors", {}, files); });
}

/// Arrays of each tensor here, of which none are states.
zero::StorageTypes const& no_states(std::size_t /*tensor*/) {
  static zero::StorageTypes const types;
  return types;
}

/// The most memory that some work needs.
template <class Work>
double memory_of(Work const& work) {
  heap::reset_peak();
  std::int64_t const before = heap::mine().live_bytes;
  work();
  return static_cast<double>(heap::mine().peak_bytes - before);
}

/// The same, over the bytes of a crafted checkpoint.
template <class Work>
void check_memory(ModelFiles& files, double most, Work const& work) {
  std::size_t const bytes = read_all(files, "run/rank-00000.safetensors").size() +
                            read_all(files, "run/manifest.json").size();
  double const times = memory_of(work) / static_cast<double>(bytes);
  MESSAGE("memory of ", times, " times the files' bytes");
  CHECK(times < most);
}

TEST_CASE("ties lead to tensors before, and following all of them takes no longer than reading") {
  // Followed one by one, so many would take minutes.
  constexpr std::size_t count = 25'000;
  Tensors tensors;
  for (std::size_t i = 0; i < count; ++i) {
    tensors.push_back({.name = "t" + std::to_string(i),
                       .shape = {1},
                       .boxes = {{{0}, {1}}},
                       .tied_to = i == 0 ? "" : "t" + std::to_string(i - 1)});
  }
  ModelFiles chain = crafted(tensors, {{"t0:master:0", 1}});
  CHECK(zero::verify_checkpoint("run", chain).empty());
  CHECK(exported(chain) == "");
  check_says(read_all(chain, "run/model.safetensors"), R"("t24999":"t0")");
  // Each tensor of an optimizer asks where its elements are.
  zero::Catalog const catalog = zero::read_catalog(chain, "run");
  zero::LoadOptions const options{.parameters_only = true};
  zero::detail::LoadPlanner planner(catalog, tensors, options);
  auto const plan = planner.plan(no_states);
  CHECK(plan.missing.empty());
  CHECK(std::count(plan.values.begin(), plan.values.end(), true) == count);

  for (std::string const other : {"t24999", "t0"}) {
    tensors[0].tied_to = other;
    ModelFiles circle = crafted(tensors, {});
    CHECK(exported(circle) == "data: 'rank-00000.safetensors': tensor 't0' is tied to '" + other +
                                  "', which is not described before it");
    CHECK(zero::verify_checkpoint("run", circle).size() == 1);
  }

  // A long name, to which many are tied, is not written as often.
  tensors.resize(3000);
  tensors[0] = {.name = std::string(100'000, 'n'), .shape = {0}, .boxes = {{{0}, {0}}}};
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    tensors[i].tied_to = i == 1 ? tensors[0].name : tensors[i - 1].name;
  }
  ModelFiles named = crafted(tensors, {});
  double const memory = memory_of([&] {
    CHECK(exported(named) == "data: 'run' has more ties than the header of a file can hold");
  });
  CHECK(memory < 150e6);
}

TEST_CASE("where entries lie in many boxes of many axes is found without looking at all of them") {
  // Entries times boxes times axes would be some 2e10.
  constexpr std::size_t arrays = 100'000;
  constexpr std::size_t boxes = zero::detail::most_boxes;
  zero::SavedTensor tensor{.name = "w", .shape = std::vector<std::uint64_t>(63, 1)};
  tensor.shape.push_back(boxes);
  for (std::size_t b = 0; b < boxes; ++b) {
    zero::Box box{std::vector<std::uint64_t>(64, 0), std::vector<std::uint64_t>(64, 1)};
    box.offset.back() = boxes - 1 - b;
    // Between the first two and the last two are boxes without elements.
    if (b >= 2 && b + 2 < boxes) box.extent.front() = 0;
    tensor.boxes.push_back(std::move(box));
  }
  Entries entries;
  for (std::size_t a = 0; a < arrays; ++a) entries.emplace_back("w:" + std::to_string(a) + ":1", 2);
  ModelFiles files = crafted({tensor}, entries);
  zero::Catalog const catalog = zero::read_catalog(files, "run");
  auto const& runs = catalog.tensors.at("w").arrays.at("77").runs;
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].first == 1);
  CHECK(runs[1].first == boxes - 2);
  CHECK(runs[0].offset == runs[1].offset + 2);

  tensor.shape.push_back(1);
  tensor.boxes.clear();
  ModelFiles more = crafted({tensor}, {});
  REQUIRE(zero::verify_checkpoint("run", more).size() == 1);
  CHECK(zero::verify_checkpoint("run", more)[0].ends_with("tensor 'w' has more than 64 axes"));
}

TEST_CASE("descriptions of many boxes need memory in proportion to their text") {
  Tensors tensors(50);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    tensors[t] = {.name = std::to_string(t), .shape = {1}};
    tensors[t].boxes.assign(zero::detail::most_boxes, {{0}, {1}});
  }
  ModelFiles files = crafted(tensors, {});
  check_memory(files, 64, [&] { CHECK(zero::verify_checkpoint("run", files).empty()); });
}

TEST_CASE("a tensor that is cut into single elements needs memory in proportion to its file") {
  // As many as make the lists of runs grow last.
  std::uint64_t const rows = (std::uint64_t{1} << 19) + 1;
  zero::SavedTensor const tensor{.name = "w", .shape = {rows, 2}, .boxes = {{{0, 1}, {rows, 1}}}};
  ModelFiles files = crafted({tensor}, {{"w:master:0", rows}});
  check_memory(files, 128, [&] {
    zero::Catalog const catalog = zero::read_catalog(files, "run");
    zero::LoadOptions const options{.parameters_only = true};
    Tensors const here{tensor};
    std::vector<std::byte> memory(rows * sizeof(float));
    zero::detail::LoadPlanner planner(catalog, here, options);
    auto plan = planner.plan(no_states);
    planner.place({{.tensor = 0, .array = "master", .count = rows, .values = {{memory.data()}}}},
                  plan);
    CHECK(plan.wanted.size() == rows);
  });
}

/// So many tensors whose names have that many letters.
std::vector<zero::Tensor> long_names(std::size_t count, std::size_t letters) {
  std::vector<zero::Tensor> tensors;
  for (std::size_t t = 0; t < count; ++t) {
    tensors.push_back({.name = std::string(letters, 'n') + std::to_string(t), .shape = {2}});
  }
  return tensors;
}

/// The end of what readers say of a text that is too long.
constexpr char const* too_long = "no reader takes more than 100000000";

TEST_CASE("a rank's file that no reader would take is refused before a byte is written [full]") {
  // Masters and two states; the description as well.
  auto const many = long_names(8, 4'200'000);
  ModelFiles files;
  std::string const said = failure_of([&] {
    zero::Self comm;
    zero::ShardedOptimizer optimizer{comm, many};
    toy::load(optimizer);
    zero::Checkpoints("run", {}, files).save(optimizer);
  });
  CHECK(said.starts_with("invalid argument: on rank 0: "));
  check_says(said, too_long);
  CHECK(files.changes() == 0);
}

TEST_CASE("a header that a later save would make too long is refused at the first [full]") {
  nlohmann::json const about{{"text", std::string(99'000'000, 'n')}};
  check_says(
      failure_of([&] {
        static_cast<void>(zero::detail::header_of({}, std::vector<zero::Tensor>(1000), 0, about));
      }),
      too_long);
}

TEST_CASE("a model file that no reader would take is refused before a byte is written [full]") {
  auto const many = long_names(8, 13'000'000);
  ModelFiles files;
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm, many};
  toy::load(optimizer);
  auto const exported = [&](std::uint64_t most) {
    return failure_of([&] { zero::export_model(optimizer, "m", {.max_file_bytes = most}, files); });
  };
  check_says(exported(1000), too_long);
  // Each file could be read, and their index could not.
  std::string const said = exported(1);
  check_says(said, "invalid argument: ");
  check_says(said, "the index of a model's files would have ");
  CHECK(files.changes() == 0);
}

TEST_CASE("a manifest, and what else no reader would take, is refused before a byte is written") {
  zero::Manifest manifest{.user = {{"text", std::string(1000, 'n')}}};
  CHECK(zero::detail::manifest_text(manifest, 2000).size() < 2000);
  check_says(failure_of([&] { static_cast<void>(zero::detail::manifest_text(manifest, 1000)); }),
             "and no more than 1000 are read");

  ModelFiles files;
  auto const saved = [&](zero::Tensor tensor, nlohmann::json user) {
    return failure_of([&] {
      zero::Self comm;
      zero::ShardedOptimizer optimizer{comm, {std::move(tensor)}};
      toy::load(optimizer);
      zero::Checkpoints("run", {}, files).save(optimizer, {.user = std::move(user)});
    });
  };
  check_says(saved({.name = "w", .shape = std::vector<std::size_t>(65, 1)}, {}),
             "tensor 'w' has more than 64 axes");
  check_says(saved({.name = "w", .shape = {1}}, {{"text", "\xff"}}),
             "the user's JSON cannot be written");
  // Of another rank, too: the first one has not begun when it is found.
  for (std::string const& each : failures(2, [&](zero::InProcess& world) {
         zero::InProcess comm = world.split(world.rank(), 0);
         std::vector<std::size_t> const shape(world.rank() == 1 ? 65 : 1, 1);
         zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = shape}}};
         toy::load(optimizer);
         zero::Checkpoints("run", {}, files).save(optimizer, {}, world);
       })) {
    CHECK(each == "invalid argument: on rank 1: tensor 'w' has more than 64 axes");
  }
  CHECK(files.changes() == 0);
  CHECK(saved({.name = "w", .shape = std::vector<std::size_t>(64, 1)}, {}) == "");
  CHECK(zero::verify_checkpoint("run/000001-step-0", files).empty());
}

}  // namespace
}  // namespace bounds_test
