/// @file
/// What autograd's graph remembers of one call of a unit's forward pass.
#pragma once

#include "zero/adapt/libtorch/model_description.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::libtorch::detail {

/// One call whose backward pass is expected, as long as its graph lives. `Owner` is told:
/// `expect(unit)`; `enter(unit, whole)` when a backward pass comes to what the call has computed,
/// and is about to read the unit's parameters; `close(unit)` when it will not do so, at least for
/// now; `leave(unit)` when nothing more is expected of the call; `forget(unit)` if the graph ends
/// before.
///
/// A pass that comes through the outputs ends where the call began. Others do not come there: that
/// of a list of inputs, and of what was computed in a backward pass (`create_graph`). Their calls
/// are closed when the pass comes to another unit, or ends.
template <class Owner>
class UnitCall {
 public:
  /// @param owner   null after its end, which graphs may outlive
  /// @param around  the call within whose forward pass this one is, if any
  UnitCall(std::shared_ptr<Owner*> owner, int unit, std::shared_ptr<UnitCall> around)
      : owner_(std::move(owner)), unit_(unit), around_(std::move(around)) {
    (*owner_)->expect(unit_);
  }
  UnitCall(UnitCall const&) = delete;
  UnitCall& operator=(UnitCall const&) = delete;
  ~UnitCall() {
    if (*owner_ == nullptr) return;
    exit();
    if (expected_) (*owner_)->forget(unit_);
  }

  /// @param outputs  the pass comes through the outputs
  void enter(bool outputs) {
    if (*owner_ == nullptr) {
      fail(ErrorKind::invalid_argument, "libtorch: a backward pass after the end of its Sharded");
    }
    if (!outputs && inside()) return;
    auto const* const pass = torch::autograd::get_current_graph_task_exec_info();
    bool const whole = pass != nullptr && pass->empty();
    // A graph that is kept can be gone through again.
    if (outputs && whole && !std::exchange(expected_, true)) (*owner_)->expect(unit_);
    if (!inside()) {
      close_pass(**owner_, pass, this);
      if (around_ != nullptr) around_->enter(false);
      if (!inside_) {
        (*owner_)->enter(unit_, whole);
        (*owner_)->entered().push_back(this);
        inside_ = true;
      }
      pass_ = pass;
      ends_ = false;
    }
    if (outputs && whole) ends_ = true;
    if (ends_) return;
    torch::autograd::Engine::get_default_engine().queue_callback([owner = owner_, pass] {
      if (*owner != nullptr) close_pass(**owner, pass);
    });
  }
  /// The pass comes to where the call began.
  void leave() {
    exit();
    // Whoever keeps a graph is about to go through it, or what was made of it, again.
    if (torch::autograd::get_current_graph_task_keep_graph()) return;
    expected_ = false;
    (*owner_)->leave(unit_);
  }
  void exit() noexcept {
    if (!std::exchange(inside_, false)) return;
    std::erase((*owner_)->entered(), this);
    (*owner_)->close(unit_);
  }

 private:
  /// Closes what a pass has entered.
  /// @param next  if it goes on: the call it comes to, which needs those around it. Others stay
  ///   open that are left where they began
  static void close_pass(Owner& owner, void const* pass, UnitCall const* next = nullptr) noexcept {
    for (std::size_t i = owner.entered().size(); i-- > 0;) {
      UnitCall& each = *owner.entered()[i];
      bool const stays = next != nullptr && (each.ends_ || next->is_within(each));
      if (each.pass_ == pass && !stays) each.exit();
    }
  }
  [[nodiscard]] bool inside() const noexcept {
    return inside_ && (around_ == nullptr || around_->inside());
  }
  [[nodiscard]] bool is_within(UnitCall const& other) const noexcept {
    return this == &other || (around_ != nullptr && around_->is_within(other));
  }

