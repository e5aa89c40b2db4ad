// SPDX-License-Identifier: Apache-2.0
//
// bench structured: what holding answers to a grammar costs the decode, the same requests in turn with and without.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/commands/bench_common.h"
#include "cli/commands/bench_load.h"
#include "cli/commands/bench_point.h"
#include "cli/commands/model_session.h"
#include "cli/svg.h"
#include "core/progress.h"

namespace deepinfer::cli {

namespace {

constexpr int64_t kDefaultConcurrency = 16;

// A list of records that does not end within a measurement, with what schemas of extraction tasks have.
constexpr const char* kSchema =
    R"({"type":"array","minItems":500,"items":{"type":"object","properties":{"name":{"type":"string","maxLength":40},)"
    R"("kind":{"enum":["person","place","thing"]},"age":{"type":"integer","minimum":0,"maximum":150},"score":{"type":"number"},)"
    R"("tags":{"type":"array","items":{"type":"string","maxLength":12},"maxItems":4},"is_new":{"type":"boolean"}},)"
    R"("required":["name","kind","age","score","tags","is_new"]}})";

double MeanDecodeMs(const LoadResult& result, int64_t num_rows) {
  double sum = 0, count = 0;
  for (const engine::StepTiming& step : result.steps) {
    if (step.kind != engine::StepKind::kDecode || step.num_rows != num_rows) continue;
    sum += static_cast<double>(step.run_end_ns - step.run_begin_ns) * 1e-6;
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

Status RunStructured(Invocation& invocation) {
  const Config& config = invocation.config;
  StepRecorder recorder;
  DI_RETURN_IF_ERROR(CheckPlotName(config.output.plot));
  DI_ASSIGN_OR_RETURN(const auto engine, LoadEngineFor(invocation, false, Defaults::kProduction, recorder.Installer()));
  DI_ASSIGN_OR_RETURN(engine::AsyncEngine* const async, engine->async_engine());
  DI_ASSIGN_OR_RETURN(LoadSpec spec, LoadSpecOf(invocation, engine->model().max_model_len(), kDefaultConcurrency));
  if (config.bench.requests == 0) spec.num_requests = spec.concurrency;
  DI_RETURN_IF_ERROR(CheckFits(*async, spec));
  StructuredOutput so_args;
  so_args.schema_type = "json";
  so_args.schema = kSchema;
  so_args.max_whitespace_cnt = 8;
  const double compile_begin_s = Clock::Steady().NowSeconds();
  DI_RETURN_IF_ERROR(async->CheckStructuredOutput(so_args));
  const double compile_ms = (Clock::Steady().NowSeconds() - compile_begin_s) * 1e3;

  RunRecord run("structured", invocation, *engine);
  Progress progress("bench structured", {.quiet = config.log.quiet, .unit = ProgressUnit::kItems, .clock = nullptr, .write_line = {}});
  TokenStream tokens(config.sampling.seed.value_or(0), *engine);
  std::vector<LoadRequest> requests(static_cast<size_t>(spec.num_requests));
  for (LoadRequest& request : requests) {
    request.prompt_ids = tokens.Take(spec.input_tokens);
    request.output_tokens = spec.output_tokens;
  }
  int64_t num_runs = 0;
  const auto run_once = [&](bool is_held) -> Result<LoadResult> {
    for (LoadRequest& request : requests) {
      request.cache_salt = fmt::format("run {}", num_runs);
      request.so_args = is_held ? std::optional(so_args) : std::nullopt;
    }
    ++num_runs;
    return RunLoad(*async, recorder, requests, spec.concurrency);
  };
  struct Side {
    std::vector<double> out_tok_s, step_ms, ttft_ms;
  } held, free;
  PairedRatio rates, steps;
  for (const bool is_held : {false, true}) DI_RETURN_IF_ERROR(run_once(is_held).status());  // warm-up
  for (int64_t repeat = 0; repeat < config.bench.repeats; ++repeat) {
    double rate[2] = {0, 0}, ms[2] = {0, 0};
    for (int turn = 0; turn < 2; ++turn) {
      // A B B A: drift of the machine cancels.
      const bool is_held = (turn == 0) == (repeat % 2 == 0);
      DI_ASSIGN_OR_RETURN(const LoadResult result, run_once(is_held));
      Side& side = is_held ? held : free;
      rate[is_held ? 0 : 1] = result.output_tokens_per_s();
      ms[is_held ? 0 : 1] = MeanDecodeMs(result, std::min(spec.concurrency, spec.num_requests));
      side.out_tok_s.push_back(result.output_tokens_per_s());
      side.step_ms.push_back(ms[is_held ? 0 : 1]);
      side.ttft_ms.insert(side.ttft_ms.end(), result.ttft_ms.begin(), result.ttft_ms.end());
    }
    rates.Add(rate[0], rate[1]);
    if (ms[0] > 0 && ms[1] > 0) steps.Add(1e3 / ms[0], 1e3 / ms[1]);
    run.Sweep();
    progress.Update(repeat + 1, config.bench.repeats);
  }
  const PairedRatio::Summary rate = rates.Summarize(), step = steps.Summarize();
  Json record = run.Begin();
  record["shape"] = {{"requests", spec.num_requests}, {"input_tokens", spec.input_tokens}, {"output_tokens", spec.output_tokens},
                     {"seed", config.sampling.seed.value_or(0)}};
  record["batch"] = spec.concurrency;
  record["context"] = spec.input_tokens + spec.output_tokens;
  record["reps"] = config.bench.repeats;
  record["unit"] = "output tokens/s";
  record.update(Spread(held.out_tok_s));
  record["free_out_tok_s"] = Spread(free.out_tok_s);
  record["decode_step_ms"] = Spread(held.step_ms);
  record["free_decode_step_ms"] = Spread(free.step_ms);
  record["ttft_ms"] = Percentiles(held.ttft_ms);
  record["free_ttft_ms"] = Percentiles(free.ttft_ms);
  record["compile_ms"] = compile_ms;
  const auto paired = [](const char* name, const PairedRatio::Summary& s) {
    return Json{{"name", name}, {"median", s.reference}, {"ratio_median", s.ratio}, {"ratio_ci95", {s.low, s.high}}, {"pairs", s.kept}};
  };
  record["paired_ref"] = paired("without grammar, output tokens/s", rate);
  record["paired_step"] = paired("without grammar, full decode steps/s", step);
  run.End(record);
  DI_RETURN_IF_ERROR(WritePlot(invocation, [&] {
    std::vector<std::pair<std::string, double>> bars;
    for (size_t i = 0; i < held.out_tok_s.size(); ++i) {
      bars.emplace_back(fmt::format("schema {}", i + 1), held.out_tok_s[i]);
      bars.emplace_back(fmt::format("free {}", i + 1), free.out_tok_s[i]);
    }
    return BarChart(fmt::format("{}: {} at once, with a schema and without", config.model.model, spec.concurrency), bars, "tokens/s");
  }));
  DI_ASSIGN_OR_RETURN(const bool is_written, WriteRecord(invocation, record));
  if (is_written) return Status::Ok();
  const auto line = [&](const std::string& text) { invocation.out.Line(text); };
  line(fmt::format("{}: {} requests of {} prompt and {} output tokens, {} at once, {} repeats, {} threads", config.model.model,
                   spec.num_requests, spec.input_tokens, spec.output_tokens, spec.concurrency, config.bench.repeats,
                   record["threads"].get<int>()));
  line(fmt::format("with grammar     {:10.1f} tokens/s, {:.3f} ms per decode step", Median(held.out_tok_s), Median(held.step_ms)));
  line(fmt::format("without          {:10.1f} tokens/s, {:.3f} ms per decode step", Median(free.out_tok_s), Median(free.step_ms)));
  line(fmt::format("decode steps/s   {:10.3f} times (95 %: {:.3f} to {:.3f}, {} pairs)", step.ratio, step.low, step.high, step.kept));
  line(fmt::format("tokens/s         {:10.3f} times (95 %: {:.3f} to {:.3f})", rate.ratio, rate.low, rate.high));
  line(fmt::format("compiling        {:10.1f} ms, once", compile_ms));
  if (!record["valid"].get<bool>()) line("the machine was busy: these figures are no measurement");
  return invocation.out.Check();
}

}  // namespace

Command BenchStructuredCommand() {
  return {.name = "bench structured",
          .summary = "what holding answers to a JSON schema costs the decode",
          .usage = "",
          .min_args = 0,
          .max_args = 0,
          .run = RunStructured,
          .arg_choices = {},
          .details = "Seeded random prompts, greedy: --requests of --input-tokens and --output-tokens, --batch of them at once, in turn\n"
                     "with a schema and without. Reports both, and the paired ratio."};
}

}  // namespace deepinfer::cli
