/// Parsers of headers, indexes, manifests and descriptions: what one takes reads the same when it
/// is written again, and keeps what the rest of the library takes for granted.
#include "fuzz/input.hpp"
#include "zero/checkpoint/description.hpp"
#include "zero/checkpoint/manifest.hpp"
#include "zero/checkpoint/model_file.hpp"
#include "zero/checkpoint/safetensors.hpp"

#include <cmath>
#include <set>

namespace parsers_fuzz {
namespace {

namespace st = zero::safetensors;
using fuzz::json;
using fuzz::require;
constexpr std::uint64_t sample_bytes = 26;  ///< of data that the sample of a header describes

void header(std::string_view text) {
  st::Header header = st::parse("it", text, sample_bytes);
  json const other = json::parse(text.begin(), text.end(), nullptr, false);
  require(!other.is_discarded(), "a header is no JSON");
  std::size_t const about = other.contains("__metadata__") ? 1 : 0;
  require(header.entries.size() + about == other.size(), "a header has other tensors");
  for (st::Entry const& entry : header.entries) {
    json const& same = other.at(entry.name);
    require(same.at("dtype") == entry.dtype && same.at("shape") == json(entry.shape) &&
                same.at("data_offsets") == json({entry.begin, entry.end}),
            "a header has another '" + entry.name + "'");
  }
  std::string const again = st::format(header).substr(st::length_bytes);
  require(st::parse("it", again, sample_bytes) == header,
          "a header is another one when it is written");
}

void index(std::string_view text) {
  auto const map = zero::detail::parse_index("it", text);
  for (std::size_t i = 0; i < map.size(); ++i) {
    require(i == 0 || map[i - 1].first < map[i].first, "an index has a tensor twice");
    require(map[i].second.find('/') == std::string::npos && map[i].second != "..",
            "an index names a file elsewhere");
  }
}

void manifest(std::string_view body) {
  zero::Manifest const manifest = zero::detail::parse_manifest("it", fuzz::sealed(body));
  std::set<std::string> names;
  for (zero::SavedFile const& file : manifest.files) {
    require(file.name.find('/') == std::string::npos && file.name != "..",
            "a manifest names a file elsewhere");
    require(names.insert(file.name).second, "a manifest names a file twice");
    require(file.header_bytes <= file.bytes && file.rank >= 0 && file.rank < file.world_size &&
                file.leader >= 0 && file.leader < std::ssize(manifest.files),
            "a manifest has a file that cannot be");
  }
  zero::Manifest const again =
      zero::detail::parse_manifest("it", zero::detail::manifest_text(manifest));
  require(zero::detail::manifest_text(again) == zero::detail::manifest_text(manifest),
          "a manifest is another one when it is written");
}

void description(std::string_view text) {
  auto const saved = zero::detail::parse_optimizer("it", zero::detail::parse_text("it", text));
  require(std::isfinite(saved.loss_scale) && saved.loss_scale > 0.f, "a loss scale is none");
  json const written = zero::detail::json_of(saved);
  zero::SavedOptimizer const again = zero::detail::parse_optimizer("it", written);
  require(zero::detail::json_of(again) == written, "a description is another one when written");
}

/// A sound text of each kind, before it is changed.
json sample(std::size_t kind) {
  if (kind == 0) {
    st::Header header{.entries = {{"w", "F32", {2, 3}}, {"b", "BF16", {}}, {"none", "I64", {0, 7}}},
                      .metadata = {{"format", "pt"}, {"head", "w"}}};
    return json::parse(st::format(header).substr(st::length_bytes));
  }
  if (kind == 1) return {{"metadata", {{"total", 26}}}, {"weight_map", {{"w", "1"}, {"b", "2"}}}};
  if (kind == 2) {
    zero::Manifest const manifest{
        .step = 3,
        .user = {{"epoch", 1}},
        .files = {{"rank-0", 300, 192, 7, 0, 0, 2}, {"rank-1", 400, 192, 8, 0, 1, 2}}};
    return json::parse(zero::detail::manifest_text(manifest))["checkpoint"];
  }
  return zero::detail::json_of(zero::SavedOptimizer{
      .tensors = {{.name = "w", .shape = {4, 6}, .boxes = {{{0, 0}, {4, 6}}}, .steps = 3},
                  {.name = "v", .shape = {8}, .boxes = {{{4}, {4}}, {{0}, {2}}}, .tied_to = "w"}},
      .policies = {{"stage", "pos"}}});
}

}  // namespace
}  // namespace parsers_fuzz

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace parsers_fuzz;
  fuzz::Input input(data, size);
  std::size_t const choice = input.below(8);
  std::size_t const kind = choice % 4;
  static json const samples[]{sample(0), sample(1), sample(2), sample(3)};
  std::string const text = choice < 4 ? fuzz::changed_text(samples[kind], input)
                                      : fuzz::changed_letters(fuzz::text_of(samples[kind]), input);
  try {
    if (kind == 0) header(text);
    if (kind == 1) index(text);
    if (kind == 2) manifest(text);
    if (kind == 3) description(text);
  } catch (zero::Error const& error) {
    require(error.kind() == zero::ErrorKind::data, error.what());
  }
  return 0;
}
