/// @file
/// The ranks of an emulated NCCL communicator, for its own sources.
#pragma once

#include "emulated/collective.hpp"
#include "emulated/state.hpp"
#include "support/standard.hpp"

#include <nccl.h>

namespace emulated {

/// A collective, as far as it has been called.
struct Slot {
  std::vector<Part> parts;
  int posted = 0;
  bool busy = false;
  bool done = false;
};

/// A collective in the graphs of all ranks, launch by launch.
struct CapturedSlot {
  std::vector<Part> parts;
  std::map<std::size_t, std::set<int>> arrived;  ///< who, in which launch
  std::set<std::size_t> done;                    ///< launches
};

/// A split under way: who has asked for what.
struct Split {
  std::vector<std::tuple<int, int, int, ncclComm*>> asked;  ///< color, key, parent's rank, child
  bool over = false;
};

/// The ranks of a communicator.
struct Clique {
  explicit Clique(int ranks) : size(ranks), devices(static_cast<std::size_t>(ranks), -1) {}

  int size;
  std::vector<int> devices;
  int seats = 0;
  bool aborted = false;
  std::map<std::size_t, std::shared_ptr<Slot>> slots;
  std::map<std::size_t, std::shared_ptr<CapturedSlot>> captured;
  std::map<std::size_t, int> meetings;
  std::map<std::size_t, std::shared_ptr<Split>> splits;

  /// Tries to do a collective for all ranks; false if a stream has not come to it.
  bool attempt(Slot& slot) const {
    if (slot.done || aborted) return true;
    if (slot.posted < size || slot.busy) return false;
    slot.busy = true;
    bool const here = std::all_of(slot.parts.begin(), slot.parts.end(), [](Part const& part) {
      return fake::Machine::reach(part.queue, part.position);
    });
    slot.busy = false;
    if (!here) return false;
    carry_out(slot.parts);
    slot.done = true;
    return true;
  }
  /// The same for a collective of graphs, which `rank` has come to in its n-th launch.
  bool attempt(CapturedSlot& slot, int rank, std::size_t launch) const {
    if (aborted || slot.done.count(launch) != 0) return true;
    slot.arrived[launch].insert(rank);
    if (static_cast<int>(slot.arrived[launch].size()) < size) return false;
    carry_out(slot.parts);
    slot.done.insert(launch);
    return true;
  }
};

}  // namespace emulated

struct ncclComm {
  std::shared_ptr<emulated::Clique> clique;
  int rank = 0;
  int device = 0;
  std::size_t collectives = 0;
  std::size_t captured = 0;  ///< collectives
  std::vector<std::shared_ptr<emulated::Capture const>> captures;
  std::size_t met = 0;
  std::size_t splits = 0;
  bool blocks = false;     ///< calls come back when they are over
  bool accepting = false;  ///< a call was accepted and is not over until it is asked for
  bool finalized = false;
  std::function<void()> deliver;                 ///< what a call gives its caller once it is over
  std::shared_ptr<emulated::Split const> split;  ///< that made it, or that it waits for

  [[nodiscard]] bool seated() const {
    return clique != nullptr && clique->seats == clique->size &&
           (met == 0 || clique->meetings[met] == clique->size) && (split == nullptr || split->over);
  }
};

namespace emulated {

/// A call on a communicator that is ready for one, by the thread whose device is the current one.
template <class Body>
ncclResult_t managed(ncclComm_t comm, Body const& body) {
  Turn const turn;
  if (comm->clique != nullptr && comm->clique->aborted) return ncclRemoteError;
  if (!comm->seated() || comm->accepting || comm->deliver)
    give_up("a call before the last one was over");
  if (comm->device != current_device) return ncclInvalidUsage;
  return body();
}

}  // namespace emulated
