// SPDX-License-Identifier: Apache-2.0
//
// inspect: what a checkpoint holds, what it needs on this machine and what would run where;
// --verify reads every byte.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/input.h"
#include "core/byte_size.h"
#include "core/cpu_features.h"
#include "core/disk_rate.h"
#include "core/escape.h"
#include "core/json.h"
#include "core/memory_info.h"
#include "core/progress.h"
#include "core/read_sweep.h"
#include "core/threads.h"
#include "deepinfer/engine_options.h"
#include "model/checkpoint.h"
#include "model/inventory.h"
#include "model/memory_estimate.h"
#include "model/streaming_forecast.h"

namespace deepinfer::cli {

namespace {

using model::Checkpoint;
using model::InventorySummary;
using model::ModelConfig;
using model::ModelPart;
using model::PartSize;

// Tensors that differ only in the numbers of their names, as one row of the table.
struct TensorGroup {
  int64_t count = 0;
  int64_t num_bytes = 0;
};
using GroupKey = std::tuple<std::string, std::string, std::string>;  // pattern, dtype, shape

// "layers.3.ffn.experts.12.w1.weight" to "layers.*.ffn.experts.*.w1.weight".
std::string Pattern(std::string_view name) {
  std::string pattern;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    const bool is_number = !part.empty() && std::all_of(part.begin(), part.end(), [](char c) {
      return c >= '0' && c <= '9';
    });
    if (begin > 0) pattern += '.';
    pattern += is_number ? "*" : part;
    begin = end + 1;
  }
  return pattern;
}

struct Part {
  const char* name;
  std::vector<ModelPart> parts;
};

// The rows of the byte budget.
const std::vector<Part>& Parts() {
  static const std::vector<Part> parts = {
      {"routed experts", {ModelPart::kRoutedExperts}},
      {"Engram tables", {ModelPart::kEngramTables}},
      {"DSpark", {ModelPart::kDraftExperts, ModelPart::kDraftDense}},
      {"dense layers", {ModelPart::kDense}},
      {"embed and head", {ModelPart::kEmbedAndHead}},
      {"vision", {ModelPart::kVision}},
      {"final norm", {ModelPart::kFinalNorm}}};
  return parts;
}

PartSize SizeOf(const Part& part, const InventorySummary& summary) {
  PartSize size;
  for (const ModelPart p : part.parts) {
    size.num_tensors += summary.part(p).num_tensors;
    size.num_bytes += summary.part(p).num_bytes;
    size.num_parameters += summary.part(p).num_parameters;
  }
  return size;
}

std::string Grouped(int64_t value) {  // 510286023000 to 510,286,023,000
  const std::string digits = std::to_string(value);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

class Inspection {
 public:
  static Result<std::unique_ptr<Inspection>> Open(const Invocation& invocation) {
    std::unique_ptr<Inspection> inspection(new Inspection(invocation));
    DI_RETURN_IF_ERROR(inspection->Read());
    return inspection;
  }

  Status Verify() {
    ThreadPool pool(static_cast<int>(options_.model.threads));
    Progress progress("verifying",
                      {.quiet = options_.log.quiet,
                       .unit = ProgressUnit::kBytes,
                       .clock = nullptr,
                       .write_line = nullptr});
    return checkpoint_->Verify(pool,
                               [&](int64_t done, int64_t total) { progress.Update(done, total); });
  }

  void PrintText(Output& out, bool is_verified) const;
  Json ToJson(bool is_verified) const;

 private:
  explicit Inspection(const Invocation& invocation)
      : invocation_(invocation), options_(invocation.config) {}

  Status Read() {
    DI_ASSIGN_OR_RETURN(dir_, ModelDir(invocation_));
    DI_ASSIGN_OR_RETURN(config_, ModelConfig::Load(dir_));
    DI_ASSIGN_OR_RETURN(raw_config_, ReadJsonFile(dir_ + "/config.json"));
    DI_ASSIGN_OR_RETURN(numerics_, model::ParseNumerics(options_.model.numerics));
    DI_ASSIGN_OR_RETURN(isa_, ParseCpuIsa(options_.model.cpu_isa));
    DI_ASSIGN_OR_RETURN(checkpoint_, Checkpoint::Open(dir_));
    // A text-only copy of a checkpoint may leave the vision tower out, but not half of it.
    has_vision_ = config_.vision.has_value() &&
                  checkpoint_->Find("vision.patch_embed.proj.weight") != nullptr;
    DI_RETURN_IF_ERROR(checkpoint_->CheckInventory(config_, has_vision_));
    summary_ = model::SummarizeInventory(config_, has_vision_);
    for (const auto& [name, tensor] : checkpoint_->tensors()) {
      TensorGroup& group = groups_[{Pattern(name),
                                    std::string(DTypeName(tensor.dtype)),
                                    fmt::format("[{}]", fmt::join(tensor.shape, ", "))}];
      ++group.count;
      group.num_bytes += tensor.num_bytes;
    }
    plan_ = model::PlanMemory(config_, numerics_, options_.model.max_model_len, 0, EngineOptions().prefill_chunk_tokens);
    plan_.with_draft = false;
    plan_.use_fp4_sparse_kv = options_.model.kv_format != "mxfp8" && config_.use_fp4_sparse_kv;
    need_ = model::EstimateMemory(config_, summary_, plan_);
    memory_ = ReadMemoryInfo();
    return Forecast();
  }

  // What a load with this budget would do.
  Status Forecast() {
    if (options_.model.memory_budget != "auto") {
      DI_ASSIGN_OR_RETURN(budget_bytes_, ParseByteSize(options_.model.memory_budget, "memory_budget"));
    }
    auto residency = model::PlanResidency(config_, summary_, plan_, need_, budget_bytes_, memory_.available_bytes);
    residency_status_ = residency.status();
    if (!residency.ok() || !residency->streams_experts) return Status::Ok();
    residency_ = *residency;
    RandomReadOptions disk;
    disk.piece_bytes = std::clamp<int64_t>(model::ExpertBytes(config_, summary_) / 3, 4096, int64_t{8} << 20);
    auto rate = MeasureRandomReads(checkpoint_->ShardPaths(), disk);
    disk_status_ = rate.status();
    if (rate.ok()) rates_.disk_bytes_per_s = *rate;
    ThreadPool pool(static_cast<int>(options_.model.threads));
    ReadSweep sweep(pool, int64_t{256} << 20);
    for (int i = 0; i < 3; ++i) rates_.memory_bytes_per_s = std::max(rates_.memory_bytes_per_s, sweep.Pass());
    work_ = model::EstimateStep(config_, summary_, 1, plan_.cache_tokens);
    forecast_ = model::ForecastStreaming(config_, summary_, *residency_, false, work_, rates_);
    return Status::Ok();
  }

  double DiskBytesPerToken() const {
    return static_cast<double>(work_.expert_bytes) * (1 - forecast_.hit_rate) + static_cast<double>(work_.table_bytes);
  }

  int64_t num_ignored() const {
    return static_cast<int64_t>(checkpoint_->tensors().size()) - summary_.total.num_tensors;
  }

  // Parameters read for one decoded token, without the embedding row and the n-gram rows.
  int64_t ActiveParameters() const {
    const int64_t routed = summary_.part(ModelPart::kRoutedExperts).num_parameters;
    return summary_.part(ModelPart::kDense).num_parameters +
           routed / config_.n_routed_experts * config_.num_experts_per_tok +
           summary_.part(ModelPart::kEmbedAndHead).num_parameters / 2;
  }

  std::string Runs(ModelPart part) const {
    const int threads = options_.model.threads > 0 ? static_cast<int>(options_.model.threads)
                                                   : ThreadPool::NumAvailableCores();
    const std::string cpu = fmt::format("CPU ({}, {} threads)", CpuIsaName(isa_), threads);
    switch (part) {
      case ModelPart::kEngramTables:
        return "gathered from the mapped files";
      case ModelPart::kDraftExperts:
      case ModelPart::kDraftDense:
        return "not loaded unless drafting is on";
      case ModelPart::kVision:
        return "not loaded (text only)";
      default:
        if (!residency_status_.ok()) return cpu + ", does not fit in memory";
        return residency_ && part == ModelPart::kRoutedExperts ? cpu + ", read from disk when needed" : cpu + ", packed in memory";
    }
  }

  const Invocation& invocation_;
  const Config& options_;
  std::string dir_;
  Json raw_config_;
  ModelConfig config_;
  model::Numerics numerics_ = model::Numerics::kRelease;
  CpuIsa isa_ = CpuIsa::kScalar;
  std::unique_ptr<Checkpoint> checkpoint_;
  bool has_vision_ = false;
  InventorySummary summary_;
  std::map<GroupKey, TensorGroup> groups_;
  model::MemoryPlan plan_;
  model::MemoryNeed need_;
  MemoryInfo memory_;
  int64_t budget_bytes_ = 0;  // 0 = what is available
  Status residency_status_;
  std::optional<model::Residency> residency_;  // set: experts are streamed
  Status disk_status_;  // not OK: the forecast goes without speeds
  model::MachineRates rates_;
  model::StepWork work_;
  model::StreamingForecast forecast_;
};

void Inspection::PrintText(Output& out, bool is_verified) const {
  const ModelConfig& c = config_;
  out.Line(fmt::format("model        {}", Escape(dir_, 4096)));
  out.Line("architecture DeepseekV41ForCausalLM, FP8 weights (32x32), FP4 experts");
  out.Line(
      fmt::format("sizes        {} layers, hidden {}, {} heads of {}, vocabulary {}, context {}",
                  c.num_hidden_layers,
                  c.hidden_size,
                  c.num_attention_heads,
                  c.head_dim,
                  c.vocab_size,
                  c.max_position_embeddings));
  out.Line(fmt::format("experts      {} routed, {} per token, {} shared, inner {}",
                       c.n_routed_experts,
                       c.num_experts_per_tok,
                       c.n_shared_experts,
                       c.moe_intermediate_size));
  out.Line(fmt::format(
      "attention    window {}, KV sources [{}], index sources [{}], top {}, candidate source {}",
      c.sliding_window,
      fmt::join(c.kv_source_layer_ids, " "),
      fmt::join(c.index_source_layer_ids, " "),
      c.index_topk,
      c.candidate_source_layer_id < 0 ? std::string("none")
                                      : std::to_string(c.candidate_source_layer_id)));
  out.Line(c.engram_layer_ids.empty()
               ? std::string("Engram       none")
               : fmt::format("Engram       layers [{}], rows [{}], up to {}-grams",
                             fmt::join(c.engram_layer_ids, " "),
                             fmt::join(c.engram_num_embeddings, " "),
                             c.engram_max_ngram_size));
  out.Line(c.num_draft_stages == 0
               ? std::string("DSpark       none")
               : fmt::format("DSpark       {} layers of {} experts, block {}, taps [{}]",
                             c.num_draft_stages,
                             c.dspark_n_routed_experts,
                             c.dspark_block_size,
                             fmt::join(c.dspark_target_layer_ids, " ")));
  out.Line(fmt::format("vision       {}",
                       !c.vision     ? "none"
                       : has_vision_ ? "present"
                                     : "configured, but its tensors are absent"));
  out.Line(fmt::format("tensors      {} in {} files, {} bytes{}",
                       Grouped(static_cast<int64_t>(checkpoint_->tensors().size())),
                       checkpoint_->shards().size(),
                       Grouped(checkpoint_->payload_bytes()),
                       num_ignored() > 0
                           ? fmt::format(" ({} are not needed and ignored)", Grouped(num_ignored()))
                           : std::string()));
  if (is_verified) out.Line("verified     every byte read, all values finite");

  size_t width = 6;
  for (const auto& [key, group] : groups_) width = std::max(width, Escape(std::get<0>(key)).size());
  out.Line(fmt::format("\n{:<{}}  {:<7}  {:<18}  {:>7}  {:>17}",
                       "tensor",
                       width,
                       "dtype",
                       "shape",
                       "count",
                       "bytes"));
  for (const auto& [key, group] : groups_) {
    const auto& [pattern, dtype, shape] = key;
    out.Line(fmt::format("{:<{}}  {:<7}  {:<18}  {:>7}  {:>17}",
                         Escape(pattern),
                         width,
                         dtype,
                         shape,
                         Grouped(group.count),
                         Grouped(group.num_bytes)));
    if (!out.ok()) return;
  }

  out.Line(fmt::format(
      "\n{:<14}  {:>7}  {:>17}  {:>17}  {}", "part", "tensors", "bytes", "parameters", "runs on"));
  for (const Part& part : Parts()) {
    const PartSize size = SizeOf(part, summary_);
    if (size.num_tensors == 0) continue;
    out.Line(fmt::format("{:<14}  {:>7}  {:>17}  {:>17}  {}",
                         part.name,
                         Grouped(size.num_tensors),
                         Grouped(size.num_bytes),
                         Grouped(size.num_parameters),
                         Runs(part.parts[0])));
  }
  out.Line(fmt::format("{:<14}  {:>7}  {:>17}  {:>17}  {} active per token",
                       "total",
                       Grouped(summary_.total.num_tensors),
                       Grouped(summary_.total.num_bytes),
                       Grouped(summary_.total.num_parameters),
                       Grouped(ActiveParameters())));

  out.Line(fmt::format("\nmemory for one sequence of {} tokens ({} numerics)",
                       Grouped(plan_.cache_tokens),
                       model::NumericsName(numerics_)));
  out.Line(fmt::format("  weights    {:>10}", FormatBytes(need_.weight_bytes)));
  out.Line(fmt::format("  caches     {:>10}   {} bytes per token",
                       FormatBytes(need_.cache_bytes),
                       model::CacheBytesPerToken(config_, numerics_, plan_.use_fp4_sparse_kv)));
  out.Line(fmt::format("  workspace  {:>10}", FormatBytes(need_.workspace_bytes)));
  out.Line(fmt::format("  needed     {:>10}", FormatBytes(need_.total())));
  out.Line(
      fmt::format("  available  {:>10}   {}",
                  FormatBytes(memory_.available_bytes),
                  memory_.is_limited_by_cgroup ? "limited by the container" : "of this machine"));
  if (need_.mapped_bytes > 0)
    out.Line(fmt::format("  mapped     {:>10}   Engram tables and embedding, read from disk on demand",
                         FormatBytes(need_.mapped_bytes)));
  if (!residency_status_.ok()) {
    out.Line("  does not fit: " + residency_status_.message());
  } else if (!residency_) {
    out.Line("  the model fits");
  } else {
    out.Line(fmt::format("  experts    {:>10}   for those that stay in memory: {} of {}; the others are read from disk when a step needs them",
                         FormatBytes(residency_->expert_budget), Grouped(forecast_.num_slots), Grouped(forecast_.num_experts)));
    std::string speed = fmt::format("memory {}/s", FormatBytes(static_cast<int64_t>(rates_.memory_bytes_per_s)));
    speed = disk_status_.ok() ? fmt::format("disk {}/s at random, {}: {:.2g} tokens/s", FormatBytes(static_cast<int64_t>(rates_.disk_bytes_per_s)), speed,
                                            forecast_.decode.tokens_per_s)
                              : fmt::format("the disk was not measured: {}", disk_status_.message());
    out.Line(fmt::format("  forecast   {:.0f} % of a token's experts in memory (uniform routing), {} read per token; {}", 100 * forecast_.hit_rate,
                         FormatBytes(static_cast<int64_t>(DiskBytesPerToken())), speed));
  }
}

Json Inspection::ToJson(bool is_verified) const {
  Json parts = Json::array();
  for (const Part& part : Parts()) {
    const PartSize size = SizeOf(part, summary_);
    if (size.num_tensors == 0) continue;
    parts.push_back({{"name", part.name},
                     {"tensors", size.num_tensors},
                     {"bytes", size.num_bytes},
                     {"parameters", size.num_parameters},
                     {"runs_on", Runs(part.parts[0])}});
  }
  Json tensors = Json::array();
  for (const auto& [key, group] : groups_) {
    const auto& [pattern, dtype, shape] = key;
    tensors.push_back({{"name", pattern},
                       {"dtype", dtype},
                       {"shape", ParseJson(shape).value()},
                       {"count", group.count},
                       {"bytes", group.num_bytes}});
  }
  return {{"model", dir_},
          {"config", raw_config_},
          {"shards", checkpoint_->shards().size()},
          {"num_tensors", checkpoint_->tensors().size()},
          {"bytes", checkpoint_->payload_bytes()},
          {"ignored_tensors", num_ignored()},
          {"parameters", summary_.total.num_parameters},
          {"active_parameters", ActiveParameters()},
          {"vision", has_vision_},
          {"verified", is_verified},
          {"parts", parts},
          {"tensors", tensors},
          {"memory",
           {{"numerics", model::NumericsName(numerics_)},
            {"cache_tokens", plan_.cache_tokens},
            {"cache_bytes_per_token",
             model::CacheBytesPerToken(config_, numerics_, plan_.use_fp4_sparse_kv)},
            {"weight_bytes", need_.weight_bytes},
            {"cache_bytes", need_.cache_bytes},
            {"workspace_bytes", need_.workspace_bytes},
            {"needed_bytes", need_.total()},
            {"mapped_bytes", need_.mapped_bytes},
            {"available_bytes", memory_.available_bytes},
            {"fits", residency_status_.ok() && !residency_},
            {"problem", residency_status_.ok() ? Json() : Json(residency_status_.message())},
            {"streaming", !residency_ ? Json()
                                      : Json{{"expert_budget_bytes", residency_->expert_budget},
                                             {"experts", forecast_.num_experts},
                                             {"experts_in_memory", forecast_.num_slots},
                                             {"hit_rate", forecast_.hit_rate},
                                             {"disk_bytes_per_token", DiskBytesPerToken()},
                                             {"disk_bytes_per_s", rates_.disk_bytes_per_s},
                                             {"memory_bytes_per_s", rates_.memory_bytes_per_s},
                                             {"tokens_per_s", forecast_.decode.tokens_per_s}}}}}};
}

Status RunInspect(Invocation& invocation) {
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<Inspection> inspection, Inspection::Open(invocation));
  const bool is_verified = invocation.config.inspect.verify;
  if (is_verified) DI_RETURN_IF_ERROR(inspection->Verify());
  if (invocation.config.output.json) {
    invocation.out.Line(DumpJson(inspection->ToJson(is_verified)));
  } else {
    inspection->PrintText(invocation.out, is_verified);
  }
  return Status::Ok();
}

}  // namespace

Command InspectCommand() {
  return {.name = "inspect",
          .summary = "what a checkpoint holds, its sizes, and the memory it needs on this machine",
          .usage = "",
          .run = RunInspect,
          .arg_choices = {},
          .details =
              "Checks every rule of the release format: names, shapes, dtypes, scales and the "
              "topology of the\n"
              "configuration. With --verify every byte is read and values that are not finite are "
              "refused."};
}

}  // namespace deepinfer::cli
