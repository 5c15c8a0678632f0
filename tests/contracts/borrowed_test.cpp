/// Memory a trainer lends: touched nowhere else, checked when it is lent, used where it lies.
#include "contracts/guarded.hpp"
#include "contracts/loop.hpp"
#include "contracts/recording.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace borrowed_test {
namespace {

using Bf16 = zero::Mixed<zero::bf16>;
using Comm = contracts::Recording<zero::InProcess>;
using zero::Op;

template <class... Policies>
using Optimizer = zero::ShardedOptimizer<Comm, zero::Borrowed<>, Policies...>;

using Fp32G = Optimizer<zero::stage::PosG, zero::Fp32>;
using Bf16G = Optimizer<zero::stage::PosG, Bf16>;
using Fp32Replicated = Optimizer<zero::stage::Replicated, zero::Fp32>;

std::size_t lent_count(zero::Tensor const& tensor) {
  return tensor.tied_to.empty() ? zero::element_count(tensor) : 0;
}

/// A trainer's memory, every buffer of it between forbidden pages.
template <class T>
class Memory {
 public:
  Memory(std::vector<zero::Tensor> const& tensors, bool flat, bool at_end) {
    std::size_t total = 0;
    for (auto const& tensor : tensors) total += lent_count(tensor);
    if (flat) buffers_.emplace_back(total, at_end);
    std::size_t used = 0;
    for (auto const& tensor : tensors) {
      std::size_t const count = lent_count(tensor);
      if (flat) {
        tensors_.push_back(buffers_.front().span().subspan(used, count));
        used += count;
      } else {
        buffers_.emplace_back(count, at_end);
        tensors_.push_back(buffers_.back().span());
      }
    }
  }

  [[nodiscard]] std::span<T> flat() const { return buffers_.front().span(); }
  [[nodiscard]] std::vector<std::span<T>> const& list() const { return tensors_; }
  void clear() {
    for (auto& buffer : buffers_) buffer.allow_writing();
    for (auto const& tensor : tensors_) std::fill(tensor.begin(), tensor.end(), T(0.f));
  }
  void forbid_writing() {
    for (auto& buffer : buffers_) buffer.forbid_writing();
  }
  void copy_from(Memory const& other) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      std::copy(other.tensors_[t].begin(), other.tensors_[t].end(), tensors_[t].begin());
    }
  }

 private:
  std::vector<contracts::Guarded<T>> buffers_;
  std::vector<std::span<T>> tensors_;
};

template <class O>
void bind(O& optimizer,
          bool flat,
          Memory<typename O::Parameter> const& parameters,
          Memory<typename O::Wire> const& gradients) {
  if (flat) {
    optimizer.bind(parameters.flat(), gradients.flat());
  } else {
    optimizer.bind(parameters.list(), gradients.list());
  }
}

