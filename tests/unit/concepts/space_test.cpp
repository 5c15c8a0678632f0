#include <zero/concepts/space.hpp>
#include <zero/space/host.hpp>

#include <doctest/doctest.h>

#include <type_traits>

namespace space_test {
namespace {

using zero::MemorySpace;

struct NoUpload : zero::space::Host {
  static void upload(void*, void const*) noexcept {}
};

struct SaysNothingOfTheHost {
  static constexpr int host_accessible() { return 1; }
};

struct UpdatesWithoutTerms : zero::space::Host {
  template <class Rule, class Arrays>
  static void update(Rule const&, zero::UpdateRates const&, Arrays const&) {}
};

struct CannotBeCopied : zero::space::Host {
  CannotBeCopied() = default;
  CannotBeCopied(CannotBeCopied const&) = delete;
};

}  // namespace

TEST_CASE("a space is a value with all functions of the concept") {
  static_assert(MemorySpace<zero::space::Host>);
  static_assert(!MemorySpace<NoUpload>);
  static_assert(!MemorySpace<SaysNothingOfTheHost>);
  static_assert(!MemorySpace<UpdatesWithoutTerms>);
  static_assert(!MemorySpace<CannotBeCopied>);
  CHECK(MemorySpace<zero::space::Host>);
}

TEST_CASE(
    "what lies in a space's memory can be copied as bytes, and starts as zeros or by upload") {
  static_assert(std::is_trivially_copyable_v<zero::StepTerms>);
  static_assert(std::is_trivially_copyable_v<zero::ExactSum>);
  CHECK(zero::StepTerms{}.gradient_scale == 1.f);
}

}  // namespace space_test
