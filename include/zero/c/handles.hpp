/// @file
/// What the handles of the C interface are, and the frame of its functions: errors become codes.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/c.h"
#include "zero/c/handle_table.hpp"
#include "zero/c/optimizer.hpp"
#include "zero/c/rank.hpp"

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
  } catch (CodedError const& failure) {
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

/// What the trainer knows as a `zero_comm`: a rank, and what it owns.
class Comm {
 public:
  /// What its handles are.
  static constexpr HandleKind kind = HandleKind::comm;

  /// @param moves      the rank, which it takes over
  /// @param may_close  is it the trainer's to close?
  Comm(std::unique_ptr<AnyRank> moves, bool may_close)
      : rank(std::move(moves)), closable(may_close), handle_(handles().add(kind, this, nullptr)) {}
  Comm(Comm const&) = delete;
  Comm& operator=(Comm const&) = delete;
  ~Comm() {
    end_owned();
    handles().end(handle_);
  }
  /// Ends all that it owns, the last first.
  void end_owned() noexcept {
    while (!owned_.empty()) forget(owned_.back().handle);
  }

  /// What the trainer gets.
  [[nodiscard]] zero_comm* handle() const noexcept { return static_cast<zero_comm*>(handle_); }
  /// Takes over an object.
  /// @returns a handle for it
  template <class Object>
  [[nodiscard]] void* own(std::shared_ptr<Object> object) {
    owned_.reserve(owned_.size() + 1);
    void* const added = handles().add(Object::kind, object.get(), handle_);
    owned_.push_back({added, std::move(object)});
    return added;
  }
  /// Ends one of its handles, and what it leads to.
  void forget(void const* one) noexcept {
    handles().end(one);
    std::erase_if(owned_, [&](OwnedObject const& each) { return each.handle == one; });
  }
  /// Does the work; what it throws becomes a code, and words of this communicator.
  template <class Work>
  std::int32_t attempt(Work const& work) noexcept {
    std::int32_t const done = c::attempt({message, sizeof(message)}, work);
    if (done != ZERO_OK) code = done;
    return done;
  }

  /// Words that are no error's.
  void say(char const* words) noexcept { Words{message, sizeof(message)}.write(words); }

  std::unique_ptr<AnyRank> rank;  ///< what moves data
  bool closable;                  ///< is it the trainer's to close?
  std::int32_t code = ZERO_OK;    ///< of the last error
  char message[2048] = "";        ///< of the last error

 private:
  struct OwnedObject {
    void const* handle;
    std::shared_ptr<void> object;
  };
  void* handle_;
  std::vector<OwnedObject> owned_;
};

/// What the trainer knows as a `zero_optimizer`: an optimizer, over its rank.
struct OptimizerObject {
  /// What its handles are.
  static constexpr HandleKind kind = HandleKind::optimizer;
  Comm* comm;                         ///< whose
  std::shared_ptr<COptimizer> inner;  ///< what it is of; a save in the background keeps it
};

/// What a handle leads to; null, with words where its communicator is still there, for one that has
/// ended or is of another kind.
template <class Object>
[[nodiscard]] Object* object_of(void const* handle) noexcept {
  HandleTarget const target = handles().find(handle);
  if (target.kind == Object::kind && target.object != nullptr)
    return static_cast<Object*>(target.object);
  constexpr char const* names[] = {"none", "zero_comm", "zero_optimizer", "zero_checkpoints"};
  void const* const owner = target.kind == HandleKind::comm ? handle : target.comm;
  if (HandleTarget const comm = handles().find(owner); comm.object != nullptr) {
    static_cast<void>(static_cast<Comm*>(comm.object)->attempt([&] {
      fail(ErrorKind::invalid_argument,
           {"the handle is of a ",
            names[static_cast<int>(target.kind)],
            target.object != nullptr ? ", but a " : ", which has ended",
            target.object != nullptr ? names[static_cast<int>(Object::kind)] : "",
            target.object != nullptr ? " was expected" : ""});
    }));
  }
  return nullptr;
}

/// Does the work with a communicator; null, or what is none, is an error.
template <class Work>
std::int32_t with(zero_comm* handle, Work const& work) noexcept {
  Comm* const comm = object_of<Comm>(handle);
  return comm == nullptr ? ZERO_INVALID_ARGUMENT : comm->attempt([&] { work(*comm); });
}
/// Does the work with an optimizer; null, or what is none, is an error.
template <class Work>
std::int32_t with(zero_optimizer* handle, Work const& work) noexcept {
  auto* const optimizer = object_of<OptimizerObject>(handle);
  if (optimizer == nullptr) return ZERO_INVALID_ARGUMENT;
  return optimizer->comm->attempt([&] { work(*optimizer->inner); });
}
/// Ends what a handle leads to; nothing for null.
template <class Object>
std::int32_t end(void const* handle) noexcept {
  if (handle == nullptr) return ZERO_OK;
  auto* const object = object_of<Object>(handle);
  if (object == nullptr) return ZERO_INVALID_ARGUMENT;
  object->comm->forget(handle);
  return ZERO_OK;
}

/// A new communicator for the trainer, who closes it.
inline void hand_out(zero_comm** comm, std::unique_ptr<AnyRank> rank) {
  *comm = (new Comm(std::move(rank), true))->handle();
}

}  // namespace zero::inline ZERO_NAMESPACE::c
