// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include "core/file.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "core/escape.h"
#include "model/engram_constants.h"

namespace deepinfer::model {

namespace {

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;
// Bounds that keep every product of sizes far inside 64 bits and a hostile file from asking for
// absurd work. All are at least 16 times the released values.
constexpr int kMaxLayers = 1024;
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxHeads = 1 << 12;
constexpr int kMaxExperts = 1 << 14;
constexpr size_t kMaxEngramTables = 16;

std::string Show(const Json& value) {
  return Escape(DumpJson(value), 80);
}

// Reads the members of one JSON object. The first error sticks and later reads do nothing, so that
// a section reads as a list of its keys.
class Section {
 public:
  Section(const Json& object, std::string prefix, const std::string& origin, Status* status)
      : object_(object), prefix_(std::move(prefix)), origin_(origin), status_(status) {}

  // Present and not null.
  bool Has(const char* key) const { return Find(key) != nullptr; }
  // For required keys whose null has a meaning.
  void MustMention(const char* key) {
    if (!object_.contains(key)) Fail(key, kMissing);
  }

  void Int(const char* key, int64_t low, int64_t high, int* out) {
    int64_t value = 0;
    if (ReadInt(key, low, high, &value)) *out = static_cast<int>(value);
  }
  void Int(const char* key, int64_t low, int64_t high, int64_t* out) {
    ReadInt(key, low, high, out);
  }
  template <typename T>
  void OptionalInt(const char* key, int64_t low, int64_t high, T* out) {
    if (Has(key)) Int(key, low, high, out);
  }

  template <typename T>
  void Number(const char* key, double low, double high, T* out) {
    const Json* value = Require(key);
    if (value == nullptr) return;
    if (!value->is_number())
      return Fail(key, fmt::format("must be a number, got {}", Show(*value)));
    const double number = value->get<double>();
    if (!std::isfinite(number) || number < low || number > high) {
      return Fail(key, fmt::format("must lie in [{:g}, {:g}], got {}", low, high, Show(*value)));
    }
    *out = static_cast<T>(number);
  }
  template <typename T>
  void OptionalNumber(const char* key, double low, double high, T* out) {
    if (Has(key)) Number(key, low, high, out);
  }

  void IntList(
      const char* key, int64_t low, int64_t high, size_t max_size, std::vector<int64_t>* out) {
    const Json* value = Require(key);
    if (value == nullptr) return;
    if (!value->is_array())
      return Fail(key, fmt::format("must be a list of integers, got {}", Show(*value)));
    if (value->size() > max_size) {
      return Fail(key,
                  fmt::format("has {} entries, at most {} are supported", value->size(), max_size));
    }
    std::vector<int64_t> list;
    for (size_t i = 0; i < value->size(); ++i) {
      int64_t entry = 0;
      if (!AsInt((*value)[i], &entry) || entry < low || entry > high) {
        return Fail(
            key,
            fmt::format(
                "[{}] must be an integer in [{}, {}], got {}", i, low, high, Show((*value)[i])));
      }
      list.push_back(entry);
    }
    *out = std::move(list);
  }
  void IntList(const char* key, int64_t low, int64_t high, size_t max_size, std::vector<int>* out) {
    std::vector<int64_t> list;
    IntList(key, low, high, max_size, &list);
    if (status_->ok()) out->assign(list.begin(), list.end());
  }
  // Layer ids: distinct, stored ascending.
  void LayerSet(const char* key, int num_layers, std::vector<int>* out) {
    IntList(key, 0, num_layers - 1, kMaxLayers, out);
    if (!status_->ok()) return;
    std::sort(out->begin(), out->end());
    if (std::adjacent_find(out->begin(), out->end()) != out->end())
      Fail(key, "names a layer twice");
  }

