/// @file
/// ESTIMATE of what a model holds itself: activations, their gradients, and the scores of the head.
#pragma once

#include "setup.hpp"
#include "zero/base/bytes.hpp"

#include <cstdint>

namespace plan {

using namespace zero;

/// What a model holds on one device, beside what the library holds for it.
struct WorkingBytes {
  std::uint64_t block = 0;      ///< activations of one block, its input included
  std::uint64_t blocks = 0;     ///< that are held at once
  std::uint64_t gradients = 0;  ///< of activations, of the block at work
  std::uint64_t head = 0;       ///< final norm, scores, and their gradients

  [[nodiscard]] std::uint64_t total() const {
    return checked_add(checked_add(checked_mul(blocks, block), gradients), head);
  }
};

/// What a block keeps for its backward pass, and what is at work besides. With 2 bytes an element,
/// dropout and plain attention a block of GPT-2's kind keeps b·s·h·(10 + 24/t + 5·a·s/(h·t)) bytes
/// for batch b, sequence s, width h, a heads, and t model-parallel ranks; 34/t instead of 10 + 24/t
/// where these divide what is between their products as well.
/// @param setup  its precision gives the bytes of an element
/// @param width  bytes of an element
/// @par Source  Korthikanti et al., arXiv 2205.05198, §4; gradients and head are not theirs
[[nodiscard]] inline WorkingBytes working_bytes(Setup const& setup, std::uint64_t width) {
  Transformer const& model = setup.model;
  auto const ranks = static_cast<std::uint64_t>(setup.model_parallel);
  std::uint64_t const tokens = setup.tokens();
  std::uint64_t const h = model.hidden;
  std::uint64_t const inner = model.inner_width();
  auto const share = [&](std::uint64_t of) { return ceil_div(checked_mul(tokens, of), ranks); };
  auto const whole = [&](std::uint64_t of) {
    return setup.sequence_parallel ? share(of) : checked_mul(tokens, of);
  };
  // Inputs of both norms and of the products behind them, and two masks of a byte.
  std::uint64_t const rows = whole(checked_mul(h, 4 * width + (model.dropout ? 2 : 0)));
  // Queries, keys, values and what comes of them; the MLP's channels before and after activation.
  std::uint64_t const columns =
      2 * model.query_width() + 2 * model.key_width() + checked_mul(inner, model.gated ? 4 : 2);
  // Softmax; and with dropout a mask, and what it leaves.
  std::uint64_t const of_score = width + (model.dropout ? width + 1 : 0);
  std::uint64_t const scores =
      setup.attention == "plain"
          ? share(checked_mul(checked_mul(model.heads, model.sequence), of_score))
          : 0;
  WorkingBytes bytes;
  bytes.block = checked_add(checked_add(rows, share(checked_mul(columns, width))), scores);
  bytes.blocks = setup.activations == "keep" ? static_cast<std::uint64_t>(model.layers) : 1;
  bytes.gradients = checked_add(whole(checked_mul(2 * width, h)), share(checked_mul(width, inner)));
  // Scores in fp32, as the loss needs them.
  bytes.head =
      checked_add(whole(checked_mul(2 * width, h)), share(checked_mul(model.vocab, 4 + width)));
  return bytes;
}

}  // namespace plan
