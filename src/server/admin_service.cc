// SPDX-License-Identifier: Apache-2.0
#include "server/admin_service.h"

#include <ctime>
#include <memory>

#include <fmt/format.h>

#include "core/escape.h"

namespace deepinfer::server {

namespace {

constexpr size_t kMaxAuditedBody = 4 << 10;

HttpResponse Answer(int status, const Json& body) {
  HttpResponse response;
  response.status = status;
  response.body = DumpJson(body);
  return response;
}

HttpResponse Error(int status, std::string message) { return Answer(status, Json{{"status", "error"}, {"message", std::move(message)}}); }

// A profile that is recorded: asks for its end at every tick; a client that leaves ends the recording. The file is written by a
// worker.
class ProfileWait : public ExchangeObserver, public std::enable_shared_from_this<ProfileWait> {
 public:
  ProfileWait(std::shared_ptr<Exchange> exchange, engine::StepProfiler& profiler, WorkerPool& workers)
      : exchange_(std::move(exchange)), profiler_(profiler), workers_(workers) {}

  void OnGone() override {
    profiler_.Cancel();
    Poll();
  }
  void OnDrained() override {}
  void OnHalfClosed() override {}
  void OnTick(int64_t) override { Poll(); }

 private:
  void Poll() {
    if (is_polling_) return;
    is_polling_ = true;
    workers_.Post([self = shared_from_this()] {
      std::optional<engine::ProfileResponse> response = self->profiler_.Poll();
      self->exchange_->io().Post([self, response = std::move(response)] {
        self->is_polling_ = false;
        if (!response) return;
        HttpResponse answer;
        answer.status = response->status;
        answer.body = response->body;
        self->exchange_->Respond(answer);
      });
    });
  }

  const std::shared_ptr<Exchange> exchange_;
  engine::StepProfiler& profiler_;
  WorkerPool& workers_;
  bool is_polling_ = false;  // I/O thread
};

}  // namespace

AdminService::AdminService(MetricsRegistry& registry, engine::StepProfiler* profiler, AdminHooks hooks, std::unique_ptr<LineFile> audit)
    : registry_(registry), profiler_(profiler), hooks_(std::move(hooks)), audit_(std::move(audit)) {}

std::optional<HttpResponse> AdminService::CheckHead(Exchange&, const HttpRequest& head) {
  // A web page must not reach this port through the browser of someone on this machine.
  const std::string* const host = head.Find("host");
  const auto is_local = [](std::string_view name) {
    return name.starts_with("localhost") || name.starts_with("127.0.0.1") || name.starts_with("[::1]");
  };
  if (head.Find("origin") != nullptr || (host != nullptr && !is_local(*host))) return Error(403, "the admin port answers programs on this machine only");
  return std::nullopt;
}

HttpResponse AdminService::MakeError(Exchange&, const HttpRequest*, int status, const std::string& message) { return Error(status, message); }

void AdminService::OnRequest(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request;
  const bool is_get = request.method == "GET";
  if (request.path == "/profile" || request.path == "/admin/profile") {
    if (profiler_ == nullptr) return exchange->Respond(Error(404, "profiling is off; start the server with --profile-http-enable"));
    return Profile(std::move(exchange));
  }
  if (is_get && (request.path == "/server_info" || request.path == "/admin/config")) return exchange->Respond(Answer(200, hooks_.server_info()));
  if (is_get && request.path == "/metrics") {
    HttpResponse response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = registry_.TextExposition();
    return exchange->Respond(response);
  }
  if (is_get && request.path == "/healthz") return exchange->Respond(Answer(200, Json{{"status", "ok"}}));
  if (request.method == "POST" && request.path.starts_with("/admin/")) {
    const HttpResponse response = Order(request);
    Audit(*exchange, request, response.status);
    return exchange->Respond(response);
  }
  exchange->Respond(Error(404, fmt::format("unknown route {} {}", Escape(request.method, 16), Escape(request.path, 100))));
}

HttpResponse AdminService::Order(const HttpRequest& request) {
  Json args = Json::object();
  if (!request.body.empty()) {
    Result<Json> parsed = ParseJson(request.body);
    if (!parsed.ok() || !parsed->is_object()) return Error(400, "the body must be a JSON object");
    args = *std::move(parsed);
  }
  HttpResponse response = Error(404, fmt::format("unknown order {}", Escape(request.path, 100)));
  if (request.path == "/admin/drain" || request.path == "/admin/undrain") {
    hooks_.set_draining(request.path == "/admin/drain");
    response = Answer(200, Json{{"status", "ok"}});
  } else if (request.path == "/admin/log-level") {
    const auto level = args.find("level");
    const Status status = level == args.end() || !level->is_string() ? InvalidArgument("expected {\"level\": trace, debug, info, warn, error or off}")
                                                                     : hooks_.set_log_level(level->get<std::string>());
    response = status.ok() ? Answer(200, Json{{"status", "ok"}}) : Error(400, status.message());
  }
  return response;
}

// Every order and its answer, refused ones too; an order that does not exist is shown as such.
void AdminService::Audit(const Exchange& exchange, const HttpRequest& request, int status) {
  if (audit_ == nullptr) return;
  Json args = Json::object();
  if (Result<Json> parsed = ParseJson(request.body); parsed.ok() && request.body.size() <= kMaxAuditedBody) args = *std::move(parsed);
  Json line{{"time", std::time(nullptr)}, {"subject", fmt::format("admin@{}", exchange.peer())}, {"verb", Escape(request.path, 100)}, {"args", std::move(args)}};
  if (!request.query.empty()) line["query"] = Escape(request.query, 200);
  line["result"] = status;
  audit_->Append(DumpJson(line));
}

void AdminService::Profile(std::shared_ptr<Exchange> exchange) {
  if (exchange->request.method != "GET" && exchange->request.method != "POST") return exchange->Respond(Error(405, "use GET or POST"));
  std::optional<engine::ProfileResponse> refused = profiler_->Begin(exchange->request.query, exchange->request.body);
  Audit(*exchange, exchange->request, refused ? refused->status : 200);
  if (refused) {
    HttpResponse response;
    response.status = refused->status;
    response.body = refused->body;
    return exchange->Respond(response);
  }
  auto wait = std::make_shared<ProfileWait>(exchange, *profiler_, workers_);
  exchange->SetObserver(std::move(wait));
}

void AdminService::StopWorkers() {
  if (profiler_ != nullptr) profiler_->Cancel();
  workers_.Stop();
}

}  // namespace deepinfer::server
