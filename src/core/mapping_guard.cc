// SPDX-License-Identifier: Apache-2.0
#include "core/mapping_guard.h"

#include <csignal>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>

namespace deepinfer {
namespace {

// The handler may run at any moment on any thread: it only loads atomics and calls mmap.
struct Slot {
  std::atomic<uintptr_t> begin{0};  // 0 = free
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> is_damaged{false};
};
std::array<Slot, 4096> g_slots;
std::atomic<int> g_num_slots{0};    // slots ever used
std::atomic<int> g_num_damaged{0};  // slots marked and not freed yet
std::mutex g_mutex;                 // of GuardMapping and UnguardMapping
struct sigaction g_previous {};
uintptr_t g_page_bytes = 4096;

static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

Slot* Find(uintptr_t address) {
  const int count = g_num_slots.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i) {
    Slot& slot = g_slots[static_cast<size_t>(i)];
    const uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    if (begin != 0 && address >= begin && address < slot.end.load(std::memory_order_relaxed)) return &slot;
  }
  return nullptr;
}

void OnBusError(int, siginfo_t* info, void*) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (Slot* const slot = Find(address); slot != nullptr) {
    // Marked first: another thread may read the zeros as soon as they are there.
    if (!slot->is_damaged.exchange(true)) g_num_damaged.fetch_add(1);
    void* const page = reinterpret_cast<void*>(address / g_page_bytes * g_page_bytes);
    if (::mmap(page, g_page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page) {
      errno = saved_errno;
      return;
    }
  }
  // Not ours: the access is repeated under the handler that was there before.
  ::sigaction(SIGBUS, &g_previous, nullptr);
  errno = saved_errno;
}

void Install() {
  g_page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, &g_previous);
}

}  // namespace

void GuardMapping(const void* data, int64_t bytes) {
  if (data == nullptr || bytes <= 0) return;
  const std::lock_guard lock(g_mutex);
  static const bool is_installed = (Install(), true);
  static_cast<void>(is_installed);
  const int count = g_num_slots.load();
  int free = 0;
  while (free < count && g_slots[static_cast<size_t>(free)].begin.load() != 0) ++free;
  if (free == static_cast<int>(g_slots.size())) return;
  Slot& slot = g_slots[static_cast<size_t>(free)];
  const auto begin = reinterpret_cast<uintptr_t>(data);
  slot.is_damaged.store(false);
  slot.end.store(begin + static_cast<uintptr_t>(bytes));
  slot.begin.store(begin, std::memory_order_release);
  if (free == count) g_num_slots.store(count + 1, std::memory_order_release);
}

void UnguardMapping(const void* data) {
  if (data == nullptr) return;
  const std::lock_guard lock(g_mutex);
  Slot* const slot = Find(reinterpret_cast<uintptr_t>(data));
  if (slot == nullptr) return;
  slot->begin.store(0);
  if (slot->is_damaged.exchange(false)) g_num_damaged.fetch_sub(1);
}

bool IsMappingDamaged(const void* data) {
  const Slot* const slot = Find(reinterpret_cast<uintptr_t>(data));
  return slot != nullptr && slot->is_damaged.load();
}

bool IsAnyMappingDamaged() { return g_num_damaged.load(std::memory_order_relaxed) != 0; }

}  // namespace deepinfer
