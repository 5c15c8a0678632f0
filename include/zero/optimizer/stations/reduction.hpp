/// @file
/// From the trainer's full gradients to the reduced ones that an update reads, and their norm.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/stations/lent_units.hpp"
#include "zero/optimizer/stations/norm.hpp"
#include "zero/optimizer/stations/presence.hpp"
#include "zero/optimizer/stations/reduction_order.hpp"
#include "zero/optimizer/stores/gradient_store.hpp"
#include "zero/optimizer/stores/staging.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// A bucket that travels.
template <class Ticket>
struct Flight {
  Ticket ticket{};
  std::size_t bucket = 0;
  void const* received = nullptr;
};

/// Starts the reduction of each bucket when its group is complete and its turn has come. Up to
/// `reductions_in_flight` buckets are under way while the backward pass goes on.
template <class Slots>
class Reduction {
 public:
  using Communicator = typename Slots::Communicator;
  using Space = typename Slots::Space;
  using Wire = typename Slots::Wire;
  using Accumulate = typename Slots::Accumulate;
  using Gradient = typename Slots::Gradient;
  using Form = StorageForm;

  ZERO_COLD Reduction(Communicator& comm,
                      Partition const& partition,
                      GradientStore<Slots>& store,
                      GradientNorm<Slots>& norm,
                      Staging<Slots> staging,
                      Presence& presence,
                      Space space)
      : comm_(&comm),
        partition_(&partition),
        store_(&store),
        norm_(&norm),
        staging_(std::move(staging)),
        presence_(&presence),
        space_(std::move(space)),
        order_(partition, accumulates, form.reduced == Form::Reduced::sums),
        lent_units_(lends ? static_cast<std::size_t>(partition.placement().unit_count()) : 0) {}

  /// Has loaded what it takes, before anything lies in its memory.
  /// @param loading  a LoadingSpace's
  void load(Space const& loading) const {
    if constexpr (form.reduced == Form::Reduced::sums) {
      if (partition_->bucket_count() == 0) return;
      // These run, over zeros, and over as many as in a step: CUB may keep the tile that suits the
      // first array it meets.
      BucketSpan const bucket = partition_->bucket(0);
      Accumulate* const sums = store_->sums(bucket);
      auto const* const received = reinterpret_cast<Wire const*>(sums);
      loading.zero(sums, bucket.shard() * sizeof(Accumulate));
      loading.convert(sums, received, bucket.shard());
      loading.add(sums, received, bucket.shard());
    }
  }

  /// How far gradients are.
  [[nodiscard]] ReductionOrder const& order() const noexcept { return order_; }
  /// Of which units lent gradients are yet to be read.
  [[nodiscard]] LentUnits& lent_units() noexcept { return lent_units_; }
  [[nodiscard]] LentUnits const& lent_units() const noexcept { return lent_units_; }

  /// Makes the unit's full gradients writable: zero if nothing was added to them yet, unless they
  /// are to be overwritten.
  /// @throws Error (invalid_argument) if the unit was reduced in this micro-step
  void open(int unit, bool overwritten = false) {
    progress(*comm_);
    order_.open(unit);
    presence_->give(unit);
    if constexpr (lends) {
      lent_units_.use(unit);
      for (std::size_t const t : presence_->tensors(unit)) {
        if (store_->lent().missing(t)) presence_->declare(t);
      }
    }
    for (std::size_t const g : partition_->groups_of(unit)) fill(g, unit, overwritten);
  }

  /// The unit's gradients are lent for this step or micro-step.
  void lend(int unit) {
    order_.open(unit);
    lent_units_.use(unit);
  }

