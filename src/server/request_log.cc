// SPDX-License-Identifier: Apache-2.0
#include "server/request_log.h"

#include <algorithm>
#include <ctime>

#include <fmt/format.h>

#include "core/escape.h"
#include "core/json.h"

namespace deepinfer::server {

namespace {

std::string Time(int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", 1900 + utc.tm_year, 1 + utc.tm_mon, utc.tm_mday, utc.tm_hour, utc.tm_min,
                     utc.tm_sec, unix_ms % 1000);
}

Counter& Requests(MetricsRegistry& registry, const std::string& endpoint, const std::string& code, const std::string& traffic_class) {
  return registry.GetCounter("deepinfer_requests_total", "HTTP requests that have ended.", {{"endpoint", endpoint}, {"code", code}, {"class", traffic_class}});
}

Counter& Errors(MetricsRegistry& registry, const std::string& type) {
  return registry.GetCounter("deepinfer_errors_total", "Requests that ended with an error.", {{"type", type}});
}

}  // namespace

RequestLog::RequestLog(MetricsRegistry& registry, std::unique_ptr<LineFile> access, std::unique_ptr<LineFile> usage)
    : registry_(registry), access_(std::move(access)), usage_(std::move(usage)) {
  // What rules divide by and compare with is there from the start.
  Requests(registry_, "chat_completions", "200", "chat");
  for (const char* type : {"invalid_request_error", "authentication_error", "insufficient_quota", "permission_error", "not_found_error", "timeout",
                           "request_too_large", "rate_limit_error", "internal_error", "api_error", "overloaded_error"}) {
    Errors(registry_, type);
  }
  for (const char* name : {"agent", "chat", "batch"}) QueueSeconds(name);
}

Histogram& RequestLog::QueueSeconds(const std::string& traffic_class) {
  return registry_.GetHistogram("deepinfer_router_queue_seconds", "From the end of a request's conversion to the start of its computation.",
                                SecondsBuckets(), {{"class", traffic_class}});
}

void RequestLog::Add(const Exchange& exchange) {
  const ExchangeRecord& record = exchange.record;
  Requests(registry_, record.endpoint, std::to_string(record.status), record.traffic_class.empty() ? "none" : record.traffic_class).Add();
  if (!record.error_type.empty()) Errors(registry_, record.error_type).Add();
  if (record.scheduled_ns > 0 && !record.traffic_class.empty()) {
    QueueSeconds(record.traffic_class).Observe(static_cast<double>(std::max<int64_t>(record.scheduled_ns - record.submitted_ns, 0)) * 1e-9);
  }
  const double seconds = static_cast<double>(record.end_ns - record.begin_ns) * 1e-9;
  const double first_s = record.first_token_ns > 0 ? static_cast<double>(record.first_token_ns - record.begin_ns) * 1e-9 : 0;
  if (access_ != nullptr) {
    Json line{{"time", Time(record.begin_unix_ms)},
              {"request_id", record.request_id},
              {"peer", exchange.peer()},
              {"method", Escape(exchange.request.method, 16)},
              // A path may hold anything; only known ones are shown.
              {"endpoint", record.endpoint},
              {"status", record.status},
              {"reason", record.reason},
              {"bytes_in", record.bytes_in},
              {"bytes_out", record.bytes_out},
              {"seconds", seconds}};
    if (!record.key_id.empty()) line["key_id"] = record.key_id;
    if (record.trace.is_set()) line["trace_id"] = record.trace.TraceId();
    if (record.has_usage) {
      line["prompt_tokens"] = record.prompt_tokens;
      line["cached_tokens"] = record.cached_tokens;
      line["output_tokens"] = record.output_tokens;
      line["first_token_s"] = first_s;
    }
    access_->Append(DumpJson(line));
  }
  if (usage_ != nullptr && record.has_usage) {
    const double begin_s = static_cast<double>(record.begin_unix_ms) * 1e-3;
    usage_->Append(DumpJson(Json{{"id", record.request_id},
                                 {"key_id", record.key_id},
                                 {"model", record.model},
                                 {"hit", record.cached_tokens},
                                 {"miss", record.prompt_tokens - record.cached_tokens},
                                 {"out", record.output_tokens},
                                 {"images", 0},
                                 {"class", record.traffic_class},
                                 {"t0", begin_s},
                                 {"ttft", first_s},
                                 {"t_end", begin_s + seconds},
                                 {"status", record.status}}));
  }
}

}  // namespace deepinfer::server
