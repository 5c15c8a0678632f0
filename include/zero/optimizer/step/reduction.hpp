/// @file
/// From the trainer's full gradients to the reduced ones that an update reads, and their norm.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/held/arrays.hpp"
#include "zero/optimizer/held/staging.hpp"
#include "zero/optimizer/step/gradient_norm.hpp"
#include "zero/optimizer/step/lent_units.hpp"
#include "zero/optimizer/step/presence.hpp"
#include "zero/optimizer/step/reduction_order.hpp"
#include "zero/optimizer/tables/communicator_calls.hpp"
#include "zero/optimizer/tables/engine_setup.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Starts the reduction of each bucket when its group is complete and its turn has come. Up to
/// `reductions_in_flight` buckets are under way while the backward pass goes on.
class Reduction {
 public:
  ZERO_APART ZERO_COLD Reduction(PolicyFacts const& policies,
                                 Ranks& ranks,
                                 Partition const& partition,
                                 GradientStore& store,
                                 GradientNorm& norm,
                                 Staging const& staging,
                                 Presence& presence,
                                 AnySpace space,
                                 Kernels kernels);

  /// Has loaded what it takes, before anything lies in its memory.
  ZERO_APART ZERO_COLD void load(Kernels const& loading) const;

  /// How far gradients are.
  [[nodiscard]] ReductionOrder const& order() const noexcept { return order_; }
  /// Of which units lent gradients are yet to be read.
  [[nodiscard]] LentUnits& lent_units() noexcept { return lent_units_; }
  [[nodiscard]] LentUnits const& lent_units() const noexcept { return lent_units_; }

  /// Makes the unit's full gradients writable: zero if nothing was added to them yet, unless they
  /// are to be overwritten.
  /// @throws Error (invalid_argument) if the unit was reduced in this micro-step
  ZERO_APART void open(int unit, bool overwritten);
  /// The unit's gradients are lent for this step or micro-step.
  ZERO_APART void lend(int unit);
  /// The unit's gradients of this micro-step are complete, says a guard of that epoch.
  ZERO_APART void close(int unit, std::uint64_t epoch);
  /// The unit has no gradients in this micro-step.
  ZERO_APART void declare(int unit);
  /// Nor has a tensor of a unit that is yet to be closed.
  ZERO_APART void declare(int unit, std::size_t tensor);
  /// Begins a micro-step; `last` says that no other follows in this step.
  ZERO_APART void begin_micro_step(bool last);
  /// Reduces what is left, zeros standing in for units that gave no gradients, and waits for all
  /// of it. Collective; blocks.
  ZERO_APART void finish();
  /// This rank's reduced share of a bucket as one run: where it lies, or copied to staging, where
  /// it lasts until the next call.
  [[nodiscard]] Array own(BucketSpan const& bucket) const {
    return in_lent_ ? run_of_lent(bucket).from(bucket.part(ranks_->rank()))
                    : store_->reduced(bucket);
  }
  /// Takes over what was changed in it, for the norm and for the update.
  void changed(BucketSpan const& bucket, Array own) const {
    if (in_lent_) {
      write_back(bucket, own);
      // What was collected has anything between its tensors.
      staging_->clear_gaps(bucket.share(ranks_->rank()), own);
    }
    norm_->add(bucket, own);
  }
  /// The reduced gradients of what this rank updates of a bucket, from its first element on. Where
  /// every rank updates everything, the shares are gathered: within the full gradients where they
  /// lie there, one bucket ahead of what is asked for, which is all buckets in their order; else in
  /// staging, where they last until the next call.
  /// @par Collective  where every rank updates everything: yes, blocks
  [[nodiscard]] Array reduced(BucketSpan const& bucket) {
    return form_.update == Form::Update::share ? own(bucket) : gathered(bucket);
  }
  /// Forgets the gradients of this step. Local, but every rank must do it.
  ZERO_APART void reset();

 private:
  using Form = StorageForm;
  using Departure = ReductionOrder::Departure;

  /// A bucket that travels; its ticket has the same place.
  struct BucketInFlight {
    std::size_t bucket = 0;
    std::byte* received = nullptr;
  };