  /// The unit's gradients of this micro-step are complete, says a guard of that epoch.
  void close(int unit, std::uint64_t epoch) {
    progress(*comm_);
    order_.close(unit, epoch);
    zero_absent(unit);
    if (order_.travels_now()) launch_next();
  }
  /// The unit has no gradients in this micro-step.
  void declare(int unit) {
    order_.declare(unit);
    presence_->declare_unit(unit);
    if (order_.travels_now()) launch_next();
  }
  /// Nor has a tensor of a unit that is yet to be closed.
  void declare(int unit, std::size_t tensor) {
    order_.declare_tensor(unit);
    presence_->declare(tensor);
  }

  /// Begins a micro-step; `last` says that no other follows in this step.
  void begin_micro_step(bool last) {
    if (order_.follows_another()) end_micro_step();
    order_.begin_micro_step(last);
  }

  /// Reduces what is left, zeros standing in for units that gave no gradients, and waits for all
  /// of it. Collective; blocks.
  void finish() {
    if (order_.finished()) return;
    order_.let_travel();
    complete_presence();
    flush();
    if constexpr (form.reduced == Form::Reduced::sums) {
      partition_->for_each_bucket([&](BucketSpan const& bucket) {
        norm_->add(bucket);
        progress(*comm_);
      });
    }
    order_.finish();
    free_lent();
  }

  /// The reduced gradients of what this rank updates of a bucket, from its first element on. Where
  /// every rank updates everything, the shares are gathered now: within the full gradients where
  /// they lie there, else in staging, where they last until the next call.
  /// @par Collective  where every rank updates everything: yes, blocks
  [[nodiscard]] Gradient const* reduced(BucketSpan const& bucket) {
    Gradient* const own = store_->reduced(bucket);
    if constexpr (form.update == Form::Update::share) {
      return own;
    } else {
      Gradient* all = nullptr;
      if constexpr (form.reduced == Form::Reduced::in_place) {
        all = store_->full(bucket);
      } else {
        all = staging_.template buffer<Gradient>();
      }
      run(*comm_,
          {.op = Op::all_gather,
           .dtype = dtype_of<Gradient>,
           .accumulate = dtype_of<Gradient>,
           .count = bucket.shard(),
           .send = own,
           .recv = all,
           .bucket = static_cast<int>(bucket.index())});
      return all;
    }
  }

  /// Forgets the gradients of this step. Local, but every rank must do it.
  void reset() {
    while (flying_ > 0) finish_oldest();
    for (std::size_t g = 0; g < partition_->groups().size(); ++g) store_->release(g);
    free_lent();
    zero_kept();
    order_.reset();
    presence_->reset();
    norm_->reset();
    sums_begun_ = false;
  }

 private:
  static constexpr Form form = Slots::form;
  /// Do micro-steps add up in full gradients, which travel after the last one?
  static constexpr bool accumulates = Slots::Accumulation::full_gradients;
  static constexpr bool lends = form.gradients == Form::Gradients::lent;

  void fill(std::size_t g, int unit, bool overwritten) {
    if (!order_.empty(g)) return;
    while (!store_->placed(g) && !store_->place(g)) {
      if (flying_ == 0) {
        std::size_t const early = order_.first_complete();
        if (early == ReductionOrder::none) order_.refuse_full_pool(unit);
        launch(early);
      }
      finish_oldest();
    }
    if constexpr (form.gradients == Form::Gradients::pooled) {
      // What other units add to as well begins at zero all the same.
      bool const own = !partition_->groups()[g].tied && partition_->groups()[g].units.size() == 1;
      zero(store_->full(g), overwritten && own ? g : ReductionOrder::none);
    }
    order_.fill(g);
  }

  /// Zeroes full gradients, but for the tensors of a group that is to be overwritten.
  void zero(std::span<Wire> full, std::size_t overwritten) const {
    Wire* done = full.data();
    auto const zero_to = [&](Wire* end) {
      if (end > done) space_.zero(done, static_cast<std::size_t>(end - done) * sizeof(Wire));
    };
    if (overwritten != ReductionOrder::none) {
      Range const range = partition_->groups()[overwritten].range;
      partition_->for_each_segment(range, [&](Segment const& piece) {
        if (presence_->tied(piece.tensor)) return;  // is added to, and so begins at zero
        std::span<Wire> const tensor = store_->tensor(piece.tensor);
        zero_to(tensor.data());
        done = tensor.data() + tensor.size();
      });
    }
    zero_to(full.data() + full.size());
  }

