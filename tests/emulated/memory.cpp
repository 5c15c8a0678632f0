#include "emulated/memory.hpp"

#include "support/standard.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace emulated {

namespace {

// What the runtime promises; blocks end as close to the closed page as that allows.
constexpr std::size_t alignment = 256;
// Large blocks lie in large pages: opening and closing costs time for each page.
constexpr std::size_t large_page = std::size_t{2} << 20;
constexpr std::byte untouched{0xa5};

std::size_t up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void* Memory::allocate(int device, std::size_t bytes, bool pooled) {
  if (bytes > device_bytes || used_[device] + bytes > device_bytes) return nullptr;
  auto const small_page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::size_t const page = bytes < large_page ? small_page : large_page;
  std::size_t const page_bytes = up(std::max<std::size_t>(bytes, 1), page);
  // Begins at a large page, and has a closed page behind it.
  std::size_t const mapped = page_bytes + page;
  void* const mapping =
      ::mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  auto const begins = reinterpret_cast<std::uintptr_t>(mapping);
  auto* const pages = static_cast<std::byte*>(mapping) + (up(begins, page) - begins);
  if (page == large_page) static_cast<void>(::madvise(pages, page_bytes, MADV_HUGEPAGE));
  std::byte* const begin = pages + (page_bytes - up(bytes, alignment));
  auto const place = blocks_.emplace(begin,
                                     Block{.device = device,
                                           .pooled = pooled,
                                           .bytes = bytes,
                                           .mapping = mapping,
                                           .mapped = mapped,
                                           .pages = pages,
                                           .page_bytes = page_bytes});
  Block& block = place.first->second;
  protect(block, true);
  // Memory holds whatever was there before; only a program that relies on zeros sees a difference.
  std::fill(pages, pages + page_bytes, untouched);
  protect(block, false);
  used_[device] += bytes;
  return begin;
}

bool Memory::free(void* memory) {
  auto const found = blocks_.find(static_cast<std::byte*>(memory));
  if (found == blocks_.end()) return false;
  Block& block = found->second;
  protect(block, true);
  std::byte const* const behind = found->first + block.bytes;
  if (!std::all_of(behind,
                   static_cast<std::byte const*>(block.pages) + block.page_bytes,
                   [](std::byte b) { return b == untouched; })) {
    std::fprintf(stderr, "emulated device: written behind a block of %zu bytes\n", block.bytes);
    std::abort();
  }
  protect(block, false);
  used_[block.device] -= block.bytes;
  ::munmap(block.mapping, block.mapped);
  blocks_.erase(found);
  return true;
}

int Memory::device_of(void const* memory, std::size_t bytes) const {
  auto const found = find(memory);
  if (found == blocks_.end()) return -1;
  auto const offset =
      static_cast<std::size_t>(static_cast<std::byte const*>(memory) - found->first);
  return bytes <= found->second.bytes - offset ? found->second.device : -1;
}

void Memory::show_kernel(int device) {
  for (auto& [begin, block] : blocks_) {
    bool const reached = !block.pooled && peers_.count({device, block.device}) != 0;
    protect(block, block.device == device || reached);
  }
}

void Memory::show(void const* memory) {
  auto const found = find(memory);
  if (found != blocks_.end()) protect(blocks_.at(found->first), true);
}

void Memory::hide() {
  if (open_ == 0) return;
  for (auto& [begin, block] : blocks_) protect(block, false);
}

void Memory::protect(Block& block, bool open) {
  if (block.open == open) return;
  int const access = open ? PROT_READ | PROT_WRITE : PROT_NONE;
  if (::mprotect(block.pages, block.page_bytes, access) != 0) std::abort();
  block.open = open;
  open_ += open ? 1 : static_cast<std::size_t>(-1);
}

std::map<std::byte*, Memory::Block>::const_iterator Memory::find(void const* memory) const {
  auto const* const at = static_cast<std::byte const*>(memory);
  auto const next = blocks_.upper_bound(const_cast<std::byte*>(at));
  if (next == blocks_.begin()) return blocks_.end();
  auto const found = std::prev(next);
  bool const inside = static_cast<std::size_t>(at - found->first) <= found->second.bytes;
  return inside ? found : blocks_.end();
}

}  // namespace emulated
