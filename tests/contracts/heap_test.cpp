/// Replaces the global operator new and delete of this program by ones that count, and checks that
/// they do: a counter that misses allocations would prove anything.
#include "contracts/heap.hpp"

#include "support/test.hpp"

namespace {

thread_local constinit heap::Counts counts{};

/// Every block has its size in front of it, at a distance that keeps its alignment.
std::size_t margin_of(std::align_val_t alignment) {
  return std::max(static_cast<std::size_t>(alignment), alignof(std::max_align_t));
}

void* allocate(std::size_t bytes, std::align_val_t alignment) noexcept {
  std::size_t const margin = margin_of(alignment);
  void* const base = std::aligned_alloc(margin, (bytes + 2 * margin - 1) / margin * margin);
  if (base == nullptr) return nullptr;
  auto* const memory = static_cast<std::byte*>(base) + margin;
  reinterpret_cast<std::size_t*>(memory)[-1] = bytes;
  ++counts.allocations;
  counts.live_bytes += static_cast<std::int64_t>(bytes);
  counts.peak_bytes = std::max(counts.peak_bytes, counts.live_bytes);
  return memory;
}

void* allocate_or_throw(std::size_t bytes, std::align_val_t alignment) {
  void* const memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory, std::align_val_t alignment) noexcept {
  if (memory == nullptr) return;
  counts.live_bytes -= static_cast<std::int64_t>(static_cast<std::size_t*>(memory)[-1]);
  std::free(static_cast<std::byte*>(memory) - margin_of(alignment));
}

constexpr std::align_val_t plain{alignof(std::max_align_t)};

}  // namespace

heap::Counts heap::mine() noexcept { return counts; }
void heap::reset_peak() noexcept { counts.peak_bytes = counts.live_bytes; }

// All of them: under a sanitizer the ones that are left out would not call these, as they do
// elsewhere.
using std::align_val_t;
using std::nothrow_t;
using std::size_t;
void* operator new(size_t n) { return allocate_or_throw(n, plain); }
void* operator new[](size_t n) { return allocate_or_throw(n, plain); }
void* operator new(size_t n, nothrow_t const&) noexcept { return allocate(n, plain); }
void* operator new[](size_t n, nothrow_t const&) noexcept { return allocate(n, plain); }
void* operator new(size_t n, align_val_t a) { return allocate_or_throw(n, a); }
void* operator new[](size_t n, align_val_t a) { return allocate_or_throw(n, a); }
void* operator new(size_t n, align_val_t a, nothrow_t const&) noexcept { return allocate(n, a); }
void* operator new[](size_t n, align_val_t a, nothrow_t const&) noexcept { return allocate(n, a); }
void operator delete(void* p) noexcept { release(p, plain); }
void operator delete[](void* p) noexcept { release(p, plain); }
void operator delete(void* p, nothrow_t const&) noexcept { release(p, plain); }
void operator delete[](void* p, nothrow_t const&) noexcept { release(p, plain); }
void operator delete(void* p, size_t) noexcept { release(p, plain); }
void operator delete[](void* p, size_t) noexcept { release(p, plain); }
void operator delete(void* p, align_val_t a) noexcept { release(p, a); }
void operator delete[](void* p, align_val_t a) noexcept { release(p, a); }
void operator delete(void* p, align_val_t a, nothrow_t const&) noexcept { release(p, a); }
void operator delete[](void* p, align_val_t a, nothrow_t const&) noexcept { release(p, a); }
void operator delete(void* p, size_t, align_val_t a) noexcept { release(p, a); }
void operator delete[](void* p, size_t, align_val_t a) noexcept { release(p, a); }

namespace {

/// Seen by the compiler as used, or it may leave an allocation out.
void* volatile sink = nullptr;

struct alignas(256) Aligned {
  char bytes[256];
};

TEST_CASE("heap: every way of allocating is counted, with its bytes") {
  auto const before = heap::mine();
  auto one = std::make_unique<int>(1);
  sink = one.get();
  auto many = std::make_unique<int[]>(100);
  sink = many.get();
  auto aligned = std::make_unique<Aligned>();
  sink = aligned.get();
  CHECK(reinterpret_cast<std::uintptr_t>(aligned.get()) % alignof(Aligned) == 0);
  auto* const quiet = new (std::nothrow) long(2);
  sink = quiet;
  std::string const text(1000, 'x');
  auto const after = heap::mine();
  CHECK(after.allocations - before.allocations == 5);
  CHECK(after.live_bytes - before.live_bytes >= 4 + 400 + 256 + 8 + 1000);
  CHECK(after.live_bytes - before.live_bytes < 4 + 400 + 256 + 8 + 1000 + 100);
  delete quiet;
  one.reset();
  many.reset();
  aligned.reset();
  CHECK(heap::mine().live_bytes - before.live_bytes < 1100);
}

TEST_CASE("heap: the peak remembers what is gone, until it is reset") {
  heap::reset_peak();
  auto const before = heap::mine();
  CHECK(before.peak_bytes == before.live_bytes);
  { sink = std::vector<char>(100'000).data(); }
  CHECK(heap::mine().live_bytes == before.live_bytes);
  CHECK(heap::mine().peak_bytes == before.live_bytes + 100'000);
  heap::reset_peak();
  CHECK(heap::mine().peak_bytes == before.live_bytes);
}

TEST_CASE("heap: threads are counted apart") {
  std::uint64_t theirs = 0;
  auto const mine = heap::mine().allocations;
  std::thread thread([&] {
    auto const before = heap::mine().allocations;
    for (int i = 0; i < 10; ++i) sink = std::make_unique<int>(i).get();
    theirs = heap::mine().allocations - before;
  });
  thread.join();
  CHECK(theirs == 10);
  CHECK(heap::mine().allocations - mine <= 2);
}

}  // namespace