/// What ends up in the lent parameters of rank 0 after three steps.
/// @param moves  whether the trainer lends other memory for every step
template <class O>
std::vector<std::byte> train(std::size_t bucket, bool flat, bool at_end, bool moves, bool overlap) {
  using Parameter = typename O::Parameter;
  using Wire = typename O::Wire;
  std::vector<std::byte> result;
  zero::run_ranks(3, [&](zero::InProcess& inner) {
    Comm comm{inner};
    O optimizer{comm, toy::model(), zero::Bucket{bucket}};
    auto const& tensors = optimizer.tensors();
    auto parameters = std::make_unique<Memory<Parameter>>(tensors, flat, at_end);
    auto gradients = std::make_unique<Memory<Wire>>(tensors, flat, at_end);
    bind(optimizer, flat, *parameters, *gradients);
    contracts::load(optimizer);
    for (long step = 0; step < 3; ++step) {
      if (moves) {
        auto next = std::make_unique<Memory<Parameter>>(tensors, flat, at_end);
        // What is under way must have arrived before the trainer copies.
        optimizer.settle();
        next->copy_from(*parameters);
        auto fresh = std::make_unique<Memory<Wire>>(tensors, flat, at_end);
        bind(optimizer, flat, *next, *fresh);
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
    Comm comm{inner};
    O optimizer{comm, tensors, zero::Bucket{bucket}};
    Memory<typename O::Parameter> const parameters(tensors, flat, true);
    Memory<typename O::Wire> const gradients(tensors, flat, true);
    bind(optimizer, flat, parameters, gradients);
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

/// One rank, whose memory can be lent wrongly.
struct Lender {
  std::vector<zero::InProcess> handles = zero::InProcess::group(1);
  Comm comm{handles[0]};
  std::vector<zero::Tensor> tensors = {
      {.name = "a", .shape = {40}},
      {.name = "b", .shape = {50}},
      {.name = "cold", .shape = {60}, .frozen = true},
      {.name = "none", .shape = {0}},
      {.name = "again", .shape = {40}, .unit = 1, .tied_to = "a"},
  };
  Bf16G optimizer{comm, tensors};
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
    return refusal([&] { optimizer.bind(p, g); });
  }
  template <class Work>
  static std::string refusal(Work const& work) {
    try {
      work();
    } catch (zero::Error const& error) {
      CHECK(error.kind() == zero::ErrorKind::invalid_argument);
      return error.message();
    }
    return "";
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
    lender.g.push_back({});
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
    return Lender::refusal(
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
  CHECK(Lender::refusal([&] { optimizer.bind_gradients(std::span(others)); }) == "");
  CHECK(optimizer.gradients(0).size() == 4);
  auto const gradients = optimizer.gradients(0);
  CHECK(gradients["a"].data() == others.data());
  optimizer.discard_gradients();
  CHECK(Lender::refusal([&] { optimizer.bind_gradients(lent); }) == "");
  CHECK(gradients["a"].data() == lender.gradients.data());
  CHECK(Lender::refusal([&] {
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
    CHECK(Lender::refusal([&] { contracts::load(optimizer); }) == message);
    CHECK(Lender::refusal([&] { optimizer.adopt_parameters(); }) == message);
    CHECK(Lender::refusal([&] { static_cast<void>(optimizer.parameter(0)); }) == message);
    CHECK(Lender::refusal([&] { static_cast<void>(optimizer.parameters(0)); }) == message);
    CHECK(Lender::refusal([&] { static_cast<void>(optimizer.gradients(0)); }) == message);
    CHECK(Lender::refusal([&] { optimizer.reduce_all(); }) == message);
    CHECK(Lender::refusal([&] { static_cast<void>(optimizer.grad_norm()); }) == message);
    CHECK(Lender::refusal([&] { optimizer.step(); }) == message);
    CHECK(Lender::refusal([&] { static_cast<void>(contracts::snapshot(optimizer)); }) == message);
  }
  CHECK(lender.refusal() == "");
  contracts::load(optimizer);
  CHECK(optimizer.step().step == 1);
}

TEST_CASE("memory cannot be exchanged while gradients are being reduced") {
  zero::run_ranks(2, [&](zero::InProcess& inner) {
    Comm comm{inner};
    auto const tensors = contracts::even_model();
    Fp32G optimizer{comm, tensors, zero::Bucket{12288}};
    Memory<float> const parameters(tensors, true, true);
    Memory<float> const gradients(tensors, true, true);
    bind(optimizer, true, parameters, gradients);
    optimizer.reduce(optimizer.gradients(3));
    CHECK(Lender::refusal([&] { bind(optimizer, true, parameters, gradients); }) ==
          "bind() while gradients are being reduced");
    optimizer.reduce_all();
    bind(optimizer, true, parameters, gradients);
    CHECK(optimizer.step().step == 1);
  });
}

TEST_CASE("what is under way in lent memory has arrived before other memory takes its place") {
  zero::run_ranks(2, [&](zero::InProcess& inner) {
    Comm comm{inner};
    auto const tensors = contracts::even_model();
    Fp32G optimizer{comm, tensors, zero::Bucket{12288}};
    Memory<float> const parameters(tensors, true, true);
    Memory<float> const gradients(tensors, true, true);
    bind(optimizer, true, parameters, gradients);
    optimizer.step({.overlap_publish = true});
    CHECK(comm.under_way() > 0);
    Memory<float> const others(tensors, true, true);
    bind(optimizer, true, others, gradients);
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

}  // namespace
}  // namespace borrowed_test
