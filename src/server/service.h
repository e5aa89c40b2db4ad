// SPDX-License-Identifier: Apache-2.0
//
// The public port: who may ask, what the paths mean, and requests turned into generations. Called on I/O threads; large bodies
// are parsed by worker threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/metrics.h"
#include "core/status.h"
#include "protocols/convert_options.h"
#include "server/api_keys.h"
#include "server/backend.h"
#include "server/exchange.h"
#include "server/generation.h"
#include "server/key_limits.h"
#include "server/request_log.h"
#include "server/routes.h"
#include "server/tracer.h"
#include "server/worker_pool.h"

namespace deepinfer::server {

struct ServiceOptions {
  protocols::ConvertOptions convert;
  Status chat_status;  // why conversations cannot be answered: a tokenizer without the chat tokens
  GenerationLimits generation;
  int64_t max_streams_per_key = 64;
  bool checks_host = true;  // bound to a loopback address: only names of this machine, no foreign web pages
  std::vector<std::string> allowed_hosts;    // further names
  std::vector<std::string> allowed_origins;  // web pages that may call the API; "*" = all
  std::string version, git, backend;
  int64_t created = 0;  // of the models, seconds since 1970
  int num_body_workers = 2;     // parse large bodies
  int num_big_body_workers = 2;  // for bodies of several MiB
  int num_grammar_workers = 4;  // wait for grammars to be compiled
  int max_grammars_per_key = 2;  // at the same time
  Tracer* tracer = nullptr;  // outlives the service; null = no traces
};

class Service : public RequestHandler {
 public:
  // All outlive the service.
  Service(Backend& backend, const ApiKeys& keys, MetricsRegistry& registry, RequestLog& log, ServiceOptions options);
  ~Service() override;

  std::optional<HttpResponse> CheckHead(Exchange& exchange, const HttpRequest& head) override;
  void OnRequest(std::shared_ptr<Exchange> exchange) override;
  HttpResponse MakeError(Exchange& exchange, const HttpRequest* head, int status, const std::string& message) override;
  void OnOver(Exchange& exchange) override;

  // New generations are refused with 503, /readyz turns red.
  void SetDraining(bool is_draining) { is_draining_.store(is_draining); }
  int64_t num_active() const;
  // Ends every generation with an error. Any thread.
  void AbortAll();
  void StopWorkers() {
    body_workers_.Stop();
    big_body_workers_.Stop();
    grammar_workers_.Stop();
  }
  // What the keys have used before. Before anything is served.
  KeyLedger& ledger() { return ledger_; }

 private:
  struct Streams;  // running requests of each key
  struct Slot;     // a place among them
  struct Job {
    std::shared_ptr<Exchange> exchange;
    Route route;
    std::shared_ptr<const ApiKey> key;
    std::shared_ptr<Slot> slot;
    std::string traffic_class;
  };

  void BeginTrace(Exchange& exchange, const HttpRequest* head) const;
  Status CheckOrigin(Exchange& exchange, const HttpRequest& head) const;
  Status CheckKey(Exchange& exchange, const HttpRequest& head) const;
  static Status CheckModel(const Job& job, const std::string& model);
  bool IsAllowedHost(const std::string& host) const;
  // `http_status` 0: that of `status`. `retry_after_s` 0: about as long as the queue takes.
  HttpResponse ErrorFor(Exchange& exchange, protocols::Api api, const Status& status, int http_status = 0, int64_t retry_after_s = 0);
  Result<std::shared_ptr<Slot>> TakeSlot(const std::shared_ptr<const ApiKey>& key);
  // The refusal of a key that has used up its share; nothing for the others.
  std::optional<HttpResponse> CheckShare(Exchange& exchange, const Job& job, bool generates);
  void CountReject(const char* reason);
  int RetryAfterSeconds();

  void UpdateMetrics();
  HttpResponse Quick(Exchange& exchange, const Route& route);
  // Any thread. What has an answer at once returns it; a generation returns nothing and goes on
  // by itself.
  Result<std::optional<Json>> Work(Job& job);
  Result<std::optional<Json>> Converse(Job& job, protocols::Api api);
  Result<std::optional<Json>> Speak(Job& job, const protocols::ConvertedRequest& converted);
  Result<std::optional<Json>> Complete(Job& job, protocols::CompletionRequest completion);
  // Goes on in a worker. For grammars: those of one key do not take every worker.
  void Move(Job& job, WorkerPool& workers, std::function<Result<std::optional<Json>>(Job&)> work);
  void Answer(Job& job, Result<std::optional<Json>> result, bool is_inline);
  Result<Json> CountTokens(const Job& job);
  Result<Json> Tokenize(const Json& body) const;
  Result<Json> Detokenize(const Json& body) const;
  void Launch(Job& job, const std::string& model, std::unique_ptr<Reply> reply, std::vector<engine::TextRequest> requests);
  std::string IsolatedSalt(const Job& job, const std::string& client_salt) const;
  Json ModelJson(const std::string& name) const;

  Backend& backend_;
  const ApiKeys& keys_;
  MetricsRegistry& registry_;
  RequestLog& log_;
  const ServiceOptions options_;
  std::atomic<bool> is_draining_{false};
  const std::shared_ptr<Streams> streams_;
  KeyLedger ledger_;

  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<Generation>> generations_;  // GUARDED_BY(mutex_)
  uint64_t next_generation_ = 0;                 // GUARDED_BY(mutex_)
  // Large bodies keep a processor busy for long, so that what only waits for a grammar has threads of its own.
  WorkerPool body_workers_;
  // Very large ones take seconds: behind threads of lower priority nobody waits, neither streams nor other bodies.
  WorkerPool big_body_workers_;
  WorkerPool grammar_workers_;
};

}  // namespace deepinfer::server
