/// Memory a trainer lends: checked when it is lent, exchanged between steps, used where it lies;
/// and nothing beside it is touched.
#include "contracts/lent_memory.hpp"
#include "contracts/loop.hpp"
#include "support/refusal.hpp"
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

/// One rank, whose memory can be lent wrongly.
struct Lender {
  std::vector<zero::InProcess> handles = zero::InProcess::group(1);
  contracts::Watched watched{handles[0]};
  std::vector<zero::Tensor> tensors = {
      {.name = "a", .shape = {40}},
      {.name = "b", .shape = {50}},
      {.name = "cold", .shape = {60}, .frozen = true},
      {.name = "none", .shape = {0}},
      {.name = "again", .shape = {40}, .unit = 1, .tied_to = "a"},
  };
  Bf16G optimizer{watched.comm, tensors};
  std::vector<zero::bf16> parameters = std::vector<zero::bf16>(1000);
  std::vector<zero::bf16> gradients = std::vector<zero::bf16>(1000);
  std::vector<std::span<zero::bf16>> p = split(parameters);
  std::vector<std::span<zero::bf16>> g = split(gradients);

  static std::vector<std::span<zero::bf16>> split(std::vector<zero::bf16>& memory) {
    auto const all = std::span(memory);
    return {all.subspan(0, 40), all.subspan(40, 50), all.subspan(90, 60), {}, {}};
  }

  /// The message with which bind() refuses the lists, or nothing.
  std::string refusal() {
    return ::refusal([&] { optimizer.bind(p, g); });
  }
};

TEST_CASE("wrong lists are refused in words") {
  auto const at = [](std::vector<zero::bf16>& memory, std::size_t first, std::size_t count) {
    return std::span(memory).subspan(first, count);
  };
  auto const last = reinterpret_cast<zero::bf16*>(UINTPTR_MAX - 97);
  using Change = std::function<void(Lender&)>;
  std::pair<Change, char const*> const rows[]{
      {[](Lender& l) { l.p.pop_back(); }, "5 tensors are described but 4 parameters are lent"},
      {[](Lender& l) { l.g.emplace_back(); }, "5 tensors are described but 6 gradients are lent"},
      {[](Lender& l) { l.p[1] = l.p[1].first(49); },
       "parameters: tensor 'b' has 50 elements, but 49 are lent"},
      {[](Lender& l) { l.p[2] = {}; }, "parameters: tensor 'cold' has 60 elements, but 0 are lent"},
      {[&](Lender& l) { l.p[3] = at(l.parameters, 900, 1); },
       "parameters: tensor 'none' has 0 elements, but 1 are lent"},
      {[](Lender& l) {
         l.g[0] = {static_cast<zero::bf16*>(nullptr), 40};
       },
       "gradients: tensor 'a' is lent as a null pointer"},
      {[&](Lender& l) {
         l.g[1] = {last, 50};
       },
       "gradients: tensor 'b' is lent beyond the end of the address space"},
      {[&](Lender& l) {
         l.g[1] = {last - 2, 50};
       },
       ""},
      {[&](Lender& l) { l.p[1] = at(l.parameters, 39, 50); },
       "parameters: tensor 'b' overlaps tensor 'a'"},
      {[&](Lender& l) { l.g[1] = at(l.gradients, 0, 50); },
       "gradients: tensor 'b' overlaps tensor 'a'"},
      {[&](Lender& l) { l.g[1] = at(l.parameters, 101, 50); },
       "parameters: tensor 'cold' overlaps the gradients of tensor 'b'"},
      {[&](Lender& l) { l.p[4] = at(l.parameters, 900, 40); },
       "parameters: tensor 'again' is tied, but lent at another address than the tensor it is tied "
       "to"},
  };
  for (auto const& [change, message] : rows) {
    Lender lender;
    change(lender);
    CHECK(lender.refusal() == message);
  }
}

TEST_CASE("right lists are accepted: tied and frozen tensors may be left out or not") {
  Lender lender;
  CHECK(lender.refusal() == "");
  lender.p[4] = lender.p[0];
  lender.g[2] = {};
  CHECK(lender.refusal() == "");
  // Neighbours may touch.
  lender.g = Lender::split(lender.parameters);
  for (auto& span : lender.g) span = {span.data() + 150, span.size()};
  CHECK(lender.refusal() == "");
}

