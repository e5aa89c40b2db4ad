// SPDX-License-Identifier: Apache-2.0
#include "server/service.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <ctime>

#include <fmt/format.h>

#include "core/ascii.h"
#include "core/clock.h"
#include "core/escape.h"
#include "core/json.h"
#include "core/process_metrics.h"
#include "engine/prefix_key.h"
#include "protocols/completion_request.h"
#include "protocols/convert_request.h"
#include "server/page.h"
#include "server/text_request.h"

namespace deepinfer::server {

namespace {

using protocols::Api;

// Larger bodies are parsed by a worker: an I/O thread must not stop for them.
constexpr size_t kMaxInlineBody = 64 << 10;
// Beyond this they take seconds.
constexpr size_t kBigBody = 4 << 20;
constexpr int kBigBodyNiceness = 10;
constexpr int64_t kMaxBetaTokens = 4096;

bool IsRequestId(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  });
}

std::string NewRequestId() { return fmt::format("req_{:016x}{:08x}", RandomBits(), RandomBits() >> 32); }

// Without the port: "[::1]:80" -> "[::1]".
std::string HostName(const std::string& host) {
  const size_t bracket = host.find(']');
  const size_t colon = host.find(':', bracket == std::string::npos ? 0 : bracket);
  return AsciiLower(host.substr(0, colon));
}

std::string KeyOf(const HttpRequest& head) {
  if (const std::string* value = head.Find("authorization")) {
    const std::string lower = AsciiLower(value->substr(0, 7));
    if (lower != "bearer ") return "?";
    const size_t begin = value->find_first_not_of(' ', 7);
    return begin == std::string::npos ? "?" : value->substr(begin);
  }
  if (const std::string* value = head.Find("x-api-key")) return *value;
  return {};
}

constexpr std::array kRejectReasons = {"requests_per_minute", "tokens_per_minute", "budget", "streams", "queue", "draining"};

Counter& RejectCounter(MetricsRegistry& registry, const char* reason) {
  return registry.GetCounter("deepinfer_router_rejects_total", "Requests that were refused for lack of room or of rights to it.", {{"reason", reason}});
}

std::string TrafficClass(const Exchange& exchange) {
  if (const std::string* value = exchange.request.Find("x-di-class"); value != nullptr && (*value == "agent" || *value == "chat" || *value == "batch")) {
    return *value;
  }
  return {};
}

}  // namespace

// Outlives the service in slots of requests that end after it.
struct Service::Streams {
  std::mutex mutex;
  std::map<std::string, int64_t> by_key;  // GUARDED_BY(mutex)
  int64_t num_all = 0;                    // GUARDED_BY(mutex)
};

struct Service::Slot {
  Slot(std::shared_ptr<Streams> s, std::string id) : streams(std::move(s)), key_id(std::move(id)) {}
  ~Slot() {
    std::lock_guard lock(streams->mutex);
    const auto it = streams->by_key.find(key_id);
    if (--it->second == 0) streams->by_key.erase(it);
    --streams->num_all;
  }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  const std::shared_ptr<Streams> streams;
  const std::string key_id;
};

Service::Service(Backend& backend, const ApiKeys& keys, MetricsRegistry& registry, RequestLog& log, ServiceOptions options)
    : backend_(backend), keys_(keys), registry_(registry), log_(log), options_(std::move(options)), streams_(std::make_shared<Streams>()),
      body_workers_(options_.num_body_workers), big_body_workers_(options_.num_big_body_workers, 0, kBigBodyNiceness),
      grammar_workers_(options_.num_grammar_workers, options_.max_grammars_per_key) {
  // Every series is there from the start.
  for (const char* reason : kRejectReasons) RejectCounter(registry_, reason);
}

int64_t Service::num_active() const {
  std::lock_guard lock(streams_->mutex);
  return streams_->num_all;
}

Service::~Service() = default;

// ---- access ------------------------------------------------------------------------------------------------------------------

