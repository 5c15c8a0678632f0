/// @file
/// A vector in the memory of an emulated device, as far as trainers lend it: a stand-in for the
/// toolkit's header of this name.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <new>

namespace thrust {

template <class T>
struct device_ptr {
  T* address;
  T* get() const { return address; }
};

template <class T>
class device_vector {
 public:
  explicit device_vector(std::size_t size, T value = T{}) : size_(size) {
    void* memory = nullptr;
    if (cudaMalloc(&memory, size * sizeof(T)) != cudaSuccess) throw std::bad_alloc();
    data_ = static_cast<T*>(memory);
    // Waits, as Thrust does, for the default stream.
    emulated::launch({}, [=, data = data_] { std::fill_n(data, size, value); });
    cudaStreamSynchronize(nullptr);
  }
  ~device_vector() { cudaFree(data_); }
  device_vector(device_vector const&) = delete;

  device_ptr<T> data() { return {data_}; }
  std::size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

}  // namespace thrust
