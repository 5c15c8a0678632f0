#include "support/refusal.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

// Gradients that are absent: the tensor rests where they are so on all ranks.
namespace absent_test {
namespace {

constexpr int steps = 12;
constexpr zero::Bucket tiny{4};

std::vector<zero::Tensor> model() {
  return {{.name = "embedding", .shape = {37, 11}, .unit = 0},
          {.name = "a.w", .shape = {700}, .unit = 1},
          {.name = "a.b", .shape = {3}, .unit = 1, .weight_decay = 0.f},
          {.name = "still", .shape = {5}, .unit = 1, .frozen = true},
          {.name = "b.w", .shape = {1300}, .unit = 2},
          {.name = "b.b", .shape = {1}, .unit = 2, .learning_rate = 0.5f},
          {.name = "none", .shape = {0}, .unit = 2},
          {.name = "c.w", .shape = {64}, .unit = 3},
          {.name = "head", .shape = {37, 11}, .unit = 4, .tied_to = "embedding"},
          {.name = "d.w", .shape = {2049}, .unit = 4}};
}

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
  return (x ^ x >> 29) * 0x94d049bb133111ebu >> 7;
}
float gradient_of(std::size_t t, int step, int rank, std::size_t i) {
  auto const bits =
      mix(mix(t * 100 + static_cast<std::size_t>(step), i), static_cast<std::uint64_t>(rank));
  return static_cast<float>(bits % 2001) / 1000.f - 1.f;
}
/// Does a rank give a tensor's gradient? About half do; in a third of the steps no rank does.
bool given(std::size_t t, int step, int rank) {
  auto const both = mix(t, static_cast<std::uint64_t>(step));
  return both % 3 != 0 && mix(both, static_cast<std::uint64_t>(rank)) % 2 == 0;
}
bool given_by_any(std::size_t t, int step, int ranks) {
  bool any = false;
  for (int rank = 0; rank < ranks; ++rank) any = any || given(t, step, rank);
  return any;
}

void load(auto& optimizer) {
  optimizer.load_parameters(
      [](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
        for (std::size_t i = 0; i < out.size(); ++i) {
          out[i] = static_cast<float>((first + i + tensor.shape[0]) % 97) / 50.f;
        }
      });
}

/// What a run ends with on one rank: bits of each tensor, and how many updates it has had.
struct End {
  std::map<std::string, std::vector<std::uint32_t>> bits{};
  std::map<std::string, long> counts{};
  friend bool operator==(End const&, End const&) = default;
};

void read(auto& optimizer, End& end) {
  auto const all = optimizer.full_parameters();
  for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
    auto& bits = end.bits[optimizer.tensors()[t].name];
    bits.clear();
    for (float const value : all[t]) bits.push_back(std::bit_cast<std::uint32_t>(value));
    if (!optimizer.tensors()[t].frozen) {
      end.counts[optimizer.tensors()[t].name] = optimizer.steps(t);
    }
  }
}

/// Every tensor with an optimizer of its own, which takes a step where some rank gives a gradient.
End reference(int ranks) {
  End end;
  std::mutex mutex;
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    auto const tensors = model();
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (!tensors[t].tied_to.empty()) continue;
      auto alone = tensors[t];
      alone.unit = 0;
      zero::ShardedOptimizer optimizer{comm, {alone}, zero::stage::Replicated{}};
      load(optimizer);
      std::vector<std::size_t> aliases;
      for (std::size_t other = tensors.size(); other-- > t;) {
        if (other == t || tensors[other].tied_to == tensors[t].name) aliases.push_back(other);
      }
      for (int step = 0; step < steps; ++step) {
        bool any = false;
        for (std::size_t const a : aliases) any = any || given_by_any(a, step, ranks);
        if (!any || alone.frozen || alone.shape[0] == 0) continue;
        auto gradients = optimizer.gradients(0);
        for (std::size_t const a : aliases) {
          if (!given(a, step, comm.rank())) continue;
          for (std::size_t i = 0; i < gradients[0].size(); ++i) {
            gradients[0][i] += gradient_of(a, step, comm.rank(), i);
          }
        }
        optimizer.reduce(std::move(gradients));
        optimizer.step();
      }
      End own;
      read(optimizer, own);
      std::lock_guard const lock(mutex);
      for (std::size_t const a : aliases) {
        end.bits[tensors[a].name] = own.bits[alone.name];
        if (!alone.frozen) end.counts[tensors[a].name] = own.counts[alone.name];
      }
    }
  });
  end.counts["none"] = 0;
  return end;
}

