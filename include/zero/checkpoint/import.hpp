/// @file
/// An optimizer's parameters from a model file, whoever wrote it.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/base/function_ref.hpp"
#include "zero/base/hash.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/load_plan.hpp"
#include "zero/checkpoint/model_file.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/concepts/overflow.hpp"
#include "zero/optimizer/engine.hpp"
#include "zero/optimizer/engine_access.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/optimizer/setup/rank_words.hpp"
#include "zero/optimizer/setup/value_loading.hpp"
#include "zero/sharded_optimizer.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// How a model is read.
struct ImportOptions {
  /// Is it an error if the file and the optimizer do not have the same tensors?
  bool strict = true;
  /// What tensors of the file are called here; those that are not named keep their names.
  std::map<std::string, std::string> names{};
  Overflow overflow = Overflow::refuse;  ///< what becomes of values that types here cannot hold
};

/// Where a model file and an optimizer differ.
struct ImportReport {
  std::vector<std::string> missing{};     ///< tensors here that the file does not have
  std::vector<std::string> unexpected{};  ///< tensors of the file, as it calls them, not used here
  std::vector<std::string> misfits{};     ///< tensors of both that do not fit, each with the reason

  /// One after the other, for a message; empty if there are none.
  [[nodiscard]] std::string text() const {
    return detail::misfits("file", missing, unexpected, misfits, {});
  }
};

namespace detail {

/// Where a model has the elements of a tensor.
struct ImportSource {
  StoredTensor const* tensor = nullptr;
  std::uint64_t first = 0;  ///< elements before them: those of layers before
  bool stack = false;       ///< are all layers of a stacked tensor there?

  friend bool operator==(ImportSource const&, ImportSource const&) = default;
};

/// Which of a model's tensors an optimizer's tensors are.
struct ImportMatch {
  /// By tensor; more than one where the file has several of those that are tied here. None for
  /// tensors that share another's memory, and for those that stay as they are.
  std::vector<std::vector<ImportSource>> sources{};
  ImportReport report{};
};

/// Why a tensor of a file cannot be one here, in words; empty if it can.
/// @param value  type that it is read as
[[nodiscard]] inline std::string import_problem(StoredTensor const& source,
                                                Tensor const& here,
                                                DType value) {
  std::vector<std::uint64_t> const shape(here.shape.begin(), here.shape.end());
  safetensors::Entry const& entry = source.entry;
  std::string const there = entry.name == here.name ? "" : " (there '" + entry.name + "')";
  if (entry.shape != shape) {
    return Message({"'",
                    here.name,
                    "' has shape ",
                    shape_text(shape),
                    " here and ",
                    shape_text(entry.shape),
                    " in the file",
                    there})
        .text();
  }
  if (here.dtype && is_integral(*here.dtype)) {
    std::string_view const called = here.file_dtype.name();
    if (called.empty() ? opaque_as(*here.dtype, entry.dtype) : entry.dtype == called) return {};
    std::string_view const own = called.empty() ? name(*here.dtype) : called;
    Message const why{" in the file", there, ", and ", own, " here"};
    return Message({"'", here.name, "' is ", entry.dtype, why}).text();
  }
  if (readable_as(value, entry.dtype)) return {};
  Message const why{" in the file",
                    there,
                    value == DType::f64 ? ", and none of F64, F32, F16 and BF16"
                                        : ", and none of F32, F16 and BF16"};
  return Message({"'", here.name, "' is ", entry.dtype, why}).text();
}

/// Finds every tensor under its own name, under that of a tensor tied to it, or under the name that
/// the file's metadata give for either. A stacked tensor is there whole, or layer by layer.
[[nodiscard]] inline ImportMatch match_model(StoredModel const& stored_model,
                                             Model const& model,
                                             std::map<std::string, std::string> const& names,
                                             DType value = DType::f32) {
  auto const name_here = [&](std::string const& name) -> std::string const& {
    auto const found = names.find(name);
    return found == names.end() ? name : found->second;
  };
  std::map<std::string, StoredTensor const*> stored;
  for (StoredTensor const& tensor : stored_model.tensors) {
    if (stored.emplace(name_here(tensor.entry.name), &tensor).second) continue;
    fail(ErrorKind::invalid_argument,
         {"two tensors of the file are called '", name_here(tensor.entry.name), "' here"});
  }
  // What the file has as a tensor is no alias: those come second.
  for (auto const& [name, target] : stored_model.metadata) {
    if (StoredTensor const* const tensor = stored_model.find(target)) {
      stored.emplace(name_here(name), tensor);
    }
  }

  ImportMatch match;
  ImportReport& report = match.report;
  auto const storage_of = [&](std::size_t t) { return model.partition.place(t).storage; };
  match.sources.resize(model.tensors.size());
  std::vector<bool> used(stored_model.tensors.size());
  for (std::size_t t = 0; t < model.tensors.size(); ++t) {
    Tensor const& whole = model.described[model.slices[t].described];
    ImportSource source{.first = model.slices[t].first, .stack = whole.stacked};
    auto found = stored.find(whole.name);
    if (whole.stacked && found == stored.end()) {
      found = stored.find(model.tensors[t].name);
      source = {};
    }
    if (found == stored.end()) continue;
    source.tensor = found->second;
    used[static_cast<std::size_t>(source.tensor - stored_model.tensors.data())] = true;
    auto& sources = match.sources[storage_of(t)];
    if (std::find(sources.begin(), sources.end(), source) == sources.end()) {
      sources.push_back(source);
    }
  }
  for (std::size_t d = 0; d < model.described.size(); ++d) {
    auto const [begin, end] = model.slices_of(d);
    if (storage_of(begin) != begin) continue;
    std::vector<std::string> missing;
    for (std::size_t t = begin; t < end; ++t) {
      auto& sources = match.sources[t];
      if (sources.empty()) missing.push_back(model.tensors[t].name);
      std::string problem;
      for (ImportSource const& source : sources) {
        Tensor const& here = source.stack ? model.described[d] : model.tensors[t];
        std::string found = import_problem(*source.tensor, here, value);
        if (!found.empty()) problem = std::move(found);
      }
      if (problem.empty()) continue;
      sources.clear();
      // That of a whole stack is the same for all of its layers.
      if (report.misfits.empty() || report.misfits.back() != problem) {
        report.misfits.push_back(std::move(problem));
      }
    }
    if (missing.size() == end - begin) missing = {model.described[d].name};
    report.missing.insert(report.missing.end(), missing.begin(), missing.end());
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) report.unexpected.push_back(stored_model.tensors[i].entry.name);
  }
  return match;
}

