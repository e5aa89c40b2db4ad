// SPDX-License-Identifier: Apache-2.0
//
// What is written down about a finished exchange: counters, a line in the access log, a line in the usage log. Never text.
#pragma once

#include <memory>
#include <string>

#include "core/metrics.h"
#include "server/exchange.h"
#include "server/line_file.h"

namespace deepinfer::server {

class RequestLog {
 public:
  // The files may be null. `registry` outlives the log.
  RequestLog(MetricsRegistry& registry, std::unique_ptr<LineFile> access, std::unique_ptr<LineFile> usage);

  void Add(const Exchange& exchange);

 private:
  Histogram& QueueSeconds(const std::string& traffic_class);

  MetricsRegistry& registry_;
  std::unique_ptr<LineFile> access_, usage_;
};

}  // namespace deepinfer::server
