/// @file
/// Models from elsewhere, imported one after the other.
#pragma once

#include "fuzz/ranks.hpp"
#include "zero/checkpoint/import.hpp"

namespace fuzz {

/// What all elements of file number `i` are: the same bits in fp16 and bf16, so that what is read
/// is known wherever a changed header says that it lies.
inline constexpr float values_of_files[] = {2.f, -2.f, 0.f};

/// Writes a model with an index or without, changed.
/// @returns whether tensors that are tied here differ in it
inline bool write_model(Input& input,
                        Group const& group,
                        std::size_t number,
                        std::string const& to) {
  zero::safetensors::Header header;
  std::string data;
  bool differs = false;
  json index{{"weight_map", json::object()}};
  char const* const dtypes[] = {"F32", "F16", "BF16"};
  std::string const dtype = dtypes[input.below(3)];
  for (zero::Tensor const& tensor : model(group)) {
    if (input.below(8) == 1) continue;
    bool const tied = !tensor.tied_to.empty();
    if (tied && input.flag()) {
      header.metadata[tensor.name] = tensor.tied_to;
      continue;
    }
    header.entries.push_back({tensor.name, dtype, {tensor.shape.begin(), tensor.shape.end()}});
    index["weight_map"][tensor.name] = "a.safetensors";
    bool const other = tied && input.below(3) == 1;
    differs = differs || other;
    float const value = values_of_files[(number + (other ? 1 : 0)) % 3];
    for (std::size_t i = zero::element_count(tensor); i > 0; --i) {
      data.append(reinterpret_cast<char const*>(&value) + (dtype == "F32" ? 0 : 2),
                  dtype == "F32" ? 4 : 2);
    }
  }
  json changed = json::parse(zero::safetensors::format(header).substr(8));
  for (std::size_t times = input.below(4); times > 0; --times) change(changed, input);
  std::string text = text_of(changed);
  if (input.below(16) == 1) text.replace(input.below(text.size()), input.below(4), input.text(8));
  if (input.below(16) == 1) data.resize(input.below(data.size() + 9));
  std::filesystem::create_directory(to);
  spill(to + "/a.safetensors", framed(text) + data);
  if (input.below(4) != 1) return differs;
  if (input.flag()) change(index, input);
  spill(to + "/a.safetensors.index.json", text_of(index));
  return differs;
}

/// Imports up to three times, then takes a step.
inline void load_model_file(Input& input) {
  Group const group{.ranks = 1 + static_cast<int>(input.below(3)),
                    .large = much(input.below(64) == 63)};
  std::size_t const stage = input.below(3);
  std::vector<zero::ImportOptions> imports(1 + input.below(3));
  std::vector<bool> differs;
  Place const place("");
  for (std::size_t i = 0; i < imports.size(); ++i) {
    imports[i].strict = input.flag();
    differs.push_back(write_model(input, group, i, place.path + "/" + std::to_string(i)));
  }
  with_ranks(stage, group, [&](auto& rank, int /*number*/) {
    std::vector<Piece> expected = rank.held();
    bool failed = false;
    for (std::size_t n = 0; n < imports.size(); ++n) {
      zero::ImportReport report;
      std::string const why = failure({ErrorKind::data, ErrorKind::resource}, [&] {
        report =
            zero::load_parameters_from(*rank, place.path + "/" + std::to_string(n), imports[n]);
      });
      failed = failed || !why.empty();
      if (!why.empty()) continue;
      std::vector<Piece> const now = rank.held();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        Piece& piece = expected[i];
        // Which of the two is read, a changed header says.
        if (differs[n] && (piece.tensor == "w" || piece.tensor == "head")) {
          piece = now[i];
        } else if (piece.array <= 0 && !named(report.missing, piece.tensor) &&
                   !named(report.misfits, piece.tensor)) {
          for (float& value : piece.values) value = values_of_files[n];
        }
      }
    }
    std::vector<Piece> const held = rank.held();
    std::string const refused = failure({ErrorKind::invalid_argument}, [&] { rank.step(); });
    require(refused.empty() || failed, "all was imported, and " + refused);
    require(!refused.empty() || held == expected,
            "a step is taken from values of which some are not what was imported");
  });
}

}  // namespace fuzz
