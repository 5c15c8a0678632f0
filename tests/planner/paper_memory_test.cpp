#include "plan/model/paper_memory.hpp"

#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace paper_memory_test {
namespace {

using plan::ExactBytes;
using plan::largest_model;
using plan::model_state_bytes;
using zero::ModelStates;
using zero::Sharding;

constexpr Sharding none{};
constexpr Sharding pos{.optimizer = true};
constexpr Sharding pos_g{.optimizer = true, .gradients = true};
constexpr Sharding pos_gp{.optimizer = true, .gradients = true, .parameters = true};
constexpr std::array levels{none, pos, pos_g, pos_gp};

constexpr std::uint64_t billion = 1'000'000'000;

// Types in, bytes per rank out, before the program runs.
static_assert(model_state_bytes(7'500'000'000,
                                64,
                                pos_gp,
                                zero::model_states<zero::Mixed<zero::bf16>, zero::AdamW>) ==
              ExactBytes{.whole = 1'875'000'000});
static_assert(largest_model(32'000'000'000,
                            64,
                            pos_gp,
                            zero::model_states<zero::Fp32, zero::AdamW>) == 128'000'000'000);

}  // namespace

TEST_CASE("Figure 1: 7.5 billion parameters on 64 ranks") {
  std::array<std::string, 4> const printed{"120", "31.4", "16.6", "1.9"};
  for (std::size_t level = 0; level < levels.size(); ++level) {
    CHECK(plan::paper::figure_1(model_state_bytes(7 * billion + billion / 2, 64, levels[level])) ==
          printed[level]);
  }
}

TEST_CASE("Table 1: gigabytes per device, all 54 cells") {
  struct Row {
    std::uint64_t ranks;
    std::array<std::string, 9> cells;
  };
  std::array<Row, 6> const table{{
      {1, {"120", "120", "120", "2048", "2048", "2048", "16000", "16000", "16000"}},
      {4, {"52.5", "41.3", "30", "896", "704", "512", "7000", "5500", "4000"}},
      {16, {"35.6", "21.6", "7.5", "608", "368", "128", "4750", "2875", "1000"}},
      {64, {"31.4", "16.6", "1.88", "536", "284", "32", "4187", "2218", "250"}},
      {256, {"30.4", "15.4", "0.47", "518", "263", "8", "4046", "2054", "62.5"}},
      {1024, {"30.1", "15.1", "0.12", "513", "257", "2", "4011", "2013", "15.6"}},
  }};
  std::array<std::uint64_t, 3> const models{7'500'000'000, 128 * billion, 1000 * billion};
  for (Row const& row : table) {
    for (std::size_t cell = 0; cell < row.cells.size(); ++cell) {
      CAPTURE(row.ranks);
      CAPTURE(cell);
      CHECK(plan::paper::table_1(model_state_bytes(
                models[cell / 3], row.ranks, levels[1 + cell % 3])) == row.cells[cell]);
    }
  }
}

TEST_CASE("Table 2: the largest model in 32 GB on 64 ranks, all 20 cells of the theory") {
  struct Row {
    std::uint64_t model_parallel;
    std::array<std::string, 4> cells;
  };
  std::array<Row, 5> const table{{
      {1, {"2B", "7.6B", "14.4B", "128B"}},
      {2, {"4B", "15.2B", "28.8B", "256B"}},
      {4, {"8B", "30.4B", "57.6B", "0.5T"}},
      {8, {"16B", "60.8B", "115.2B", "1T"}},
      {16, {"32B", "121.6B", "230.4B", "2T"}},
  }};
  for (Row const& row : table) {
    for (std::size_t cell = 0; cell < row.cells.size(); ++cell) {
      CAPTURE(row.model_parallel);
      CAPTURE(cell);
      CHECK(plan::paper::table_2(largest_model(32 * billion, 64, levels[cell]),
                                 row.model_parallel) == row.cells[cell]);
    }
  }
}

TEST_CASE("the roundings of the paper's tables, at their edges") {
  auto const table_1 = [](std::uint64_t bytes) { return plan::paper::table_1({.whole = bytes}); };
  CHECK(table_1(0) == "0");
  CHECK(table_1(4'999'999) == "0");
  CHECK(table_1(5'000'000) == "0.01");
  CHECK(table_1(1'004'999'999) == "1");
  CHECK(table_1(1'005'000'000) == "1.01");
  CHECK(table_1(9'994'999'999) == "9.99");
  CHECK(table_1(9'995'000'000) == "10");
  CHECK(table_1(10'049'999'999) == "10");
  CHECK(table_1(10'050'000'000) == "10.1");
  CHECK(table_1(99'949'999'999) == "99.9");
  CHECK(table_1(99'950'000'000) == "100");
  CHECK(table_1(100'999'999'999) == "100");
  CHECK(plan::paper::figure_1({.whole = 1'849'999'999}) == "1.8");
  CHECK(plan::paper::figure_1({.whole = 1'850'000'000}) == "1.9");
  CHECK(plan::paper::table_2(99'999'999, 1) == "0B");
  CHECK(plan::paper::table_2(7'699'999'999, 2) == "15.2B");
  CHECK(plan::paper::table_2(499'900'000'000, 1) == "499.9B");
  CHECK(plan::paper::table_2(500'000'000'000, 1) == "0.5T");
  CHECK(plan::paper::table_2(1'099'900'000'000, 1) == "1T");
}

TEST_CASE("bytes per rank follow the paper's four formulas, exactly where N divides nothing") {
  static_assert(model_state_bytes(1000, 4, none) == ExactBytes{.whole = 16'000});
  static_assert(model_state_bytes(1000, 4, pos) == ExactBytes{.whole = 4 * 1000 + 12 * 250});
  static_assert(model_state_bytes(1000, 4, pos_g) == ExactBytes{.whole = 2 * 1000 + 14 * 250});
  static_assert(model_state_bytes(1000, 4, pos_gp) == ExactBytes{.whole = 16 * 250});
  static_assert(largest_model(16'000, 4, pos_gp) == 4000);
  // 12 * 7 / 5 = 16 4/5
  static_assert(model_state_bytes(7, 5, pos) == ExactBytes{44, 4, 5});
  static_assert(model_state_bytes(1, 64, pos_gp) == ExactBytes{0, 1, 4});
  static_assert(model_state_bytes(0, 64, pos_gp) == ExactBytes{});
  // Ranks put together hold every sharded byte once and every replicated byte N times.
  for (std::uint64_t parameters = 0; parameters < 40; ++parameters) {
    for (std::uint64_t ranks = 1; ranks < 20; ++ranks) {
      for (Sharding const sharding : levels) {
        ModelStates const states{.parameter = 2, .gradient = 3, .optimizer = 7};
        ExactBytes const held = model_state_bytes(parameters, ranks, sharding, states);
        std::uint64_t const together = (sharding.parameters ? 1 : ranks) * 2 +
                                       (sharding.gradients ? 1 : ranks) * 3 +
                                       (sharding.optimizer ? 1 : ranks) * 7;
        REQUIRE(held.numerator < held.denominator);
        REQUIRE(ranks % held.denominator == 0);
        REQUIRE(held.whole * ranks + held.numerator * (ranks / held.denominator) ==
                parameters * together);
      }
    }
  }
}

TEST_CASE("the largest model fits and one more parameter does not") {
  std::array<std::uint64_t, 8> const memories{
      0, 1, 15, 16, 17, 12'345, 32 * billion, 80 * billion + 7};
  std::array<std::uint64_t, 6> const worlds{1, 2, 3, 64, 1000, 100'003};
  std::array const kinds{
      ModelStates{}, ModelStates{4, 4, 8}, ModelStates{2, 4, 0}, ModelStates{4, 4, 1}};
  for (std::uint64_t const memory : memories) {
    for (std::uint64_t const ranks : worlds) {
      for (Sharding const sharding : levels) {
        for (ModelStates const& states : kinds) {
          std::uint64_t const most = largest_model(memory, ranks, sharding, states);
          ExactBytes const fits = model_state_bytes(most, ranks, sharding, states);
          ExactBytes const over = model_state_bytes(most + 1, ranks, sharding, states);
          CAPTURE(memory);
          CAPTURE(ranks);
          CHECK((fits.whole < memory || (fits.whole == memory && fits.numerator == 0)));
          CHECK((over.whole > memory || (over.whole == memory && over.numerator > 0)));
        }
      }
    }
  }
}

TEST_CASE("a trillion parameters on a hundred thousand ranks") {
  CHECK(model_state_bytes(1000 * billion, 100'000, pos_gp) == ExactBytes{.whole = 160'000'000});
  CHECK(largest_model(160'000'000, 100'000, pos_gp) == 1000 * billion);
  // 16 bytes of every element fit in 64 bits, 16 bytes of every element on every rank do not.
  CHECK(model_state_bytes(std::uint64_t{1} << 59, 1 << 20, pos_gp) ==
        ExactBytes{.whole = std::uint64_t{1} << 43});
}

TEST_CASE("numbers that do not fit, and no ranks, are refused") {
  std::string const multiplied = "a size does not fit in 64 bits (multiplication overflows)";
  std::uint64_t const large = std::uint64_t{1} << 60;
  for (Sharding const sharding : levels) {
    CHECK(refusal([&] { (void)model_state_bytes(1, 0, sharding); }) ==
          "the memory model needs at least 1 rank");
    CHECK(refusal([&] { (void)largest_model(1, 0, sharding); }) ==
          "the memory model needs at least 1 rank");
  }
  CHECK(refusal([&] { (void)model_state_bytes(large, 4, none); }) == multiplied);
  CHECK(refusal([&] { (void)model_state_bytes(large, 4, pos_gp); }) == multiplied);
  CHECK(refusal([&] {
          (void)model_state_bytes(large, 1, pos, {7, 7, 7});
        }) == "a size does not fit in 64 bits (addition overflows)");
  CHECK(refusal([&] { (void)largest_model(~std::uint64_t{0}, 1 << 20, pos_gp); }) == multiplied);
  CHECK(refusal([&] {
          (void)largest_model(1, 1, pos, {0, 0, 0});
        }) == "model states of 0 bytes: any model fits");
  CHECK(refusal([&] { (void)plan::paper::table_2(~std::uint64_t{0}, 1 << 30); }) == multiplied);
}

}  // namespace paper_memory_test
