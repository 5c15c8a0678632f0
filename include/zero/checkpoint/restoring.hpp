/// @file
/// One load: from the files of a checkpoint into an optimizer, with everything checked before.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/hash.hpp"
#include "zero/checkpoint/catalog.hpp"
#include "zero/checkpoint/description.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/load_plan.hpp"
#include "zero/checkpoint/loading.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/named_optimizer.hpp"
#include "zero/checkpoint/optimizer_view.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/checkpoint/watched_files.hpp"
#include "zero/optimizer/engine.hpp"
#include "zero/optimizer/parts.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
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

/// What a load took of one tensor. A frozen tensor has values alone.
struct TakenTensor {
  std::string tensor{};  ///< as it is called here
  bool values = false;   ///< otherwise it keeps its own
  bool states = false;   ///< otherwise they are 0, or with `parameters_only` its own
  long count = 0;        ///< updates that it goes on from: saved ones with saved states, or 0
};

/// What a load found.
struct LoadReport {
  std::string path{};                              ///< of the checkpoint
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
  std::vector<std::string> missing{};     ///< tensors here that the checkpoint does not have
  std::vector<std::string> unexpected{};  ///< tensors of the checkpoint that are not here
  std::vector<std::string> unfit{};       ///< tensors that do not fit, and why
  /// Frozen tensors here that were saved without their values, or that `LoadOptions::frozen` leaves
  /// as they are. No step begins until other calls have given them values, before or after the
  /// load.
  std::vector<std::string> left_out{};
  /// Options that differ: those here hold. A `Seed` that differs is listed as well, but the run
  /// goes on with the saved one.
  std::vector<std::string> differing{};
  std::vector<TakenTensor> taken{};  ///< of each tensor here, in registration order
  /// Newer checkpoints that `resume` has passed over, and why, the newest first.
  std::vector<std::string> skipped{};
};

namespace detail {

/// Is a saved value of an option the one that is held here?
[[nodiscard]] inline bool same_value(nlohmann::json const& saved, nlohmann::json const& here) {
  if (!saved.is_number_float() || !here.is_number_float()) return saved == here;
  auto const then = saved.get<double>();
  auto const now = here.get<double>();
  // Earlier versions rounded rates and scales to float before they were saved.
  return then == now || then == static_cast<double>(static_cast<float>(now));
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
  } else if (!same_value(saved, here)) {
    differing.push_back(name + ": " + saved.dump() + " saved, " + here.dump() + " here");
  }
}

/// The trainer's own bytes of all ranks.
[[nodiscard]] inline std::vector<RankBlob> read_blobs(FileOperations& files,
                                                      Catalog const& catalog) {
  std::vector<RankBlob> blobs;
  PieceReader pieces(files, catalog);
  for (std::size_t file = 0; file < catalog.files.size(); ++file) {
    for (safetensors::Entry const& entry : catalog.files[file].entries) {
      if (entry.name != blob_entry) continue;
      RankBlob blob{.rank = static_cast<int>(file),
                    .world_size = static_cast<int>(catalog.files.size())};
      blob.bytes.resize(static_cast<std::size_t>(entry.end - entry.begin));
      Wanted const wanted = all_of(file, entry.begin, blob.bytes.size(), blob.bytes.data());
      stream_in_order(pieces, {&wanted, 1}, copy_values, true, [] {});
      blobs.push_back(std::move(blob));
    }
  }
  return blobs;
}

/// One load, as `Checkpoints::load` says, in parts that each end alike on all ranks. Who
/// falls back to another checkpoint knows by the part that failed whether this one is damaged, or
/// does not fit. All are collective and block, and are called in this order.
class Restore {
 public:
  /// @param files, optimizers  outlive this
  /// @param optimizers  all that are loaded together
  /// @param which       of them, this is of
  Restore(WatchedFiles& files,
          std::span<NamedOptimizer const> optimizers,
          std::size_t which,
          LoadOptions const& options,
          double deadline_s)
      : files_(&files),
        optimizers_(optimizers),
        name_(optimizers[which].name()),
        engine_(&optimizers[which].engine()),
        parts_(&engine_->parts()),
        options_(options),
        deadline_s_(deadline_s),
        control_(parts_->groups.world(), parts_->arena),
        all_parts_(options.parts) {
    options_.parts = parts_of(name_, options.parts);
    options_.names.clear();
    for (auto const& [there, here] : options.names) {
      std::string_view const own = tensor_of(name_, here);
      if (!own.empty()) options_.names.emplace(tensor_of(name_, there), own);
    }
    all_names_ = options.names;
  }

