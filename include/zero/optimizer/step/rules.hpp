/// @file
/// Which rule updates which tensor, and how ranks find out that theirs differ.
#pragma once

#include "zero/base/compare_fields.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/hash.hpp"
#include "zero/base/number.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/optimizer/model.hpp"
#include "zero/optimizer/setup/fingerprint.hpp"
#include "zero/optimizer/setup/rank_words.hpp"
#include "zero/optimizer/tables/kernel_calls.hpp"
#include "zero/optimizer/tables/rule_calls.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What a trainer called that gave this rank a number.
enum class SetBy : std::uint8_t { nothing = 0, set_lr = 1, set_rule = 2, options = 4 };

/// What the calls of all ranks are named where their numbers differ, as the beginning of a sentence
/// about these.
/// @par Collective  yes; blocks
ZERO_APART [[nodiscard]] ZERO_COLD std::string calls_of_ranks(RankWords const& ranks, SetBy own);

/// One rule, whose numbers differ from tensor to tensor: all have the common one but those of
/// groups, and single tensors, that were given their own. A tensor's goes before its group's.
class Rules {
 public:
  /// @param at_once  combinations whose scalars are computed when a step is decided, at most
  ZERO_APART ZERO_COLD Rules(Model const& model,
                             RuleCalls const& calls,
                             void const* common,
                             std::size_t at_once);

  [[nodiscard]] RuleCalls const& calls() const noexcept { return *calls_; }
  /// That of tensors without one of their own.
  [[nodiscard]] void const* common() const noexcept { return common_.rule.get(); }
  [[nodiscard]] double common_rate() const { return common_.rule.rate(); }
  /// What gave it its rate last.
  [[nodiscard]] SetBy rate_from() const noexcept { return common_.rate_from; }
  /// Has a storage, or the group that it is of, a rule of its own?
  [[nodiscard]] bool owned(std::size_t storage) const noexcept { return own_of_[storage] != none; }
  /// The rule that updates a storage; the same object for all that it updates, as long as there is
  /// an optimizer.
  [[nodiscard]] void const* of(std::size_t storage) const noexcept {
    return owned(storage) ? owned_[own_of_[storage]].rule.get() : common_.rule.get();
  }

  /// The combinations of a rule and scales whose scalars are computed when a step is decided: the
  /// first of the model's tensors. Those of others are computed before each use.
  [[nodiscard]] std::vector<TensorRule> const& combinations() const noexcept {
    return combinations_;
  }
  /// Which of them updates a storage, or their number.
  [[nodiscard]] std::size_t combination_of(std::size_t storage) const noexcept {
    return combination_of_[storage];
  }
  /// A storage's own, whether it is among them or not.
  [[nodiscard]] TensorRule rated(std::size_t storage) const noexcept {
    Tensor const& tensor = model_->tensors[storage];
    return {of(storage), tensor.learning_rate, tensor.weight_decay, owned(storage)};
  }
  /// Calls `visit(name, rule)` for each group and tensor that was given a rule of its own.
  template <class Visit>
  void for_owned(Visit const& visit) const {
    for (Own const& own : owned_) visit(own.name, own.rule.get());
  }

  /// Gives a group or a tensor a rule of its own; without a name, all that have none.
  /// @throws Error (invalid_argument) if there is no such group or tensor, or for values that make
  ///   no sense
  ZERO_APART ZERO_COLD void set(std::string_view name, void const* rule);
  /// The same of a learning rate alone: what has no rule of its own gets the one that it had.
  ZERO_APART void set_rate(std::string_view name, double rate);

  /// The same on all ranks, or some update a tensor as others do not. Without the common learning
  /// rate, which steps are told and compare.
  [[nodiscard]] std::uint64_t digest() const noexcept { return common_.hash + own_digest_; }
  /// What ranks whose digests differ have set: by which call, the first tensor, its field, the
  /// values and ranks; empty if they are the same by now.
  /// @par Collective  yes; blocks
  ZERO_APART [[nodiscard]] ZERO_COLD std::string difference(RankWords const& ranks) const;

