// SPDX-License-Identifier: Apache-2.0
//
// The load of bench serve: what is sent when, and what came of it. Open loop (Poisson arrivals) or closed loop (so many at
// once), with clients that leave, connections that stay idle, and large bodies beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands/bench_serve_client.h"
#include "core/progress.h"

namespace deepinfer::cli {

struct ServerLoad {
  ServerAddress address;
  LoadApi api = LoadApi::kChat;
  std::string model;     // of the requests
  std::string api_key;
  bool with_tool = false;
  int64_t input_tokens = 512, output_tokens = 128;
  int64_t num_prompts = 100;     // 0: no bound
  int64_t duration_ns = 0;       // 0: no bound
  int64_t concurrency = 16;      // 0: no bound
  double request_rate = 0;       // 0: closed loop
  double disconnect_rate = 0;
  int64_t idle_connections = 0;
  int64_t big_bodies = 0, big_body_bytes = 0;
  uint64_t seed = 0;
};

// Of the server, before and after.
struct ServerState {
  std::map<std::string, double> metrics;  // sums over labels
  double Get(const std::string& name) const {
    const auto found = metrics.find(name);
    return found == metrics.end() ? -1 : found->second;
  }
};

struct ServerLoadResult {
  double seconds = 0;
  int64_t num_started = 0, num_ok = 0, num_failed = 0, num_left = 0;
  int64_t num_lost = 0;        // streams or responses that broke off
  int64_t num_cut_off = 0;     // ran on after the end
  std::map<int, int64_t> by_status;  // 0: no response
  std::map<std::string, int64_t> errors;  // the first few kinds
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, num_events = 0;
  std::vector<double> ttft_ms, tpot_ms, e2el_ms;
  std::vector<float> gaps_ms;
  int64_t max_under_way = 0, num_connections = 0;

  int64_t num_idle_open = 0, num_idle_kept = 0;  // opened, and still open at the end
  double idle_bytes = -1, idle_used_bytes = -1;  // of one connection: new, and after a request; -1: unknown
  int64_t num_big = 0, num_big_failed = 0;
  std::vector<double> big_ms;
  ServerState before, after;
  bool is_interrupted = false;

  // Requests that the server still has and cache blocks beyond those before the load; -1: it does not say.
  double leaked() const;
  double tokens_per_s() const { return seconds > 0 ? static_cast<double>(output_tokens) / seconds : 0; }
};

// The name of the first model that the server lists, or an error that says what the server answered.
Result<std::string> FirstModel(LoadClient& client, const ServerLoad& load);
// The request of number `index`: always the same one for a seed.
std::string MakeLoadRequest(const ServerLoad& load, int64_t index, int64_t output_tokens);
Result<ServerLoadResult> RunServerLoad(const ServerLoad& load, Progress& progress);

}  // namespace deepinfer::cli
