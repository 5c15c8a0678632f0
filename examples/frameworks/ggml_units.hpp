// Cuts a graph of ggml's at the units of a model, whose parameters are gathered one after another.
#pragma once

#include <zero/zero.hpp>

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// A parameter and its gradient, which have no memory of their own. Quantised blocks are frozen.
struct Weight {
  Weight(ggml_context* ctx, int its_unit, ggml_type type, long columns, long rows)
      : unit(its_unit) {
    ggml_set_no_alloc(ctx, true);
    parameter = ggml_new_tensor_2d(ctx, type, columns, rows);
    if (!ggml_is_quantized(type)) {
      gradient = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, columns, rows);  // a float, always
      ggml_set_param(parameter);
    }
    ggml_set_no_alloc(ctx, false);
  }

  [[nodiscard]] bool has(ggml_tensor const* tensor) const {
    if (tensor == nullptr) return false;
    if (tensor->view_src != nullptr) tensor = tensor->view_src;
    return tensor == parameter || tensor == gradient;
  }

  /// What the optimizer has to know of it: blocks are bytes, and so many in a row.
  [[nodiscard]] zero::Tensor describe(std::string name) const {
    bool const frozen = gradient == nullptr;
    auto const row = frozen ? ggml_row_size(parameter->type, parameter->ne[0])
                            : static_cast<std::size_t>(parameter->ne[0]);
    return {.name = std::move(name),
            .shape = {static_cast<std::size_t>(parameter->ne[1]), row},
            .unit = unit,
            .dtype = frozen                             ? zero::DType::u8
                     : parameter->type == GGML_TYPE_F16 ? zero::DType::f16
                                                        : zero::DType::f32,
            .frozen = frozen};
  }

  int unit = 0;
  ggml_tensor *parameter = nullptr, *gradient = nullptr;
};

/// Nodes of one unit that follow each other, all of them forward or all backward.
struct Piece {
  int unit = 0;
  bool backward = false;
  ggml_cgraph* nodes = nullptr;
};

/// Builds the graph of a loss, with its backward pass, and cuts it. A node belongs to the unit
/// whose weights it reads or writes; others stay with the node before.
inline std::vector<Piece> pieces_of(ggml_context* ctx,
                                    ggml_tensor* loss,
                                    std::vector<Weight> const& weights) {
  ggml_cgraph* const graph = ggml_new_graph_custom(ctx, 1024, true);
  ggml_set_loss(loss);
  ggml_build_forward_expand(graph, loss);
  int const forward = ggml_graph_n_nodes(graph);
  std::vector<ggml_tensor*> sums;  // to which the backward pass adds
  for (int i = 0; i < forward; ++i) {
    sums.push_back(nullptr);
    for (Weight const& w : weights) {
      if (ggml_graph_node(graph, i) == w.parameter) sums.back() = w.gradient;
    }
  }
  ggml_build_backward_expand(ctx, graph, sums.data());
  ggml_set_f32(ggml_graph_get_grad_acc(graph, loss), 1.f);

  std::vector<Piece> pieces;
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    ggml_tensor* const node = ggml_graph_node(graph, i);
    Piece next{.unit = pieces.empty() ? 0 : pieces.back().unit, .backward = i >= forward};
    for (Weight const& w : weights) {
      bool is_read = w.has(node);
      for (auto const* source : node->src) is_read = is_read || w.has(source);
      if (is_read) next.unit = w.unit;
    }
    if (pieces.empty() || next.unit != pieces.back().unit ||
        next.backward != pieces.back().backward) {
      next.nodes = ggml_new_graph_custom(ctx, 1024, false);
      pieces.push_back(next);
    }
    ggml_graph_add_node(pieces.back().nodes, node);
  }
  return pieces;
}

/// Points a unit's parameters at what a guard has, in their types.
template <class Guard>
void point_parameters(std::vector<Weight> const& weights, Guard const& guard) {
  std::size_t t = 0;
  for (Weight const& weight : weights) {
    if (weight.unit != guard.unit()) continue;
    void const* data = nullptr;
    switch (weight.parameter->type) {
      case GGML_TYPE_F32: data = guard.template as<float>(t).data(); break;
      case GGML_TYPE_F16: data = guard.template as<zero::fp16>(t).data(); break;
      default: data = guard.template as<std::uint8_t>(t).data();
    }
    weight.parameter->data = const_cast<void*>(data);  // ggml knows no constant tensors
    ++t;
  }
}

/// The same for gradients, of which frozen tensors have none.
template <class Guard>
void point_gradients(std::vector<Weight> const& weights, Guard const& guard) {
  std::size_t t = 0;
  for (Weight const& weight : weights) {
    if (weight.unit != guard.unit()) continue;
    if (weight.gradient != nullptr) weight.gradient->data = guard.template as<float>(t).data();
    ++t;
  }
}

/// Computes a piece; views follow the tensors that they show.
inline void compute(ggml_backend_t backend, Piece const& piece) {
  for (int i = 0; i < ggml_graph_n_nodes(piece.nodes); ++i) {
    ggml_tensor* const node = ggml_graph_node(piece.nodes, i);
    if (node->view_src == nullptr) continue;
    node->data = static_cast<char*>(node->view_src->data) + node->view_offs;
  }
  ggml_backend_graph_compute(backend, piece.nodes);
}