std::optional<HttpResponse> Service::CheckHead(Exchange& exchange, const HttpRequest& head) {
  const std::string* const id = head.Find("x-request-id");
  exchange.record.request_id = id != nullptr && IsRequestId(*id) ? *id : NewRequestId();
  exchange.extra_headers.emplace_back("x-request-id", exchange.record.request_id);
  exchange.extra_headers.emplace_back("X-Content-Type-Options", "nosniff");
  Route route;
  const bool is_known = FindRoute(head.path, route);
  if (is_known) exchange.record.endpoint = std::string(route.name);
  if (route.api == Api::kMessages) exchange.extra_headers.emplace_back("request-id", exchange.record.request_id);
  BeginTrace(exchange, &head);
  if (const Status status = CheckOrigin(exchange, head); !status.ok()) return ErrorFor(exchange, route.api, status);
  if (head.method == "OPTIONS" && head.Find("access-control-request-method") != nullptr && exchange.identity != nullptr) {
    HttpResponse response;
    response.status = 204;
    response.content_type.clear();
    response.headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"}, {"Access-Control-Max-Age", "600"}};
    const std::string* const names = head.Find("access-control-request-headers");
    response.headers.emplace_back("Access-Control-Allow-Headers", names != nullptr ? *names : "authorization, content-type");
    return response;
  }
  if (!is_known) return ErrorFor(exchange, route.api, NotFound(fmt::format("unknown route {}", Escape(head.path, 100))));
  if (head.method != route.method && !(head.method == "HEAD" && route.method == "GET")) {
    HttpResponse response = ErrorFor(exchange, route.api, NotFound(fmt::format("{} takes {} only", head.path, route.method)), 405);
    response.headers.emplace_back("Allow", std::string(route.method));
    return response;
  }
  exchange.identity.reset();
  if (route.needs_key) {
    if (const Status status = CheckKey(exchange, head); !status.ok()) {
      HttpResponse response = ErrorFor(exchange, route.api, status);
      if (response.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
      return response;
    }
  }
  return std::nullopt;
}

// The caller's trace goes on; without one a new begins, if traces are sent at all.
void Service::BeginTrace(Exchange& exchange, const HttpRequest* head) const {
  TraceContext& trace = exchange.record.trace;
  const std::string* const header = head == nullptr ? nullptr : head->Find("traceparent");
  const bool has_parent = header != nullptr && ParseTraceparent(*header, trace);
  if (!has_parent && options_.tracer == nullptr) return;
  if (!has_parent) {
    trace.trace_high = RandomBits();
    trace.trace_low = RandomBits() | 1;
    trace.is_sampled = options_.tracer->Samples();
  }
  trace.span_id = RandomBits() | 1;
  exchange.extra_headers.emplace_back("traceresponse", trace.Header());
}

bool Service::IsAllowedHost(const std::string& host) const {
  const std::string name = HostName(host);
  return name == "localhost" || name == "127.0.0.1" || name == "[::1]" ||
         std::any_of(options_.allowed_hosts.begin(), options_.allowed_hosts.end(), [&name](const std::string& allowed) { return HostName(allowed) == name; });
}

// Adds the CORS headers for an origin that is allowed by name, and marks the exchange for a preflight.
Status Service::CheckOrigin(Exchange& exchange, const HttpRequest& head) const {
  const std::string* const host = head.Find("host");
  if (host == nullptr && !head.is_http10) return InvalidArgument("the header Host is missing");
  if (options_.checks_host && host != nullptr && !IsAllowedHost(*host)) {
    return Status(StatusCode::kPermissionDenied,
                  fmt::format("the host name {} is not one of this server; start it with --allowed-host to allow it", Escape(*host, 100)));
  }
  const std::string* const origin = head.Find("origin");
  if (origin == nullptr) return Status::Ok();
  if (host != nullptr && (*origin == "http://" + *host || *origin == "https://" + *host)) return Status::Ok();
  const bool is_allowed = std::any_of(options_.allowed_origins.begin(), options_.allowed_origins.end(),
                                      [origin](const std::string& allowed) { return allowed == "*" || allowed == *origin; });
  if (is_allowed) {
    static const auto kMark = std::make_shared<const int>(0);
    exchange.identity = kMark;
    exchange.extra_headers.emplace_back("Access-Control-Allow-Origin", *origin);
    exchange.extra_headers.emplace_back("Access-Control-Expose-Headers", "x-request-id, request-id, retry-after");
    exchange.extra_headers.emplace_back("Vary", "Origin");
    return Status::Ok();
  }
  if (!options_.checks_host) return Status::Ok();
  return Status(StatusCode::kPermissionDenied, "web pages of other origins may not call this server; start it with --allowed-origin to allow one");
}

Status Service::CheckKey(Exchange& exchange, const HttpRequest& head) const {
  if (!keys_.is_required()) return Status::Ok();
  DI_ASSIGN_OR_RETURN(const std::shared_ptr<const ApiKey> key, keys_.Check(KeyOf(head), std::time(nullptr)));
  exchange.record.key_id = key->id;
  exchange.identity = key;
  if (!key->Has(Scope::kInference)) return Status(StatusCode::kPermissionDenied, "the API key lacks the scope \"inference\"");
  return Status::Ok();
}

HttpResponse Service::ErrorFor(Exchange& exchange, Api api, const Status& status, int http_status, int64_t retry_after_s) {
  const Json body = http_status != 0 ? protocols::ErrorBody(api, http_status, status.message(), exchange.record.request_id)
                                     : protocols::ErrorBody(api, status, exchange.record.request_id);
  HttpResponse response;
  response.status = http_status != 0 ? http_status : protocols::HttpStatus(status);
  response.body = DumpJson(body);
  exchange.record.error_type = body["error"]["type"].get<std::string>();
  if (response.status == 429 || response.status == 503) response.headers.emplace_back("Retry-After", std::to_string(retry_after_s > 0 ? retry_after_s : RetryAfterSeconds()));
  return response;
}

HttpResponse Service::MakeError(Exchange& exchange, const HttpRequest* head, int status, const std::string& message) {
  Api api = Api::kChat;
  if (head == nullptr) {
    exchange.record.request_id = NewRequestId();
    exchange.extra_headers.emplace_back("x-request-id", exchange.record.request_id);
    BeginTrace(exchange, nullptr);
  } else {
    Route route;
    if (FindRoute(head->path, route)) api = route.api;
  }
  const StatusCode code = status == 413   ? StatusCode::kTooLarge
                          : status == 408 ? StatusCode::kDeadlineExceeded
                          : status == 503 ? StatusCode::kUnavailable
                                          : StatusCode::kInvalidArgument;
  return ErrorFor(exchange, api, Status(code, message), status);
}

void Service::OnOver(Exchange& exchange) {
  const ExchangeRecord& record = exchange.record;
  if (exchange.request.method == "POST" && exchange.identity != nullptr && keys_.is_required()) {
    ledger_.Charge(*std::static_pointer_cast<const ApiKey>(exchange.identity), record.num_used - record.num_charged, record.end_ns);
  }
  // Probes come every few seconds and say nothing.
  const bool is_probe = record.endpoint == "health" || record.endpoint == "metrics";
  if (options_.tracer != nullptr && record.trace.is_set() && (!is_probe || record.trace.parent_id != 0)) options_.tracer->End(record);
  log_.Add(exchange);
}

void Service::CountReject(const char* reason) { RejectCounter(registry_, reason).Add(); }

int Service::RetryAfterSeconds() {
  // About as long as the queue takes if each place is free every second.
  const BackendState state = backend_.State();
  return static_cast<int>(std::clamp<int64_t>(state.num_waiting / std::max(state.max_running, 1), 1, 60));
}

// ---- requests ----------------------------------------------------------------------------------------------------------------

Result<std::shared_ptr<Service::Slot>> Service::TakeSlot(const std::shared_ptr<const ApiKey>& key) {
  if (is_draining_.load()) {
    CountReject("draining");
    return Unavailable("the server is shutting down; send the request to another one");
  }
  std::lock_guard lock(streams_->mutex);
  const std::string id = key != nullptr ? key->id : std::string();
  int64_t& count = streams_->by_key[id];
  const int64_t limit = key == nullptr ? 0 : key->max_streams > 0 ? key->max_streams : options_.max_streams_per_key;
  if (limit > 0 && count >= limit) {
    CountReject("streams");
    return ResourceExhausted(fmt::format("the API key has {} requests running, which is its limit; wait for one to end", count));
  }
  ++count;
  ++streams_->num_all;
  return std::make_shared<Slot>(streams_, id);
}

std::optional<HttpResponse> Service::CheckShare(Exchange& exchange, const Job& job, bool generates) {
  if (job.key == nullptr) return std::nullopt;
  const ApiKey& key = *job.key;
  const KeyLedger::Answer answer = ledger_.Admit(key, generates, Clock::Steady().NowNs());
  const auto refuse = [&](int status, const char* reason, const std::string& message) {
    CountReject(reason);
    const StatusCode code = status == 429 ? StatusCode::kResourceExhausted : StatusCode::kPermissionDenied;
    HttpResponse response = ErrorFor(exchange, job.route.api, Status(code, message), status, answer.retry_after_s);
    return response;
  };
  switch (answer.verdict) {
    case KeyLedger::Verdict::kOk: break;
    case KeyLedger::Verdict::kTooManyRequests:
      return refuse(429, "requests_per_minute", fmt::format("the API key may send {} requests per minute; try again in {} s", key.requests_per_minute, answer.retry_after_s));
    case KeyLedger::Verdict::kTooManyTokens:
      return refuse(429, "tokens_per_minute", fmt::format("the API key may use {} tokens per minute; try again in {} s", key.tokens_per_minute, answer.retry_after_s));
    case KeyLedger::Verdict::kNoBudget:
      return refuse(402, "budget", fmt::format("the API key has used up its budget of {} tokens", key.budget_tokens));
  }
  return std::nullopt;
}

void Service::OnRequest(std::shared_ptr<Exchange> exchange) {
  Job job;
  exchange->record.body_ns = Clock::Steady().NowNs();
  if (!FindRoute(exchange->request.path, job.route)) return exchange->Respond(ErrorFor(*exchange, Api::kChat, NotFound("unknown route")));
  if (job.route.method == "GET") return exchange->Respond(Quick(*exchange, job.route));
  job.exchange = exchange;
  job.key = std::static_pointer_cast<const ApiKey>(exchange->identity);
  job.traffic_class = TrafficClass(*exchange);
  const bool generates = job.route.endpoint != Endpoint::kCountTokens && job.route.endpoint != Endpoint::kTokenize &&
                         job.route.endpoint != Endpoint::kDetokenize;
  if (const std::optional<HttpResponse> refusal = CheckShare(*exchange, job, generates)) return exchange->Respond(*refusal);
  if (generates) {
    Result<std::shared_ptr<Slot>> slot = TakeSlot(job.key);
    if (!slot.ok()) return exchange->Respond(ErrorFor(*exchange, job.route.api, slot.status()));
    job.slot = *std::move(slot);
  }
  const bool is_inline = exchange->request.body.size() <= kMaxInlineBody;
  const bool is_big = exchange->request.body.size() > kBigBody;
  if (!is_inline) return Move(job, is_big ? big_body_workers_ : body_workers_, [this](Job& moved) { return Work(moved); });
  Result<std::optional<Json>> result = Work(job);
  Answer(job, std::move(result), true);
}

void Service::Move(Job& job, WorkerPool& workers, std::function<Result<std::optional<Json>>(Job&)> work) {
  std::string group = job.key != nullptr ? job.key->id : std::string();
  // A body worker's own job moves on from here, and must not be asked for an answer.
  auto shared = std::make_shared<Job>(std::move(job));
  workers.Post(
      [this, shared = std::move(shared), work = std::move(work)] {
        Result<std::optional<Json>> result = work(*shared);
        Answer(*shared, std::move(result), false);
      },
      std::move(group));
}

void Service::Answer(Job& job, Result<std::optional<Json>> result, bool is_inline) {
  if (result.ok() && !*result) return;
  auto respond = [this, exchange = job.exchange, api = job.route.api, result = std::move(result), slot = std::move(job.slot)] {
    if (!result.ok()) return exchange->Respond(ErrorFor(*exchange, api, result.status()));
    HttpResponse response;
    response.body = DumpJson(**result);
    exchange->Respond(response);
  };
  if (is_inline) respond();
  else job.exchange->io().Post(std::move(respond));
}

HttpResponse Service::Quick(Exchange& exchange, const Route& route) {
  HttpResponse response;
  switch (route.endpoint) {
    case Endpoint::kModels: {
      Json data = Json::array();
      for (const std::string& name : options_.convert.served_models) data.push_back(ModelJson(name));
      response.body = DumpJson(Json{{"object", "list"},
                                    {"data", data},
                                    {"has_more", false},
                                    {"first_id", options_.convert.served_models.front()},
                                    {"last_id", options_.convert.served_models.back()}});
      break;
    }
    case Endpoint::kModel: {
      const auto& names = options_.convert.served_models;
      if (std::find(names.begin(), names.end(), route.argument) == names.end()) {
        return ErrorFor(exchange, route.api, NotFound(fmt::format("the model {} is not served here", Escape(route.argument, 100))));
      }
      response.body = DumpJson(ModelJson(route.argument));
      break;
    }
    case Endpoint::kHealthz: response.body = R"({"status":"ok"})"; break;
    case Endpoint::kReadyz: {
      const bool is_draining = is_draining_.load();
      const bool is_ready = !is_draining && backend_.State().is_healthy;
      response.status = is_ready ? 200 : 503;
      response.body = fmt::format(R"({{"status":"{}"}})", is_ready ? "ready" : is_draining ? "draining" : "unhealthy");
      break;
    }
    case Endpoint::kMetrics:
      response.content_type = "text/plain; version=0.0.4; charset=utf-8";
      UpdateMetrics();
      response.body = registry_.TextExposition();
      break;
    case Endpoint::kPage: {
      const PageFile* const file = FindPageFile(exchange.request.path);
      if (file == nullptr) return ErrorFor(exchange, route.api, NotFound("unknown route"));
      response.content_type = std::string(file->content_type);
      response.body = std::string(file->text);
      response.headers = {{"Content-Security-Policy", std::string(kPagePolicy)}, {"Cache-Control", "no-cache"}, {"Referrer-Policy", "no-referrer"}};
      break;
    }
    default:
      response.body = DumpJson(Json{{"version", options_.version}, {"git", options_.git}, {"backend", options_.backend}});
      break;
  }
  return response;
}

// Gauges that are read when they are asked for.
void Service::UpdateMetrics() {
  const BackendState state = backend_.State();
  registry_.GetGauge("deepinfer_requests_running", "Sequences that are being decoded.").Set(static_cast<double>(state.num_running));
  registry_.GetGauge("deepinfer_requests_waiting", "Sequences that wait for their first step.").Set(static_cast<double>(state.num_waiting));
  registry_.GetGauge("deepinfer_http_generations", "Generation requests that are being answered.").Set(static_cast<double>(num_active()));
  if (state.num_used_blocks >= 0) {
    registry_.GetGauge("deepinfer_kv_blocks_used", "Cache blocks that sequences hold.").Set(static_cast<double>(state.num_used_blocks));
  }
  UpdateProcessMetrics(registry_);
}

Json Service::ModelJson(const std::string& name) const {
  std::tm utc{};
  const std::time_t created = options_.created;
  ::gmtime_r(&created, &utc);
  return Json{{"id", name},
              {"object", "model"},
              {"created", options_.created},
              {"owned_by", "deepseek"},
              {"type", "model"},
              {"display_name", name},
              {"created_at", fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", 1900 + utc.tm_year, 1 + utc.tm_mon, utc.tm_mday, utc.tm_hour,
                                         utc.tm_min, utc.tm_sec)},
              {"lifecycle", "active"},
              {"max_model_len", backend_.max_model_len()}};
}

