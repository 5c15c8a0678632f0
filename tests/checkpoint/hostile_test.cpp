#include "checkpoint/proof.hpp"
#include "contracts/heap.hpp"
#include "fuzz/input.hpp"
#include "zero/checkpoint/catalog.hpp"

#include <chrono>
#include <cstring>

// Files that mean harm: whatever stands in a manifest or a header, with checksums that fit, is
// taken or refused, reads and writes stay where they belong, and memory within a few times the
// files' bytes.
namespace hostile_test {
namespace {

namespace st = zero::safetensors;
using namespace checkpoint_tests;
using nlohmann::json;
using zero::detail::about_key;

std::string const path = "run/000001-step-0";

/// A checkpoint of two ranks, part by part.
struct Sample {
  std::array<st::Header, 2> headers{};
  std::array<std::string, 2> data{};
  zero::Manifest manifest{};
  std::vector<zero::SavedTensor> tensors{};

  Sample() {
    ModelFiles files;
    zero::run_ranks(2, [&](zero::InProcess& comm) {
      std::vector<zero::Tensor> const model{{.name = "w", .shape = {4, 6}},
                                            {.name = "part", .shape = {16}},
                                            {.name = "fixed", .shape = {5}, .frozen = true},
                                            {.name = "scale", .shape = {}},
                                            {.name = "tied", .shape = {4, 6}, .tied_to = "w"}};
      zero::ShardedOptimizer optimizer{comm, model, zero::stage::PosG{}};
      toy::load(optimizer);
      std::vector<std::byte> const blob(7 * static_cast<std::size_t>(comm.rank()));
      zero::SaveOptions options{.user = {{"epoch", 1}}, .rank_blob = blob};
      // The right half and the last row of the left one.
      options.parts = {{"part", {3, 8}, {{{0, 4}, {3, 4}}, {{2, 0}, {1, 4}}}}};
      zero::Checkpoints("run", {}, files).save(optimizer, options);
    });
    for (std::size_t rank = 0; rank < 2; ++rank) {
      reseal_header(files, path, rank, [](json& about, auto&) { about["piece_bytes"] = 64u; });
      std::string const name = path + "/" + rank_file(rank);
      std::tie(headers[rank], data[rank]) = parted(read_all(files, name));
    }
    tensors = zero::detail::parse_optimizer("it", about()["optimizer"]).tensors;
    manifest = zero::read_catalog(files, path).manifest;
  }
  /// What the first rank says about the optimizer.
  [[nodiscard]] json about() const { return json::parse(headers[0].metadata.at(about_key)); }
};

/// A text of the sample that can be changed.
enum class Part : int { about, header, body, manifest };

/// The sample with what `change(text)` makes of one of its texts.
struct Written {
  ModelFiles files{};
  std::uint64_t bytes = 0;

