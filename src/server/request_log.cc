// SPDX-License-Identifier: Apache-2.0
#include "server/request_log.h"

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

}  // namespace

void RequestLog::Add(const Exchange& exchange) {
  const ExchangeRecord& record = exchange.record;
  registry_
      .GetCounter("deepinfer_requests_total", "HTTP requests that have ended",
                  {{"endpoint", record.endpoint},
                   {"code", std::to_string(record.status)},
                   {"class", record.traffic_class.empty() ? "none" : record.traffic_class}})
      .Add();
  if (!record.error_type.empty()) {
    registry_.GetCounter("deepinfer_errors_total", "requests answered with an error", {{"type", record.error_type}}).Add();
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
