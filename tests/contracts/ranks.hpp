/// @file
/// Ranks that are asked something, and trainers in memory that the host can reach, or cannot.
#pragma once

#include "contracts/loop.hpp"
#include "support/complaints.hpp"
#include "support/test.hpp"
#include "trapped_space.hpp"
#include "zero/zero.hpp"

namespace contracts {

/// Runs `body(comm, expect)` on so many ranks; `expect(holds, what)` collects what did not hold.
template <class Body>
void on_ranks(int ranks, Body const& body) {
  Complaints complaints;
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    body(comm, [&](bool holds, std::string const& what) {
      complaints.require(holds, comm.rank(), what);
    });
  });
  CHECK(complaints.text() == "");
}

/// What the work of each rank ended with, in words; nothing where it did not fail.
/// @param together  all are refused alike, and nobody has to end the group
template <class Work>
std::vector<std::string> endings(int ranks, Work const& work, bool together = false) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  auto const body = [&](zero::InProcess& comm) {
    auto& own = said[static_cast<std::size_t>(comm.rank())];
    try {
      work(comm);
    } catch (zero::Error const& error) {
      own = error.message();
      if (!together) throw;
    } catch (std::exception const& error) {
      own = error.what();
      throw;
    }
  };
  try {
    zero::run_ranks(ranks, body);
  } catch (std::exception const& error) {
    CHECK_MESSAGE(!together, error.what());
  }
  return said;
}

/// One rank of its own.
template <class O>
struct Alone {
  std::vector<zero::InProcess> handles = zero::InProcess::group(1);
  O optimizer;

  template <class... Values>
  explicit Alone(std::vector<zero::Tensor> tensors, Values const&... values)
      : optimizer(handles[0], std::move(tensors), values...) {
    load(optimizer);
  }
};

/// Bits of what a rank owns.
template <class Optimizer>
[[nodiscard]] std::vector<std::byte> owned_bits(Optimizer& optimizer) {
  std::vector<std::byte> bits;
  optimizer.visit_owned(
      [&](zero::Tensor const&, std::size_t, auto const& master, auto const& states) {
        append(bits, master);
        for (auto const& state : states) append(bits, state);
      });
  return bits;
}

/// Bits of the whole model.
template <class Optimizer>
[[nodiscard]] std::vector<std::byte> model_bits(Optimizer& optimizer) {
  std::vector<std::byte> bits;
  auto const all = optimizer.full_parameters();
  for (std::size_t t = 0; t < all.size(); ++t) append(bits, all[t]);
  return bits;
}

/// A rank's optimizer over host memory.
template <class Stage, class Precision>
struct OnHost {
  explicit OnHost(zero::InProcess& comm,
                  std::vector<zero::Tensor> const& tensors = even_model(),
                  Precision precision = {},
                  zero::Bucket bucket = {})
      : optimizer{comm, tensors, precision, bucket} {
    load(optimizer);
  }
  [[nodiscard]] zero::space::Host space() const noexcept { return {}; }
  template <class T>
  void fill(std::span<T> values, float value) {
    std::fill(values.begin(), values.end(), T(value));
  }
  Optimizer<Stage, Precision> optimizer;
};

template <class Stage, class Precision>
using DeviceOptimizer = zero::
    ShardedOptimizer<trapped::Communicator, Stage, Precision, zero::Owned<trapped::Allocator>>;

/// The same over memory that the host cannot reach.
template <class Stage, class Precision>
struct OnDevice {
  explicit OnDevice(zero::InProcess& inner,
                    std::vector<zero::Tensor> const& tensors = even_model(),
                    Precision precision = {},
                    zero::Bucket bucket = {},
                    trapped::Collectives when = trapped::Collectives::late)
      : comm(inner, device, when),
        optimizer{comm, tensors, precision, zero::Owned{trapped::Allocator{&device}}, bucket} {
    load(optimizer);
  }
  [[nodiscard]] trapped::Space space() const { return comm.space(); }
  template <class T>
  void fill(std::span<T> values, float value) {
    std::vector<T> const host(values.size(), T(value));
    if (!host.empty()) space().upload(values.data(), host.data(), values.size_bytes());
  }
  trapped::Device device{};
  trapped::Communicator comm;
  DeviceOptimizer<Stage, Precision> optimizer;
};

/// A backward pass with one value for all gradients.
template <class Trainer>
void constant_pass(Trainer& trainer, float value = 0.5f) {
  for (int const unit : trainer.optimizer.units_backward()) {
    auto gradients = trainer.optimizer.gradients(unit);
    for (std::size_t i = 0; i < gradients.size(); ++i) trainer.fill(gradients[i], value);
    trainer.optimizer.reduce(std::move(gradients));
  }
}

}  // namespace contracts