/// A micro-batch's gradients, unit by unit; what is absent is declared in its turn or before.
template <class O>
void backward(O& optimizer, int step, int rank) {
  bool const before = step % 2 == 0;
  auto const absent = [&](int unit) {
    bool all = true;
    for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
      zero::Tensor const& tensor = optimizer.tensors()[t];
      if (tensor.unit == unit && !tensor.frozen) all = all && !given(t, step, rank);
    }
    return all;
  };
  for (int const unit : optimizer.units()) {
    if (before && absent(unit)) optimizer.without_gradient(unit);
  }
  for (int const unit : optimizer.units_backward()) {
    if (absent(unit)) {
      if (!before) optimizer.without_gradient(unit);
      continue;
    }
    auto gradients = optimizer.gradients(unit);
    std::size_t i = 0;
    for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
      if (optimizer.tensors()[t].unit != unit) continue;
      std::span<float> const out = gradients[i++];
      if (!given(t, step, rank)) {
        optimizer.without_gradient(optimizer.tensors()[t]);
        continue;
      }
      for (std::size_t k = 0; k < out.size(); ++k) out[k] += gradient_of(t, step, rank, k);
    }
    optimizer.reduce(std::move(gradients));
  }
}

template <class... Policies>
void check_rests(int ranks, End const& expected) {
  std::vector<End> ends(static_cast<std::size_t>(ranks));
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer<zero::InProcess, Policies...> optimizer{comm, model(), tiny};
    load(optimizer);
    for (int step = 0; step < steps; ++step) {
      backward(optimizer, step, comm.rank());
      CHECK(optimizer.step().step == step + 1);
    }
    CHECK(optimizer.held() == optimizer.plan().memory);
    End& end = ends[static_cast<std::size_t>(comm.rank())];
    read(optimizer, end);
    end.counts["none"] = 0;
  });
  for (End const& end : ends) {
    CHECK(end.counts == expected.counts);
    for (auto const& tensor : expected.bits) {
      INFO(tensor.first);
      CHECK(end.bits.at(tensor.first) == tensor.second);
    }
  }
}

TEST_CASE("a tensor that is absent on all ranks rests, under every stage") {
  for (int const ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    End const expected = reference(ranks);
    CHECK(expected.counts.at("a.w") > 2);
    CHECK(expected.counts.at("a.w") < steps);
    check_rests<zero::stage::Replicated>(ranks, expected);
    check_rests<zero::stage::Pos>(ranks, expected);
    check_rests<zero::stage::PosG>(ranks, expected);
    check_rests<zero::stage::PosGP>(ranks, expected);
    check_rests<zero::stage::PosG, zero::AccumulateFull>(ranks, expected);
    check_rests<zero::stage::PosG, zero::AccumulateShard>(ranks, expected);
  }
}

