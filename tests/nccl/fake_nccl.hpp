/// @file
/// The API of NCCL and CUDA over a `World`: checks their rules and makes scripted mistakes.
#pragma once

#include "nccl/fake_calls.hpp"
#include "nccl/fake_world.hpp"
#include "support/standard.hpp"
#include "zero/comm/nccl/api.hpp"
#include "zero/space/host.hpp"

namespace fake {

/// A member of `World` handed out as a handle; null is none.
struct Library : Calls {
  using Comm = fake::Comm*;
  using Stream = fake::Stream*;
  using Event = fake::Event*;
  using Window = void*;
  struct UniqueId {
    std::uint64_t number = 0;
  };
  using Space = zero::space::Host;
  static constexpr int header_version = 22809;

  static Status version(int* out) {
    return free_call([&](Process& p) { *out = p.script.version; });
  }
  static Status unique_id(UniqueId* id) {
    return free_call([&](Process& p) { id->number = p.world->next_id++; });
  }

  static Status init(Comm* out, int size, UniqueId id, int rank, int max_ctas) {
    Process& process = *current;
    if (Status const status = gate(process); !status.ok()) return status;
    std::lock_guard const lock(process.world->mutex);
    if (process.group_depth != 0) process.world->violation(&process, "init inside a group");
    auto& clique = process.world->meetings[id.number];
    if (clique == nullptr) clique = make_clique(size);
    *out = process.world->make_comm(&process, clique);
    process.max_ctas.push_back(max_ctas);
    take_seat(**out, rank);
    (*out)->pending = [clique] { return clique->arrived == clique->size; };
    (*out)->polls = process.script.in_progress;
    promise(**out, out, *out);
    return {Result::in_progress};
  }

  /// Children are made once all ranks have come; until then parent and child are in progress.
  static Status split(Comm parent, int color, int key, Comm* out, int max_ctas) {
    return managed(parent, "split", [&] {
      World& world = *parent->process->world;
      auto const clique = parent->clique;
      *out = nullptr;
      Comm const child = world.make_comm(parent->process, nullptr);
      parent->process->max_ctas.push_back(max_ctas);
      promise(*parent, out, child);
      int const generation = parent->splits++;
      auto& arrived = clique->splitting[generation];
      arrived.push_back({child, {color, key}});
      child->rank = parent->rank;
      if (static_cast<int>(arrived.size()) == clique->size) divide(arrived);
      auto const ready = [child] { return child->clique != nullptr; };
      child->pending = ready;
      parent->pending = ready;
      return Status{Result::in_progress};
    });
  }

  /// Waits for no peer.
  static Status finalize(Comm comm) {
    return managed(comm, "finalize", [&] {
      comm->finalized = true;
      return Status{Result::in_progress};
    });
  }
  static Status destroy(Comm comm) {
    if (comm->process->script.destroy_hangs) {
      comm->process->world->hang(for_ever_s, [] {});
      return {};
    }
    auto const body = [&] {
      if (!comm->finalized) fault(comm, "destroy without finalize");
      comm->dead = true;
      return Status{};
    };
    return managed(comm, "destroy", body, true);
  }
  static Status abort(Comm comm) {
    World& world = *comm->process->world;
    auto entry = std::make_unique<Entry>(comm, "abort");
    Script const& script = comm->process->script;
    bool const hangs = script.abort_hangs;
    world.hang(hangs ? for_ever_s : script.abort_s, [&] {
      std::lock_guard const lock(world.mutex);
      entry.reset();
      if (comm->dead) fault(comm, "a second end of a communicator");
      comm->dead = true;
      if (hangs) return comm->deliver();
      if (comm->clique != nullptr) world.kill(*comm);
    });
    return {};
  }
  static Status revoke(Comm comm) {
    Entry const entry(comm, "revoke");
    std::lock_guard const lock(comm->process->world->mutex);
    if (comm->dead || comm->revoked) fault(comm, "revoke of a dead communicator");
    if (!comm->process->script.revokes) return {Result::invalid_usage, "cannot revoke"};
    comm->revoked = true;
    comm->process->world->kill(*comm);
    return {};
  }

  static Status async_error(Comm comm, Result* out) {
    Entry const entry(comm, "async_error");
    if (Status const status = gate(*comm->process); !status.ok()) return status;
    std::lock_guard const lock(comm->process->world->mutex);
    if (comm->dead) fault(comm, "async_error of a dead communicator");
    comm->asked = true;
    *out = comm->error;
    if (comm->error != Result::success) return {};
    if (comm->polls > 0) --comm->polls;
    if (comm->unsettled()) {
      *out = Result::in_progress;
    } else {
      comm->deliver();
    }
    return {};
  }
  static std::string_view last_error(Comm comm) {
    if (comm == nullptr) return "";
    std::lock_guard const lock(comm->process->world->mutex);
    return comm->error == Result::remote_error ? "a peer has closed its socket" : "";
  }
  static Status count(Comm comm, int* out) {
    return query(comm, "count", [&] { return *out = comm->clique->size, Status{}; });
  }
  static Status user_rank(Comm comm, int* out) {
    return query(comm, "user_rank", [&] { return *out = comm->rank, Status{}; });
  }
  static Status device(Comm comm, int* out) {
    return query(comm, "device", [&] { return *out = comm->process->device, Status{}; });
  }

