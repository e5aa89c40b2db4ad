// SPDX-License-Identifier: Apache-2.0
//
// bench throughput: how many tokens a second the engine gives for a fixed load, and what its scheduler costs.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/commands/bench_common.h"
#include "cli/commands/bench_limit.h"
#include "cli/commands/bench_load.h"
#include "cli/commands/bench_point.h"
#include "cli/commands/model_session.h"
#include "cli/svg.h"
#include "core/progress.h"

namespace deepinfer::cli {

namespace {

constexpr int64_t kDefaultConcurrency = 16;

Status RunThroughput(Invocation& invocation) {
  const Config& config = invocation.config;
  DI_RETURN_IF_ERROR(CheckPlotName(config.output.plot));
  StepRecorder recorder;
  DI_ASSIGN_OR_RETURN(const auto engine, LoadEngineFor(invocation, false, Defaults::kProduction,
                                                       recorder.Installer()));
  DI_ASSIGN_OR_RETURN(engine::AsyncEngine* const async, engine->async_engine());
  DI_ASSIGN_OR_RETURN(const LoadSpec spec, LoadSpecOf(invocation, engine->model().max_model_len(), kDefaultConcurrency));
  DI_RETURN_IF_ERROR(CheckFits(*async, spec));
  RunRecord run("throughput", invocation, *engine);
  Progress progress("bench throughput", {.quiet = config.log.quiet, .unit = ProgressUnit::kItems, .clock = nullptr, .write_line = {}});
  DI_ASSIGN_OR_RETURN(const PointResult point, MeasurePoint(invocation, *engine, *async, recorder, spec, run, &progress));
  Json record = PointRecord(invocation, run, spec, point);
  const Json limit = DecodeLimit(*engine, spec.concurrency, spec.input_tokens + spec.output_tokens / 2, Quantile(point.main().tpot_ms, 0.5) * 1e-3);
  if (!limit.is_null()) record["decode_limit"] = limit;
  DI_RETURN_IF_ERROR(WritePlot(invocation, [&] {
    std::vector<std::pair<std::string, double>> bars;
    for (size_t i = 0; i < point.on.out_tok_s.size(); ++i) bars.emplace_back(fmt::format("asynchronous {}", i + 1), point.on.out_tok_s[i]);
    for (size_t i = 0; i < point.off.out_tok_s.size(); ++i) bars.emplace_back(fmt::format("one by one {}", i + 1), point.off.out_tok_s[i]);
    return BarChart(fmt::format("{}: {} requests of {}+{} tokens, {} at once", config.model.model, spec.num_requests, spec.input_tokens,
                                spec.output_tokens, spec.concurrency),
                    bars, "tokens/s");
  }));
  DI_ASSIGN_OR_RETURN(const bool is_written, WriteRecord(invocation, record));
  if (is_written) return Status::Ok();
  PrintPoint(invocation, spec, point, record);
  if (!limit.is_null())
    for (const std::string& text : DecodeLimitLines(limit)) invocation.out.Line(text);
  return invocation.out.Check();
}

}  // namespace

Command BenchThroughputCommand() {
  return {.name = "bench throughput",
          .summary = "tokens per second of a fixed load through the engine, and what the scheduler costs",
          .usage = "",
          .min_args = 0,
          .max_args = 0,
          .run = RunThroughput,
          .arg_choices = {},
          .details = "Seeded random prompts, greedy, no end token: --requests of --input-tokens and --output-tokens, --batch of them in\n"
                     "the engine at once. --async both runs every repetition with asynchronous steps and without, in turn, and reports\n"
                     "the ratio."};
}

}  // namespace deepinfer::cli
