// SPDX-License-Identifier: Apache-2.0
//
// Records of measurements: one JSON object a line with the machine, the commit and the figures of one benchmark (the form of
// performance.md 5 of the specification), written beside the table on the terminal.
#pragma once

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "core/json.h"
#include "core/measure.h"
#include "core/threads.h"

namespace deepinfer::bench {

inline std::string FirstLineOf(const std::string& command) {
  std::string line;
  if (FILE* pipe = ::popen(command.c_str(), "r")) {
    char buffer[256];
    if (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) line = buffer;
    ::pclose(pipe);
  }
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  return line;
}

// The table on the terminal and, with a file, one record a line.
class RecordingReporter : public benchmark::ConsoleReporter {
 public:
  RecordingReporter(std::string bench, const std::string& path, const std::string& source_dir)
      : ConsoleReporter(OO_Tabular), bench_(std::move(bench)), host_(HostRecord()), load_(LoadAverage()) {
    if (path.empty()) return;
    file_.open(path);
    commit_ = FirstLineOf("git -C '" + source_dir + "' rev-parse --short=12 HEAD 2>/dev/null");
    is_dirty_ = !FirstLineOf("git -C '" + source_dir + "' status --porcelain -uno 2>/dev/null").empty();
  }
  bool is_open() const { return file_.is_open() && file_.good(); }

  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    if (!file_.is_open()) return;
    for (const Run& run : runs) {
      const auto counter = [&](const char* name) {
        const auto found = run.counters.find(name);
        return found == run.counters.end() ? 0.0 : static_cast<double>(found->second.value);
      };
      // Another process took the cores, or the reference itself was not steady.
      const bool is_valid = !run.error_occurred && load_ <= 0.75 * ThreadPool::NumAvailableCores() &&
                            counter("sweep_spread") <= 0.30 && counter("switches_per_s") <= 50;
      const Json record = {
          {"bench", bench_},
          {"commit", commit_},
          {"dirty", is_dirty_},
          {"date_utc", UtcDate()},
          {"host", host_},
          {"device", {{"name", "cpu"}}},
          {"backend", "cpu"},
          {"shape", run.run_name.function_name},
          {"threads", static_cast<int>(counter("threads"))},
          {"reps", run.iterations},
          {"median", counter("median_us")},
          {"p10", counter("p10_us")},
          {"p90", counter("p90_us")},
          {"unit", "us"},
          {"bytes", counter("bytes")},
          {"flops", counter("flops")},
          {"paired_ref",
           {{"name", "read_sweep"},
            {"median", counter("sweep_GB/s")},
            {"ratio_median", counter("ratio_read")},
            {"ratio_ci95", {counter("ratio_read_lo"), counter("ratio_read_hi")}}}},
          {"counters",
           {{"GB/s", counter("GB/s")},
            {"GFLOP/s", counter("GFLOP/s")},
            {"ratio_peak", counter("ratio_peak")},
            {"sweep_spread", counter("sweep_spread")},
            {"ctx_switches_per_s", counter("switches_per_s")}}},
          {"valid", is_valid}};
      file_ << DumpJson(record) << std::endl;
    }
  }

 private:
  std::string bench_;
  Json host_;
  double load_;
  std::ofstream file_;
  std::string commit_;
  bool is_dirty_ = false;
};

}  // namespace deepinfer::bench
