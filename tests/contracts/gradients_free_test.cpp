/// Gradients that a framework allocates in every backward pass: lent unit by unit, and freed at the
/// moment from which they are no longer read.
#include "contracts/lent_memory.hpp"
#include "contracts/ranks.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

#include <sys/wait.h>
#include <unistd.h>

namespace gradients_free_test {
namespace {

using contracts::Borrower;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::Replicated;
using Bf16 = zero::Mixed<zero::bf16>;

/// Large and small, tied, frozen and empty tensors.
std::vector<zero::Tensor> model() {
  return {
      {.name = "wte", .shape = {37, 5}, .unit = 0},
      {.name = "up", .shape = {40, 1024}, .unit = 0},
      {.name = "w", .shape = {50'333}, .unit = 1},
      {.name = "cold", .shape = {40}, .unit = 1, .frozen = true},
      {.name = "b", .shape = {}, .unit = 1},
      {.name = "none", .shape = {0, 7}, .unit = 2},
      {.name = "c", .shape = {3}, .unit = 2},
      {.name = "down", .shape = {47'777}, .unit = 3},
      {.name = "ln", .shape = {511}, .unit = 4},
      {.name = "head", .shape = {37, 5}, .unit = 4, .tied_to = "wte"},
      {.name = "mask", .shape = {9}, .unit = 5, .frozen = true},
  };
}

/// When a trainer frees a unit's gradients.
enum class When { never, asked, told };

/// A trainer whose gradients exist from a unit's backward pass until they are free.
template <class O>
struct Framework {
  using Wire = typename O::Wire;

  O& optimizer;
  When when;
  /// Gradients by unit, one allocation per tensor.
  std::map<int, std::vector<std::vector<Wire>>> alive{};
  std::size_t elements = 0;
  std::size_t most = 0;
  std::vector<int> told{};

  void operator()(int unit) noexcept {
    told.push_back(unit);
    if (when == When::told) drop(unit);
  }
  void drop(int unit) noexcept {
    auto const found = alive.find(unit);
    if (found == alive.end()) return;
    for (auto const& each : found->second) elements -= each.size();
    alive.erase(found);
  }
  void drop_free_ones() {
    if constexpr (O::borrowed) {
      if (when != When::asked) return;
      for (int const unit : optimizer.units()) {
        if (optimizer.gradients_free(unit)) drop(unit);
      }
    }
  }

  void lend(int unit) {
    auto& memory = alive[unit];
    std::vector<std::span<Wire>> lent;
    for (zero::Tensor const& tensor : optimizer.tensors()) {
      if (tensor.unit != unit) continue;
      // The head brings what it has in common with the embedding.
      bool const shared = tensor.name == "wte";
      std::size_t const count = tensor.frozen || shared ? 0 : zero::element_count(tensor);
      memory.emplace_back(count, Wire(0.f));
      elements += count;
      lent.emplace_back(memory.back());
    }
    most = std::max(most, elements);
    optimizer.bind_gradients(unit, lent);
  }
  void pass(long step, int batch) {
    for (int const unit : optimizer.units_backward()) {
      drop_free_ones();
      lend(unit);
      optimizer.reduce(contracts::unit_backward(optimizer, unit, {}, step, batch));
    }
  }
};

struct Result {
  std::vector<std::byte> bits;
  std::size_t most = 0;
  std::vector<int> told;
};

template <class O>
Result train(When when, int micro_steps = 1, std::vector<zero::Tensor> const& tensors = model()) {
  using Wire = typename O::Wire;
  Result result;
  zero::run_ranks(3, [&](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    O optimizer{watched.comm, tensors, zero::Bucket{20'000}};
    Framework<O> framework{optimizer, when};
    contracts::LentMemory<typename O::Parameter> const parameters(tensors, true, true);
    if constexpr (O::borrowed) {
      optimizer.bind_parameters(parameters.flat());
      optimizer.on_gradients_free(framework);
    }
    contracts::load(optimizer);
    for (long step = 0; step < 3; ++step) {
      framework.told.clear();
      for (int micro = 0; micro < micro_steps; ++micro) {
        if (micro_steps > 1) optimizer.micro_step({.last = micro + 1 == micro_steps});
        int const batch = 3 * micro + inner.rank();
        if constexpr (O::borrowed) {
          framework.pass(step, batch);
        } else {
          contracts::pass(optimizer, {}, step, batch);
        }
      }
      optimizer.reduce_all();
      for (int const unit : optimizer.units()) {
        if constexpr (O::borrowed) {
          CHECK(optimizer.gradients_free(unit) == !contracts::writes_lent<O>);
        }
      }
      optimizer.step({.max_norm = 1.});
      framework.drop_free_ones();
      if (O::borrowed && when != When::never) CHECK(framework.alive.empty());
    }
    auto bits = contracts::model_bits(optimizer);
    if (inner.rank() != 0) return;
    result.most = framework.most * sizeof(Wire);
    result.told = framework.told;
    result.bits = std::move(bits);
  });
  return result;
}

template <class Own, class... Lent>
void check_bits(int micro_steps = 1) {
  auto const expected = train<Own>(When::never, micro_steps).bits;
  CHECK(expected.size() > 100'000 * sizeof(typename Own::Parameter));
  for (When const when : {When::asked, When::told}) {
    bool const same[]{train<Lent>(when, micro_steps).bits == expected...};
    for (bool const each : same) CHECK(each);
  }
}

TEST_CASE("gradients that are lent unit by unit and freed when they are free get the same bits") {
  using contracts::WatchedOptimizer;
  check_bits<WatchedOptimizer<PosG, zero::Fp32>,
             Borrower<Replicated, zero::Fp32>,
             Borrower<PosG, zero::Fp32>,
             contracts::InPlace<PosG, zero::Fp32>>();
  check_bits<WatchedOptimizer<PosG, Bf16>, Borrower<Pos, Bf16>, Borrower<PosG, Bf16>>();
  check_bits<WatchedOptimizer<PosG, zero::Fp32, zero::AccumulateShard>,
             WatchedOptimizer<PosG, zero::Fp32, zero::Borrowed<>, zero::AccumulateShard>>(2);
}

TEST_CASE("under Pos+g two units' gradients are alive at most, and what several units share") {
  // The largest neighbours, and the shared ones.
  std::size_t const two = (50'334 + 47'777 + 3 + 511 + 185) * 4;
  using O = Borrower<PosG, zero::Fp32>;
  CHECK(train<O>(When::asked).most <= two);
  auto [bits, most, told] = train<O>(When::told);
  CHECK(most <= two);
  // Every unit is told once a step, a unit that is tied with the last it is tied to.
  CHECK(told.size() == 6);
  CHECK(std::find(told.begin(), told.end(), 4) > std::find(told.begin(), told.end(), 1));
  std::sort(told.begin(), told.end());
  CHECK(told == std::vector<int>{0, 1, 2, 3, 4, 5});
  // Units of one bucket each, of which two could be under way while a third one is worked on.
  std::vector<zero::Tensor> tensors;
  for (int unit = 0; unit < 40; ++unit) {
    tensors.push_back({.name = std::to_string(unit), .shape = {4, 1100}, .unit = unit});
  }
  CHECK(train<O>(When::asked, 1, tensors).most <= 2 * 4400 * 4);
  CHECK(train<Borrower<Pos, zero::Fp32>>(When::asked, 1, tensors).most > 2 * 4400 * 4);
}

/// One rank that lends its parameters for good.
template <class O>
struct OneRank {
  using Spans = std::vector<std::span<float>>;

  explicit OneRank(std::vector<zero::Tensor> const& tensors, std::size_t elements)
      : optimizer{watched.comm, tensors}, parameters(elements) {
    optimizer.bind_parameters(std::span(parameters));
    contracts::load(optimizer);
  }
  void lend(int unit, Spans const& spans) { optimizer.bind_gradients(unit, spans); }
  std::string refusal(int unit, Spans const& spans) {
    return ::refusal([&] { lend(unit, spans); });
  }

  std::vector<zero::InProcess> handles = zero::InProcess::group(1);
  contracts::Watched watched{handles[0]};
  O optimizer;
  std::vector<float> parameters;
};

/// One whose first unit has to wait for the second.
struct Waiting : OneRank<Borrower<PosG, zero::Fp32>> {
  Waiting()
      : OneRank({{.name = "a", .shape = {20'000}},
                 {.name = "b", .shape = {20'000}, .unit = 1},
                 {.name = "a.again", .shape = {20'000}, .unit = 1}},
                60'000) {}
  void reduce_first() {
    lend(0, {gradients});
    optimizer.reduce(optimizer.gradients(0));
  }
  void reduce_second() {
    lend(1, {std::span(others).first(20'000), std::span(others).last(20'000)});
    optimizer.reduce(optimizer.gradients(1));
  }
  std::vector<float> gradients = std::vector<float>(20'000);
  std::vector<float> others = std::vector<float>(40'000);
};

TEST_CASE("what is written before a unit is free is what travels, and nothing is from then on") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (bool const early : {true, false}) {
    Waiting trainer;
    auto& optimizer = trainer.optimizer;
    CHECK(optimizer.gradients_free(0));
    trainer.reduce_first();
    CHECK_FALSE(optimizer.gradients_free(0));
    if (early) std::fill(trainer.gradients.begin(), trainer.gradients.end(), nan);
    trainer.reduce_second();
    optimizer.reduce_all();
    CHECK(optimizer.gradients_free(0));
    CHECK(optimizer.gradients_free(1));
    std::fill(trainer.gradients.begin(), trainer.gradients.end(), nan);
    std::fill(trainer.others.begin(), trainer.others.end(), nan);
    CHECK(static_cast<bool>(optimizer.try_step()) != early);
  }
}

#if defined(__SANITIZE_ADDRESS__)
TEST_CASE("the address sanitizer finds a trainer that frees a unit's gradients earlier") {
  std::fflush(nullptr);
  pid_t const child = fork();
  if (child == 0) {
    close(STDERR_FILENO);
    Waiting trainer;
    trainer.reduce_first();
    std::vector<float>().swap(trainer.gradients);
    trainer.reduce_second();
    trainer.optimizer.reduce_all();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK_FALSE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}
#endif

TEST_CASE("gradients that were free are not used again before others are lent") {
  Waiting trainer;
  auto& optimizer = trainer.optimizer;
  std::string const missing =
      " is used, but not lent in this step; call bind_gradients(unit, ...) before";
  auto const ask = [&] { return optimizer.gradients(1); };
  CHECK(::refusal(ask) == "gradients: tensor 'b'" + missing);
  trainer.reduce_first();
  trainer.reduce_second();
  optimizer.step();
  auto const ask_first = [&] { return optimizer.gradients(0); };
  CHECK(::refusal(ask_first) == "gradients: tensor 'a'" + missing);
  // What is not lent at all is absent, and rests.
  trainer.reduce_second();
  optimizer.step();
  CHECK(optimizer.steps(0) == 1);
  CHECK(optimizer.steps(1) == 2);
  // So is what is lent as an empty span, until the next step.
  trainer.lend(1, {std::span(trainer.others).first(20'000), {}});
  optimizer.reduce(optimizer.gradients(1));
  optimizer.step();
  CHECK(optimizer.steps(1) == 3);
  CHECK(optimizer.steps(2) == 2);
  CHECK(::refusal(ask) == "gradients: tensor 'b'" + missing);
  // What is lent for good stays.
  optimizer.bind_parameters(std::span(trainer.parameters));
  std::vector<float> kept(60'000);
  optimizer.bind_gradients(std::span(kept));
  for (int step = 0; step < 2; ++step) {
    CHECK_FALSE((step == 0 && optimizer.gradients_free(0)));
    optimizer.reduce(optimizer.gradients(0));
    optimizer.step();
    CHECK(optimizer.gradients_free(0));
  }
}

TEST_CASE(
    "gradients travel from where a unit's are lent, and are forgotten when they are discarded") {
  Waiting trainer;
  auto& optimizer = trainer.optimizer;
  std::vector<float> kept(60'000);
  optimizer.bind_gradients(std::span(kept));
  trainer.watched.comm.forget();
  trainer.reduce_second();
  auto const& calls = trainer.watched.comm.calls();
  CHECK(std::any_of(calls.begin(), calls.end(), [&](zero::Collective const& call) {
    return call.send == trainer.others.data();
  }));
  trainer.reduce_first();
  optimizer.discard_gradients();
  CHECK(optimizer.gradients_free(0));
  optimizer.bind_gradients(0, std::vector{std::span(trainer.gradients)});
  optimizer.discard_gradients();
  CHECK(optimizer.gradients_free(0));
  CHECK(is_refused([&] { return optimizer.gradients(0); }));
}

TEST_CASE("wrong lists of a unit's gradients are refused in words, and right ones taken then") {
  Waiting trainer;
  auto const all = std::span(trainer.others);
  auto const b = all.first(20'000);
  auto const again = all.last(20'000);
  struct {
    int unit;
    std::vector<std::span<float>> lent;
    char const* message;
  } const rows[]{
      {7, {}, "there is no unit 7; units are [0, 2)"},
      {1, {b}, "the unit has 2 tensors but 1 gradients are lent"},
      {1, {b, again.first(3)}, "gradients: tensor 'a.again' has 20000 elements, but 3 are lent"},
      {1, {b, again.first(0)}, "gradients: tensor 'a.again' has 20000 elements, but 0 are lent"},
      {1, {b, all.subspan(1, 20'000)}, "gradients: tensor 'a.again' overlaps tensor 'b'"},
      {1,
       {std::span(trainer.parameters).subspan(10, 20'000), again},
       "gradients: tensor 'b' overlaps the parameters of tensor 'a'"},
  };
  for (auto const& row : rows) CHECK(trainer.refusal(row.unit, row.lent) == row.message);
  CHECK(trainer.refusal(1, {b, again}) == "");
  CHECK(trainer.refusal(0, {b}) == "gradients: tensor 'a' overlaps tensor 'b'");
  trainer.optimizer.reduce(trainer.optimizer.gradients(1));
  CHECK(
      trainer.refusal(1, {b, again}).starts_with("unit 1 was already reduced in this micro-step"));
  trainer.optimizer.reduce_all();
  CHECK(trainer.refusal(0, {trainer.gradients})
            .starts_with("unit 0 is asked for after the gradients of this step were reduced"));
  trainer.optimizer.step();
  CHECK(trainer.refusal(0, {trainer.gradients}) == "");
  CHECK(::refusal([&] { return trainer.optimizer.gradients_free(2); }) ==
        "there is no unit 2; units are [0, 2)");
}

TEST_CASE("a tied tensor's gradients are one memory, whoever lends it") {
  OneRank<Borrower<PosG, zero::Fp32>> rank(
      {{.name = "wte", .shape = {40}},
       {.name = "head", .shape = {40}, .unit = 1, .tied_to = "wte"}},
      40);
  auto& optimizer = rank.optimizer;
  std::vector<float> memory(80);
  auto const first = std::span(memory).first(40);
  auto const second = std::span(memory).last(40);
  CHECK(rank.refusal(1, {first}) == "");
  CHECK(
      rank.refusal(0, {second}) ==
      "gradients: tensor 'wte' stays where it was lent in this step before, but is lent at another "
      "address");
  CHECK(rank.refusal(0, {std::span<float>()}) == "");
  CHECK(rank.refusal(0, {first}) == "");
  auto guard = optimizer.gradients(0);
  CHECK(guard["wte"].data() == first.data());
  optimizer.reduce(std::move(guard));
  CHECK_FALSE(optimizer.gradients_free(0));
  optimizer.reduce(optimizer.gradients(1));
  optimizer.step();
  CHECK(rank.refusal(0, {second}) == "");
  CHECK(optimizer.gradients(1)["head"].data() == second.data());
}

TEST_CASE("gradients that add up over micro-steps stay where they were lent first") {
  using O = contracts::WatchedOptimizer<Pos, zero::Fp32, zero::Borrowed<>, zero::AccumulateFull>;
  OneRank<O> rank({{.name = "a", .shape = {40}}}, 40);
  auto& optimizer = rank.optimizer;
  std::vector<float> memory(80);
  auto const first = std::span(memory).first(40);
  auto const second = std::span(memory).last(40);
  for (bool const last : {false, true}) {
    optimizer.micro_step({.last = last});
    if (last) {
      CHECK(rank.refusal(0, {second}).find("lent at another address") != std::string::npos);
    }
    CHECK(rank.refusal(0, {last ? std::span<float>{} : first}) == "");
    optimizer.reduce(optimizer.gradients(0));
    if (!last) CHECK_FALSE(optimizer.gradients_free(0));
  }
  optimizer.step();
  CHECK(optimizer.gradients_free(0));
  CHECK(rank.refusal(0, {second}) == "");
}

}  // namespace
}  // namespace gradients_free_test
