/// @file
/// A rule of any type, as the engine calls it.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/function_ref.hpp"
#include "zero/concepts/rule.hpp"

#include <span>
#include <string_view>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What does not work on elements, as functions of one type of rule.
struct RuleCalls {
  std::string_view name;
  std::span<StateArray const> states;
  std::span<std::string_view const> states_of;  ///< rules whose states it goes on from
  std::string_view in_full;  ///< the rule that it computes, where it has that with coded states
  bool described;            ///< else `fields` shows "lr" alone
  void* (*clone)(void const* rule);
  void (*assign)(void* to, void const* from);
  void (*destroy)(void* rule) noexcept;
  double (*rate)(void const* rule);  ///< arithmetic in float rounds it first
  void (*set_rate)(void* rule, double rate);
  void (*fields)(void const* rule, FunctionRef<void(RuleField const&)> visit);
};

/// A copy of a rule. It stays where it is while its owner moves.
class RuleCopy {
 public:
  RuleCopy(RuleCalls const& calls, void const* rule) : calls_(&calls), rule_(calls.clone(rule)) {}
  RuleCopy(RuleCopy&& other) noexcept
      : calls_(other.calls_), rule_(std::exchange(other.rule_, nullptr)) {}
  RuleCopy& operator=(RuleCopy&& other) noexcept {
    std::swap(calls_, other.calls_);
    std::swap(rule_, other.rule_);
    return *this;
  }
  ~RuleCopy() {
    if (rule_ != nullptr) calls_->destroy(rule_);
  }

  [[nodiscard]] void const* get() const noexcept { return rule_; }
  void assign(void const* rule) { calls_->assign(rule_, rule); }
  [[nodiscard]] double rate() const { return calls_->rate(rule_); }
  void set_rate(double rate) { calls_->set_rate(rule_, rate); }

 private:
  RuleCalls const* calls_;
  void* rule_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
