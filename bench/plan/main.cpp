#include "validation.hpp"

int main(int argc, char** argv) {
  return plan::run_program(
      argc,
      argv,
      "validate-plan",
      "What zero-plan says, held against what was published and against runs.",
      {plan::add_figures, plan::add_rows, plan::add_advice, plan::add_claims, plan::add_here});
}
