// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_config.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "core/config_env.h"
#include "core/escape.h"
#include "core/number_list.h"
#include "core/log.h"
#include "core/options.h"

namespace deepinfer::engine {
namespace {

constexpr int64_t kProductionBatchedTokens = 2048;  // of the CPU
constexpr int kMostDraftsByDefault = 5;
constexpr int64_t kLibraryBatchedTokens = 4096;
constexpr int64_t kTableAlign = 64;

Status AtLeast(const char* field, int64_t value, int64_t least) {
  if (value >= least) return Status::Ok();
  return InvalidArgument(fmt::format("{} is {} but must be at least {}", field, value, least), field);
}

}  // namespace

void ApplyConfig(const Config& config, Defaults defaults, EngineOptions& options) {
  const bool is_production = defaults == Defaults::kProduction;
  const ModelSourceConfig& model = config.model;
  options.device = model.device;
  options.numerics = model.numerics;
  options.cpu_isa = model.cpu_isa;
  options.cpu_pinning = model.cpu_pinning;
  options.cuda_plugin = model.cuda_plugin;
  options.memory_budget = model.memory_budget;
  options.expert_io = model.expert_io;
  options.pack_cache = model.pack_cache;
  options.engram_io = model.engram_io;
  options.load_format = model.load_format;
  options.num_threads = static_cast<int>(model.threads);
  if (model.max_model_len > 0) options.max_model_len = model.max_model_len;
  options.fit_max_model_len = is_production;
  options.decoder_replay = model.decoder_replay == "auto" && !is_production ? "off" : model.decoder_replay;
  options.decoder_replay_keep = model.decoder_replay_keep;

  const EngineConfig& engine = config.engine;
  options.max_num_seqs = static_cast<int>(engine.max_num_seqs);
  options.max_num_batched_tokens = engine.max_num_batched_tokens.value_or(is_production ? std::max(kProductionBatchedTokens, engine.max_num_seqs * (1 + kMostDraftsByDefault)) : 0);
  options.chunked_prefill = engine.chunked_prefill.value_or(is_production);
  options.lookahead_tokens = engine.lookahead_tokens;
  options.stop_preempted_request = engine.stop_preempted_request.value_or(!is_production);
  options.zero_overhead_scheduling = engine.zero_overhead_scheduling.value_or(true);
  options.max_decode_gap_ms = engine.max_decode_gap_ms;
  options.decode_steps_per_prefill = engine.decode_steps_per_prefill;
  options.prefill_attempt_interval = engine.prefill_attempt_interval;
  options.prefill_any_attempt_interval = engine.prefill_any_attempt_interval;
  if (engine.prefill_max_sum_seqlen_k) options.prefill_max_sum_seqlen_k = *engine.prefill_max_sum_seqlen_k;
  options.gpu_memory_utilization = engine.gpu_memory_utilization;
  options.num_kv_blocks = engine.num_kv_blocks;
  options.num_state_slots_ratio = engine.num_state_slots_ratio;
  options.cache_mode = engine.cache_mode != "auto" ? engine.cache_mode : is_production ? "replay" : "off";
  options.cache_salt = engine.cache_salt;
  options.kv_state_every_blocks = engine.kv_state_every_blocks;
  options.kv_persist_swa = engine.kv_persist_swa;
  options.kv_replay_tokens = engine.kv_replay_tokens;
  options.batch_invariant = engine.batch_invariant;
  options.deterministic = engine.deterministic;
  options.decode_token_blacklist = engine.decode_token_blacklist;
  options.compute_sum_smaller_probs = engine.compute_sum_smaller_probs;
  options.raw_logprobs = engine.logprobs_mode == "raw";
  options.logging_interval_step = engine.logging_interval_step;
  options.num_drafts = static_cast<int>(engine.num_drafts.value_or(is_production ? -1 : 0));
  options.varlen_verify = engine.varlen_verify.value_or(is_production);
  options.prompt_lookup = engine.prompt_lookup;
  options.spec_verify = engine.spec_verify;
  options.confidence_temperature = engine.dflash_confidence_head_temperature;
  options.decode_perf_cache_dir = engine.decode_perf_cache_dir;
  options.decode_perf_cache_ttl_sec = engine.decode_perf_cache_ttl_sec;

  const GrammarConfig& grammar = config.grammar;
  options.xgrammar_timeout = static_cast<double>(grammar.xgrammar_timeout);
  options.xgrammar_cache_limit_bytes = grammar.xgrammar_cache_limit_bytes;
  options.xgrammar_disable_cache = grammar.xgrammar_disable_cache;
  options.so_builder_cpus = static_cast<int>(grammar.so_builder_cpus);
}

Result<constrain::CompileServiceOptions> MakeGrammarOptions(const EngineOptions& options, const Clock& clock) {
  if (!(options.xgrammar_timeout > 0 && options.xgrammar_timeout <= 1e9))
    return InvalidArgument(fmt::format("xgrammar_timeout is {} but must be above 0", options.xgrammar_timeout), "xgrammar_timeout");
  DI_RETURN_IF_ERROR(AtLeast("so_builder_cpus", options.so_builder_cpus, 1));
  constrain::CompileServiceOptions grammars;
  grammars.num_workers = options.so_builder_cpus;
  grammars.timeout_ms = static_cast<int64_t>(options.xgrammar_timeout * 1000);
  grammars.cache_limit_bytes = options.xgrammar_cache_limit_bytes;
  grammars.enable_cache = !options.xgrammar_disable_cache;
  grammars.clock = &clock;
  return grammars;
}

Result<CacheMode> ParseCacheMode(const std::string& name) {
  if (name == "off") return CacheMode::kOff;
  if (name == "replay") return CacheMode::kReplay;
  if (name == "exact") return CacheMode::kExact;
  return InvalidArgument(fmt::format("cache_mode is \"{}\" but must be replay, exact or off", Escape(name)), "cache_mode");
}

Result<int> NumDrafts(const EngineOptions& options, int draft_block) {
  if (options.num_drafts < 0) return std::min(kMostDraftsByDefault, draft_block);
  if (options.num_drafts > draft_block)
    return InvalidArgument(draft_block == 0 ? fmt::format("num_drafts is {} but this checkpoint has no draft head; use 0", options.num_drafts)
                                            : fmt::format("num_drafts is {} but the draft head of this checkpoint makes {} at most",
                                                          options.num_drafts, draft_block),
                           "num_drafts");
  return options.num_drafts;
}

Result<std::vector<float>> ParseConfidenceTemperatures(const std::string& text, int num_drafts) {
  std::optional<std::vector<float>> values = ParseNumberList(text);
  if (!values)
    return InvalidArgument(fmt::format("confidence_temperature is \"{}\" but must be a number or numbers separated by commas", Escape(text, 64)),
                           "confidence_temperature");
  if (values->size() > 1 && values->size() != static_cast<size_t>(num_drafts))
    return InvalidArgument(fmt::format("confidence_temperature has {} numbers but there are {} drafts; give one number or one per draft",
                                       values->size(), num_drafts),
                           "confidence_temperature");
  return *std::move(values);
}

Result<EngineLimits> DeriveLimits(const EngineOptions& options, int64_t longest_model_len, int num_drafts) {
  EngineLimits limits;
  if (options.max_model_len < 0)
    return InvalidArgument(fmt::format("max_model_len is {} but must not be negative", options.max_model_len), "max_model_len");
  DI_RETURN_IF_ERROR(AtLeast("max_num_seqs", options.max_num_seqs, 1));
  limits.max_model_len = options.max_model_len > 0 ? std::min(options.max_model_len, longest_model_len) : longest_model_len;
  const int64_t rows = int64_t{options.max_num_seqs} * (1 + num_drafts);
  limits.max_num_batched_tokens = options.max_num_batched_tokens;
  if (options.max_num_batched_tokens == 0) {
    limits.max_num_batched_tokens = std::max({limits.max_model_len, kLibraryBatchedTokens, rows});
  } else if (options.max_num_batched_tokens < std::max(rows, kTokensPerBlock)) {
    return InvalidArgument(fmt::format("max_num_batched_tokens is {} but must be at least {}: a block, and {} sequences with {} tokens each",
                                       options.max_num_batched_tokens, std::max(rows, kTokensPerBlock), options.max_num_seqs, 1 + num_drafts),
                           "max_num_batched_tokens");
  }
  if (!options.chunked_prefill && limits.max_num_batched_tokens < limits.max_model_len)
    return InvalidArgument(fmt::format("max_num_batched_tokens is {} but without chunked_prefill it must be at least max_model_len {}",
                                       limits.max_num_batched_tokens, limits.max_model_len),
                           "max_num_batched_tokens");
  limits.prompt_limit = options.chunked_prefill ? limits.max_model_len : std::min(limits.max_model_len, limits.max_num_batched_tokens);
  limits.runtime_max_model_len =
      limits.max_model_len + num_drafts + (options.zero_overhead_scheduling ? num_drafts + 1 : 0) + num_drafts;
  const int64_t blocks = (limits.runtime_max_model_len + kTokensPerBlock - 1) / kTokensPerBlock;
  limits.block_table_width = (blocks + kTableAlign - 1) / kTableAlign * kTableAlign;
  return limits;
}

Result<SchedulerOptions> MakeSchedulerOptions(const EngineOptions& options, const ModelFacts& model) {
  DI_ASSIGN_OR_RETURN(const int num_drafts, NumDrafts(options, model.draft_block));
  DI_ASSIGN_OR_RETURN(const EngineLimits limits, DeriveLimits(options, model.max_model_len, num_drafts));
  DI_RETURN_IF_ERROR(AtLeast("lookahead_tokens", options.lookahead_tokens, 0));
  DI_RETURN_IF_ERROR(AtLeast("decode_steps_per_prefill", options.decode_steps_per_prefill, 0));
  DI_RETURN_IF_ERROR(AtLeast("prefill_attempt_interval", options.prefill_attempt_interval.value_or(1), 1));
  DI_RETURN_IF_ERROR(AtLeast("prefill_any_attempt_interval", options.prefill_any_attempt_interval, 1));
  DI_RETURN_IF_ERROR(AtLeast("prefill_max_sum_seqlen_k", options.prefill_max_sum_seqlen_k, limits.prompt_limit));
  DI_RETURN_IF_ERROR(AtLeast("kv_state_every_blocks", options.kv_state_every_blocks, 1));
  if (!(options.num_state_slots_ratio >= 1 && options.num_state_slots_ratio <= 16))
    return InvalidArgument(fmt::format("num_state_slots_ratio is {} but must be from 1 to 16", options.num_state_slots_ratio),
                           "num_state_slots_ratio");
  SchedulerOptions s;
  s.num_drafts = num_drafts;
  s.varlen_verify = options.varlen_verify;
  s.prompt_lookup = options.prompt_lookup;
  s.max_model_len = limits.max_model_len;
  s.max_num_batched_tokens = limits.max_num_batched_tokens;
  s.max_num_seqs = options.max_num_seqs;
  s.state_slots_ratio = options.num_state_slots_ratio;
  s.chunked_prefill = options.chunked_prefill;
  s.max_sum_prefill_len = options.prefill_max_sum_seqlen_k;
  s.lookahead_tokens = options.lookahead_tokens;
  s.stop_preempted = options.stop_preempted_request;
  s.max_decode_gap_ms = options.max_decode_gap_ms;
  s.alternation.attempt_interval = options.prefill_attempt_interval.value_or(0);
  s.alternation.any_attempt_interval = options.prefill_any_attempt_interval;
  s.alternation.decode_steps_per_prefill = options.decode_steps_per_prefill;
  s.vocab_size = model.vocab_size;
  DI_ASSIGN_OR_RETURN(s.cache_mode, ParseCacheMode(options.cache_mode));
  s.is_batch_invariant = options.batch_invariant || options.deterministic;
  s.decoder_keep = model.decoder_keep;
  s.prefix_cache.state_every_blocks = options.kv_state_every_blocks;
  // Replay restarts compressor pairs, so it begins at an even position.
  const int64_t least = (model.window + 1) / 2 * 2;
  s.prefix_cache.replay_tokens = options.kv_replay_tokens > 0 ? options.kv_replay_tokens : least;
  if (s.prefix_cache.replay_tokens < least || s.prefix_cache.replay_tokens % 2 != 0)
    return InvalidArgument(fmt::format("kv_replay_tokens is {} but must be even and at least the window of {}", options.kv_replay_tokens, model.window),
                           "kv_replay_tokens");
  return s;
}

}  // namespace deepinfer::engine

namespace deepinfer {

Result<EngineOptions> EngineOptions::FromEnvironment() {
  DI_ASSIGN_OR_RETURN(const ResolvedConfig resolved, ResolveConfig({}, Environment::FromProcess()));
  for (const std::string& warning : resolved.warnings) DI_LOG(warn, "{}", warning);
  EngineOptions options;
  if (resolved.sources.IsSet("model")) options.model = resolved.config.model.model;
  if (resolved.sources.IsSet("revision")) options.revision = resolved.config.model.revision;
  engine::ApplyConfig(resolved.config, engine::Defaults::kReference, options);
  return options;
}

}  // namespace deepinfer
