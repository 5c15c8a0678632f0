#include "model.hpp"

#include "sample.hpp"
#include "store.hpp"
#include "support/test.hpp"
#include "text.hpp"

#include <ios>
#include <memory_resource>

namespace model_test {

using namespace gpt_test;

// The least that the model asks of a 16-bit type; truncating bfloat16.
struct Half {
  std::uint16_t bits = 0;
  Half() = default;
  explicit Half(float value)
      : bits(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16U)) {}
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
  }
};

// Counts what a model asks for.
class CountingMemory final : public std::pmr::memory_resource {
 public:
  std::size_t calls = 0;
  std::size_t held = 0;

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    ++calls;
    held += bytes;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    held -= bytes;
    std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(memory_resource const& other) const noexcept override {
    return this == &other;
  }
};

TEST_CASE("gpt: the tensors are those of GPT-2") {
  gpt::Config const config{.layers = 3, .heads = 2, .channels = 8, .context = 16};
  auto const all = gpt::tensors(config);
  REQUIRE(all.size() == 2 + 12 * 3 + 3);
  CHECK(all[0].name == "wte");
  CHECK(all[0].shape == std::vector<std::size_t>{256, 8});
  CHECK(all[1].shape == std::vector<std::size_t>{16, 8});
  CHECK(all[4].name == "h0.qkv.w");
  CHECK(all[4].shape == std::vector<std::size_t>{24, 8});
  CHECK(all.back().tied_to == 0);
  CHECK(all.back().shape == all[0].shape);
  std::size_t own = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0) CHECK(all[i].unit >= all[i - 1].unit);
    CHECK(all[i].decay == (all[i].shape.size() == 2));
    if (all[i].tied_to < 0) own += all[i].numel();
  }
  CHECK(all.back().unit == config.head_unit());
  CHECK(own == 256 * 8 + 16 * 8 + 3 * (12 * 8 * 8 + 13 * 8) + 2 * 8);
  CHECK_THROWS_AS(static_cast<void>(gpt::tensors({.heads = 3, .channels = 8})),
                  std::invalid_argument);
}

TEST_CASE("gpt: any range of a rank's part of a tensor can be initialised alone") {
  gpt::Config const config{.layers = 2, .heads = 12, .channels = 36, .context = 8};
  auto const all = gpt::tensors(config);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(all[i].name);
    int const tensor = static_cast<int>(i);
    std::vector<float> whole(all[i].numel());
    gpt::initial_values(config, 7, tensor, 0, whole);
    for (gpt::ModelRank const of : {gpt::ModelRank{}, {1, 2}, {0, 3}, {2, 3}, {3, 4}}) {
      auto const place = places(config, of, all[i]);
      std::vector<float> expected(place.size()), part(place.size());
      for (std::size_t j = 0; j < place.size(); ++j) expected[j] = whole[place[j]];
      for (std::size_t first = 0; first < part.size(); first += 37) {
        std::size_t const count = std::min<std::size_t>(37, part.size() - first);
        gpt::initial_values(config, 7, tensor, first, std::span(part).subspan(first, count), of);
      }
      CHECK(part == expected);
    }
    double const square = std::inner_product(whole.begin(), whole.end(), whole.begin(), 0.0);
    double const deviation = std::sqrt(square / static_cast<double>(whole.size()));
    bool const residual = all[i].name.ends_with("proj.w");
    double const expected = all[i].shape.size() == 2      ? (residual ? 0.01 : 0.02)
                            : all[i].name.ends_with(".g") ? 1
                                                          : 0;
    CHECK(deviation == doctest::Approx(expected).epsilon(0.2));
  }
  std::vector<float> token(10), head(10), other(10);
  gpt::initial_values(config, 7, 0, 90, token);
  gpt::initial_values(config, 7, static_cast<int>(all.size()) - 1, 90, head);
  gpt::initial_values(config, 8, 0, 90, other);
  CHECK(token == head);
  CHECK(token != other);
  for (gpt::ModelRank const of : {gpt::ModelRank{}, {1, 4}}) {
    std::size_t const end = gpt::tensors(config, of)[0].numel();
    CHECK_THROWS_AS(gpt::initial_values(config, 7, 0, end - 9, token, of), std::out_of_range);
  }
  CHECK_THROWS_AS(gpt::initial_values(config, 7, -1, 0, token), std::out_of_range);
}

