/// Tensors whose first dimension is the layer: one description, a unit per layer, and the bits of a
/// model that describes every layer.
#include "contracts/lent_memory.hpp"
#include "contracts/ranks.hpp"
#include "support/give_zeros.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace stacked_test {
namespace {

using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;
using Bf16 = zero::Mixed<zero::bf16>;

constexpr int layers = 3;

/// A GPT of three layers, and a stack that is tied to another one, and a frozen one.
std::vector<zero::Tensor> stacked() {
  return {
      {.name = "wte", .shape = {37, 5}},
      {.name = "ln1w", .shape = {layers, 33}, .unit = 1, .stacked = true},
      {.name = "qkvw", .shape = {layers, 90, 77}, .unit = 1, .stacked = true},
      {.name = "mask", .shape = {layers, 9}, .unit = 1, .frozen = true, .stacked = true},
      {.name = "none", .shape = {layers, 0}, .unit = 1, .stacked = true},
      {.name = "scale", .shape = {layers}, .unit = 1, .learning_rate = 0.5f, .stacked = true},
      {.name = "later", .shape = {layers, 33}, .unit = 2, .tied_to = "ln1w", .stacked = true},
      {.name = "lnf", .shape = {511}, .unit = 4},
      {.name = "head", .shape = {37, 5}, .unit = 4, .tied_to = "wte"},
  };
}

/// The same, layer by layer.
std::vector<zero::Tensor> layered() {
  std::vector<zero::Tensor> tensors;
  for (zero::Tensor tensor : stacked()) {
    if (!tensor.stacked) {
      tensors.push_back(tensor);
      continue;
    }
    auto const name = tensor.name;
    auto const tied_to = tensor.tied_to;
    tensor.stacked = false;
    tensor.shape.erase(tensor.shape.begin());
    for (int layer = 0; layer < layers; ++layer, ++tensor.unit) {
      tensor.name = name + "[" + std::to_string(layer) + "]";
      if (!tied_to.empty()) tensor.tied_to = tied_to + "[" + std::to_string(layer) + "]";
      tensors.push_back(tensor);
    }
  }
  return tensors;
}

/// Tells an element of the model, however it is described: the name of the stack, and the number in
/// all of it.
float value(zero::Tensor const& tensor, std::size_t element) {
  auto const bracket = tensor.name.find('[');
  std::string const name = tensor.name.substr(0, bracket);
  if (bracket != std::string::npos) {
    element += std::stoul(tensor.name.substr(bracket + 1)) * zero::element_count(tensor);
  }
  return toy::initial_value(name.size() * 31 + static_cast<unsigned char>(name[0]), element);
}
void fill(zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = value(tensor, first + i);
}

enum class Loads { values, broadcast, spans };

struct Result {
  std::vector<std::byte> bits;      ///< of all parameters
  std::vector<std::byte> by_units;  ///< the same, guard by guard
  std::uint64_t bytes = 0;          ///< that are held beside what depends on the number of tensors
};

template <class O>
Result train(std::vector<zero::Tensor> const& tensors, Loads loads, bool flat = true) {
  Result result;
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    O optimizer{comm, tensors, zero::Bucket{8000}};
    contracts::LentMemory<typename O::Parameter> const parameters(tensors, flat, true);
    contracts::LentMemory<typename O::Wire> gradients(tensors, flat, true);
    if constexpr (O::borrowed) contracts::lend(optimizer, flat, parameters, gradients);
    if (loads == Loads::values) optimizer.load_parameters(fill);
    if (loads == Loads::broadcast) optimizer.broadcast_parameters(fill, 1);
    if (loads == Loads::spans) {
      std::vector<std::vector<float>> whole;
      for (auto const& tensor : tensors) {
        whole.emplace_back(zero::element_count(tensor));
        fill(tensor, 0, whole.back());
      }
      std::vector<std::span<float const>> spans(whole.begin(), whole.end());
      optimizer.load_parameters(spans);
    }
    for (long step = 0; step < 3; ++step) {
      gradients.clear();
      for (int const unit : optimizer.units_backward()) {
        auto const w = optimizer.parameters(unit);
        auto g = optimizer.gradients(unit);
        for (std::size_t i = 0; i < w.size(); ++i) {
          auto const use = static_cast<std::size_t>(unit) * 10 + i;
          toy::backward({}, use, step, comm.rank(), optimizer.loss_scale(), w[i], g[i]);
        }
        optimizer.reduce(std::move(g));
      }
      optimizer.step({.max_norm = 1.});
    }
    CHECK(optimizer.held() == optimizer.plan().memory);
    auto const memory = optimizer.plan().memory;
    std::vector<std::byte> units;
    for (int const unit : optimizer.units()) {
      auto const w = optimizer.parameters(unit);
      for (std::size_t i = 0; i < w.size(); ++i) contracts::append(units, w[i]);
    }
    auto bits = contracts::model_bits(optimizer);
    if (comm.rank() != 0) return;
    result = {std::move(bits), units, memory.total() - memory[zero::Role::control]};
  });
  return result;
}

