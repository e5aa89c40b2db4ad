// SPDX-License-Identifier: Apache-2.0
#include "model/flops.h"

#include <algorithm>
#include <limits>

namespace deepinfer::model {
namespace {

// By part: what one multiply-add weighs beside FP8. Attention and index scores: BF16 and FP4 operands.
constexpr std::array<double, kNumFlopsParts> kWeights = {2, 4, 2, 4, 1, 4, 1, 2, 4, 8, 2, 4};

// Sum over t = 1..n of min(floor(t / divisor), cap).
int64_t SumOfFloors(int64_t n, int64_t divisor, int64_t cap) {
  if (n <= 0) return 0;
  int64_t capped = 0;
  if (n / divisor >= cap) {
    const int64_t last = divisor * cap - 1;  // the last t below the cap
    capped = cap * (n - last);
    n = last;
  }
  const int64_t m = n / divisor;
  return capped + divisor * (m * (m - 1) / 2) + m * (n - divisor * m + 1);
}

}  // namespace

void FlopsCounts::operator+=(const FlopsCounts& other) {
  producer_tokens += other.producer_tokens;
  consumer_tokens += other.consumer_tokens;
  logit_rows += other.logit_rows;
  index_keys += other.index_keys;
  attention_pairs += other.attention_pairs;
  score_pairs += other.score_pairs;
}

double Flops::flop() const {
  double sum = 0;
  for (const double value : multiply_adds) sum += value;
  return 2 * sum;
}

double Flops::fp8_equivalent() const {
  double sum = 0;
  for (size_t i = 0; i < kNumFlopsParts; ++i) sum += kWeights[i] * multiply_adds[i];
  return sum;
}

FlopsModel::FlopsModel(const ModelConfig& c, int only_layer) {
  const auto h = static_cast<double>(c.hidden_size);
  const double q_width = static_cast<double>(c.num_attention_heads) * c.head_dim;
  const double expert = 3 * h * c.moe_intermediate_size;
  const double streams = c.hc_mult;
  const int border = c.first_consumer_layer();
  for (int layer = 0; layer < c.num_hidden_layers; ++layer) {
    if (only_layer != kAllLayers && layer != only_layer) continue;
    const bool is_consumer = layer >= border;
    const auto add = [&](FlopsPart part, double multiply_adds, bool for_all_rows = false) {
      auto& sums = is_consumer && !for_all_rows ? per_consumer_token_ : per_producer_token_;
      sums[static_cast<size_t>(part)] += multiply_adds;
    };
    add(FlopsPart::kProjections, h * c.q_lora_rank + c.q_lora_rank * q_width + h * c.head_dim + q_width * c.o_lora_rank +
                                     static_cast<double>(c.o_groups) * c.o_lora_rank * h);
    add(FlopsPart::kRouter, h * c.n_routed_experts);
    add(FlopsPart::kRoutedExperts, c.num_experts_per_tok * expert);
    add(FlopsPart::kSharedExperts, c.n_shared_experts * expert);
    add(FlopsPart::kHyperConnections, 2 * streams * (streams + 2) * streams * h);
    if (c.engram_index(layer) >= 0)
      add(FlopsPart::kEngram, static_cast<double>(c.engram_num_columns()) * c.engram_head_dim * (streams + 1) * h);
    AddTerm({is_consumer, false, 1, c.sliding_window, 0, 1, 1});
    const int64_t ratio = c.compress_ratios[static_cast<size_t>(layer)];
    if (ratio == 0) continue;
    // Compressed keys are made for all rows, in the consumer half too.
    if (c.is_kv_source(layer)) add(FlopsPart::kCompressor, static_cast<double>(ratio) * h * c.head_dim, true);
    if (c.index_k_source(layer) == layer) keys_.push_back({ratio, 1});
    AddTerm({is_consumer, false, ratio, c.index_topk, 0, 1, 1});
    if (!c.is_index_source(layer)) continue;
    add(FlopsPart::kIndexQueries, static_cast<double>(c.q_lora_rank) * c.index_n_heads * c.index_head_dim);
    add(FlopsPart::kIndexKeys, h * c.index_n_heads);
    if (c.candidate_source_layer_id >= 0 && layer > c.candidate_source_layer_id) {
      const int64_t block = c.candidate_block_size;
      AddTerm({is_consumer, true, ratio * block, c.candidate_topk_blocks, ratio * (block - 1), block, 1});
    } else {
      AddTerm({is_consumer, true, ratio, std::numeric_limits<int32_t>::max(), 0, 1, 1});
    }
  }
  per_index_key_ = static_cast<double>(c.head_dim) * c.index_head_dim;
  per_attention_pair_ = 2 * q_width;
  per_score_pair_ = static_cast<double>(c.index_n_heads) * c.index_head_dim;
  if (only_layer == kAllLayers || only_layer == c.num_hidden_layers) per_logit_row_ = h * c.vocab_size;
}

void FlopsModel::AddTerm(const PairTerm& term) {
  for (PairTerm& known : pairs_) {
    if (known.is_consumer != term.is_consumer || known.is_score != term.is_score || known.divisor != term.divisor || known.cap != term.cap ||
        known.shift != term.shift || known.scale != term.scale)
      continue;
    known.num_layers += term.num_layers;
    return;
  }
  pairs_.push_back(term);
}

void FlopsModel::Add(const FlopsRow& row, FlopsCounts& counts) const {
  const int64_t end = row.start + row.num_tokens;
  counts.producer_tokens += row.num_tokens;
  counts.consumer_tokens += row.num_consumer_tokens;
  counts.logit_rows += row.num_logit_rows;
  for (const KeyTerm& term : keys_) counts.index_keys += term.num_layers * (end / term.ratio - row.start / term.ratio);
  for (const PairTerm& term : pairs_) {
    const int64_t begin = term.is_consumer ? end - row.num_consumer_tokens : row.start;
    // The token at position p sees p + 1.
    const int64_t sum = SumOfFloors(end + term.shift, term.divisor, term.cap) - SumOfFloors(begin + term.shift, term.divisor, term.cap);
    (term.is_score ? counts.score_pairs : counts.attention_pairs) += term.num_layers * term.scale * sum;
  }
}

Flops FlopsModel::Evaluate(const FlopsCounts& counts) const {
  Flops flops;
  for (size_t i = 0; i < kNumFlopsParts; ++i) {
    flops.multiply_adds[i] = per_producer_token_[i] * static_cast<double>(counts.producer_tokens) +
                             per_consumer_token_[i] * static_cast<double>(counts.consumer_tokens);
  }
  const auto add = [&](FlopsPart part, double each, int64_t count) {
    flops.multiply_adds[static_cast<size_t>(part)] += each * static_cast<double>(count);
  };
  add(FlopsPart::kIndexKeys, per_index_key_, counts.index_keys);
  add(FlopsPart::kAttention, per_attention_pair_, counts.attention_pairs);
  add(FlopsPart::kIndexScores, per_score_pair_, counts.score_pairs);
  add(FlopsPart::kHead, per_logit_row_, counts.logit_rows);
  return flops;
}

Flops FlopsModel::OfPrompt(int64_t num_tokens, int64_t keep) const {
  FlopsRow row;
  row.num_tokens = num_tokens;
  row.num_consumer_tokens = keep > 0 ? std::min(keep, num_tokens) : num_tokens;
  row.num_logit_rows = 1;
  FlopsCounts counts;
  Add(row, counts);
  return Evaluate(counts);
}

}  // namespace deepinfer::model
