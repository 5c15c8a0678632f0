#include "block_inputs.hpp"
#include "model.hpp"
#include "plan/model/transformer.hpp"
#include "sample.hpp"
#include "store.hpp"
#include "support/test.hpp"
#include "zero/comm/decorators/counting.hpp"
#include "zero/comm/run_ranks.hpp"

namespace model_parallel_test {

using namespace gpt_test;

// 1 to 4 ranks divide the heads; three of them do not divide the vocabulary.
constexpr gpt::Config small{.layers = 3, .heads = 12, .channels = 24, .context = 7};

// The inputs of blocks, kept by each rank, and handed out in the same memory, which the next call
// spoils.
template <class Real>
class Inputs final : public gpt::BlockInputs<Real> {
 public:
  std::vector<int> stored, fetched;

  void store(int layer, std::span<Real const> input) override {
    stored.push_back(layer);
    std::ranges::fill(lent_, std::numeric_limits<Real>::quiet_NaN());
    kept_[layer].assign(input.begin(), input.end());
  }
  [[nodiscard]] std::span<Real const> fetch(int layer) override {
    fetched.push_back(layer);
    lent_ = kept_.at(layer);
    return lent_;
  }

 private:
  std::map<int, std::vector<Real>> kept_;
  std::vector<Real> lent_;
};

bool is_divided(gpt::TensorInfo const& tensor) { return tensor.axis >= 0; }

// Whole tensors from the parts of all ranks. Of what every rank holds, all must have the same bits.
template <class T>
std::vector<std::vector<T>> joined(gpt::Config const& config,
                                   std::vector<std::optional<Store<T>>>& ranks) {
  std::vector<std::vector<T>> tensors;
  auto const all = gpt::tensors(config);
  for (std::size_t t = 0; t < all.size(); ++t) {
    std::vector<T> whole(all[t].numel());
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      gpt::ModelRank const of{static_cast<int>(r), static_cast<int>(ranks.size())};
      auto const place = places(config, of, all[t]);
      auto const part = ranks[r]->at(t);
      REQUIRE(part.size() == place.size());
      if (!is_divided(all[t])) CHECK(std::ranges::equal(part, ranks[0]->at(t)));
      for (std::size_t i = 0; i < place.size(); ++i) whole[place[i]] = part[i];
    }
    tensors.push_back(std::move(whole));
  }
  return tensors;
}

struct Case {
  gpt::Config config = small;
  int length = 7;
  int steps = 1;
  bool recompute = false;
};

template <class Real>
struct Outcome {
  std::vector<double> losses;                // of every step, the same on all ranks
  std::vector<double> norms;                 // of the whole gradient
  std::vector<std::vector<Real>> gradients;  // of the last step, whole
  std::vector<Real> scores;                  // after the last byte
};

// A few steps of gradient descent on as many threads as the model has ranks.
template <class Real>
Outcome<Real> train(int ranks, Case const& what) {
  auto const n = static_cast<std::size_t>(ranks);
  auto const steps = static_cast<std::size_t>(what.steps);
  std::vector<std::optional<Store<Real>>> gradients(n);
  std::vector<std::vector<double>> losses(n);
  std::vector<std::vector<double>> squares(n, std::vector<double>(steps));
  std::vector<std::vector<Real>> scores(n);
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    auto const r = static_cast<std::size_t>(comm.rank());
    gpt::ModelGroup const group(comm);
    Inputs<Real> inputs;
    gpt::Gpt<Real> model(what.config, sequences, group, what.recompute ? &inputs : nullptr);
    Store<Real> weights(what.config, 0, group.place());
    weights.fill(11, 10, 0.5F);
    for (std::size_t step = 0; step < steps; ++step) {
      auto& mine = gradients[r].emplace(what.config, 0, group.place());
      auto const batch = some_batch(what.length, step % 2);
      model.set_batch(batch.inputs, batch.targets, what.length);
      forward(model, weights);
      losses[r].push_back(static_cast<double>(model.loss()));
      auto const last = model.next_scores();
      scores[r].assign(last.begin(), last.end());
      backward(model, weights, mine, Real{1});
      for (std::size_t t = 0; t < weights.size(); ++t) {
        if (weights.info(t).tied_to >= 0) continue;
        bool const counts = is_divided(weights.info(t)) || r == 0;
        for (std::size_t j = 0; j < weights.at(t).size(); ++j) {
          Real const g = mine.at(t)[j];
          if (counts) squares[r][step] += static_cast<double>(g) * static_cast<double>(g);
          weights.at(t)[j] -= Real(0.1) * g;
        }
      }
    }
  });
  Outcome<Real> outcome{losses[0], {}, joined(what.config, gradients), scores[0]};
  for (std::size_t step = 0; step < steps; ++step) {
    double sum = 0;
    for (auto const& of_rank : squares) sum += of_rank[step];
    outcome.norms.push_back(std::sqrt(sum));
  }
  for (std::size_t r = 0; r < n; ++r) {
    CHECK(losses[r] == losses[0]);
    CHECK(scores[r] == scores[0]);
  }
  return outcome;
}

