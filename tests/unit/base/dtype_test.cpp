#include <zero/base/dtype.hpp>

#include <doctest/doctest.h>

#include <array>
#include <set>
#include <string>
#include <string_view>

using zero::DType;

TEST_CASE_TEMPLATE("the size of a name is the size of its type",
                   T,
                   float,
                   double,
                   zero::bf16,
                   zero::fp16,
                   std::int32_t,
                   std::int64_t,
                   std::uint8_t) {
  static_assert(zero::Element<T>);
  CHECK(zero::size_of(zero::dtype_of<T>) == sizeof(T));
}

TEST_CASE("names are distinct") {
  std::set<std::string_view> names;
  for (DType type :
       {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8}) {
    names.insert(name(type));
  }
  CHECK(names.size() == 7);
  CHECK(names.count("bf16") == 1);
  CHECK(names.count("fp16") == 1);
  CHECK(names.count("unknown") == 0);
}

TEST_CASE("what is an element and what is not") {
  static_assert(zero::FloatElement<float> && zero::FloatElement<zero::bf16>);
  static_assert(zero::FloatElement<zero::fp16>);
  static_assert(!zero::Element<char> && !zero::Element<bool> && !zero::Element<long double>);
  static_assert(!zero::Element<float const> && !zero::Element<float*>);
  static_assert(!zero::FloatElement<char>);
  static_assert(zero::dtype_of<float> == DType::f32 && zero::dtype_of<zero::bf16> == DType::bf16);
}

TEST_CASE("what is no type has no size and no name") {
  auto const none = static_cast<DType>(200);
  CHECK(zero::size_of(none) == 0);
  CHECK(name(none) == "unknown");
}
