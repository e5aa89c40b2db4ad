// SPDX-License-Identifier: Apache-2.0
#include "core/integers.h"
#include "model/inventory.h"

#include <algorithm>

#include <fmt/format.h>

namespace deepinfer::model {

namespace {

// Emits tensors until the visitor has seen enough.
class Emitter {
 public:
  Emitter(const ModelConfig& config,
          bool with_vision,
          const std::function<bool(const RequiredTensor&)>& visit)
      : c_(config), with_vision_(with_vision && config.vision.has_value()), visit_(visit) {}

  void EmitAll() {
    part_ = ModelPart::kEmbedAndHead;
    Plain(DType::kBf16, "embed.weight", {c_.vocab_size, c_.hidden_size}, TensorRole::kEmbed);
    for (int layer = 0; layer < c_.num_hidden_layers && is_wanted_; ++layer) EmitLayer(layer);
    part_ = ModelPart::kFinalNorm;
    Vector(DType::kBf16, "norm.weight", c_.hidden_size, TensorRole::kNorm);
    part_ = ModelPart::kEmbedAndHead;
    Plain(DType::kBf16, "head.weight", {c_.vocab_size, c_.hidden_size}, TensorRole::kLinear, 2.5f);
    for (int stage = 0; stage < c_.num_draft_stages && is_wanted_; ++stage) EmitDraftStage(stage);
    if (with_vision_ && is_wanted_) EmitVision(*c_.vision);
  }

 private:
  using Dims = std::array<int64_t, 2>;

  void Emit(RequiredTensor tensor) {
    if (is_wanted_) is_wanted_ = visit_(tensor);
  }

  void Vector(DType dtype, std::string name, int64_t size, TensorRole role) {
    RequiredTensor t;
    t.name = std::move(name);
    t.dtype = dtype;
    t.dims = {size, 1};
    t.part = part_;
    t.role = role;
    t.fan_in = size;
    Emit(std::move(t));
  }

  void Plain(DType dtype, std::string name, Dims dims, TensorRole role, float gain = 1) {
    RequiredTensor t;
    t.name = std::move(name);
    t.dtype = dtype;
    t.rank = 2;
    t.dims = dims;
    t.part = part_;
    t.role = role;
    t.gain = gain;
    t.fan_in = dims[1];
    Emit(std::move(t));
  }

  void Pair(const std::string& base,
            DType dtype,
            Dims dims,
            Dims scale_dims,
            TensorRole role,
            float gain,
            int64_t fan_in) {
    RequiredTensor t;
    t.name = base + ".weight";
    t.dtype = dtype;
    t.rank = 2;
    t.dims = dims;
    t.part = part_;
    t.role = role;
    t.gain = gain;
    t.fan_in = fan_in;
    t.is_fp4 = dtype == DType::kI8;
    Emit(t);
    t.name = base + ".scale";
    t.dtype = DType::kF8E8M0;
    t.dims = scale_dims;
    t.is_scale = true;
    Emit(std::move(t));
  }

  // FP8 with one scale per 32x32 tile.
  void Fp8(const std::string& base, int64_t rows, int64_t cols, float gain) {
    Pair(base,
         DType::kF8E4M3,
         {rows, cols},
         {CeilDiv(rows, 32), CeilDiv(cols, 32)},
         TensorRole::kLinear,
         gain,
         cols);
  }

  // Packed FP4 with one scale per row and 32 inputs.
  void Fp4(const std::string& base, int64_t rows, int64_t cols, float gain) {
    Pair(base, DType::kI8, {rows, cols / 2}, {rows, cols / 32}, TensorRole::kLinear, gain, cols);
  }

  void Bf16(const std::string& name, int64_t rows, int64_t cols, float gain) {
    Plain(DType::kBf16, name, {rows, cols}, TensorRole::kLinear, gain);
  }

  void EmitAttention(const std::string& a) {
    const int64_t heads_width = int64_t{c_.num_attention_heads} * c_.head_dim;
    const int64_t o_width = int64_t{c_.o_groups} * c_.o_lora_rank;
    Vector(DType::kF32, a + ".attn_sink", c_.num_attention_heads, TensorRole::kSink);
    Fp8(a + ".wq_a", c_.q_lora_rank, c_.hidden_size, 1.0f);
    Vector(DType::kBf16, a + ".q_norm.weight", c_.q_lora_rank, TensorRole::kNorm);
    Fp8(a + ".wq_b", heads_width, c_.q_lora_rank, 1.2f);
    Fp8(a + ".wkv", c_.head_dim, c_.hidden_size, 1.0f);
    Vector(DType::kBf16, a + ".kv_norm.weight", c_.head_dim, TensorRole::kNorm);
    Fp8(a + ".wo_a", o_width, heads_width / c_.o_groups, 1.8f);
    Fp8(a + ".wo_b", c_.hidden_size, o_width, 0.45f);
  }