/// Lent flat memory in which nothing is meant where a gradient is absent.
template <class Stage>
void check_lent(int ranks, End const& expected, bool empty_spans) {
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    auto const tensors = model();
    zero::ShardedOptimizer<zero::InProcess, Stage, zero::Borrowed<>> optimizer{comm, tensors, tiny};
    std::vector<std::vector<float>> parameters;
    std::vector<std::vector<float>> gradients;
    for (auto const& tensor : tensors) {
      parameters.emplace_back(zero::element_count(tensor));
      gradients.emplace_back(zero::element_count(tensor));
    }
    std::vector<std::span<float>> lent(parameters.begin(), parameters.end());
    lent[8] = lent[0];
    std::vector<std::span<float>> spans(tensors.size());
    for (std::size_t t = 0; t < spans.size(); ++t) spans[t] = gradients[t == 8 ? 0 : t];
    optimizer.bind(lent, spans);
    load(optimizer);
    for (int step = 0; step < steps; ++step) {
      for (auto& values : gradients) {
        values.assign(values.size(), std::numeric_limits<float>::quiet_NaN());
      }
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        std::size_t const storage = t == 8 ? 0 : t;
        bool const other =
            t == 0 ? given(8, step, comm.rank()) : t == 8 && given(0, step, comm.rank());
        bool const own = given(t, step, comm.rank());
        spans[t] = own || other || !empty_spans ? std::span<float>(gradients[storage])
                                                : std::span<float>();
        if (t == 8) continue;
        for (std::size_t i = 0; (own || other) && i < gradients[t].size(); ++i) {
          gradients[t][i] = 0.f;
          if (other) gradients[t][i] += gradient_of(8, step, comm.rank(), i);
          if (own) gradients[t][i] += gradient_of(t, step, comm.rank(), i);
        }
      }
      optimizer.bind_gradients(spans);
      for (std::size_t t = 0; t < tensors.size() && !empty_spans; ++t) {
        bool const tied = t == 0 || t == 8;
        bool const own = tied ? given(0, step, comm.rank()) || given(8, step, comm.rank())
                              : given(t, step, comm.rank());
        if (!own && !tensors[t].frozen) optimizer.without_gradient(optimizer.tensors()[t]);
      }
      optimizer.step();
    }
    End end;
    read(optimizer, end);
    end.counts["none"] = 0;
    CHECK(end.counts == expected.counts);
    for (auto const& tensor : expected.bits) {
      INFO(tensor.first);
      CHECK(end.bits.at(tensor.first) == tensor.second);
    }
  });
}

/// What two steps of a model end with; `write(optimizer, unit, gradients, rank)` says what a rank
/// adds and declares.
template <class Stage>
End train_tied(int ranks, std::vector<zero::Tensor> const& tensors, auto const& write) {
  std::vector<End> ends(static_cast<std::size_t>(ranks));
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    // Adam would take any constant gradient for the same.
    zero::ShardedOptimizer<zero::InProcess, Stage, zero::PlainSgd> optimizer{comm, tensors};
    load(optimizer);
    for (int step = 0; step < 2; ++step) {
      for (int const unit : optimizer.units_backward()) {
        auto gradients = optimizer.gradients(unit);
        write(optimizer, unit, gradients, comm.rank());
        optimizer.reduce(std::move(gradients));
      }
      optimizer.step();
    }
    read(optimizer, ends[static_cast<std::size_t>(comm.rank())]);
  });
  for (End const& end : ends) CHECK(end == ends[0]);
  return ends[0];
}

void for_each_stage(auto const& check) {
  check(zero::stage::Replicated{});
  check(zero::stage::Pos{});
  check(zero::stage::PosG{});
  check(zero::stage::PosGP{});
}

TEST_CASE("one of two tied tensors of a unit is absent: what is added through the other counts") {
  std::vector<zero::Tensor> const alone = {{.name = "wte", .shape = {600}},
                                           {.name = "b", .shape = {7}}};
  auto tied = alone;
  tied.push_back({.name = "head", .shape = {600}, .tied_to = "wte"});
  auto const add = [](auto& gradients, std::size_t i, int rank) {
    for (std::size_t k = 0; k < gradients[i].size(); ++k) {
      gradients[i][k] += gradient_of(i, 0, rank, k);
    }
  };
  for_each_stage([&]<class Stage>(Stage) {
    for (int const ranks : {1, 3}) {
      auto const expected = train_tied<Stage>(
          ranks, alone, [&](auto&, int, auto& gradients, int rank) { add(gradients, 0, rank); });
      CHECK(expected.counts.at("wte") == 2);
      for (std::size_t const given : {std::size_t{0}, std::size_t{2}}) {
        auto const end =
            train_tied<Stage>(ranks, tied, [&](auto& optimizer, int, auto& gradients, int rank) {
              optimizer.without_gradient(tied[2 - given]);
              for (std::size_t k = 0; k < 600; ++k) {
                gradients[given][k] += gradient_of(0, 0, rank, k);
              }
            });
        CHECK(end.bits.at("wte") == expected.bits.at("wte"));
        CHECK(end.counts.at("wte") == 2);
      }
    }
  });
}

