// SPDX-License-Identifier: Apache-2.0
//
// bench drafts: what speculation gains at each batch size: off, every fixed number of drafts, and the number chosen by cost.
#include <algorithm>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/commands/bench_common.h"
#include "cli/commands/bench_load.h"
#include "cli/commands/draft_questions.h"
#include "cli/commands/model_session.h"
#include "cli/svg.h"
#include "core/progress.h"

namespace deepinfer::cli {

namespace {

constexpr int64_t kFewestRequests = 24, kRequestsPerPlace = 3;
constexpr int64_t kMostDrafts = 5;

struct Mode {
  std::string name;
  int num_drafts = 0;
  bool varlen = false;
};

struct Measured {
  std::vector<double> tok_s;
  int64_t forward_ns = 0, sample_ns = 0, draft_ns = 0;
  int64_t decode_rows = 0, verified = 0, accepted = 0, draftless_steps = 0, decode_steps = 0;
  // Tokens that a sequence gets from a decode step, the sampled one included; rows verified besides the first.
  double emitted() const { return decode_rows > 0 ? 1 + static_cast<double>(accepted) / static_cast<double>(decode_rows) : 0; }
  double rows() const { return decode_rows > 0 ? 1 + static_cast<double>(verified) / static_cast<double>(decode_rows) : 0; }
};

Json SummaryJson(const PairedRatio::Summary& s) {
  return {{"ratio_median", s.ratio}, {"ratio_ci95", {s.low, s.high}}, {"pairs", s.kept}};
}

PairedRatio::Summary Ratio(const std::vector<double>& subject, const std::vector<double>& reference) {
  PairedRatio ratio;
  for (size_t i = 0; i < subject.size(); ++i) ratio.Add(subject[i], reference[i]);
  return ratio.Summarize();
}

Status RunBenchDrafts(Invocation& invocation) {
  const Config& config = invocation.config;
  const BenchConfig& bench = config.bench;
  DI_RETURN_IF_ERROR(CheckPlotName(config.output.plot));
  std::vector<int64_t> batches = bench.batches;
  if (batches.empty()) batches = {1, 2, 4, 8, 16, 32, 64};
  const int64_t widest = *std::max_element(batches.begin(), batches.end());
  StepRecorder recorder;
  DI_ASSIGN_OR_RETURN(const auto engine, LoadEngineFor(invocation, false, Defaults::kProduction, [&](engine::LoadOptions& options) {
                         if (!invocation.sources.IsSet("num-drafts")) options.num_drafts = -1;
                         if (!invocation.sources.IsSet("max-num-seqs")) options.max_num_seqs = static_cast<int>(widest);
                         options.varlen_verify = true;  // the costs are measured
                         recorder.Installer()(options);
                       }));
  DI_ASSIGN_OR_RETURN(engine::AsyncEngine* const async, engine->async_engine());
  const int most = async->core().options().scheduler.num_drafts;
  if (most == 0) return InvalidArgument("there are no drafts to measure; the checkpoint needs a draft head and --num-drafts 1 or more");
  std::vector<Mode> modes = {{"off", 0, false}};
  for (int n = 1; n <= std::min<int64_t>(most, kMostDrafts); ++n) modes.push_back({fmt::format("{}", n), n, false});
  modes.push_back({"by cost", most, true});

  const int64_t num_requests = bench.requests > 0 ? bench.requests : std::max(kFewestRequests, kRequestsPerPlace * widest);
  DI_ASSIGN_OR_RETURN(const auto prompts, DraftQuestions(*engine, num_requests));
  if (!config.output.json) {
    std::string line = fmt::format("{:>6} {:>10}", "batch", "off tok/s");
    for (size_t m = 1; m < modes.size(); ++m) line += fmt::format(" {:>8}", modes[m].name);
    invocation.out.Line(line + fmt::format(" {:>10} {:>8} {:>8}", "/ best", "emitted", "rows"));
  }
  RunRecord run("drafts", invocation, *engine);
  Json points = Json::array();
  std::vector<ChartSeries> chart;
  for (size_t m = 1; m < modes.size(); ++m) chart.push_back({modes[m].num_drafts == most && modes[m].varlen ? "by cost" : modes[m].name + " drafts", {}});
  Progress progress("bench drafts", {.quiet = config.log.quiet, .unit = ProgressUnit::kItems, .clock = nullptr, .write_line = {}});
  const int64_t total = static_cast<int64_t>(batches.size()) * bench.repeats;
  int64_t num_runs = 0, num_repeats = 0;
  for (const int64_t batch : batches) {
    LoadSpec spec;
    spec.concurrency = batch;
    DI_RETURN_IF_ERROR(CheckFits(*async, spec));
    const size_t count = static_cast<size_t>(bench.requests > 0 ? bench.requests : std::max(kFewestRequests, kRequestsPerPlace * batch));
    std::vector<LoadRequest> requests(count);
    for (size_t i = 0; i < count; ++i) {
      requests[i].prompt_ids = prompts[i];
      requests[i].output_tokens = bench.output_tokens;
      requests[i].ignore_eos = false;
    }
    std::vector<Measured> measured(modes.size());
    const auto run_once = [&](size_t m, bool counts) -> Status {
      for (LoadRequest& request : requests) request.cache_salt = fmt::format("run {}", num_runs);
      ++num_runs;
      async->core().SetDrafting(modes[m].num_drafts, modes[m].varlen);
      const engine::SchedulerStats before = async->core().Stats().stats;
      DI_ASSIGN_OR_RETURN(const LoadResult result, RunLoad(*async, recorder, requests, batch));
      if (!counts) return Status::Ok();
      const engine::SchedulerStats after = async->core().Stats().stats;
      Measured& it = measured[m];
      it.tok_s.push_back(result.output_tokens_per_s());
      it.forward_ns += after.forward_ns - before.forward_ns;
      it.sample_ns += after.sample_ns - before.sample_ns;
      it.draft_ns += after.draft_ns - before.draft_ns;
      it.decode_rows += after.num_decode_rows - before.num_decode_rows;
      it.verified += after.num_verified_drafts - before.num_verified_drafts;
      it.accepted += after.num_accepted_drafts - before.num_accepted_drafts;
      it.draftless_steps += after.num_draftless_steps - before.num_draftless_steps;
      it.decode_steps += after.num_decode_steps - before.num_decode_steps;
      return Status::Ok();
    };
    DI_RETURN_IF_ERROR(run_once(0, false));
    DI_RETURN_IF_ERROR(run_once(modes.size() - 1, false));
    for (int64_t repeat = 0; repeat < bench.repeats; ++repeat) {
      // Another order each time: drift of the machine cancels.
      for (size_t k = 0; k < modes.size(); ++k) {
        const size_t at = repeat % 2 == 0 ? k : modes.size() - 1 - k;
        DI_RETURN_IF_ERROR(run_once((at + static_cast<size_t>(repeat / 2)) % modes.size(), true));
      }
      run.Sweep();
      progress.Update(++num_repeats, total);
    }
    size_t best = 1;
    Json by_mode = Json::array();
    std::string line = fmt::format("{:>6} {:>10.1f}", batch, Median(measured[0].tok_s));
    std::vector<PairedRatio::Summary> ratios(modes.size());
    for (size_t m = 0; m < modes.size(); ++m) {
      ratios[m] = Ratio(measured[m].tok_s, measured[0].tok_s);
      if (m > 0 && !modes[m].varlen && ratios[m].ratio > ratios[best].ratio) best = m;
      const Measured& it = measured[m];
      const auto ms = [&](int64_t ns) { return static_cast<double>(ns) * 1e-6 / static_cast<double>(std::max<int64_t>(it.decode_steps, 1)); };
      by_mode.push_back({{"mode", modes[m].name}, {"num_drafts", modes[m].num_drafts}, {"by_cost", modes[m].varlen}, {"out_tok_s", Spread(it.tok_s)},
                         {"to_off", SummaryJson(ratios[m])}, {"emitted_per_step", it.emitted()}, {"rows_per_sequence", it.rows()},
                         {"decode_steps", it.decode_steps},
                         {"step_ms", {{"forward", ms(it.forward_ns)}, {"sample", ms(it.sample_ns)}, {"draft", ms(it.draft_ns)}}}, {"steps_without_drafts", it.draftless_steps}});
      if (m == 0) continue;
      line += fmt::format(" {:>8.3f}", ratios[m].ratio);
      chart[m - 1].points.emplace_back(static_cast<double>(batch), ratios[m].ratio);
    }
    // Off is a fixed length too.
    const size_t reference = ratios[best].ratio > 1 ? best : 0;
    const PairedRatio::Summary to_best = Ratio(measured.back().tok_s, measured[reference].tok_s);
    points.push_back({{"batch", batch}, {"requests", count}, {"modes", std::move(by_mode)}, {"best_fixed", modes[reference].name},
                      {"by_cost_to_best_fixed", SummaryJson(to_best)}});
    if (!config.output.json) {
      invocation.out.Line(line + fmt::format(" {:>10.3f} {:>8.2f} {:>8.2f}", to_best.ratio, measured.back().emitted(), measured.back().rows()));
      invocation.out.Flush();
    }
  }
  Json record = run.Begin();
  record["shape"] = {{"workload", "questions"}, {"output_tokens", bench.output_tokens}};
  record["reps"] = bench.repeats;
  record["points"] = std::move(points);
  run.End(record);
  DI_RETURN_IF_ERROR(WritePlot(invocation, [&] {
    return LineChart(fmt::format("{}: tokens per second, times those without drafts", config.model.model), "requests at once", "ratio", chart);
  }));
  DI_ASSIGN_OR_RETURN(const bool is_written, WriteRecord(invocation, record));
  if (!is_written && !record["valid"].get<bool>()) invocation.out.Line("the machine was busy: these figures are no measurement");
  return invocation.out.Check();
}

}  // namespace

Command BenchDraftsCommand() {
  return {.name = "bench drafts",
          .summary = "what drafts gain at every batch size: none, each fixed number, and as many as pay",
          .usage = "",
          .min_args = 0,
          .max_args = 0,
          .run = RunBenchDrafts,
          .arg_choices = {},
          .details = "Greedy answers to a list of short questions, up to --output-tokens each, in turn without drafts, with 1 to 5 of them\n"
                     "and with their number chosen by cost (--varlen-verify). The table gives tokens per second against none; \"/ best\" is\n"
                     "the chosen number against the best fixed one, none included; emitted and rows are tokens given and rows computed per\n"
                     "sequence and step with it."};
}

}  // namespace deepinfer::cli
