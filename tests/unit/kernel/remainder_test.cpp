#include "zero/kernel/remainder.hpp"

#include "support/random.hpp"
#include "support/test.hpp"

namespace remainder_test {
namespace {

namespace kernel = zero::kernel;
using Rest16 = std::uint16_t;
using Rest8 = std::uint8_t;

struct Parts {
  std::uint32_t parameter, rest, joined;
  friend bool operator==(Parts const&, Parts const&) = default;
};

template <class Rest>
Parts parts_of(std::uint32_t master) {
  auto const parts = kernel::split_master<Rest>(master);
  return {parts.parameter, parts.rest, kernel::join_master<Rest>(parts.parameter, parts.rest)};
}
Parts parts_of_narrowed(std::uint32_t master, std::uint32_t random) {
  return parts_of<Rest8>(kernel::narrowed(master, random));
}

}  // namespace

TEST_CASE("remainders: the words of an independent program") {
  struct Row {
    std::uint32_t word;
    Parts whole, nearest, least, most;
  };
  std::vector<Row> const rows{{0x3f800080,
                               {0x3f80, 0x0080, 0x3f800080},
                               {0x3f80, 0x01, 0x3f800100},
                               {0x3f80, 0x00, 0x3f800000},
                               {0x3f80, 0x01, 0x3f800100}},
                              {0x3f807f80,
                               {0x3f80, 0x7f80, 0x3f807f80},
                               {0x3f81, 0x80, 0x3f808000},
                               {0x3f80, 0x7f, 0x3f807f00},
                               {0x3f81, 0x80, 0x3f808000}},
                              {0xbf818000,
                               {0xbf82, 0x8000, 0xbf818000},
                               {0xbf82, 0x80, 0xbf818000},
                               {0xbf82, 0x80, 0xbf818000},
                               {0xbf82, 0x80, 0xbf818000}},
                              {0x3fffff80,
                               {0x4000, 0xff80, 0x3fffff80},
                               {0x4000, 0x00, 0x40000000},
                               {0x4000, 0xff, 0x3fffff00},
                               {0x4000, 0x00, 0x40000000}},
                              {0x807fffff,
                               {0x8080, 0xffff, 0x807fffff},
                               {0x8080, 0x00, 0x80800000},
                               {0x8080, 0xff, 0x807fff00},
                               {0x8080, 0x00, 0x80800000}},
                              {0x7f7fff80,
                               {0x7f80, 0xff80, 0x7f7fff80},
                               {0x7f80, 0x00, 0x7f800000},
                               {0x7f80, 0xff, 0x7f7fff00},
                               {0x7f80, 0x00, 0x7f800000}},
                              {0x7f800001,
                               {0x7fc0, 0x0000, 0x7fc00000},
                               {0x7fc0, 0x00, 0x7fc00000},
                               {0x7fc0, 0x00, 0x7fc00000},
                               {0x7fc0, 0x00, 0x7fc00000}}};
  for (Row const& row : rows) {
    CAPTURE(row.word);
    CHECK((parts_of<Rest16>(row.word) == row.whole));
    CHECK((parts_of_narrowed(row.word, kernel::narrowed_to_nearest) == row.nearest));
    CHECK((parts_of_narrowed(row.word, 0x00) == row.least));
    CHECK((parts_of_narrowed(row.word, 0xff) == row.most));
  }
}

TEST_CASE("remainders of 8 bits: the mean over all random bits is the master") {
  for (std::uint64_t i = 0; i < 500; ++i) {
    auto const word = static_cast<std::uint32_t>(mixed(i)) & 0xff7fffffu;
    std::uint64_t sum = 0;
    bool stays = true;
    for (std::uint32_t k = 0; k <= 0xff; ++k) {
      std::uint32_t const narrow = kernel::narrowed(word, k);
      sum += narrow;
      // With any other random number nothing changes any more.
      stays = stays && kernel::narrowed(narrow, 0xff - k) == narrow;
    }
    REQUIRE(stays);
    REQUIRE(sum == std::uint64_t{256} * word);
  }
}

TEST_CASE_TEMPLATE("remainders: arrays of every length have the bits of single elements",
                   Rest,
                   Rest16,
                   Rest8) {
  for (std::size_t count = 0; count < 70; ++count) {
    std::vector<float> masters(count);
    std::vector<std::uint8_t> random(count);
    for (std::size_t i = 0; i < count; ++i) {
      masters[i] = std::bit_cast<float>(static_cast<std::uint32_t>(mixed(count, i)));
      random[i] = static_cast<std::uint8_t>(mixed(i));
    }
    for (auto const* const bits : {static_cast<std::uint8_t*>(nullptr), random.data()}) {
      if (count == 0) continue;
      auto const check = [&](auto isa) {
        std::vector<zero::bf16> parameters(count + 1, zero::bf16(99.f));
        std::vector<Rest> rests(count + 1, 99);
        std::vector<float> joined(count + 1, 99.f);
        kernel::split_masters<isa.value>(
            parameters.data(), rests.data(), masters.data(), count, bits);
        kernel::join_masters<isa.value>(joined.data(), parameters.data(), rests.data(), count);
        CHECK(parameters[count] == zero::bf16(99.f));
        CHECK(rests[count] == 99);
        CHECK(joined[count] == 99.f);
        for (std::size_t i = 0; i < count; ++i) {
          auto const word = std::bit_cast<std::uint32_t>(masters[i]);
          std::uint32_t const k = bits == nullptr ? kernel::narrowed_to_nearest : bits[i];
          auto const expected =
              sizeof(Rest) == 2 ? parts_of<Rest16>(word) : parts_of_narrowed(word, k);
          Parts const got{parameters[i].bits, rests[i], std::bit_cast<std::uint32_t>(joined[i])};
          REQUIRE((got == expected));
        }
      };
      check(std::integral_constant<kernel::Isa, kernel::native>{});
      check(std::integral_constant<kernel::Isa, kernel::isa::generic>{});
    }
  }
}

}  // namespace remainder_test
