// SPDX-License-Identifier: Apache-2.0
//
// Paired measurements on a machine shared with others: each repetition times the reference (a read sweep, an arithmetic
// peak) right before or right after the subject, in alternating order, and the result is the median of the ratios of the
// pairs. Pairs whose reference ran below 70 % of the run's best are dropped.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

namespace deepinfer::bench {

template <typename F>
double SecondsOf(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class PairedRatio {
 public:
  // Rates (work per second) of one pair.
  void Add(double subject, double reference) {
    subjects_.push_back(subject);
    references_.push_back(reference);
  }

  struct Summary {
    double ratio = 0;       // median of the kept pairs
    double low = 0;         // 95 % interval of the median by bootstrap
    double high = 0;
    double subject = 0;     // median rates
    double reference = 0;
    int kept = 0;
  };
  Summary Summarize() const {
    Summary s;
    if (subjects_.empty()) return s;
    const double best = *std::max_element(references_.begin(), references_.end());
    std::vector<double> ratios;
    for (size_t i = 0; i < subjects_.size(); ++i) {
      if (references_[i] >= 0.7 * best) ratios.push_back(subjects_[i] / references_[i]);
    }
    s.kept = static_cast<int>(ratios.size());
    s.ratio = Median(ratios);
    s.subject = Median(subjects_);
    s.reference = Median(references_);
    std::mt19937 rng(1);
    std::vector<double> medians;
    std::vector<double> sample(ratios.size());
    for (int round = 0; round < 500; ++round) {
      for (double& v : sample) v = ratios[rng() % ratios.size()];
      medians.push_back(Median(sample));
    }
    std::sort(medians.begin(), medians.end());
    s.low = medians[static_cast<size_t>(0.025 * static_cast<double>(medians.size()))];
    s.high = medians[static_cast<size_t>(0.975 * static_cast<double>(medians.size()))];
    return s;
  }

 private:
  std::vector<double> subjects_;
  std::vector<double> references_;
};

}  // namespace deepinfer::bench