TEST_CASE("gradients that are const are lent in every form, and read where they lie") {
  using Spans = std::vector<std::span<float const>>;
  static float const values[5] = {1.f, 2.f, 3.f, 4.f, 5.f};
  Spans const list{{values, 3}, {values + 3, 2}};
  auto const trained = [&](auto const& lend) {
    std::vector<float> memory(5, 1.f);
    std::span<float> const parts[]{{memory.data(), 3}, {memory.data() + 3, 2}};
    zero::run_ranks(1, [&](zero::InProcess& inner) {
      contracts::Watched watched{inner};
      Fp32G optimizer{watched.comm,
                      {{.name = "a", .shape = {3}}, {.name = "b", .shape = {2}, .unit = 1}},
                      zero::AdamW{.lr = 0.5f}};
      lend(optimizer, std::span(memory), std::span<std::span<float> const>(parts));
      for (int const unit : optimizer.units_backward()) optimizer.reduce(optimizer.gradients(unit));
      optimizer.step();
    });
    return memory;
  };
  std::vector<float> changing(values, values + 5);
  auto const expected =
      trained([&](auto& optimizer, auto flat, auto) { optimizer.bind(flat, std::span(changing)); });
  CHECK(expected[4] != 1.f);
  CHECK(trained([&](auto& optimizer, auto flat, auto) {
          optimizer.bind(flat, std::span<float const>(values));
        }) == expected);
  CHECK(trained([&](auto& optimizer, auto, auto parts) { optimizer.bind(parts, list); }) ==
        expected);
  CHECK(trained([&](auto& optimizer, auto flat, auto) {
          optimizer.bind_parameters(flat);
          optimizer.bind_gradients(list);
        }) == expected);
  CHECK(trained([&](auto& optimizer, auto flat, auto) {
          optimizer.bind_parameters(flat);
          optimizer.bind_gradients(std::span<float const>(values));
        }) == expected);
  CHECK(trained([&](auto& optimizer, auto flat, auto) {
          optimizer.bind_parameters(flat);
          optimizer.bind_gradients(0, std::span(list).first(1));
          optimizer.bind_gradients(1, std::span(list).last(1));
        }) == expected);
}

TEST_CASE("wrong flat buffers are refused in words") {
  Lender lender;
  auto const all = std::span(lender.parameters);
  auto const bind = [&](std::size_t parameters, std::size_t gradients, std::size_t at) {
    return ::refusal(
        [&] { lender.optimizer.bind(all.subspan(0, parameters), all.subspan(at, gradients)); });
  };
  CHECK(bind(149, 150, 500) ==
        "the tensors have 150 elements, but the flat buffer of parameters has 149");
  CHECK(bind(150, 151, 500) ==
        "the tensors have 150 elements, but the flat buffer of gradients has 151; where tensors "
        "lie with gaps between them, lend a span for each");
  CHECK(bind(150, 150, 149) == "parameters: tensor 'cold' overlaps the gradients of tensor 'a'");
  CHECK(bind(150, 150, 0) == "parameters: tensor 'a' overlaps the gradients of tensor 'a'");
  CHECK(bind(150, 150, 150) == "");
}

TEST_CASE("gradients alone can be lent anew, and are checked against the parameters that stay") {
  Lender lender;
  auto& optimizer = lender.optimizer;
  REQUIRE(lender.refusal() == "");
  std::vector<zero::bf16> others(150);
  auto const lent = Lender::split(lender.gradients);
  CHECK(::refusal([&] { optimizer.bind_gradients(std::span(others)); }) == "");
  CHECK(optimizer.gradients(0).size() == 4);
  CHECK(optimizer.gradients(0)["a"].data() == others.data());
  optimizer.discard_gradients();
  CHECK(::refusal([&] { optimizer.bind_gradients(lent); }) == "");
  CHECK(optimizer.gradients(0)["a"].data() == lender.gradients.data());
  optimizer.discard_gradients();
  CHECK(::refusal([&] {
          optimizer.bind_gradients(std::span(lender.parameters).subspan(149, 150));
        }) == "parameters: tensor 'cold' overlaps the gradients of tensor 'a'");
}

TEST_CASE("nothing works before memory is lent, nor after a binding that was refused") {
  Lender lender;
  auto& optimizer = lender.optimizer;
  for (bool const refused : {false, true}) {
    if (refused) {
      REQUIRE(lender.refusal() == "");
      auto const good = lender.g[1];
      lender.g[1] = std::span(lender.parameters).subspan(0, 50);
      REQUIRE(lender.refusal() != "");
      lender.g[1] = good;
    }
    std::string const message = "Borrowed<> memory is used before bind()";
    std::function<void()> const calls[]{
        [&] { contracts::load(optimizer); },
        [&] { optimizer.adopt_parameters(); },
        [&] { return optimizer.parameter(0); },
        [&] { return optimizer.parameters(0); },
        [&] { return optimizer.gradients(0); },
        [&] { optimizer.reduce_all(); },
        [&] { return optimizer.grad_norm(); },
        [&] { optimizer.step(); },
        [&] { return contracts::snapshot(optimizer); },
    };
    for (auto const& call : calls) CHECK(::refusal(call) == message);
  }
  CHECK(lender.refusal() == "");
  contracts::load(optimizer);
  CHECK(optimizer.step().step == 1);
}

