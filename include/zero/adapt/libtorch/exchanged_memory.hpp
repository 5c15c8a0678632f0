/// @file
/// Where a module's parameters lie while the module is not the one that holds them.
#pragma once

#include "zero/base/config.hpp"

#if defined(_WIN32)
#error "zero: the adapter of LibTorch needs the memory maps of POSIX, which Windows does not have"
#include ZERO_STOP
#endif

#include "zero/adapt/libtorch/describe.hpp"
#include "zero/base/error.hpp"

#include <sys/mman.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
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

/// The memory of a module's parameters, which it has only while somebody lends it some; without,
/// their pointers fault. What is exchanged is the memory in a storage, never the storage: views
/// that autograd has saved see the exchange as well.
class ExchangedMemory {
 public:
  /// The parameters keep their memory until `give_up`.
  /// @throws Error (invalid_argument), naming the parameter, for one that is a part of a storage
  ExchangedMemory(std::vector<torch::Tensor> const& parameters, std::vector<Tensor> const& tensors)
      : parameters_(&parameters), tensors_(&tensors), trap_(largest(parameters)) {
    for (std::size_t t = 0; t < parameters.size(); ++t) {
      torch::Tensor const& parameter = parameters[t];
      if (parameter.storage_offset() != 0 || parameter.storage().nbytes() != parameter.nbytes()) {
        refuse("parameter",
               tensors[t].name,
               "is a part of a larger storage; give it one of its own, with clone()");
      }
      storages_.push_back(parameter.storage());
    }
  }
  ExchangedMemory(ExchangedMemory const&) = delete;
  ExchangedMemory& operator=(ExchangedMemory const&) = delete;
  /// Whoever still has a parameter finds no memory in it.
  ~ExchangedMemory() {
    for (c10::Storage const& storage : storages_) point(storage, nullptr);
  }

  /// Frees a parameter's memory, unless others have it, too.
  void give_up(std::size_t t) noexcept { point(storages_[t], trap_.data()); }
  /// Gives a parameter memory, or with null none.
  void lend(std::size_t t, void const* memory) noexcept {
    point(storages_[t], memory != nullptr ? const_cast<void*>(memory) : trap_.data());
  }
  /// Is a parameter's storage still the one whose memory is exchanged?
  /// @throws Error (invalid_argument), naming the parameter
  void require_kept(std::size_t t) const {
    if ((*parameters_)[t].storage().unsafeGetStorageImpl() == storages_[t].unsafeGetStorageImpl()) {
      return;
    }
    refuse("parameter",
           (*tensors_)[t].name,
           "was given other memory, as set_data() and to() do; convert the module before");
  }

 private:
  static void point(c10::Storage const& storage, void* memory) noexcept {
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(memory, at::kCPU));
  }
  [[nodiscard]] static std::size_t largest(std::vector<torch::Tensor> const& parameters) {
    std::size_t most = 0;
    for (torch::Tensor const& each : parameters) most = (std::max)(most, each.nbytes());
    return most;
  }

  std::vector<torch::Tensor> const* parameters_;
  std::vector<Tensor> const* tensors_;
  Trap trap_;
  std::vector<c10::Storage> storages_;
};

}  // namespace zero::inline ZERO_NAMESPACE::libtorch::detail