TEST_CASE("what was written where all tied tensors are absent does not count, in any unit") {
  for (int const unit_of_head : {0, 1}) {
    std::vector<zero::Tensor> const tensors = {
        {.name = "wte", .shape = {600}},
        {.name = "head", .shape = {600}, .unit = unit_of_head, .tied_to = "wte"},
        {.name = "b", .shape = {7}, .unit = 1}};
    for_each_stage([&]<class Stage>(Stage) {
      auto const run = [&](float junk) {
        return train_tied<Stage>(
            2, tensors, [&](auto& optimizer, int unit, auto& gradients, int rank) {
              for (std::size_t i = 0; i < gradients.size(); ++i) {
                for (float& out : gradients[i]) out += rank == 0 ? junk : 0.5f;
              }
              if (rank != 0) return;
              for (auto const& tensor : tensors) {
                if (tensor.unit == unit) optimizer.without_gradient(tensor);
              }
            });
      };
      CHECK(run(1000.f) == run(0.f));
    });
  }
}

TEST_CASE("lent gradients that are absent are not read: empty spans, or declared") {
  End const expected = reference(3);
  for (bool const empty_spans : {true, false}) {
    CAPTURE(empty_spans);
    check_lent<zero::stage::Replicated>(3, expected, empty_spans);
    check_lent<zero::stage::Pos>(3, expected, empty_spans);
    check_lent<zero::stage::PosG>(3, expected, empty_spans);
  }
}

template <class Stage>
void check_forgotten() {
  std::array<std::string, 3> messages;
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, model(), Stage{}, tiny};
    load(optimizer);
    End before;
    read(optimizer, before);
    for (int const unit : optimizer.units_backward()) {
      if (unit == 2 && comm.rank() == 1) continue;
      if (unit == 2 && comm.rank() == 2) {
        optimizer.without_gradient(unit);
        continue;
      }
      auto gradients = optimizer.gradients(unit);
      if (!gradients[0].empty()) gradients[0][0] += 1.f;
      optimizer.reduce(std::move(gradients));
    }
    auto const result = optimizer.try_step();
    CHECK(!result);
    messages[static_cast<std::size_t>(comm.rank())] = result.error()->message();
    CHECK(result.error()->kind() == zero::ErrorKind::invalid_argument);
    End after;
    read(optimizer, after);
    CHECK(after == before);
    // Nobody says anything: zeros, which decay.
    CHECK(optimizer.step().step == 1);
    read(optimizer, after);
    CHECK(after.bits != before.bits);
    CHECK(after.counts.at("b.w") == 1);
  });
  for (std::string const& message : messages) {
    CHECK(message ==
          "some ranks reduced gradients that others neither reduced nor declared absent with "
          "without_gradient(): unit 2, tensor 'b.w': nothing was said on rank 1, but on rank 0, 2");
  }
}

TEST_CASE("a unit that some ranks forget is named, and the step changes nothing") {
  check_forgotten<zero::stage::Replicated>();
  check_forgotten<zero::stage::Pos>();
  check_forgotten<zero::stage::PosG>();
  check_forgotten<zero::stage::PosGP>();
}

TEST_CASE("a rank without data declares what others reduce") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, model(), zero::stage::PosG{}, tiny};
    load(optimizer);
    bool const data = comm.rank() == 0;
    optimizer.micro_step({.weight = data ? 1. : 0.});
    for (int const unit : optimizer.units_backward()) {
      if (unit == 3 || !data) {
        optimizer.without_gradient(unit);
      } else {
        optimizer.reduce(optimizer.gradients(unit));
      }
    }
    CHECK(optimizer.step().step == 1);
    CHECK(optimizer.steps(7) == 0);
    CHECK(optimizer.steps(1) == 1);
    CHECK(optimizer.counters().steps[7] == 0);
  });
}

