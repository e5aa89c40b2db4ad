// SPDX-License-Identifier: Apache-2.0
#include "server/tracer.h"

#include <algorithm>
#include <chrono>
#include <random>

#include <fmt/format.h>

#include "core/clock.h"
#include "core/json.h"
#include "core/log.h"
#include "server/reply.h"

namespace deepinfer::server {

namespace {

constexpr std::chrono::seconds kFlush{1};
constexpr std::chrono::seconds kLastWords{2};
constexpr size_t kMaxBatch = 256;  // requests of one post
constexpr int64_t kLogEveryNs = 60'000'000'000;
constexpr int64_t kTimeoutMs = 5000;
constexpr int64_t kMaxAnswer = 64 << 10;
// Kinds and states of the protocol.
constexpr int kServer = 2, kInternal = 1, kError = 2;

Json Text(const char* key, const std::string& value) { return Json{{"key", key}, {"value", {{"stringValue", value}}}}; }
Json Count(const char* key, int64_t value) { return Json{{"key", key}, {"value", {{"intValue", std::to_string(value)}}}}; }

// Makes the spans of one request.
class SpanWriter {
 public:
  // `shift_ns`: from the steady clock to the time since 1970.
  SpanWriter(const ExchangeRecord& record, int64_t shift_ns, Json& spans) : record_(record), shift_ns_(shift_ns), spans_(spans) {}

  void Write() {
    const ExchangeRecord& r = record_;
    Json http = Span("http", r.trace.parent_id, r.trace.span_id, r.begin_ns, r.end_ns);
    http["kind"] = kServer;
    Json attributes = {Text("request.id", r.request_id), Text("endpoint", r.endpoint), Count("http.response.status_code", r.status)};
    if (!r.key_id.empty()) attributes.push_back(Text("key.id", r.key_id));
    if (!r.model.empty()) attributes.push_back(Text("model", r.model));
    if (!r.traffic_class.empty()) attributes.push_back(Text("class", r.traffic_class));
    if (!r.reason.empty()) attributes.push_back(Text("finish.reason", r.reason));
    if (!r.error_type.empty()) attributes.push_back(Text("error.type", r.error_type));
    if (r.prompt_tokens > 0) attributes.push_back(Count("tokens.prompt", r.prompt_tokens));
    if (r.cached_tokens > 0) attributes.push_back(Count("tokens.cached", r.cached_tokens));
    if (r.output_tokens > 0) attributes.push_back(Count("tokens.output", r.output_tokens));
    http["attributes"] = std::move(attributes);
    if (r.status >= 500 || r.reason == "error") http["status"] = Json{{"code", kError}};
    spans_.push_back(std::move(http));

    if (r.body_ns == 0) return;
    const auto until = [&r](int64_t ns) { return ns > 0 ? ns : r.end_ns; };
    Child("tokenize", r.body_ns, until(r.submitted_ns));
    if (r.submitted_ns == 0) return;
    // A first token without a plan: the backend does not tell when it planned.
    const int64_t scheduled_ns = r.scheduled_ns > 0 ? r.scheduled_ns : r.first_token_ns > 0 ? r.submitted_ns : 0;
    Child("queue", r.submitted_ns, until(scheduled_ns));
    if (scheduled_ns == 0) return;
    Child("prefill", scheduled_ns, until(r.first_token_ns));
    if (r.first_token_ns == 0) return;
    Json& decode = Child("decode", r.first_token_ns, r.end_ns);
    decode["events"] = Json::array({Event("first_token", r.first_token_ns)});
    if (r.num_preempted > 0) {
      Json retract = Event("retract", r.preempted_ns);
      retract["attributes"] = Json::array({Count("count", r.num_preempted)});
      decode["events"].push_back(std::move(retract));
    }
  }

 private:
  std::string At(int64_t ns) const { return std::to_string(ns + shift_ns_); }
  Json Event(const char* name, int64_t ns) const { return Json{{"timeUnixNano", At(ns)}, {"name", name}}; }
  Json Span(const char* name, uint64_t parent, uint64_t id, int64_t begin_ns, int64_t end_ns) const {
    Json span{{"traceId", record_.trace.TraceId()}, {"spanId", SpanIdText(id)}};
    if (parent != 0) span["parentSpanId"] = SpanIdText(parent);
    span["name"] = name;
    span["kind"] = kInternal;
    span["startTimeUnixNano"] = At(begin_ns);
    span["endTimeUnixNano"] = At(std::max(begin_ns, end_ns));
    return span;
  }
  Json& Child(const char* name, int64_t begin_ns, int64_t end_ns) {
    // Zero means "no span".
    spans_.push_back(Span(name, record_.trace.span_id, RandomBits() | 1, begin_ns, end_ns));
    return spans_.back();
  }