  std::shared_ptr<Owner*> owner_;
  int unit_;
  std::shared_ptr<UnitCall> around_;
  void const* pass_ = nullptr;  ///< the last one that has entered
  bool expected_ = true;
  bool inside_ = false;
  bool ends_ = false;  ///< where the call began
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
    call->enter(true);
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

/// The hooks of a node that run first: newer releases run those of its tensors before its own.
[[nodiscard]] auto& first_hooks(auto& node) {
  if constexpr (requires { node.tensor_pre_hooks(); }) {
    return node.tensor_pre_hooks();
  } else {
    return node.pre_hooks();
  }
}

/// Has a call entered before each node that was made for it, and for no call within, and before
/// hooks of others. A pass can come to any of them without coming through the outputs.
/// @param tensors  what was made last
/// @param from     the number of the first node
template <class Call>
void enter_before_nodes(torch::autograd::variable_list const& tensors,
                        std::uint64_t from,
                        std::shared_ptr<Call> const& call) {
  using torch::autograd::Node, torch::autograd::variable_list;
  struct Before final : torch::autograd::FunctionPreHook {
    variable_list operator()(variable_list const& gradients) override {
      call->enter(false);
      first = at::sequence_number::peek();
      return gradients;
    }
    std::shared_ptr<Call> call;
    std::uint64_t first = 0;  ///< of the nodes that this one makes
  };
  // What it makes for further derivatives reads the same parameters.
  struct After final : torch::autograd::FunctionPostHook {
    variable_list operator()(variable_list const& results, variable_list const& /*of*/) override {
      if (torch::GradMode::is_enabled()) enter_before_nodes(results, before->first, before->call);
      return results;
    }
    Before const* before = nullptr;
  };
  std::vector<Node*> nodes;
  for (torch::Tensor const& tensor : tensors) {
    // A view's own node, and not what follows from later changes of what it is a view of: that is
    // refused for some, and to ask for it here would be no mistake of anybody's.
    if (tensor.defined()) nodes.push_back(torch::autograd::impl::grad_fn_unsafe(tensor));
  }
  for (std::uint64_t const end = at::sequence_number::peek(); !nodes.empty();) {
    Node* const node = nodes.back();
    nodes.pop_back();
    if (node == nullptr || node->sequence_nr() < from || node->sequence_nr() >= end) continue;
    auto& hooks = first_hooks(*node);
    if (!hooks.empty() && dynamic_cast<Before const*>(hooks.front().get()) != nullptr) continue;
    auto before = std::make_unique<Before>();
    auto after = std::make_unique<After>();
    before->call = call;
    after->before = before.get();
    hooks.insert(hooks.begin(), std::move(before));
    node->add_post_hook(std::move(after));
    for (auto const& edge : node->next_edges()) nodes.push_back(edge.function.get());
  }
}

/// Does that for what every operation computes while it lives: a module can keep a tensor that does
/// not lead to its outputs, such as an auxiliary loss.
template <class Call>
class CallOperations {
 public:
  explicit CallOperations(std::shared_ptr<Call> call)
      : info_(std::make_shared<Info>(std::move(call))),
        guard_(c10::DebugInfoKind::PRODUCER_INFO, info_),
        handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(nullptr, &see)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))) {}
  CallOperations(CallOperations const&) = delete;
  CallOperations& operator=(CallOperations const&) = delete;
  ~CallOperations() {
    at::removeCallback(handle_);
    // An own Function is no operation, and has its node after those that compute its results.
    torch::autograd::variable_list alive;
    for (auto const& result : info_->results) alive.emplace_back(result.lock());
    enter_before_nodes(alive, info_->from, info_->call);
  }

 private:
  // What a callback is given has no place for the call.
  struct Info final : c10::DebugInfoBase {
    explicit Info(std::shared_ptr<Call> its) : call(std::move(its)) {}
    std::shared_ptr<Call> call;
    std::uint64_t from = at::sequence_number::peek();
    std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> results{};
  };
  static void see(at::RecordFunction const& operation, at::ObserverContext* /*none*/) {
    // No release uses this kind.
    auto* const info =
        dynamic_cast<Info*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PRODUCER_INFO));
    if (info == nullptr) return;
    if (info->results.size() == info->results.capacity()) {
      std::erase_if(info->results, [](auto const& each) { return each.expired(); });
      info->results.reserve(2 * info->results.size() + 64);
    }
    for (c10::IValue const& result : operation.outputs()) {
      auto const tensors = tensors_in(result);
      enter_before_nodes(tensors, info->from, info->call);
      for (torch::Tensor const& each : tensors) info->results.emplace_back(each.getIntrusivePtr());
    }
  }

  std::shared_ptr<Info> info_;
  c10::DebugInfoGuard guard_;
  at::CallbackHandle handle_;
};

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
void record_call(NodePointer<CallBegin<Owner>> const& begin, T& outputs, bool all) {
  std::vector<torch::Tensor*> wanted;
  for_each_tensor(outputs, [&](torch::Tensor& output) {
    if (output.defined() && (all || output.requires_grad())) wanted.push_back(&output);
  });
  if (wanted.empty()) return;
  auto const end = make_node<CallEnd<Owner>>();
  torch::autograd::variable_list made;
  for (torch::Tensor* const output : wanted) made.push_back(*output);
  end->set_next_edges(torch::autograd::collect_next_edges(made));
  enter_before_nodes(made, begin->sequence_nr(), begin->call);
  end->add_next_edge(torch::autograd::Edge(begin, 0));
  for (torch::Tensor* const output : wanted) {
    torch::Tensor recorded = output->detach();
    torch::autograd::create_gradient_edge(recorded, end);
    *output = std::move(recorded);
  }
  end->call = begin->call;
}

}  // namespace zero::inline ZERO_NAMESPACE::libtorch::detail