TEST_CASE("memory cannot be exchanged while gradients are being reduced") {
  zero::run_ranks(2, [&](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    auto& comm = watched.comm;
    auto const tensors = contracts::even_model();
    // Whether or not a bucket has travelled, is travelling or waits for others.
    for (std::size_t const bytes : {std::size_t{1}, std::size_t{12288}, 25 * zero::MiB}) {
      Fp32G optimizer{comm, tensors, zero::Bucket{bytes}};
      LentMemory<float> const parameters(tensors, true, true);
      LentMemory<float> const gradients(tensors, true, true);
      auto const lend = [&] {
        return ::refusal([&] { contracts::lend(optimizer, true, parameters, gradients); });
      };
      auto const lend_gradients = [&] {
        return ::refusal([&] { optimizer.bind_gradients(gradients.flat()); });
      };
      std::string const message =
          "bind() while gradients are being reduced: from the first gradients(unit) until "
          "reduce_all(), step() or discard_gradients()";
      CHECK(lend() == "");
      auto open = optimizer.gradients(3);
      CHECK(lend() == message);
      CHECK(lend_gradients() == message);
      optimizer.reduce(std::move(open));
      CHECK(lend() == message);
      CHECK(lend_gradients() == message);
      optimizer.reduce_all();
      CHECK(lend() == "");
      CHECK(lend_gradients() == "");
      CHECK(optimizer.step().step == 1);
      optimizer.reduce(optimizer.gradients(3));
      optimizer.discard_gradients();
      CHECK(lend_gradients() == "");
    }
  });
}

/// One rank that lends two tensors of a unit each, whose gradients may be written.
struct WritableLender {
  template <class... Policies>
  using O = contracts::Optimizer<zero::stage::PosG, zero::BorrowedInPlace<>, Policies...>;

  std::vector<zero::InProcess> handles = zero::InProcess::group(1);
  O<> optimizer{handles[0],
                {{.name = "a", .shape = {40}}, {.name = "b", .shape = {50}, .unit = 1}}};
  std::vector<float> parameters = std::vector<float>(90);
  std::vector<float> gradients = std::vector<float>(90);
  std::span<float> const a = std::span(gradients).first(40);
  std::span<float> const b = std::span(gradients).last(50);
};

TEST_CASE("gradients that hold reduced ones are all lent, and stay until the step is over") {
  WritableLender lender;
  auto& optimizer = lender.optimizer;
  auto const bind = [&](auto const&... lent) {
    return ::refusal([&] { optimizer.bind_gradients(lent...); });
  };
  using Spans = std::vector<std::span<float>>;
  std::string const empty =
      "gradients: tensor 'b' is not lent, but reduced gradients are written to all of them; lend "
      "it, and say without_gradient()";
  optimizer.bind_parameters(lender.parameters);
  optimizer.adopt_parameters();
  CHECK(bind(Spans{lender.a, {}}) == empty);
  CHECK(bind(Spans{lender.a, lender.b}) == "");
  optimizer.reduce_all();
  std::string const message =
      "bind() while lent gradients hold reduced ones: from the first gradients(unit) until step() "
      "or discard_gradients()";
  CHECK(bind(Spans{lender.a, lender.b}) == message);
  CHECK_FALSE(optimizer.gradients_free(0));
  optimizer.step();
  CHECK(optimizer.gradients_free(0));
  // A tensor without a gradient rests, whatever lies in its memory.
  lender.gradients.back() = std::numeric_limits<float>::quiet_NaN();
  optimizer.without_gradient(1);
  optimizer.step();
  CHECK(optimizer.steps(0) == 2);
  CHECK(optimizer.steps(1) == 1);

  WritableLender by_unit;
  by_unit.optimizer.bind_parameters(by_unit.parameters);
  by_unit.optimizer.adopt_parameters();
  CHECK(::refusal([&] { by_unit.optimizer.bind_gradients(1, Spans{{}}); }) == empty);
  by_unit.optimizer.bind_gradients(1, Spans{by_unit.b});
  by_unit.optimizer.reduce(by_unit.optimizer.gradients(1));
  CHECK(::refusal([&] { by_unit.optimizer.reduce_all(); }) ==
        "gradients: tensor 'a' is used, but not lent in this step; call bind_gradients(unit, ...) "
        "before");
  by_unit.optimizer.discard_gradients();
}

