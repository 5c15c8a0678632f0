// Looks at checkpoints, compares them and hands their models on, without a trainer.
#include "printable.hpp"
#include <zero/checkpoint.hpp>
#include <zero/checkpoint/offline.hpp>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using nlohmann::json;

constexpr int exit_found = 1;  ///< damage, or a difference
constexpr int exit_trouble = 2;

/// Files may have been written by anybody: what is printed of them stays on its line.
void print(std::string const& text) { std::printf("%s\n", printable(text).c_str()); }
/// In ASCII; bytes that are no UTF-8, as a directory's name may have, become U+FFFD.
void print(json const& value) {
  std::printf("%s\n", value.dump(2, ' ', true, json::error_handler_t::replace).c_str());
}

std::string text_of(std::vector<std::uint64_t> const& shape) {
  std::string text;
  for (std::uint64_t const extent : shape)
    text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + "]";
}

/// A checkpoint, or the newest one of a directory that holds some.
/// @param passed_over  newer ones that are damaged are added; if null, they are named on stderr
std::string checkpoint_at(std::string const& path,
                          std::vector<std::string>* passed_over = nullptr) {
  zero::DiskFiles files;
  std::vector<std::string> names;
  if (files.list(path, names) < 0) {
    zero::fail(zero::ErrorKind::invalid_argument, {"there is no directory '", path, "'"});
  }
  if (std::find(names.begin(), names.end(), "manifest.json") != names.end()) return path;
  auto const newest = zero::Checkpoints(path).latest();
  if (!newest) {
    zero::fail(zero::ErrorKind::invalid_argument,
               {"'", path, "' has no manifest.json, and no complete checkpoint in it"});
  }
  for (std::string const& each : newest->skipped) {
    if (passed_over != nullptr) passed_over->push_back(each);
    if (passed_over == nullptr)
      std::fprintf(stderr, "%s\n", printable("passed over: " + each).c_str());
  }
  return newest->path;
}
zero::Catalog catalog_at(std::string const& path) {
  zero::DiskFiles files;
  return zero::read_catalog(files, checkpoint_at(path));
}

int list(std::string const& path, bool as_json) {
  std::vector<std::string> told_below;
  checkpoint_at(path, &told_below);
  zero::Checkpoints run(path);
  auto const newest = run.latest();
  json all = {{"checkpoints", json::array()}, {"damaged", json::array()}};
  for (zero::FoundCheckpoint const& found : run.list()) {
    // A newer one has damage that its manifest does not show.
    if (newest && found.number > newest->number) continue;
    all["checkpoints"].push_back(
        {{"path", found.path}, {"number", found.number}, {"step", found.step}});
    if (!as_json) print(found.path + "  step " + std::to_string(found.step));
  }
  for (std::string const& damaged : newest ? newest->skipped : std::vector<std::string>{}) {
    all["damaged"].push_back(damaged);
    if (!as_json) print("damaged: " + damaged);
  }
  if (as_json) print(all);
  return 0;
}

/// The ranges of an array by the rank whose file has them.
json runs_of(zero::Catalog const& catalog, zero::SavedArray const& array) {
  json runs = json::array();
  for (zero::SavedRun const& run : array.runs) {
    runs.push_back({{"rank", catalog.manifest.files[run.file].rank},
                    {"file", catalog.manifest.files[run.file].name},
                    {"first", run.first},
                    {"count", run.count}});
  }
  return runs;
}
std::string ranges(json const& runs) {
  constexpr std::size_t shown = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(runs.size(), shown); ++i) {
    auto const first = runs[i]["first"].get<std::uint64_t>();
    text += (i == 0 ? "" : ", ") + std::string("rank ") + runs[i]["rank"].dump() + ": " +
            std::to_string(first) + "-" +
            std::to_string(first + runs[i]["count"].get<std::uint64_t>() - 1);
  }
  return runs.size() <= shown ? text
                              : text + ", and " + std::to_string(runs.size() - shown) + " more";
}

