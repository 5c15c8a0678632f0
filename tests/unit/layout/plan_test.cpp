/// What a rank holds and sends, as it is planned, counted and printed.
#include "support/refusal.hpp"
#include "support/test.hpp"
#include <zero/layout/memory_plan.hpp>
#include <zero/layout/plan.hpp>
#include <zero/layout/sharding.hpp>
#include <zero/layout/traffic_plan.hpp>

namespace plan_test {
namespace {

using zero::ArrayForm;
using zero::Coding;
using zero::DType;
using zero::MemoryBytes;
using zero::Partition;
using zero::Plan;
using zero::PlanNames;
using zero::Role;
using zero::Sharding;
using zero::StorageTypes;
using zero::Tensor;
using zero::traffic_elements;
using zero::TrafficBytes;
using zero::TrafficElements;
using Model = std::vector<Tensor>;

constexpr Sharding replicated{};
constexpr Sharding pos{.optimizer = true};
constexpr Sharding pos_g{.optimizer = true, .gradients = true};
constexpr Sharding pos_gp{.optimizer = true, .gradients = true, .parameters = true};
constexpr std::array levels{replicated, pos, pos_g, pos_gp};

constexpr std::array adam_arrays{
    ArrayForm{"master"}, ArrayForm{"exp_avg"}, ArrayForm{"exp_avg_sq"}};
constexpr std::array momentum_arrays{ArrayForm{.name = "master", .coding = Coding::parameter},
                                     ArrayForm{"momentum"}};
constexpr StorageTypes mixed_adam{
    .parameter = DType::bf16, .wire = DType::bf16, .arrays = adam_arrays};
constexpr StorageTypes fp32_momentum{.arrays = momentum_arrays};

/// The choices of a plan, and the types of its one kind.
struct Choice {
  Sharding sharding{};
  StorageTypes types{};
  bool full_gradients = false;
  bool reduced_shard = false;
  bool borrowed = false;
  int prefetch = 1;
  std::uint64_t control_bytes = 0;
  std::uint64_t control_bytes_each = 0;
  std::uint64_t communicator_bytes = 0;
  bool in_place = false;
  [[nodiscard]] zero::StorageChoice storage() const {
    return {.sharding = sharding,
            .full_gradients = full_gradients,
            .reduced_shard = reduced_shard,
            .borrowed = borrowed,
            .prefetch = prefetch,
            .control_bytes = control_bytes,
            .control_bytes_each = control_bytes_each,
            .communicator_bytes = communicator_bytes,
            .in_place = in_place};
  }
};

PlanNames const names{
    .stage = "Pos+g", .precision = "bf16", .rule = "AdamW", .accumulation = "none"};

/// Sizes that every N from 1 to 8 divides into blocks.
constexpr std::size_t even = 512 * 840;
constexpr std::uint64_t psi = 4 * even;

Model even_model() {
  return {{.name = "a", .shape = {even}, .unit = 0},
          {.name = "b", .shape = {2, even}, .unit = 1},
          {.name = "c", .shape = {even / 2}, .unit = 2},
          {.name = "d", .shape = {even / 2}, .unit = 2}};
}

Model odd_model() {
  return {{.name = "a", .shape = {1}, .unit = 0},
          {.name = "b", .shape = {513, 77}, .unit = 1},
          {.name = "c", .shape = {0}, .unit = 2},
          {.name = "d", .shape = {4095}, .unit = 3},
          {.name = "e", .shape = {100'003}, .unit = 3}};
}

Model printed_model() {
  return {{.name = "wte", .shape = {2048, 500}, .unit = 0},
          {.name = "h", .shape = {40, 1000}, .unit = 1},
          {.name = "pos", .shape = {100}, .unit = 1, .frozen = true}};
}

/// Of one tensor each.
Model equal_units(int units, std::size_t size) {
  Model model;
  for (int unit = 0; unit < units; ++unit) {
    model.push_back({.name = std::to_string(unit), .shape = {size}, .unit = unit});
  }
  return model;
}

Partition partition_of(Model const& model, int ranks, std::uint64_t bucket = 1 << 20) {
  return Partition(
      model, {.world_size = ranks, .bucket_elements = bucket, .merge = zero::Merge::into_padding});
}

Plan make_plan(Partition const& partition,
               Choice const& choice,
               PlanNames const& called,
               std::uint64_t micro_steps = 1) {
  return zero::make_plan(partition,
                         choice.storage(),
                         zero::kind_types(partition.placement(), {choice.types}),
                         called,
                         micro_steps);
}

MemoryBytes bytes_of(Partition const& partition, Choice const& choice) {
  zero::KindTypes const types = kind_types(partition.placement(), {choice.types});
  return memory_bytes(storage_elements(partition, choice.storage(), types), types);
}

/// What the paper counts: everything but pools and staging.
std::uint64_t model_states(MemoryBytes const& bytes) {
  return bytes[Role::parameters] + bytes[Role::gradients] + bytes[Role::master] +
         bytes[Role::state];
}

/// The paper's formula for parameters of so many bytes in each of its states.
std::uint64_t exact(std::uint64_t parameters,
                    int ranks,
                    Sharding sharding,
                    std::array<std::uint64_t, 3> const& states) {
  auto const n = static_cast<std::uint64_t>(ranks);
  REQUIRE(parameters % n == 0);
  return parameters * states[0] / (sharding.parameters ? n : 1) +
         parameters * states[1] / (sharding.gradients ? n : 1) +
         parameters * states[2] / (sharding.optimizer ? n : 1);
}

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

std::string const multiplied = "a size does not fit in 64 bits (multiplication overflows)";
std::string const added = "a size does not fit in 64 bits (addition overflows)";

}  // namespace

TEST_CASE("sharding is a plain value, of which each level includes the one before") {
  for (int bits = 0; bits < 8; ++bits) {
    Sharding const sharding{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
    CHECK(sharding.nested() == (bits == 0 || bits == 1 || bits == 3 || bits == 7));
  }
  static_assert(replicated == Sharding{false, false, false} && pos != replicated);
  static_assert(replicated.nested());
}

TEST_CASE("model states are what the paper says, to the byte, plus padding") {
  for (int const ranks : {1, 2, 3, 4, 5, 6, 7, 8, 64}) {
    CAPTURE(ranks);
    for (std::uint64_t const bucket : {std::uint64_t{0}, std::uint64_t{9999}}) {
      Partition const partition = partition_of(odd_model(), ranks, bucket);
      std::uint64_t const padded = partition.padded_elements();
      for (Sharding const sharding : levels) {
        CHECK(model_states(bytes_of(partition, {.sharding = sharding, .types = mixed_adam})) ==
              exact(padded, ranks, sharding, {2, 2, 12}));
        CHECK(model_states(bytes_of(partition, {.sharding = sharding, .types = fp32_momentum})) ==
              exact(padded, ranks, sharding, {4, 4, 4}));
      }
    }
    if (ranks > 8) continue;
    auto const n = static_cast<std::uint64_t>(ranks);
    Partition const partition = partition_of(even_model(), ranks, even);
    REQUIRE(partition.padded_elements() == psi);
    auto const held = [&](Sharding sharding) {
      return model_states(bytes_of(partition, {.sharding = sharding, .types = mixed_adam}));
    };
    CHECK(held(replicated) == 16 * psi);
    CHECK(held(pos) == 4 * psi + 12 * psi / n);
    CHECK(held(pos_g) == 2 * psi + 14 * psi / n);
    CHECK(held(pos_gp) == 16 * psi / n);
  }
}

TEST_CASE("each role holds its own bytes, under every choice") {
  // N = 4, a bucket of psi / 4 elements; the largest unit has psi / 2.
  Partition const partition = partition_of(even_model(), 4, even);
  struct Row {
    char const* what;
    Choice choice;
    /// In multiples of psi / 4: parameters, gradients, master, state, gradient pool, gather pool
    /// and staging.
    std::array<std::uint64_t, 7> held;
  };
  Row const rows[] = {
      {"replicated", {replicated}, {8, 8, 16, 32, 0, 0, 0}},
      {"Pos", {pos}, {8, 8, 4, 8, 0, 0, 0}},
      {"fp32 needs no master", {pos, fp32_momentum}, {16, 16, 0, 4, 0, 0, 0}},
      {"Pos+g: two of the largest units are under way", {pos_g}, {8, 2, 4, 8, 8, 0, 0}},
      {"Pos+g+p", {pos_gp, {}, false, false, false, 0}, {2, 2, 4, 8, 8, 4, 0}},
      {"and a unit ahead", {pos_gp}, {2, 2, 4, 8, 8, 8, 0}},
      {"never more than all", {pos_gp, {}, false, false, false, 9}, {2, 2, 4, 8, 8, 12, 0}},
      {"full gradients need no pool", {replicated, {}, true}, {8, 8, 16, 32, 0, 0, 0}},
      {"full, Pos", {pos, {}, true}, {8, 8, 4, 8, 0, 0, 0}},
      {"full, Pos+g", {pos_g, {}, true}, {8, 8, 4, 8, 0, 0, 0}},
      {"full, Pos+g+p", {pos_gp, {}, true}, {2, 8, 4, 8, 0, 8, 0}},
      {"sums of a bucket are shown", {replicated, {}, false, true}, {8, 12, 16, 32, 0, 0, 4}},
      {"sums in fp32, Pos", {pos, {}, false, true}, {8, 12, 4, 8, 0, 0, 0}},
      {"sums in fp32, Pos+g", {pos_g, {}, false, true}, {8, 4, 4, 8, 8, 0, 0}},
      {"sums in fp32, Pos+g+p", {pos_gp, {}, false, true}, {2, 4, 4, 8, 8, 8, 0}},
      {"lent: two buckets", {replicated, {}, false, false, true}, {0, 2, 16, 32, 0, 0, 4}},
      {"lent, Pos", {pos, {}, false, false, true}, {0, 2, 4, 8, 0, 0, 4}},
      {"lent, Pos+g", {pos_g, {}, false, false, true}, {0, 2, 4, 8, 0, 0, 4}},
      {"lent, sums", {pos, {}, false, true, true}, {0, 4, 4, 8, 0, 0, 4}},
  };
  Role const roles[] = {Role::parameters,
                        Role::gradients,
                        Role::master,
                        Role::state,
                        Role::gradient_pool,
                        Role::gather_pool,
                        Role::staging};
  Model frozen = even_model();
  frozen.push_back({.name = "f", .shape = {1000}, .unit = 1, .frozen = true});
  for (Row const& row : rows) {
    CAPTURE(row.what);
    Choice choice = row.choice;
    if (choice.types == StorageTypes{}) choice.types = mixed_adam;
    MemoryBytes expected;
    std::uint64_t total = 0;
    for (std::size_t r = 0; r < row.held.size(); ++r) {
      expected[roles[r]] = row.held[r] * even;
      total += row.held[r] * even;
    }
    MemoryBytes const bytes = bytes_of(partition, choice);
    for (Role const role : roles) CHECK_MESSAGE(bytes[role] == expected[role], name(role));
    CHECK(bytes == expected);
    CHECK(bytes.total() == total);
    // Frozen tensors hold parameters and nothing else, or a share of them, which is gathered with
    // their unit, or all of them where they are whole. And no model holds nothing.
    bool const gathered = choice.sharding.parameters;
    std::uint64_t const padded = 2048 * size_of(choice.types.parameter);
    MemoryBytes whole = expected;
    if (!choice.borrowed) expected[Role::parameters] += gathered ? padded / 4 : padded;
    auto const slots = static_cast<std::uint64_t>((std::min)(choice.prefetch + 1, 3));
    if (gathered) expected[Role::gather_pool] += slots * padded;
    CHECK(bytes_of(partition_of(frozen, 4, even), choice) == expected);
    if (!choice.borrowed) whole[Role::parameters] += padded;
    frozen.back().whole = true;
    CHECK(bytes_of(partition_of(frozen, 4, even), choice) == whole);
    frozen.back().whole = false;
    CHECK(bytes_of(partition_of({}, 4), choice) == MemoryBytes{});
  }
}

TEST_CASE("a plan of several kinds is the sum of theirs") {
  Model const model{{.name = "w", .shape = {70'000}, .unit = 0},
                    {.name = "n", .shape = {77}, .unit = 0},
                    {.name = "v", .shape = {90'001}, .unit = 1},
                    {.name = "m", .shape = {513}, .unit = 1}};
  Role const roles[] = {
      Role::parameters, Role::gradients, Role::master, Role::state, Role::gradient_pool};
  for (int const ranks : {1, 3, 4}) {
    CAPTURE(ranks);
    zero::PartitionOptions const options{
        .world_size = ranks, .bucket_elements = 9999, .merge = zero::Merge::within_largest_unit};
    Partition const partition(model, options, {0, 1, 0, 1});
    for (Sharding const sharding : levels) {
      for (bool const sums : {false, true}) {
        zero::StorageChoice const storage{.sharding = sharding, .reduced_shard = sums};
        Plan const both =
            zero::make_plan(partition, storage, {mixed_adam, fp32_momentum}, names, 2);
        Plan const wide =
            zero::make_plan(Partition({model[0], model[2]}, options), storage, {mixed_adam}, {}, 2);
        Plan const narrow = zero::make_plan(
            Partition({model[1], model[3]}, options), storage, {fp32_momentum}, {}, 2);
        for (Role const role : roles) {
          CHECK_MESSAGE(both.memory[role] == wide.memory[role] + narrow.memory[role], name(role));
        }
        CHECK(both.memory[Role::staging] ==
              std::max(wide.memory[Role::staging], narrow.memory[Role::staging]));
        CHECK(both.padding_elements == wide.padding_elements + narrow.padding_elements);
        CHECK(both.traffic.total() == wide.traffic.total() + narrow.traffic.total());
        CHECK(both.sent.reduce == wide.sent.reduce + narrow.sent.reduce);
        CHECK(both.sent.publish == wide.sent.publish + narrow.sent.publish);
        CHECK(both.sent.gather == wide.sent.gather + narrow.sent.gather);
        CHECK(both.bucket_bytes == std::max(wide.bucket_bytes, narrow.bucket_bytes));
        CHECK(both.asked_bucket_bytes == narrow.asked_bucket_bytes);
        CHECK(both.asked_bucket_bytes == 2 * wide.asked_bucket_bytes);
        CHECK(both.state_arrays.size() == 3);
        std::uint64_t states = 0;
        for (auto const& array : both.state_arrays) states += array.bytes;
        CHECK(states == both.memory[Role::state]);
      }
    }
  }
}

TEST_CASE("where trained tensors differ, formulas say what those of each type take") {
  Model const model{{.name = "w", .shape = {4096}, .unit = 0},
                    {.name = "n", .shape = {2048}, .unit = 0},
                    {.name = "b", .shape = {2048}, .unit = 0, .frozen = true},
                    {.name = "f", .shape = {2048}, .unit = 0, .frozen = true}};
  StorageTypes const bytes{.parameter = DType::u8, .wire = DType::u8, .accumulate = DType::u8};
  StorageTypes frozen = fp32_momentum;
  frozen.arrays = {};
  zero::PartitionOptions const options{.world_size = 4, .bucket_elements = 9999};
  Partition const partition(model, options, {0, 1, 2, 1});
  Plan const plan = zero::make_plan(
      partition, {.sharding = pos_gp}, {mixed_adam, fp32_momentum, bytes, frozen}, names);
  CHECK(plan.kind_elements == std::vector<std::uint64_t>{4096, 2048, 2048, 2048});
  std::string const text = to_string(plan);
  auto const says = [&](std::string const& what) {
    CHECK_MESSAGE(text.find(what) != std::string::npos, what, " is not in\n", text);
  };
  says("padding (0.0%); 4,096 of bf16, 2,048 of fp32\n");
  says("padding (0.0%); 2,048 of uint8, 2,048 of fp32\n");
  says("  2Ψ_bf16/N + 4Ψ_fp32/N + frozen tensors by their types\n");
  says("  4Ψ_bf16/N\n");
  says("  8Ψ_bf16/N + 4Ψ_fp32/N\n");
}

TEST_CASE("neither pools nor staging grow with the number of equal units") {
  auto const pools = [](int units) {
    MemoryBytes const bytes = bytes_of(partition_of(equal_units(units, 1000), 3),
                                       {.sharding = pos_gp, .types = mixed_adam});
    return bytes[Role::gradient_pool] + bytes[Role::gather_pool];
  };
  CHECK(pools(1) == 2 * 2 * 1536);
  CHECK(pools(2) == 2 * pools(1));
  CHECK(pools(50) == pools(2));
  for (int const units : {1, 7, 40}) {
    Partition const partition = partition_of(equal_units(units, 50'000), 4, 8192);
    MemoryBytes const bytes =
        bytes_of(partition, {.sharding = pos_g, .types = mixed_adam, .borrowed = true});
    CHECK(bytes[Role::staging] == 2 * 2 * 8192);
  }
}

TEST_CASE("tied gradients wait for their last use in memory of their own") {
  Model const model{{.name = "wte", .shape = {1024}, .unit = 0},
                    {.name = "h", .shape = {2048}, .unit = 1},
                    {.name = "head", .shape = {1024}, .unit = 2, .tied_to = "wte"}};
  Partition const partition = partition_of(model, 2);
  MemoryBytes const bytes = bytes_of(partition, {.sharding = pos_g, .types = mixed_adam});
  CHECK(bytes[Role::gradient_pool] == (2048 + 1024) * 2);
  CHECK(model_states(bytes) == exact(3072, 2, pos_g, {2, 2, 12}));
}

TEST_CASE("what is frozen is gathered once for each pass of each unit that uses it") {
  // N = 4, whose smallest bucket has 2048 elements.
  Model const model{{.name = "a", .shape = {4096}, .unit = 0},
                    {.name = "f", .shape = {2048}, .unit = 0, .frozen = true},
                    {.name = "w", .shape = {2048}, .unit = 0, .frozen = true, .whole = true},
                    {.name = "again", .shape = {2048}, .unit = 1, .frozen = true, .tied_to = "f"},
                    {.name = "g", .shape = {100}, .unit = 1, .frozen = true}};
  Partition const partition = partition_of(model, 4);
  for (std::uint64_t const micro_steps : {1u, 3u}) {
    Plan const plan =
        make_plan(partition, {.sharding = pos_gp, .types = mixed_adam}, names, micro_steps);
    std::uint64_t const passes = 2 * micro_steps;
    CHECK(plan.traffic.gather == passes * 3 * 1024);
    CHECK(plan.traffic.frozen == passes * 3 * (512 + 512 + 512));
    CHECK(plan.sent.frozen == 2 * plan.traffic.frozen);
    CHECK(plan.traffic.total() == plan.traffic.reduce + plan.traffic.gather + plan.traffic.frozen);
    CHECK(plan.frozen_elements == 2048 + 100);
    CHECK(plan.whole_elements == 2048);
    CHECK(plan.frozen_padding_elements == 1948);
    CHECK(plan.padding_elements == 0);
    CHECK(plan.memory[Role::parameters] == 2 * (1024 + 512 + 512 + 2048));
    // The first unit's tensors, and the second one's.
    CHECK(plan.memory[Role::gather_pool] == 2 * 2 * (4096 + 2048));
    CHECK(contains(to_string(plan),
                   "2Ψ_frozen(N-1)/N" + std::string(micro_steps == 1 ? "" : " x 3 micro-steps") +
                       ", and tied tensors again\n"));
  }
  CHECK(make_plan(partition, {.sharding = pos_g, .types = mixed_adam}, names).traffic.frozen == 0);
}

TEST_CASE("bytes beyond 2^32 are exact, and those that do not fit are refused") {
  Model const model{{.name = "a", .shape = {std::size_t{1} << 59}}};
  Partition const partition = partition_of(model, 64, std::uint64_t{1} << 54);
  CHECK(model_states(bytes_of(partition, {.sharding = pos_gp, .types = mixed_adam})) ==
        std::uint64_t{1} << 57);

  Model const larger{{.name = "a", .shape = {std::size_t{1} << 62}}};
  Partition const huge = partition_of(larger, 2, std::uint64_t{1} << 60);
  CHECK(refusal([&] { (void)bytes_of(huge, {.sharding = replicated, .types = fp32_momentum}); }) ==
        multiplied);
}

TEST_CASE("a total that does not fit is refused even where every role does") {
  MemoryBytes bytes;
  bytes[Role::parameters] = std::uint64_t{1} << 63;
  bytes[Role::state] = (std::uint64_t{1} << 63) - 1;
  CHECK(bytes.total() == ~std::uint64_t{0});
  bytes[Role::staging] = 1;
  CHECK(refusal([&] { (void)bytes.total(); }) == added);
}

TEST_CASE("control bytes are what the choice says, under every stage and for no model at all") {
  for (bool const sharded : {false, true}) {
    Choice const choice{.sharding = {sharded, sharded, sharded}, .control_bytes = 1744};
    MemoryBytes const bytes = bytes_of(partition_of({}, 4), choice);
    CHECK(bytes[Role::control] == 1744);
    CHECK(bytes.total() == 1744);
  }
  // And those of each tensor.
  Choice const choice{.control_bytes = 100, .control_bytes_each = 16};
  for (unsigned const count : {1u, 3u, 4u}) {
    Partition const partition = partition_of(equal_units(static_cast<int>(count), 2), 4);
    CHECK(bytes_of(partition, choice)[Role::control] == 100 + 16 * count);
  }
  // What a communicator holds is counted as it is told.
  Choice const told{.sharding = pos_g, .types = mixed_adam, .communicator_bytes = 4711};
  CHECK(bytes_of(partition_of(even_model(), 4), told)[Role::communicator] == 4711);
}

TEST_CASE("every role has a name of its own") {
  std::vector<std::string> all;
  for (int r = 0; r < zero::role_count; ++r) all.emplace_back(name(static_cast<Role>(r)));
  CHECK(all == std::vector<std::string>{"parameters",
                                        "gradients",
                                        "master",
                                        "state",
                                        "gradient_pool",
                                        "gather_pool",
                                        "staging",
                                        "control",
                                        "communicator",
                                        "activations",
                                        "activation_pool",
                                        "activation_staging"});
}

TEST_CASE("a rank sends 2, 2, 2 and 3 times the model's (N-1)/N elements a step") {
  Model others = even_model();
  others.push_back({.name = "f", .shape = {999}, .unit = 1, .frozen = true});
  others.push_back({.name = "e", .shape = {0}, .unit = 3});
  for (int ranks = 1; ranks <= 8; ++ranks) {
    CAPTURE(ranks);
    auto const n = static_cast<std::uint64_t>(ranks);
    std::uint64_t const once = psi * (n - 1) / n;
    // Frozen and empty tensors send nothing.
    for (Model const& model : {even_model(), others}) {
      Partition const partition = partition_of(model, ranks);
      for (Sharding const sharding : levels) {
        auto const sent = [&](std::uint64_t micro_steps, bool full, bool shard) {
          return traffic_elements(
              partition,
              {.sharding = sharding, .full_gradients = full, .reduced_shard = shard},
              micro_steps);
        };
        TrafficElements expected{.reduce = once, .publish = once};
        if (sharding.parameters) expected = {.reduce = once, .gather = 2 * once};
        CHECK(sent(1, false, false) == expected);
        CHECK(expected.total() == (sharding.parameters ? 3 * once : 2 * once));
        // Micro-steps cost traffic only where they must.
        expected.gather *= 5;
        CHECK(sent(5, true, false) == expected);
        expected.reduce *= 5;
        CHECK(sent(5, false, true) == expected);
      }
    }
  }
  // Padding travels too.
  CHECK(traffic_elements(partition_of({{.name = "a", .shape = {1}}}, 4), {.sharding = pos}) ==
        TrafficElements{.reduce = 3 * 512, .publish = 3 * 512});
}

TEST_CASE("a tied tensor is reduced once and gathered for each unit that uses it") {
  Model model = even_model();
  model.push_back({.name = "head", .shape = {even}, .unit = 5, .tied_to = "a"});
  Partition const partition = partition_of(model, 4);
  std::uint64_t const once = 3 * even;
  std::uint64_t const again = 3 * even / 4;
  CHECK(traffic_elements(partition, {.sharding = pos_gp}) ==
        TrafficElements{.reduce = once, .gather = 2 * once + 2 * again});
  CHECK(traffic_elements(partition, {.sharding = pos_g}) ==
        TrafficElements{.reduce = once, .publish = once});
}

TEST_CASE("traffic beyond 2^32 is exact, and traffic that does not fit is refused") {
  Model const model{{.name = "a", .shape = {std::size_t{1} << 60}}};
  Partition const partition(model, {.world_size = 64, .bucket_elements = std::uint64_t{1} << 55});
  std::uint64_t const once = (std::uint64_t{1} << 60) / 64 * 63;
  CHECK(traffic_elements(partition, {.sharding = pos}).total() == 2 * once);
  CHECK(traffic_elements(partition, {.sharding = pos_gp}).total() == 3 * once);
  for (std::uint64_t const micro_steps : {std::uint64_t{100}, std::uint64_t{1} << 63}) {
    CHECK(refusal([&] { (void)traffic_elements(partition, {.sharding = pos_gp}, micro_steps); }) ==
          multiplied);
  }
  TrafficElements const most{.reduce = std::uint64_t{1} << 63, .gather = std::uint64_t{1} << 63};
  CHECK(refusal([&] { (void)most.total(); }) == added);
}

TEST_CASE("a plan says what the partition, the memory plan and the traffic plan say") {
  Partition const partition = partition_of(printed_model(), 4);
  for (Sharding const sharding : levels) {
    Choice const choice{.sharding = sharding, .types = mixed_adam};
    Plan const plan = make_plan(partition, choice, names, 3);
    CHECK(plan.world_size == 4);
    CHECK(plan.trained_elements == 2048 * 500 + 40'000);
    CHECK(plan.trained_elements + plan.padding_elements == partition.padded_elements());
    CHECK(plan.frozen_elements == 100);
    CHECK(plan.frozen_elements + plan.frozen_padding_elements == partition.padded_elements(1));
    CHECK(plan.micro_steps == 3);
    CHECK(plan.memory == bytes_of(partition, choice));
    TrafficElements traffic = traffic_elements(partition, choice.storage(), 3);
    traffic.frozen = traffic_elements(partition, choice.storage(), 3, 1).total();
    CHECK(traffic.frozen == (sharding.parameters ? 2 * 3 * 2048 / 4 * 3 : 0));
    CHECK(plan.traffic == traffic);
    CHECK(plan.sent.frozen == 2 * traffic.frozen);
    CHECK(plan.names == names);
    CHECK(plan.storage.sharding == sharding);
  }
}

TEST_CASE("state arrays are listed by name and make up the state") {
  for (std::size_t const arrays : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
    constexpr std::array<ArrayForm, 4> forms{ArrayForm{"master"},
                                             ArrayForm{"s0", DType::bf16},
                                             ArrayForm{"s1", DType::f64},
                                             ArrayForm{"s2", DType::u8}};
    StorageTypes types = mixed_adam;
    types.arrays = std::span(forms).first(1 + arrays);
    Plan const plan = make_plan(partition_of(printed_model(), 3), {pos, types}, names);
    REQUIRE(plan.state_arrays.size() == arrays);
    std::uint64_t total = 0;
    for (std::size_t k = 0; k < arrays; ++k) {
      ArrayForm const& form = forms[1 + k];
      CHECK(plan.state_arrays[k] ==
            zero::StateArrayBytes{std::string(form.name),
                                  form.dtype,
                                  plan.memory[Role::master] / 4 * size_of(form.dtype)});
      total += plan.state_arrays[k].bytes;
    }
    CHECK(total == plan.memory[Role::state]);
  }
}

TEST_CASE("bytes sent count each purpose in the dtype that travels") {
  Partition const partition = partition_of({{.name = "a", .shape = {4096}}}, 4);
  StorageTypes const distinct{
      .parameter = DType::bf16, .accumulate = DType::f64, .arrays = adam_arrays};
  auto const sent = [&](Sharding sharding, bool reduced_shard = false) {
    return make_plan(partition,
                     {.sharding = sharding, .types = distinct, .reduced_shard = reduced_shard},
                     names)
        .sent;
  };
  std::uint64_t const once = 3 * 1024;
  CHECK(sent(pos) == TrafficBytes{.reduce = 4 * once, .publish = 2 * once});
  CHECK(sent(pos_g) == TrafficBytes{.reduce = 4 * once, .publish = 2 * once});
  CHECK(sent(pos_gp) == TrafficBytes{.reduce = 4 * once, .gather = 2 * 2 * once});
  // Replicated, gradients are what is published: as they travelled, or as they were summed up.
  CHECK(sent(replicated) == TrafficBytes{.reduce = 4 * once, .publish = 4 * once});
  CHECK(sent(replicated, true) == TrafficBytes{.reduce = 4 * once, .publish = 8 * once});
  CHECK(sent(pos_gp).total() == 8 * once);
}

TEST_CASE("a plan as a table, and in one line") {
  Plan const plan =
      make_plan(partition_of(printed_model(), 4), {.sharding = pos_g, .types = mixed_adam}, names);
  CHECK(to_string(plan) ==
        R"(plan: stage Pos+g, precision bf16, rule AdamW, accumulation none, N = 4
Ψ = 1,064,960 elements: 1,064,000 trained, 960 padding (0.1%)
Ψ_frozen = 2,048 elements: 100 frozen, 1,948 padding (95.1%)

held per rank      bytes                  %  formula
parameters     2,134,016    2.0 MiB   21.4%  2Ψ + 2Ψ_frozen
gradients        532,480  520.0 KiB    5.3%  2Ψ/N
master         1,064,960    1.0 MiB   10.7%  4Ψ/N
state          2,129,920    2.0 MiB   21.4%  8Ψ/N
  exp_avg      1,064,960    1.0 MiB   10.7%  4Ψ/N
  exp_avg_sq   1,064,960    1.0 MiB   10.7%  4Ψ/N
gradient_pool  4,096,000    3.9 MiB   41.1%  the largest units under way, all tied ones
gather_pool            0        0 B    0.0%
staging                0        0 B    0.0%
control                0        0 B    0.0%
communicator           0        0 B    0.0%
total          9,957,376    9.5 MiB  100.0%

sent per rank and step   elements      bytes       %  formula
reduce                    798,720  1,597,440   50.0%  Ψ(N-1)/N
publish                   798,720  1,597,440   50.0%  Ψ(N-1)/N
gather                          0          0    0.0%
frozen                          0          0    0.0%
total                   1,597,440  3,194,880  100.0%
)");
  CHECK(to_line(plan) ==
        "Pos+g bf16 AdamW N=4: holds 9.5 MiB (parameters 2.0 MiB, gradients 520.0 KiB, "
        "master 1.0 MiB, state 2.0 MiB, gradient_pool 3.9 MiB), sends 1,597,440 elements "
        "(3.0 MiB) a step");
}

TEST_CASE("the table names the formula of each stage") {
  Partition const partition = partition_of(printed_model(), 4);
  auto const table = [&](Choice choice, std::uint64_t micro_steps = 1) {
    choice.types = mixed_adam;
    return to_string(make_plan(partition, choice, names, micro_steps));
  };
  CHECK(contains(table({.sharding = replicated}), "  8Ψ\n"));
  CHECK(contains(table({.sharding = pos}), "  8Ψ/N\n"));
  CHECK(contains(table({.sharding = pos_gp}), "  2Ψ/N + 2Ψ_frozen/N\n"));
  CHECK(contains(table({.sharding = pos_gp}, 4), "  2Ψ_frozen(N-1)/N x 4 micro-steps\n"));
  CHECK(contains(table({.sharding = pos_gp}), "  2Ψ(N-1)/N\n"));
  CHECK(contains(table({.sharding = pos, .reduced_shard = true}), "  2Ψ + 4Ψ/N\n"));
  CHECK(contains(table({.sharding = pos_g, .full_gradients = true}), "  2Ψ\n"));
  CHECK(contains(table({.sharding = pos_g, .reduced_shard = true}, 4),
                 "  Ψ(N-1)/N x 4 micro-steps\n"));
  CHECK(contains(table({.sharding = pos_gp}, 4), "  2Ψ(N-1)/N x 4 micro-steps\n"));
  CHECK(contains(table({.sharding = pos, .borrowed = true}), "full ones lent by the trainer\n"));
  Choice const in_place{.sharding = pos, .borrowed = true, .in_place = true};
  CHECK_FALSE(contains(table(in_place), "full ones lent"));
  CHECK_FALSE(contains(table({.sharding = pos_gp}), "tied tensors again"));
  Model whole = printed_model();
  whole.back().whole = true;
  std::string const text = to_string(
      make_plan(partition_of(whole, 4), {.sharding = pos_gp, .types = mixed_adam}, names));
  CHECK(contains(text, " 960 padding (0.1%); 2,048 more are whole\n"));
  CHECK(contains(text, "  2Ψ/N + 2 per whole element\n"));
  CHECK_FALSE(contains(text, "frozen"));
  Model tied = printed_model();
  tied.push_back({.name = "head", .shape = {2048, 500}, .unit = 1, .tied_to = "wte"});
  Plan const plan =
      make_plan(partition_of(tied, 2), {.sharding = pos_gp, .types = mixed_adam}, names);
  CHECK(contains(to_string(plan), "2Ψ(N-1)/N, and tied tensors again\n"));
}

TEST_CASE(
    "a bucket has the bytes that were asked for, whatever the model, or the plan says why not") {
  constexpr std::uint64_t asked = 25 * zero::MiB;
  for (int const ranks : {1, 64, 1024, 100000}) {
    auto const smallest = static_cast<std::uint64_t>(ranks) * zero::block * 2;
    for (std::uint64_t elements = 1'000'000; elements <= 10'000'000'000'000; elements *= 10) {
      CAPTURE(ranks);
      CAPTURE(elements);
      Model layers;
      for (int unit = 0; unit < 50; ++unit) {
        layers.push_back({.name = std::to_string(unit), .shape = {elements / 50}, .unit = unit});
      }
      Partition const partition(
          layers,
          {.world_size = ranks, .bucket_elements = asked / 2, .merge = zero::Merge::into_padding});
      Plan const plan = make_plan(partition, {pos_gp, mixed_adam, false, false, false, 1}, names);
      // A layer alone may be smaller.
      std::uint64_t const most = (std::max)(asked, smallest);
      CHECK(plan.bucket_bytes <= most);
      if (elements / 50 * 2 > 2 * most) CHECK(plan.bucket_bytes > most - smallest);
      std::uint64_t const layer = zero::round_up(elements / 50 * 2, smallest);
      CHECK(plan.bucket_bytes ==
            (std::min)(layer, asked < smallest ? smallest : asked / smallest * smallest));
      bool const said = contains(to_string(plan), "instead of 25.0 MiB: the smallest has 512");
      CHECK(said == (plan.bucket_bytes > asked));
      CHECK(said == (ranks == 100000));
    }
  }
}

TEST_CASE("the plan of an empty model can be printed") {
  Plan const plan = make_plan(partition_of({}, 2), {pos, mixed_adam}, names);
  CHECK(plan.memory.total() == 0);
  CHECK(contains(to_string(plan), "Ψ = 0 elements: 0 trained, 0 padding (-)\n"));
  CHECK(to_line(plan) == "Pos+g bf16 AdamW N=2: holds 0 B, sends 0 elements (0 B) a step");
}

TEST_CASE("numbers are printed in full, sizes in binary units") {
  CHECK(zero::detail::with_commas(0) == "0");
  CHECK(zero::detail::with_commas(999) == "999");
  CHECK(zero::detail::with_commas(1000) == "1,000");
  CHECK(zero::detail::with_commas(~std::uint64_t{0}) == "18,446,744,073,709,551,615");
  CHECK(zero::detail::in_binary_units(1023) == "1023 B");
  CHECK(zero::detail::in_binary_units(1024) == "1.0 KiB");
  CHECK(zero::detail::in_binary_units(1536 * zero::MiB) == "1.5 GiB");
  CHECK(zero::detail::in_binary_units(zero::MiB - 1) == "1.0 MiB");
  CHECK(zero::detail::in_binary_units(~std::uint64_t{0}) == "16.0 EiB");
}

TEST_CASE("a plan that does not fit, and a step without micro-steps, are refused") {
  Model const model{{.name = "a", .shape = {std::size_t{1} << 60}}};
  Partition const partition(model, {.world_size = 4, .bucket_elements = std::uint64_t{1} << 58});
  // Each role fits; together they are 2^64 bytes.
  CHECK(refusal([&] {
          (void)make_plan(partition, {.sharding = replicated, .types = mixed_adam}, names);
        }) == added);
  CHECK_NOTHROW((void)make_plan(partition, {.sharding = pos_gp, .types = {}}, names));
  CHECK(refusal([&] { (void)make_plan(partition, {}, names, 0); }) ==
        "a step has at least 1 micro-step");
}

}  // namespace plan_test
