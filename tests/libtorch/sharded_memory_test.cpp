#include "libtorch/sharded_model.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sharded_memory_test {

using namespace libtorch_tests;
using zero::libtorch::Sharded;

/// Can the first byte be read? The system says so without a signal.
bool readable(torch::Tensor const& tensor) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  bool const read = ::write(ends[1], tensor.data_ptr(), 1) == 1;
  ::close(ends[0]);
  ::close(ends[1]);
  return read;
}

TEST_CASE("outside its window a parameter faults, and so does whatever shares its memory") {
  zero::run_ranks(3, [](zero::InProcess& comm) {
    Net net;
    auto const expected = bytes_of(*net);
    torch::Tensor const alias = net->out->weight.detach();
    torch::Tensor saved;  // a view from within the window, as autograd saves them
    Sharded sharded{comm, *net, net->units(), zero::stage::PosGP{}};
    auto const all_fault = [&] {
      for (auto const& p : net->parameters()) CHECK(!readable(p));
      CHECK(!readable(alias));
      if (saved.defined()) CHECK(!readable(saved));
    };
    all_fault();
    bool called = false;
    auto const loss = net->loss(0, [&](auto& unit, auto const& x) {
      auto y = sharded.forward(unit, x);
      CHECK(!readable(unit->weight));
      if (y.requires_grad()) {
        y.register_hook([&](torch::Tensor const&) {
          called = true;
          CHECK(!readable(unit->weight));  // not yet
        });
      }
      return y;
    });
    all_fault();
    loss.backward();
    CHECK(called);
    all_fault();
    sharded.step();
    all_fault();
    {
      auto const all = sharded.full_parameters();
      CHECK(bytes_of(*net) != expected);
      saved = net->head->weight.t();
      CHECK(readable(saved));
      CHECK(alias.equal(net->out->weight));
      // The units can be called either way.
      torch::NoGradGuard const off;
      CHECK(net->loss(1, plainly).equal(net->loss(1, through(sharded))));
      CHECK(readable(net->out->weight));
    }
    all_fault();
  });
}

/// A layer that looks at its own parameters within the window.
struct WatchedImpl : torch::nn::Module {
  WatchedImpl() { weight = register_parameter("weight", torch::ones({300, 300})); }
  torch::Tensor forward(torch::Tensor const& x) {
    address = weight.data_ptr();
    CHECK(readable(weight));
    return torch::matmul(x, weight.t());
  }
  torch::Tensor weight;
  void* address = nullptr;
};
TORCH_MODULE(Watched);

TEST_CASE("what autograd saved as a view is read where the unit lies in the backward pass") {
  at::set_num_threads(1);
  constexpr std::size_t layers = 4;
  auto const values = [](std::size_t layer) {
    return torch::sin(torch::arange(90000, torch::kDouble) + static_cast<double>(layer))
        .to(torch::kFloat)
        .view({300, 300});
  };
  auto const batch = [] { return torch::ones({2, 300}).set_requires_grad(true); };
  std::vector<Watched> plain;
  torch::Tensor expected = batch();
  torch::Tensor x = expected;
  for (std::size_t i = 0; i < layers; ++i) {
    plain.emplace_back();
    torch::NoGradGuard const off;
    plain.back()->weight.copy_(values(i));
  }
  for (auto& layer : plain) x = torch::tanh(layer->forward(x) / 100);
  x.sum().backward();
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    std::vector<Watched> net(layers);
    torch::nn::ModuleList whole;
    std::vector<zero::libtorch::Unit> units;
    for (std::size_t i = 0; i < layers; ++i) {
      net[i] = Watched();
      whole->push_back(net[i]);
      torch::NoGradGuard const off;
      net[i]->weight.copy_(values(i));
      units.emplace_back(net[i]);
    }
    // One slot, in which every unit lies in turn.
    Sharded sharded{comm, *whole, units, zero::stage::PosGP{}, zero::Prefetch{0}};
    auto const in = batch();
    auto y = in;
    for (auto& layer : net) y = torch::tanh(sharded.forward(layer, y) / 100);
    CHECK(net[0]->address == net[layers - 1]->address);
    y.sum().backward();
    CHECK(in.grad().equal(expected.grad()));
    sharded.zero_grad();
  });
}

