/// @file
/// Models on disk for tests: what they should hold, and optimizers that write and read them.
#pragma once

#include "checkpoint/faulty_files.hpp"
#include "checkpoint/proof.hpp"
#include "contracts/loop.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/safetensors.hpp"
#include "zero/checkpoint/together.hpp"

namespace checkpoint_tests {

/// A file of the toy model as one program without ranks writes it.
/// @param value  `value(tensor, element)`
template <class T, class Value>
std::string model_file(std::vector<zero::Tensor> const& tensors, Value const& value) {
  zero::safetensors::Header header;
  header.metadata["format"] = "pt";
  std::string data;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (!tensors[t].tied_to.empty()) {
      header.metadata[tensors[t].name] = tensors[t].tied_to;
      continue;
    }
    header.entries.push_back({.name = tensors[t].name,
                              .dtype = std::string(zero::safetensors::spelled(zero::dtype_of<T>)),
                              .shape = {tensors[t].shape.begin(), tensors[t].shape.end()}});
    for (std::size_t i = 0; i < zero::element_count(tensors[t]); ++i) {
      T const element(value(t, i));
      data.append(reinterpret_cast<char const*>(&element), sizeof(element));
    }
  }
  return zero::safetensors::format(header) + data;
}

/// The toy model's file.
template <class Precision, class T>
std::string toy_file() {
  auto const tensors = toy::model();
  return model_file<T>(tensors, [&](std::size_t t, std::size_t i) {
    float const value = toy::initial_value(t, i);
    // A frozen tensor has no master.
    return tensors[t].frozen ? static_cast<float>(typename Precision::Parameter(value)) : value;
  });
}

/// What `work(optimizer, path)` does to a new optimizer on every rank, in a directory of its own.
template <class Optimizer = contracts::Optimizer<zero::stage::PosG, zero::Fp32>, class Work>
void with_ranks(int ranks, Work const& work, double deadline_s = 600) {
  TemporaryDirectory directory;
  zero::run_ranks(ranks,
                  [&](zero::InProcess& comm) {
                    Optimizer optimizer{comm, toy::model(), zero::Bucket{1}};
                    work(optimizer, directory.path() + "/", comm);
                  },
                  {.deadline_s = deadline_s});
}

inline std::vector<std::string> names_in(std::string const& directory) {
  std::vector<std::string> names;
  zero::DiskFiles{}.list(directory, names);
  return names;
}

/// What all ranks are told when `work(optimizer, path, rank)` fails, with "@" for the directory.
template <class Work>
std::string failure(int ranks, Work const& work) {
  TemporaryDirectory directory;
  std::string const at = directory.path() + "/";
  std::string text = failure_of_all(ranks, [&](zero::InProcess& comm) {
    contracts::Optimizer<zero::stage::PosG, zero::Fp32> optimizer{
        comm, toy::model(), zero::Bucket{1}};
    work(optimizer, at, comm.rank());
  });
  for (std::size_t found = 0; (found = text.find(at)) != text.npos;) {
    text.replace(found, at.size(), "@");
  }
  return text;
}

/// One rank writes a file, and all wait for it.
template <class Optimizer>
void provide(Optimizer& optimizer, std::string const& path, std::string const& file, int rank) {
  if (rank == 0) spill(path, file);
  auto& parts = zero::detail::EngineAccess::engine(optimizer).parts();
  zero::detail::together({parts.comm(), parts.arena}, "wait", [] {});
}

/// Fail as soon as they are told to; ranks share nothing.
using StruckFiles = FaultyFiles<zero::DiskFiles>;

}  // namespace checkpoint_tests
