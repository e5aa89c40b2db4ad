// SPDX-License-Identifier: Apache-2.0
//
// bench serve: a load for a server that runs, what its clients saw of it, and what is left in the server afterwards.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/commands/bench_common.h"
#include "cli/commands/bench_serve_load.h"
#include "cli/svg.h"
#include "cli/version.h"
#include "core/threads.h"
#include "server/listener.h"

namespace deepinfer::cli {

namespace {

constexpr int64_t kDefaultPrompts = 100, kDefaultConcurrency = 16;
// Files that are open beside the connections.
constexpr int64_t kOtherFiles = 64;
constexpr double kMaxLoadPerCore = 0.75;

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

LoadApi ApiOf(const std::string& name) {
  if (name == "completions") return LoadApi::kCompletions;
  if (name == "messages") return LoadApi::kMessages;
  return name == "responses" ? LoadApi::kResponses : LoadApi::kChat;
}

Result<ServerLoad> LoadOf(const Invocation& invocation) {
  const Config& config = invocation.config;
  const ServeLoadConfig& from = config.load;
  ServerLoad load;
  DI_ASSIGN_OR_RETURN(load.address, ParseServerUrl(from.url));
  load.api = ApiOf(config.debug.api);
  if (load.api == LoadApi::kCompletions && from.with_tool) return InvalidArgument("--with-tool: Completions have no tools; choose another --api");
  if (!config.serve.api_keys.empty()) load.api_key = config.serve.api_keys.front();
  load.with_tool = from.with_tool;
  load.input_tokens = config.bench.input_tokens;
  load.output_tokens = config.bench.output_tokens;
  load.duration_ns = from.duration_s * 1'000'000'000;
  load.num_prompts = from.num_prompts > 0 ? from.num_prompts : from.duration_s > 0 ? 0 : kDefaultPrompts;
  load.request_rate = from.request_rate;
  load.concurrency = config.batch.concurrency > 0 ? config.batch.concurrency : from.request_rate > 0 ? 0 : kDefaultConcurrency;
  load.disconnect_rate = from.disconnect_rate;
  load.idle_connections = from.idle_connections;
  load.big_bodies = from.big_bodies;
  load.big_body_bytes = from.big_body_mib << 20;
  load.seed = static_cast<uint64_t>(config.sampling.seed.value_or(0));
  load.model = from.model_name;
  const int64_t max_files = server::RaiseOpenFileLimit();
  const int64_t needed = load.concurrency + load.idle_connections + load.big_bodies + kOtherFiles;
  if (max_files > 0 && needed > max_files) {
    return InvalidArgument(fmt::format("--concurrency and --idle-connections need {} open files but this process may have {}; lower them or raise "
                                       "the limit (ulimit -n)", needed, max_files));
  }
  if (load.model.empty()) {
    DI_ASSIGN_OR_RETURN(const std::unique_ptr<LoadClient> client, LoadClient::Make(load.address));
    DI_ASSIGN_OR_RETURN(load.model, FirstModel(*client, load));
  }
  return load;
}

// The names that `vllm bench serve` has for them.
void AddTimes(Json& record, const char* name, const std::vector<double>& values) {
  record[fmt::format("mean_{}_ms", name)] = Mean(values);
  record[fmt::format("median_{}_ms", name)] = Median(values);
  record[fmt::format("p90_{}_ms", name)] = Quantile(values, 0.9);
  record[fmt::format("p99_{}_ms", name)] = Quantile(values, 0.99);
}

struct Gaps {
  std::vector<double> ms, jitter_ms;
  double max_ms = 0;
};

Gaps GapsOf(const ServerLoadResult& result, double stream_rate) {
  Gaps gaps;
  gaps.ms.assign(result.gaps_ms.begin(), result.gaps_ms.end());
  for (const double gap : gaps.ms) {
    gaps.max_ms = std::max(gaps.max_ms, gap);
    if (stream_rate > 0) gaps.jitter_ms.push_back(std::fabs(gap - 1e3 / stream_rate));
  }
  return gaps;
}

Json RecordOf(const Invocation& invocation, const ServerLoad& load, const ServerLoadResult& result, const Gaps& gaps, const Json& host, double load1) {
  Json record{{"bench", "serve"},
              {"url", invocation.config.load.url},
              {"api", invocation.config.debug.api},
              {"model", load.model},
              {"commit", Commit()},
              {"dirty", IsDirty()},
              {"date_utc", UtcDate()},
              {"host", host},
              {"settings", SettingsOf(invocation)}};
  record["shape"] = {{"input_tokens", load.input_tokens}, {"output_tokens", load.output_tokens}, {"seed", load.seed}};
  record["duration"] = result.seconds;
  record["completed"] = result.num_ok;
  record["failed"] = result.num_failed;
  record["lost"] = result.num_lost;
  record["left_by_client"] = result.num_left;
  record["cut_off"] = result.num_cut_off;
  record["by_status"] = Json::object();
  for (const auto& [status, count] : result.by_status) record["by_status"][std::to_string(status)] = count;
  record["errors"] = Json::object();
  for (const auto& [error, count] : result.errors) record["errors"][error] = count;
  record["max_concurrent_requests"] = result.max_under_way;
  record["connections"] = result.num_connections;
  record["total_input_tokens"] = result.prompt_tokens;
  record["total_cached_tokens"] = result.cached_tokens;
  record["total_output_tokens"] = result.output_tokens;
  const double seconds = std::max(result.seconds, 1e-9);
  record["request_throughput"] = static_cast<double>(result.num_ok) / seconds;
  record["output_throughput"] = result.tokens_per_s();
  record["total_token_throughput"] = static_cast<double>(result.prompt_tokens + result.output_tokens) / seconds;
  record["out_tok_s"] = result.tokens_per_s();
  record["in_tok_s"] = static_cast<double>(result.prompt_tokens) / seconds;
  record["cache_hit"] = result.prompt_tokens > 0 ? static_cast<double>(result.cached_tokens) / static_cast<double>(result.prompt_tokens) : 0.0;
  AddTimes(record, "ttft", result.ttft_ms);
  AddTimes(record, "tpot", result.tpot_ms);
  AddTimes(record, "itl", gaps.ms);
  record["max_itl_ms"] = gaps.max_ms;
  AddTimes(record, "e2el", result.e2el_ms);
  record["ttft_ms"] = Percentiles(result.ttft_ms);
  record["tpot_ms"] = Percentiles(result.tpot_ms);
  if (!gaps.jitter_ms.empty()) AddTimes(record, "jitter", gaps.jitter_ms);
  if (result.num_idle_open > 0) {
    record["idle"] = {{"opened", result.num_idle_open},
                      {"open_at_end", result.num_idle_kept},
                      {"bytes_each", result.idle_bytes},
                      {"bytes_each_after_request", result.idle_used_bytes}};
  }
  if (load.big_bodies > 0) {
    record["big_bodies"] = {{"bytes", load.big_body_bytes}, {"sent", result.num_big}, {"failed", result.num_big_failed}, {"ms", Percentiles(result.big_ms)}};
  }
  Json server = Json::object();
  for (const char* name : {"process_resident_memory_bytes", "process_open_fds", "deepinfer_requests_running", "deepinfer_requests_waiting",
                           "deepinfer_http_generations", "deepinfer_kv_blocks_used"}) {
    if (result.after.Get(name) >= 0) server[name] = result.after.Get(name);
  }
  const double cpu_s = result.after.Get("process_cpu_seconds_total") - result.before.Get("process_cpu_seconds_total");
  if (result.after.Get("process_cpu_seconds_total") >= 0 && result.before.Get("process_cpu_seconds_total") >= 0) server["cpu_s"] = cpu_s;
  record["server_after"] = server;
  record["leaked"] = result.leaked();
  record["valid"] = load1 <= kMaxLoadPerCore * ThreadPool::NumAvailableCores();
  return record;
}

void Print(Invocation& invocation, const ServerLoadResult& result, const Gaps& gaps, const Json& record) {
  const auto line = [&](const std::string& text) { invocation.out.Line(text); };
  const auto whole = [&](const char* name, int64_t value) { line(fmt::format("{:<42}{:<10}", name, value)); };
  const auto number = [&](const std::string& name, double value) { line(fmt::format("{:<42}{:<10.2f}", name, value)); };
  const auto heading = [&](std::string_view text) { line(fmt::format("{:-^52}", text)); };
  line(fmt::format("{:=^52}", " Serving Benchmark Result "));
  whole("Successful requests:", result.num_ok);
  whole("Failed requests:", result.num_failed);
  whole("Lost connections:", result.num_lost);
  if (result.num_left > 0) whole("Left by the client:", result.num_left);
  if (result.num_cut_off > 0) whole("Cut off at the end:", result.num_cut_off);
  for (const auto& [status, count] : result.by_status) {
    if (status != 200) whole(status == 0 ? "  without a response:" : fmt::format("  status {}:", status).c_str(), count);
  }
  whole("Peak concurrent requests:", result.max_under_way);
  number("Benchmark duration (s):", result.seconds);
  whole("Total input tokens:", result.prompt_tokens);
  whole("  of them cached:", result.cached_tokens);
  whole("Total generated tokens:", result.output_tokens);
  number("Request throughput (req/s):", record["request_throughput"].get<double>());
  number("Output token throughput (tok/s):", result.tokens_per_s());
  number("Total token throughput (tok/s):", record["total_token_throughput"].get<double>());
  const auto times = [&](std::string_view title, const char* name, const std::vector<double>& values) {
    heading(title);
    number(fmt::format("Mean {} (ms):", name), Mean(values));
    number(fmt::format("Median {} (ms):", name), Median(values));
    number(fmt::format("P90 {} (ms):", name), Quantile(values, 0.9));
    number(fmt::format("P99 {} (ms):", name), Quantile(values, 0.99));
  };
  times("Time to First Token", "TTFT", result.ttft_ms);
  times("Time per Output Token (excl. 1st token)", "TPOT", result.tpot_ms);
  times("Inter-token Latency", "ITL", gaps.ms);
  number("Max ITL (ms):", gaps.max_ms);
  if (!gaps.jitter_ms.empty()) times("Jitter (ITL less the server's step)", "jitter", gaps.jitter_ms);
  times("End-to-end Latency", "E2EL", result.e2el_ms);
  heading("Server afterwards");
  if (result.num_idle_open > 0) {
    whole("Idle connections open all the while:", result.num_idle_kept);
    number("Memory of one, new (KiB):", result.idle_bytes / 1024);
    number("Memory of one, after a request (KiB):", result.idle_used_bytes / 1024);
  }
  if (record.contains("big_bodies")) {
    whole("Large bodies counted:", result.num_big - result.num_big_failed);
    whole("Large bodies refused:", result.num_big_failed);
    number("Median time of one (ms):", Median(result.big_ms));
  }
  const double leaked = record["leaked"].get<double>();
  if (leaked >= 0) {
    whole("Requests running:", static_cast<int64_t>(result.after.Get("deepinfer_requests_running")));
    if (result.after.Get("deepinfer_kv_blocks_used") >= 0) whole("Cache blocks in use:", static_cast<int64_t>(result.after.Get("deepinfer_kv_blocks_used")));
    whole("Leaked:", static_cast<int64_t>(leaked));
  }
  line(std::string(52, '='));
  for (const auto& [error, count] : result.errors) line(fmt::format("{} x {}", count, error));
  if (!record["valid"].get<bool>()) line("the machine was busy: these figures are no measurement");
}

Status RunBenchServe(Invocation& invocation) {
  const Config& config = invocation.config;
  DI_RETURN_IF_ERROR(CheckPlotName(config.output.plot));
  DI_ASSIGN_OR_RETURN(const ServerLoad load, LoadOf(invocation));
  const Json host = HostRecord();
  const double load1 = LoadAverage();
  ServerLoadResult result;
  {
    Progress progress("bench serve", {.quiet = config.log.quiet, .unit = ProgressUnit::kItems, .clock = nullptr, .write_line = {}});
    DI_ASSIGN_OR_RETURN(result, RunServerLoad(load, progress));
  }
  const Gaps gaps = GapsOf(result, config.load.stream_rate);
  const Json record = RecordOf(invocation, load, result, gaps, host, load1);
  DI_RETURN_IF_ERROR(WritePlot(invocation, [&] {
    std::vector<std::pair<std::string, double>> bars;
    for (const double q : {0.5, 0.9, 0.99}) bars.emplace_back(fmt::format("first token p{:.0f}", q * 100), Quantile(result.ttft_ms, q));
    for (const double q : {0.5, 0.9, 0.99}) bars.emplace_back(fmt::format("next token p{:.0f}", q * 100), Quantile(gaps.ms, q));
    return BarChart(fmt::format("{}: {} requests, {:.0f} tokens/s", config.load.url, result.num_ok, result.tokens_per_s()), bars, "ms");
  }));
  DI_ASSIGN_OR_RETURN(const bool is_written, WriteRecord(invocation, record));
  if (!is_written) Print(invocation, result, gaps, record);
  if (result.is_interrupted) invocation.exit_code = 130;
  else if (result.num_failed > 0 || result.num_big_failed > 0) invocation.exit_code = 1;
  return invocation.out.Check();
}

}  // namespace

Command BenchServeCommand() {
  return {.name = "bench serve",
          .summary = "a load for a server that runs, and what its clients saw",
          .usage = "",
          .min_args = 0,
          .max_args = 0,
          .run = RunBenchServe,
          .arg_choices = {},
          .details = "Streams seeded random words: --concurrency of them at once, or --request-rate arrivals a second. Every stream is checked to\n"
                     "its end. Exit code 1 when a request failed. Works with any server of these APIs; what is left in it afterwards is read from\n"
                     "its /metrics."};
}

}  // namespace deepinfer::cli
