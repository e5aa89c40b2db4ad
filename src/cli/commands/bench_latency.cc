// SPDX-License-Identifier: Apache-2.0
//
// bench latency: what one user alone waits for: the first token, cold and with a part of the prompt in the prefix cache, and
// the tokens after it.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/commands/bench_common.h"
#include "cli/commands/bench_load.h"
#include "cli/commands/model_session.h"
#include "cli/svg.h"
#include "core/progress.h"

namespace deepinfer::cli {

namespace {

struct Latency {
  std::vector<double> ttft_ms, itl_ms, tpot_ms, hit_ttft_ms, ratio;
  int64_t hit_tokens = 0, cached_tokens = 0;  // shared, and found of them
  std::vector<double> exposed_decode;
};

Status RunLatency(Invocation& invocation) {
  const Config& config = invocation.config;
  const BenchConfig& bench = config.bench;
  DI_RETURN_IF_ERROR(CheckPlotName(config.output.plot));
  if (invocation.sources.IsSet("batch") && bench.batch != 1) return InvalidArgument("bench latency runs one sequence; leave --batch out");
  if (bench.async_steps == "both") return InvalidArgument("--async both is for bench throughput and bench sweep; choose on or off");
  StepRecorder recorder;
  DI_ASSIGN_OR_RETURN(const auto engine, LoadEngineFor(invocation, false, Defaults::kProduction,
                                                       recorder.Installer()));
  DI_ASSIGN_OR_RETURN(engine::AsyncEngine* const async, engine->async_engine());
  DI_ASSIGN_OR_RETURN(const LoadSpec spec, LoadSpecOf(invocation, engine->model().max_model_len(), 1));
  RunRecord run("latency", invocation, *engine);
  async->core().SetAsync(bench.async_steps != "off");
  TokenStream tokens(config.sampling.seed.value_or(0), *engine);
  Latency latency;
  latency.hit_tokens = std::llround(static_cast<double>(spec.input_tokens) * bench.prefix_hit / 100);
  Progress progress("bench latency", {.quiet = config.log.quiet, .unit = ProgressUnit::kItems, .clock = nullptr, .write_line = {}});
  for (int64_t repeat = -1; repeat < bench.repeats; ++repeat) {
    std::vector<LoadRequest> cold(1), hit(1);
    cold[0] = {.prompt_ids = tokens.Take(spec.input_tokens), .output_tokens = spec.output_tokens,
               .cache_salt = fmt::format("repeat {}", repeat)};
    DI_ASSIGN_OR_RETURN(const LoadResult first, RunLoad(*async, recorder, cold, 1));
    double hit_ms = 0;
    int64_t cached = 0;
    if (latency.hit_tokens > 0) {
      // The same beginning, then other tokens.
      hit = cold;
      hit[0].output_tokens = 1;
      const std::vector<int32_t> rest = tokens.Take(spec.input_tokens - latency.hit_tokens);
      std::copy(rest.begin(), rest.end(), hit[0].prompt_ids.begin() + latency.hit_tokens);
      DI_ASSIGN_OR_RETURN(const LoadResult second, RunLoad(*async, recorder, hit, 1));
      hit_ms = second.ttft_ms[0];
      cached = second.cached_tokens;
    }
    run.Sweep();
    if (repeat < 0) continue;  // warm-up
    latency.ttft_ms.push_back(first.ttft_ms[0]);
    latency.tpot_ms.insert(latency.tpot_ms.end(), first.tpot_ms.begin(), first.tpot_ms.end());
    latency.itl_ms.insert(latency.itl_ms.end(), first.itl_ms.begin(), first.itl_ms.end());
    latency.exposed_decode.push_back(FiguresOf(first.steps, 0).exposed_decode_share);
    if (latency.hit_tokens > 0) {
      latency.hit_ttft_ms.push_back(hit_ms);
      latency.ratio.push_back(hit_ms / first.ttft_ms[0]);
      latency.cached_tokens = cached;
    }
    progress.Update(repeat + 1, bench.repeats);
  }

  Json record = run.Begin();
  record["shape"] = {{"workload", spec.workload}, {"input_tokens", spec.input_tokens}, {"output_tokens", spec.output_tokens},
                     {"prefix_hit_percent", bench.prefix_hit}, {"seed", config.sampling.seed.value_or(0)}};
  record["batch"] = 1;
  record["context"] = spec.input_tokens + spec.output_tokens;
  record["reps"] = bench.repeats;
  record["async"] = bench.async_steps;
  record.update(Spread(latency.ttft_ms));
  record["unit"] = "ms to the first token";
  record["ttft_ms"] = Percentiles(latency.ttft_ms);
  record["tpot_ms"] = Percentiles(latency.tpot_ms);
  record["itl_ms"] = Percentiles(latency.itl_ms);
  record["exposed_decode_share"] = Median(latency.exposed_decode);
  record["al"] = 1.0;
  if (latency.hit_tokens > 0) {
    record["ttft_hit_ms"] = Percentiles(latency.hit_ttft_ms);
    record["ttft_hit_ratio"] = Spread(latency.ratio);
    record["shared_tokens"] = latency.hit_tokens;
    record["cached_tokens"] = latency.cached_tokens;
    record["cache_hit"] = static_cast<double>(latency.cached_tokens) / static_cast<double>(spec.input_tokens);
  }
  run.End(record);
  DI_RETURN_IF_ERROR(WritePlot(invocation, [&] {
    std::vector<std::pair<std::string, double>> bars = {{"first token", Quantile(latency.ttft_ms, 0.5)}};
    if (latency.hit_tokens > 0) bars.emplace_back(fmt::format("with {} shared tokens", latency.hit_tokens), Quantile(latency.hit_ttft_ms, 0.5));
    for (const double q : {0.5, 0.9, 0.99}) bars.emplace_back(fmt::format("next token p{:.0f}", q * 100), Quantile(latency.itl_ms, q));
    return BarChart(fmt::format("{}: one request of {} prompt tokens", config.model.model, spec.input_tokens), bars, "ms");
  }));
  DI_ASSIGN_OR_RETURN(const bool is_written, WriteRecord(invocation, record));
  if (is_written) return Status::Ok();

  const auto line = [&](const char* name, const std::vector<double>& values) {
    invocation.out.Line(fmt::format("{:<24} {:9.3f} ms p50, {:.3f} p90, {:.3f} p99", name, Quantile(values, 0.5), Quantile(values, 0.9),
                                    Quantile(values, 0.99)));
  };
  invocation.out.Line(fmt::format("{}: one request of {} prompt and {} output tokens, {} repeats, {} threads, decoder replay {}",
                                  config.model.model, spec.input_tokens, spec.output_tokens, bench.repeats, record["threads"].get<int>(),
                                  record["decoder_replay"].get<std::string>()));
  line("first token", latency.ttft_ms);
  if (latency.hit_tokens > 0) {
    line("first token, prefix known", latency.hit_ttft_ms);
    invocation.out.Line(fmt::format("{:<24} {:9.1f} % of the cold one; {} of {} tokens shared, {} found in the cache", "", Median(latency.ratio) * 100,
                                    latency.hit_tokens, spec.input_tokens, latency.cached_tokens));
  }
  line("per token", latency.tpot_ms);
  line("between two tokens", latency.itl_ms);
  invocation.out.Line(fmt::format("{:<24} {:9.2f} % of the time between decode steps", "device waits", Median(latency.exposed_decode) * 100));
  if (!record["valid"].get<bool>()) invocation.out.Line("the machine was busy: these figures are no measurement");
  return invocation.out.Check();
}

}  // namespace

Command BenchLatencyCommand() {
  return {.name = "bench latency",
          .summary = "time to the first token and between tokens of one request alone",
          .usage = "",
          .min_args = 0,
          .max_args = 0,
          .run = RunLatency,
          .arg_choices = {},
          .details = "Seeded random prompts, greedy. --prefix-hit P also times a second request whose first P percent are those of the\n"
                     "first one."};
}

}  // namespace deepinfer::cli
