// SPDX-License-Identifier: Apache-2.0
#include "core/threads.h"

#include <sched.h>

namespace deepinfer {

struct ThreadPool::State {
  int num_threads = 1;
};

ThreadPool::ThreadPool(int) : state_(std::make_unique<State>()) {}
ThreadPool::~ThreadPool() = default;
int ThreadPool::num_threads() const { return state_->num_threads; }
void ThreadPool::Run(int64_t num_tiles, TileFn fn, const void* context) {
  for (int64_t i = 0; i < num_tiles; ++i) fn(const_cast<void*>(context), i, 0);
}

int ThreadPool::NumAvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

}  // namespace deepinfer
