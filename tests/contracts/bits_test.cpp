// What rates, hyper-parameters and scales in double become in arithmetic in float: bits that stay.
#include "support/test.hpp"
#include <zero/zero.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bits_test {
namespace {

/// Adds up bits in their order.
class Digest {
 public:
  template <class T>
  void add(T value) {
    std::uint64_t bits = 0;
    if constexpr (sizeof(T) == 2) {
      bits = std::bit_cast<std::uint16_t>(value);
    } else {
      bits = std::bit_cast<std::uint32_t>(value);
    }
    hash_ = (hash_ ^ bits) * 0x100000001b3u;
  }
  [[nodiscard]] std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

/// A number in [-1, 1) that each element and step has.
float number(std::size_t i) {
  std::uint64_t const x = (i + 1) * 0x9e3779b97f4a7c15u;
  return static_cast<float>(static_cast<std::int64_t>(x) >> 40) * 0x1p-23f;
}

/// The bits of all parameters after 12 steps with a clip, rates of steps, of the rule and of a
/// group, and scales.
template <class P, class R>
std::uint64_t trained(P precision, R const& rule) {
  std::vector<zero::Tensor> const model = {
      {.name = "a", .shape = {37, 11}},
      {.name = "b", .shape = {203}, .weight_decay = 0.37, .learning_rate = 1.3},
      {.name = "c", .shape = {5, 5}, .unit = 1, .weight_decay = 0., .group = "slow"}};
  zero::Self self;
  zero::ShardedOptimizer opt{self, model, zero::stage::PosG{}, precision, rule};
  using Element = typename P::Parameter;
  opt.load_parameters([](zero::Tensor const&, std::uint64_t first, auto values) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = number(first + i);
  });
  opt.set_lr("slow", 7e-4);
  for (std::size_t step = 0; step < 12; ++step) {
    for (int unit = 0; unit < 2; ++unit) {
      auto gradients = opt.gradients(unit);
      for (zero::Tensor const& tensor : model) {
        if (tensor.unit != unit) continue;
        std::span<Element> const g = gradients[tensor.name];
        for (std::size_t i = 0; i < g.size(); ++i) {
          g[i] = static_cast<Element>(0.1f * number(1000 * (step + 1) + i));
        }
      }
      opt.reduce(std::move(gradients));
    }
    if (step == 5) opt.set_lr(2.5e-3);
    if (step % 3 == 1) {
      (void)opt.step({.learning_rate = 1.7e-3, .max_norm = 0.25});
    } else {
      (void)opt.step();
    }
  }
  Digest digest;
  for (int unit = 0; unit < 2; ++unit) {
    auto const parameters = opt.parameters(unit);
    for (zero::Tensor const& tensor : model) {
      if (tensor.unit != unit) continue;
      for (Element const value : parameters[tensor.name]) digest.add(value);
    }
  }
  return digest.value();
}

#if !defined(__FMA__) && !defined(__ARM_FEATURE_FMA)

TEST_CASE("rates and hyper-parameters in double train as those in float did") {
  CHECK(trained(zero::Fp32{}, zero::Adam{.lr = 3e-4, .weight_decay = 0.1}) == 0xf728e884f2fa5f62u);
  CHECK(trained(zero::Fp32{}, zero::AdamW{.lr = 3e-4, .eps = 1e-7, .weight_decay = 0.1}) ==
        0x2b051a4c51893949u);
  CHECK(trained(zero::Fp32{}, zero::AmsGrad{.lr = 3e-4}) == 0xf341a27b061d3014u);
  CHECK(trained(zero::Fp32{}, zero::NAdam{.weight_decay = 0.1, .maximize = true}) ==
        0x5834efec03ec28d3u);
  CHECK(trained(zero::Fp32{}, zero::Lion{.lr = 1e-4, .weight_decay = 0.3}) == 0x7c33c55c7f9da9d0u);
  CHECK(trained(zero::Fp32{},
                zero::Sgd{.lr = 0.1,
                          .momentum = 0.85,
                          .weight_decay = 1e-3,
                          .nesterov = true,
                          .dampening = 0.1}) == 0xf0b5d8b8ae8893d4u);
  CHECK(trained(zero::Fp32{}, zero::PlainSgd{.lr = 0.3, .weight_decay = 1e-3}) ==
        0x1ce966abf71a77bfu);
  CHECK(trained(zero::Fp32{},
                zero::Adagrad{.lr = 0.01,
                              .lr_decay = 0.01,
                              .weight_decay = 1e-3,
                              .initial_accumulator_value = 0.1}) == 0xad46e5271fcec7fau);
  CHECK(trained(zero::Fp32{},
                zero::RmsProp<true, true>{
                    .lr = 1e-3, .eps = 1e-6, .momentum = 0.9, .weight_decay = 1e-3}) ==
        0x1c6e48e6f57cfc0au);
  CHECK(trained(zero::Mixed<zero::bf16>{}, zero::AdamW{.lr = 3e-4}) == 0x57f6426409fbbc96u);
}

#endif

}  // namespace
}  // namespace bits_test