Result<std::optional<Json>> Service::Work(Job& job) {
  const auto some = [](Result<Json> json) -> Result<std::optional<Json>> {
    if (!json.ok()) return json.status();
    return std::optional<Json>(*std::move(json));
  };
  switch (job.route.endpoint) {
    case Endpoint::kChat: return Converse(job, Api::kChat);
    case Endpoint::kResponses: return Converse(job, Api::kResponses);
    case Endpoint::kMessages: return Converse(job, Api::kMessages);
    case Endpoint::kCountTokens: return some(CountTokens(job));
    default: break;
  }
  Result<Json> body = ParseJson(job.exchange->request.body);
  std::string().swap(job.exchange->request.body);
  if (!body.ok()) return protocols::DeserializeError("", body.status().message());
  if (job.route.endpoint == Endpoint::kTokenize) return some(Tokenize(*body));
  if (job.route.endpoint == Endpoint::kDetokenize) return some(Detokenize(*body));
  Result<protocols::CompletionRequest> completion = protocols::ConvertCompletionRequest(*body, options_.convert);
  if (!completion.ok()) return completion.status();
  if (!completion->params.so_args) return Complete(job, *std::move(completion));
  Move(job, grammar_workers_, [this, completion = *std::move(completion)](Job& moved) { return Complete(moved, completion); });
  return std::optional<Json>();
}

