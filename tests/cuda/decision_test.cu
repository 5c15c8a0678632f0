// What decides a step, called on a device: the words that the host's call leaves, bit for bit.
#include "cuda/streams.hpp"
#include "support/test.hpp"
#include "zero/optimizer/step/decision.hpp"
#include "zero/rule/adamw.hpp"
#include "zero/rule/lamb.hpp"
#include "zero/rule/lars.hpp"
#include "zero/rule/nadam.hpp"
#include "zero/rule/rated_rule.hpp"
#include "zero/space/cuda.hpp"

namespace decision_test {
namespace {

namespace step = zero::detail;
using step::StepControl;
using step::TensorCounts;

constexpr std::size_t tensors = 700;  // more than `TensorBits` holds
constexpr std::size_t bytes = sizeof(StepControl) + tensors * TensorCounts::bytes_each;

/// The words of a rank as they are in the middle of a step, summed over three ranks.
std::vector<std::byte> words_of(double square, std::int64_t differ = 0) {
  std::vector<std::byte> block(bytes);
  StepControl control;
  control.squares.add(square);
  control.outcome.terms = {.step = 41, .weight = 3., .learning_rate = 1e-2f};
  control.own.step = 40;
  control.outcome.differ = 1;  // of the step before
  for (std::size_t i = 0; i < zero::ExactSum::word_count; ++i) {
    control.words[i] = control.squares.words()[i];
  }
  zero::ExactSum weight;
  weight.add(3.5);
  std::copy(std::begin(weight.words()),
            std::end(weight.words()),
            control.words + zero::ExactSum::word_count);
  zero::detail::Unanimity::write(0x123456789abcdef0u, control.words + StepControl::options_word);
  for (std::size_t i = 0; i < zero::detail::Unanimity::word_count; ++i) {
    control.words[StepControl::options_word + i] *= 3;
  }
  control.words[StepControl::options_word] += differ;
  control.words[StepControl::known_word] = 3;
  control.words[StepControl::stop_word] = 1;
  control.words[StepControl::silent_word] = 3 * 77;
  control.words[StepControl::empty_word] = 3;
  std::memcpy(block.data(), &control, sizeof(control));
  TensorCounts const counts(reinterpret_cast<StepControl*>(block.data()), tensors);
  for (std::size_t t = 0; t < tensors; ++t) {
    counts.missed[t] = static_cast<std::int64_t>(t % 5);
    counts.words[t] = static_cast<std::int64_t>(t % 4) +
                      (std::int64_t{t % 2 == 0 ? 3 : 0} << TensorCounts::silent_shift);
  }
  return block;
}

/// Calls what `make(control, counts)` gives on the host and on the device.
template <class Make>
void check(zero::space::Cuda const& space, std::vector<std::byte> here, Make const& make) {
  Array<std::byte> const there(space, here);
  auto const made = [&](std::byte* block) {
    auto* const control = reinterpret_cast<StepControl*>(block);
    return make(control, TensorCounts(control, tensors));
  };
  std::vector<std::byte> const before = here;
  made(here.data())();
  space.call(made(there.data()));
  CHECK(there.values() == here);
  CHECK(before != here);
}

TEST_CASE_FIXTURE(OneStream, "cuda: what ranks bring and read of a step are the host's words") {
  for (double const square : {0., 1e-300, 0.1, 3e300, HUGE_VAL}) {
    auto const block = words_of(square);
    step::RankOptions const options{
        .known = true, .digest = 0x1234567890abcdefu, .learning_rate = 0.3f};
    check(space, block, [&](StepControl* control, TensorCounts const&) {
      return step::WriteStepWords{control, options, true, 2.25, 99, true};
    });
    check(space, block, [&](StepControl* control, TensorCounts const&) {
      return step::WriteStepWords{control, options, false, 2.25, 99, false};
    });
    // What two of three ranks were told nothing about, the third has a gradient of; or all three
    // were told nothing about a tensor, nor about any that is tied to it.
    for (int const some : {0, 1, 2}) {
      for (std::int64_t const differ : {0, 1}) {
        auto sums = words_of(square, differ);
        TensorCounts const counts(reinterpret_cast<StepControl*>(sums.data()), tensors);
        if (some == 1) counts.words[650] = std::int64_t{2} << TensorCounts::silent_shift;
        if (some == 2) counts.words[650] += std::int64_t{3} << TensorCounts::unsaid_shift;
        for (bool const all : {false, true}) {
          check(space, sums, [&](StepControl* control, TensorCounts const& there) {
            return step::Conclude{control, 3, all, there};
          });
        }
      }
    }
  }
}

TEST_CASE_FIXTURE(OneStream,
                  "cuda: what optimizers join, and decide together, are the host's words") {
  auto const other_of = [](StepControl* control) {
    return reinterpret_cast<StepControl*>(reinterpret_cast<std::byte*>(control) + bytes);
  };
  for (double const weight : {3., 6., 0.}) {
    for (double const square : {0.3, HUGE_VAL}) {
      std::vector<std::byte> both = words_of(0.1);
      std::vector<std::byte> const more = words_of(square);
      both.insert(both.end(), more.begin(), more.end());
      auto* const lead = reinterpret_cast<StepControl*>(both.data());
      other_of(lead)->outcome.terms.weight = weight;
      lead->outcome.differ = other_of(lead)->outcome.differ = 0;
      for (auto* const each : {lead, other_of(lead)}) {
        each->outcome.terms.loss_scale = each->loss_scale.value();
        each->words[StepControl::silent_word] = each->words[StepControl::empty_word] = 0;
      }
      for (bool const scaled : {true, false}) {
        check(space, both, [&](StepControl* control, TensorCounts const&) {
          return step::Join{control, other_of(control), scaled};
        });
        check(space, both, [&](StepControl* control, TensorCounts const&) {
          return step::InOrder{
              step::Decide{.control = control, .max_norm = 1., .loss_scaled = true},
              step::Decide{.control = other_of(control), .max_norm = 1., .lead = control}};
        });
      }
    }
  }
}

TEST_CASE_FIXTURE(OneStream, "cuda: a decision and a rule's scalars are the host's") {
  using Rule = zero::AdamW;
  for (bool const overflow : {false, true}) {
    for (std::size_t const count : {0u, 1u, 3u}) {
      auto block = words_of(0.1);
      auto* const words = reinterpret_cast<StepControl*>(block.data());
      words->outcome.terms.grad_norm = 4.;
      words->outcome.terms.overflow = overflow ? 1 : 0;
      words->words[StepControl::silent_word] = words->words[StepControl::empty_word] = 0;
      check(space, block, [&](StepControl* control, TensorCounts const&) {
        step::ComputeScalars<Rule, float, 3> compute{
            .terms = &control->outcome.terms,
            .scalars = reinterpret_cast<zero::StepScalars*>(control->scalars),
            .count = count};
        compute.rules[1] = {.rule = {.beta2 = 0.95}, .learning_rate_scale = 0.5f};
        compute.rules[2] = {.rule = {.lr = 0.7f}, .weight_decay_scale = 0.f, .own_rate = true};
        return step::InOrder{step::Decide{.control = control, .max_norm = 1., .loss_scaled = true},
                             compute};
      });
    }
  }
}

template <class Rule, class Real>
void check_adjusted(zero::space::Cuda const& space, Rule const& rule) {
  using Scalars = zero::BasicStepScalars<Real>;
  for (std::int32_t const skipped : {0, 1}) {
    for (double const first : {0.1, 0., 3e300}) {
      for (double const second : {0.3, 0., 1e-300}) {
        auto block = words_of(0.1);
        auto* const words = reinterpret_cast<StepControl*>(block.data());
        words->outcome.terms.skipped = skipped;
        words->outcome.failure = step::StepFailure::not_finite;
        *reinterpret_cast<Scalars*>(words->scalars) =
            rule.scalars(3, Real(0.01), Real(0.5), Real(1));
        std::int64_t* to = TensorCounts(words, tensors).words;
        for (double const square : {first, second}) {
          zero::ExactSum sum;
          sum.add(square);
          to = std::copy(std::begin(sum.words()), std::end(sum.words()), to);
        }
        check(space, block, [&](StepControl* control, TensorCounts const& counts) {
          return step::InOrder{
              step::AdjustScalars<Rule, Real>{rule,
                                              &control->outcome.terms,
                                              counts.words,
                                              reinterpret_cast<Scalars*>(control->scalars)},
              step::ClearFailure{control}};
        });
      }
    }
  }
}

TEST_CASE_FIXTURE(OneStream, "cuda: scalars are adjusted to a tensor's norms as on the host") {
  check_adjusted<zero::Lamb, float>(space, {.max_ratio = 10.});
  check_adjusted<zero::Lamb, double>(space, {});
  check_adjusted<zero::Lars, float>(space, {.weight_decay = 0.1});
}

TEST_CASE_FIXTURE(OneStream, "cuda: tensors that rest are counted as on the host") {
  for (bool const counted : {false, true}) {
    for (std::size_t t = 0; t < tensors; t += step::TensorBits::capacity) {
      step::TensorBits const some(t, tensors, [](std::size_t at) { return at % 3 != 0; });
      step::TensorBits const others(t, tensors, [](std::size_t at) { return at % 3 == 0; });
      check(space, words_of(0.1), [&](StepControl*, TensorCounts const& counts) {
        return step::WriteTensorCounts{counts, some, others, some};
      });
      check(space, words_of(0.1), [&](StepControl* control, TensorCounts const& counts) {
        return step::CountMissed{control, counts, some, counted};
      });
    }
  }
  for (std::size_t const tensor : {0u, 3u, 511u, 699u}) {
    check(space, words_of(0.1), [&](StepControl* control, TensorCounts const& counts) {
      return step::InOrder{
          step::OwnTerms{control, counts, tensor, true},
          step::ComputeScalars<zero::NAdam, float, 1>{
              &control->own, reinterpret_cast<zero::StepScalars*>(control->scalars), 1, {{}}}};
    });
  }
}

TEST_CASE_FIXTURE(OneStream, "cuda: a failure that was reported is forgotten") {
  auto block = words_of(0.1);
  reinterpret_cast<StepControl*>(block.data())->outcome.failure = step::StepFailure::not_finite;
  check(space, block, [&](StepControl* control, TensorCounts const&) {
    return step::ClearFailure{control};
  });
}

}  // namespace
}  // namespace decision_test