template <class... Policies>
using Own = contracts::Optimizer<Policies...>;
template <class... Policies>
using Lent = contracts::Optimizer<Policies..., zero::Borrowed<>>;

TEST_CASE_TEMPLATE("a stacked model has the bits and the memory of one that describes every layer",
                   O,
                   Own<Replicated, zero::Fp32>,
                   Own<Pos, Bf16>,
                   Own<PosG, zero::Fp32>,
                   Own<PosGP, zero::Fp32>,
                   Own<PosGP, Bf16>,
                   Lent<Replicated, zero::Fp32>,
                   Lent<PosG, Bf16>) {
  INFO("stage " << O::Stage::name << ", borrowed " << O::borrowed);
  Result const expected = train<O>(layered(), Loads::values);
  CHECK(expected.bits.size() > 20'000 * sizeof(typename O::Parameter));
  for (Loads const loads : {Loads::values, Loads::broadcast, Loads::spans}) {
    for (bool const flat : {true, false}) {
      if (!flat && !O::borrowed) continue;
      Result const found = train<O>(stacked(), loads, flat);
      CHECK(found.bits == expected.bits);
      CHECK(found.by_units == expected.by_units);
      CHECK(found.bytes == expected.bytes);
    }
  }
}

/// One rank and a stacked model.
template <class O>
struct One {
  std::vector<zero::InProcess> handles = zero::InProcess::group(1);
  O optimizer{handles[0], stacked()};
};

TEST_CASE("whoever is shown elements is shown those of the tensor that was described") {
  One<Own<PosG, zero::Fp32>> one;
  one.optimizer.load_parameters(fill);
  std::vector<std::vector<int>> seen;
  for (auto const& tensor : stacked()) seen.emplace_back(zero::element_count(tensor));
  auto const number = [&](zero::Tensor const& tensor) {
    auto const t = static_cast<std::size_t>(&tensor - one.optimizer.tensors().data());
    REQUIRE(t < seen.size());
    return t;
  };
  one.optimizer.visit_owned(
      [&](zero::Tensor const& tensor, std::size_t first, auto const& master, auto const&) {
        for (std::size_t i = 0; i < master.size(); ++i) {
          ++seen[number(tensor)][first + i];
          CHECK(master[i] == value(tensor, first + i));
        }
      });
  for (std::size_t t = 0; t < seen.size(); ++t) {
    auto const tensor = stacked()[t];
    int const times = tensor.frozen || !tensor.tied_to.empty() ? 0 : 1;
    CHECK(std::count(seen[t].begin(), seen[t].end(), times) ==
          static_cast<std::ptrdiff_t>(seen[t].size()));
  }
  auto const all = one.optimizer.full_parameters();
  REQUIRE(all["qkvw"].size() == std::size_t{layers} * 90 * 77);
  CHECK(all["qkvw"][2 * 90 * 77 + 3] == value(stacked()[2], 2 * 90 * 77 + 3));
  CHECK(all["later"].data() == all["ln1w"].data());
}

TEST_CASE("a broadcast asks the root for every element of a stack once") {
  std::size_t elements = 0;
  for (auto const& tensor : stacked()) {
    if (tensor.tied_to.empty()) elements += zero::element_count(tensor);
  }
  std::size_t asked = 0;
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    contracts::Optimizer<PosG, zero::Fp32> optimizer{comm, stacked()};
    optimizer.broadcast_parameters(
        [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
          asked += out.size();
          fill(tensor, first, out);
        });
  });
  CHECK(asked == elements);
}

