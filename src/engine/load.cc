// SPDX-License-Identifier: Apache-2.0
#include "engine/load.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "backends/registry.h"
#include "core/byte_size.h"
#include "core/clock.h"
#include "core/cpu_features.h"
#include "core/escape.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory_info.h"
#include "core/options.h"
#include "core/progress.h"
#include "engine/batch_buckets.h"
#include "engine/decode_costs.h"
#include "engine/engine_config.h"
#include "engine/memory_budget.h"
#include "engine/model_runner.h"
#include "engine/model_slots.h"
#include "hub/model_locator.h"
#include "model/cache.h"
#include "model/checkpoint.h"
#include "model/engram_reader.h"
#include "model/expert_files.h"
#include "model/flops.h"
#include "model/memory_estimate.h"

namespace deepinfer::engine {
namespace {

// The memory that weights and caches of a device take.
MemoryInfo MemoryOf(const device::Device& device) {
  MemoryInfo memory = ReadMemoryInfo();
  if (const int64_t free = device.free_bytes(); free >= 0) memory.total_bytes = memory.limit_bytes = memory.available_bytes = free;
  return memory;
}

// STATE records of the exact cache mode.
constexpr int64_t kFewestRecords = 16, kMostRecords = 256;
// A context that is fitted to the memory is at least that long: its cache grows as it is used.
constexpr int64_t kShortestContext = 4096;

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

// Tables that do not fit beside the weights are read row by row instead of faulted in.
Status ChooseEngramIo(const LoadOptions& options, const model::MemoryNeed& need, int64_t limit, model::LoadOptions& load) {
  DI_ASSIGN_OR_RETURN(load.engram_io, model::ParseEngramIo(options.engram_io, need.mapped_bytes, limit - need.total()));
  if (load.engram_io == model::EngramIo::kMmap || load.reader != nullptr) return Status::Ok();
  DI_ASSIGN_OR_RETURN(load.reader, AsyncReader::Create({}));
  return Status::Ok();
}

// What the keys of cached prefixes depend on. The weights' digest takes long to compute: a random one keeps the keys of
// this process apart from all others, and nothing is stored.
Result<CacheFingerprint> MakeFingerprint(const LoadOptions& options, model::Numerics numerics, const std::string& model_dir,
                                         const model::ModelConfig& config, bool is_cpu) {
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
  const bool never_replays = options.batch_invariant || options.deterministic;
  const NumericsClass release = is_cpu ? never_replays ? NumericsClass::kCpuDeterministic : NumericsClass::kCpu
                                       : never_replays ? NumericsClass::kCudaBatchInvariant : NumericsClass::kCuda;
  print.numerics_class = numerics != model::Numerics::kRelease ? 16 + static_cast<uint32_t>(numerics) : static_cast<uint32_t>(release);
  return print;
}

}  // namespace

struct Engine::Parts {
  LoadOptions options;
  model::Numerics numerics = model::Numerics::kRelease;
  std::vector<int32_t> token_blacklist;
  int num_drafts = 0;
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
  int64_t cache_bytes = 0;  // for the caches of requests, where a memory budget limits them; 0 = what is free

  int draft_block() const { return config.num_draft_stages > 0 ? config.dspark_block_size : 0; }
  // The cost of decode steps: what an earlier start has measured, or measured now.
  Result<DecodeCostModel> DecodeCosts(const SchedulerOptions& scheduler) const {
    MeasureCostsOptions measure;
    measure.max_num_seqs = scheduler.max_num_seqs;
    measure.num_drafts = scheduler.num_drafts;
    measure.num_blocks = scheduler.num_blocks;
    measure.num_slots = scheduler.num_state_slots();
    const int64_t most = int64_t{scheduler.max_num_seqs} * (1 + scheduler.num_drafts);
    std::vector<int64_t> buckets = BatchBuckets(most, 1);
    const int64_t now_s = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    const auto cache_of = [&](const char* phase) {
      // Compact JSON with sorted keys names the curve.
      return CostCache(options.decode_perf_cache_dir,
                       fmt::format(R"({{"backend":"{}","model":"{}","num_drafts":{},"parallel_config":{{"context":1,"data":1,"expert":1}},"phase":"{}","threads":{},"time_unit":"ms"}})",
                                   CpuIsaName(ActiveCpuIsa()), std::filesystem::weakly_canonical(model_dir).string(), scheduler.num_drafts, phase,
                                   device->pool().num_threads()),
                       options.decode_perf_cache_ttl_sec);
    };
    const bool has_cache = !options.decode_perf_cache_dir.empty();
    const CostCache forward = cache_of("forward"), draft = cache_of("draft");
    CostCurves curves;
    if (has_cache) {
      forward.DeleteExpired(now_s);
      curves.forward = forward.Load(MeasuredSizes(most), now_s);
      curves.draft = draft.Load(MeasuredSizes(scheduler.max_num_seqs), now_s);
    }
    if (curves.forward.is_empty() || curves.draft.is_empty()) {
      DI_ASSIGN_OR_RETURN(curves, MeasureCosts(*slots, measure));
      if (has_cache) {
        forward.Store(curves.forward, now_s);
        draft.Store(curves.draft, now_s);
      }
    }
    return DecodeCostModel(std::move(curves.forward), std::move(curves.draft), std::move(buckets));
  }

