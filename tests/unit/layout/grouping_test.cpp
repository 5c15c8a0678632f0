#include "support/test.hpp"
#include <zero/layout/grouping.hpp>
#include <zero/layout/plan.hpp>

#include <algorithm>
#include <random>

namespace grouping_test {
namespace {

using zero::block;
using zero::Merge;
using zero::Partition;
using zero::Role;
using zero::round_up;
using zero::Tensor;
using Groups = std::vector<std::size_t>;
using Model = std::vector<Tensor>;

Tensor tensor(std::size_t size, int unit, std::string tied_to = {}) {
  static int number = 0;
  return {.name = "t" + std::to_string(number++),
          .shape = {size},
          .unit = unit,
          .tied_to = std::move(tied_to)};
}

/// Of one tensor each.
Model model_of(std::vector<std::size_t> const& sizes) {
  Model model;
  for (std::size_t const size : sizes)
    model.push_back(tensor(size, static_cast<int>(model.size())));
  return model;
}

/// The groups of a model's clusters where parameters are gathered.
Groups joined(Model const& model, std::uint64_t ranks) {
  return zero::detail::group_clusters(
      zero::Placement(model), Merge::into_padding, std::uint64_t{1} << 40, ranks * block);
}

/// Layers of one unit each; embeddings in the first, the last layernorm alone, the head alone or
/// tied to the embeddings.
struct Gpt {
  std::size_t layers;
  std::size_t hidden;
  std::size_t vocabulary;
  bool tied;

