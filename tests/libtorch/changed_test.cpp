/// What operations of LibTorch write into parameters between steps.
#include "checkpoint/temporary_directory.hpp"
#include "libtorch/sharded_model.hpp"
#include <zero/checkpoint.hpp>

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <sstream>
#include <string>

namespace libtorch_changed_test {

using namespace libtorch_tests;

std::string const written = "' was written to, but its master weight was not";

struct Layer {
  Layer(torch::ScalarType type) {
    torch::NoGradGuard const off;
    module->to(type);
    module->weight.fill_(1.);
    module->bias.fill_(1.);
  }
  torch::nn::Linear module{4, 2};

  template <class O>
  void pass(O& opt) {
    if constexpr (requires { opt.forward(module, torch::Tensor()); }) {
      opt.forward(module, torch::ones({1, 4}, module->weight.scalar_type())).sum().backward();
    } else {
      module->forward(torch::ones({1, 4}, module->weight.scalar_type())).sum().backward();
    }
  }
};

/// Writes, is refused, settles it in each way, and goes on from what it was told.
template <class O>
void check_written(Layer& layer, O& opt, zero::Checkpoints& run) {
  auto const step = [&] {
    layer.pass(opt);
    opt.step();
    opt.zero_grad();
  };
  step();
  float const before = layer.module->weight[0][0].item<float>();
  CHECK(before != 1.f);
  run.save(opt);  // nothing but steps has changed anything
  {
    torch::NoGradGuard const off;
    layer.module->weight.clamp_(-0.25, 0.25);
  }
  layer.pass(opt);
  check_refused([&] { opt.step(); }, "parameter 'weight" + written);
  opt.zero_grad();
  check_refused([&] { run.save(opt); }, "parameter 'weight" + written);
  CHECK(layer.module->weight[0][0].item<float>() == 0.25f);

  opt.adopt_parameters();
  run.save(opt);
  opt.set_lr(0.);
  step();
  CHECK(layer.module->weight[0][0].item<float>() == 0.25f);

  opt.core().fill_owned([](auto const& tensor, std::size_t, auto masters, auto const&) {
    for (auto& master : masters) master = tensor.name == "weight" ? 0.125f : 2.f;
  });
  step();
  CHECK(layer.module->weight[1][3].item<float>() == 0.125f);
  {
    torch::NoGradGuard const off;
    layer.module->bias.fill_(7.);
  }
  // A load replaces what was written.
  opt.core().load_parameters([](auto const&, std::size_t, auto out) {
    for (auto& value : out) value = 3.f;
  });
  step();
  CHECK(layer.module->bias[1].item<float>() == 3.f);
}

TEST_CASE("what LibTorch writes into 16-bit parameters is refused by a step and by a save") {
  zero::Self comm;
  checkpoint_tests::TemporaryDirectory const directory;
  zero::Checkpoints run{directory.path()};
  zero::Mixed<zero::bf16> const mixed;
  {
    Layer layer(torch::kBFloat16);
    zero::libtorch::Optimizer opt{comm, *layer.module, mixed, zero::PlainSgd{.lr = 0.5}};
    check_written(layer, opt, run);
  }
  Layer layer(torch::kBFloat16);
  zero::libtorch::Sharded opt{comm,
                              describe(*layer.module),
                              mixed,
                              zero::stage::PosG{},
                              zero::Borrowed<>{},
                              zero::PlainSgd{.lr = 0.5}};
  check_written(layer, opt, run);
}

TEST_CASE("torch::load into a module in mid-run is refused until it is adopted") {
  zero::Self comm;
  Layer layer(torch::kBFloat16), other(torch::kBFloat16);
  {
    torch::NoGradGuard const off;
    other.module->weight.fill_(5.);
  }
  std::stringstream file;
  torch::save(other.module, file);
  zero::libtorch::Optimizer opt{
      comm, *layer.module, zero::Mixed<zero::bf16>{}, zero::PlainSgd{.lr = 0.}};
  torch::load(layer.module, file);
  layer.pass(opt);
  check_refused([&] { opt.step(); }, "parameter 'weight" + written);
  opt.adopt_parameters();
  opt.step();
  CHECK(layer.module->weight[0][0].item<float>() == 5.f);
  // Or before anybody could refuse it.
  std::stringstream again;
  torch::save(other.module, again);
  torch::load(layer.module, again);
  opt.adopt_parameters();
  opt.zero_grad();
  layer.pass(opt);
  opt.step();
  CHECK(layer.module->weight[1][3].item<float>() == 5.f);
}

TEST_CASE("what was given other memory is neither read nor replaced where it was, until adopted") {
  zero::Self comm;
  checkpoint_tests::TemporaryDirectory const directory;
  zero::Checkpoints run{directory.path()};
  std::string const other = "parameter 'weight' was given other memory";
  Layer layer(torch::kFloat), loaded(torch::kFloat);
  {
    torch::NoGradGuard const off;
    loaded.module->weight.fill_(5.);
  }
  auto const nothing = [](auto const&...) {};
  auto const reload = [&](auto& opt) {
    std::stringstream file;
    torch::save(loaded.module, file);
    torch::load(layer.module, file);
    auto const refused = [&](auto const& act) { check_refused(act, other); };
    refused([&] { run.save(opt); });
    refused([&] { run.load(opt, run.latest().value()); });
    refused([&] { opt.core().fill_owned(nothing); });
    refused([&] { opt.core().visit_owned(nothing); });
    refused([&] { opt.core().load_parameters(nothing); });
    refused([&] { opt.core().check_parameters(); });
  };
  {
    zero::libtorch::Optimizer opt{comm, *layer.module, zero::PlainSgd{.lr = 0.}};
    run.save(opt);
    reload(opt);
    opt.adopt_parameters();
    run.save(opt);
    reload(opt);
    layer.pass(opt);
    opt.step();  // finds it by itself
    CHECK(layer.module->weight[0][0].item<float>() == 5.f);
    opt.core().load_parameters([](auto const&, std::size_t, auto out) {
      for (auto& value : out) value = 3.f;
    });
    CHECK(layer.module->weight[0][0].item<float>() == 3.f);
    run.load(opt, run.latest().value());
    CHECK(layer.module->weight[0][0].item<float>() == 5.f);
    opt.reduce_all();
    torch::NoGradGuard const off;
    layer.module->weight.set_data(torch::ones({2, 4}));
    check_refused([&] { opt.step(); }, other);
  }
  zero::libtorch::Sharded opt{
      comm, *layer.module, {layer.module}, zero::stage::PosG{}, zero::PlainSgd{.lr = 0.}};
  reload(opt);
}

TEST_CASE("parameters that are their own masters, and frozen ones, may be written to") {
  zero::Self comm;
  {
    Layer layer(torch::kFloat);
    zero::libtorch::Optimizer opt{comm, *layer.module, zero::PlainSgd{.lr = 0.}};
    torch::NoGradGuard const off;
    layer.module->weight.mul_(2.);
    layer.module->weight.mutable_grad() = torch::ones({2, 4});
    opt.step();
    CHECK(layer.module->weight[0][0].item<float>() == 2.f);
  }
  Layer layer(torch::kBFloat16);
  layer.module->bias.set_requires_grad(false);
  zero::libtorch::Optimizer opt{
      comm, *layer.module, zero::Mixed<zero::bf16>{}, zero::PlainSgd{.lr = 0.}};
  {
    torch::NoGradGuard const off;
    layer.module->bias.fill_(9.);
  }
  layer.pass(opt);
  opt.step();
  CHECK(layer.module->bias[0].item<float>() == 9.f);
}

}  // namespace libtorch_changed_test