TEST_CASE("gpt: an untrained model finds all bytes about equally likely") {
  gpt::Config const config{.layers = 2, .heads = 4, .channels = 64, .context = 32};
  Store<float> weights(config);
  weights.fill(1, 1, 0);
  gpt::Gpt<float> model(config, sequences);
  auto const batch = some_batch(config.context);
  model.set_batch(batch.inputs, batch.targets);
  forward(model, weights);
  CHECK(model.loss() == doctest::Approx(std::log(256.0)).epsilon(0.03));
  CHECK(model.logits().size() == batch.inputs.size() * 256);
}

TEST_CASE("gpt: a byte never sees the bytes after it") {
  Store<float> weights(tiny);
  weights.fill(2, 20, 0.5);
  gpt::Gpt<float> model(tiny, 1);
  std::array<std::uint8_t, 5> text{1, 2, 3, 4, 5};
  model.set_batch(text, {});
  forward(model, weights);
  std::vector<float> const before(model.logits().begin(), model.logits().end());
  text.back() = 9;
  model.set_batch(text, {});
  forward(model, weights);
  CHECK(
      std::equal(before.begin(), before.begin() + std::ptrdiff_t{4} * 256, model.logits().begin()));
  CHECK_FALSE(std::equal(before.begin(), before.end(), model.logits().begin()));
  CHECK_THROWS_AS(static_cast<void>(model.loss()), std::logic_error);
}

TEST_CASE("gpt: results do not depend on where the caller's memory lies") {
  gpt::Config const config{.layers = 2, .heads = 3, .channels = 39, .context = 17};
  auto const batch = some_batch(config.context);
  Store<float> weights(config), gradients(config);
  weights.fill(3, 10, 0.5);
  gpt::Gpt<float> model(config, sequences);
  float const loss = pass(model, weights, gradients, batch);
  for (std::size_t const shift : {1U, 3U, 5U, 8U}) {
    Store<float> moved(config, shift), result(config, shift);
    moved.fill(3, 10, 0.5);
    gpt::Gpt<float> fresh(config, sequences + 1);
    CHECK(pass(fresh, moved, result, batch) == loss);
    CHECK(same_bits(gradients, result));
    // Nor on what the model computed before.
    Store<float> again(config);
    Store<float> ignored(config);
    pass(fresh, moved, result, some_batch(config.context, shift));
    CHECK(pass(fresh, weights, again, batch) == loss);
    CHECK(same_bits(gradients, again));
  }
}

TEST_CASE("gpt: all memory is taken at construction, once, from where the caller says") {
  CountingMemory memory;
  {
    gpt::Gpt<float> model(tiny, sequences, {}, nullptr, &memory);
    // Each buffer, and nothing beside them to copy from: two blocks with two layernorms each, the
    // last one, three residuals, copies of a block's 12 tensors and their gradients, ten more.
    std::size_t const calls = memory.calls;
    std::size_t const held = memory.held;
    CHECK(calls == 2 * (2 * 3 + 6) + 3 + 3 + 2 * 12 + 10);
    Store<float> weights(tiny), gradients(tiny);
    weights.fill(4, 10, 0.5);
    auto const batch = some_batch(tiny.context);
    CHECK(std::isfinite(pass(model, weights, gradients, batch)));
    CHECK(std::isfinite(pass(model, weights, gradients, batch)));
    CHECK(memory.calls == calls);
    CHECK(memory.held == held);
    // Three residuals, and of two blocks, per token: two layernorms, middle, attended, qkv, two
    // MLP.
    std::size_t const narrow = sequences * 5 * 6 * sizeof(float);
    CHECK(held > narrow * (3 + 2 * (2 + 1 + 1 + 3 + 8)));
  }
  CHECK(memory.held == 0);
}