  /// Memory for the full gradients of a group. A pool has some once a reduction has arrived.
  /// @param early  where none is under way: whether a complete group may leave before its turn
  /// @returns whether there is any
  ZERO_APART [[nodiscard]] bool take_memory(std::size_t g, bool overwritten, bool early);
  /// Starts what may travel. What is absent travels as zeros, once there is memory that nobody
  /// works in. Of lent gradients that a trainer frees, no more than two units' are then in use at
  /// once.
  /// @param all  whether the trainer works in none any more: everything travels, and arrives
  ZERO_APART void launch_ready(bool all);
  ZERO_APART void launch(Departure const& next);
  /// A bucket's N shares as one run of memory, where they lie or packed into staging, and where the
  /// reduced share arrives: in place where the run may be written and the share has no array of its
  /// own to arrive in.
  ZERO_APART [[nodiscard]] Collective reduction_of(BucketSpan const& bucket);
  /// The shares of lent gradients.
  ZERO_APART [[nodiscard]] Array lent(BucketSpan const& bucket);
  /// @throws Error (invalid_argument) if a tensor of the group has no memory to write to
  ZERO_APART void require_lent(std::size_t g) const;
  /// All shares of a bucket, reduced.
  ZERO_APART [[nodiscard]] Array gathered(BucketSpan const& bucket);
  /// Brings a reduced share to the lent tensors, if it has not arrived there.
  ZERO_APART void write_back(BucketSpan const& bucket, Array received) const;
  /// All shares of a bucket as one run in which at least this rank's is reduced: lent memory, or
  /// staging, to which it is copied.
  ZERO_APART [[nodiscard]] Array run_of_lent(BucketSpan const& bucket) const;
  /// Of a bucket's gradients on their way.
  [[nodiscard]] DType dtype(BucketSpan const& bucket) const noexcept {
    return store_->dtype(bucket.kind());
  }
  /// One staging buffer per reduction in flight; at most that many are, so none is overwritten.
  [[nodiscard]] Array staging_buffer(BucketSpan const& bucket) const noexcept {
    return staging_->buffer(dtype(bucket), launched_ % reductions_in_flight);
  }
  /// Waits for the reduction that was started first.
  ZERO_APART void arrive();
  ZERO_APART void add_to_sums(BucketSpan const& bucket, void const* received) const;
  /// What was lent for one step is forgotten with it: once it is reduced, or where reduced
  /// gradients lie in it, when they are.
  ZERO_APART void free_lent();
  ZERO_APART void free_lent(std::size_t g);
  /// Lent gradients that nobody has asked for are as they lie there.
  ZERO_APART void complete_presence();
  ZERO_APART void end_micro_step();

  StorageForm form_;
  bool accumulates_;  ///< micro-steps add up in full gradients, which travel after the last one
  bool lends_;
  bool in_lent_;  ///< reduced gradients lie in lent ones, which are in use until they are forgotten
  bool frees_;    ///< the stage keeps no full gradients: a trainer may free those that it lends
  Ranks* ranks_;
  Partition const* partition_;
  GradientStore* store_;
  GradientNorm* norm_;
  Staging const* staging_;
  Presence* presence_;
  AnySpace space_;
  Kernels kernels_;
  ReductionOrder order_;
  LentUnits lent_units_;
  std::array<BucketInFlight, reductions_in_flight> flights_{};
  Tickets tickets_;
  std::size_t oldest_ = 0;
  std::size_t flying_ = 0;
  std::size_t launched_ = 0;
  std::size_t gathering_ = 0;    ///< gathers under way, whose places are those of reductions
  std::size_t next_gather_ = 0;  ///< the bucket from which on none is
  bool sums_begun_ = false;
};

#if ZERO_BODIES

