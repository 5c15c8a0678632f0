/// @file
/// Where a module's parameters lie while the module is not the one that holds them.
#pragma once

#include "zero/base/config.hpp"

#if defined(_WIN32)
#error "zero: the adapter of LibTorch needs the memory maps of POSIX, which Windows does not have"
#include ZERO_STOP
#endif

#include "zero/adapt/libtorch/model_description.hpp"
#include "zero/base/error.hpp"

#include <sys/mman.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::libtorch::detail {

/// Addresses of which nothing can be read, and to which nothing can be written.
[[nodiscard]] inline std::shared_ptr<void> reserved(std::size_t bytes) {
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const first = ::mmap(nullptr, bytes, PROT_NONE, flags, -1, 0);
  if (first != MAP_FAILED) return {first, [bytes](void* its) { ::munmap(its, bytes); }};
  fail(ErrorKind::resource, {"cannot reserve ", bytes, " bytes of addresses"});
}

/// Storages of newer releases refuse by themselves to be read.
template <class Storage>
inline constexpr bool refuses_reads = requires(Storage& storage) {
  storage.clear_data_ptr_access_error_msg_();
};

/// What a storage has that lies nowhere: words for whoever needs its values, and another device
/// than the host, so that saving, which would take it to the host, is refused as well. The words
/// are an object of LibTorch's, which another version of this library reads as well.
using Reason = c10::ivalue::ConstantString;
inline constexpr auto nowhere = c10::DeviceType::FPGA;
[[nodiscard]] inline at::DataPtr without_memory(void* address, c10::intrusive_ptr<Reason> why) {
  auto const drop = [](void* its) { c10::raw::intrusive_ptr::decref(static_cast<Reason*>(its)); };
  return {address, why.release(), drop, nowhere};
}

/// LibTorch calls it before each operation on a tensor with the key: on a parameter, and on
/// whatever shares its storage, for `detach()`, `data()` and views have the keys of what they are
/// made from.
/// @throws c10::Error, with the words of a storage that lies nowhere
inline void ask_for_memory(c10::OperatorHandle const& operation,
                           c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  auto const count = operation.schema().arguments().size();
  for (c10::IValue const& argument : torch::jit::last(stack, count)) {
    for (torch::Tensor const& tensor : tensors_in(argument)) {
      if (!tensor.key_set().has(exchanged) || tensor.storage().device_type() != nowhere) continue;
      auto const* const why = tensor.storage().unsafeGetStorageImpl()->data_ptr().get_context();
      TORCH_CHECK(false, static_cast<Reason const*>(why)->string());
    }
  }
  keys = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, exchanged);
  operation.redispatchBoxed(keys, stack);
}
/// At the start of the program, when no other thread calls operations yet.
inline auto const asked_before_operations = [] {
  auto& operations = c10::Dispatcher::singleton();
  // Another library of the process may have the same.
  return operations.hasBackendFallbackForDispatchKey(exchanged)
             ? c10::RegistrationHandleRAII(nullptr)
             : operations.registerFallback(
                   exchanged,
                   c10::KernelFunction::makeFromBoxedFunction<&ask_for_memory>(),
                   "zero");
}();

/// A tensor like the parameter in a storage, with the key.
[[nodiscard]] inline torch::Tensor with_key(torch::Tensor const& parameter, c10::Storage storage) {
  auto tensor = c10::make_intrusive<c10::TensorImpl>(
      std::move(storage), parameter.key_set() | c10::DispatchKeySet(exchanged), parameter.dtype());
  tensor->set_sizes_contiguous(parameter.sizes());
  return torch::Tensor(std::move(tensor));
}

