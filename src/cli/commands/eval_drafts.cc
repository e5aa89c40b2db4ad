// SPDX-License-Identifier: Apache-2.0
//
// eval drafts: how many drafts are accepted, by position, and how well the draft head knows it.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/commands/bench_common.h"
#include "cli/commands/bench_load.h"
#include "cli/commands/draft_questions.h"
#include "cli/commands/model_session.h"
#include "cli/svg.h"

namespace deepinfer::cli {

namespace {

constexpr int64_t kQuestionsAsked = 96;

std::string CalibrationChart(const std::string& model, const engine::DraftStats& drafts) {
  constexpr double kLeft = 70, kTop = 40, kSize = 320;
  SvgPicture picture(kLeft + kSize + 40, kTop + kSize + 60);
  picture.Text(10, 22, fmt::format("{}: how often drafts of a confidence are accepted", model));
  const auto x = [&](double v) { return kLeft + v * kSize; };
  const auto y = [&](double v) { return kTop + (1 - v) * kSize; };
  for (int i = 0; i <= 4; ++i) {
    picture.Line(x(0), y(i / 4.0), x(1), y(i / 4.0), "#dddddd");
    picture.Text(kLeft - 6, y(i / 4.0) + 4, fmt::format("{:.2f}", i / 4.0), SvgPicture::Anchor::kEnd);
    picture.Text(x(i / 4.0), kTop + kSize + 18, fmt::format("{:.2f}", i / 4.0), SvgPicture::Anchor::kMiddle);
  }
  picture.Line(x(0), y(0), x(1), y(1), "#999999");
  int64_t most = 1;
  for (const auto& bin : drafts.by_confidence) most = std::max(most, bin.count);
  double last_x = 0, last_y = 0;
  bool has_last = false;
  for (size_t b = 0; b < drafts.by_confidence.size(); ++b) {
    const auto& bin = drafts.by_confidence[b];
    if (bin.count == 0) continue;
    const double n = static_cast<double>(bin.count), share = std::log1p(n) / std::log1p(static_cast<double>(most));
    // How many there are: a faint bar at the foot, logarithmic.
    const double width = kSize / static_cast<double>(drafts.by_confidence.size());
    picture.Rect(x(0) + static_cast<double>(b) * width + 1, y(0) - share * 60, width - 2, share * 60, "#e6ecf5");
    const double at_x = x(bin.confidence / n), at_y = y(static_cast<double>(bin.num_accepted) / n);
    if (has_last) picture.Line(last_x, last_y, at_x, at_y, SvgPicture::Color(0), 2);
    picture.Rect(at_x - 3, at_y - 3, 6, 6, SvgPicture::Color(0));
    last_x = at_x;
    last_y = at_y;
    has_last = true;
  }
  picture.Text(x(0.5), kTop + kSize + 38, "mean confidence of the bin", SvgPicture::Anchor::kMiddle);
  picture.Text(10, kTop - 4, "accepted");
  return picture.Finish();
}

Status RunEvalDrafts(Invocation& invocation) {
  const Config& config = invocation.config;
  DI_RETURN_IF_ERROR(CheckPlotName(config.output.plot));
  StepRecorder recorder;
  DI_ASSIGN_OR_RETURN(const auto engine, LoadEngineFor(invocation, false, Defaults::kProduction, [&](engine::LoadOptions& options) {
                         if (!invocation.sources.IsSet("num-drafts")) options.num_drafts = -1;
                         options.varlen_verify = false;
                         if (!invocation.sources.IsSet("max-num-seqs")) options.max_num_seqs = 8;
                         recorder.Installer()(options);
                       }));
  DI_ASSIGN_OR_RETURN(engine::AsyncEngine* const async, engine->async_engine());
  const size_t num_drafts = static_cast<size_t>(async->core().options().scheduler.num_drafts);
  if (num_drafts == 0) return InvalidArgument("there are no drafts to look at; the checkpoint needs a draft head and --num-drafts 1 or more");
  DI_ASSIGN_OR_RETURN(const auto prompts, DraftQuestions(*engine, kQuestionsAsked));
  std::vector<LoadRequest> requests(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    requests[i].prompt_ids = prompts[i];
    requests[i].output_tokens = config.sampling.max_tokens.value_or(256);
    requests[i].ignore_eos = false;
    requests[i].temperature = config.sampling.temperature.value_or(0.0);
    requests[i].seed = static_cast<uint64_t>(config.sampling.seed.value_or(0)) + i;
  }
  DI_ASSIGN_OR_RETURN(const LoadResult result, RunLoad(*async, recorder, requests, async->core().options().scheduler.max_num_seqs));
  const engine::SchedulerStats stats = async->core().Stats().stats;
  const engine::DraftStats& drafts = stats.drafts;
  const auto ratio = [](int64_t part, int64_t whole) { return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0; };
  Json record;
  record["model"] = config.model.model;
  record["requests"] = requests.size();
  record["output_tokens"] = result.output_tokens;
  record["temperature"] = requests.front().temperature;
  record["emitted_per_step"] = 1 + ratio(stats.num_accepted_drafts, stats.num_decode_rows);
  record["positions"] = Json::array();
  int64_t num_reached = 0;
  for (size_t j = 0; j < num_drafts; ++j) {
    num_reached += drafts.num_reached[j];
    record["positions"].push_back({{"verified", drafts.num_verified[j]}, {"reached", drafts.num_reached[j]}, {"accepted", drafts.num_accepted[j]},
                                   {"acceptance", ratio(drafts.num_accepted[j], drafts.num_reached[j])},
                                   {"kept", ratio(drafts.num_accepted[j], drafts.num_verified[j])}});
  }
  double error = 0;
  record["calibration"] = Json::array();
  for (const auto& bin : drafts.by_confidence) {
    if (bin.count == 0) continue;
    const double confidence = bin.confidence / static_cast<double>(bin.count), accepted = ratio(bin.num_accepted, bin.count);
    error += std::abs(confidence - accepted) * ratio(bin.count, num_reached);
    record["calibration"].push_back({{"confidence", confidence}, {"accepted", accepted}, {"count", bin.count}});
  }
  record["calibration_error"] = error;
  DI_RETURN_IF_ERROR(WritePlot(invocation, [&] { return CalibrationChart(config.model.model, drafts); }));
  DI_ASSIGN_OR_RETURN(const bool is_written, WriteRecord(invocation, record));
  if (is_written) return Status::Ok();
  const auto line = [&](const std::string& text) { invocation.out.Line(text); };
  line(fmt::format("{}: {} questions, {} tokens, temperature {}", config.model.model, requests.size(), result.output_tokens, requests.front().temperature));
  line(fmt::format("{:>8} {:>10} {:>10} {:>14} {:>10}", "draft", "verified", "accepted", "if reached %", "kept %"));
  for (size_t j = 0; j < num_drafts; ++j) {
    line(fmt::format("{:>8} {:>10} {:>10} {:>14.1f} {:>10.1f}", j + 1, drafts.num_verified[j], drafts.num_accepted[j],
                     100 * ratio(drafts.num_accepted[j], drafts.num_reached[j]), 100 * ratio(drafts.num_accepted[j], drafts.num_verified[j])));
  }
  line(fmt::format("tokens per step {:.3f}; mean difference of confidence and acceptance {:.3f}", record["emitted_per_step"].get<double>(), error));
  return invocation.out.Check();
}

}  // namespace

Command EvalDraftsCommand() {
  return {.name = "eval drafts",
          .summary = "how many drafts are accepted, by position, and how well the draft head knows it",
          .usage = "",
          .min_args = 0,
          .max_args = 0,
          .run = RunEvalDrafts,
          .arg_choices = {},
          .details = "Answers a list of short questions with all drafts verified. --plot draws confidence against acceptance. --temperature\n"
                     "above 0 samples with seeds of its own."};
}

}  // namespace deepinfer::cli
