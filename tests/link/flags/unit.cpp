// Built once for every set of flags; UNIT is the name by which a program asks for it. Over threads
// it is what zero::compiled contains (zero/compiled.hpp).
#include "unit.hpp"

#if defined(OVER_THREADS)
#include <zero/zero.hpp>
#else
#include <zero/comm/self.hpp>
#include <zero/rule/adamw.hpp>
#include <zero/sharded_optimizer.hpp>
#endif

#include <algorithm>
#include <cstddef>
#include <exception>
#include <string>
#include <utility>

namespace {

template <class Communicator>
zero::StepReport train_on(Communicator& comm,
                          std::vector<zero::Tensor> const& model,
                          std::span<float> result) {
  zero::ShardedOptimizer<Communicator, zero::stage::PosG, zero::Fp32, zero::AdamW> optimizer{
      comm, model, zero::AdamW{.lr = 0.1f}};
  optimizer.load_parameters([](zero::Tensor const&, std::size_t first, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = 0.01f * static_cast<float>(first + i);
  });
  zero::StepReport report;
  for (int step = 0; step < 20; ++step) {
    auto gradients = optimizer.gradients(0);
    int i = 0;
    for (float& gradient : gradients[0]) gradient = 0.01f * static_cast<float>(++i % 7) - 0.02f;
    optimizer.reduce(std::move(gradients));
    report = optimizer.step({.max_norm = 0.1});
  }
  auto const weights = optimizer.parameters(0);
  std::ranges::copy(weights[0], result.begin());
  return report;
}

zero::StepReport train(std::vector<zero::Tensor> const& model, std::span<float> result) {
  zero::StepReport report;
#if defined(OVER_THREADS)
  zero::run_ranks(1, [&](zero::InProcess& comm) { report = train_on(comm, model, result); });
#else
  zero::Self comm;
  report = train_on(comm, model, result);
#endif
  return report;
}

zero::StepResult fails() {
  return zero::Error(
      zero::ErrorKind::data, "no data", {.rank = 3}, zero::SourceLocation::current());
}

#if defined(__cpp_exceptions)
void throws() { static_cast<void>(zero::Placement({zero::Tensor{}})); }

bool catches(void (*other)()) {
  try {
    other();
  } catch (zero::Error const& error) {
    return error.kind() == zero::ErrorKind::invalid_argument &&
           error.what() == std::string("zero: invalid argument: tensor 0 has no name");
  } catch (std::exception const&) {
  }
  return false;
}
#endif

}  // namespace

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

extern Unit const UNIT;
#if defined(__cpp_exceptions)
Unit const UNIT{TEXT(UNIT), train, fails, throws, catches};
#else
Unit const UNIT{TEXT(UNIT), train, fails, nullptr, nullptr};
#endif
