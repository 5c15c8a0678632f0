#include "checkpoint/model_files.hpp"
#include "checkpoint/runs.hpp"
#include "contracts/heap.hpp"
#include "zero/checkpoint/catalog.hpp"
#include "zero/checkpoint/loading.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/rank_file.hpp"
#include "zero/checkpoint/safetensors.hpp"
#include "zero/checkpoint/verify.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Files that mean harm: whatever stands in a manifest or a header, with checksums that fit, is
// taken or refused, reads and writes stay where they belong, and memory within a few times the
// files' bytes.
namespace hostile_test {
namespace {

namespace st = zero::safetensors;
using checkpoint_tests::ModelFiles;
using nlohmann::json;

/// Changes texts, and JSON in its structure.
class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_);
  }
  std::string bytes(std::string text) {
    static constexpr std::string_view letters = R"({}[]",:0123456789eE.-+_ \uFBShape)";
    for (std::size_t times = 1 + below(4); times > 0; --times) {
      if (text.empty()) text = "{";
      std::size_t const at = below(text.size());
      switch (below(5)) {
        case 0: text[at] = static_cast<char>(below(256)); break;
        case 1: text[at] = letters[below(letters.size())]; break;
        case 2: text.erase(at, 1 + below(8)); break;
        case 3: text.resize(at); break;
        default: text.insert(at, text.substr(below(text.size()), 1 + below(40)));
      }
    }
    return text;
  }
  json structure(json value) {
    for (std::size_t times = 1 + below(3); times > 0; --times) {
      std::vector<json*> all;
      collect(value, all);
      json& at = *all[below(all.size())];
      switch (below(6)) {
        case 0: at = json(*all[below(all.size())]); break;
        case 1:
          if (at.is_structured() && !at.empty()) {
            auto member = at.begin();
            std::advance(member, static_cast<std::ptrdiff_t>(below(at.size())));
            at.erase(member);
          }
          break;
        case 2:
          if (at.is_array() && !at.empty()) at.push_back(json(at[below(at.size())]));
          break;
        case 3:
          for (std::size_t depth = below(100); depth > 0; --depth) at = json::array({at});
          break;
        default: at = odd();
      }
    }
    return value;
  }

 private:
  static void collect(json& value, std::vector<json*>& all) {
    all.push_back(&value);
    if (!value.is_structured()) return;
    for (json& member : value) collect(member, all);
  }
  json odd() {
    static std::vector<json> const values{nullptr,
                                          true,
                                          "",
                                          "w",
                                          "run:w:0",
                                          "..",
                                          "/etc/passwd",
                                          "rank-00001.safetensors",
                                          0,
                                          1,
                                          2,
                                          3,
                                          -1,
                                          0.5,
                                          1e308,
                                          16,
                                          4096,
                                          2147483647,
                                          2147483648u,
                                          4294967295u,
                                          4294967296u,
                                          9223372036854775807,
                                          9223372036854775808u,
                                          18446744073709551615u,
                                          json::array(),
                                          json::object(),
                                          json::array({4294967296u, 4294967296u}),
                                          json::array({0, 1u << 31})};
    return values[below(values.size())];
  }

  std::mt19937_64 random_;
};

/// A checkpoint of two ranks, part by part.
struct Sample {
  std::vector<zero::SavedTensor> tensors{
      {.name = "w", .shape = {4, 6}, .boxes = {{{0, 0}, {4, 6}}}, .steps = 3},
      // The right half and the last row of the left one.
      {.name = "part", .shape = {3, 8}, .boxes = {{{0, 4}, {3, 4}}, {{2, 0}, {1, 4}}}, .steps = 3},
      {.name = "fixed", .shape = {5}, .boxes = {{{0}, {5}}}, .frozen = true},
      {.name = "scale", .shape = {}, .boxes = {{{}, {}}}},
      {.name = "tied", .shape = {4, 6}, .boxes = {{{0, 0}, {4, 6}}}, .tied_to = "w"},
  };
  std::array<st::Header, 2> headers{};
  std::array<json, 2> about{};
  std::array<std::string, 2> texts{};  ///< of the headers
  std::array<std::string, 2> data{};
  zero::Manifest manifest{.step = 3, .user = {{"epoch", 1}}};

