/// Memory a trainer lends is used where it lies, and nothing beside it is touched.
#include "contracts/lent_memory.hpp"
#include "contracts/loop.hpp"
#include "support/sanitized.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace borrowed_test {
namespace {

using contracts::Borrower;
using contracts::InPlace;
using contracts::LentMemory;
using zero::Op;
using Fp32G = Borrower<zero::stage::PosG, zero::Fp32>;
using Bf16G = Borrower<zero::stage::PosG, zero::Mixed<zero::bf16>>;

/// How a trainer lends, if it does.
struct Lends {
  bool flat = true;
  bool at_end = true;    ///< the forbidden page is behind, not before
  bool moves = false;    ///< other memory for every step
  bool overlap = false;  ///< of the refresh with what follows a step
  bool at_once = true;   ///< reduces only when the backward pass is through
};

/// What ends up in the parameters of rank 0 after three steps.
template <class O>
std::vector<std::byte> train(std::vector<zero::Tensor> const& tensors,
                             std::size_t bucket,
                             Lends const& how) {
  using Parameters = LentMemory<typename O::Parameter>;
  using Gradients = LentMemory<typename O::Wire>;
  std::vector<std::byte> result;
  zero::run_ranks(3, [&](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    O optimizer{watched.comm, tensors, zero::Bucket{bucket}};
    auto parameters = std::make_unique<Parameters>(tensors, how.flat, how.at_end);
    auto gradients = std::make_unique<Gradients>(tensors, how.flat, how.at_end);
    if constexpr (O::borrowed) contracts::lend(optimizer, how.flat, *parameters, *gradients);
    contracts::load(optimizer);
    for (long step = 0; step < 3; ++step) {
      if constexpr (O::borrowed) {
        if (how.moves) {
          auto next = std::make_unique<Parameters>(tensors, how.flat, how.at_end);
          // What is under way must have arrived before the trainer copies.
          optimizer.settle();
          next->copy_from(*parameters);
          auto fresh = std::make_unique<Gradients>(tensors, how.flat, how.at_end);
          contracts::lend(optimizer, how.flat, *next, *fresh);
          parameters = std::move(next);
          gradients = std::move(fresh);
        }
      }
      gradients->clear();
      if (O::borrowed && how.at_once) {
        for (int const unit : optimizer.units_backward()) {
          static_cast<void>(contracts::unit_backward(optimizer, unit, {}, step, inner.rank()));
        }
      } else {
        contracts::pass(optimizer, {}, step, inner.rank());
      }
      if (!contracts::writes_lent<O>) gradients->forbid_writing();
      optimizer.reduce_all();
      optimizer.step({.max_norm = 1., .overlap_publish = how.overlap});
    }
    optimizer.settle();
    auto const all = optimizer.full_parameters();
    if (inner.rank() != 0) return;
    for (std::size_t t = 0; t < all.size(); ++t) contracts::append(result, all[t]);
    if constexpr (O::borrowed) CHECK(all[0].data() == parameters->list()[0].data());
  });
  return result;
}

/// Large tensors, none of which ends where a bucket does.
std::vector<zero::Tensor> large_model() {
  return {
      {.name = "w", .shape = {40, 1024}},
      {.name = "ragged", .shape = {50'333}},
      {.name = "small", .shape = {100}},
      {.name = "tied", .shape = {30'001}, .unit = 1},
      {.name = "next", .shape = {77'777}, .unit = 1},
      {.name = "head", .shape = {30'001}, .unit = 2, .tied_to = "tied"},
  };
}

template <class Stage, class Precision, template <class...> class Lender = Borrower>
void check_guarded() {
  Lends const ways[]{{},
                     {.at_end = false},
                     {.flat = false},
                     {.flat = false, .at_end = false, .moves = true},
                     {.moves = true, .overlap = true},
                     {.at_once = false},
                     {.flat = false, .at_once = false}};
  for (auto const& tensors : {toy::model(), large_model()}) {
    using Owner = contracts::WatchedOptimizer<Stage, Precision, zero::Owned<>>;
    auto const expected = train<Owner>(tensors, zero::MiB, {});
    CHECK(expected.size() > 1000);
    for (std::size_t const bucket : {std::size_t{1}, std::size_t{20'000}, zero::MiB}) {
      if (toy::sanitized && bucket != 20'000) continue;
      for (Lends const& how : ways) {
        INFO("stage " << Stage::name << ", precision " << Precision::name << ", bucket " << bucket
                      << ", way " << &how - ways << ", first tensor " << tensors[0].name);
        CHECK(train<Lender<Stage, Precision>>(tensors, bucket, how) == expected);
      }
    }
  }
}

TEST_CASE(
    "nothing outside lent memory is touched, gradients are only read, both may move, and the bits "
    "are those of memory that is owned") {
  check_guarded<zero::stage::Replicated, zero::Fp32>();
  check_guarded<zero::stage::PosG, zero::Fp32>();
  check_guarded<zero::stage::PosG, zero::Mixed<zero::bf16>>();
}

TEST_CASE("the bits are the same where reduced gradients lie in lent ones") {
  check_guarded<zero::stage::Replicated, zero::Mixed<zero::bf16>, InPlace>();
  check_guarded<zero::stage::Pos, zero::Fp32, InPlace>();
  check_guarded<zero::stage::PosG, zero::Mixed<zero::bf16>, InPlace>();
}

/// Where the buckets of one step were sent from and received.
struct Addresses {
  std::vector<zero::Collective> calls;
  std::uintptr_t parameters = 0;
  std::uintptr_t gradients = 0;
  std::uint64_t staging = 0;
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> lent;  ///< where tensors begin and end
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
    result.gradients = number(gradients.flat().data());
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

TEST_CASE("where lent gradients may be written, what travels from there arrives there") {
  auto const tensors = contracts::even_model(4, 32);
  auto const found = addresses<InPlace<zero::stage::PosG, zero::Fp32>>(tensors, 12288 * 4, true);
  std::size_t reductions = 0;
  for (auto const& call : found.calls) {
    if (call.op != Op::reduce_scatter) continue;
    ++reductions;
    CHECK(number(call.recv) == number(call.send) + call.block_bytes());
    CHECK(number(call.send) >= found.gradients);
  }
  CHECK(2 * reductions == found.calls.size());
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
  }
}

TEST_CASE("what lending saves is what the stage promises, for small models too") {
  for (std::size_t const elements : {std::size_t{850'688}, std::size_t{24} << 20}) {
    for (int const ranks : {2, 4, 16}) {
      std::uint64_t const bytes = 4 * elements;
      auto const n = static_cast<std::uint64_t>(ranks);
      auto const total = [&]<class O>(std::type_identity<O>) {
        return O::plan({.world_size = ranks}, {{.name = "all", .shape = {elements}}})
            .memory.total();
      };
      auto const held = [&]<class Stage>(Stage) {
        std::uint64_t const lent = total(std::type_identity<Borrower<Stage, zero::Fp32>>{});
        std::uint64_t const written = total(std::type_identity<InPlace<Stage, zero::Fp32>>{});
        // Without the share, which is padded.
        CHECK(lent - written >= bytes / n);
        CHECK(lent - written <= bytes / n + 2048);
        return lent;
      };
      // States of AdamW, the share of the reduced gradients; buckets in staging are a sixteenth.
      std::uint64_t const rest = bytes / n + bytes / 16 + 8192;
      CHECK(held(zero::stage::Pos{}) <= 2 * bytes / n + rest);
      CHECK(held(zero::stage::PosG{}) <= 2 * bytes / n + rest);
      CHECK(held(zero::stage::Replicated{}) <= 2 * bytes + rest);
    }
  }
}

}  // namespace
}  // namespace borrowed_test
