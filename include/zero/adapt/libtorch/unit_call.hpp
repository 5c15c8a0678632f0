/// @file
/// What autograd's graph remembers of one call of a unit's forward pass.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"

#include <torch/torch.h>

#include <memory>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::libtorch::detail {

/// One call whose backward pass is expected, as long as its graph lives. `Owner` is told:
/// `expect(unit)`; `enter(unit)` when the backward pass reaches the outputs; `leave(unit)` when it
/// has been through all that the call has computed; `close(unit)` and `forget(unit)` if the graph
/// ends before.
template <class Owner>
class UnitCall {
 public:
  /// @param owner  null after its end, which graphs may outlive
  UnitCall(std::shared_ptr<Owner*> owner, int unit) : owner_(std::move(owner)), unit_(unit) {
    (*owner_)->expect(unit_);
  }
  UnitCall(UnitCall const&) = delete;
  UnitCall& operator=(UnitCall const&) = delete;
  ~UnitCall() {
    if (*owner_ == nullptr) return;
    if (inside_) (*owner_)->close(unit_);
    if (expected_) (*owner_)->forget(unit_);
  }

  void enter() {
    if (*owner_ == nullptr) {
      fail(ErrorKind::invalid_argument, "libtorch: a backward pass after the end of its Sharded");
    }
    // A graph that is kept can be gone through again.
    if (!std::exchange(expected_, true)) (*owner_)->expect(unit_);
    if (inside_) return;
    (*owner_)->enter(unit_);
    inside_ = true;
  }
  void leave() {
    inside_ = false;
    expected_ = false;
    (*owner_)->leave(unit_);
  }

 private:
  std::shared_ptr<Owner*> owner_;
  int unit_;
  bool expected_ = true;
  bool inside_ = false;
};

/// Made before the call. Autograd runs, of all nodes whose turn it can be, the one that was made
/// last, and gradients are added to leaves before anything else: this one comes when all that the
/// call has made is done, whether or not its inputs need gradients.
template <class Owner>
struct CallBegin final : torch::autograd::Node {
  CallBegin() { add_input_metadata(undefined_input()); }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& /*none*/) override {
    if (call != nullptr) call->leave();
    return {};
  }
  std::shared_ptr<UnitCall<Owner>> call;
};

/// Made after the call, between its outputs and those who use them.
template <class Owner>
struct CallEnd final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    call->enter();
    gradients.emplace_back();  // what CallBegin is given
    return std::move(gradients);
  }
  std::shared_ptr<UnitCall<Owner>> call;
};

/// Graphs of newer releases count references within the node.
inline constexpr bool shares_nodes = std::is_same_v<decltype(torch::autograd::Edge::function),
                                                    std::shared_ptr<torch::autograd::Node>>;
template <class NodeT>
using NodePointer =
    std::conditional_t<shares_nodes, std::shared_ptr<NodeT>, c10::intrusive_ptr<NodeT>>;

template <class NodeT>
[[nodiscard]] NodePointer<NodeT> make_node() {
  if constexpr (shares_nodes) {
    // Found with the node: newer releases have none.
    return {new NodeT, [](NodeT* node) { deleteNode(node); }};
  } else {
    return c10::make_intrusive<NodeT>();
  }
}

template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};
template <class T>
concept OptionalLike = requires(T& value) {
  value.has_value();
  *value;
};

/// Calls `visit` on every tensor of what a module has returned.
template <class T, class Visit>
void for_each_tensor(T& value, Visit const& visit) {
  if constexpr (std::is_same_v<T, torch::Tensor>) {
    visit(value);
  } else if constexpr (TupleLike<T>) {
    std::apply([&](auto&... each) { (for_each_tensor(each, visit), ...); }, value);
  } else if constexpr (std::ranges::range<T>) {
    for (auto& each : value) for_each_tensor(each, visit);
  } else if constexpr (OptionalLike<T>) {
    if (value.has_value()) for_each_tensor(*value, visit);
  } else {
    static_assert(std::is_arithmetic_v<T>,
                  "zero: a unit's forward() returns tensors, or tuples, ranges or optionals of "
                  "them");
  }
}

/// Puts the call between its outputs and those who will use them. Outputs that need no gradient
/// stay as they are; the others share their memory, and are no views, so that they may be changed
/// in place.
/// @param all  outputs, too, that need no gradient by themselves
template <class Owner, class T>
void record_call(std::shared_ptr<Owner*> const& owner,
                 int unit,
                 NodePointer<CallBegin<Owner>> const& begin,
                 T& outputs,
                 bool all = false) {
  std::vector<torch::Tensor*> wanted;
  for_each_tensor(outputs, [&](torch::Tensor& output) {
    if (output.defined() && (all || output.requires_grad())) wanted.push_back(&output);
  });
  if (wanted.empty()) return;
  auto const end = make_node<CallEnd<Owner>>();
  for (torch::Tensor* const output : wanted) {
    end->add_next_edge(torch::autograd::impl::gradient_edge(*output));
  }
  end->add_next_edge(torch::autograd::Edge(begin, 0));
  for (torch::Tensor* const output : wanted) {
    torch::Tensor recorded = output->detach();
    torch::autograd::create_gradient_edge(recorded, end);
    *output = std::move(recorded);
  }
  end->call = begin->call = std::make_shared<UnitCall<Owner>>(owner, unit);
}

}  // namespace zero::inline ZERO_NAMESPACE::libtorch::detail
