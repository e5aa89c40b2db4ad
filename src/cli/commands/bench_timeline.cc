// SPDX-License-Identifier: Apache-2.0
//
// bench timeline: some steps of a mixed load as a picture with two lanes, the host that plans and reads results, and the
// device that runs steps; and the same as a Chrome trace.
#include <algorithm>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/commands/bench_common.h"
#include "cli/commands/bench_load.h"
#include "cli/commands/model_session.h"
#include "cli/svg.h"
#include "core/file.h"
#include "engine/step_trace.h"

namespace deepinfer::cli {

namespace {

using engine::StepTiming;

constexpr int64_t kRequests = 24, kConcurrency = 8;

bool IsDecode(const StepTiming& step) { return step.kind == engine::StepKind::kDecode; }

// That many neighbouring steps with some prefill among the decode steps, from the middle of the run if there are several.
std::span<const StepTiming> PickWindow(std::span<const StepTiming> steps, size_t count) {
  count = std::min(count, steps.size());
  size_t best = 0;
  int64_t best_score = -1;
  for (size_t begin = 0; begin + count <= steps.size(); ++begin) {
    const auto window = steps.subspan(begin, count);
    const int64_t num_prefill = std::count_if(window.begin(), window.end(), [](const StepTiming& s) { return !IsDecode(s); });
    const int64_t off_middle = std::abs(static_cast<int64_t>(begin + count / 2) - static_cast<int64_t>(steps.size() / 2));
    const int64_t wanted = std::min<int64_t>(num_prefill, 2) - std::max<int64_t>(num_prefill - 3, 0);
    const int64_t score = wanted * 1'000'000 + 100'000 - std::min<int64_t>(off_middle, 100'000) + 10'000'000;
    if (score > best_score) {
      best_score = score;
      best = begin;
    }
  }
  return steps.subspan(best, count);
}

struct Interval {
  int64_t begin_ns, end_ns;
};

// Planning and processing of these steps.
std::vector<Interval> HostWork(std::span<const StepTiming> steps) {
  std::vector<Interval> work;
  for (const StepTiming& step : steps) {
    work.push_back({step.schedule_begin_ns, step.schedule_end_ns});
    work.push_back({step.process_begin_ns, step.process_end_ns});
  }
  return work;
}

int64_t NsWhileDeviceRuns(std::span<const StepTiming> steps, const Interval& work) {
  int64_t ns = 0;
  for (const StepTiming& step : steps) {
    ns += std::max<int64_t>(0, std::min(work.end_ns, step.run_end_ns) - std::max(work.begin_ns, step.run_begin_ns));
  }
  return ns;
}

struct Summary {
  double span_ms = 0, host_ms = 0, hidden_share = 0, device_share = 0;
};

// `all` has the steps around the window, which may run beside its host work.
Summary Summarize(std::span<const StepTiming> window, std::span<const StepTiming> all) {
  Summary summary;
  if (window.empty()) return summary;
  int64_t host = 0, hidden = 0, device = 0;
  for (const Interval& work : HostWork(window)) {
    host += work.end_ns - work.begin_ns;
    hidden += NsWhileDeviceRuns(all, work);
  }
  for (const StepTiming& step : window) device += step.run_end_ns - step.run_begin_ns;
  const int64_t span = window.back().run_end_ns - window.front().run_begin_ns;
  summary.span_ms = static_cast<double>(span) * 1e-6;
  summary.host_ms = static_cast<double>(host) * 1e-6;
  if (host > 0) summary.hidden_share = static_cast<double>(hidden) / static_cast<double>(host);
  if (span > 0) summary.device_share = static_cast<double>(device) / static_cast<double>(span);
  return summary;
}

std::string Picture(std::span<const StepTiming> window, std::span<const StepTiming> all, const Summary& summary, const std::string& model) {
  constexpr double kLeft = 70, kWidth = 1060, kHost = 60, kDevice = 120, kHeight = 40, kThinnest = 0.8;
  constexpr std::string_view kDecode = "#4e79a7", kPrefill = "#f28e2b", kHidden = "#59a14f", kExposed = "#e15759";
  int64_t begin = window.front().schedule_begin_ns, end = window.back().process_end_ns;
  for (const StepTiming& step : window) {
    begin = std::min(begin, step.schedule_begin_ns);
    end = std::max(end, step.process_end_ns);
  }
  const double scale = kWidth / static_cast<double>(std::max<int64_t>(end - begin, 1));
  const auto at = [&](int64_t ns) { return kLeft + static_cast<double>(ns - begin) * scale; };
  SvgPicture picture(kLeft + kWidth + 20, 250);
  picture.Text(10, 24, fmt::format("{}: {} steps in {:.1f} ms. The device runs {:.1f} % of the time; {:.1f} % of the host's work ({:.2f} ms) is "
                                   "hidden behind it.",
                                   model, window.size(), summary.span_ms, summary.device_share * 100, summary.hidden_share * 100, summary.host_ms));
  picture.Text(10, kHost + 24, "host");
  picture.Text(10, kDevice + 24, "device");
  for (const StepTiming& step : window) {
    const double x = at(step.run_begin_ns), width = at(step.run_end_ns) - x;
    picture.Rect(x, kDevice, std::max(width - 0.5, kThinnest), kHeight, IsDecode(step) ? kDecode : kPrefill);
    if (width > 18) picture.Text(x + width / 2, kDevice + kHeight + 14, fmt::format("{}", step.num_tokens), SvgPicture::Anchor::kMiddle);
  }
  for (const Interval& work : HostWork(window)) {
    const bool is_hidden = 2 * NsWhileDeviceRuns(all, work) >= work.end_ns - work.begin_ns;
    const double x = at(work.begin_ns);
    picture.Rect(x, kHost, std::max(at(work.end_ns) - x, kThinnest), kHeight, is_hidden ? kHidden : kExposed);
  }
  for (int i = 0; i <= 10; ++i) {
    const double x = kLeft + kWidth * i / 10;
    picture.Line(x, kDevice + kHeight + 20, x, kDevice + kHeight + 26, "#888888");
    picture.Text(x, kDevice + kHeight + 40, fmt::format("{:.1f}", static_cast<double>(end - begin) * 1e-6 * i / 10), SvgPicture::Anchor::kMiddle);
  }
  double x = kLeft;
  for (const auto& [color, text] : {std::pair(kDecode, "decode step (below: tokens)"), std::pair(kPrefill, "prefill step"),
                                    std::pair(kHidden, "planning or reading results while the device runs"),
                                    std::pair(kExposed, "the same while it waits")}) {
    picture.Rect(x, 224, 12, 12, color);
    picture.Text(x + 18, 235, text);
    x += 60 + 6.2 * static_cast<double>(std::string_view(text).size());
  }
  picture.Text(kLeft + kWidth + 8, kDevice + kHeight + 40, "ms", SvgPicture::Anchor::kEnd);
  return picture.Finish();
}

Status RunTimeline(Invocation& invocation) {
  const Config& config = invocation.config;
  DI_RETURN_IF_ERROR(CheckPlotName(config.output.plot));
  if (config.bench.async_steps == "both") return InvalidArgument("--async both is for bench throughput and bench sweep; choose on or off");
  StepRecorder recorder;
  DI_ASSIGN_OR_RETURN(const auto engine, LoadEngineFor(invocation, false, Defaults::kProduction,
                                                       recorder.Installer()));
  DI_ASSIGN_OR_RETURN(engine::AsyncEngine* const async, engine->async_engine());
  async->core().SetAsync(config.bench.async_steps != "off");
  // Lengths that differ, so that requests come and go at different times.
  const int64_t longest = std::min<int64_t>(engine->model().max_model_len(), config.bench.input_tokens + config.bench.output_tokens);
  TokenStream tokens(config.sampling.seed.value_or(0), *engine);
  std::vector<LoadRequest> requests;
  for (int64_t i = 0; i < kRequests; ++i) {
    const int64_t input = std::max<int64_t>(1, config.bench.input_tokens * (1 + i % 4) / 4);
    const int64_t output = std::clamp<int64_t>(config.bench.output_tokens * (1 + i % 5) / 5, 1, std::max<int64_t>(longest - input, 1));
    requests.push_back({.prompt_ids = tokens.Take(input), .output_tokens = output, .cache_salt = {}});
  }
  const int64_t concurrency = invocation.sources.IsSet("batch") ? config.bench.batch : kConcurrency;
  DI_RETURN_IF_ERROR(CheckFits(*async, {.workload = {}, .num_requests = kRequests, .input_tokens = 1, .output_tokens = 1, .concurrency = concurrency}));
  DI_ASSIGN_OR_RETURN(const LoadResult result, RunLoad(*async, recorder, requests, concurrency));
  const auto window = PickWindow(result.steps, static_cast<size_t>(config.bench.steps));
  if (window.empty()) return Internal("the load ran no steps");
  const Summary summary = Summarize(window, result.steps);
  if (!config.bench.chrome_trace.empty()) DI_RETURN_IF_ERROR(WriteFileAtomically(config.bench.chrome_trace, engine::ChromeTrace(window) + "\n"));
  DI_RETURN_IF_ERROR(WritePlot(invocation, [&] { return Picture(window, result.steps, summary, config.model.model); }));

  const StepFigures figures = FiguresOf(result.steps, result.idle_s);
  Json steps = Json::array();
  const int64_t origin = window.front().schedule_begin_ns;
  for (const StepTiming& step : window) {
    const auto us = [&](int64_t ns) { return static_cast<double>(ns - origin) * 1e-3; };
    steps.push_back({{"number", step.number},
                     {"kind", IsDecode(step) ? "decode" : "prefill"},
                     {"rows", step.num_rows},
                     {"tokens", step.num_tokens},
                     {"plan_us", {us(step.schedule_begin_ns), us(step.schedule_end_ns)}},
                     {"run_us", {us(step.run_begin_ns), us(step.run_end_ns)}},
                     {"process_us", {us(step.process_begin_ns), us(step.process_end_ns)}}});
  }
  const Json record = {{"bench", "timeline"},
                       {"model", config.model.model},
                       {"async", config.bench.async_steps},
                       {"batch", concurrency},
                       {"span_ms", summary.span_ms},
                       {"host_ms", summary.host_ms},
                       {"hidden_share", summary.hidden_share},
                       {"device_share", summary.device_share},
                       {"run_exposed_host_share", figures.exposed_host_share},
                       {"run_exposed_decode_share", figures.exposed_decode_share},
                       {"steps", std::move(steps)}};
  DI_ASSIGN_OR_RETURN(const bool is_written, WriteRecord(invocation, record));
  if (is_written) return Status::Ok();
  invocation.out.Line(fmt::format("{} steps of {} in {:.2f} ms: the device runs {:.1f} % of the time, {:.1f} % of {:.3f} ms of host work is hidden",
                                  window.size(), result.steps.size(), summary.span_ms, summary.device_share * 100, summary.hidden_share * 100,
                                  summary.host_ms));
  return invocation.out.Check();
}

}  // namespace

Command BenchTimelineCommand() {
  return {.name = "bench timeline",
          .summary = "a picture and a trace of neighbouring steps: what the host does while the device runs",
          .usage = "",
          .min_args = 0,
          .max_args = 0,
          .run = RunTimeline,
          .arg_choices = {},
          .details = "A mixed load of 24 requests, up to --input-tokens and --output-tokens long, eight at once. --plot draws --steps of its\n"
                     "steps, --chrome-trace writes them for chrome://tracing or Perfetto."};
}

}  // namespace deepinfer::cli
