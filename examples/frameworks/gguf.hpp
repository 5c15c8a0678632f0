// Model files in GGUF that every rank writes its part of, and reads its part of. Nobody gathers.
//
// For little-endian processors. What is written has no tied tensors, and no frozen ones, which
// nobody owns. Quantised tensors are read as they are, as frozen bytes.
#pragma once

#include <zero/zero.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

// Values of keys have a type: strings have their own length, arrays a type and theirs.
constexpr std::uint32_t f32_type = 0, f16_type = 1, string_key = 8, array_key = 9;
constexpr std::array key_bytes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr std::uint64_t alignment = 32;  // of tensors, unless a file says otherwise

/// What a file says of a tensor.
struct Entry {
  std::vector<std::uint64_t> extents;
  std::uint32_t type = f32_type;
  std::uint64_t place = 0;  // in bytes, from the beginning of the file
};

/// So many elements of a row, and the bytes that they are together in.
struct Block {
  std::uint64_t elements = 1, bytes = 1;
};
/// Of the quantised types, by number: Q4_0 to Q5_1, Q8_0, and Q2_K to Q6_K.
inline std::map<std::uint32_t, Block> const blocks{{2, {32, 18}},
                                                   {3, {32, 20}},
                                                   {6, {32, 22}},
                                                   {7, {32, 24}},
                                                   {8, {32, 34}},
                                                   {10, {256, 84}},
                                                   {11, {256, 110}},
                                                   {12, {256, 144}},
                                                   {13, {256, 176}},
                                                   {14, {256, 210}}};

inline bool is_opaque(zero::Tensor const& tensor) { return tensor.dtype == zero::DType::u8; }

/// The format names the dimension first that varies fastest.
inline std::vector<std::uint64_t> extents_of(zero::Tensor const& tensor) {
  if (tensor.shape.empty()) return {1};
  return {tensor.shape.rbegin(), tensor.shape.rend()};
}

/// Does a tensor of a file fit one here? Of bytes, rows are as long as the file's are in bytes.
inline bool fits(Entry const& entry, zero::Tensor const& tensor) {
  auto extents = entry.extents;
  if (is_opaque(tensor)) {
    auto const block = blocks.find(entry.type);
    if (block == blocks.end() || extents.empty()) return false;
    extents[0] = extents[0] / block->second.elements * block->second.bytes;
  } else if (entry.type != f32_type && entry.type != f16_type) {
    return false;
  }
  return extents == extents_of(tensor);
}

inline std::uint64_t aligned(std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; }

/// Calls pread or pwrite until all is done.
template <class Call, class Byte>
void transfer(Call& call, int file, Byte* data, std::size_t bytes, std::uint64_t place) {
  for (std::size_t done = 0; bytes > 0; data += done, place += done, bytes -= done) {
    done = static_cast<std::size_t>(call(file, data, bytes, static_cast<off_t>(place)));
    if (done == 0 || done > bytes) throw std::runtime_error("a model file ends early");
  }
}

/// Writes master weights as F32. Collective: ranks return when all have written.
template <class Communicator, class Optimizer>
void write_gguf(Communicator& comm, Optimizer const& opt, std::string const& path) {
  std::string entries, header = "GGUF";
  auto const append = []<class T>(std::string& to, T value) {
    to.append(reinterpret_cast<char const*>(&value), sizeof value);
  };
  auto const append_text = [&](std::string& to, std::string const& text) {
    append(to, std::uint64_t{text.size()}), to += text;
  };
  std::map<std::string, std::uint64_t> places;
  std::uint64_t bytes = 0;
  for (zero::Tensor const& tensor : opt.tensors()) {
    if (tensor.frozen) throw std::runtime_error(tensor.name + " is frozen");
    if (!tensor.tied_to.empty()) continue;
    append_text(entries, tensor.name);
    append(entries, static_cast<std::uint32_t>(extents_of(tensor).size()));
    for (std::uint64_t const extent : extents_of(tensor)) append(entries, extent);
    append(entries, f32_type), append(entries, bytes);
    places[tensor.name] = bytes;
    bytes += aligned(zero::element_count(tensor) * sizeof(float), alignment);
  }
  append(header, std::uint32_t{3});  // the version; then how many tensors, and how many keys
  append(header, std::uint64_t{places.size()}), append(header, std::uint64_t{1});
  append_text(header, "general.architecture");
  append(header, string_key), append_text(header, "example");
  header += entries;
  header.resize(aligned(header.size(), alignment));
  int const file = open(path.c_str(), O_CREAT | O_WRONLY, 0644);
  if (comm.rank() == 0) transfer(pwrite, file, header.data(), header.size(), 0);
  bool failed =
      ftruncate(file, static_cast<off_t>(header.size() + bytes)) != 0;  // of an older file
  opt.visit_owned([&](zero::Tensor const& tensor, std::size_t first, auto run, auto&&) {
    std::span<float const> const values = run;
    std::uint64_t const place = header.size() + places.at(tensor.name) + first * sizeof(float);
    auto const* const data = reinterpret_cast<char const*>(values.data());
    transfer(pwrite, file, data, values.size_bytes(), place);
  });
  failed = close(file) != 0 || failed;
  if (zero::sum(comm, failed ? 1. : 0.) > 0.) throw std::runtime_error("cannot write " + path);
}

