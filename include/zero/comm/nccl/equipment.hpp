/// @file
/// What a rank's communicator works with: streams, events between them, and staging memory.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/nccl/api.hpp"
#include "zero/comm/nccl/caller.hpp"
#include "zero/comm/nccl/family.hpp"

#include <array>
#include <cstddef>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// One NCCL communicator, the stream its work is enqueued on, one beside it for sums of pieces, and
/// memory for blocks of peers. Made at once when a group is built. `destroy` is called by whoever
/// knows that nothing of it is in use any more; what is in use is left alone.
template <nccl::Api A>
struct NcclEquipment {
  using Stream = typename A::Stream;
  using Event = typename A::Event;

  typename A::Comm comm{};
  Stream stream{};
  bool owns_stream = false;
  Stream beside{};
  std::byte* staging = nullptr;
  std::size_t staging_bytes = 0;
  Event ready{};                  ///< between two streams
  Event exchanged{};              ///< the newest piece is in its half of the staging
  std::array<Event, 2> summed{};  ///< that half may be written again

  /// Makes all that goes with `comm`. What was made before an Error is left to `destroy`.
  /// @param communication  the stream, if that is not null
  void create(NcclCaller<A> const& caller, std::size_t bytes, int rank, Stream communication) {
    NcclActivity const activity{.operation = "init"};
    void* memory = nullptr;
    nccl::Status const got = A::mem_alloc(&memory, bytes);
    if (!got.ok()) {
      fail(ErrorKind::resource,
           {"NCCL cannot allocate ", bytes, " bytes of staging: ", got.text},
           {.rank = rank, .operation = "init"});
    }
    staging = static_cast<std::byte*>(memory);
    staging_bytes = bytes;
    stream = communication;
    if (communication == Stream{}) {
      caller.require(A::stream_create(&stream), activity);
      owns_stream = true;
    }
    caller.require(A::stream_create(&beside), activity);
    caller.family().use(comm, stream, beside);
    for (Event* const event : {&ready, &exchanged, &summed[0], &summed[1]}) {
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
      nccl::Status const recorded = A::event_record(ready, first);
      return recorded.ok() ? A::stream_wait(second, ready) : recorded;
    });
  }

  /// Streams that may have work of the communicator's.
  /// @param theirs  the trainer's own among them
  [[nodiscard]] std::vector<Stream> streams(bool theirs) const {
    std::vector<Stream> streams;
    if (stream != Stream{} && (owns_stream || theirs)) streams.push_back(stream);
    if (beside != Stream{}) streams.push_back(beside);
    return streams;
  }

  void destroy() noexcept {
    for (Event const event : {ready, exchanged, summed[0], summed[1]}) {
      if (event != Event{}) static_cast<void>(A::event_destroy(event));
    }
    if (owns_stream) static_cast<void>(A::stream_destroy(stream));
    if (beside != Stream{}) static_cast<void>(A::stream_destroy(beside));
    if (staging != nullptr) static_cast<void>(A::mem_free(staging));
    *this = {};
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
