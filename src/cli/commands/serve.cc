// SPDX-License-Identifier: Apache-2.0
//
// serve: the engine behind the HTTP APIs. This file puts the parts together and waits for signals; the parts are in server/.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <ctime>
#include <sys/prctl.h>
#include <thread>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/commands/model_session.h"
#include "cli/version.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/options.h"
#include "engine/step_profiler.h"
#include "server/admin_service.h"
#include "server/http_server.h"
#include "server/sd_notify.h"
#include "server/service.h"
#include "server/tracer.h"
#include "text/prompt_renderer.h"

namespace deepinfer::cli {

namespace {

constexpr int64_t kNs = 1'000'000'000;
constexpr std::chrono::milliseconds kPoll{100};
constexpr int kReloadEvery = 10;  // polls between two looks at the key file

Json OptionsJson(const Config& config) {
  Json out = Json::object();
  for (const OptionSpec& spec : OptionTable()) {
    if (!spec.AppliesTo("serve")) continue;
    const bool is_secret = spec.name == "api-key" || spec.name == "cache-salt";
    const std::string text = OptionValueText(spec, config);
    out[spec.file_key()] = is_secret && !text.empty() ? "(set)" : text;
  }
  return out;
}

// SIGTERM, SIGINT and SIGHUP as counters. The handlers of the program come back with the scope's end.
class SignalScope {
 public:
  SignalScope() {
    struct sigaction action {};
    sigemptyset(&action.sa_mask);
    action.sa_handler = [](int number) {
      if (number == SIGHUP) reloads_.fetch_add(1);
      else stops_.fetch_add(1);
      if (number == SIGINT) is_interrupt_.store(true);
    };
    for (size_t i = 0; i < std::size(kNumbers); ++i) ::sigaction(kNumbers[i], &action, &old_[i]);
  }
  ~SignalScope() {
    for (size_t i = 0; i < std::size(kNumbers); ++i) ::sigaction(kNumbers[i], &old_[i], nullptr);
  }
  int num_stops() const { return stops_.load(); }
  int TakeReloads() { return reloads_.exchange(0); }
  bool is_interrupt() const { return is_interrupt_.load(); }

 private:
  static constexpr int kNumbers[] = {SIGTERM, SIGINT, SIGHUP};
  static inline std::atomic<int> stops_{0}, reloads_{0};
  static inline std::atomic<bool> is_interrupt_{false};
  struct sigaction old_[3];
};

Result<std::shared_ptr<server::TlsContext>> LoadTls(const ServeConfig& serve) {
  if (serve.tls_cert.empty() && serve.tls_key.empty()) return std::shared_ptr<server::TlsContext>();
  if (serve.tls_cert.empty() || serve.tls_key.empty()) return InvalidArgument("--tls-cert and --tls-key belong together; give both");
  return server::TlsContext::Load(serve.tls_cert, serve.tls_key);
}

Result<std::unique_ptr<server::LineFile>> OpenLog(const std::string& path, server::LineFile::Durability durability) {
  if (path.empty() || path == "off") return std::unique_ptr<server::LineFile>();
  return server::LineFile::Open(path, durability);
}

Result<std::unique_ptr<server::Tracer>> MakeTracer(const std::string& endpoint, const Environment& environment) {
  if (endpoint.empty()) return std::unique_ptr<server::Tracer>();
  server::TracerOptions options;
  Result<net::Url> url = net::ParseUrl(endpoint);
  if (!url.ok()) return InvalidArgument(fmt::format("--otlp-endpoint: {}", url.status().message()), "otlp-endpoint");
  options.endpoint = *std::move(url);
  if (options.endpoint.target == "/") options.endpoint.target = "/v1/traces";
  options.http = net::HttpClientOptions::FromEnvironment(environment);
  options.version = Version();
  return std::make_unique<server::Tracer>(std::move(options));
}

Status RunServe(Invocation& invocation) {
  const Config& config = invocation.config;
  const ServeConfig& serve = config.serve;
  if (invocation.sources.IsSet("new-api-key")) {
    if (serve.new_api_key.empty()) return InvalidArgument("--new-api-key needs the name of an organisation", "new-api-key");
    const server::NewApiKey made = server::MakeApiKey(serve.new_api_key);
    invocation.out.Line("key:    " + made.key);
    invocation.out.Line("record: " + made.record);
    return invocation.out.Check();
  }
  DI_ASSIGN_OR_RETURN(std::unique_ptr<server::ApiKeys> keys, server::ApiKeys::Create(serve.api_keys, serve.api_key_file));
  DI_ASSIGN_OR_RETURN(std::shared_ptr<server::TlsContext> tls, LoadTls(serve));
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<server::Tracer> tracer, MakeTracer(serve.otlp_endpoint, invocation.environment));
  if (serve.check_config) {
    invocation.out.Line(OptionsJson(config).dump(2));
    return invocation.out.Check();
  }
  // Memory holds prompts: no core file of it.
  ::prctl(PR_SET_DUMPABLE, 0);
  const int64_t max_files = server::RaiseOpenFileLimit();

  // Ports first: a port in use should not cost the time of loading.
  server::ConnectionLimits limits;
  limits.http.max_body_bytes = static_cast<uint64_t>(serve.max_body_mib) << 20;
  const int num_cores = static_cast<int>(std::thread::hardware_concurrency());
  server::HttpServer http(std::clamp(num_cores / 4, 1, 4), limits);

  // The handlers need the engine; the listeners only keep the ports until then.
  MetricsRegistry& registry = MetricsRegistry::Global();
  std::unique_ptr<engine::StepProfiler> profiler;
  if (config.profile.http_enable) {
    engine::StepProfilerOptions options;
    options.default_dir = config.profile.dir;
    profiler = std::make_unique<engine::StepProfiler>(std::move(options));
  }
  std::unique_ptr<server::Service> service;
  server::AdminHooks hooks;
  hooks.set_draining = [&service](bool is_draining) {
    if (service != nullptr) service->SetDraining(is_draining);
  };
  hooks.set_log_level = [&config](const std::string& level) {
    return InitLogging(level, config.log.format == "json" ? LogFormat::kJson : LogFormat::kText);
  };
  server::Backend* backend_pointer = nullptr;
  hooks.server_info = [&] {
    Json info{{"version", Version()}, {"git", Commit()}, {"options", OptionsJson(config)}};
    if (backend_pointer != nullptr) {
      const server::BackendState state = backend_pointer->State();
      info["running"] = state.num_running;
      info["waiting"] = state.num_waiting;
      info["connections"] = http.num_connections();
    }
    return info;
  };
  DI_ASSIGN_OR_RETURN(std::unique_ptr<server::LineFile> audit, OpenLog(serve.audit_log, server::LineFile::Durability::kSync));
  server::AdminService admin(registry, profiler.get(), hooks, std::move(audit));

  // Ports are taken before the model is loaded, its service is made after; nothing is accepted in between.
  struct PublicHandler : server::RequestHandler {
    std::atomic<server::Service*> service{nullptr};
    std::optional<server::HttpResponse> CheckHead(server::Exchange& exchange, const server::HttpRequest& head) override {
      return service.load()->CheckHead(exchange, head);
    }
    void OnRequest(std::shared_ptr<server::Exchange> exchange) override { service.load()->OnRequest(std::move(exchange)); }
    server::HttpResponse MakeError(server::Exchange& exchange, const server::HttpRequest* head, int status, const std::string& message) override {
      return service.load()->MakeError(exchange, head, status, message);
    }
    void OnOver(server::Exchange& exchange) override { service.load()->OnOver(exchange); }
  } handler;

  DI_ASSIGN_OR_RETURN(const std::shared_ptr<server::Listener> listener, http.Listen(serve.host, static_cast<int>(serve.port), handler));
  listener->SetTls(tls);
  std::shared_ptr<server::Listener> admin_listener;
  if (serve.admin_port > 0) {
    DI_ASSIGN_OR_RETURN(admin_listener, http.Listen("127.0.0.1", static_cast<int>(serve.admin_port), admin, "--admin-port"));
  }
  if (profiler != nullptr) {
    Result<std::shared_ptr<server::Listener>> opened = http.Listen("127.0.0.1", static_cast<int>(config.profile.http_port_base), admin);
    if (!opened.ok()) DI_LOG(warn, "no profiling: {}", opened.status().message());
  }

  DI_ASSIGN_OR_RETURN(const auto engine, LoadEngineFor(invocation, false, Defaults::kProduction, [&](engine::LoadOptions& options) {
    options.max_queued_requests = serve.max_queued_requests;
    options.registry = &registry;
    options.build = {Version(), Commit(), "cpu"};
    options.disable_log_stats = config.log.quiet;
    if (profiler != nullptr) options.on_step = [&profiler](const engine::StepTiming& timing) { profiler->OnStep(timing); };
  }));
  DI_ASSIGN_OR_RETURN(engine::AsyncEngine* const async, engine->async_engine());
  const std::unique_ptr<server::Backend> backend = server::MakeEngineBackend(*async, engine->model().max_model_len());
  backend_pointer = backend.get();

