// SPDX-License-Identifier: Apache-2.0
//
// What the bench commands share: token streams, spreads, the fields that every record has (performance.md 5 of the
// specification), and where a record goes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "core/json.h"
#include "core/measure.h"
#include "core/read_sweep.h"
#include "engine/load.h"

namespace deepinfer::cli {

// A fixed pseudo-random token stream: the same for every run and machine.
class TokenStream {
 public:
  TokenStream(int64_t seed, int vocab_size) : state_(static_cast<uint64_t>(seed) * 2 + 1), vocab_size_(vocab_size) {}
  // Of the tokens that both the tokenizer and the model know.
  TokenStream(int64_t seed, const engine::Engine& engine);
  int32_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>((state_ >> 33) % static_cast<uint64_t>(vocab_size_));
  }
  std::vector<int32_t> Take(int64_t count);

 private:
  uint64_t state_;
  int vocab_size_;
};

Json Spread(const std::vector<double>& values);       // {median, p10, p90}
Json Percentiles(const std::vector<double>& values);  // {p50, p90, p99}

// off, mask or compact: what the engine runs with.
std::string DecoderReplayName(const Invocation& invocation, const model::ModelConfig& shape);

// The options that were set, by flag, environment or file, as far as they can change a measurement.
Json SettingsOf(const Invocation& invocation);

// Watches how disturbed a run is, from its construction on, and writes what all records share.
class RunRecord {
 public:
  // `bench`: the command. The sweep's memory is taken here.
  RunRecord(std::string bench, const Invocation& invocation, const engine::Engine& engine);

  // Between two repetitions.
  void Sweep();
  // A record with the shared fields; the caller adds its own.
  Json Begin() const;
  // Adds the counters and whether the figures can be trusted.
  void End(Json& record) const;

 private:
  std::string bench_;
  const Invocation& invocation_;
  const engine::Engine& engine_;
  Json host_;
  double load_;
  int64_t switches_, faults_;
  double begin_s_;
  ThreadPool pool_;
  ReadSweep sweep_;
  std::vector<double> sweeps_;
};

// Writes --out and, with --json, stdout; true if stdout has got the record and no table is wanted.
Result<bool> WriteRecord(Invocation& invocation, const Json& record);
Status WritePlot(const Invocation& invocation, const std::function<std::string()>& draw);

}  // namespace deepinfer::cli
