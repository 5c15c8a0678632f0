/// Calls that come out of order, or from a wrong program: errors that name the layer, and change
/// nothing.
#include "activations/passes.hpp"
#include "support/test.hpp"
#include "zero/activations.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/decorators/checked.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/comm/self.hpp"
#include "zero/space/host.hpp"
#include "zero/transfer/host_transfer.hpp"

namespace misuse_test {
namespace {

using activations::checkpoints;
using activations::told;
using zero::ActivationCheckpoint;
using zero::DType;
using zero::ErrorKind;
using zero::MicroBatches;
namespace activation = zero::activation;

/// All calls on one rank, with every placement.
template <class Body>
void on_every_placement(Body const& body) {
  zero::Self comm;
  zero::HostTransfer transfer;
  zero::Activations whole{comm, checkpoints(), activation::Whole{}, MicroBatches{2}};
  zero::Activations pa{comm, checkpoints(), activation::Pa{}, MicroBatches{2}};
  zero::Activations cpu{comm, checkpoints(), activation::PaCpu{}, transfer, MicroBatches{2}};
  body(whole);
  body(pa);
  body(cpu);
}

std::vector<float> input(int layer) { return std::vector<float>(activations::inputs[layer]); }
template <class Store>
void store(Store& to, int layer, int batch = 0) {
  to.store(layer, std::span<float const>(input(layer)), {.micro_batch = batch});
  std::vector<std::uint8_t> const mask(15);
  if (layer == 1) to.store(1, std::span(mask), {.checkpoint = 1, .micro_batch = batch});
}

TEST_CASE("out of order") {
  on_every_placement([](auto& acts) {
    CHECK(refusal([&] { (void)acts.fetch(2); }) ==
          "layer 2, micro-batch 0 is fetched, and nothing of this micro-batch is stored");
    CHECK(refusal([&] { (void)acts.fetch(9); }) == "layer 9 was described with no checkpoint");
    store(acts, 0);
    CHECK(refusal([&] { store(acts, 0); }) ==
          "layer 0, checkpoint 'input', micro-batch 0 is stored twice");
    CHECK(refusal([&] { (void)acts.fetch(1); }) ==
          "layer 1, checkpoint 'input', micro-batch 0 is fetched before it was stored");
    acts.store(1, std::span<float const>(input(1)));
    CHECK(refusal([&] { (void)acts.fetch(1); }) ==
          "layer 1, checkpoint 'mask', micro-batch 0 is fetched before it was stored");
    std::vector<std::uint8_t> const mask(15);
    acts.store(1, std::span(mask), {.checkpoint = 1});
    CHECK(refusal([&] { (void)acts.fetch(0); }) ==
          "layer 0, micro-batch 0 is fetched before layer 1: backward passes fetch layers in "
          "descending order");
    CHECK(refusal([&] { acts.end_step(); }) ==
          "layer 1, micro-batch 0 is stored at the end of the step, and was never fetched");
    {
      auto layer = acts.fetch(1);
      CHECK(refusal([&] { (void)acts.fetch(1); }) ==
            "layer 1, micro-batch 0 is fetched while it is fetched already");
      CHECK(refusal([&] { acts.end_step(); }) ==
            "layer 1, micro-batch 0 is still in use at the end of the step");
      CHECK(refusal([&] { acts.discard(); }) ==
            "layer 1, micro-batch 0 is in use, and to be discarded");
      CHECK(refusal([&] { (void)layer.template get<float>(1); }) ==
            "layer 1, checkpoint 1, micro-batch 0 is read as another type than it is of");
      CHECK(refusal([&] { (void)layer.template get<float>(2); }) ==
            "layer 1, checkpoint 2, micro-batch 0 has no checkpoint of this number");
      CHECK(layer.template get<std::uint8_t>("mask").size() == 15);
      layer.release();
      CHECK(refusal([&] { layer.release(); }) ==
            "layer 1, checkpoint 0, micro-batch 0 is released twice");
      CHECK(refusal([&] { (void)layer.template get<float>(); }) ==
            "layer 1, checkpoint 0, micro-batch 0 is used after it was released");
    }
    // All of it has changed nothing: the step goes on.
    { auto const layer = acts.fetch(0); }
    acts.end_step();
    CHECK(refusal([&] { (void)acts.fetch(0); }) ==
          "layer 0, micro-batch 0 is fetched, and nothing of this micro-batch is stored");
  });
}

TEST_CASE("stored too late, too often, or as something else") {
  on_every_placement([](auto& acts) {
    store(acts, 2);
    CHECK(refusal([&] { store(acts, 0); }) ==
          "layer 0, micro-batch 0 is stored after layer 2: forward passes store layers in "
          "ascending order");
    store(acts, 0, 7);
    CHECK(refusal([&] { store(acts, 0, 8); }) ==
          "layer 0, micro-batch 8 is stored while 2 other micro-batches are in flight: raise "
          "MicroBatches.in_flight");
    CHECK(refusal([&] { store(acts, 0, -1); }) ==
          "layer 0, micro-batch -1 is stored, and micro-batches are counted from 0");
    std::vector<float> const few(3);
    CHECK(refusal([&] { acts.store(1, std::span(few), {.micro_batch = 7}); }) ==
          "layer 1, checkpoint 'input', micro-batch 7 is stored as 3 fp32, described as 393 fp32");
    std::vector<double> const other(393);
    CHECK(
        refusal([&] { acts.store(1, std::span(other), {.micro_batch = 7}); }) ==
        "layer 1, checkpoint 'input', micro-batch 7 is stored as 393 fp64, described as 393 fp32");
    CHECK(refusal([&] { acts.store(1, std::span(few), {.checkpoint = 2}); }) ==
          "layer 1, micro-batch 0 has no checkpoint of this number");
    {
      auto const layer = acts.fetch(2);
      CHECK(refusal([&] { store(acts, 2); }).find("is stored twice") != std::string::npos);
    }
    CHECK(refusal([&] { acts.end_step(); }) ==
          "layer 0, micro-batch 7 is stored at the end of the step, and was never fetched");
    acts.discard();
    acts.end_step();
    store(acts, 0, 8);
    acts.discard();
  });
}

TEST_CASE("descriptions that make no sense") {
  zero::Self comm;
  auto const with = [&](std::vector<ActivationCheckpoint> described) {
    return refusal([&] { zero::Activations acts{comm, described}; });
  };
  CHECK(with({{"x", 1, 4, DType::f32}, {"x", 0, 4, DType::f32}}) ==
        "checkpoint 'x' of layer 0 is described after layer 1: describe layers in the order of the "
        "forward pass");
  CHECK(with({{"x", 1, 4, DType::f32}, {"x", 1, 4, DType::f32}}) ==
        "layer 1 has two checkpoints 'x'");
  CHECK(with({{"", 1, 4, DType::f32}}).find("needs a name") != std::string::npos);
  CHECK(with({{"x", -1, 4, DType::f32}}).find("a layer from 0 on") != std::string::npos);
  CHECK(with({{"x", 0, ~std::size_t{0} / 2, DType::f32}}).find("64 bits") != std::string::npos);
  CHECK(refusal([&] {
          zero::Activations acts{comm, checkpoints(), MicroBatches{0}};
        }) == "at least 1 micro-batch is in flight");
  CHECK(refusal([&] {
          zero::Activations acts{comm, checkpoints(), zero::Prefetch{-1}};
        }) == "the prefetch depth must be at least 0");
  zero::Activations nothing{comm, {}};
  CHECK(nothing.held().total() == 0);
  nothing.end_step();
  zero::run_ranks(2, [](zero::InProcess& two) {
    zero::HostTransfer transfer;
    zero::Activations empty{two, {{"x", 3, 0, DType::f32}}, transfer, activation::PaCpu{}};
    empty.store(3, std::span<float const>());
    auto const layer = empty.fetch(3);
    if (!layer.get<float>().empty()) throw std::runtime_error("not empty");
  });
}

TEST_CASE("more layers in use than the pool has room for") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    zero::Activations acts{comm, checkpoints()};
    for (int l = 0; l < 3; ++l) store(acts, l);
    auto const top = acts.fetch(2);
    auto middle = std::optional(acts.fetch(1));
    std::string const text = refusal([&] { (void)acts.fetch(0); });
    // Not on the main thread: no checks here.
    if (text !=
        "layer 0, micro-batch 0 is fetched while all slots of the gather pool are in use: "
        "release a layer before fetching the next, or raise Prefetch.depth") {
      throw std::runtime_error(text);
    }
    middle.reset();
    (void)acts.fetch(0).layer();
  });
}