  const ExchangeRecord& record_;
  const int64_t shift_ns_;
  Json& spans_;
};

}  // namespace

std::string TraceBody(const std::vector<ExchangeRecord>& records, const std::string& version, int64_t now_ns, int64_t now_unix_ns) {
  Json spans = Json::array();
  for (const ExchangeRecord& record : records) SpanWriter(record, now_unix_ns - now_ns, spans).Write();
  const Json resource{{"attributes", Json::array({Text("service.name", "deepinfer"), Text("service.version", version)})}};
  const Json scope{{"scope", {{"name", "deepinfer"}}}, {"spans", std::move(spans)}};
  return DumpJson(Json{{"resourceSpans", Json::array({Json{{"resource", resource}, {"scopeSpans", Json::array({scope})}}})}});
}

Tracer::Tracer(TracerOptions options) : options_(std::move(options)), thread_([this] { Loop(); }) {}

Tracer::~Tracer() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  {
    // The last words get a moment; a collector that hangs must not hold up the end.
    std::unique_lock lock(mutex_);
    has_ended_.wait_for(lock, kLastWords, [this] { return is_over_; });
  }
  is_cancelled_.store(true);
  thread_.join();
}

bool Tracer::Samples() const {
  constexpr double kScale = 1.0 / 18446744073709551616.0;
  return static_cast<double>(RandomBits()) * kScale < options_.sample_ratio;
}

void Tracer::End(const ExchangeRecord& record) {
  const int64_t first_ns = (record.first_token_ns > 0 ? record.first_token_ns : record.end_ns) - record.begin_ns;
  const bool is_slow = record.submitted_ns > 0 && first_ns > options_.slow_first_token_ns;
  if (!record.trace.is_sampled && !is_slow && record.status < 400 && record.reason != "error") return;
  std::lock_guard lock(mutex_);
  if (records_.size() >= options_.max_queued) {
    ++num_dropped_;
    return;
  }
  records_.push_back(record);
}

int64_t Tracer::num_dropped() const {
  std::lock_guard lock(mutex_);
  return num_dropped_;
}

void Tracer::Loop() {
  net::HttpClientOptions http = options_.http;
  http.connect_ms = http.idle_ms = kTimeoutMs;
  http.is_cancelled = &is_cancelled_;
  net::HttpClient client(std::move(http));
  net::HttpCall call;
  call.method = "POST";
  call.url = options_.endpoint;
  call.headers = {{"Content-Type", "application/json"}};
  int64_t logged_ns = 0, num_told = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait_for(lock, kFlush, [this] { return is_stopping_; });
    const bool is_last = is_stopping_;
    while (!records_.empty()) {
      const size_t count = std::min(records_.size(), kMaxBatch);
      const std::vector<ExchangeRecord> batch(records_.begin(), records_.begin() + static_cast<std::ptrdiff_t>(count));
      records_.erase(records_.begin(), records_.begin() + static_cast<std::ptrdiff_t>(count));
      lock.unlock();
      const int64_t now_ns = Clock::Steady().NowNs();
      const int64_t unix_ns =
          std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
      call.body = TraceBody(batch, options_.version, now_ns, unix_ns);
      const Result<net::HttpAnswer> result = client.Send(call, kMaxAnswer);
      lock.lock();
      if (result.ok() && result->status / 100 == 2) continue;
      num_dropped_ += static_cast<int64_t>(count);
      if (is_last) break;  // the server must not wait for a collector that is gone
      if (logged_ns != 0 && now_ns - logged_ns < kLogEveryNs) continue;
      logged_ns = now_ns;
      const int64_t num_new = num_dropped_ - num_told;
      num_told = num_dropped_;
      DI_LOG(warn, "traces of {} requests are lost: {}", num_new,
             result.ok() ? fmt::format("the collector answered {}", result->status) : result.status().message());
    }
    if (!is_last) continue;
    is_over_ = true;
    has_ended_.notify_all();
    return;
  }
}

}  // namespace deepinfer::server