int show(std::string const& path, bool as_json) {
  zero::Catalog const catalog = catalog_at(path);
  std::uint64_t bytes = 0;
  for (zero::SavedFile const& file : catalog.manifest.files) bytes += file.bytes;
  json all = {{"path", catalog.path},
              {"step", catalog.manifest.step},
              {"ranks", catalog.manifest.files.size() / catalog.manifest.optimizers().size()},
              {"bytes", bytes},
              {"user", catalog.manifest.user},
              {"optimizers", json::array()},
              {"tensors", json::array()}};
  for (zero::SavedOptimizer const& optimizer : catalog.optimizers) {
    json entry = {{"policies", optimizer.policies}, {"loss_scale", optimizer.loss_scale}};
    if (!optimizer.name.empty()) {
      entry["name"] = optimizer.name;
      entry["step"] = optimizer.step;
    }
    all["optimizers"].push_back(std::move(entry));
  }
  std::set<std::string> seen;
  for (zero::SavedOptimizer const& optimizer : catalog.optimizers) {
    for (zero::SavedTensor const& tensor : optimizer.tensors) {
      if (!seen.insert(tensor.name).second) continue;
      json entry = {{"name", tensor.name},
                    {"shape", tensor.shape},
                    {"unit", tensor.unit},
                    {"frozen", tensor.frozen},
                    {"left_out", tensor.left_out},
                    {"tied_to", tensor.tied_to},
                    {"steps", tensor.steps},
                    {"arrays", json::object()}};
      for (auto const& [name, array] : catalog.tensors.at(tensor.name).arrays) {
        entry["arrays"][name] = {{"dtype", std::string(zero::name(array.dtype))},
                                 {"runs", runs_of(catalog, array)}};
      }
      all["tensors"].push_back(std::move(entry));
    }
  }
  if (as_json) {
    print(all);
    return 0;
  }
  print(catalog.path + ": step " + std::to_string(catalog.manifest.step) + ", " +
        all["ranks"].dump() + (all["ranks"] == 1 ? " rank, " : " ranks, ") + std::to_string(bytes) +
        " bytes");
  if (!catalog.manifest.user.empty()) print("user: " + catalog.manifest.user.dump());
  for (json const& optimizer : all["optimizers"]) {
    if (optimizer.contains("name")) {
      print("optimizer: " + optimizer["name"].get<std::string>() + ", step " +
            optimizer["step"].dump());
    }
    for (auto const& [slot, policy] : optimizer["policies"].items()) {
      print(slot + ": " + (policy.is_string() ? policy.get<std::string>() : policy.dump()));
    }
    print("loss_scale: " + optimizer["loss_scale"].dump());
  }
  for (json const& tensor : all["tensors"]) {
    std::string const tied = tensor["tied_to"].get<std::string>();
    print(tensor["name"].get<std::string>() + " " +
          text_of(tensor["shape"].get<std::vector<std::uint64_t>>()) + " unit " +
          tensor["unit"].dump() + (tensor["frozen"] == true ? ", frozen" : "") +
          (tensor["left_out"] == true ? ", left out" : "") +
          (tied.empty() ? "" : ", tied to " + tied));
    for (auto const& [name, array] : tensor["arrays"].items()) {
      print("  " + name + " " + array["dtype"].get<std::string>() + "  " + ranges(array["runs"]));
    }
  }
  return 0;
}

int verify(std::string const& path, bool as_json) {
  std::vector<std::string> problems;
  std::string const at = checkpoint_at(path, &problems);
  for (std::string& problem : zero::verify_checkpoint(at)) problems.push_back(std::move(problem));
  if (as_json) {
    print(json{{"path", at}, {"sound", problems.empty()}, {"problems", problems}});
  } else {
    for (std::string const& problem : problems) print(problem);
    if (problems.empty()) print(at + " is as it was saved");
  }
  return problems.empty() ? 0 : exit_found;
}

/// How two arrays of the same shape differ, one of which at least is opaque.
json opaque_difference(zero::CheckpointReader& a,
                       zero::SavedArray const& of_a,
                       zero::CheckpointReader& b,
                       zero::SavedArray const& of_b,
                       std::uint64_t count) {
  bool const comparable = of_a.dtype == of_b.dtype;
  std::size_t const width = zero::size_of(of_a.dtype);
  std::vector<std::byte> left((std::size_t{1} << 16) * width);
  std::vector<std::byte> right(left.size());
  std::uint64_t differing = comparable ? 0 : count;
  for (std::uint64_t done = comparable ? 0 : count; done < count;) {
    std::uint64_t const here = std::min<std::uint64_t>(left.size() / width, count - done);
    a.read(of_a, done, here, of_a.dtype, left.data());
    b.read(of_b, done, here, of_b.dtype, right.data());
    for (std::size_t i = 0; i < here; ++i) {
      if (std::memcmp(&left[i * width], &right[i * width], width) != 0) ++differing;
    }
    done += here;
  }
  if (differing == 0) return nullptr;
  return {{"elements", count}, {"differing", differing}, {"largest", "opaque"}};
}