/// Of all that ranks have to see alike in a file.
[[nodiscard]] inline std::uint64_t digest_of(StoredModel const& model,
                                             ImportOptions const& options) {
  Hash hash;
  for (StoredTensor const& tensor : model.tensors) {
    hash.add(tensor.entry.name);
    hash.add(tensor.entry.dtype);
    for (std::uint64_t const extent : tensor.entry.shape) hash.add(extent);
    hash.add(tensor.entry.begin);
    hash.add(static_cast<std::uint64_t>(tensor.file));
  }
  for (auto const* const texts : {&model.metadata, &options.names}) {
    hash.add(texts->size());
    for (auto const& [name, text] : *texts) {
      hash.add(name);
      hash.add(text);
    }
  }
  hash.add(static_cast<std::uint64_t>(options.strict));
  hash.add(static_cast<std::uint64_t>(options.overflow));
  return hash.value();
}

/// `load_parameters_from` of any optimizer.
ZERO_OPTIONAL_APART ImportReport import_engine(Engine& engine,
                                               std::string const& path,
                                               ImportOptions const& options,
                                               FileOperations& files);

#if ZERO_OPTIONAL_BODIES

ZERO_OPTIONAL_BODY ImportReport import_engine(Engine& engine,
                                              std::string const& path,
                                              ImportOptions const& options,
                                              FileOperations& files) {
  constexpr std::string_view operation = "load_parameters_from";
  Parts& parts = engine.parts();
  parts.require_bound();
  engine.settle();
  RankWords const control(parts.comm(), parts.arena);
  DType const value = parts.kernels.types().value();
  auto const refuse = [&](ErrorKind kind, Message const& why) {
    fail(kind,
         {"'", path, "' ", why},
         {.rank = control.rank(), .operation = std::string(operation)});
  };

  StoredModel model;
  ImportMatch match;
  LongWork look(control, operation);
  look.run([&] {
    engine.require_between_steps(operation);
    engine.require_no_readers(operation);
    model = open_model(files, path);
    match = match_model(model, parts, options.names, value);
  });
  if (!control.unanimous(digest_of(model, options))) {
    refuse(ErrorKind::invalid_argument,
           "is not the same on all ranks, or ranks have other options");
  }
  if (options.strict) {
    // The same on every rank, so each says it, however long it is.
    ImportReport const& found = match.report;
    std::string const text =
        misfits("file", found.missing, found.unexpected, found.misfits, options.names);
    if (!text.empty()) refuse(ErrorKind::data, {"does not fit this optimizer: ", text});
  }

  std::vector<bool> loaded;
  for (auto const& sources : match.sources) loaded.push_back(!sources.empty());
  ModelReader reader(files, model);
  std::vector<std::byte> other;
  LongWork work(control, operation);
  auto const ask = [&](Tensor const& tensor, std::size_t first, Elements out) {
    auto const described = static_cast<std::size_t>(&tensor - parts.described.data());
    std::size_t const t = parts.slice_at(described, first);
    first -= static_cast<std::size_t>(parts.slices[t].first);
    auto const& sources = match.sources[t];
    DType const type = parts.value_type(described);
    auto const read = [&](ImportSource const& source, void* to) {
      reader.read(*source.tensor, source.first + first, type, to, out.count);
    };
    read(sources[0], out.first);
    other.resize(out.count * size_of(type));
    for (std::size_t i = 1; i < sources.size(); ++i) {
      read(sources[i], other.data());
      if (std::memcmp(other.data(), out.first, other.size()) == 0) continue;
      fail(ErrorKind::data,
           {"tensors '",
            sources[0].tensor->entry.name,
            "' and '",
            sources[i].tensor->entry.name,
            "' are tied here, but differ in '",
            path,
            "'"});
    }
    work.alive();
  };
  auto const all_asked = [&] { work.end(); };
  engine.begin_load(loaded, false);
  FunctionRef<void()> const asked(all_asked);
  work.run([&] { load(parts, ValueSource(ask), options.overflow, &loaded, asked); });
  engine.end_load(loaded, false);
  engine.values_are_set(loaded, true);
  return std::move(match.report);
}