/// What two ranks make of a tensor of which only one has a gradient; the other's memory holds
/// anything.
template <class... Memory>
std::vector<float> trained_by_one() {
  std::vector<float> result;
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    contracts::Optimizer<zero::stage::Pos, Memory...> optimizer{
        comm, {{.name = "w", .shape = {40, 1024}}, {.name = "b", .shape = {3}, .unit = 1}}};
    bool const gives = comm.rank() == 1;
    float const other = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> parameters(40 * 1024 + 3);
    std::vector<float> gradients(parameters.size(), gives ? 0.25f : other);
    if constexpr (sizeof...(Memory) > 0)
      optimizer.bind(std::span(parameters), std::span(gradients));
    contracts::load(optimizer);
    for (int const unit : {1, 0}) {
      if (!gives) {
        optimizer.without_gradient(unit);
        continue;
      }
      auto lent = optimizer.gradients(unit);
      if constexpr (sizeof...(Memory) == 0) std::fill(lent[0].begin(), lent[0].end(), 0.25f);
      optimizer.reduce(std::move(lent));
    }
    optimizer.step();
    if (gives) return;
    std::span<float> const first = optimizer.parameter(0);
    result.assign(first.begin(), first.end());
  });
  return result;
}

TEST_CASE("a rank without a gradient has memory for its share of what others give") {
  auto const expected = trained_by_one<>();
  CHECK(trained_by_one<zero::Borrowed<>>() == expected);
  CHECK(trained_by_one<zero::BorrowedInPlace<>>() == expected);
}

TEST_CASE("what is under way in lent memory has arrived before other memory takes its place") {
  zero::run_ranks(2, [&](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    auto& comm = watched.comm;
    auto const tensors = contracts::even_model();
    Fp32G optimizer{comm, tensors, zero::Bucket{12288}};
    LentMemory<float> const parameters(tensors, true, true);
    LentMemory<float> const gradients(tensors, true, true);
    contracts::lend(optimizer, true, parameters, gradients);
    optimizer.step({.overlap_publish = true});
    CHECK(comm.under_way() > 0);
    LentMemory<float> const others(tensors, true, true);
    contracts::lend(optimizer, true, others, gradients);
    CHECK(comm.under_way() == 0);
    optimizer.step({.overlap_publish = true});
    CHECK(comm.under_way() > 0);
    optimizer.adopt_parameters();
    CHECK(comm.under_way() == 0);
  });
}

TEST_CASE("micro-batches that a trainer has added up count as many") {
  auto const sum_of_three = [](auto const& reduce) {
    Lender lender;
    lender.optimizer.bind(lender.p, lender.g);
    lender.optimizer.adopt_parameters();
    for (auto const& gradient : lender.g) {
      for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = zero::bf16(3.f);
    }
    reduce(lender.optimizer);
    double const norm = lender.optimizer.grad_norm();
    CHECK(lender.optimizer.step().grad_norm == norm);
    return norm * norm;  // of 90 elements that are trained
  };
  CHECK(sum_of_three([](auto& optimizer) { optimizer.reduce_all(); }) == doctest::Approx(810.));
  CHECK(sum_of_three([](auto& optimizer) { optimizer.reduce_all(3.); }) == doctest::Approx(90.));
  CHECK(sum_of_three([](auto& optimizer) { optimizer.reduce_all(6.); }) == doctest::Approx(22.5));

  Lender lender;
  lender.optimizer.bind(lender.p, lender.g);
  lender.optimizer.adopt_parameters();
  CHECK(::refusal([&] { lender.optimizer.reduce_all(-1.); }).find("weight") != std::string::npos);
  lender.optimizer.micro_step();
  CHECK(::refusal([&] {
          lender.optimizer.reduce_all(2.);
        }).find("reduce_all() in the middle of a step") == 0);
}

TEST_CASE("no step replaces lent parameters by master weights that were never set") {
  for (bool const adopts : {true, false}) {
    Lender lender;
    auto& optimizer = lender.optimizer;
    REQUIRE(lender.refusal() == "");
    for (auto& value : lender.parameters) value = zero::bf16(1.5f);
    for (int attempt = 0; attempt < 2; ++attempt) {
      CHECK(::refusal([&] { optimizer.step(); }) ==
            "step() before adopt_parameters() or load_parameters(): the master weights would "
            "replace the lent parameters, and have no values yet");
      CHECK(is_refused([&] { optimizer.step(1.f, 1.); }));
      CHECK(is_refused([&] { optimizer.enqueue_step(); }));
    }
    for (auto const value : lender.parameters) CHECK(float(value) == 1.5f);
    if (adopts) optimizer.adopt_parameters();
    optimizer.visit_owned([&](auto const&, std::size_t, auto const& master, auto const&) {
      for (float const value : master) CHECK(value == (adopts ? 1.5f : 0.f));
    });
    if (!adopts) contracts::load(optimizer);
    CHECK(optimizer.step().step == 1);
    // Masters stay when other memory is lent.
    REQUIRE(lender.refusal() == "");
    CHECK(optimizer.step().step == 2);
  }
}

}  // namespace
}  // namespace borrowed_test
