#include "checkpoint/proof.hpp"
#include "checkpoint/worker.hpp"
#include "contracts/heap.hpp"

#include <exception>
#include <limits>

// All numbers of a checkpoint are judged where they are read, by every reader: a load is refused
// with everything as it was, or has replaced all that it says.
namespace numbers_test {
namespace {

using namespace checkpoint_tests;
using nlohmann::json;

/// What `load` says, on all ranks the same; empty if it succeeds. Nothing may have changed if it
/// fails, and what was loaded has to take part in steps.
std::string load(ModelFiles& files, std::string const& path, Ranks const& ranks, bool first) {
  std::string const text = failure_of_all(ranks.all(), [&](auto& world) {
    Worker worker(world, ranks);
    auto const before = worker.contents();
    std::exception_ptr refused;
    try {
      zero::Checkpoints run("run", {}, files);
      run.load(
          worker.optimizer(), {.path = path}, {.verify_first = first, .parts = worker.parts()});
    } catch (zero::Error const&) {
      refused = std::current_exception();
    }
    CHECK((worker.contents() == before) == (refused != nullptr));
    worker.step();
    if (refused) std::rethrow_exception(refused);
  });
  CHECK_MESSAGE((text.empty() || text.starts_with("data: ")), text);
  return text;
}

/// A checkpoint whose numbers were changed is refused with these words, whoever reads it.
void check_refused(ModelFiles const& sound,
                   std::string const& path,
                   std::vector<Ranks> const& loaders,
                   std::string const& words,
                   auto const& change) {
  CAPTURE(words);
  ModelFiles files = sound.crashed(0, 0);
  change(files);
  auto const problems = zero::verify_checkpoint(path, files);
  REQUIRE(problems.size() == 1);
  check_says(problems[0], words);
  for (Ranks const& ranks : loaders) {
    CAPTURE(ranks.data);
    CAPTURE(ranks.model);
    for (bool const first : {false, true}) check_says(load(files, path, ranks, first), words);
  }
}

TEST_CASE("pieces that cut elements are refused where they are read") {
  for (std::size_t const rows : {std::size_t{38}, many_rows}) {
    ModelFiles files;
    std::string const path = save(files, {.data = 2, .rows = rows});
    auto loaders = everyone;
    for (Ranks& ranks : loaders) ranks.rows = rows;
    CHECK(load(files, path, loaders[2], false).empty());
    for (std::uint64_t const piece : {1u, 2u, 3u, 6u, 262146u}) {
      // Checksums of small pieces of a large file are longer than a header may be.
      if (rows == many_rows && piece < 262146) continue;
      check_refused(files,
                    path,
                    loaders,
                    "' has pieces of " + std::to_string(piece) + " bytes, which cut elements of '",
                    [&](ModelFiles& changed) {
                      reseal_header(changed, path, 0, [&](json& about, auto&) {
                        about["piece_bytes"] = piece;
                      });
                    });
    }
  }
}

TEST_CASE("counters from which no step can go on are refused where they are read") {
  ModelFiles files;
  std::string const path = save(files, {.data = 2});
  struct Row {
    std::string words;
    json::json_pointer place;
    json value;
  };
  using Place = json::json_pointer;
  constexpr long most = (std::numeric_limits<long>::max)();
  std::vector<Row> rows{
      {"has a 'loss_scale' of 1e+39, more than a float holds", Place("/loss_scale"), 1e39},
      {"has a 'steps' of 9223372036854775807, more updates than a run can have",
       Place("/tensors/0/steps"),
       most},
      {"tensor 'v' has 3 steps of a run of 2", Place("/tensors/3/steps"), 3},
      {"tensor 'v' is no layer of 2", Place("/tensors/3/layers"), 2},
      {"has a 'weight_decay' of 1e+39, more than a float holds",
       Place("/tensors/0/weight_decay"),
       1e39},
  };
  for (double const scale : {0., -1., 1e-39}) {
    rows.push_back({"has a loss scale of " + zero::Message({static_cast<float>(scale)}).text(),
                    Place("/loss_scale"),
                    scale});
  }
  for (int const streak : {(std::numeric_limits<int>::max)(), (std::numeric_limits<int>::min)()}) {
    rows.push_back({"with a streak of " + std::to_string(streak) + ", from which no step can go on",
                    Place("/loss_scale_streak"),
                    streak});
  }
  for (Row const& row : rows) {
    check_refused(files, path, everyone, row.words, [&](ModelFiles& changed) {
      reseal_header(
          changed, path, 0, [&](json& about, auto&) { about["optimizer"][row.place] = row.value; });
    });
  }
  check_refused(files,
                path,
                everyone,
                "has a 'step' of 9223372036854775807, more updates than a run can have",
                [&](ModelFiles& changed) {
                  reseal_manifest(changed, path, [&](json& body) { body["step"] = most; });
                });
  check_refused(files, path, everyone, "has no optimizer", [&](ModelFiles& changed) {
    for (std::size_t const rank : {0u, 1u}) {
      reseal_header(changed, path, rank, [](json& about, auto& header) {
        about.erase("optimizer");
        header.entries = {{.name = std::string(zero::detail::blob_entry),
                           .dtype = "U8",
                           .shape = {header.entries.back().end}}};
      });
    }
  });
}

TEST_CASE("a file that is named twice is refused before it is read") {
  ModelFiles files;
  std::string const path = save(files, {.data = 2});
  constexpr std::size_t times = 3000;
  auto const repeat = [&](ModelFiles& changed) {
    reseal_manifest(changed, path, [&](json& body) {
      json const first = body["files"][0];
      for (std::size_t i = 0; i < times; ++i) body["files"].push_back(first);
    });
  };
  check_refused(files, path, everyone, "names 'rank-00000.safetensors' twice", repeat);
  std::string const cut("rank-00000.safetensors\0x", 24);
  for (std::string const& name : {std::string(".."), std::string("."), cut}) {
    check_refused(
        files, path, {{1}}, "has an entry of a file that no save writes", [&](ModelFiles& changed) {
          reseal_manifest(changed, path, [&](json& body) { body["files"][0]["name"] = name; });
        });
  }

  ModelFiles changed = files.crashed(0, 0);
  repeat(changed);
  std::uint64_t bytes = 0;
  for (char const* const name :
       {"/manifest.json", "/rank-00000.safetensors", "/rank-00001.safetensors"}) {
    bytes += read_all(changed, path + name).size();
  }
  heap::reset_peak();
  std::int64_t const before = heap::mine().live_bytes;
  CHECK(zero::verify_checkpoint(path, changed).size() == 1);
  double const memory =
      static_cast<double>(heap::mine().peak_bytes - before) / static_cast<double>(bytes);
  CHECK_MESSAGE(memory < 20, memory);
}

/// Places of numbers in a text.
void numbers_in(json& value, std::vector<json*>& all) {
  if (value.is_number()) all.push_back(&value);
  if (!value.is_structured()) return;
  for (json& member : value) numbers_in(member, all);
}

TEST_CASE("whichever number is another one, a load changes nothing or does all that it says") {
  json const odd = json::parse(R"([0, 1, 2, 3, 5, 8, -1, 0.5, 1e39, -1e39, 1e308, 1e-320, 64, 4096,
      262148, 2147483647, 2147483648, 9223372036854775806, 9223372036854775807,
      9223372036854775808, 18446744073709551615])");
  std::mt19937_64 random(20261124);
  auto const below = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  std::size_t refused = 0;
  std::size_t taken = 0;
  for (Ranks const saver : {Ranks{2}, Ranks{2, 2}, Ranks{.data = 2, .rows = many_rows}}) {
    ModelFiles files;
    std::string const path = save(files, saver);
    // Copies of large files take their time.
    std::size_t const count = runs(saver.rows == many_rows ? 12 : 150);
    for (std::size_t i = 0; i < count; ++i) {
      ModelFiles changed = files.crashed(0, 0);
      std::string where;
      auto const change = [&](json& text) {
        std::vector<json*> all;
        numbers_in(text, all);
        json& at = *all[below(all.size())];
        where = at.dump();
        at = odd[below(odd.size())];
        where += " becomes " + at.dump();
      };
      if (below(3) == 0) {
        reseal_manifest(changed, path, change);
      } else {
        reseal_header(changed, path, 0, [&](json& about, auto&) { change(about); });
      }
      CAPTURE(where);
      Ranks ranks = everyone[below(everyone.size())];
      ranks.rows = saver.rows;
      std::string const text = load(changed, path, ranks, below(2) == 0);
      // What only a trainer can see does not fit: shapes, and parts that are missing.
      if (zero::verify_checkpoint(path, changed).empty()) {
        bool const fits = text.empty() || text.find("does not fit this optimizer") != text.npos;
        CHECK_MESSAGE(fits, text);
      } else {
        CHECK(!text.empty());
      }
      ++(text.empty() ? taken : refused);
    }
  }
  MESSAGE("taken ", taken, ", refused ", refused);
  CHECK(taken > 0);
  CHECK(refused > 0);
}

}  // namespace
}  // namespace numbers_test