Result<std::optional<Json>> Service::Converse(Job& job, Api api) {
  DI_RETURN_IF_ERROR(options_.chat_status);
  Result<protocols::ConvertedRequest> converted =
      protocols::ConvertRequest(api, std::string_view(job.exchange->request.body), options_.convert);
  if (!converted.ok()) return converted.status();
  std::string().swap(job.exchange->request.body);
  // Compiling a grammar may take long.
  if (!converted->inference.constraint) return Speak(job, *converted);
  Move(job, grammar_workers_, [this, converted = std::make_shared<const protocols::ConvertedRequest>(*std::move(converted))](Job& moved) {
    return Speak(moved, *converted);
  });
  return std::optional<Json>();
}

// What the key may use.
Status Service::CheckModel(const Job& job, const std::string& model) {
  if (job.key == nullptr || job.key->models.empty()) return Status::Ok();
  const auto& allowed = job.key->models;
  if (std::find(allowed.begin(), allowed.end(), model) != allowed.end()) return Status::Ok();
  return Status(StatusCode::kPermissionDenied, fmt::format("the API key may not use the model {}", Escape(model, 100)));
}

Result<std::optional<Json>> Service::Speak(Job& job, const protocols::ConvertedRequest& converted) {
  DI_RETURN_IF_ERROR(CheckModel(job, converted.model));
  Result<engine::TextRequest> request =
      MakeTextRequest(converted, backend_.tokenizer(), options_.convert, backend_.max_model_len(), backend_.grammar_check());
  // The request's fault: clients repeat what fails with 500 or more.
  if (request.status().code() == StatusCode::kUnimplemented) return InvalidArgument(request.status().message());
  if (!request.ok()) return request.status();
  if (job.traffic_class.empty()) {
    const auto& messages = converted.conversation.messages;
    const bool is_agent = !converted.conversation.tools.empty() || (!messages.empty() && messages.back().role == text::Role::kTool);
    job.traffic_class = is_agent ? "agent" : "chat";
  }
  std::vector<engine::TextRequest> requests;
  requests.push_back(*std::move(request));
  Launch(job, converted.model, MakeConversationReply(converted, backend_.tokenizer()), std::move(requests));
  return std::optional<Json>();
}