  /// Reads what the files say of themselves.
  /// @throws Error (data) if it is damaged; (invalid_argument) in the middle of a step
  void read(std::string const& path) {
    path_ = path;
    LongWork look(control_, "load", files_, deadline_s_);
    look.run([&] {
      require_distinct(optimizers_, all_parts_);
      require_names();
      engine_->require_bound();
      engine_->require_between_steps("load");
      engine_->require_no_readers("load");
      look.run_in_thread([&](Alive const&) {
        Manifest manifest = read_manifest(*files_, path);
        saved_ = manifest.optimizers();
        // What does not fit is no damage.
        bool const fits = std::find(saved_.begin(), saved_.end(), name_) != saved_.end();
        if (!fits) return;
        catalog_ = read_headers(*files_, path, manifest.of(name_));
        report_.blobs = read_blobs(*files_, catalog_);
      });
    });
  }
  /// Finds what of it this optimizer takes.
  /// @throws Error (data) if it does not fit; (invalid_argument) for names that make no sense
  void match() {
    together(control_, "load", [&] {
      require_saved();
      counters_ = engine_->counters();
      here_ = described(*parts_, options_.parts, counters_, parts_->divided());
      runs_ = array_runs(*parts_, false);
      RuleCalls const& rule = parts_->rules.calls();
      planner_.emplace(catalog_, here_, options_);
      std::string const other = planner_->other_rule(
          rule.name, rule.in_full, {rule.states_of.begin(), rule.states_of.end()});
      if (!other.empty()) refuse_file(catalog_.path, {"does not fit this optimizer: ", other});
      plan_ = planner_->plan([&](std::size_t t) -> StorageTypes const& {
        // Of a frozen tensor here there are states in none.
        return parts_->types[parts_->partition.place(t).kind];
      });
    });
    changed_ = replaced_ = plan_.values;
  }
  /// Agrees on what all ranks take alike: of tied tensors what was saved alike, and otherwise the
  /// states that every rank has found. Of a tensor that is partitioned over a grid, some ranks may
  /// have found their part alone.
  /// @throws Error (data) if what is compared is damaged
  void compare() {
    std::size_t const tensors = here_.size();
    if (options_.strict && !planner_->ties()) return;
    std::vector<std::int64_t> words;
    LongWork look(control_, "load", files_, deadline_s_);
    look.run([&] {
      look.run_in_thread(
          [&](Alive const& alive) { words = planner_->differing(runs_, *files_, alive); });
    });
    words.insert(words.end(), plan_.values.begin(), plan_.values.end());
    words.insert(words.end(), plan_.states.begin(), plan_.states.end());
    control_.sum(words);
    planner_->part_ties(words, plan_);
    for (std::size_t t = 0; t < tensors; ++t) {
      changed_[t] = words[2 * tensors + t] > 0;
      replaced_[t] = words[2 * tensors + t] == control_.size();
      if (words[3 * tensors + t] != control_.size()) plan_.states[t] = false;
    }
  }
  /// Decides what is taken, and from where.
  /// @throws Error (data) if it does not fit; (invalid_argument) if ranks have read something else
  void fit() {
    together(control_, "load", [&] {
      if (options_.strict) {
        std::string misfit =
            misfits("checkpoint", plan_.missing, plan_.unexpected, plan_.unfit, options_.names);
        if (plan_.other_states) {
          misfit += "; parameters alone can be loaded (LoadOptions::parameters_only)";
        }
        if (!misfit.empty()) {
          refuse_file(catalog_.path, {"does not fit this optimizer: ", misfit});
        }
      }
      if (!options_.parameters_only) go_on_from(*planner_, here_);
      planner_->place(runs_, plan_);
      report_.differing = differences(*planner_, here_);
      for (std::size_t t = 0; t < here_.size(); ++t) {
        long const count = here_[t].frozen ? 0 : counters_.steps[t];
        report_.taken.push_back({here_[t].name, plan_.values[t], plan_.states[t], count});
      }
    });
    Hash hash;
    hash.add(static_cast<std::uint64_t>(catalog_.manifest.step));
    for (SavedFile const& file : catalog_.manifest.files) hash.add(file.header_sum);
    hash.add(catalog_.manifest.user.dump());
    if (!control_.unanimous(hash.value())) {
      fail(ErrorKind::invalid_argument,
           {"ranks load different checkpoints; here '", catalog_.path, "'"},
           {.rank = control_.rank(), .operation = "load"});
    }
  }
  /// Reads the data, and changes nothing.
  /// @throws Error (data) if they are damaged
  void verify() {
    LongWork verify(control_, "load", files_, deadline_s_);
    verify.run([&] {
      verify.run_in_thread([&](Alive const& alive) {
        stream(*files_, catalog_, plan_.wanted, {}, false, alive);
        PieceReader pieces(*files_, catalog_);
        auto const look = [&](ArrayRun const& run) {
          planner_->convert(run, pieces, alive, [](auto*, std::size_t, std::uint64_t) {});
        };
        for (ArrayRun const& run : plan_.converted) look(run);
        for (ArrayRun const& run : runs_) {
          if (has_scales(run.coding) && plan_.states[run.tensor]) look(run);
        }
      });
    });
  }
  /// Reads the data to where they belong.
  /// @throws Error (data) if they are damaged; values are lost then, unless they were verified
  [[nodiscard]] LoadReport apply() {
    bool const all = !options_.parameters_only;
    engine_->begin_load(changed_, all);
    LongWork change(control_, "load", files_, deadline_s_);
    change.run([&] {
      change.run_in_thread([&](Alive const& alive) {
        AnySpace const& space = parts_->space();
        bool const direct = space.host_accessible();
        auto const place = [&](HeldValues const& to, std::byte const* host, std::size_t count) {
          direct&& to.plain() ? copy_values(to, host, count) : write_values(space, to, count, host);
        };
        stream(*files_, catalog_, plan_.wanted, place, direct, alive);
        PieceReader pieces(*files_, catalog_);
        for (ArrayRun const& run : plan_.converted) {
          HeldValues const& to = run.coding == Coding::values ? run.values : run.decoded;
          planner_->convert(run, pieces, alive, [&](auto* values, std::size_t n, std::uint64_t at) {
            write_values(space, to.from(at), n, values);
          });
        }
        if (all) require_codes(alive);
      });
    });
    for (ArrayRun const& run : plan_.cleared) {
      Array const& state = run.values.array;
      parts_->space().zero(state.first, state.bytes(run.count));
    }
    engine_->follow(plan_.values);
    if (all) engine_->restore(counters_);
    if (all && seed_) parts_->randomness.set(parts_->space(), *seed_);
    engine_->end_load(replaced_, all);
    engine_->values_are_set(replaced_, false);
    report_.path = std::move(catalog_.path);
    report_.step = catalog_.manifest.step;
    report_.user = std::move(catalog_.manifest.user);
    report_.missing = std::move(plan_.missing);
    report_.unexpected = std::move(plan_.unexpected);
    report_.unfit = std::move(plan_.unfit);
    report_.left_out = std::move(plan_.left_out);
    return std::move(report_);
  }

