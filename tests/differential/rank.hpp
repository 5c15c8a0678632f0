/// @file
/// What a rank sees of the library against what the reference says, whatever the policies.
#pragma once

#include "any_communicator.hpp"
#include "case.hpp"
#include "memory.hpp"
#include "reference.hpp"
#include "support/standard.hpp"
#include "zero/comm/decorators/counting.hpp"
#include "zero/zero.hpp"

namespace differential {

/// What is not as expected.
struct Difference : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline std::vector<zero::Tensor> described(Case const& test) {
  std::vector<zero::Tensor> tensors;
  for (std::size_t t = 0; t < test.tensors.size(); ++t) {
    TensorCase const& tensor = test.tensors[t];
    tensors.push_back({.name = name(tensor),
                       .shape = tensor.shape,
                       .unit = tensor.unit,
                       .dtype = test.bytes(t)  ? std::optional(zero::DType::u8)
                                : test.wide(t) ? std::optional(zero::DType::f32)
                                               : std::nullopt,
                       .weight_decay = tensor.weight_decay,
                       .learning_rate = tensor.learning_rate,
                       .frozen = tensor.frozen,
                       .whole = tensor.frozen && tensor.whole,
                       .tied_to = tensor.tied ? name(test.tensors[*tensor.tied]) : "",
                       .group = tensor.group > 0 ? "g" + std::to_string(tensor.group) : ""});
  }
  return tensors;
}

/// Equal bits, or no numbers both: which bits a NaN has is nobody's promise.
template <class T>
bool same(T a, T b) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return std::bit_cast<Bits>(a) == std::bit_cast<Bits>(b) || (std::isnan(a) && std::isnan(b));
}

/// What a rank compares, whatever the policies.
class Rank {
 protected:
  /// @param late  are differences found by work in a queue?
  Rank(int number,
       AnyAllocator const& allocator,
       bool on_host,
       bool late,
       Case const& test,
       std::vector<ExpectedStep> const& expected)
      : test_(test),
        expected_(expected),
        number_(number),
        late_(late),
        meter_{.source = allocator,
               .watches = on_host,
               .margin = Dice(test.seed, 'm').pick<std::size_t>({0, 256}) * (on_host ? 1 : 0)},
        tensors_(described(test)) {}

  [[nodiscard]] std::string where() const {
    return "rank " + std::to_string(number_) + ", step " + std::to_string(step_) + ": ";
  }
  /// Throws the difference, or notes the first one: others' queues may go on with this rank's work.
  void differ(std::string const& text) const {
    if (!late_) throw Difference(text);
    std::lock_guard const lock(mutex_);
    if (noted_.empty()) noted_ = text;
  }
  void require(bool holds, char const* what) const {
    if (!holds) differ(where() + what);
  }
  template <class Number>
  void require_same(Number found, Number wanted, char const* what) const {
    if (same(found, wanted)) return;
    std::ostringstream text;
    text.precision(17);
    text << where() << what << " is " << found << ", not " << wanted;
    differ(text.str());
  }
  /// Elements of a tensor from `first` on against the whole tensor, in the order of the space's
  /// queue.
  template <class Space, class E>
  void compare(Space const& space,
               std::span<E const> found,
               std::vector<float> const& wanted,
               std::size_t first,
               std::size_t t,
               char const* what) const {
    reach(space, found, [=, this, &wanted, step = step_](std::span<E const> elements) {
      for (std::size_t i = 0; i < elements.size(); ++i) {
        float const value = static_cast<float>(elements[i]);
        if (same(value, wanted[first + i])) continue;
        std::ostringstream text;
        text.precision(9);
        text << "rank " << number_ << ", step " << step << ": " << what << " of tensor " << t
             << ", element " << first + i << ": " << value << ", not " << wanted[first + i];
        return differ(text.str());
      }
    });
  }
  template <class Space, class E>
  void compare_parameters(Space const& space,
                          std::span<E const> found,
                          Model const& model,
                          std::size_t t,
                          char const* what) const {
    require(found.size() == test_.tensors[t].count, "parameters of another size");
    compare(space, found, model.parameters[test_.storage(t)], 0, t, what);
  }
  /// Adds a micro-batch's gradients as a backward pass does.
  template <class Space, class Wire>
  void add(Space const& space,
           std::span<Wire> to,
           int micro,
           std::size_t t,
           int use,
           float const* loss_scale) const {
    Gradient const gradient(test_, plan_, micro, number_, t, use);
    reach(space, to, [gradient, loss_scale](std::span<Wire> sums) {
      for (std::size_t i = 0; i < sums.size(); ++i) {
        float const brought = gradient(i) * *loss_scale;
        sums[i] = Wire(static_cast<float>(sums[i]) + brought);
      }
    });
  }

