/// @file
/// What the calls of the fake have in common: who may call when, what is counted, what waits.
#pragma once

#include "nccl/fake_world.hpp"
#include "support/standard.hpp"
#include "zero/comm/nccl/api.hpp"

namespace fake {

/// The rules of NCCL that a call is checked by, and the mistakes a script makes in it.
class Calls {
 protected:
  using Comm = fake::Comm*;
  using Stream = fake::Stream*;
  using Where = std::pair<Comm, Stream>;

  /// One communicator belongs to one thread at a time.
  class Entry {
   public:
    Entry(Comm comm, char const* what) : comm_(comm) {
      if (comm_->inside.fetch_add(1) != 0) {
        fault(comm_, std::string("two threads in one communicator at ") + what);
      }
    }
    Entry(Entry const&) = delete;
    Entry& operator=(Entry const&) = delete;
    ~Entry() { comm_->inside.fetch_sub(1); }

   private:
    Comm comm_;
  };

  static std::vector<std::pair<Where, Part>>& pending_parts() {
    static thread_local std::vector<std::pair<Where, Part>> parts;
    return parts;
  }

  static void fault(Comm comm, std::string text) {
    comm->process->world->violation(comm->process, std::move(text));
  }

  /// Counts the call and makes the scripted mistake.
  static Status gate(Process& process) {
    long const call = process.calls.fetch_add(1);
    if (call != process.script.fail_call) return {};
    return {process.script.fail_with, "scripted"};
  }

  template <class Body>
  static Status free_call(Body const& body) {
    Process& process = *current;
    if (Status const status = gate(process); !status.ok()) return status;
    std::lock_guard const lock(process.world->mutex);
    body(process);
    return {};
  }

  static void check_usable(Comm comm, char const* what, bool after_finalize = false) {
    if (comm->dead || comm->revoked) fault(comm, std::string("a dead communicator at ") + what);
    if (comm->unsettled()) fault(comm, std::string("an earlier call is in progress at ") + what);
    if (comm->finalized && !after_finalize) fault(comm, std::string(what) + " after finalize");
  }

  template <class Body>
  static Status managed(Comm comm,
                        char const* what,
                        Body const& body,
                        bool after_finalize = false) {
    Entry const entry(comm, what);
    if (Status const status = gate(*comm->process); !status.ok()) return status;
    std::lock_guard const lock(comm->process->world->mutex);
    check_usable(comm, what, after_finalize);
    if (comm->error != Result::success) return {comm->error};
    Status const status = body();
    if (status.pending()) comm->polls = comm->process->script.in_progress;
    return status;
  }

  /// Refused, as by NCCL, while an earlier call is in progress.
  template <class Body>
  static Status query(Comm comm, char const* what, Body const& body) {
    {
      std::lock_guard const lock(comm->process->world->mutex);
      if (comm->unsettled()) return {Result::invalid_argument, "not ready"};
    }
    return managed(comm, what, body);
  }

  /// At once, whatever still uses the memory.
  static Status deregister(Comm comm, void const* memory) {
    auto& registered = comm->process->world->registered;
    auto const found = registered.find(memory);
    if (found == registered.end()) {
      fault(comm, "nothing to deregister");
    } else {
      registered.erase(found);
    }
    return {};
  }

  /// Pending until all ranks have made as many management calls.
  static Status meet(fake::Comm& comm) {
    auto const clique = comm.clique;
    auto const index = static_cast<std::size_t>(comm.management++);
    if (clique->arrivals.size() <= index) clique->arrivals.resize(index + 1, 0);
    ++clique->arrivals[index];
    comm.pending = [clique, index] { return clique->arrivals[index] == clique->size; };
    return {Result::in_progress};
  }

  /// Has the call that begins write to `out` when it settles.
  template <class T>
  static void promise(fake::Comm& comm, T** out, T* result) {
    comm.output = reinterpret_cast<void**>(out);
    comm.result = result;
  }

