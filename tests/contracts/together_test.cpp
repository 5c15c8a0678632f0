/// Several optimizers that take a step together: the bits of one that has all their tensors, all of
/// them or none, and what is refused.
#include "contracts/ranks.hpp"
#include "support/give_zeros.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace together_test {
namespace {

using zero::ErrorKind;
using zero::StepReport;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;
using Fp16 = zero::Mixed<zero::fp16>;
using contracts::Optimizer;

constexpr zero::Bucket small_bucket{6144};
constexpr int first_unit_behind = 3;

std::vector<zero::Tensor> whole() {
  std::vector<zero::Tensor> tensors = toy::model(false);
  for (std::size_t const t : {2u, 7u}) tensors[t].group = "matrices";
  return tensors;
}
/// Its tensors before unit `first_unit_behind`, or from there on with units of their own.
std::vector<zero::Tensor> half(bool behind) {
  std::vector<zero::Tensor> tensors;
  for (zero::Tensor tensor : whole()) {
    if ((tensor.unit >= first_unit_behind) != behind) continue;
    if (behind) tensor.unit -= first_unit_behind;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}
std::size_t const before = half(false).size();

/// Loads what a whole model has from tensor `first` on.
template <class O>
void load(O& optimizer, std::size_t first = 0) {
  optimizer.load_parameters([&](zero::Tensor const& tensor, std::size_t at, std::span<float> out) {
    auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = toy::initial_value(first + t, at + i);
  });
}

/// What is done in a step besides training.
struct Plan {
  toy::Run run{};
  bool absent = false;  ///< the third tensor and the last one rest in every other step
  bool groups = false;
  float loss_scale = 0.f;  ///< of the optimizer's own if 0
};

/// A micro-batch of those tensors.
template <class O>
void pass(O& optimizer, Plan const& plan, long step, int batch, std::size_t first = 0) {
  if (plan.groups) optimizer.set_lr("matrices", 0.25f / static_cast<float>(step + 1));
  float const scale = plan.loss_scale > 0.f ? plan.loss_scale : optimizer.loss_scale();
  for (int const unit : optimizer.units_backward()) {
    auto const weights = optimizer.parameters(unit);
    auto gradients = optimizer.gradients(unit);
    contracts::for_each_tensor(optimizer, unit, [&](std::size_t t, std::size_t i) {
      if (plan.absent && step % 2 == 1 && (first + t == 2 || first + t == 9)) {
        return optimizer.without_gradient(optimizer.tensors()[t]);
      }
      toy::backward(plan.run, first + t, step, batch, scale, weights[i], gradients[i]);
    });
    optimizer.reduce(std::move(gradients));
  }
}

/// Bits of what all ranks see of a model and of its masters and states, in the order of tensors.
template <class... O>
std::vector<std::byte> bits(O&... optimizers) {
  std::vector<std::byte> all;
  auto const add = [&](auto& optimizer) {
    auto const more = contracts::model_bits(optimizer);
    all.insert(all.end(), more.begin(), more.end());
  };
  (add(optimizers), ...);
  return all;
}

bool same(StepReport const& a, StepReport const& b) {
  return a.step == b.step && a.skipped == b.skipped && a.grad_norm == b.grad_norm &&
         a.clip_coefficient == b.clip_coefficient && a.loss_scale == b.loss_scale &&
         a.weight == b.weight && a.stop == b.stop;
}

Fp16 const low_scale{.loss_scale = {.initial = 64.f, .growth_interval = 3}};

}  // namespace

TEST_CASE_TEMPLATE(
    "two optimizers that step together have the bits of one", Stage, Replicated, Pos, PosG, PosGP) {
  INFO("stage " << Stage::name);
  for (int const ranks : {1, 2, 3}) {
    contracts::on_ranks(ranks, [&](zero::InProcess& comm, auto const& expect) {
      using O = Optimizer<Stage, Fp16>;
      O one{comm, whole(), low_scale, small_bucket};
      O a{comm, half(false), low_scale, small_bucket};
      O b{comm, half(true), low_scale, zero::Bucket{4}};
      load(one);
      load(a);
      load(b, before);
      int skipped = 0;
      int clipped = 0;
      for (long step = 0; step < 12; ++step) {
        // Of each optimizer one element of some rank.
        toy::Fault const fault{.step = step == 4 || step == 7 ? step : -1,
                               .micro_batch = static_cast<int>(step) % ranks,
                               .use = step == 4 ? std::size_t{2} : std::size_t{7}};
        Plan const plan{.run = {.fault = fault}, .absent = true, .groups = true};
        zero::StepOptions options{.max_norm = step % 3 == 0 ? 1000. : 10.};
        options.stop = step == 5 && comm.rank() == 0;
        if (step == 9) options.count = 20;
        auto const states = contracts::owned_bits(b);
        pass(one, plan, step, comm.rank());
        pass(a, plan, step, comm.rank());
        pass(b, plan, step, comm.rank(), before);
        StepReport const wanted = one.step(options);
        StepReport const report = zero::step_together(options, a, b);
        std::string const at = "step " + std::to_string(step);
        expect(same(report, wanted), "report of " + at);
        expect(same(a.report(), wanted) && same(b.report(), wanted), "own report of " + at);
        expect(bits(a, b) == bits(one), "parameters after " + at);
        expect(a.loss_scale() == one.loss_scale() && b.loss_scale() == one.loss_scale(), at);
        expect(b.steps(b.tensors().size() - 1) == one.steps(one.tensors().size() - 1), at);
        expect((contracts::owned_bits(b) == states) == report.skipped, "states after " + at);
        skipped += report.skipped ? 1 : 0;
        clipped += report.clip_coefficient < 1. ? 1 : 0;
      }
      expect(skipped == 2 && clipped == 8, "what was tried");
      expect(a.plan().memory.total() == a.held().total(), "what is held");
    });
  }
}

TEST_CASE("precisions may differ: one loss scale is that of all gradients") {
  contracts::on_ranks(3, [](zero::InProcess& comm, auto const& expect) {
    using Half = Optimizer<PosGP, Fp16>;
    using Full = Optimizer<PosG, zero::Fp32>;
    // As a trainer does it by hand who knows the norm.
    Full norms{comm, half(false)};
    Half matrices{comm, half(true), low_scale};
    Full norms_apart{comm, half(false)};
    Half matrices_apart{comm, half(true), low_scale};
    load(norms);
    load(norms_apart);
    load(matrices, before);
    load(matrices_apart, before);
    for (long step = 0; step < 8; ++step) {
      bool const bad = step == 2 || step == 5;
      // Whichever has it, the scale is to blame; alone, the one that has a scale.
      Plan plan{.run = {.fault = {.step = bad ? step : -1, .use = 7}}};
      float const scale = matrices.loss_scale();
      pass(matrices_apart, plan, step, comm.rank(), before);
      pass(norms_apart, plan, step, comm.rank());
      plan.loss_scale = scale;
      if (step == 2) plan.run.fault.use = 2;
      pass(matrices, plan, step, comm.rank(), before);
      pass(norms, plan, step, comm.rank());
      auto const report = zero::step_together({.max_norm = 5.}, norms, matrices);
      expect(report.skipped == bad && report.loss_scale == scale, "report");
      expect(matrices.loss_scale() == (bad ? scale / 2.f : matrices.loss_scale()), "scale");
      expect(norms.loss_scale() == 1.f, "a precision without a scale");
      double const a = norms_apart.grad_norm();
      double const b = matrices_apart.grad_norm();
      if (bad) {
        norms_apart.discard_gradients();
        matrices_apart.step();
      } else {
        expect(std::fabs(report.grad_norm / std::hypot(a, b) - 1.) < 1e-14, "norm");
        norms_apart.step(0.001f, report.clip_coefficient);
        matrices_apart.step(0.001f, report.clip_coefficient);
      }
      expect(contracts::model_bits(norms) == contracts::model_bits(norms_apart), "norms");
      expect(contracts::model_bits(matrices) == contracts::model_bits(matrices_apart), "matrices");
    }
  });
}

TEST_CASE("gradients of each optimizer are divided by its own weight") {
  contracts::on_ranks(2, [](zero::InProcess& comm, auto const& expect) {
    contracts::OnHost<PosG, zero::Fp32> a{comm};
    contracts::OnHost<PosG, zero::Fp32> b{comm};
    auto const passes = [&](double of_a, double of_b) {
      a.optimizer.micro_step({.weight = of_a});
      contracts::constant_pass(a, 1.f);
      b.optimizer.micro_step({.weight = of_b});
      contracts::constant_pass(b, 1.f);
    };
    passes(1., 1.);
    double const each = a.optimizer.grad_norm();
    auto report = zero::step_together({}, a.optimizer, b.optimizer);
    expect(std::fabs(report.grad_norm / (each * std::sqrt(2.)) - 1.) < 1e-15, "equal weights");
    passes(1., 4.);
    report = zero::step_together({}, a.optimizer, b.optimizer);
    expect(std::fabs(report.grad_norm / (each * std::sqrt(1. + 1. / 16.)) - 1.) < 1e-15,
           "a quarter");
    expect(report.weight == 2., "the first one's weight");
    auto const bits_before = bits(a.optimizer, b.optimizer);
    for (bool const first : {true, false}) {
      passes(first ? 0. : 1., first ? 1. : 0.);
      expect(refusal([&] { zero::step_together({}, a.optimizer, b.optimizer); }, ErrorKind::data) ==
                 "all micro-batches of this step have weight 0",
             "without weight");
    }
    expect(bits(a.optimizer, b.optimizer) == bits_before, "something changed");
  });
}

TEST_CASE("what is wrong with one optimizer changes none, and is said on every rank") {
  contracts::on_ranks(3, [](zero::InProcess& comm, auto const& expect) {
    Optimizer<PosG, zero::Fp32> a{comm, half(false)};
    Optimizer<Pos, zero::Fp32> b{comm, half(true)};
    load(a);
    load(b, before);
    auto const pass_of = [&](long step, Plan const& plan) {
      pass(a, plan, step, comm.rank());
      pass(b, plan, step, comm.rank(), before);
    };
    auto const bits_before = bits(a, b);
    long step = 0;
    auto const expect_refused = [&](auto const& work, std::string const& wanted, ErrorKind kind) {
      std::string const said = refusal(work, kind);
      expect(said == wanted, said);
      expect(bits(a, b) == bits_before, "something changed: " + wanted);
      expect(refusal([&] { return a.report(); }) == "" && refusal([&] { return b.report(); }) == "",
             "told twice: " + wanted);
    };
    auto const together = [&](zero::StepOptions const& options) {
      return [&, options] { zero::step_together(options, a, b); };
    };
    constexpr ErrorKind mistake = ErrorKind::invalid_argument;
    std::string const differ = "ranks passed different options to step(): ";
    bool const odd = comm.rank() == 1;

    pass_of(step, {});
    expect_refused(together({.max_norm = -1.}),
                   "max_norm is -1, but must be greater than 0; a learning rate of 0 freezes the "
                   "model",
                   mistake);
    expect_refused([&] { zero::step_together({}, a, b, a); },
                   "step_together() is given one optimizer twice: as number 1 and 3",
                   mistake);
    {
      auto const guard = b.parameters(1);
      expect(refusal(together({})).find("step") != std::string::npos, "a guard");
    }
    // The gradients are still there.
    expect_refused(together({.max_norm = odd ? 1. : 2.}),
                   differ + "max_norm: 2 on rank 0 2; 1 on rank 1",
                   mistake);
    pass_of(step, {});
    if (odd) b.set_lr(0.5);
    expect_refused(together({}),
                   "ranks passed different values to set_lr(): learning_rate: 0.001 on rank 0 2; "
                   "0.5 on rank 1",
                   mistake);
    b.set_lr(0.001);
    pass_of(step, {});
    if (odd) b.set_rule("h2.w", {.lr = 0.1f});
    expect_refused(together({}),
                   "ranks passed different values to set_rule(): tensor 'h2.w' of group "
                   "'matrices', a rule of its own: 'no' on rank 0 2; 'yes' on rank 1",
                   mistake);
    b.set_rule("h2.w", {.lr = 0.1f});
    pass_of(step, {});
    std::string said;
    expect_refused(
        [&] {
          if (odd) {
            a.step();
          } else {
            zero::step_together({}, a, b);
          }
        },
        differ + "optimizers that step together: 2 on rank 0 2; 1 on rank 1",
        mistake);
    b.discard_gradients();
    // As one error of one optimizer.
    toy::Fault const fault{.step = step, .micro_batch = 2, .use = 7, .element = 4};
    pass_of(step, {.run = {.fault = fault}});
    expect_refused(together({}),
                   "gradients are not finite: first element 4 of 'h2.w', which rank 0 owns; it "
                   "came from the gradients of rank 2",
                   ErrorKind::data);
    pass_of(step, {.run = {.fault = fault}});
    expect(zero::step_together({.non_finite = zero::NonFinite::skip}, a, b).skipped, "skipped");
    // Nothing is told of a unit on one rank.
    pass(a, {}, step, comm.rank());
    for (int const unit : b.units_backward()) {
      if (!odd || unit != 0) b.reduce(b.gradients(unit));
    }
    expect_refused(together({}),
                   "some ranks reduced gradients that others neither reduced nor declared absent "
                   "with without_gradient(): unit 0, tensor 'h2.w': nothing was said on rank 1, "
                   "but on rank 0, 2",
                   mistake);
    pass_of(step, {});
    expect(zero::try_step_together({}, a, b).report().step == 1, "all go on");
    expect(bits(a, b) != bits_before, "training goes on");
  });
}

TEST_CASE("optimizers over other communicators, and with other loss scales, are refused") {
  contracts::on_ranks(2, [](zero::InProcess& comm, auto const& expect) {
    std::vector<zero::Tensor> const tensors{{.name = "w", .shape = {1000}}};
    zero::InProcess other = comm.split(0, comm.rank());
    zero::InProcess alone = comm.split(comm.rank(), 0);
    Optimizer<PosG, Fp16> a{comm, tensors, low_scale};
    Optimizer<PosG, Fp16> b{comm, tensors};
    Optimizer<PosG, Fp16> elsewhere{other, tensors, low_scale};
    Optimizer<PosG, Fp16> smaller{alone, tensors, low_scale};
    for (auto* const each : {&a, &b, &elsewhere, &smaller}) contracts::load(*each);
    std::string const wanted =
        "step_together() needs optimizers over one communicator; that of number 2 is another than "
        "that of the first";
    expect(refusal([&] { zero::step_together({}, a, elsewhere); }) == wanted, "a copy");
    expect(refusal([&] { zero::step_together({}, a, smaller); }) == wanted, "of another size");
    auto const bits_before = bits(a, b);
    std::string const said = refusal([&] { zero::step_together({}, a, b); });
    expect(said.find("different loss scales") != std::string::npos, said);
    expect(bits(a, b) == bits_before, "something changed");
    expect(a.loss_scale() == 64.f && b.loss_scale() == 65536.f, "scales");
    expect(give_zeros(a).step().step == 1 && give_zeros(b).step().step == 1, "each goes on alone");
  });
}

TEST_CASE("where work is queued, a step together waits for its report alone") {
  contracts::on_ranks(3, [](zero::InProcess& inner, auto const& expect) {
    using Rank = contracts::OnDevice<PosG, zero::Fp32>;
    // Two optimizers over one communicator.
    Rank a{inner};
    contracts::DeviceOptimizer<PosGP, Fp16> b{
        a.comm, contracts::even_model(), low_scale, zero::Owned{trapped::Allocator{&a.device}}};
    contracts::load(b);
    contracts::OnHost<PosG, zero::Fp32> host_a{inner};
    Optimizer<PosGP, Fp16> host_b{inner, contracts::even_model(), low_scale};
    contracts::load(host_b);
    auto const pass_of = [&](float value) {
      contracts::constant_pass(a, value);
      contracts::constant_pass(host_a, value);
      for (int const unit : b.units_backward()) {
        auto gradients = b.gradients(unit);
        auto host = host_b.gradients(unit);
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          a.fill(gradients[i], value);
          host_a.fill(host[i], value);
        }
        b.reduce(std::move(gradients));
        host_b.reduce(std::move(host));
      }
    };
    auto const same_bits = [&] {
      return contracts::owned_bits(a.optimizer) == contracts::owned_bits(host_a.optimizer) &&
             contracts::owned_bits(b) == contracts::owned_bits(host_b);
    };
    zero::StepOptions const options{.max_norm = 0.5};
    for (float const value : {0.5f, 1.f, std::numeric_limits<float>::quiet_NaN(), 2.f}) {
      pass_of(value);
      auto const downloads = a.device.downloads;
      zero::enqueue_step_together(options, a.optimizer, b);
      expect(a.device.downloads == downloads, "something was brought to the host");
      auto const wanted = zero::step_together(options, host_a.optimizer, host_b);
      bool const alike = same(a.optimizer.report(), wanted) && b.report().skipped == wanted.skipped;
      expect(alike && wanted.skipped == (value != value), "report");
      expect(same_bits(), "bits");
    }
    pass_of(0.25f);
    auto const report = zero::step_together(options, a.optimizer, b);
    expect(same(report, zero::step_together(options, host_a.optimizer, host_b)), "waited for");
    expect(same_bits(), "bits");
    // What fails is told by each of them, and until then nothing is updated.
    auto const bits_before = contracts::owned_bits(b);
    for (bool const odd : {true, false}) {
      pass_of(0.25f);
      bool const differs = odd && inner.rank() == 1;
      zero::enqueue_step_together({.max_norm = differs ? 1. : 2.}, a.optimizer, b);
      host_a.optimizer.discard_gradients();
      host_b.discard_gradients();
    }
    expect(contracts::owned_bits(b) == bits_before, "updated after a failure");
    expect(is_refused([&] { return a.optimizer.report(); }), "told by the first");
    expect(is_refused([&] { return b.report(); }), "told by the second");
    pass_of(0.25f);
    zero::enqueue_step_together(options, a.optimizer, b);
    zero::step_together(options, host_a.optimizer, host_b);
    expect(a.optimizer.report().step == 5 && same_bits(), "training goes on");
  });
}

}  // namespace together_test
