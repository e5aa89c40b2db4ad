// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_layers.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "model/decode_estimate.h"
#include "model/flops.h"
#include "model/inventory.h"
#include "model/released_config.h"

namespace deepinfer::cli {

namespace {

using model::Stage;

// The stage that reads a tensor, from its name; kInput for those that a step reads row by row or not at all.
Stage StageOfTensor(const std::string& name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  if (has("engram.embed")) return Stage::kInput;
  if (has(".engram.")) return Stage::kEngram;
  if (has(".hc_") || has("_norm.weight")) return Stage::kHyperConnections;
  if (has("indexer.wq_b") || has("weights_proj")) return Stage::kSelect;
  if (has("compressor") || has("indexer")) return Stage::kCompressor;
  if (has("attn.wq") || has("attn.wkv")) return Stage::kProjections;
  if (has("attn.wo")) return Stage::kOutput;
  if (has("ffn.gate")) return Stage::kRouter;
  if (has(".experts.") || has("shared_experts")) return Stage::kExperts;
  if (name.starts_with("head.")) return Stage::kHead;
  return Stage::kInput;
}

// What a layer is for. Layers behind the candidate source score its candidates only.
std::string LayerKind(const model::ModelConfig& config, int layer) {
  const int ratio = config.compress_ratios[static_cast<size_t>(layer)];
  if (ratio == 0) return "window";
  const int candidates = config.candidate_source_layer_id;
  if (config.is_kv_source(layer)) return fmt::format("kv source r={}{}", ratio, layer == candidates ? ", candidates" : "");
  if (config.is_index_source(layer)) return candidates >= 0 && layer > candidates ? "re-index in candidates" : "re-index";
  return "reuse";
}

}  // namespace

bool HasReleasedWidths(const model::ModelConfig& c, const model::ModelConfig& released) {
  return c.hidden_size == released.hidden_size && c.head_dim == released.head_dim && c.num_attention_heads == released.num_attention_heads &&
         c.moe_intermediate_size == released.moe_intermediate_size && c.num_experts_per_tok == released.num_experts_per_tok &&
         c.vocab_size == released.vocab_size;
}

std::map<std::pair<int, Stage>, double> BytesPerToken(const model::ModelConfig& config) {
  std::map<std::pair<int, Stage>, double> bytes;
  model::ForEachRequiredTensor(config, false, [&](const model::RequiredTensor& tensor) {
    if (tensor.name.starts_with("mtp.") || tensor.name.starts_with("vision") || tensor.name.starts_with("embed.")) return true;
    int layer = config.num_hidden_layers;
    if (tensor.name.starts_with("layers.")) layer = std::atoi(tensor.name.c_str() + 7);
    double share = 1;
    if (tensor.name.find("ffn.experts.") != std::string::npos) {
      share = static_cast<double>(config.num_experts_per_tok) / config.n_routed_experts;
    }
    bytes[{layer, StageOfTensor(tensor.name)}] += share * static_cast<double>(tensor.num_bytes());
    return true;
  });
  return bytes;
}

std::vector<LayerRow> LayerRows(const model::ModelConfig& config, const LayerTimes& times, int64_t context) {
  const auto bytes = BytesPerToken(config);
  const int layers = config.num_hidden_layers;
  std::vector<LayerRow> rows;
  for (int layer = 0; layer <= layers; ++layer) {
    LayerRow row;
    row.layer = layer;
    row.kind = layer == layers ? "outside" : LayerKind(config, layer);
    row.has_engram = layer < layers && config.engram_index(layer) >= 0;
    const auto ms = [&](const model::StageClock* clock, double count, Stage stage) {
      return clock == nullptr || count == 0 ? 0.0 : static_cast<double>(clock->nanoseconds(layer, stage)) / count * 1e-6;
    };
    for (int s = 0; s < model::kNumStages; ++s) {
      const Stage stage = static_cast<Stage>(s);
      row.prefill_ms += ms(times.prefill, times.prefills, stage);
      row.decode_ms += ms(times.decode, times.steps, stage);
      if (const auto it = bytes.find({layer, stage}); it != bytes.end() && stage != Stage::kInput) {
        row.weight_bytes += it->second;
        if (stage == Stage::kEngram) row.engram_bytes += it->second;
      }
    }
    row.engram_ms = ms(times.decode, times.steps, Stage::kEngram);
    if (layer < layers) row.context_bytes = static_cast<double>(model::LayerContextBytes(config, layer, context));
    const model::FlopsModel flops(config, layer);
    model::FlopsCounts counts;
    flops.Add({.start = context, .num_tokens = 1, .num_consumer_tokens = 1, .num_logit_rows = 1}, counts);
    row.flop = flops.Evaluate(counts).flop();
    rows.push_back(row);
  }
  return rows;
}

Json LayersJson(const std::vector<LayerRow>& rows, double bytes_per_s, double flop_per_s, bool has_limits) {
  Json layers = Json::array();
  for (const LayerRow& row : rows) {
    Json json = {{"layer", row.layer}, {"kind", (row.has_engram ? "engram, " : "") + row.kind}, {"prefill_ms", row.prefill_ms}, {"decode_ms", row.decode_ms}};
    if (has_limits) {
      const double s = row.decode_ms * 1e-3;
      json["bytes"] = row.bytes();
      json["context_bytes"] = row.context_bytes;
      json["flop"] = row.flop;
      json["ratio_read"] = s > 0 && bytes_per_s > 0 ? row.bytes() / bytes_per_s / s : 0.0;
      json["ratio_peak"] = s > 0 && flop_per_s > 0 ? row.flop / flop_per_s / s : 0.0;
    }
    layers.push_back(std::move(json));
  }
  return layers;
}

std::vector<std::string> LayerLines(const Json& layers) {
  const bool has_limits = !layers.empty() && layers[0].contains("bytes");
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{:<6} {:<32} {:>12} {:>12}", "layer", "kind", "prefill ms", "decode ms") +
                  (has_limits ? fmt::format(" {:>9} {:>9} {:>10} {:>10}", "MB", "GFLOP", "of bytes", "of flops") : ""));
  const int num_layers = static_cast<int>(layers.size()) - 1;
  for (const Json& row : layers) {
    const int layer = row["layer"].get<int>();
    std::string line = fmt::format("{:<6} {:<32} {:>12.3f} {:>12.4f}", layer < num_layers ? std::to_string(layer) : "",
                                   row["kind"].get<std::string>(), row["prefill_ms"].get<double>(), row["decode_ms"].get<double>());
    if (has_limits) {
      line += fmt::format(" {:>9.1f} {:>9.3f} {:>10.2f} {:>10.2f}", row["bytes"].get<double>() * 1e-6, row["flop"].get<double>() * 1e-9,
                          row["ratio_read"].get<double>(), row["ratio_peak"].get<double>());
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

Json ExtrapolateToReleased(const model::ModelConfig& config, const std::vector<LayerRow>& rows, double bytes_per_s, double flop_per_s,
                           int64_t context) {
  const auto parsed = model::ModelConfig::FromJson(model::ReleasedConfigJson(), "released configuration");
  if (!parsed.ok() || bytes_per_s <= 0 || flop_per_s <= 0) return nullptr;
  const model::ModelConfig& released = *parsed;
  if (!HasReleasedWidths(config, released)) return nullptr;
  // Mean of every kind, and of the Engram part, which layers of any kind can have.
  struct Sum {
    double ms = 0, bytes = 0;
    int count = 0;
  };
  std::map<std::string, Sum> kinds;
  for (const LayerRow& row : rows) {
    Sum& sum = kinds[row.kind];
    sum.ms += row.decode_ms - row.engram_ms;
    sum.bytes += row.weight_bytes - row.engram_bytes + row.context_bytes;
    ++sum.count;
    if (!row.has_engram) continue;
    Sum& engram = kinds["engram"];
    engram.ms += row.engram_ms;
    engram.bytes += row.engram_bytes;
    ++engram.count;
  }
  double ms = 0, bytes = 0;
  Json histogram = Json::object();
  const auto add = [&](const std::string& kind) {
    const auto it = kinds.find(kind);
    if (it == kinds.end()) return false;
    ms += it->second.ms / it->second.count;
    bytes += it->second.bytes / it->second.count;
    histogram[kind] = histogram.value(kind, 0) + 1;
    return true;
  };
  if (!add("outside")) return nullptr;
  for (int layer = 0; layer < released.num_hidden_layers; ++layer) {
    if (!add(LayerKind(released, layer))) return nullptr;
    if (released.engram_index(layer) >= 0 && !add("engram")) return nullptr;
  }
  const model::StepWork work = model::EstimateStep(released, model::SummarizeInventory(released, false), 1, context);
  // What the slice has less of (router rows of fewer experts) is read at the rate of the sweep.
  const double missing = std::max(0.0, static_cast<double>(work.memory_bytes()) - bytes);
  ms += missing / bytes_per_s * 1e3;
  const double limit = model::EstimateDecode(work, 1, {.memory_bytes_per_s = bytes_per_s, .flop_per_s = flop_per_s}, 1, 1).tokens_per_s;
  const double byte_limit = bytes_per_s / static_cast<double>(work.memory_bytes());
  return {{"num_layers", released.num_hidden_layers},
          {"kinds", histogram},
          {"step_ms", ms},
          {"tokens_per_s", 1e3 / ms},
          {"limit_tokens_per_s", limit},
          {"byte_limit_tokens_per_s", byte_limit},
          {"flop_limit_tokens_per_s", flop_per_s / work.flop},
          {"ratio_limit", 1e3 / ms / limit},
          {"bytes", work.memory_bytes()},
          {"flop", work.flop}};
}

std::string ExtrapolationLine(const Json& x) {
  return fmt::format(
      "{} layers (the released model, all in memory): {:.2f} tokens/s of at most {:.2f} ({:.2f} GB a token: {:.2f}, {:.1f} GFLOP: {:.2f}), "
      "{:.2f} of the limit",
      x["num_layers"].get<int>(), x["tokens_per_s"].get<double>(), x["limit_tokens_per_s"].get<double>(), x["bytes"].get<double>() * 1e-9,
      x["byte_limit_tokens_per_s"].get<double>(), x["flop"].get<double>() * 1e-9, x["flop_limit_tokens_per_s"].get<double>(),
      x["ratio_limit"].get<double>());
}

}  // namespace deepinfer::cli