TEST_CASE("ranks that differ are told in what") {
  auto const differ = [](auto const& make, char const* what) {
    for (std::string const& text : told(2, make)) {
      CHECK_MESSAGE(text.find(what) != std::string::npos, text);
    }
  };
  differ(
      [](zero::InProcess& comm) {
        zero::Activations acts{comm, checkpoints(), MicroBatches{comm.rank() + 1}};
      },
      "ranks disagree on the activations' micro-batches: 1 on rank 0; 2 on rank 1");
  differ(
      [](zero::InProcess& comm) {
        auto described = checkpoints();
        if (comm.rank() == 1) described[1].name = "other";
        zero::Activations acts{comm, described};
      },
      "ranks disagree on the activations' descriptions of checkpoints: ");
  differ(
      [](zero::InProcess& comm) {
        if (comm.rank() == 0) zero::Activations{comm, checkpoints(), activation::Whole{}};
        if (comm.rank() == 1) zero::Activations{comm, checkpoints()};
      },
      "ranks disagree on the activations' placement: 0 on rank 0; 1 on rank 1");
}

TEST_CASE("a rank that fetches something else, or fails: an error on all, no hang") {
  auto const two_batches = [](auto& acts) {
    for (int batch = 0; batch < 2; ++batch) {
      for (int l = 0; l < 3; ++l) store(acts, l, batch);
    }
  };
  auto const checked = told(2, [&](zero::InProcess& inner) {
    zero::Checked comm{inner};
    zero::Activations acts{comm, checkpoints(), MicroBatches{2}};
    two_batches(acts);
    (void)acts.fetch(2, comm.rank()).layer();  // the same shapes, of another micro-batch
  });
  for (std::string const& text : checked) {
    CAPTURE(text);
    CHECK(text.find("all_gather of 16 fp32, bucket 3") != std::string::npos);
    CHECK(text.find("all_gather of 16 fp32, bucket 7") != std::string::npos);
  }
  auto const failed = told(2, [&](zero::InProcess& comm) {
    zero::Activations acts{comm, checkpoints(), MicroBatches{2}};
    two_batches(acts);
    if (comm.rank() == 1) zero::fail(ErrorKind::data, "the loss is not finite");
    (void)acts.fetch(2).layer();
  });
  CHECK(failed[0].find("the loss is not finite") != std::string::npos);
}

/// Memory that stands for a device's, of a group that ends while work is queued.
struct FarSpace : zero::space::Host {
  static constexpr bool host_accessible = false;
};
struct EndedGroup : zero::Self {
  using Space = FarSpace;
  bool over = false;
  std::int64_t word = 0;
  void confirm() const {
    if (over) zero::fail(ErrorKind::communication, "the group has ended");
  }
  [[nodiscard]] std::int64_t const* ended() const { return &word; }
};
static_assert(zero::ConfirmingCommunicator<EndedGroup>);

TEST_CASE("a group that has ended while work was queued: the end of the step says so") {
  EndedGroup comm;
  zero::Activations acts{comm, checkpoints(), zero::Owned{zero::HostAllocator{}}};
  acts.end_step();
  comm.over = true;
  CHECK(refusal([&] { acts.end_step(); }, ErrorKind::communication) == "the group has ended");
}

}  // namespace
}  // namespace misuse_test
