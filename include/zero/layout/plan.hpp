/// @file
/// What a rank will hold and send, decided before anything is allocated, as data and as text.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/traffic_plan.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// What a plan is asked about, beside the model and the policies.
struct PlanOptions {
  int world_size = 1;             ///< ranks
  std::uint64_t micro_steps = 1;  ///< forward and backward passes in a step
  /// Bytes that the communicator will hold on a rank: what its `planned_bytes` says, if it has one.
  std::uint64_t communicator_bytes = 0;
};

/// What the policies in use call themselves.
struct PlanNames {
  std::string stage{};         ///< such as "Pos+g"
  std::string precision{};     ///< such as "bf16"
  std::string rule{};          ///< such as "AdamW"
  std::string accumulation{};  ///< such as "none"
  friend bool operator==(PlanNames const&, PlanNames const&) = default;
};

/// One array of optimizer states.
struct StateArrayBytes {
  std::string name{};              ///< as the rule calls it
  DType dtype = DType::f32;        ///< of its values
  std::uint64_t bytes = 0;         ///< held by one rank
  Coding coding = Coding::values;  ///< of these; scales of codes are an array of their own
  friend bool operator==(StateArrayBytes const&, StateArrayBytes const&) = default;
};

/// `TrafficElements` in bytes: gradients count in the wire's dtype, parameters in theirs.
struct TrafficBytes {
  std::uint64_t reduce = 0;   ///< gradients, to the ranks that own them
  std::uint64_t publish = 0;  ///< updated parameters (or, replicated, reduced gradients)
  std::uint64_t gather = 0;   ///< trained parameters, for forward and backward
  std::uint64_t frozen = 0;   ///< frozen ones, likewise
  std::uint64_t norms = 0;    ///< words of what a rule measures of trained tensors
  /// All purposes together.
  /// @throws Error (invalid_argument) if the sum does not fit in 64 bits
  [[nodiscard]] constexpr std::uint64_t total() const {
    return checked_add(checked_add(checked_add(reduce, publish), checked_add(gather, frozen)),
                       norms);
  }
  friend constexpr bool operator==(TrafficBytes const&, TrafficBytes const&) = default;
};

/// Every byte a rank will hold, by role, and everything it will send in a step. The same on all
/// ranks, since shares are equal.
///
/// Apart from pools, staging and control, `memory` is the paper's formula (ZeRO §5) for
/// `trained_elements + padding_elements` parameters, plus the parameters of frozen tensors.
struct Plan {
  int world_size = 1;                         ///< the paper's N_d
  std::uint64_t trained_elements = 0;         ///< the paper's Ψ
  std::uint64_t padding_elements = 0;         ///< of one full-size array, all ranks together
  std::uint64_t frozen_elements = 0;          ///< that nothing updates, but for whole tensors
  std::uint64_t frozen_padding_elements = 0;  ///< of one full-size array of them
  std::uint64_t whole_elements = 0;           ///< of whole tensors, padding included
  std::uint64_t asked_bucket_bytes = 0;       ///< of a bucket, in the widest wire's dtype
  /// Of the largest bucket: more than was asked for where even the smallest is, 512 elements for
  /// each rank; less for a model that is smaller.
  std::uint64_t bucket_bytes = 0;
  /// Small units that share a gather group with others, where parameters are gathered: beside a
  /// neighbour they cost nothing, alone each would cost a bucket.
  std::uint64_t joined_units = 0;
  std::uint64_t joined_groups = 0;  ///< gather groups that they share
  std::uint64_t micro_steps = 1;    ///< forward and backward passes that `traffic` counts
  StorageChoice storage{};          ///< what `memory` follows from
  KindTypes types{};                ///< in which tensors are held, by storage kind
  std::vector<std::uint64_t> kind_elements{};   ///< of one full-size array of each, with padding
  MemoryBytes memory{};                         ///< held from construction on
  std::vector<StateArrayBytes> state_arrays{};  ///< one by one; their sum is `Role::state`
  TrafficElements traffic{};                    ///< elements sent, padding included
  TrafficBytes sent{};                          ///< the same in bytes
  PlanNames names{};                            ///< what the policies call themselves
};