ZERO_BODY Reduction::Reduction(PolicyFacts const& policies,
                               Ranks& ranks,
                               Partition const& partition,
                               GradientStore& store,
                               GradientNorm& norm,
                               Staging const& staging,
                               Presence& presence,
                               AnySpace space,
                               Kernels kernels)
    : form_(policies.form()),
      accumulates_(policies.full_gradients),
      lends_(form_.gradients == Form::Gradients::lent),
      in_lent_(form_.reduced == Form::Reduced::lent),
      frees_(lends_ && !in_lent_ && policies.sharding.gradients),
      ranks_(&ranks),
      partition_(&partition),
      store_(&store),
      norm_(&norm),
      staging_(&staging),
      presence_(&presence),
      space_(space),
      kernels_(kernels),
      order_(partition, accumulates_, form_.reduced == Form::Reduced::sums),
      lent_units_(lends_ ? static_cast<std::size_t>(partition.placement().unit_count()) : 0),
      tickets_(ranks.tickets(reductions_in_flight)) {}

ZERO_BODY void Reduction::load(Kernels const& loading) const {
  if (form_.reduced != Form::Reduced::sums) return;
  // These run, over zeros, and over as many as in a step: CUB may keep the tile that suits the
  // first array it meets.
  std::vector<std::uint8_t> done(partition_->placement().trained_kinds(), 0);
  partition_->for_each_bucket([&](BucketSpan const& bucket) {
    if (std::exchange(done[bucket.kind()], std::uint8_t{1}) != 0) return;
    Array const sums = store_->sums(bucket);
    Kernels const kernels = loading.of(bucket.kind());
    space_.zero(sums.first, sums.bytes(bucket.shard()));
    kernels.sums_from_wire(sums.first, sums.first, bucket.shard());
    kernels.add_wire_to_sums(sums.first, sums.first, bucket.shard());
  });
}

ZERO_BODY void Reduction::open(int unit, bool overwritten) {
  ranks_->progress();
  order_.open(unit);
  presence_->open(unit);
  if (lends_) {
    lent_units_.use(unit);
    for (std::size_t const t : presence_->tensors(unit)) {
      if (store_->lent().missing(t)) presence_->declare(t, false);
    }
  }
  for (std::size_t const g : partition_->groups_of(unit)) {
    if (!order_.empty(g)) continue;
    if (!take_memory(g, overwritten, true)) order_.refuse_full_pool(unit);
    order_.fill(g);
  }
}

ZERO_BODY void Reduction::lend(int unit) {
  order_.open(unit);
  lent_units_.use(unit);
}

ZERO_BODY void Reduction::close(int unit, std::uint64_t epoch) {
  ranks_->progress();
  order_.close(unit, epoch);
  launch_ready(false);
}

ZERO_BODY void Reduction::declare(int unit) {
  order_.declare(unit);
  presence_->declare_unit(unit);
  launch_ready(false);
}

ZERO_BODY void Reduction::declare(int unit, std::size_t tensor) {
  order_.declare_tensor(unit);
  presence_->declare(tensor);
}

ZERO_BODY void Reduction::begin_micro_step(bool last) {
  if (order_.follows_another()) end_micro_step();
  order_.begin_micro_step(last);
}

ZERO_BODY void Reduction::finish() {
  if (order_.finished()) return;
  order_.let_travel();
  complete_presence();
  launch_ready(true);
  if (form_.reduced == Form::Reduced::sums) {
    partition_->for_each_bucket([&](BucketSpan const& bucket) {
      norm_->add(bucket, store_->sums(bucket));
      ranks_->progress();
    });
  }
  order_.finish();
  if (!in_lent_) free_lent();
}

ZERO_BODY Array Reduction::gathered(BucketSpan const& bucket) {
  bool const in_full = form_.reduced == Form::Reduced::in_place;
  Array all;
  // Where there is room for it, the next one is asked for before this one is updated: else no rank
  // would get it before all have updated this one. No reduction is under way any more.
  std::size_t const most = in_full ? flights_.size() : 1;
  for (; gathering_ < most && next_gather_ < partition_->bucket_count(); ++next_gather_) {
    BucketSpan const next = partition_->bucket(next_gather_);
    if (partition_->placement().kinds()[next.kind()].frozen) continue;
    Array const run = in_lent_ ? run_of_lent(next) : Array{};
    Array const own = in_lent_ ? run.from(next.part(ranks_->rank())) : store_->reduced(next);
    all = in_lent_ ? run : in_full ? store_->full(next) : staging_->buffer(own.dtype);
    tickets_.start((oldest_ + gathering_++) % flights_.size(),
                   {.op = Op::all_gather,
                    .dtype = own.dtype,
                    .accumulate = own.dtype,
                    .count = next.shard(),
                    .send = own.first,
                    .recv = all.first,
                    .bucket = static_cast<int>(next.index())});
  }
  tickets_.wait(oldest_);
  oldest_ = (oldest_ + 1) % flights_.size();
  --gathering_;
  return in_full ? store_->full(bucket) : all;
}