  [[nodiscard]] Model model() const {
    Model tensors{tensor(vocabulary * hidden, 0), tensor(1024 * hidden, 0)};
    int unit = 0;
    for (std::size_t l = 0; l < layers; ++l) {
      tensors.push_back(tensor(12 * hidden * hidden + 13 * hidden, ++unit));
    }
    tensors.push_back(tensor(2 * hidden, ++unit));
    unit += tied ? 0 : 1;
    tensors.push_back(tensor(vocabulary * hidden, unit, tied ? tensors[0].name : ""));
    return tensors;
  }
};

/// From a million to ten trillion parameters.
constexpr std::array<Gpt, 8> sizes{{{4, 128, 1000, false},
                                    {8, 320, 1000, false},
                                    {12, 768, 50257, false},
                                    {48, 1600, 50257, false},
                                    {40, 4608, 50257, false},
                                    {96, 12288, 50257, false},
                                    {128, 25600, 50257, false},
                                    {160, 72192, 50257, false}}};

/// What a plan says, and what it would say if every unit were gathered alone.
struct Compared {
  zero::Plan plan;
  std::uint64_t padded_alone = 0;
  std::uint64_t held_alone = 0;
  std::uint64_t sent_alone = 0;
  int units = 0;
};

/// Mixed precision with AdamW, buckets of 25 MiB, one unit gathered ahead.
Compared compare(Model const& model, int ranks) {
  Partition const partition(
      model,
      {.world_size = ranks, .bucket_elements = 25 * zero::MiB / 2, .merge = Merge::into_padding});
  static constexpr std::array<zero::ArrayForm, 3> arrays{};
  zero::StorageTypes const types{
      .parameter = zero::DType::bf16, .wire = zero::DType::bf16, .arrays = arrays};
  zero::Sharding const all{.optimizer = true, .gradients = true, .parameters = true};
  Compared result{.plan = make_plan(partition, {.sharding = all}, {types}, {})};
  result.units = partition.placement().unit_count();
  std::uint64_t const n = static_cast<std::uint64_t>(ranks);
  std::vector<std::uint64_t> units(static_cast<std::size_t>(result.units), 0);
  std::uint64_t slot = 0;
  std::uint64_t gathered = 0;
  std::uint64_t own_slot = 0;
  std::uint64_t tied = 0;
  for (zero::Cluster const& cluster : partition.placement().clusters()) {
    std::uint64_t const padded = round_up(cluster.count, n * block);
    result.padded_alone += padded;
    for (int const unit : cluster.units) units[static_cast<std::size_t>(unit)] += padded;
    if (cluster.tied) tied += padded;
    if (!cluster.tied) own_slot = std::max(own_slot, padded);
  }
  for (std::uint64_t const unit : units) {
    slot = std::max(slot, unit);
    gathered += unit;
  }
  result.held_alone = 16 * result.padded_alone / n + 2 * (2 * own_slot + tied) + 2 * 2 * slot;
  result.sent_alone = 2 * (result.padded_alone + 2 * gathered) / n * (n - 1);
  return result;
}

}  // namespace

TEST_CASE("neighbours join where they take no more than the larger of them takes alone") {
  struct Row {
    std::vector<std::size_t> sizes;
    Groups groups;
  };
  // The smallest bucket of 4 ranks has 2048 elements.
  for (Row const& row : {Row{{600, 600}, {0, 0}},
                         // 1536 and 512 elements before the next one, which just fits, or not.
                         Row{{1500, 512}, {0, 0}},
                         Row{{1500, 513}, {0, 1}},
                         // Into the padding of a large one, on either side.
                         Row{{7000, 600}, {0, 0}},
                         Row{{600, 7000}, {0, 0}},
                         Row{{7000, 1025}, {0, 1}},
                         // Several, and the next group begins where one is full.
                         Row{{500, 500, 500, 500, 500}, {0, 0, 0, 0, 1}},
                         Row{{}, {}}}) {
    CHECK(joined(model_of(row.sizes), 4) == row.groups);
  }
  // One rank pads nothing that a neighbour could use.
  CHECK(joined(model_of({1, 1, 1}), 1) == Groups{0, 1, 2});
  // A unit without elements neither joins nor keeps others from their own memory.
  CHECK(joined(model_of({100, 0, 100}), 4) == Groups{0, 1, 2});
}

TEST_CASE("what is tied stays alone, and nobody gathers tied tensors for a neighbour in vain") {
  Model model{tensor(100, 0), tensor(100, 1), tensor(100, 2), tensor(100, 3)};
  model.push_back(tensor(100, 3, model[1].name));
  // Unit 1 has nothing but the tied tensor, of which unit 3 is the second user.
  CHECK(joined(model, 4) == Groups{0, 1, 2, 2});
  // A large unit would be kept in memory together with the tied tensor of a small one...
  Model grows{tensor(3000, 0), tensor(100, 0), tensor(7000, 1), tensor(100, 2)};
  grows.push_back(tensor(3000, 2, grows[0].name));
  CHECK(joined(grows, 4) == Groups{0, 1, 2, 3});
  // ...but the smallest bucket is what either of them takes anyway.
  grows[2].shape = {700};
  CHECK(joined(grows, 4) == Groups{0, 1, 1, 1});
  // Nor with one of several that joined before it.
  Model chain{tensor(3000, 0), tensor(100, 0), tensor(100, 1), tensor(7000, 2), tensor(1, 9)};
  chain.push_back(tensor(3000, 9, chain[0].name));
  CHECK(joined(chain, 4) == Groups{0, 1, 1, 2, 3});
  // Two small ones that use different tied tensors.
  Model differs{tensor(100, 0), tensor(100, 0), tensor(100, 1), tensor(100, 2), tensor(100, 3)};
  differs.push_back(tensor(100, 2, differs[0].name));
  differs.push_back(tensor(100, 3, differs[2].name));
  auto const groups = joined(differs, 4);
  CHECK(groups == Groups{0, 1, 2, 3, 4});
}

TEST_CASE("a unit that is gathered for tied tensors alone keeps its neighbours apart") {
  Model model{tensor(100, 0), tensor(100, 1), tensor(100, 3)};
  CHECK(joined(model, 4) == Groups{0, 0, 0});
  model.push_back(tensor(100, 5));
  model.push_back(tensor(100, 2, model[3].name));
  // By themselves units 1 and 3 could lie together.
  CHECK(joined(model, 4) == Groups{0, 0, 1, 2});
  // Frozen, it is gathered like any other; whole, it is not at all, and lies among units that are.
  Model frozen{tensor(100, 0), tensor(100, 1), tensor(100, 2)};
  frozen[1].frozen = true;
  CHECK(joined(frozen, 4) == Groups{0, 1, 2});
  frozen[1].whole = true;
  Partition const partition(frozen, {.world_size = 4, .merge = Merge::into_padding});
  REQUIRE(partition.gather_groups().size() == 1);
  CHECK(partition.gather_groups()[0].last_unit == 2);
  CHECK(partition.gather_groups()[0].padded == 2048);
}

TEST_CASE("a unit joins with what it has of every kind, or with nothing") {
  Model const model{tensor(300, 0),
                    tensor(100, 0),
                    tensor(300, 1),
                    tensor(100, 1),
                    tensor(300, 2),
                    tensor(2000, 2),
                    tensor(300, 3)};
  std::vector<std::uint32_t> const types{0, 1, 0, 1, 0, 1, 0};
  // Of the first type there would be room for all four; the third unit's other tensor has none. The
  // fourth brings nothing that the third would not gather anyway.
  CHECK(zero::detail::group_clusters(
            zero::Placement(model, types), Merge::into_padding, 1 << 20, 4 * block) ==
        Groups{0, 0, 1, 1, 2, 2, 3});
}

TEST_CASE("units of several kinds that join gather what the largest of them gathers alone") {
  std::mt19937 random(7);
  std::size_t joins = 0;
  for (int i = 0; i < 2000; ++i) {
    Model model;
    std::vector<std::uint32_t> types;
    for (int unit = 0; unit < 6; ++unit) {
      for (std::uint32_t const type : {0u, 1u}) {
        if (random() % 4 == 0) continue;
        model.push_back(tensor(1 + random() % 1200, unit));
        model.back().frozen = random() % 4 == 0;
        types.push_back(type);
      }
    }
    if (model.empty()) continue;
    Partition const partition(model, {.world_size = 4, .merge = Merge::into_padding}, types);
    std::vector<std::uint64_t> alone(6, 0);
    for (zero::Cluster const& cluster : partition.placement().clusters()) {
      alone[static_cast<std::size_t>(cluster.units[0])] += round_up(cluster.count, 4 * block);
    }
    for (zero::GatherGroup const& gathered : partition.gather_groups()) {
      auto const first = alone.begin() + gathered.first_unit;
      auto const last = alone.begin() + gathered.last_unit + 1;
      REQUIRE(gathered.padded == *std::max_element(first, last));
      joins += gathered.first_unit < gathered.last_unit ? 1 : 0;
    }
  }
  CHECK(joins > 1000);
}

TEST_CASE("nothing is gathered for a tied tensor without elements") {
  // The second unit fits the padding of the first, and shares nothing with the third.
  Model model{tensor(40000, 0), tensor(50, 1), tensor(0, 2)};
  model.push_back(tensor(0, 1, model[2].name));
  Groups const groups = joined(model, 64);
  CHECK(groups[0] == groups[1]);
}

TEST_CASE("small units merge for the gradient pool up to a slot that no unit makes smaller") {
  // Each is padded to 2048 elements, alone or not.
  Model const model{tensor(600, 0), tensor(600, 1), tensor(600, 2), tensor(600, 3)};
  zero::Placement const placement(model);
  auto const groups = [&](std::uint64_t largest_bucket) {
    return zero::detail::group_clusters(
        placement, Merge::within_largest_unit, largest_bucket, 4 * block);
  };
  CHECK(groups(1 << 20) == Groups{0, 0, 1, 1});
  CHECK(groups(2048) == Groups{0, 0, 1, 1});
  CHECK(zero::detail::group_clusters(placement, Merge::freely, 1 << 20, 4 * block) ==
        Groups{0, 0, 0, 0});
}

TEST_CASE("what is frozen needs no gradient pool, and small units of it merge up to a bucket") {
  Model model = model_of({600, 600, 600, 600});
  for (zero::Tensor& each : model) each.frozen = true;
  model.push_back(tensor(600, 0));
  for (bool const whole : {false, true}) {
    for (zero::Tensor& each : model) each.whole = whole && each.frozen;
    for (Merge const merge : {Merge::within_largest_unit, Merge::freely, Merge::into_padding}) {
      // Gathered, no more than two fit the smallest bucket.
      bool const apart = merge == Merge::into_padding && !whole;
      CHECK(zero::detail::group_clusters(zero::Placement(model), merge, 1 << 20, 4 * block) ==
            (apart ? Groups{0, 1, 1, 2, 2} : Groups{0, 1, 1, 1, 1}));
    }
  }
}

TEST_CASE(
    "from a million to ten trillion parameters joining never costs, and wins in large worlds") {
  for (bool const tied : {false, true}) {
    for (Gpt gpt : sizes) {
      gpt.tied = tied;
      Model const model = gpt.model();
      for (int const ranks : {1, 2, 64, 1024, 16384, 100000}) {
        CAPTURE(gpt.hidden);
        CAPTURE(tied);
        CAPTURE(ranks);
        auto const [plan, padded, held, sent, units] = compare(model, ranks);
        std::uint64_t const joins = plan.joined_units - plan.joined_groups;
        std::uint64_t const smallest = static_cast<std::uint64_t>(ranks) * block;
        // Every unit that joins saves a smallest bucket at least; nothing else changes.
        std::uint64_t const saved = padded - (plan.trained_elements + plan.padding_elements);
        CHECK(saved >= joins * smallest);
        CHECK((saved == 0) == (joins == 0));
        CHECK(plan.memory.total() <= held - 16 * saved / static_cast<std::uint64_t>(ranks));
        CHECK(plan.sent.total() <= sent - 6 * saved / static_cast<std::uint64_t>(ranks) *
                                              static_cast<std::uint64_t>(ranks - 1));
        if (ranks == 1) CHECK(joins == 0);
        bool const said = to_string(plan).find(" units share ") != std::string::npos;
        CHECK(said == (joins > 0));
      }
    }
  }
}

TEST_CASE("what joining wins, in numbers: 124 million parameters, and one million") {
  auto const percent = [](std::uint64_t part, std::uint64_t whole) { return 100 * part / whole; };
  Compared const large = compare(sizes[2].model(), 100000);
  CHECK(large.plan.joined_units == 14);
  CHECK(large.plan.joined_groups == 3);
  CHECK(percent(large.plan.sent.total(), large.sent_alone) == 26);
  CHECK(large.plan.memory.total() < large.held_alone);
  Compared const medium = compare(sizes[2].model(), 1024);
  CHECK(medium.plan.joined_units == 2);
  CHECK(medium.sent_alone - medium.plan.sent.total() == 6 * 512 * 1023);
  CHECK(medium.held_alone - medium.plan.memory.total() == 16 * 512);
  // All of a small model in one bucket, which is all there is to gather: one slot instead of two.
  Compared const small = compare(sizes[0].model(), 100000);
  CHECK(small.plan.joined_groups == 1);
  CHECK(small.plan.sent.total() * 7 == small.sent_alone);
  CHECK(percent(small.plan.memory.total(), small.held_alone) == 49);
  CHECK(to_string(small.plan)
            .find("\n7 units share 1 gather group: a small one lies in what would be a neighbour's "
                  "padding\n") != std::string::npos);
  CHECK(to_string(large.plan).find("\n14 units share 3 gather groups: ") != std::string::npos);
}

}  // namespace grouping_test
