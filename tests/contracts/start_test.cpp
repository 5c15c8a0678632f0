/// Ranks that start from different values hear of it before anything is updated, or take one
/// rank's: over which group, in which memory, and what that sends. `differential` trains on from
/// it.
#include "contracts/ranks.hpp"
#include "contracts/recording.hpp"
#include "support/give_zeros.hpp"
#include "support/lent_memory.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace start_test {
namespace {

using zero::InProcess;
constexpr int ranks = 3;
using zero::Fp32;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;
using Bf16 = zero::Mixed<zero::bf16>;
template <class... Policies>
using Optimizer = contracts::Optimizer<Policies...>;

std::vector<zero::Tensor> model() {
  return {{.name = "w", .shape = {7000}},
          {.name = "b", .shape = {9}, .unit = 1},
          {.name = "again", .shape = {9}, .unit = 2, .tied_to = "b"},
          {.name = "none", .shape = {0}, .unit = 2},
          {.name = "cold", .shape = {60}, .unit = 2, .frozen = true}};
}

template <class Work>
std::vector<std::string> on_ranks(Work const& work) {
  return contracts::endings(ranks, work, true);
}

std::vector<std::string> const nothing(ranks);
/// @param element  where all ranks hold all of it, and so find it
/// @param way      how to broadcast under the stage: from where parameters are, or from values
std::vector<std::string> everywhere(std::string const& tensor,
                                    std::string const& pairs,
                                    int element = -1,
                                    std::string const& way = "()") {
  std::string const where = element < 0 ? "" : ", first in element " + std::to_string(element);
  return std::vector<std::string>(ranks,
                                  "ranks " + pairs + " start from different values of tensor '" +
                                      tensor + "'" + where + "; broadcast_parameters" + way +
                                      " gives all of them those of one");
}

/// Loads ones, but something else into one element on one rank.
template <class O>
void load(InProcess& comm, std::string const& tensor, std::size_t element) {
  O optimizer{comm, model(), zero::Bucket{4096}};
  optimizer.load_parameters([&](zero::Tensor const& asked, std::size_t first, auto values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      bool const odd = comm.rank() == 1 && asked.name == tensor && first + i == element;
      values[i] = odd ? 1.0001f : 1.f;
    }
  });
  give_zeros(optimizer).step();
  optimizer.check_parameters();
}

TEST_CASE_TEMPLATE("ranks that load different values are told of the tensor",
                   O,
                   Optimizer<Replicated, Fp32>,
                   Optimizer<Pos, Bf16>,
                   Optimizer<PosG, Fp32>,
                   Optimizer<PosGP, Bf16>) {
  // Of each bucket of 1536 elements rank 1 is asked for its share, and for that of rank 2: for
  // nothing of a small tensor, where it is partitioned.
  struct {
    char const* tensor;
    std::size_t element;
    char const* pairs;
  } const rows[]{{"-", 0, ""},
                 {"cold", 59, ""},
                 {"w", 0, ""},
                 {"w", 600, "0 and 1"},
                 {"w", 1100, "1 and 2"},
                 {"w", 1600, ""},
                 {"w", 2100, "0 and 1"}};
  for (auto const& row : rows) {
    bool const all = !O::sharding.parameters && *row.tensor != '-';
    std::string const pairs = all ? "0 and 1, 1 and 2" : row.pairs;
    CHECK(on_ranks([&](InProcess& comm) { load<O>(comm, row.tensor, row.element); }) ==
          (pairs.empty()
               ? nothing
               : everywhere(row.tensor, pairs, -1, O::sharding.parameters ? "(values)" : "()")));
  }
}

/// Ones to lend, but something else in one element on one rank.
template <class Parameter>
std::vector<Parameter> ones(int rank, std::size_t odd) {
  std::vector<Parameter> memory(7069, Parameter(1.f));
  if (rank == 2 && odd < memory.size()) memory[odd] = Parameter(1.5f);
  return memory;
}