/// The plan for a partition whose kinds have these types. Pure arithmetic: allocates nothing but
/// the plan itself.
/// @throws Error (invalid_argument) if a size does not fit in 64 bits, or for 0 micro-steps
ZERO_APART [[nodiscard]] Plan make_plan(Partition const& partition,
                                        StorageChoice const& storage,
                                        KindTypes const& types,
                                        PlanNames names,
                                        std::uint64_t micro_steps = 1);

/// The plan as a table for people: bytes by role and elements by purpose, with the formula that
/// each follows. In the formulas Ψ includes padding. UTF-8; ends with a newline.
ZERO_APART [[nodiscard]] std::string to_string(Plan const& plan);

/// The plan in one line, without a newline: roles and purposes that cost nothing are left out.
ZERO_APART [[nodiscard]] std::string to_line(Plan const& plan);

namespace detail {

/// Is it an array of this form?
[[nodiscard]] inline bool is_array(StateArrayBytes const& array, ArrayForm const& form) {
  return array.name == form.name && array.dtype == form.dtype && array.coding == form.coding;
}

/// Decimal digits with a comma before every third one from the right.
ZERO_APART [[nodiscard]] std::string with_commas(std::uint64_t value);

/// Bytes in the largest binary unit of which there is at least one.
ZERO_APART [[nodiscard]] std::string in_binary_units(std::uint64_t bytes);

/// With one decimal; "-" of nothing.
ZERO_APART [[nodiscard]] std::string percentage(std::uint64_t part, std::uint64_t whole);

/// Rows of a table: a name, right-aligned columns of ASCII, and a remark that may be UTF-8.
class TextTable {
 public:
  static constexpr std::size_t columns = 3;

  ZERO_APART void add(std::string name, std::array<std::string, columns> cells, std::string remark);

  ZERO_APART [[nodiscard]] std::string text() const;

 private:
  struct Row {
    std::string name;
    std::array<std::string, columns> cells;
    std::string remark;
  };
  std::vector<Row> rows_;
};

}  // namespace detail

#if ZERO_BODIES

