// SPDX-License-Identifier: Apache-2.0
//
// Engine arguments and the limits derived from them (specification, engine 5), the two sets of defaults, the memory budget
// on devices of known size (19), and the batch sizes that are prepared (13).
#include "engine/engine_config.h"

#include <gtest/gtest.h>

#include "core/config_env.h"
#include "core/options.h"
#include "engine/batch_buckets.h"
#include "engine/memory_budget.h"

namespace deepinfer::engine {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(EngineArguments, Defaults) {
  const EngineOptions o;
  EXPECT_EQ(o.load_format, "auto");
  EXPECT_EQ(o.max_model_len, 4096);
  EXPECT_EQ(o.gpu_memory_utilization, 0.9);
  EXPECT_EQ(o.max_num_seqs, 256);
  EXPECT_EQ(o.max_num_batched_tokens, 0);
  EXPECT_FALSE(o.disable_log_stats);
  EXPECT_TRUE(o.stop_preempted_request);
  EXPECT_FALSE(o.chunked_prefill);
  EXPECT_EQ(o.lookahead_tokens, 0);
  EXPECT_TRUE(o.zero_overhead_scheduling);
  EXPECT_EQ(o.cache_mode, "off");
  EXPECT_EQ(o.decoder_replay, "off");
  EXPECT_EQ(o.max_decode_gap_ms, 200);
  EXPECT_EQ(o.decode_steps_per_prefill, 1);
  EXPECT_EQ(o.num_state_slots_ratio, 1.2);
}

TEST(EngineArguments, DerivedLimits) {
  EngineOptions o;
  EngineLimits limits = DeriveLimits(o, 1048576, 0).value();
  EXPECT_EQ(limits.max_model_len, 4096);
  EXPECT_EQ(limits.max_num_batched_tokens, 4096);
  EXPECT_EQ(limits.prompt_limit, 4096);
  EXPECT_EQ(limits.runtime_max_model_len, 4097);  // one step may be in flight
  EXPECT_EQ(limits.block_table_width, 64);
  o.zero_overhead_scheduling = false;
  EXPECT_EQ(DeriveLimits(o, 1048576, 0)->runtime_max_model_len, 4096);
  o.zero_overhead_scheduling = true;
  // 5 drafts: 4096 + 5 + 6 + 5.
  EXPECT_EQ(DeriveLimits(o, 1048576, 5)->runtime_max_model_len, 4112);
  o.max_num_seqs = 2000;
  EXPECT_EQ(DeriveLimits(o, 1048576, 5)->max_num_batched_tokens, 12000);
  o.max_num_seqs = 256;
  o.max_model_len = 10000;
  limits = DeriveLimits(o, 1048576, 0).value();
  EXPECT_EQ(limits.max_num_batched_tokens, 10000);
  EXPECT_EQ(limits.block_table_width, 128);
  EXPECT_EQ(DeriveLimits(o, 5000, 0)->max_model_len, 5000);  // the model's own maximum
  o.max_model_len = 0;
  EXPECT_EQ(DeriveLimits(o, 5000, 0)->max_model_len, 5000);
  o.max_num_batched_tokens = 512;
  o.chunked_prefill = true;
  EXPECT_EQ(DeriveLimits(o, 5000, 0)->prompt_limit, 5000);
}

TEST(EngineArguments, BadOnesAreNamed) {
  const auto field = [](auto change) {
    EngineOptions options;
    change(options);
    ModelFacts model;
    model.max_model_len = 8192;
    model.window = 128;
    model.vocab_size = 512;
    const Status status = MakeSchedulerOptions(options, model).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(status.field()), std::string::npos) << status.message();
    return status.field();
  };
  EXPECT_EQ(field([](EngineOptions& o) { o.max_model_len = -1; }), "max_model_len");
  EXPECT_EQ(field([](EngineOptions& o) { o.max_num_seqs = 0; }), "max_num_seqs");
  EXPECT_EQ(field([](EngineOptions& o) { o.max_num_batched_tokens = 127; }), "max_num_batched_tokens");
  EXPECT_EQ(field([](EngineOptions& o) { o.max_num_batched_tokens = 255; }), "max_num_batched_tokens");  // 256 sequences
  EXPECT_EQ(field([](EngineOptions& o) { o.max_num_batched_tokens = 4095; }), "max_num_batched_tokens");  // not chunked
  EXPECT_EQ(field([](EngineOptions& o) { o.lookahead_tokens = -1; }), "lookahead_tokens");
  EXPECT_EQ(field([](EngineOptions& o) { o.decode_steps_per_prefill = -1; }), "decode_steps_per_prefill");
  EXPECT_EQ(field([](EngineOptions& o) { o.prefill_attempt_interval = 0; }), "prefill_attempt_interval");
  EXPECT_EQ(field([](EngineOptions& o) { o.prefill_any_attempt_interval = 0; }), "prefill_any_attempt_interval");
  EXPECT_EQ(field([](EngineOptions& o) { o.prefill_max_sum_seqlen_k = 4095; }), "prefill_max_sum_seqlen_k");
  EXPECT_EQ(field([](EngineOptions& o) { o.num_state_slots_ratio = 0.5; }), "num_state_slots_ratio");
  EXPECT_EQ(field([](EngineOptions& o) { o.cache_mode = "on"; }), "cache_mode");
  EXPECT_EQ(field([](EngineOptions& o) { o.kv_state_every_blocks = 0; }), "kv_state_every_blocks");
  EXPECT_EQ(field([](EngineOptions& o) { o.kv_replay_tokens = 126; }), "kv_replay_tokens");
  EXPECT_EQ(field([](EngineOptions& o) { o.kv_replay_tokens = 129; }), "kv_replay_tokens");
}

