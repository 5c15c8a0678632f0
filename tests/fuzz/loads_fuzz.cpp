/// Checkpoints and model files that were changed, with checksums that fit: a load either changes
/// nothing, or has replaced all that it says, or leaves an optimizer that refuses to step; and
/// nothing outside the directory is touched. The first byte says which of the two is read.
#include "fuzz/input.hpp"
#include "fuzz/optimizers.hpp"
#include "zero/c/checkpoint.hpp"
#include "zero/c/define.hpp"
#include "zero/checkpoint.hpp"
#include "zero/checkpoint/import.hpp"
#include "zero/checkpoint/offline.hpp"
#include "zero/zero.hpp"

#include <sys/stat.h>

#include <memory>
#include <optional>

ZERO_C_DEFINE(zero::stage::Pos, zero::Mixed<zero::fp16>, zero::AdamW, zero::c::Checkpoints)

namespace {

namespace fs = std::filesystem;
using namespace fuzz;
using zero::ErrorKind;

/// Is a tensor among those that a report names, with a reason or without?
bool named(std::vector<std::string> const& texts, std::string const& tensor) {
  std::string const name = tensor == "head" ? "w" : tensor;
  return std::ranges::any_of(texts, [&](std::string const& text) {
    return text == name || text.starts_with(name + " ") || text.find("'" + name + "'") == 0;
  });
}

/// What all elements of file number `i` are: the same bits in fp16 and bf16, so that what is read
/// is known wherever a changed header says that it lies.
constexpr float values_of_files[] = {2.f, -2.f, 0.f};

/// Writes a model with an index or without, changed.
/// @returns whether tensors that are tied here differ in it
bool write_model(Input& input, Group const& group, std::size_t number, std::string const& to) {
  zero::safetensors::Header header;
  std::string data;
  bool differs = false;
  json index{{"weight_map", json::object()}};
  char const* const dtypes[] = {"F32", "F16", "BF16"};
  std::string const dtype = dtypes[input.below(3)];
  for (zero::Tensor const& tensor : model(group)) {
    std::size_t const how = input.below(8);
    if (how == 1) continue;
    bool const tied = !tensor.tied_to.empty();
    if (tied && how > 4) {
      header.metadata[tensor.name] = tensor.tied_to;
      continue;
    }
    header.entries.push_back({tensor.name, dtype, {tensor.shape.begin(), tensor.shape.end()}});
    index["weight_map"][tensor.name] = "a.safetensors";
    differs = differs || (tied && how == 2);
    float const value = values_of_files[(number + (tied && how == 2 ? 1 : 0)) % 3];
    std::size_t const width = dtype == "F32" ? 4 : 2;
    for (std::size_t i = zero::element_count(tensor); i > 0; --i)
      data.append(reinterpret_cast<char const*>(&value) + 4 - width, width);
  }
  json const sound = json::parse(zero::safetensors::format(header).substr(8));
  std::string const text = changed_text(sound, input);
  if (input.below(16) == 1) data.resize(input.below(data.size() + 9));
  fs::create_directory(to);
  spill(to + "/a.safetensors", framed(text) + data);
  if (input.below(4) == 1)
    spill(to + "/a.safetensors.index.json", changed_text(std::move(index), input));
  return differs;
}

bool too_large(std::string const& why) {
  return why.find("which would become infinite") != why.npos;
}
/// What a load of changed data may say, or "": an argument is wrong only where a value is too
/// large.
template <class Load>
std::string refusal(Load const& load) {
  std::string why =
      failure({ErrorKind::data, ErrorKind::resource, ErrorKind::invalid_argument}, load);
  require(why.find("invalid argument") == why.npos || too_large(why), "a finding: " + why);
  return why;
}

/// Imports up to three times, then takes a step: none, unless all is what was read.
void load_model_file(Input& input) {
  std::size_t const chosen = chosen_group(input);
  Group const group = groups[groups[chosen].grid ? 1 : chosen];
  bool const stage = input.flag();
  std::vector<zero::ImportOptions> imports(1 + input.below(3));
  std::vector<bool> differs;
  Place const place("");
  for (std::size_t i = 0; i < imports.size(); ++i) {
    imports[i].strict = input.flag();
    differs.push_back(write_model(input, group, i, place.path + "/" + std::to_string(i)));
  }
  with_ranks(stage, group, [&](auto& optimizer, int /*rank*/, std::uint64_t row) {
    std::vector<Piece> expected = held(optimizer, row);
    bool failed = false;
    for (std::size_t n = 0; n < imports.size(); ++n) {
      zero::ImportReport report;
      std::string const path = place.path + "/" + std::to_string(n);
      std::string const why =
          refusal([&] { report = zero::load_parameters_from(optimizer, path, imports[n]); });
      failed = failed || !why.empty();
      if (!why.empty()) continue;
      std::vector<Piece> const now = differs[n] ? held(optimizer, row) : expected;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        Piece& piece = expected[i];
        // Which of the two is read, a changed header says.
        if (differs[n] && (piece.tensor == "w" || piece.tensor == "head")) {
          piece = now[i];
        } else if (piece.array <= 0 && !named(report.missing, piece.tensor) &&
                   !named(report.misfits, piece.tensor)) {
          for (std::size_t e = 0; e < piece.bits.size(); ++e) piece.set(e, values_of_files[n]);
        }
      }
    }
    bool const right = held(optimizer, row) == expected;
    bool const stepped = steps(optimizer);
    require(stepped || failed, "all was imported, and no step is possible");
    require(!stepped || right, "a step is taken from values that were not imported");
  });
}