ZERO_BODY Plan make_plan(Partition const& partition,
                         StorageChoice const& storage,
                         KindTypes const& types,
                         PlanNames names,
                         std::uint64_t micro_steps) {
  if (micro_steps == 0) fail(ErrorKind::invalid_argument, "a step has at least 1 micro-step");
  Plan plan;
  plan.types = types;
  StorageElements const elements = storage_elements(partition, storage, plan.types);
  plan.world_size = partition.world_size();
  plan.trained_elements = partition.placement().trainable_elements();
  auto const& kinds = partition.placement().kinds();
  for (std::size_t const t : partition.placement().by_offset()) {
    TensorPlace const& place = partition.place(t);
    if (place.frozen && !kinds[place.kind].whole) plan.frozen_elements += place.count;
  }
  plan.micro_steps = micro_steps;
  plan.storage = storage;
  plan.memory = memory_bytes(elements, plan.types);
  StorageForm const form = storage_form(storage);
  if (form.refresh == StorageForm::Refresh::gather) {
    // A unit may share buckets of two kinds.
    std::vector<std::uint8_t> joined(static_cast<std::size_t>(partition.placement().unit_count()));
    for (GatherGroup const& gathered : partition.gather_groups()) {
      std::uint64_t joins = 0;
      for (std::size_t const g : gathered.groups) {
        BucketGroup const& group = partition.groups()[g];
        if (group.tied || group.units.size() == 1) continue;
        joins = 1;
        for (int const unit : group.units) joined[static_cast<std::size_t>(unit)] = 1;
      }
      plan.joined_groups += joins;
    }
    for (std::uint8_t const each : joined) plan.joined_units += each;
  }
  auto const add = [](std::uint64_t& sum, std::uint64_t more) { sum = checked_add(sum, more); };
  for (std::size_t k = 0; k < plan.types.size(); ++k) {
    StorageTypes const& kind = plan.types[k];
    plan.kind_elements.push_back(partition.padded_elements(k));
    std::uint64_t const wire = size_of(kind.wire);
    std::uint64_t const parameter = size_of(kind.parameter);
    TrafficElements const traffic = traffic_elements(partition, storage, micro_steps, k);
    if (kind.frozen()) {
      add(kinds[k].whole ? plan.whole_elements : plan.frozen_padding_elements,
          plan.kind_elements[k]);
      add(plan.traffic.frozen, traffic.frozen);
      add(plan.sent.frozen, checked_mul(traffic.frozen, parameter));
      continue;
    }
    add(plan.padding_elements, plan.kind_elements[k]);
    plan.asked_bucket_bytes =
        (std::max)(plan.asked_bucket_bytes, checked_mul(partition.asked_bucket_elements(), wire));
    plan.bucket_bytes =
        (std::max)(plan.bucket_bytes, checked_mul(partition.largest_bucket(k), wire));
    for (ArrayForm const& state : kind.states()) {
      auto array = std::find_if(
          plan.state_arrays.begin(), plan.state_arrays.end(), [&](StateArrayBytes const& other) {
            return detail::is_array(other, state);
          });
      if (array == plan.state_arrays.end()) {
        array = plan.state_arrays.insert(array,
                                         {std::string(state.name), state.dtype, 0, state.coding});
      }
      std::uint64_t const entries = entries_of(state.coding, elements.kinds[k].updated);
      add(array->bytes, checked_mul(entries, held_bytes(state.dtype, state.coding)));
    }
    // Where every rank updates everything, it is the reduced gradients that are published, in the
    // dtype in which they were kept.
    DType const kept = form.reduced == StorageForm::Reduced::sums ? kind.accumulate : kind.wire;
    DType const published = form.update == StorageForm::Update::share ? kind.parameter : kept;
    add(plan.traffic.reduce, traffic.reduce);
    add(plan.traffic.publish, traffic.publish);
    add(plan.traffic.gather, traffic.gather);
    add(plan.sent.reduce, checked_mul(traffic.reduce, wire));
    add(plan.sent.publish, checked_mul(traffic.publish, size_of(published)));
    add(plan.sent.gather, checked_mul(traffic.gather, parameter));
  }
  plan.traffic.norms = norms_sent(
      partition.placement().trained_tensors(), storage.norm_words, partition.world_size());
  plan.sent.norms = checked_mul(plan.traffic.norms, sizeof(std::int64_t));
  plan.padding_elements -= plan.trained_elements;
  plan.frozen_padding_elements -= plan.frozen_elements;
  plan.names = std::move(names);
  // Refused here, not by whoever prints the plan.
  (void)plan.memory.total();
  (void)plan.traffic.total();
  (void)plan.sent.total();
  return plan;
}

