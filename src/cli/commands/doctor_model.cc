// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/doctor_model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "core/progress.h"
#include "deepinfer/engine_options.h"
#include "model/inventory.h"
#include "model/memory_estimate.h"
#include "model/streaming_forecast.h"

namespace deepinfer::cli {

namespace {

constexpr int64_t kPromptTokens = 2048;

const char* BoundName(model::DecodeEstimate::Bound bound) {
  switch (bound) {
    case model::DecodeEstimate::Bound::kMemory:
      return "memory";
    case model::DecodeEstimate::Bound::kArithmetic:
      return "arithmetic";
    case model::DecodeEstimate::Bound::kDisk:
      return "disk";
  }
  return "memory";
}

// Three digits are all that a prediction has.
double Rounded(double x) {
  if (!(x > 0)) return 0;
  const int digits = 2 - static_cast<int>(std::floor(std::log10(x)));
  const double unit = std::pow(10, std::abs(digits));
  return digits > 0 ? std::round(x * unit) / unit : std::round(x / unit) * unit;
}

Json DecodeJson(const model::DecodeEstimate& estimate) {
  return {{"tokens_per_s", Rounded(estimate.tokens_per_s)},
          {"bound", BoundName(estimate.bound)},
          {"compute_s", Rounded(estimate.compute_s)},
          {"disk_s", Rounded(estimate.disk_s)}};
}

std::string Speed(double tokens_per_s) {
  return tokens_per_s >= 100 ? fmt::format("{:.0f} tokens/s", tokens_per_s) : fmt::format("{:.2g} tokens/s", tokens_per_s);
}

}  // namespace

Json PredictionReport(const model::ModelConfig& config, const std::string& name, const model::MachineRates& rates,
                      int64_t available_bytes) {
  const model::InventorySummary summary = model::SummarizeInventory(config, false);
  model::MemoryPlan plan = model::PlanMemory(config, model::Numerics::kRelease, 0, 0, EngineOptions().prefill_chunk_tokens);
  plan.with_draft = false;
  const model::MemoryNeed need = model::EstimateMemory(config, summary, plan);
  // A GPU holds the embedding too.
  model::MemoryPlan gpu_plan = plan;
  gpu_plan.maps_embedding = false;
  const auto residency = model::PlanResidency(config, summary, plan, need, 0, available_bytes);
  const model::StepWork work = model::EstimateStep(config, summary, 1, plan.cache_tokens);
  const int64_t keep = config.CheckDecoderReplay().ok() ? config.sliding_window + 12 : 0;
  const bool fits = residency.ok() && !residency->streams_experts;
  const int64_t expert_bytes = summary.part(model::ModelPart::kRoutedExperts).num_bytes;
  Json report = {
      {"model", name},
      {"context", plan.cache_tokens},
      {"needed_bytes", need.total()},
      {"needed_bytes_gpu", model::EstimateMemory(config, summary, gpu_plan).total()},
      {"weight_bytes", need.weight_bytes},
      {"available_bytes", available_bytes},
      {"fits", fits},
      {"table_bytes_on_disk", need.mapped_bytes},
      {"dense_bytes", need.weight_bytes - expert_bytes},
      {"expert_bytes", expert_bytes},
      {"expert_hit_rate", fits ? 1 : 0},
      {"step_bytes",
       {{"dense", work.dense_bytes}, {"experts", work.expert_bytes}, {"context", work.context_bytes}, {"tables", work.table_bytes}}},
      {"step_gflop", Rounded(work.flop * 1e-9)},
      {"decode_all_in_memory", DecodeJson(model::EstimateDecode(work, 1, rates, 1, 1))},
      {"decode_from_disk", nullptr},
      {"prefill_tokens", kPromptTokens},
      {"prefill_tokens_per_s", Rounded(model::PrefillTokensPerSecond(config, rates, kPromptTokens, keep))}};
  if (!fits && residency.ok()) {
    const model::StreamingForecast forecast = model::ForecastStreaming(config, summary, *residency, false, work, rates);
    report["expert_hit_rate"] = Rounded(forecast.hit_rate);
    report["decode_from_disk"] = DecodeJson(forecast.decode);
  }
  return report;
}

std::vector<std::string> PredictionLines(const Json& p) {
  const auto bytes = [&](const char* key) { return FormatBytes(p[key].get<int64_t>()); };
  const bool fits = p["fits"].get<bool>();
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{}, one sequence of {} tokens: needs {}, {} available: {}", p["model"].get<std::string>(),
                              p["context"].get<int64_t>(), bytes("needed_bytes"), bytes("available_bytes"),
                              fits ? "fits" : "does not fit"));
  const Json& whole = p["decode_all_in_memory"];
  int64_t step_bytes = 0;
  for (const char* part : {"dense", "experts", "context"}) step_bytes += p["step_bytes"][part].get<int64_t>();
  lines.push_back(fmt::format("decode: at most {} {} ({} and {:.3g} GFLOP a token; bound by {})", Speed(whole["tokens_per_s"].get<double>()),
                              fits ? "with all weights in memory" : "if all weights were in memory", FormatBytes(step_bytes),
                              p["step_gflop"].get<double>(), whole["bound"].get<std::string>()));
  if (!fits) {
    if (p["decode_from_disk"].is_null()) {
      lines.push_back(fmt::format("        not even the weights of every step fit ({} without the routed experts)", bytes("dense_bytes")));
    } else if (const double speed = p["decode_from_disk"]["tokens_per_s"].get<double>(); speed > 0) {
      lines.push_back(fmt::format("        about {} with experts read from disk ({:.2g} % of them stay in memory; bound by {})", Speed(speed),
                                  100 * p["expert_hit_rate"].get<double>(), p["decode_from_disk"]["bound"].get<std::string>()));
    } else {
      lines.push_back("        experts read from disk: no disk rate was measured");
    }
  }
  lines.push_back(fmt::format("prefill: at most {} for {} tokens, by arithmetic", Speed(p["prefill_tokens_per_s"].get<double>()),
                              p["prefill_tokens"].get<int64_t>()));
  return lines;
}

}  // namespace deepinfer::cli