  /// Of lent gradients that a trainer frees, no more than two units' are then in use at once.
  void launch_next() {
    std::size_t const before = launched_;
    launch_complete();
    if constexpr (lends && Slots::Stage::sharding.gradients) {
      while (launched_ > before && flying_ > launched_ - before) finish_oldest();
    }
  }

  void launch_complete() {
    for (std::size_t g = 0; (g = order_.next_complete()) != ReductionOrder::none;) {
      if (order_.empty(g) && !fill_with_zeros(g)) return;
      launch(g);
      order_.advance();
    }
  }

  /// What is absent travels as zeros, once there is memory that nobody works in.
  bool fill_with_zeros(std::size_t g) {
    while (!store_->placed(g) && !store_->place(g)) {
      if (flying_ == 0) return false;
      finish_oldest();
    }
    fill(g, partition_->groups()[g].units.front(), false);
    order_.complete(g);
    return true;
  }

  /// What a trainer was to write, and has said that there is none of, may hold anything. Memory
  /// that tensors share is left alone as long as one of them may have a gradient.
  void zero_absent(int unit) const {
    if constexpr (form.gradients != Form::Gradients::lent && !accumulates) {
      for (std::size_t const t : presence_->tensors(unit)) {
        TensorPlace const& place = partition_->placement().places()[t];
        if (place.frozen || place.count == 0 || !presence_->all_absent_now(t)) continue;
        std::span<Wire> const full = store_->tensor(t);
        space_.zero(full.data(), full.size_bytes());
      }
    }
  }

  void launch(std::size_t g) {
    Group const& group = partition_->groups()[g];
    order_.launch(g);
    if constexpr (lends) {
      for (int const unit : group.units) lent_units_.use(unit);
    }
    for (std::size_t i = 0; i < group.bucket_count; ++i) {
      launch(partition_->bucket(group.first_bucket + i));
    }
  }

  void launch(BucketSpan const& bucket) {
    if (flying_ == flights_.size()) finish_oldest();
    auto& flight = flights_[(oldest_ + flying_) % flights_.size()];
    Wire const* const send = source(bucket);
    Wire* const recv = destination(bucket, send);
    flight.bucket = bucket.index();
    flight.received = recv;
    Collective reduction{.op = Op::reduce_scatter,
                         .dtype = dtype_of<Wire>,
                         .accumulate = dtype_of<Accumulate>,
                         .count = bucket.shard(),
                         .send = send,
                         .recv = recv,
                         .bucket = static_cast<int>(bucket.index())};
    if (norm_->on_the_way()) norm_->add_by(reduction, bucket);
    flight.ticket = comm_->start(reduction);
    ++flying_;
    ++launched_;
  }

  /// The bucket's N shares as one run of memory: where they lie, or packed into staging.
  Wire const* source(BucketSpan const& bucket) {
    if constexpr (form.gradients == Form::Gradients::lent) {
      Wire const* const lent = store_->lent().in_place(bucket.index());
      bool some_empty = false;
      auto const empty = [&](std::size_t t) { return presence_->empty(t, accumulates); };
      if (lent != nullptr) {
        partition_->for_each_segment(bucket.whole(), [&](Segment const& piece) {
          some_empty = some_empty || empty(piece.tensor);
        });
        if (!some_empty) return lent;
      }
      Wire* const packed = staging_buffer();
      staging_.pack(bucket, store_->lent(), packed, empty);
      return packed;
    } else {
      return store_->full(bucket);
    }
  }