// The largest difference, in units of the largest value.
template <class Range>
double distance(Range const& left, Range const& right) {
  REQUIRE(left.size() == right.size());
  double largest = 0;
  double worst = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    auto const a = static_cast<double>(left[i]);
    auto const b = static_cast<double>(right[i]);
    largest = std::max(largest, std::abs(a));
    worst = std::max(worst, std::isfinite(b) ? std::abs(a - b) : 1e300);
  }
  return worst / largest;
}

template <class Real>
void check_agreement(Outcome<Real> const& one, Outcome<Real> const& several, double tolerance) {
  CHECK(distance(one.losses, several.losses) < tolerance);
  CHECK(distance(one.norms, several.norms) < tolerance);
  CHECK(distance(one.scores, several.scores) < tolerance);
  auto const all = gpt::tensors(small);
  for (std::size_t t = 0; t < all.size(); ++t) {
    CAPTURE(all[t].name);
    CHECK(distance(one.gradients[t], several.gradients[t]) < tolerance);
  }
}

TEST_CASE("gpt: model-parallel parts tile the whole tensors") {
  std::vector<std::string> const divided{
      "wte", "h0.qkv.w", "h0.qkv.b", "h0.proj.w", "h0.fc.w", "h0.fc.b", "h0.fc_proj.w", "head.w"};
  gpt::Config config = small;
  config.layers = 1;
  auto const whole = gpt::tensors(config);
  for (int const size : {1, 2, 3, 4, 6, 12}) {
    std::vector<std::vector<int>> holders;
    for (auto const& tensor : whole) holders.emplace_back(tensor.numel());
    for (int rank = 0; rank < size; ++rank) {
      auto const part = gpt::tensors(config, {rank, size});
      auto const described = gpt::describe(config, {rank, size});
      REQUIRE(part.size() == whole.size());
      REQUIRE(described.size() == whole.size());
      CHECK(described.back().tied_to == "wte");
      for (std::size_t t = 0; t < part.size(); ++t) {
        auto const place = places(config, {rank, size}, whole[t]);
        CHECK(part[t].numel() == place.size());
        CHECK(part[t].name == whole[t].name);
        CHECK(described[t].name == whole[t].name);
        CHECK(described[t].shape == part[t].shape);
        CHECK(described[t].partitioned == (size > 1 && is_divided(part[t])));
        CHECK(is_divided(part[t]) == (std::ranges::count(divided, part[t].name) == 1));
        for (std::size_t const i : place) ++holders[t][i];
      }
      CHECK(gpt::parts(config, {rank, size}).size() == (size == 1 ? 0 : divided.size()));
    }
    for (std::size_t t = 0; t < whole.size(); ++t) {
      int const expected = is_divided(whole[t]) ? 1 : size;
      CHECK(std::ranges::count(holders[t], expected) == std::ssize(holders[t]));
    }
  }
}

TEST_CASE("gpt: the planner describes the tensors that the trainer has") {
  gpt::Config const trained{.layers = 3, .heads = 8, .channels = 48, .context = 33};
  plan::Transformer const planned{
      .layers = 3, .hidden = 48, .heads = 8, .vocab = gpt::Config::vocab, .sequence = 33};
  for (int const ranks : {1, 2, 8}) {
    for (int rank = 0; rank < ranks; ++rank) {
      CAPTURE(ranks);
      auto const theirs = gpt::describe(trained, {.rank = rank, .size = ranks});
      auto const ours = plan::describe(planned, ranks);
      REQUIRE(ours.size() == theirs.size());
      for (std::size_t t = 0; t < ours.size(); ++t) {
        CAPTURE(theirs[t].name);
        CHECK(ours[t].name == theirs[t].name);
        CHECK(ours[t].shape == theirs[t].shape);
        CHECK(ours[t].unit == theirs[t].unit);
        CHECK(ours[t].weight_decay == theirs[t].weight_decay);
        CHECK(ours[t].tied_to == theirs[t].tied_to);
        CHECK(ours[t].partitioned == theirs[t].partitioned);
      }
    }
  }
}

