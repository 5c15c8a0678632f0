#include "setup_options.hpp"

#include "files.hpp"

#include <map>
#include <utility>

namespace plan {

Setup SetupOptions::complete() const {
  Setup result = setup;
  if (!file.empty()) {
    result.model = read_transformer(file);
    result.model.wide_vectors = setup.model.wide_vectors;
    result.model.adapters = setup.model.adapters;
    result.model.base_bits = setup.model.base_bits;
    // Of its longest sequences, unless other ones are meant.
    if (sequence->count() > 0) result.model.sequence = setup.model.sequence;
  } else if (exact()) {
    result.model.layers = layers;
    result.model.hidden = hidden;
    result.model.heads = heads > 0 ? heads : hidden % 64 == 0 ? hidden / 64 : 1;
  } else {
    result.model = transformer_of(parameters, setup.model);
  }
  result.fused_rows = !plain_rows;
  if (no_dropout) result.model.dropout = false;
  if (result.policies.accumulation.empty()) {
    result.policies.accumulation = result.micro_steps > 1 ? "shard" : "none";
  }
  return result;
}

Setup SetupOptions::complete(Device const& device) const {
  Setup result = complete();
  if (device.attention_fraction == 0. && attention->count() == 0) result.attention = "plain";
  return result;
}

CLI::Option* add_number(CLI::App& sub,
                        std::string const& name,
                        double& into,
                        std::string const& help) {
  return sub.add_option(name, into, help)
      ->transform(CLI::AsNumberWithUnit(
          std::map<std::string, double>{{"k", 1e3}, {"m", 1e6}, {"b", 1e9}, {"t", 1e12}},
          CLI::AsNumberWithUnit::CASE_INSENSITIVE,
          "NUMBER"));
}

CLI::Option* add_size(CLI::App& sub,
                      std::string const& name,
                      std::uint64_t& into,
                      std::string const& help) {
  return sub.add_option(name, into, help + ", such as 32GB or 25MiB")
      ->transform(CLI::AsSizeValue(true));
}

CLI::Option* add_memory_size(CLI::App& sub,
                             std::string const& name,
                             std::uint64_t& into,
                             std::string const& help) {
  // What is transformed last is so first: this sees the text, before its unit has been multiplied.
  CLI::Validator const unit(
      [](std::string& text) {
        bool const bare = text.find_first_not_of("0123456789.") == std::string::npos;
        return bare && text.size() < 7 && text != "0"
                   ? text + " bytes are no device's memory: " + text + "GB?"
                   : std::string();
      },
      "");
  return add_size(sub, name, into, help)->transform(unit);
}

CLI::Option* add_cluster(CLI::App& sub, std::string& into, std::vector<std::string> more) {
  for (Cluster const& cluster : known_clusters()) more.push_back(cluster.name);
  CLI::Validator const known(
      [more](std::string& name) {
        if (name.ends_with(".json") || std::ranges::find(more, name) != more.end()) {
          return std::string();
        }
        std::string text = "there is no cluster '" + name + "': it is a FILE.json or one of ";
        for (std::string const& one : more) text += (&one == &more.front() ? "" : ", ") + one;
        return text;
      },
      "");
  return sub
      .add_option("--cluster",
                  into,
                  "Devices, memories and links, by name or as the FILE.json that zero-plan "
                  "clusters --json writes")
      ->check(known);
}

void add_model(CLI::App& sub, SetupOptions& options) {
  CLI::Range const sizes(1, 1 << 30);
  Transformer& model = options.setup.model;
  auto* const parameters =
      add_number(sub,
                 "--params",
                 options.parameters,
                 "About so many parameters, such as 7.5e9 or 70B: the width of the paper's model "
                 "that is nearest in size, and the blocks that come nearest to the number");
  auto* const layers = sub.add_option("--layers", options.layers, "Exactly so many blocks")
                           ->check(CLI::Range(1, 100000));
  auto* const hidden =
      sub.add_option("--hidden", options.hidden, "Exactly this width of the residual stream")
          ->check(sizes);
  layers->needs(hidden)->excludes(parameters);
  hidden->needs(layers)->excludes(parameters);
  sub.add_option("--heads", options.heads, "Attention heads (0: of 64 channels each)")
      ->needs(hidden);
  auto* const vocab = sub.add_option("--vocab", model.vocab, "Words")->check(sizes);
  options.sequence =
      sub.add_option("--sequence", model.sequence, "Tokens of a sequence")->check(sizes);
  auto* const file = sub.add_option("--model",
                                    options.file,
                                    "A config.json of Hugging Face's transformers: gpt2, llama or "
                                    "mistral");
  for (CLI::Option* const other : {parameters, layers, hidden, vocab}) file->excludes(other);
  options.attention =
      sub.add_option("--attention",
                     options.setup.attention,
                     "Scores of attention: plain kernels keep them, selective ones compute them "
                     "again, fused ones (FlashAttention) never write them")
          ->check(CLI::IsMember(attention_names()));
  sub.add_flag("--sequence-parallel",
               options.setup.sequence_parallel,
               "N_m ranks divide what is between their products, too");
  sub.add_flag("--no-dropout", options.no_dropout, "No masks are kept for the backward pass");
  sub.add_flag("--plain-rows", options.plain_rows, "Norms, sums and dropout are kernels each");
}

void add_types(CLI::App& sub, SetupOptions& options) {
  Transformer& model = options.setup.model;
  sub.add_flag("--wide-vectors", model.wide_vectors, "Norms and biases are of 32 bits");
  auto* const adapters =
      sub.add_option("--adapters",
                     model.adapters,
                     "Train adapters (LoRA) of this rank beside the matrices of blocks, and freeze "
                     "all else")
          ->check(CLI::Range(1, 1 << 16));
  sub.add_option("--base-bits",
                 model.base_bits,
                 "Of an element of these frozen matrices, scales included: 4.5, say, where 64 "
                 "elements of 4 bits share a scale of 32")
      ->check(CLI::Range(1., 16.))
      ->needs(adapters);
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
  std::string const heads = model.kv_heads > 0 && model.kv_heads != model.heads
                                ? " and " + std::to_string(model.kv_heads)
                                : "";
  return (model.gated ? "A gated decoder of " : "A GPT of ") + std::to_string(model.layers) +
         " blocks x " + std::to_string(h) + ", " + std::to_string(model.heads) + heads +
         " heads, " + std::to_string(model.vocab) + " words, " + std::to_string(model.sequence) +
         " tokens: " + zero::detail::with_commas(parameters(model)) +
         " parameters (12 L h^2 = " + zero::detail::with_commas(blocks) + ")" +
         (model.adapters > 0 ? ", frozen beside adapters of rank " + std::to_string(model.adapters)
                             : "") +
         ".";
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

Cell error_bar(Cluster const& cluster) {
  if (cluster.error == 0.) return {"unknown", nullptr};
  return {"+-" + fixed(100. * cluster.error, 0) + " %", cluster.error};
}

std::string error_of(Cluster const& cluster) {
  if (cluster.error == 0.) return "nobody has held those of " + cluster.name + " against runs";
  return "those of " + cluster.name + " were up to " + fixed(100. * cluster.error, 0) +
         " % from published runs that set nothing";
}

}  // namespace plan