/// How two arrays of the same shape differ.
json difference(zero::CheckpointReader& a,
                zero::SavedArray const& of_a,
                zero::CheckpointReader& b,
                zero::SavedArray const& of_b,
                std::uint64_t count) {
  if (zero::is_integral(of_a.dtype) || zero::is_integral(of_b.dtype)) {
    return opaque_difference(a, of_a, b, of_b, count);
  }
  std::vector<double> left(std::size_t{1} << 16);
  std::vector<double> right(left.size());
  std::uint64_t differing = 0;
  double largest = 0.;
  bool comparable = true;
  for (std::uint64_t done = 0; done < count;) {
    std::uint64_t const here = std::min<std::uint64_t>(left.size(), count - done);
    a.read(of_a, done, here, zero::DType::f64, reinterpret_cast<std::byte*>(left.data()));
    b.read(of_b, done, here, zero::DType::f64, reinterpret_cast<std::byte*>(right.data()));
    for (std::size_t i = 0; i < here; ++i) {
      if (left[i] == right[i] || (std::isnan(left[i]) && std::isnan(right[i]))) continue;
      ++differing;
      double const distance = std::fabs(left[i] - right[i]);
      comparable = comparable && std::isfinite(distance);
      largest = std::max(largest, std::isfinite(distance) ? distance : 0.);
    }
    done += here;
  }
  if (differing == 0) return nullptr;
  return {{"elements", count},
          {"differing", differing},
          {"largest", comparable ? json(largest) : json("not finite")}};
}

int diff(std::string const& path_a, std::string const& path_b, bool as_json) {
  zero::Catalog const a = catalog_at(path_a);
  zero::Catalog const b = catalog_at(path_b);
  zero::DiskFiles files;
  zero::CheckpointReader reader_a(files, a);
  zero::CheckpointReader reader_b(files, b);
  json all = {{"a", a.path}, {"b", b.path}, {"differences", json::array()}};
  auto const add = [&](json entry) { all["differences"].push_back(std::move(entry)); };
  auto const only = [&](std::string const& where, std::string const& tensor, json const& array) {
    add({{"tensor", tensor}, {"array", array}, {"only", where}});
  };
  if (a.manifest.step != b.manifest.step) {
    add({{"step", {a.manifest.step, b.manifest.step}}});
  }
  std::set<std::string> names;
  for (auto const& [name, tensor] : a.tensors) names.insert(name);
  for (auto const& [name, tensor] : b.tensors) names.insert(name);
  for (std::string const& name : names) {
    auto const in_a = a.tensors.find(name);
    auto const in_b = b.tensors.find(name);
    if (in_a == a.tensors.end() || in_b == b.tensors.end()) {
      only(in_a == a.tensors.end() ? "b" : "a", name, nullptr);
      continue;
    }
    zero::CatalogTensor const& left = in_a->second;
    zero::CatalogTensor const& right = in_b->second;
    if (left.about.shape != right.about.shape) {
      add({{"tensor", name}, {"shape", {left.about.shape, right.about.shape}}});
      continue;
    }
    std::uint64_t count = 1;
    for (std::uint64_t const extent : left.about.shape) count *= extent;
    for (auto const& [array, saved] : left.arrays) {
      auto const other = right.arrays.find(array);
      if (other == right.arrays.end()) {
        only("a", name, array);
        continue;
      }
      json found = difference(reader_a, saved, reader_b, other->second, count);
      bool const types = saved.dtype != other->second.dtype;
      if (found.is_null() && !types) continue;
      if (found.is_null()) found = json::object();
      found["tensor"] = name;
      found["array"] = array;
      if (types) {
        found["dtype"] = {std::string(zero::name(saved.dtype)),
                          std::string(zero::name(other->second.dtype))};
      }
      add(std::move(found));
    }
    for (auto const& [array, saved] : right.arrays) {
      if (left.arrays.count(array) == 0) only("b", name, array);
    }
  }
  json const& found = all["differences"];
  if (as_json) {
    print(all);
  } else {
    for (json const& each : found) {
      std::string text = each.contains("tensor") ? each["tensor"].get<std::string>() : "";
      if (each.contains("array") && each["array"].is_string()) {
        text += (text.empty() ? "" : ", ") + each["array"].get<std::string>();
      }
      if (each.contains("only"))
        text += " is in " + (each["only"] == "a" ? a.path : b.path) + " alone";
      for (std::string const what : {"step", "shape", "dtype"}) {
        if (!each.contains(what)) continue;
        json const& of = each[what];
        text += (text.empty() ? "" : ", ") + what + " " + of[0].dump() + " and " + of[1].dump();
      }
      if (each.contains("differing")) {
        text += ": " + each["differing"].dump() + " of " + each["elements"].dump() +
                " differ, by at most " + each["largest"].dump();
      }
      print(text);
    }
    if (found.empty()) print(std::string("the same"));
  }
  return found.empty() ? 0 : exit_found;
}

