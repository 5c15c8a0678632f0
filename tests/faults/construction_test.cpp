/// Ranks that do not agree are told about what.
#include "faults/fault_run.hpp"
#include "support/test.hpp"
#include "support/toy_model.hpp"
#include "zero/optimizer/setup/rank_agreement.hpp"
#include "zero/zero.hpp"

namespace construction_test {
namespace {

using faults::contains;
using faults::Outcome;
using faults::Told;
using zero::ErrorKind;
using zero::InProcess;
template <class... Policies>
using Optimizer = zero::ShardedOptimizer<InProcess, Policies...>;
using Fp16 = zero::Mixed<zero::fp16>;
using Base = Optimizer<zero::stage::PosG, Fp16>;
using Tensors = std::vector<zero::Tensor>;

using Construct = std::function<void(InProcess&)>;

/// Runs a construction on every rank and returns each rank's message; empty if there was none.
std::vector<std::string> messages(int ranks, Construct const& construct) {
  std::vector<std::string> result;
  int rank = 0;
  for (Outcome const& one : faults::hear(InProcess::group(ranks), construct).ranks) {
    result.push_back(one.message);
    if (one.failed) {
      CHECK(one.kind == ErrorKind::communication);
      CHECK(one.rank == rank);
      CHECK(one.operation == "construction");
    }
    ++rank;
  }
  return result;
}

template <class O, class... Values>
Construct constructs(Tensors const& tensors, Values const&... values) {
  return [=](InProcess& comm) { O optimizer{comm, tensors, values...}; };
}

TEST_CASE("ranks that agree construct, train and hear nothing") {
  for (auto const& message : messages(4, constructs<Base>(toy::model()))) CHECK(message == "");
}

TEST_CASE("a type, value or number that differs on one rank is named on all, with both values") {
  auto const model = toy::model();
  auto const scaled = [&](zero::LossScaleOptions const& options) {
    return constructs<Base>(model, Fp16{options});
  };
  struct {
    std::string field, value, odd;
    Construct other;
  } const rows[] = {
      {"stage", "'Pos+g'", "'Pos+g+p'", constructs<Optimizer<zero::stage::PosGP, Fp16>>(model)},
      {"precision",
       "'fp16'",
       "'fp32'",
       constructs<Optimizer<zero::stage::PosG, zero::Fp32>>(model)},
      {"rule", "'AdamW'", "'SGD'", constructs<Optimizer<Fp16, zero::Sgd>>(model)},
      {"accumulation",
       "'none'",
       "'full'",
       constructs<Optimizer<Fp16, zero::AccumulateFull>>(model)},
      {"memory", "'owned'", "'borrowed'", constructs<Optimizer<Fp16, zero::Borrowed<>>>(model)},
      {"memory",
       "'owned'",
       "'in place'",
       constructs<Optimizer<Fp16, zero::BorrowedInPlace<>>>(model)},
      {"bucket bytes", "26214400", "4097", constructs<Base>(model, zero::Bucket{4097})},
      {"prefetch depth", "1", "0", constructs<Base>(model, zero::Prefetch{0})},
      {"initial loss scale", "65536", "1024", scaled({.initial = 1024.f})},
      {"loss scale growth", "2", "4", scaled({.growth = 4.f})},
      {"loss scale growth interval", "2000", "7", scaled({.growth_interval = 7})},
      {"loss scale backoff", "0.5", "0.25", scaled({.backoff = 0.25f})},
      {"minimum loss scale", "1", "2", scaled({.minimum = 2.f})},
      {"loss scale patience", "10", "3", scaled({.patience = 3})},
  };
  auto const base = constructs<Base>(model);
  for (auto const& row : rows) {
    for (int const ranks : {2, 4}) {
      std::string const them = ranks == 2 ? " on rank 0; " : " on rank 0 1 2; ";
      std::string const expected = "ranks disagree on " + row.field + ": " + row.value + them +
                                   row.odd + " on rank " + std::to_string(ranks - 1);
      auto const told = messages(
          ranks, [&](InProcess& comm) { (comm.rank() == ranks - 1 ? row.other : base)(comm); });
      for (auto const& message : told) CHECK(message == expected);
    }
  }
}

/// A hyper-parameter, and how it is changed.
template <class Change>
struct Field {
  char const* name;
  Change change;
};
template <class Change>
Field(char const*, Change) -> Field<Change>;

template <class Rule, class... Changes>
void check_rule(Rule const& rule, Field<Changes> const&... fields) {
  auto const check = [&](auto const& field) {
    Rule other = rule;
    field.change(other);
    REQUIRE(other != rule);
    auto const told = messages(2, [&](InProcess& comm) {
      Optimizer<Fp16, Rule> optimizer{comm, toy::model(), comm.rank() == 0 ? rule : other};
    });
    for (auto const& message : told) {
      CHECK_MESSAGE(message.starts_with(std::string("ranks disagree on rule.") + field.name + ": "),
                    message);
      CHECK_MESSAGE(contains(message, " on rank 0; "), message);
      CHECK_MESSAGE(message.ends_with(" on rank 1"), message);
    }
  };
  (check(fields), ...);
}

TEST_CASE("every hyper-parameter of every rule is compared") {
  Field const lr{"lr", [](auto& r) { r.lr = 0.5f; }};
  Field const beta1{"beta1", [](auto& r) { r.beta1 = 0.5; }};
  Field const beta2{"beta2", [](auto& r) { r.beta2 = 0.5; }};
  Field const eps{"eps", [](auto& r) { r.eps = 0.5f; }};
  Field const decay{"weight_decay", [](auto& r) { r.weight_decay = 0.5f; }};
  Field const momentum{"momentum", [](auto& r) { r.momentum = 0.5f; }};
  Field const nesterov{"nesterov", [](auto& r) { r.nesterov = true; }};
  check_rule(zero::AdamW{}, lr, beta1, beta2, eps, decay);
  check_rule(zero::Adam{}, lr, beta1, beta2, eps, decay);
  check_rule(zero::Sgd{}, lr, momentum, decay, nesterov);
  check_rule(zero::PlainSgd{}, lr, decay);
  check_rule(zero::Lion{}, lr, beta1, beta2, decay);
  check_rule(zero::Adagrad{}, lr, eps, decay);
}

TEST_CASE("a tensor that differs on one rank is named on all, with its number and what differs") {
  std::string const long_name = "transformer.layers.17.attention.output.weight";
  Tensors const model = {
      {.name = "a", .shape = {4, 6}},
      {.name = "b", .shape = {10}},
      {.name = "c", .shape = {4, 6}, .unit = 1},
      {.name = "d", .shape = {4, 6}, .unit = 2, .tied_to = "a"},
      {.name = "e", .shape = {24}, .unit = 2, .frozen = true},
      {.name = "f", .shape = {24}, .unit = 2},
      {.name = long_name, .shape = {2, 3}, .unit = 3},
  };
  using Change = void (*)(Tensors&);
  struct {
    std::string tensor, value, odd;
    Change change;
  } const rows[] = {
      {"2", "'c' [4, 6]", "'C' [4, 6]", [](auto& t) { t[2].name = "C"; }},
      {"2",
       "'c' [4, 6]",
       "'c' [6, 4]",
       [](auto& t) {
         t[2].shape = {6, 4};
       }},
      {"2", "'c' [4, 6]", "'c' [24]", [](auto& t) { t[2].shape = {24}; }},
      {"1", "'b' [10]", "'b' [12]", [](auto& t) { t[1].shape = {12}; }},
      {"6", "'" + long_name + "' [2, 3]", "none", [](auto& t) { t.pop_back(); }},
      {"5", "'f' [24]", "'" + long_name + "' [2, 3]", [](auto& t) { t.erase(t.begin() + 5); }},
      {"0", "'a' [4, 6]", "none", [](auto& t) { t.clear(); }},
      {"6",
       "'" + long_name + "' [2, 3]",
       "'" + long_name + "s' [2, 3]",
       [](auto& t) { t[6].name += 's'; }},
      {"2, 'c' [4, 6], unit", "1", "2", [](auto& t) { t[2].unit = 2; }},
      {"1, 'b' [10], weight decay", "1", "0", [](auto& t) { t[1].weight_decay = 0.f; }},
      {"1, 'b' [10], learning rate", "1", "0.5", [](auto& t) { t[1].learning_rate = 0.5f; }},
      {"3, 'd' [4, 6], tie", "'a'", "'c'", [](auto& t) { t[3].tied_to = "c"; }},
      {"3, 'd' [4, 6], tie", "'a'", "''", [](auto& t) { t[3].tied_to = ""; }},
      {"5, 'f' [24], frozen flag", "0", "1", [](auto& t) { t[5].frozen = true; }},
  };
  for (auto const& row : rows) {
    Tensors other = model;
    row.change(other);
    for (int const ranks : {2, 4}) {
      auto const told = messages(ranks, [&](InProcess& comm) {
        Base optimizer{comm, comm.rank() == 1 ? other : model};
      });
      std::string const them = ranks == 2 ? " on rank 0; " : " on rank 0 2 3; ";
      for (std::string const& message : told) {
        CHECK(message == "ranks disagree on tensor " + row.tensor + ": " + row.value + them +
                             row.odd + " on rank 1");
      }
    }
  }
}

/// Compares a record of one field on all ranks.
template <class Value>
void compare_field(InProcess& comm, std::string_view field, Value value) {
  zero::HostAllocator allocator;
  zero::space::Host const space;
  zero::detail::Arena arena(zero::detail::ref(allocator),
                            {zero::detail::space_calls<zero::space::Host>, &space});
  zero::detail::Fingerprint record;
  record.add(field, value);
  zero::detail::CommunicatorRef const ranks = zero::detail::ref(comm);
  zero::detail::RankGroups groups({.comm = ranks, .world = ranks});
  zero::detail::require_same(groups, arena, record, {});
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
  Told const told = faults::hear(InProcess::group(3), [](InProcess& comm) {
    auto model = toy::model();
    if (comm.rank() == 1) model[3].name = "wte";
    Base optimizer{comm, model};
  });
  CHECK(told.ranks[1].message == "tensor 'wte' is described twice");
  for (std::size_t const rank : {0u, 2u}) {
    std::string const& message = told.ranks[rank].message;
    CHECK_MESSAGE(contains(message, "rank 1 failed"), message);
    CHECK_MESSAGE(contains(message, told.ranks[1].message), message);
  }
}

}  // namespace
}  // namespace construction_test