  static Status group_start() {
    return free_call([](Process& p) {
      ++p.group_depth;
      pending_parts().clear();
    });
  }
  /// A group whose end fails is closed all the same.
  static Status group_end() {
    Process& process = *current;
    if (process.group_depth != 1) process.world->violation(&process, "group_end without a start");
    process.group_depth = 0;
    auto parts = std::move(pending_parts());
    pending_parts().clear();
    if (Status const status = gate(process); !status.ok()) return status;
    if (parts.empty()) return {};
    auto const [comm, stream] = parts.front().first;
    Task task{.type = Task::Type::exchange, .comm = comm};
    for (auto& [where, part] : parts) {
      if (where != parts.front().first) process.world->violation(&process, "a mixed group");
      task.parts.push_back(part);
    }
    Entry const entry(comm, "group_end");
    std::lock_guard const lock(process.world->mutex);
    return launch(comm, stream, std::move(task));
  }

  static Status reduce_scatter(
      void const* send, void* recv, std::size_t n, DType dtype, Comm comm, Stream stream) {
    return collective({Kind::reduce_scatter, send, recv, n, dtype, 0}, comm, stream);
  }
  static Status all_gather(
      void const* send, void* recv, std::size_t n, DType dtype, Comm comm, Stream stream) {
    return collective({Kind::all_gather, send, recv, n, dtype, 0}, comm, stream);
  }
  static Status all_reduce(
      void const* send, void* recv, std::size_t n, DType dtype, Comm comm, Stream stream) {
    return collective({Kind::all_reduce, send, recv, n, dtype, 0}, comm, stream);
  }
  static Status broadcast(void const* send,
                          void* recv,
                          std::size_t n,
                          DType dtype,
                          int root,
                          Comm comm,
                          Stream stream) {
    return collective({Kind::broadcast, send, recv, n, dtype, root}, comm, stream);
  }
  static Status send(
      void const* data, std::size_t n, DType dtype, int peer, Comm comm, Stream stream) {
    return part({true, const_cast<void*>(data), n, dtype, peer, false}, comm, stream);
  }
  static Status recv(void* data, std::size_t n, DType dtype, int peer, Comm comm, Stream stream) {
    return part({false, data, n, dtype, peer, false}, comm, stream);
  }

  static Status sum_ranks(zero::nccl::RankSum const& s, Stream stream) {
    if (s.count == 0) return free_call([](Process&) {});
    std::size_t const stride = s.stride * zero::size_of(s.dtype);
    if (s.count > 1 && s.ranks > 1 && stride % 16 != 0) {
      current->world->violation(current, "a sum of blocks that are not aligned");
    }
    return enqueue(stream, "sum_ranks", [s, stride] {
      std::vector<void const*> blocks;
      for (int rank = 0; rank < s.ranks; ++rank) {
        auto const index = static_cast<std::size_t>(rank);
        blocks.push_back(rank == s.rank ? s.own : at(s.staged, index * stride));
      }
      Bytes const result = sum(s.dtype, s.accumulate, blocks, 0, s.count, s.squares);
      std::memcpy(s.out, result.data(), result.size());
    });
  }

  static Status mem_alloc(void** out, std::size_t bytes) {
    return free_call([&](Process& p) {
      std::size_t const before = p.script.aligned ? 0 : 512;
      void* memory = nullptr;
      if (posix_memalign(&memory, 4096, before + bytes) != 0) throw std::bad_alloc();
      *out = static_cast<char*>(memory) + before;
      // Fresh device memory holds anything.
      std::memset(*out, 0xa5, bytes);
      ++p.world->live_memory;
      p.world->allocations[*out] = bytes;
    });
  }
  static Status mem_free(void* memory) {
    World& world = *current->world;
    std::lock_guard const lock(world.mutex);
    --world.live_memory;
    world.allocations.erase(memory);
    std::free(static_cast<char*>(memory) - reinterpret_cast<std::uintptr_t>(memory) % 4096);
    return {};
  }
  static Status host_alloc(void** out, std::size_t bytes) {
    Status const status = mem_alloc(out, bytes);
    if (status.ok()) host_memory().put(*out, current->world);
    return status;
  }
  static Status host_free(void* memory) {
    host_memory().take(memory);
    return mem_free(memory);
  }
  /// Kernels read while their world is locked.
  static void poke(std::int64_t* word, std::int64_t value) {
    std::lock_guard const lock(host_memory().world_of(word).mutex);
    *word = value;
  }
  static Status register_buffer(Comm comm, void* memory, std::size_t, void** handle) {
    return managed(comm, "register", [&] {
      *handle = current->script.registers ? memory : nullptr;
      if (*handle != nullptr) current->world->registered.insert(memory);
      return Status{};
    });
  }
  static Status deregister_buffer(Comm comm, void* handle) {
    return managed(comm, "deregister", [&] { return deregister(comm, handle); });
  }
  static Status register_window(Comm comm, void* memory, std::size_t bytes, Window* window) {
    return managed(comm, "register_window", [&] {
      if (reinterpret_cast<std::uintptr_t>(memory) % 4096 != 0 || bytes % 4096 != 0) {
        fault(comm, "a window that is not made of pages");
      }
      promise(*comm, window, memory);
      comm->process->world->registered.insert(memory);
      return meet(*comm);
    });
  }
  static Status deregister_window(Comm comm, Window window) {
    return managed(comm, "deregister_window", [&] { return deregister(comm, window); });
  }
  static Status is_symmetric(Window, bool* out) {
    return free_call([&](Process& p) { *out = p.script.registers; });
  }

