#include "plan/model/transformer.hpp"

#include "support/refusal.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace transformer_test {
namespace {

using namespace plan;

}  // namespace

TEST_CASE("parameters are the formula's") {
  for (Transformer const& model :
       {Transformer{},
        Transformer{.layers = 3, .hidden = 12, .heads = 4, .vocab = 7, .sequence = 5}}) {
    std::uint64_t const h = model.hidden;
    CHECK(parameters(model) == static_cast<std::uint64_t>(model.layers) * (12 * h * h + 13 * h) +
                                   (model.vocab + model.sequence + 2) * h);
  }
  // GPT-2 as it was published: 50257 words, 1024 positions.
  CHECK(parameters({.layers = 48, .hidden = 1600, .heads = 25, .vocab = 50257}) == 1'557'611'200);
}

TEST_CASE("ranks of a model have parts that make up the whole") {
  Transformer const model{.layers = 2, .hidden = 24, .heads = 6, .vocab = 10, .sequence = 4};
  auto const whole = describe(model);
  auto const part = describe(model, 3);
  REQUIRE(part.size() == whole.size());
  for (std::size_t t = 0; t < whole.size(); ++t) {
    CAPTURE(whole[t].name);
    CHECK(part[t].name == whole[t].name);
    CHECK(part[t].unit == whole[t].unit);
    CHECK(part[t].tied_to == whole[t].tied_to);
    CHECK_FALSE(whole[t].partitioned);
    std::uint64_t const parts = part[t].partitioned ? 3 : 1;
    // Of 10 words each of three ranks has room for 4.
    bool const words = whole[t].name == "wte" || whole[t].name == "head.w";
    CHECK(zero::element_count(part[t]) * parts ==
          (words ? 12 * 24 : zero::element_count(whole[t])));
  }
}

TEST_CASE("a size gets the width of the trained model that is nearest") {
  struct Case {
    double wanted;
    std::size_t hidden;
    int layers;
  };
  // By hand: (wanted - 52226 h) / (12 h² + 13 h).
  for (Case const& c : {Case{1.5e9, 1600, 46},
                        Case{7.5e9, 3072, 65},
                        Case{8e9, 3072, 69},
                        Case{128e9, 8192, 158},
                        Case{170e9, 8192, 211},
                        Case{1e12, 25600, 127}}) {
    CAPTURE(c.wanted);
    Transformer const model = transformer_of(c.wanted);
    CHECK(model.hidden == c.hidden);
    CHECK(model.layers == c.layers);
    CHECK(model.hidden % model.heads == 0);
    auto const h = static_cast<double>(model.hidden);
    CHECK(std::abs(static_cast<double>(parameters(model)) - c.wanted) <=
          (12. * h * h + 13. * h) / 2.);
  }
  Transformer const huge = transformer_of(1e15, {.vocab = 100, .sequence = 7});
  CHECK(huge.vocab == 100);
  CHECK(huge.sequence == 7);
  CHECK(huge.layers <= 512);
  CHECK(huge.layers > 32);
  CHECK(huge.hidden % 25600 == 0);
  CHECK(huge.hidden / huge.heads == 160);
}

TEST_CASE("what is no model is refused") {
  auto const described = [](Transformer const& model, int ranks) {
    return refusal([&] { static_cast<void>(describe(model, ranks)); });
  };
  CHECK(described({.hidden = 100, .heads = 3}, 1) == "3 heads cannot share a width of 100 evenly");
  CHECK(described({.hidden = 96, .heads = 6}, 4) ==
        "4 model-parallel ranks cannot share 6 heads evenly");
  CHECK(described({.hidden = 96, .heads = 6}, 0) != "");
  CHECK(described({.layers = 0}, 1) != "");
  CHECK(described({.vocab = 0}, 1) != "");
  for (double const wanted : {1e7, 0., -1., std::nan(""), double{INFINITY}, 1e40}) {
    CAPTURE(wanted);
    CHECK(is_refused([&] { static_cast<void>(transformer_of(wanted)); }));
  }
}

}  // namespace transformer_test
