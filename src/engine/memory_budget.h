// SPDX-License-Identifier: Apache-2.0
//
// How many cache blocks and sequences fit into the memory of the devices (specification, engine 19). Pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "core/status.h"

namespace deepinfer::engine {

// One rank's device. On the CPU: the machine's memory, or what the control group allows.
struct DeviceMemory {
  int64_t total_bytes = 0;
  int64_t used_bytes = 0;   // peak of this process's allocations and everything else on the device
  int64_t state_bytes = 0;  // of all state slots; counted twice, for the copy buffer
};

// Blocks that every rank has room for, the null block included: the smallest of the ranks' numbers, rounded down to even.
// Errors: kResourceExhausted when there is room for none.
Result<int64_t> BudgetBlocks(std::span<const DeviceMemory> ranks, double utilization, int64_t block_bytes);

// The longest sequence that `num_blocks` may serve: 0.8 of the tokens they hold.
int64_t LongestSequence(int64_t num_blocks);
// The fewest blocks that serve a sequence of that length.
int64_t FewestBlocks(int64_t runtime_max_model_len);
Status CheckSequenceFits(int64_t runtime_max_model_len, int64_t num_blocks);

// The caches of an engine on the CPU, where pages cost memory when they are written.
struct CacheRequest {
  int64_t total_bytes = 0;      // of the machine or the control group
  int64_t available_bytes = 0;  // now, with the weights loaded
  double utilization = 0.9;
  int64_t num_kv_blocks = 0;    // asked for, the null block included; 0 = choose
  int64_t block_bytes = 0;
  int64_t slot_bytes = 0;       // one sequence's window states
  double slots_ratio = 1.2;
  int max_num_seqs = 1;
  int64_t max_model_len = 0;
  int64_t runtime_max_model_len = 0;
};
struct CacheSizes {
  int64_t num_blocks = 0;
  int max_num_seqs = 0;  // lowered where the slots would take more than a quarter of the available memory
};
Result<CacheSizes> SizeCaches(const CacheRequest& request);

}  // namespace deepinfer::engine
