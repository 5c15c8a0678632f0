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
    if (!flat) return;
    result.parameters = number(parameters.flat().data());
    result.parameters_end = result.parameters + parameters.flat().size_bytes();
    result.gradients = number(gradients.flat().data());
    result.gradients_end = result.gradients + gradients.flat().size_bytes();
  });
  return result;
}

TEST_CASE("buckets that lie in one run of lent memory travel from where they are") {
  auto const found = addresses<Fp32G>(contracts::even_model(), 12288 * 4, true);
  CHECK(found.calls.size() == 8);
  for (auto const& call : found.calls) {
    auto const send = number(call.send);
    if (call.op == Op::reduce_scatter) {
      CHECK(send == found.gradients + static_cast<std::uintptr_t>(call.bucket) * 12288 * 4);
    } else {
      auto const whole = found.parameters + static_cast<std::uintptr_t>(call.bucket) * 12288 * 4;
      CHECK(number(call.recv) == whole);
      CHECK(send == whole + call.block_bytes());
    }
  }
}

TEST_CASE("scattered buckets travel through staging, whose size is that of a few buckets") {
  constexpr std::size_t bucket = 12288 * 2;
  std::uint64_t staging = 0;
  for (int const units : {4, 12}) {
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

}  // namespace
}  // namespace borrowed_test
