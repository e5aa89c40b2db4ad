// SPDX-License-Identifier: Apache-2.0
//
// A server for tests: the real HTTP layer, protocols and tokenizer in front of a scripted backend. Prints its port and runs until
// its standard input ends. A line there is a command, answered by a line: "keys" reads the keys again, "drain" refuses new
// requests, "request" prints the last request as the backend saw it, a JSON object is a script to add. Arguments: --keys FILE,
// --access-log FILE, --max-streams N, --ttft-ms N, --keep-alive-ms N, --request-ms N, --origin O, --max-body-kib N, and
// for measurements --steps-per-s R (0: as fast as it can) and --answer-tokens N: a recorded answer for every request.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/check.h"
#include "core/file.h"
#include "core/log.h"
#include "core/metrics.h"
#include "server/http_server.h"
#include "e2e/recorded_answer.h"
#include "e2e/scripted_backend.h"
#include "server/service.h"
#include "text/prompt_renderer.h"

namespace deepinfer::server {
namespace {

std::vector<Json> ReadCases(const std::string& path) {
  std::vector<Json> cases;
  const Result<std::string> text = ReadFile(path, int64_t{1} << 28);
  DI_CHECK(text.ok()) << text.status().ToString();
  for (size_t begin = 0; begin < text->size();) {
    const size_t end = std::min(text->find('\n', begin), text->size());
    if (end > begin) cases.push_back(ParseJson(std::string_view(*text).substr(begin, end - begin)).value());
    begin = end + 1;
  }
  return cases;
}

int Main(const std::vector<std::string>& arguments) {
  DI_CHECK(InitLogging("warn", LogFormat::kText).ok());
  ServiceOptions options;
  ConnectionLimits limits;
  std::string keys_file, access_log;
  double steps_per_s = -1;
  int64_t answer_tokens = 0;
  for (size_t i = 0; i + 1 < arguments.size(); i += 2) {
    const std::string &name = arguments[i], &value = arguments[i + 1];
    if (name == "--keys") keys_file = value;
    else if (name == "--access-log") access_log = value;
    else if (name == "--max-streams") options.max_streams_per_key = std::stoll(value);
    else if (name == "--ttft-ms") options.generation.first_token_ns = std::stoll(value) * 1'000'000;
    else if (name == "--keep-alive-ms") options.generation.keep_alive_ns = std::stoll(value) * 1'000'000;
    else if (name == "--request-ms") limits.request_ns = std::stoll(value) * 1'000'000;
    else if (name == "--max-body-kib") limits.http.max_body_bytes = std::stoull(value) << 10;
    else if (name == "--origin") options.allowed_origins.push_back(value);
    else if (name == "--steps-per-s") steps_per_s = std::stod(value);
    else if (name == "--answer-tokens") answer_tokens = std::stoll(value);
    else DI_CHECK(false) << "unknown argument " << name;
  }
  const std::string golden = std::string(DEEPINFER_SOURCE_DIR) + "/tests/golden/";
  const auto tokenizer = text::Tokenizer::Load(golden + "tokenizer");
  DI_CHECK(tokenizer.ok()) << tokenizer.status().ToString();
  options.convert.tokens = text::PromptTokens::FromTokenizer(**tokenizer).value();
  ScriptedBackend backend(**tokenizer, int64_t{1} << 20);
  for (const char* api : {"chat", "responses", "messages"}) {
    for (const Json& one : ReadCases(golden + "protocols/" + api + "_stream.jsonl")) backend.AddCase(one);
  }
  if (steps_per_s >= 0) backend.PlaySteps(RecordedSteps(**tokenizer, answer_tokens), steps_per_s);
  const auto keys = ApiKeys::Create({}, keys_file);
  DI_CHECK(keys.ok()) << keys.status().ToString();
  MetricsRegistry registry;
  std::unique_ptr<LineFile> access;
  if (!access_log.empty()) access = LineFile::Open(access_log, LineFile::Durability::kNone).value();
  RequestLog log(registry, std::move(access), nullptr);
  RaiseOpenFileLimit();
  Service service(backend, **keys, registry, log, std::move(options));
  HttpServer http(1, limits);
  const auto listener = http.Listen("127.0.0.1", 0, service);
  DI_CHECK(listener.ok()) << listener.status().ToString();
  http.Start();
  std::printf("%d\n", (*listener)->port());
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::string answer = "ok";
    if (line == "request") answer = DumpJson(backend.LastRequest());
    else if (line == "keys") (void)(*keys)->Reload(true);
    else if (line == "drain") service.SetDraining(true);
    else backend.AddCase(ParseJson(line).value());
    std::printf("%s\n", answer.c_str());
    std::fflush(stdout);
  }
  service.StopWorkers();
  http.Stop();
  return 0;
}

}  // namespace
}  // namespace deepinfer::server

int main(int argc, char** argv) { return deepinfer::server::Main(std::vector<std::string>(argv + 1, argv + argc)); }