  model::CacheLayout layout() const {
    // The number of tokens that can be taken back is the model's (model.cc).
    return model::CacheLayout::Make(config, numerics, options.use_fp4_sparse_kv && config.use_fp4_sparse_kv,
                                    std::max(6, config.dspark_block_size + 1));
  }
  Result<CacheRequest> cache_request(const MemoryInfo& memory, int64_t longest_model_len) const {
    DI_ASSIGN_OR_RETURN(const EngineLimits limits, DeriveLimits(options, longest_model_len, num_drafts));
    const model::CacheLayout sizes = layout();
    CacheRequest request;
    request.total_bytes = memory.limit_bytes;
    request.available_bytes = memory.available_bytes;
    request.utilization = options.gpu_memory_utilization;
    request.num_kv_blocks = options.num_kv_blocks;
    if (cache_bytes > 0 && cache_bytes < memory.available_bytes) {
      request.total_bytes = request.available_bytes = cache_bytes;
      request.utilization = 1;
    }
    request.block_bytes = sizes.block_stride;
    request.slot_bytes = sizes.state_bytes;
    request.slots_ratio = options.num_state_slots_ratio;
    request.max_num_seqs = options.max_num_seqs;
    request.max_model_len = limits.max_model_len;
    request.runtime_max_model_len = limits.runtime_max_model_len;
    return request;
  }
  // The longest context that the cache has room for beside weights that are not loaded yet.
  Result<int64_t> FittingModelLen(MemoryInfo memory, int64_t weight_bytes) const {
    const int64_t longest = config.max_position_embeddings;
    memory.available_bytes = std::max<int64_t>(memory.available_bytes - weight_bytes, 0);
    DI_ASSIGN_OR_RETURN(CacheRequest request, cache_request(memory, longest));
    const int64_t overhead = request.runtime_max_model_len - request.max_model_len;
    request.runtime_max_model_len = request.num_kv_blocks > 0 ? 0 : 1;
    DI_ASSIGN_OR_RETURN(const CacheSizes sizes, SizeCaches(request));
    const int64_t shortest = request.num_kv_blocks > 0 ? 1 : std::min(kShortestContext, longest);
    return std::clamp(LongestSequence(sizes.num_blocks) - overhead, shortest, longest);
  }
};

Engine::Engine() : parts_(std::make_unique<Parts>()) {}
Engine::~Engine() = default;

Generator& Engine::generator() { return *parts_->generator; }
Result<AsyncEngine*> Engine::async_engine() {
  Parts& parts = *parts_;
  if (parts.async_engine != nullptr) return parts.async_engine.get();
  const LoadOptions& load = parts.options;
  AsyncEngineOptions options;
  options.core.clock = load.clock;
  options.core.is_async = load.zero_overhead_scheduling;
  options.core.max_requests = load.max_queued_requests;
  options.core.sampling.logprobs_mode = load.raw_logprobs ? LogprobsMode::kRaw : LogprobsMode::kProcessed;
  options.core.sampling.compute_sum_smaller_probs = load.compute_sum_smaller_probs;
  options.core.on_step = load.on_step;
  options.core.logging_interval_steps = load.disable_log_stats ? 0 : load.logging_interval_step;
  SchedulerOptions& scheduler = options.core.scheduler;
  ModelFacts facts;
  facts.max_model_len = parts.model->max_model_len();
  facts.window = parts.config.sliding_window;
  facts.decoder_keep = parts.model->decoder_keep();
  facts.vocab_size = parts.config.vocab_size;
  facts.draft_block = parts.draft_block();
  DI_ASSIGN_OR_RETURN(scheduler, MakeSchedulerOptions(load, facts));
  DI_ASSIGN_OR_RETURN(options.core.confidence_temperatures, ParseConfidenceTemperatures(load.confidence_temperature, scheduler.num_drafts));
  options.core.sampling.is_exact = load.deterministic || load.spec_verify == "exact";
  options.core.allow_prompt_logprobs = scheduler.decoder_keep == 0;

  const MemoryInfo memory = MemoryOf(*parts.device);
  DI_ASSIGN_OR_RETURN(const CacheRequest request, parts.cache_request(memory, facts.max_model_len));
  DI_ASSIGN_OR_RETURN(const CacheSizes sizes, SizeCaches(request));
  if (sizes.max_num_seqs < load.max_num_seqs)
    DI_LOG(warn, "max_num_seqs is {} instead of {}: the states of more sequences would take too much of the {} of memory that are available",
           sizes.max_num_seqs, load.max_num_seqs, FormatBytes(memory.available_bytes));
  scheduler.max_num_seqs = sizes.max_num_seqs;
  scheduler.num_blocks = sizes.num_blocks;
  if (scheduler.decoder_keep > 0 && (scheduler.cache_mode == CacheMode::kExact || load.kv_persist_swa)) {
    const int64_t record_bytes = parts.layout().persistable_state_bytes;
    scheduler.prefix_cache.num_state_records =
        static_cast<int32_t>(std::clamp(memory.available_bytes / 16 / std::max<int64_t>(record_bytes, 1), kFewestRecords, kMostRecords));
  }
  DI_ASSIGN_OR_RETURN(options.grammars, MakeGrammarOptions(load, *load.clock));
  options.core.stats.registry = load.registry;
  if (parts.device->streams_experts()) options.core.stats.expert_stats = [device = parts.device] { return device->expert_stats(); };
  options.core.stats.build = load.build;
  options.core.stats.flops = std::make_shared<model::FlopsModel>(parts.config);
  options.core.stats.drops_prompt_rows = scheduler.decoder_keep > 0 && load.decoder_replay != "mask";
  options.eos_token_id = parts.config.eos_token_id;
  options.longest_model_len = parts.config.max_position_embeddings;
  options.token_blacklist = parts.token_blacklist;
  options.load_s = parts.load_s;
  DI_ASSIGN_OR_RETURN(options.fingerprint, MakeFingerprint(load, parts.numerics, parts.model_dir, parts.config, parts.device->has_host_memory()));
  options.cache_salt = load.cache_salt;
  const std::array<uint8_t, 32> secret = RandomBytes();
  options.cache_secret.assign(secret.begin(), secret.end());
  DI_ASSIGN_OR_RETURN(parts.slots, ModelSlots::Create(*parts.model, scheduler.num_blocks, scheduler.num_state_slots(),
                                                      scheduler.prefix_cache.num_state_records));
  if (scheduler.num_drafts > 0 && scheduler.varlen_verify) {
    DI_ASSIGN_OR_RETURN(options.core.decode_costs, parts.DecodeCosts(scheduler));
  }
  DI_ASSIGN_OR_RETURN(parts.async_engine, AsyncEngine::Create(*parts.slots, *parts.tokenizer, std::move(options)));
  return parts.async_engine.get();
}

model::Model& Engine::model() { return *parts_->model; }
const model::ModelConfig& Engine::config() const { return parts_->config; }
const text::Tokenizer& Engine::tokenizer() const { return *parts_->tokenizer; }
const std::string& Engine::model_dir() const { return parts_->model_dir; }
double Engine::load_s() const { return parts_->load_s; }

Result<std::unique_ptr<Engine>> LoadEngine(LoadOptions options) {
  const Clock& clock = *options.clock;
  const double begin_s = clock.NowSeconds();
  if (options.prefill_chunk_tokens < 1) {
    return InvalidArgument(fmt::format("prefill_chunk_tokens is {} but must be at least 1", options.prefill_chunk_tokens),
                           "prefill_chunk_tokens");
  }
  if (options.load_format != "auto" && options.load_format != "dummy") {
    return InvalidArgument(fmt::format("load_format is {} but must be auto or dummy", options.load_format), "load_format");
  }
  const bool is_dummy = options.load_format == "dummy";

  // Threads of the engine log until it is destroyed: the log has to outlive it also where it is a static object.
  spdlog::default_logger_raw();
  std::unique_ptr<Engine> engine(new Engine());
  Engine::Parts& parts = *engine->parts_;
  hub::LocateOptions locate;
  locate.revision = options.revision;
  DI_ASSIGN_OR_RETURN(parts.model_dir, hub::ResolveModelDir(options.model, locate));
  DI_ASSIGN_OR_RETURN(parts.config, model::ModelConfig::Load(parts.model_dir));
  DI_ASSIGN_OR_RETURN(parts.numerics, model::ParseNumerics(options.numerics));
  // Mistakes in the options are found before the weights are read.
  if (options.max_model_len > parts.config.max_position_embeddings)
    return InvalidArgument(fmt::format("max_model_len is {} but the checkpoint holds {} tokens; lower it", options.max_model_len,
                                       parts.config.max_position_embeddings), "max_model_len");
  ModelFacts facts;
  facts.max_model_len = parts.config.max_position_embeddings;
  facts.window = parts.config.sliding_window;
  facts.draft_block = parts.draft_block();
  DI_RETURN_IF_ERROR(MakeSchedulerOptions(options, facts).status());
  DI_RETURN_IF_ERROR(MakeGrammarOptions(options, clock).status());
  DI_ASSIGN_OR_RETURN(parts.num_drafts, NumDrafts(options, facts.draft_block));
  DI_RETURN_IF_ERROR(ParseConfidenceTemperatures(options.confidence_temperature, parts.num_drafts).status());
  if (options.spec_verify != "reject" && options.spec_verify != "exact")
    return InvalidArgument(fmt::format("spec_verify is \"{}\" but must be reject or exact", Escape(options.spec_verify, 64)), "spec_verify");
  DI_ASSIGN_OR_RETURN(parts.token_blacklist,
                      ParseIdRanges(options.decode_token_blacklist, "decode_token_blacklist", parts.config.vocab_size));
  int64_t budget_bytes = 0;
  if (options.memory_budget != "auto") {
    DI_ASSIGN_OR_RETURN(budget_bytes, ParseByteSize(options.memory_budget, "memory_budget"));
    if (budget_bytes == 0) return InvalidArgument("memory_budget is 0 but must be a size such as 24GiB, or auto", "memory_budget");
  }
  if (options.expert_io != "auto" && options.expert_io != "uring" && options.expert_io != "threads" && options.expert_io != "mmap")
    return InvalidArgument(fmt::format("expert_io is \"{}\" but must be auto, uring, threads or mmap", Escape(options.expert_io, 64)), "expert_io");
  std::shared_ptr<const model::Checkpoint> checkpoint;
  if (!is_dummy) {
    DI_ASSIGN_OR_RETURN(std::unique_ptr<model::Checkpoint> opened, model::Checkpoint::Open(parts.model_dir));
    checkpoint = std::move(opened);
  }
  model::Residency residency;
  model::MemoryPlan plan =
      model::PlanMemory(parts.config, parts.numerics, options.max_model_len, options.cache_tokens, options.prefill_chunk_tokens);
  plan.with_draft = options.with_draft || parts.num_drafts > 0;
  plan.use_fp4_sparse_kv = options.use_fp4_sparse_kv;
  const model::InventorySummary summary = model::SummarizeInventory(parts.config, true);
  backends::DeviceOptions device_options;
  device_options.num_threads = options.num_threads;
  device_options.cpu_isa = options.cpu_isa;
  DI_ASSIGN_OR_RETURN(device_options.cpu_pinning, ParseCpuPinning(options.cpu_pinning));
  device_options.cuda_plugin = options.cuda_plugin;
  device_options.release_numerics = parts.numerics == model::Numerics::kRelease;
  device_options.batch_invariant = options.batch_invariant || options.deterministic;
  DI_ASSIGN_OR_RETURN(parts.device, backends::CreateDevice(options.device, device_options));
  const auto estimate = [&] {
    plan.maps_embedding = parts.device->has_host_memory();
    return model::EstimateMemory(parts.config, summary, plan);
  };
  model::MemoryNeed need = estimate();
  if (const int64_t free = parts.device->free_bytes(); free >= 0 && need.total() > free) {
    if (options.device == "auto") {
      DI_ASSIGN_OR_RETURN(parts.device, backends::CreateDevice("cpu", device_options));
      need = estimate();
    } else if (options.check_memory) {
      return ResourceExhausted(fmt::format("the model needs {} on the GPU ({} of them weights) but {} are free there; use a larger GPU or --device cpu",
                                           FormatBytes(need.total()), FormatBytes(need.weight_bytes), FormatBytes(free)));
    }
  }
  const MemoryInfo memory = MemoryOf(*parts.device);
  const int64_t limit = budget_bytes > 0 ? std::min(budget_bytes, memory.available_bytes) : memory.available_bytes;
  if (options.check_memory) {
    int64_t resident_bytes = need.weight_bytes;
    if (is_dummy) {
      DI_RETURN_IF_ERROR(model::CheckMemory(need, memory.available_bytes));
    } else {
      DI_ASSIGN_OR_RETURN(residency, model::PlanResidency(parts.config, summary, plan, need, budget_bytes, memory.available_bytes));
      if (residency.streams_experts) resident_bytes += residency.expert_budget - residency.expert_bytes;
      if (budget_bytes > 0 || residency.streams_experts) parts.cache_bytes = need.cache_bytes + residency.cache_share;
    }
    if (options.max_model_len == 0 && options.fit_max_model_len) {
      parts.options = options;
      DI_ASSIGN_OR_RETURN(options.max_model_len, parts.FittingModelLen(memory, resident_bytes));
    }
  }
  DI_ASSIGN_OR_RETURN(parts.tokenizer, text::Tokenizer::Load(parts.model_dir));
  if (parts.tokenizer->vocab_size() > parts.config.vocab_size) {
    return BadModel(fmt::format("{}/tokenizer.json has ids up to {} but text_config.vocab_size is {}; the two files "
                                "belong to different checkpoints",
                                parts.model_dir,
                                parts.tokenizer->vocab_size() - 1,
                                parts.config.vocab_size));
  }
  if (is_dummy) {
    DI_ASSIGN_OR_RETURN(std::unique_ptr<model::Checkpoint> made, model::Checkpoint::Dummy(parts.config, 0, &parts.device->pool()));
    checkpoint = std::move(made);
  }

  if (residency.streams_experts) {
    device::ExpertStreaming streaming = model::ExpertFiles(*checkpoint);
    streaming.budget_bytes = residency.expert_budget;
    streaming.io = options.expert_io;
    streaming.pack_path = model::PackPath(*checkpoint, options.pack_cache);
    DI_RETURN_IF_ERROR(parts.device->StreamExperts(std::move(streaming)));
  }

  model::LoadOptions load;
  load.numerics = parts.numerics;
  load.with_draft = options.with_draft || parts.num_drafts > 0;
  load.max_model_len = options.max_model_len;
  if (const int64_t free = parts.device->free_bytes(); free > 0) {
    // Steps of a GPU pay from thousands of rows on; their buffers may take a twentieth of its memory (about 160 bytes a row and
    // channel).
    load.max_step_rows = std::clamp<int64_t>(free / 20 / (160 * parts.config.hidden_size), 256, 8192);
  }
  load.cache_tokens = options.cache_tokens;
  load.use_fp4_sparse_kv = options.use_fp4_sparse_kv;
  load.progress = options.progress;
  DI_ASSIGN_OR_RETURN(load.decoder_replay, ParseDecoderReplay(options.decoder_replay, parts.config));
  load.replay_keep_tokens = options.decoder_replay_keep;
  if (!parts.config.engram_layer_ids.empty()) {
    load.compressed_vocab = std::move(parts.tokenizer->BuildCompressedVocab().map);
    if (!is_dummy) DI_RETURN_IF_ERROR(ChooseEngramIo(options, need, limit, load));
  }
  DI_ASSIGN_OR_RETURN(parts.model,
                      model::Model::Load(std::move(checkpoint), parts.config, parts.device, std::move(load)));
  parts.runner = std::make_unique<ModelRunner>(*parts.model);
  parts.load_s = clock.NowSeconds() - begin_s;
  GeneratorOptions generator;
  generator.prefill_chunk_tokens = options.prefill_chunk_tokens;
  generator.logprobs_mode = options.raw_logprobs ? LogprobsMode::kRaw : LogprobsMode::kProcessed;
  generator.compute_sum_smaller_probs = options.compute_sum_smaller_probs;
  generator.token_blacklist = parts.token_blacklist;
  generator.load_s = parts.load_s;
  generator.clock = options.clock;
  parts.generator = std::make_unique<Generator>(*parts.runner, *parts.tokenizer, parts.config.eos_token_id, std::move(generator));
  parts.options = std::move(options);
  parts.options.progress = nullptr;
  return engine;
}

}  // namespace deepinfer::engine
