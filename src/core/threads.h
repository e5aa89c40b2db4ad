// SPDX-License-Identifier: Apache-2.0
//
// The process-wide compute pool. ParallelFor cuts a phase into tiles that threads take one at a time, so a descheduled
// worker costs one tile, not the phase; idle workers spin for a few microseconds and then sleep on a futex.
// The caller takes part and is thread 0. One ParallelFor at a time per pool; a nested call runs inline.
//
// On a machine with several NUMA nodes every node has its share of the threads and of the tiles: the same tile numbers come
// to the same node in every phase with the same period, so memory that a phase touches first (weights while they are packed)
// is local to the threads that read it later. A node that has run out of tiles takes those of the others.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>

#include "core/cpu_topology.h"
#include "core/status.h"

namespace deepinfer {

// Where workers may run. kAuto: on the processors of their node where there are several nodes, else anywhere. kCore: each on
// one processor of its own. The caller's thread stays as it is.
enum class CpuPinning { kAuto, kNone, kNode, kCore };
Result<CpuPinning> ParseCpuPinning(std::string_view name);  // auto, none, node, core

class ThreadPool {
 public:
  // num_threads counts the caller; 0 = one per available core (affinity mask and cgroup quota respected).
  explicit ThreadPool(int num_threads = 0, CpuPinning pinning = CpuPinning::kAuto);
  // With nodes as given, real or simulated.
  ThreadPool(int num_threads, const CpuTopology& topology, CpuPinning pinning);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }
  int num_nodes() const;
  // The node, 0-based, whose threads take tile `tile` of a period unless they are late.
  int NodeOfTile(int64_t tile, int64_t period) const;

  // Calls fn(tile, thread_idx) once for every tile in [0, num_tiles) and returns when all are done. Allocates nothing.
  // fn must not throw. Which thread runs a tile is unspecified: results must not depend on it.
  // Nodes share every `period` consecutive tiles (the tiles of one matrix, say); 0 = all of them. It divides num_tiles.
  template <typename F>
  void ParallelFor(int64_t num_tiles, F&& fn, int64_t period = 0) {
    if (num_tiles <= 0) return;
    if (num_tiles == 1 || num_threads_ == 1) {
      const int thread_idx = CurrentThreadIdx();
      for (int64_t i = 0; i < num_tiles; ++i) fn(i, thread_idx);
      return;
    }
    Run(num_tiles, period > 0 ? period : num_tiles, &Invoke<std::remove_reference_t<F>>, &fn);
  }

  static int NumAvailableCores();

 private:
  using TileFn = void (*)(void* context, int64_t tile, int thread_idx);
  template <typename F>
  static void Invoke(void* context, int64_t tile, int thread_idx) {
    (*static_cast<F*>(context))(tile, thread_idx);
  }
  void Run(int64_t num_tiles, int64_t period, TileFn fn, const void* context);
  // Index of the calling thread while it runs a tile, 0 outside: nested calls keep the index (and scratch) of their thread.
  static int CurrentThreadIdx();

  struct State;
  int num_threads_;
  std::unique_ptr<State> state_;
};

}  // namespace deepinfer