  Sample() {
    std::vector<zero::Tensor> const names{{.name = "w", .shape = {}},
                                          {.name = "part", .shape = {}},
                                          {.name = "fixed", .shape = {}},
                                          {.name = "scale", .shape = {}}};
    std::string_view const master = zero::detail::master_array;
    auto const run =
        [](std::size_t tensor, std::string_view array, std::uint64_t first, std::uint64_t count) {
          return zero::detail::ArrayRun{
              .tensor = tensor, .array = array, .first = first, .count = count};
        };
    std::array<std::vector<zero::detail::ArrayRun>, 2> const runs{{
        {run(0, master, 0, 20), run(0, "m", 0, 20), run(2, "parameter", 0, 3)},
        {run(0, master, 20, 4),
         run(1, master, 0, 16),
         run(3, master, 0, 1),
         run(0, "m", 20, 4),
         run(1, "m", 0, 16),
         run(3, "m", 0, 1),
         run(2, "parameter", 3, 2)},
    }};
    for (std::size_t rank = 0; rank < 2; ++rank) {
      about[rank] = {{"piece_bytes", 64}};
      if (rank == 0) {
        about[rank]["optimizer"] = zero::detail::json_of(
            zero::SavedOptimizer{.tensors = tensors, .policies = {{"stage", "zero-2"}}});
      }
      headers[rank] = zero::detail::header_of(runs[rank], names, 7 * rank, about[rank]);
      data[rank].resize(zero::detail::data_bytes(headers[rank]));
      for (std::size_t i = 0; i < data[rank].size(); ++i) data[rank][i] = static_cast<char>(i % 60);
      std::string& sums = headers[rank].metadata[zero::detail::sums_key];
      for (std::size_t i = 0; i < data[rank].size(); i += 64) {
        std::string const piece = data[rank].substr(i, 64);
        sums += zero::checksum_text(zero::checksum(piece.data(), piece.size()));
      }
      manifest.files.push_back({.name = "rank-0000" + std::to_string(rank) + ".safetensors",
                                .rank = static_cast<int>(rank),
                                .world_size = 2});
    }
    format();
  }
  void format() {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      texts[rank] = st::format(headers[rank]).substr(st::length_bytes);
    }
  }
};

/// A manifest's text with a checksum that fits, whatever stands in it.
std::string sealed(std::string const& body) {
  std::string text(zero::detail::seal_begin);
  text += zero::checksum_text(zero::checksum(body.data(), body.size()));
  text += zero::detail::seal_middle;
  return (text += body) += zero::detail::seal_end;
}
std::string body_of(std::string const& manifest) {
  std::size_t const before =
      zero::detail::seal_begin.size() + zero::checksum_digits + zero::detail::seal_middle.size();
  return manifest.substr(before, manifest.size() - before - zero::detail::seal_end.size());
}

/// What is written, and how many bytes of it there are.
struct Written {
  ModelFiles files{};
  std::uint64_t bytes = 0;

  void add(std::string const& path, std::string const& text) {
    zero::FileAnswer const file = files.open(path, zero::FileMode::create);
    files.write(file, text.data(), text.size(), 0);
    files.close(file);
    bytes += text.size();
  }
};

