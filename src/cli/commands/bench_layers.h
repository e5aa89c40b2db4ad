// SPDX-License-Identifier: Apache-2.0
//
// The layers of a step beside what limits them: time, bytes and operations of each by its kind, and what the same kinds would
// give in the released model of 40 layers (bench steps).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "model/config.h"
#include "model/stage_clock.h"

namespace deepinfer::cli {

// Weight bytes that one decoded token reads, per (layer, stage); layer = num_hidden_layers outside the layers.
std::map<std::pair<int, model::Stage>, double> BytesPerToken(const model::ModelConfig& config);

struct LayerRow {
  int layer = 0;
  std::string kind;          // "window", "kv source r=2", "kv source r=1, candidates", "re-index", "re-index in candidates", "reuse"
  bool has_engram = false;
  double prefill_ms = 0;
  double decode_ms = 0;      // of one step
  double engram_ms = 0;      // part of decode_ms
  double weight_bytes = 0, engram_bytes = 0, context_bytes = 0;  // of one token; weight_bytes includes engram_bytes
  double flop = 0;

  double bytes() const { return weight_bytes + context_bytes; }
};

struct LayerTimes {
  const model::StageClock* prefill = nullptr;
  double prefills = 0;
  const model::StageClock* decode = nullptr;
  double steps = 0;
};

// Rows of all layers, then one of what is outside of them (kind "outside"). Bytes and operations are those of one sequence
// behind `context` tokens.
std::vector<LayerRow> LayerRows(const model::ModelConfig& config, const LayerTimes& times, int64_t context);

// With rates of the machine: the shares of their limits, for one sequence.
Json LayersJson(const std::vector<LayerRow>& rows, double bytes_per_s, double flop_per_s, bool has_limits);
std::vector<std::string> LayerLines(const Json& layers);

bool HasReleasedWidths(const model::ModelConfig& config, const model::ModelConfig& released);

// Null when `config` is not as wide as the released model or lacks one of its kinds of layers; otherwise layers, tokens_per_s
// and limit_tokens_per_s of batch 1.
Json ExtrapolateToReleased(const model::ModelConfig& config, const std::vector<LayerRow>& rows, double bytes_per_s, double flop_per_s,
                           int64_t context);
std::string ExtrapolationLine(const Json& extrapolation);

}  // namespace deepinfer::cli
