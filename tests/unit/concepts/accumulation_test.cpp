#include <zero/concepts/accumulation.hpp>

#include <doctest/doctest.h>

#include <string_view>

namespace accumulation_test {
namespace {

using zero::Accumulation;

struct Own {
  static constexpr std::string_view name = "own";
  static constexpr bool full_gradients = true;
  static constexpr bool reduced_shard = false;
};

struct Both {
  static constexpr std::string_view name = "both";
  static constexpr bool full_gradients = true;
  static constexpr bool reduced_shard = true;
};

struct Nameless {
  static constexpr bool full_gradients = false;
  static constexpr bool reduced_shard = false;
};

struct Unsaid {
  static constexpr std::string_view name = "unsaid";
  static constexpr bool full_gradients = false;
};

struct WithState : Own {
  int state = 0;
};

}  // namespace

TEST_CASE("an accumulation says in one place, at most, where micro-batches meet") {
  static_assert(Accumulation<Own>);
  static_assert(!Accumulation<Both>);
  static_assert(!Accumulation<Nameless>);
  static_assert(!Accumulation<Unsaid>);
  static_assert(!Accumulation<WithState>);
  static_assert(!Accumulation<bool>);
  CHECK(Accumulation<Own>);
}

TEST_CASE("the shipped accumulations: one micro-batch, full gradients, the owned share") {
  CHECK(zero::AccumulateNone::name == "none");
  CHECK_FALSE(zero::AccumulateNone::full_gradients);
  CHECK_FALSE(zero::AccumulateNone::reduced_shard);

  CHECK(zero::AccumulateFull::name == "full");
  CHECK(zero::AccumulateFull::full_gradients);
  CHECK_FALSE(zero::AccumulateFull::reduced_shard);

  CHECK(zero::AccumulateShard::name == "shard");
  CHECK_FALSE(zero::AccumulateShard::full_gradients);
  CHECK(zero::AccumulateShard::reduced_shard);
}

}  // namespace accumulation_test
