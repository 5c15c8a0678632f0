// The GPT on a device does what the host's does, with the same weights.
#include "cuda/streams.hpp"
#include "device_gpt.hpp"
#include "kernels.cuh"
#include "store.hpp"
#include "support/test.hpp"

namespace device_gpt_test {
namespace {

using gpt_test::Store;

constexpr gpt::Config small{.layers = 2, .heads = 2, .channels = 16, .context = 16};

/// All tensors of a model in one array of a device, each at a multiple of 32 elements as the
/// library has them; the first one `shift` elements behind a multiple of 256 bytes.
template <class T>
class DeviceStore {
 public:
  DeviceStore(zero::space::Cuda const& space, Store<T>& of, std::size_t shift = 0)
      : space_(space), first_(shift) {
    for (std::size_t i = 0; i < of.size(); ++i) {
      begins_.push_back(end_);
      if (of.info(i).tied_to < 0) end_ += zero::round_up(of.info(i).numel(), std::uint64_t{32});
    }
    memory_.emplace(space, std::vector<T>(end_ + shift));
    put(of);
  }
  void put(Store<T>& of) {
    for (std::size_t i = 0; i < of.size(); ++i) {
      space_.upload(at(of, i).data(), of.at(i).data(), of.at(i).size_bytes());
    }
  }
  void get(Store<T>& of) {
    for (std::size_t i = 0; i < of.size(); ++i) {
      space_.download(of.at(i).data(), at(of, i).data(), of.at(i).size_bytes());
    }
  }
  [[nodiscard]] std::vector<std::span<T>> unit(Store<T>& of, int unit) {
    std::vector<std::span<T>> spans;
    for (std::size_t i = 0; i < of.size(); ++i) {
      if (of.info(i).unit == unit) spans.push_back(at(of, i));
    }
    return spans;
  }

 private:
  [[nodiscard]] std::span<T> at(Store<T>& of, std::size_t i) {
    int const tied = of.info(i).tied_to;
    std::size_t const begin = begins_[tied < 0 ? i : static_cast<std::size_t>(tied)];
    return {memory_->data() + first_ + begin, of.info(i).numel()};
  }

  zero::space::Cuda space_;
  std::size_t first_;
  std::size_t end_ = 0;
  std::vector<std::size_t> begins_;
  std::optional<Array<T>> memory_;
};

/// The memory of a device for a model's activations.
class DeviceMemory final : public std::pmr::memory_resource {
 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    return source_.allocate(bytes, alignment);
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    source_.deallocate(memory, bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(memory_resource const& other) const noexcept override {
    return this == &other;
  }
  zero::device::MallocAllocator source_;
};

gpt::Batch batch_of(int sequences) {
  std::vector<std::uint8_t> text(400);
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<std::uint8_t>(gpt::random_bits(3, i));
  }
  gpt::Batch batch;
  gpt::sample_batch(text, {.seed = 5}, sequences, small.context, batch);
  return batch;
}

/// A pass of the host's model, and of the device's.
template <class T>
struct Both {
  explicit Both(int passes, std::size_t shift = 0, int sequences = 3)
      : weights(small), host_gradients(small), device_gradients(small) {
    weights.fill(1, 4.f, 0.5f);
    host_gradients.fill(2, 1.f, 0.1f);  // what was there before
    device_gradients.fill(2, 1.f, 0.1f);
    auto const batch = batch_of(sequences);
    gpt::Gpt<> host(small, sequences);
    OneStream const device;
    DeviceMemory memory;
    gpt::DeviceGpt<T> network(small, 4, device.space, &memory);
    DeviceStore<T> w(device.space, weights, shift);
    DeviceStore<T> g(device.space, device_gradients, shift);
    for (int pass = 0; pass < passes; ++pass) {
      host_loss += static_cast<double>(gpt_test::pass(host, weights, host_gradients, batch, 0.5f));
      network.set_batch(batch.inputs, batch.targets);
      for (int unit = 0; unit < small.units(); ++unit) network.forward(unit, w.unit(weights, unit));
      network.begin_backward(0.5f);
      for (int unit = small.units(); unit-- > 0;) {
        network.backward(unit, w.unit(weights, unit), g.unit(device_gradients, unit));
      }
    }
    device_loss = network.take_losses();
    g.get(device_gradients);
    CHECK(network.take_losses() == 0.);
    CHECK(network.seconds() > 0.);
  }

