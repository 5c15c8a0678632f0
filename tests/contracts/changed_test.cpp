/// What a trainer changes between steps: written into parameters, it is found; done as the guide
/// says, it lasts.
#include "contracts/ranks.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace changed_test {
namespace {

using zero::Fp32;
using zero::InProcess;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;
using Bf16 = zero::Mixed<zero::bf16>;
using Fp16 = zero::Mixed<zero::fp16>;

constexpr int ranks = 3;
/// One bucket, of whose shares each rank has 512 elements.
constexpr std::size_t elements = 1536;
std::vector<zero::Tensor> model() {
  return {{.name = "w", .shape = {512, 3}}, {.name = "cold", .shape = {8}, .frozen = true}};
}

std::vector<std::string> everywhere(std::string const& text) {
  return std::vector<std::string>(ranks, text);
}
std::string undone(int element, std::string const& where) {
  return "element " + std::to_string(element) +
         " of tensor 'w' is not its master weight, rounded, on rank " + where +
         ": somebody wrote into the parameters, and the next update would undo that. Change master "
         "weights with fill_owned(), and parameters follow; or have them start from what was "
         "written, with adopt_parameters()";
}
std::string apart(int element) {
  return "ranks 0 and 1, 1 and 2 start from different values of tensor 'w', first in element " +
         std::to_string(element) + "; broadcast_parameters() gives all of them those of one";
}

/// A trainer whose parameters the library owns, or that lends them.
template <class Stage, class Precision, class Memory>
struct Trainer {
  using O = contracts::Optimizer<Stage, Precision, Memory, zero::Sgd>;
  using Parameter = typename O::Parameter;

  explicit Trainer(InProcess& comm)
      : optimizer(comm, model(), zero::Sgd{.lr = 0.25, .momentum = 0.5}) {
    if constexpr (O::borrowed) optimizer.bind(std::span(parameters), std::span(gradients));
    optimizer.load_parameters([](zero::Tensor const&, std::size_t first, auto out) {
      // Of which bf16 and fp16 have no more than the first digits.
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::sin(static_cast<float>(first + i));
    });
    step(1.f);
  }

  void step(float gradient) {
    auto own = optimizer.gradients(0);
    for (auto& g : own[0]) g = static_cast<typename O::Wire>(gradient * optimizer.loss_scale());
    optimizer.reduce(std::move(own));
    optimizer.step();
  }
  /// Where a trainer may write, though it should not.
  [[nodiscard]] std::span<Parameter> written() {
    if constexpr (O::borrowed) {
      return std::span(parameters).first(elements);
    } else {
      return optimizer.parameter(0);
    }
  }
  [[nodiscard]] std::vector<float> values() {
    auto const all = optimizer.full_parameters();
    std::vector<float> out;
    for (Parameter const value : all["w"]) out.push_back(static_cast<float>(value));
    return out;
  }

  std::vector<Parameter> parameters = std::vector<Parameter>(elements + 8);
  std::vector<typename O::Wire> gradients = std::vector<typename O::Wire>(elements + 8);
  O optimizer;
};

using zero::Borrowed;
using Owned = zero::Owned<>;

TEST_CASE_TEMPLATE("what is written into parameters that have masters is found",
                   T,
                   Trainer<Replicated, Bf16, Owned>,
                   Trainer<Pos, Bf16, Owned>,
                   Trainer<PosG, Fp16, Owned>,
                   Trainer<Replicated, Bf16, Borrowed<>>,
                   Trainer<PosG, Bf16, Borrowed<>>) {
  bool const replicated = std::is_same_v<typename T::O::Stage, Replicated>;
  using P = typename T::Parameter;
  struct {
    std::vector<std::size_t> places;
    int first;
    char const* rank;
  } const rows[]{{{}, 0, ""}, {{600}, 600, "1"}, {{1535, 1024}, 1024, "2"}, {{1100, 3}, 3, "0"}};
  for (auto const& row : rows) {
    auto const said = contracts::endings(
        ranks,
        [&](InProcess& comm) {
          T trainer(comm);
          trainer.optimizer.check_parameters();
          for (std::size_t const place : row.places) trainer.written()[place] = P(2.f);
          trainer.optimizer.check_parameters();
        },
        true);
    std::string const text =
        row.places.empty() ? "" : undone(row.first, replicated ? "0 1 2" : row.rank);
    CHECK(said == everywhere(text));
  }
}

TEST_CASE_TEMPLATE("what one rank alone writes is found, whether there are masters or not",
                   T,
                   Trainer<Replicated, Fp32, Owned>,
                   Trainer<Pos, Fp32, Owned>,
                   Trainer<PosG, Fp32, Borrowed<>>,
                   Trainer<Pos, Bf16, Owned>) {
  auto const said = contracts::endings(
      ranks,
      [&](InProcess& comm) {
        T trainer(comm);
        if (comm.rank() == 1) trainer.written()[600] = typename T::Parameter(2.f);
        trainer.optimizer.check_parameters();
      },
      true);
  CHECK(said == everywhere(apart(600)));
}

TEST_CASE("what all write is no mistake without masters, and none with them once it is adopted") {
  contracts::on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
    Trainer<Pos, Fp32, Owned> own(comm);
    Trainer<PosG, Bf16, Borrowed<>> lent(comm);
    for (float& value : own.written()) value = 2.f;
    for (auto& value : lent.written()) value = zero::bf16(2.f);
    lent.optimizer.adopt_parameters();
    own.optimizer.check_parameters();
    lent.optimizer.check_parameters();
    lent.step(0.f);  // the momentum goes on
    expect(lent.values()[600] == 1.875f, "what was adopted is what is updated");
  });
}

