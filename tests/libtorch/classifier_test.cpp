/// A trainer as users have them: a TransformerEncoder with a classifier's head is fine-tuned.
#include "checkpoint/temporary_directory.hpp"
#include "libtorch/sharded_model.hpp"
#include <zero/checkpoint.hpp>

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace classifier_test {

using namespace libtorch_tests;
using zero::libtorch::Frozen;

constexpr int words = 17, length = 6, width = 16, classes = 3;
constexpr int samples = 12;  // of a step, by all ranks
constexpr int thaws_at = 4, saved_at = 6, rests_at = 9, all_steps = 12;

struct ClassifierImpl : torch::nn::Module {
  explicit ClassifierImpl(double phase = 0.)
      : encoder(torch::nn::TransformerEncoderOptions(
            torch::nn::TransformerEncoderLayer(
                torch::nn::TransformerEncoderLayerOptions(width, 2).dim_feedforward(24).dropout(
                    0.)),
            2)) {
    pos = register_parameter("pos", torch::zeros({length, width}));
    register_module("embedding", embedding);
    register_module("encoder", encoder);
    register_module("head", head);
    fill(*this, phase);
    torch::NoGradGuard const off;
    for (auto& each : named_parameters()) {
      if (is_norm(each.key())) each.value().add_(1.);
    }
  }
  static bool is_norm(std::string const& name) {
    return name.find("norm") != std::string::npos && name.ends_with("weight");
  }
  static bool decays(std::string const& name) {
    return name != "pos" && !is_norm(name) && !name.ends_with("bias");
  }
  /// The embedding and the encoder are what was trained before: they thaw, and rest once more.
  void train_backbone_at(int step) {
    bool const yes = step >= thaws_at && step != rests_at;
    for (auto& p : embedding->parameters()) p.set_requires_grad(yes);
    for (auto& p : encoder->parameters()) p.set_requires_grad(yes);
  }
  [[nodiscard]] std::vector<zero::libtorch::Unit> units() const {
    return {*this, embedding, layer(0), layer(1), head};
  }
  [[nodiscard]] std::shared_ptr<torch::nn::TransformerEncoderLayerImpl> layer(std::size_t i) const {
    return encoder->layers->ptr<torch::nn::TransformerEncoderLayerImpl>(i);
  }
  template <class Call>
  torch::Tensor forward(Call const& call, torch::Tensor const& ids) {
    auto x = call(embedding, ids).transpose(0, 1) + pos.unsqueeze(1);
    for (std::size_t i = 0; i < 2; ++i) {
      auto const block = layer(i);
      x = call(block, x);
    }
    return call(head, x.mean(0));
  }
  /// Of `count` samples of a step, from `first` on.
  template <class Call>
  torch::Tensor loss(int step, int first, int count, Call const& call) {
    auto const n = torch::arange(first, first + count).add(step * samples);
    auto const ids = (n.unsqueeze(1) * 7 + torch::arange(length) * (n.unsqueeze(1) + 3)) % words;
    ClassifierImpl* const self = this;
    return torch::nn::functional::cross_entropy(call(self, call, ids), ids.sum(1) % classes);
  }

  torch::Tensor pos;
  torch::nn::Embedding embedding{words, width};
  torch::nn::TransformerEncoder encoder;
  torch::nn::Linear head{width, classes};
};
TORCH_MODULE(Classifier);

/// Warms up, then falls; biases have other numbers, and change them twice.
float rate_at(int step) {
  return 0.01f * static_cast<float>(step < 3 ? step + 1 : all_steps - step) / 12.f;
}
float bias_rate_at(int step) { return step < 5 ? 0.02f : 0.002f; }
double bias_beta1_at(int step) { return step < 8 ? 0.5 : 0.8; }

/// Where LibTorch and the library may differ: the bias of the keys shifts all scores of a query
/// alike, its gradient is zero but for rounding, and Adam makes steps of rounding.
torch::Tensor without_key_bias(torch::Tensor const& values) {
  torch::NoGradGuard const off;
  Classifier net;
  std::int64_t at = 0;
  auto result = values.clone();
  for (auto const& each : net->named_parameters()) {
    if (each.key().ends_with("in_proj_bias")) result.narrow(0, at + width, width).zero_();
    at += each.value().numel();
  }
  return result;
}

/// @param moves  whether the numbers of biases change
torch::Tensor by_libtorch(bool moves) {
  Classifier net;
  using torch::optim::AdamWOptions;
  std::vector<torch::Tensor> decayed, plain, biases;
  for (auto const& each : net->named_parameters()) {
    bool const is_bias = each.key().ends_with("bias");
    (ClassifierImpl::decays(each.key()) ? decayed
     : is_bias                          ? biases
                                        : plain)
        .push_back(each.value());
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (auto const& tensors : {decayed, plain, biases}) {
    double const decay = groups.empty() ? 0.1 : 0.;
    groups.emplace_back(tensors,
                        std::make_unique<AdamWOptions>(AdamWOptions(1e-3).weight_decay(decay)));
  }
  torch::optim::AdamW opt(groups, AdamWOptions(1e-3));
  for (int step = 0; step < all_steps; ++step) {
    net->train_backbone_at(step);
    for (auto& group : opt.param_groups()) group.options().set_lr(double{rate_at(step)});
    int const number = moves ? step : 0;
    static_cast<AdamWOptions&>(opt.param_groups().back().options())
        .lr(double{bias_rate_at(number)})
        .betas(std::tuple(bias_beta1_at(number), 0.999));
    for (auto& p : net->parameters()) p.mutable_grad() = torch::Tensor();
    net->loss(step, 0, samples, plainly).backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 1.);
    opt.step();
  }
  return without_key_bias(floats(bytes_of(*net)));
}

enum class By { sharded, sharded_lent, optimizer };

/// Steps `from` to `to` by either class; goes on from a checkpoint, and leaves one.
Bytes trained(By by, int ranks, std::string const& directory, int from, int to) {
  return on_ranks(ranks, [&](zero::InProcess& comm) {
    Classifier net(from);  // other values than those that were saved
    net->train_backbone_at(from);
    auto model = describe(*net, net->units(), Frozen::may_thaw);
    for (zero::Tensor& tensor : model.tensors) {
      if (!ClassifierImpl::decays(tensor.name)) tensor.weight_decay = 0.f;
      if (tensor.name.ends_with("bias")) tensor.group = "biases";
    }
    zero::Checkpoints run{directory};
    auto const train = [&](auto& opt, auto const& call) {
      if (from > 0) run.load(opt.core(), run.latest().value());
      int const count = samples / ranks;
      for (int step = from; step < to; ++step) {
        net->train_backbone_at(step);
        opt.zero_grad();
        opt.core().set_rule(
            "biases",
            {.lr = bias_rate_at(step), .beta1 = bias_beta1_at(step), .weight_decay = 0.f});
        net->loss(step, comm.rank() * count, count, call).backward();
        opt.step({.learning_rate = rate_at(step), .max_norm = 1.});
      }
      run.save(opt.core());
    };
    zero::AdamW const rule{.weight_decay = 0.1f};
    if (by == By::optimizer) {
      return with_optimizer(comm, *net, model, train, zero::stage::PosG{}, rule);
    }
    return by == By::sharded ? with_sharded(comm, *net, model, train, zero::stage::PosGP{}, rule)
                             : with_sharded(comm, *net, model, train, zero::stage::PosG{}, rule);
  });
}

TEST_CASE("a TransformerEncoder thaws, stops and goes on elsewhere as with LibTorch alone") {
  at::set_num_threads(1);
  auto const expected = by_libtorch(true);
  auto const away = [&](torch::Tensor const& values) {
    return distance(without_key_bias(values), expected);
  };
  auto const check = [&](Bytes const& bytes) {
    REQUIRE(!bytes.empty());
    CHECK(away(floats(bytes)) < 1e-5);
  };
  checkpoint_tests::TemporaryDirectory const sharded, whole, unbroken, lent;
  auto const bytes = trained(By::sharded, 3, unbroken.path(), 0, all_steps);
  check(bytes);
  CHECK(trained(By::sharded_lent, 3, lent.path(), 0, all_steps) == bytes);
  CHECK(!trained(By::sharded, 3, sharded.path(), 0, saved_at).empty());
  check(trained(By::optimizer, 2, sharded.path(), saved_at, all_steps));
  CHECK(!trained(By::optimizer, 2, whole.path(), 0, saved_at).empty());
  check(trained(By::sharded, 4, whole.path(), saved_at, all_steps));
  Classifier untouched;
  CHECK(away(floats(bytes_of(*untouched))) > 1e-2);
  CHECK(away(by_libtorch(false)) > 1e-3);
}

}  // namespace classifier_test