  static Status current_device(int* out) {
    return free_call([&](Process& p) { *out = p.device; });
  }
  static Status use_device(int) {
    if (current != nullptr) current->world->violation(current, "changed the trainer's device");
    return {};
  }

  static bool is_per_thread(Stream stream) noexcept { return stream == &fake::stream_per_thread; }
  static Status stream_create(Stream* out) {
    return free_call([&](Process& p) {
      *out = p.world->make_stream(&p);
      ++p.world->live_streams;
    });
  }
  static Status stream_destroy(Stream stream) {
    World& world = *stream->process->world;
    std::lock_guard const lock(world.mutex);
    if (stream->dead) world.violation(stream->process, "a stream destroyed twice");
    if (!stream->tasks.empty()) world.violation(stream->process, "a busy stream was destroyed");
    stream->dead = true;
    --world.live_streams;
    return {};
  }
  static Status stream_query(Stream stream) {
    if (Status const status = gate(*stream->process); !status.ok()) return status;
    World& world = *stream->process->world;
    std::lock_guard const lock(world.mutex);
    if (stream->dead) world.violation(stream->process, "a dead stream was queried");
    world.pump();
    return {stream->tasks.empty() ? Result::success : Result::in_progress};
  }
  static Status stream_wait(Stream stream, Event event) {
    return queue(stream, "stream_wait", [&] {
      Process& process = *stream->process;
      if (process.capturing && !event->captured) {
        process.world->violation(&process, "a graph waits for what is not part of it");
      }
      Task task{.type = Task::Type::wait, .event = event};
      task.generation = event->recorded;
      return task;
    });
  }
  static Status capturing(Stream stream, bool* out) {
    if (Status const status = gate(*stream->process); !status.ok()) return status;
    World& world = *stream->process->world;
    std::lock_guard const lock(world.mutex);
    if (stream->dead) world.violation(stream->process, "a dead stream was asked for its capture");
    *out = stream->process->capturing;
    return {};
  }
  static Status event_create(Event* out) {
    return free_call([&](Process& p) {
      *out = p.world->make_event(&p);
      ++p.world->live_events;
    });
  }
  static Status event_destroy(Event event) {
    std::lock_guard const lock(event->process->world->mutex);
    --event->process->world->live_events;
    return {};
  }
  static Status event_record(Event event, Stream stream) {
    return queue(stream, "event_record", [&] {
      event->captured = stream->process->capturing;
      Task task{.type = Task::Type::record, .event = event};
      task.generation = ++event->recorded;
      return task;
    });
  }
  /// Where the world goes on.
  static Status event_query(Event event) {
    if (Status const status = gate(*event->process); !status.ok()) return status;
    World& world = *event->process->world;
    std::lock_guard const lock(world.mutex);
    if (event->captured) world.violation(event->process, "asked a captured event");
    world.pump();
    return {event->happened == event->recorded ? Result::success : Result::in_progress};
  }
  static Status upload(void* to, void const* from, std::size_t bytes, Stream stream) {
    std::vector<std::byte> const copy(at(from, 0), at(from, bytes));
    return enqueue(stream, "upload", [=] { std::memcpy(to, copy.data(), copy.size()); });
  }
  static Status download(void* to, void const* from, std::size_t bytes, Stream stream) {
    if (Status const status = gate(*stream->process); !status.ok()) return status;
    World& world = *stream->process->world;
    std::lock_guard const lock(world.mutex);
    if (!stream->tasks.empty()) world.violation(stream->process, "download from a busy stream");
    std::memcpy(to, from, bytes);
    return {};
  }

  /// Enqueues a test's own work, as a trainer's kernels would be.
  static Status enqueue(Stream stream, char const* what, std::function<void()> work) {
    return queue(
        stream, what, [&] { return Task{.type = Task::Type::work, .work = std::move(work)}; });
  }
  /// Waits for a stream as a trainer would.
  static void synchronize(Stream stream) {
    World& world = *stream->process->world;
    while (true) {
      {
        std::lock_guard const lock(world.mutex);
        if (stream->tasks.empty()) return;
        world.pump();
      }
      std::this_thread::yield();
    }
  }
};

static_assert(zero::nccl::Api<Library>);

}  // namespace fake
