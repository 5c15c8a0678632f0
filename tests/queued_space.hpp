/// @file
/// A memory space that puts all work into the queue of a device that is none.
#pragma once

#include "support/standard.hpp"
#include "zero/concepts/space.hpp"
#include "zero/space/host.hpp"

/// Models MemorySpace with the host's kernels.
/// @tparam Queue  points to what has `enqueue(work)`, `require(memory, bytes)`, which refuses what
///   is no memory of the device, and `finish(bytes)`, which does all work for a download
template <class Queue>
class QueuedSpace {
 public:
  static constexpr std::string_view name = "queued";
  static constexpr bool host_accessible = false;
  using Host = zero::space::Host;

  explicit QueuedSpace(Queue queue) : queue_(std::move(queue)) {}

  [[nodiscard]] Queue const& queue() const { return queue_; }

  void zero(void* memory, std::size_t bytes) const {
    queue_->require(memory, bytes);
    queue_->enqueue([=] { Host::zero(memory, bytes); });
  }
  void copy(void* to, void const* from, std::size_t bytes) const {
    queue_->require(to, bytes);
    queue_->require(from, bytes);
    queue_->enqueue([=] { Host::copy(to, from, bytes); });
  }
  void upload(void* to, void const* host, std::size_t bytes) const {
    queue_->require(to, bytes);
    auto const* const from = static_cast<std::byte const*>(host);
    queue_->enqueue([to, bytes, kept = std::vector<std::byte>(from, from + bytes)] {
      Host::upload(to, kept.data(), bytes);
    });
  }
  void download(void* host, void const* from, std::size_t bytes) const {
    queue_->require(from, bytes);
    queue_->enqueue([=] { Host::download(host, from, bytes); });
    queue_->finish(bytes);
  }
  template <class To, class From>
  void convert(To* out, From const* in, std::size_t count) const {
    queue_->require(out, count * sizeof(To));
    queue_->require(in, count * sizeof(From));
    queue_->enqueue([=] { Host::convert(out, in, count); });
  }
  template <class Sum, class From>
  void add(Sum* out, From const* in, std::size_t count) const {
    queue_->require(out, count * sizeof(Sum));
    queue_->require(in, count * sizeof(From));
    queue_->enqueue([=] { Host::add(out, in, count); });
  }
  template <class T>
  void add_squares(zero::ExactSum* sum, T const* x, std::size_t count) const {
    queue_->require(sum, sizeof(*sum));
    queue_->require(x, count * sizeof(T));
    queue_->enqueue([=] { Host::add_squares(sum, x, count); });
  }
  template <class T>
  void add_hash(std::uint64_t* hash, T const* x, std::size_t count, std::uint64_t first) const {
    queue_->require(hash, sizeof(*hash));
    queue_->require(x, count * sizeof(T));
    queue_->enqueue([=] { Host::add_hash(hash, x, count, first); });
  }
  template <class P, class M>
  void find_unrounded(std::uint64_t* first,
                      P const* parameter,
                      M const* master,
                      std::size_t count,
                      std::uint64_t place) const {
    queue_->require(first, sizeof(*first));
    queue_->require(parameter, count * sizeof(P));
    queue_->require(master, count * sizeof(M));
    queue_->enqueue([=] { Host::find_unrounded(first, parameter, master, count, place); });
  }
  template <class F>
  void call(F const& function) const {
    queue_->enqueue(function);
  }
  template <class Rule, class Scalars, class Arrays>
  void update(Rule const& rule,
              zero::StepTerms const* terms,
              Scalars const* scalars,
              Arrays const& arrays) const {
    queue_->require(terms, sizeof(*terms));
    queue_->require(scalars, sizeof(*scalars));
    auto const require = [&](auto const* array) {
      queue_->require(array, arrays.count * sizeof(*array));
    };
    require(arrays.master);
    require(arrays.gradient);
    if (arrays.parameter != nullptr) require(arrays.parameter);
    for (auto const* const state : arrays.state) require(state);
    if constexpr (zero::RandomArrays<Arrays>) {
      queue_->require(arrays.random.seed, sizeof(*arrays.random.seed));
    }
    queue_->enqueue([=] { Host::update(rule, terms, scalars, arrays); });
  }

 private:
  Queue queue_;
};