TEST_CASE(
    "one gradient among several micro-batches is enough; what was overwritten does not count") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    zero::ShardedOptimizer sums{
        comm, model(), zero::AccumulateShard{}, tiny, zero::PlainSgd{.lr = 1.f}};
    load(sums);
    End before;
    read(sums, before);
    for (int micro = 0; micro < 2; ++micro) {
      sums.micro_step({.last = micro == 1});
      for (int const unit : sums.units_backward()) {
        auto gradients = sums.gradients(unit, zero::overwrite);
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          for (float& value : gradients[i]) value = unit == 3 ? 7.f : 0.f;
        }
        if (unit == 3 && micro == 0) sums.without_gradient(sums.tensors()[7]);
        if (unit == 2 && micro == 1) sums.without_gradient(sums.tensors()[4]);
        sums.reduce(std::move(gradients));
      }
    }
    sums.step();
    End after;
    read(sums, after);
    CHECK(sums.steps(7) == 1);
    CHECK(sums.steps(4) == 1);
    // The mean of 7 and of nothing.
    CHECK(std::bit_cast<float>(before.bits["c.w"][5]) -
              std::bit_cast<float>(after.bits["c.w"][5]) ==
          doctest::Approx(3.5));
  });
}

TEST_CASE("counts of their own are saved and restored") {
  zero::run_ranks(3, [](zero::InProcess& comm) {
    zero::ShardedOptimizer whole{comm, model(), zero::stage::PosGP{}, tiny};
    zero::ShardedOptimizer resumed{comm, model(), zero::stage::PosGP{}, tiny};
    load(whole);
    load(resumed);
    for (int step = 0; step < steps; ++step) {
      if (step == 5) {
        std::vector<std::array<std::vector<float>, 3>> saved(whole.tensors().size());
        whole.visit_owned([&](zero::Tensor const& tensor, std::size_t, auto master, auto state) {
          auto& arrays = saved[static_cast<std::size_t>(&tensor - whole.tensors().data())];
          arrays[0].insert(arrays[0].end(), master.begin(), master.end());
          for (std::size_t k = 0; k < 2; ++k) {
            arrays[1 + k].insert(arrays[1 + k].end(), state[k].begin(), state[k].end());
          }
        });
        std::vector<std::size_t> used(saved.size(), 0);
        resumed.fill_owned([&](zero::Tensor const& tensor, std::size_t, auto master, auto state) {
          auto const t = static_cast<std::size_t>(&tensor - resumed.tensors().data());
          for (std::size_t i = 0; i < master.size(); ++i, ++used[t]) {
            master[i] = saved[t][0][used[t]];
            for (std::size_t k = 0; k < 2; ++k) state[k][i] = saved[t][1 + k][used[t]];
          }
        });
        auto const counters = whole.counters();
        CHECK(counters.step == 5);
        bool rested = false;
        for (long const own : counters.steps) rested = rested || own < 5;
        CHECK(rested);
        resumed.restore(counters);
        CHECK(resumed.counters() == counters);
        auto wrong = counters;
        wrong.steps[1] = 6;
        CHECK(refusal([&] { resumed.restore(wrong); }) ==
              "restore(): tensor 'a.w' has 6 steps, but must have at least 0 and at most the 5 of "
              "the run");
      }
      backward(whole, step, comm.rank());
      whole.step();
      if (step < 5) continue;
      backward(resumed, step, comm.rank());
      resumed.step();
    }
    End a;
    End b;
    read(whole, a);
    read(resumed, b);
    CHECK(a == b);
  });
}