 private:
  /// Do all codes that are held now stand for numbers?
  void require_codes(Alive const& alive) const {
    constexpr std::uint64_t most = std::uint64_t{1} << 16;
    for (ArrayRun const& run : runs_) {
      if (!has_scales(run.coding) || !plan_.states[run.tensor]) continue;
      for (std::uint64_t done = 0; done < run.count; done += most) {
        alive();
        auto const count = static_cast<std::size_t>((std::min)(most, run.count - done));
        HeldValues const here = run.decoded.from(done);
        std::vector<std::byte> codes(count);
        std::vector<std::byte> scales(
            static_cast<std::size_t>(entries_of(Coding::root_scales, count)));
        parts_->space().download(codes.data(), here.array.first, codes.size());
        parts_->space().download(scales.data(), here.scales, scales.size());
        planner_->require_codes(run, *here.codes, codes.data(), scales.data(), count, done);
      }
    }
  }
  /// Is each name one of an optimizer, and stays with it?
  void require_names() const {
    for (auto const& [there, here] : all_names_) {
      auto const has = [&, own = here](NamedOptimizer const& each) {
        return !tensor_of(each.name(), own).empty();
      };
      bool const given = std::any_of(optimizers_.begin(), optimizers_.end(), has);
      bool const stays = tensor_of(name_, there).empty() == tensor_of(name_, here).empty();
      if (stays && (given || !options_.strict)) continue;
      char const* const why = stays ? "' here: these optimizers have no such tensor"
                                    : "' here: it would be another optimizer's";
      fail(ErrorKind::invalid_argument, {"'", there, "' cannot be called '", here, why});
    }
  }
  /// Are the optimizers those that were saved?
  void require_saved() const {
    std::vector<std::string> here;
    for (NamedOptimizer const& each : optimizers_) here.push_back(each.name());
    auto const without = [](std::vector<std::string> names,
                            std::vector<std::string> const& others) {
      std::erase_if(names, [&](std::string const& name) {
        return std::find(others.begin(), others.end(), name) != others.end();
      });
      return names;
    };
    std::vector<std::string> const missing = without(here, saved_);
    std::vector<std::string> const unexpected = without(saved_, here);
    if (missing.empty() && (unexpected.empty() || !options_.strict)) return;
    if (here.front().empty()) {
      refuse_file(path_, {"is of several optimizers, which are loaded by name: ", quoted(saved_)});
    }
    if (saved_.front().empty()) {
      refuse_file(path_, {"is of one optimizer without a name; ", quoted(here), " cannot load it"});
    }
    Message const not_there{missing.empty() ? "" : " not in the checkpoint: ", quoted(missing)};
    Message const not_here{unexpected.empty() ? "" : " not given: ", quoted(unexpected)};
    refuse_file(path_,
                {"does not fit these optimizers:",
                 not_there,
                 missing.empty() || unexpected.empty() ? "" : ";",
                 not_here});
  }
  /// Counters are those of the checkpoint. Tensors without its states count from 0.
  void go_on_from(LoadPlanner const& planner, std::vector<SavedTensor> const& here) {
    SavedOptimizer const& first = catalog_.optimizers.front();
    counters_.step = first.step >= 0 ? first.step : catalog_.manifest.step;
    for (std::size_t t = 0; t < here.size(); ++t) {
      SavedTensor const* const about = planner.about(t);
      long const frozen = about == nullptr ? counters_.step : about->steps;
      long const trained = plan_.states[t] ? planner.source(t).steps : 0;
      counters_.steps[t] = here[t].frozen ? frozen : trained;
    }
    if (parts_->policies.loss_scaled && first.policies.contains("loss_scale")) {
      counters_.loss_scale = first.loss_scale;
      counters_.loss_scale_streak = first.loss_scale_streak;
    }
    if (!parts_->randomness.used() || !first.policies.contains("seed")) return;
    nlohmann::json const& seed = first.policies["seed"];
    if (!seed.is_number_unsigned()) {
      refuse_file(catalog_.path, {"has a seed that is no integer in [0, 2^64): ", seed.dump()});
    }
    seed_ = Seed{seed.get<std::uint64_t>()};
  }
  /// Options that differ from the saved ones, in words.
  [[nodiscard]] std::vector<std::string> differences(LoadPlanner const& planner,
                                                     std::vector<SavedTensor> const& here) const {
    std::vector<std::string> differing;
    nlohmann::json const& saved = catalog_.optimizers.front().policies;
    nlohmann::json own = policies_of(*parts_);
    auto const saved_of = [&](char const* slot) {
      return saved.contains(slot) ? saved[slot] : nlohmann::json();
    };
    // What was saved of a group that has said nothing here, or not yet, differs as well.
    nlohmann::json const groups = saved_of("own_rules");
    for (auto const& group : groups.items()) own["own_rules"].emplace(group.key(), nullptr);
    for (char const* const slot : {"rule", "own_rules", "precision", "loss_scale"}) {
      if (own.contains(slot)) compare_values(slot, saved_of(slot), own[slot], differing);
    }
    if (seed_ && saved_of("seed") != own["seed"]) {
      compare_values("seed", saved_of("seed"), own["seed"], differing);
      differing.back() += "; the run goes on with the saved one";
    }
    for (std::size_t t = 0; t < here.size(); ++t) {
      SavedTensor const* const about = planner.about(t);
      if (about == nullptr) continue;
      auto const scales = [](SavedTensor const& of) {
        return nlohmann::json{{"weight_decay", of.weight_decay},
                              {"learning_rate", of.learning_rate}};
      };
      compare_values("'" + here[t].name + "'", scales(*about), scales(here[t]), differing);
    }
    return differing;
  }

