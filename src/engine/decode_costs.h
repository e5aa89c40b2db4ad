// SPDX-License-Identifier: Apache-2.0
//
// The cost curves of decode steps: measured on the model when an engine starts, kept on disk for the next start
// (specification, engine 12.4).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "engine/step_model.h"
#include "engine/verify_schedule.h"

namespace deepinfer::engine {

struct MeasureCostsOptions {
  int64_t max_num_seqs = 1;
  int num_drafts = 0;
  int64_t num_blocks = 0;  // of the engine, the null block included
  int64_t num_slots = 0;
  double max_seconds = 2;
  const Clock* clock = &Clock::Steady();
};

struct CostCurves {
  CostCurve forward;  // by rows
  CostCurve draft;    // by sequences
};

// Runs decode steps and draft passes of at most 8 sizes each on slots and blocks that nobody uses yet; their content is void
// afterwards. Stops after max_seconds with the sizes it has, one at least.
Result<CostCurves> MeasureCosts(StepModel& model, const MeasureCostsOptions& options);

// One curve in a folder of curves. Files are named <key>.<unique>.<unix seconds>; whatever else lies in the folder is left
// alone. Nothing here fails: a folder that cannot be used is an empty one, with a warning.
class CostCache {
 public:
  // `key`: what the curve belongs to; any text.
  CostCache(std::string dir, std::string_view key, int64_t ttl_s);
  // The newest curve that has not expired and has exactly these sizes (empty: any); an empty one if there is none.
  CostCurve Load(const std::vector<int64_t>& sizes, int64_t now_s) const;
  void Store(const CostCurve& curve, int64_t now_s) const;
  // Deletes curves, of any key, that expired two hours ago.
  void DeleteExpired(int64_t now_s) const;

 private:
  std::string dir_;
  std::string name_;  // SHA-256 of the key, hex
  int64_t ttl_s_;
};

// Sizes that MeasureCosts runs: ascending, at most 8, the last is `most` or what is measured at most.
std::vector<int64_t> MeasuredSizes(int64_t most);

}  // namespace deepinfer::engine
