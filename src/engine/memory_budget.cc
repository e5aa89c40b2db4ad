// SPDX-License-Identifier: Apache-2.0
#include "engine/memory_budget.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/integers.h"
#include "core/progress.h"
#include "engine/prefix_key.h"

namespace deepinfer::engine {
namespace {

// Sequences at full length whose blocks the model's address space has room for; the rest is for requests that run alone.
constexpr int64_t kMaxFullSequences = 240;

int64_t RankBlocks(const DeviceMemory& rank, double utilization, int64_t block_bytes) {
  const int64_t usable = static_cast<int64_t>(std::floor(static_cast<double>(rank.total_bytes) * utilization));
  const int64_t available = usable - rank.used_bytes - 2 * rank.state_bytes;
  return available <= 0 ? 0 : available / block_bytes;
}

}  // namespace

Result<int64_t> BudgetBlocks(std::span<const DeviceMemory> ranks, double utilization, int64_t block_bytes) {
  if (!(utilization > 0 && utilization <= 1))
    return InvalidArgument(fmt::format("gpu_memory_utilization is {} but must be above 0 and at most 1", utilization), "gpu_memory_utilization");
  int64_t num_blocks = ranks.empty() ? 0 : std::numeric_limits<int64_t>::max();
  for (const DeviceMemory& rank : ranks) num_blocks = std::min(num_blocks, RankBlocks(rank, utilization, block_bytes));
  num_blocks -= num_blocks % 2;
  if (num_blocks <= 0)
    return ResourceExhausted(fmt::format("no memory is left for cache blocks of {} at gpu_memory_utilization {}; raise it or lower max_num_seqs",
                                         FormatBytes(block_bytes), utilization));
  return num_blocks;
}

// 0.8 * 128 = 512 / 5.
int64_t LongestSequence(int64_t num_blocks) { return num_blocks * 512 / 5; }

int64_t FewestBlocks(int64_t runtime_max_model_len) { return CeilDiv(runtime_max_model_len * 5, 512); }

Status CheckSequenceFits(int64_t runtime_max_model_len, int64_t num_blocks) {
  if (runtime_max_model_len <= LongestSequence(num_blocks)) return Status::Ok();
  return Status(
      StatusCode::kResourceExhausted,
      fmt::format("sequences of {} tokens need {} cache blocks but there are {}; lower max_model_len, or raise gpu_memory_utilization or num_kv_blocks",
                  runtime_max_model_len, FewestBlocks(runtime_max_model_len), num_blocks),
      "max_model_len");
}

Result<CacheSizes> SizeCaches(const CacheRequest& r) {
  CacheSizes sizes;
  const int64_t slots_that_fit = r.available_bytes / 4 / std::max<int64_t>(r.slot_bytes, 1);
  const int64_t seqs_that_fit = static_cast<int64_t>(static_cast<double>(slots_that_fit) / r.slots_ratio);
  sizes.max_num_seqs = static_cast<int>(std::clamp<int64_t>(seqs_that_fit, 1, r.max_num_seqs));
  const int64_t least = FewestBlocks(r.runtime_max_model_len) + 1;
  if (r.num_kv_blocks > 0) {
    DI_RETURN_IF_ERROR(CheckSequenceFits(r.runtime_max_model_len, r.num_kv_blocks));
    sizes.num_blocks = r.num_kv_blocks;
    return sizes;
  }
  const int64_t num_slots = static_cast<int64_t>(std::floor(sizes.max_num_seqs * r.slots_ratio)) + 1;
  const DeviceMemory machine = {r.total_bytes, r.total_bytes - r.available_bytes, num_slots * r.slot_bytes};
  const Result<int64_t> budget = BudgetBlocks({&machine, 1}, r.utilization, r.block_bytes);
  if (!budget.ok() && budget.status().code() == StatusCode::kInvalidArgument) return budget.status();
  // A machine that is nearly full still serves one long sequence: its pages are paid for as it grows.
  const int64_t blocks_per_seq = CeilDiv(r.max_model_len, kTokensPerBlock);
  const int64_t most = std::max(least, 1 + blocks_per_seq * std::min<int64_t>(sizes.max_num_seqs, kMaxFullSequences));
  sizes.num_blocks = std::clamp(budget.ok() ? *budget : int64_t{0}, least, most);
  return sizes;
}

}  // namespace deepinfer::engine