  WatchedFiles* files_;
  std::span<NamedOptimizer const> optimizers_;
  std::string name_;
  Engine* engine_;
  Parts* parts_;
  LoadOptions options_;
  double deadline_s_;
  RankWords control_;  ///< of all ranks of a grid
  std::vector<TensorPart> all_parts_;
  std::map<std::string, std::string> all_names_{};
  std::string path_{};
  std::vector<std::string> saved_{};  ///< names of optimizers
  Catalog catalog_{};
  std::vector<SavedTensor> here_{};
  std::vector<ArrayRun> runs_{};
  std::optional<LoadPlanner> planner_{};
  LoadPlan plan_{};
  std::vector<bool> changed_{};   ///< by tensor: some rank takes its values
  std::vector<bool> replaced_{};  ///< likewise: all do
  LoadReport report_{};
  Counters counters_{};
  std::optional<Seed> seed_{};  ///< of the checkpoint, where it is gone on from
};

/// The same for all optimizers that are loaded together.
class Restores {
 public:
  /// @param files, optimizers, options  outlive this
  Restores(WatchedFiles& files,
           std::span<NamedOptimizer const> optimizers,
           LoadOptions const& options,
           double deadline_s)
      : optimizers_(optimizers), options_(&options) {
    for (std::size_t i = 0; i < optimizers.size(); ++i) {
      all_.emplace_back(files, optimizers, i, options, deadline_s);
    }
  }