  server::ServiceOptions options;
  options.convert = ToConvertOptions(config.protocol, serve);
  Result<text::PromptTokens> tokens = text::PromptTokens::FromTokenizer(engine->tokenizer());
  if (tokens.ok()) options.convert.tokens = *std::move(tokens);
  else options.chat_status = tokens.status();
  options.generation.first_token_ns = serve.ttft_timeout_s * kNs;
  options.max_streams_per_key = serve.max_streams_per_key;
  options.checks_host = listener->is_loopback();
  options.allowed_hosts = serve.allowed_hosts;
  options.allowed_origins = serve.allowed_origins;
  options.version = Version();
  options.git = Commit();
  options.backend = "cpu";
  options.created = std::time(nullptr);
  options.tracer = tracer.get();
  DI_ASSIGN_OR_RETURN(std::unique_ptr<server::LineFile> access, OpenLog(serve.access_log, server::LineFile::Durability::kNone));
  DI_ASSIGN_OR_RETURN(std::unique_ptr<server::LineFile> usage, OpenLog(serve.usage_log, server::LineFile::Durability::kSync));
  server::RequestLog log(registry, std::move(access), std::move(usage));
  service = std::make_unique<server::Service>(*backend, *keys, registry, log, std::move(options));
  if (!serve.usage_log.empty()) DI_RETURN_IF_ERROR(service->ledger().ReadUsage(serve.usage_log));
  handler.service.store(service.get());

  SignalScope signals;
  http.Start();
  if (!config.log.quiet) {
    const engine::SchedulerOptions& scheduler = async->core().options().scheduler;
    DI_LOG(info, "deepinfer {} serves {} ({:.1f} s to load): {} requests at once, {} tokens each, {} cache blocks, {} open files", Version(),
           config.model.model, engine->load_s(), scheduler.max_num_seqs, engine->model().max_model_len(), scheduler.num_blocks, max_files);
    DI_LOG(info, "listening on {}://{}:{}{}", tls != nullptr ? "https" : "http", serve.host, listener->port(),
           admin_listener != nullptr ? fmt::format(", admin port {}", admin_listener->port()) : "");
  }
  if (!listener->is_loopback() && !keys->is_required()) {
    DI_LOG(warn, "{} can be reached from other machines and asks for no API key; set --api-key or --api-key-file", serve.host);
  }

  const server::ServiceNotifier notifier(invocation.environment);
  notifier.Send("READY=1");
  int64_t fed_ns = 0;
  // A hung engine is not reported as alive, so the service manager starts it again.
  const auto feed_watchdog = [&] {
    const int64_t now_ns = Clock::Steady().NowNs();
    if (notifier.watchdog_ns() == 0 || now_ns - fed_ns < notifier.watchdog_ns() / 2 || !backend->State().is_healthy) return;
    fed_ns = now_ns;
    notifier.Send("WATCHDOG=1");
  };

  for (int polls = 0; signals.num_stops() == 0; ++polls) {
    std::this_thread::sleep_for(kPoll);
    feed_watchdog();
    const bool is_told = signals.TakeReloads() > 0;
    if (is_told && tls != nullptr) {
      Result<std::shared_ptr<server::TlsContext>> reloaded = LoadTls(serve);
      if (reloaded.ok()) listener->SetTls(*reloaded);
      else DI_LOG(error, "the certificate stays as it was: {}", reloaded.status().message());
    }
    if (is_told || polls % kReloadEvery == 0) {
      const Result<bool> reloaded = keys->Reload(is_told);
      if (!reloaded.ok()) DI_LOG(error, "the API keys stay as they were: {}", reloaded.status().message());
      else if (*reloaded) DI_LOG(info, "read the API keys again");
    }
  }

  // Drain: nothing new begins, what runs may end.
  const int num_stops = signals.num_stops();
  service->SetDraining(true);
  notifier.Send("STOPPING=1");
  if (!config.log.quiet && service->num_active() > 0) {
    DI_LOG(info, "shutting down: {} requests are running and have {} s to end; a second signal ends them now", service->num_active(), serve.drain_seconds);
  }
  http.CloseIdle();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(serve.drain_seconds);
  while (service->num_active() > 0 && signals.num_stops() == num_stops && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kPoll);
    feed_watchdog();
  }
  if (service->num_active() > 0) {
    service->AbortAll();
    // Their last words leave within a moment.
    for (int i = 0; i < 20 && service->num_active() > 0; ++i) std::this_thread::sleep_for(kPoll / 2);
  }
  service->StopWorkers();
  admin.StopWorkers();
  http.Stop();
  if (signals.is_interrupt()) invocation.exit_code = 130;
  return Status::Ok();
}

}  // namespace

Command ServeCommand() {
  return {.name = "serve",
          .summary = "answer the OpenAI and Anthropic HTTP APIs",
          .usage = "",
          .run = RunServe,
          .arg_choices = {},
          .details = "POST /v1/chat/completions, /v1/responses, /v1/messages, /v1/completions; GET /v1/models, /readyz, /metrics.\n"
                     "Ctrl-C or SIGTERM lets running requests end; SIGHUP reads keys and certificates again."};
}

}  // namespace deepinfer::cli