int export_model(std::string const& path,
                 std::string const& out,
                 zero::ExportOptions const& options,
                 bool as_json) {
  zero::ExportReport const report = zero::export_checkpoint(checkpoint_at(path), out, options);
  if (as_json) {
    print(json{{"path", report.path}, {"bytes", report.bytes}});
  } else {
    print(report.path + "  " + std::to_string(report.bytes) + " bytes");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Looks at checkpoints, compares them, and hands their models on.\n"
      "A PATH is a checkpoint's directory, or one that holds some: then the newest is meant.\n"
      "Ends with 0; with 1 where verify finds damage or diff a difference; with 2 otherwise."};
  app.require_subcommand(1);
  app.set_version_flag("--version",
                       "zero-checkpoint " + std::to_string(zero::version.major) + "." +
                           std::to_string(zero::version.minor) + "." +
                           std::to_string(zero::version.patch));
  bool as_json = false;
  std::string path;
  std::string other;
  std::string dtype = "parameter";
  std::string overflow = "refuse";
  zero::ExportOptions options;
  auto const add = [&](char const* name, char const* what, char const* argument) {
    CLI::App* const command = app.add_subcommand(name, what);
    command->add_option(argument, path)->required();
    command->add_flag("--json", as_json, "Print JSON");
    return command;
  };
  CLI::App* const list_command =
      add("list", "Complete checkpoints of a directory, oldest first", "DIR");
  CLI::App* const show_command =
      add("show", "Step, policies, tensors, shapes, dtypes and ranges", "PATH");
  CLI::App* const verify_command = add("verify", "Read everything, and compare checksums", "PATH");
  CLI::App* const diff_command = add("diff", "Which tensors and arrays differ, by how much", "A");
  diff_command->add_option("B", other)->required();
  CLI::App* const export_command =
      add("export", "Write the model as safetensors: one file, or several with an index", "PATH");
  export_command->add_option("OUT", other, "The file, such as model.safetensors")->required();
  export_command->add_option("--dtype", dtype, "The parameters' type, or the masters'")
      ->check(CLI::IsMember({"parameter", "master"}))
      ->capture_default_str();
  export_command
      ->add_option("--overflow", overflow, "Of values that its type cannot hold: an error, or not")
      ->check(CLI::IsMember({"refuse", "saturate"}))
      ->capture_default_str();
  export_command->add_option("--optimizer", options.optimizer, "Which of several");
  export_command->add_flag(
      "!--without-frozen", options.frozen, "Trained tensors alone, such as adapters");
  export_command
      ->add_option("--max-file-bytes", options.max_file_bytes, "Bytes of tensors in one file")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (CLI::ParseError const& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::fprintf(stderr, "zero-checkpoint: %s\n", printable(error.what()).c_str());
    return exit_trouble;
  }
  if (dtype == "master") options.dtype = zero::ExportDType::master;
  if (overflow == "saturate") options.overflow = zero::Overflow::saturate;
  try {
    if (list_command->parsed()) return list(path, as_json);
    if (show_command->parsed()) return show(path, as_json);
    if (verify_command->parsed()) return verify(path, as_json);
    if (diff_command->parsed()) return diff(path, other, as_json);
    if (export_command->parsed()) return export_model(path, other, options, as_json);
  } catch (zero::Error const& error) {
    std::fprintf(stderr, "zero-checkpoint: %s\n", printable(error.message()).c_str());
  } catch (std::exception const& error) {
    std::fprintf(stderr, "zero-checkpoint: %s\n", printable(error.what()).c_str());
  }
  return exit_trouble;
}
