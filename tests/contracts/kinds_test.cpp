/// Tensors of several types in one optimizer: the bits of one optimizer for each precision that
/// step together, held and sent as planned, and what is refused.
#include "contracts/ranks.hpp"
#include "contracts/recording.hpp"
#include "support/kinds_model.hpp"
#include "support/refusal.hpp"
#include "support/sanitized.hpp"
#include "support/test.hpp"
#include "zero/comm/grid.hpp"
#include "zero/zero.hpp"

#include <array>

namespace kinds_test {
namespace {

using namespace kinds_model;
using zero::Fp32;
using zero::InProcess;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;
using Bf16 = zero::Mixed<zero::bf16>;

constexpr int steps = toy::sanitized ? 2 : 6;

/// Its tensors of one type, as a trainer of one precision describes them.
std::vector<Tensor> of_type(DType type) {
  std::vector<Tensor> tensors;
  for (Tensor tensor : model()) {
    if (type_of(tensor) != type) continue;
    tensor.dtype.reset();
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}
/// Are all its parameters those of the optimizers for one precision each?
template <class O, class Halves, class Fulls, class Expect>
void compare(O& one, Halves& halves, Fulls& fulls, std::string const& at, Expect const& expect) {
  auto const all = one.full_parameters();
  auto const half = halves.full_parameters();
  auto const full = fulls.full_parameters();
  for (Tensor const& tensor : one.tensors()) {
    auto const same = [&]<class T>(T, auto const& other) {
      auto const own = std::as_bytes(all.template as<T>(tensor.name));
      auto const theirs = std::as_bytes(other.template as<T>(tensor.name));
      expect(std::ranges::equal(own, theirs), tensor.name + " after " + at);
    };
    switch (type_of(tensor)) {
      case DType::f32: same(float{}, full); break;
      case DType::bf16: same(bf16{}, half); break;
      default: expect(right(tensor, all.template as<std::uint8_t>(tensor.name)), tensor.name);
    }
  }
}

/// Trains one optimizer over `comm` and, over `inner`, one for each precision.
template <class Stage, class... Accumulation, class Comm, class Expect>
void train(
    Comm& comm, InProcess& inner, zero::Bucket bucket, bool broadcast, Expect const& expect) {
  zero::ShardedOptimizer<Comm, Stage, Both, Accumulation...> one{comm, model(), bucket};
  contracts::Optimizer<Stage, Bf16, Accumulation...> halves{inner, of_type(DType::bf16), bucket};
  contracts::Optimizer<Stage, Fp32, Accumulation...> fulls{
      inner, of_type(DType::f32), zero::Bucket{1}};
  int const root = inner.size() - 1;
  if (broadcast) {
    one.broadcast_bytes(fill_bytes, root);
    one.broadcast_parameters(fill, root);
  } else {
    one.load_parameters(fill);
    one.load_bytes(fill_bytes);
  }
  halves.load_parameters(fill);
  fulls.load_parameters(fill);
  int clipped = 0;
  for (long step = 0; step < steps; ++step) {
    std::string const at = "step " + std::to_string(step);
    zero::StepOptions const options{.max_norm = step % 2 == 0 ? 10. : 1000.};
    auto const half = [](Tensor const&) { return DType::bf16; };
    auto const full = [](Tensor const&) { return DType::f32; };
    pass(one, step, inner.rank(), type_of, expect);
    pass(halves, step, inner.rank(), half, expect);
    pass(fulls, step, inner.rank(), full, expect);
    auto const report = one.step(options);
    auto const wanted = zero::step_together(options, halves, fulls);
    expect(report.grad_norm == wanted.grad_norm, "norm of " + at);
    expect(report.clip_coefficient == wanted.clip_coefficient, "clipping of " + at);
    compare(one, halves, fulls, at, expect);
    clipped += report.clip_coefficient < 1. ? 1 : 0;
  }
  expect(clipped == steps / 2, "what was tried");
  auto const plan = one.plan();
  expect(one.held() == plan.memory, "what is held");
  std::uint64_t states = 0;
  for (auto const& array : plan.state_arrays) states += array.bytes;
  expect(states == plan.memory[zero::Role::state], "states by their names");
  one.check_parameters();
}

template <class Stage, class... Accumulation>
void train_all() {
  INFO("stage " << Stage::name);
  for (int const ranks : toy::worlds) {
    for (std::size_t const bucket : {std::size_t{1}, std::size_t{12'345}, zero::MiB}) {
      if (toy::sanitized && bucket != 12'345) continue;
      CAPTURE(ranks);
      CAPTURE(bucket);
      contracts::on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
        train<Stage, Accumulation...>(comm, comm, zero::Bucket{bucket}, bucket < zero::MiB, expect);
      });
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE(
    "tensors of two types have the bits of one optimizer for each, that step together",
    Stage,
    Replicated,
    Pos,
    PosG,
    PosGP) {
  train_all<Stage>();
}

TEST_CASE("the same of sums over micro-steps") {
  train_all<PosG, zero::AccumulateShard>();
  train_all<PosGP, zero::AccumulateShard>();
}

TEST_CASE_TEMPLATE("the same where the communicator adds no squares; what is sent was planned",
                   Stage,
                   Replicated,
                   PosG,
                   PosGP) {
  INFO("stage " << Stage::name);
  for (int const ranks : {1, 2, 3}) {
    if (toy::sanitized && ranks != 3) continue;
    contracts::on_ranks(ranks, [&](InProcess& inner, auto const& expect) {
      contracts::Watched watched{inner};
      train<Stage>(watched.comm, inner, zero::Bucket{5000}, false, expect);
      contracts::WatchedOptimizer<Stage, Both> optimizer{watched.comm, model(), zero::Bucket{5000}};
      optimizer.load_parameters(fill);
      optimizer.load_bytes(fill_bytes);
      for (long step = 0; step < 2; ++step) {
        watched.counted.reset();
        pass(optimizer, step, inner.rank(), type_of, expect);
        optimizer.step();
        auto const counts = watched.counted.counts();
        auto const plan = optimizer.plan();
        expect(counts.bucket_total().elements == plan.traffic.total(), "elements sent");
        expect(counts.bucket_total().bytes == plan.sent.total(), "bytes sent");
      }
    });
  }
}

namespace {

/// Steps with constant gradients.
/// @returns the bits of all parameters
template <class Trainer>
std::vector<std::byte> train_constantly(Trainer& trainer) {
  auto& optimizer = trainer.optimizer;
  optimizer.load_bytes(fill_bytes);
  for (float const value : {0.5f, -2.f, 0.25f}) {
    for (int const unit : optimizer.units_backward()) {
      auto gradients = optimizer.gradients(unit);
      for (Tensor const& tensor : optimizer.tensors()) {
        if (tensor.unit != unit || tensor.frozen || !tensor.tied_to.empty()) continue;
        if (type_of(tensor) == DType::f32) {
          trainer.fill(gradients.template as<float>(tensor.name), value);
        } else {
          trainer.fill(gradients[tensor.name], value);
        }
      }
      optimizer.reduce(std::move(gradients));
    }
    optimizer.step({.max_norm = 1.});
  }
  std::vector<std::byte> seen;
  auto const all = optimizer.full_parameters();
  for (Tensor const& tensor : optimizer.tensors()) {
    as_typed(tensor, [&]<class T>(T) {
      auto const span = all.template as<T>(tensor.name);
      std::size_t const before = seen.size();
      seen.resize(before + span.size_bytes());
      if (!span.empty()) trainer.space().download(&seen[before], span.data(), span.size_bytes());
    });
  }
  return seen;
}

}  // namespace

TEST_CASE_TEMPLATE("tensors of several types in memory that the host cannot reach",
                   Stage,
                   Replicated,
                   PosG,
                   PosGP) {
  INFO("stage " << Stage::name);
  for (int const ranks : {1, 3}) {
    contracts::on_ranks(ranks, [](InProcess& inner, auto const& expect) {
      contracts::OnHost<Stage, Both> host{inner, model(), {}, zero::Bucket{5000}};
      contracts::OnDevice<Stage, Both> device{inner, model(), {}, zero::Bucket{5000}};
      auto const wanted = train_constantly(host);
      expect(train_constantly(device) == wanted, "the bits of the host");
    });
  }
}

TEST_CASE("memory of several types is lent span by span") {
  for (int const ranks : {1, 3}) {
    contracts::on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
      contracts::Optimizer<PosG, Both, zero::Borrowed<>> lent{comm, model(), zero::Bucket{1}};
      contracts::Optimizer<PosG, Both> owned{comm, model(), zero::Bucket{1}};
      std::vector<std::vector<std::byte>> memory;
      std::vector<zero::LentSpan> parameters;
      std::vector<zero::LentSpan> gradients;
      auto const lend = [&](Tensor const& tensor, bool gradient) -> zero::LentSpan {
        if (!tensor.tied_to.empty() || (gradient && tensor.frozen)) return {};
        std::size_t const count = zero::element_count(tensor);
        auto& own = memory.emplace_back(count * zero::size_of(type_of(tensor)));
        return {own.data(), count, type_of(tensor)};
      };
      for (Tensor const& tensor : lent.tensors()) {
        parameters.push_back(lend(tensor, false));
        gradients.push_back(lend(tensor, true));
      }
      lent.bind(parameters, gradients);
      owned.load_parameters(fill);
      owned.load_bytes(fill_bytes);
      lent.load_bytes(fill_bytes);
      lent.load_parameters(fill);
      for (long step = 0; step < 3; ++step) {
        pass(owned, step, comm.rank(), type_of, expect);
        auto const wanted = owned.step();
        // Gradients are the trainer's to clear.
        for (std::size_t t = 0; t < gradients.size(); ++t) {
          auto const& span = gradients[t];
          if (span.size() == 0) continue;
          std::memset(span.data(), 0, span.size() * zero::size_of(span.dtype()));
        }
        pass(lent, step, comm.rank(), type_of, expect);
        expect(lent.step().grad_norm == wanted.grad_norm, "norm");
      }
      expect(bits(lent) == bits(owned), "parameters");
    });
  }
}

namespace {

/// What a step, or construction, is refused with.
std::string refused(std::vector<Tensor> const& tensors) {
  return refusal([&] {
    auto comms = InProcess::group(1);
    contracts::Optimizer<PosG, Both> const optimizer{comms[0], tensors};
  });
}

}  // namespace

TEST_CASE("a trained tensor is of a type that a precision has") {
  CHECK(refused({{.name = "w", .shape = {3}, .dtype = DType::u8}}) ==
        "tensor 'w' is trained and of uint8, which has no gradients: only a frozen one can be");
  CHECK(refused({{.name = "w", .shape = {3}, .dtype = DType::f16}}) ==
        "tensor 'w' is trained and of fp16, which no precision here has: bf16, fp32");
  CHECK(refused({{.name = "w", .shape = {3}, .dtype = DType::f16, .frozen = true}}) == "");
  CHECK(refused({{.name = "w", .shape = {3}},
                 {.name = "v", .shape = {3}, .dtype = DType::f32, .tied_to = "w"}}) ==
        "tensor 'v' is tied to 'w', which is held in other types");
}

TEST_CASE("elements are asked for in the type that they have") {
  auto comms = InProcess::group(1);
  contracts::Optimizer<PosG, Both, zero::AccumulateFull> optimizer{comms[0], model()};
  auto const weights = optimizer.parameters(0);
  auto const gradients = optimizer.gradients(0);
  auto const all = optimizer.full_parameters();
  std::string const norm =
      "tensor 'ln0' has parameters of fp32, not of bf16: name their type, with as<T>";
  CHECK(refusal([&] { return weights["ln0"]; }) == norm);
  CHECK(refusal([&] { return weights[1]; }) == norm);
  CHECK(refusal([&] { return all["ln0"]; }) == norm);
  CHECK(refusal([&] { return optimizer.parameter(1); }) == norm);
  CHECK(refusal([&] { return weights.as<double>("wte"); }) ==
        "tensor 'wte' has parameters of bf16, not of fp64: name their type, with as<T>");
  CHECK(refusal([&] { return weights.as<float>("codes"); }) ==
        "tensor 'codes' has parameters of uint8, not of fp32: name their type, with as<T>");
  std::string const slope =
      "tensor 'ln0' has gradients of fp32, not of bf16: name their type, with as<T>";
  CHECK(refusal([&] { return gradients["ln0"]; }) == slope);
  CHECK(refusal([&] { return optimizer.gradient(1); }) == slope);
  CHECK(gradients["codes"].empty());
  CHECK(gradients.as<float>("ln0").size() == 77);
  CHECK(optimizer.gradient<float>(1).size() == 77);
  CHECK(optimizer.parameter<std::uint8_t>(2).size() == 1999);
}

TEST_CASE("a step before every tensor has values is refused, whichever call is missing") {
  for (int const ranks : {1, 3}) {
    auto const number = std::to_string(ranks);
    std::string const of_ranks =
        " on " + number + " of " + number + (ranks == 1 ? " rank" : " ranks");
    for (bool const bytes : {false, true}) {
      auto const said = contracts::endings(
          ranks,
          [&](InProcess& comm) {
            contracts::Optimizer<PosGP, Both> optimizer{comm, model()};
            bytes ? optimizer.load_bytes(fill_bytes) : optimizer.load_parameters(fill);
            pass(optimizer, 0, 0, type_of, [](bool, std::string const&) {});
            optimizer.step();
          },
          true);
      for (std::string const& each : said) {
        CHECK(each.find(bytes ? "parameters have no values" + of_ranks
                              : "tensor 'codes' has no values" + of_ranks) == 0);
      }
    }
  }
}

TEST_CASE_TEMPLATE("bytes that differ on one rank are found when they are loaded",
                   Stage,
                   Replicated,
                   PosGP) {
  INFO("stage " << Stage::name);
  for (std::string const& name : {std::string("base"), std::string("codes")}) {
    CAPTURE(name);
    auto const said = contracts::endings(
        3,
        [&](InProcess& comm) {
          contracts::Optimizer<Stage, Both> optimizer{comm, model(), zero::Bucket{1}};
          optimizer.load_bytes(
              [&](Tensor const& tensor, std::size_t first, std::span<std::byte> out) {
                fill_bytes(tensor, first, out);
                bool const other = comm.rank() == 1 && tensor.name == name;
                for (std::byte& each : out) each ^= std::byte{other};
              });
        },
        true);
    // Under Pos+g+p, one rank has all three bytes of "base", and one other was asked for them:
    // neither is rank 1. Of "codes", every rank has a share.
    bool const found = name == "codes" || !Stage::sharding.parameters;
    std::string const wanted = "ranks 0 and 1, 1 and 2 start from different values of tensor '" +
                               name + "'; broadcast_bytes(values) gives all of them those of one";
    for (std::string const& each : said) CHECK(each == (found ? wanted : ""));
  }
}

TEST_CASE("bytes alone in a model, and fewer of them than ranks") {
  std::vector<Tensor> const tensors{
      {.name = "codes", .shape = {2}, .dtype = DType::u8, .frozen = true},
      {.name = "base", .shape = {700}, .unit = 1, .dtype = DType::u8, .frozen = true}};
  for (int const ranks : {1, 5}) {
    contracts::on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
      contracts::Optimizer<PosGP, Both> optimizer{comm, tensors};
      // There is nothing that load_parameters would be asked for.
      optimizer.load_bytes(fill_bytes);
      optimizer.check_parameters();
      for (int const unit : optimizer.units()) {
        auto const weights = optimizer.parameters(unit);
        expect(right(tensors[static_cast<std::size_t>(unit)], weights.template as<std::uint8_t>(0)),
               "bytes");
      }
      expect(optimizer.held() == optimizer.plan().memory, "what is held");
    });
  }
}

TEST_CASE("lent memory of another type, and flat memory of several") {
  auto comms = InProcess::group(1);
  std::vector<Tensor> const tensors{{.name = "w", .shape = {3}},
                                    {.name = "n", .shape = {3}, .dtype = DType::f32}};
  contracts::Optimizer<PosG, Both, zero::Borrowed<>> optimizer{comms[0], tensors};
  std::vector<bf16> half(6);
  std::vector<float> full(3);
  std::vector<std::span<bf16>> const halves{std::span(half).first(3), std::span(half).last(3)};
  CHECK(refusal([&] { optimizer.bind_parameters(halves); }) ==
        "parameters: tensor 'n' is of fp32, but lent as bf16");
  CHECK(refusal([&] { optimizer.bind_parameters(std::span(half)); }) ==
        "parameters: tensor 'n' is of fp32, and a flat buffer has elements of one type, bf16; lend "
        "a span for each tensor");
  std::vector<zero::LentSpan> const good{halves[0], std::span(full)};
  optimizer.bind_parameters(good);
  std::vector<zero::LentSpan> const bad{std::span(full), halves[1]};
  CHECK(refusal([&] { optimizer.bind_gradients(0, bad); }) ==
        "gradients: tensor 'w' is of bf16, but lent as fp32");
}

namespace {

/// Norms of steps over a communicator or a grid, and the bits of all parameters in the end.
template <class Stage, class Group, class Expect>
std::pair<std::vector<double>, std::vector<std::byte>> trained(Group& group,
                                                               int batch,
                                                               Expect const& expect) {
  contracts::Optimizer<Stage, Both> optimizer{group, model(), zero::Bucket{5000}};
  optimizer.load_parameters(fill);
  optimizer.load_bytes(fill_bytes);
  std::vector<double> norms;
  for (long step = 0; step < 3; ++step) {
    pass(optimizer, step, batch, type_of, expect);
    norms.push_back(optimizer.step({.max_norm = 10.}).grad_norm);
  }
  return {norms, bits(optimizer)};
}

}  // namespace

TEST_CASE_TEMPLATE("over a grid tensors of several types count once", Stage, Pos, PosGP) {
  INFO("stage " << Stage::name);
  std::pair<std::vector<double>, std::vector<std::byte>> wanted;
  contracts::on_ranks(2, [&](InProcess& comm, auto const& expect) {
    auto own = trained<Stage>(comm, comm.rank(), expect);
    if (comm.rank() == 0) wanted = std::move(own);
  });
  contracts::on_ranks(4, [&](InProcess& world, auto const& expect) {
    zero::Grid grid{world, 2, 2};
    auto const own = trained<Stage>(grid, grid.data().rank(), expect);
    expect(own.first == wanted.first, "norms");
    expect(own.second == wanted.second, "parameters");
  });
}

TEST_CASE("bytes that differ on a model axis are found by the first step") {
  auto const said = contracts::endings(
      4,
      [](InProcess& world) {
        zero::Grid grid{world, 2, 2};
        contracts::Optimizer<PosGP, Both> optimizer{grid, model()};
        optimizer.load_parameters(fill);
        optimizer.load_bytes(
            [&](Tensor const& tensor, std::size_t first, std::span<std::byte> out) {
              fill_bytes(tensor, first, out);
              // All of them: each data axis has some, so that none goes on.
              for (std::byte& each : out) {
                if (grid.model().rank() == 1 && tensor.name == "codes") each ^= std::byte{1};
              }
            });
        pass(optimizer, 0, grid.data().rank(), type_of, [](bool, std::string const&) {});
        optimizer.step();
      },
      true);
  for (std::string const& each : said) {
    CHECK_MESSAGE(each.find("'codes'") != std::string::npos, each);
  }
}

TEST_CASE("ranks that describe a tensor in other types hear of it") {
  auto const said = contracts::endings(2, [](InProcess& comm) {
    std::vector<Tensor> tensors{{.name = "w", .shape = {3}}};
    if (comm.rank() == 1) tensors[0].dtype = DType::f32;
    contracts::Optimizer<PosG, Both> const optimizer{comm, tensors};
  });
  for (std::string const& each : said) {
    CHECK(each.find("ranks disagree on tensor 0, 'w' [3], type: 'the precision's' on rank 0; "
                    "'fp32' on rank 1") != std::string::npos);
  }
}

TEST_CASE("ranks that list other precisions hear of it") {
  auto const said = contracts::endings(2, [](InProcess& comm) {
    std::vector<Tensor> const tensors{{.name = "w", .shape = {3}}};
    if (comm.rank() == 0) {
      contracts::Optimizer<PosG, Both> const optimizer{comm, tensors};
    } else {
      contracts::Optimizer<PosG, Bf16> const optimizer{comm, tensors};
    }
  });
  for (std::string const& each : said) {
    CHECK_MESSAGE(
        each.find("precision: 'bf16, fp32' on rank 0; 'bf16' on rank 1") != std::string::npos,
        each);
  }
}

}  // namespace kinds_test
