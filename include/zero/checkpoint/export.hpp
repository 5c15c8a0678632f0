/// @file
/// An optimizer's parameters as a model file that other tools read.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/base/hash.hpp"
#include "zero/base/number.hpp"
#include "zero/checkpoint/boxes.hpp"
#include "zero/checkpoint/description.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/loading.hpp"
#include "zero/checkpoint/model_layout.hpp"
#include "zero/checkpoint/optimizer_view.hpp"
#include "zero/checkpoint/safetensors.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/concepts/overflow.hpp"
#include "zero/kernel/host_conversion.hpp"
#include "zero/optimizer/engine.hpp"
#include "zero/optimizer/engine_access.hpp"
#include "zero/optimizer/held/elements.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/optimizer/setup/rank_words.hpp"
#include "zero/sharded_optimizer.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// Which of an optimizer's two copies of the weights a model file has.
enum class ExportDType : std::uint8_t {
  parameter,  ///< what forward and backward read: fp16 or bf16 in mixed precision
  master,     ///< what the update works on; frozen tensors are widened to its type, if they are
              ///< numbers
};

/// How a model is written.
struct ExportOptions {
  ExportDType dtype = ExportDType::parameter;  ///< type of each tensor
  /// Bytes of tensors in one file; more go into several, with an index. A tensor is never divided.
  std::uint64_t max_file_bytes = 5'000'000'000;
  /// Texts for the header. "format" is "pt" unless it is given: other tools ask for it.
  std::map<std::string, std::string> metadata{};
  /// Which tensors of the optimizer are parts of larger ones. A checkpoint knows that of its own.
  std::vector<TensorPart> parts{};
  std::string optimizer{};  ///< which, of a checkpoint that has several; an optimizer is none
  /// What becomes of parameters that are infinite although their master weights are not.
  Overflow overflow = Overflow::refuse;
  /// Write frozen tensors. Without them, the file has what is trained alone, such as adapters.
  bool frozen = true;
};

/// What was written.
struct ExportReport {
  std::string path{};       ///< what to give to a reader: the file, or the index of several
  std::uint64_t bytes = 0;  ///< of all files together
};