Result<std::optional<Json>> Service::Complete(Job& job, protocols::CompletionRequest completion) {
  DI_RETURN_IF_ERROR(CheckModel(job, completion.model));
  const int64_t limit = std::min(options_.convert.max_output_tokens, job.route.endpoint == Endpoint::kBetaCompletions ? kMaxBetaTokens : INT64_MAX);
  if (completion.has_max_tokens && completion.params.max_tokens > limit) {
    return InvalidArgument(fmt::format("Invalid max_tokens value, the valid range of max_tokens is [1, {}]", limit), "max_tokens");
  }
  completion.params.max_tokens = std::min(completion.params.max_tokens, limit);
  Result<std::vector<engine::TextRequest>> requests =
      MakeTextRequests(completion, backend_.tokenizer(), backend_.grammar_check());
  if (requests.status().code() == StatusCode::kUnimplemented) return InvalidArgument(requests.status().message());
  if (!requests.ok()) return requests.status();
  if (job.traffic_class.empty()) job.traffic_class = "chat";
  Launch(job, completion.model, MakeCompletionReply(completion, options_.convert, backend_.tokenizer()), *std::move(requests));
  return std::optional<Json>();
}

Result<Json> Service::CountTokens(const Job& job) {
  DI_RETURN_IF_ERROR(options_.chat_status);
  DI_ASSIGN_OR_RETURN(const protocols::ConvertedRequest converted,
                      protocols::ConvertRequest(Api::kMessages, std::string_view(job.exchange->request.body), options_.convert));
  if (!converted.prompt.images.empty()) return InvalidArgument("images are not in this version; send text only");
  DI_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, backend_.tokenizer().EncodePrompt(converted.prompt.text, converted.prompt.special_ranges));
  return Json{{"input_tokens", ids.size()}};
}

