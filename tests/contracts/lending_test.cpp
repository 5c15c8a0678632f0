/// Lending memory: what is refused and accepted, when memory may be exchanged, and which gradients
/// are given.
#include "contracts/lent_memory.hpp"
#include "contracts/loop.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace lending_test {
namespace {

using contracts::Borrower;
using contracts::LentMemory;
using Fp32G = Borrower<zero::stage::PosG, zero::Fp32>;
using Bf16G = Borrower<zero::stage::PosG, zero::Mixed<zero::bf16>>;

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
  for (auto& span : lender.g) {
    if (!span.empty()) span = {span.data() + 150, span.size()};
  }
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

TEST_CASE("a unit lends its tensors in any order of addresses, and tied ones once") {
  zero::Self comm;
  std::vector<zero::Tensor> const model{{.name = "a", .shape = {4}},
                                        {.name = "b", .shape = {5}},
                                        {.name = "again", .shape = {4}, .tied_to = "a"},
                                        {.name = "c", .shape = {6}}};
  zero::ShardedOptimizer optimizer{comm, model, zero::PlainSgd{}, zero::Borrowed<>{}};
  std::vector<float> values(20, 0.f);
  std::vector<float> slopes(20, 1.f);
  auto const lent = [](std::vector<float>& memory, std::size_t c) {
    auto const all = std::span(memory);
    return std::vector{
        all.subspan(14, 4), all.subspan(9, 5), all.subspan(14, 4), all.subspan(c, 6)};
  };
  optimizer.bind_parameters(lent(values, 0));
  optimizer.adopt_parameters();
  for (int step = 0; step < 3; ++step) {
    std::fill(slopes.begin(), slopes.end(), 1.f);
    // Of a call that is refused nothing stays lent.
    CHECK(::refusal([&] { optimizer.bind_gradients(0, lent(slopes, 10)); }) ==
          "gradients: tensor 'c' overlaps tensor 'b'");
    CHECK(is_refused([&] { optimizer.reduce(optimizer.gradients(0)); }));
    optimizer.bind_gradients(0, lent(slopes, 0));
    optimizer.reduce(optimizer.gradients(0));
    optimizer.step({.learning_rate = 1.});
  }
  CHECK(values[0] == -3.f);
  CHECK(values[6] == 0.f);
  CHECK(values[9] == -3.f);
  CHECK(values[17] == -3.f);
}

}  // namespace
}  // namespace lending_test