/// Bytes of a module and of the library's parameters that are there at once.
struct Watch {
  std::size_t now = 0;
  std::size_t most = 0;
  std::size_t module = 0;
  void add(std::size_t bytes) { most = std::max(most, now += bytes); }
};
struct WatchedAllocator {
  Watch* watch;
  static bool counts(zero::Role role) {
    return role == zero::Role::parameters || role == zero::Role::gather_pool;
  }
  void* allocate(std::size_t bytes, std::size_t alignment) {
    return zero::HostAllocator{}.allocate(bytes, alignment);
  }
  void* allocate(std::size_t bytes, std::size_t alignment, zero::Role role) {
    if (counts(role)) watch->add(bytes);
    return allocate(bytes, alignment);
  }
  void deallocate(void* memory, std::size_t bytes, std::size_t alignment) {
    zero::HostAllocator{}.deallocate(memory, bytes, alignment);
  }
};

TEST_CASE("the model is never whole twice at the start") {
  zero::run_ranks(4, [](zero::InProcess& comm) {
    constexpr std::size_t layers = 16;
    static constexpr std::size_t elements = 20000;
    constexpr auto extent = static_cast<std::int64_t>(elements);
    constexpr std::size_t model = layers * elements * sizeof(float);
    Watch watch;
    auto const fresh = [&] {
      auto* const memory = new float[elements]();
      watch.add(elements * sizeof(float));
      watch.module += elements * sizeof(float);
      return torch::from_blob(
          memory,
          {extent},
          [&watch](void* freed) {
            delete[] static_cast<float*>(freed);
            watch.now -= elements * sizeof(float);
            watch.module -= elements * sizeof(float);
          },
          torch::kFloat);
    };
    std::vector<torch::nn::PReLU> net;
    torch::nn::ModuleList whole;
    std::vector<zero::libtorch::Unit> units;
    for (std::size_t i = 0; i < layers; ++i) {
      net.emplace_back();
      net.back()->weight.set_data(fresh());
      whole->push_back(net.back());
      units.emplace_back(net.back());
    }
    CHECK(watch.now == model);
    {
      Sharded sharded{
          comm, *whole, units, zero::stage::PosGP{}, zero::Owned<WatchedAllocator>{{&watch}}};
      CHECK(watch.module == 0);
      CHECK(watch.now > model / 4);
      CHECK(watch.most < model + model / 2);
      CHECK(watch.now == sharded.core().held()[zero::Role::parameters] +
                             sharded.core().held()[zero::Role::gather_pool]);
    }
    // Up to Pos+g it stays where it is.
    net[0] = torch::nn::PReLU(torch::nn::PReLUOptions().num_parameters(extent));
    void* const place = net[0]->weight.data_ptr();
    Sharded lent{comm, *net[0], {net[0]}, zero::stage::PosG{}};
    CHECK(net[0]->weight.data_ptr() == place);
    CHECK(lent.core().held()[zero::Role::parameters] == 0);
  });
}

TEST_CASE("a unit's gradients are gone when the backward pass comes to the next one") {
  at::set_num_threads(1);
  zero::run_ranks(2, [](zero::InProcess& comm) {
    Net net;
    Sharded sharded{comm, *net, net->units(), zero::stage::PosGP{}};
    int seen = 0;
    auto const defined = [&] {
      int count = 0;
      for (auto const& p : net->parameters()) count += p.grad().defined() ? 1 : 0;
      return count;
    };
    net->loss(0,
              [&](auto& unit, auto const& x) {
                auto const y = sharded.forward(unit, x);
                if (y.requires_grad()) {
                  y.register_hook([&](torch::Tensor const&) {
                    ++seen;
                    CHECK(defined() == 0);
                  });
                }
                return y;
              })
        .backward();
    CHECK(seen == 5);
    CHECK(defined() == 0);
    sharded.step();
  });
}

TEST_CASE("a parameter that was given other memory is refused") {
  zero::Self comm;
  torch::nn::Linear layer(3, 3);
  Sharded sharded{comm, *layer, {layer}, zero::stage::PosGP{}};
  layer->weight.set_data(torch::ones({3, 3}));
  std::string text;
  try {
    static_cast<void>(sharded.forward(layer, torch::ones({1, 3})));
  } catch (zero::Error const& error) {
    text = error.what();
  }
  CHECK(text.find("parameter 'weight' was given other memory") != std::string::npos);
}

}  // namespace sharded_memory_test
