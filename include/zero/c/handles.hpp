/// @file
/// What the handles of the C interface are, and the frame of its functions: errors become codes.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/c.h"
#include "zero/c/communicator.hpp"
#include "zero/c/optimizer.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::c {

/// Memory of the trainer's for words, or of a handle's; null for none.
struct Words {
  char* text = nullptr;   ///< ends with a zero
  std::int64_t size = 0;  ///< bytes there

  /// Writes as many of them as there is room for.
  void write(char const* words) const noexcept {
    if (text != nullptr && size > 0) {
      std::snprintf(text, static_cast<std::size_t>(size), "%s", words);
    }
  }
};

/// The code for a kind of error.
[[nodiscard]] constexpr std::int32_t code_of(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::invalid_argument: return ZERO_INVALID_ARGUMENT;
    case ErrorKind::communication: return ZERO_COMMUNICATION;
    case ErrorKind::resource: return ZERO_RESOURCE;
    case ErrorKind::data: return ZERO_DATA;
  }
  return ZERO_UNKNOWN;
}

#if defined(__cpp_exceptions)
/// The code of the exception that is being handled, and its words.
[[nodiscard]] ZERO_COLD inline std::int32_t caught(Words const& words) noexcept {
  try {
    throw;
  } catch (Failure const& failure) {
    words.write(failure.what());
    return failure.code();
  } catch (Error const& error) {
    words.write(error.what());
    return code_of(error.kind());
  } catch (std::bad_alloc const&) {
    words.write("zero: resource: out of memory");
    return ZERO_RESOURCE;
  } catch (std::exception const& error) {
    words.write(error.what());
  } catch (...) {
    words.write("zero: an exception that is not a std::exception");
  }
  return ZERO_UNKNOWN;
}
#endif

/// Does the work; what it throws becomes a code.
template <class Work>
std::int32_t attempt(Words const& words, Work const& work) noexcept {
#if defined(__cpp_exceptions)
  try {
    work();
    return ZERO_OK;
  } catch (...) {
    return caught(words);
  }
#else
  static_cast<void>(words);
  work();
  return ZERO_OK;
#endif
}

}  // namespace zero::inline ZERO_NAMESPACE::c

/// A rank, and what it owns.
struct zero_comm {
  std::unique_ptr<zero::c::Rank> rank;         ///< what moves data
  std::int32_t code = ZERO_OK;                 ///< of the last error
  bool closable = true;                        ///< is it the trainer's to close?
  std::vector<std::shared_ptr<void>> owned{};  ///< handles that end with it
  char message[2048] = "";                     ///< of the last error

  /// Where its errors are told.
  [[nodiscard]] zero::c::Words words() noexcept { return {message, sizeof(message)}; }
  /// Ends one of its handles.
  void forget(void const* handle) noexcept {
    std::erase_if(owned, [&](std::shared_ptr<void> const& each) { return each.get() == handle; });
  }
};

/// An optimizer, over its rank.
struct zero_optimizer {
  zero_comm* comm;                              ///< whose
  zero::c::AnyCommunicator any;                 ///< that the optimizer refers to
  std::unique_ptr<zero::c::Optimizer> inner{};  ///< after them: it ends first
};

namespace zero::inline ZERO_NAMESPACE::c {

/// Does the work with a rank; null is an error without words.
template <class Work>
std::int32_t with(zero_comm* comm, Work const& work) noexcept {
  if (comm == nullptr) return ZERO_INVALID_ARGUMENT;
  std::int32_t const code = attempt(comm->words(), work);
  if (code != ZERO_OK) comm->code = code;
  return code;
}
/// Does the work with an optimizer; null is an error without words.
template <class Work>
std::int32_t with(zero_optimizer* optimizer, Work const& work) noexcept {
  if (optimizer == nullptr) return ZERO_INVALID_ARGUMENT;
  return with(optimizer->comm, [&] { work(*optimizer->inner); });
}

/// A new rank for the trainer.
inline void hand_out(zero_comm** comm, std::unique_ptr<Rank> rank) {
  *comm = new zero_comm{.rank = std::move(rank)};
}

}  // namespace zero::inline ZERO_NAMESPACE::c