/// Where tensors are, from the header of a file.
inline std::map<std::string, Entry> entries_of(std::string const& path) {
  std::ifstream in(path, std::ios::binary);
  in.exceptions(std::ios::failbit | std::ios::badbit);
  auto const read = [&]<class T>(T value) {
    in.read(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  };
  auto const text = [&] {
    std::string value(read(std::uint64_t{}), '\0');
    in.read(value.data(), static_cast<std::streamsize>(value.size()));
    return value;
  };
  if (read(std::uint32_t{}) != 0x46554747 || read(std::uint32_t{}) < 2) {
    throw std::runtime_error(path + " is no GGUF file of version 2 or 3");
  }
  auto const tensors = read(std::uint64_t{});
  std::uint64_t to = alignment;
  for (auto keys = read(std::uint64_t{}); keys > 0; --keys) {
    bool const is_alignment = text() == "general.alignment";
    auto type = read(std::uint32_t{});
    std::uint64_t count = 1;
    if (type == array_key) type = read(std::uint32_t{}), count = read(std::uint64_t{});
    for (; count > 0; --count) {
      if (type == string_key)
        text();
      else if (is_alignment)
        to = read(std::uint32_t{});
      else
        in.ignore(key_bytes.at(type));
    }
  }
  std::map<std::string, Entry> entries;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    Entry& entry = entries[text()];
    entry.extents.resize(read(std::uint32_t{}));
    for (std::uint64_t& extent : entry.extents) extent = read(extent);
    entry.type = read(std::uint32_t{});
    entry.place = read(std::uint64_t{});
  }
  std::uint64_t const data = aligned(static_cast<std::uint64_t>(in.tellg()), to);
  for (auto& [name, entry] : entries) entry.place += data;
  return entries;
}

/// Of trained tensors that a file does not have: refuses them.
struct NoInitial {
  void operator()(zero::Tensor const& tensor, std::size_t, std::span<float>) const {
    throw std::runtime_error(tensor.name + " is not there");
  }
};

/// Starts from a file's values and bytes, of which a rank reads what it holds. Collective.
/// @param initial  gives trained tensors that the file does not have their values
/// @returns bytes that this rank has read
template <class Optimizer, class Initial = NoInitial>
std::uint64_t load_gguf(Optimizer& opt, std::string const& path, Initial const& initial = {}) {
  auto const entries = entries_of(path);
  int const file = open(path.c_str(), O_RDONLY);
  std::uint64_t bytes = 0;
  auto const entry_of = [&](zero::Tensor const& tensor) {
    auto const found = entries.find(tensor.name);
    if (found == entries.end()) throw std::runtime_error(tensor.name + " is not there");
    if (fits(found->second, tensor)) return found->second;
    throw std::runtime_error(tensor.name + " has another shape there, or another type");
  };
  auto const read = [&](Entry const& entry, std::size_t first, auto out) {
    auto* const data = reinterpret_cast<char*>(out.data());
    transfer(pread, file, data, out.size_bytes(), entry.place + first * sizeof(out[0]));
    bytes += out.size_bytes();
  };
  opt.load_parameters([&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
    if (!tensor.frozen && !entries.contains(tensor.name)) return initial(tensor, first, out);
    Entry const entry = entry_of(tensor);
    if (entry.type == f32_type) return read(entry, first, out);
    std::vector<zero::fp16> narrow(out.size());
    read(entry, first, std::span(narrow));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(narrow[i]);
  });
  if (std::any_of(opt.tensors().begin(), opt.tensors().end(), is_opaque)) {
    opt.load_bytes([&](zero::Tensor const& tensor, std::size_t first, std::span<std::byte> out) {
      read(entry_of(tensor), first, out);
    });
  }
  close(file);
  return bytes;
}
