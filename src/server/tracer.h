// SPDX-License-Identifier: Apache-2.0
//
// Traces of requests, sent to an OpenTelemetry collector (OTLP/HTTP, JSON) by a thread of its own. Records wait in a bounded
// queue; when the collector is slow or gone they are dropped and counted, nothing else waits. Never text of a request.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "net/http_client.h"
#include "server/exchange.h"

namespace deepinfer::server {

struct TracerOptions {
  net::Url endpoint;
  net::HttpClientOptions http;
  std::string version;
  double sample_ratio = 0.01;               // of requests whose caller does not decide
  int64_t slow_first_token_ns = 5'000'000'000;  // slower ones are sent in any case, and so are errors
  size_t max_queued = 2048;                 // requests
};

class Tracer {
 public:
  explicit Tracer(TracerOptions options);
  // Sends what is queued, unless the collector does not answer.
  ~Tracer();

  // Decides whether a request without a sampled parent is recorded. Any thread.
  bool Samples() const;
  // The exchange is over.
  void End(const ExchangeRecord& record);

  int64_t num_dropped() const;

 private:
  void Loop();

  const TracerOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_, has_ended_;
  std::deque<ExchangeRecord> records_;  // GUARDED_BY(mutex_)
  int64_t num_dropped_ = 0;             // GUARDED_BY(mutex_)
  bool is_stopping_ = false;            // GUARDED_BY(mutex_)
  bool is_over_ = false;                // GUARDED_BY(mutex_) the thread has done its work
  std::atomic<bool> is_cancelled_{false};  // the client's: nothing may be waited for any more
  std::thread thread_;
};

// The body of one export. `now_ns` and `now_unix_ns` are the same moment on both clocks.
std::string TraceBody(const std::vector<ExchangeRecord>& records, const std::string& version, int64_t now_ns, int64_t now_unix_ns);

}  // namespace deepinfer::server
