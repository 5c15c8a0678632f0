/// @file
/// An optimizer's parameters as a model file that other tools read.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/base/hash.hpp"
#include "zero/checkpoint/array_runs.hpp"
#include "zero/checkpoint/boxes.hpp"
#include "zero/checkpoint/description.hpp"
#include "zero/checkpoint/files.hpp"
#include "zero/checkpoint/long_work.hpp"
#include "zero/checkpoint/model_layout.hpp"
#include "zero/checkpoint/safetensors.hpp"
#include "zero/checkpoint/together.hpp"
#include "zero/optimizer/engine_access.hpp"
#include "zero/optimizer/setup/rank_agreement.hpp"
#include "zero/sharded_optimizer.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// Which of an optimizer's two copies of the weights a model file has.
enum class ExportDType : std::uint8_t {
  parameter,  ///< what forward and backward read: fp16 or bf16 in mixed precision
  master,     ///< what the update works on; frozen tensors are widened to its type
};

/// How a model is written.
struct ExportOptions {
  ExportDType dtype = ExportDType::parameter;  ///< type of all tensors
  /// Bytes of tensors in one file; more go into several, with an index. A tensor is never divided.
  std::uint64_t max_file_bytes = 5'000'000'000;
  /// Texts for the header. "format" is "pt" unless it is given: other tools ask for it.
  std::map<std::string, std::string> metadata{};
  /// Which tensors of the optimizer are parts of larger ones. A checkpoint knows that of its own.
  std::vector<TensorPart> parts{};
};

/// What was written.
struct ExportReport {
  std::string path{};       ///< what to give to a reader: the file, or the index of several
  std::uint64_t bytes = 0;  ///< of all files together
};

namespace detail {

/// Where a tensor of a unit lies in a model file: a stacked one is there as it was described.
struct ModelPlace {
  std::size_t entry = 0;
  std::uint64_t first = 0;  ///< elements before it
};

/// The model's entries for a file: every described tensor that has memory of its own.
/// @param saved    says which part of them this rank has
/// @param place    receives for each of the model's tensors where it is; nothing for tied ones
/// @throws Error (invalid_argument) if layers of a stacked tensor are parts of different shapes
[[nodiscard]] inline std::vector<safetensors::Entry> model_entries(
    Model const& model,
    std::vector<SavedTensor> const& saved,
    DType dtype,
    std::vector<ModelPlace>& place) {
  std::vector<safetensors::Entry> entries;
  place.resize(saved.size());
  for (std::size_t d = 0; d < model.described.size(); ++d) {
    auto const [begin, end] = model.slices_of(d);
    if (model.partition.place(begin).storage != begin) continue;
    Tensor const& tensor = model.described[d];
    safetensors::Entry entry{.name = tensor.name,
                             .dtype = std::string(safetensors::spelled(dtype)),
                             .shape = saved[begin].shape};
    for (std::size_t t = begin; t < end; ++t) {
      place[t] = {entries.size(), (t - begin) * volume(saved[begin].shape)};
      if (saved[t].shape == saved[begin].shape) continue;
      fail(ErrorKind::invalid_argument,
           {"layers of '", tensor.name, "' are parts of tensors of different shapes"});
    }
    if (tensor.stacked) entry.shape.insert(entry.shape.begin(), end - begin);
    entries.push_back(std::move(entry));
  }
  return entries;
}

/// What a header says beside the tensors: the trainer's texts, and for each tied tensor under which
/// name its elements are, as the format's own Python package does.
[[nodiscard]] inline std::map<std::string, std::string> model_metadata(
    Model const& model, std::map<std::string, std::string> metadata) {
  metadata.try_emplace("format", "pt");
  for (std::size_t d = 0; d < model.described.size(); ++d) {
    std::size_t const t = model.slices_of(d).first;
    std::size_t const storage = model.partition.place(t).storage;
    if (storage == t) continue;
    std::string const& name = model.described[d].name;
    std::string const& target = model.described[model.slices[storage].described].name;
    if (metadata.try_emplace(name, target).second) continue;
    fail(ErrorKind::invalid_argument,
         {"metadata '", name, "' are those of the tied tensor of that name"});
  }
  return metadata;
}

/// The runs of the model that this rank is to write: each element is one rank's.
ZERO_OPTIONAL_APART [[nodiscard]] std::vector<ArrayRun> export_runs(Parts& parts,
                                                                    ExportDType dtype);

#if ZERO_OPTIONAL_BODIES

ZERO_OPTIONAL_BODY std::vector<ArrayRun> export_runs(Parts& parts, ExportDType dtype) {
  // Without masters of another type the parameters are what is updated.
  bool const masters = dtype == ExportDType::master || !parts.policies.types.has_master();
  std::vector<ArrayRun> runs = array_runs(parts, true);
  std::erase_if(runs, [&](ArrayRun const& run) {
    return run.array != parameter_array && !(masters && run.array == master_array);
  });
  if (masters) return runs;
  int const rank = parts.comm().rank();
  parts.partition.for_each_bucket([&](BucketSpan const& bucket) {
    parts.partition.for_each_segment(
        bucket.share(rank), parts.parameters.held(bucket, rank), [&](Segment const& piece) {
          if (!parts.counts(piece.tensor)) return;
          append_run(runs,
                     {.tensor = piece.tensor,
                      .array = parameter_array,
                      .first = piece.in_tensor.offset(),
                      .count = piece.count,
                      .dtype = parts.policies.types.parameter,
                      .memory = parts.parameters.segment(bucket, piece)});
        });
  });
  return runs;
}

#endif

/// Elements as another type has them.
[[nodiscard]] inline float widened(std::byte const* from, DType dtype, std::size_t i) {
  auto const as = [&]<class T>(T) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    return static_cast<float>(value);
  };
  switch (dtype) {
    case DType::bf16: return as(bf16());
    case DType::f16: return as(fp16());
    case DType::f64: return as(double());
    default: return as(float());
  }
}

