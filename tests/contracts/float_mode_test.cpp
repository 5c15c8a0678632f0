/// Ranks whose threads round in different ways, or of which some flush subnormal numbers, are told
/// so before they drift apart.
#include "contracts/ranks.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

#include <array>
#include <cfenv>
#include <cstdint>
#include <string>
#include <vector>

namespace float_mode_test {
namespace {

constexpr int ranks = 3;
using zero::InProcess;

/// The processor's own word, told here without the library.
#if defined(__x86_64__)
using Word = std::uint32_t;
constexpr Word results = 0x8000u, operands = 0x0040u;
constexpr std::array<char const*, 2> flags{"FTZ", "DAZ"};
Word word() {
  Word value = 0;
  asm volatile("stmxcsr %0" : "=m"(value));
  return value;
}
void set_word(Word value) { asm volatile("ldmxcsr %0" : : "m"(value)); }
#elif defined(__aarch64__)
using Word = std::uint64_t;
constexpr Word results = 1u << 24, operands = 1u << 19;
constexpr std::array<char const*, 2> flags{"FZ", "FZ16"};
Word word() {
  Word value = 0;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
void set_word(Word value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#endif

#if defined(__x86_64__) || defined(__aarch64__)

/// A thread's mode while this lives.
class Mode {
 public:
  Mode(int rounding, Word flushed) {
    std::fesetround(rounding);
    set_word(word() | flushed);
  }
  Mode(Mode const&) = delete;
  Mode& operator=(Mode const&) = delete;
  ~Mode() {
    std::fesetround(rounding_);
    set_word(before_);
  }

 private:
  int rounding_ = std::fegetround();
  Word before_ = word();
};

struct Row {
  int rounding;
  Word flushed;
  std::string text;
};
std::vector<Row> const rows{
    {FE_TONEAREST, results, std::string("nearest, ") + flags[0]},
    {FE_TONEAREST, operands, std::string("nearest, ") + flags[1]},
    {FE_TONEAREST, results | operands, std::string("nearest, ") + flags[0] + " " + flags[1]},
    {FE_DOWNWARD, 0, "down"},
    {FE_UPWARD, 0, "up"},
    {FE_TOWARDZERO, results | operands, std::string("zero, ") + flags[0] + " " + flags[1]}};

std::string differ(std::string const& odd) {
  return "floating-point mode: 'nearest' on rank 0 2; '" + odd + "' on rank 1";
}

/// Replicated ranks over two steps.
std::vector<float> train(InProcess& comm) {
  zero::ShardedOptimizer optimizer{
      comm, {{.name = "w", .shape = {64}}}, zero::stage::Replicated{}, zero::Adam{}};
  optimizer.load_parameters([](zero::Tensor const&, std::size_t first, std::span<float> values) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = 0x1p-120f * static_cast<float>(first + i + 1);
  });
  for (int step = 0; step < 2; ++step) {
    auto gradients = optimizer.gradients(0);
    for (float& g : gradients[0]) g += 1e-3f;
    optimizer.reduce(std::move(gradients));
    optimizer.step();
  }
  auto const w = optimizer.parameters(0);
  return {w[0].begin(), w[0].end()};
}

TEST_CASE("ranks that are constructed in different floating-point modes are told of them") {
  for (Row const& row : rows) {
    auto const said = contracts::endings(
        ranks,
        [&](InProcess& comm) {
          bool const odd = comm.rank() == 1;
          Mode const mode(odd ? row.rounding : FE_TONEAREST, odd ? row.flushed : 0);
          train(comm);
        },
        true);
    for (auto const& each : said) CHECK(each == ("ranks disagree on the " + differ(row.text)));
  }
}

TEST_CASE("a step in which one rank's thread is in another floating-point mode changes nothing") {
  for (Row const& row : rows) {
    auto const said = contracts::endings(
        ranks,
        [&](InProcess& comm) {
          zero::ShardedOptimizer optimizer{
              comm, {{.name = "w", .shape = {64}}}, zero::stage::PosG{}, zero::PlainSgd{.lr = 1.f}};
          optimizer.load_parameters([](auto const&, std::size_t, std::span<float> values) {
            for (float& value : values) value = 3.f;
          });
          std::string text;
          for (bool const odd : {true, false}) {
            auto gradients = optimizer.gradients(0);
            for (float& g : gradients[0]) g = 1.f;
            optimizer.reduce(std::move(gradients));
            if (odd && comm.rank() == 1) {
              Mode const mode(row.rounding, row.flushed);
              auto const result = optimizer.try_step();
              if (!result) text = result.error()->message();
            } else {
              auto const result = optimizer.try_step();
              if (!result) text += result.error()->message();
            }
          }
          // The step that all took in one mode is the only one.
          auto const w = optimizer.parameters(0);
          if (w[0][63] != 2.f) text += "; not one step";
          zero::fail(zero::ErrorKind::data, {text});
        },
        true);
    for (auto const& each : said)
      CHECK(each == ("ranks passed different options to step(): " + differ(row.text)));
  }
}

TEST_CASE("masks, flags, and a mode that all ranks have are nobody's difference") {
  contracts::on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
    for (Row const& row : rows) {
      Mode const mode(row.rounding, row.flushed);
      if (comm.rank() == 1) {
        std::feraiseexcept(FE_INEXACT | FE_UNDERFLOW);
#if defined(__x86_64__)
        set_word(word() & ~Word{0x80});  // an invalid operation traps
#endif
      } else {
        std::feclearexcept(FE_ALL_EXCEPT);
      }
      auto const values = train(comm);
      expect(values.size() == 64, row.text);
    }
  });
}

TEST_CASE("threads that the library starts round to nearest and keep subnormals") {
  Mode const mode(FE_DOWNWARD, results | operands);
  contracts::on_ranks(ranks, [&](InProcess&, auto const& expect) {
    expect(std::fegetround() == FE_TONEAREST, "rounds to nearest");
    expect((word() & (results | operands)) == 0, "keeps subnormals");
    float volatile smallest = 0x1p-149f;
    expect(smallest * 1.f != 0.f, "the smallest number is one");
  });
  CHECK(std::fegetround() == FE_DOWNWARD);
}

#endif

}  // namespace
}  // namespace float_mode_test