  void read(std::string const& path) {
    for (Restore& each : all_) each.read(path);
  }
  void match() {
    for (Restore& each : all_) each.match();
  }
  void compare() {
    for (Restore& each : all_) each.compare();
  }
  void fit() {
    for (Restore& each : all_) each.fit();
  }
  /// @returns the first one's report, with what the others have to say
  [[nodiscard]] LoadReport apply() {
    if (options_->verify_first) {
      for (Restore& each : all_) each.verify();
    }
    LoadReport report;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      LoadReport own = all_[i].apply();
      std::string const& name = optimizers_[i].name();
      auto const append = [&](std::vector<std::string> LoadReport::*list, char const* between) {
        for (std::string& each : own.*list) {
          if (!name.empty()) each.insert(0, name + between);
          if (i > 0) (report.*list).push_back(std::move(each));
        }
      };
      append(&LoadReport::missing, "/");
      append(&LoadReport::unexpected, "/");
      append(&LoadReport::unfit, ": ");
      append(&LoadReport::left_out, "/");
      append(&LoadReport::differing, ": ");
      for (TakenTensor& each : own.taken) {
        if (!name.empty()) each.tensor.insert(0, name + "/");
        if (i > 0) report.taken.push_back(std::move(each));
      }
      if (i == 0) report = std::move(own);
      if (i > 0 && report.blobs.empty()) report.blobs = std::move(own.blobs);
    }
    return report;
  }

 private:
  std::span<NamedOptimizer const> optimizers_;
  LoadOptions const* options_;
  std::vector<Restore> all_;
};

/// What damage some work has found, in words, the same on all ranks; empty without any.
template <class Work>
[[nodiscard]] std::string damage_found(Work&& work) {
  try {
    work();
  } catch (Error const& error) {
    if (error.kind() != ErrorKind::data) throw;
    return error.message();
  }
  return {};
}

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