  // What every backbone layer and every draft stage has.
  void EmitBlock(const std::string& p, int num_experts, ModelPart dense, ModelPart experts) {
    part_ = dense;
    Vector(DType::kBf16, p + ".attn_norm.weight", c_.hidden_size, TensorRole::kNorm);
    Vector(DType::kBf16, p + ".ffn_norm.weight", c_.hidden_size, TensorRole::kNorm);
    const int64_t m = c_.hc_mult;
    for (const char* half : {"attn", "ffn"}) {
      const std::string hc = fmt::format("{}.hc_{}", p, half);
      Plain(DType::kF32, hc + "_fn", {m * (m + 2), m * c_.hidden_size}, TensorRole::kMixFn);
      Vector(DType::kF32, hc + "_base", m * (m + 2), TensorRole::kMixBase);
      Vector(DType::kF32, hc + "_scale", 3, TensorRole::kMixScale);
    }
    EmitAttention(p + ".attn");
    const std::string f = p + ".ffn";
    Plain(
        DType::kBf16, f + ".gate.weight", {num_experts, c_.hidden_size}, TensorRole::kLinear, 1.5f);
    Vector(DType::kF32, f + ".gate.bias", num_experts, TensorRole::kSmall);
    if (with_vision_) Vector(DType::kF32, f + ".gate.bias_vl", num_experts, TensorRole::kSmall);
    const int64_t inner = c_.moe_intermediate_size;
    Fp8(f + ".shared_experts.w1", inner, c_.hidden_size, 1.3f);
    Fp8(f + ".shared_experts.w2", c_.hidden_size, inner, 0.35f);
    Fp8(f + ".shared_experts.w3", inner, c_.hidden_size, 1.3f);
    part_ = experts;
    for (int e = 0; e < num_experts && is_wanted_; ++e) {
      const std::string expert = fmt::format("{}.experts.{}", f, e);
      Fp4(expert + ".w1", inner, c_.hidden_size, 1.3f);
      Fp4(expert + ".w2", c_.hidden_size, inner, 0.35f);
      Fp4(expert + ".w3", inner, c_.hidden_size, 1.3f);
    }
    part_ = dense;
  }

  void EmitEngram(const std::string& p, int table) {
    const int64_t rows = c_.engram_num_embeddings[static_cast<size_t>(table)];
    const int64_t dim = c_.engram_head_dim;
    part_ = ModelPart::kEngramTables;
    Pair(p + ".engram.embed",
         DType::kF8E4M3,
         {rows, dim},
         {rows, dim / 32},
         TensorRole::kTable,
         1.0f,
         dim);
    part_ = ModelPart::kDense;
    Fp8(p + ".engram.wkv",
        int64_t{c_.hc_mult + 1} * c_.hidden_size,
        c_.engram_num_columns() * dim,
        1.0f);
    for (const char* name : {".engram.q_weight", ".engram.k_weight"}) {
      Plain(DType::kBf16, p + name, {c_.hc_mult, c_.hidden_size}, TensorRole::kNorm);
    }
  }

  void EmitLayer(int layer) {
    const std::string p = fmt::format("layers.{}", layer);
    if (const int table = c_.engram_index(layer); table >= 0) EmitEngram(p, table);
    EmitBlock(p, c_.n_routed_experts, ModelPart::kDense, ModelPart::kRoutedExperts);
    const std::string a = p + ".attn";
    if (c_.is_kv_source(layer)) {
      Bf16(a + ".compressor.wkv.weight", c_.head_dim, c_.hidden_size, 1.0f);
      if (c_.compress_ratios[static_cast<size_t>(layer)] > 1) {
        Bf16(a + ".compressor.wgate.weight", c_.head_dim, c_.hidden_size, 1.0f);
      }
      Vector(DType::kBf16, a + ".compressor.norm.weight", c_.head_dim, TensorRole::kNorm);
    }
    if (c_.index_k_source(layer) == layer) {
      Bf16(a + ".indexer.wk.weight", c_.index_head_dim, c_.head_dim, 1.0f);
      Vector(DType::kBf16, a + ".indexer.k_norm.weight", c_.index_head_dim, TensorRole::kNorm);
    }
    if (c_.is_index_source(layer)) {
      Fp8(a + ".indexer.wq_b", int64_t{c_.index_n_heads} * c_.index_head_dim, c_.q_lora_rank, 1.0f);
      Bf16(a + ".indexer.weights_proj.weight", c_.index_n_heads, c_.hidden_size, 1.0f);
    }
  }

