// The same trainer over zero: each process keeps momentum and reduced gradients of its share.
//
// A network with one hidden layer learns a product. Each process has samples of its own.
#include <zero/comm/mpi.hpp>
#include <zero/zero.hpp>

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

struct Parameter {
  std::string name;
  std::vector<std::size_t> shape;
  std::vector<float> value, grad;

  Parameter(std::string its_name, std::vector<std::size_t> its_shape)
      : name(std::move(its_name)), shape(std::move(its_shape)) {
    std::size_t size = 1;
    for (std::size_t const extent : shape) size *= extent;
    value.resize(size);
    grad.resize(size);
  }
};

struct Layer {
  std::size_t inputs, outputs;
  Parameter weight, bias;

  Layer(std::string const& name, std::size_t in, std::size_t out)
      : inputs(in), outputs(out), weight(name + ".weight", {out, in}), bias(name + ".bias", {out}) {
    for (std::size_t i = 0; i < in * out; ++i) {
      weight.value[i] = static_cast<float>(i * 37 % 19) / 19.f - 0.45f;
    }
  }

  std::vector<float> forward(std::vector<float> const& in) const {
    std::vector<float> out = bias.value;
    for (std::size_t o = 0; o < outputs; ++o) {
      for (std::size_t i = 0; i < inputs; ++i) out[o] += weight.value[o * inputs + i] * in[i];
    }
    return out;
  }
  std::vector<float> backward(std::vector<float> const& in, std::vector<float> const& slope) {
    std::vector<float> in_slope(inputs);
    for (std::size_t o = 0; o < outputs; ++o) {
      bias.grad[o] += slope[o];
      for (std::size_t i = 0; i < inputs; ++i) {
        weight.grad[o * inputs + i] += slope[o] * in[i];
        in_slope[i] += weight.value[o * inputs + i] * slope[o];
      }
    }
    return in_slope;
  }
};

// Adds the gradients of the mean over this process's samples; returns their loss.
double forward_backward(std::vector<Layer>& layers, int rank) {
  constexpr int samples = 64;
  double loss = 0.;
  for (int s = 0; s < samples; ++s) {
    float const a = static_cast<float>((s * 5 + rank * 3) % 16) / 8.f - 1.f;
    float const b = static_cast<float>((s * 3 + rank) % 11) / 5.5f - 1.f;
    std::vector<float> const in{a, b};
    std::vector<float> hidden = layers[0].forward(in);
    for (float& h : hidden) h = h > 0.f ? h : 0.1f * h;
    float const error = layers[1].forward(hidden)[0] - a * b;
    loss += double{error * error} / samples;
    std::vector<float> slope = layers[1].backward(hidden, {2.f * error / samples});
    for (std::size_t i = 0; i < slope.size(); ++i) slope[i] *= hidden[i] > 0.f ? 1.f : 0.1f;
    layers[0].backward(in, slope);
  }
  return loss;
}

void train(int rank, int ranks) {
  std::vector<Layer> layers{{"hidden", 2, 24}, {"output", 24, 1}};
  std::vector<Parameter*> parameters;
  for (Layer& layer : layers) parameters.insert(parameters.end(), {&layer.weight, &layer.bias});
  std::vector<zero::Tensor> model;
  std::vector<std::span<float>> values, grads;
  for (Parameter* const p : parameters) {
    model.push_back({.name = p->name, .shape = p->shape});
    values.emplace_back(p->value), grads.emplace_back(p->grad);
  }
  zero::Mpi<> comm(MPI_COMM_WORLD);
  // Under Pos+g, which is the default.
  zero::ShardedOptimizer opt{comm, model, zero::Borrowed<>{}, zero::Sgd{.lr = 0.0625f}};
  opt.bind(values, grads);
  double first = 0., loss = 0.;
  for (int step = 0; step < 400; ++step) {
    for (Parameter* const p : parameters) p->grad.assign(p->grad.size(), 0.f);
    loss = forward_backward(layers, rank);
    opt.step();
    if (step == 0) first = loss;
  }
  std::uint32_t hash = 0, bits = 0;
  for (Parameter const* const p : parameters) {
    for (float const value : p->value) {
      std::memcpy(&bits, &value, sizeof(bits));
      hash = hash * 31 + bits;
    }
  }
  if (rank != 0) return;
  std::printf("%d ranks, loss %.5f to %.5f, parameters %08x\n", ranks, first, loss, hash);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  train(rank, ranks);
  MPI_Finalize();
}