  [[nodiscard]] std::vector<float> values(std::size_t t,
                                          std::size_t first,
                                          std::size_t count) const {
    std::vector<float> result;
    for (std::size_t i = 0; i < count; ++i) result.push_back(value(test_, step_, t, first + i));
    return result;
  }
  /// @param address  where the rate of this step lies
  [[nodiscard]] zero::StepOptions options(float const* address) const {
    zero::StepOptions result{
        .non_finite = plan_.skips ? zero::NonFinite::skip : zero::NonFinite::fail,
        // Units that no rank asks for are zeros, as the reference has them.
        .unsaid = test_.has(disorder) ? zero::Unsaid::zeros : zero::Unsaid::fail,
        .overlap_publish = plan_.overlaps};
    if (plan_.learning_rate && plan_.rate_by_address) result.learning_rate_address = address;
    if (!plan_.rate_by_address) result.learning_rate = plan_.learning_rate;
    result.max_norm = plan_.max_norm;
    result.count = plan_.count;
    return result;
  }

  using Outcome = std::optional<zero::StepReport>;
  /// Nothing for an error in the data; no other is expected.
  Outcome take(zero::StepResult const& result) const {
    if (result) return result.report();
    require(result.error()->kind() == zero::ErrorKind::data, result.error()->what());
    return {};
  }
  Outcome attempt(std::function<zero::StepReport()> const& ask) const {
    try {
      return ask();
    } catch (zero::Error const& error) {
      if (error.kind() != zero::ErrorKind::data) throw;
      return {};
    }
  }
  void check(Outcome const& found, ExpectedStep const& expected) const {
    require(expected.fails == !found, expected.fails ? "no failure" : "an unexpected failure");
    if (!found) return;
    require(found->skipped == expected.report.skipped, "skipped, or not");
    require(found->step == expected.report.step, "another number of steps");
    require_same(found->grad_norm, expected.report.grad_norm, "grad_norm");
    require_same(found->weight, expected.report.weight, "weight");
    require_same(found->loss_scale, expected.report.loss_scale, "loss scale of the report");
    require(found->updated == expected.report.updated, "another number of tensors updated");
    if (found->skipped) return;
    require_same(found->clip_coefficient, expected.report.clip_coefficient, "clip_coefficient");
  }

  /// Sent as planned? Gathers are planned for passes in their usual order. The host of a device
  /// learns of a step that is skipped when all of it is queued.
  void check_traffic(zero::TrafficCounts const& counts,
                     zero::Plan const& plan,
                     ExpectedStep const& expected) const {
    if (test_.policies.gathers() && !regular(test_)) return;
    bool const publishes = expected.updates || !meter_.watches;
    std::uint64_t const published = publishes ? plan.traffic.publish : 0;
    std::uint64_t const unpublished = publishes ? 0 : plan.sent.publish;
    require(counts.bucket_of(zero::Op::reduce_scatter).elements == plan.traffic.reduce,
            "reductions are not as planned");
    std::uint64_t const gathered = plan.traffic.gather + plan.traffic.frozen;
    require(counts.bucket_of(zero::Op::all_gather).elements == published + gathered,
            "gathers are not as planned");
    require(counts.bucket_total().bytes == plan.sent.total() - plan.sent.norms - unpublished,
            "bytes are not as planned");
    // Of so few tensors at once.
    bool const measures =
        test_.policies.rule == Rule::lamb && expected.updates && test_.any_trained();
    require(plan.traffic.norms == 0 || !measures ||
                counts.control_of(zero::Op::all_reduce).elements >= plan.traffic.norms,
            "norms are not as planned");
    // Values, what a step agrees on, options after a norm, the element to blame and who brought it.
    std::uint64_t const exchanges = (compares_ && test_.ranks > 1 ? 1u : 0u) + 1u +
                                    (plan_.asks_norm ? 1u : 0u) + (expected.blames ? 2u : 0u) +
                                    (measures ? 1u : 0u);
    require(counts.control_total().calls == exchanges, "another number of exchanges");
  }
  void check_memory(zero::MemoryBytes const& held,
                    zero::MemoryBytes const& planned,
                    ExpectedStep const& expected) {
    require(held == planned, "holds something else than planned");
    // What the communicator holds is its own.
    require(held.total() - held[zero::Role::communicator] == meter_.live,
            "holds something else than it allocated");
    // On a device, what is broadcast and who is to blame pass through memory of their own.
    bool const broadcasts = plan_.load == Load::broadcast || plan_.load == Load::broadcast_held;
    bool const passes = !meter_.watches && (expected.blames || broadcasts);
    if (step_ == 0 || passes) allocations_ = meter_.calls;
    require(meter_.calls == allocations_, "allocates after the first step");
    require(meter_.intact(), "wrote outside its memory");
  }

  Case const& test_;
  std::vector<ExpectedStep> const& expected_;
  int number_;
  bool late_;
  Meter meter_;
  std::vector<zero::Tensor> tensors_;
  std::size_t allocations_ = 0;
  StepPlan plan_{};
  int step_ = 0;
  /// Will the next step compare what ranks start from? Values that were streamed have been.
  bool compares_ = !test_.policies.gathers();
  mutable std::mutex mutex_{};
  mutable std::string noted_{};  ///< the first difference
};

}  // namespace differential