TEST_CASE_TEMPLATE("ranks that lend different values are told of the tensor, and keep them",
                   O,
                   Optimizer<Replicated, Fp32, zero::Borrowed<>>,
                   Optimizer<Replicated, Bf16, zero::Borrowed<>>,
                   Optimizer<Pos, Fp32, zero::Borrowed<>>,
                   Optimizer<PosG, Bf16, zero::Borrowed<>>) {
  using Parameter = typename O::Parameter;
  for (auto const& [element, tensor] : {std::pair{6999, "w"}, {7000, "b"}, {7068, "cold"}}) {
    auto const messages = on_ranks([odd = element](InProcess& comm) {
      auto memory = ones<Parameter>(comm.rank(), static_cast<std::size_t>(odd));
      auto const before = memory;
      std::vector<Parameter> gradients(memory.size());
      O optimizer{comm, model()};
      optimizer.bind(std::span(memory), std::span(gradients));
      optimizer.adopt_parameters();
      try {
        optimizer.step();
      } catch (zero::Error const& error) {
        CHECK(error.kind() == zero::ErrorKind::communication);
        CHECK(optimizer.steps() == 0);
        CHECK(std::memcmp(memory.data(), before.data(), memory.size() * sizeof(Parameter)) == 0);
        throw;
      }
    });
    int const of_tensor = element - (*tensor == 'w' ? 0 : *tensor == 'b' ? 7000 : 7009);
    CHECK(messages == everywhere(tensor, "1 and 2, 2 and 0", of_tensor));
  }
}

TEST_CASE("what a trainer writes, and masters that every rank has, are compared as well") {
  CHECK(on_ranks([](InProcess& comm) {
          Optimizer<Pos, Fp32> optimizer{comm, model()};
          optimizer.parameter(1)[8] = comm.rank() == 0 ? 1.f : 2.f;
          optimizer.adopt_parameters();
          optimizer.step();
        }) == everywhere("b", "0 and 1, 2 and 0", 8));
  CHECK(on_ranks([](InProcess& comm) {
          Optimizer<Replicated, Bf16> optimizer{comm, model()};
          optimizer.adopt_parameters();
          // Parameters round to the same.
          float const value = comm.rank() == 1 ? 1.0000001f : 1.f;
          optimizer.fill_owned([&](auto const&, std::size_t, auto masters, auto const& states) {
            std::fill(masters.begin(), masters.end(), value);
            for (auto const& state : states) std::fill(state.begin(), state.end(), 0.f);
          });
          optimizer.step();
        }) == everywhere("w", "0 and 1, 1 and 2"));
}

TEST_CASE("of two ranks that start from different values both are named, once") {
  auto const said = [](auto const& work) { return contracts::endings(2, work, true); };
  auto const once = [](std::string const& where, std::string const& way) {
    return std::vector<std::string>(2,
                                    "ranks 0 and 1 start from different values of tensor 'w'" +
                                        where + "; broadcast_parameters" + way +
                                        " gives all of them those of one");
  };
  CHECK(said([](InProcess& comm) {
          Optimizer<Pos, Fp32> optimizer{comm, model()};
          optimizer.parameter(0)[0] = static_cast<float>(comm.rank());
          optimizer.adopt_parameters();
          optimizer.step();
        }) == once(", first in element 0", "()"));
  CHECK(said([](InProcess& comm) {
          Optimizer<PosGP, Fp32> optimizer{comm, model()};
          optimizer.load_parameters([&](auto const&, std::size_t, std::span<float> out) {
            std::fill(out.begin(), out.end(), static_cast<float>(comm.rank()));
          });
        }) == once("", "(values)"));
}

TEST_CASE("a first step compares once; a later binding and later steps do not, a call does") {
  auto const messages = on_ranks([](InProcess& inner) {
    contracts::Watched watched{inner};
    auto& comm = watched.counted;
    auto memory = ones<float>(comm.rank(), 9999);
    std::vector<float> gradients(memory.size());
    contracts::WatchedOptimizer<PosG, Fp32, zero::Borrowed<>> optimizer{watched.comm, model()};
    std::vector<std::uint64_t> elements;
    for (int step = 0; step < 3; ++step) {
      optimizer.bind(std::span(memory), std::span(gradients));
      auto const before = comm.counts().control_total().elements;
      optimizer.step();
      elements.push_back(comm.counts().control_total().elements - before);
    }
    CHECK(elements[0] > elements[1]);
    CHECK(elements[1] == elements[2]);
    if (comm.rank() == 2) memory[7005] += 1.f;
    optimizer.check_parameters();
  });
  CHECK(messages == everywhere("b", "1 and 2, 2 and 0", 5));
}

TEST_CASE("over memory that the host cannot reach hashes are compared, and no value downloaded") {
  for (bool const differ : {false, true}) {
    auto const messages = on_ranks([&](InProcess& inner) {
      contracts::OnDevice<Pos, Bf16> rank(inner, model());
      if (differ && inner.rank() == 1) rank.fill(rank.optimizer.parameter(0).subspan(6000, 1), 3.f);
      rank.optimizer.adopt_parameters();
      auto const before = rank.device.downloaded_bytes;
      auto const message =
          refusal([&] { rank.optimizer.enqueue_step(); }, zero::ErrorKind::communication);
      // Where they differ, one hash and a few words for each bit of the element's place.
      CHECK(rank.device.downloaded_bytes - before <= (differ ? 1600 : 5 * 100));
      CHECK(message == (differ ? everywhere("w", "0 and 1, 1 and 2", 6000)[0] : ""));
    });
    CHECK(messages == nothing);
  }
}

