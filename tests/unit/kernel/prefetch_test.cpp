#include <zero/kernel/prefetch.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>

TEST_CASE("memory may be asked for beyond an array, and nowhere") {
  auto const one = std::make_unique<float>(1.f);
  zero::kernel::detail::prefetch<1024>(one.get());
  zero::kernel::detail::prefetch<std::size_t{1} << 40>(one.get());
  zero::kernel::detail::prefetch<0>(nullptr);
  CHECK(*one == 1.f);
}