/// A header's text with its length before it.
std::string framed(std::string const& text) {
  std::string bytes(st::length_bytes, '\0');
  for (std::size_t i = 0; i < st::length_bytes; ++i) {
    bytes[i] = static_cast<char>(std::uint64_t{text.size()} >> (8 * i) & 0xffu);
  }
  return bytes + text;
}

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
  std::vector<float> memory(87);
  auto* const bytes = reinterpret_cast<std::byte*>(memory.data());
  std::vector<zero::detail::ArrayRun> runs;
  std::size_t used = 0;
  for (std::size_t t = 0; t < 4; ++t) {
    std::uint64_t elements = 0;
    for (zero::Box const& box : sample.tensors[t].boxes)
      elements += zero::detail::volume(box.extent);
    auto const arrays = sample.tensors[t].frozen
                            ? std::vector<std::string_view>{zero::detail::parameter_array}
                            : std::vector<std::string_view>{zero::detail::master_array, "m"};
    for (std::string_view const array : arrays) {
      runs.push_back(
          {.tensor = t, .array = array, .count = elements, .memory = bytes + used * sizeof(float)});
      used += elements;
    }
  }
  REQUIRE(used == memory.size());
  zero::LoadOptions const options{.strict = false};
  zero::detail::LoadPlan const plan =
      zero::detail::LoadPlanner(catalog, sample.tensors, options).plan(runs, {"m"});
  auto const place = [&](void* to, void const* from, std::size_t count) {
    auto const at = static_cast<std::size_t>(static_cast<std::byte*>(to) - bytes);
    REQUIRE(at + count <= used * sizeof(float));
    std::memcpy(to, from, count);
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
    zero::Catalog const catalog = zero::read_catalog(written.files, "run");
    check(catalog);
    load(catalog, sample, tally.taken % 2 == 0, written.files);
    ++tally.taken;
  } catch (zero::Error const& error) {
    bool const expected =
        error.kind() == zero::ErrorKind::data || error.kind() == zero::ErrorKind::resource;
    CHECK_MESSAGE(expected, error.message());
    ++tally.refused;
  }
  static_cast<void>(zero::verify_checkpoint("run", written.files));
  auto const used = static_cast<double>(heap::mine().peak_bytes - before);
  tally.memory = std::max(tally.memory, used / static_cast<double>(written.bytes));
}

/// A text of the sample that can be changed.
enum class Part : int { about, header, body, manifest };

/// Writes the sample with what `change(text)` makes of one of its texts.
/// @param rank  whose, where each has one
template <class Change>
Written write(Sample const& sample, Part part, std::size_t rank, Change const& change) {
  Written written;
  written.files.make_directory("run");
  zero::Manifest manifest = sample.manifest;
  for (std::size_t r = 0; r < 2; ++r) {
    std::string text = sample.texts[r];
    if (r == rank && part == Part::about) {
      st::Header header = sample.headers[r];
      std::string& about = header.metadata[zero::detail::about_key];
      about = change(about);
      text = st::format(header).substr(st::length_bytes);
    }
    if (r == rank && part == Part::header) text = change(text);
    text = framed(text);
    zero::SavedFile& saved = manifest.files[r];
    saved.header_bytes = text.size();
    saved.header_sum = zero::checksum(text.data(), text.size());
    saved.bytes = text.size() + sample.data[r].size();
    written.add("run/" + saved.name, text + sample.data[r]);
  }
  std::string text = zero::detail::manifest_text(manifest);
  if (part == Part::body) text = sealed(change(body_of(text)));
  if (part == Part::manifest) text = change(text);
  written.add("run/manifest.json", text);
  return written;
}
Written write(Sample const& sample) {
  return write(sample, Part::manifest, 0, [](std::string const& text) { return text; });
}

TEST_CASE("the sample that is changed below is sound") {
  Sample const sample;
  Tally tally;
  Written written = write(sample);
  read(sample, written, tally);
  CHECK(tally.taken == 1);
  CHECK(zero::verify_checkpoint("run", written.files).empty());
}

/// What the catalog says about a sample with another description of its tensors, or other names of
/// the first rank's entries.
std::string verdict(Sample sample, json const& tensors) {
  sample.about[0]["optimizer"]["tensors"] = tensors;
  sample.headers[0].metadata[zero::detail::about_key] = sample.about[0].dump();
  sample.format();
  Written written = write(sample);
  try {
    static_cast<void>(zero::read_catalog(written.files, "run"));
  } catch (zero::Error const& error) {
    CHECK(error.kind() == zero::ErrorKind::data);
    return error.message();
  }
  return "taken";
}