Result<Json> Service::Tokenize(const Json& body) const {
  if (!body.is_object() || !body.contains("text") || !body["text"].is_string()) {
    return protocols::DeserializeError("text", "expected {\"text\": string, \"parse_special\"?: bool}");
  }
  const auto special = body.find("parse_special");
  if (special != body.end() && !special->is_boolean() && !special->is_null()) return protocols::DeserializeError("parse_special", "expected a boolean");
  const std::string& text = body["text"].get_ref<const std::string&>();
  const bool parse_special = special != body.end() && special->is_boolean() && special->get<bool>();
  return Json{{"ids", parse_special ? backend_.tokenizer().EncodeFull(text) : backend_.tokenizer().EncodePlain(text)}};
}

Result<Json> Service::Detokenize(const Json& body) const {
  const Status fault = protocols::DeserializeError("ids", "expected {\"ids\": [token ids]}");
  if (!body.is_object() || !body.contains("ids") || !body["ids"].is_array()) return fault;
  std::vector<int32_t> ids;
  for (const Json& id : body["ids"]) {
    if (!id.is_number_integer()) return fault;
    const double value = id.get<double>();
    if (!(value >= 0 && value < backend_.tokenizer().vocab_size())) {
      return InvalidArgument(fmt::format("ids holds {}, which is outside the vocabulary of {}", DumpJson(id), backend_.tokenizer().vocab_size()), "ids");
    }
    ids.push_back(id.get<int32_t>());
  }
  return Json{{"text", backend_.tokenizer().Decode(ids)}};
}

