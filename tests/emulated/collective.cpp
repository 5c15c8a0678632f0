#include "emulated/collective.hpp"

#include "emulated/state.hpp"
#include "zero/base/dtype.hpp"
#include "zero/kernel/reduce.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

namespace emulated {

namespace {

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

using Bytes = std::vector<std::byte>;

Bytes read(void const* from, std::size_t bytes) {
  state().memory.show(from);
  auto const* const begin = static_cast<std::byte const*>(from);
  return Bytes(begin, begin + bytes);
}

void write(void* to, Bytes const& from) {
  if (from.empty()) return;
  state().memory.show(to);
  std::memcpy(to, from.data(), from.size());
}

Bytes sum(std::vector<Part> const& parts, std::size_t count) {
  zero::DType const type = dtype_of(parts.front().type);
  bool const half = type == zero::DType::bf16 || type == zero::DType::f16;
  bool const integer = type == zero::DType::i32 || type == zero::DType::i64;
  zero::DType const wide = half ? zero::DType::f32 : integer ? type : zero::DType::f64;
  auto const function = zero::kernel::sum_function(type, wide);
  if (function == nullptr) give_up("no sums of this type");
  std::vector<Bytes> inputs;
  std::vector<void const*> addresses;
  for (Part const& part : parts) {
    inputs.push_back(read(part.send, count * size_of(type)));
  }
  for (Bytes const& input : inputs) addresses.push_back(input.data());
  Bytes result(count * size_of(type));
  function(result.data(),
           addresses.data(),
           0,
           static_cast<int>(inputs.size()),
           count,
           zero::kernel::Store::cached);
  return result;
}

/// The n-th message from a rank to another meets the n-th that the other expects from it.
void exchange(std::vector<Part> const& parts) {
  std::map<std::pair<int, int>, std::vector<Bytes>> sent;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    for (Message const& message : parts[r].messages) {
      if (!message.sends) continue;
      sent[{static_cast<int>(r), message.peer}].push_back(read(message.data, message.bytes));
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
      write(message.data, sent[key][n]);
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

std::size_t size_of(ncclDataType_t type) { return zero::size_of(dtype_of(type)); }

void carry_out(std::vector<Part> const& parts) {
  Part const& first = parts.front();
  for (Part const& part : parts) {
    bool const same =
        part.kind == first.kind &&
        (part.kind == Kind::exchange ||
         (part.count == first.count && part.type == first.type && part.root == first.root));
    if (!same) give_up("ranks disagree about a collective");
  }
  if (first.kind == Kind::exchange) return exchange(parts);
  std::size_t const block = first.count * size_of(dtype_of(first.type));
  std::size_t const ranks = parts.size();
  // All is read before anything is written, so that any aliasing shows.
  std::vector<Bytes> results;
  switch (first.kind) {
    case Kind::all_gather: {
      Bytes all;
      for (Part const& part : parts) {
        Bytes const own = read(part.send, block);
        all.insert(all.end(), own.begin(), own.end());
      }
      results.assign(ranks, all);
      break;
    }
    case Kind::broadcast: {
      results.assign(ranks, read(parts[static_cast<std::size_t>(first.root)].send, block));
      break;
    }
    case Kind::reduce_scatter: {
      Bytes const sums = sum(parts, first.count * ranks);
      for (std::size_t r = 0; r < ranks; ++r) {
        auto const begin = sums.begin() + static_cast<std::ptrdiff_t>(r * block);
        results.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(block));
      }
      break;
    }
    case Kind::all_reduce: results.assign(ranks, sum(parts, first.count)); break;
    case Kind::exchange: break;
  }
  for (std::size_t r = 0; r < ranks; ++r) write(parts[r].recv, results[r]);
}

}  // namespace emulated