TEST_CASE("a NaN is a NaN, and a rank that has adopted nothing yet has nothing to be held to") {
  contracts::on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
    Trainer<Pos, Bf16, Owned> trainer(comm);
    trainer.optimizer.fill_owned([](auto const&, std::size_t, auto masters, auto const&) {
      std::fill(masters.begin(), masters.end(), std::numeric_limits<float>::quiet_NaN());
    });
    for (auto& value : trainer.written()) value = zero::bf16::from_bits(0x7fffu);
    trainer.optimizer.check_parameters();

    std::vector<zero::bf16> parameters(elements + 8, zero::bf16(1.f)), gradients(elements + 8);
    contracts::Optimizer<PosG, Bf16, Borrowed<>, zero::Sgd> lent{comm, model()};
    lent.bind(std::span(parameters), std::span(gradients));
    if (comm.rank() == 0) lent.adopt_parameters();
    lent.check_parameters();
    expect(true, "");
  });
}

TEST_CASE("over memory that the host cannot reach masters are compared where they lie") {
  for (bool const odd : {false, true}) {
    auto const said = contracts::endings(
        ranks,
        [&](InProcess& inner) {
          contracts::OnDevice<Pos, Bf16> rank(inner, model());
          constant_pass(rank);
          rank.optimizer.step();
          if (odd) rank.fill(rank.optimizer.parameter(0).subspan(600, 2), 3.f);
          rank.optimizer.check_parameters();
        },
        true);
    CHECK(said == everywhere(odd ? undone(600, "1") : ""));
  }
}

/// The ways of the guide.
template <class O>
void clamp(O& optimizer) {
  optimizer.fill_owned([](zero::Tensor const&, std::size_t, auto values, auto const&) {
    for (auto& value : values) value = std::clamp(value, -0.5f, 0.5f);
  });
}
template <class O>
void prune(O& optimizer, std::vector<bool> const& kept) {
  optimizer.fill_owned([&](zero::Tensor const&, std::size_t first, auto values, auto states) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (kept[first + i]) continue;
      values[i] = 0.f;
      for (auto& state : states) state[i] = 0.f;
    }
  });
}
template <class O>
void reset_row(O& optimizer, std::size_t row, std::size_t width) {
  optimizer.fill_owned(
      [&](zero::Tensor const& tensor, std::size_t first, auto values, auto states) {
        if (tensor.name != "w") return;
        for (std::size_t i = 0; i < values.size(); ++i) {
          if ((first + i) / width != row) continue;
          values[i] = 0.125f;
          for (auto& state : states) state[i] = 0.f;
        }
      });
}

TEST_CASE_TEMPLATE("changes as the guide makes them last, and leave the rest as it was",
                   T,
                   Trainer<Replicated, Fp32, Owned>,
                   Trainer<PosGP, Fp32, Owned>,
                   Trainer<Pos, Bf16, Owned>,
                   Trainer<PosGP, Bf16, Owned>,
                   Trainer<Replicated, Fp32, Borrowed<>>,
                   Trainer<PosG, Bf16, Borrowed<>>) {
  using P = typename T::Parameter;
  auto const rounded = [](float value) { return static_cast<float>(static_cast<P>(value)); };
  contracts::on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
    auto const each = [&](T& trainer, char const* what, auto const& expected) {
      trainer.optimizer.check_parameters();
      auto const values = trainer.values();
      for (std::size_t i = 0; i < elements; ++i) {
        if (values[i] != expected(i)) return expect(false, what + (" " + std::to_string(i)));
      }
    };
    auto const before = T(comm).values();
    {
      T trainer(comm);
      clamp(trainer.optimizer);
      auto const clamped = [&](std::size_t i) { return std::clamp(before[i], -0.5f, 0.5f); };
      each(trainer, "clamp", clamped);
    }
    {
      T trainer(comm);
      trainer.optimizer.load_parameters([](auto const&, std::size_t first, auto out) {
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(first + i) / 7.f;
      });
      each(trainer, "load", [&](std::size_t i) { return rounded(static_cast<float>(i) / 7.f); });
      expect(trainer.optimizer.steps() == 1, "a load resets no count");
    }
    {
      T trainer(comm);
      std::vector<bool> kept(elements);
      for (std::size_t i = 0; i < elements; ++i) kept[i] = i % 3 != 1;
      prune(trainer.optimizer, kept);
      each(trainer, "prune", [&](std::size_t i) { return kept[i] ? before[i] : 0.f; });
      // Without momentum of its own nothing moves what was pruned.
      trainer.step(0.f);
      expect(trainer.values()[1] == 0.f, "pruned, it stays");
      expect(trainer.values()[0] != before[0], "others go on");
    }
    {
      T trainer(comm);
      reset_row(trainer.optimizer, 200, 3);
      each(trainer, "row", [&](std::size_t i) { return i / 3 == 200 ? 0.125f : before[i]; });
      trainer.step(0.f);
      expect(trainer.values()[601] == 0.125f, "its momentum is reset");
    }
  });
}

TEST_CASE("a fill sees what is there, in memory that the host cannot reach as well") {
  contracts::on_ranks(ranks, [&](InProcess& inner, auto const& expect) {
    contracts::OnDevice<PosG, Bf16> rank(inner, model());
    auto const before = contracts::owned_bits(rank.optimizer);
    rank.optimizer.fill_owned([](auto const&, std::size_t, auto const&, auto const&) {});
    expect(contracts::owned_bits(rank.optimizer) == before, "what a fill leaves stays");
  });
}

}  // namespace
}  // namespace changed_test