  // The key must be present with exactly this value.
  void Only(const char* key, const Json& expected) {
    const Json* value = Require(key);
    if (value == nullptr || Equal(*value, expected)) return;
    Fail(key, fmt::format("must be {}, got {}", Show(expected), Show(*value)));
  }
  void OptionalOnly(const char* key, const Json& expected) {
    if (Has(key)) Only(key, expected);
  }

  void OptionalBool(const char* key, bool* out) {
    const Json* value = Find(key);
    if (value == nullptr || !status_->ok()) return;
    if (!value->is_boolean())
      return Fail(key, fmt::format("must be true or false, got {}", Show(*value)));
    *out = value->get<bool>();
  }

  // nullptr when absent, null or (with an error) not an object.
  const Json* Object(const char* key, bool is_required) {
    const Json* value = is_required ? Require(key) : Find(key);
    if (value == nullptr || !status_->ok()) return nullptr;
    if (!value->is_object()) {
      Fail(key, fmt::format("must be an object, got {}", Show(*value)));
      return nullptr;
    }
    return value;
  }

  const Json* Require(const char* key) {
    if (!status_->ok()) return nullptr;
    const Json* value = Find(key);
    if (value == nullptr)
      Fail(key, object_.contains(key) ? "must not be null; this key is required" : kMissing);
    return value;
  }

  void Fail(const std::string& key, const std::string& problem) {
    if (!status_->ok()) return;
    const bool is_index = !problem.empty() && problem[0] == '[';
    const std::string field = prefix_ + key;
    *status_ = Status(StatusCode::kBadModel,
                      fmt::format("{}: {}{}{}", origin_, field, is_index ? "" : " ", problem),
                      field);
  }
  void FailWith(const std::string& key, const std::string& message) {
    if (status_->ok())
      *status_ =
          Status(StatusCode::kBadModel, fmt::format("{}: {}", origin_, message), prefix_ + key);
  }

