// SPDX-License-Identifier: Apache-2.0
//
// What HTTP and conversion add to the time to the first token of one request alone: the same chat prompt once submitted to
// the engine inside the process and once sent through the server, in turn (A B B A), with the demo model and with a backend that
// answers at once. One JSON record a line. Arguments: [--pairs N] [--input-tokens N].
#include <atomic>
#include <cstdio>
#include <future>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/bench_serve_load.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/measure.h"
#include "engine/load.h"
#include "protocols/convert_request.h"
#include "server/http_server.h"
#include "server/service.h"
#include "tests/e2e/recorded_answer.h"
#include "tests/e2e/scripted_backend.h"
#include "text/prompt_renderer.h"

namespace deepinfer {
namespace {

constexpr int64_t kWarmUp = 5;
constexpr int64_t kOutputTokens = 4;
constexpr double kStepsPerS = 500;
// Tokens of a word in the demo model's small vocabulary, at most.
constexpr int64_t kDemoTokensPerWord = 4;

double Ms(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

class Overhead {
 public:
  Overhead(server::Backend& backend, const std::string& name, int64_t input_tokens) : backend_(backend), name_(name) {
    options_.convert.tokens = text::PromptTokens::FromTokenizer(backend.tokenizer()).value();
    load_.model = "deepseek-flash";
    load_.input_tokens = input_tokens;
    load_.output_tokens = kOutputTokens;
  }

  void Run(int64_t num_pairs) {
    MetricsRegistry registry;
    const auto keys = server::ApiKeys::Create({}, "").value();
    server::RequestLog log(registry, nullptr, nullptr);
    server::Service service(backend_, *keys, registry, log, options_);
    server::HttpServer http(1, {});
    const auto listener = http.Listen("127.0.0.1", 0, service).value();
    http.Start();
    load_.address = cli::ParseServerUrl(fmt::format("http://127.0.0.1:{}", listener->port())).value();
    const auto client = cli::LoadClient::Make(load_.address).value();

    std::vector<double> inside, outside, added;
    for (int64_t i = -kWarmUp; i < num_pairs; ++i) {
      const std::string body = Body(i + kWarmUp);
      double in_ms = 0, out_ms = 0;
      for (int turn = 0; turn < 2; ++turn) {
        if ((turn == 0) == (i % 2 == 0)) in_ms = Inside(body);
        else out_ms = Outside(*client, body);
      }
      if (i < 0) continue;
      inside.push_back(in_ms);
      outside.push_back(out_ms);
      added.push_back(out_ms - in_ms);
    }
    service.StopWorkers();
    http.Stop();
    const auto percentiles = [](const std::vector<double>& values) {
      return Json{{"p50", Quantile(values, 0.5)}, {"p90", Quantile(values, 0.9)}, {"p99", Quantile(values, 0.99)}};
    };
    std::printf("%s\n", DumpJson(Json{{"bench", "serve_overhead"}, {"backend", name_}, {"date_utc", UtcDate()}, {"host", HostRecord()},
                                      {"input_tokens", load_.input_tokens}, {"pairs", num_pairs}, {"inside_ttft_ms", percentiles(inside)},
                                      {"http_ttft_ms", percentiles(outside)}, {"added_ms", percentiles(added)}}).c_str());
    std::fflush(stdout);
  }

 private:
  // The same prompt for both, so nothing of it may be found in the prefix cache.
  std::string Body(int64_t i) const {
    const std::string request = cli::MakeLoadRequest(load_, i, kOutputTokens);
    Json body = ParseJson(std::string_view(request).substr(request.find("\r\n\r\n") + 4)).value();
    body["cache_mode"] = "off";
    return DumpJson(body);
  }

  // From the submission of token ids to the first token.
  double Inside(const std::string& body) {
    const auto converted = protocols::ConvertRequest(protocols::Api::kChat, std::string_view(body), options_.convert).value();
    auto text = server::MakeTextRequest(converted, backend_.tokenizer(), options_.convert, backend_.max_model_len(), backend_.grammar_check()).value();
    std::promise<void> ended;
    std::atomic<int64_t> first_ns{0};
    const int64_t begin_ns = Clock::Steady().NowNs();
    const auto handle = backend_.Submit({std::move(text), "inside"}, [&](const server::BackendOutput& output) {
      int64_t none = 0;
      if (output.token != nullptr) first_ns.compare_exchange_strong(none, Clock::Steady().NowNs());
      if (output.finish_reason != FinishReason::kNone) ended.set_value();
      return StreamAction::kContinue;
    });
    DI_CHECK(handle.ok()) << handle.status().ToString();
    ended.get_future().wait();
    return Ms(first_ns - begin_ns);
  }

  double Outside(cli::LoadClient& client, const std::string& body) {
    double ms = 0;
    const auto request = std::make_shared<const std::string>(
        fmt::format("POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
    client.Send({.bytes = request}, [&](cli::LoadOutcome&& outcome) {
      DI_CHECK(outcome.is_ok()) << outcome.status << " " << outcome.error;
      ms = Ms(outcome.first_ns - outcome.begin_ns);
      client.Stop();
    });
    client.Run();
    return ms;
  }

  server::Backend& backend_;
  const std::string name_;
  server::ServiceOptions options_;
  cli::ServerLoad load_;
};

int Main(const std::vector<std::string>& arguments) {
  DI_CHECK(InitLogging("warn", LogFormat::kText).ok());
  int64_t num_pairs = 100, input_tokens = 64;
  for (size_t i = 0; i + 1 < arguments.size(); i += 2) {
    if (arguments[i] == "--pairs") num_pairs = std::stoll(arguments[i + 1]);
    else if (arguments[i] == "--input-tokens") input_tokens = std::stoll(arguments[i + 1]);
    else DI_CHECK(false) << "unknown argument " << arguments[i];
  }
  const std::string source = DEEPINFER_SOURCE_DIR;
  {
    const auto tokenizer = text::Tokenizer::Load(source + "/tests/golden/tokenizer").value();
    server::ScriptedBackend backend(*tokenizer, int64_t{1} << 20);
    // The first step comes at once, the others do not get in its way.
    std::vector<std::vector<int32_t>> steps = RecordedSteps(*tokenizer, 0);
    steps.resize(kOutputTokens);
    backend.PlaySteps(steps, kStepsPerS);
    Overhead(backend, "null", input_tokens).Run(num_pairs);
  }
  engine::LoadOptions options;
  options.model = source + "/models/demo";
  auto engine = engine::LoadEngine(std::move(options));
  DI_CHECK(engine.ok()) << engine.status().ToString();
  engine::AsyncEngine* const async = (*engine)->async_engine().value();
  const auto backend = server::MakeEngineBackend(*async, (*engine)->model().max_model_len());
  if (input_tokens * kDemoTokensPerWord < backend->max_model_len()) Overhead(*backend, "demo", input_tokens).Run(num_pairs);
  return 0;
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) { return deepinfer::Main(std::vector<std::string>(argv + 1, argv + argc)); }
