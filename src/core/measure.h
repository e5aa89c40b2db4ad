// SPDX-License-Identifier: Apache-2.0
//
// What measurements share: the machine's description for records (performance.md 5 of the specification), how disturbed a
// run was, and ratios of pairs. On a machine shared with others each repetition times the reference right before or right
// after the subject, in alternating order, and the result is the median of the ratios.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"

namespace deepinfer {

// {cpu_model, isa, cores, mem_gb, kernel, hugepages, load1}.
Json HostRecord();
double LoadAverage();  // of the last minute; 0 if unknown
std::string UtcDate();  // "2026-01-31T12:00:00Z"
// Of this process so far.
int64_t InvoluntarySwitches();
int64_t PageFaults();
int64_t PeakResidentBytes();

// Linear between the values; 0 if there are none.
double Quantile(std::vector<double> values, double q);
inline double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

class PairedRatio {
 public:
  // Rates (work per second) of one pair.
  void Add(double subject, double reference) {
    subjects_.push_back(subject);
    references_.push_back(reference);
  }

  struct Summary {
    double ratio = 0;       // median of the kept pairs: those whose reference reached 70 % of the run's best
    double low = 0;         // 95 % interval of the median by bootstrap
    double high = 0;
    double subject = 0;     // median rates
    double reference = 0;
    int kept = 0;
  };
  Summary Summarize() const;

 private:
  std::vector<double> subjects_;
  std::vector<double> references_;
};

}  // namespace deepinfer