/// Writes runs piece by piece, on the host in the type that the file has.
/// @tparam T      the file's type
/// @param whole   tensors, and which part of them this rank has
/// @param alive   called between pieces
template <class T, class Writer, class Alive>
void write_runs(Parts const& parts,
                std::vector<ArrayRun> const& runs,
                std::vector<SavedTensor> const& whole,
                std::vector<ModelPlace> const& places,
                Writer& writer,
                Alive const& alive) {
  constexpr std::uint64_t elements = std::uint64_t{1} << 18;
  std::vector<std::byte> fetched;
  std::vector<T> converted;
  for (ArrayRun const& run : runs) {
    SavedTensor const& tensor = whole[run.tensor];
    ModelPlace const& place = places[run.tensor];
    for (std::uint64_t done = 0; done < run.count;) {
      auto const count = static_cast<std::size_t>((std::min)(run.count - done, elements));
      std::size_t const bytes = count * size_of(run.dtype);
      std::byte const* from = run.memory + done * size_of(run.dtype);
      if (!parts.space().host_accessible()) {
        fetched.resize(bytes);
        parts.space().download(fetched.data(), from, bytes);
        from = fetched.data();
      }
      if (run.dtype != dtype_of<T>) {
        converted.resize(count);
        for (std::size_t i = 0; i < count; ++i) {
          converted[i] = static_cast<T>(widened(from, run.dtype, i));
        }
        from = reinterpret_cast<std::byte const*>(converted.data());
      }
      for_each_run(tensor.shape,
                   tensor.boxes,
                   run.first + done,
                   count,
                   [&](std::uint64_t first, std::uint64_t elements_there) {
                     auto const length = static_cast<std::size_t>(elements_there) * sizeof(T);
                     writer.write(place.entry, (place.first + first) * sizeof(T), from, length);
                     from += length;
                   });
      done += count;
      alive();
    }
  }
}

}  // namespace detail