TEST_CASE("a stack is one run of memory where it is lent, and none where the library owns it") {
  One<Own<Pos, zero::Fp32>> own;
  CHECK(refusal([&] { return own.optimizer.parameter(2); }) ==
        "tensor 'qkvw' is stacked, and its slices lie apart; ask for those of each unit");
  CHECK(own.optimizer.parameter(7).size() == 511);
  CHECK(refusal([&] { return own.optimizer.parameter(9); }) ==
        "there is no tensor 9; 9 are described");
  One<Lent<Pos, zero::Fp32>> lent;
  contracts::LentMemory<float> const parameters(stacked(), false, true);
  contracts::LentMemory<float> const gradients(stacked(), false, true);
  contracts::lend(lent.optimizer, false, parameters, gradients);
  CHECK(lent.optimizer.parameter(2).data() == parameters.list()[2].data());
  CHECK(lent.optimizer.parameter(2).size() == std::size_t{layers} * 90 * 77);
  CHECK(lent.optimizer.gradients(3)["qkvw"].data() == gradients.list()[2].data() + 2 * 90 * 77);
  CHECK(refusal([&] { return lent.optimizer.gradients(0)["qkvw"]; }) ==
        "unit 0 has no tensor 'qkvw'");
  lent.optimizer.discard_gradients();
  auto spans = gradients.list();
  spans[2] = spans[2].first(90 * 77);
  CHECK(refusal([&] { lent.optimizer.bind_gradients(spans); }) ==
        "gradients: tensor 'qkvw' has 20790 elements, but 6930 are lent");
  spans.pop_back();
  CHECK(refusal([&] { lent.optimizer.bind_gradients(spans); }) ==
        "9 tensors are described but 8 gradients are lent");
}

TEST_CASE("a stack without a gradient rests in all layers, one layer in its own") {
  One<Own<PosG, zero::Fp32>> one;
  auto& optimizer = one.optimizer;
  optimizer.load_parameters(fill);
  optimizer.without_gradient(optimizer.tensors()[2]);
  give_zeros(optimizer).step();
  CHECK(optimizer.steps(2) == 0);
  CHECK(optimizer.steps(7) == 1);
  for (int const unit : optimizer.units()) {
    if (unit == 2) {
      optimizer.without_gradient(unit);
    } else {
      optimizer.reduce(optimizer.gradients(unit));
    }
  }
  optimizer.step();
  CHECK(optimizer.steps(2) == 1);
  CHECK(optimizer.counters().steps.size() == layered().size());
  CHECK(optimizer.counters().slice_steps() == optimizer.counters().steps);
  CHECK(refusal([&] { return optimizer.steps(9); }) == "there is no tensor 9; 9 are described");
}

TEST_CASE("stacks that make no sense are refused in words") {
  auto const described = [](std::vector<zero::Tensor> const& tensors) {
    return refusal(
        [&] { return zero::ShardedOptimizer<zero::Self>::plan({.world_size = 1}, tensors); });
  };
  CHECK(described(stacked()) == "");
  std::string const no_layers =
      "tensor 'ln1w' is stacked, so its first dimension is the number of layers, at least 1";
  std::string const one_only = "tensor 'later' is tied to 'ln1w', but only one of them is stacked";
  using Tensors = std::vector<zero::Tensor>;
  std::pair<void (*)(Tensors&), std::string> const rows[]{
      {[](Tensors& t) { t[1].shape = {}; }, no_layers},
      {[](Tensors& t) {
         t[1].shape = {0, 7};
       },
       no_layers},
      {[](Tensors& t) { t[6].stacked = false; }, one_only},
      {[](Tensors& t) { t[1].stacked = false; }, one_only},
      {[](Tensors& t) {
         t[6].shape = {4, 33};
       },
       "tensor 'later' is tied to 'ln1w', which has another shape"},
      {[](Tensors& t) { t[6].frozen = true; },
       "tensor 'later[0]' is tied to 'ln1w[0]', but only one of them is frozen"},
      {[](Tensors& t) { t[7].name = "qkvw"; }, "tensor 'qkvw' is described twice"},
      {[](Tensors& t) { t[2].name = ""; }, "tensor 2 has no name"},
      {[](Tensors& t) { t[2].unit = -1; }, "tensor 'qkvw[0]' has unit -1, outside [0, 2^20)"},
      {[](Tensors& t) {
         t[2].shape = {std::size_t{1} << 40, 0};
       },
       "tensor 'qkvw' is stacked over 1099511627776 layers, over 2^20"},
  };
  for (auto const& [change, message] : rows) {
    auto tensors = stacked();
    change(tensors);
    CHECK(described(tensors) == message);
  }
  CHECK(refusal([] { return zero::Placement(stacked()); }) ==
        "tensor 'ln1w' is stacked: take_apart() comes before");
}

TEST_CASE("ranks that stack different tensors are told which") {
  auto const messages = contracts::endings(
      2,
      [](zero::InProcess& comm) {
        auto tensors = stacked();
        if (comm.rank() == 1) tensors[2].shape = {layers, 77, 90};
        contracts::Optimizer<PosG, zero::Fp32>{comm, tensors};
      },
      true);
  for (auto const& message : messages) {
    CHECK(message ==
          "ranks disagree on tensor 4: 'qkvw[0]' [90, 77] on rank 0; 'qkvw[0]' [77, 90] on rank 1");
  }
}

}  // namespace
}  // namespace stacked_test
