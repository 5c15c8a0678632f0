#include "commands.hpp"

int main(int argc, char** argv) {
  return plan::run_program(argc,
                           argv,
                           "zero-plan",
                           "Memory and traffic of a training run before there is a cluster, by the "
                           "library's own plan.",
                           {plan::add_memory,
                            plan::add_traffic,
                            plan::add_advise,
                            plan::add_simulate,
                            plan::add_clusters,
                            plan::add_sums,
                            plan::add_formats,
                            plan::add_paper,
                            plan::add_calibrate});
}
