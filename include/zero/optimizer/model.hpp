/// @file
/// What a trainer described: its tensors, and the units that it works on one after the other.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/layout/name_index.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/stacked.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/held/elements.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The tensors of a model, how they are shared out, and the order of their units. All of what an
/// optimizer has that depends on no policy.
struct Model {
  ZERO_APART ZERO_COLD Model(std::vector<Tensor> as_described,
                             Slices taken_apart,
                             Partition shared_out);

  ZERO_APART void require_unit(int unit) const;
  ZERO_APART void require_tensor(std::size_t tensor) const;
  /// The tensor of a unit that is described by a name: an index into `tensors`.
  /// @throws Error (invalid_argument) if the unit has none
  ZERO_APART [[nodiscard]] std::size_t in_unit(int unit, std::string_view name) const;
  /// Which of the described tensors this is, or has the name of.
  ZERO_APART [[nodiscard]] std::size_t index_of(Tensor const& tensor) const;
  /// Whose rule is meant by a name.
  struct Named {
    bool group = false;
    std::vector<std::size_t> storages{};  ///< never empty
  };
  /// A group, or else a tensor.
  /// @throws Error (invalid_argument) if there is neither, with the groups that there are, if a
  ///   tensor has the name of a group that it is not of, and if nothing of it is ever updated
  ZERO_APART [[nodiscard]] ZERO_COLD Named named(std::string_view name) const;
  /// What a described tensor was taken apart into: [first, last) of `tensors`.
  ZERO_APART [[nodiscard]] std::pair<std::size_t, std::size_t> slices_of(std::size_t tensor) const;
  /// The storage kind of a described tensor.
  ZERO_APART [[nodiscard]] std::size_t kind_of(std::size_t tensor) const {
    return partition.place(slices_of(tensor).first).kind;
  }
  /// Which of them has an element.
  ZERO_APART [[nodiscard]] std::size_t slice_at(std::size_t tensor, std::uint64_t element) const;
  /// What `elements_of(t)` is of all slices of a described tensor, as one.
  /// @throws Error (invalid_argument) if there is no such tensor, or they do not lie in one run
  template <class ElementsOf>
  [[nodiscard]] Elements whole(std::size_t tensor,
                               DType dtype,
                               ElementsOf const& elements_of) const {
    require_tensor(tensor);
    auto const range = slices_of(tensor);
    Elements all = elements_of(range.first);
    for (std::size_t t = range.first + 1; t < range.second; ++t) {
      Elements const next = elements_of(t);
      Array const before{static_cast<std::byte*>(all.first), dtype};
      if (next.first != before.at(all.count)) refuse_apart(tensor);
      all.count += next.count;
    }
    return all;
  }
  /// Do other tensors, of this unit or of another, add to the same gradients?
  [[nodiscard]] bool is_tied(std::size_t tensor) const noexcept {
    return !partition.place(tensor).frozen && tied[tensor] != 0;
  }
  /// A unit was given to overwrite, and this element was not.
  ZERO_APART [[noreturn]] ZERO_COLD void refuse_unwritten(int unit,
                                                          std::size_t tensor,
                                                          std::size_t element) const;

  /// The slices of a stacked tensor were to be one.
  ZERO_APART [[noreturn]] ZERO_COLD void refuse_apart(std::size_t tensor) const;

  /// A unit was to be read, and the ranks did not come together: says what this rank was at.
  ZERO_APART [[noreturn]] ZERO_COLD void refuse_read(int unit, Error const& error) const;

  std::vector<Tensor> described;
  NameIndex by_name;            ///< of `described`
  std::vector<Tensor> tensors;  ///< what units have: slices of those that are stacked
  std::vector<Slice> slices;    ///< where each of `tensors` is from
  Partition partition;
  std::vector<int> units;
  std::vector<int> units_backward;
  std::vector<std::vector<std::size_t>> unit_tensors;
  std::vector<std::uint8_t> tied;      ///< which of `tensors` share memory with another one
  std::vector<std::size_t> next_tied;  ///< behind each, that shares its memory; else their number
};

/// Who reads the parameters of a unit at the moment.
class UnitReaders {
 public:
  ZERO_APART explicit UnitReaders(std::size_t units);

  void enter(int unit) noexcept {
    ++readers_[static_cast<std::size_t>(unit)];
    ++all_;
  }
  void leave(int unit) noexcept {
    --readers_[static_cast<std::size_t>(unit)];
    --all_;
  }
  /// @param call  what a trainer called, and must not while somebody reads
  /// @throws Error (invalid_argument) if somebody does
  void require_none(std::string_view call) const {
    if (all_ != 0) refuse(call);
  }

 private:
  ZERO_APART [[noreturn]] ZERO_COLD void refuse(std::string_view call) const;

  std::vector<int> readers_;
  int all_ = 0;
};

#if ZERO_BODIES

ZERO_BODY Model::Model(std::vector<Tensor> as_described, Slices taken_apart, Partition shared_out)
    : described(std::move(as_described)),
      by_name(described),
      tensors(std::move(taken_apart.tensors)),
      slices(std::move(taken_apart.of)),
      partition(std::move(shared_out)),
      unit_tensors(static_cast<std::size_t>(partition.placement().unit_count())),
      tied(tensors.size(), 0),
      next_tied(tensors.size()) {
  int const count = partition.placement().unit_count();
  for (int unit = 0; unit < count; ++unit) {
    units.push_back(unit);
    units_backward.push_back(count - 1 - unit);
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    unit_tensors[static_cast<std::size_t>(tensors[t].unit)].push_back(t);
    std::size_t const storage = partition.place(t).storage;
    if (storage != t) tied[t] = tied[storage] = 1;
  }
  std::vector<std::size_t> behind(tensors.size(), tensors.size());
  for (std::size_t t = tensors.size(); t-- > 0;) {
    next_tied[t] = std::exchange(behind[partition.place(t).storage], t);
  }
}