TEST_CASE("gpt: gradients are added to, and scaled") {
  Store<float> weights(tiny), once(tiny), twice(tiny);
  weights.fill(4, 10, 0.5);
  gpt::Gpt<float> model(tiny, sequences);
  auto const batch = some_batch(tiny.context);
  pass(model, weights, once, batch, 2.F);
  pass(model, weights, twice, batch, 1.F);
  pass(model, weights, twice, batch, 1.F);
  for (std::size_t i = 1; i + 1 < once.size(); ++i) {  // a factor of 2 is exact
    CHECK(std::ranges::equal(once.at(i), twice.at(i)));
  }
  for (std::size_t j = 0; j < once.at(0).size(); ++j) {  // wte sums two parts, in another order
    CHECK(once.at(0)[j] == doctest::Approx(twice.at(0)[j]).epsilon(1e-5));
  }
}

TEST_CASE("gpt: weights and gradients may be 16-bit") {
  Store<float> exact(tiny), gradients(tiny);
  Store<Half> weights(tiny), rounded(tiny);
  weights.fill(4, 10, 0.5);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    std::ranges::transform(
        weights.at(i), exact.at(i).begin(), [](Half value) { return static_cast<float>(value); });
  }
  gpt::Gpt<float> model(tiny, sequences);
  auto const batch = some_batch(tiny.context);
  float const loss = pass(model, exact, gradients, batch);
  CHECK(pass(model, weights, rounded, batch) == loss);
  for (std::size_t i = 1; i + 1 < exact.size(); ++i) {  // wte is added to twice, rounding twice
    CHECK(std::ranges::equal(gradients.at(i), rounded.at(i), [](float full, Half half) {
      return static_cast<float>(Half(full)) == static_cast<float>(half);
    }));
  }
}

TEST_CASE("gpt: plain gradient descent learns one batch by heart") {
  Store<float> weights(tiny);
  weights.fill(6, 10, 0);
  gpt::Gpt<float> model(tiny, sequences);
  auto const batch = some_batch(tiny.context);
  float loss = 0;
  for (int step = 0; step < 200; ++step) {
    Store<float> gradients(tiny);
    loss = pass(model, weights, gradients, batch);
    for (std::size_t i = 0; i + 1 < weights.size(); ++i) {
      for (std::size_t j = 0; j < weights.at(i).size(); ++j) {
        weights.at(i)[j] -= 0.3F * gradients.at(i)[j];
      }
    }
  }
  CHECK(loss < 0.5F);
}

TEST_CASE("gpt: calls out of order or of the wrong size are refused") {
  Store<float> weights(tiny), gradients(tiny);
  gpt::Gpt<float> model(tiny, 1);
  auto const batch = some_batch(tiny.context);
  CHECK_THROWS_AS(model.set_batch(batch.inputs, batch.targets), std::invalid_argument);
  auto const inputs = std::span(batch.inputs).first(5);
  auto const targets = std::span(batch.targets).first(5);
  CHECK_THROWS_AS(model.set_batch(inputs, targets.first(4)), std::invalid_argument);
  CHECK_THROWS_AS(model.set_batch(inputs, targets, 6), std::invalid_argument);
  CHECK_THROWS_AS(model.forward(0, weights.unit(0)), std::logic_error);
  model.set_batch(inputs, targets);
  CHECK_THROWS_AS(model.forward(1, weights.unit(1)), std::logic_error);
  CHECK_THROWS_AS(model.forward(0, weights.unit(1)), std::logic_error);
  CHECK_THROWS_AS(model.begin_backward(), std::logic_error);
  forward(model, weights);
  CHECK_THROWS_AS(model.backward(3, weights.unit(3), gradients.unit(3)), std::logic_error);
  model.begin_backward();
  CHECK_THROWS_AS(model.backward(3, weights.unit(3), gradients.unit(2)), std::logic_error);
  model.backward(3, weights.unit(3), gradients.unit(3));
  CHECK_THROWS_AS(model.backward(3, weights.unit(3), gradients.unit(3)), std::logic_error);
  for (int unit = 3; unit-- > 0;) model.backward(unit, weights.unit(unit), gradients.unit(unit));
  CHECK_THROWS_AS(model.backward(-1, weights.unit(0), gradients.unit(0)), std::logic_error);
  CHECK_THROWS_AS(model.forward(4, weights.unit(3)), std::logic_error);
  CHECK_THROWS_AS(model.begin_backward(), std::logic_error);
}