TEST_CASE_TEMPLATE(
    "a step from values that nobody set is refused on every rank, unless that is asked for",
    O,
    Optimizer<Replicated, Fp32>,
    Optimizer<Pos, Bf16>,
    Optimizer<PosG, Fp32>,
    Optimizer<PosGP, Bf16>) {
  std::string const how =
      ": before the first step call load_parameters(values), broadcast_parameters(values) or "
      "fill_owned(fill), which leaves out frozen tensors; or adopt_parameters(), to start from "
      "what "
      "lies there, zeros where nothing was written";
  auto const fill = [](auto const&, std::size_t, auto masters, auto const& states) {
    std::fill(masters.begin(), masters.end(), 1.f);
    for (auto const& state : states) std::fill(state.begin(), state.end(), 0.f);
  };
  for (int const size : {1, 3}) {
    auto const unset = [&](int on) {
      return "parameters have no values on " + std::to_string(on) + " of " + std::to_string(size) +
             (size == 1 ? " rank" : " ranks") + how;
    };
    contracts::on_ranks(size, [&](InProcess& comm, auto const& that) {
      auto const expect = [&](std::string const& message, std::string const& expected) {
        that(message == expected, message);
      };
      O optimizer{comm, model()};
      // What they start from is all that matters.
      auto const step = [&] { optimizer.step({.unsaid = zero::Unsaid::zeros}); };
      expect(refusal(step), unset(size));
      expect(refusal([&] { optimizer.check_parameters(); }), unset(size));
      auto const tried = optimizer.try_step();
      expect(tried ? "" : tried.error()->message(), unset(size));
      // Frozen tensors have no values yet.
      optimizer.fill_owned(fill);
      expect(refusal(step), unset(size));
      // The others know nothing of one rank's call.
      if (comm.rank() == 0) optimizer.adopt_parameters();
      expect(refusal(step), size == 1 ? "" : unset(size - 1));
      if (comm.rank() != 0) optimizer.adopt_parameters();
      expect(refusal(step), "");
      expect(std::to_string(optimizer.steps()), size == 1 ? "2" : "1");

      O filled{comm, {{.name = "w", .shape = {7000}}}};
      filled.fill_owned(fill);
      expect(refusal([&] { give_zeros(filled).step(); }), "");
      O taken{comm, model()};
      taken.broadcast_parameters([](auto const&, std::size_t, auto) {});
      expect(refusal([&] { give_zeros(taken).step(); }), "");
    });
  }
}

/// Values that every rank has differently.
float value(int rank, std::size_t t, std::size_t element) {
  return toy::initial_value(t + 100 * static_cast<std::size_t>(rank + 1), element);
}

/// A loader of one rank's values, as T rounds them.
template <class T, class Optimizer>
auto values_of(Optimizer const& optimizer, int rank) {
  return [&optimizer, rank](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
    auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = float(T(value(rank, t, first + i)));
  };
}

template <class Stage>
void check_group(InProcess& group, int root) {
  Optimizer<Stage, Bf16> optimizer{group, toy::model()};
  Optimizer<Stage, Bf16> loaded{group, toy::model()};
  optimizer.broadcast_parameters(
      [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
        CHECK(group.rank() == root);
        values_of<float>(optimizer, group.rank())(tensor, first, out);
      },
      root);
  loaded.load_parameters(values_of<float>(loaded, root));
  CHECK(contracts::snapshot(optimizer) == contracts::snapshot(loaded));
  for (int const nobody : {-1, group.size()}) {
    std::string const message =
        "there is no rank " + std::to_string(nobody) + " to broadcast from; ranks are [0, ";
    CHECK(refusal([&] {
            optimizer.broadcast_parameters(values_of<float>(optimizer, 0), nobody);
          }).starts_with(message));
    if constexpr (!Stage::sharding.parameters) {
      CHECK(refusal([&] { optimizer.broadcast_parameters(nobody); }).starts_with(message));
    }
  }
}

TEST_CASE("a root is a rank of the group that the optimizer is over") {
  zero::run_ranks(5, [&](InProcess& comm) {
    InProcess group = comm.split(comm.rank() % 2, comm.rank());
    for (int const root : {0, group.size() - 1}) {
      check_group<PosG>(group, root);
      check_group<PosGP>(group, root);
    }
  });
}

