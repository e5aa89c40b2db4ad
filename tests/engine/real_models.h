// SPDX-License-Identifier: Apache-2.0
//
// The engine on real models, for tests: the nano model (random weights, window 16) and the demo model (window 128), an
// engine over one of them, requests and answers, and the reference: a request computed token by token without an engine.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backends/registry.h"
#include "engine/answers.h"
#include "engine/engine_core.h"
#include "engine/logits_ledger.h"
#include "engine/model_slots.h"
#include "model/checkpoint.h"
#include "model/golden_support.h"
#include "sampling/params.h"
#include "test_device.h"
#include "text/tokenizer.h"

namespace deepinfer::engine {

inline constexpr int32_t kModelEnd = 1;  // end token of both models
inline constexpr int64_t kNanoKeep = 40, kDemoKeep = 140;

struct ModelSetup {
  model::DecoderReplay replay = model::DecoderReplay::kCompact;
  int64_t keep = 0;  // 0 = the model's default
  int num_threads = 1;
  bool with_draft = false;
};

inline std::unique_ptr<model::Model> LoadModel(const std::string& dir, std::vector<int32_t> compressed_vocab, const ModelSetup& setup) {
  model::LoadOptions options;
  options.with_draft = setup.with_draft;
  options.cache_tokens = 1 << 16;
  options.decoder_replay = setup.replay;
  options.replay_keep_tokens = setup.keep;
  options.compressed_vocab = std::move(compressed_vocab);
  auto loaded = model::Model::Load(model::Checkpoint::Open(dir).value(), model::ModelConfig::Load(dir).value(),
                                   TestDevice(setup.num_threads).value(), options);
  EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
  return std::move(loaded).value();
}
inline std::unique_ptr<model::Model> LoadNano(ModelSetup setup = {model::DecoderReplay::kCompact, kNanoKeep}) {
  return LoadModel(model::GoldenPath("nano"), model::Golden("engram.safetensors").Ints("token_map"), setup);
}
inline const std::string& DemoDir() {
  static const std::string dir = std::string(DEEPINFER_SOURCE_DIR) + "/models/demo";
  return dir;
}
inline std::unique_ptr<model::Model> LoadDemo(ModelSetup setup = {model::DecoderReplay::kCompact, kDemoKeep}) {
  return LoadModel(DemoDir(), text::Tokenizer::Load(DemoDir()).value()->BuildCompressedVocab().map, setup);
}

inline bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline void ExpectSame(const Answer& a, const Answer& b, const std::string& what) {
  EXPECT_EQ(a.ids, b.ids) << what;
  EXPECT_TRUE(SameBits(a.logprobs, b.logprobs)) << what;
  EXPECT_EQ(a.reason, b.reason) << what;
}

inline EngineCoreOptions RealModelOptions(int64_t keep) {
  EngineCoreOptions o;
  o.scheduler.max_model_len = 1024;
  o.scheduler.max_num_batched_tokens = 256;
  o.scheduler.max_num_seqs = 16;
  o.scheduler.num_blocks = 200;
  o.scheduler.decoder_keep = keep;
  o.scheduler.end_token_ids = {kModelEnd};
  o.scheduler.prefix_cache.state_every_blocks = 1;
  o.scheduler.prefix_cache.num_state_records = 40;
  o.allow_prompt_logprobs = false;
  o.end_token_id = kModelEnd;
  return o;
}

// An engine on a model that may be used before and after it. With a ledger, every logit row is compared with all others of
// the same tokens.
struct RealEngine {
  RealEngine(model::Model& m, EngineCoreOptions options, LogitsLedger* ledger = nullptr) {
    slots = ModelSlots::Create(m, options.scheduler.num_blocks, options.scheduler.num_state_slots(),
                               options.scheduler.prefix_cache.num_state_records)
                .value();
    StepModel* top = slots.get();
    if (ledger != nullptr) {
      watched = std::make_unique<LedgerModel>(*slots, *ledger, options.scheduler.num_state_slots());
      top = watched.get();
    }
    auto made = EngineCore::Create(*top, std::move(options));
    EXPECT_TRUE(made.ok()) << made.status().message();
    core = std::move(made).value();
  }
  // After everything has ended: no block, no slot, no request is left.
  EngineCore::Snapshot Drain() {
    core->Drain();
    const EngineCore::Snapshot stats = core->Stats();
    EXPECT_EQ(stats.num_live, 0);
    EXPECT_EQ(stats.num_used_blocks, 0);
    EXPECT_EQ(stats.num_used_slots, 0);
    EXPECT_EQ(stats.stats.num_finished, stats.stats.num_added);
    return stats;
  }
  std::unique_ptr<ModelSlots> slots;
  std::unique_ptr<LedgerModel> watched;
  std::unique_ptr<EngineCore> core;  // goes first
};

// Prompts share prefixes of two documents; greedy, filtered and penalised requests with a seed.
inline EngineRequest RandomRequest(std::mt19937_64& rng, int64_t max_prompt, int vocab) {
  EngineRequest request;
  const uint64_t document = rng() % 2, limit = static_cast<uint64_t>(max_prompt);
  const uint64_t shared = rng() % 3 == 0 ? 0 : rng() % limit, length = std::min<uint64_t>(shared + 1 + rng() % 100, limit);
  for (uint64_t i = 0; i < length; ++i)
    request.prompt_ids.push_back(static_cast<int32_t>(3 + (i < shared ? (document + 1) * (i + 5) * 131 : rng()) % static_cast<uint64_t>(vocab - 3)));
  SamplingParams& p = request.params;
  p.max_tokens = static_cast<int64_t>(1 + rng() % 16);
  switch (rng() % 3) {
    case 0: p.temperature = 0; break;
    case 1: p.top_p = 0.9; p.top_k = 50; break;
    default: p.presence_penalty = 0.5; p.repetition_penalty = 1.1;
  }
  p.seq_seed = rng();
  return request;
}

// Without an engine: one sequence, whole prompt, token by token.
inline Answer RunAlone(model::Model& m, const EngineRequest& request, int sample = 0, LogitsLedger* ledger = nullptr) {
  Answer answer;
  auto sequence = m.NewSequence().value();
  sampling::Sampler sampler(m.config().vocab_size);
  const SamplingParams params = sampling::Normalized(request.params);
  sampling::TokenCounts counts(m.config().vocab_size);
  counts.AddPrompt(request.prompt_ids);
  std::vector<int32_t> ids = request.prompt_ids;
  std::vector<int32_t> all = ids;
  const int64_t floor = m.decoder_keep() > 0 ? std::max<int64_t>(0, static_cast<int64_t>(ids.size()) - m.decoder_keep()) : 0;
  while (answer.reason == FinishReason::kNone) {
    model::SequenceChunk chunk;
    chunk.sequence = sequence.get();
    chunk.ids = ids;
    const auto logits = m.Forward({&chunk, 1}).value();
    if (ledger != nullptr) ledger->Enter(all, 0, floor, logits);
    sampling::RowContext context;
    context.seed = *params.seq_seed + static_cast<uint64_t>(sample);
    context.position = static_cast<int32_t>(sequence->length());
    context.draw_mode = sampling::DrawMode::kRace;
    if (params.has_penalties()) context.counts = &counts;
    const auto token = sampler.Sample(logits, params, context).value();
    counts.AddOutput(token.id);
    answer.ids.push_back(token.id);
    answer.logprobs.push_back(token.logprob);
    all.push_back(token.id);
    if (token.id == kModelEnd && !params.ignore_eos) answer.reason = FinishReason::kStop;
    if (answer.reason == FinishReason::kNone && static_cast<int64_t>(answer.ids.size()) >= params.max_tokens)
      answer.reason = FinishReason::kLength;
    ids = {token.id};
  }
  return answer;
}

}  // namespace deepinfer::engine