/// The memory of a module's parameters, which they have only while somebody lends it some; without,
/// they are tensors on which LibTorch refuses to work. What is exchanged is the memory in a
/// storage, never the storage: views that autograd or anybody else has kept see the exchange as
/// well, and are refused where there is none. Of releases whose storages do not refuse that
/// themselves, views that were made before this, and pointers, fault.
class ExchangedMemory {
 public:
  /// The parameters keep their memory until `give_up`.
  /// @throws Error (invalid_argument), naming the parameter, for one that is a part of a storage
  ExchangedMemory(std::vector<torch::Tensor> const& parameters, std::vector<Tensor> const& tensors)
      : tensors_(&tensors),
        trap_(reserved(1 + std::ranges::max(parameters, {}, &torch::Tensor::nbytes).nbytes())) {
    for (std::size_t t = 0; t < parameters.size(); ++t) {
      torch::Tensor const& parameter = parameters[t];
      if (parameter.storage_offset() != 0 || parameter.storage().nbytes() != parameter.nbytes()) {
        refuse("parameter",
               tensors[t].name,
               "is a part of a larger storage; give it one of its own, with clone()");
      }
      auto const why = Reason::create(
          "libtorch: parameter '" + tensors[t].name + "' or a view of it is used outside of unit " +
          std::to_string(tensors[t].unit) + ", without which it has no values");
      c10::Storage const none(
          c10::Storage::use_byte_size_t(), parameter.nbytes(), at::DataPtr(nullptr, at::kCPU));
      torch::Tensor const with = refuses_reads<c10::StorageImpl>
                                     ? parameter.variable_data()
                                     : with_key(parameter, parameter.storage());
      places_.push_back({.parameter = parameter,
                         .with = with,
                         .without = parameter.numel() > 0 ? with_key(parameter, none) : with,
                         .why = why,
                         .version = parameter._version()});
      none.unsafeGetStorageImpl()->set_data_ptr_noswap(without_memory(nullptr, why));
    }
  }
  ExchangedMemory(ExchangedMemory const&) = delete;
  ExchangedMemory& operator=(ExchangedMemory const&) = delete;
  /// Whoever still has a parameter finds no memory in it.
  ~ExchangedMemory() {
    for (StoragePlace const& place : places_) point(place, nullptr, false);
  }

  /// Frees a parameter's memory, unless others have it, too.
  void give_up(std::size_t t) noexcept { lend(t, nullptr); }
  /// Gives a parameter memory, or with null none.
  void lend(std::size_t t, void const* memory) noexcept {
    StoragePlace& place = places_[t];
    point(place, memory != nullptr ? const_cast<void*>(memory) : trap_.get(), memory != nullptr);
    place.written = place.written || (place.lent && place.parameter._version() != place.version);
    place.version = place.parameter._version();
    place.lent = memory != nullptr;
    if (!is_own(place)) return;  // so that `require_same_memory` finds it
    place.parameter.unsafeGetTensorImpl()->shallow_copy_from(
        (memory != nullptr ? place.with : place.without).getIntrusivePtr());
  }
  /// Does a tensor lie in a parameter's memory?
  [[nodiscard]] bool holds(torch::Tensor const& tensor) const noexcept {
    return tensor.defined() && tensor.has_storage() &&
           std::any_of(places_.begin(), places_.end(), [&](StoragePlace const& place) {
             return tensor.storage().unsafeGetStorageImpl() ==
                    place.with.storage().unsafeGetStorageImpl();
           });
  }
  /// Is a parameter still the one whose memory is exchanged, and has it what the library has?
  /// @throws Error (invalid_argument), naming the parameter
  void require_same_memory(std::size_t t) const {
    if (!is_own(places_[t])) refuse_other_memory((*tensors_)[t].name);
    if (!places_[t].written) return;
    refuse("parameter",
           (*tensors_)[t].name,
           "was written to in its window, and what was written is lost with it: core() has "
           "load_parameters() for other values");
  }

 private:
  struct StoragePlace {
    torch::Tensor parameter;
    torch::Tensor with;              ///< what it is while it has memory
    torch::Tensor without;           ///< what it is without
    c10::intrusive_ptr<Reason> why;  ///< it has none
    std::int64_t version;            ///< autograd's, when memory was lent or taken
    bool lent = true;
    bool written = false;
  };
  [[nodiscard]] static bool is_own(StoragePlace const& place) noexcept {
    return has_storage_of(place.parameter, place.with) ||
           place.parameter.storage().device_type() == nowhere;
  }
  static void point(auto const& place, void* address, bool readable) noexcept {
    auto& storage = *place.with.storage().unsafeGetStorageImpl();
    if (storage.nbytes() == 0) return;
    storage.set_data_ptr_noswap(at::DataPtr(address, at::kCPU));
    if constexpr (refuses_reads<c10::StorageImpl>) {
      storage.clear_data_ptr_access_error_msg_();
      if (readable) return;
      storage.release_data_and_set_meta_custom_data_ptr_error_msg_(place.why->string());
    } else if (!readable) {
      storage.set_data_ptr_noswap(without_memory(address, place.why));
    }
  }

  std::vector<Tensor> const* tensors_;
  std::shared_ptr<void> trap_;
  std::vector<StoragePlace> places_;
};

}  // namespace zero::inline ZERO_NAMESPACE::libtorch::detail
