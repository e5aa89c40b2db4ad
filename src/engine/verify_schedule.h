// SPDX-License-Identifier: Apache-2.0
//
// How many drafts of each sequence a decode step verifies: as many as raise the expected tokens per millisecond, by the
// measured cost of steps and the draft head's own confidence (specification, engine 12.2 to 12.4). Pure functions and a cost
// model that learns from measured steps; the scheduler's thread calls everything.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace deepinfer::engine {

// Milliseconds by size: measured points, straight lines between them, the last line's slope behind them.
class CostCurve {
 public:
  CostCurve() = default;
  // Sizes ascending and positive, costs positive; else the curve is empty.
  explicit CostCurve(std::vector<std::pair<int64_t, double>> points);
  bool is_empty() const { return points_.empty(); }
  double Ms(int64_t size) const;
  const std::vector<std::pair<int64_t, double>>& points() const { return points_; }

 private:
  std::vector<std::pair<int64_t, double>> points_;
};

// What a decode step costs: a curve measured at the start, corrected by the steps that were run since.
class DecodeCostModel {
 public:
  DecodeCostModel() = default;
  // `buckets`: the sizes that a step can have (BatchBuckets).
  DecodeCostModel(CostCurve forward, CostCurve draft, std::vector<int64_t> buckets);

  bool has_curve() const { return !forward_.is_empty(); }
  // Smallest bucket that holds `size` rows, 0 if none does.
  int64_t Bucket(int64_t size) const;
  // A forward pass of a bucket of rows.
  double ForwardMs(int64_t bucket) const;
  // Verifying and sampling for that many sequences.
  double SamplerMs(int64_t num_seqs) const;
  // A draft pass of that many sequences.
  double DraftMs(int64_t num_seqs) const;

  // A decode step that ran. draft_ms 0: it made no drafts.
  void Add(int64_t num_rows, int64_t num_seqs, double forward_ms, double sampler_ms, double draft_ms);

 private:
  static constexpr size_t kWindow = 5000, kMinSamples = 10, kSamplerSamples = 9, kMinSamplerSamples = 5, kMaxPerBucket = 256, kForwardSamples = 31;
  void UpdateSlope();

  CostCurve forward_, draft_;
  std::vector<int64_t> buckets_;
  struct Sample {
    int64_t bucket = 0;
    double excess = 0;  // milliseconds above the curve, per row
  };
  std::deque<Sample> samples_;
  size_t since_update_ = 0;
  double slope_ = 0, scale_ = 1;
  // The newest values of something measured, and their median: planning a step asks for hundreds of them.
  struct Recent {
    std::deque<double> values;
    double median = 0;
    void Push(double value, size_t limit);
  };
  std::map<int64_t, Recent> forward_ms_;  // by bucket
  std::map<int64_t, Recent> sampler_;     // by number of sequences
  Recent sampler_all_, draft_ratios_;     // the latter measured by curve
};

// One sequence of a decode step. Rates are cumulative: rate[j] = expected acceptance of draft j and all before it.
struct VerifyCandidate {
  std::span<const float> size_rates;          // decide how many rows the step has; one per draft that exists
  std::span<const float> distribution_rates;  // decide which drafts get them
};

struct VerifyChoice {
  int64_t num_rows = 0;      // of the whole step, one per sequence at least
  double tokens_per_ms = 0;  // expected, without the cost of drafting
  double expected_tokens = 0;
  double step_ms = 0;
};

// The choice itself; keeps its scratch memory between steps.
class VerifyPlanner {
 public:
  // The first strictly best number of rows.
  VerifyChoice ChooseNumRows(std::span<const VerifyCandidate> candidates, const DecodeCostModel& costs);
  // lengths[i] := rows of candidate i: 1, and one more for each of its drafts among the best (num_rows - candidates) ones.
  // By rate, then by candidate.
  void DistributeRows(std::span<const VerifyCandidate> candidates, int64_t num_rows, std::span<int32_t> lengths);

 private:
  std::vector<float> rates_;
  std::vector<std::pair<float, int32_t>> ranked_;  // (-rate, candidate)
};

// Whether drafting pays (engine 12.2): pauses when 8 steps in a row would have been faster without. While it pauses, the 64th
// step drafts to learn what drafts are worth now, then the 128th after it and so on up to every 512th; it goes on as soon as
// that is enough.
class DraftPause {
 public:
  // Before a decode step is planned: expected tokens per millisecond with drafts (the draft pass included) and without.
  // True: the step makes drafts.
  bool Update(double rate_on, double rate_off);
  bool is_paused() const { return is_paused_; }

 private:
  static constexpr int kPatience = 8, kFirstProbe = 64, kRarestProbe = 512;
  bool is_paused_ = false;
  int num_worse_ = 0;
  int num_paused_steps_ = 0;  // since the last probe
  int probe_after_ = kFirstProbe;
};

// What drafts have been worth lately, over all sequences: cumulative rates by position. Stands in where nothing is known of a
// proposal itself.
class MeanRates {
 public:
  explicit MeanRates(size_t num_drafts) : rates_(num_drafts, 1.0f) {}
  // Means over the rows of a step that drafted. A probe counts more: there are few of them.
  void Add(std::span<const double> rates, bool is_probe);
  std::span<const float> rates() const { return rates_; }

 private:
  std::vector<float> rates_;
  bool is_empty_ = true;
};

}  // namespace deepinfer::engine
