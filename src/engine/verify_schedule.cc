// SPDX-License-Identifier: Apache-2.0
#include "engine/verify_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include "engine/batch_buckets.h"

namespace deepinfer::engine {
namespace {

double Median(std::vector<double> values) {
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle), values.end());
  return values[middle];
}

}  // namespace

CostCurve::CostCurve(std::vector<std::pair<int64_t, double>> points) : points_(std::move(points)) {
  for (size_t i = 0; i < points_.size(); ++i) {
    const bool is_ascending = points_[i].first > (i == 0 ? 0 : points_[i - 1].first);
    if (is_ascending && std::isfinite(points_[i].second) && points_[i].second > 0) continue;
    points_.clear();
  }
}

double CostCurve::Ms(int64_t size) const {
  if (points_.empty()) return 0;
  if (size <= points_.front().first || points_.size() == 1) return points_.front().second;
  size_t high = 1;
  while (high + 1 < points_.size() && points_[high].first < size) ++high;
  const auto [x0, y0] = points_[high - 1];
  const auto [x1, y1] = points_[high];
  const double slope = (y1 - y0) / static_cast<double>(x1 - x0);
  // A line that falls is noise: never extrapolated below its last point.
  return std::max(y0 + slope * static_cast<double>(size - x0), size > x1 ? y1 : 0.0);
}

DecodeCostModel::DecodeCostModel(CostCurve forward, CostCurve draft, std::vector<int64_t> buckets)
    : forward_(std::move(forward)), draft_(std::move(draft)), buckets_(std::move(buckets)) {}

int64_t DecodeCostModel::Bucket(int64_t size) const { return BucketFor(buckets_, size); }

double DecodeCostModel::ForwardMs(int64_t bucket) const {
  // What was seen lately; where little was, the curve, moved like the rest of it.
  if (const auto it = forward_ms_.find(bucket); it != forward_ms_.end() && it->second.values.size() >= kMinSamples) return it->second.median;
  return forward_.Ms(bucket) * scale_ + slope_ * static_cast<double>(bucket);
}

double DecodeCostModel::SamplerMs(int64_t num_seqs) const {
  if (const auto it = sampler_.find(num_seqs); it != sampler_.end() && it->second.values.size() >= kMinSamplerSamples) return it->second.median;
  return sampler_all_.median;
}

double DecodeCostModel::DraftMs(int64_t num_seqs) const {
  return draft_.Ms(num_seqs) * (draft_ratios_.values.empty() ? 1.0 : draft_ratios_.median);
}

void DecodeCostModel::Recent::Push(double value, size_t limit) {
  values.push_back(value);
  if (values.size() > limit) values.pop_front();
  std::array<double, kForwardSamples> sorted;
  const auto end = std::copy(values.begin(), values.end(), sorted.begin());
  const auto middle = sorted.begin() + (end - sorted.begin()) / 2;
  std::nth_element(sorted.begin(), middle, end);
  median = *middle;
}

void DecodeCostModel::Add(int64_t num_rows, int64_t num_seqs, double forward_ms, double sampler_ms, double draft_ms) {
  const int64_t bucket = Bucket(num_rows);
  if (bucket == 0 || forward_.is_empty()) return;
  samples_.push_back({bucket, (forward_ms - forward_.Ms(bucket)) / static_cast<double>(bucket)});
  if (samples_.size() > kWindow) samples_.pop_front();
  forward_ms_[bucket].Push(forward_ms, kForwardSamples);
  sampler_[num_seqs].Push(sampler_ms, kSamplerSamples);
  sampler_all_.Push(sampler_ms, kSamplerSamples);
  if (const double expected = draft_.Ms(num_seqs); draft_ms > 0 && expected > 0)
    draft_ratios_.Push(draft_ms / expected, kSamplerSamples);
  // Medians over thousands of samples: not after every step.
  if (++since_update_ < kMinSamples) return;
  since_update_ = 0;
  UpdateSlope();
}