 private:
  static constexpr std::size_t none = ~std::size_t{0};

  /// What was given to a group, or to a tensor.
  struct Own {
    std::string name;
    bool group;
    RuleCopy rule;
    SetBy rate_from = SetBy::nothing;
    std::uint64_t hash = 0;
    std::uint64_t weight = 0;  ///< of all tensors that it updates, in the digest
  };

  template <class Visit>
  void for_fields(void const* rule, Visit const& visit) const {
    calls_->fields(rule, FunctionRef<void(RuleField const&)>(visit));
  }
  ZERO_APART [[nodiscard]] std::uint64_t hash_of(void const* rule, bool with_rate) const;
  ZERO_APART static void require_valid(std::string_view name, RuleField const& field);

  /// That of a group or tensor, which begins as the one that it had; without a name the common one.
  /// Allocates when it is the first.
  ZERO_APART ZERO_COLD Own& own(std::string_view name);
  /// A rule has got other numbers.
  ZERO_APART void changed(Own& own, SetBy by);
  /// Other tensors than before have a rule of their own.
  ZERO_APART ZERO_COLD void assign();

  Model const* model_;
  RuleCalls const* calls_;
  Own common_;  ///< of no name
  std::vector<Own> owned_;
  std::vector<std::size_t> own_of_;  ///< of each storage: index into `owned_`, or none
  std::size_t at_once_;
  std::vector<TensorRule> combinations_;
  std::vector<std::size_t> combination_of_;
  std::uint64_t own_digest_ = 0;
};

#if ZERO_BODIES

ZERO_BODY std::string calls_of_ranks(RankWords const& ranks, SetBy own) {
  auto const word = static_cast<std::int64_t>(own);
  std::int64_t calls = 0;
  for (std::int64_t const each : ranks.gather({&word, 1})) calls |= each;
  auto const are = [&](SetBy call) { return calls == static_cast<std::int64_t>(call); };
  if (calls >= static_cast<std::int64_t>(SetBy::options)) return "options to step(): ";
  if (are(SetBy::set_lr)) return "values to set_lr(): ";
  if (are(SetBy::set_rule)) return "values to set_rule(): ";
  return "values to set_lr() or set_rule(): ";
}

ZERO_BODY Rules::Rules(Model const& model,
                       RuleCalls const& calls,
                       void const* common,
                       std::size_t at_once)
    : model_(&model),
      calls_(&calls),
      common_{{}, false, RuleCopy(calls, common)},
      own_of_(model.tensors.size(), none),
      at_once_(at_once),
      combination_of_(model.tensors.size(), 0) {
  changed(common_, SetBy::nothing);
  assign();
}

ZERO_BODY void Rules::set(std::string_view name, void const* rule) {
  require_valid(name, {"lr", calls_->rate(rule), 0.});
  for_fields(rule, [&](RuleField const& field) { require_valid(name, field); });
  Own& named = own(name);
  named.rule.assign(rule);
  changed(named, SetBy::set_rule);
}

ZERO_BODY void Rules::set_rate(std::string_view name, double rate) {
  require_valid(name, {"lr", rate, 0.});
  Own& named = own(name);
  named.rule.set_rate(rate);
  changed(named, SetBy::set_lr);
}

ZERO_BODY void Rules::changed(Own& own, SetBy by) {
  own.rate_from = by;
  std::uint64_t const before = std::exchange(own.hash, hash_of(own.rule.get(), &own != &common_));
  own_digest_ += own.weight * (own.hash - before);
}

