// SPDX-License-Identifier: Apache-2.0
//
// What loading a model will take, known before it starts: packed weights, caches and workspace must
// fit in memory; Engram tables stay in their files.
#pragma once

#include <cstdint>

#include "core/status.h"
#include "model/config.h"
#include "model/inventory.h"
#include "model/numerics.h"

namespace deepinfer::model {

struct MemoryPlan {
  Numerics numerics = Numerics::kRelease;
  bool with_draft = true;
  bool with_vision = false;
  bool use_fp4_sparse_kv = true;
  int64_t cache_tokens = 8192;  // over all sequences
  int64_t num_sequences = 1;
  int64_t chunk_tokens = 512;  // rows of one step
  bool maps_embedding = true;  // rows of the embedding are read from its file, as on the CPU
};
// What a load assumes. max_model_len, cache_tokens 0: not given. chunk_tokens: EngineOptions::prefill_chunk_tokens.
MemoryPlan PlanMemory(const ModelConfig& config, Numerics numerics, int64_t max_model_len, int64_t cache_tokens, int64_t chunk_tokens);

struct MemoryNeed {
  int64_t weight_bytes = 0;
  int64_t cache_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t mapped_bytes = 0;  // Engram tables, embedding: read from the files on demand, not part of total()

  int64_t total() const { return weight_bytes + cache_bytes + workspace_bytes; }
};

// Bytes of compressed keys and index keys of one token over all source layers (model.md 9).
int64_t CacheBytesPerToken(const ModelConfig& config, Numerics numerics, bool use_fp4_sparse_kv);

MemoryNeed EstimateMemory(const ModelConfig& config, const MemoryPlan& plan);
// The same with a summary (vision included) at hand.
MemoryNeed EstimateMemory(const ModelConfig& config,
                          const InventorySummary& summary,
                          const MemoryPlan& plan);

// Which weights stay in memory for a budget of the whole process.
struct Residency {
  bool streams_experts = false;  // read from disk when a step needs them
  int64_t expert_bytes = 0;      // of all routed experts, drafts' included where loaded
  int64_t fixed_bytes = 0;       // everything else: dense weights, caches, workspace
  int64_t expert_budget = 0;     // for experts
  int64_t cache_share = 0;       // for caches of requests that run together, beyond those in fixed_bytes; 0 without a budget
};
// budget_bytes 0: what is available. kResourceExhausted: not even the rest fits; says how much is needed.
Result<Residency> PlanResidency(const ModelConfig& config, const InventorySummary& summary, const MemoryPlan& plan, const MemoryNeed& need,
                                int64_t budget_bytes, int64_t available_bytes);

// kResourceExhausted when `need` exceeds what is available, with both numbers and what to do.
Status CheckMemory(const MemoryNeed& need, int64_t available_bytes);

}  // namespace deepinfer::model