EngineOptions Applied(std::map<std::string, std::string, std::less<>> variables, Defaults defaults) {
  const auto resolved = ResolveConfig({}, Environment(std::move(variables)));
  EXPECT_TRUE(resolved.ok()) << resolved.status().message();
  EngineOptions options;
  ApplyConfig(resolved->config, defaults, options);
  return options;
}

TEST(EngineDefaults, ReferenceIsTheLibrary) {
  const EngineOptions library, o = Applied({}, Defaults::kReference);
  EXPECT_EQ(o.cache_mode, library.cache_mode);
  EXPECT_EQ(o.decoder_replay, library.decoder_replay);
  EXPECT_EQ(o.max_num_batched_tokens, library.max_num_batched_tokens);
  EXPECT_EQ(o.chunked_prefill, library.chunked_prefill);
  EXPECT_EQ(o.stop_preempted_request, library.stop_preempted_request);
  EXPECT_EQ(o.max_num_seqs, library.max_num_seqs);
  EXPECT_EQ(o.max_model_len, library.max_model_len);
  EXPECT_FALSE(o.fit_max_model_len);
}

TEST(EngineDefaults, Production) {
  EngineOptions o = Applied({}, Defaults::kProduction);
  EXPECT_EQ(o.cache_mode, "replay");
  EXPECT_EQ(o.decoder_replay, "auto");  // compact where the checkpoint allows it
  EXPECT_EQ(o.max_num_batched_tokens, 2048);
  EXPECT_TRUE(o.chunked_prefill);
  EXPECT_FALSE(o.stop_preempted_request);
  EXPECT_TRUE(o.fit_max_model_len);
  o = Applied({{"DEEPINFER_CACHE_MODE", "exact"}, {"DEEPINFER_CHUNKED_PREFILL", "0"}, {"DEEPINFER_MAX_NUM_BATCHED_TOKENS", "9000"}},
              Defaults::kProduction);
  EXPECT_EQ(o.cache_mode, "exact");
  EXPECT_FALSE(o.chunked_prefill);
  EXPECT_EQ(o.max_num_batched_tokens, 9000);
}

