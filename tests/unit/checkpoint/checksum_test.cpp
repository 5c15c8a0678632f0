#include "zero/checkpoint/checksum.hpp"

#include "support/test.hpp"

namespace checksum_test {
namespace {

TEST_CASE("a checksum is XXH3, 64 bits, without a seed: values that xxHash publishes") {
  CHECK(zero::checksum("", 0) == 0x2d06800538d394c2u);
  // The bytes that xxHash's own sanity test sums.
  std::string bytes(2367, '\0');
  std::uint64_t generator = 2654435761u;
  for (char& byte : bytes) {
    byte = static_cast<char>(generator >> 56);
    generator *= 11400714785074694797u;
  }
  CHECK(zero::checksum(bytes.data(), 1) == 0xc44bdff4074eecdbu);
  CHECK(zero::checksum(bytes.data(), 6) == 0x27b56a84cd2d7325u);
  CHECK(zero::checksum(bytes.data(), 403) == 0xcdeb804d65c6dea4u);
  CHECK(zero::checksum(bytes.data(), 2240) == 0x6e73a90539cf2948u);
}

TEST_CASE("a checksum's text has all digits, the highest first") {
  CHECK(zero::checksum_text(0x0123456789abcdefu) == "0123456789abcdef");
  CHECK(zero::checksum_text(0xf) == "000000000000000f");
  CHECK(zero::checksum_text(0).size() == zero::checksum_digits);
}

}  // namespace
}  // namespace checksum_test