/// The disk, without waiting for it.
struct QuickFiles : zero::DiskFiles {
  zero::FileAnswer sync(zero::FileAnswer /*file*/) override { return 0; }
  zero::FileAnswer sync_directory(std::string const& /*path*/) override { return 0; }
};
QuickFiles quick;
using zero::Checkpoints;

/// A checkpoint in its parts.
struct Saved {
  struct File {
    std::string name{};
    json header{};
    json about{};
    std::string data{};
  };
  json manifest{};
  std::vector<File> files{};
};

constexpr char const* first_name = "/000001-step-2";

/// A sound checkpoint of a group, made once.
Saved const& sound(std::size_t group) {
  static Saved all[std::size(groups)];
  Saved& saved = all[group];
  if (!saved.files.empty()) return saved;
  Place const place("-sound");
  with_ranks(true, groups[group], [&](auto& optimizer, int /*rank*/, std::uint64_t row) {
    require(steps(optimizer) && steps(optimizer), "no step is possible");
    std::byte const blob[5]{};
    Checkpoints(place.path, {}, quick)
        .save(optimizer, {.rank_blob = blob, .parts = parts(groups[group], row)});
  });
  std::string const path = place.path + first_name + "/";
  saved.manifest = json::parse(slurp(path + "manifest.json"))["checkpoint"];
  for (json const& each : saved.manifest["files"]) {
    std::string const bytes = slurp(path + each["name"].get<std::string>());
    std::size_t const header = each["header_bytes"];
    Saved::File& file = saved.files.emplace_back();
    file.name = each["name"];
    file.header = json::parse(bytes.substr(8, header - 8));
    file.about = json::parse(file.header["__metadata__"]["zero"].get<std::string>());
    file.data = bytes.substr(header);
  }
  return saved;
}

/// Writes it with checksums that fit, and changes its manifest.
/// @param damaged  whether one bit of each file changes after that
void write(Saved saved, std::string const& directory, bool damaged, Input& input) {
  for (std::size_t i = 0; i < saved.files.size(); ++i) {
    auto& [name, header, about, data] = saved.files[i];
    std::uint64_t piece = 0;
    if (about.is_object() && about["piece_bytes"].is_number_integer())
      piece = about["piece_bytes"].get<std::uint64_t>();
    if (header.is_object() && header["__metadata__"].is_object()) {
      header["__metadata__"]["zero"] = text_of(about);
      std::string sums;
      for (std::size_t at = 0; piece > data.size() / 1000 && at < data.size(); at += piece) {
        std::size_t const size = std::min<std::size_t>(piece, data.size() - at);
        sums += zero::checksum_text(zero::checksum(data.data() + at, size));
      }
      if (!sums.empty()) header["__metadata__"]["zero.checksums"] = sums;
    }
    if (damaged && !data.empty()) data[input.below(data.size())] ^= 1;
    std::string const text = framed(text_of(header));
    json& listed = saved.manifest["files"][i];
    listed["header_bytes"] = text.size();
    listed["header_xxh3"] = zero::checksum_text(zero::checksum(text.data(), text.size()));
    listed["bytes"] = text.size() + data.size();
    spill(directory + "/" + name, text + data);
  }
  for (std::size_t times = input.below(3); times > 0; --times) change(saved.manifest, input);
  spill(directory + "/manifest.json", sealed(text_of(saved.manifest)));
}

/// Puts something into the run's directory that may look like a checkpoint.
/// @returns whether it is a lock that cannot be taken, or the largest number, which refuse a save
bool put_beside(std::string const& run, std::string const& outside, Input& input) {
  char const* const numbers[] = {"1", "2", "000000", "18446744073709551615", "9223372036854775807"};
  char const* const ends[] = {"0", "3", "notes", "-1"};
  std::size_t const number = input.below(5);
  std::string path = run + "/" + numbers[number] + "-step-" + ends[input.below(4)];
  bool const lock = input.below(16) == 1;
  if (lock) path = run + "/lock";
  std::size_t const what = input.below(8);
  std::error_code none;
  if (what == 0) spill(path, "");
  if (what == 1) fs::create_directory_symlink(outside + first_name, path, none);
  if (what == 2) fs::create_symlink(outside + "/new", path, none);
  if (what == 3) fs::copy(run + first_name, path, fs::copy_options::recursive, none);
  if (what >= 4) fs::create_directory(path, none);
  if (what == 5) static_cast<void>(::mkfifo((path + "/manifest.json").c_str(), 0666));
  if (what == 6) fs::create_symlink(outside + "/new", path + "/rank-00000.safetensors", none);
  if (what == 7) fs::create_directories(path + "/rank-00000/x", none);
  return lock ? what > 0 : number > 2;
}

