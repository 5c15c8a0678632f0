/// Random cases on threads as ranks.
#include "differential/program.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"

namespace {

class Threads : public differential::World {
 public:
  [[nodiscard]] int most_ranks() const override { return 8; }
  void run(int ranks, std::uint64_t, Body const& body) override {
    auto const play = [&](zero::InProcess& comm) {
      differential::AnyCommunicator any(comm);
      body(any);
    };
    zero::run_ranks(ranks, play, {.deadline_s = 60});
  }
  [[nodiscard]] bool leads() const override { return true; }
  bool agree(bool answer) override { return answer; }
  [[nodiscard]] bool survives() const override { return true; }
};

}  // namespace

int main(int argc, char** argv) {
  Threads world;
  return differential::run_program(world, argc, argv);
}
