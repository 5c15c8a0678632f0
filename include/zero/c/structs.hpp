/// @file
/// From the structs of the C interface to what the library takes, with a sentence for each mistake.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/c.h"
#include "zero/concepts/overflow.hpp"
#include "zero/layout/plan.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/api/step_options.hpp"
#include "zero/optimizer/held/elements.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::c {

/// An error with a code of its own.
class CodedError : public std::exception {
 public:
  /// @param code   of `zero_code`, or of a function of the trainer's
  /// @param words  for it
  CodedError(std::int32_t code, std::string words) : code_(code), words_(std::move(words)) {}
  /// The code.
  [[nodiscard]] std::int32_t code() const noexcept { return code_; }
  /// The words.
  [[nodiscard]] char const* what() const noexcept override { return words_.c_str(); }

 private:
  std::int32_t code_;
  std::string words_;
};

/// @throws CodedError always; with exceptions disabled as `fail`
[[noreturn]] ZERO_COLD inline void fail_with(std::int32_t code, Message const& words) {
#if defined(__cpp_exceptions)
  throw CodedError(code, words.text());
#else
  static_cast<void>(code);
  fail(ErrorKind::invalid_argument, words);
#endif
}

/// @throws Error (invalid_argument) if that argument of a call is null
inline void require(void const* argument, std::string_view name) {
  if (argument == nullptr) fail(ErrorKind::invalid_argument, {name, " is null"});
}
/// Bytes of a struct in 0.2, if it was smaller.
template <class Struct>
inline constexpr std::size_t first_size = sizeof(Struct);
/// Without what was put behind `reserved`.
template <>
inline constexpr std::size_t first_size<zero_step_options> = offsetof(zero_step_options, unsaid);
/// Without what was put behind `lock`.
template <class Struct>
  requires requires(Struct const& options) { options.lock; }
inline constexpr std::size_t first_size<Struct> = offsetof(Struct, without_frozen);
/// Without `overflow`, which ends several structs.
template <class Struct>
  requires requires(Struct const& options) { options.overflow; }
inline constexpr std::size_t first_size<Struct> = offsetof(Struct, overflow);
/// Without what measures tensors.
template <>
inline constexpr std::size_t first_size<zero_rule> = offsetof(zero_rule, min_ratio);
/// They ended with such a rule.
template <>
inline constexpr std::size_t first_size<zero_options> =
    offsetof(zero_options, rule) + first_size<zero_rule>;

/// @throws Error (invalid_argument) if the struct is null or says another size than this library's,
///   or that of 0.2
template <class Struct>
void require_struct(Struct const* from, std::string_view name) {
  require(from, name);
  if (from->size == static_cast<std::int64_t>(sizeof(Struct))) return;
  if (from->size == static_cast<std::int64_t>(first_size<Struct>)) return;
  fail(ErrorKind::invalid_argument,
       {"a ",
        name,
        " says it has ",
        from->size,
        " bytes, but it has ",
        sizeof(Struct),
        " here: make it with ",
        name,
        "_of, and compile both sides with the same zero/c.h"});
}
/// What a trainer has filled in, and `standard` for the rest: for all of it if that is null.
/// @throws Error (invalid_argument) as `require_struct`
template <class Struct>
[[nodiscard]] Struct struct_or(Struct const* from, Struct const& standard, std::string_view name) {
  Struct filled = standard;
  if (from == nullptr) return filled;
  require_struct(from, name);
  std::memcpy(&filled, from, static_cast<std::size_t>(from->size));
  return filled;
}
/// @throws Error (invalid_argument) unless it is 0, or 1
inline void require_flag(std::int32_t value, std::string_view name) {
  if (value != 0 && value != 1)
    fail(ErrorKind::invalid_argument, {name, " is ", value, ", but a flag is 0 or 1"});
}
/// @throws Error (invalid_argument) unless it is 0
inline void require_reserved(std::int32_t value, std::string_view name) {
  if (value != 0)
    fail(ErrorKind::invalid_argument, {"reserved of a ", name, " is ", value, ", but must be 0"});
}
/// What a struct of options says of values that do not fit.
/// @throws Error (invalid_argument) unless that is of `zero_overflow`, and what is reserved is 0
template <class Struct>
[[nodiscard]] Overflow overflow_of(Struct const& from, std::string_view name) {
  require_reserved(from.reserved, name);
  if constexpr (requires { from.reserved_2; }) require_reserved(from.reserved_2, name);
  require_flag(from.overflow, "overflow");
  return static_cast<Overflow>(from.overflow);
}
/// Options that are sound as far as every choice reads them.
/// @throws Error (invalid_argument) for null, and for structs that make no sense
[[nodiscard]] inline zero_options options_from(zero_options const* given) {
  require(given, "zero_options");
  zero_options const from = struct_or(given, zero_options_of(0, 0, 0), "zero_options");
  static_cast<void>(overflow_of(from, "zero_options"));
  bool const scale =
      from.loss_scale >= 0. && from.loss_scale_interval >= 0 && from.loss_scale_patience >= 0;
  if (scale) return from;
  fail(ErrorKind::invalid_argument,
       {"a loss scale of ",
        from.loss_scale,
        ", an interval of ",
        from.loss_scale_interval,
        ", a patience of ",
        from.loss_scale_patience,
        ": none of them can be below 0"});
}
/// A count or size that is not negative.
/// @throws Error (invalid_argument) if it is
[[nodiscard]] inline std::size_t unsigned_of(std::int64_t value, std::string_view name) {
  if (value < 0) fail(ErrorKind::invalid_argument, {name, " is ", value});
  return static_cast<std::size_t>(value);
}