TEST_CASE("more tensors than one call of the space tells of") {
  constexpr std::size_t count = 600;
  zero::run_ranks(2, [](zero::InProcess& comm) {
    std::vector<zero::Tensor> tensors;
    for (std::size_t t = 0; t < count; ++t) {
      tensors.push_back({.name = "t" + std::to_string(t), .shape = {64}, .unit = 0});
    }
    zero::ShardedOptimizer optimizer{comm, tensors, zero::PlainSgd{.lr = 1.f}};
    optimizer.adopt_parameters();
    std::vector<long> expected(count, 0);
    std::vector<float> values(count, 0.f);
    for (int step = 0; step < 3; ++step) {
      auto gradients = optimizer.gradients(0);
      for (std::size_t t = 0; t < count; ++t) {
        if (given_by_any(t, step, 2)) ++expected[t];
        for (int const rank : {0, 1}) values[t] -= given(t, step, rank) ? 0.5f : 0.f;
        if (!given(t, step, comm.rank())) {
          optimizer.without_gradient(optimizer.tensors()[t]);
        } else {
          for (float& gradient : gradients[t]) gradient += 1.f;
        }
      }
      optimizer.reduce(std::move(gradients));
      optimizer.step();
    }
    CHECK(optimizer.counters().steps == expected);
    std::size_t wrong = 0;
    auto const all = optimizer.full_parameters();
    for (std::size_t t = 0; t < count; ++t) wrong += all[t][63] == values[t] ? 0u : 1u;
    CHECK(wrong == 0);
  });
}

TEST_CASE("units in any order, the same on all ranks") {
  std::vector<End> ends;
  for (auto const& order : {std::array{4, 3, 2, 1, 0},
                            std::array{0, 1, 2, 3, 4},
                            std::array{2, 0, 4, 1, 3},
                            std::array{3, 2, 1, 0, 4}}) {
    End end;
    zero::run_ranks(2, [&](zero::InProcess& comm) {
      zero::ShardedOptimizer optimizer{comm, model(), zero::stage::PosGP{}, tiny};
      load(optimizer);
      for (int step = 0; step < 3; ++step) {
        for (int const unit : order) {
          // A unit that is used twice is opened twice.
          for (int const use : {0, 1}) {
            auto gradients = optimizer.gradients(unit);
            for (std::size_t i = 0; i < gradients.size(); ++i) {
              for (std::size_t k = 0; k < gradients[i].size(); ++k) {
                gradients[i][k] +=
                    gradient_of(i + static_cast<std::size_t>(10 * unit), step, comm.rank(), k);
              }
            }
            if (use == 1) optimizer.reduce(std::move(gradients));
          }
        }
        optimizer.step();
      }
      End own;
      read(optimizer, own);
      if (comm.rank() == 0) end = own;
    });
    ends.push_back(end);
  }
  // The tied tensor's gradients add up in another order.
  for (End& end : ends) {
    end.bits.erase("embedding");
    end.bits.erase("head");
    CHECK(end == ends.front());
  }
}

TEST_CASE("what comes too late is refused") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, model(), zero::stage::PosG{}, tiny};
    load(optimizer);
    optimizer.without_gradient(3);
    CHECK(refusal([&] { static_cast<void>(optimizer.gradients(3)); }) ==
          "unit 3 was already declared absent in this micro-step; call micro_step() "
          "before the next micro-batch");
    CHECK(refusal([&] { optimizer.micro_step(); }) ==
          "the first micro_step() of a step must come before its first gradients");
    CHECK(refusal([&] { optimizer.restore(optimizer.counters()); }) ==
          "restore() in the middle of a step; call step() or discard_gradients() first");
    optimizer.reduce_all();
    CHECK(refusal([&] { optimizer.without_gradient(2); }) ==
          "unit 2 is declared absent after the gradients of this step were reduced");
    CHECK(refusal([&] { optimizer.without_gradient(optimizer.tensors()[1]); }) ==
          "unit 1 is declared absent after the gradients of this step were reduced");
    CHECK(refusal([&] { optimizer.without_gradient({.name = "a.x", .shape = {1}}); }) ==
          "there is no tensor 'a.x'");
    optimizer.discard_gradients();
    CHECK(optimizer.step().step == 1);
  });
}

}  // namespace
}  // namespace absent_test