namespace detail {

/// What a model file has of tensors.
struct ModelEntries {
  /// Where a tensor lies: a stacked one is there as it was described.
  struct EntryPosition {
    std::size_t entry = 0;
    std::uint64_t first = 0;  ///< elements before it
  };
  std::vector<safetensors::Entry> entries{};  ///< of those that have memory of their own
  std::vector<EntryPosition> places{};        ///< by tensor; nothing for tied ones
  /// The trainer's texts, and for each tied tensor under which name its elements are, as the
  /// format's own Python package does.
  std::map<std::string, std::string> metadata{};
};

/// @param tensors   ties are to those before
/// @param types     of each
/// @param options   of the export
/// @param whose     what messages call the model
/// @param kind      of errors
/// @throws Error of that kind for layers that make no stacked tensor, too many ties, or metadata
///   that have the name of a tied tensor
[[nodiscard]] inline ModelEntries model_entries(std::vector<SavedTensor> const& tensors,
                                                std::vector<DType> const& types,
                                                ExportOptions const& options,
                                                std::string const& whose,
                                                ErrorKind kind) {
  ModelEntries model{.metadata = options.metadata};
  model.metadata.try_emplace("format", "pt");
  auto const whole_name = [](SavedTensor const& tensor) {
    return tensor.layers > 0 ? layer_name(tensor.name)->whole : std::string_view(tensor.name);
  };
  std::map<std::string_view, std::string_view> sources;  // what has a tensor's elements
  // By name: entry, and layers that are there.
  std::map<std::string_view, std::pair<std::size_t, std::uint64_t>> stacks;
  std::uint64_t tied_bytes = 0;
  for (SavedTensor const& tensor : tensors) {
    std::string_view const name = whole_name(tensor);
    ModelEntries::EntryPosition& place = model.places.emplace_back();
    if (tensor.frozen && !options.frozen) continue;
    if (!tensor.tied_to.empty()) {
      std::string_view const source = sources[tensor.name] = sources.at(tensor.tied_to);
      // A long name that many are tied to would be written as often.
      if ((tied_bytes += source.size()) > safetensors::longest_text) {
        fail(kind, {whose, " has more ties than the header of a file can hold"});
      }
      auto const [at, added] = model.metadata.try_emplace(std::string(name), source);
      if (added || (at->second == source && options.metadata.count(at->first) == 0)) continue;
      fail(kind, {"metadata '", name, "' are those of the tied tensor of that name"});
    }
    sources[tensor.name] = name;
    place.entry = model.entries.size();
    DType const type = types[model.places.size() - 1];
    bool const called = is_integral(type) && tensor.file_dtype.bytes() == size_of(type);
    std::string const spelling(called ? tensor.file_dtype.name() : safetensors::spelled(type));
    if (tensor.layers == 0) {
      model.entries.push_back({.name = tensor.name, .dtype = spelling, .shape = tensor.shape});
      continue;
    }
    auto const [stack, first] = stacks.try_emplace(name, place.entry, 0);
    auto& [entry, layers] = stack->second;
    if (first) {
      model.entries.push_back(
          {.name = std::string(name), .dtype = spelling, .shape = tensor.shape});
      model.entries[entry].shape.insert(model.entries[entry].shape.begin(), tensor.layers);
    }
    auto const& shape = model.entries[entry].shape;
    if (layer_name(tensor.name)->layer != layers || tensor.layers != shape[0]) {
      fail(kind, {whose, " has '", tensor.name, "' where it does not belong"});
    }
    if (!std::equal(shape.begin() + 1, shape.end(), tensor.shape.begin(), tensor.shape.end())) {
      fail(kind, {whose, " has layers of '", name, "' that are of different shapes"});
    }
    place = {entry, layers++ * volume(tensor.shape)};
  }
  for (auto const& [name, stack] : stacks) {
    if (stack.second == model.entries[stack.first].shape[0]) continue;
    fail(kind, {whose, " does not have all layers of '", name, "'"});
  }
  return model;
}

/// The type that each tensor has in a file.
ZERO_OPTIONAL_APART [[nodiscard]] std::vector<DType> export_types(Parts const& parts,
                                                                  ExportDType dtype);

/// The runs of the model that this rank is to write: each element is one rank's.
ZERO_OPTIONAL_APART [[nodiscard]] std::vector<ArrayRun> export_runs(Parts& parts,
                                                                    ExportOptions const& options);

#if ZERO_OPTIONAL_BODIES

ZERO_OPTIONAL_BODY std::vector<DType> export_types(Parts const& parts, ExportDType dtype) {
  DType const master = parts.policies.types.front().master();
  std::vector<DType> types;
  for (TensorPlace const& place : parts.partition.placement().places()) {
    StorageTypes const& own = parts.types[place.kind];
    bool const widened = place.frozen && !own.opaque() && size_of(own.parameter) < size_of(master);
    types.push_back(dtype == ExportDType::parameter ? own.parameter
                    : widened                       ? master
                                                    : own.master());
  }
  return types;
}

ZERO_OPTIONAL_BODY std::vector<ArrayRun> export_runs(Parts& parts, ExportOptions const& options) {
  // Without masters of another type the parameters are what is updated.
  auto const masters = [&](StorageTypes const& types) {
    return options.dtype == ExportDType::master || !types.has_master();
  };
  std::vector<ArrayRun> runs = array_runs(parts, true, options.frozen);
  std::erase_if(runs, [&](ArrayRun const& run) {
    bool const wanted = masters(parts.types[parts.partition.place(run.tensor).kind]);
    return run.array != parameter_array && !(wanted && run.array == master_array);
  });
  parts.held.trained(Extent::owned, [&](HeldPiece const& piece) {
    if (masters(piece.types()) || !parts.counts(piece.tensor())) return;
    ArrayRun run = run_of(piece, parameter_array, {piece.parameter()});
    run.masters = piece.values(0);
    append_run(runs, run);
  });
  return runs;
}

#endif

/// Writes runs piece by piece, in the types that the file has.
/// @param tensors  say which part of them this rank has
/// @param types    of each tensor
inline void write_runs(AnySpace const& space,
                       std::vector<ArrayRun> const& runs,
                       std::vector<SavedTensor> const& tensors,
                       std::vector<ModelEntries::EntryPosition> const& places,
                       std::vector<DType> const& types,
                       Overflow overflow,
                       ModelWriter& writer,
                       LongWork& work) {
  constexpr std::uint64_t elements = std::uint64_t{1} << 18;
  std::vector<std::byte> fetched;
  std::vector<std::byte> converted;
  for (ArrayRun const& run : runs) {
    DType const dtype = types[run.tensor];
    std::size_t const width = size_of(dtype);
    SavedTensor const& tensor = tensors[run.tensor];
    ModelEntries::EntryPosition const& place = places[run.tensor];
    Narrowed const narrowed{overflow, tensor.name};
    for (std::uint64_t done = 0; done < run.count; work.alive()) {
      auto const count = static_cast<std::size_t>((std::min)(run.count - done, elements));
      auto const fetch = [&](HeldValues const& from, std::vector<std::byte>& copy) {
        copy.resize(count * size_of(from.array.dtype));
        read_values(space, from.from(done), count, copy.data());
        return Array{copy.data(), from.array.dtype};
      };
      bool const rounded = run.masters.array.first != nullptr;
      bool const direct = space.host_accessible() && run.values.plain() && !rounded;
      Array const here = direct ? run.values.array.from(done) : fetch(run.values, fetched);
      std::byte const* from = here.first;
      // What a master became is what the file has, but for an infinity that it never was.
      Array const masters = rounded ? fetch(run.masters, converted) : Array();
      for (std::size_t i = 0; rounded; ++i) {
        i += kernel::first_overflow(
            dtype, masters.dtype, masters.at(i), count - i, Overflow::refuse);
        if (i >= count) break;
        double value = 0.;
        kernel::convert_on_host(DType::f64, &value, dtype, here.at(i), 1);
        if (is_finite(value)) continue;
        narrowed.fit(dtype, masters.from(i), 1, run.first + done + i);
        kernel::convert_on_host(dtype, here.at(i), masters.dtype, masters.at(i), 1);
      }
      if (run.dtype() != dtype) {
        converted.resize(count * width);
        kernel::convert_on_host(dtype, converted.data(), run.dtype(), from, count);
        from = converted.data();
      }
      auto const write = [&](std::uint64_t first, std::uint64_t there) {
        std::size_t const bytes = static_cast<std::size_t>(there) * width;
        writer.write(place.entry, (place.first + first) * width, from, bytes);
        from += bytes;
      };
      for_each_run(tensor.shape, tensor.boxes, run.first + done, count, write);
      done += count;
    }
  }
}

/// `export_model` of any optimizer.
ZERO_OPTIONAL_APART ExportReport export_engine(Engine& engine,
                                               std::string const& path,
                                               ExportOptions const& options,
                                               FileOperations& files);

#if ZERO_OPTIONAL_BODIES

ZERO_OPTIONAL_BODY ExportReport export_engine(Engine& engine,
                                              std::string const& path,
                                              ExportOptions const& options,
                                              FileOperations& files) {
  constexpr std::string_view operation = "export_model";
  Parts& parts = engine.parts();
  parts.require_bound();
  engine.settle();
  RankWords const control(parts.groups.world(), parts.arena);
  std::vector<DType> const types = export_types(parts, options.dtype);

  ModelLayout layout;
  std::vector<SavedTensor> tensors;
  std::vector<ModelEntries::EntryPosition> places;
  together(control, operation, [&] {
    engine.require_values();
    tensors = described(parts, options.parts, engine.counters(), parts.divided());
    ModelEntries model =
        model_entries(tensors, types, options, "the model", ErrorKind::invalid_argument);
    places = std::move(model.places);
    layout = lay_out_model(path, std::move(model.entries), model.metadata, options.max_file_bytes);
  });
  Hash hash;
  for (ModelLayout::OutputFile const& file : layout.files) {
    hash.add(file.path);
    hash.add(file.header);
  }
  if (!control.unanimous(hash.value())) {
    fail(ErrorKind::invalid_argument,
         {"ranks export to different paths or with different options; here to '", path, "'"},
         {.rank = control.rank(), .operation = std::string(operation)});
  }

  bool const leads = control.rank() == 0;
  try {
    together(control, operation, [&] {
      if (leads) begin_model(files, layout);
    });
    LongWork work(control, operation);
    work.run([&] {
      auto runs = export_runs(parts, options);
      std::sort(runs.begin(), runs.end(), [&](ArrayRun const& a, ArrayRun const& b) {
        return a.tensor != b.tensor ? a.tensor < b.tensor : a.first < b.first;
      });
      ModelWriter writer(files, layout);
      write_runs(parts.space(), runs, tensors, places, types, options.overflow, writer, work);
      writer.end();
    });
  } catch (...) {
    if (leads) abandon_model(files, layout);
    throw;
  }
  together(control, operation, [&] {
    if (leads) commit_model(files, layout);
  });
  return {layout.begin(), layout.bytes};
}

#endif

}  // namespace detail

