/// @file
/// One rank's place in an NCCL group: what its handle, its tickets and its watching thread share.
#pragma once

#include "zero/base/compare_fields.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/nccl/api.hpp"
#include "zero/comm/nccl/caller.hpp"
#include "zero/comm/nccl/equipment.hpp"
#include "zero/comm/nccl/exchange.hpp"
#include "zero/comm/nccl/family.hpp"
#include "zero/comm/nccl/memory.hpp"
#include "zero/comm/nccl/options.hpp"
#include "zero/comm/nccl/progress.hpp"
#include "zero/comm/nccl/setup.hpp"
#include "zero/comm/nccl/watch.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/comm/shared/failure.hpp"
#include "zero/concepts/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// State and control flow, independent of how a group was built. Every public function takes the
/// family's lock; the watching thread takes it too, so both find things settled.
template <nccl::Api A>
class NcclCore final : public std::enable_shared_from_this<NcclCore<A>> {
 public:
  using Family = NcclFamily<A>;
  using Lock = typename Family::Lock;
  using Flight = typename NcclProgress<A>::Flight;

  /// @param parent  the group it is split from, whose family it joins; null: none
  NcclCore(NcclCaller<A> caller, nccl::Options const& options, bool ordered, NcclCore* parent)
      : caller_(std::move(caller)),
        options_(options),
        progress_(caller_, equipment_),
        memory_(options.registration) {
    report_.reduction = ordered ? nccl::Ordered::name : nccl::Native::name;
    report_.registration = options.registration;
    report_.header_version = A::header_version;
    ordered_ = ordered;
    if (parent != nullptr) {
      root_ = parent->root_.expired() ? parent->weak_from_this() : parent->root_;
    }
  }
  ~NcclCore() { shutdown(); }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] NcclCaller<A> const& caller() const noexcept { return caller_; }
  [[nodiscard]] nccl::Options const& options() const noexcept { return options_; }
  [[nodiscard]] typename A::Comm comm() const noexcept { return equipment_.comm; }
  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] typename A::Stream compute() const noexcept { return compute_; }
  [[nodiscard]] Lock lock() const { return Lock(caller_.family().calls); }

  /// Enqueues a collective behind what the compute stream has; false if there is nothing to do.
  template <bool Ordered>
  bool start(Collective const& op, NcclDeparture& departure) {
    Lock lock = this->lock();
    NcclActivity const activity = NcclActivity::of(op, progress_.number());
    enter(activity);
    // All ranks have none, so none of them calls NCCL.
    if (op.count == 0) return false;
    if (!is_vector_aligned(op)) ++report_.unaligned;
    patient_ = true;
    bool const captured = capturing(activity);
    equipment_.order(caller_, lock, compute_, equipment_.stream, activity);
    NcclExchange<A> const calls(caller_, lock, equipment_, rank_, size_, activity.number);
    departure = progress_.enqueue(lock, op, captured, [&] { calls.template launch<Ordered>(op); });
    return true;
  }

  /// Makes the compute stream, and the host if it is to wait too, wait for a collective.
  void wait(int /*rank*/, NcclDeparture const& departure) {
    Lock lock = this->lock();
    Flight* const flight = progress_.find(departure.number);
    auto const activity = flight != nullptr ? NcclActivity::of(flight->op, flight->number)
                                            : NcclActivity{.operation = "wait"};
    auto const stream_wait = [&] {
      caller_.unlocked(lock, activity, [&] { return A::stream_wait(compute_, flight->event); });
    };
    if (departure.captured) {
      enter(activity);
      if (flight != nullptr) return stream_wait();
      // Later ones have taken its event. All come one after the other.
      return equipment_.order(caller_, lock, equipment_.stream, compute_, activity);
    }
    // What is done has its result, whatever went wrong since.
    if (flight == nullptr || flight->done) return;
    if (!caller_.family().failed() && !closed_) progress_.look();
    if (flight->done) return;
    enter(activity);
    // A graph cannot wait for what is not part of it.
    bool const captured = capturing(activity);
    if (!captured) stream_wait();
    if (captured || options_.waiting == nccl::Waiting::host) {
      progress_.finish(lock, *flight, activity);
    }
  }

  /// True if everything that was started is done. Never blocks.
  [[nodiscard]] bool poll() {
    Lock const lock = this->lock();
    NcclActivity const activity{.operation = "poll"};
    enter(activity);
    progress_.look();
    caller_.family().throw_if_failed(activity);
    return progress_.oldest() == nullptr;
  }

  [[nodiscard]] void* allocate(std::size_t bytes) {
    Lock const lock = this->lock();
    enter({.operation = "allocate"});
    patient_ = true;
    return memory_.allocate(caller_, equipment_.comm, bytes);
  }
  /// Waits until the streams have run dry: NCCL takes memory away whatever still uses it. What is
  /// in use after the grace time stays, and stays registered; what is given back after it is not
  /// waited for, until memory is asked for or a collective started.
  void deallocate(void* memory) noexcept {
    Lock lock = this->lock();
    bool const waits = patient_ && !caller_.family().failed();
    lock.unlock();
    patient_ = is_idle(waits);
    lock.lock();
    memory_.deallocate(caller_.family(), memory, patient_);
  }

  [[nodiscard]] nccl::Report report() const {
    Lock const lock = this->lock();
    nccl::Report report = report_;
    report.registered_bytes = memory_.registered_bytes();
    return report;
  }
  /// Takes its place in the group: before the lanes, and without a call of NCCL.
  void place(int rank, int size, int device, int library, typename A::Stream compute) {
    rank_ = rank;
    size_ = size;
    device_ = device;
    compute_ = compute;
    report_.device = device;
    report_.library_version = library;
  }

  /// Takes a communicator; one that is owned is aborted or finalized here. The caller holds the
  /// lock.
  /// @param place  where NCCL has written it, and may still write
  void add(typename A::Comm comm, bool owned, std::shared_ptr<void> place = nullptr) {
    caller_.family().join(comm, owned, device_, std::move(place));
    equipment_.comm = comm;
    report_.owned = owned;
  }

  /// Streams, events and staging memory for the communicator.
  void equip(typename A::Stream communication) {
    progress_.create();
    // Without ordered sums it carries the agreement of the ranks only.
    std::size_t const words = sizeof(NcclFields) * static_cast<std::size_t>(size_);
    report_.staging_bytes = ordered_ ? options_.staging_bytes : words;
    equipment_.create(caller_, report_.staging_bytes, rank_, communication);
    // A first sum may be captured.
    if (!ordered_) return;
    caller_.require(A::sum_ranks({.ranks = size_}, equipment_.stream), {.operation = "init"});
  }

  /// Compares what must be alike. Collective; blocks, up to the deadline. The caller holds `lock`.
  void agree(Lock& lock) {
    NcclActivity const activity{.operation = "init"};
    NcclFields const mine{report_.library_version,
                          report_.header_version,
                          ordered_ ? 1 : 0,
                          0,
                          static_cast<std::int64_t>(options_.registration),
                          0,
                          static_cast<std::int64_t>(options_.staging_bytes)};
    std::vector<std::int64_t> all;
    for (NcclFields const& each : progress_.gather(lock, mine, rank_, size_, activity)) {
      all.insert(all.end(), each.begin(), each.end());
    }
    std::string const difference = compare_fields(nccl_fields, all);
    if (difference.empty()) return;
    // All ranks come here; an abort could reach a peer before it knows why.
    static_cast<void>(finalize(activity));
    fail(ErrorKind::invalid_argument,
         {"NCCL: ranks disagree on ", difference},
         {.rank = rank_, .operation = std::string(activity.operation)});
  }

  /// Starts the watching thread, once nothing can throw any more.
  void guard() {
    if (options_.watch_s == 0) return;
    watch_.start(
        options_.watch_s,
        [device = device_] { static_cast<void>(A::use_device(device)); },
        [this] {
          Lock const lock = this->lock();
          if (closed_ || caller_.family().failed()) return false;
          progress_.look();
          return true;
        });
  }

  // What goes wrong, and the end.

  /// Buffers of a collective that nobody waits for may be gone at any time: it must not run on.
  void abandon(int /*rank*/, NcclDeparture const& departure, bool /*unwinding*/) noexcept {
    Lock const lock = this->lock();
    Flight* const flight = progress_.find(departure.number);
    if (closed_ || caller_.family().failed() || flight == nullptr || flight->done) return;
    progress_.look();
    if (flight->done) return;
    caller_.family().end(Failure{.cause = Failure::Cause::abandoned,
                                 .rank = rank_,
                                 .call = flight->op,
                                 .group = caller_.group()});
  }

  void confirm() {
    Lock const lock = this->lock();
    if (!closed_ && !caller_.family().failed()) progress_.look();
    caller_.family().throw_if_failed({.operation = "report"});
  }
  [[nodiscard]] std::int64_t const* ended() const noexcept { return progress_.ended(); }

  bool report_failure(std::string_view reason) {
    Lock const lock = this->lock();
    if (closed_) return false;
    Failure failure{.cause = Failure::Cause::thrown, .rank = rank_};
    failure.reason = reason;
    return caller_.family().end(failure);
  }

  /// @throws Error if the group has failed, is closed, or is called from another device
  void enter(NcclActivity const& activity) const {
    caller_.family().throw_if_failed(activity);
    if (closed_) {
      fail(ErrorKind::invalid_argument,
           "the NCCL communicator is closed",
           {.rank = rank_, .operation = std::string(activity.operation)});
    }
    check_device(activity);
  }

  /// Waits for what it has under way.
  void drain(Lock& lock, NcclActivity const& activity) {
    while (Flight* const flight = progress_.oldest()) progress_.finish(lock, *flight, activity);
    caller_.family().throw_if_failed(activity);
    progress_.expect_departures();
  }

  /// Waits for everything, then finalizes and destroys what is owned. Collective; blocks.
  void close() {
    NcclActivity const activity{.operation = "close"};
    bool done = false;
    {
      Lock lock = this->lock();
      if (closed_) return;
      caller_.family().throw_if_failed(activity);
      check_device(activity);
      drain(lock, activity);
      for (auto const* core = &kept_; *core != nullptr; core = &(*core)->kept_) {
        (*core)->drain(lock, activity);
      }
      // A rank that ends while a peer still reads from it, or from what was split from this group,
      // would take that from the peer. Finalizing does not wait for peers. Behind the compute
      // stream, where replays may use the same memory.
      equipment_.order(caller_, lock, compute_, equipment_.stream, activity);
      progress_.gather(lock, std::uint64_t{1}, rank_, size_, activity);
      done = finalize(activity);
    }
    watch_.stop();
    end_kept();
    if (done) return;
    fail(ErrorKind::communication,
         {"rank ", rank_, ": NCCL does not return from ncclCommDestroy and is left to itself"},
         {.rank = rank_, .operation = std::string(activity.operation)});
  }

  /// The trainer is through with the group.
  void leave(int /*rank*/, bool /*unwinding*/) noexcept {
    if (!keep()) shutdown();
  }

 private:
  /// Leaves a sub-group to the first group of the family: its abort would disturb peers that are
  /// not through with it. False if there is nothing to be gentle with.
  [[nodiscard]] bool keep() noexcept {
    auto const root = root_.lock();
    Lock const lock = this->lock();
    if (root == nullptr || root->closed_ || closed_ || caller_.family().failed()) return false;
    kept_ = std::exchange(root->kept_, this->shared_from_this());
    return true;
  }
  /// Ends the sub-groups that were left to this group, whoever else may hold them: the trainer's
  /// streams may be gone from then on.
  void end_kept() noexcept {
    for (auto core = std::exchange(kept_, nullptr); core != nullptr;) {
      auto next = std::exchange(core->kept_, nullptr);
      core->shutdown();
      core = std::move(next);
    }
  }

  /// Ends without the peers: what is owned and still open is aborted.
  void shutdown() noexcept {
    watch_.stop();
    {
      Lock const lock = this->lock();
      release();
    }
    end_kept();
  }

  /// Gives up what it has, at once unless it has to abort. The caller holds the lock.
  void release() noexcept {
    Family& family = caller_.family();
    if (!closed_) {
      auto const asked = streams();
      // The trainer's own communicator may still run what was started; its buffers are its affair.
      if (!report_.owned && !family.failed()) memory_.deregister_all();
      memory_.forget_all();
      family.drop(comm(), asked);
      closed_ = true;
    }
    if (family.leaks()) return;
    progress_.destroy();
    equipment_.destroy();
  }

  /// True once nothing on this rank's streams can use memory any more, and none is captured.
  [[nodiscard]] bool is_idle(bool waits) const noexcept {
    bool captured = false;
    if (!closed_ && (!A::capturing(compute_, &captured).ok() || captured)) return false;
    std::vector<typename A::Stream> asked = streams();
    if (!closed_) asked.push_back(compute_);
    return caller_.family().dry(asked, waits);
  }

  /// Does the compute stream's work go to a graph?
  [[nodiscard]] bool capturing(NcclActivity const& activity) const {
    bool captured = false;
    caller_.require(A::capturing(compute_, &captured), activity);
    return captured;
  }

  /// Where this rank's work may be: in the trainer's streams too, as long as it has not left the
  /// group, when they may be gone; in its compute stream if there are graphs.
  [[nodiscard]] std::vector<typename A::Stream> streams() const {
    auto streams = equipment_.streams(!closed_);
    bool captured = false;
    if (!closed_ && caller_.family().captured() && A::capturing(compute_, &captured).ok() &&
        !captured) {
      streams.push_back(compute_);
    }
    return streams;
  }

  /// Ends what is owned together with all peers. False if NCCL does not return. The caller holds
  /// the lock.
  [[nodiscard]] bool finalize(NcclActivity const& activity) {
    memory_.deregister_all();
    if (report_.owned) caller_.settle(comm(), A::finalize(comm()), activity);
    bool const done = caller_.family().destroy(comm());
    closed_ = true;
    return done;
  }

  /// The current device is the trainer's: it is asked for, never changed behind its back.
  void check_device(NcclActivity const& activity) const {
    int current = -1;
    caller_.require(A::current_device(&current), activity);
    if (current == device_) return;
    fail(
        ErrorKind::invalid_argument,
        {"the current CUDA device is ",
         current,
         ", but the NCCL communicator is on device ",
         device_,
         ": call cudaSetDevice first"},
        {.rank = rank_, .operation = std::string(activity.operation), .bucket = activity.bucket()});
  }

  NcclCaller<A> caller_;
  nccl::Options options_;
  bool ordered_ = true;
  bool closed_ = false;
  int rank_ = 0;
  int size_ = 1;
  int device_ = 0;
  typename A::Stream compute_{};
  NcclEquipment<A> equipment_;
  NcclProgress<A> progress_;
  NcclMemory<A> memory_;
  bool patient_ =
      true;  ///< with streams: one grace time for all memory that is given back together
  nccl::Report report_;
  std::weak_ptr<NcclCore> root_;    ///< of a sub-group: the first group of the family
  std::shared_ptr<NcclCore> kept_;  ///< a sub-group left to it; of that, the one left before
  NcclWatch watch_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
