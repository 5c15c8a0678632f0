/// Memory a trainer lends: used where it lies, and nothing beside it is touched.
#include "contracts/lent_memory.hpp"
#include "contracts/loop.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace borrowed_test {
namespace {

using contracts::Borrower;
using contracts::LentMemory;
using zero::Op;
using Fp32G = Borrower<zero::stage::PosG, zero::Fp32>;
using Bf16G = Borrower<zero::stage::PosG, zero::Mixed<zero::bf16>>;
using Fp32Replicated = Borrower<zero::stage::Replicated, zero::Fp32>;

/// What ends up in the lent parameters of rank 0 after three steps.
/// @param moves  whether the trainer lends other memory for every step
template <class O>
std::vector<std::byte> train(std::size_t bucket, bool flat, bool at_end, bool moves, bool overlap) {
  using Parameter = typename O::Parameter;
  using Wire = typename O::Wire;
  std::vector<std::byte> result;
  zero::run_ranks(3, [&](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    auto& comm = watched.comm;
    O optimizer{comm, toy::model(), zero::Bucket{bucket}};
    auto const& tensors = optimizer.tensors();
    auto parameters = std::make_unique<LentMemory<Parameter>>(tensors, flat, at_end);
    auto gradients = std::make_unique<LentMemory<Wire>>(tensors, flat, at_end);
    contracts::lend(optimizer, flat, *parameters, *gradients);
    contracts::load(optimizer);
    for (long step = 0; step < 3; ++step) {
      if (moves) {
        auto next = std::make_unique<LentMemory<Parameter>>(tensors, flat, at_end);
        // What is under way must have arrived before the trainer copies.
        optimizer.settle();
        next->copy_from(*parameters);
        auto fresh = std::make_unique<LentMemory<Wire>>(tensors, flat, at_end);
        contracts::lend(optimizer, flat, *next, *fresh);
        parameters = std::move(next);
        gradients = std::move(fresh);
      }
      gradients->clear();
      // A trainer with full gradients of its own may finish its backward pass first.
      for (int unit = 6; unit >= 0; --unit) {
        static_cast<void>(contracts::unit_backward(optimizer, unit, {}, step, comm.rank()));
      }
      gradients->forbid_writing();
      optimizer.reduce_all();
      optimizer.step({.max_norm = 1., .overlap_publish = overlap});
    }
    optimizer.settle();
    if (comm.rank() != 0) return;
    for (auto const& tensor : parameters->list()) contracts::append(result, tensor);
  });
  return result;
}

template <class O>
void check_guarded() {
  for (std::size_t const bucket : {std::size_t{1}, std::size_t{12345}, zero::MiB}) {
    INFO("stage " << O::Stage::name << ", precision " << O::Precision::name << ", bucket "
                  << bucket);
    auto const expected = train<O>(bucket, true, true, false, false);
    CHECK(expected.size() > 1000);
    CHECK(train<O>(bucket, true, false, false, false) == expected);
    CHECK(train<O>(bucket, false, true, false, false) == expected);
    CHECK(train<O>(bucket, false, false, true, false) == expected);
    CHECK(train<O>(bucket, true, true, true, true) == expected);
  }
}

TEST_CASE(
    "nothing outside lent memory is touched, lent gradients are only read, and both may move") {
  check_guarded<Fp32Replicated>();
  check_guarded<Fp32G>();
  check_guarded<Bf16G>();
}

/// Where the buckets of one step were sent from and received.
struct Addresses {
  std::vector<zero::Collective> calls;
  std::uintptr_t parameters = 0;
  std::uintptr_t parameters_end = 0;
  std::uintptr_t gradients = 0;
  std::uintptr_t gradients_end = 0;
  std::uint64_t staging = 0;
  /// Where each tensor's memory begins and ends.
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> lent;
};

std::uintptr_t number(void const* address) { return reinterpret_cast<std::uintptr_t>(address); }

template <class O>
Addresses addresses(std::vector<zero::Tensor> const& tensors, std::size_t bucket, bool flat) {
  Addresses result;
  zero::run_ranks(2, [&](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    auto& comm = watched.comm;
    O optimizer{comm, tensors, zero::Bucket{bucket}};
    LentMemory<typename O::Parameter> const parameters(tensors, flat, true);
    LentMemory<typename O::Wire> const gradients(tensors, flat, true);
    contracts::lend(optimizer, flat, parameters, gradients);
    contracts::load(optimizer);
    comm.forget();
    contracts::pass(optimizer, {}, 0, comm.rank());
    optimizer.step();
    if (comm.rank() != 1) return;
    for (auto const& call : comm.calls()) {
      if (call.bucket >= 0) result.calls.push_back(call);
    }
    result.staging = optimizer.held()[zero::Role::staging];
    for (auto const& list : {parameters.list(), gradients.list()}) {
      for (auto const& span : list) {
        result.lent.emplace_back(number(span.data()), number(span.data() + span.size()));
      }
    }
    if (!flat) return;
    result.parameters = number(parameters.flat().data());
    result.parameters_end = result.parameters + parameters.flat().size_bytes();
    result.gradients = number(gradients.flat().data());
    result.gradients_end = result.gradients + gradients.flat().size_bytes();
  });
  return result;
}

TEST_CASE("buckets that lie in one run of lent memory travel from where they are") {
  auto const tensors = contracts::even_model(4, 32);
  auto const found = addresses<Fp32G>(tensors, 12288 * 4, true);
  zero::Partition const partition(tensors,
                                  {.world_size = 2, .bucket_elements = 12288, .lent = true});
  CHECK(found.calls.size() == 2 * partition.bucket_count());
  for (auto const& call : found.calls) {
    auto const send = number(call.send);
    auto const first = partition.bucket(static_cast<std::size_t>(call.bucket)).whole().first();
    if (call.op == Op::reduce_scatter) {
      CHECK(send == found.gradients + static_cast<std::uintptr_t>(first) * 4);
    } else {
      auto const whole = found.parameters + static_cast<std::uintptr_t>(first) * 4;
      CHECK(number(call.recv) == whole);
      CHECK(send == whole + call.block_bytes());
    }
  }
}

TEST_CASE("all but the ragged ends of large tensors travels from where it is, wherever they lie") {
  // The smallest bucket has 1024 elements. Blocks of 512 begin 384 and 32 elements into the second
  // and the third tensor; from there they fill 19 and 39 such buckets.
  std::vector<zero::Tensor> const tensors{
      {.name = "small", .shape = {100}},
      {.name = "ragged", .shape = {20 * 1024 + 333}},
      {.name = "w", .shape = {40, 1024}},
      {.name = "next", .shape = {20 * 1024}, .unit = 1},
  };
  auto const found = addresses<Fp32G>(tensors, zero::MiB, false);
  std::uint64_t staged = 0;
  std::uint64_t sent = 0;
  for (auto const& call : found.calls) {
    auto const from = number(call.op == Op::reduce_scatter ? call.send : call.recv);
    bool const own = std::none_of(found.lent.begin(), found.lent.end(), [&](auto const& memory) {
      return memory.first <= from && from + 2 * call.block_bytes() <= memory.second;
    });
    (own ? staged : sent) += 2 * call.block_bytes();
  }
  CHECK(sent == 2 * (19 + 39 + 20) * 1024 * 4);
  CHECK(staged == 2 * 3 * 1024 * 4);
  CHECK(found.staging == 2 * 2048 * 4);
}

TEST_CASE("scattered buckets travel through staging, whose size is that of a few buckets") {
  constexpr std::size_t bucket = 12288 * 2;
  std::uint64_t staging = 0;
  for (int const units : {32, 48}) {
    auto const found = addresses<Bf16G>(contracts::even_model(units), bucket, false);
    CHECK(found.calls.size() == 2 * static_cast<std::size_t>(units));
    auto lowest = ~std::uintptr_t{0};
    std::uintptr_t highest = 0;
    for (auto const& call : found.calls) {
      bool const reduces = call.op == Op::reduce_scatter;
      auto const begin = number(reduces ? call.send : call.recv);
      lowest = std::min(lowest, begin);
      highest = std::max(highest, begin + call.block_bytes() * 2);
    }
    CHECK(highest - lowest <= found.staging);
    CHECK(found.staging == 2 * bucket);
    if (staging != 0) CHECK(found.staging == staging);
    staging = found.staging;
  }
}

TEST_CASE("a bucket that needs padding is not read beyond the buffer it ends with") {
  auto const found = addresses<Fp32G>(toy::model(), zero::MiB, true);
  for (auto const& call : found.calls) {
    if (call.op != Op::reduce_scatter) continue;
    auto const send = number(call.send);
    bool const staged =
        send + call.block_bytes() * 2 <= found.gradients || send >= found.gradients_end;
    CHECK((staged || send + call.block_bytes() * 2 <= found.gradients_end));
  }
}

/// What three steps make of large tensors, none of which ends where a bucket does.
template <class O>
std::vector<std::byte> trained(std::size_t bucket, bool flat) {
  std::vector<zero::Tensor> const tensors{
      {.name = "w", .shape = {40, 1024}},
      {.name = "ragged", .shape = {50'333}},
      {.name = "small", .shape = {100}},
      {.name = "tied", .shape = {30'001}, .unit = 1},
      {.name = "next", .shape = {77'777}, .unit = 1},
      {.name = "head", .shape = {30'001}, .unit = 2, .tied_to = "tied"},
  };
  std::vector<std::byte> result;
  zero::run_ranks(3, [&](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    O optimizer{watched.comm, tensors, zero::Bucket{bucket}};
    LentMemory<typename O::Parameter> const parameters(tensors, flat, true);
    LentMemory<typename O::Wire> gradients(tensors, flat, true);
    if constexpr (O::borrowed) contracts::lend(optimizer, flat, parameters, gradients);
    contracts::load(optimizer);
    for (long step = 0; step < 3; ++step) {
      gradients.clear();
      contracts::pass(optimizer, {}, step, inner.rank());
      if (step == 1) gradients.forbid_writing();
      optimizer.step({.max_norm = 1.});
    }
    if (inner.rank() != 0) return;
    auto const all = optimizer.full_parameters();
    for (std::size_t t = 0; t < all.size(); ++t) contracts::append(result, all[t]);
  });
  return result;
}

template <class Stage, class Precision>
void check_large() {
  auto const expected =
      trained<contracts::WatchedOptimizer<Stage, Precision, zero::Owned<>>>(zero::MiB, true);
  CHECK(expected.size() > 200'000 * sizeof(typename Precision::Parameter));
  for (std::size_t const bucket : {std::size_t{1}, std::size_t{20'000}, zero::MiB}) {
    for (bool const flat : {false, true}) {
      CHECK(trained<Borrower<Stage, Precision>>(bucket, flat) == expected);
    }
  }
}

TEST_CASE("large tensors that travel from where they lie get the bits of memory that is owned") {
  check_large<zero::stage::Replicated, zero::Fp32>();
  check_large<zero::stage::PosG, zero::Fp32>();
  check_large<zero::stage::PosG, zero::Mixed<zero::bf16>>();
}

template <class Stage, class Memory>
std::uint64_t held_by_plan(std::vector<zero::Tensor> const& tensors, int ranks) {
  using O = zero::ShardedOptimizer<Stage, zero::InProcess, Memory>;
  return O::plan({.world_size = ranks}, tensors).memory.total();
}

TEST_CASE("what lending saves is what the stage promises, for small models too") {
  for (std::size_t const elements : {std::size_t{850'688}, std::size_t{24} << 20}) {
    for (int const ranks : {2, 4, 16}) {
      std::uint64_t const bytes = 4 * elements;
      auto const n = static_cast<std::uint64_t>(ranks);
      std::vector<zero::Tensor> const tensors{{.name = "all", .shape = {elements}}};
      // States of AdamW, the share of the reduced gradients; buckets in staging are a sixteenth.
      auto const most = [&](std::uint64_t states) {
        return states + bytes / n + bytes / 16 + 8192;
      };
      using zero::Borrowed;
      CHECK(held_by_plan<zero::stage::Pos, Borrowed<>>(tensors, ranks) <= most(2 * bytes / n));
      CHECK(held_by_plan<zero::stage::PosG, Borrowed<>>(tensors, ranks) <= most(2 * bytes / n));
      CHECK(held_by_plan<zero::stage::Replicated, Borrowed<>>(tensors, ranks) <= most(2 * bytes));
    }
  }
}

}  // namespace
}  // namespace borrowed_test