ZERO_BODY void Rules::assign() {
  // The sum of each tensor's hash times a number of its own: what one rule adds to it is changed
  // without a look at the others, and does not depend on the order of calls, or on how they named
  // the same tensors.
  for (Own& own : owned_) own.weight = 0;
  for (std::size_t t = 0; t < own_of_.size(); ++t) {
    Hash number;
    number.add(t);
    if (owned(t)) owned_[own_of_[t]].weight += number.value() | 1u;
  }
  own_digest_ = 0;
  for (Own const& own : owned_) own_digest_ += own.weight * own.hash;

  auto const same = [](TensorRule const& a, TensorRule const& b) {
    return a.rule == b.rule && a.learning_rate_scale == b.learning_rate_scale &&
           a.weight_decay_scale == b.weight_decay_scale;
  };
  combinations_.clear();
  for (std::size_t t = 0; t < own_of_.size(); ++t) {
    if (model_->partition.place(t).frozen) continue;
    TensorRule const wanted = rated(t);
    auto const known = std::find_if(combinations_.begin(),
                                    combinations_.end(),
                                    [&](TensorRule const& each) { return same(each, wanted); });
    combination_of_[t] = static_cast<std::size_t>(known - combinations_.begin());
    if (known == combinations_.end() && combinations_.size() < at_once_) {
      combinations_.push_back(wanted);
    }
  }
}

ZERO_BODY std::string Rules::difference(RankWords const& ranks) const {
  std::vector<std::int64_t> hashes;
  for (std::size_t t = 0; t < own_of_.size(); ++t) {
    hashes.push_back(owned(t) ? std::bit_cast<std::int64_t>(hash_of(of(t), true)) : 0);
  }
  hashes.push_back(std::bit_cast<std::int64_t>(hash_of(common_.rule.get(), false)));
  std::size_t const t = first_difference(ranks.gather(hashes), hashes.size());
  if (t == hashes.size()) return {};
  bool const single = t < own_of_.size();
  bool const own = single && owned(t);
  std::string tensor;
  if (single) {
    Tensor const& odd = model_->tensors[t];
    tensor = Message({"tensor '", odd.name, "'"}).text();
    if (!odd.group.empty()) tensor += Message({" of group '", odd.group, "'"}).text();
    tensor += ", ";
  }
  SetBy const from = own ? owned_[own_of_[t]].rate_from : SetBy::nothing;
  std::string const first = calls_of_ranks(ranks, from) + tensor;
  std::string const rate = first + "rule.";
  std::string const other = "values to set_rule(): " + tensor + "rule.";
  Fingerprint record;
  record.add(first, "a rule of its own", std::string_view(own ? "yes" : "no"));
  for_fields(single ? of(t) : common_.rule.get(), [&](RuleField const& each) {
    bool const is_rate = each.name == "lr";
    record.add(is_rate ? rate : other, each.name, own || !is_rate ? each.value : 0.);
  });
  return record.difference(ranks, [] { return std::string(); });
}

ZERO_BODY std::uint64_t Rules::hash_of(void const* rule, bool with_rate) const {
  Hash hash;
  for_fields(rule, [&](RuleField const& field) {
    if (with_rate || field.name != "lr") hash.add(std::bit_cast<std::uint64_t>(field.value));
  });
  return hash.value();
}

ZERO_BODY void Rules::require_valid(std::string_view name, RuleField const& field) {
  char const* const of = name.empty() ? "" : " of '";
  char const* const end = name.empty() ? "" : "'";
  require_number({"rule.", field.name, of, name, end}, field.value, field.low, field.below);
}

ZERO_BODY Rules::Own& Rules::own(std::string_view name) {
  if (name.empty()) return common_;
  for (Own& known : owned_) {
    if (known.name == name) return known;
  }
  Model::Named const named = model_->named(name);
  auto const single = [&](std::size_t storage) {
    return owned(storage) && !owned_[own_of_[storage]].group;
  };
  std::size_t const first = named.storages.front();
  // By the name of another that is tied to it.
  if (!named.group && single(first)) return owned_[own_of_[first]];
  owned_.push_back({.name = std::string(name),
                    .group = named.group,
                    .rule = RuleCopy(*calls_, named.group ? common_.rule.get() : of(first))});
  for (std::size_t const storage : named.storages) {
    if (!single(storage)) own_of_[storage] = owned_.size() - 1;
  }
  owned_.back().hash = hash_of(owned_.back().rule.get(), true);
  assign();
  return owned_.back();
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