/// Writes the whole model, or with `.frozen = false` what of it is trained, with the names and
/// shapes that were described, as a safetensors file, or as several with an index. Ranks write what
/// they own, each element by one of them, into files that all of them see; no tensor travels. A
/// tied tensor appears once, with its other names in the header's metadata. Files get their names
/// when all is durable: a failure, or a machine that dies, leaves the old model of that name, the
/// new one or none, never a part of one.
/// @param optimizer  its parameters have values
/// @param path       of the file; of several, `model.safetensors` becomes
///   `model-00001-of-00003.safetensors` and so on, with `model.safetensors.index.json`. The
///   directory is there, on a file system that all ranks share
/// @param options    the same on every rank, but for `parts`
/// @param files      the operations on files
/// @par Collective  yes, over a grid too; blocks. However long a rank writes, no deadline ends it
/// @par Cost        the model's bytes once over all ranks, and a look at the masters that
///   parameters are rounded from; control words; at most three transient megabytes of the host
///   beside the plan
/// @throws Error of the first rank that failed, on every rank: (resource) for what could not be
///   written; (invalid_argument) for parameters without values, parts that do not fit, names that a
///   file cannot hold, a parameter that is infinite though its master is not, unless the options
///   say `saturate`, or ranks that were told different things
template <class... Policies>
ExportReport export_model(ShardedOptimizer<Policies...>& optimizer,
                          std::string const& path,
                          ExportOptions const& options = {},
                          FileOperations& files = disk()) {
  return detail::export_engine(detail::EngineAccess::engine(optimizer), path, options, files);
}

}  // namespace zero::inline ZERO_NAMESPACE
