/// @file
/// One load: from the files of a checkpoint into an optimizer, with everything checked before.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/array_runs.hpp"
#include "zero/checkpoint/catalog.hpp"
#include "zero/checkpoint/description.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/loading.hpp"
#include "zero/checkpoint/long_work.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/checkpoint/verify.hpp"
#include "zero/optimizer/inside.hpp"
#include "zero/optimizer/setup/agreement.hpp"
#include "zero/optimizer/setup/hash.hpp"
#include "zero/optimizer/setup/owned.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// The trainer's own bytes of one rank.
struct RankBlob {
  int rank = 0;        ///< that saved them
  int world_size = 1;  ///< that it was one of
  std::vector<std::byte> bytes{};
};

/// What a load found.
struct LoadReport {
  long step = 0;                                   ///< updates applied
  nlohmann::json user = nlohmann::json::object();  ///< as it was saved
  std::vector<RankBlob> blobs{};  ///< of all ranks, in their order; empty ones left out
  /// This rank's own bytes, if they were saved by as many ranks; null otherwise.
  RankBlob const* own_blob(int rank, int world_size) const noexcept {
    for (RankBlob const& blob : blobs) {
      if (blob.rank == rank && blob.world_size == world_size) return &blob;
    }
    return nullptr;
  }
  std::vector<std::string> missing{};     ///< tensors here that were not loaded
  std::vector<std::string> unexpected{};  ///< tensors of the checkpoint that are not here
  std::vector<std::string> unfit{};       ///< tensors that do not fit, and why
  std::vector<std::string> differing{};   ///< options that differ: those of the constructor hold
};

