#include "fuzz/parsers_fuzz.cpp"
#include "support/test.hpp"

// The fuzzer of headers, indexes, manifests and descriptions, on random inputs: where no libFuzzer
// is, too. It ends the process if it finds something.
namespace parsers_test {
namespace {

void parse_mutated(std::uint64_t seed, int runs) {
  std::mt19937_64 random(seed);
  for (int run = 0; run < runs; ++run) {
    auto const bytes = fuzz::random_bytes(random);
    CHECK(LLVMFuzzerTestOneInput(bytes.data(), bytes.size()) == 0);
  }
}

TEST_CASE("what a parser takes of mutated texts is as the library needs it, and reads the same") {
  parse_mutated(20261122, 4000);
}

TEST_CASE("the same of ten times as many [full]") { parse_mutated(20261125, 40'000); }

}  // namespace
}  // namespace parsers_test
