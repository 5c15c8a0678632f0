/// @file
/// What a rank's communicators work with: streams, events between them, and staging memory.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/nccl/nccl_api.hpp"
#include "zero/comm/nccl/nccl_caller.hpp"
#include "zero/comm/nccl/nccl_exchange.hpp"
#include "zero/comm/nccl/nccl_family.hpp"

#include <cstddef>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Made at once when a group is built. `destroy` is called by whoever knows that nothing of it is
/// in use any more; what is in use is left alone.
template <nccl::Api A>
class NcclEquipment {
 public:
  using Stream = typename A::Stream;
  using Event = typename A::Event;

  /// The event, and the staging memory for the first lane. What was made before an Error is left to
  /// `destroy`.
  void create(NcclCaller<A> const& caller,
              NcclLane<A>& first,
              std::size_t staging_bytes,
              int rank) {
    NcclActivity const activity{.operation = "init"};
    caller.require(A::event_create(&ready_), activity);
    has_ready_ = true;
    void* staging = nullptr;
    nccl::Status const got = A::mem_alloc(&staging, staging_bytes);
    if (!got.ok()) {
      fail(ErrorKind::resource,
           {"NCCL cannot allocate ", staging_bytes, " bytes of staging: ", got.text},
           {.rank = rank, .operation = "init"});
    }
    staging_ = staging;
    first.staging = static_cast<std::byte*>(staging);
    first.staging_bytes = staging_bytes;
  }
  /// Gives a lane its streams: `communication` as the first of them if that is not null.
  void add(NcclCaller<A> const& caller, NcclLane<A>& lane, Stream communication) {
    NcclActivity const activity{.operation = "init"};
    lane.stream = communication;
    if (communication == Stream{}) {
      caller.require(A::stream_create(&lane.stream), activity);
      lane.owns_stream = true;
    }
    caller.require(A::stream_create(&lane.beside), activity);
    caller.family().use(lane.comm, lane.stream, lane.beside);
    if (lane.staging == nullptr) return;
    for (Event* const event : {&lane.exchanged, &lane.summed[0], &lane.summed[1]}) {
      caller.require(A::event_create(event), activity);
    }
  }

  /// Makes one stream wait for what another has so far.
  void order(NcclCaller<A> const& caller,
             typename NcclCaller<A>::Lock& lock,
             Stream first,
             Stream second,
             NcclActivity const& activity) const {
    caller.unlocked(lock, activity, [&] {
      nccl::Status const recorded = A::event_record(ready_, first);
      return recorded.ok() ? A::stream_wait(second, ready_) : recorded;
    });
  }

  /// True if streams and event are there.
  [[nodiscard]] bool ready() const noexcept { return has_ready_; }

  void destroy(std::vector<NcclLane<A>> const& lanes) noexcept {
    if (has_ready_) static_cast<void>(A::event_destroy(ready_));
    for (NcclLane<A> const& lane : lanes) {
      if (lane.owns_stream) static_cast<void>(A::stream_destroy(lane.stream));
      if (lane.beside != Stream{}) static_cast<void>(A::stream_destroy(lane.beside));
      for (Event const* const event : {&lane.exchanged, &lane.summed[0], &lane.summed[1]}) {
        if (*event != Event{}) static_cast<void>(A::event_destroy(*event));
      }
    }
    if (staging_ != nullptr) static_cast<void>(A::mem_free(staging_));
    has_ready_ = false;
    staging_ = nullptr;
  }

 private:
  Event ready_{};
  bool has_ready_ = false;
  void* staging_ = nullptr;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