  static std::shared_ptr<Clique> make_clique(int size) {
    auto clique = std::make_shared<Clique>();
    clique->size = size;
    clique->members.resize(static_cast<std::size_t>(size), nullptr);
    return clique;
  }

  static void take_seat(fake::Comm& comm, int rank) {
    comm.rank = rank;
    comm.clique->members[static_cast<std::size_t>(rank)] = &comm;
    ++comm.clique->arrived;
  }

  static void divide(std::vector<std::pair<Comm, std::pair<int, int>>> arrived) {
    std::sort(arrived.begin(), arrived.end(), [](auto const& a, auto const& b) {
      return std::tuple(a.second, a.first->rank) < std::tuple(b.second, b.first->rank);
    });
    for (std::size_t begin = 0; begin < arrived.size();) {
      std::size_t end = begin;
      while (end < arrived.size() && arrived[end].second.first == arrived[begin].second.first) {
        ++end;
      }
      auto const clique = make_clique(static_cast<int>(end - begin));
      for (std::size_t i = begin; i < end; ++i) {
        arrived[i].first->clique = clique;
        take_seat(*arrived[i].first, static_cast<int>(i - begin));
      }
      begin = end;
    }
  }

  static Status part(Part const& part, Comm comm, Stream stream) {
    Process& process = *comm->process;
    if (Status const status = gate(process); !status.ok()) return status;
    if (process.group_depth != 1) process.world->violation(&process, "a send outside a group");
    if (part.sends && part.peer != comm->rank) process.sent += part.count;
    pending_parts().push_back({{comm, stream}, part});
    return {process.script.in_progress > 0 ? Result::in_progress : Result::success};
  }

  static Status collective(fake::Collective const& call, Comm comm, Stream stream) {
    Entry const entry(comm, "a collective");
    Process& process = *comm->process;
    if (Status const status = gate(process); !status.ok()) {
      std::lock_guard const lock(process.world->mutex);
      if (process.script.remembers) comm->error = status.result;
      return status;
    }
    std::lock_guard const lock(process.world->mutex);
    if (process.group_depth != 0) process.world->violation(&process, "a collective in a group");
    if (!places_are_legal(call, comm->rank, comm->clique->size)) fault(comm, "a bad overlap");
    if (call.send == nullptr || call.recv == nullptr) fault(comm, "a null buffer");
    if (call.count == 0) fault(comm, "a collective of nothing");
    Task task{.type = Task::Type::collective, .comm = comm, .call = call};
    task.sequence = comm->sequence++;
    return launch(comm, stream, std::move(task));
  }

  static Status launch(Comm comm, Stream stream, Task task) {
    Process& process = *comm->process;
    check_usable(comm, "a launch");
    if (stream->dead) fault(comm, "a launch on a dead stream");
    if (comm->error != Result::success) return {comm->error};
    long const number = process.launches++;
    task.hangs = number == process.script.hang_at;
    if (number == process.script.remote_error_at) comm->error = Result::remote_error;
    stream->tasks.push_back(std::move(task));
    comm->polls = process.script.in_progress;
    comm->pending = nullptr;
    if (comm->polls == 0) return {};
    stream->unsettled = comm;
    return {Result::in_progress};
  }

  template <class Make>
  static Status queue(Stream stream, char const* what, Make const& make) {
    Process& process = *stream->process;
    if (Status const status = gate(process); !status.ok()) return status;
    if (process.script.before_enqueue) process.script.before_enqueue(what);
    std::unique_lock lock(process.world->mutex);
    while (stream->tasks.size() >= process.script.room) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
    if (stream->dead) process.world->violation(&process, std::string(what) + " on a dead stream");
    if (stream->unsettled != nullptr && stream->unsettled->polls > 0) {
      process.world->violation(&process, std::string(what) + " while a launch is in progress");
    }
    stream->tasks.push_back(make());
    return {};
  }
};

}  // namespace fake
