/// What backends compute alike: shares of a collective, members of a split group.
#include "zero/comm/shared/shares.hpp"

#include "support/test.hpp"
#include "zero/comm/shared/split_members.hpp"

namespace shares_test {
namespace {

using zero::Collective;
using zero::DType;
using zero::Op;

TEST_CASE("shares: ranges of an all_reduce or a broadcast cover the result once, in whole lines") {
  for (Op const kind : {Op::all_reduce, Op::broadcast}) {
    for (int size = 1; size <= 9; ++size) {
      for (std::size_t const count : {0u, 1u, 63u, 64u, 65u, 500u, 512u, 4099u}) {
        Collective const op{.op = kind, .count = count};
        std::size_t covered = 0;
        for (int share = 0; share < size; ++share) {
          std::size_t const length = zero::detail::share_length(op, share, size);
          std::size_t const begin = zero::detail::share_begin(count, share, size);
          CHECK(begin == covered);
          if (length != 0) CHECK(begin % 64 == 0);
          covered += length;
        }
        CHECK(covered == count);
      }
    }
  }
}

TEST_CASE("shares: any cut of the work gives the same result") {
  for (int number = 0; number < zero::op_count; ++number) {
    constexpr int size = 3;
    constexpr std::size_t count = 157;
    Collective const op{.op = static_cast<Op>(number), .count = count, .root = 2};
    std::vector<std::vector<float>> results;
    for (std::size_t const step : {1u, 10u, 64u, 1000u}) {
      std::vector<float> send[size];
      std::vector<float> recv[size];
      void const* sends[size];
      void* recvs[size];
      for (int rank = 0; rank < size; ++rank) {
        for (std::size_t i = 0; i < size * count; ++i) {
          send[rank].push_back(
              1.0f /
              static_cast<float>(i + 1 + std::size_t{1000} * static_cast<std::size_t>(rank)));
        }
        recv[rank].assign(size * count, -1.0f);
        sends[rank] = send[rank].data();
        recvs[rank] = recv[rank].data();
      }
      bool const stream = step == 64;
      for (int share = size - 1; share >= 0; --share) {
        std::size_t const length = zero::detail::share_length(op, share, size);
        for (std::size_t at = 0; at < length; at += step) {
          std::size_t const now = at + step < length ? step : length - at;
          zero::detail::run_part(op, {sends, recvs, size}, share, at, now, stream);
        }
      }
      std::vector<float> all;
      for (auto const& part : recv) all.insert(all.end(), part.begin(), part.end());
      results.push_back(all);
    }
    for (auto const& result : results) CHECK(result == results[0]);
  }
}

using zero::detail::split_members;

TEST_CASE("ranks of a color, by key, then by rank") {
  std::vector<zero::detail::SplitChoice> const choices{{1, 5}, {2, 0}, {1, -3}, {1, 5}, {2, 0}};
  CHECK(split_members(choices, 1) == std::vector{2, 0, 3});
  CHECK(split_members(choices, 2) == std::vector{1, 4});
  CHECK(split_members(choices, 3).empty());
}

}  // namespace
}  // namespace shares_test
