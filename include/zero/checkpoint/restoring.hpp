/// @file
/// One load: from the files of a checkpoint into an optimizer, with everything checked before.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/checkpoint/catalog.hpp"
#include "zero/checkpoint/description.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/loading.hpp"
#include "zero/checkpoint/long_work.hpp"
#include "zero/checkpoint/optimizer_view.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/checkpoint/verify.hpp"
#include "zero/optimizer/setup/hash.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// The trainer's own bytes of one rank.
struct RankBlob {
  int rank = 0;                    ///< that saved them
  int world_size = 1;              ///< that it was one of
  std::vector<std::byte> bytes{};  ///< as it gave them
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
  std::vector<std::string> differing{};   ///< options that differ: those here hold
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
/// @param scaled  whether the optimizer has a loss scale
/// @param here    the tensors of the optimizer; those that were not saved go on from the run's
/// count
/// @param now     its counters
[[nodiscard]] inline Counters counters_of(Catalog const& catalog,
                                          bool scaled,
                                          std::vector<SavedTensor> const& here,
                                          Counters now) {
  SavedOptimizer const& first = catalog.optimizers.front();
  now.step = catalog.manifest.step;
  for (std::size_t t = 0; t < here.size(); ++t) {
    auto const found = catalog.tensors.find(here[t].name);
    now.steps[t] = found == catalog.tensors.end() ? now.step : found->second.about.steps;
  }
  if (scaled && first.policies.contains("loss_scale")) {
    now.loss_scale = first.loss_scale;
    now.loss_scale_streak = first.loss_scale_streak;
  }
  return now;
}

/// Options that differ from the saved ones, in words.
[[nodiscard]] inline std::vector<std::string> differences(Catalog const& catalog,
                                                          std::vector<SavedTensor> const& here,
                                                          OptimizerFacts const& facts) {
  std::vector<std::string> differing;
  nlohmann::json const& saved = catalog.optimizers.front().policies;
  nlohmann::json own = json_of(facts);
  // What was saved of a group that has said nothing here, or not yet, differs as well.
  if (saved.contains("own_rules")) {
    for (auto const& group : saved["own_rules"].items())
      own["own_rules"].emplace(group.key(), nullptr);
  }
  for (char const* const slot : {"rule", "own_rules", "precision", "loss_scale"}) {
    if (!own.contains(slot)) continue;
    compare_values(
        slot, saved.contains(slot) ? saved[slot] : nlohmann::json(), own[slot], differing);
  }
  for (SavedTensor const& tensor : here) {
    auto const found = catalog.tensors.find(tensor.name);
    if (found == catalog.tensors.end()) continue;
    auto const scales = [](SavedTensor const& of) {
      return nlohmann::json{{"weight_decay", of.weight_decay}, {"learning_rate", of.learning_rate}};
    };
    compare_values("'" + tensor.name + "'", scales(found->second.about), scales(tensor), differing);
  }
  return differing;
}

/// Loads a checkpoint, as `Checkpoints::load` says.
template <FileOperations Files>
[[nodiscard]] LoadReport load_checkpoint(Files& files,
                                         OptimizerView const& optimizer,
                                         std::string const& path,
                                         LoadOptions const& options) {
  ControlWords const& control = optimizer.control;
  Catalog catalog;
  LoadPlan plan;
  LoadReport report;
  Counters counters;
  LongWork look(control, "load");
  look.run([&] {
    optimizer.require_ready("load", true);
    look.aside([&] {
      catalog = read_catalog(files, path);
      report.blobs = read_blobs(files, catalog);
    });
    counters = optimizer.counters();
    std::vector<SavedTensor> const here =
        described(*optimizer.tensors, options.parts, counters, optimizer.divided);
    plan = LoadPlanner(catalog, here, options).plan(optimizer.runs(false), optimizer.facts.states);
    std::string const misfit = misfits(plan);
    if (options.strict && !misfit.empty()) {
      fail(ErrorKind::data, {"'", path, "' does not fit this optimizer: ", misfit});
    }
    counters =
        counters_of(catalog, optimizer.facts.loss_scale.has_value(), here, std::move(counters));
    report.differing = differences(catalog, here, optimizer.facts);
  });
  Hash hash;
  hash.add(static_cast<std::uint64_t>(catalog.manifest.step));
  for (SavedFile const& file : catalog.manifest.files) hash.add(file.header_sum);
  hash.add(catalog.manifest.user.dump());
  if (!unanimous(control, hash.value())) {
    fail(ErrorKind::invalid_argument,
         {"ranks load different checkpoints; here '", path, "'"},
         {.rank = control.rank, .operation = "load"});
  }
  if (options.verify_first) {
    LongWork verify(control, "load");
    verify.run([&] { stream(files, catalog, plan.wanted, {}, false, [&] { verify.alive(); }); });
  }
  bool const all = !options.parameters_only;
  std::vector<bool> changed = plan.loaded;
  std::vector<bool> replaced = plan.loaded;
  if (!options.strict) {
    // Of a tensor that is partitioned over a grid, some ranks may have found their part alone.
    std::vector<std::int64_t> ranks(plan.loaded.begin(), plan.loaded.end());
    control.sum(ranks);
    for (std::size_t t = 0; t < ranks.size(); ++t) {
      changed[t] = ranks[t] > 0;
      replaced[t] = ranks[t] == control.size;
    }
  }
  optimizer.begin_load(changed, all);
  LongWork change(control, "load");
  change.run([&] {
    stream(
        files, catalog, plan.wanted, optimizer.upload, optimizer.direct, [&] { change.alive(); });
  });
  optimizer.follow(plan.loaded);
  if (all) optimizer.restore(counters);
  optimizer.end_load(replaced, all, plan.missing.empty() && plan.unfit.empty());
  report.step = catalog.manifest.step;
  report.user = std::move(catalog.manifest.user);
  report.missing = std::move(plan.missing);
  report.unexpected = std::move(plan.unexpected);
  report.unfit = std::move(plan.unfit);
  return report;
}

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