namespace detail {

ZERO_BODY std::string with_commas(std::uint64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

/// A count of tenths as a decimal; independent of the locale, unlike printf.
ZERO_APART [[nodiscard]] std::string with_one_decimal(double value) {
  // Never negative, and <cmath> is slow to compile.
  auto const tenths = static_cast<std::uint64_t>(value * 10. + 0.5);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
}

ZERO_BODY std::string percentage(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "-";
  return with_one_decimal(100. * static_cast<double>(part) / static_cast<double>(whole)) + "%";
}

ZERO_BODY std::string in_binary_units(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 7> units{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < KiB) return std::to_string(bytes) + " B";
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // 1023.95 would be printed as 1024.0.
  while (value >= 1023.95 && unit + 1 < units.size()) {
    value /= 1024.;
    ++unit;
  }
  return with_one_decimal(value) + " " + std::string(units[unit]);
}

ZERO_BODY void TextTable::add(std::string name,
                              std::array<std::string, columns> cells,
                              std::string remark) {
  rows_.push_back({std::move(name), std::move(cells), std::move(remark)});
}

ZERO_BODY std::string TextTable::text() const {
  std::size_t name_width = 0;
  std::array<std::size_t, columns> widths{};
  for (Row const& row : rows_) {
    name_width = (std::max)(name_width, row.name.size());
    for (std::size_t c = 0; c < columns; ++c) {
      widths[c] = (std::max)(widths[c], row.cells[c].size());
    }
  }
  std::string result;
  for (Row const& row : rows_) {
    std::string line = row.name + std::string(name_width - row.name.size(), ' ');
    for (std::size_t c = 0; c < columns; ++c) {
      line.append(2 + widths[c] - row.cells[c].size(), ' ');
      line += row.cells[c];
    }
    if (!row.remark.empty()) line += "  " + row.remark;
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + "\n";
  }
  return result;
}

/// A number of 32nds, as a decimal without trailing zeros.
ZERO_APART [[nodiscard]] std::string with_decimals(std::uint64_t of_32) {
  std::string text = std::to_string(of_32 / 32);
  if (of_32 % 32 == 0) return text;
  std::string decimals = std::to_string(100000 + of_32 % 32 * 3125);
  decimals.front() = '.';
  while (decimals.back() == '0') decimals.pop_back();
  return text + decimals;
}

/// "2Ψ" or "2Ψ/N": an array of that many bytes an element, whole or shared; where trained tensors
/// differ in that, of those of each type.
/// @param scales  bytes of a group of elements, likewise
template <class Width, class Scales>
[[nodiscard]] std::string array_formula(Plan const& plan,
                                        bool sharded,
                                        Width const& per_element,
                                        Scales const& scales) {
  auto const width = [&](StorageTypes const& kind) -> std::uint64_t {
    return coded_group * per_element(kind) + scales(kind);
  };
  std::string formula;
  bool const alike = std::all_of(plan.types.begin(), plan.types.end(), [&](auto const& kind) {
    return kind.frozen() || width(kind) == width(plan.types.front());
  });
  for (StorageTypes const& kind : plan.types) {
    std::uint64_t const bytes = kind.frozen() ? 0 : width(kind);
    if (bytes == 0) continue;
    formula += (formula.empty() ? "" : " + ") + with_decimals(bytes) + "Ψ";
    if (!alike) formula += "_" + std::string(name(kind.parameter));
    if (!alike && kind.coded()) formula += "_coded";
    if (sharded) formula += "/N";
    if (alike) break;
  }
  return formula;
}
template <class Width>
[[nodiscard]] std::string array_formula(Plan const& plan, bool sharded, Width const& width) {
  return array_formula(plan, sharded, width, [](StorageTypes const&) { return std::uint64_t{0}; });
}

ZERO_APART [[nodiscard]] std::string gradients_formula(Plan const& plan) {
  auto const wire = [](StorageTypes const& kind) { return size_of(kind.wire); };
  auto const sum = [](StorageTypes const& kind) { return size_of(kind.accumulate); };
  StorageForm const form = storage_form(plan.storage);
  std::string formula;
  if (form.gradients == StorageForm::Gradients::whole) formula = array_formula(plan, false, wire);
  bool const sums = form.reduced == StorageForm::Reduced::sums;
  if (sums || form.reduced == StorageForm::Reduced::own) {
    formula += (formula.empty() ? "" : " + ") +
               (sums ? array_formula(plan, true, sum) : array_formula(plan, true, wire));
  }
  bool const lent = form.gradients == StorageForm::Gradients::lent;
  return lent ? formula + ", full ones lent by the trainer" : formula;
}

ZERO_APART [[nodiscard]] std::string parameters_formula(Plan const& plan) {
  StorageForm const form = storage_form(plan.storage);
  if (form.parameters == StorageForm::Parameters::lent) return "lent by the trainer";
  bool const share = form.parameters == StorageForm::Parameters::share;
  auto const own = [](StorageTypes const& kind) { return size_of(kind.parameter); };
  std::string formula = array_formula(plan, share, own);
  if (plan.frozen_elements + plan.whole_elements == 0) return formula;
  std::uint64_t const width = own(plan.types.back());
  for (StorageTypes const& kind : plan.types) {
    if (!kind.frozen() || own(kind) == width) continue;
    return formula + " + frozen tensors by their types";
  }
  std::string const more = " + " + std::to_string(width);
  if (plan.frozen_elements > 0) formula += more + "Ψ_frozen" + (share ? "/N" : "");
  if (plan.whole_elements > 0) formula += more + " per whole element";
  return formula;
}

ZERO_APART [[nodiscard]] std::string role_formula(Plan const& plan, Role role) {
  bool const sharded = storage_form(plan.storage).update == StorageForm::Update::share;
  switch (role) {
    case Role::parameters: return parameters_formula(plan);
    case Role::gradients: return gradients_formula(plan);
    case Role::master:
      return array_formula(
          plan, sharded, [](StorageTypes const& kind) { return kind.master_bytes(); });
    case Role::state:
      return array_formula(
          plan,
          sharded,
          [](StorageTypes const& kind) { return kind.state_bytes(); },
          [](StorageTypes const& kind) { return kind.scale_bytes(); });
    case Role::gradient_pool: return "the largest units under way, all tied ones";
    case Role::gather_pool: return "the largest unit, times 1 + units gathered ahead";
    case Role::staging: return "buckets";
    case Role::control: return "norm, loss scale, step count";
    case Role::communicator: return "shared by all optimizers over it";
    case Role::activations:
    case Role::activation_pool:
    case Role::activation_staging: break;
  }
  return "";
}

ZERO_APART [[nodiscard]] std::string held_table(Plan const& plan) {
  std::uint64_t const total = plan.memory.total();
  bool const sharded = storage_form(plan.storage).update == StorageForm::Update::share;
  TextTable table;
  auto const add = [&](std::string name, std::uint64_t bytes, std::string remark) {
    table.add(std::move(name),
              {with_commas(bytes), in_binary_units(bytes), percentage(bytes, total)},
              bytes == 0 ? "" : std::move(remark));
  };
  table.add("held per rank", {"bytes", "", "%"}, "formula");
  for (int r = 0; r < optimizer_role_count; ++r) {
    auto const role = static_cast<Role>(r);
    add(std::string(name(role)), plan.memory[role], role_formula(plan, role));
    if (role != Role::state) continue;
    for (StateArrayBytes const& array : plan.state_arrays) {
      bool const scales = array.coding == Coding::root_scales;
      auto const bytes = [&](StorageTypes const& kind) {
        for (ArrayForm const& state : kind.states()) {
          if (is_array(array, state)) return held_bytes(state.dtype, state.coding);
        }
        return std::size_t{0};
      };
      auto const none = [](StorageTypes const&) { return std::size_t{0}; };
      add("  " + array.name +
              (scales                     ? " scales"
               : has_scales(array.coding) ? " codes"
                                          : ""),
          array.bytes,
          scales ? array_formula(plan, sharded, none, bytes) : array_formula(plan, sharded, bytes));
    }
  }
  add("total", total, "");
  return table.text();
}

ZERO_APART [[nodiscard]] std::string sent_table(Plan const& plan) {
  std::uint64_t const total = plan.sent.total();
  std::string const steps =
      plan.micro_steps == 1 ? "" : " x " + std::to_string(plan.micro_steps) + " micro-steps";
  TextTable table;
  auto const add =
      [&](std::string name, std::uint64_t elements, std::uint64_t bytes, std::string remark) {
        table.add(std::move(name),
                  {with_commas(elements), with_commas(bytes), percentage(bytes, total)},
                  elements == 0 ? "" : std::move(remark));
      };
  table.add("sent per rank and step", {"elements", "bytes", "%"}, "formula");
  add("reduce",
      plan.traffic.reduce,
      plan.sent.reduce,
      "Ψ(N-1)/N" + (storage_form(plan.storage).reduced == StorageForm::Reduced::sums ? steps : ""));
  add("publish", plan.traffic.publish, plan.sent.publish, "Ψ(N-1)/N");
  // What is used by one unit only is gathered twice; the rest are tied tensors used again.
  auto const formula = [&](std::string const& psi, std::uint64_t all, std::uint64_t elements) {
    auto const ranks = static_cast<std::uint64_t>(plan.world_size);
    bool const again = elements > 2 * plan.micro_steps * (all / ranks * (ranks - 1));
    return "2" + psi + "(N-1)/N" + steps + (again ? ", and tied tensors again" : "");
  };
  std::uint64_t const trained = plan.trained_elements + plan.padding_elements;
  std::uint64_t const frozen = plan.frozen_elements + plan.frozen_padding_elements;
  add("gather", plan.traffic.gather, plan.sent.gather, formula("Ψ", trained, plan.traffic.gather));
  if (frozen > 0) {
    add("frozen",
        plan.traffic.frozen,
        plan.sent.frozen,
        formula("Ψ_frozen", frozen, plan.traffic.frozen));
  }
  if (plan.traffic.norms > 0) {
    add("norms", plan.traffic.norms, plan.sent.norms, "2W(N-1)/N, W words of each trained tensor");
  }
  add("total", plan.traffic.total(), total, "");
  return table.text();
}

}  // namespace detail

ZERO_BODY std::string to_string(Plan const& plan) {
  auto const elements = [](std::string const& psi,
                           std::uint64_t own,
                           std::string const& what,
                           std::uint64_t padding) {
    return psi + " = " + detail::with_commas(own + padding) +
           " elements: " + detail::with_commas(own) + what + detail::with_commas(padding) +
           " padding (" + detail::percentage(padding, own + padding) + ")";
  };
  // Where types differ, how many elements each has.
  auto const types = [&](bool frozen) {
    std::string all;
    std::string_view first;
    bool differ = false;
    for (std::size_t k = 0; k < plan.types.size(); ++k) {
      if (plan.types[k].frozen() != frozen || plan.kind_elements[k] == 0) continue;
      std::string_view const type = name(plan.types[k].parameter);
      differ = differ || (!first.empty() && type != first);
      first = type;
      all += (all.empty() ? "; " : ", ") + detail::with_commas(plan.kind_elements[k]) + " of " +
             std::string(type);
    }
    return differ ? all : "";
  };
  std::string text = "plan: stage " + plan.names.stage + ", precision " + plan.names.precision +
                     ", rule " + plan.names.rule + ", accumulation " + plan.names.accumulation +
                     ", N = " + std::to_string(plan.world_size) + "\n";
  text += elements("Ψ", plan.trained_elements, " trained, ", plan.padding_elements) + types(false);
  if (plan.frozen_elements > 0) {
    text += "\n" +
            elements("Ψ_frozen", plan.frozen_elements, " frozen, ", plan.frozen_padding_elements);
  }
  if (plan.whole_elements > 0) {
    text += "; " + detail::with_commas(plan.whole_elements) + " more are whole";
  }
  text += types(true);
  if (plan.bucket_bytes > plan.asked_bucket_bytes) {
    text += "\nbuckets of " + detail::in_binary_units(plan.bucket_bytes) + " instead of " +
            detail::in_binary_units(plan.asked_bucket_bytes) +
            ": the smallest has 512 elements for each rank";
  }
  if (plan.joined_units > 0) {
    text += "\n" + detail::with_commas(plan.joined_units) + " units share " +
            detail::with_commas(plan.joined_groups) +
            (plan.joined_groups == 1 ? " gather group" : " gather groups") +
            ": a small one lies in what would be a neighbour's padding";
  }
  return text + "\n\n" + detail::held_table(plan) + "\n" + detail::sent_table(plan);
}

ZERO_BODY std::string to_line(Plan const& plan) {
  std::string line = plan.names.stage + " " + plan.names.precision + " " + plan.names.rule +
                     " N=" + std::to_string(plan.world_size) + ": holds " +
                     detail::in_binary_units(plan.memory.total());
  std::string separator = " (";
  for (int r = 0; r < role_count; ++r) {
    auto const role = static_cast<Role>(r);
    if (plan.memory[role] == 0) continue;
    line += separator + std::string(name(role)) + " " + detail::in_binary_units(plan.memory[role]);
    separator = ", ";
  }
  line += separator == ", " ? ")" : "";
  return line + ", sends " + detail::with_commas(plan.traffic.total()) + " elements (" +
         detail::in_binary_units(plan.sent.total()) + ") a step";
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE
