// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_point.h"

#include <fmt/format.h>

namespace deepinfer::cli {

void PointSide::Add(const LoadResult& result) {
  out_tok_s.push_back(result.output_tokens_per_s());
  in_tok_s.push_back(result.prompt_tokens_per_s());
  seconds.push_back(result.seconds);
  ttft_ms.insert(ttft_ms.end(), result.ttft_ms.begin(), result.ttft_ms.end());
  tpot_ms.insert(tpot_ms.end(), result.tpot_ms.begin(), result.tpot_ms.end());
  prompt_tokens += result.prompt_tokens;
  cached_tokens += result.cached_tokens;
  const StepFigures figures = FiguresOf(result.steps, result.idle_s);
  host_us.push_back(figures.host_us_per_sequence_step);
  exposed.push_back(figures.exposed_host_share);
  exposed_decode.push_back(figures.exposed_decode_share);
  rows_per_decode_step = figures.rows_per_decode_step;
  num_prefill_steps = figures.num_prefill_steps;
  num_decode_steps = figures.num_decode_steps;
}

Result<PointResult> MeasurePoint(const Invocation& invocation, engine::Engine& engine, engine::AsyncEngine& async, StepRecorder& recorder,
                                 const LoadSpec& spec, RunRecord& run, Progress* progress) {
  const BenchConfig& bench = invocation.config.bench;
  TokenStream tokens(invocation.config.sampling.seed.value_or(0), engine);
  std::vector<LoadRequest> requests(static_cast<size_t>(spec.num_requests));
  for (LoadRequest& request : requests) {
    request.prompt_ids = tokens.Take(spec.input_tokens);
    request.output_tokens = spec.output_tokens;
  }
  int64_t num_runs = 0;
  const auto run_once = [&](bool is_async) -> Result<LoadResult> {
    // The same prompts every time, and nothing to be found from the last time.
    for (LoadRequest& request : requests) request.cache_salt = fmt::format("run {}", num_runs);
    ++num_runs;
    async.core().SetAsync(is_async);
    return RunLoad(async, recorder, requests, spec.concurrency);
  };
  const bool both = bench.async_steps == "both", first = bench.async_steps != "off";
  PointResult point;
  PairedRatio pairs;
  DI_RETURN_IF_ERROR(run_once(first).status());  // warm-up
  for (int64_t repeat = 0; repeat < bench.repeats; ++repeat) {
    double rates[2] = {0, 0};
    for (int turn = 0; turn < (both ? 2 : 1); ++turn) {
      // A B B A: drift of the machine cancels.
      const bool is_async = both ? (turn == 0) == (repeat % 2 == 0) : first;
      DI_ASSIGN_OR_RETURN(const LoadResult result, run_once(is_async));
      (is_async ? point.on : point.off).Add(result);
      rates[is_async ? 0 : 1] = result.output_tokens_per_s();
    }
    if (both) pairs.Add(rates[0], rates[1]);
    run.Sweep();
    if (progress != nullptr) progress->Update(repeat + 1, bench.repeats);
  }
  async.core().SetAsync(true);
  if (both) point.ratio = pairs.Summarize();
  return point;
}

Json PointRecord(const Invocation& invocation, const RunRecord& run, const LoadSpec& spec, const PointResult& point) {
  const PointSide& side = point.main();
  Json record = run.Begin();
  record["shape"] = {{"workload", spec.workload}, {"requests", spec.num_requests}, {"input_tokens", spec.input_tokens},
                     {"output_tokens", spec.output_tokens}, {"seed", invocation.config.sampling.seed.value_or(0)}};
  record["batch"] = spec.concurrency;
  record["context"] = spec.input_tokens + spec.output_tokens;
  record["reps"] = invocation.config.bench.repeats;
  record["async"] = invocation.config.bench.async_steps;
  record.update(Spread(side.out_tok_s));
  record["unit"] = "output tokens/s";
  record["out_tok_s"] = Median(side.out_tok_s);
  record["in_tok_s"] = Median(side.in_tok_s);
  record["ttft_ms"] = Percentiles(side.ttft_ms);
  record["tpot_ms"] = Percentiles(side.tpot_ms);
  record["al"] = 1.0;
  record["cache_hit"] = side.prompt_tokens > 0 ? static_cast<double>(side.cached_tokens) / static_cast<double>(side.prompt_tokens) : 0.0;
  record["host_us_per_sequence_step"] = Median(side.host_us);
  record["exposed_host_share"] = Median(side.exposed);
  record["exposed_decode_share"] = Median(side.exposed_decode);
  record["rows_per_decode_step"] = side.rows_per_decode_step;
  record["prefill_steps"] = side.num_prefill_steps;
  record["decode_steps"] = side.num_decode_steps;
  if (point.ratio.kept > 0) {
    record["paired_ref"] = {{"name", "async off"},
                            {"median", point.ratio.reference},
                            {"ratio_median", point.ratio.ratio},
                            {"ratio_ci95", {point.ratio.low, point.ratio.high}},
                            {"pairs", point.ratio.kept}};
  }
  run.End(record);
  return record;
}

void PrintPoint(Invocation& invocation, const LoadSpec& spec, const PointResult& point, const Json& record) {
  const PointSide& side = point.main();
  const auto line = [&](const std::string& text) { invocation.out.Line(text); };
  line(fmt::format("{}: {} requests of {} prompt and {} output tokens, {} at once, {} repeats, {} threads, decoder replay {}",
                   record["model"].get<std::string>(), spec.num_requests, spec.input_tokens, spec.output_tokens, spec.concurrency,
                   invocation.config.bench.repeats, record["threads"].get<int>(), record["decoder_replay"].get<std::string>()));
  line(fmt::format("output           {:10.1f} tokens/s   (p10 {:.1f}, p90 {:.1f})", Median(side.out_tok_s), Quantile(side.out_tok_s, 0.1),
                   Quantile(side.out_tok_s, 0.9)));
  line(fmt::format("prompts          {:10.1f} tokens/s   {:.1f} % found in the cache", Median(side.in_tok_s),
                   record["cache_hit"].get<double>() * 100));
  const auto times = [&](const char* name, const std::vector<double>& values) {
    line(fmt::format("{:<16} {:10.2f} ms p50, {:.2f} p90, {:.2f} p99", name, Quantile(values, 0.5), Quantile(values, 0.9), Quantile(values, 0.99)));
  };
  times("first token", side.ttft_ms);
  times("per token", side.tpot_ms);
  line(fmt::format("steps            {:10} decode of {:.1f} sequences, {} prefill", side.num_decode_steps, side.rows_per_decode_step,
                   side.num_prefill_steps));
  line(fmt::format("scheduler        {:10.2f} us per sequence and step", Median(side.host_us)));
  line(fmt::format("device waits     {:10.2f} % of the time, {:.2f} % between decode steps", Median(side.exposed) * 100,
                   Median(side.exposed_decode) * 100));
  line(fmt::format("memory           {:10.1f} MB at most", record["peak_rss"].get<double>() * 1e-6));
  if (point.ratio.kept > 0) {
    line(fmt::format("asynchronous     {:10.3f} times the tokens/s of one step by one (95 %: {:.3f} to {:.3f}, {} pairs)", point.ratio.ratio,
                     point.ratio.low, point.ratio.high, point.ratio.kept));
  }
  if (!record["valid"].get<bool>()) line("the machine was busy: these figures are no measurement");
}

}  // namespace deepinfer::cli
