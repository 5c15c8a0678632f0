#include <zero/concepts/stage.hpp>

#include <doctest/doctest.h>

#include <string_view>

namespace stage_test {
namespace {

namespace stage = zero::stage;
using zero::Sharding;
using zero::Stage;

/// Written as a user would: nothing in the library knows it.
struct OwnStage {
  static constexpr std::string_view name = "own";
  static constexpr Sharding sharding{.optimizer = true};
};

struct Nameless {
  static constexpr Sharding sharding{};
};

struct ShardsNothingStated {
  static constexpr std::string_view name = "x";
};

struct GradientsOnly {
  static constexpr std::string_view name = "x";
  static constexpr Sharding sharding{.gradients = true};
};

struct ParametersWithoutGradients {
  static constexpr std::string_view name = "x";
  static constexpr Sharding sharding{.optimizer = true, .parameters = true};
};

struct WithState {
  static constexpr std::string_view name = "x";
  static constexpr Sharding sharding{};
  int state = 0;
};

}  // namespace

TEST_CASE("a stage is a name and a nested sharding, and holds nothing") {
  static_assert(Stage<OwnStage>);
  static_assert(!Stage<Nameless>);
  static_assert(!Stage<ShardsNothingStated>);
  static_assert(!Stage<GradientsOnly>);
  static_assert(!Stage<ParametersWithoutGradients>);
  static_assert(!Stage<WithState>);
  static_assert(!Stage<int>);
  static_assert(!Stage<Sharding>);
  CHECK(Stage<OwnStage>);
}

TEST_CASE("the shipped stages shard one state more each") {
  CHECK(stage::Replicated::sharding == Sharding{false, false, false});
  CHECK(stage::Pos::sharding == Sharding{true, false, false});
  CHECK(stage::PosG::sharding == Sharding{true, true, false});
  CHECK(stage::PosGP::sharding == Sharding{true, true, true});
}

TEST_CASE("the shipped stages have the paper's names") {
  CHECK(stage::Replicated::name == "replicated");
  CHECK(stage::Pos::name == "Pos");
  CHECK(stage::PosG::name == "Pos+g");
  CHECK(stage::PosGP::name == "Pos+g+p");
}

}  // namespace stage_test
