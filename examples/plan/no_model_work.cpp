/// In place of model_work.cpp where the example GPT is not built.
#include "measure.hpp"
#include "zero/base/error.hpp"

namespace plan {

std::vector<Work> model_work(std::string const& /*precision*/) {
  zero::fail(
      zero::ErrorKind::invalid_argument,
      "built without examples/gpt, whose kernels 'calibrate' measures: install libeigen3-dev "
      "and configure with -DZERO_BUILD_GPT=ON");
}

}  // namespace plan
