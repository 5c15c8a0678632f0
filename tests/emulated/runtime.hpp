/// @file
/// What tests can do to the emulated runtime that a program cannot do to a real one.
#pragma once

#include <cstddef>
#include <ostream>

namespace emulated {

/// How many devices there are; all of them can reach one another.
inline constexpr int devices = 2;

/// Of each.
inline constexpr int multiprocessors = 2;

inline constexpr std::size_t never = ~std::size_t{0};
inline constexpr std::size_t forever = never;

/// Lets a call of the runtime fail for a reason unknown, and so many after it. Devices that fail
/// forever do nothing any more.
void fail(std::size_t number, std::size_t more);
/// How many calls there have been.
std::size_t calls();
/// Whether the program has initialized a device, by selecting it or by asking it for something.
bool initialized(int device);
/// As if the program had initialized none.
void forget_initializations();
/// Calls that put something into streams.
struct Enqueued {
  std::size_t records = 0;   ///< of events
  std::size_t waits = 0;     ///< of streams for events
  std::size_t launches = 0;  ///< of kernels
  std::size_t copies = 0;    ///< and settings of memory

  friend bool operator==(Enqueued const&, Enqueued const&) = default;
  friend std::ostream& operator<<(std::ostream& out, Enqueued const& of) {
    return out << of.records << " records, " << of.waits << " waits, " << of.launches
               << " launches, " << of.copies << " copies";
  }
  friend Enqueued operator-(Enqueued a, Enqueued const& b) {
    return {a.records - b.records, a.waits - b.waits, a.launches - b.launches, a.copies - b.copies};
  }
};
/// How many there have been.
Enqueued enqueued();
/// How often it was asked how many blocks of a kernel a multiprocessor runs at once.
std::size_t occupancy_questions();
/// How many kernels were first used while their launch was captured: a real runtime may have to
/// load them then, and fail.
std::size_t captured_loads();
/// As if no kernel had been used or loaded.
void forget_loads();
/// The highest priority of streams; 0 is the lowest.
inline constexpr int highest_priority = -5;
/// How many streams of a device there are with a priority.
std::size_t streams_of(int device, int priority);
/// How many copies from or to memory of the host have been asked for while there was work in their
/// stream: the calling thread spins until that is done.
std::size_t spinning_copies();
/// How often the calling thread has waited for a stream or an event.
std::size_t host_waits();

}  // namespace emulated
