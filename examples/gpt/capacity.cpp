#include "capacity.hpp"

#include "configurations.hpp"
#include "zero/zero.hpp"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

namespace gpt {

namespace {

constexpr int most_blocks = 1000;

std::uint64_t parameters(Config const& model) {
  std::uint64_t sum = 0;
  for (TensorInfo const& tensor : tensors(model)) {
    if (tensor.tied_to < 0) sum += tensor.numel();
  }
  return sum;
}

/// Trains models of one configuration.
class Search {
 public:
  Search(Options options, Trial const& trial) : options_(std::move(options)), trial_(&trial) {
    found_.configuration = options_.configuration;
  }

  std::optional<Capacity> largest() {
    int too_many = most_blocks + 1;
    for (int next = 1; found_.blocks + 1 < too_many;) {
      if (!trains(next)) too_many = next;
      if (found_.result.interrupted) return {};
      // Twice as many until they are too many, then halfway between.
      next = too_many > most_blocks ? std::min(2 * found_.blocks, most_blocks)
                                    : (found_.blocks + too_many) / 2;
    }
    return found_;
  }

 private:
  bool trains(int blocks) {
    options_.model.layers = blocks;
    ++found_.runs;
    try {
      found_.result = (*trial_)(options_);
    } catch (zero::Error const& error) {
      if (error.kind() != zero::ErrorKind::resource) throw;
      say(blocks, std::string("do not fit: ") + error.what());
      return false;
    }
    found_.blocks = blocks;
    found_.parameters = parameters(options_.model);
    say(blocks, "train in " + std::to_string(found_.result.needed) + " bytes a rank");
    return true;
  }

  void say(int blocks, std::string const& what) const {
    std::fprintf(stderr, "%s: %d blocks %s\n", found_.configuration.c_str(), blocks, what.c_str());
  }

  Options options_;
  Trial const* trial_;
  Capacity found_;
};

}  // namespace

std::optional<std::vector<Capacity>> find_capacity(Options const& options, Trial const& trial) {
  std::vector<Capacity> all;
  for (NamedConfiguration const& configuration : configurations()) {
    auto found = Search(configured(options, configuration), trial).largest();
    if (!found) return {};
    all.push_back(std::move(*found));
  }
  return all;
}

}  // namespace gpt
