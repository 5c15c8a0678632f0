#include "files.hpp"

#include "../whole_number.hpp"
#include "read_json.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace plan {

namespace {

using example::whole_number;
using nlohmann::json;
using nlohmann::ordered_json;

// Each of these visits all members of a struct by the name that they have in a file.
template <class L, class Visit>
void each(L& link, Visit const& visit, Link const* /*kind*/) {
  visit("latency", link.latency);
  visit("rate", link.rate);
  visit("fraction", link.fraction);
}
template <class D, class Visit>
void each(D& device, Visit const& visit, Device const* /*kind*/) {
  visit("name", device.name);
  visit("memory", device.memory);
  visit("memory_rate", device.memory_rate);
  visit("memory_fraction", device.memory_fraction);
  visit("flops", device.flops);
  visit("matrix_fraction", device.matrix_fraction);
  visit("attention_fraction", device.attention_fraction);
  visit("processors", device.processors);
  visit("launch", device.launch);
}
template <class C, class Visit>
void each(C& cluster, Visit const& visit, Cluster const* /*kind*/) {
  visit("name", cluster.name);
  visit("devices_per_node", cluster.devices_per_node);
  visit("host_memory", cluster.host_memory);
  visit("device", cluster.device);
  visit("inside", cluster.inside);
  visit("between", cluster.between);
  visit("adapters", cluster.adapters);
  visit("adapters_per_group", cluster.adapters_per_group);
  visit("host", cluster.host);
  visit("error", cluster.error);
}

template <class T>
inline constexpr bool is_struct = std::is_class_v<T> && !std::is_same_v<T, std::string>;

template <class T>
ordered_json written(T const& of) {
  ordered_json result;
  each(
      of,
      [&]<class M>(char const* name, M const& member) {
        if constexpr (is_struct<M>) {
          result[name] = written(member);
        } else {
          result[name] = member;
        }
      },
      &of);
  return result;
}

/// All members have to be there, and no others.
template <class T>
void read(json const& from, T& into, std::string const& where) {
  if (!from.is_object()) throw std::invalid_argument(where + "is " + example::shown(from));
  std::set<std::string> unknown;
  for (auto const& [key, value] : from.items()) unknown.insert(key);
  each(
      into,
      [&]<class M>(char const* name, M& member) {
        auto const found = from.find(name);
        if (found == from.end()) throw std::invalid_argument(where + "has no '" + name + "'");
        unknown.erase(name);
        if constexpr (is_struct<M>) {
          read(*found, member, "'" + std::string(name) + "' ");
        } else if constexpr (std::is_integral_v<M>) {
          member = whole_number<M>(from, name, 1, M{1} << (8 * sizeof(M) - 3));
        } else {
          bool const fits = std::is_same_v<M, double> ? found->is_number() : found->is_string();
          if (!fits) {
            throw std::invalid_argument("'" + std::string(name) + "' is " + example::shown(*found));
          }
          member = found->template get<M>();
        }
      },
      &into);
  if (!unknown.empty()) {
    throw std::invalid_argument(where + "has '" + *unknown.begin() + "', which means nothing here");
  }
}

// Of a configuration: what is about text, initial values, inference or rounding.
constexpr std::array harmless{"_name_or_path",
                              "activation_function",
                              "architectures",
                              "attention_dropout",
                              "attn_pdrop",
                              "bos_token_id",
                              "dtype",
                              "embd_pdrop",
                              "eos_token_id",
                              "hidden_act",
                              "initializer_range",
                              "layer_norm_epsilon",
                              "model_type",
                              "n_ctx",
                              "output_past",
                              "pad_token_id",
                              "pretraining_tp",
                              "reorder_and_upcast_attn",
                              "resid_pdrop",
                              "rms_norm_eps",
                              "rope_parameters",
                              "rope_scaling",
                              "rope_theta",
                              "scale_attn_by_inverse_layer_idx",
                              "scale_attn_weights",
                              "summary_activation",
                              "summary_first_dropout",
                              "summary_proj_to_labels",
                              "summary_type",
                              "summary_use_proj",
                              "task_specific_params",
                              "torch_dtype",
                              "transformers_version",
                              "unk_token_id",
                              "use_cache"};

/// The members of a configuration, each of which is asked for or refused.
class Config {
 public:
  explicit Config(json const& from) : from_(from) {
    if (!from.is_object()) throw std::invalid_argument("it is " + example::shown(from));
    for (auto const& [key, value] : from.items()) {
      if (std::ranges::find(harmless, key) == harmless.end()) unknown_.insert(key);
    }
  }
  [[nodiscard]] bool has(char const* name) {
    unknown_.erase(name);
    auto const found = from_.find(name);
    return found != from_.end() && !found->is_null();
  }
  [[nodiscard]] std::size_t size(char const* name, std::size_t most = 1 << 30) {
    if (!has(name)) throw std::invalid_argument("it has no '" + std::string(name) + "'");
    return whole_number<std::size_t>(from_, name, 1, most);
  }
  [[nodiscard]] int layers(char const* name) { return static_cast<int>(size(name, 100'000)); }
  [[nodiscard]] std::size_t size_or(char const* name, std::size_t otherwise) {
    return has(name) ? size(name) : otherwise;
  }
  [[nodiscard]] bool flag(char const* name, bool otherwise) {
    if (!has(name)) return otherwise;
    if (!from_[name].is_boolean()) refuse(name);
    return from_[name].get<bool>();
  }
  /// Has a member of such a name a value above 0, which it has unless it is there?
  [[nodiscard]] bool is_positive(char const* name, bool otherwise) {
    if (!has(name)) return otherwise;
    if (!from_[name].is_number()) refuse(name);
    return from_[name].get<double>() > 0.;
  }
  void require(char const* name, bool same) {
    if (!same) refuse(name);
  }
  void end() const {
    if (unknown_.empty()) return;
    throw std::invalid_argument("'" + *unknown_.begin() +
                                "' is not known here; whether it changes the model is not, either");
  }

 private:
  [[noreturn]] void refuse(char const* name) const {
    throw std::invalid_argument("a model whose '" + std::string(name) + "' is " +
                                example::shown(from_[name]) + " cannot be described");
  }
  json const& from_;
  std::set<std::string> unknown_;
};

Transformer gpt2(Config& config) {
  Transformer model{.layers = config.layers("n_layer"),
                    .hidden = config.size("n_embd"),
                    .heads = config.size("n_head"),
                    .vocab = config.size("vocab_size"),
                    .sequence = config.size("n_positions"),
                    .inner = config.size_or("n_inner", 0),
                    .tied = config.flag("tie_word_embeddings", true)};
  model.positions = model.sequence;
  model.dropout = false;
  for (char const* name : {"resid_pdrop", "attn_pdrop", "embd_pdrop"}) {
    model.dropout = config.is_positive(name, true) || model.dropout;
  }
  config.require("add_cross_attention", !config.flag("add_cross_attention", false));
  return model;
}

Transformer llama(Config& config) {
  std::size_t const heads = config.size("num_attention_heads");
  Transformer const model{.layers = config.layers("num_hidden_layers"),
                          .hidden = config.size("hidden_size"),
                          .heads = heads,
                          .vocab = config.size("vocab_size"),
                          .sequence = config.size("max_position_embeddings"),
                          .kv_heads = config.size_or("num_key_value_heads", heads),
                          .head_width = config.size_or("head_dim", 0),
                          .inner = config.size("intermediate_size"),
                          .gated = true,
                          .biases = false,
                          .learned_positions = false,
                          .tied = config.flag("tie_word_embeddings", false),
                          .dropout = config.is_positive("attention_dropout", false)};
  for (char const* name : {"attention_bias", "mlp_bias"}) {
    config.require(name, !config.flag(name, false));
  }
  config.require("sliding_window", !config.has("sliding_window"));
  return model;
}

}  // namespace

ordered_json json_of(Cluster const& cluster) { return written(cluster); }

Cluster cluster_in(json const& from) {
  Cluster cluster;
  auto const clusters = from.find("clusters");
  if (!from.is_object() || clusters == from.end()) {
    read(from, cluster, "it ");
  } else if (clusters->is_array() && clusters->size() == 1) {
    read(clusters->front(), cluster, "it ");
  } else {
    throw std::invalid_argument("'clusters' is not a list of one");
  }
  cluster.validate();
  return cluster;
}

Cluster named_cluster(std::string const& name) {
  if (!name.ends_with(".json")) return cluster_of(name);
  return read_json(
      name, "zero-plan clusters --json", [](json const& of) { return cluster_in(of); });
}

Transformer transformer_in(json const& from) {
  Config config(from);
  auto const type = from.find("model_type");
  if (type == from.end()) throw std::invalid_argument("it has no 'model_type'");
  Transformer model;
  if (*type == "gpt2") {
    model = gpt2(config);
  } else if (*type == "llama" || *type == "mistral") {
    model = llama(config);
  } else {
    throw std::invalid_argument("the model_type is " + example::shown(*type) +
                                ", not gpt2, llama or mistral");
  }
  config.end();
  detail::require_sizes(model, 1);
  return model;
}

Transformer read_transformer(std::string const& path) {
  return read_json(
      path, "transformers' save_pretrained", [](json const& of) { return transformer_in(of); });
}

}  // namespace plan