TEST(EngineDefaults, EverySettingReachesTheScheduler) {
  const EngineOptions o = Applied({{"DEEPINFER_MAX_NUM_SEQS", "7"},
                                   {"DEEPINFER_MAX_NUM_BATCHED_TOKENS", "512"},
                                   {"DEEPINFER_LOOKAHEAD_TOKENS", "16"},
                                   {"DEEPINFER_STOP_PREEMPTED_REQUEST", "1"},
                                   {"DEEPINFER_NUM_STATE_SLOTS_RATIO", "2"},
                                   {"DEEPINFER_MAX_DECODE_GAP_MS", "50"},
                                   {"DEEPINFER_DECODE_STEPS_PER_PREFILL", "3"},
                                   {"DEEPINFER_PREFILL_ATTEMPT_INTERVAL", "70"},
                                   {"DEEPINFER_PREFILL_ANY_ATTEMPT_INTERVAL", "90"},
                                   {"DEEPINFER_PREFILL_MAX_SUM_SEQLEN_K", "100000"},
                                   {"DEEPINFER_CACHE_MODE", "replay"},
                                   {"DEEPINFER_KV_STATE_EVERY_BLOCKS", "1"},
                                   {"DEEPINFER_KV_REPLAY_TOKENS", "192"},
                                   {"DEEPINFER_DETERMINISTIC", "1"}},
                                  Defaults::kProduction);
  ModelFacts model;
  model.max_model_len = 8192;
  model.decoder_keep = 140;
  model.vocab_size = 512;
  const SchedulerOptions s = MakeSchedulerOptions(o, model).value();
  EXPECT_EQ(s.max_num_seqs, 7);
  EXPECT_EQ(s.max_num_batched_tokens, 512);
  EXPECT_TRUE(s.chunked_prefill);
  EXPECT_EQ(s.lookahead_tokens, 16);
  EXPECT_TRUE(s.stop_preempted);
  EXPECT_EQ(s.num_state_slots(), 15);
  EXPECT_EQ(s.max_decode_gap_ms, 50);
  EXPECT_EQ(s.alternation.decode_steps_per_prefill, 3);
  EXPECT_EQ(s.alternation.attempt_interval, 70);
  EXPECT_EQ(s.alternation.any_attempt_interval, 90);
  EXPECT_EQ(s.max_sum_prefill_len, 100000);
  EXPECT_EQ(s.cache_mode, CacheMode::kReplay);
  EXPECT_EQ(s.prefix_cache.state_every_blocks, 1);
  EXPECT_EQ(s.prefix_cache.replay_tokens, 192);
  EXPECT_EQ(s.decoder_keep, 140);
  // Deterministic engines never replay: off without window states, exact with them.
  EXPECT_TRUE(s.is_batch_invariant);
  EXPECT_EQ(ResolveCacheMode(s.cache_mode, s), CacheMode::kOff);
  SchedulerOptions with_states = s;
  with_states.prefix_cache.num_state_records = 16;
  EXPECT_EQ(ResolveCacheMode(s.cache_mode, with_states), CacheMode::kExact);
}

TEST(MemoryBudget, NumbersOfOneDevice) {
  // 80 GiB * 0.9 - 30 GiB - 2 * 1 GiB = 40 GiB; blocks of 1 MiB.
  const DeviceMemory device = {80 * kGiB, 30 * kGiB, kGiB};
  EXPECT_EQ(BudgetBlocks({&device, 1}, 0.9, 1 << 20).value(), 40 * 1024);
  // Rounded down to an even number.
  EXPECT_EQ(BudgetBlocks({&device, 1}, 0.9, 3 << 20).value(), 40 * 1024 / 3 / 2 * 2);
  EXPECT_EQ(BudgetBlocks({&device, 1}, 1.0, kGiB).value(), 48);
}

TEST(MemoryBudget, TheSmallestRankDecides) {
  const DeviceMemory ranks[] = {{80 * kGiB, 30 * kGiB, kGiB}, {80 * kGiB, 40 * kGiB, kGiB}};
  EXPECT_EQ(BudgetBlocks(ranks, 0.9, 1 << 20).value(), 30 * 1024);
}

TEST(MemoryBudget, NoRoomIsAnError) {
  const DeviceMemory full = {80 * kGiB, 72 * kGiB, 0};
  const Status status = BudgetBlocks({&full, 1}, 0.9, 1 << 20).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("gpu_memory_utilization"), std::string::npos);
  const DeviceMemory one_block = {80 * kGiB, 72 * kGiB - (3 << 19), 0};  // room for one and a half
  EXPECT_FALSE(BudgetBlocks({&one_block, 1}, 0.9, 1 << 20).ok());
  EXPECT_EQ(BudgetBlocks({&full, 1}, 1.5, 1 << 20).status().field(), "gpu_memory_utilization");
}

