/// @file
/// The memory of emulated devices.
#pragma once

#include "support/standard.hpp"

namespace emulated {

/// Blocks of memory, each in pages of its own that nobody may touch, but work of a device that may:
/// code of the host that follows a pointer of a device dies, and so does a kernel that reads past
/// a block's end or the memory of a device that it has no access to.
class Memory {
 public:
  static constexpr std::size_t device_bytes = std::size_t{256} << 20;

  /// Null where the device is full. Blocks of a pool are for their own device only.
  void* allocate(int device, std::size_t bytes, bool pooled);
  /// False if that is no block. Aborts if somebody wrote behind the block's end.
  bool free(void* memory);

  /// Bytes of a device that are not in any block.
  [[nodiscard]] std::size_t unused(int device) const {
    auto const used = used_.find(device);
    return device_bytes - (used == used_.end() ? 0 : used->second);
  }

  /// The device of a range that lies in one block, or -1.
  [[nodiscard]] int device_of(void const* memory, std::size_t bytes) const;

  /// Gives kernels of `device` access to blocks of `peer`; false if they have it.
  bool connect(int device, int peer) { return peers_.emplace(device, peer).second; }

  /// Opens what kernels of a device see, and nothing else.
  void show_kernel(int device);
  /// Opens the block that `memory` lies in, if it lies in one.
  void show(void const* memory);
  /// Closes everything.
  void hide();

 private:
  struct Block {
    int device;
    bool pooled;
    std::size_t bytes;   ///< asked for
    void* mapping;       ///< around the pages; what is behind them stays closed
    std::size_t mapped;  ///< bytes of the mapping
    std::byte* pages;    ///< those that are opened
    std::size_t page_bytes;
    bool open = false;
  };
  void protect(Block& block, bool open);
  [[nodiscard]] std::map<std::byte*, Block>::const_iterator find(void const* memory) const;

  std::map<std::byte*, Block> blocks_;  ///< by their first byte
  std::set<std::pair<int, int>> peers_;
  std::map<int, std::size_t> used_;
  std::size_t open_ = 0;  ///< blocks
};

}  // namespace emulated
