// Fine-tuning: the base in 8 bits, from any range of bytes; adapters, and their gradients.
#include "adapters.hpp"

#include "support/test.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gpt_adapters_test {
namespace {

std::vector<float> some(std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(gpt::random_bits(seed, i) % 2001) / 1000.F - 1.F;
  }
  return values;
}

std::vector<std::uint8_t> coded(gpt::EightBits const& bits,
                                std::vector<float> const& matrix,
                                std::size_t bytes,
                                std::size_t step) {
  std::vector<std::uint8_t> all(bytes);
  for (std::size_t first = 0; first < bytes; first += step) {
    auto const out = std::span(all).subspan(first, std::min(step, bytes - first));
    bits.encode(first, std::as_writable_bytes(out), [&](std::size_t at, std::span<float> values) {
      REQUIRE(at + values.size() <= matrix.size());
      // No more than whole blocks around what is asked for.
      CHECK(values.size() <= out.size() + 62);
      std::copy_n(matrix.data() + at, values.size(), values.data());
    });
  }
  return all;
}

}  // namespace

TEST_CASE("a matrix in 8 bits is the same however its bytes are divided") {
  for (std::size_t const columns : {1u, 16u, 32u, 33u, 64u, 100u}) {
    CAPTURE(columns);
    std::size_t const rows = 5;
    auto matrix = some(rows * columns, 7);
    std::fill_n(matrix.begin() + 2, std::min<std::size_t>(columns - 1, 40), 0.F);
    gpt::EightBits const bits(columns);
    std::size_t const bytes = rows * bits.row_bytes();
    CHECK(bits.row_bytes() == columns + 4 * ((columns + 31) / 32));
    auto const whole = coded(bits, matrix, bytes, bytes);
    for (std::size_t const step : {1u, 3u, 36u, 37u, 101u}) {
      CHECK(coded(bits, matrix, bytes, step) == whole);
    }
    std::vector<float> back(matrix.size());
    bits.decode(whole, back);
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t first = 0; first < columns; first += 32) {
        auto const block = std::span(matrix).subspan(row * columns + first,
                                                     std::min<std::size_t>(32, columns - first));
        float largest = 0.F;
        for (float const value : block) largest = std::max(largest, std::abs(value));
        for (std::size_t i = 0; i < block.size(); ++i) {
          CHECK(std::abs(back[row * columns + first + i] - block[i]) <= largest * 0.5001F / 127.F);
        }
      }
    }
  }
}

TEST_CASE("gradients of adapters are those of the matrix that they are added to") {
  std::size_t const rows = 7, columns = 37, rank = 3;
  auto a = some(rank * columns, 1);
  auto b = some(rows * rank, 2);
  auto const d = some(rows * columns, 3);  // of a loss that is linear in the matrix
  auto const loss = [&] {
    auto matrix = some(rows * columns, 4);
    gpt::LowRank<float>{a, b, rank}.add_to(matrix);
    double sum = 0.;
    for (std::size_t i = 0; i < matrix.size(); ++i) sum += double{d[i]} * double{matrix[i]};
    return sum;
  };
  // They are added.
  std::vector<float> d_a(a.size(), 1.F), d_b(b.size(), 2.F);
  gpt::LowRank<float>{a, b, rank}.add_gradients<float>(d, d_a, d_b);
  double const before = loss();
  // The loss is linear in each element of either, so the difference may be large.
  auto const check = [&](std::vector<float>& values, std::vector<float> const& gradient, float by) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      float const old = values[i];
      values[i] += 16.F;
      CHECK(double{gradient[i] - by} == doctest::Approx((loss() - before) / 16.).epsilon(1e-4));
      values[i] = old;
    }
  };
  check(a, d_a, 1.F);
  check(b, d_b, 2.F);
}

TEST_CASE("the description of a model with adapters") {
  gpt::Config const config{.layers = 2, .heads = 2, .channels = 40, .context = 8};
  auto const described = gpt::describe_adapted(config, 3);
  auto const base = gpt::tensors(config);
  CHECK(described.size() == base.size() + 2 * 4 * 2);
  std::size_t trained = 0, bytes = 0;
  for (std::size_t i = 0; i < described.size(); ++i) {
    auto const& tensor = described[i];
    CAPTURE(tensor.name);
    CHECK((i == 0 || tensor.unit >= described[i - 1].unit));
    CHECK(tensor.frozen == (tensor.name.find(".lora_") == std::string::npos));
    if (!tensor.frozen) trained += zero::element_count(tensor);
    if (tensor.dtype == zero::DType::u8) bytes += zero::element_count(tensor);
  }
  // Of four matrices: 40 and 120, 40 and 40, 40 and 160, 160 and 40 rows and columns.
  CHECK(trained == 2 * 3 * (160 + 80 + 200 + 200));
  CHECK(bytes == 2 * ((120 + 40 + 160) * (40 + 8) + 40 * (160 + 20)));
  CHECK(described.back().tied_to == "wte");
  // A begins with values of either sign, B with zeros.
  std::vector<float> values(3 * 40);
  gpt::initial_adapter({.name = "x.lora_A", .shape = {3, 40}}, 1, 5, 0, values);
  auto const [least, most] = std::minmax_element(values.begin(), values.end());
  CHECK(*most <= 1.F / std::sqrt(40.F));
  CHECK(*most > 0.1F);
  CHECK(*least < -0.1F);
  std::vector<float> part(7);
  gpt::initial_adapter({.name = "x.lora_A", .shape = {3, 40}}, 1, 5, 50, part);
  CHECK(std::equal(part.begin(), part.end(), values.begin() + 50));
  gpt::initial_adapter({.name = "x.lora_B", .shape = {40, 3}}, 1, 6, 0, values);
  CHECK(values == std::vector<float>(120));
}

}  // namespace gpt_adapters_test