TEST_CASE("gpt: a batch is a function of seed, step and global micro-batch") {
  std::vector<std::uint8_t> text(1000);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::uint8_t>(i * 7);
  auto const draw = [&](gpt::BatchKey const& key) {
    gpt::Batch batch;
    gpt::sample_batch(text, key, 4, 16, batch);
    return batch;
  };
  auto const first = draw({1, 2, 3});
  REQUIRE(first.inputs.size() == 4 * 16);
  CHECK(first.inputs == draw({1, 2, 3}).inputs);
  CHECK(first.targets == draw({1, 2, 3}).targets);
  CHECK(first.inputs != draw({2, 2, 3}).inputs);
  CHECK(first.inputs != draw({1, 3, 3}).inputs);
  CHECK(first.inputs != draw({1, 2, 4}).inputs);
  for (std::size_t i = 0; i < first.inputs.size(); ++i) {
    CHECK(first.targets[i] == static_cast<std::uint8_t>(first.inputs[i] + 7));
  }
  gpt::Batch batch;
  CHECK_NOTHROW(gpt::sample_batch(std::span(text).first(17), {}, 1, 16, batch));
  CHECK(batch.targets.back() == text[16]);
  CHECK_THROWS_AS(gpt::sample_batch(std::span(text).first(16), {}, 1, 16, batch),
                  std::invalid_argument);
}

TEST_CASE("gpt: text is read from files, the end of each kept for validation") {
  auto const folder = std::filesystem::temp_directory_path();
  std::string const name = "zero_gpt_text_" + std::to_string(std::random_device{}());
  std::array const files{folder / (name + "a"), folder / (name + "b")};
  std::ofstream(files[0], std::ios::binary) << "abcdefghij";
  std::ofstream(files[1], std::ios::binary) << std::string(
      "\0\xff"
      "2345678",
      9);
  auto const text = gpt::load_text(files, 0.25);
  for (auto const& file : files) std::filesystem::remove(file);
  CHECK(std::string(text.training.begin(), text.training.end()) == std::string("abcdefg\0\xff"
                                                                               "2345",
                                                                               13));
  CHECK(std::string(text.validation.begin(), text.validation.end()) == "hij678");
  CHECK_THROWS_AS(static_cast<void>(gpt::load_text(files)), std::runtime_error);
}

TEST_CASE("gpt: bytes are drawn from the softmax") {
  std::array<float, 3> const logits{0, std::log(2.F), std::log(5.F)};
  std::span<float const> const view(logits);
  CHECK(gpt::choose(view, 1, 0) == 0);
  CHECK(gpt::choose(view, 1, 0.124) == 0);
  CHECK(gpt::choose(view, 1, 0.126) == 1);
  CHECK(gpt::choose(view, 1, 0.374) == 1);
  CHECK(gpt::choose(view, 1, 0.376) == 2);
  CHECK(gpt::choose(view, 1, 0.999999) == 2);
  CHECK(gpt::choose(view, 0, 0) == 2);
  CHECK(gpt::choose(view, 1e-3, 0.001) == 2);
  CHECK_THROWS_AS(static_cast<void>(gpt::choose(view, -1, 0)), std::invalid_argument);
}

TEST_CASE("gpt: generation continues past the context and repeats with its seed") {
  Store<float> weights(tiny);
  weights.fill(9, 20, 0.5);
  gpt::Gpt<float> model(tiny, 1);
  auto const run = [&](std::uint64_t seed, double temperature) {
    return gpt::generate(model,
                         [&](gpt::Gpt<float>& at) { forward(at, weights); },
                         {.prompt = "ab", .count = 20, .temperature = temperature, .seed = seed});
  };
  CHECK(run(1, 1).size() == 20);
  CHECK(run(1, 1) == run(1, 1));
  CHECK(run(1, 1) != run(2, 1));
  CHECK(run(1, 0) == run(2, 0));
}

}  // namespace model_test