TEST(MemoryBudget, ASequenceMayTakeFourFifths) {
  EXPECT_EQ(LongestSequence(10), 1024);
  EXPECT_EQ(LongestSequence(11), 1126);  // floor(1126.4)
  EXPECT_TRUE(CheckSequenceFits(1024, 10).ok());
  const Status status = CheckSequenceFits(1025, 10);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("lower max_model_len"), std::string::npos);
  for (int64_t length : {1, 102, 103, 1024, 1025, 100000}) {
    EXPECT_LE(length, LongestSequence(FewestBlocks(length)));
    EXPECT_GT(length, LongestSequence(FewestBlocks(length) - 1));
  }
}

CacheRequest SmallMachine() {
  CacheRequest request;
  request.total_bytes = 8 * kGiB;
  request.available_bytes = 6 * kGiB;
  request.block_bytes = 1 << 20;
  request.slot_bytes = 1 << 20;
  request.max_num_seqs = 256;
  request.max_model_len = 4096;
  request.runtime_max_model_len = 4097;
  return request;
}

TEST(CacheSizes, OfAMachine) {
  CacheRequest request = SmallMachine();
  CacheSizes sizes = SizeCaches(request).value();
  EXPECT_EQ(sizes.max_num_seqs, 256);  // 308 slots of 1 MiB
  // 8 GiB * 0.9 - 2 GiB - 2 * 308 MiB.
  EXPECT_EQ(sizes.num_blocks, 4708 / 2 * 2);
  request.slot_bytes = 64 << 20;
  sizes = SizeCaches(request).value();
  EXPECT_EQ(sizes.max_num_seqs, 20);  // 24 slots in a quarter of 6 GiB, 1.2 for each sequence
  // Never more blocks than the sequences can fill.
  request = SmallMachine();
  request.max_num_seqs = 2;
  EXPECT_EQ(SizeCaches(request)->num_blocks, 1 + 2 * 32);
}

TEST(CacheSizes, AFullMachineStillServesOneSequence) {
  CacheRequest request = SmallMachine();
  request.available_bytes = 1 << 20;
  const CacheSizes sizes = SizeCaches(request).value();
  EXPECT_EQ(sizes.max_num_seqs, 1);
  EXPECT_EQ(sizes.num_blocks, FewestBlocks(4097) + 1);
}

TEST(CacheSizes, AskedForAreChecked) {
  CacheRequest request = SmallMachine();
  request.num_kv_blocks = 41;
  EXPECT_EQ(SizeCaches(request)->num_blocks, 41);
  request.num_kv_blocks = 40;
  EXPECT_EQ(SizeCaches(request).status().field(), "max_model_len");
}

TEST(BatchBuckets, VectorsOfTheSpecification) {
  EXPECT_EQ(BatchBuckets(48, 8), (std::vector<int64_t>{1, 2, 4, 8, 16, 24, 32, 40, 48}));
  EXPECT_EQ(BatchBuckets(6, 8), (std::vector<int64_t>{1, 2, 4, 6}));
  EXPECT_EQ(BatchBuckets(1, 8), (std::vector<int64_t>{1}));
}

TEST(BatchBuckets, TheSmallestThatHolds) {
  const std::vector<int64_t> buckets = BatchBuckets(48, 8);
  EXPECT_EQ(BucketFor(buckets, 1), 1);
  EXPECT_EQ(BucketFor(buckets, 3), 4);
  EXPECT_EQ(BucketFor(buckets, 9), 16);
  EXPECT_EQ(BucketFor(buckets, 48), 48);
  EXPECT_EQ(BucketFor(buckets, 49), 0);
  for (int64_t most = 1; most < 70; ++most) {
    for (int64_t interval = 1; interval < 20; ++interval) {
      const std::vector<int64_t> list = BatchBuckets(most, interval);
      EXPECT_EQ(list.back(), most);
      for (size_t i = 1; i < list.size(); ++i) EXPECT_LT(list[i - 1], list[i]) << most << " " << interval;
    }
  }
}

}  // namespace
}  // namespace deepinfer::engine
