// SPDX-License-Identifier: Apache-2.0
//
// The text model's weights as device handles. Matrices that read the same input are stacked; everything stays in the stored
// width. Small vectors (norm gains, biases) become float32.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/status.h"
#include "device/device.h"
#include "model/checkpoint.h"
#include "model/config.h"

namespace deepinfer::model {

using MatrixPtr = std::unique_ptr<device::Matrix>;

struct SiteWeights {
  MatrixPtr fn;
  device::Buffer base, scale;
};

struct LayerWeights {
  device::Buffer attn_norm, ffn_norm, q_norm, kv_norm, sink;
  MatrixPtr qa_kv;  // [wq_a; wkv]: QR + D rows
  MatrixPtr q_b, o_a, o_b;
  SiteWeights hc_attn, hc_ffn;
  MatrixPtr gate;
  device::Buffer gate_bias, gate_bias_image;  // the latter empty without vision
  std::unique_ptr<device::ExpertBank> experts;

  // KV source layers. Ratio 2: [wgate; wkv]; ratio 1: wkv.
  MatrixPtr compressor, index_key;
  device::Buffer compressor_norm, index_key_norm;
  // Index source layers.
  MatrixPtr index_query, index_weight;

  // Engram layers.
  std::unique_ptr<device::Table> engram_table;
  MatrixPtr engram_kv;
  device::Buffer engram_qk;  // [M, H] q_weight * k_weight
};

struct ModelWeights {
  std::unique_ptr<device::Table> embed;
  MatrixPtr head;
  device::Buffer norm;
  std::vector<LayerWeights> layers;

  // Draft head; `stages` empty when not loaded.
  std::vector<LayerWeights> stages;
  MatrixPtr main_proj;
  device::Buffer main_norm, draft_norm;
  MatrixPtr context_keys;  // wkv of all stages stacked: stages * D rows
  std::unique_ptr<device::Table> markov_embed;
  MatrixPtr markov_head, confidence;

  static Result<ModelWeights> Load(const Checkpoint& checkpoint, const ModelConfig& config, device::Device& device,
                                   bool with_draft, const std::function<void(int64_t, int64_t)>& progress);
};

}  // namespace deepinfer::model
