#include "emulated/collective.hpp"

#include "emulated/state.hpp"
#include "support/standard.hpp"

namespace emulated {

namespace {

/// The n-th message from a rank to another meets the n-th that the other expects from it.
void exchange(std::vector<Part> const& parts) {
  std::map<std::pair<int, int>, std::vector<fake::Bytes>> sent;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    for (Message const& message : parts[r].messages) {
      state().memory.show(message.data);
      if (!message.sends) continue;
      sent[{static_cast<int>(r), message.peer}].push_back(fake::read(message.data, message.bytes));
    }
  }
  std::map<std::pair<int, int>, std::size_t> taken;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    for (Message const& message : parts[r].messages) {
      if (message.sends) continue;
      std::pair const key{message.peer, static_cast<int>(r)};
      std::size_t const n = taken[key]++;
      if (n >= sent[key].size() || sent[key][n].size() != message.bytes) {
        give_up("a message meets none of its size");
      }
      std::copy(sent[key][n].begin(), sent[key][n].end(), fake::at(message.data, 0));
    }
  }
  for (auto const& [key, messages] : sent) {
    if (taken[key] != messages.size()) give_up("a message that nobody receives");
  }
}

}  // namespace

void give_up(char const* what) {
  std::fprintf(stderr, "emulated NCCL: %s\n", what);
  std::abort();
}

zero::DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8: return zero::DType::u8;
    case ncclInt32: return zero::DType::i32;
    case ncclInt64: return zero::DType::i64;
    case ncclFloat16: return zero::DType::f16;
    case ncclFloat32: return zero::DType::f32;
    case ncclFloat64: return zero::DType::f64;
    case ncclBfloat16: return zero::DType::bf16;
    case ncclNumTypes: break;
  }
  give_up("no such type");
}

void carry_out(std::vector<Part> const& parts) {
  Part const& first = parts.front();
  std::vector<fake::Collective> calls;
  for (Part const& part : parts) {
    if (!part.call.agrees(first.call)) give_up("ranks disagree about a collective");
    calls.push_back(part.call);
    state().memory.show(part.call.send);
    state().memory.show(part.call.recv);
  }
  if (first.messages.empty()) return fake::execute(calls);
  exchange(parts);
}

}  // namespace emulated
