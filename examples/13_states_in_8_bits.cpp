// An own update rule whose states take a byte an element, and a byte for each 32 of them: RMSProp.
//
// The rule computes in float. Its states are decoded before it and encoded behind it, where they
// are rounded stochastically, so that averages go on falling where gradients become small.
//
// prints: 16384 elements have 16896 bytes of states, loss fell from 1\.0000 to 0\.000
#include <zero/zero.hpp>

#include <array>
#include <cstddef>
#include <cstdio>
#include <string_view>
#include <utility>
#include <vector>

/// v = decay v + (1 - decay) g^2,  p -= lr g / (sqrt(v) + eps)
struct RmsProp8bit {
  static constexpr std::string_view name = "RMSProp8bit";
  // Means of squares have no sign; StateCoding::root is for numbers that have one.
  static constexpr std::array states{
      zero::StateArray{.name = "v", .coding = zero::StateCoding::root_of_squares}};

  double lr = 1e-2;
  double decay = 0.9;
  double eps = 1e-4;

  [[nodiscard]] zero::StepScalars scalars(long,
                                          float lr_now,
                                          float lr_scale,
                                          float) const noexcept {
    return {.learning_rate = lr_now * lr_scale};
  }

  template <class V>
  void update(zero::StepScalars const& s, V& p, V const& g, V* state) const noexcept {
    auto const kept = static_cast<float>(decay);
    state[0] = zero::math::mul_add(kept, state[0], (1.f - kept) * g * g);
    p = p - s.learning_rate * g / (zero::math::sqrt(state[0]) + static_cast<float>(eps));
  }

  // Ranks that disagree on a value are told which one.
  [[nodiscard]] constexpr std::array<zero::RuleField, 3> fields() const {
    return {{{"lr", lr, 0.}, {"decay", decay, 0., 1.}, {"eps", eps, 0.}}};
  }
  friend constexpr bool operator==(RmsProp8bit const&, RmsProp8bit const&) = default;
};

/// Adds the gradient of half the mean square of what each element lacks of 1; returns that mean.
double forward_backward(auto& opt) {
  auto const w = opt.parameters(0);
  auto g = opt.gradients(0);
  double sum = 0.;
  for (std::size_t i = 0; i < w["w"].size(); ++i) {
    float const error = w["w"][i] - 1.f;
    g["w"][i] += error;
    sum += double{error} * double{error};
  }
  std::size_t const count = w["w"].size();
  opt.reduce(std::move(g));
  return sum / static_cast<double>(count);
}

int main() {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    std::vector<zero::Tensor> const model{{.name = "w", .shape = {128, 128}}};
    // Another seed has other random bits.
    zero::ShardedOptimizer opt{comm, model, RmsProp8bit{}, zero::Seed{1}};
    opt.adopt_parameters();  // zeros
    double first_loss = 0., loss = 0.;
    for (int left = 400; left > 0; --left) {
      loss = forward_backward(opt);
      if (opt.steps() == 0) first_loss = loss;
      opt.step({.learning_rate = opt.rule().lr * left / 400});
    }
    double const bytes = zero::sum(comm, static_cast<double>(opt.held()[zero::Role::state]));
    if (comm.rank() != 0) return;
    std::printf("16384 elements have %.0f bytes of states, ", bytes);
    std::printf("loss fell from %.4f to %.4f\n", first_loss, loss);
  });
}
