// Activation checkpoints: the input of each layer is kept until the layer is recomputed, whole on
// every rank, as one share per rank, or as a share in slower memory. The gradient stays the same.
//
// Four ranks of a model-parallel group run 24 layers; each multiplies its input by a weight, and
// needs the input again in the backward pass. The slower memory is a file.
// prints: whole keeps 1536.0 KiB.*Pa keeps 384.0 KiB.*Pa.cpu keeps 0.0 KiB.*identical gradients:
// yes

#include <zero/activations.hpp>
#include <zero/transfer/file_transfer.hpp>
#include <zero/zero.hpp>

#include <array>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <span>
#include <vector>

constexpr int layers = 24;
constexpr std::size_t width = 16384;
using Gradient = std::array<float, layers>;

float weight(int layer) { return 1.f + static_cast<float>(layer % 5 - 2) / 16.f; }

/// One micro-batch forward and backward; all that differs is what `acts` does.
Gradient step(auto& acts) {
  std::vector<float> x(width);
  for (std::size_t i = 0; i < width; ++i) x[i] = static_cast<float>(i % 13) - 6.f;
  for (int layer = 0; layer < layers; ++layer) {
    acts.store(layer, std::span(x));  // from here on only what the placement keeps
    for (float& value : x) value *= weight(layer);
  }
  Gradient gradient{};
  float upstream = 1.f / width;
  for (int layer = layers; layer-- > 0;) {
    auto const kept = acts.fetch(layer);  // the next layer is on its way, too
    auto& sum = gradient[static_cast<std::size_t>(layer)];
    for (float const value : kept.template get<float>()) sum += upstream * value;
    upstream *= weight(layer);
  }
  acts.end_step();
  return gradient;
}

template <class Placement>
Gradient run() {
  std::vector<zero::ActivationCheckpoint> kept;
  for (int layer = 0; layer < layers; ++layer) {
    kept.push_back({.name = "x", .layer = layer, .elements = width, .dtype = zero::DType::f32});
  }
  Gradient result{};
  zero::run_ranks(4, [&](zero::InProcess& group) {
    zero::FileTransfer file(std::filesystem::temp_directory_path().string());
    zero::Activations acts{group, kept, Placement{}, file};
    Gradient const gradient = step(acts);
    if (group.rank() != 0) return;
    result = gradient;
    std::printf("%s keeps %.1f KiB of activations per rank, beside %.1f KiB in pools\n",
                Placement::name.data(),
                static_cast<double>(acts.held()[zero::Role::activations]) / 1024.,
                static_cast<double>(acts.held()[zero::Role::activation_pool] +
                                    acts.held()[zero::Role::activation_staging]) /
                    1024.);
  });
  return result;
}

int main() {
  Gradient const whole = run<zero::activation::Whole>();
  bool const same = whole == run<zero::activation::Pa>() && whole == run<zero::activation::PaCpu>();
  std::printf("identical gradients: %s\n", same ? "yes" : "no");
  return same ? 0 : 1;
}
