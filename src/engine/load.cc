// SPDX-License-Identifier: Apache-2.0
#include "engine/load.h"

#include <algorithm>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "backends/registry.h"
#include "core/clock.h"
#include "core/escape.h"
#include "core/file.h"
#include "core/memory_info.h"
#include "engine/model_runner.h"
#include "engine/model_slots.h"
#include "hub/model_locator.h"
#include "model/checkpoint.h"
#include "model/memory_estimate.h"

namespace deepinfer::engine {
namespace {

// What the memory check assumes of a cache that grows on demand.
constexpr int64_t kAssumedCacheTokens = 8192;

Result<model::DecoderReplay> ParseDecoderReplay(const std::string& name, const model::ModelConfig& config) {
  if (name == "off") return model::DecoderReplay::kOff;
  if (name == "mask") return model::DecoderReplay::kMask;
  if (name == "compact") return model::DecoderReplay::kCompact;
  if (name == "auto") return config.CheckDecoderReplay().ok() ? model::DecoderReplay::kCompact : model::DecoderReplay::kOff;
  return InvalidArgument(fmt::format("decoder_replay is \"{}\" but must be auto, off, mask or compact", Escape(name)), "decoder_replay");
}

// Longer tokenizers do not exist.
constexpr int64_t kMaxTokenizerBytes = int64_t{1} << 28;

std::array<uint8_t, 32> RandomBytes() {
  std::random_device device;
  std::array<uint8_t, 32> bytes;
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(device());
  return bytes;
}

// What the keys of cached prefixes depend on. The weights' digest takes long to compute: a random one keeps the keys of
// this process apart from all others, and nothing is stored.
Result<CacheFingerprint> MakeFingerprint(const LoadOptions& options, const std::string& model_dir, const model::ModelConfig& config) {
  CacheFingerprint print;
  std::error_code ignored;
  const std::filesystem::path path(options.model);
  print.model_id = std::filesystem::is_directory(path, ignored) ? std::filesystem::path(model_dir).filename().string() : options.model;
  print.weights_digest.bytes = RandomBytes();
  DI_ASSIGN_OR_RETURN(const std::string tokenizer, ReadModelFile(model_dir, "tokenizer.json", kMaxTokenizerBytes));
  print.tokenizer_digest_hex = Sha256Of(tokenizer).ToHex();
  print.layout_id = options.use_fp4_sparse_kv && config.use_fp4_sparse_kv ? 1 : 2;
  print.replay_window = static_cast<uint32_t>(config.sliding_window);
  // Other arithmetic than the release's belongs to the classes for experiments.
  print.numerics_class = options.numerics == model::Numerics::kRelease ? static_cast<uint32_t>(NumericsClass::kCpuDeterministic)
                                                                       : 16 + static_cast<uint32_t>(options.numerics);
  return print;
}

}  // namespace

struct Engine::Parts {
  LoadOptions options;
  std::string model_dir;
  model::ModelConfig config;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::shared_ptr<device::Device> device;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<ModelRunner> runner;
  std::unique_ptr<Generator> generator;
  std::unique_ptr<ModelSlots> slots;
  std::unique_ptr<AsyncEngine> async_engine;  // goes before what it uses
  double load_s = 0;
};

Engine::Engine() : parts_(std::make_unique<Parts>()) {}
Engine::~Engine() = default;

Generator& Engine::generator() { return *parts_->generator; }
Result<AsyncEngine*> Engine::async_engine() {
  Parts& parts = *parts_;
  if (parts.async_engine != nullptr) return parts.async_engine.get();
  const LoadOptions& load = parts.options;
  const int64_t max_model_len = parts.model->max_model_len();
  const int64_t blocks_per_seq = (max_model_len + kTokensPerBlock - 1) / kTokensPerBlock;
  AsyncEngineOptions options;
  options.core.clock = load.generator.clock;
  options.core.max_requests = int64_t{1} << 40;  // the caller holds them all anyway
  options.core.sampling.logprobs_mode = load.generator.logprobs_mode;
  options.core.sampling.compute_sum_smaller_probs = load.generator.compute_sum_smaller_probs;
  SchedulerOptions& scheduler = options.core.scheduler;
  scheduler.max_model_len = max_model_len;
  scheduler.max_num_seqs = load.max_num_seqs;
  scheduler.max_num_batched_tokens = std::max<int64_t>(load.generator.prefill_chunk_tokens, kTokensPerBlock);
  scheduler.max_decode_gap_ms = 0;  // nobody watches the tokens come
  // Pages of blocks cost memory when they are written; the pool's size bounds what all requests together may take.
  const int64_t block_bytes = kTokensPerBlock * model::CacheBytesPerToken(parts.config, load.numerics, load.use_fp4_sparse_kv);
  const int64_t affordable = ReadMemoryInfo().available_bytes / 2 / std::max<int64_t>(block_bytes, 1);
  scheduler.num_blocks = 1 + std::clamp(affordable, blocks_per_seq, blocks_per_seq * std::min(load.max_num_seqs, 240));
  scheduler.decoder_keep = parts.model->decoder_keep();
  options.core.allow_prompt_logprobs = scheduler.decoder_keep == 0;
  // A prefix is taken from the cache only where the answer does not change a bit.
  scheduler.is_batch_invariant = true;
  if (scheduler.decoder_keep > 0) {
    scheduler.cache_mode = CacheMode::kExact;
    scheduler.prefix_cache.num_state_records = 64;
  }
  options.eos_token_id = parts.config.eos_token_id;
  options.longest_model_len = parts.config.max_position_embeddings;
  options.token_blacklist = load.generator.token_blacklist;
  options.load_s = parts.load_s;
  DI_ASSIGN_OR_RETURN(options.fingerprint, MakeFingerprint(load, parts.model_dir, parts.config));
  const std::array<uint8_t, 32> secret = RandomBytes();
  options.cache_secret.assign(secret.begin(), secret.end());
  DI_ASSIGN_OR_RETURN(parts.slots, ModelSlots::Create(*parts.model, scheduler.num_blocks, scheduler.num_state_slots(),
                                                      scheduler.prefix_cache.num_state_records));
  DI_ASSIGN_OR_RETURN(parts.async_engine, AsyncEngine::Create(*parts.slots, *parts.tokenizer, std::move(options)));
  return parts.async_engine.get();
}

model::Model& Engine::model() { return *parts_->model; }
const model::ModelConfig& Engine::config() const { return parts_->config; }
const text::Tokenizer& Engine::tokenizer() const { return *parts_->tokenizer; }
const std::string& Engine::model_dir() const { return parts_->model_dir; }
double Engine::load_s() const { return parts_->load_s; }

Result<std::unique_ptr<Engine>> LoadEngine(LoadOptions options) {
  const Clock& clock = *options.generator.clock;
  const double begin_s = clock.NowSeconds();
  if (options.max_model_len < 0) {
    return InvalidArgument(fmt::format("max_model_len is {} but must not be negative", options.max_model_len),
                           "max_model_len");
  }
  if (options.max_num_seqs < 1) {
    return InvalidArgument(fmt::format("max_num_seqs is {} but must be at least 1", options.max_num_seqs), "max_num_seqs");
  }
  if (options.load_format != "auto" && options.load_format != "dummy") {
    return InvalidArgument(fmt::format("load_format is {} but must be auto or dummy", options.load_format), "load_format");
  }
  const bool is_dummy = options.load_format == "dummy";

  std::unique_ptr<Engine> engine(new Engine());
  Engine::Parts& parts = *engine->parts_;
  hub::LocateOptions locate;
  locate.revision = options.revision;
  DI_ASSIGN_OR_RETURN(parts.model_dir, hub::ResolveModelDir(options.model, locate));
  DI_ASSIGN_OR_RETURN(parts.config, model::ModelConfig::Load(parts.model_dir));
  std::shared_ptr<const model::Checkpoint> checkpoint;
  if (!is_dummy) {
    DI_ASSIGN_OR_RETURN(std::unique_ptr<model::Checkpoint> opened, model::Checkpoint::Open(parts.model_dir));
    checkpoint = std::move(opened);
  }
  if (options.check_memory) {
    model::MemoryPlan plan;
    plan.numerics = options.numerics;
    plan.with_draft = options.with_draft;
    plan.use_fp4_sparse_kv = options.use_fp4_sparse_kv;
    const int64_t max_len = options.max_model_len > 0
                                ? std::min(options.max_model_len, parts.config.max_position_embeddings)
                                : parts.config.max_position_embeddings;
    plan.cache_tokens = options.cache_tokens > 0 ? options.cache_tokens : std::min(max_len, kAssumedCacheTokens);
    plan.chunk_tokens = std::min(options.generator.prefill_chunk_tokens, max_len);
    DI_RETURN_IF_ERROR(model::CheckMemory(model::EstimateMemory(parts.config, plan), ReadMemoryInfo().available_bytes));
  }
  DI_ASSIGN_OR_RETURN(parts.tokenizer, text::Tokenizer::Load(parts.model_dir));
  if (parts.tokenizer->vocab_size() > parts.config.vocab_size) {
    return BadModel(fmt::format("{}/tokenizer.json has ids up to {} but text_config.vocab_size is {}; the two files "
                                "belong to different checkpoints",
                                parts.model_dir,
                                parts.tokenizer->vocab_size() - 1,
                                parts.config.vocab_size));
  }
  backends::DeviceOptions device_options;
  device_options.num_threads = options.num_threads;
  device_options.cpu_isa = options.cpu_isa;
  DI_ASSIGN_OR_RETURN(parts.device, backends::CreateDevice(options.device, device_options));
  if (is_dummy) {
    DI_ASSIGN_OR_RETURN(std::unique_ptr<model::Checkpoint> made, model::Checkpoint::Dummy(parts.config, 0));
    checkpoint = std::move(made);
  }

  model::LoadOptions load;
  load.numerics = options.numerics;
  load.with_draft = options.with_draft;
  load.max_model_len = options.max_model_len;
  load.cache_tokens = options.cache_tokens;
  load.use_fp4_sparse_kv = options.use_fp4_sparse_kv;
  load.progress = options.progress;
  DI_ASSIGN_OR_RETURN(load.decoder_replay, ParseDecoderReplay(options.decoder_replay, parts.config));
  load.replay_keep_tokens = options.decoder_replay_keep;
  if (!parts.config.engram_layer_ids.empty()) {
    load.compressed_vocab = std::move(parts.tokenizer->BuildCompressedVocab().map);
  }
  DI_ASSIGN_OR_RETURN(parts.model,
                      model::Model::Load(std::move(checkpoint), parts.config, parts.device, std::move(load)));
  parts.runner = std::make_unique<ModelRunner>(*parts.model);
  parts.load_s = clock.NowSeconds() - begin_s;
  options.generator.load_s = parts.load_s;
  parts.generator = std::make_unique<Generator>(
      *parts.runner, *parts.tokenizer, parts.config.eos_token_id, options.generator);
  parts.options = std::move(options);
  parts.options.progress = nullptr;
  return engine;
}

}  // namespace deepinfer::engine