TEST_CASE("gpt: a rank has queries, keys and values of the same heads") {
  auto const all = gpt::parts(tiny, {1, 2});
  auto const qkv = std::ranges::find(all, "h1.qkv.w", &zero::TensorPart::tensor);
  REQUIRE(qkv != all.end());
  CHECK(qkv->shape == std::vector<std::uint64_t>{18, 6});
  REQUIRE(qkv->boxes.size() == 3);
  for (std::uint64_t part = 0; part < 3; ++part) {
    CHECK(qkv->boxes[part] == zero::Box{.offset = {6 * part + 3, 0}, .extent = {3, 6}});
  }
  auto const proj = std::ranges::find(all, "h1.fc_proj.w", &zero::TensorPart::tensor);
  REQUIRE(proj != all.end());
  CHECK(proj->boxes == std::vector{zero::Box{.offset = {0, 12}, .extent = {6, 12}}});
  // 256 is no multiple of 3: the parts of the vocabulary differ by one.
  std::vector<std::size_t> rows;
  for (int rank = 0; rank < 3; ++rank) rows.push_back(gpt::tensors(small, {rank, 3})[0].shape[0]);
  CHECK(rows == std::vector<std::size_t>{85, 85, 86});
}

TEST_CASE("gpt: numbers of model-parallel ranks that do not fit are refused by name") {
  auto const said_by = [](auto const& work) {
    try {
      static_cast<void>(work());
    } catch (std::invalid_argument const& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  auto const refused = [&](gpt::Config const& config, gpt::ModelRank const& of) {
    std::string const said = said_by([&] { return gpt::tensors(config, of); });
    CHECK(said_by([&] { return gpt::parts(config, of); }) == said);
    return said;
  };
  CHECK(refused(small, {0, 5}) == "gpt: 5 model-parallel ranks cannot share 12 heads evenly");
  CHECK(refused({.heads = 512, .channels = 512}, {0, 512}) ==
        "gpt: 512 model-parallel ranks cannot share a vocabulary of 256");
  CHECK(refused(small, {4, 4}) == "gpt: there is no rank 4 of 4 model-parallel ranks");
  CHECK(refused(small, {-1, 4}) == "gpt: there is no rank -1 of 4 model-parallel ranks");
  CHECK(refused(small, {0, 0}) == "gpt: there is no rank 0 of 0 model-parallel ranks");
  CHECK(refused({.heads = 4, .channels = 6}, {0, 2}) ==
        "gpt: sizes must be positive and heads must divide channels");
  CHECK(refused(small, {11, 12}).empty());
  CHECK_THROWS_AS(zero::run_ranks(5,
                                  [](zero::InProcess& comm) {
                                    gpt::Gpt<float> const model(small, 1, gpt::ModelGroup(comm));
                                  }),
                  std::invalid_argument);
}

TEST_CASE("gpt: 1 to 4 model-parallel ranks compute the same, to 1 in 10^12 in fp64") {
  for (int const length : {7, 5}) {  // 21 and 15 tokens: no count of ranks but 3 divides them
    auto const one = train<double>(1, {.length = length});
    for (int const ranks : {2, 3, 4}) {
      CAPTURE(ranks);
      check_agreement(one, train<double>(ranks, {.length = length}), 1e-12);
    }
  }
}

TEST_CASE("gpt: 1 to 4 model-parallel ranks train the same in fp32, to 1 in 10^4 over 20 steps") {
  Case const what{.steps = 20};
  auto const one = train<float>(1, what);
  CHECK(one.losses[18] < 0.7 * one.losses[0]);
  for (int const ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    check_agreement(one, train<float>(ranks, what), 1e-4);
  }
}

TEST_CASE("gpt: blocks computed again have the same bits as those kept") {
  for (int const ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    auto const kept = train<float>(ranks, {.length = 5, .steps = 3});
    auto const again = train<float>(ranks, {.length = 5, .steps = 3, .recompute = true});
    CHECK(kept.losses == again.losses);
    CHECK(kept.gradients == again.gradients);
    CHECK(kept.scores == again.scores);
  }
}

TEST_CASE("gpt: every gradient agrees with central differences, on one rank and on two") {
  auto const whole = gpt::tensors(tiny);
  for (int const ranks : {1, 2}) {
    zero::run_ranks(ranks, [&](zero::InProcess& comm) {
      gpt::ModelGroup const group(comm);
      Inputs<double> inputs;
      gpt::Gpt<double> model(tiny, sequences, group, ranks == 1 ? nullptr : &inputs);
      Store<double> weights(tiny, 0, group.place()), gradients(tiny, 0, group.place());
      weights.fill(11, 20, 0.5F);
      auto const batch = some_batch(tiny.context);
      double const scale = 3;
      pass(model, weights, gradients, batch, scale);
      auto const loss = [&] {
        model.set_batch(batch.inputs, batch.targets);
        forward(model, weights);
        return model.loss();
      };
      for (std::size_t t = 0; t < whole.size(); ++t) {
        if (whole[t].tied_to >= 0) continue;  // the embedding's gradient holds the head's part
        auto const place = places(tiny, group.place(), whole[t]);
        double worst = 0;
        double largest = 0;
        // All ranks change the element where they have it, and all compute the loss.
        std::size_t const step = t == 0 && ranks > 1 ? 5 : 1;
        for (std::size_t j = 0; j < whole[t].numel(); j += step) {
          auto const found = std::ranges::find(place, j);
          double ignored = 0;
          bool const here = found != place.end();
          auto const at = static_cast<std::size_t>(found - place.begin());
          double& value = here ? weights.at(t)[at] : ignored;
          double const kept = value;
          double const change = 1e-5;
          value = kept + change;
          double const above = loss();
          value = kept - change;
          double const below = loss();
          value = kept;
          if (!here) continue;
          double const expected = scale * (above - below) / (2 * change);
          worst = std::max(worst, std::abs(expected - gradients.at(t)[at]));
          largest = std::max(largest, std::abs(expected));
        }
        CAPTURE(whole[t].name);
        CHECK(largest > 1e-3);  // otherwise the comparison says nothing
        CHECK(worst < 1e-6 * std::max(1.0, largest));
      }
    });
  }
}

TEST_CASE("gpt: a block costs four all-reduces, and six where it is computed again") {
  for (int const layers : {0, 1, 3}) {
    for (int const ranks : {1, 2, 4}) {
      for (bool const recompute : {false, true}) {
        gpt::Config config = small;
        config.layers = layers;
        zero::run_ranks(ranks, [&](zero::InProcess& comm) {
          zero::Counting<zero::InProcess> counted(comm);
          gpt::ModelGroup const group(counted);
          Inputs<float> inputs;
          gpt::Gpt<float> model(config, sequences, group, recompute ? &inputs : nullptr);
          Store<float> weights(config, 0, group.place()), gradients(config, 0, group.place());
          weights.fill(3, 10, 0.5F);
          auto const batch = some_batch(5);
          model.set_batch(batch.inputs, batch.targets, 5);
          forward(model, weights);
          backward(model, weights, gradients);

          auto const& counts = counted.counts();
          auto const& sums = counts.control_of(zero::Op::all_reduce);
          auto const& gathered = counts.control_of(zero::Op::all_gather);
          // One more for the embedding and one for the head.
          auto const calls = static_cast<std::uint64_t>((recompute ? 6 : 4) * layers + 2);
          std::uint64_t const tokens = 15;
          std::uint64_t const one = zero::elements_sent(zero::Op::all_reduce, tokens * 24, ranks);
          auto const peers = static_cast<std::uint64_t>(ranks - 1);
          bool const alone = ranks == 1;
          CHECK(sums.calls == (alone ? 0 : calls));
          CHECK(sums.elements == (alone ? 0 : calls * one));
          CHECK(gathered.calls == (alone ? 0 : 1));
          CHECK(gathered.elements == 3 * tokens * peers);
          CHECK(counts.bucket_total().calls == 0);
          CHECK(counts.control_total().calls == sums.calls + gathered.calls);
        });
      }
    }
  }
}

TEST_CASE("gpt: inputs of blocks are stored going forward, and fetched once each going back") {
  Store<float> weights(small), gradients(small), expected(small);
  weights.fill(3, 10, 0.5F);
  Inputs<float> inputs;
  gpt::Gpt<float> model(small, sequences, {}, &inputs);
  gpt::Gpt<float> reference(small, sequences);
  auto const batch = some_batch(7);
  pass(model, weights, gradients, batch);
  pass(reference, weights, expected, batch);
  CHECK(inputs.stored == std::vector{0, 1, 2});
  CHECK(inputs.fetched == std::vector{2, 1, 0});
  CHECK(same_bits(gradients, expected));
  model.set_batch(batch.inputs, {});  // nothing goes back: nothing is to be kept
  forward(model, weights);
  CHECK(inputs.stored.size() == 3);
}

TEST_CASE("gpt: model-parallel ranks generate the bytes that one rank does") {
  auto const text = [](int ranks) {
    std::vector<std::string> all(static_cast<std::size_t>(ranks));
    zero::run_ranks(ranks, [&](zero::InProcess& comm) {
      gpt::ModelGroup const group(comm);
      Store<float> weights(small, 0, group.place());
      weights.fill(9, 20, 0.5F);
      gpt::Gpt<float> model(small, 1, group);
      all[static_cast<std::size_t>(comm.rank())] =
          gpt::generate(model,
                        [&](gpt::Gpt<float>& at) { forward(at, weights); },
                        {.prompt = "ab", .count = 20, .seed = 4});
    });
    CHECK(std::ranges::count(all, all[0]) == ranks);
    return all[0];
  };
  std::string const one = text(1);
  CHECK(one.size() == 20);
  for (int const ranks : {2, 3, 4}) CHECK(text(ranks) == one);
}

}  // namespace model_parallel_test
