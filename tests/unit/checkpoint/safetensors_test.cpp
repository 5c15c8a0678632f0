#include "zero/checkpoint/safetensors.hpp"

#include "support/refusal.hpp"
#include "support/test.hpp"

namespace safetensors_test {
namespace {

namespace st = zero::safetensors;

/// Why a text is refused; empty if it is not.
std::string verdict(std::string_view text, std::uint64_t data_bytes) {
  return refusal([&] { static_cast<void>(st::parse("f", text, data_bytes)); },
                 zero::ErrorKind::data);
}

st::Header some_header() {
  return {.entries = {{.name = "w", .dtype = "BF16", .shape = {3, 5}},
                      {.name = "scale", .dtype = "F32", .shape = {}},
                      {.name = "empty", .dtype = "F32", .shape = {0, 7}},
                      {.name = "h\"ö\n", .dtype = "F8_E4M3", .shape = {2}}},
          .metadata = {{"format", "pt"}, {"tied", "a -> b"}}};
}

std::uint64_t length_of(std::string const& bytes) {
  return st::text_length(std::span<unsigned char const, st::length_bytes>(
      reinterpret_cast<unsigned char const*>(bytes.data()), st::length_bytes));
}

TEST_CASE("what is written is read again, and data begin where they are aligned") {
  st::Header written = some_header();
  std::string const bytes = st::format(written);
  CHECK(bytes.size() % st::alignment == 0);
  CHECK(length_of(bytes) == bytes.size() - st::length_bytes);
  CHECK(written.entries[1].begin == 30);
  CHECK(written.entries[3].end == 36);
  st::Header const read = st::parse("f", std::string_view(bytes).substr(st::length_bytes), 36);
  CHECK(read == written);
}

TEST_CASE("a file as other tools write it") {
  st::Header const header = st::parse(
      "f",
      R"({"b":{"data_offsets":[4,8],"shape":[2],"dtype":"F16"},"a":{"dtype":"I32","shape":[1,1],"data_offsets":[0,4]}}   )",
      8);
  REQUIRE(header.entries.size() == 2);
  CHECK(header.entries[0] ==
        st::Entry{.name = "a", .dtype = "I32", .shape = {1, 1}, .begin = 0, .end = 4});
  CHECK(header.entries[1].name == "b");
  CHECK(st::parse("f", "{}", 0) == st::Header{});
}

TEST_CASE("a length is eight bytes, the lowest first") {
  std::string const bytes{'\x02', '\x01', 0, 0, 0, 0, 0, '\x80'};
  CHECK(length_of(bytes) == 0x8000000000000102u);
}

TEST_CASE("what the format does not have is refused, and the tensor is named") {
  struct Row {
    std::string text;
    std::uint64_t bytes;
    std::string reason;
  };
  std::vector<Row> rows{
      {"", 0, "its header does not begin with '{'"},
      {" {}", 0, "its header does not begin with '{'"},
      {"{", 0, "it is no JSON from byte 2 on"},
      {"{} x", 0, "it is no JSON from byte 4 on"},
      {R"({"w":1})", 0, "tensor 'w' has a number where the format has none"},
      {R"({"w":[]})", 0, "tensor 'w' has a list where the format has none"},
      {R"({"__metadata__":{"a":1}})", 0, "has a number where the format has none"},
      {R"({"__metadata__":{"a":{}}})", 0, "has an object where the format has none"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", 0, "the metadata have 'a' twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "it has '__metadata__' twice"},
      {R"({"w":{"dtype":"F32","shape":[1]}})", 4, "tensor 'w' lacks dtype, shape or data_offsets"},
      {R"({"w":{"dtype":"F32","dtype":"F32"}})", 4, "tensor 'w' has 'dtype' twice"},
      {R"({"w":{"size":4}})", 4, "tensor 'w' has a field 'size'"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3,
       "tensor 'b' overlaps the one before it"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2,
       "it has tensor 'a' twice"},
  };
  auto const one = [&](std::string const& dtype,
                       std::string const& shape,
                       std::string const& offsets,
                       std::uint64_t bytes,
                       std::string const& reason) {
    rows.push_back({R"({"w":{"dtype":")" + dtype + R"(","shape":[)" + shape +
                        R"(],"data_offsets":[)" + offsets + "]}}",
                    bytes,
                    reason});
  };
  one("F31", "1", "0,4", 4, "tensor 'w' has the unknown dtype 'F31'");
  one("F32", "-1", "0,4", 4, "tensor 'w' has a negative number where the format has none");
  one("F32", "1e0", "0,4", 4, "tensor 'w' has the number 1e0 where the format has none");
  one("F32", "[1]", "0,4", 4, "tensor 'w' has a list where the format has none");
  one("F32", "1", "0", 4, "tensor 'w' has data_offsets that are not two numbers");
  one("F32", "1", "0,4,8", 4, "tensor 'w' has a number where the format has none");
  one("F32", "1", "4,0", 4, "tensor 'w' ends before it begins");
  one("F32", "1", "0,5", 5, "tensor 'w' has 5 bytes and a shape of 4");
  one("F32", "1", "4,8", 8, "tensor 'w' lies behind bytes of none");
  one("F32", "1", "0,4", 5, "its tensors have 4 bytes, and 5 follow its header");
  std::string const uncounted = "tensor 'w' has more elements than can be counted";
  one("F32", "4294967296,4294967296", "0,0", 0, uncounted);
  one("F64", "4611686018427387904", "0,0", 0, uncounted);
  for (Row const& row : rows) {
    CAPTURE(row.text);
    CHECK(verdict(row.text, row.bytes) == "'f' is no safetensors file: " + row.reason);
  }
}

TEST_CASE("depth costs nothing: it is refused where it begins") {
  std::string deep = R"({"w":{"shape":[)";
  deep.append(1'000'000, '[');
  CHECK(verdict(deep, 0) ==
        "'f' is no safetensors file: tensor 'w' has a list where the format has none");
}

TEST_CASE("what the format cannot hold is not written") {
  auto const refused = [](st::Header header) {
    CHECK_THROWS_AS(static_cast<void>(st::format(header)), zero::Error);
  };
  st::Entry const sound{.name = "w", .dtype = "F32", .shape = {2}};
  refused({.entries = {sound, sound}});
  refused({.entries = {{.name = "__metadata__", .dtype = "F32", .shape = {1}}}});
  refused({.entries = {{.name = "\xff", .dtype = "F32", .shape = {1}}}});
  refused({.entries = {{.name = "w", .dtype = "fp32", .shape = {1}}}});
  refused({.entries = {{.name = "w", .dtype = "F32", .shape = {std::uint64_t{1} << 62}}}});
  refused({.metadata = {{"a", "\xc3"}}});
}

TEST_CASE("every element type of the library has a spelling of its size") {
  using zero::DType;
  for (DType const type :
       {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8}) {
    CHECK(st::dtype_named(st::spelled(type)) == type);
    CHECK(st::element_bytes(st::spelled(type)) == zero::size_of(type));
  }
  CHECK(st::element_bytes("F8_E5M2") == 1);
  CHECK(st::element_bytes("") == 0);
}

}  // namespace
}  // namespace safetensors_test