/// All names and bytes in a directory.
std::string contents(std::string const& directory) {
  std::string all;
  for (auto const& entry : fs::recursive_directory_iterator(directory)) {
    all += entry.path().string() + "\n";
    if (entry.is_regular_file()) all += slurp(entry.path().string());
  }
  return all;
}

/// Sets a piece to what a checkpoint has for it, read without an optimizer.
void read_piece(zero::Catalog const& catalog, zero::LoadReport const& report, Piece& piece) {
  // Here "head" lies where "w" does: both have what was saved of the first of them that fits.
  bool const tied = piece.tensor == "head" || piece.tensor == "w";
  bool const fits = catalog.tensors.count("w") != 0 &&
                    std::ranges::none_of(report.unfit, [](std::string const& text) {
                      return text.starts_with("'w' has shape") ||
                             text.starts_with("'w' does not have all elements of 'master'") ||
                             text.starts_with("'w' does not have all elements of 'parameter'");
                    });
  zero::CatalogTensor const* tensor = &catalog.tensors.at(!tied  ? piece.tensor
                                                          : fits ? "w"
                                                                 : "head");
  while (!tensor->about.tied_to.empty())
    tensor = &catalog.tensors.at(std::string(tensor->about.tied_to));
  char const* const arrays[] = {"master", "exp_avg", "exp_avg_sq"};
  char const* const array = tensor->about.frozen ? "parameter" : arrays[std::max(piece.array, 0)];
  std::vector<float> values(piece.bits.size());
  zero::CheckpointReader(quick, catalog)
      .read(tensor->arrays.at(array),
            piece.first,
            values.size(),
            zero::DType::f32,
            reinterpret_cast<std::byte*>(values.data()));
  for (std::size_t i = 0; i < values.size(); ++i) piece.set(i, values[i]);
}

/// A load through the C interface: what it leaves on rank 0.
struct LoadInC {
  std::vector<zero::Tensor> tensors;
  std::string run;
  bool loaded = false;
  std::vector<Piece> parameters{};

  static std::int32_t on_rank(zero_comm* comm, void* user) {
    auto& self = *static_cast<LoadInC*>(user);
    std::vector<zero_tensor> tensors;
    for (zero::Tensor const& tensor : self.tensors) {
      std::vector<std::int64_t> const shape(tensor.shape.begin(), tensor.shape.end());
      tensors.push_back(zero_tensor_of(
          tensor.name.c_str(), tensor.unit, static_cast<int>(shape.size()), shape.data()));
      if (!tensor.tied_to.empty()) tensors.back().tied_to = tensor.tied_to.c_str();
      tensors.back().flags = tensor.frozen ? ZERO_FROZEN : 0;
    }
    auto const count = static_cast<std::int32_t>(tensors.size());
    zero_options const options = zero_options_of(ZERO_POS, ZERO_FP16, ZERO_ADAMW);
    zero_optimizer* optimizer = nullptr;
    zero_checkpoints* run = nullptr;
    std::vector<void const*> values(tensors.size());
    bool const made = zero_create(comm, &options, tensors.data(), count, &optimizer) == ZERO_OK &&
                      zero_checkpoints_open(comm, self.run.c_str(), 0, &run) == ZERO_OK;
    std::int64_t step = -1;
    std::int32_t const code = made ? zero_checkpoint_load(run, optimizer, &step) : ZERO_UNKNOWN;
    bool const refused = code == ZERO_DATA || code == ZERO_RESOURCE ||
                         (code == ZERO_INVALID_ARGUMENT && too_large(zero_message(comm)));
    require(code == ZERO_OK || refused, zero_message(comm));
    if (code != ZERO_OK || step < 0) return ZERO_OK;
    require(zero_full_parameters(optimizer, values.data(), count) == ZERO_OK, zero_message(comm));
    if (zero_comm_rank(comm) > 0) return ZERO_OK;
    self.loaded = true;
    for (std::size_t t = 0; t < values.size(); ++t) {
      Piece& piece =
          self.parameters.emplace_back(self.tensors[t].name, -1, 0, element_count(self.tensors[t]));
      for (std::size_t i = 0; i < piece.bits.size(); ++i)
        piece.set(i, static_cast<float>(static_cast<zero::fp16 const*>(values[t])[i]));
    }
    return ZERO_OK;
  }
};

