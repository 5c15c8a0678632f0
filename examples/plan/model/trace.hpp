/// @file
/// Virtual time as a picture: the format of chrome://tracing and ui.perfetto.dev.
#pragma once

#include "../simulate/timeline.hpp"

#include <ostream>

namespace plan {

using namespace zero;
using simulate::Event;
using simulate::Timeline;

/// Writes the events that a timeline has kept as JSON, with computation and communication as two
/// rows. Times are in microseconds from the first event's beginning.
/// @param to    a stream in text mode
/// @param time  whose events
inline void write_trace(std::ostream& to, Timeline const& time) {
  auto const digits = to.precision(15);
  double const origin = time.events().empty() ? 0. : time.events().front().begin;
  to << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  char const* const rows[] = {"compute", "communication"};
  for (int row = 0; row < 2; ++row) {
    to << R"({"name": "thread_name", "ph": "M", "pid": 0, "tid": )" << row
       << R"(, "args": {"name": ")" << rows[row] << "\"}},\n";
  }
  for (Event const& event : time.events()) {
    to << R"({"name": ")" << event.name << R"(", "ph": "X", "pid": 0, "tid": )"
       << static_cast<int>(event.queue) << ", \"ts\": " << (event.begin - origin) * 1e6
       << ", \"dur\": " << (event.end - event.begin) * 1e6 << R"(, "args": {"number": )"
       << event.number << "}},\n";
  }
  to << R"({"name": "end", "ph": "i", "s": "g", "pid": 0, "tid": 0, "ts": )"
     << (time.now() - origin) * 1e6 << "}\n]}\n";
  to.precision(digits);
}

}  // namespace plan
