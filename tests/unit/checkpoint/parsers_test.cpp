#include "fuzz/parsers_fuzz.cpp"

#include <doctest/doctest.h>

// The fuzzer of headers, indexes, manifests and descriptions, on random inputs: where no libFuzzer
// is, too. It ends the process if it finds something.
namespace parsers_test {

TEST_CASE("what a parser takes of mutated texts is as the library needs it, and reads the same") {
  std::mt19937_64 random(20261122);
  for (int run = 0; run < 40'000; ++run) {
    auto const bytes = fuzz::random_bytes(random);
    CHECK(LLVMFuzzerTestOneInput(bytes.data(), bytes.size()) == 0);
  }
}

}  // namespace parsers_test