/// Looks at a changed checkpoint, loads it, takes a step, and now and then saves.
void load_checkpoint(Input& input) {
  std::size_t const chosen = chosen_group(input);
  Group const group = groups[chosen];
  bool const stage = input.flag();
  Saved saved = sound(group.large ? chosen : input.below(4));
  std::uint64_t const bits = input.number(2);
  auto const is = [&](std::uint64_t mask) { return (bits & mask) == mask; };
  zero::LoadOptions const options{
      .strict = !is(1), .parameters_only = is(6), .verify_first = is(24)};
  bool const crowded = is(0xe0);
  bool const saves = crowded || is(0x700);
  for (std::size_t times = input.below(4); times > 0; --times) {
    Saved::File& file = saved.files[input.below(saved.files.size())];
    std::size_t const what = input.below(4);
    if (what == 0) file.data[input.below(file.data.size())] = static_cast<char>(input.number(1));
    if (what > 0) change(what == 1 ? file.header : file.about, input);
  }
  Place const place("");
  std::string const run = place.path + "/run";
  std::string const outside = place.path + "/outside";
  std::string const path = run + first_name;
  fs::create_directories(path);
  fs::create_directory(outside);
  write(std::move(saved), path, is(0x7800), input);
  bool refuses = false;
  if (crowded) {
    fs::copy(path, outside + first_name);
    for (std::size_t i = 1 + input.below(2); i > 0; --i)
      refuses = put_beside(run, outside, input) || refuses;
  }
  std::string const before = contents(outside);

  bool clean = false;
  if (crowded || is(0x8000)) {
    clean = zero::verify_checkpoint(path, quick).empty();
    failure({ErrorKind::data}, [&] { static_cast<void>(Checkpoints(run, {}, quick).latest()); });
  }
  LoadInC in_c{model(group), run};
  bool const also_in_c = options.strict && !options.parameters_only && !crowded && !group.grid;
  if (also_in_c) {
    char why[500] = "";
    int const code = zero_run_ranks(group.ranks, LoadInC::on_rank, &in_c, why, sizeof(why));
    require(code == ZERO_OK, why);
  }
  with_ranks(stage, group, [&](auto& optimizer, int rank, std::uint64_t row) {
    zero::LoadOptions own = options;
    own.parts = parts(group, row);
    std::vector<Piece> expected = held(optimizer, row);
    long const step = optimizer.counters().step;
    Checkpoints checkpoints(run, {.keep = 1}, quick);
    zero::LoadReport report;
    std::string const why =
        refusal([&] { report = checkpoints.load(optimizer, {.path = path}, own); });
    zero::Catalog catalog;
    if (why.empty()) catalog = zero::read_catalog(quick, path);
    for (Piece& piece : expected) {
      if (!why.empty()) break;
      zero::TakenTensor const& taken =
          *std::ranges::find(report.taken, piece.tensor, &zero::TakenTensor::tensor);
      if (piece.array > 0 ? taken.states : taken.values) {
        read_piece(catalog, report, piece);
      } else if (piece.array > 0 && !options.parameters_only) {
        for (std::size_t e = 0; e < piece.bits.size(); ++e) piece.set(e, 0.f);
      }
    }
    bool const loads = why.empty() && !options.parameters_only;
    std::vector<Piece> now = held(optimizer, row);
    bool const exact = now == expected && optimizer.counters().step == (loads ? report.step : step);
    require(exact || !why.empty(), "what was loaded is not what the checkpoint says");
    if (also_in_c && rank == 0) {
      std::erase_if(now, [](Piece const& piece) { return piece.array >= 0; });
      require(in_c.loaded == why.empty(), "C comes to another end: " + why);
      require(!in_c.loaded || in_c.parameters == now, "C has loaded something else");
    }
    bool const stepped = steps(optimizer);
    require(exact || !stepped, "a step is taken from values of which some were lost");
    require(
        (exact && stepped) || !(why.empty() || (clean && !too_large(why)) || options.verify_first),
        "something is lost without damage in the data: " + why);
    if (!saves) return;
    std::string const unsaved =
        failure({ErrorKind::invalid_argument, ErrorKind::data, ErrorKind::resource}, [&] {
          std::string const made = checkpoints.save(optimizer, {.parts = own.parts}).path;
          auto const list = checkpoints.list();
          require(rank != 0 || (!list.empty() && list.back().path == made), "a save is lost");
        });
    require(refuses || !stepped || unsaved.empty(), "no save is possible: " + unsaved);
  });
  require(contents(outside) == before, "something outside was changed");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  Input input(data, size);
  input.flag() ? load_model_file(input) : load_checkpoint(input);
  return 0;
}