  Store<T> weights, host_gradients, device_gradients;
  double host_loss = 0;
  double device_loss = 0;
};

/// The distance of two tensors over the length of the first.
template <class T>
double distance(std::span<T> of, std::span<T> from) {
  double apart = 0;
  double length = 0;
  for (std::size_t i = 0; i < of.size(); ++i) {
    auto const a = static_cast<double>(static_cast<float>(of[i]));
    auto const b = static_cast<double>(static_cast<float>(from[i]));
    apart += (a - b) * (a - b);
    length += a * a;
  }
  return std::sqrt(apart / length);
}

template <class T>
void check_near(Both<T>& both, double loss, double gradient) {
  CHECK(both.device_loss == doctest::Approx(both.host_loss).epsilon(loss));
  for (std::size_t i = 0; i < both.weights.size(); ++i) {
    CAPTURE(both.weights.info(i).name);
    CHECK(distance(both.host_gradients.at(i), both.device_gradients.at(i)) < gradient);
  }
}

TEST_CASE("device gpt: losses and gradients are the host's") {
  Both<float> fp32(2);
  check_near(fp32, 1e-6, 1e-5);
  // The host computes in fp32 whatever the weights are.
  Both<zero::bf16> bf16(1);
  check_near(bf16, 5e-3, 3e-2);
}

TEST_CASE("device gpt: the same bits wherever tensors lie, and in every run") {
  Both<float> one(1);
  Both<float> again(1);
  CHECK(one.device_loss == again.device_loss);
  CHECK(gpt_test::same_bits(one.device_gradients, again.device_gradients));
  Both<zero::bf16> here(1);
  for (std::size_t const shift : {32u, 64u, 96u}) {
    Both<float> elsewhere(1, shift);
    CHECK(one.device_loss == elsewhere.device_loss);
    CHECK(gpt_test::same_bits(one.device_gradients, elsewhere.device_gradients));
    Both<zero::bf16> there(1, shift);
    CHECK(here.device_loss == there.device_loss);
    CHECK(gpt_test::same_bits(here.device_gradients, there.device_gradients));
  }
  CHECK_THROWS_WITH_AS(Both<float>(1, 8), doctest::Contains("not aligned"), std::logic_error);
}

TEST_CASE("device gpt: scores behind a sequence that is shorter than the context") {
  Store<float> weights(small);
  weights.fill(1, 4.f, 0.5f);
  auto const batch = batch_of(1);
  gpt::Gpt<> host(small, 1);
  OneStream const device;
  DeviceMemory memory;
  gpt::DeviceGpt<float> network(small, 2, device.space, &memory);
  DeviceStore<float> w(device.space, weights);
  for (int const length : {1, 5, small.context}) {
    auto const bytes = std::span(batch.inputs).first(static_cast<std::size_t>(length));
    host.set_batch(bytes, {}, length);
    network.set_batch(bytes, {}, length);
    gpt_test::forward(host, weights);
    for (int unit = 0; unit < small.units(); ++unit) network.forward(unit, w.unit(weights, unit));
    auto const expected = host.next_scores();
    auto const found = network.next_scores();
    CHECK(distance(expected, found) < 1e-5);
  }
  CHECK_THROWS_AS(
      network.set_batch(std::span(batch.inputs).first(5), std::span(batch.targets).first(5), 5),
      std::invalid_argument);
}

TEST_CASE("device gpt: a sum of columns has many chunks") {
  OneStream const device;
  constexpr std::size_t rows = 128 * 16 + 5;
  constexpr std::size_t columns = 8;
  std::vector<float> values(rows * columns);
  std::vector<float> expected(columns, 1.f);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i * i % 97);  // sums are exact
    expected[i % columns] += values[i];
  }
  CHECK(gpt::kernels::chunks_of(rows) == 121);
  Array<float> const d(device.space, values);
  Array<float> const sums(device.space, std::vector<float>(121 * columns));
  Array<float> const gradient(device.space, std::vector<float>(columns, 1.f));
  auto const& queue = device.space.queue();
  using Term = gpt::kernels::OfRows<float>;
  zero::device::launch_over<gpt::kernels::sum_chunks<float, Term>>(
      queue, "sum_chunks", 121 * columns / 4, Term{d.data()}, sums.data(), rows, columns);
  zero::device::launch_over<gpt::kernels::add_chunks<float>>(
      queue, "add_chunks", columns, sums.data(), gradient.data(), std::size_t{121}, columns);
  CHECK(gradient.values() == expected);
}

TEST_CASE("device gpt: what no device computes is refused") {
  OneStream const device;
  DeviceMemory memory;
  for (gpt::Config const config : {gpt::Config{.context = 12}, gpt::Config{.heads = 32}}) {
    CHECK_THROWS_WITH_AS(gpt::DeviceGpt<float>(config, 1, device.space, &memory),
                         doctest::Contains("multiples of 8"),
                         std::invalid_argument);
  }
}

}  // namespace
}  // namespace device_gpt_test
