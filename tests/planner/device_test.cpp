#include "plan/model/device.hpp"

#include "plan/model/transformer.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include <zero/activations.hpp>
#include <zero/comm/grid.hpp>
#include <zero/transfer/host_transfer.hpp>
#include <zero/zero.hpp>

namespace device_test {
namespace {

using namespace plan;
using zero::Role;

constexpr Transformer small{.layers = 3, .hidden = 20, .heads = 4, .vocab = 37, .sequence = 9};

/// On a grid of 2 x 2 threads: held, by optimizer and checkpoints together, and moved for one
/// micro-batch.
template <class Placement>
void hold(std::string const& activations) {
  CAPTURE(activations);
  Setup const setup{.model = small,
                    .ranks = 4,
                    .model_parallel = 2,
                    .policies = {.stage = "pos+g", .precision = "fp32"},
                    .activations = activations,
                    .batch = 3,
                    .bucket = {4000}};
  DevicePlan const plan = plan_device(setup);
  std::size_t const elements = 3 * 9 * 20;
  zero::run_ranks(4, [&](zero::InProcess& world) {
    zero::Counting<zero::InProcess> counted(world);
    zero::Grid grid{counted, 2, 2};
    zero::ShardedOptimizer opt{
        grid, describe(small, 2), zero::stage::PosG{}, zero::AdamW{}, zero::Bucket{4000}};
    std::vector<zero::ActivationCheckpoint> inputs;
    for (int layer = 0; layer < 3; ++layer) {
      inputs.push_back({"x", layer, elements, zero::DType::f32});
    }
    zero::HostTransfer host;
    zero::Activations kept{grid.model(), inputs, Placement{}, host};
    zero::MemoryBytes held = opt.held();
    for (int r = 0; r < zero::role_count; ++r) {
      held[static_cast<Role>(r)] += kept.held()[static_cast<Role>(r)];
    }
    grid.model().reset();
    std::vector<float> const x(elements, 1.f);
    for (int layer = 0; layer < 3; ++layer) kept.store(layer, std::span<float const>(x));
    for (int layer = 2; layer >= 0; --layer) static_cast<void>(kept.fetch(layer));
    std::uint64_t const sent = grid.model().counts().bucket_total().elements;
    if (world.rank() != 0) return;
    CHECK(held == plan.held());
    CHECK(kept.held_slower() == plan.checkpoints.slower);
    CHECK(sent == plan.checkpoint_elements);
  });
}

}  // namespace

TEST_CASE("optimizer and checkpoints together: held as planned, and sent") {
  hold<zero::activation::Whole>("whole");
  hold<zero::activation::Pa>("pa");
  hold<zero::activation::PaCpu>("pa+cpu");
}

TEST_CASE("a block keeps what Korthikanti et al. say: sbh(10 + 24/t + 5as/ht) bytes") {
  // GPT-3's, on 8 ranks: 5as/h is 80.
  Setup setup{.model = {.layers = 96, .hidden = 12288, .heads = 96, .sequence = 2048},
              .ranks = 8,
              .model_parallel = 8,
              .attention = "plain",
              .batch = 1};
  std::uint64_t const wide = 2048 * 12288;
  CHECK(working_bytes(setup, 2).block == wide * (10 + 3 + 10));
  setup.attention = "selective";
  CHECK(working_bytes(setup, 2).block == wide * 13);
  setup.attention = "fused";
  CHECK(working_bytes(setup, 2).block == wide * 13);
  setup.sequence_parallel = true;
  CHECK(working_bytes(setup, 2).block == wide * 34 / 8);
  // Scores in fp32 and in 16 bits, on 8 ranks; final norm and its input; gradients.
  WorkingBytes const all = working_bytes(setup, 2);
  CHECK(all.head == 4 * wide / 8 + 2048 * 6 * (setup.model.vocab / 8));
  CHECK(all.gradients == 4 * wide / 8 + 8 * wide / 8);
  CHECK(all.blocks == 96);
  CHECK(all.total() == 96 * all.block + all.gradients + all.head);
  // Inputs alone are kept: one block is at work.
  setup.activations = "whole";
  CHECK(working_bytes(setup, 2).blocks == 1);
  DevicePlan const checkpoints = plan_device(setup);
  CHECK(checkpoints.checkpoints.memory[Role::activations] == 2 * wide * 96);
  CHECK(checkpoints.working.total() == working_bytes(setup, 2).total());
  CHECK(checkpoints.total_bytes() == checkpoints.held().total() + checkpoints.working.total());
}

TEST_CASE(
    "a block of Llama's kind keeps fewer keys and values, and four times its MLP's channels") {
  Setup const setup{.model = {.layers = 1,
                              .hidden = 64,
                              .heads = 8,
                              .sequence = 32,
                              .kv_heads = 2,
                              .inner = 96,
                              .gated = true,
                              .dropout = false},
                    .batch = 3};
  CHECK(working_bytes(setup, 2).block == 3 * 32 * 2 * (4 * 64 + 2 * 64 + 2 * 16 + 4 * 96));
}

TEST_CASE("what ranks of a model send: §8, 12 b s h with recomputation, a twelfth more with Pa") {
  Setup setup{.model = {.layers = 5, .hidden = 512, .heads = 16, .vocab = 64, .sequence = 128},
              .ranks = 64,
              .model_parallel = 16,
              .activations = "pa",
              .batch = 7,
              .micro_steps = 1};
  std::uint64_t const wide = 7 * 128 * 512;
  DevicePlan const pa = plan_device(setup);
  CHECK(pa.model_elements == 12 * wide * 5 * 15 / 16);
  CHECK(pa.model_bytes == 2 * pa.model_elements);
  CHECK(pa.checkpoint_elements * 12 == pa.model_elements);
  CHECK(pa.sent_bytes() == pa.optimizer.sent.total() + pa.model_bytes + pa.checkpoint_bytes);

  setup.micro_steps = 3;
  setup.policies.accumulation = "shard";
  DevicePlan const thrice = plan_device(setup);
  CHECK(thrice.model_elements == 3 * pa.model_elements);
  CHECK(thrice.checkpoint_bytes == 3 * pa.checkpoint_bytes);
  CHECK(thrice.optimizer.traffic.reduce == 3 * pa.optimizer.traffic.reduce);

  setup.activations = "pa+cpu";
  DevicePlan const host = plan_device(setup);
  CHECK(host.checkpoint_bytes == thrice.checkpoint_bytes);
  CHECK(host.slower_bytes == 3 * 2 * thrice.checkpoints.memory[Role::activations]);

  setup.activations = "keep";
  CHECK(plan_device(setup).model_elements == 3 * 8 * wide * 5 * 15 / 16);
}

TEST_CASE("a trillion parameters on 100,000 ranks") {
  Setup const setup{.model = transformer_of(1e12),
                    .ranks = 100'000,
                    .model_parallel = 4,
                    .policies = {.stage = "pos+g+p"},
                    .activations = "pa"};
  DevicePlan const plan = plan_device(setup);
  CHECK(plan.optimizer.world_size == 25'000);
  // 16 bytes for each of a quarter of the parameters, and for the padding, over 25,000 ranks.
  std::uint64_t const padded = plan.optimizer.trained_elements + plan.optimizer.padding_elements;
  CHECK(plan.state_bytes() == 16 * padded / 25'000);
  CHECK(plan.optimizer.traffic.reduce == padded / 25'000 * 24'999);
}

TEST_CASE("setups that make no sense are refused") {
  auto const refused = [](Setup const& setup) {
    return refusal([&] { static_cast<void>(plan_device(setup)); });
  };
  CHECK(refused({.model = small, .ranks = 6, .model_parallel = 4}) ==
        "4 model-parallel ranks do not divide 6 ranks");
  CHECK(refused({.model = small, .ranks = 0}) != "");
  CHECK(refused({.model = small, .batch = 0}) == "a batch has at least 1 sequence");
  CHECK(refused({.model = small, .activations = "all"}).find("keep, whole, pa or pa+cpu") !=
        std::string::npos);
  CHECK(refused({.model = small, .micro_steps = 2}) ==
        "2 micro-steps add up somewhere: the accumulation is full or shard");
  CHECK(refused({.model = small, .micro_steps = 0}) != "");
}

TEST_CASE("parameters are the formula's") {
  for (Transformer const& model :
       {Transformer{},
        Transformer{.layers = 3, .hidden = 12, .heads = 4, .vocab = 7, .sequence = 5}}) {
    std::uint64_t const h = model.hidden;
    CHECK(parameters(model) == static_cast<std::uint64_t>(model.layers) * (12 * h * h + 13 * h) +
                                   (model.vocab + model.sequence + 2) * h);
  }
  // GPT-2 as it was published: 50257 words, 1024 positions.
  CHECK(parameters({.layers = 48, .hidden = 1600, .heads = 25, .vocab = 50257}) == 1'557'611'200);
}

TEST_CASE("ranks of a model have parts that make up the whole") {
  Transformer const model{.layers = 2, .hidden = 24, .heads = 6, .vocab = 10, .sequence = 4};
  auto const whole = describe(model);
  auto const part = describe(model, 3);
  REQUIRE(part.size() == whole.size());
  for (std::size_t t = 0; t < whole.size(); ++t) {
    CAPTURE(whole[t].name);
    CHECK(part[t].name == whole[t].name);
    CHECK(part[t].unit == whole[t].unit);
    CHECK(part[t].tied_to == whole[t].tied_to);
    CHECK_FALSE(whole[t].partitioned);
    std::uint64_t const parts = part[t].partitioned ? 3 : 1;
    // Of 10 words each of three ranks has room for 4.
    bool const words = whole[t].name == "wte" || whole[t].name == "head.w";
    CHECK(zero::element_count(part[t]) * parts ==
          (words ? 12 * 24 : zero::element_count(whole[t])));
  }
}

TEST_CASE("of a frozen base there are its bytes, and adapters beside each matrix of a block") {
  Transformer model{.layers = 2, .hidden = 24, .heads = 6, .vocab = 10, .sequence = 4};
  std::uint64_t const all = parameters(model);
  model.wide_vectors = true;
  model.adapters = 3;
  model.base_bits = 4.5;
  CHECK(parameters(model) == all);
  std::uint64_t bytes = 0;
  std::uint64_t trained = 0;
  for (zero::Tensor const& tensor : describe(model)) {
    CAPTURE(tensor.name);
    bool const matrix = tensor.shape.size() > 1;
    bool const adapter = tensor.name.ends_with(".down") || tensor.name.ends_with(".up");
    CHECK(tensor.frozen == !adapter);
    if (tensor.dtype == zero::DType::u8) {
      bytes += zero::element_count(tensor);
    } else {
      CHECK(tensor.dtype.has_value() == !matrix);
    }
    if (!tensor.frozen) trained += zero::element_count(tensor);
  }
  // Of 12 h² elements of a block, at 4.5 bits; and of 3 x (h in, 18 h out).
  CHECK(bytes == 2 * 12 * 24 * 24 * 9 / 16);
  CHECK(trained == 2 * 3 * (24 + 72 + 24 + 24 + 24 + 96 + 96 + 24));
  Setup setup{.model = model};
  setup.policies.stage = "pos+g+p";
  setup.ranks = 4;
  zero::Plan const plan = plan_device(setup).optimizer;
  CHECK(plan.trained_elements == trained);
  CHECK(plan.kind_elements.size() == plan.types.size());
}

TEST_CASE("a size gets the width of the trained model that is nearest") {
  struct Case {
    double wanted;
    std::size_t hidden;
    int layers;
  };
  // By hand: (wanted - 52226 h) / (12 h² + 13 h).
  for (Case const& c : {Case{1.5e9, 1600, 46},
                        Case{7.5e9, 3072, 65},
                        Case{8e9, 3072, 69},
                        Case{128e9, 8192, 158},
                        Case{170e9, 8192, 211},
                        Case{1e12, 25600, 127}}) {
    CAPTURE(c.wanted);
    Transformer const model = transformer_of(c.wanted);
    CHECK(model.hidden == c.hidden);
    CHECK(model.layers == c.layers);
    CHECK(model.hidden % model.heads == 0);
    auto const h = static_cast<double>(model.hidden);
    CHECK(std::abs(static_cast<double>(parameters(model)) - c.wanted) <=
          (12. * h * h + 13. * h) / 2.);
  }
  Transformer const huge = transformer_of(1e15, {.vocab = 100, .sequence = 7});
  CHECK(huge.vocab == 100);
  CHECK(huge.sequence == 7);
  CHECK(huge.layers <= 512);
  CHECK(huge.layers > 32);
  CHECK(huge.hidden % 25600 == 0);
  CHECK(huge.hidden / huge.heads == 160);
}

TEST_CASE("what is no model is refused") {
  auto const described = [](Transformer const& model, int ranks) {
    return refusal([&] { static_cast<void>(describe(model, ranks)); });
  };
  CHECK(described({.hidden = 100, .heads = 3}, 1) == "3 heads cannot share a width of 100 evenly");
  CHECK(described({.hidden = 96, .heads = 6}, 4) ==
        "4 model-parallel ranks cannot share 6 heads evenly");
  CHECK(described({.hidden = 96, .heads = 6}, 0) != "");
  CHECK(described({.layers = 0}, 1) != "");
  CHECK(described({.vocab = 0}, 1) != "");
  for (double const wanted : {1e7, 0., -1., std::nan(""), double{INFINITY}, 1e40}) {
    CAPTURE(wanted);
    CHECK(is_refused([&] { static_cast<void>(transformer_of(wanted)); }));
  }
}

}  // namespace device_test
