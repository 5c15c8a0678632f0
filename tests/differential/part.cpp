/// One part of the combinations; which one, the build says.
#include "combinations.hpp"
#include "support/standard.hpp"
#include "trainer.hpp"

namespace differential {

namespace {

template <std::size_t I, class C>
void play_on(C& comm,
             Case const& test,
             std::vector<ExpectedStep> const& expected,
             Beside<C> const& beside) {
  Trainer<I, C>(comm, comm.allocator(), test, expected).play(beside);
}

template <std::size_t I>
constexpr Play play() {
  Play result;
  if constexpr (I % parts == ZERO_DIFFERENTIAL_PART) {
    result.on_host = play_on<I, AnyCommunicator>;
    if constexpr (std::ranges::count(device_combinations, I) > 0) {
      result.on_device = play_on<I, AnyDevice>;
    }
  }
  return result;
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
