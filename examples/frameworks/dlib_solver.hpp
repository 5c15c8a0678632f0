// A solver for dlib's `dnn_trainer`, which calls it layer by layer, from the loss to the input,
// when all gradients are there. Its copies, one for each layer, share an optimizer.
#pragma once

#include <zero/zero.hpp>

#include <dlib/dnn.h>

#include <array>
#include <cstddef>
#include <iosfwd>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <vector>

template <class Communicator, class Stage, class Rule>
class ShardedSolver {
 public:
  /// All ranks go on from the first one's parameters.
  /// @param net  has run once, since dlib allocates parameters in the first forward pass
  template <class Net>
  ShardedSolver(Communicator& comm, Net& net, Rule const& rule) {
    std::vector<zero::Tensor> model;
    std::vector<std::span<float>> values;
    dlib::visit_computational_layers(net, [&](std::size_t i, auto& layer) {
      dlib::tensor& of = layer.get_layer_params();
      if (of.size() == 0 || dlib::get_learning_rate_multiplier(layer) == 0) return;
      model.push_back({.name = "layer " + std::to_string(i), .shape = {of.size()}});
      values.emplace_back(of.host(), of.size());
    });
    int unit = 0;  // counted from the input; dlib counts from the loss
    for (zero::Tensor& tensor : std::views::reverse(model)) tensor.unit = unit++;
    shared_ = std::make_shared<Shared>(comm, model, rule);
    shared_->opt.bind_parameters(values);
    shared_->opt.broadcast_parameters();
  }

  /// What `dnn_trainer` adds to a layer's parameters: nothing, since `step` has changed them.
  template <class Layer>
  dlib::tensor const& operator()(float rate, Layer const&, dlib::tensor const& gradient) {
    auto& [opt, nothing, next] = *shared_;
    std::array const span{std::span(gradient.host(), gradient.size())};
    int const unit = opt.units_backward()[next++];
    opt.bind_gradients(unit, span);
    opt.reduce(opt.gradients(unit));  // travels while other layers are asked for
    if (next < opt.units_backward().size()) return nothing;
    next = 0;
    opt.set_lr(rate);
    opt.step();
    return nothing;
  }

  /// `dnn_trainer` names these and a solver without a value, for its synchronization files, in
  /// which the other ranks' states would be missing.
  ShardedSolver() = default;
  friend void serialize(ShardedSolver const&, std::ostream&) { refuse_files(); }
  friend void deserialize(ShardedSolver&, std::istream&) { refuse_files(); }

 private:
  [[noreturn]] static void refuse_files() {
    throw dlib::serialization_error("a sharded solver is saved by zero::Checkpoints");
  }

  struct Shared {
    Shared(Communicator& comm, std::vector<zero::Tensor> const& model, Rule const& rule)
        : opt(comm, model, rule) {
      nothing = 0;
    }

    zero::ShardedOptimizer<Communicator, Stage, zero::Borrowed<>, Rule> opt;
    dlib::resizable_tensor nothing{1};  // dlib takes missing elements of a summand as zeros
    std::size_t next = 0;
  };
  std::shared_ptr<Shared> shared_;
};
