/// The planner's GPT is the one that is trained: the same tensors.
#include "plan/model/transformer.hpp"
#include "tensors.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

namespace planner_test {

TEST_CASE("the planner describes the tensors that the trainer has") {
  gpt::Config const trained{.layers = 3, .heads = 8, .channels = 48, .context = 33};
  plan::Transformer const planned{
      .layers = 3, .hidden = 48, .heads = 8, .vocab = gpt::Config::vocab, .sequence = 33};
  for (int const ranks : {1, 2, 8}) {
    for (int rank = 0; rank < ranks; ++rank) {
      CAPTURE(ranks);
      auto const theirs = gpt::describe(trained, {.rank = rank, .size = ranks});
      auto const ours = plan::describe(planned, ranks);
      REQUIRE(ours.size() == theirs.size());
      for (std::size_t t = 0; t < ours.size(); ++t) {
        CAPTURE(theirs[t].name);
        CHECK(ours[t].name == theirs[t].name);
        CHECK(ours[t].shape == theirs[t].shape);
        CHECK(ours[t].unit == theirs[t].unit);
        CHECK(ours[t].weight_decay == theirs[t].weight_decay);
        CHECK(ours[t].tied_to == theirs[t].tied_to);
        CHECK(ours[t].partitioned == theirs[t].partitioned);
      }
    }
  }
}

}  // namespace planner_test