  /// Where the reduced share arrives: in place where the buffer is the library's own and the share
  /// has no array of its own to arrive in.
  Wire* destination(BucketSpan const& bucket, Wire const* send) const {
    if constexpr (form.reduced == Form::Reduced::own) {
      return store_->share(bucket);
    } else if constexpr (form.gradients == Form::Gradients::lent) {
      Wire* const buffer = staging_buffer();
      return send == buffer ? bucket.part(comm_->rank()).in(buffer) : buffer;
    } else {
      return bucket.part(comm_->rank()).in(store_->full(bucket));
    }
  }

  /// One staging buffer per reduction in flight; at most that many are, so none is overwritten.
  [[nodiscard]] Wire* staging_buffer() const noexcept {
    return staging_.template buffer<Wire>(launched_ % reductions_in_flight);
  }

  void finish_oldest() {
    auto& flight = flights_[oldest_];
    comm_->wait(flight.ticket);
    oldest_ = (oldest_ + 1) % flights_.size();
    --flying_;
    BucketSpan const bucket = partition_->bucket(flight.bucket);
    if constexpr (form.reduced == Form::Reduced::sums) {
      auto const* const received = static_cast<Wire const*>(flight.received);
      if (sums_begun_) {
        space_.add(store_->sums(bucket), received, bucket.shard());
      } else {
        space_.convert(store_->sums(bucket), received, bucket.shard());
      }
    } else if (!norm_->on_the_way()) {
      norm_->add(bucket);
    }
    if (!order_.arrive(bucket.group())) return;
    store_->release(bucket.group());
    if constexpr (lends) {
      for (int const unit : partition_->groups()[bucket.group()].units) {
        bool all = true;
        for (std::size_t const g : partition_->groups_of(unit)) all = all && order_.reduced(g);
        if (all) lent_units_.free(unit, forget_unit());
      }
    }
  }

  /// What was lent for one step is forgotten with it.
  [[nodiscard]] auto forget_unit() const noexcept {
    return [this](int unit) { store_->lent().forget(presence_->tensors(unit)); };
  }
  void free_lent() {
    if constexpr (lends) lent_units_.free_all(forget_unit());
  }

  /// Lent gradients that nobody has asked for are as they lie there.
  void complete_presence() {
    if constexpr (form.gradients == Form::Gradients::lent) {
      presence_->complete([&](std::size_t t) {
        return store_->lent().missing(t) ? Presence::Said::absent : Presence::Said::given;
      });
    }
  }

  void end_micro_step() {
    complete_presence();
    if constexpr (!accumulates) {
      flush();
      free_lent();
      zero_kept();
      sums_begun_ = true;
    }
    presence_->fold();
    order_.end_micro_step();
  }

  void flush() {
    for (int unit = 0; unit < partition_->placement().unit_count(); ++unit) {
      if (order_.unit_open(unit)) zero_absent(unit);
    }
    order_.complete_filling();
    for (std::size_t g = 0; (g = order_.next()) != ReductionOrder::none;) {
      if (order_.empty(g)) fill(g, partition_->groups()[g].units.front(), false);
      order_.complete(g);
      launch_complete();
    }
    while (flying_ > 0) finish_oldest();
  }

  /// Full gradients that are kept are zero whenever nothing was added to them yet, so that a
  /// trainer may add to them without asking first.
  void zero_kept() {
    if constexpr (form.gradients == Form::Gradients::whole) store_->zero_full(space_);
  }

  Communicator* comm_;
  Partition const* partition_;
  GradientStore<Slots>* store_;
  GradientNorm<Slots>* norm_;
  Staging<Slots> staging_;
  Presence* presence_;
  [[no_unique_address]] Space space_;
  ReductionOrder order_;
  LentUnits lent_units_;
  std::array<Flight<typename Communicator::Ticket>, reductions_in_flight> flights_{};
  std::size_t oldest_ = 0;
  std::size_t flying_ = 0;
  std::size_t launched_ = 0;
  bool sums_begun_ = false;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
