#include "zero/checkpoint/model_file.hpp"

#include "checkpoint/model_files.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"

namespace model_file_test {
namespace {

namespace st = zero::safetensors;
using checkpoint_tests::ModelFiles;
using zero::StoredModel;

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
std::string refused(ModelFiles& files,
                    std::string const& path,
                    zero::ErrorKind kind = zero::ErrorKind::data) {
  return refusal([&] { static_cast<void>(zero::detail::open_model(files, path)); }, kind);
}
float one_of(ModelFiles& files, StoredModel const& model, std::string const& tensor) {
  float one = 0.f;
  zero::detail::ModelReader(files, model).read(*model.find(tensor), 0, zero::DType::f32, &one, 1);
  return one;
}

TEST_CASE("a model is found by its file, its index or its directory") {
  ModelFiles files;
  files.make_directory("d");
  write_all(files, "d/m-1.safetensors", file_of({"b", "a"}));
  write_all(files, "d/m-2.safetensors", file_of({"c"}));
  CHECK(refused(files, "d") == "'d' has 2 files that end in .safetensors: name one of them");
  write_all(files,
            "d/m.safetensors.index.json",
            R"({"metadata":{"total_size":12,"more":[{"weight_map":{"x":"y"}}]},"weight_map":)"
            R"({"a":"m-1.safetensors","c":"m-2.safetensors","b":"m-1.safetensors"}})");
  for (std::string const path : {"d", "d/m.safetensors.index.json"}) {
    StoredModel const model = zero::detail::open_model(files, path);
    CHECK(model.files == std::vector<std::string>{"d/m-1.safetensors", "d/m-2.safetensors"});
    REQUIRE(model.tensors.size() == 3);
    CHECK(model.find("c")->file == 1);
    CHECK(model.find("d") == nullptr);
    CHECK(one_of(files, model, "a") == 1.f);
  }
  CHECK(refused(files, "d/m-2.safetensors") == "");
  CHECK(refused(files, "none", zero::ErrorKind::resource) ==
        "cannot open 'none': No such file or directory");
  files.make_directory("e");
  CHECK(refused(files, "e") == "'e' has no file that ends in .safetensors");
}

TEST_CASE("an index that lies, or leads elsewhere, is refused") {
  ModelFiles files;
  files.make_directory("d");
  write_all(files, "d/m", file_of({"a", "b"}));
  write_all(files, "d/n", file_of({"b"}));
  write_all(files, "secret", file_of({"a"}));
  auto const verdict = [&](std::string const& text) {
    write_all(files, "d/i.json", text);
    return refused(files, "d/i.json");
  };
  std::string const none =
      "'d/i.json' is no index of safetensors files: it needs a weight_map, once, from names "
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
        "'d/i.json' is no index of safetensors files: it has tensor 'a' twice");
  CHECK(verdict(R"({"weight_map":{"a":"m","c":"m"}})") ==
        "'d/i.json' says that 'm' has tensor 'c'");
  CHECK(verdict(R"({"weight_map":{"a":"m","b":"n"}})") == "tensor 'b' lies in 'd/m' and in 'd/n'");
  CHECK(verdict(R"({"weight_map":{"a":"o"}})") == "of another kind");
  CHECK(refused(files, "d/i.json", zero::ErrorKind::resource) ==
        "cannot open 'd/o': No such file or directory");
  CHECK(verdict(R"({"weight_map":{"a":"m","b":"m"}})") == "");
  // Neither depth nor length costs more than the text.
  std::string deep = R"({"x":)";
  CHECK(verdict(deep.append(1'000'000, '[')) == none);
}

TEST_CASE("a file is not believed how long it is") {
  ModelFiles files;
  std::string const sound = file_of({"a"});
  auto const verdict = [&](std::string const& bytes) {
    write_all(files, "m", bytes);
    return refused(files, "m");
  };
  CHECK(verdict(sound) == "");
  CHECK(verdict("") == "'m' is no safetensors file: it has 0 bytes");
  CHECK(verdict("1234567") == "'m' is no safetensors file: it has 7 bytes");
  CHECK(verdict(std::string(8, '\xff')) ==
        "'m' is no safetensors file: its header would have 18446744073709551615 bytes, and 0 "
        "follow");
  CHECK(verdict(sound + "x") ==
        "'m' is no safetensors file: its tensors have 4 bytes, and 5 follow its header");
  CHECK(verdict(sound.substr(0, 60)) ==
        "'m' is no safetensors file: its header would have 56 bytes, and 52 follow");
}

TEST_CASE("a file that shrinks after its header was read is an error of its reader") {
  ModelFiles files;
  write_all(files, "m", file_of({"a"}));
  StoredModel const model = zero::detail::open_model(files, "m");
  write_all(files, "m", file_of({"a"}).substr(0, 66));
  CHECK_THROWS_AS(one_of(files, model, "a"), zero::Error);
}

}  // namespace
}  // namespace model_file_test
