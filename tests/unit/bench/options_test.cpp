#include "zero/bench/options.hpp"

#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/concepts/communicator.hpp"

namespace options_test {

using zero::bench::Option;
using zero::bench::parse_size;

TEST_CASE("a size has a suffix or none") {
  CHECK(parse_size("1") == 1);
  CHECK(parse_size("20") == 20);
  CHECK(parse_size("1K") == 1024);
  CHECK(parse_size("64k") == 65536);
  CHECK(parse_size("256M") == std::size_t{256} << 20);
  CHECK(parse_size("3G") == std::size_t{3} << 30);
}

TEST_CASE("what is no size is refused") {
  for (char const* const text :
       {"", "0", "-1", "x", "1X", "1KB", "1.5M", "K", " 1", "99999999999999999999"}) {
    CAPTURE(text);
    CHECK(refusal([&] { static_cast<void>(parse_size(text)); }).find("is not a number") !=
          std::string::npos);
  }
  CHECK(refusal([] { static_cast<void>(parse_size("99999999999999999G")); }).find("overflow") !=
        std::string::npos);
}

TEST_CASE("sizes go from the smallest to the largest") {
  using Sizes = std::vector<std::size_t>;
  CHECK(zero::bench::sizes(1024, 65536, 4) == Sizes{1024, 4096, 16384, 65536});
  CHECK(zero::bench::sizes(1000, 65535, 8) == Sizes{1000, 8000, 64000});
  CHECK(zero::bench::sizes(5, 5, 2) == Sizes{5});
  std::size_t const largest = ~std::size_t{0};
  CHECK(zero::bench::sizes(largest / 2, largest, 2).size() == 2);  // and does not wrap
  CHECK(refusal([] { static_cast<void>(zero::bench::sizes(2, 1, 2)); }).find("--min 2") !=
        std::string::npos);
  CHECK(refusal([] { static_cast<void>(zero::bench::sizes(1, 2, 1)); }).find("--factor") !=
        std::string::npos);
}

TEST_CASE("a list names what there is") {
  std::vector<zero::Op> const known{zero::Op::broadcast, zero::Op::all_gather};
  CHECK(zero::bench::choose("all", known) == known);
  CHECK(zero::bench::choose("all_gather", known) == std::vector{zero::Op::all_gather});
  CHECK(zero::bench::choose("all_gather,broadcast", known).size() == 2);
  CHECK(refusal([&] { static_cast<void>(zero::bench::choose("gather", known)); }) ==
        "'gather' is none of all, broadcast, all_gather");
  CHECK(refusal([&] { static_cast<void>(zero::bench::choose("broadcast,", known)); }) ==
        "'' is none of all, broadcast, all_gather");
}

struct Parsed {
  std::string value;
  bool flag = false;
  std::vector<std::string> rest;
};

Parsed parse(std::initializer_list<char const*> arguments) {
  Parsed parsed;
  std::vector<Option> const options{
      {"--value", "", [&](std::string_view text) { parsed.value = text; }},
      {"--flag", "", [&](std::string_view) { parsed.flag = true; }, true}};
  std::vector<std::string> texts{"program"};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  for (char* const text :
       zero::bench::parse_options(static_cast<int>(argv.size()), argv.data(), options)) {
    parsed.rest.emplace_back(text);
  }
  return parsed;
}

TEST_CASE("an option has a value after it or in it") {
  CHECK(parse({"--value", "3"}).value == "3");
  CHECK(parse({"--value=a=b"}).value == "a=b");
  CHECK(parse({"--flag", "--value", "--flag"}).value == "--flag");
  CHECK(parse({"--flag"}).flag);
  Parsed const mixed = parse({"--benchmark_filter=x", "--value", "1", "--benchmark_out=f"});
  CHECK(mixed.rest ==
        std::vector<std::string>{"program", "--benchmark_filter=x", "--benchmark_out=f"});
}

TEST_CASE("a wrong option is named") {
  CHECK(refusal([] { parse({"--frob", "1"}); }) == "unknown option --frob; see --help");
  CHECK(refusal([] { parse({"frob"}); }) == "unknown option frob; see --help");
  CHECK(refusal([] { parse({"--value"}); }) == "--value needs a value; see --help");
  CHECK(refusal([] { parse({"--flag=1"}); }) == "--flag takes no value");
}

}  // namespace options_test