/// Writes the whole model, with the names and shapes that were described, as a safetensors file, or
/// as several with an index. Ranks write what they own, each element by one of them, into files
/// that all of them see; no tensor travels. A tied tensor appears once, with its other names in the
/// header's metadata. Files get their names when all is durable: a failure, or a machine that dies,
/// leaves the old model of that name, the new one or none, never a part of one.
/// @param optimizer  its parameters have values
/// @param path       of the file; of several, `model.safetensors` becomes
///   `model-00001-of-00003.safetensors` and so on, with `model.safetensors.index.json`. The
///   directory is there, on a file system that all ranks share
/// @param options    the same on every rank, but for `parts`
/// @param files      the operations on files
/// @par Collective  yes, over a grid too; blocks. However long a rank writes, no deadline ends it
/// @par Cost        the model's bytes once over all ranks; control words; at most two transient
///   megabytes of the host beside the plan
/// @throws Error of the first rank that failed, on every rank: (resource) for what could not be
///   written; (invalid_argument) for parameters without values, parts that do not fit, names that a
///   file cannot hold, or ranks that were told different things
template <class... Policies>
ExportReport export_model(ShardedOptimizer<Policies...>& optimizer,
                          std::string const& path,
                          ExportOptions const& options = {},
                          FileOperations& files = disk()) {
  using Optimizer = ShardedOptimizer<Policies...>;
  constexpr std::string_view operation = "export_model";
  detail::Engine& engine = detail::EngineAccess::engine(optimizer);
  detail::Parts& parts = engine.parts();
  parts.require_bound();
  optimizer.settle();
  detail::ControlWords const control =
      detail::control_words(parts.groups.world().ref(), parts.arena);
  bool const masters = options.dtype == ExportDType::master;
  DType const dtype = masters ? parts.policies.types.master : parts.policies.types.parameter;

  detail::ModelLayout layout;
  std::vector<SavedTensor> whole;
  std::vector<detail::ModelPlace> places;
  detail::together(control, operation, [&] {
    engine.require_values();
    whole = detail::described(parts, options.parts, engine.counters(), parts.divided());
    auto entries = detail::model_entries(parts, whole, dtype, places);
    auto const metadata = detail::model_metadata(parts, options.metadata);
    layout = detail::lay_out_model(path, std::move(entries), metadata, options.max_file_bytes);
  });
  detail::Hash hash;
  for (detail::ModelLayout::Part const& part : layout.parts) {
    hash.add(part.path);
    hash.add(part.header);
  }
  if (!detail::unanimous(control, hash.value())) {
    fail(ErrorKind::invalid_argument,
         {"ranks export to different paths or with different options; here to '", path, "'"},
         {.rank = control.rank, .operation = std::string(operation)});
  }

  bool const leads = control.rank == 0;
  try {
    detail::together(control, operation, [&] {
      if (leads) detail::begin_model(files, layout);
    });
    detail::LongWork work(control, operation);
    work.run([&] {
      auto runs = detail::export_runs(parts, options.dtype);
      std::sort(
          runs.begin(), runs.end(), [&](detail::ArrayRun const& a, detail::ArrayRun const& b) {
            return a.tensor != b.tensor ? a.tensor < b.tensor : a.first < b.first;
          });
      detail::ModelWriter writer(files, layout);
      auto const alive = [&] { work.alive(); };
      if (masters) {
        detail::write_runs<typename Optimizer::Master>(parts, runs, whole, places, writer, alive);
      } else {
        detail::write_runs<typename Optimizer::Parameter>(
            parts, runs, whole, places, writer, alive);
      }
      writer.end();
    });
  } catch (...) {
    if (leads) detail::abandon_model(files, layout);
    throw;
  }
  detail::together(control, operation, [&] {
    if (leads) detail::commit_model(files, layout);
  });
  return {layout.begin(), layout.bytes};
}

}  // namespace zero::inline ZERO_NAMESPACE
