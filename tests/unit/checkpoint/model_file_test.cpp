#include "zero/checkpoint/model_file.hpp"

#include "checkpoint/model_files.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace model_file_test {
namespace {

namespace st = zero::safetensors;
using checkpoint_tests::ModelFiles;
using zero::StoredModel;

void put(ModelFiles& files, std::string const& path, std::string const& bytes) {
  zero::detail::File<ModelFiles> file(files, path, zero::FileMode::create);
  file.write(bytes.data(), bytes.size(), 0);
}
/// A file of tensors of one float each.
std::string file_of(std::vector<std::string> const& names) {
  st::Header header;
  for (std::string const& name : names) {
    header.entries.push_back({.name = name, .dtype = "F32", .shape = {1}});
  }
  std::string bytes = st::format(header);
  for (std::size_t i = 0; i < names.size(); ++i) bytes.append("\0\0\x80\x3f", 4);
  return bytes;
}
/// Why a path is refused; empty if it is not.
std::string refused(ModelFiles& files, std::string const& path) {
  try {
    static_cast<void>(zero::detail::open_model(files, path));
  } catch (zero::Error const& error) {
    return std::string(zero::name(error.kind())) + ": " + error.message();
  }
  return "";
}

TEST_CASE("a model is found by its file, its index or its directory") {
  ModelFiles files;
  files.make_directory("d");
  put(files, "d/m-1.safetensors", file_of({"b", "a"}));
  put(files, "d/m-2.safetensors", file_of({"c"}));
  CHECK(refused(files, "d") == "data: 'd' has 2 files that end in .safetensors: name one of them");
  put(files,
      "d/m.safetensors.index.json",
      R"({"metadata":{"total_size":12,"more":[{"weight_map":{"x":"y"}}]},"weight_map":)"
      R"({"a":"m-1.safetensors","c":"m-2.safetensors","b":"m-1.safetensors"}})");
  for (std::string const path : {"d", "d/m.safetensors.index.json"}) {
    StoredModel const model = zero::detail::open_model(files, path);
    CHECK(model.files == std::vector<std::string>{"d/m-1.safetensors", "d/m-2.safetensors"});
    REQUIRE(model.tensors.size() == 3);
    CHECK(model.find("c")->file == 1);
    CHECK(model.find("d") == nullptr);
    zero::detail::ModelReader reader(files, model);
    float one = 0.f;
    reader.read(*model.find("a"), 0, {&one, 1});
    CHECK(one == 1.f);
  }
  CHECK(refused(files, "d/m-2.safetensors") == "");
  CHECK(refused(files, "none") == "resource: cannot open 'none': No such file or directory");
  files.make_directory("e");
  CHECK(refused(files, "e") == "data: 'e' has no file that ends in .safetensors");
}

TEST_CASE("an index that lies, or leads elsewhere, is refused") {
  ModelFiles files;
  files.make_directory("d");
  put(files, "d/m", file_of({"a", "b"}));
  put(files, "d/n", file_of({"b"}));
  put(files, "secret", file_of({"a"}));
  auto const verdict = [&](std::string const& text) {
    put(files, "d/i.json", text);
    return refused(files, "d/i.json");
  };
  std::string const none =
      "data: 'd/i.json' is no index of safetensors files: it needs a weight_map, once, from names "
      "to names";
  for (std::string const text : {"",
                                 "{}",
                                 "[]",
                                 "x",
                                 R"({"weight_map":{"a":"m"}} x)",
                                 R"({"weight_map":{"a":"m"})",
                                 R"({"weight_map":["m"]})",
                                 R"({"weight_map":"m"})",
                                 R"({"weight_map":1})",
                                 R"({"weight_map":{"a":1}})",
                                 R"({"weight_map":{"a":{"b":"m"}}})",
                                 R"({"weight_map":{"a":["m"]}})",
                                 R"({"weight_map":{"a":"m"},"weight_map":{"b":"m"}})",
                                 R"({"x":{"weight_map":{"a":"m"}}})"}) {
    CHECK_MESSAGE(verdict(text) == none, text);
  }
  for (std::string const name :
       {"../secret", "/secret", "..", ".", "", "a/../m", "a\\\\m", "m\\u0000"}) {
    std::string const said = verdict(R"({"weight_map":{"a":")" + name + R"("}})");
    CHECK_MESSAGE(said.find("tensor 'a' would lie in '") != std::string::npos, name);
  }
  CHECK(verdict(R"({"weight_map":{"a":"m","b":"m","a":"m"}})") ==
        "data: 'd/i.json' is no index of safetensors files: it has tensor 'a' twice");
  CHECK(verdict(R"({"weight_map":{"a":"m","c":"m"}})") ==
        "data: 'd/i.json' says that 'm' has tensor 'c'");
  CHECK(verdict(R"({"weight_map":{"a":"m","b":"n"}})") ==
        "data: tensor 'b' lies in 'd/m' and in 'd/n'");
  CHECK(verdict(R"({"weight_map":{"a":"o"}})") ==
        "resource: cannot open 'd/o': No such file or directory");
  CHECK(verdict(R"({"weight_map":{"a":"m","b":"m"}})") == "");
  // Neither depth nor length costs more than the text.
  std::string deep = R"({"x":)";
  CHECK(verdict(deep.append(1'000'000, '[')) == none);
}

TEST_CASE("a file is not believed how long it is") {
  ModelFiles files;
  std::string const sound = file_of({"a"});
  auto const verdict = [&](std::string const& bytes) {
    put(files, "m", bytes);
    return refused(files, "m");
  };
  CHECK(verdict(sound) == "");
  CHECK(verdict("") == "data: 'm' is no safetensors file: it has 0 bytes");
  CHECK(verdict("1234567") == "data: 'm' is no safetensors file: it has 7 bytes");
  CHECK(verdict(std::string(8, '\xff')) ==
        "data: 'm' is no safetensors file: its header would have 18446744073709551615 bytes, and 0 "
        "follow");
  CHECK(verdict(sound + "x") ==
        "data: 'm' is no safetensors file: its tensors have 4 bytes, and 5 follow its header");
  CHECK(verdict(sound.substr(0, 60)) ==
        "data: 'm' is no safetensors file: its header would have 56 bytes, and 52 follow");
}

TEST_CASE("a file that shrinks after its header was read is an error of its reader") {
  ModelFiles files;
  put(files, "m", file_of({"a"}));
  StoredModel const model = zero::detail::open_model(files, "m");
  put(files, "m", file_of({"a"}).substr(0, 66));
  zero::detail::ModelReader reader(files, model);
  float one = 0.f;
  CHECK_THROWS_AS(reader.read(*model.find("a"), 0, {&one, 1}), zero::Error);
}

TEST_CASE("mutated indices are taken or refused") {
  ModelFiles files;
  put(files, "m", file_of({"a", "b"}));
  std::string const sound =
      R"({"metadata":{"total_size":8},"weight_map":{"a":"m","b":"m"},"x":[1,-2,3.5,null,true]})";
  std::mt19937_64 random(20261122);
  auto const below = [&](std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
  };
  static constexpr std::string_view letters = R"({}[]",:0129eE.-+_ \umwab)";
  int taken = 0;
  for (int run = 0; run < 20'000; ++run) {
    std::string text = sound;
    for (std::size_t times = 1 + below(4); times > 0; --times) {
      std::size_t const at = below(text.size());
      switch (below(4)) {
        case 0: text[at] = static_cast<char>(below(256)); break;
        case 1: text[at] = letters[below(letters.size())]; break;
        case 2: text.erase(at, 1 + below(8)); break;
        default: text.insert(at, text.substr(below(text.size()), 1 + below(24)));
      }
      if (text.empty()) text = "{";
    }
    try {
      for (auto const& [name, file] : zero::detail::parse_index("i", text)) {
        CHECK(zero::detail::is_plain_name(file));
      }
      ++taken;
    } catch (zero::Error const& error) {
      CHECK(error.kind() == zero::ErrorKind::data);
    }
  }
  CHECK(taken > 0);
}

}  // namespace
}  // namespace model_file_test
