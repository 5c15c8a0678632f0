#include "libtorch/sharded_model.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace sharded_memory_test {

using namespace libtorch_tests;
using zero::libtorch::Optimizer;
using zero::libtorch::Sharded;
using zero::stage::PosG, zero::stage::PosGP;

/// Can the first byte be read? The system says so without a signal, if LibTorch does not before.
bool readable(torch::Tensor const& tensor) {
  void const* data = nullptr;
  try {
    data = tensor.data_ptr();
  } catch (c10::Error const& error) {
    std::string const text = error.what_without_backtrace();
    CHECK_MESSAGE(text.find("' or a view of it is used outside of unit ") != text.npos, text);
    return false;
  }
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  bool const read = ::write(ends[1], data, 1) == 1;
  ::close(ends[0]);
  ::close(ends[1]);
  return read;
}

TEST_CASE("outside its window a parameter faults, as what shares its memory, and has no gradient") {
  zero::run_ranks(3, [](zero::InProcess& comm) {
    Net net;
    auto const expected = bytes_of(*net);
    torch::Tensor const alias = net->out->weight.detach();
    torch::Tensor saved;  // a view from within the window, as autograd saves them
    Sharded sharded{comm, *net, net->units(), PosGP{}};
    auto const all_fault = [&] {
      for (auto const& p : net->parameters()) {
        CHECK(!readable(p));
        CHECK(!p.grad().defined());
      }
      CHECK(!readable(alias));
      if (saved.defined()) CHECK(!readable(saved));
    };
    all_fault();
    int called = 0;
    auto const loss = net->loss(0, [&](auto& unit, auto const& x) {
      auto y = sharded.forward(unit, x);
      CHECK(!readable(unit->weight));
      if (y.requires_grad()) {
        y.register_hook([&](torch::Tensor const&) {
          ++called;
          all_fault();  // it is not the unit's turn yet, and the one before is done
        });
      }
      return y;
    });
    all_fault();
    loss.backward();
    CHECK(called == 5);
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

/// A list of modules, and each of them as a unit.
template <class Module>
std::pair<torch::nn::ModuleList, std::vector<zero::libtorch::Unit>> listed(
    std::vector<Module> const& modules) {
  torch::nn::ModuleList whole;
  for (auto const& each : modules) whole->push_back(each);
  return {whole, {modules.begin(), modules.end()}};
}

TEST_CASE("what autograd saved as a view is read where the unit lies in the backward pass") {
  at::set_num_threads(1);
  auto const layers = [] {
    std::vector<Watched> net(4);
    for (std::size_t i = 0; i < net.size(); ++i) fill(*net[i], static_cast<double>(i));
    return net;
  };
  auto const gradient = [](std::vector<Watched>& net, auto const& call) {
    auto const in = torch::ones({2, 300}).set_requires_grad(true);
    auto x = in;
    for (auto& layer : net) x = torch::tanh(call(layer, x) / 100);
    x.sum().backward();
    return in.grad();
  };
  auto plain = layers();
  auto const expected = gradient(plain, plainly);
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    auto net = layers();
    auto [whole, units] = listed(net);
    // One slot, in which every unit lies in turn.
    Sharded sharded{comm, *whole, units, PosGP{}, zero::Prefetch{0}};
    CHECK(gradient(net, through(sharded)).equal(expected));
    CHECK(net.front()->address == net.back()->address);
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
    std::vector<torch::nn::PReLU> net(layers);
    for (auto& layer : net) layer->weight.set_data(fresh());
    auto [whole, units] = listed(net);
    CHECK(watch.now == model);
    {
      Sharded sharded{comm, *whole, units, PosGP{}, zero::Owned<WatchedAllocator>{{&watch}}};
      CHECK(watch.module == 0);
      CHECK(watch.now > model / 4);
      CHECK(watch.most < model + model / 2);
      CHECK(watch.now == sharded.core().held()[zero::Role::parameters] +
                             sharded.core().held()[zero::Role::gather_pool]);
    }
    // Up to Pos+g it stays where it is.
    net[0] = torch::nn::PReLU(torch::nn::PReLUOptions().num_parameters(extent));
    void* const place = net[0]->weight.data_ptr();
    Sharded lent{comm, *net[0], {net[0]}, PosG{}};
    CHECK(net[0]->weight.data_ptr() == place);
    CHECK(lent.core().held()[zero::Role::parameters] == 0);
  });
}

TEST_CASE("a parameter that was given other memory is refused") {
  zero::Self comm;
  auto const check = [&](auto stage) {
    torch::nn::Linear layer(3, 3);
    Sharded sharded{comm, *layer, {layer}, stage};
    {
      auto const all = sharded.full_parameters();
      layer->weight.set_data(torch::ones({3, 3}));
    }
    std::string const why = "parameter 'weight' was given other memory";
    check_refused([&] { static_cast<void>(sharded.forward(layer, torch::ones({1, 3}))); }, why);
    check_refused([&] { sharded.step(); }, why);
    check_refused([&] { static_cast<void>(sharded.full_parameters()); }, why);
  };
  check(PosG{});
  check(PosGP{});
}

TEST_CASE("values that are written into a window, and would be lost, are refused") {
  zero::Self comm;
  torch::nn::Linear layer(3, 3);
  auto const check = [&](bool expected, auto stage, auto const& write) {
    layer = torch::nn::Linear(3, 3);
    Sharded sharded{comm, *layer, {layer}, stage};
    write(sharded);
    std::string const text = refusal([&] { sharded.step(); });
    CAPTURE(text);
    CHECK(text.empty() != expected);
    bool const says = text.find("parameter 'weight' was written to in its window") != text.npos;
    CHECK(says == expected);
  };
  auto const clamp = [&](auto& sharded) {
    auto const all = sharded.full_parameters();
    torch::NoGradGuard const off;
    layer->weight.clamp_(-1, 1);
  };
  auto const read = [&](auto& sharded) {
    sharded.forward(layer, torch::ones({1, 3})).sum().backward();
    sharded.step();
    auto const all = sharded.full_parameters();
    CHECK(layer->weight.sum().template item<float>() < 9.f);
  };
  check(false, PosG{}, clamp);  // where it stays
  check(false, PosG{}, read);
  check(false, PosGP{}, read);
  check(true, PosGP{}, clamp);
}

TEST_CASE("a parameter without values is one on which LibTorch refuses to work") {
  zero::Self comm;
  torch::nn::Linear net(3, 3);
  torch::Tensor const p = net->weight;
  auto const plain = [] { return torch::ones({3, 3}); };
  auto const refused = [&](char const* what, auto const& act) {
    CAPTURE(what);
    torch::NoGradGuard const off;  // as code has it that changes parameters
    for (bool const with_graph : {false, true}) {
      torch::AutoGradMode const mode(with_graph);
      std::string text;
      try {
        static_cast<void>(act());
      } catch (c10::Error const& error) {
        text = error.what_without_backtrace();
      }
      // Words that the guide quotes, where they are searched for.
      bool const quoted =
          text.find(
              "libtorch: parameter 'weight' or a view of it is used outside of unit 0, "
              "without which it has no values") != std::string::npos ||
          text.find("its data is not allocated yet") != std::string::npos ||
          text.find("to a storage on different device \"fpga\"") != std::string::npos;
      CHECK_MESSAGE(quoted, text);
    }
  };
  auto const nothing_works = [&] {
    refused("its layer", [&] { return net->forward(plain()); });
    refused("F::linear", [&] { return torch::nn::functional::linear(plain(), p); });
    refused("embedding", [&] { return torch::embedding(p, torch::arange(2)); });
    refused("matmul", [&] { return torch::matmul(plain(), p); });
    refused("to(type)", [&] { net->to(torch::kDouble); });
    refused("to(device)", [&] { net->to(torch::kCPU); });
    refused("set_data", [&] { p.set_data(plain()); });
    refused("clone", [&] { return p.clone(); });
    refused("Module::clone", [&] { return net->clone(); });
    refused("detach", [&] { return p.detach(); });
    refused("view", [&] { return p.view({-1}); });
    refused("[0]", [&] { return p[0]; });
    refused("a sum", [&] { return p + 1; });
    refused("another's sum", [&] { return plain().add_(p); });
    refused("copy from it", [&] { return plain().copy_(p); });
    refused("copy to it", [&] { return p.copy_(plain()); });
    refused("fill", [&] { return p.fill_(1); });
    refused("init", [&] { return torch::nn::init::xavier_uniform_(p); });
    refused("data() in place", [&] { return p.data().clamp_(-1, 1); });
    refused("norm", [&] { return p.norm(); });
    refused("equal", [&] { return p.equal(plain()); });
    refused("data_ptr<T>", [&] { return p.data_ptr<float>(); });
    refused("accessor", [&] { return p.accessor<float, 2>()[0][0]; });
    refused("parameters_to_vector",
            [&] { return torch::nn::utils::parameters_to_vector(net->parameters()); });
    refused("print", [&] { std::ostringstream() << p; });
    refused("save", [&] {
      std::ostringstream out;
      torch::save(net, out);
    });
    refused("load", [&] {
      std::stringstream file;
      torch::save(torch::nn::Linear(3, 3), file);
      torch::load(net, file);
    });
    refused("torch::optim", [&] {
      p.mutable_grad() = plain();
      torch::optim::SGD opt(net->parameters(), 0.1);
      try {
        opt.step();
      } catch (...) {
        p.mutable_grad() = torch::Tensor();
        throw;
      }
    });
    CHECK(!readable(p));
    CHECK(p.sizes() == torch::IntArrayRef({3, 3}));
    CHECK(p.requires_grad());
  };
  std::string const held = "parameter 'weight' has no values: its module is, or was, of a Sharded";
  auto const nothing_is_made = [&] {
    check_refused([&] { Optimizer opt(comm, *net); }, held);
    check_refused([&] { Sharded again(comm, *net, {net}, PosG{}); }, held);
  };
  {
    Sharded sharded{comm, *net, {net}, PosGP{}};
    nothing_works();
    nothing_is_made();
    int called = 0;
    net->weight.register_hook([&](torch::Tensor const&) { ++called; });
    sharded.forward(net, plain()).sum().backward();
    CHECK(called == 1);
    nothing_works();
    sharded.step();
    nothing_works();
  }
  nothing_works();
  nothing_is_made();
}

TEST_CASE("a frozen base is partitioned, and gathered with its unit, unless it is to be whole") {
  at::set_num_threads(1);
  for (bool const whole : {false, true}) {
    CAPTURE(whole);
    zero::run_ranks(4, [&](zero::InProcess& comm) {
      torch::nn::Linear base(torch::nn::LinearOptions(64, 64).bias(false));
      torch::nn::Linear head(64, 2);
      torch::nn::ModuleList net(base, head);
      fill(*net, 0.);
      base->weight.set_requires_grad(false);
      auto const frozen = bytes_of(*base);
      auto const trained = bytes_of(*head);
      auto model = zero::libtorch::describe(*net, {base, head});
      for (zero::Tensor& tensor : model.tensors) tensor.whole = whole && tensor.frozen;
      Sharded sharded{comm, std::move(model), PosGP{}};
      // What is trained takes a block of 512 elements of each rank.
      CHECK(sharded.core().held()[zero::Role::parameters] == 4 * ((whole ? 4096 : 1024) + 512));
      CHECK(sharded.core().held() == sharded.core().plan().memory);
      for (int step = 0; step < 2; ++step) {
        auto const x = sharded.forward(base, torch::ones({3, 64}));
        sharded.forward(head, x).square().mean().backward();
        sharded.step();
      }
      auto const all = sharded.full_parameters();
      CHECK(bytes_of(*base) == frozen);
      CHECK(bytes_of(*head) != trained);
    });
  }
}

struct EmptyImpl : torch::nn::Module {
  EmptyImpl() {
    none = register_parameter("none", torch::ones({0, 3}));
    weight = register_parameter("weight", torch::ones({3}));
  }
  torch::Tensor forward(torch::Tensor const& x) { return torch::cat({x, none}) * weight; }
  torch::Tensor none, weight;
};
TORCH_MODULE(Empty);

TEST_CASE("a parameter without elements is in use as it is") {
  zero::Self comm;
  Empty net;
  Sharded sharded{comm, *net, {net}, PosGP{}, zero::PlainSgd{.lr = 1.f}};
  sharded.forward(net, torch::ones({2, 3})).sum().backward();
  sharded.step();
  CHECK(sharded.forward(net, torch::ones({2, 3})).equal(torch::full({2, 3}, -1.)));
}

}  // namespace sharded_memory_test
