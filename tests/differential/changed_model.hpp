/// @file
/// A case that is saved, and another model that goes on from there: what a load has to make of each
/// array that was saved. Plain data, and nothing of the library.
#pragma once

#include "case.hpp"
#include "reference.hpp"
#include "support/standard.hpp"

namespace differential {

/// What is changed between save and load; taking one out leaves what the others do.
enum ModelChange : unsigned {
  ties = 1u << 0,
  unties = 1u << 1,
  grows = 1u << 2,     ///< more rows
  thaws = 1u << 3,     ///< or freezes
  renames = 1u << 4,   ///< with and without `names`; some swap theirs
  reshapes = 1u << 5,  ///< as many elements
  narrows = 1u << 6,   ///< or widens: another precision
  stacks = 1u << 7,    ///< layers become one tensor, or one becomes its layers
  removes = 1u << 8,
  adds = 1u << 9,
  reorders = 1u << 10,  ///< to other places and units
  misnames = 1u << 11,  ///< `names` of what is not there, or that make two tensors one
  other_rule = 1u << 12,
  retypes = 1u << 13,  ///< of 16 or 32 bits, numbers or bytes
  all_model_changes = (1u << 14) - 1
};

struct ChangedModel {
  std::uint64_t seed;
  unsigned changes;
  Case before;                                 ///< saved when it has ended
  Case after;                                  ///< loads before step `at`
  int at;                                      ///< of its steps
  std::map<std::string, std::string> names{};  ///< as in LoadOptions, as are the next three
  bool strict;
  bool parameters_only;
  bool verify_first;
  bool finds;         ///< its checkpoint itself, and loads that; otherwise it resumes
  bool saves_frozen;  ///< as in SaveOptions
  bool loads_frozen;  ///< as in LoadOptions
};

/// Draws one for at most so many ranks.
/// @param available  policies, of which the two cases have some
ChangedModel draw_changed(std::uint64_t seed, std::span<Policies const> available, int most_ranks);
std::vector<std::string> names_of(unsigned changes);
std::string describe(ChangedModel const& test);
/// The same with something left out.
std::vector<ChangedModel> simpler(ChangedModel const& test);

/// What a load must say that it took of a tensor.
struct Taken {
  bool values = false;
  bool states = false;
  long count = 0;
};

/// An array that was saved, or all of a tensor's states, and where it may go.
struct Fate {
  std::string array{};
  bool states = false;
  std::vector<std::size_t> takers{};  ///< tensors that have to say that they took it, or
  std::set<std::string> names{};      ///< one of these is to be named
};

/// What a load must come to.
struct Verdict {
  /// Is it refused, and with which kind of error? Nothing is changed then.
  std::optional<std::string> refused{};
  std::set<std::string> said{};  ///< in the error: all that does not fit, in quotation marks
  std::set<std::string> missing{}, unexpected{}, unfit{}, left_out{};  ///< names in the report
  std::vector<Taken> taken{};
  std::vector<Fate> fates{};  ///< of all that was saved
  Loaded loaded{};
};
/// @param saved  the last step of the case before
/// @param own    what the case after would be without a load
Verdict judge(ChangedModel const& test,
              ExpectedStep const& saved,
              std::vector<ExpectedStep> const& own);

}  // namespace differential