  /// @param rank  whose text, where each has one
  template <class Change>
  Written(Sample const& sample, Part part, std::size_t rank, Change const& change) {
    files.make_directory("run");
    files.make_directory(path);
    zero::Manifest manifest = sample.manifest;
    for (std::size_t r = 0; r < 2; ++r) {
      st::Header header = sample.headers[r];
      std::string& about = header.metadata[about_key];
      if (r == rank && part == Part::about) about = change(about);
      std::string text = st::format(header).substr(st::length_bytes);
      if (r == rank && part == Part::header) text = change(text);
      text = framed(text);
      zero::SavedFile& saved = manifest.files[r];
      saved.header_bytes = text.size();
      saved.header_sum = zero::checksum(text.data(), text.size());
      saved.bytes = text.size() + sample.data[r].size();
      add(saved.name, text + sample.data[r]);
    }
    std::string text = zero::detail::manifest_text(manifest);
    if (part == Part::body) text = sealed(change(unsealed(text)));
    if (part == Part::manifest) text = change(text);
    add("manifest.json", text);
  }
  void add(std::string const& name, std::string const& text) {
    write_all(files, path + "/" + name, text);
    bytes += text.size();
  }
};

/// Elements lie within their tensors and files, and no two at one place.
void check(zero::Catalog const& catalog) {
  for (auto const& [name, tensor] : catalog.tensors) {
    for (auto const& [array, saved] : tensor.arrays) {
      std::uint64_t end = 0;
      for (zero::SavedRun const& run : saved.runs) {
        REQUIRE(run.first >= end);
        end = run.first + run.count;
        REQUIRE(end >= run.first);
        REQUIRE(end <= zero::detail::volume(tensor.about.shape));
        zero::SavedFile const& file = catalog.manifest.files.at(run.file);
        REQUIRE(run.offset + run.count * zero::size_of(saved.dtype) <=
                file.bytes - file.header_bytes);
      }
    }
  }
}

/// Loads what a catalog has into memory of the sample's tensors.
/// @param direct  whether it is read there
void load(zero::Catalog const& catalog, Sample const& sample, bool direct, ModelFiles& files) {
  std::vector<float> memory(128);
  auto* const bytes = reinterpret_cast<std::byte*>(memory.data());
  std::vector<zero::detail::ArrayRun> runs;
  std::size_t used = 0;
  for (std::size_t t = 0; t < 4; ++t) {
    std::uint64_t elements = 0;
    for (zero::Box const& box : sample.tensors[t].boxes)
      elements += zero::detail::volume(box.extent);
    std::vector<std::string_view> arrays{zero::detail::master_array, "exp_avg", "exp_avg_sq"};
    if (sample.tensors[t].frozen) arrays = {zero::detail::parameter_array};
    for (std::string_view const array : arrays) {
      std::byte* const to = bytes + used * sizeof(float);
      runs.push_back({.tensor = t, .array = array, .count = elements, .values = {{to}}});
      used += elements;
    }
  }
  REQUIRE(used == memory.size());
  zero::LoadOptions const options{.strict = false};
  zero::detail::LoadPlanner planner(catalog, sample.tensors, options);
  static constexpr std::array<zero::ArrayForm, 3> forms{{{"master"}, {"exp_avg"}, {"exp_avg_sq"}}};
  zero::StorageTypes const types{.arrays = forms};
  auto plan = planner.plan([&](std::size_t) -> zero::StorageTypes const& { return types; });
  static_cast<void>(planner.differing(runs, files, [] {}));
  planner.place(runs, plan);
  auto const place = [&](zero::detail::HeldValues const& to, std::byte const* from, std::size_t n) {
    auto const at = static_cast<std::size_t>(to.array.first - bytes);
    REQUIRE(at + to.array.bytes(n) <= used * sizeof(float));
    zero::detail::copy_values(to, from, n);
  };
  zero::detail::stream(files, catalog, plan.wanted, place, direct, [] {});
}

struct Tally {
  std::size_t refused = 0;
  std::size_t taken = 0;
  double memory = 0;  ///< the most, over the bytes of the files
};

/// Reads all that can be read of it.
void read(Sample const& sample, Written& written, Tally& tally) {
  heap::reset_peak();
  std::int64_t const before = heap::mine().live_bytes;
  try {
    zero::Catalog const catalog = zero::read_catalog(written.files, path);
    check(catalog);
    load(catalog, sample, tally.taken % 2 == 0, written.files);
    ++tally.taken;
  } catch (zero::Error const& error) {
    bool const expected =
        error.kind() == zero::ErrorKind::data || error.kind() == zero::ErrorKind::resource;
    CHECK_MESSAGE(expected, error.message());
    ++tally.refused;
  }
  static_cast<void>(zero::verify_checkpoint(path, written.files));
  auto const used = static_cast<double>(heap::mine().peak_bytes - before);
  tally.memory = std::max(tally.memory, used / static_cast<double>(written.bytes));
}

TEST_CASE("what cannot be is refused, and the tensor is named") {
  Sample const sample;
  auto const same = [](std::string const& text) { return text; };
  Tally tally;
  Written sound(sample, Part::manifest, 0, same);
  read(sample, sound, tally);
  CHECK(tally.taken == 1);
  CHECK(zero::verify_checkpoint(path, sound.files).empty());

  auto const verdict = [](Written written) {
    return failure_of([&] { static_cast<void>(zero::read_catalog(written.files, path)); });
  };
  for (std::string const first : {"", "99999999999999999999999", "-1", "0x1", "+1", " 1", "1 "}) {
    CAPTURE(first);
    Sample named = sample;
    named.headers[0].entries[0].name = "w:master:" + first;
    CHECK(verdict({named, Part::manifest, 0, same}) ==
          "data: 'rank-00000.safetensors' of rank 0: 'w:master:" + first +
              "' is no run of a tensor");
  }
  auto const described = [&](auto const& change) {
    return verdict({sample, Part::about, 0, [&](std::string const& text) {
                      json about = json::parse(text);
                      change(about["optimizer"]["tensors"]);
                      return about.dump();
                    }});
  };
  CHECK(described([](json&) {}) == "");
  CHECK(described([](json& tensors) { tensors.push_back(json(tensors[0])); }) ==
        "data: 'rank-00000.safetensors': tensor 'w' is described twice");
  CHECK(described([](json& tensors) {
          std::uint64_t const huge = std::uint64_t{1} << 62;
          tensors[0]["shape"] = {huge};
          json const box{{"offset", {0}}, {"extent", {huge}}};
          tensors[0]["boxes"] = json::array({box, box, box, box, box});
        }) ==
        "data: 'rank-00000.safetensors': tensor 'w' has boxes of more elements than can be "
        "counted");
}

TEST_CASE("texts that are made to need memory need no more than a few times their bytes") {
  Sample const sample;
  for (std::string const one :
       {"[]", "{}", R"("")", "1", "[[]]", R"({"a":[]})", R"({"":{"":0}})"}) {
    CAPTURE(one);
    std::string many = R"({"x":[)" + one;
    for (int i = 0; i < (toy::sanitized ? 10'000 : 50'000); ++i) many += "," + one;
    Tally tally;
    auto const begin = std::chrono::steady_clock::now();
    for (Part const part : {Part::about, Part::body}) {
      Written written(
          sample, part, 0, [&](std::string const& text) { return many + "]," + text.substr(1); });
      read(sample, written, tally);
    }
    CHECK(tally.taken == 2);
    // Nor more than linear time.
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));
    CHECK_MESSAGE(tally.memory < 64, tally.memory);
  }
  Tally tally;
  for (Part const part : {Part::about, Part::body}) {
    Written written(sample, part, 0, [](auto const&) { return std::string(1'000'000, '['); });
    read(sample, written, tally);
  }
  CHECK(tally.refused == 2);
  CHECK_MESSAGE(tally.memory < 64, tally.memory);
}