TEST_CASE("what cannot be is refused, and the tensor is named") {
  Sample const sample;
  json const tensors = sample.about[0]["optimizer"]["tensors"];
  CHECK(verdict(sample, tensors) == "taken");
  for (std::string const first : {"", "99999999999999999999999", "-1", "0x1", "+1", " 1", "1 "}) {
    CAPTURE(first);
    Sample named;
    named.headers[0].entries[0].name = "w:master:" + first;
    CHECK(verdict(named, tensors) ==
          "'rank-00000.safetensors' of rank 0: 'w:master:" + first + "' is no run of a tensor");
  }
  json changed = tensors;
  changed.push_back(tensors[0]);
  CHECK(verdict(sample, changed) == "'rank-00000.safetensors': tensor 'w' is described twice");
  changed = tensors;
  std::uint64_t const huge = std::uint64_t{1} << 62;
  changed[0]["shape"] = {huge};
  changed[0]["boxes"] = json::array();
  for (int i = 0; i < 5; ++i) changed[0]["boxes"].push_back({{"offset", {0}}, {"extent", {huge}}});
  CHECK(verdict(sample, changed) ==
        "'rank-00000.safetensors': tensor 'w' has boxes of more elements than can be counted");
}

TEST_CASE("texts that are made to need memory need no more than a few times their bytes") {
  auto const many = [](std::string const& one) {
    std::string text = "[" + one;
    for (int i = 0; i < 50'000; ++i) text += "," + one;
    return text + "]";
  };
  for (std::string const one :
       {"[]", "{}", R"("")", "1", "[[]]", R"({"a":[]})", R"({"":{"":0}})"}) {
    CAPTURE(one);
    Tally tally;
    auto const begin = std::chrono::steady_clock::now();
    for (Part const part : {Part::about, Part::body}) {
      Written written = write(Sample(), part, 0, [&](std::string const& text) {
        return R"({"x":)" + many(one) + "," + text.substr(1);
      });
      read(Sample(), written, tally);
    }
    CHECK(tally.taken == 2);
    // Nor more than linear time.
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));
    CHECK_MESSAGE(tally.memory < 64, tally.memory);
  }
  std::string const deep(1'000'000, '[');
  Tally tally;
  for (Part const part : {Part::about, Part::body}) {
    Written written = write(Sample(), part, 0, [&](std::string const&) { return deep; });
    read(Sample(), written, tally);
  }
  CHECK(tally.refused == 2);
  CHECK_MESSAGE(tally.memory < 64, tally.memory);
}

TEST_CASE("mutated headers and manifests: no crash, no place but their own, no memory but theirs") {
  Sample const sample;
  Mutator mutator(20261122);
  std::array<Tally, 4> tallies{};
  auto const ignore = json::error_handler_t::ignore;
  std::size_t const count = checkpoint_tests::runs(5'000);
  for (std::size_t i = 0; i < count; ++i) {
    auto const part = static_cast<Part>(i % 4);
    bool const structured = part != Part::manifest && mutator.below(4) != 0;
    Written written;
    try {
      written = write(sample, part, mutator.below(2), [&](std::string const& text) {
        if (!structured) return mutator.bytes(text);
        return mutator.structure(json::parse(text)).dump(-1, ' ', false, ignore);
      });
    } catch (zero::Error const& error) {
      // A file cannot be made of this text.
      REQUIRE(error.kind() == zero::ErrorKind::invalid_argument);
      continue;
    }
    read(sample, written, tallies[i % 4]);
  }
  for (Tally const& tally : tallies) {
    MESSAGE("taken ",
            tally.taken,
            ", refused ",
            tally.refused,
            ", memory of at most ",
            tally.memory,
            " times the files' bytes");
    CHECK(tally.refused > count / 8);
    CHECK(tally.memory < 40);
  }
  // Some changes are harmless, and what comes behind the first check is reached.
  CHECK(tallies[0].taken > 0);
  CHECK(tallies[2].taken > 0);
}

}  // namespace
}  // namespace hostile_test
