/// @file
/// One rank's way into an NCCL group: a new one, the trainer's own, or a part of another.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/nccl/api.hpp"
#include "zero/comm/nccl/caller.hpp"
#include "zero/comm/nccl/core.hpp"
#include "zero/comm/nccl/family.hpp"
#include "zero/comm/nccl/options.hpp"
#include "zero/comm/nccl/setup.hpp"
#include "zero/comm/shared/handle.hpp"

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// All of it is collective and blocks, up to the deadline. What fails leaves nothing behind.
template <nccl::Api A>
class NcclConstruction {
 public:
  using Core = NcclCore<A>;
  using Comm = typename A::Comm;

  [[nodiscard]] static Handle<Core> of(nccl::NewGroup<A> const& group,
                                       nccl::Options const& options,
                                       bool ordered) {
    check_nccl_place(group.rank, group.size);
    check(options, group.size);
    int const library = nccl_library_version<A>();
    check_nccl_library(options, library);
    auto const core = first(group.rank, options, ordered);
    auto lock = core->lock();
    core->place(group.rank, group.size, current_device(), library, group.compute);
    NcclActivity const activity{.operation = "init"};
    auto const made = std::make_shared<Comm>();
    nccl::Status const begun =
        A::init(made.get(), group.size, group.id, group.rank, options.max_ctas);
    if (*made == Comm{} && !begun.ok()) refuse_init(begun, group.rank);
    core->add(*made, true, made);
    core->caller().settle(*made, begun, activity);
    core->equip({});
    core->agree(lock);
    return enter(core, lock);
  }

  [[nodiscard]] static Handle<Core> of(nccl::Existing<A> const& group,
                                       nccl::Options const& options,
                                       bool ordered) {
    if (group.comm == Comm{}) fail(ErrorKind::invalid_argument, "the ncclComm_t is null");
    if (A::is_per_thread(group.communication)) {
      fail(
          ErrorKind::invalid_argument,
          "cudaStreamPerThread is another stream in each thread, and NCCL launches from threads of "
          "its own: hand over a stream that cudaStreamCreate has made, or none");
    }
    // What does not depend on the size, before a wait.
    check(options, 1);
    int const library = nccl_library_version<A>();
    nccl_await<A>(group.comm, options.deadline_s);
    int rank = 0;
    int size = 0;
    int device = 0;
    nccl_query(A::user_rank(group.comm, &rank));
    nccl_query(A::count(group.comm, &size));
    nccl_query(A::device(group.comm, &device));
    check(options, size);
    check_nccl_library(options, library);
    if (options.max_ctas != 0) {
      fail(ErrorKind::invalid_argument,
           "NCCL options: max_ctas is a property of a new communicator, not of one that exists");
    }
    if (int const current = current_device(); current != device) {
      fail(ErrorKind::invalid_argument,
           {"the current CUDA device is ", current, ", but the ncclComm_t is on device ", device});
    }
    auto const core = first(rank, options, ordered);
    auto lock = core->lock();
    core->place(rank, size, device, library, group.compute);
    core->add(group.comm, false);
    core->equip(group.communication);
    core->agree(lock);
    return enter(core, lock);
  }

  [[nodiscard]] static Handle<Core> split(
      Core& parent, int color, int key, bool ordered, std::string_view name) {
    if (color < 0) fail(ErrorKind::invalid_argument, {"NCCL has no color ", color});
    NcclActivity const activity{.operation = "split"};
    nccl::Report const report = parent.report();
    auto const core =
        std::make_shared<Core>(parent.caller().named(name), parent.options(), ordered, &parent);
    // Before the lock, which it takes when what follows fails.
    Handle<Core> unfinished(core, 0);
    auto lock = parent.lock();
    parent.enter(activity);
    core->place(0, 1, report.device, report.library_version, parent.compute());
    Comm const from = parent.comm();
    auto const made = core->caller().family().template output<Comm>(from);
    auto const begun = A::split(from, color, key, made.get(), parent.options().max_ctas);
    core->caller().settle(from, begun, activity);
    Comm const comm = *made;
    core->add(comm, true);
    core->caller().settle(comm, {.result = nccl::Result::in_progress}, activity);
    int rank = 0;
    int size = 0;
    core->caller().require(A::user_rank(comm, &rank), activity);
    core->caller().require(A::count(comm, &size), activity);
    core->place(rank, size, report.device, report.library_version, parent.compute());
    core->equip({});
    core->agree(lock);
    unfinished.forget();
    return enter(core, lock);
  }

 private:
  [[nodiscard]] static std::shared_ptr<Core> first(int rank,
                                                   nccl::Options const& options,
                                                   bool ordered) {
    auto family = std::make_shared<NcclFamily<A>>(rank, options.grace_s, options.on_end);
    NcclCaller<A> caller(std::move(family), options.deadline_s);
    return std::make_shared<Core>(std::move(caller), options, ordered, nullptr);
  }

  [[nodiscard]] static Handle<Core> enter(std::shared_ptr<Core> const& core,
                                          typename Core::Lock& lock) {
    lock.unlock();
    core->guard();
    return Handle<Core>(core, core->rank());
  }

  [[nodiscard]] static int current_device() {
    int device = -1;
    nccl_query(A::current_device(&device));
    return device;
  }

  [[noreturn]] static void refuse_init(nccl::Status status, int rank) {
    fail(ErrorKind::resource,
         {"ncclCommInitRankConfig: ",
          name(status.result),
          " (",
          status.text,
          "): ",
          std::string(A::last_error(Comm{}))},
         {.rank = rank, .operation = "init"});
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
