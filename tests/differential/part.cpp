/// One part of the combinations; which one, the build says.
#include "combinations.hpp"
#include "trainer.hpp"

#include <array>
#include <utility>

namespace differential {

namespace {

template <std::size_t I>
constexpr Play play() {
  if constexpr (I % parts == ZERO_DIFFERENTIAL_PART) {
    return [](AnyCommunicator& comm, Case const& test, std::vector<ExpectedStep> const& expected) {
      Trainer<combinations[I]>(comm, test, expected).play();
    };
  }
  return nullptr;
}

}  // namespace

template <>
Play play_of<ZERO_DIFFERENTIAL_PART>(std::size_t combination) {
  return []<std::size_t... I>(std::size_t wanted, std::index_sequence<I...>) {
    return std::array<Play, sizeof...(I)>{play<I>()...}[wanted];
  }
  (combination, std::make_index_sequence<combinations.size()>{});
}

}  // namespace differential