namespace detail {

/// All that does not fit, in one sentence; empty if everything does.
[[nodiscard]] inline std::string misfits(LoadPlan const& plan) {
  std::string text;
  auto const add = [&](char const* what, std::vector<std::string> const& names, char const* quote) {
    if (names.empty()) return;
    text += text.empty() ? "" : "; ";
    text += what;
    for (std::size_t i = 0; i < names.size(); ++i) {
      text += (i == 0 ? " " : ", ") + (quote + names[i]) + quote;
    }
  };
  add("missing:", plan.missing, "'");
  add("unexpected:", plan.unexpected, "'");
  add("does not fit:", plan.unfit, "");
  return text;
}

/// Appends "`name`: `saved` saved, `here` here" for each value of an object that differs.
inline void compare_values(std::string const& name,
                           nlohmann::json const& saved,
                           nlohmann::json const& here,
                           std::vector<std::string>& differing) {
  if (here.is_object()) {
    for (auto const& [key, value] : here.items()) {
      bool const there = saved.is_object() && saved.contains(key);
      compare_values(name + "." + key, there ? saved[key] : nlohmann::json(), value, differing);
    }
  } else if (saved != here) {
    differing.push_back(name + ": " + saved.dump() + " saved, " + here.dump() + " here");
  }
}

/// The trainer's own bytes of all ranks.
template <FileOperations Files>
[[nodiscard]] std::vector<RankBlob> read_blobs(Files& files, Catalog const& catalog) {
  std::vector<RankBlob> blobs;
  for (std::size_t file = 0; file < catalog.files.size(); ++file) {
    for (safetensors::Entry const& entry : catalog.files[file].entries) {
      if (entry.name != blob_entry) continue;
      RankBlob blob{.rank = static_cast<int>(file),
                    .world_size = static_cast<int>(catalog.files.size())};
      PieceReader<Files> pieces(files, catalog, file);
      while (blob.bytes.size() < entry.end - entry.begin) {
        std::span<std::byte const> piece = pieces.at(entry.begin + blob.bytes.size());
        std::uint64_t const left = entry.end - entry.begin - blob.bytes.size();
        if (piece.size() > left) piece = piece.first(static_cast<std::size_t>(left));
        blob.bytes.insert(blob.bytes.end(), piece.begin(), piece.end());
      }
      blobs.push_back(std::move(blob));
    }
  }
  return blobs;
}

/// Counters to go on from.
/// @param now  those of the optimizer
/// @throws Error (data) if the checkpoint's optimizers were not at the same place
[[nodiscard]] inline Counters counters_of(Catalog const& catalog,
                                          LoadPlan const& plan,
                                          std::vector<SavedTensor> const& here,
                                          bool scaled,
                                          Counters now) {
  if (catalog.optimizers.empty()) fail(ErrorKind::data, {"'", catalog.path, "' has no optimizer"});
  SavedOptimizer const& first = catalog.optimizers.front();
  for (SavedOptimizer const& other : catalog.optimizers) {
    bool same =
        other.loss_scale == first.loss_scale && other.loss_scale_streak == first.loss_scale_streak;
    for (SavedTensor const& tensor : other.tensors) {
      same = same && tensor.steps == catalog.manifest.step;
    }
    if (same) continue;
    fail(ErrorKind::data, {"'", catalog.path, "' has tensors at different steps or loss scales"});
  }
  static_cast<void>(plan);
  now.steps.assign(here.size(), catalog.manifest.step);
  bool const was_scaled = first.policies.contains("loss_scale");
  if (scaled && was_scaled) {
    now.loss_scale = first.loss_scale;
    now.loss_scale_streak = first.loss_scale_streak;
  }
  return now;
}

/// Loads a checkpoint, as `Checkpoints::load` says.
template <FileOperations Files, class Optimizer>
[[nodiscard]] LoadReport load_checkpoint(Files& files,
                                         Optimizer& optimizer,
                                         std::string const& path,
                                         LoadOptions const& options) {
  auto& parts = Inside::parts(optimizer);
  auto& steps = Inside::steps(optimizer);
  using Parts = std::remove_reference_t<decltype(parts)>;
  using Precision = typename Optimizer::Precision;
  ControlWords const control = control_words(*parts.comm, parts.arena);
  Catalog catalog;
  LoadPlan plan;
  LoadReport report;
  Counters counters;
  LongWork look(control, "load");
  look.run([&] {
    parts.require_bound();
    steps.require_between_steps("load");
    look.aside([&] {
      catalog = read_catalog(files, path);
      report.blobs = read_blobs(files, catalog);
    });
    counters = optimizer.counters();
    std::vector<SavedTensor> const here = described(parts.tensors, options.parts, counters);
    std::vector<std::string> states;
    for (StateArray const& state : Optimizer::Rule::states) states.emplace_back(state.name);
    plan = LoadPlanner(catalog, here, options).plan(array_runs(parts, false), states);
    std::string const misfit = misfits(plan);
    if (options.strict && !misfit.empty()) {
      fail(ErrorKind::data, {"'", path, "' does not fit this optimizer: ", misfit});
    }
    counters = counters_of(catalog, plan, here, Precision::loss_scaled, std::move(counters));
    compare_values("rule",
                   catalog.optimizers.front().policies.value("rule", nlohmann::json()),
                   policies_of(parts)["rule"],
                   report.differing);
    for (SavedTensor const& tensor : here) {
      auto const saved = catalog.tensors.find(tensor.name);
      if (saved == catalog.tensors.end()) continue;
      compare_values(
          "'" + tensor.name + "'",
          {{"weight_decay", saved->second.about.weight_decay},
           {"learning_rate", saved->second.about.learning_rate}},
          {{"weight_decay", tensor.weight_decay}, {"learning_rate", tensor.learning_rate}},
          report.differing);
    }
  });
  Hash hash;
  for (SavedFile const& file : catalog.manifest.files) hash.add(file.header_sum);
  hash.add(catalog.manifest.user.dump());
  if (!unanimous(*parts.comm, parts.arena, hash.value())) {
    fail(ErrorKind::invalid_argument,
         {"ranks load different checkpoints; here '", path, "'"},
         {.rank = control.rank, .operation = "load"});
  }
  if (options.verify_first) {
    LongWork verify(control, "load");
    verify.run([&] { stream(files, catalog, plan.wanted, {}, [&] { verify.alive(); }); });
  }
  bool const all = !options.parameters_only;
  parts.refresh.settle();
  steps.begin_load(all);
  LongWork change(control, "load");
  change.run([&] {
    auto const place = [&](void* to, void const* from, std::size_t bytes) {
      if constexpr (Parts::Space::host_accessible) {
        std::memcpy(to, from, bytes);
      } else {
        parts.space().upload(to, from, bytes);
      }
    };
    stream(files, catalog, plan.wanted, place, [&] { change.alive(); });
  });
  follow_masters(parts, [&](BucketSpan const&, Segment const& piece) {
    return bool{plan.loaded[piece.tensor]};
  });
  if (all) optimizer.restore(counters);
  steps.end_load(all);
  if (plan.missing.empty() && plan.unfit.empty()) steps.values_are_set(false);
  report.step = catalog.manifest.step;
  report.user = std::move(catalog.manifest.user);
  report.missing = std::move(plan.missing);
  report.unexpected = std::move(plan.unexpected);
  report.unfit = std::move(plan.unfit);
  return report;
}

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
