/// Which types tensors are held in.
#include "support/refusal.hpp"
#include "support/test.hpp"
#include <zero/layout/tensor_types.hpp>

namespace tensor_types_test {
namespace {

using zero::ArrayForm;
using zero::DType;
using zero::StorageTypes;
using zero::Tensor;
using zero::detail::tensor_types;

constexpr ArrayForm masters[] = {{.name = "master", .dtype = DType::f32}};
constexpr ArrayForm parameters[] = {{.name = "master", .coding = zero::Coding::parameter}};
constexpr StorageTypes half{.parameter = DType::bf16, .wire = DType::bf16, .arrays = masters};
constexpr StorageTypes single{.arrays = parameters};
constexpr StorageTypes both[] = {half, single};

Tensor of(DType type, bool frozen = false) {
  return {.name = "t", .shape = {3}, .dtype = type, .frozen = frozen};
}

}  // namespace

TEST_CASE("tensors that say nothing, or what they would have anyway, need no numbers") {
  auto const all = tensor_types({{.name = "w"}, of(DType::bf16), of(DType::bf16, true)}, both);
  CHECK(all.numbers.empty());
  CHECK(all.types == zero::KindTypes{half, single});
}

TEST_CASE("trained tensors have types of precisions, and frozen ones any") {
  auto const all = tensor_types({of(DType::f32),
                                 {.name = "w"},
                                 of(DType::u8, true),
                                 of(DType::f32, true),
                                 of(DType::f64, true),
                                 of(DType::u8, true)},
                                both);
  CHECK(all.numbers == std::vector<std::uint32_t>{1, 0, 2, 1, 3, 2});
  CHECK(all.types.size() == 4);
  CHECK((all.types[2].parameter == DType::u8 && all.types[2].frozen() && all.types[2].opaque()));
  CHECK((all.types[3].parameter == DType::f64 && all.types[3].frozen()));
  CHECK_FALSE(all.types[3].opaque());
}

TEST_CASE("a trained tensor of a type that no precision has is refused by name") {
  CHECK(refusal([] { static_cast<void>(tensor_types({of(DType::u8)}, both)); }) ==
        "tensor 't' is trained and of uint8, which has no gradients: only a frozen one can be");
  CHECK(refusal([] { static_cast<void>(tensor_types({of(DType::f16)}, both)); }) ==
        "tensor 't' is trained and of fp16, which no precision here has: bf16, fp32");
}

TEST_CASE("files may call bytes something of their size, and nothing else") {
  auto const called = [](zero::FileDType type, Tensor tensor) {
    tensor.file_dtype = type;
    return refusal([&] { static_cast<void>(tensor_types({tensor}, both)); });
  };
  CHECK(called("F8_E4M3", of(DType::u8, true)) == "");
  CHECK(called("U32", of(DType::i32, true)) == "");
  CHECK(called("I16", of(DType::u8, true)) ==
        "tensor 't' is of uint8, so that files cannot call it I16");
  CHECK(called("U8", of(DType::f32, true)) ==
        "tensor 't' is of fp32, so that files cannot call it U8");
  CHECK(called("NF4", of(DType::u8, true)) ==
        "tensor 't' is of uint8, so that files cannot call it that");
}

}  // namespace tensor_types_test