/// Every element of every tensor that is not tied, once.
std::uint64_t elements() {
  std::uint64_t count = 0;
  for (auto const& tensor : toy::model()) {
    if (tensor.tied_to.empty()) count += zero::element_count(tensor);
  }
  return count;
}

TEST_CASE_TEMPLATE("a broadcast sends every element once", Stage, Pos, PosGP) {
  zero::run_ranks(3, [](InProcess& inner) {
    contracts::Watched watched{inner};
    auto& comm = watched.counted;
    contracts::WatchedOptimizer<Stage, Bf16> optimizer{
        watched.comm, toy::model(), zero::Bucket{4096}};
    comm.reset();
    optimizer.broadcast_parameters(values_of<float>(optimizer, 0), 2);
    // And one word, by which ranks agree that every value fits.
    CHECK(comm.counts().control_total().elements == elements() + 4);
    if constexpr (!Stage::sharding.parameters) {
      comm.reset();
      optimizer.broadcast_parameters(2);
      CHECK(comm.counts().control_total().elements == elements());
    }
    CHECK(comm.counts().bucket_total().elements == 0);
    // Nothing is left to compare.
    give_zeros(optimizer).step();
    auto const first = comm.counts().control_total().elements;
    comm.reset();
    give_zeros(optimizer).step();
    auto const word = Stage::sharding.parameters ? 4u : 0u;
    CHECK(first == elements() + word + comm.counts().control_total().elements);
  });
}

TEST_CASE_TEMPLATE("a tensor of more than two megabytes passes one megabyte at a time",
                   Stage,
                   Pos,
                   PosGP) {
  static constexpr std::size_t count = 600'001;
  // The second begins where no share does: some of what is asked for lies in two pieces.
  std::vector<zero::Tensor> const model{{.name = "b", .shape = {40}},
                                        {.name = "w", .shape = {count}}};
  zero::run_ranks(2, [&](InProcess& inner) {
    contracts::Watched watched{inner};
    contracts::WatchedOptimizer<Stage, Bf16> optimizer{watched.comm, model, zero::Bucket{}};
    watched.counted.reset();
    std::size_t largest = 0;
    optimizer.broadcast_parameters(
        [&](zero::Tensor const&, std::size_t first, std::span<float> out) {
          largest = out.size() > largest ? out.size() : largest;
          for (std::size_t i = 0; i < out.size(); ++i)
            out[i] = static_cast<float>((first + i) % 251);
        },
        1);
    CHECK(largest * sizeof(float) <= 1 << 20);
    CHECK(watched.counted.counts().control_total().elements == 40 + count + 2);
    auto const weights = optimizer.parameters(0);
    std::size_t right = 0;
    while (right < count && float(weights[1][right]) == static_cast<float>(right % 251)) ++right;
    CHECK(right == count);
  });
}

/// Masters, states and parameters after a broadcast over memory that the host cannot reach.
template <class Stage>
void check_on_devices(trapped::Collectives when) {
  zero::run_ranks(3, [&](InProcess& inner) {
    using Rank = contracts::OnDevice<Stage, Bf16>;
    auto const bits = [&](Rank& rank) {
      rank.optimizer.check_parameters();
      auto result = contracts::owned_bits(rank.optimizer);
      for (int const unit : rank.optimizer.units()) {
        auto const weights = rank.optimizer.parameters(unit);
        for (std::size_t k = 0; k < weights.size(); ++k) {
          auto const host = toy::fetch(rank.space(), weights[k]);
          contracts::append(result, std::span(host));
        }
      }
      return result;
    };
    auto const made = [&](auto const& load) {
      Rank rank(inner, toy::model(), {}, {}, when);
      load(rank);
      return bits(rank);
    };
    CHECK(made([&](Rank& rank) {
            rank.optimizer.broadcast_parameters(values_of<float>(rank.optimizer, inner.rank()), 2);
          }) == made([&](Rank& rank) {
            rank.optimizer.load_parameters(values_of<float>(rank.optimizer, 2));
          }));
    if constexpr (!Stage::sharding.parameters) {
      CHECK(made([&](Rank& rank) {
              for (std::size_t t = 0; t < rank.optimizer.tensors().size(); ++t) {
                auto const to = rank.optimizer.parameter(t);
                if (!rank.optimizer.tensors()[t].tied_to.empty() || to.empty()) continue;
                std::vector<zero::bf16> host;
                for (std::size_t i = 0; i < to.size(); ++i) {
                  host.push_back(zero::bf16(value(inner.rank(), t, i)));
                }
                rank.space().upload(to.data(), host.data(), to.size_bytes());
              }
              rank.optimizer.broadcast_parameters(2);
            }) == made([&](Rank& rank) {
              rank.optimizer.load_parameters(values_of<zero::bf16>(rank.optimizer, 2));
            }));
    }
  });
}

