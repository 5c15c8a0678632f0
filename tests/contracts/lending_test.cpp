/// What a trainer may lend and when: checked when it is lent, exchanged between the steps.
#include "contracts/lent_memory.hpp"
#include "contracts/loop.hpp"
#include "support/refusal.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

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
  {
    Lender lender;
    lender.p.pop_back();
    CHECK(lender.refusal() == "5 tensors are described but 4 parameters are lent");
  }
  {
    Lender lender;
    lender.g.emplace_back();
    CHECK(lender.refusal() == "5 tensors are described but 6 gradients are lent");
  }
  {
    Lender lender;
    lender.p[1] = lender.p[1].first(49);
    CHECK(lender.refusal() == "parameters: tensor 'b' has 50 elements, but 49 are lent");
  }
  {
    Lender lender;
    lender.p[2] = {};
    CHECK(lender.refusal() == "parameters: tensor 'cold' has 60 elements, but 0 are lent");
  }
  {
    Lender lender;
    lender.p[3] = std::span(lender.parameters).subspan(900, 1);
    CHECK(lender.refusal() == "parameters: tensor 'none' has 0 elements, but 1 are lent");
  }
  {
    Lender lender;
    lender.g[0] = {static_cast<zero::bf16*>(nullptr), 40};
    CHECK(lender.refusal() == "gradients: tensor 'a' is lent as a null pointer");
  }
  {
    Lender lender;
    auto const last = reinterpret_cast<zero::bf16*>(UINTPTR_MAX - 97);
    lender.g[1] = {last, 50};
    CHECK(lender.refusal() == "gradients: tensor 'b' is lent beyond the end of the address space");
    lender.g[1] = {last - 2, 50};
    CHECK(lender.refusal() == "");
  }
  {
    Lender lender;
    lender.p[1] = std::span(lender.parameters).subspan(39, 50);
    CHECK(lender.refusal() == "parameters: tensor 'b' overlaps tensor 'a'");
  }
  {
    Lender lender;
    lender.g[1] = lender.g[0].data() < lender.g[1].data()
                      ? std::span(lender.gradients).subspan(0, 50)
                      : lender.g[1];
    CHECK(lender.refusal() == "gradients: tensor 'b' overlaps tensor 'a'");
  }
  {
    Lender lender;
    lender.g[1] = std::span(lender.parameters).subspan(101, 50);
    CHECK(lender.refusal() == "parameters: tensor 'cold' overlaps the gradients of tensor 'b'");
  }
  {
    Lender lender;
    lender.p[4] = std::span(lender.parameters).subspan(900, 40);
    CHECK(lender.refusal() ==
          "parameters: tensor 'again' is tied, but lent at another address "
          "than the tensor it is tied to");
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
        "the tensors have 150 elements, but the flat buffer of gradients has 151");
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
    CHECK(::refusal([&] { contracts::load(optimizer); }) == message);
    CHECK(::refusal([&] { optimizer.adopt_parameters(); }) == message);
    CHECK(::refusal([&] { static_cast<void>(optimizer.parameter(0)); }) == message);
    CHECK(::refusal([&] { static_cast<void>(optimizer.parameters(0)); }) == message);
    CHECK(::refusal([&] { static_cast<void>(optimizer.gradients(0)); }) == message);
    CHECK(::refusal([&] { optimizer.reduce_all(); }) == message);
    CHECK(::refusal([&] { static_cast<void>(optimizer.grad_norm()); }) == message);
    CHECK(::refusal([&] { optimizer.step(); }) == message);
    CHECK(::refusal([&] { static_cast<void>(contracts::snapshot(optimizer)); }) == message);
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

TEST_CASE("the parameters a trainer has already can be adopted as they are") {
  for (bool const adopts : {true, false}) {
    Lender lender;
    REQUIRE(lender.refusal() == "");
    for (auto& value : lender.parameters) value = zero::bf16(1.5f);
    if (adopts) lender.optimizer.adopt_parameters();
    lender.optimizer.visit_owned([&](auto const&, std::size_t, auto const& master, auto const&) {
      for (float const value : master) CHECK(value == (adopts ? 1.5f : 0.f));
    });
  }
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
    if (adopts) {
      optimizer.adopt_parameters();
    } else {
      contracts::load(optimizer);
    }
    CHECK(optimizer.step().step == 1);
    // Masters stay when other memory is lent.
    REQUIRE(lender.refusal() == "");
    CHECK(optimizer.step().step == 2);
  }
}

}  // namespace
}  // namespace lending_test
