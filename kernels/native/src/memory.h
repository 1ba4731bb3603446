// Memory for what is read from end to end again and again.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include <sys/mman.h>

namespace nightmill {

struct Free {
  void operator()(char* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<char[], Free>;

// Uninitialised. Large buffers ask for huge pages: weights are streamed, and small pages would cost a table walk each.
inline Buffer allocate(size_t bytes) {
  constexpr size_t HUGE_PAGE = size_t{2} << 20;
  const size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : 64;
  const size_t size = (bytes + alignment - 1) / alignment * alignment;
  char* p = static_cast<char*>(std::aligned_alloc(alignment, size == 0 ? alignment : size));
  if (p == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (alignment == HUGE_PAGE) madvise(p, size, MADV_HUGEPAGE);
#endif
  return Buffer(p);
}

}  // namespace nightmill
