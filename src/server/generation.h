// SPDX-License-Identifier: Apache-2.0
//
// One request between its exchange and the backend. Outputs arrive on the backend's thread, which turns them into bytes and
// never waits; the I/O thread sends what is there, so tokens that come while a write is under way leave together. The request
// ends with the answer, with an error, or because the client went away.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/status.h"
#include "protocols/api.h"
#include "server/backend.h"
#include "server/exchange.h"
#include "server/reply.h"

namespace deepinfer::server {

struct GenerationLimits {
  int64_t first_token_ns = 600'000'000'000;
  int64_t keep_alive_ns = 10'000'000'000;
  // Bytes that wait for a slow reader before the request is given up.
  size_t max_pending_bytes = size_t{16} << 20;
};

// How an error is sent before the response has begun.
using ErrorResponder = std::function<HttpResponse(Exchange&, const Status&)>;

class Generation : public ExchangeObserver, public IoTask, public std::enable_shared_from_this<Generation> {
 public:
  // `on_end` runs once on the I/O thread when nothing refers to the exchange any more.
  Generation(std::shared_ptr<Exchange> exchange, std::unique_ptr<Reply> reply, int64_t num_prompt_tokens, int num_samples,
             const GenerationLimits& limits, ErrorResponder responder, std::function<void()> on_end);

  // Submits `requests`; sample i of request r is sample i + r * params.n of the reply. Any thread. Errors are answered.
  void Begin(Backend& backend, std::vector<BackendRequest> requests);

  // For the logs. Before Begin.
  void SetNames(std::string model, std::string traffic_class);
  // Prompt tokens that the key has been charged with.
  void SetCharged(int64_t num_tokens) { num_charged_ = num_tokens; }
  // What the backend tells about the first of the requests.
  void SetProbe(std::shared_ptr<const engine::RequestProbe> probe) { probe_ = std::move(probe); }
  // Ends it with an error: the server stops. Any thread.
  void StopSoon(const Status& status);

  // I/O thread.
  void OnGone() override;
  void OnDrained() override { Run(); }
  void OnHalfClosed() override;
  void OnTick(int64_t now_ns) override;
  void Run() override;
 private:
  StreamAction OnOutput(int first_sample, const BackendOutput& output);
  void Attach();
  void Stop(const Status& status);
  void Cancel();
  // mutex_ is held.
  void FillRecord();
  void WakeIo();
  void BeginResponse();
  void SendKeepAlive();
  void Fail(const Status& status);
  void End();

  const std::shared_ptr<Exchange> exchange_;
  const GenerationLimits limits_;
  const ErrorResponder responder_;
  std::function<void()> on_end_;
  std::string model_, traffic_class_;
  std::shared_ptr<const engine::RequestProbe> probe_;
  int64_t num_charged_ = 0;

  std::mutex mutex_;
  std::unique_ptr<Reply> reply_;  // GUARDED_BY(mutex_)
  std::string pending_;           // GUARDED_BY(mutex_) bytes to send
  std::vector<std::shared_ptr<BackendHandle>> handles_;  // GUARDED_BY(mutex_)
  int num_open_;                  // GUARDED_BY(mutex_) samples
  bool is_started_ = false;       // GUARDED_BY(mutex_) the reply
  bool is_done_ = false;          // GUARDED_BY(mutex_) nothing more comes from the backend
  bool is_scheduled_ = false;     // GUARDED_BY(mutex_)
  Status failure_;                // GUARDED_BY(mutex_)
  int64_t cached_tokens_ = 0;     // GUARDED_BY(mutex_)
  int64_t prompt_tokens_ = 0;     // GUARDED_BY(mutex_)
  int64_t first_token_ns_ = 0;    // GUARDED_BY(mutex_)
  std::atomic<bool> is_cancelled_{false};
  std::atomic<bool> is_too_slow_{false};

  // I/O thread.
  bool is_attached_ = false;
  bool is_ended_ = false;
  std::string sending_;  // keeps its memory
  int64_t begin_ns_;
  int64_t last_sent_ns_;
  bool is_event_stream_;
};

}  // namespace deepinfer::server
