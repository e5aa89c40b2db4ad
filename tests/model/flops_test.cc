// SPDX-License-Identifier: Apache-2.0
#include "model/flops.h"

#include <algorithm>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "model/released_config.h"

namespace deepinfer::model {
namespace {

ModelConfig Released() { return ModelConfig::FromJson(ReleasedConfigJson(), "released").value(); }
ModelConfig Demo() { return ModelConfig::Load(std::string(DEEPINFER_SOURCE_DIR) + "/models/demo").value(); }

double Giga(const Flops& flops, FlopsPart part) { return 2e-9 * flops.of(part); }

// One decoded token of a sequence that has `context` tokens with it.
Flops Token(const FlopsModel& model, int64_t context) {
  FlopsCounts counts;
  model.Add({context - 1, 1, 1, 1}, counts);
  return model.Evaluate(counts);
}

// The table of a decode step at context 8192 (model.md 13.1), and with it the per-token table of performance.md 1.
TEST(Flops, ReleasedDecodeStep) {
  const Flops f = Token(FlopsModel(Released()), 8192);
  EXPECT_NEAR(Giga(f, FlopsPart::kProjections), 0.524 + 0.210 + 3.355 + 2.684 + 3.355, 0.002);
  EXPECT_NEAR(Giga(f, FlopsPart::kProjections), 10.13, 0.005);
  EXPECT_NEAR(Giga(f, FlopsPart::kCompressor), 0.037, 0.0005);
  EXPECT_NEAR(Giga(f, FlopsPart::kIndexQueries), 0.084, 0.0005);
  EXPECT_NEAR(Giga(f, FlopsPart::kIndexKeys), 0.0005 + 0.003, 0.0005);
  EXPECT_NEAR(Giga(f, FlopsPart::kIndexScores), 0.436, 0.0005);
  EXPECT_NEAR(Giga(f, FlopsPart::kAttention), 3.221, 0.0005);
  EXPECT_NEAR(Giga(f, FlopsPart::kRoutedExperts), 16.987, 0.0005);
  EXPECT_NEAR(Giga(f, FlopsPart::kSharedExperts), 2.831, 0.0005);
  EXPECT_NEAR(Giga(f, FlopsPart::kRouter), 0.157, 0.0005);
  EXPECT_NEAR(Giga(f, FlopsPart::kEngram), 0.629, 0.0005);
  EXPECT_NEAR(Giga(f, FlopsPart::kHead), 1.324, 0.0005);
  EXPECT_NEAR(Giga(f, FlopsPart::kHyperConnections), 0.08, 0.005);  // 2 x 24 x 20480 per layer (performance.md 1)
  EXPECT_NEAR(f.flop() * 1e-9, 35.94, 0.03);
}

TEST(Flops, ReleasedContextTerms) {
  const FlopsModel model(Released());
  const struct {
    int64_t context;
    double attention, indexer, total;
  } rows[] = {{1024, 3.22, 0.05, 35.5}, {8192, 3.22, 0.44, 35.9}, {65536, 3.22, 1.88, 37.4}, {1048576, 3.22, 22.0, 57.5}};
  for (const auto& row : rows) {
    const Flops f = Token(model, row.context);
    EXPECT_NEAR(Giga(f, FlopsPart::kAttention), row.attention, 0.005) << row.context;
    EXPECT_NEAR(Giga(f, FlopsPart::kIndexScores), row.indexer, row.indexer * 0.03 + 0.005) << row.context;
    EXPECT_NEAR(f.flop() * 1e-9, row.total, 0.1) << row.context;
  }
}

// The table of a prefill of 1000 tokens (model.md 13.2), decoder replay off and with keep 134.
TEST(Flops, ReleasedPrefill) {
  const FlopsModel model(Released());
  const Flops all = model.OfPrompt(1000, 0), cut = model.OfPrompt(1000, 134);
  const auto expect = [&](FlopsPart part, double giga_all, double giga_cut, double tolerance) {
    EXPECT_NEAR(Giga(all, part), giga_all, tolerance);
    EXPECT_NEAR(Giga(cut, part), giga_cut, tolerance);
  };
  expect(FlopsPart::kRoutedExperts, 16986.9, 9631.6, 0.1);
  expect(FlopsPart::kProjections, 3355.4 + 3355.4 + 2684.4 + 524.3 + 209.7, 1902.5 + 1902.5 + 1522.0 + 297.3 + 118.9, 0.3);
  expect(FlopsPart::kSharedExperts, 2831.2, 1605.3, 0.1);
  expect(FlopsPart::kAttention, 2217.5, 1128.9, 0.1);
  expect(FlopsPart::kEngram, 629.2, 629.2, 0.1);
  expect(FlopsPart::kRouter, 157.3, 89.2, 0.1);
  expect(FlopsPart::kCompressor, 36.7, 36.7, 0.1);
  expect(FlopsPart::kHead, 1.3, 1.3, 0.05);
  const auto indexer = [](const Flops& f) {
    return Giga(f, FlopsPart::kIndexQueries) + Giga(f, FlopsPart::kIndexKeys) + Giga(f, FlopsPart::kIndexScores);
  };
  EXPECT_NEAR(indexer(all), 113.5, 0.2);  // the candidate layers score whole blocks
  EXPECT_NEAR(indexer(cut), 51.3, 0.1);
  EXPECT_NEAR(all.flop() * 1e-9, 33201, 33);
  EXPECT_NEAR(cut.flop() * 1e-9, 18972, 19);
}

// What decoder replay saves on the demo model by this count.
TEST(Flops, DecoderReplayOfTheDemoModel) {
  const FlopsModel model(Demo());
  const auto cut = [&](int64_t tokens) { return 1 - model.OfPrompt(tokens, 140).flop() / model.OfPrompt(tokens, 0).flop(); };
  RecordProperty("cut_percent_1000", std::to_string(100 * cut(1000)));
  RecordProperty("cut_percent_4000", std::to_string(100 * cut(4000)));
  EXPECT_GE(cut(1000), 0.40);
  EXPECT_GE(cut(4000), 0.45);
  EXPECT_EQ(cut(100), 0);
}

// A configuration small enough to count by hand.
TEST(Flops, SmallConfigurationByHand) {
  ModelConfig c;
  c.vocab_size = 100;
  c.hidden_size = 8;
  c.num_hidden_layers = 3;
  c.num_attention_heads = 2;
  c.head_dim = 4;
  c.q_lora_rank = 3;
  c.o_groups = 2;
  c.o_lora_rank = 5;
  c.sliding_window = 2;
  c.compress_ratios = {2, 1, 1};
  c.kv_source_layer_ids = {0, 1};
  c.index_source_layer_ids = {0, 1, 2};
  c.index_k_source_layer_ids = {0, 1};
  c.index_n_heads = 2;
  c.index_head_dim = 4;
  c.index_topk = 2;
  c.candidate_source_layer_id = 1;
  c.candidate_topk_blocks = 2;
  c.candidate_block_size = 2;
  c.moe_intermediate_size = 6;
  c.n_routed_experts = 4;
  c.num_experts_per_tok = 2;
  c.hc_mult = 2;
  const FlopsModel model(c);
  FlopsCounts counts;
  // Seven tokens from position 1 on; the last two run through layers 1 and 2 as well, one has logits.
  model.Add({1, 7, 2, 1}, counts);
  const Flops f = model.Evaluate(counts);
  // Rows of all layers: 7 + 2 + 2.
  EXPECT_EQ(f.of(FlopsPart::kProjections), 11 * (8 * 3 + 3 * 8 + 8 * 4 + 8 * 5 + 2 * 5 * 8));
  EXPECT_EQ(f.of(FlopsPart::kRouter), 11 * 8 * 4);
  EXPECT_EQ(f.of(FlopsPart::kRoutedExperts), 11 * 2 * 3 * 8 * 6);
  EXPECT_EQ(f.of(FlopsPart::kSharedExperts), 11 * 3 * 8 * 6);
  EXPECT_EQ(f.of(FlopsPart::kHyperConnections), 11 * 2 * (2 * 4) * (2 * 8));
  EXPECT_EQ(f.of(FlopsPart::kCompressor), 7 * (2 * 8 * 4) + 7 * (8 * 4));
  EXPECT_EQ(f.of(FlopsPart::kEngram), 0);
  EXPECT_EQ(f.of(FlopsPart::kHead), 8 * 100);
  EXPECT_EQ(f.of(FlopsPart::kIndexQueries), 11 * 3 * 8);
  // Layer 0 completes the pairs that end at 1, 3, 5, 7; layer 1 makes one key per token.
  EXPECT_EQ(f.of(FlopsPart::kIndexKeys), 11 * 8 * 2 + (4 + 7) * 4 * 4);
  // Visible tokens t = 2..8, in layers 1 and 2 t = 7, 8.
  const int64_t window = 7 * 2 + 2 * (2 * 2);
  const int64_t compressed = (1 + 1 + 2 + 2 + 2 + 2 + 2) + 2 * (2 + 2);
  EXPECT_EQ(counts.attention_pairs, window + compressed);
  EXPECT_EQ(f.of(FlopsPart::kAttention), static_cast<double>(window + compressed) * 2 * 8);
  // Layer 0: floor(t / 2). Layer 1: t. Layer 2: at most two blocks of two.
  const int64_t scores = (1 + 1 + 2 + 2 + 3 + 3 + 4) + (7 + 8) + (4 + 4);
  EXPECT_EQ(f.of(FlopsPart::kIndexScores), static_cast<double>(scores) * 2 * 4);
  const double fp8 = 2 * (f.of(FlopsPart::kProjections) + f.of(FlopsPart::kIndexQueries) + f.of(FlopsPart::kSharedExperts)) +
                     4 * (f.of(FlopsPart::kCompressor) + f.of(FlopsPart::kIndexKeys) + f.of(FlopsPart::kAttention) +
                          f.of(FlopsPart::kRouter) + f.of(FlopsPart::kHead)) +
                     f.of(FlopsPart::kIndexScores) + f.of(FlopsPart::kRoutedExperts) + 8 * f.of(FlopsPart::kHyperConnections);
  EXPECT_EQ(f.fp8_equivalent(), fp8);
}

// Chunks and single tokens add up to the whole prompt, whatever the borders.
TEST(Flops, CountsDoNotDependOnTheChunking) {
  const FlopsModel model(Demo());
  std::mt19937_64 rng(5);
  for (int round = 0; round < 50; ++round) {
    const int64_t length = 1 + static_cast<int64_t>(rng() % 3000), floor = static_cast<int64_t>(rng() % 3000);
    FlopsCounts whole, parts;
    model.Add({0, length, std::max<int64_t>(length - floor, 0), 0}, whole);
    for (int64_t start = 0; start < length;) {
      const int64_t n = std::min<int64_t>(1 + static_cast<int64_t>(rng() % 400), length - start);
      FlopsCounts part;
      model.Add({start, n, std::clamp<int64_t>(start + n - floor, 0, n), 0}, part);
      parts += part;
      start += n;
    }
    EXPECT_EQ(whole.producer_tokens, parts.producer_tokens);
    EXPECT_EQ(whole.consumer_tokens, parts.consumer_tokens);
    EXPECT_EQ(whole.index_keys, parts.index_keys);
    EXPECT_EQ(whole.attention_pairs, parts.attention_pairs);
    EXPECT_EQ(whole.score_pairs, parts.score_pairs);
  }
}

TEST(Flops, LayersAddUpToTheWhole) {
  const ModelConfig config = Released();
  double sum = 0;
  for (int layer = 0; layer <= config.num_hidden_layers; ++layer) sum += Token(FlopsModel(config, layer), 1 << 20).flop();
  EXPECT_NEAR(sum, Token(FlopsModel(config), 1 << 20).flop(), 1e-9 * sum);
}

}  // namespace
}  // namespace deepinfer::model
