/// Frozen tensors are whole on every rank, or partitioned and gathered where trained ones are: the
/// same values and the same norm under every stage, on any number of ranks, held and sent as
/// planned.
#include "contracts/lent_memory.hpp"
#include "contracts/ranks.hpp"
#include "contracts/recording.hpp"
#include "support/frozen_model.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

#include <cmath>

namespace frozen_test {
namespace {

using zero::Fp32;
using zero::InProcess;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;
using Bf16 = zero::Mixed<zero::bf16>;
template <class... Policies>
using Watched = contracts::WatchedOptimizer<Policies..., zero::PlainSgd>;

constexpr zero::PlainSgd rule{.lr = 1.f};

/// Trains two steps and looks at all there is to see.
template <class O>
void train(std::vector<zero::Tensor> const& tensors,
           int ranks,
           std::size_t bucket,
           bool broadcast) {
  INFO("stage " << O::Stage::name << ", precision " << O::Precision::name << ", ranks " << ranks
                << ", bucket " << bucket << ", broadcast " << broadcast);
  double squares = 0.;
  for (zero::Tensor const& tensor : tensors) {
    if (tensor.frozen || !tensor.tied_to.empty()) continue;
    double const slope = frozen_model::after(tensor, 0, 0) - frozen_model::after(tensor, 0, 1);
    squares += slope * slope * static_cast<double>(zero::element_count(tensor));
  }
  contracts::on_ranks(ranks, [&](InProcess& inner, auto const& expect) {
    contracts::Watched watched{inner};
    O optimizer{watched.comm, tensors, rule, zero::Bucket{bucket}};
    auto const root = ranks - 1;
    auto const values = [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
      expect(!broadcast || inner.rank() == root, "who is asked");
      frozen_model::fill(tensor, first, out);
    };
    broadcast ? optimizer.broadcast_parameters(values, root) : optimizer.load_parameters(values);
    optimizer.check_parameters();
    for (int step = 0; step < 2; ++step) {
      watched.counted.reset();
      frozen_model::pass(optimizer, step, expect);
      auto const report = optimizer.step();
      expect(std::abs(report.grad_norm - std::sqrt(squares)) <= 1e-12 * squares, "the norm");
      expect(report.updated == (squares > 0. ? 2 : 0), "how many are updated");
      auto const counts = watched.counted.counts();
      auto const plan = optimizer.plan();
      expect(counts.bucket_total().elements == plan.traffic.total(), "elements sent");
      expect(counts.bucket_total().bytes == plan.sent.total(), "bytes sent");
      expect(optimizer.held() == plan.memory, "held");
    }
    optimizer.visit_owned([&](zero::Tensor const& tensor, std::size_t, auto, auto const&) {
      expect(!tensor.frozen, "a visit of " + tensor.name);
    });
    auto const all = optimizer.full_parameters();
    for (zero::Tensor const& tensor : optimizer.tensors()) {
      using Parameter = typename O::Parameter;
      expect(frozen_model::right(tensor, std::span<Parameter const>(all[tensor.name]), 2),
             tensor.name + " of the whole model");
    }
  });
}

template <class O>
void train_all() {
  for (int const ranks : {1, 2, 3, 5}) {
    for (std::size_t const bucket : {std::size_t{1}, std::size_t{12'345}, zero::MiB}) {
      train<O>(frozen_model::tensors(), ranks, bucket, bucket != 1);
    }
    train<O>(frozen_model::frozen_tensors(), ranks, 1, ranks > 2);
  }
}

TEST_CASE("frozen tensors have one value everywhere, whatever the stage and the number of ranks") {
  train_all<Watched<Replicated, Fp32>>();
  train_all<Watched<Pos, Bf16>>();
  train_all<Watched<PosG, Fp32>>();
  train_all<Watched<PosGP, Bf16>>();
}

/// Bytes of parameters that a rank holds under Pos+g+p of this model, on so many ranks.
std::uint64_t partitioned(std::vector<zero::Tensor> const& tensors, int ranks) {
  auto const plan = contracts::Optimizer<PosGP, Bf16>::plan({.world_size = ranks}, tensors);
  return plan.memory[zero::Role::parameters];
}

TEST_CASE("under Pos+g+p a rank holds its share of what is frozen, and all of what is whole") {
  for (int const ranks : {1, 2, 4, 8}) {
    auto const n = static_cast<std::uint64_t>(ranks);
    std::vector<zero::Tensor> tensors{{.name = "w", .shape = {4096}},
                                      {.name = "base", .shape = {8, 4096}, .frozen = true}};
    CHECK(partitioned(tensors, ranks) == 2 * (4096 + 8 * 4096) / n);
    tensors[1].whole = true;
    CHECK(partitioned(tensors, ranks) == 2 * (4096 / n + 8 * 4096));
  }
}

/// What ranks are told that load the values of this model but for one element of rank 1.
template <class O>
std::vector<std::string> told(std::string const& name, std::size_t element) {
  return contracts::endings(
      3,
      [&](InProcess& comm) {
        O optimizer{comm, frozen_model::tensors(), rule, zero::Bucket{1}};
        optimizer.load_parameters(
            [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
              frozen_model::fill(tensor, first, out);
              bool const here = first <= element && element < first + out.size();
              if (comm.rank() == 1 && tensor.name == name && here) out[element - first] += 1.f;
            });
      },
      true);
}

TEST_CASE_TEMPLATE("a frozen tensor that differs on one rank is named with the ranks that differ",
                   Stage,
                   Replicated,
                   Pos,
                   PosG,
                   PosGP) {
  // Of each bucket of 1536 elements rank 1 is asked for its share, and for that of rank 2.
  struct {
    char const* tensor;
    std::size_t element;
    char const* partitioned;
  } const rows[]{{"base", 0, ""},
                 {"base", 600, "0 and 1"},
                 {"base", 1100, "1 and 2"},
                 {"base", 1600, ""},
                 {"alone", 2100, "0 and 1"},
                 {"alone", 2600, "1 and 2"},
                 {"tiny", 1, ""},
                 {"mask", 0, "0 and 1, 1 and 2"},
                 {"mask", 599, "0 and 1, 1 and 2"}};
  for (auto const& row : rows) {
    CAPTURE(row.tensor);
    CAPTURE(row.element);
    bool const shares = Stage::sharding.parameters;
    std::string const pairs = shares ? row.partitioned : "0 and 1, 1 and 2";
    std::string const said =
        pairs.empty() ? ""
                      : "ranks " + pairs + " start from different values of tensor '" + row.tensor +
                            "'; broadcast_parameters" + (shares ? "(values)" : "()") +
                            " gives all of them those of one";
    for (auto const& each :
         told<contracts::Optimizer<Stage, Fp32, zero::PlainSgd>>(row.tensor, row.element)) {
      CHECK(each == said);
    }
  }
}

TEST_CASE(
    "whoever lends frozen tensors is asked for all of them, and they are read where they lie") {
  // What is frozen may have larger buckets than what is trained and staged.
  for (std::size_t const bucket : {std::size_t{4096}, zero::MiB}) {
    contracts::on_ranks(3, [&](InProcess& comm, auto const& expect) {
      using O = contracts::Optimizer<PosG, Fp32, zero::PlainSgd, zero::Borrowed<>>;
      auto const tensors = frozen_model::tensors();
      contracts::LentMemory<float> const parameters(tensors, false, true);
      contracts::LentMemory<float> gradients(tensors, false, true);
      O optimizer{comm, tensors, rule, zero::Bucket{bucket}};
      contracts::lend(optimizer, false, parameters, gradients);
      optimizer.broadcast_parameters(frozen_model::fill, 1);
      for (int step = 0; step < 2; ++step) {
        gradients.clear();
        frozen_model::pass(optimizer, step, expect);
        optimizer.step();
      }
      expect(optimizer.held() == optimizer.plan().memory, "held");
      expect(optimizer.held()[zero::Role::parameters] == 0, "parameters are lent");
    });
  }
}

TEST_CASE("only a frozen tensor can be whole, and all ranks say so") {
  CHECK(refusal([&] {
          zero::Self comm;
          std::vector<zero::Tensor> const tensors{{.name = "w", .shape = {3}, .whole = true}};
          zero::ShardedOptimizer const optimizer{comm, tensors};
        }) == "tensor 'w' is whole, which only a frozen tensor can be");
  auto const messages = contracts::endings(
      2,
      [](InProcess& ranks) {
        std::vector<zero::Tensor> tensors{{.name = "w", .shape = {3}},
                                          {.name = "f", .shape = {3}, .frozen = true}};
        tensors[1].whole = ranks.rank() == 1;
        contracts::Optimizer<PosGP, Fp32> const optimizer{ranks, tensors};
      },
      true);
  for (std::string const& each : messages) {
    CHECK(each.find("ranks disagree on tensor 1, 'f' [3], whole flag: 0 on rank 0; 1 on rank 1") !=
          std::string::npos);
  }
}

}  // namespace
}  // namespace frozen_test