void DecodeCostModel::UpdateSlope() {
  std::map<int64_t, std::vector<double>> by_bucket;
  for (size_t i = samples_.size(); i-- > 0;) {
    std::vector<double>& values = by_bucket[samples_[i].bucket];
    if (values.size() < kMaxPerBucket) values.push_back(samples_[i].excess);  // the newest ones
  }
  std::vector<double> medians, ratios;
  for (auto& [bucket, values] : by_bucket) {
    if (values.size() < kMinSamples) continue;
    medians.push_back(Median(std::move(values)));
    ratios.push_back(1 + medians.back() * static_cast<double>(bucket) / forward_.Ms(bucket));
  }
  slope_ = medians.empty() ? 0 : std::max(0.0, Median(std::move(medians)));
  // A curve that was measured on a busy machine would make every size that was not run since look worse than it is.
  scale_ = ratios.empty() ? 1 : std::min(1.0, Median(std::move(ratios)));
}

VerifyChoice VerifyPlanner::ChooseNumRows(std::span<const VerifyCandidate> candidates, const DecodeCostModel& costs) {
  const int64_t n = static_cast<int64_t>(candidates.size());
  std::vector<float>& rates = rates_;
  rates.clear();
  for (const VerifyCandidate& candidate : candidates) rates.insert(rates.end(), candidate.size_rates.begin(), candidate.size_rates.end());
  std::sort(rates.begin(), rates.end(), std::greater<>());
  const double sampler_ms = costs.SamplerMs(n);
  VerifyChoice best;
  double expected = static_cast<double>(n);
  for (int64_t size = n;; ++size) {
    if (const int64_t bucket = costs.Bucket(size); bucket != 0) {
      const double ms = costs.ForwardMs(bucket) + sampler_ms;
      const double rate = expected / ms;
      if (best.num_rows == 0 || rate > best.tokens_per_ms) best = {size, rate, expected, ms};
    }
    if (size - n == static_cast<int64_t>(rates.size())) break;
    expected += static_cast<double>(rates[static_cast<size_t>(size - n)]);
  }
  if (best.num_rows == 0) best.num_rows = n;  // no bucket holds the step
  return best;
}

void VerifyPlanner::DistributeRows(std::span<const VerifyCandidate> candidates, int64_t num_rows, std::span<int32_t> lengths) {
  std::vector<std::pair<float, int32_t>>& all = ranked_;
  all.clear();
  for (size_t i = 0; i < candidates.size(); ++i) {
    lengths[i] = 1;
    for (const float rate : candidates[i].distribution_rates) all.emplace_back(-rate, static_cast<int32_t>(i));
  }
  std::sort(all.begin(), all.end());
  const size_t count = std::min(all.size(), static_cast<size_t>(std::max<int64_t>(num_rows - static_cast<int64_t>(candidates.size()), 0)));
  for (size_t k = 0; k < count; ++k) ++lengths[static_cast<size_t>(all[k].second)];
}

bool DraftPause::Update(double rate_on, double rate_off) {
  if (!is_paused_) {
    num_worse_ = rate_off > rate_on ? num_worse_ + 1 : 0;
    if (num_worse_ < kPatience) return true;
    is_paused_ = true;
    num_worse_ = num_paused_steps_ = 0;
    probe_after_ = kFirstProbe;
    return false;
  }
  if (rate_on >= rate_off) {
    is_paused_ = false;
    return true;
  }
  if (++num_paused_steps_ < probe_after_) return false;
  num_paused_steps_ = 0;
  probe_after_ = std::min(2 * probe_after_, kRarestProbe);
  return true;
}

void MeanRates::Add(std::span<const double> rates, bool is_probe) {
  const double weight = is_empty_ ? 1.0 : is_probe ? 0.5 : 0.1;
  is_empty_ = false;
  for (size_t j = 0; j < rates_.size() && j < rates.size(); ++j)
    rates_[j] = static_cast<float>(rates_[j] + weight * (rates[j] - rates_[j]));
}

}  // namespace deepinfer::engine