TEST_CASE("a broadcast after the first gradients is refused, unless these are discarded") {
  std::string const message =
      "broadcast_parameters() after gradients were asked for, or lent for this step: they are of "
      "the values that ranks had before; call it before the first backward pass, or "
      "discard_gradients() first";
  contracts::on_ranks(ranks, [&](InProcess& comm, auto const& expect) {
    auto memory = ones<float>(comm.rank(), 4);
    std::vector<float> gradients(memory.size(), 1.f);
    std::span<float> const unit[]{std::span(gradients).subspan(7000, 9)};
    Optimizer<PosG, Fp32, zero::Borrowed<>> lends{comm, model()};
    Optimizer<Pos, Fp32> owns{comm, model()};
    auto const values = [](auto const&, std::size_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 1.f);
    };
    auto const check = [&](auto& optimizer, auto const& asks) {
      asks();
      expect(refusal([&] { optimizer.broadcast_parameters(1); }) == message, "one rank's memory");
      expect(refusal([&] { optimizer.broadcast_parameters(values, 1); }) == message, "its values");
      optimizer.discard_gradients();
      expect(refusal([&] { optimizer.broadcast_parameters(1); }) == "", "refused all the same");
      // All start from the same from now on.
      asks();
      expect(refusal([&] { optimizer.broadcast_parameters(1); }) == "", "refused later");
      optimizer.discard_gradients();
    };
    // Lent once, for good, is lent before there are any.
    lends.bind(std::span(memory), std::span(gradients));
    check(lends, [&] { lends.bind_gradients(1, unit); });
    owns.adopt_parameters();
    check(owns, [&] { static_cast<void>(owns.gradients(1)); });
    expect(memory[4] == 1.f, "the root's");
  });
}

/// Values that bf16 cannot hold, over memory that the host cannot reach: looked at on the host.
template <class Stage>
void check_large_on_devices() {
  auto const in = [](zero::Tensor const& tensor, std::size_t i) {
    return tensor.name == "wpe" && i == 1000 ? 3.4e38f : 1.f;
  };
  auto const large = [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = in(tensor, first + i);
  };
  auto const fill = [&](zero::Tensor const& tensor, std::size_t first, auto out, auto const&) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = in(tensor, first + i);
  };
  contracts::on_ranks(3, [&](InProcess& inner, auto const& expect) {
    std::string const words =
        "element 1000 of tensor 'wpe' is 3.4e+38, which would become infinite in bf16; with "
        "overflow = saturate (a policy, and an option of loads and exports) it becomes "
        "3.3895314e+38";
    contracts::OnDevice<Stage, Bf16> rank(inner, toy::model());
    auto& refuses = rank.optimizer;
    expect(refusal([&] { refuses.load_parameters(large); }) == words, "load");
    expect(refusal([&] { refuses.broadcast_parameters(large, 1); }) == words, "broadcast");
    toy::load(refuses);
    expect(refusal([&] { refuses.fill_owned(fill); }) == words, "fill");
    trapped::Device device{};
    trapped::Communicator comm(inner, device, trapped::Collectives::late);
    contracts::DeviceOptimizer<Stage, Bf16> saturates{
        comm, toy::model(), zero::Owned{trapped::Allocator{&device}}, zero::Overflow::saturate};
    auto const check = [&] {
      saturates.check_parameters();
      saturates.visit_owned([&](zero::Tensor const& tensor, std::size_t first, auto out, auto&&) {
        for (std::size_t i = 0; i < out.size(); ++i) {
          float const wanted = in(tensor, first + i) == 1.f ? 1.f : 0x1.FEp127f;
          expect(out[i] == wanted, tensor.name);
        }
      });
      toy::load(saturates);
    };
    saturates.load_parameters(large);
    check();
    saturates.broadcast_parameters(large, 1);
    check();
    saturates.fill_owned(fill);
    check();
  });
}

TEST_CASE("values that do not fit, over memory that the host cannot reach") {
  check_large_on_devices<Pos>();
  check_large_on_devices<PosGP>();
}

TEST_CASE("a broadcast over memory that the host cannot reach") {
  for (auto const when : {trapped::Collectives::early, trapped::Collectives::late}) {
    check_on_devices<Pos>(when);
    check_on_devices<PosGP>(when);
  }
}

}  // namespace
}  // namespace start_test
