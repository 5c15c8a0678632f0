/// @file
/// When a trainer saves and what it goes on from: everything it has to know of zero's checkpoints.
#pragma once

#include "options.hpp"
#include "position.hpp"
#include "tensors.hpp"
#include "text.hpp"
#include "zero/checkpoint.hpp"

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// Saves and resumes one rank's optimizer as the options say; without any does nothing. Every
/// function is collective.
template <class Optimizer>
class Keeper {
 public:
  using Say = std::function<void(std::string const&)>;

  /// @param place  of this rank among those that hold a model together
  /// @param say    what the user should know
  Keeper(Optimizer& optimizer,
         Options const& options,
         Text const& text,
         ModelRank const& place,
         Say say)
      : optimizer_(&optimizer),
        options_(&options),
        text_(&text),
        parts_(parts(options.model, place)),
        say_(std::move(say)) {
    if (options.save.empty()) return;
    zero::CheckpointOptions how{.keep = options.keep};
    if (options.async_save) how.snapshot_bytes = zero::Checkpoints::plan(optimizer, 0, frozen);
    saves_.emplace(options.save, how);
  }

  /// The number of the step to go on with: 0 without anything to resume from.
  int resume() {
    if (options_->resume.empty()) return 0;
    zero::Checkpoints from{options_->resume, {.lock = false}};
    auto const loaded = from.resume(*optimizer_, {.parts = parts_});
    if (!loaded && options_->resume == options_->save) {
      say_("nothing to resume in " + options_->resume + ": starting anew");
      return 0;
    }
    if (!loaded) throw std::runtime_error("there is no checkpoint in " + options_->resume);
    for (auto const& skipped : loaded->skipped) say_("passed over " + skipped);
    Resumption const on = resumption(loaded->user, *options_, *text_);
    say_("resumed " + loaded->path + " after step " + std::to_string(on.next_step));
    if (!on.changed.empty()) say_("since it was saved, this has changed: " + on.changed);
    return on.next_step;
  }

  /// Saves if it is time to.
  /// @param stopped  is this the last step, sooner than the options say?
  void end_step(int step, bool stopped) {
    if (!saves_) return;
    bool const last = stopped || step + 1 == options_->steps;
    bool const due = last || (options_->save_every > 0 && (step + 1) % options_->save_every == 0);
    say_saved(due ? saves_->finish() : saves_->poll());
    if (!due) return;
    zero::SaveOptions const what{
        .user = position(*options_, *text_, step + 1), .parts = parts_, .frozen = frozen};
    if (options_->async_save) {
      saves_->save_async(*optimizer_, what);
      if (last) say_saved(saves_->finish());
    } else {
      say_saved(saves_->save(*optimizer_, what));
    }
  }

  /// Exports a model that was trained to its end.
  void end_training(bool stopped) {
    if (stopped || options_->export_file.empty()) return;
    zero::ExportOptions const what{.parts = parts_, .frozen = frozen};
    say_("exported " + zero::export_model(*optimizer_, options_->export_file, what).path);
  }

 private:
  // A base has a file of its own, so adapters are saved and exported alone.
  static constexpr bool frozen = false;

  void say_saved(std::optional<zero::SaveReport> const& report) const {
    if (report) say_("saved " + report->path);
  }

  Optimizer* optimizer_;
  Options const* options_;
  Text const* text_;
  std::vector<zero::TensorPart> parts_;
  Say say_;
  std::optional<zero::Checkpoints> saves_;
};

}  // namespace gpt
