// SPDX-License-Identifier: Apache-2.0
//
// The model configuration read from config.json and validated (checkpoint.md 2 of the
// specification): every key, its default, the values that are the only ones accepted, and the
// topology of KV and index sources. Errors are kBadModel and name the field
// ("text_config.num_key_value_heads must be 1, got 2").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/status.h"

namespace deepinfer::model {

struct YarnConfig {
  double factor = 16;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_max_position_embeddings = 65536;
};

struct VisionConfig {
  int num_hidden_layers = 0;
  int hidden_size = 0;
  int num_attention_heads = 0;
  int intermediate_size = 0;
  int patch_size = 14;
  double rope_theta = 10000;
  int downsample_ratio = 3;
  int max_image_tokens = 1024;
  int64_t min_pixels = 295936;
  std::optional<double> max_wh_ratio;
};

struct ModelConfig {
  // Top level.
  int bos_token_id = 0;
  int eos_token_id = 1;
  int pad_token_id = 2;
  int image_token_id = 0;  // -1: none (text-only configuration)
  // text_config, in the order of the specification.
  int vocab_size = 0;           // V
  int hidden_size = 0;          // H
  int num_hidden_layers = 0;    // L
  int num_attention_heads = 0;  // NH
  int head_dim = 0;             // D, rope part included
  int qk_rope_head_dim = 0;     // RD, the last channels of a head rotate
  int q_lora_rank = 0;          // QR
  int o_groups = 0;             // OG
  int o_lora_rank = 0;          // OR, per group
  float swiglu_limit = 0;       // <= 0: no clamp
  float rms_norm_eps = 0;
  int64_t max_position_embeddings = 0;
  double rope_theta = 10000;
  std::optional<YarnConfig> yarn;  // applies with compress_rope_theta only
  double compress_rope_theta = 160000;
  int sliding_window = 0;                     // W, the query itself included
  std::vector<int> compress_ratios;           // L + num_draft_stages entries of 0, 1 or 2
  std::vector<int> kv_source_layer_ids;       // ascending
  std::vector<int> index_source_layer_ids;    // ascending
  std::vector<int> index_k_source_layer_ids;  // ascending
  int index_n_heads = 0;                      // J
  int index_head_dim = 0;                     // K_I
  int index_topk = 0;
  int candidate_source_layer_id = -1;  // -1: no second level
  int candidate_topk_blocks = 0;
  int candidate_block_size = 0;
  int moe_intermediate_size = 0;  // I
  int n_routed_experts = 0;       // E
  int num_experts_per_tok = 0;    // K
  int n_shared_experts = 1;
  float routed_scaling_factor = 1;
  float gate_temp = 1;
  int hc_mult = 4;  // M streams
  int hc_sinkhorn_iters = 20;
  float hc_eps = 1e-6f;
  std::vector<int> engram_layer_ids;  // empty = no Engram
  std::vector<int64_t> engram_num_embeddings;
  int engram_max_ngram_size = 0;  // NG
  int64_t engram_vocab_size = 0;
  int engram_n_heads = 0;
  int engram_head_dim = 0;
  int engram_pad_token_id = 0;
  int64_t engram_compressed_vocab_size = 0;
  int num_draft_stages = 0;  // num_nextn_predict_layers
  int dspark_block_size = 0;
  int dspark_noise_token_id = 0;
  std::vector<int> dspark_target_layer_ids;
  int dspark_markov_rank = 0;
  int dspark_n_routed_experts = 0;
  int dspark_num_experts_per_tok = 0;
  bool use_fp4_sparse_kv = true;
  std::optional<VisionConfig> vision;

  // Derived.
  int engram_num_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }
  // First layer with ratio 1: layers from here on are the consumer ("decoder") half.
  // num_hidden_layers if there is none.
  int first_consumer_layer() const;
  // Nearest source at or below `layer`; -1 below the first one.
  int kv_source(int layer) const;
  int index_source(int layer) const;
  int index_k_source(int layer) const;
  bool is_kv_source(int layer) const { return kv_source(layer) == layer; }
  bool is_index_source(int layer) const { return index_source(layer) == layer; }
  int engram_index(int layer) const;  // position in engram_layer_ids, -1 if none

  // Decoder replay additionally needs every Engram layer before the consumer half and the draft
  // targets all inside or all outside of it.
  Status CheckDecoderReplay() const;

  // Parses and validates; `origin` (a path) is named in errors.
  static Result<ModelConfig> FromJson(const Json& json, const std::string& origin);
  static Result<ModelConfig> Load(const std::string& model_dir);
};

}  // namespace deepinfer::model
