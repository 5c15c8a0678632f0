// Checkpoints of states that are codes: they have codes and scales as they are, whoever loads them,
// and are made of states in full, and the other way round, where that is asked for.
#include "checkpoint/proof.hpp"
#include "support/coded_model.hpp"
#include "support/sanitized.hpp"
#include "zero/comm/grid.hpp"

namespace coded_checkpoint_test {
namespace {

using namespace checkpoint_tests;
using namespace coded_model;
using namespace zero::stage;
using zero::Checkpoints;
using zero::InProcess;

template <class Stage, class R>
using Optimizer = zero::ShardedOptimizer<InProcess, Stage, zero::Fp32, R>;

template <class R>
R rule() {
  R rule;
  rule.lr = 1e-2;
  return rule;
}

/// Calls `body(optimizer, rank)` on so many ranks; what all of them hold together in the end.
template <class Stage, class R, class Body>
AllHeld run(int ranks, std::vector<Tensor> const& tensors, Body const& body) {
  AllHeld all;
  std::mutex mutex;
  zero::run_ranks(ranks, [&](InProcess& comm) {
    Optimizer<Stage, R> optimizer{comm, tensors, rule<R>(), zero::Bucket{1}};
    optimizer.load_parameters(fill);
    body(optimizer, comm.rank());
    std::lock_guard const lock(mutex);
    collect(optimizer, all);
  });
  return all;
}
template <class Stage, class R>
AllHeld save(int ranks, std::string const& directory, long steps = 2) {
  return run<Stage, R>(ranks, model(), [&](auto& optimizer, int rank) {
    for (long number = 0; number < steps; ++number) step(optimizer, number, rank, ranks);
    Checkpoints(directory).save(optimizer);
  });
}
/// What is held after a load, and what a refused one says.
template <class Stage, class R>
AllHeld load(int ranks,
             std::string const& directory,
             zero::LoadOptions const& options = {},
             std::string* refusal = nullptr,
             std::vector<Tensor> const& tensors = model(),
             long steps = 0) {
  return run<Stage, R>(ranks, tensors, [&](auto& optimizer, int rank) {
    Checkpoints checkpoints(directory);
    std::string const said =
        failure_of([&] { checkpoints.load(optimizer, checkpoints.list().back(), options); });
    if (refusal == nullptr) CHECK(said == "");
    if (refusal != nullptr && rank == 0) *refusal = said;
    for (long number = 2; number < 2 + steps; ++number) step(optimizer, number, rank, ranks);
  });
}

/// Changes one byte of a rank's entry, with checksums that fit.
void change_byte(std::string const& path, std::size_t rank, std::string const& entry, int value) {
  std::string const name = path + "/" + rank_file(rank);
  auto parts = parted(slurp(name));
  auto& entries = parts.first.entries;
  auto const at = std::find_if(
      entries.begin(), entries.end(), [&](auto const& each) { return each.name == entry; });
  REQUIRE(at != entries.end());
  parts.second[at->begin] = static_cast<char>(value);
  auto const about = nlohmann::json::parse(parts.first.metadata[zero::detail::about_key]);
  parts.first.metadata[zero::detail::sums_key] =
      sums_of(parts.second, about["piece_bytes"].get<std::size_t>());
  std::string const text = zero::safetensors::format(parts.first);
  spill(name, text + parts.second);
  auto body = nlohmann::json::parse(unsealed(slurp(path + "/manifest.json")));
  body["files"][rank]["header_xxh3"] =
      zero::checksum_text(zero::checksum(text.data(), text.size()));
  spill(path + "/manifest.json", sealed(body.dump()));
}
std::uint64_t format_of(std::string const& directory) {
  std::string const path = Checkpoints(directory).list().back().path;
  return nlohmann::json::parse(unsealed(slurp(path + "/manifest.json")))["format"];
}
/// States in full, as codes to nearest.
void to_codes(AllHeld& all) {
  for (Tensor const& tensor : model()) {
    if (tensor.frozen || !tensor.tied_to.empty() || !is_coded(tensor)) continue;
    HeldTensor& held = all[tensor.name];
    for (auto const& [array, values] : std::exchange(held.full, {})) {
      bool const sign = array == "exp_avg";
      std::size_t const slice = slice_count(tensor);
      for (std::size_t first = 0; first < values.size(); first += slice) {
        for (std::size_t i = 0; i < slice; i += 32) {
          std::span const group(&values[first + i], std::min<std::size_t>(32, slice - i));
          std::uint8_t const scale = scale_of(sign, group);
          held.scales[array].push_back(scale);
          for (float const x : group) held.codes[array].push_back(nearest(sign, x, scale));
        }
      }
    }
  }
}
/// Codes as what they stand for.
void to_full(AllHeld& all) {
  for (Tensor const& tensor : model()) {
    if (tensor.frozen || !tensor.tied_to.empty()) continue;
    HeldTensor& held = all[tensor.name];
    std::size_t const slice = slice_count(tensor);
    for (auto const& [array, codes] : std::exchange(held.codes, {})) {
      for (std::size_t i = 0; i < codes.size(); ++i) {
        std::size_t const g = i / slice * ((slice + 31) / 32) + i % slice / 32;
        held.full[array].push_back(decoded(array == "exp_avg", codes[i], held.scales[array][g]));
      }
    }
    held.scales.clear();
  }
}

}  // namespace

TEST_CASE("codes and scales come back as they were, on other ranks and in other stages") {
  for (int const ranks : {1, 2, 3}) {
    if (toy::sanitized && ranks != 3) continue;
    CAPTURE(ranks);
    TemporaryDirectory const directory;
    AllHeld const saved = save<PosG, zero::AdamW8bit>(ranks, directory.path());
    REQUIRE(saved.at("torchao").codes.size() == 2);
    CHECK(load<PosG, zero::AdamW8bit>(ranks, directory.path()) == saved);
    CHECK(load<PosGP, zero::AdamW8bit>(5, directory.path()) == saved);
    CHECK(load<Replicated, zero::AdamW8bit>(2, directory.path(), {.verify_first = true}) == saved);
  }
}

TEST_CASE("a run goes on from a checkpoint with the bits of one that was not interrupted") {
  Reference<zero::AdamW8bit> reference(rule<zero::AdamW8bit>());
  for (long number = 0; number < 5; ++number) reference.step(number);
  TemporaryDirectory const directory;
  static_cast<void>(save<PosGP, zero::AdamW8bit>(3, directory.path()));
  AllHeld const resumed = load<Pos, zero::AdamW8bit>(2, directory.path(), {}, nullptr, model(), 3);
  CHECK(resumed == reference.held());
}

TEST_CASE("a checkpoint is of format 3 where it has codes, and of the one before elsewhere") {
  TemporaryDirectory const coded;
  static_cast<void>(save<PosG, zero::AdamW8bit>(2, coded.path()));
  CHECK(format_of(coded.path()) == 3);
  TemporaryDirectory const full;
  static_cast<void>(save<PosG, zero::AdamW>(2, full.path()));
  CHECK(format_of(full.path()) == 1);
  TemporaryDirectory const small;
  run<PosG, zero::AdamW8bit>(2, {{.name = "below", .shape = {4095}}}, [&](auto& optimizer, int) {
    Checkpoints(small.path()).save(optimizer);
  });
  CHECK(format_of(small.path()) == 1);
  // What 0.2 had to say of a format that it does not know is what this version has to say.
  std::string const path = Checkpoints(coded.path()).list().back().path + "/manifest.json";
  auto body = nlohmann::json::parse(unsealed(slurp(path)));
  body["format"] = 4;
  CHECK(failure_of([&] {
          static_cast<void>(zero::detail::parse_manifest("it", sealed(body.dump())));
        }) == "data: 'it' has format 4, which this version cannot read");
  // Codes of a file that says that it has none are refused.
  body["format"] = 1;
  spill(path, sealed(body.dump()));
  std::string refusal;
  load<PosG, zero::AdamW8bit>(2, coded.path(), {}, &refusal);
  check_says(refusal, "has a dtype or shape that runs do not have");
}

TEST_CASE(
    "states in full become codes to nearest, and codes states in full, if that is asked for") {
  std::string refusal;
  TemporaryDirectory const full;
  AllHeld wanted = save<PosGP, zero::AdamW>(3, full.path());
  load<PosG, zero::AdamW8bit>(2, full.path(), {}, &refusal);
  check_says(refusal,
             "states of 'wte' are of the rule AdamW, and would mean something else to AdamW8bit; "
             "convert them (LoadOptions::convert_states), or load parameters alone");
  load<PosG, zero::Adam8bit>(2, full.path(), {.convert_states = true}, &refusal);
  check_says(refusal, "would mean something else to Adam8bit; load parameters alone");
  to_codes(wanted);
  CHECK(load<PosG, zero::AdamW8bit>(2, full.path(), {.convert_states = true}) == wanted);
  CHECK(load<Replicated, zero::AdamW8bit>(5, full.path(), {.convert_states = true}) == wanted);

  TemporaryDirectory const coded;
  wanted = save<PosG, zero::AdamW8bit>(2, coded.path());
  load<Pos, zero::AdamW>(3, coded.path(), {}, &refusal);
  check_says(refusal,
             "states of 'wte' are of the rule AdamW8bit, and would mean something else to AdamW; "
             "convert them (LoadOptions::convert_states), or load parameters alone");
  AllHeld const codes = wanted;
  to_full(wanted);
  TemporaryDirectory const back;
  CHECK(load<Pos, zero::AdamW>(3, coded.path(), {.convert_states = true}) == wanted);
  // Of a group that comes back its largest code says whether it has the scale that it had.
  run<Pos, zero::AdamW>(3, model(), [&](auto& optimizer, int) {
    Checkpoints checkpoints(coded.path());
    checkpoints.load(optimizer, checkpoints.list().back(), {.convert_states = true});
    Checkpoints(back.path()).save(optimizer);
  });
  AllHeld const again = load<PosGP, zero::AdamW8bit>(2, back.path(), {.convert_states = true});
  std::size_t compared = 0;
  std::size_t others = 0;
  for (char const* const array : {"exp_avg", "exp_avg_sq"}) {
    HeldTensor const& was = codes.at("torchao");
    HeldTensor const& is = again.at("torchao");
    bool const sign = std::string_view(array) == "exp_avg";
    for (std::size_t g = 0; g < 6144 / 32; ++g) {
      int largest = 0;
      bool same = was.scales.at(array)[g] == is.scales.at(array)[g];
      for (std::size_t i = 32 * g; i < 32 * g + 32; ++i) {
        std::uint8_t const code = was.codes.at(array)[i];
        largest = std::max(largest, sign ? std::abs(static_cast<std::int8_t>(code)) : int{code});
        same = same && code == is.codes.at(array)[i];
      }
      if (largest >= (sign ? 90 : 181)) CHECK(same);
      (largest >= (sign ? 90 : 181) ? compared : others) += 1;
    }
  }
  CHECK(compared > 50 * others);
}

TEST_CASE("a tensor whose states are to be in full gets them of codes where that is asked for") {
  TemporaryDirectory const directory;
  AllHeld wanted = save<PosG, zero::AdamW8bit>(2, directory.path());
  auto tensors = model();
  tensors.back().full_states = tensors.front().full_states = true;
  std::string refusal;
  load<PosG, zero::AdamW8bit>(2, directory.path(), {}, &refusal, tensors);
  check_says(refusal, "'wte' has 'exp_avg' in codes, and here in full; convert it");
  AllHeld const held =
      load<PosG, zero::AdamW8bit>(3, directory.path(), {.convert_states = true}, nullptr, tensors);
  CHECK(held.at("torchao") == wanted.at("torchao"));
  to_full(wanted);
  CHECK(held.at("wte") == wanted.at("wte"));
}

TEST_CASE("a model's file has what one of states in full has") {
  std::map<std::string, std::string> files;
  TemporaryDirectory const directory;
  auto const write = [&](auto& optimizer, std::string const& name) {
    optimizer.load_parameters(fill);
    std::string const path = directory.path() + "/" + name;
    zero::export_model(optimizer, path, {.dtype = zero::ExportDType::master});
  };
  run<PosG, zero::AdamW8bit>(2, model(), [&](auto& optimizer, int) { write(optimizer, "codes"); });
  run<PosG, zero::AdamW>(2, model(), [&](auto& optimizer, int) { write(optimizer, "full"); });
  CHECK(slurp(directory.path() + "/codes").size() > 4 * 30'000);
  CHECK(slurp(directory.path() + "/codes") == slurp(directory.path() + "/full"));
}

TEST_CASE("over a grid parts that cut groups are refused, and others go to any axis") {
  // Rows of 64, or of 50 elements, of which each rank has some columns.
  struct Case {
    std::size_t columns;
    bool fits;
  };
  for (Case const each : {Case{64, true}, Case{50, false}}) {
    CAPTURE(each.columns);
    TemporaryDirectory const directory;
    std::size_t const rows = 256;
    auto const over = [&](int axis, auto const& work) {
      std::string told;
      zero::run_ranks(axis, [&](InProcess& world) {
        zero::Grid grid{world, 1, axis};
        auto const rank = static_cast<std::size_t>(world.rank());
        std::size_t const own = 2 * each.columns / static_cast<std::size_t>(axis);
        std::vector<Tensor> const tensors{{.name = "w", .shape = {rows, own}, .partitioned = true}};
        zero::TensorPart const part{
            "w", {rows, 2 * each.columns}, {{{0, rank * own}, {rows, own}}}};
        zero::ShardedOptimizer optimizer{
            grid, tensors, PosG{}, zero::Fp32{}, rule<zero::AdamW8bit>()};
        auto const place = [&](std::size_t i) {
          return i / own * 2 * each.columns + rank * own + i % own;
        };
        std::string const said = failure_of([&] { work(optimizer, part, place); });
        if (rank == 0) told = said;
      });
      return told;
    };
    AllHeld saved;
    std::mutex mutex;
    std::vector<float> before(rows * 2 * each.columns);
    std::vector<float> after(before.size());
    auto const show = [&](auto& optimizer, auto const& place, std::vector<float>& to) {
      std::lock_guard const lock(mutex);
      optimizer.visit_owned(
          [&](Tensor const&, std::size_t first, auto masters, auto const& states) {
            for (std::size_t i = 0; i < masters.size(); ++i) to[place(first + i)] = states[1][i];
          });
    };
    std::string const said = over(2, [&](auto& optimizer, auto const& part, auto const& place) {
      optimizer.load_parameters([&](Tensor const&, std::size_t first, std::span<float> out) {
        for (std::size_t i = 0; i < out.size(); ++i)
          out[i] = toy::initial_value(0, place(first + i));
      });
      auto gradients = optimizer.gradients(0);
      for (std::size_t i = 0; i < gradients[0].size(); ++i) {
        gradients[0][i] = toy::uniform(1, place(i), 5) - 0.5f;
      }
      optimizer.reduce(std::move(gradients));
      optimizer.step();
      show(optimizer, place, before);
      Checkpoints(directory.path()).save(optimizer, {.parts = {part}});
    });
    if (!each.fits) {
      check_says(
          said,
          "tensor 'w' has a part that cuts the groups of 32 elements in which its states are "
          "coded; have them in full (Tensor::full_states)");
      continue;
    }
    CHECK(said == "");
    for (int const axis : {1, 2, 4}) {
      CAPTURE(axis);
      CHECK(over(axis, [&](auto& optimizer, auto const& part, auto const& place) {
              Checkpoints checkpoints(directory.path());
              checkpoints.load(optimizer, checkpoints.list().back(), {.parts = {part}});
              show(optimizer, place, after);
            }) == "");
      CHECK(after == before);
      std::ranges::fill(after, 0.f);
    }
    // Columns of 16 cut groups that were saved whole.
    check_says(over(8,
                    [&](auto& optimizer, auto const& part, auto const&) {
                      Checkpoints checkpoints(directory.path());
                      checkpoints.load(optimizer, checkpoints.list().back(), {.parts = {part}});
                    }),
               "that cut the groups of 32 elements in which 'exp_avg' is coded");
  }
}

TEST_CASE("layers become one tensor, and one tensor layers, unless that cuts groups") {
  for (std::size_t const elements : {4128u, 4099u}) {
    for (bool const stacked : {false, true}) {
      CAPTURE(elements);
      CAPTURE(stacked);
      auto const tensors = [&](bool layers) {
        return std::vector<Tensor>{{.name = "layers", .shape = {3, elements}, .stacked = layers}};
      };
      TemporaryDirectory const directory;
      AllHeld const saved =
          run<PosG, zero::AdamW8bit>(2, tensors(stacked), [&](auto& optimizer, int rank) {
            step(optimizer, 0, rank, 2);
            Checkpoints(directory.path()).save(optimizer);
          });
      std::string refusal;
      AllHeld const held =
          load<PosGP, zero::AdamW8bit>(3, directory.path(), {}, &refusal, tensors(!stacked));
      if (elements % 32 == 0) {
        CHECK(refusal == "");
        CHECK(held == saved);
        zero::LoadOptions const convert{.convert_states = true};
        auto const in_full = [&](bool layers) {
          return load<Pos, zero::AdamW>(2, directory.path(), convert, nullptr, tensors(layers));
        };
        CHECK(in_full(!stacked) == in_full(stacked));
      } else {
        check_says(refusal, "cut the groups of 32 elements in which 'exp_avg' is coded");
      }
    }
  }
}

TEST_CASE("codes that stand for no number are refused") {
  struct Case {
    std::string entry;
    int value;
  };
  for (bool const first : {false, true}) {
    for (bool const converts : {false, true}) {
      if (toy::sanitized && first != converts) continue;
      for (Case const& each : {Case{"torchao:exp_avg:0", -128},
                               {"torchao:exp_avg_sq:0", 2},
                               {"torchao:exp_avg.scales:0", 14},
                               {"torchao:exp_avg_sq.scales:0", 191}}) {
        CAPTURE(each.entry);
        TemporaryDirectory const directory;
        static_cast<void>(save<PosG, zero::AdamW8bit>(1, directory.path()));
        change_byte(Checkpoints(directory.path()).list().back().path, 0, each.entry, each.value);
        std::string refusal;
        zero::LoadOptions const options{.verify_first = first, .convert_states = converts};
        AllHeld const held =
            converts ? load<PosG, zero::AdamW>(2, directory.path(), options, &refusal)
                     : load<PosG, zero::AdamW8bit>(2, directory.path(), options, &refusal);
        std::vector<float> initial(6144);
        fill(model()[7], 0, initial);
        CHECK((held.at("torchao").masters == initial) == first);
        std::string const array = each.entry.substr(0, each.entry.find_last_of(".:"));
        check_says(refusal, "' of tensor 'torchao' that stands for no number");
        check_says(refusal, "has a code for element 0 of 'exp_avg");
      }
    }
  }
}

}  // namespace coded_checkpoint_test
