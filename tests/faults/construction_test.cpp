/// Ranks that do not agree are told about what; ranks that go on without one are told about whom.
#include "contracts/loop.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace construction_test {
namespace {

using zero::Error;
using zero::ErrorKind;
using zero::InProcess;
using Fp16 = zero::Mixed<zero::fp16>;

template <class... Policies>
using Optimizer = zero::ShardedOptimizer<InProcess, Policies...>;

using Base = Optimizer<zero::stage::PosG, Fp16>;

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

/// Runs a construction on every rank and returns each rank's message; empty if there was none.
template <class Construct>
std::vector<std::string> messages(int ranks, Construct const& construct) {
  std::vector<std::string> result(static_cast<std::size_t>(ranks));
  try {
    zero::run_ranks(ranks, [&](InProcess& comm) {
      try {
        construct(comm);
      } catch (Error const& error) {
        CHECK(error.kind() == ErrorKind::communication);
        CHECK(error.rank() == comm.rank());
        CHECK(error.operation() == "construction");
        result[static_cast<std::size_t>(comm.rank())] = error.message();
        throw;
      }
    });
  } catch (Error const&) {
  }
  return result;
}

/// Constructs `same` on all ranks but the last, and `other` there; every rank must hear of `field`
/// with both values and the ranks that have them.
template <class Same, class Other>
void check_field(std::string const& field,
                 std::string const& value,
                 std::string const& other_value,
                 Same const& same,
                 Other const& other) {
  for (int const ranks : {2, 4}) {
    auto const told = messages(ranks, [&](InProcess& comm) {
      if (comm.rank() == ranks - 1) {
        other(comm);
      } else {
        same(comm);
      }
    });
    std::string const them = ranks == 2 ? " on rank 0; " : " on rank 0 1 2; ";
    zero::Message const expected{
        "ranks disagree on ", field, ": ", value, them, other_value, " on rank ", ranks - 1};
    for (auto const& message : told) CHECK(message == expected.text());
  }
}

template <class O, class... Values>
auto constructs(std::vector<zero::Tensor> const& tensors, Values const&... values) {
  return [=](InProcess& comm) { O optimizer{comm, tensors, values...}; };
}

/// As above, for a value instead of a type.
template <class O, class Value>
void check_value(std::string const& field,
                 std::string const& value,
                 std::string const& other_value,
                 Value const& same,
                 Value const& other) {
  check_field(field,
              value,
              other_value,
              constructs<O>(toy::model(), same),
              constructs<O>(toy::model(), other));
}

TEST_CASE("ranks that agree construct, train and hear nothing") {
  for (auto const& message : messages(4, constructs<Base>(toy::model()))) CHECK(message == "");
}

TEST_CASE("a type that differs on one rank is named on all") {
  auto const base = constructs<Base>(toy::model());
  auto const model = toy::model();
  check_field("stage",
              "'Pos+g'",
              "'Pos+g+p'",
              base,
              constructs<Optimizer<zero::stage::PosGP, Fp16>>(model));
  check_field("precision",
              "'fp16'",
              "'fp32'",
              base,
              constructs<Optimizer<zero::stage::PosG, zero::Fp32>>(model));
  check_field("rule", "'AdamW'", "'SGD'", base, constructs<Optimizer<Fp16, zero::Sgd>>(model));
  check_field("accumulation",
              "'none'",
              "'full'",
              base,
              constructs<Optimizer<Fp16, zero::AccumulateFull>>(model));
  check_field("memory",
              "'owned'",
              "'borrowed'",
              base,
              constructs<Optimizer<Fp16, zero::Borrowed<>>>(model));
}

TEST_CASE("a value that differs on one rank is named on all, with both values") {
  check_value<Base>("bucket bytes", "4096", "4097", zero::Bucket{4096}, zero::Bucket{4097});
  check_value<Base>("prefetch depth", "2", "0", zero::Prefetch{2}, zero::Prefetch{0});
  auto const scale = [](zero::LossScaleOptions const& options) { return Fp16{options}; };
  check_value<Base>("initial loss scale", "65536", "1024", scale({}), scale({.initial = 1024.f}));
  check_value<Base>("loss scale growth", "2", "4", scale({}), scale({.growth = 4.f}));
  check_value<Base>(
      "loss scale growth interval", "2000", "7", scale({}), scale({.growth_interval = 7}));
  check_value<Base>("loss scale backoff", "0.5", "0.25", scale({}), scale({.backoff = 0.25f}));
  check_value<Base>("minimum loss scale", "1", "2", scale({}), scale({.minimum = 2.f}));
  check_value<Base>("loss scale patience", "10", "3", scale({}), scale({.patience = 3}));
}

template <class Rule>
using WithRule = Optimizer<zero::stage::Pos, zero::Fp32, Rule>;

TEST_CASE("every hyper-parameter of every rule is compared") {
  auto const check = [](auto const& rule, auto other, std::string const& field, auto change) {
    using Rule = std::remove_cvref_t<decltype(rule)>;
    change(other);
    REQUIRE(other != rule);
    auto const told = messages(2, [&](InProcess& comm) {
      WithRule<Rule> optimizer{comm, toy::model(), comm.rank() == 0 ? rule : other};
    });
    for (auto const& message : told) {
      CHECK_MESSAGE(message.starts_with("ranks disagree on rule." + field + ": "), message);
      CHECK_MESSAGE(contains(message, " on rank 0; "), message);
      CHECK_MESSAGE(message.ends_with(" on rank 1"), message);
    }
  };
  auto const adam_like = [&](auto const& rule) {
    check(rule, rule, "lr", [](auto& r) { r.lr = 0.5f; });
    check(rule, rule, "beta1", [](auto& r) { r.beta1 = 0.5; });
    check(rule, rule, "beta2", [](auto& r) { r.beta2 = 0.5; });
    check(rule, rule, "eps", [](auto& r) { r.eps = 0.5f; });
    check(rule, rule, "weight_decay", [](auto& r) { r.weight_decay = 0.5f; });
  };
  adam_like(zero::AdamW{});
  adam_like(zero::Adam{});
  zero::Sgd const sgd{};
  check(sgd, sgd, "lr", [](auto& r) { r.lr = 0.5f; });
  check(sgd, sgd, "momentum", [](auto& r) { r.momentum = 0.5f; });
  check(sgd, sgd, "weight_decay", [](auto& r) { r.weight_decay = 0.5f; });
  check(sgd, sgd, "nesterov", [](auto& r) { r.nesterov = true; });
  zero::PlainSgd const plain{};
  check(plain, plain, "lr", [](auto& r) { r.lr = 0.5f; });
  check(plain, plain, "weight_decay", [](auto& r) { r.weight_decay = 0.5f; });
  zero::Lion const lion{};
  check(lion, lion, "lr", [](auto& r) { r.lr = 0.5f; });
  check(lion, lion, "beta1", [](auto& r) { r.beta1 = 0.5; });
  check(lion, lion, "beta2", [](auto& r) { r.beta2 = 0.5; });
  check(lion, lion, "weight_decay", [](auto& r) { r.weight_decay = 0.5f; });
  zero::Adagrad const adagrad{};
  check(adagrad, adagrad, "lr", [](auto& r) { r.lr = 0.5f; });
  check(adagrad, adagrad, "eps", [](auto& r) { r.eps = 0.5f; });
  check(adagrad, adagrad, "weight_decay", [](auto& r) { r.weight_decay = 0.5f; });
}

TEST_CASE("a tensor that differs on one rank is named on all, with its number and what differs") {
  std::vector<zero::Tensor> const model = {
      {.name = "a", .shape = {4, 6}},
      {.name = "b", .shape = {10}},
      {.name = "c", .shape = {4, 6}, .unit = 1},
      {.name = "d", .shape = {4, 6}, .unit = 2, .tied_to = "a"},
      {.name = "e", .shape = {24}, .unit = 2, .frozen = true},
      {.name = "f", .shape = {24}, .unit = 2},
  };
  // Number of the first tensor that differs, what of it, how it is elsewhere and on rank 1.
  auto const check = [&](std::size_t t,
                         std::string const& field,
                         std::string const& value,
                         std::string const& odd,
                         auto change) {
    std::vector<zero::Tensor> other = model;
    change(other);
    for (int const ranks : {2, 4}) {
      auto const told = messages(ranks, [&](InProcess& comm) {
        Base optimizer{comm, comm.rank() == 1 ? other : model};
      });
      for (std::size_t rank = 0; rank < told.size(); ++rank) {
        std::string const here = rank == 1 ? other[t].name : model[t].name;
        std::string const them = ranks == 2 ? " on rank 0; " : " on rank 0 2 3; ";
        CHECK(told[rank] == "ranks disagree on tensor " + std::to_string(t) + ", here '" + here +
                                "', " + field + ": " + value + them + odd + " on rank 1");
      }
    }
  };
  check(2, "name", "'c'", "'C'", [](auto& tensors) { tensors[2].name = "C"; });
  check(2, "shape", "'[4, 6]'", "'[6, 4]'", [](auto& tensors) { tensors[2].shape = {6, 4}; });
  check(2, "shape", "'[4, 6]'", "'[24]'", [](auto& tensors) { tensors[2].shape = {24}; });
  check(2, "unit", "1", "2", [](auto& tensors) { tensors[2].unit = 2; });
  check(1, "weight decay", "1", "0", [](auto& tensors) { tensors[1].weight_decay = 0.f; });
  check(1, "learning rate", "1", "0.5", [](auto& tensors) { tensors[1].learning_rate = 0.5f; });
  check(3, "tie", "'a'", "'c'", [](auto& tensors) { tensors[3].tied_to = "c"; });
  check(4, "frozen flag", "1", "0", [](auto& tensors) {
    std::swap(tensors[4].frozen, tensors[5].frozen);
  });
}

/// Compares a record of one field on all ranks.
template <class Value>
void compare_field(InProcess& comm, std::string_view field, Value value) {
  zero::detail::Arena<zero::HostAllocator, zero::space::Host> arena({}, {});
  zero::detail::Fingerprint print;
  print.add(field, value);
  zero::detail::Groups<InProcess> const groups{&comm, &comm};
  zero::detail::require_same(groups, arena, print, {});
}

// These two are the same on all ranks of one program.
TEST_CASE("library version and world size are fields like any other") {
  auto const told = messages(3, [](InProcess& comm) {
    compare_field(comm, "library version", std::int64_t{comm.rank() == 1 ? 2000 : 1000});
  });
  for (auto const& message : told) {
    CHECK(message == "ranks disagree on library version: 1000 on rank 0 2; 2000 on rank 1");
  }
}

TEST_CASE("names that differ beyond their first 16 bytes differ") {
  constexpr std::string_view names[] = {
      "a rule of 16 byt", "a rule of 16 bytes", "a rule of 16 bites"};
  auto const told = messages(3, [&](InProcess& comm) {
    compare_field(comm, "rule", names[static_cast<std::size_t>(comm.rank())]);
  });
  for (auto const& message : told) {
    INFO(message);
    CHECK(message.starts_with("ranks disagree on rule: 'a rule of 16 byt' on rank 0; "));
    CHECK(contains(message, "; 'a rule of 16 byt...' (hash "));
    CHECK(contains(message, ") on rank 1; "));
    CHECK(contains(message, "'a rule of 16 bit...' (hash "));
    CHECK(message.ends_with(") on rank 2"));
  }
  auto const same = messages(2, [](InProcess& comm) {
    compare_field(comm, "rule", std::string_view("a rule with a name of many bytes"));
  });
  for (auto const& message : same) CHECK(message == "");
}

TEST_CASE("numbers of tensors and of trained elements are compared before the model is") {
  auto const model = toy::model();
  auto shorter = model;
  shorter.pop_back();
  check_field("number of tensors", "11", "10", constructs<Base>(model), constructs<Base>(shorter));
  auto frozen = model;
  frozen[6].frozen = true;
  auto const trained = [](std::vector<zero::Tensor> const& tensors) {
    return std::to_string(zero::Placement(tensors).trainable_elements());
  };
  check_field("trained elements",
              trained(model),
              trained(frozen),
              constructs<Base>(model),
              constructs<Base>(frozen));
  auto untied = model;
  untied.back().tied_to = "";
  check_field("trained elements",
              trained(model),
              trained(untied),
              constructs<Base>(model),
              constructs<Base>(untied));
}

TEST_CASE("three opinions are listed with the ranks that hold them") {
  auto const told = messages(4, [](InProcess& comm) {
    constexpr std::size_t bytes[] = {100, 200, 100, 300};
    Base optimizer{comm, toy::model(), zero::Bucket{bytes[comm.rank()]}};
  });
  for (auto const& message : told) {
    CHECK(message ==
          "ranks disagree on bucket bytes: 100 on rank 0 2; 200 on rank 1; 300 on rank 3");
  }
}

TEST_CASE("a rank whose model is nonsense ends construction on all ranks") {
  std::vector<std::string> told(3);
  auto const body = [&](InProcess& comm) {
    auto model = toy::model();
    if (comm.rank() == 1) model[3].name = "wte";
    try {
      Base optimizer{comm, model};
    } catch (Error const& error) {
      told[static_cast<std::size_t>(comm.rank())] = error.message();
      throw;
    }
  };
  CHECK_THROWS_AS(zero::run_ranks(3, body), Error);
  CHECK(told[1] == "tensor 'wte' is described twice");
  for (std::size_t const rank : {0u, 2u}) {
    CHECK_MESSAGE(contains(told[rank], "rank 1 failed"), told[rank]);
    CHECK_MESSAGE(contains(told[rank], told[1]), told[rank]);
  }
}

/// What goes wrong with one rank, and when.
struct Fault {
  int ranks = 0;
  int culprit = 0;
  int at = 0;          ///< number of the place in user code
  bool throws = true;  ///< or stops training
};

struct Stopped {};

/// Trains three steps; the culprit throws or leaves in its `at`-th piece of user code.
template <class O>
void train(InProcess& comm, Fault const& fault) {
  int places = 0;
  auto const user_code = [&] {
    if (comm.rank() != fault.culprit || places++ != fault.at) return;
    if (fault.throws) throw std::runtime_error("the disk is on fire");
    throw Stopped{};
  };
  O optimizer{comm, toy::model(), zero::Bucket{6144}};
  contracts::load(optimizer);
  for (long step = 0; step < 3; ++step) {
    for (int const unit : optimizer.units()) {
      auto const weights = optimizer.parameters(unit);
      user_code();
    }
    for (int unit = 6; unit >= 0; --unit) {
      auto gradients = contracts::unit_backward(optimizer, unit, {}, step, comm.rank());
      user_code();
      optimizer.reduce(std::move(gradients));
    }
    optimizer.reduce_all();
    user_code();
    optimizer.step({.max_norm = 1., .overlap_publish = true});
  }
  optimizer.settle();
}
constexpr int places_in_user_code = 3 * (7 + 7 + 1);

/// What a rank that was told says, or what is wrong with it.
std::string verdict(Fault const& fault, int rank, Error const* error) {
  if (rank == fault.culprit) return "";
  if (error == nullptr) return "was told nothing";
  std::string const what = error->what();
  if (error->kind() != ErrorKind::communication) return "was told of another kind: " + what;
  if (!contains(what, "rank " + std::to_string(fault.culprit))) return "not told who: " + what;
  if (error->operation().empty() || !contains(what, error->operation())) {
    return "not told the operation: " + what;
  }
  if (!contains(what, "bucket")) return "not told whether in a bucket: " + what;
  if (fault.throws && !contains(what, "the disk is on fire")) return "not told why: " + what;
  return "";
}

template <class O>
void check_fault(unsigned seed) {
  std::mt19937 random(seed);
  Fault fault;
  fault.ranks = 2 + static_cast<int>(random() % 4);
  fault.culprit = static_cast<int>(random() % static_cast<unsigned>(fault.ranks));
  fault.at = static_cast<int>(random() % places_in_user_code);
  fault.throws = random() % 2 == 0;
  std::vector<std::string> verdicts(static_cast<std::size_t>(fault.ranks));
  bool rethrown = false;
  try {
    zero::run_ranks(fault.ranks, [&](InProcess& comm) {
      std::string& mine = verdicts[static_cast<std::size_t>(comm.rank())];
      mine = "did not end";
      try {
        train<O>(comm, fault);
        mine = verdict(fault, comm.rank(), nullptr);
      } catch (Stopped const&) {
        mine = "";
      } catch (Error const& error) {
        mine = verdict(fault, comm.rank(), &error);
        throw;
      } catch (std::runtime_error const&) {
        mine = "";
        throw;
      }
    });
  } catch (std::runtime_error const& error) {
    rethrown = std::string(error.what()) == "the disk is on fire";
  } catch (Error const&) {
  }
  INFO("seed " << seed << ", stage " << O::Stage::name << ", ranks " << fault.ranks << ", culprit "
               << fault.culprit << ", at " << fault.at << ", throws " << fault.throws);
  for (auto const& text : verdicts) CHECK(text == "");
  CHECK(rethrown == fault.throws);
}

TEST_CASE("a rank that throws in user code, or stops early, is named to all others: 200 runs") {
  for (unsigned seed = 0; seed < 200; seed += 4) {
    check_fault<Optimizer<zero::stage::Replicated, zero::Fp32>>(seed);
    check_fault<Optimizer<zero::stage::Pos, zero::Fp32>>(seed + 1);
    check_fault<Optimizer<zero::stage::PosG, zero::Fp32>>(seed + 2);
    check_fault<Optimizer<zero::stage::PosGP, zero::Fp32>>(seed + 3);
  }
}

}  // namespace
}  // namespace construction_test
