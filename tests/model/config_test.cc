// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/released_config.h"
#include "temporary_dir.h"

namespace deepinfer::model {
namespace {

using ::testing::HasSubstr;

Result<ModelConfig> Parse(const Json& json) {
  return ModelConfig::FromJson(json, "config.json");
}

Json Set(const char* pointer, Json value) {
  Json json = ReleasedConfigJson();
  json[Json::json_pointer(pointer)] = std::move(value);
  return json;
}

Json Without(const std::string& pointer) {
  Json json = ReleasedConfigJson();
  const size_t slash = pointer.rfind('/');
  json[Json::json_pointer(pointer.substr(0, slash))].erase(pointer.substr(slash + 1));
  return json;
}

TEST(ModelConfig, ReleasedValues) {
  const auto config = Parse(ReleasedConfigJson());
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->vocab_size, 129280);
  EXPECT_EQ(config->hidden_size, 5120);
  EXPECT_EQ(config->rms_norm_eps, 1e-20f);
  EXPECT_EQ(config->yarn->factor, 16);
  EXPECT_EQ(config->compress_ratios.size(), 43u);
  EXPECT_EQ(config->gate_temp, 1.0f);
  EXPECT_TRUE(config->use_fp4_sparse_kv);
  EXPECT_EQ(config->vision->num_hidden_layers, 32);
  EXPECT_FALSE(config->vision->max_wh_ratio);
  EXPECT_EQ(config->first_consumer_layer(), 20);
  EXPECT_EQ(config->engram_num_columns(), 24);
  EXPECT_TRUE(config->CheckDecoderReplay().ok());
}

TEST(ModelConfig, SourceMapsOfTheReleasedModel) {
  const ModelConfig c = Parse(ReleasedConfigJson()).value();
  const int kv[] = {-1, 2, 8, 14, 20};
  for (int layer = 0; layer < 40; ++layer) {
    const int segment = layer < 2 ? 0 : layer < 8 ? 1 : layer < 14 ? 2 : layer < 20 ? 3 : 4;
    EXPECT_EQ(c.kv_source(layer), kv[segment]) << layer;
    EXPECT_EQ(c.index_k_source(layer), kv[segment]) << layer;
    EXPECT_EQ(c.index_source(layer), layer < 24 ? kv[segment] : layer / 4 * 4) << layer;
  }
  EXPECT_TRUE(c.is_kv_source(20));
  EXPECT_FALSE(c.is_kv_source(24));
  EXPECT_TRUE(c.is_index_source(24));
  EXPECT_EQ(c.engram_index(14), 1);
  EXPECT_EQ(c.engram_index(2), -1);
}

TEST(ModelConfig, DefaultsOfAbsentKeys) {
  Json json = ReleasedConfigJson();
  json.erase("vision_config");
  json.erase("image_token_id");
  Json& t = json["text_config"];
  for (const char* key : {"rope_scaling",
                          "engram_layer_ids",
                          "engram_num_embeddings",
                          "engram_max_ngram_size",
                          "num_nextn_predict_layers",
                          "model_type",
                          "dspark_block_size"}) {
    t.erase(key);
  }
  t["compress_ratios"] =
      std::vector<int>(t["compress_ratios"].begin(), t["compress_ratios"].begin() + 40);
  t["candidate_source_layer_id"] = nullptr;
  t.erase("candidate_topk_blocks");
  t["gate_temp"] = 2;
  t["use_fp4_sparse_kv"] = false;
  const auto config = Parse(json);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_FALSE(config->vision);
  EXPECT_FALSE(config->yarn);
  EXPECT_TRUE(config->engram_layer_ids.empty());
  EXPECT_EQ(config->num_draft_stages, 0);
  EXPECT_EQ(config->candidate_source_layer_id, -1);
  EXPECT_EQ(config->gate_temp, 2.0f);
  EXPECT_FALSE(config->use_fp4_sparse_kv);
  EXPECT_EQ(config->image_token_id, -1);
}

TEST(ModelConfig, ANegativeCandidateSourceIsOff) {
  EXPECT_EQ(Parse(Set("/text_config/candidate_source_layer_id", -3))->candidate_source_layer_id,
            -1);
}

TEST(ModelConfig, EveryRequiredKeyIsNamedWhenMissing) {
  const char* required[] = {"/architectures",
                            "/model_type",
                            "/dtype",
                            "/bos_token_id",
                            "/eos_token_id",
                            "/pad_token_id",
                            "/quantization_config",
                            "/text_config",
                            "/quantization_config/quant_method",
                            "/quantization_config/activation_scheme",
                            "/quantization_config/weight_block_size",
                            "/quantization_config/scale_fmt",
                            "/quantization_config/expert_dtype",
                            "/text_config/vocab_size",
                            "/text_config/hidden_size",
                            "/text_config/num_hidden_layers",
                            "/text_config/num_attention_heads",
                            "/text_config/num_key_value_heads",
                            "/text_config/head_dim",
                            "/text_config/qk_rope_head_dim",
                            "/text_config/q_lora_rank",
                            "/text_config/o_groups",
                            "/text_config/o_lora_rank",
                            "/text_config/hidden_act",
                            "/text_config/swiglu_limit",
                            "/text_config/rms_norm_eps",
                            "/text_config/attention_bias",
                            "/text_config/attention_dropout",
                            "/text_config/tie_word_embeddings",
                            "/text_config/max_position_embeddings",
                            "/text_config/rope_theta",
                            "/text_config/compress_rope_theta",
                            "/text_config/sliding_window",
                            "/text_config/compress_ratios",
                            "/text_config/kv_source_layer_ids",
                            "/text_config/index_source_layer_ids",
                            "/text_config/index_n_heads",
                            "/text_config/index_head_dim",
                            "/text_config/index_topk",
                            "/text_config/candidate_source_layer_id",
                            "/text_config/candidate_topk_blocks",
                            "/text_config/candidate_block_size",
                            "/text_config/moe_intermediate_size",
                            "/text_config/n_routed_experts",
                            "/text_config/num_experts_per_tok",
                            "/text_config/n_shared_experts",
                            "/text_config/scoring_func",
                            "/text_config/topk_method",
                            "/text_config/norm_topk_prob",
                            "/text_config/routed_scaling_factor",
                            "/text_config/hc_mult",
                            "/text_config/hc_sinkhorn_iters",
                            "/text_config/hc_eps",
                            "/text_config/engram_num_embeddings",
                            "/text_config/engram_max_ngram_size",
                            "/text_config/engram_vocab_size",
                            "/text_config/engram_n_heads",
                            "/text_config/engram_head_dim",
                            "/text_config/engram_pad_token_id",
                            "/text_config/engram_compressed_vocab_size",
                            "/text_config/dspark_block_size",
                            "/text_config/dspark_noise_token_id",
                            "/text_config/dspark_target_layer_ids",
                            "/text_config/dspark_markov_rank",
                            "/text_config/dspark_n_routed_experts",
                            "/text_config/dspark_num_experts_per_tok"};
  for (const std::string pointer : required) {
    const auto config = Parse(Without(pointer));
    ASSERT_FALSE(config.ok()) << pointer;
    std::string field = pointer.substr(1);
    std::replace(field.begin(), field.end(), '/', '.');
    EXPECT_EQ(config.status().field(), field);
    EXPECT_EQ(config.status().message(),
              "config.json: " + field + " is missing; this key is required");
    EXPECT_EQ(config.status().code(), StatusCode::kBadModel);
  }
}

struct BadValue {
  const char* pointer;
  Json value;
  const char* message;
};

TEST(ModelConfig, UnsupportedValuesNameTheFieldAndTheValue) {
  const Json ids = Json::array({2, 8, 14, 20});
  const BadValue cases[] = {
      {"/architectures",
       Json::array({"LlamaForCausalLM"}),
       "supported architectures: DeepseekV41ForCausalLM"},
      {"/architectures", Json::array({"DeepseekV41ForCausalLM", "X"}), "architectures must be"},
      {"/architectures", "DeepseekV41ForCausalLM", "architectures must be"},
      {"/model_type", "llama", "model_type must be \"deepseek_v41\", got \"llama\""},
      {"/dtype", "float16", "dtype must be \"bfloat16\", got \"float16\""},
      {"/bos_token_id", "0", "bos_token_id must be an integer, got \"0\""},
      {"/eos_token_id", 129280, "eos_token_id must be below vocab_size (129280), got 129280"},
      {"/quantization_config/quant_method", "awq", "Unsupported HF quant_method"},
      {"/quantization_config/activation_scheme", "static", "Unsupported HF activation_scheme"},
      {"/quantization_config/weight_block_size",
       Json::array({128, 128}),
       "Unsupported HF weight_block_size"},
      {"/quantization_config/scale_fmt", "float", "Unsupported HF scale_fmt"},
      {"/quantization_config/expert_dtype", "fp8", "Unsupported HF expert_dtype"},
      {"/quantization_config", 3, "quantization_config must be an object"},
      {"/text_config", Json::array(), "text_config must be an object"},
      {"/text_config/vocab_size", 0, "text_config.vocab_size must lie in [1, 16777216], got 0"},
      {"/text_config/vocab_size", 1e3, "must be an integer, got 1000.0"},
      {"/text_config/vocab_size", uint64_t{1} << 63, "must be an integer"},
      {"/text_config/hidden_size",
       5121,
       "text_config.hidden_size must be a multiple of 32, got 5121"},
      {"/text_config/num_hidden_layers", -1, "text_config.num_hidden_layers must lie in"},
      {"/text_config/num_key_value_heads", 2, "text_config.num_key_value_heads must be 1, got 2"},
      {"/text_config/qk_rope_head_dim", 1024, "must not exceed head_dim"},
      {"/text_config/o_groups",
       7,
       "text_config.num_attention_heads must be a multiple of 7, got 64"},
      {"/text_config/hidden_act", "gelu", "text_config.hidden_act must be \"silu\", got \"gelu\""},
      {"/text_config/rms_norm_eps", "x", "must be a number"},
      {"/text_config/attention_bias", true, "text_config.attention_bias must be false, got true"},
      {"/text_config/attention_dropout", 0.1, "must be 0.0, got 0.1"},
      {"/text_config/tie_word_embeddings", true, "must be false"},
      {"/text_config/rope_scaling/rope_type",
       "linear",
       "text_config.rope_scaling.rope_type must be \"yarn\""},
      {"/text_config/compress_ratios", Json::array({0, 1}), "= 43 entries, got 2"},
      {"/text_config/compress_ratios/3",
       4,
       "text_config.compress_ratios[3] must be an integer in [0, 2], got 4"},
      {"/text_config/compress_ratios/3", 1, "must have the same ratio"},
      {"/text_config/compress_ratios/3", 0, "must have the same ratio"},
      {"/text_config/compress_ratios/1", 2, "has no source at or below layer 1"},
      {"/text_config/compress_ratios/41", 1, "draft layers share no keys"},
      {"/text_config/kv_source_layer_ids",
       Json::array({2, 8, 14}),
       "use layer 14 (compress ratio 2)"},
      {"/text_config/kv_source_layer_ids", Json::array({2, 2, 20}), "names a layer twice"},
      {"/text_config/kv_source_layer_ids", Json::array({2, 40}), "must be an integer in [0, 39]"},
      {"/text_config/kv_source_layer_ids",
       Json::array({2, 8, 14, 20, 30}),
       "must contain layer 30"},
      {"/text_config/index_source_layer_ids", Json::array({2, 8, 20}), "must contain layer 14"},
      {"/text_config/index_k_source_layer_ids",
       Json::array({2, 8, 14, 20, 22}),
       "text_config.index_source_layer_ids must contain layer 22"},
      {"/text_config/index_k_source_layer_ids",
       Json::array({2, 20}),
       "text_config.index_k_source_layer_ids must contain layer 8"},
      {"/text_config/candidate_source_layer_id", 21, "must be an index source"},
      {"/text_config/candidate_source_layer_id", 8, "candidate_source_layer_id"},
      {"/text_config/candidate_topk_blocks", 63, "must be at least index_topk (512)"},
      {"/text_config/candidate_block_size", 12, "must be a power of two, got 12"},
      {"/text_config/candidate_block_size", 1, "must lie in [2"},
      {"/text_config/moe_intermediate_size", 2300, "must be a multiple of 32"},
      {"/text_config/num_experts_per_tok", 385, "must not exceed n_routed_experts (384), got 385"},
      {"/text_config/n_shared_experts", 2, "must be 1, got 2"},
      {"/text_config/scoring_func", "softmax", "must be \"sqrtsoftplus\""},
      {"/text_config/topk_method", "greedy", "must be \"noaux_tc\""},
      {"/text_config/norm_topk_prob", false, "must be true"},
      {"/text_config/hc_shifted", false, "must be true"},
      {"/text_config/engram_layer_ids",
       Json::array({1, 1}),
       "engram_layer_ids names a layer twice"},
      {"/text_config/engram_num_embeddings",
       Json::array({384006168}),
       "must have one entry per engram_layer_ids entry (2), got 1"},
      {"/text_config/engram_num_embeddings/1", 384016683, "[1] must be 384016682"},
      {"/text_config/engram_vocab_size", 16000100, "the sum of the primes"},
      {"/text_config/engram_vocab_size", 2000000000, "the limit is 2^31"},
      {"/text_config/engram_compressed_vocab_size", 0, "engram_compressed_vocab_size must lie in"},
      {"/text_config/engram_pad_token_id", 129280, "must be below vocab_size"},
      {"/text_config/engram_head_dim", 250, "must be a multiple of 32"},
      {"/text_config/dspark_target_layer_ids", Json::array(), "must name at least one layer"},
      {"/text_config/dspark_target_layer_ids", Json::array({40}), "must be an integer in [0, 39]"},
      {"/text_config/dspark_target_attn_input", false, "must be true"},
      {"/text_config/dspark_num_experts_per_tok", 129, "must not exceed dspark_n_routed_experts"},
      {"/text_config/use_fp4_sparse_kv", 1, "must be true or false"},
      {"/vision_config/model_type", "clip", "vision_config.model_type must be"},
      {"/vision_config/num_attention_heads", 7, "vision_config.hidden_size must be a multiple"},
      {"/vision_config/patch_size", 0, "vision_config.patch_size must lie in"},
      {"/image_token_id", 129280, "image_token_id must be below vocab_size"},
  };
  for (const BadValue& c : cases) {
    const auto config = Parse(Set(c.pointer, c.value));
    ASSERT_FALSE(config.ok()) << c.pointer << " = " << c.value;
    EXPECT_THAT(config.status().message(), HasSubstr(c.message)) << c.pointer << " = " << c.value;
    EXPECT_FALSE(config.status().field().empty());
    EXPECT_EQ(config.status().message().rfind("config.json: ", 0), 0u);
  }
}

TEST(ModelConfig, ControlCharactersInValuesAreEscaped) {
  const auto config = Parse(Set("/model_type", "\x1b[31m\n"));
  EXPECT_EQ(config.status().message().find('\x1b'), std::string::npos);
  EXPECT_EQ(config.status().message().find('\n'), std::string::npos);
}

TEST(ModelConfig, HeldBackProportionsAreAccepted) {
  // Other proportions than the shipped checkpoints: 3-grams, two draft stages, output groups
  // narrower than a tile.
  Json json = ReleasedConfigJson();
  json["image_token_id"] = 3;
  Json& t = json["text_config"];
  t.update(Json::parse(
      R"({"vocab_size":448,"hidden_size":128,"moe_intermediate_size":64,"num_hidden_layers":7,"num_attention_heads":8,
      "head_dim":32,"qk_rope_head_dim":8,"q_lora_rank":32,"o_lora_rank":16,"o_groups":4,"swiglu_limit":3.0,"max_position_embeddings":2048,
      "n_routed_experts":6,"num_experts_per_tok":3,"sliding_window":8,"compress_ratios":[0,2,2,2,1,1,1,0,0],"kv_source_layer_ids":[1,2,4],
      "index_source_layer_ids":[1,2,4,6],"index_n_heads":16,"index_head_dim":64,"index_topk":8,"candidate_source_layer_id":4,
      "candidate_topk_blocks":6,"candidate_block_size":2,"engram_layer_ids":[0,2],"engram_vocab_size":61,"engram_n_heads":3,
      "engram_head_dim":32,"engram_max_ngram_size":3,"num_nextn_predict_layers":2,"dspark_block_size":4,"dspark_target_layer_ids":[4,6],
      "dspark_markov_rank":16,"dspark_n_routed_experts":4,"dspark_num_experts_per_tok":1,"dspark_noise_token_id":447,
      "engram_compressed_vocab_size":400,"engram_num_embeddings":[434,606]})"));
  const auto config = Parse(json);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
}

TEST(ModelConfig, DecoderReplayNeedsMore) {
  Json json = ReleasedConfigJson();
  json["text_config"]["dspark_target_layer_ids"] = {10, 37, 38};
  EXPECT_THAT(Parse(json)->CheckDecoderReplay().message(),
              HasSubstr("dspark_target_layer_ids has layers on both sides of layer 20"));
  json = ReleasedConfigJson();
  json["text_config"]["engram_layer_ids"] = {1, 20};
  EXPECT_THAT(Parse(json)->CheckDecoderReplay().message(),
              HasSubstr("engram_layer_ids has layer 20"));
}

TEST(ModelConfig, LoadNamesTheFile) {
  const ::deepinfer::testing::TemporaryDir dir;
  const auto missing = ModelConfig::Load(dir.path());
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.status().message(), HasSubstr(dir.path() + "/config.json"));
  for (const char* text : {"", "{", "[]", "nul", "{\"a\":1}", "\xff"}) {
    dir.Write("config.json", text);
    const auto config = ModelConfig::Load(dir.path());
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_EQ(config.status().code(), StatusCode::kBadModel);
    EXPECT_THAT(config.status().message(), HasSubstr("config.json"));
  }
}

}  // namespace
}  // namespace deepinfer::model
