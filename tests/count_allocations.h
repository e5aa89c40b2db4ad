// SPDX-License-Identifier: Apache-2.0
//
// Counts every operator new of the program. Include it in one file of a test program: it replaces the global operators.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> num_allocations{0};
}  // namespace

// Not inlined: GCC would see malloc behind one and free behind the other and call them mismatched.
[[gnu::noinline]] void* operator new(size_t bytes) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
