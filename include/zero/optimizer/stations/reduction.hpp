/// @file
/// From the trainer's full gradients to the reduced ones that an update reads, and their norm: when
/// a bucket travels, and how.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/stations/norm.hpp"
#include "zero/optimizer/stores/gradient_store.hpp"
#include "zero/optimizer/stores/staging.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Starts the reduction of each bucket when its last member is complete.
///
/// Buckets travel in one order fixed at construction (the order of a backward pass), never in the
/// order in which they happen to be complete: ranks that finish units in different orders, or give
/// no gradients for some, still agree (as long as no gathers run in between). Up to
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
                      Space space)
      : comm_(&comm),
        partition_(&partition),
        store_(&store),
        norm_(&norm),
        staging_(std::move(staging)),
        space_(std::move(space)),
        phase_(partition.groups().size(), Phase::empty),
        units_done_(partition.groups().size(), 0),
        buckets_left_(partition.groups().size(), 0),
        unit_reduced_(static_cast<std::size_t>(partition.placement().unit_count()), 0) {}

  /// Does memory of gradients have to stay where it is? Whether a bucket travels already must not
  /// matter to the trainer.
  [[nodiscard]] bool opened() const noexcept { return opened_ && !finished_; }

  /// Changes whenever full gradients lose their memory, or may: guards remember it.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  /// @throws Error (invalid_argument) unless a guard of that epoch may still reach the unit
  void require_live(int unit, std::uint64_t epoch) const {
    if (epoch != epoch_) {
      refuse(unit,
             "is used through gradients that ended with their step or micro-step, or in "
             "reduce_all() or grad_norm(); ask for them again");
    }
    if (unit_reduced_[static_cast<std::size_t>(unit)]) {
      refuse(unit,
             "was already reduced in this micro-step; call micro_step() before the next "
             "micro-batch");
    }
  }

  /// Makes the unit's full gradients writable: zero if nothing was added to them yet, unless they
  /// are to be overwritten.
  /// @throws Error (invalid_argument) if the unit was reduced in this micro-step
  void open(int unit, bool overwritten = false) {
    progress(*comm_);
    require_live(unit, epoch_);
    if (finished_) {
      refuse(unit,
             "is asked for after the gradients of this step were reduced; call step() or "
             "discard_gradients() first");
    }
    opened_ = true;
    for (std::size_t const g : partition_->groups_of(unit)) fill(g, unit, overwritten);
  }

  /// The unit's gradients of this micro-step are complete, says a guard of that epoch.
  void close(int unit, std::uint64_t epoch) {
    require_live(unit, epoch);
    progress(*comm_);
    unit_reduced_[static_cast<std::size_t>(unit)] = 1;
    for (std::size_t const g : partition_->groups_of(unit)) {
      if (++units_done_[g] == partition_->groups()[g].units.size()) phase_[g] = Phase::complete;
    }
    if (travels_now()) launch_complete();
  }

  /// Begins a micro-step; `last` says that no other follows in this step.
  void begin_micro_step(bool last) {
    if (finished_) {
      fail(ErrorKind::invalid_argument,
           "micro_step() after the gradients of this step were reduced; call step() first");
    }
    if (micro_steps_ == 0 && opened_) {
      fail(ErrorKind::invalid_argument,
           "the first micro_step() of a step must come before its first gradients");
    }
    if (micro_steps_ > 0) {
      if (!accumulates && form.reduced != Form::Reduced::sums) {
        fail(ErrorKind::invalid_argument,
             "a second micro_step() in one step needs AccumulateFull or AccumulateShard");
      }
      if (last_) {
        fail(ErrorKind::invalid_argument, "micro_step() after the one that was said to be last");
      }
      end_micro_step();
    }
    ++micro_steps_;
    last_ = last;
  }

  /// Reduces what is left, zeros standing in for units that gave no gradients, and waits for all
  /// of it. Collective; blocks.
  void finish() {
    if (finished_) return;
    last_ = true;
    flush();
    if constexpr (form.reduced == Form::Reduced::sums) {
      partition_->for_each_bucket([&](BucketSpan const& bucket) {
        norm_->add(bucket);
        progress(*comm_);
      });
    }
    finished_ = true;
    ++epoch_;
  }
  /// Has this step seen gradients, or a micro-step?
  [[nodiscard]] bool begun() const noexcept { return opened_ || micro_steps_ > 0 || finished_; }
  [[nodiscard]] int micro_steps() const noexcept { return micro_steps_; }

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
    for (std::size_t g = 0; g < phase_.size(); ++g) store_->release(g);
    forget_gradients();
    forget_units();
    norm_->reset();
    micro_steps_ = 0;
    opened_ = false;
    sums_begun_ = false;
    last_ = false;
    finished_ = false;
  }

 private:
  static constexpr Form form = Slots::form;
  /// Do micro-steps add up in full gradients, which travel after the last one?
  static constexpr bool accumulates = Slots::Accumulation::full_gradients;

  enum class Phase : std::uint8_t { empty, filling, complete, travelling, reduced };

  struct Flight {
    typename Communicator::Ticket ticket{};
    std::size_t bucket = 0;
    Wire const* received = nullptr;
  };

  [[noreturn]] static void refuse(int unit, Message const& why) {
    fail(ErrorKind::invalid_argument, {"unit ", unit, " ", why});
  }

  /// With full gradients kept, nothing travels before the last micro-step.
  [[nodiscard]] bool travels_now() const noexcept {
    return !accumulates || last_ || micro_steps_ == 0;
  }

  void fill(std::size_t g, int unit, bool overwritten) {
    if (phase_[g] != Phase::empty) return;
    while (!store_->placed(g) && !store_->place(g)) {
      if (flying_ == 0) {
        refuse(unit,
               {"finds the gradient pool full of units that wait for unit ",
                waiting_for(),
                "; buckets travel in the fixed order of a backward pass, so a unit that "
                "gives no gradients must be passed to reduce() all the same"});
      }
      finish_oldest();
    }
    if constexpr (form.gradients == Form::Gradients::pooled) {
      // What other units add to as well begins at zero all the same.
      bool const own = !partition_->groups()[g].tied && partition_->groups()[g].units.size() == 1;
      zero(store_->full(g), overwritten && own ? g : no_group);
    }
    phase_[g] = Phase::filling;
  }

  static constexpr std::size_t no_group = SIZE_MAX;

  /// Zeroes full gradients, but for the tensors of a group that is to be overwritten.
  void zero(std::span<Wire> full, std::size_t overwritten) const {
    Wire* done = full.data();
    auto const zero_to = [&](Wire* end) {
      if (end > done) space_.zero(done, static_cast<std::size_t>(end - done) * sizeof(Wire));
    };
    if (overwritten != no_group) {
      Range const range = partition_->groups()[overwritten].range;
      partition_->for_each_segment(range, [&](Segment const& piece) {
        std::span<Wire> const tensor = store_->tensor(piece.tensor);
        zero_to(tensor.data());
        done = tensor.data() + tensor.size();
      });
    }
    zero_to(full.data() + full.size());
  }

  [[nodiscard]] int waiting_for() const noexcept {
    auto const& order = partition_->reduction_order();
    return next_ < order.size() ? partition_->groups()[order[next_]].units.front() : -1;
  }

  void launch_complete() {
    auto const& order = partition_->reduction_order();
    for (; next_ < order.size() && phase_[order[next_]] == Phase::complete; ++next_) {
      launch(order[next_]);
    }
  }

  void launch(std::size_t g) {
    Group const& group = partition_->groups()[g];
    phase_[g] = group.bucket_count > 0 ? Phase::travelling : Phase::reduced;
    buckets_left_[g] = group.bucket_count;
    for (std::size_t i = 0; i < group.bucket_count; ++i) {
      launch(partition_->bucket(group.first_bucket + i));
    }
  }

  void launch(BucketSpan const& bucket) {
    if (flying_ == flights_.size()) finish_oldest();
    Flight& flight = flights_[(oldest_ + flying_) % flights_.size()];
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
    if constexpr (GradientNorm<Slots>::on_the_way) norm_->add_by(reduction, bucket);
    flight.ticket = comm_->start(reduction);
    ++flying_;
    ++launched_;
  }

  /// The bucket's N shares as one run of memory: where they lie, or packed into staging.
  Wire const* source(BucketSpan const& bucket) {
    if constexpr (form.gradients == Form::Gradients::lent) {
      Wire const* const lent = store_->lent().in_place(bucket.index());
      if (lent != nullptr) return lent;
      Wire* const packed = staging_buffer();
      staging_.pack(bucket, store_->lent(), packed);
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
    Flight& flight = flights_[oldest_];
    comm_->wait(flight.ticket);
    oldest_ = (oldest_ + 1) % flights_.size();
    --flying_;
    BucketSpan const bucket = partition_->bucket(flight.bucket);
    if constexpr (form.reduced == Form::Reduced::sums) {
      if (sums_begun_) {
        space_.add(store_->sums(bucket), flight.received, bucket.shard());
      } else {
        space_.convert(store_->sums(bucket), flight.received, bucket.shard());
      }
    } else if constexpr (!GradientNorm<Slots>::on_the_way) {
      norm_->add(bucket);
    }
    std::size_t const g = bucket.group();
    if (--buckets_left_[g] > 0) return;
    phase_[g] = Phase::reduced;
    store_->release(g);
  }

  void end_micro_step() {
    if constexpr (accumulates) {
      for (auto& phase : phase_) {
        if (phase == Phase::complete) phase = Phase::filling;
      }
    } else {
      flush();
      forget_gradients();
      sums_begun_ = true;
      opened_ = false;
    }
    forget_units();
  }

  void flush() {
    for (std::size_t i = next_; i < partition_->reduction_order().size(); ++i) {
      std::size_t const g = partition_->reduction_order()[i];
      if (phase_[g] == Phase::empty) fill(g, partition_->groups()[g].units.front(), false);
      phase_[g] = Phase::complete;
      launch_complete();
    }
    while (flying_ > 0) finish_oldest();
  }

  /// Full gradients that are kept are zero whenever nothing was added to them yet, so that a
  /// trainer may add to them without asking first.
  void forget_gradients() {
    phase_.assign(phase_.size(), Phase::empty);
    if constexpr (form.gradients == Form::Gradients::whole) store_->zero_full(space_);
  }

  void forget_units() {
    ++epoch_;
    unit_reduced_.assign(unit_reduced_.size(), 0);
    units_done_.assign(units_done_.size(), 0);
    next_ = 0;
  }

  Communicator* comm_;
  Partition const* partition_;
  GradientStore<Slots>* store_;
  GradientNorm<Slots>* norm_;
  Staging<Slots> staging_;
  [[no_unique_address]] Space space_;
  std::vector<Phase> phase_;
  std::vector<std::size_t> units_done_;
  std::vector<std::size_t> buckets_left_;
  std::vector<std::uint8_t> unit_reduced_;
  std::array<Flight, reductions_in_flight> flights_{};
  std::size_t oldest_ = 0;
  std::size_t flying_ = 0;
  std::size_t launched_ = 0;
  std::size_t next_ = 0;
  std::uint64_t epoch_ = 0;
  int micro_steps_ = 0;
  bool opened_ = false;
  bool last_ = false;
  bool finished_ = false;
  bool sums_begun_ = false;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
