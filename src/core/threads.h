// SPDX-License-Identifier: Apache-2.0
//
// The process-wide compute pool. ParallelFor cuts a phase into tiles that threads take one at a time, so a descheduled
// worker costs one tile, not the phase; idle workers spin for a few microseconds and then sleep on a futex.
// The caller takes part and is thread 0. One ParallelFor at a time per pool; a nested call runs inline.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace deepinfer {

class ThreadPool {
 public:
  // num_threads counts the caller; 0 = one per available core (affinity mask and cgroup quota respected).
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(tile, thread_idx) once for every tile in [0, num_tiles) and returns when all are done. Allocates nothing.
  // fn must not throw. Which thread runs a tile is unspecified: results must not depend on it.
  template <typename F>
  void ParallelFor(int64_t num_tiles, F&& fn) {
    if (num_tiles <= 0) return;
    if (num_tiles == 1 || num_threads_ == 1) {
      const int thread_idx = CurrentThreadIdx();
      for (int64_t i = 0; i < num_tiles; ++i) fn(i, thread_idx);
      return;
    }
    Run(num_tiles, &Invoke<std::remove_reference_t<F>>, &fn);
  }

  static int NumAvailableCores();

 private:
  using TileFn = void (*)(void* context, int64_t tile, int thread_idx);
  template <typename F>
  static void Invoke(void* context, int64_t tile, int thread_idx) {
    (*static_cast<F*>(context))(tile, thread_idx);
  }
  void Run(int64_t num_tiles, TileFn fn, const void* context);
  // Index of the calling thread while it runs a tile, 0 outside: nested calls keep the index (and scratch) of their thread.
  static int CurrentThreadIdx();

  struct State;
  int num_threads_;
  std::unique_ptr<State> state_;
};

}  // namespace deepinfer