TEST_CASE("mutated headers and manifests: no crash, no place but their own, no memory but theirs") {
  Sample const sample;
  std::mt19937_64 random(20261122);
  std::array<Tally, 4> tallies{};
  std::size_t const count = runs(5'000);
  for (std::size_t i = 0; i < count; ++i) {
    auto const bytes = fuzz::random_bytes(random);
    fuzz::Input input(bytes.data(), bytes.size());
    auto const part = static_cast<Part>(i % 4);
    bool const structured = part != Part::manifest && input.below(4) != 0;
    try {
      Written written(sample, part, input.below(2), [&](std::string const& text) {
        if (!structured) return fuzz::changed_letters(text, input);
        json value = json::parse(text);
        for (std::size_t times = 1 + input.below(3); times > 0; --times) fuzz::change(value, input);
        return fuzz::text_of(value);
      });
      read(sample, written, tallies[i % 4]);
    } catch (zero::Error const& error) {
      // A file cannot be made of this text.
      REQUIRE(error.kind() == zero::ErrorKind::invalid_argument);
    }
  }
  for (Tally const& tally : tallies) {
    MESSAGE("taken ", tally.taken, ", refused ", tally.refused, ", memory ", tally.memory);
    CHECK(tally.refused > count / 8);
    CHECK(tally.memory < 40);
  }
  // Some changes are harmless, and what comes behind the first check is reached.
  CHECK(tallies[0].taken > 0);
  CHECK(tallies[2].taken > 0);
}

}  // namespace
}  // namespace hostile_test