  void EmitDraftStage(int stage) {
    const std::string p = fmt::format("mtp.{}", stage);
    EmitBlock(p, c_.dspark_n_routed_experts, ModelPart::kDraftDense, ModelPart::kDraftExperts);
    if (stage == 0) {
      Fp8(p + ".main_proj",
          c_.hidden_size,
          c_.hidden_size * static_cast<int64_t>(c_.dspark_target_layer_ids.size()),
          1.0f);
      Vector(DType::kBf16, p + ".main_norm.weight", c_.hidden_size, TensorRole::kNorm);
    }
    if (stage != c_.num_draft_stages - 1) return;
    const int64_t rank = c_.dspark_markov_rank;
    Vector(DType::kBf16, p + ".norm.weight", c_.hidden_size, TensorRole::kNorm);
    Plain(DType::kBf16, p + ".markov_head.embed.weight", {c_.vocab_size, rank}, TensorRole::kEmbed);
    Bf16(p + ".markov_head.head.weight", c_.vocab_size, rank, 1.5f);
    Bf16(p + ".confidence_head.proj.weight", 1, c_.hidden_size + rank, 1.0f);
  }

  void EmitVision(const VisionConfig& v) {
    part_ = ModelPart::kVision;
    const int64_t width = v.hidden_size;
    const auto bias = [&](const std::string& name, int64_t size) {
      Vector(DType::kBf16, name, size, TensorRole::kSmall);
    };
    const auto norm = [&](const std::string& name) {
      Vector(DType::kBf16, name, width, TensorRole::kNorm);
    };
    Bf16("vision.patch_embed.proj.weight", width, int64_t{3} * v.patch_size * v.patch_size, 1.0f);
    bias("vision.patch_embed.proj.bias", width);
    for (int block = 0; block < v.num_hidden_layers && is_wanted_; ++block) {
      const std::string p = fmt::format("vision.blocks.{}", block);
      norm(p + ".norm1.weight");
      Bf16(p + ".attn.wqkv.weight", 3 * width, width, 1.2f);
      bias(p + ".attn.wqkv.bias", 3 * width);
      Bf16(p + ".attn.wo.weight", width, width, 1.0f);
      bias(p + ".attn.wo.bias", width);
      norm(p + ".norm2.weight");
      Bf16(p + ".mlp.w1.weight", int64_t{2} * v.intermediate_size, width, 1.2f);
      Bf16(p + ".mlp.w2.weight", width, v.intermediate_size, 1.2f);
    }
    norm("vision.norm.weight");
    Bf16(
        "aligner.w1.weight", c_.hidden_size, width * v.downsample_ratio * v.downsample_ratio, 1.0f);
    bias("aligner.w1.bias", c_.hidden_size);
    Bf16("aligner.w2.weight", c_.hidden_size, c_.hidden_size, 0.7f);
    bias("aligner.w2.bias", c_.hidden_size);
    for (const char* name : {"image_start", "image_end", "image_newline"}) {
      Vector(DType::kBf16, name, c_.hidden_size, TensorRole::kEmbed);
    }
  }

  const ModelConfig& c_;
  const bool with_vision_;
  const std::function<bool(const RequiredTensor&)>& visit_;
  ModelPart part_ = ModelPart::kDense;
  bool is_wanted_ = true;
};

}  // namespace

std::string_view ModelPartName(ModelPart part) {
  switch (part) {
    case ModelPart::kRoutedExperts:
      return "routed experts";
    case ModelPart::kEngramTables:
      return "Engram tables";
    case ModelPart::kDraftExperts:
      return "draft experts";
    case ModelPart::kDraftDense:
      return "draft dense";
    case ModelPart::kDense:
      return "dense layers";
    case ModelPart::kEmbedAndHead:
      return "embed and head";
    case ModelPart::kVision:
      return "vision";
    case ModelPart::kFinalNorm:
      return "final norm";
  }
  return "?";
}

int64_t RequiredTensor::num_parameters() const {
  if (is_scale) return 0;
  const int64_t elements = dims[0] * (rank > 1 ? dims[1] : 1);
  return dtype == DType::kI8 ? 2 * elements : elements;
}

void ForEachRequiredTensor(const ModelConfig& config,
                           bool with_vision,
                           const std::function<bool(const RequiredTensor&)>& visit) {
  Emitter(config, with_vision, visit).EmitAll();
}

InventorySummary SummarizeInventory(const ModelConfig& config, bool with_vision) {
  InventorySummary summary;
  const auto add = [](PartSize& size, const RequiredTensor& t) {
    ++size.num_tensors;
    size.num_bytes += t.num_bytes();
    size.num_parameters += t.num_parameters();
  };
  ForEachRequiredTensor(config, with_vision, [&](const RequiredTensor& t) {
    add(summary.parts[static_cast<size_t>(t.part)], t);
    add(summary.total, t);
    return true;
  });
  return summary;
}

int64_t DenseBytesPerToken(const InventorySummary& summary) {
  // Embedding and head are of one size; a step reads the head and a row of the other.
  return summary.part(ModelPart::kDense).num_bytes + summary.part(ModelPart::kEmbedAndHead).num_bytes / 2 +
         summary.part(ModelPart::kFinalNorm).num_bytes;
}

int64_t ExpertBytes(const ModelConfig& config, const InventorySummary& summary) {
  return summary.part(ModelPart::kRoutedExperts).num_bytes / std::max<int64_t>(int64_t{config.num_hidden_layers} * config.n_routed_experts, 1);
}

}  // namespace deepinfer::model
