// SPDX-License-Identifier: Apache-2.0
#include "model/decode_estimate.h"

#include <algorithm>
#include <cmath>

#include "model/flops.h"

namespace deepinfer::model {
namespace {

// What one sequence reads of its caches for one token (FP4 sparse keys, FP8 window keys, FP4 index keys).
int64_t ContextBytes(const ModelConfig& c, int64_t context) {
  int64_t bytes = 0;
  for (int layer = 0; layer < c.num_hidden_layers; ++layer) bytes += LayerContextBytes(c, layer, context);
  return bytes;
}

}  // namespace

int64_t LayerContextBytes(const ModelConfig& c, int layer, int64_t context) {
  const int64_t d = c.head_dim, k = c.index_head_dim;
  const int64_t window_key = d + d / 32;
  const int64_t sparse_key = c.use_fp4_sparse_kv ? d / 2 + d / 16 : window_key;
  const int64_t index_key = k / 2 + k / 32;
  int64_t bytes = std::min<int64_t>(context, c.sliding_window) * window_key;
  const int64_t ratio = c.compress_ratios[static_cast<size_t>(layer)];
  if (ratio == 0) return bytes;
  bytes += std::min<int64_t>(c.index_topk, context / ratio) * sparse_key;
  if (!c.is_index_source(layer)) return bytes;
  int64_t scored = context / ratio;
  if (c.candidate_source_layer_id >= 0 && layer > c.candidate_source_layer_id) {
    scored = std::min(scored, int64_t{c.candidate_topk_blocks} * c.candidate_block_size);
  }
  return bytes + scored * index_key;
}

StepWork EstimateStep(const ModelConfig& c, const InventorySummary& summary, int64_t batch, int64_t context) {
  StepWork work;
  work.dense_bytes = DenseBytesPerToken(summary);
  const double experts = c.n_routed_experts;
  work.experts_per_layer =
      experts > 0 ? experts * (1 - std::pow(1 - c.num_experts_per_tok / experts, static_cast<double>(batch))) : 0;
  if (experts > 0) {
    work.expert_bytes = static_cast<int64_t>(static_cast<double>(summary.part(ModelPart::kRoutedExperts).num_bytes) *
                                             work.experts_per_layer / experts);
  }
  work.context_bytes = batch * ContextBytes(c, context);
  const int64_t row_bytes = c.engram_head_dim + c.engram_head_dim / 32;
  if (!c.engram_layer_ids.empty()) {
    work.table_bytes = batch * static_cast<int64_t>(c.engram_layer_ids.size()) * c.engram_num_columns() * row_bytes;
  }
  const FlopsModel model(c);
  FlopsCounts counts;
  model.Add({.start = context, .num_tokens = 1, .num_consumer_tokens = 1, .num_logit_rows = 1}, counts);
  work.flop = static_cast<double>(batch) * model.Evaluate(counts).flop();
  return work;
}

DecodeEstimate EstimateDecode(const StepWork& work, int64_t batch, const MachineRates& rates, double hit_rate, double overlap) {
  DecodeEstimate estimate;
  const double memory_s = rates.memory_bytes_per_s > 0 ? static_cast<double>(work.memory_bytes()) / rates.memory_bytes_per_s : 0;
  const double arithmetic_s = rates.flop_per_s > 0 ? work.flop / rates.flop_per_s : 0;
  estimate.compute_s = std::max(memory_s, arithmetic_s);
  const double missing = static_cast<double>(work.expert_bytes) * (1 - std::clamp(hit_rate, 0.0, 1.0));
  if (rates.disk_bytes_per_s <= 0 && missing > 0) {
    estimate.bound = DecodeEstimate::Bound::kDisk;
    return estimate;
  }
  if (rates.disk_bytes_per_s > 0) estimate.disk_s = (missing + static_cast<double>(work.table_bytes)) / rates.disk_bytes_per_s;
  estimate.step_s = std::max(estimate.compute_s, estimate.disk_s) +
                    (1 - std::clamp(overlap, 0.0, 1.0)) * std::min(estimate.compute_s, estimate.disk_s);
  if (estimate.step_s > 0) estimate.tokens_per_s = static_cast<double>(batch) / estimate.step_s;
  estimate.bound = estimate.disk_s > estimate.compute_s ? DecodeEstimate::Bound::kDisk
                   : arithmetic_s > memory_s            ? DecodeEstimate::Bound::kArithmetic
                                                        : DecodeEstimate::Bound::kMemory;
  return estimate;
}

double PrefillTokensPerSecond(const ModelConfig& config, const MachineRates& rates, int64_t num_tokens, int64_t keep) {
  const double flop = FlopsModel(config).OfPrompt(num_tokens, keep).flop();
  return flop > 0 ? static_cast<double>(num_tokens) * rates.flop_per_s / flop : 0;
}

}  // namespace deepinfer::model