// Prefixes are shared within an organisation only. The salt is as long as it may be, so both parts go through a hash.
std::string Service::IsolatedSalt(const Job& job, const std::string& client_salt) const {
  if (job.key == nullptr) return client_salt;
  const std::string& domain = job.key->domain();
  const std::string text = fmt::format("{}:{}:{}", domain.size(), domain, client_salt);
  return engine::Sha256Of(text).ToHex();
}

void Service::Launch(Job& job, const std::string& model, std::unique_ptr<Reply> reply, std::vector<engine::TextRequest> requests) {
  std::vector<BackendRequest> submitted;
  int64_t num_prompt = 0;
  int num_samples = 0;
  for (engine::TextRequest& request : requests) {
    num_prompt += static_cast<int64_t>(request.prompt_ids.size());
    num_samples += request.params.n;
    request.cache_salt = IsolatedSalt(job, request.cache_salt);
    submitted.push_back({std::move(request), job.exchange->record.request_id});
  }
  uint64_t id;
  {
    std::lock_guard lock(mutex_);
    id = next_generation_++;
  }
  auto responder = [this, api = job.route.api](Exchange& exchange, const Status& status) {
    // Trying again later does not help a prompt that is too long.
    if (status.code() == StatusCode::kResourceExhausted && status.field() != engine::kPromptLengthField) CountReject("queue");
    if (status.field() == engine::kPromptLengthField) return ErrorFor(exchange, api, InvalidArgument(status.message(), status.field()));
    return ErrorFor(exchange, api, status);
  };
  auto on_end = [this, id, slot = std::move(job.slot)]() mutable {
    {
      std::lock_guard lock(mutex_);
      generations_.erase(id);
    }
    slot.reset();
  };
  auto generation = std::make_shared<Generation>(job.exchange, std::move(reply), num_prompt, num_samples, options_.generation,
                                                 std::move(responder), std::move(on_end));
  {
    std::lock_guard lock(mutex_);
    generations_[id] = generation;
  }
  generation->SetNames(model, job.traffic_class);
  auto probe = std::make_shared<engine::RequestProbe>();
  submitted.front().text.probe = probe;
  generation->SetProbe(std::move(probe));
  if (job.key != nullptr) {
    ledger_.Charge(*job.key, num_prompt, Clock::Steady().NowNs());
    generation->SetCharged(num_prompt);
  }
  generation->Begin(backend_, std::move(submitted));
}

void Service::AbortAll() {
  std::map<uint64_t, std::weak_ptr<Generation>> all;
  {
    std::lock_guard lock(mutex_);
    all = generations_;
  }
  for (const auto& [id, weak] : all) {
    if (const auto generation = weak.lock()) generation->StopSoon(Unavailable("the server is shutting down"));
  }
}

}  // namespace deepinfer::server
