// SPDX-License-Identifier: Apache-2.0
#include "model/memory_estimate.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/integers.h"
#include "core/progress.h"
#include "model/cache.h"

namespace deepinfer::model {

namespace {

// Program, libraries, tokenizer, threads, requests.
constexpr int64_t kProcessBytes = int64_t{96} << 20;
// What the memory check assumes of a cache that grows on demand.
constexpr int64_t kAssumedCacheTokens = 8192;

}  // namespace

int64_t CacheBytesPerToken(const ModelConfig& config, Numerics numerics, bool use_fp4_sparse_kv) {
  const int64_t d = config.head_dim;
  const int64_t k = config.index_head_dim;
  int64_t key_bytes = use_fp4_sparse_kv ? d / 2 + d / 16 : d + d / 32;
  int64_t index_key_bytes = k / 2 + k / 32;
  if (!QuantizesActivations(numerics)) {
    key_bytes = 4 * d;
    index_key_bytes = 4 * k;
  }
  // Counted per two tokens, so that ratio 2 stays whole.
  int64_t bytes_per_pair = 0;
  for (const int layer : config.kv_source_layer_ids)
    bytes_per_pair += key_bytes * 2 / config.compress_ratios[static_cast<size_t>(layer)];
  for (const int layer : config.index_k_source_layer_ids) {
    bytes_per_pair += index_key_bytes * 2 / config.compress_ratios[static_cast<size_t>(layer)];
  }
  return CeilDiv(bytes_per_pair, 2);
}

MemoryPlan PlanMemory(const ModelConfig& config, Numerics numerics, int64_t max_model_len, int64_t cache_tokens, int64_t chunk_tokens) {
  const int64_t max_len = max_model_len > 0 ? std::min(max_model_len, config.max_position_embeddings) : config.max_position_embeddings;
  MemoryPlan plan;
  plan.numerics = numerics;
  plan.cache_tokens = cache_tokens > 0 ? cache_tokens : std::min(max_len, kAssumedCacheTokens);
  plan.chunk_tokens = std::min(chunk_tokens, max_len);
  return plan;
}

MemoryNeed EstimateMemory(const ModelConfig& config, const MemoryPlan& plan) {
  return EstimateMemory(config, SummarizeInventory(config, true), plan);
}

MemoryNeed EstimateMemory(const ModelConfig& config,
                          const InventorySummary& summary,
                          const MemoryPlan& plan) {
  MemoryNeed need;
  need.mapped_bytes = summary.part(ModelPart::kEngramTables).num_bytes;
  if (plan.maps_embedding) need.mapped_bytes += summary.part(ModelPart::kEmbedAndHead).num_bytes / 2;
  need.weight_bytes = summary.total.num_bytes - need.mapped_bytes;
  if (!plan.with_draft) {
    need.weight_bytes -= summary.part(ModelPart::kDraftExperts).num_bytes +
                         summary.part(ModelPart::kDraftDense).num_bytes;
  }
  if (!plan.with_vision) need.weight_bytes -= summary.part(ModelPart::kVision).num_bytes;

  const int64_t num_layers =
      config.num_hidden_layers + (plan.with_draft ? config.num_draft_stages : 0);
  const int64_t tokens = CeilDiv(plan.cache_tokens, kBlockTokens) * kBlockTokens;
  // Window rings hold one latent per position and layer: FP8 with scales, or float32 in plain.
  const int64_t window_key_bytes = QuantizesActivations(plan.numerics)
                                       ? config.head_dim + CeilDiv(config.head_dim, 32)
                                       : 4 * config.head_dim;
  need.cache_bytes = tokens * CacheBytesPerToken(config, plan.numerics, plan.use_fp4_sparse_kv) +
                     plan.num_sequences * num_layers * config.sliding_window * window_key_bytes;

  // Float32 rows of one step: residual streams (two copies), queries and attention output, expert
  // inner rows, Engram.
  const int64_t h = config.hidden_size;
  const int64_t row_floats =
      3 * config.hc_mult * h + 2 * int64_t{config.num_attention_heads} * config.head_dim +
      2 * int64_t{config.num_experts_per_tok + 1} * config.moe_intermediate_size +
      int64_t{config.num_experts_per_tok + 2} * h +
      (config.engram_layer_ids.empty() ? 0 : (config.hc_mult + 2) * h);
  const int64_t index_row_floats = tokens;  // scores of one query
  need.workspace_bytes = 4 * (plan.chunk_tokens * row_floats + 64 * index_row_floats +
                              16 * int64_t{config.vocab_size});
  return need;
}

Result<Residency> PlanResidency(const ModelConfig& config, const InventorySummary& summary, const MemoryPlan& plan, const MemoryNeed& need,
                                int64_t budget_bytes, int64_t available_bytes) {
  Residency r;
  const PartSize& routed = summary.part(ModelPart::kRoutedExperts);
  r.expert_bytes = routed.num_bytes + (plan.with_draft ? summary.part(ModelPart::kDraftExperts).num_bytes : 0);
  r.fixed_bytes = need.total() - r.expert_bytes;
  const int64_t limit = budget_bytes > 0 ? std::min(budget_bytes, available_bytes) : available_bytes;
  r.expert_budget = r.expert_bytes;
  // With a budget of its own the process has to fit into it as well.
  if (budget_bytes > 0) r.fixed_bytes += kProcessBytes;
  if (r.fixed_bytes + r.expert_bytes <= limit) {
    if (budget_bytes > 0) r.cache_share = limit - r.fixed_bytes - r.expert_bytes;
    return r;
  }
  r.streams_experts = true;
  if (budget_bytes <= 0) r.fixed_bytes += kProcessBytes;
  r.expert_budget = limit - r.fixed_bytes;
  // A few experts: those of a token, and memory for reads under way.
  const int64_t one = ExpertBytes(config, summary);
  const int64_t least = r.fixed_bytes + (config.num_experts_per_tok + 2) * one;
  if (limit >= least) {
    // So that the sum stays within the budget.
    r.cache_share = std::min(limit / 32, r.expert_budget / 2);
    r.expert_budget -= r.cache_share;
    return r;
  }
  const std::string parts = fmt::format("weights other than experts {}, caches {}, workspace {}, the process itself {}, a few experts {}", FormatBytes(need.weight_bytes - r.expert_bytes),
                                        FormatBytes(need.cache_bytes), FormatBytes(need.workspace_bytes), FormatBytes(kProcessBytes), FormatBytes(least - r.fixed_bytes));
  if (budget_bytes > 0 && budget_bytes <= available_bytes)
    return Status(StatusCode::kResourceExhausted,
                  fmt::format("the memory budget is {} but at least {} are needed ({}); raise --memory-budget or lower --max-model-len", FormatBytes(budget_bytes),
                              FormatBytes(least), parts),
                  "memory_budget");
  return ResourceExhausted(fmt::format("the model needs at least {} of memory even with experts read from disk ({}) but {} is available; use a machine with more "
                                       "memory, raise the container's memory limit or lower --max-model-len",
                                       FormatBytes(least), parts, FormatBytes(available_bytes)));
}

Status CheckMemory(const MemoryNeed& need, int64_t available_bytes) {
  if (need.total() <= available_bytes) return Status::Ok();
  return ResourceExhausted(
      fmt::format("the model needs {} of memory (weights {}, caches {}, workspace {}) but {} is "
                  "available; use a machine with more memory, raise the "
                  "container's memory limit or lower --max-model-len",
                  FormatBytes(need.total()),
                  FormatBytes(need.weight_bytes),
                  FormatBytes(need.cache_bytes),
                  FormatBytes(need.workspace_bytes),
                  FormatBytes(available_bytes)));
}

}  // namespace deepinfer::model