 private:
  // A JSON null counts as absent.
  const Json* Find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  static bool AsInt(const Json& value, int64_t* out) {
    if (!value.is_number_integer()) return false;
    if (value.is_number_unsigned() &&
        value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
      return false;
    *out = value.get<int64_t>();
    return true;
  }

  static bool Equal(const Json& a, const Json& b) {
    if (a.is_number() && b.is_number()) return a.get<double>() == b.get<double>();
    return a.type() == b.type() && a == b;
  }

  bool ReadInt(const char* key, int64_t low, int64_t high, int64_t* out) {
    const Json* value = Require(key);
    if (value == nullptr) return false;
    int64_t number = 0;
    if (!AsInt(*value, &number)) {
      Fail(key, fmt::format("must be an integer, got {}", Show(*value)));
      return false;
    }
    if (number < low || number > high) {
      Fail(key, fmt::format("must lie in [{}, {}], got {}", low, high, number));
      return false;
    }
    *out = number;
    return true;
  }

  static constexpr const char* kMissing = "is missing; this key is required";

  const Json& object_;
  std::string prefix_;
  const std::string& origin_;
  Status* status_;
};

int SourceAtOrBelow(const std::vector<int>& ascending_ids, int layer) {
  const auto it = std::upper_bound(ascending_ids.begin(), ascending_ids.end(), layer);
  return it == ascending_ids.begin() ? -1 : *(it - 1);
}

bool Contains(const std::vector<int>& ascending_ids, int layer) {
  return std::binary_search(ascending_ids.begin(), ascending_ids.end(), layer);
}

void ReadTopLevel(Section& top, ModelConfig* c) {
  static constexpr const char* kArchitecture = "DeepseekV41ForCausalLM";
  if (const Json* value = top.Require("architectures"); value != nullptr) {
    if (!value->is_array() || value->size() != 1 || !(*value)[0].is_string() ||
        (*value)[0] != kArchitecture) {
      top.Fail("architectures",
               fmt::format("must be [\"{0}\"], got {1}; supported architectures: {0}",
                           kArchitecture,
                           Show(*value)));
    }
  }
  top.Only("model_type", "deepseek_v41");
  top.Only("dtype", "bfloat16");
  top.Int("bos_token_id", 0, kMaxVocab, &c->bos_token_id);
  top.Int("eos_token_id", 0, kMaxVocab, &c->eos_token_id);
  top.Int("pad_token_id", 0, kMaxVocab, &c->pad_token_id);
}

void ReadQuantization(Section& top, const std::string& origin, Status* status) {
  const Json* object = top.Object("quantization_config", true);
  if (object == nullptr) return;
  Section q(*object, "quantization_config.", origin, status);
  const std::pair<const char*, Json> only[] = {{"quant_method", "fp8"},
                                               {"activation_scheme", "dynamic"},
                                               {"weight_block_size", Json::array({32, 32})},
                                               {"scale_fmt", "ue8m0"},
                                               {"expert_dtype", "fp4"}};
  for (const auto& [key, expected] : only) {
    const Json* value = q.Require(key);
    if (value == nullptr) return;
    if (value->type() != expected.type() || *value != expected) {
      q.FailWith(key,
                 fmt::format("Unsupported HF {}: quantization_config.{} must be {}, got {}",
                             key,
                             key,
                             Show(expected),
                             Show(*value)));
    }
  }
}

void ReadVision(const Json& object, const std::string& origin, Status* status, VisionConfig* v) {
  Section s(object, "vision_config.", origin, status);
  s.OptionalOnly("model_type", "deepseek_v41_vision");
  s.Int("num_hidden_layers", 1, kMaxLayers, &v->num_hidden_layers);
  s.Int("hidden_size", 1, kMaxWidth, &v->hidden_size);
  s.Int("num_attention_heads", 1, kMaxHeads, &v->num_attention_heads);
  s.Int("intermediate_size", 1, kMaxWidth, &v->intermediate_size);
  s.Int("patch_size", 1, 1024, &v->patch_size);
  s.Number("rope_theta", 1, 1e12, &v->rope_theta);
  s.Int("downsample_ratio", 1, 64, &v->downsample_ratio);
  s.Int("max_image_tokens", 1, 1 << 20, &v->max_image_tokens);
  s.Int("min_pixels", 1, int64_t{1} << 40, &v->min_pixels);
  if (s.Has("max_wh_ratio")) {
    double ratio = 0;
    s.Number("max_wh_ratio", 1, 1e6, &ratio);
    v->max_wh_ratio = ratio;
  }
  if (!status->ok()) return;
  if (v->hidden_size % (2 * v->num_attention_heads) != 0) {
    s.Fail("hidden_size",
           fmt::format("must be a multiple of 2 * num_attention_heads ({}), got {}",
                       2 * v->num_attention_heads,
                       v->hidden_size));
  }
}

void ReadYarn(Section& t, const std::string& origin, Status* status, ModelConfig* c) {
  const Json* object = t.Object("rope_scaling", false);
  if (object == nullptr) return;
  YarnConfig yarn;
  Section s(*object, "text_config.rope_scaling.", origin, status);
  s.Only("rope_type", "yarn");
  s.Number("factor", 1, 1e6, &yarn.factor);
  s.Number("beta_fast", 0, 1e6, &yarn.beta_fast);
  s.Number("beta_slow", 0, 1e6, &yarn.beta_slow);
  s.Int("original_max_position_embeddings",
        1,
        int64_t{1} << 31,
        &yarn.original_max_position_embeddings);
  c->yarn = yarn;
}

void ReadAttention(Section& t, ModelConfig* c) {
  t.Int("num_attention_heads", 1, kMaxHeads, &c->num_attention_heads);
  t.Only("num_key_value_heads", 1);
  t.Int("head_dim", 32, 1 << 13, &c->head_dim);
  t.Int("qk_rope_head_dim", 2, 1 << 13, &c->qk_rope_head_dim);
  t.Int("q_lora_rank", 32, kMaxWidth, &c->q_lora_rank);
  t.Int("o_groups", 1, kMaxHeads, &c->o_groups);
  t.Int("o_lora_rank", 1, kMaxWidth, &c->o_lora_rank);
  t.Only("attention_bias", false);
  t.Only("attention_dropout", 0.0);
  t.Int("max_position_embeddings", 1, int64_t{1} << 31, &c->max_position_embeddings);
  t.Number("rope_theta", 1, 1e12, &c->rope_theta);
  t.Number("compress_rope_theta", 1, 1e12, &c->compress_rope_theta);
  t.Int("sliding_window", 1, 1 << 20, &c->sliding_window);
}

void ReadSparseAttention(Section& t, ModelConfig* c) {
  t.IntList("compress_ratios", 0, 2, 2 * kMaxLayers, &c->compress_ratios);
  t.LayerSet("kv_source_layer_ids", c->num_hidden_layers, &c->kv_source_layer_ids);
  t.LayerSet("index_source_layer_ids", c->num_hidden_layers, &c->index_source_layer_ids);
  if (t.Has("index_k_source_layer_ids")) {
    t.LayerSet("index_k_source_layer_ids", c->num_hidden_layers, &c->index_k_source_layer_ids);
  } else {
    c->index_k_source_layer_ids = c->kv_source_layer_ids;
  }
  t.Int("index_n_heads", 1, kMaxHeads, &c->index_n_heads);
  t.Int("index_head_dim", 1, 1 << 13, &c->index_head_dim);
  t.Int("index_topk", 1, 1 << 20, &c->index_topk);
  t.MustMention("candidate_source_layer_id");
  t.OptionalInt("candidate_source_layer_id",
                std::numeric_limits<int>::min(),
                c->num_hidden_layers - 1,
                &c->candidate_source_layer_id);
  if (c->candidate_source_layer_id < 0) {
    c->candidate_source_layer_id = -1;
    return;
  }
  t.Int("candidate_topk_blocks", 1, 1 << 24, &c->candidate_topk_blocks);
  t.Int("candidate_block_size", 2, 1 << 16, &c->candidate_block_size);
}

void ReadExperts(Section& t, ModelConfig* c) {
  t.Only("hidden_act", "silu");
  t.Number("swiglu_limit", -1e30, 1e30, &c->swiglu_limit);
  t.Int("moe_intermediate_size", 32, kMaxWidth, &c->moe_intermediate_size);
  t.Int("n_routed_experts", 1, kMaxExperts, &c->n_routed_experts);
  t.Int("num_experts_per_tok", 1, 1024, &c->num_experts_per_tok);
  t.Only("n_shared_experts", 1);
  t.Only("scoring_func", "sqrtsoftplus");
  t.Only("topk_method", "noaux_tc");
  t.Only("norm_topk_prob", true);
  t.Number("routed_scaling_factor", -1e6, 1e6, &c->routed_scaling_factor);
  t.OptionalNumber("gate_temp", 1e-6, 1e6, &c->gate_temp);
}

void ReadHyperConnections(Section& t, ModelConfig* c) {
  t.Int("hc_mult", 1, 16, &c->hc_mult);
  t.Int("hc_sinkhorn_iters", 0, 1000, &c->hc_sinkhorn_iters);
  t.Number("hc_eps", 0, 1, &c->hc_eps);
  t.OptionalOnly("hc_shifted", true);
}

void ReadEngram(Section& t, ModelConfig* c) {
  if (t.Has("engram_layer_ids")) {
    // Kept in the order of the file: it decides which primes a table gets.
    t.IntList(
        "engram_layer_ids", 0, c->num_hidden_layers - 1, kMaxEngramTables, &c->engram_layer_ids);
  }
  if (c->engram_layer_ids.empty()) return;
  t.IntList("engram_num_embeddings",
            1,
            std::numeric_limits<int32_t>::max(),
            64,
            &c->engram_num_embeddings);
  t.Int("engram_max_ngram_size", 2, 16, &c->engram_max_ngram_size);
  t.Int("engram_vocab_size", 2, std::numeric_limits<int32_t>::max(), &c->engram_vocab_size);
  t.Int("engram_n_heads", 1, 64, &c->engram_n_heads);
  t.Int("engram_head_dim", 32, 1 << 13, &c->engram_head_dim);
  t.Int("engram_pad_token_id", 0, kMaxVocab, &c->engram_pad_token_id);
  t.Int("engram_compressed_vocab_size", 1, kMaxVocab, &c->engram_compressed_vocab_size);
}

void ReadDraft(Section& t, ModelConfig* c) {
  t.OptionalInt("num_nextn_predict_layers", 0, 64, &c->num_draft_stages);
  if (c->num_draft_stages == 0) return;
  t.Int("dspark_block_size", 1, 64, &c->dspark_block_size);
  t.Int("dspark_noise_token_id", 0, kMaxVocab, &c->dspark_noise_token_id);
  t.IntList(
      "dspark_target_layer_ids", 0, c->num_hidden_layers - 1, 64, &c->dspark_target_layer_ids);
  t.OptionalOnly("dspark_target_attn_input", true);
  t.Int("dspark_markov_rank", 1, kMaxWidth, &c->dspark_markov_rank);
  t.Int("dspark_n_routed_experts", 1, kMaxExperts, &c->dspark_n_routed_experts);
  t.Int("dspark_num_experts_per_tok", 1, 1024, &c->dspark_num_experts_per_tok);
}

// Rules between sizes. FP4 groups and FP8 activation groups run along the input dimension in steps
// of 32.
void CheckSizes(Section& t, const ModelConfig& c) {
  const auto multiple = [&](const char* key, int64_t value, int64_t of) {
    if (value % of != 0) t.Fail(key, fmt::format("must be a multiple of {}, got {}", of, value));
  };
  const auto at_most = [&](const char* key, int64_t value, const char* limit_key, int64_t limit) {
    if (value > limit)
      t.Fail(key, fmt::format("must not exceed {} ({}), got {}", limit_key, limit, value));
  };
  const auto below_vocab = [&](const char* key, int64_t id) {
    if (id >= c.vocab_size)
      t.Fail(key, fmt::format("must be below vocab_size ({}), got {}", c.vocab_size, id));
  };
  multiple("hidden_size", c.hidden_size, 32);
  multiple("moe_intermediate_size", c.moe_intermediate_size, 32);
  multiple("q_lora_rank", c.q_lora_rank, 32);
  multiple("head_dim", c.head_dim, 32);
  multiple("qk_rope_head_dim", c.qk_rope_head_dim, 2);
  at_most("qk_rope_head_dim", c.qk_rope_head_dim, "head_dim", c.head_dim);
  multiple("num_attention_heads", c.num_attention_heads, c.o_groups);
  // The input of wo_b is all groups together, and that of wo_a the heads of one group.
  if (c.o_groups * int64_t{c.o_lora_rank} % 32 != 0) {
    t.Fail(
        "o_lora_rank",
        fmt::format("* o_groups must be a multiple of 32, got {} * {}", c.o_lora_rank, c.o_groups));
  }
  at_most("num_experts_per_tok", c.num_experts_per_tok, "n_routed_experts", c.n_routed_experts);
  multiple("index_head_dim", c.index_head_dim, 32);
  at_most("qk_rope_head_dim", c.qk_rope_head_dim, "index_head_dim", c.index_head_dim);
  if (!c.engram_layer_ids.empty()) {
    multiple("engram_head_dim", c.engram_head_dim, 32);
    below_vocab("engram_pad_token_id", c.engram_pad_token_id);
    at_most(
        "engram_compressed_vocab_size", c.engram_compressed_vocab_size, "vocab_size", c.vocab_size);
  }
  if (c.num_draft_stages > 0) {
    below_vocab("dspark_noise_token_id", c.dspark_noise_token_id);
    if (c.dspark_target_layer_ids.empty())
      t.Fail("dspark_target_layer_ids", "must name at least one layer");
    at_most("dspark_num_experts_per_tok",
            c.dspark_num_experts_per_tok,
            "dspark_n_routed_experts",
            c.dspark_n_routed_experts);
  }
}

void CheckEngram(Section& t, const ModelConfig& c) {
  if (c.engram_layer_ids.empty()) return;
  const size_t num_tables = c.engram_layer_ids.size();
  if (std::set<int>(c.engram_layer_ids.begin(), c.engram_layer_ids.end()).size() != num_tables) {
    return t.Fail("engram_layer_ids", "names a layer twice");
  }
  if (c.engram_num_embeddings.size() != num_tables) {
    return t.Fail("engram_num_embeddings",
                  fmt::format("must have one entry per engram_layer_ids entry ({}), got {}",
                              num_tables,
                              c.engram_num_embeddings.size()));
  }
  const auto primes =
      EngramPrimes(static_cast<int>(num_tables), c.engram_num_columns(), c.engram_vocab_size);
  if (primes.empty()) return t.Fail("engram_vocab_size", "is too large: its primes leave 32 bits");
  for (size_t i = 0; i < num_tables; ++i) {
    const int64_t rows = std::accumulate(primes[i].begin(), primes[i].end(), int64_t{0});
    if (rows > std::numeric_limits<int32_t>::max()) {
      return t.Fail("engram_vocab_size",
                    fmt::format("gives a table of {} rows; the limit is 2^31 - 1", rows));
    }
    if (rows != c.engram_num_embeddings[i]) {
      return t.Fail("engram_num_embeddings",
                    fmt::format("[{}] must be {}, the sum of the primes above engram_vocab_size {} "
                                "of layer {}, got {}",
                                i,
                                rows,
                                c.engram_vocab_size,
                                c.engram_layer_ids[i],
                                c.engram_num_embeddings[i]));
    }
  }
}

// checkpoint.md 2.3: who shares keys and selections with whom.
void CheckTopology(Section& t, const ModelConfig& c) {
  const size_t expected = static_cast<size_t>(c.num_hidden_layers + c.num_draft_stages);
  if (c.compress_ratios.size() != expected) {
    return t.Fail(
        "compress_ratios",
        fmt::format("must have num_hidden_layers + num_nextn_predict_layers = {} entries, got {}",
                    expected,
                    c.compress_ratios.size()));
  }
  const auto ratio = [&](int layer) { return c.compress_ratios[static_cast<size_t>(layer)]; };
  for (int layer = c.num_hidden_layers; layer < static_cast<int>(expected); ++layer) {
    if (ratio(layer) != 0) {
      return t.Fail(
          "compress_ratios",
          fmt::format("[{}] must be 0: draft layers share no keys, got {}", layer, ratio(layer)));
    }
  }
  const auto check_segments = [&](const char* key, const std::vector<int>& ids) {
    for (int layer = 0; layer < c.num_hidden_layers; ++layer) {
      const int source = SourceAtOrBelow(ids, layer);
      if (source < 0 && ratio(layer) != 0) {
        return t.Fail(key,
                      fmt::format("has no source at or below layer {}, whose compress ratio is {}",
                                  layer,
                                  ratio(layer)));
      }
      if (source >= 0 && (ratio(layer) != ratio(source) || ratio(layer) == 0)) {
        return t.Fail(key,
                      fmt::format("makes layer {} (compress ratio {}) use layer {} (compress ratio "
                                  "{}); both must have the "
                                  "same ratio, 1 or 2",
                                  layer,
                                  ratio(layer),
                                  source,
                                  ratio(source)));
      }
    }
  };
  check_segments("kv_source_layer_ids", c.kv_source_layer_ids);
  check_segments("index_k_source_layer_ids", c.index_k_source_layer_ids);
  check_segments("index_source_layer_ids", c.index_source_layer_ids);
  // A finer segment lies inside a coarser one exactly if every coarse source is a fine source too.
  const auto check_refines = [&](const char* fine_key,
                                 const std::vector<int>& fine,
                                 const char* coarse_key,
                                 const std::vector<int>& coarse) {
    for (const int layer : coarse) {
      if (!Contains(fine, layer)) {
        return t.Fail(
            fine_key,
            fmt::format(
                "must contain layer {}, which is in {}: a selection cannot outlive its keys",
                layer,
                coarse_key));
      }
    }
  };
  check_refines("index_k_source_layer_ids",
                c.index_k_source_layer_ids,
                "kv_source_layer_ids",
                c.kv_source_layer_ids);
  check_refines("index_source_layer_ids",
                c.index_source_layer_ids,
                "index_k_source_layer_ids",
                c.index_k_source_layer_ids);
  if (const int border = c.first_consumer_layer();
      border < c.num_hidden_layers && !c.is_kv_source(border)) {
    return t.Fail("kv_source_layer_ids",
                  fmt::format("must contain layer {}, the first with compress ratio 1", border));
  }
  const int candidate = c.candidate_source_layer_id;
  if (candidate < 0) return;
  if (!Contains(c.index_source_layer_ids, candidate) || ratio(candidate) == 0) {
    return t.Fail("candidate_source_layer_id",
                  fmt::format("must be an index source with a compress ratio, got {}", candidate));
  }
  for (const int consumer : c.index_source_layer_ids) {
    if (consumer > candidate && ratio(consumer) != ratio(candidate)) {
      return t.Fail("candidate_source_layer_id",
                    fmt::format("{} has compress ratio {}, but its consumer layer {} has {}",
                                candidate,
                                ratio(candidate),
                                consumer,
                                ratio(consumer)));
    }
    // Candidates are groups of one set of keys.
    if (consumer > candidate && c.kv_source(consumer) != c.kv_source(candidate)) {
      return t.Fail(
          "candidate_source_layer_id",
          fmt::format("{} and its consumer layer {} use the keys of different layers ({}, {})",
                      candidate,
                      consumer,
                      c.kv_source(candidate),
                      c.kv_source(consumer)));
    }
  }
  if ((c.candidate_block_size & (c.candidate_block_size - 1)) != 0) {
    return t.Fail("candidate_block_size",
                  fmt::format("must be a power of two, got {}", c.candidate_block_size));
  }
  if (int64_t{c.candidate_topk_blocks} * c.candidate_block_size < c.index_topk) {
    return t.Fail(
        "candidate_topk_blocks",
        fmt::format("* candidate_block_size must be at least index_topk ({}), got {} * {}",
                    c.index_topk,
                    c.candidate_topk_blocks,
                    c.candidate_block_size));
  }
}

}  // namespace

int ModelConfig::first_consumer_layer() const {
  for (int layer = 0; layer < num_hidden_layers; ++layer) {
    if (compress_ratios[static_cast<size_t>(layer)] == 1) return layer;
  }
  return num_hidden_layers;
}

int ModelConfig::kv_source(int layer) const {
  return SourceAtOrBelow(kv_source_layer_ids, layer);
}
int ModelConfig::index_source(int layer) const {
  return SourceAtOrBelow(index_source_layer_ids, layer);
}
int ModelConfig::index_k_source(int layer) const {
  return SourceAtOrBelow(index_k_source_layer_ids, layer);
}

int ModelConfig::engram_index(int layer) const {
  const auto it = std::find(engram_layer_ids.begin(), engram_layer_ids.end(), layer);
  return it == engram_layer_ids.end() ? -1 : static_cast<int>(it - engram_layer_ids.begin());
}

Status ModelConfig::CheckDecoderReplay() const {
  const int border = first_consumer_layer();
  const auto fail = [](const char* key, const std::string& problem) {
    const std::string field = std::string("text_config.") + key;
    return Status(StatusCode::kBadModel,
                  fmt::format("{} {}; run without decoder replay", field, problem),
                  field);
  };
  if (border >= num_hidden_layers)
    return fail("compress_ratios", "has no layer of ratio 1 for decoder replay");
  for (const int layer : engram_layer_ids) {
    if (layer >= border)
      return fail("engram_layer_ids",
                  fmt::format("has layer {} at or after layer {}", layer, border));
  }
  const auto is_inside = [&](int layer) { return layer >= border; };
  const auto& targets = dspark_target_layer_ids;
  if (!std::all_of(targets.begin(), targets.end(), is_inside) &&
      std::any_of(targets.begin(), targets.end(), is_inside)) {
    return fail("dspark_target_layer_ids",
                fmt::format("has layers on both sides of layer {}", border));
  }
  return Status::Ok();
}

Result<ModelConfig> ModelConfig::FromJson(const Json& json, const std::string& origin) {
  if (!json.is_object())
    return BadModel(fmt::format("{}: a JSON object is expected at the top level; fetch the file again", origin));
  ModelConfig c;
  Status status;
  Section top(json, "", origin, &status);
  ReadTopLevel(top, &c);
  ReadQuantization(top, origin, &status);
  const Json* text = top.Object("text_config", true);
  if (text == nullptr) return status;
  Section t(*text, "text_config.", origin, &status);
  t.OptionalOnly("model_type", "deepseek_v41_text");
  t.Int("vocab_size", 1, kMaxVocab, &c.vocab_size);
  t.Int("hidden_size", 32, kMaxWidth, &c.hidden_size);
  t.Int("num_hidden_layers", 1, kMaxLayers, &c.num_hidden_layers);
  t.Number("rms_norm_eps", 0, 1, &c.rms_norm_eps);
  t.Only("tie_word_embeddings", false);
  ReadAttention(t, &c);
  ReadYarn(t, origin, &status, &c);
  ReadSparseAttention(t, &c);
  ReadExperts(t, &c);
  ReadHyperConnections(t, &c);
  ReadEngram(t, &c);
  ReadDraft(t, &c);
  t.OptionalBool("use_fp4_sparse_kv", &c.use_fp4_sparse_kv);
  if (const Json* vision = top.Object("vision_config", false); vision != nullptr) {
    VisionConfig v;
    ReadVision(*vision, origin, &status, &v);
    c.vision = v;
    top.Int("image_token_id", 0, kMaxVocab, &c.image_token_id);
  } else {
    c.image_token_id = -1;
    top.OptionalInt("image_token_id", 0, kMaxVocab, &c.image_token_id);
  }
  DI_RETURN_IF_ERROR(status);
  for (const auto& [key, id] : {std::pair{"bos_token_id", c.bos_token_id},
                                {"eos_token_id", c.eos_token_id},
                                {"pad_token_id", c.pad_token_id},
                                {"image_token_id", c.image_token_id}}) {
    if (id >= c.vocab_size)
      top.Fail(key, fmt::format("must be below vocab_size ({}), got {}", c.vocab_size, id));
  }
  CheckSizes(t, c);
  if (status.ok()) CheckTopology(t, c);
  if (status.ok()) CheckEngram(t, c);
  DI_RETURN_IF_ERROR(status);
  return c;
}

Result<ModelConfig> ModelConfig::Load(const std::string& model_dir) {
  const std::string path = model_dir + "/config.json";
  DI_ASSIGN_OR_RETURN(const std::string text, ReadModelFile(model_dir, "config.json", kMaxConfigBytes));
  const Result<Json> json = ParseJson(text);
  if (!json.ok()) return BadModel(fmt::format("{}: {}; mend the file or fetch it again", path, json.status().message()));
  return FromJson(*json, path);
}

}  // namespace deepinfer::model
