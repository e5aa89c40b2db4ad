// SPDX-License-Identifier: Apache-2.0
//
// What a step of the text model computes, estimated from the configuration and the positions of its rows (statistics only;
// nothing is decided by it). Count rows with Add, at any time and in any order; Evaluate turns the counts into multiply-adds
// by part. Draft head, vision, padding and norms are left out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/config.h"

namespace deepinfer::model {

enum class FlopsPart {
  kProjections,       // query, window key and output projections
  kCompressor,        // compressed keys
  kIndexQueries,
  kIndexKeys,         // and the weights of the index heads
  kIndexScores,
  kAttention,         // query x key and probability x value
  kRoutedExperts,
  kSharedExperts,
  kRouter,
  kHyperConnections,
  kEngram,
  kHead,
};
inline constexpr size_t kNumFlopsParts = 12;

// One sequence's rows of a step.
struct FlopsRow {
  int64_t start = 0;                // position of the first one
  int64_t num_tokens = 0;
  int64_t num_consumer_tokens = 0;  // the last ones, which run through the consumer half too; the others end before it
  int64_t num_logit_rows = 0;
};

// Sums over rows; counts of several steps may be added.
struct FlopsCounts {
  int64_t producer_tokens = 0, consumer_tokens = 0, logit_rows = 0;
  int64_t index_keys = 0;                       // over all layers that make them
  int64_t attention_pairs = 0, score_pairs = 0;  // query and key, over all layers

  void operator+=(const FlopsCounts& other);
};

struct Flops {
  std::array<double, kNumFlopsParts> multiply_adds{};

  double of(FlopsPart part) const { return multiply_adds[static_cast<size_t>(part)]; }
  double flop() const;            // 2 per multiply-add
  // In units of FP8: a multiply-add counts 1 for FP4 weights, 2 for FP8, 4 for BF16, 8 for TF32 and FP32. Divided by the
  // time and by twice the BF16 peak it is the model FLOPs utilisation (MFU).
  double fp8_equivalent() const;
};

class FlopsModel {
 public:
  explicit FlopsModel(const ModelConfig& config) : FlopsModel(config, kAllLayers) {}
  // Of one layer alone; layer = num_hidden_layers: of what lies outside the layers.
  FlopsModel(const ModelConfig& config, int layer);

  void Add(const FlopsRow& row, FlopsCounts& counts) const;
  Flops Evaluate(const FlopsCounts& counts) const;
  // A prompt without anything cached, its last row with logits. keep > 0: decoder replay runs the consumer half for the last
  // `keep` tokens only; 0 = it is off.
  Flops OfPrompt(int64_t num_tokens, int64_t keep) const;

 private:
  static constexpr int kAllLayers = -1;
  // num_layers layers look at  scale * min(floor((t + shift) / divisor), cap)  keys when t tokens are visible.
  struct PairTerm {
    bool is_consumer = false;
    bool is_score = false;
    int64_t divisor = 1, cap = 0, shift = 0, scale = 1;
    int64_t num_layers = 0;
  };
  struct KeyTerm {
    int64_t ratio = 1;
    int64_t num_layers = 0;
  };
  void AddTerm(const PairTerm& term);

  std::vector<PairTerm> pairs_;
  std::vector<KeyTerm> keys_;
  std::array<double, kNumFlopsParts> per_producer_token_{}, per_consumer_token_{};
  double per_index_key_ = 0, per_attention_pair_ = 0, per_score_pair_ = 0, per_logit_row_ = 0;
};

}  // namespace deepinfer::model