ZERO_BODY void Model::require_unit(int unit) const {
  if (unit >= 0 && static_cast<std::size_t>(unit) < units.size()) return;
  fail(ErrorKind::invalid_argument,
       {"there is no unit ", unit, "; units are [0, ", units.size(), ")"});
}

ZERO_BODY void Model::require_tensor(std::size_t tensor) const {
  if (tensor < described.size()) return;
  fail(ErrorKind::invalid_argument,
       {"there is no tensor ", tensor, "; ", described.size(), " are described"});
}

ZERO_BODY std::pair<std::size_t, std::size_t> Model::slices_of(std::size_t tensor) const {
  if (slices.size() == described.size()) return {tensor, tensor + 1};  // none has two
  auto const begin = std::partition_point(
      slices.begin(), slices.end(), [&](Slice const& slice) { return slice.described < tensor; });
  auto const end = std::partition_point(
      begin, slices.end(), [&](Slice const& slice) { return slice.described == tensor; });
  return {static_cast<std::size_t>(begin - slices.begin()),
          static_cast<std::size_t>(end - slices.begin())};
}

ZERO_BODY std::size_t Model::slice_at(std::size_t tensor, std::uint64_t element) const {
  auto const [begin, end] = slices_of(tensor);
  std::size_t t = begin;
  while (t + 1 < end && slices[t + 1].first <= element) ++t;
  return t;
}

ZERO_BODY std::size_t Model::in_unit(int unit, std::string_view name) const {
  std::size_t const d = by_name.find(described, name);
  // The slices of a stacked tensor are of consecutive units.
  int const before = d < described.size() ? unit - described[d].unit : -1;
  if (before >= 0) {
    auto const [first, last] = slices_of(d);
    if (static_cast<std::size_t>(before) < last - first) {
      return first + static_cast<std::size_t>(before);
    }
  }
  fail(ErrorKind::invalid_argument, {"unit ", unit, " has no tensor '", name, "'"});
}

ZERO_BODY std::size_t Model::index_of(Tensor const& tensor) const {
  std::size_t const t = by_name.find(described, tensor.name);
  if (t < described.size()) return t;
  fail(ErrorKind::invalid_argument, {"there is no tensor '", tensor.name, "'"});
}

ZERO_BODY Model::Named Model::named(std::string_view name) const {
  Named found;
  std::size_t const single = by_name.find(described, name);
  std::vector<std::string_view> groups;
  for (std::size_t t = 0; t < described.size(); ++t) {
    std::string_view const group = described[t].group;
    found.group = found.group || group == name;
    if (group.empty() || std::find(groups.begin(), groups.end(), group) != groups.end()) continue;
    groups.push_back(group);
  }
  bool const tensor = single < described.size();
  if (found.group && tensor && described[single].group != name) {
    fail(
        ErrorKind::invalid_argument,
        {"'", name, "' is a group, and a tensor that is not of it: give one of them another name"});
  }
  if (!found.group && !tensor) {
    std::string known;
    for (std::string_view const group : groups) {
      known += Message({known.empty() ? "the groups are '" : ", '", group, "'"}).text();
    }
    if (known.empty()) known = "no tensor has a Tensor::group";
    fail(ErrorKind::invalid_argument, {"there is no group or tensor '", name, "'; ", known});
  }
  bool updated = false;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (found.group ? tensors[t].group != name : slices[t].described != single) continue;
    found.storages.push_back(partition.place(t).storage);
    updated = updated || !tensors[t].frozen;
  }
  if (!updated) {
    fail(ErrorKind::invalid_argument,
         {found.group ? "all tensors of the group '" : "the tensor '",
          name,
          found.group ? "' are frozen" : "' is frozen",
          ": no rule and no learning rate is ever used for what is never updated"});
  }
  return found;
}

ZERO_BODY void Model::refuse_unwritten(int unit, std::size_t tensor, std::size_t element) const {
  fail(ErrorKind::invalid_argument,
       {"unit ",
        unit,
        " is reduced, but element ",
        element,
        " of tensor '",
        tensors[tensor].name,
        "' was not overwritten"});
}

ZERO_BODY void Model::refuse_apart(std::size_t tensor) const {
  fail(ErrorKind::invalid_argument,
       {"tensor '",
        described[tensor].name,
        "' is stacked, and its slices lie apart; ask for those of each unit"});
}

ZERO_BODY void Model::refuse_read(int unit, Error const& error) const {
  auto const& own = unit_tensors[static_cast<std::size_t>(unit)];
  std::string_view const first = own.empty() ? "" : std::string_view(tensors[own.front()].name);
  Message const more{
      "; this rank was in parameters(), for unit ", unit, " with tensor '", first, "'"};
  fail_again(error, more.text());
}

ZERO_BODY UnitReaders::UnitReaders(std::size_t units) : readers_(units, 0) {}

ZERO_BODY void UnitReaders::refuse(std::string_view call) const {
  auto const read = std::find_if(readers_.begin(), readers_.end(), [](int of) { return of != 0; });
  fail(ErrorKind::invalid_argument,
       {call, "() while the parameters of unit ", read - readers_.begin(), " are in use"});
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
