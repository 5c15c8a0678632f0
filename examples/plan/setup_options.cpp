#include "setup_options.hpp"

#include "report.hpp"

namespace plan {

Setup SetupOptions::complete() const {
  Setup result = setup;
  if (exact()) {
    result.model.layers = layers;
    result.model.hidden = hidden;
    result.model.heads = heads > 0 ? heads : hidden % 64 == 0 ? hidden / 64 : 1;
  } else {
    result.model = transformer_of(parameters, setup.model);
  }
  if (result.policies.accumulation.empty()) {
    result.policies.accumulation = result.micro_steps > 1 ? "shard" : "none";
  }
  return result;
}

CLI::Option* add_size(CLI::App& sub,
                      std::string const& name,
                      std::uint64_t& into,
                      std::string const& help) {
  return sub.add_option(name, into, help + ", such as 32GB or 25MiB")
      ->transform(CLI::AsSizeValue(true));
}

void add_model(CLI::App& sub, SetupOptions& options) {
  CLI::Range const sizes(1, 1 << 30);
  Transformer& model = options.setup.model;
  auto* const parameters =
      sub.add_option("--params",
                     options.parameters,
                     "About so many parameters, such as 7.5e9: the width of the paper's model that "
                     "is nearest in size, and the blocks that come nearest to the number");
  auto* const layers = sub.add_option("--layers", options.layers, "Exactly so many blocks")
                           ->check(CLI::Range(1, 100000));
  auto* const hidden =
      sub.add_option("--hidden", options.hidden, "Exactly this width of the residual stream")
          ->check(sizes);
  layers->needs(hidden)->excludes(parameters);
  hidden->needs(layers)->excludes(parameters);
  sub.add_option("--heads", options.heads, "Attention heads (0: of 64 channels each)")
      ->needs(hidden);
  sub.add_option("--vocab", model.vocab, "Words")->check(sizes);
  sub.add_option("--sequence", model.sequence, "Tokens of a sequence")->check(sizes);
}

void add_policies(CLI::App& sub, SetupOptions& options) {
  Setup& setup = options.setup;
  setup.policies.accumulation.clear();
  sub.add_option("--precision", setup.policies.precision, "Parameters and gradients")
      ->check(CLI::IsMember(precision_names()));
  sub.add_option("--rule", setup.policies.rule, "Of the update")
      ->check(CLI::IsMember(rule_names()));
  add_size(sub, "--bucket", setup.bucket.bytes, "Bytes that travel together");
  sub.add_option("--prefetch", setup.prefetch.depth, "Units gathered ahead")
      ->check(CLI::Range(0, 1000));
  add_size(sub,
           "--communicator",
           setup.communicator_bytes,
           "Bytes that the communicator holds, as planned_bytes of zero::Mpi says");
}

void add_run(CLI::App& sub, SetupOptions& options) {
  Setup& setup = options.setup;
  setup.ranks = 64;
  sub.add_option("--ranks", setup.ranks, "Devices")->check(CLI::Range(1, 100'000'000));
  sub.add_option("--model-parallel", setup.model_parallel, "N_m: ranks that hold a model together")
      ->check(CLI::Range(1, 100'000));
  sub.add_option("--batch", setup.batch, "Sequences per model and micro-step")
      ->check(CLI::Range(1, 1 << 24));
  sub.add_option("--micro-steps", setup.micro_steps, "Forward and backward passes in a step")
      ->check(CLI::Range(1, 1 << 24));
  sub.add_option("--accumulate",
                 setup.policies.accumulation,
                 "Where micro-steps add up (default: none, or shard with several)")
      ->check(CLI::IsMember(accumulation_names()));
  sub.add_option("--checkpoint",
                 setup.activations,
                 "Of blocks, until the backward pass: keep all activations; inputs alone, whole, "
                 "partitioned over N_m (pa), or that on the host (pa+cpu): ZeRO 6.1")
      ->check(CLI::IsMember(activation_names()));
}

std::string sentence(Transformer const& model) {
  auto const h = static_cast<std::uint64_t>(model.hidden);
  std::uint64_t const blocks = 12 * h * h * static_cast<std::uint64_t>(model.layers);
  return "A GPT of " + std::to_string(model.layers) + " blocks x " + std::to_string(h) + ", " +
         std::to_string(model.heads) + " heads, " + std::to_string(model.vocab) + " words, " +
         std::to_string(model.sequence) +
         " tokens: " + zero::detail::with_commas(parameters(model)) +
         " parameters (12 L h^2 = " + zero::detail::with_commas(blocks) + ").";
}

std::string sentence(Setup const& setup) {
  std::string text = std::to_string(setup.ranks) + (setup.ranks == 1 ? " rank, " : " ranks, ");
  if (setup.model_parallel > 1) {
    text += std::to_string(setup.model_parallel) + " to a model (N_m), " +
            std::to_string(setup.models()) + " models (N_d), ";
  }
  text += setup.policies.precision + ", " + setup.policies.rule + ", " +
          std::to_string(setup.batch) + (setup.batch == 1 ? " sequence" : " sequences") +
          " a model and micro-step";
  if (setup.micro_steps > 1) {
    text += ", " + std::to_string(setup.micro_steps) + " micro-steps that add up in " +
            (setup.policies.accumulation == "full" ? "full gradients" : "the reduced share");
  }
  return text + ", checkpoints: " + setup.activations + ".";
}

}  // namespace plan