/// @throws Error (invalid_argument) unless an array has an element for each of `wanted` tensors
inline void require_all(std::size_t wanted,
                        std::int32_t count,
                        void const* array,
                        std::string_view name,
                        std::string_view whole = "model") {
  if (count < 0 || static_cast<std::size_t>(count) != wanted) {
    fail(ErrorKind::invalid_argument,
         {name, " has ", count, " elements, but the ", whole, " has ", wanted, " tensors"});
  }
  if (count > 0) require(array, name);
}

/// What a trainer lends of a tensor.
/// @param lent    where it is, and how large
/// @param tensor  its name
/// @param what    of it
/// @throws Error (invalid_argument) for a count below 0
[[nodiscard]] inline zero::detail::Elements elements_of(zero_span const& lent,
                                                        std::string_view tensor,
                                                        std::string_view what) {
  if (lent.count < 0) {
    fail(ErrorKind::invalid_argument,
         {what, ": of tensor '", tensor, "', ", lent.count, " elements are lent"});
  }
  return {lent.data, static_cast<std::size_t>(lent.count)};
}

/// What a tensor is held as, and what its opaque elements are called in files.
struct NamedDType {
  DType held;          ///< here
  FileDType called{};  ///< none: as what is held
};
/// In the order of `zero_dtype`, from ZERO_DTYPE_F32 on.
inline constexpr NamedDType dtypes[] = {{DType::f32},
                                        {DType::f64},
                                        {DType::bf16},
                                        {DType::f16},
                                        {DType::i32},
                                        {DType::i64},
                                        {DType::u8},
                                        {DType::u8, "I8"},
                                        {DType::u8, "BOOL"},
                                        {DType::u8, "F8_E4M3"},
                                        {DType::u8, "F8_E5M2"},
                                        {DType::i32, "U32"},
                                        {DType::i64, "U64"}};
