// SPDX-License-Identifier: Apache-2.0
//
// How fast a machine can decode at best: the bytes a step must move and the operations it must do, from the configuration,
// divided by the rates measured on the machine. One formula for `doctor`, `inspect` and the benchmarks.
//
//   compute = max(bytes in memory / memory rate, operations / arithmetic rate)
//   disk    = bytes of missing experts and n-gram rows / disk rate
//   step    = max(compute, disk) + (1 - overlap) * min(compute, disk)
#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/inventory.h"

namespace deepinfer::model {

// One step that decodes a token for each of `batch` sequences, each with `context` tokens behind it.
struct StepWork {
  int64_t dense_bytes = 0;    // every weight that each step reads whole: projections, shared experts, router, head, ...
  int64_t expert_bytes = 0;   // of the routed experts that the step meets
  double experts_per_layer = 0;  // distinct ones, if routing were uniform: batch * top-k and more than the truth for neighbours
  int64_t context_bytes = 0;  // compressed keys, window keys and index keys
  int64_t table_bytes = 0;    // n-gram rows, from disk
  double flop = 0;

  int64_t memory_bytes() const { return dense_bytes + expert_bytes + context_bytes; }
};
StepWork EstimateStep(const ModelConfig& config, const InventorySummary& summary, int64_t batch, int64_t context);

// What one sequence reads of the caches of one layer for one token.
int64_t LayerContextBytes(const ModelConfig& config, int layer, int64_t context);

struct MachineRates {
  double memory_bytes_per_s = 0;  // core/read_sweep.h with the threads that will run
  double flop_per_s = 0;          // core/arithmetic_peak.h, likewise
  double disk_bytes_per_s = 0;    // random reads of the size of an expert's parts, past the page cache; 0 = no disk
};

struct DecodeEstimate {
  double compute_s = 0;  // of one step
  double disk_s = 0;
  double step_s = 0;
  double tokens_per_s = 0;  // of all sequences; 0 = cannot run (no disk rate, yet something is missing)
  enum class Bound { kMemory, kArithmetic, kDisk } bound = Bound::kMemory;
};

// hit_rate: share of expert bytes found in memory. overlap: 1 = every disk read hides behind the step, 0 = none does.
DecodeEstimate EstimateDecode(const StepWork& work, int64_t batch, const MachineRates& rates, double hit_rate, double overlap);

// Prompt tokens per second by arithmetic alone; keep as in FlopsModel::OfPrompt.
double PrefillTokensPerSecond(const ModelConfig& config, const MachineRates& rates, int64_t num_tokens, int64_t keep);

}  // namespace deepinfer::model
