// SPDX-License-Identifier: Apache-2.0
//
// The admin port, on the loopback address only: what the server runs with, its metrics, and orders to it (operations.md 3 of the
// specification); and the profiling port of engine.md 21.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/metrics.h"
#include "engine/step_profiler.h"
#include "server/exchange.h"
#include "server/line_file.h"
#include "server/worker_pool.h"

namespace deepinfer::server {

struct AdminHooks {
  std::function<Json()> server_info;
  std::function<void(bool)> set_draining;
  std::function<Status(const std::string&)> set_log_level;
};

class AdminService : public RequestHandler {
 public:
  // `profiler` null: there is none. `audit` (may be null) gets a line for every order.
  AdminService(MetricsRegistry& registry, engine::StepProfiler* profiler, AdminHooks hooks, std::unique_ptr<LineFile> audit);

  std::optional<HttpResponse> CheckHead(Exchange& exchange, const HttpRequest& head) override;
  void OnRequest(std::shared_ptr<Exchange> exchange) override;
  HttpResponse MakeError(Exchange& exchange, const HttpRequest* head, int status, const std::string& message) override;
  void OnOver(Exchange&) override {}
  void StopWorkers();

 private:
  HttpResponse Order(const HttpRequest& request);
  void Profile(std::shared_ptr<Exchange> exchange);
  void Audit(const Exchange& exchange, const HttpRequest& request, int status);

  MetricsRegistry& registry_;
  engine::StepProfiler* profiler_;
  AdminHooks hooks_;
  std::unique_ptr<LineFile> audit_;
  WorkerPool workers_{2};  // a second request is told that the first one runs
};

}  // namespace deepinfer::server
