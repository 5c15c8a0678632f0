/// Checkpoints and model files that were changed, with checksums that fit: a load either changes
/// nothing, or has replaced all that it says, or leaves an optimizer that refuses to step; and
/// nothing outside the directory is touched. The first byte says which of the two is read.
#include "fuzz/checkpoint_files.hpp"
#include "fuzz/model_files.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  fuzz::Input input(data, size);
  if (input.flag()) {
    fuzz::load_model_file(input);
  } else {
    fuzz::load_checkpoint(input);
  }
  return 0;
}