ZERO_BODY void Reduction::reset() {
  while (flying_ > 0) arrive();
  while (gathering_ > 0) tickets_.drop((oldest_ + --gathering_) % flights_.size());
  for (std::size_t g = 0; g < partition_->groups().size(); ++g) store_->release(g);
  free_lent();
  store_->clear_whole();
  order_.reset();
  presence_->reset();
  norm_->reset();
  next_gather_ = 0;
  sums_begun_ = false;
}

ZERO_BODY bool Reduction::take_memory(std::size_t g, bool overwritten, bool early) {
  while (!store_->take(g, overwritten)) {
    if (flying_ > 0) {
      arrive();
      continue;
    }
    Departure const next = early ? order_.next(true) : Departure{};
    if (!next) return false;
    launch(next);
  }
  return true;
}

ZERO_BODY void Reduction::launch_ready(bool all) {
  std::size_t const before = launched_;
  if (all) order_.complete_all();
  while (Departure const next = order_.next()) {
    if (next.absent && !take_memory(next.group, false, all)) {
      if (all) order_.refuse_full_pool(partition_->groups()[next.group].units.front());
      break;
    }
    launch(next);
  }
  std::size_t const more = launched_ - before;
  std::size_t const stay = all ? 0 : frees_ && more > 0 ? more : flying_;
  while (flying_ > stay) arrive();
}

ZERO_BODY void Reduction::launch(Departure const& next) {
  std::size_t const g = next.group;
  BucketGroup const& group = partition_->groups()[g];
  // What a trainer was to write, and has said that there is none of, may hold anything. What it
  // wrote where whole gradients lie, without asking for the unit, counts.
  if (!lends_ && !accumulates_ && !next.absent && presence_->any_declared()) {
    auto const& clusters = partition_->placement().clusters();
    store_->clear(g, [&](std::size_t t) {
      return presence_->empty(t, false) &&
             order_.asked_for(clusters[partition_->place(t).cluster].units);
    });
  }
  if (in_lent_) require_lent(g);
  order_.launch(g);
  if (lends_) {
    for (int const unit : group.units) lent_units_.use(unit);
  }
  for (std::size_t i = 0; i < group.bucket_count; ++i) {
    BucketSpan const bucket = partition_->bucket(group.first_bucket + i);
    if (flying_ == flights_.size()) arrive();
    std::size_t const place = (oldest_ + flying_) % flights_.size();
    Collective reduction = reduction_of(bucket);
    if (norm_->on_the_way()) norm_->add_by(reduction, bucket);
    flights_[place] = {bucket.index(), static_cast<std::byte*>(reduction.recv)};
    tickets_.start(place, reduction);
    ++flying_;
    ++launched_;
  }
}

ZERO_BODY Collective Reduction::reduction_of(BucketSpan const& bucket) {
  Array const all = lends_ ? lent(bucket) : store_->full(bucket);
  StorageTypes const& types = kernels_.of(bucket.kind()).types();
  Collective reduction{.op = Op::reduce_scatter,
                       .dtype = types.wire,
                       .accumulate = types.accumulate,
                       .count = bucket.shard(),
                       .send = all.first,
                       .recv = all.at(bucket.part(ranks_->rank())),
                       .bucket = static_cast<int>(bucket.index())};
  if (form_.reduced == Form::Reduced::own) {
    reduction.recv = store_->share(bucket).first;
  } else if (lends_ && !in_lent_ && all.first != staging_buffer(bucket).first) {
    reduction.recv = staging_buffer(bucket).first;
  }
  return reduction;
}

