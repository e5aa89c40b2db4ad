// SPDX-License-Identifier: Apache-2.0
#include "engine/load.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "backends/registry.h"
#include "core/clock.h"
#include "core/escape.h"
#include "core/memory_info.h"
#include "engine/model_runner.h"
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

}  // namespace

struct Engine::Parts {
  std::string model_dir;
  model::ModelConfig config;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::shared_ptr<device::Device> device;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<ModelRunner> runner;
  std::unique_ptr<Generator> generator;
  double load_s = 0;
};

Engine::Engine() : parts_(std::make_unique<Parts>()) {}
Engine::~Engine() = default;

Generator& Engine::generator() { return *parts_->generator; }
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
      *parts.runner, *parts.tokenizer, parts.config.eos_token_id, std::move(options.generator));
  return engine;
}

}  // namespace deepinfer::engine
