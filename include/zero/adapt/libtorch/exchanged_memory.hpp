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
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::libtorch::detail {

/// Addresses of which nothing can be read, and to which nothing can be written.
class Trap {
 public:
  explicit Trap(std::size_t bytes) : bytes_((std::max)(bytes, std::size_t{1})) {
    data_ = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) {
      fail(ErrorKind::resource, {"cannot reserve ", bytes_, " bytes of addresses"});
    }
  }
  Trap(Trap const&) = delete;
  Trap& operator=(Trap const&) = delete;
  ~Trap() { ::munmap(data_, bytes_); }
  [[nodiscard]] void* data() const noexcept { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

/// A tensor of the same type and shape without values. No operation of LibTorch works on it: a key
/// that stands before all others, and for which nothing is registered, has them end in a
/// `c10::Error`; so do `data_ptr<T>()`, which finds no data, and saving, which takes a storage to
/// the host that lies elsewhere.
/// @param storage  without data
[[nodiscard]] inline torch::Tensor without_values(torch::Tensor const& parameter,
                                                  c10::Storage const& storage) {
  constexpr auto elsewhere = c10::DeviceType::FPGA;
  c10::StorageImpl& memory = *storage.unsafeGetStorageImpl();
  memory.set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
  auto tensor =
      c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage),
                                           parameter.key_set() | c10::DispatchKeySet(valueless),
                                           parameter.dtype());
  memory.set_data_ptr_noswap(at::DataPtr(nullptr, elsewhere));
  tensor->set_sizes_contiguous(parameter.sizes());
  return torch::Tensor(std::move(tensor));
}

/// The memory of a module's parameters, which they have only while somebody lends it some; without,
/// they are tensors on which LibTorch refuses to work. What is exchanged is the memory in a
/// storage, never the storage: views that autograd has saved see the exchange as well, and are
/// refused where there is none, or fault.
class ExchangedMemory {
 public:
  /// The parameters keep their memory until `give_up`.
  /// @throws Error (invalid_argument), naming the parameter, for one that is a part of a storage
  ExchangedMemory(std::vector<torch::Tensor> const& parameters, std::vector<Tensor> const& tensors)
      : tensors_(&tensors), trap_(largest(parameters)) {
    c10::Storage const none(c10::Storage::use_byte_size_t(),
                            largest(parameters),
                            at::DataPtr(nullptr, at::kCPU),
                            nullptr,
                            false);
    for (std::size_t t = 0; t < parameters.size(); ++t) {
      torch::Tensor const& parameter = parameters[t];
      if (parameter.storage_offset() != 0 || parameter.storage().nbytes() != parameter.nbytes()) {
        refuse("parameter",
               tensors[t].name,
               "is a part of a larger storage; give it one of its own, with clone()");
      }
      torch::Tensor const with = parameter.variable_data();
      places_.push_back({.parameter = parameter,
                         .with = with,
                         .without = parameter.numel() > 0 ? without_values(with, none) : with,
                         .refusal = "libtorch: a view of parameter '" + tensors[t].name +
                                    "' is read outside of unit " + std::to_string(tensors[t].unit) +
                                    ", without which it has no values",
                         .version = version_of(parameter)});
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
    point(place, memory != nullptr ? const_cast<void*>(memory) : trap_.data(), memory != nullptr);
    bool const was_lent = std::exchange(place.lent, memory != nullptr);
    if (was_lent && !place.lent) {
      place.written = place.written || version_of(place.parameter) != place.version;
    }
    if (place.lent && !was_lent) place.version = version_of(place.parameter);
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
    torch::Tensor with;     ///< what it is while it has memory
    torch::Tensor without;  ///< what it is without
    std::string refusal;    ///< of a view of it then, by newer releases
    std::uint32_t version;  ///< autograd's, when it was lent memory
    bool lent = true;
    bool written = false;
  };
  [[nodiscard]] static std::uint32_t version_of(torch::Tensor const& parameter) {
    return parameter.unsafeGetTensorImpl()->version_counter().current_version();
  }
  [[nodiscard]] static bool is_own(StoragePlace const& place) noexcept {
    return has_storage_of(place.parameter, place.with) ||
           has_storage_of(place.parameter, place.without);
  }
  static void point(auto const& place, void* memory, bool readable) noexcept {
    auto& storage = *place.with.storage().unsafeGetStorageImpl();
    storage.set_data_ptr_noswap(at::DataPtr(memory, at::kCPU));
    // Older releases read whatever they find.
    if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
      storage.clear_data_ptr_access_error_msg_();
      if (readable || storage.nbytes() == 0) return;
      storage.release_data_and_set_meta_custom_data_ptr_error_msg_(place.refusal);
    }
  }
  [[nodiscard]] static std::size_t largest(std::vector<torch::Tensor> const& parameters) {
    std::size_t most = 0;
    for (torch::Tensor const& each : parameters) most = (std::max)(most, each.nbytes());
    return most;
  }

  std::vector<Tensor> const* tensors_;
  Trap trap_;
  std::vector<StoragePlace> places_;
};

}  // namespace zero::inline ZERO_NAMESPACE::libtorch::detail