static_assert(std::size(dtypes) == ZERO_DTYPE_U64 && dtypes[ZERO_DTYPE_U8 - 1].held == DType::u8);
/// The model.
/// @throws Error (invalid_argument) for structs that make no sense
[[nodiscard]] inline std::vector<Tensor> tensors_of(zero_tensor const* tensors,
                                                    std::int32_t count) {
  if (count > 0) require(tensors, "tensors");
  std::vector<Tensor> model;
  model.reserve(unsigned_of(count, "the number of tensors"));
  for (std::int32_t t = 0; t < count; ++t) {
    zero_tensor const& from = tensors[t];
    require_struct(&from, "zero_tensor");
    if (from.name == nullptr) fail(ErrorKind::invalid_argument, {"tensor ", t, " has no name"});
    if (from.dims < 0 || from.dims > ZERO_MAX_DIMS) {
      fail(ErrorKind::invalid_argument,
           {"tensor '", from.name, "' has ", from.dims, " dimensions; at most ", ZERO_MAX_DIMS});
    }
    if (from.dtype < 0 || from.dtype > ZERO_DTYPE_U64) {
      fail(ErrorKind::invalid_argument,
           {"tensor '", from.name, "' has the type ", from.dtype, ", which zero_dtype lacks"});
    }
    constexpr std::int32_t flags =
        ZERO_FROZEN | ZERO_STACKED | ZERO_PARTITIONED | ZERO_WHOLE | ZERO_FULL_STATES;
    if ((from.flags & ~flags) != 0) {
      fail(ErrorKind::invalid_argument, {"tensor '", from.name, "' has unknown flags"});
    }
    Tensor tensor{.name = from.name,
                  .shape = {},
                  .unit = from.unit,
                  .weight_decay = static_cast<double>(from.weight_decay),
                  .learning_rate = static_cast<double>(from.learning_rate),
                  .frozen = (from.flags & ZERO_FROZEN) != 0,
                  .whole = (from.flags & ZERO_WHOLE) != 0,
                  .tied_to = from.tied_to != nullptr ? from.tied_to : "",
                  .partitioned = (from.flags & ZERO_PARTITIONED) != 0,
                  .stacked = (from.flags & ZERO_STACKED) != 0,
                  .full_states = (from.flags & ZERO_FULL_STATES) != 0,
                  .group = from.group != nullptr ? from.group : ""};
    if (from.dtype != ZERO_DTYPE_OF_PRECISION) {
      tensor.dtype = dtypes[from.dtype - 1].held;
      tensor.file_dtype = dtypes[from.dtype - 1].called;
    }
    for (std::int32_t i = 0; i < from.dims; ++i) {
      tensor.shape.push_back(unsigned_of(from.shape[i], "an extent of a shape"));
    }
    model.push_back(std::move(tensor));
  }
  return model;
}

/// Options of a step; nothing given stands for those by default.
[[nodiscard]] inline StepOptions step_options_of(zero_step_options const& from) {
  require_reserved(from.reserved, "zero_step_options");
  require_reserved(from.reserved_2, "zero_step_options");
  if (from.unsaid < ZERO_UNSAID_FAIL || from.unsaid > ZERO_UNSAID_REST) {
    fail(ErrorKind::invalid_argument, {"there is no ", from.unsaid, " of zero_unsaid"});
  }
  require_flag(from.skip_non_finite, "skip_non_finite");
  require_flag(from.overlap_publish, "overlap_publish");
  require_flag(from.stop, "stop");
  StepOptions options;
  if (from.learning_rate != ZERO_DEFAULT) {
    options.learning_rate = from.learning_rate;
  }
  if (from.max_norm != ZERO_DEFAULT) options.max_norm = from.max_norm;
  if (from.skip_non_finite != 0) options.non_finite = NonFinite::skip;
  options.unsaid = static_cast<Unsaid>(from.unsaid);
  options.overlap_publish = from.overlap_publish != 0;
  options.stop = from.stop != 0;
  if (from.count != 0) options.count = static_cast<long>(from.count);
  return options;
}

/// What a step did.
inline void write(zero_report& report, StepReport const& from) noexcept {
  report.step = from.step;
  report.grad_norm = from.grad_norm;
  report.clip_coefficient = from.clip_coefficient;
  report.weight = from.weight;
  report.loss_scale = static_cast<double>(from.loss_scale);
  report.skipped = from.skipped ? 1 : 0;
  report.stop = from.stop ? 1 : 0;
}

/// Bytes by role, those of an optimizer.
inline void write(std::int64_t* held, MemoryBytes const& from) noexcept {
  static_assert(optimizer_role_count == ZERO_ROLES);
  for (int role = 0; role < ZERO_ROLES; ++role) {
    held[role] = static_cast<std::int64_t>(from[static_cast<Role>(role)]);
  }
}

/// What a plan says.
inline void write(zero_plan& plan, Plan const& from) {
  write(plan.held, from.memory);
  plan.total = static_cast<std::int64_t>(from.memory.total());
  plan.trained_elements = static_cast<std::int64_t>(from.trained_elements);
  plan.padding_elements = static_cast<std::int64_t>(from.padding_elements);
  plan.sent_elements = static_cast<std::int64_t>(from.traffic.total());
  plan.sent_bytes = static_cast<std::int64_t>(from.sent.total());
}

}  // namespace zero::inline ZERO_NAMESPACE::c