#endif

}  // namespace detail

/// Sets parameters and master weights from safetensors files of fp32, fp16 or bf16, whoever wrote
/// them. Ranks read the ranges that they hold, and under a stage that partitions parameters those
/// of the next rank as well, as `load_parameters` does. A tied tensor may be there under any of its
/// names, or under several if all have the same values; a stacked one as it was described, or layer
/// by layer ("name[0]", ...). States and counters stay as they are.
/// @param optimizer  whose parameters are set; between its steps
/// @param path       a safetensors file, an index of several, or a directory with one of either
/// @param options    the same on every rank
/// @param files      the operations on files
/// @returns what the file and the optimizer do not share: all empty if `strict`. Without it,
///   tensors that are missing or do not fit keep their values
/// @par Collective  yes; blocks. However long a rank reads, no deadline of the communicator ends it
/// @par Cost        memory of a few times the files' headers; otherwise as `load_parameters`
/// @throws Error on every rank: (data), naming all tensors that are missing, unexpected or do not
///   fit, or for files that are not what they should be; (resource) for what cannot be read;
///   (invalid_argument) for options that make no sense, or for the first finite value that its type
///   here cannot hold, unless they say `saturate`. Until all headers fit nothing is changed;
///   if a read fails later, every step is refused until loads have replaced all that this one was
///   to. Tensors that have got no values by any call are named by the next step
template <class... Policies>
ImportReport load_parameters_from(ShardedOptimizer<Policies...>& optimizer,
                                  std::string const& path,
                                  ImportOptions const& options = {},
                                  FileOperations& files = disk()) {
  return detail::import_engine(detail::EngineAccess::engine(optimizer), path, options, files);
}

}  // namespace zero::inline ZERO_NAMESPACE
