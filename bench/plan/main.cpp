#include "validation.hpp"

int main(int argc, char** argv) {
  return plan::run_program(
      argc,
      argv,
      "validate-plan",
      "Compares what zero-plan says with published figures and with real runs.",
      {plan::add_figures, plan::add_rows, plan::add_advice, plan::add_claims, plan::add_here});
}