ZERO_BODY Array Reduction::lent(BucketSpan const& bucket) {
  store_->lent().find_in_place(bucket);
  Array const there{store_->lent().in_place(bucket.index()), dtype(bucket)};
  bool some_empty = false;
  auto const empty = [&](std::size_t t) { return presence_->empty(t, accumulates_); };
  if (there.first != nullptr) {
    partition_->for_each_segment(bucket.whole(), [&](Segment const& piece) {
      some_empty = some_empty || empty(piece.tensor);
    });
    if (!some_empty) return there;
  }
  Array const packed = staging_buffer(bucket);
  staging_->pack(bucket, store_->lent(), packed, empty);
  return packed;
}

ZERO_BODY void Reduction::require_lent(std::size_t g) const {
  partition_->for_each_segment(partition_->groups()[g].range, [&](Segment const& piece) {
    store_->lent().require_lent(piece.tensor);
  });
}

ZERO_BODY void Reduction::write_back(BucketSpan const& bucket, Array received) const {
  Array const there{store_->lent().in_place(bucket.index()), received.dtype};
  int const rank = ranks_->rank();
  if (there.first != nullptr && there.at(bucket.part(rank)) == received.first) return;
  staging_->unpack(bucket.share(rank), received, store_->lent());
}

ZERO_BODY Array Reduction::run_of_lent(BucketSpan const& bucket) const {
  Array const there{store_->lent().in_place(bucket.index()), dtype(bucket)};
  if (there.first != nullptr) return there;
  Array const packed = staging_->buffer(dtype(bucket));
  int const rank = ranks_->rank();
  staging_->collect(bucket.share(rank), store_->lent(), packed.from(bucket.part(rank)));
  return packed;
}

ZERO_BODY void Reduction::arrive() {
  BucketInFlight const flight = flights_[oldest_];
  tickets_.wait(oldest_);
  oldest_ = (oldest_ + 1) % flights_.size();
  --flying_;
  BucketSpan const bucket = partition_->bucket(flight.bucket);
  if (form_.reduced == Form::Reduced::sums) {
    add_to_sums(bucket, flight.received);
  } else if (!norm_->on_the_way()) {
    norm_->add(bucket, {flight.received, dtype(bucket)});
  }
  if (in_lent_) write_back(bucket, {flight.received, dtype(bucket)});
  if (!order_.arrive(bucket.group())) return;
  store_->release(bucket.group());
  if (lends_ && !in_lent_) free_lent(bucket.group());
}

ZERO_BODY void Reduction::add_to_sums(BucketSpan const& bucket, void const* received) const {
  Array const sums = store_->sums(bucket);
  Kernels const kernels = kernels_.of(bucket.kind());
  if (sums_begun_) {
    kernels.add_wire_to_sums(sums.first, received, bucket.shard());
  } else {
    kernels.sums_from_wire(sums.first, received, bucket.shard());
  }
}

ZERO_BODY void Reduction::free_lent(std::size_t g) {
  for (int const unit : partition_->groups()[g].units) {
    bool all = true;
    for (std::size_t const own : partition_->groups_of(unit)) all = all && order_.reduced(own);
    if (!all) continue;
    lent_units_.free(unit, [this](int u) { store_->lent().forget(presence_->tensors(u)); });
  }
}

ZERO_BODY void Reduction::free_lent() {
  lent_units_.free_all([this](int u) { store_->lent().forget(presence_->tensors(u)); });
}

ZERO_BODY void Reduction::complete_presence() {
  if (!lends_) return;
  presence_->complete([&](std::size_t t) {
    return store_->lent().missing(t) ? Presence::Statement::absent : Presence::Statement::present;
  });
}

ZERO_BODY void Reduction::end_micro_step() {
  complete_presence();
  if (!accumulates_) {
    launch_ready(true);
    free_lent();
    store_->clear_whole();
    sums_begun_ = true;
  }
  presence_->fold();
  order_.end_micro_step();
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
