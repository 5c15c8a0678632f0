#include "../bench/command.hpp"

#include "support/test.hpp"

namespace command_test {

using zero::DType;

struct Read : bench::Command {
  std::vector<std::string> left{};
};

Read read(std::initializer_list<char const*> arguments, int rank = -1, bool nccl = false) {
  std::vector<std::string> texts{"program"};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  auto argc = static_cast<int>(argv.size());
  Read result{bench::read_command(argc, argv.data(), rank, nccl)};
  result.left.assign(argv.begin(), argv.begin() + argc);
  return result;
}

TEST_CASE("without options the library's cases are measured") {
  auto const cases = read({}).cases;
  zero::bench::CollectiveCases const usual;
  CHECK(cases.dtypes == usual.dtypes);
  CHECK(cases.ranks == usual.ranks);
  CHECK(cases.smallest == usual.smallest);
  CHECK(cases.largest == usual.largest);
  CHECK(cases.factor == usual.factor);
  CHECK((cases.out_of_place && !cases.in_place && cases.check));
}

TEST_CASE("every option says what it is called after") {
  Read const all = read({"--dtype", "all", "--place=both", "--ranks", "1,3", "--no-check"});
  CHECK(!all.status);
  CHECK(all.cases.dtypes == std::vector{DType::f32, DType::bf16, DType::f16});
  CHECK((all.cases.out_of_place && all.cases.in_place));
  CHECK(all.cases.ranks == std::vector{1, 3});
  CHECK(!all.cases.check);
  Read const some = read({"--min=64", "--max", "3G", "--factor", "8", "--late", "50"});
  CHECK(some.cases.smallest == 64);
  CHECK(some.cases.largest == 3 * zero::GiB);
  CHECK(some.cases.factor == 8);
  CHECK(some.cases.late_us == 50);
  Read const in = read({"--place", "in", "--dtype", "fp16,bf16", "--min", "64k", "--max=2M"});
  CHECK((!in.cases.out_of_place && in.cases.in_place));
  CHECK(in.cases.dtypes == std::vector{DType::bf16, DType::f16});
  CHECK(in.cases.smallest == 64 * zero::KiB);
  CHECK(in.cases.largest == 2 * zero::MiB);
  CHECK(read({"--ordinary"}, 0).ordinary);
  CHECK(!read({}, 0).ordinary);
  Read const nccl = read({"--native", "--ranks", "2"}, -1, true);
  CHECK((nccl.native && !nccl.windows && nccl.cases.ranks == std::vector{2}));
  CHECK(read({"--windows"}, -1, true).windows);
}

TEST_CASE("Google Benchmark's options are left to it") {
  Read const mixed = read({"--benchmark_filter=x", "--max", "4K", "--benchmark_out=f", "--v=1"});
  CHECK(mixed.cases.largest == 4 * zero::KiB);
  CHECK(mixed.left ==
        std::vector<std::string>{"program", "--benchmark_filter=x", "--benchmark_out=f", "--v=1"});
}

TEST_CASE("what is wrong ends the program with 2, help with 0") {
  for (std::initializer_list<char const*> const& wrong :
       {std::initializer_list<char const*>{"--frob"},
        {"frob"},
        {"--min", "3X"},
        {"--max"},
        {"--place", "beside"},
        {"--dtype", "fp32,int8"},
        {"--ranks", "2,x"},
        {"--ordinary"},
        {"--native"},
        {"--windows"}}) {
    CAPTURE(*wrong.begin());
    CHECK(read(wrong).status == 2);
  }
  CHECK(read({"--ranks", "2"}, 1).status == 2);
  CHECK(read({"--help"}).status == 0);
  CHECK(read({"--help"}, 1).status == 0);
}

}  // namespace command_test
