// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_common.h"

#include <algorithm>

#include "cli/engine_options.h"
#include "cli/svg.h"
#include "cli/version.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/options.h"
#include "core/threads.h"

namespace deepinfer::cli {

namespace {

// Above these a run was disturbed (performance.md 5).
constexpr double kMaxLoadPerCore = 0.75, kMaxSweepSpread = 0.30, kMaxSwitchesPerSecond = 50;

}  // namespace

TokenStream::TokenStream(int64_t seed, const engine::Engine& engine)
    : TokenStream(seed, std::min(engine.tokenizer().vocab_size(), engine.config().vocab_size)) {}

std::vector<int32_t> TokenStream::Take(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(Next());
  return ids;
}

Json Spread(const std::vector<double>& values) {
  return Json{{"median", Quantile(values, 0.5)}, {"p10", Quantile(values, 0.1)}, {"p90", Quantile(values, 0.9)}};
}

Json Percentiles(const std::vector<double>& values) {
  return Json{{"p50", Quantile(values, 0.5)}, {"p90", Quantile(values, 0.9)}, {"p99", Quantile(values, 0.99)}};
}

std::string DecoderReplayName(const Invocation& invocation, const model::ModelConfig& shape) {
  const std::string replay = DecoderReplayOf(invocation.config.model, Defaults::kProduction);
  if (replay != "auto") return replay;
  return shape.CheckDecoderReplay().ok() ? "compact" : "off";
}

RunRecord::RunRecord(std::string bench, const Invocation& invocation, const engine::Engine& engine)
    : bench_(std::move(bench)),
      invocation_(invocation),
      engine_(engine),
      host_(HostRecord()),
      load_(LoadAverage()),
      switches_(InvoluntarySwitches()),
      faults_(PageFaults()),
      begin_s_(Clock::Steady().NowSeconds()),
      pool_(static_cast<int>(invocation.config.model.threads)),
      sweep_(pool_) {}

void RunRecord::Sweep() {
  if (sweep_.is_ready()) sweeps_.push_back(sweep_.Pass());
}

Json SettingsOf(const Invocation& invocation) {
  // Where results go, the lists of a sweep, whose points say it themselves, and secrets.
  static constexpr std::string_view kNoSettings[] = {"out",       "plot",      "json",    "quiet",  "config",  "chrome-trace",
                                                     "log-level", "log-format", "batches", "inputs", "outputs", "model", "api-key"};
  Json settings = Json::object();
  for (const OptionSpec& spec : OptionTable()) {
    if (!invocation.sources.IsSet(spec.name) || std::ranges::find(kNoSettings, spec.name) != std::end(kNoSettings)) continue;
    settings[std::string(spec.name)] = OptionValueText(spec, invocation.config);
  }
  return settings;
}

Json RunRecord::Begin() const {
  return Json{{"bench", bench_},
              {"model", invocation_.config.model.model},
              {"commit", Commit()},
              {"dirty", IsDirty()},
              {"date_utc", UtcDate()},
              {"host", host_},
              {"device", {{"name", "cpu"}}},
              {"backend", "cpu"},
              {"dtype", invocation_.config.model.numerics},
              {"threads", pool_.num_threads()},
              {"decoder_replay", DecoderReplayName(invocation_, engine_.config())},
              {"load_s", engine_.load_s()},
              {"settings", SettingsOf(invocation_)}};
}

void RunRecord::End(Json& record) const {
  const double seconds = Clock::Steady().NowSeconds() - begin_s_;
  const double switches_per_s = seconds > 0 ? static_cast<double>(InvoluntarySwitches() - switches_) / seconds : 0;
  const double median = Median(sweeps_);
  const auto [low, high] = std::minmax_element(sweeps_.begin(), sweeps_.end());
  const double spread = median > 0 ? (*high - *low) / median : 0;
  record["read_sweep_gb_per_s"] = median * 1e-9;
  record["peak_rss"] = PeakResidentBytes();
  record["counters"] = {{"sweep_spread", spread}, {"ctx_switches_per_s", switches_per_s}, {"page_faults", PageFaults() - faults_}};
  record["valid"] = load_ <= kMaxLoadPerCore * ThreadPool::NumAvailableCores() && spread <= kMaxSweepSpread &&
                    switches_per_s <= kMaxSwitchesPerSecond;
}

Result<bool> WriteRecord(Invocation& invocation, const Json& record) {
  const OutputConfig& output = invocation.config.output;
  if (!output.out.empty()) DI_RETURN_IF_ERROR(WriteFileAtomically(output.out, DumpJson(record) + "\n"));
  if (!output.json) return false;
  invocation.out.Line(DumpJson(record));
  DI_RETURN_IF_ERROR(invocation.out.Check());
  return true;
}

Status WritePlot(const Invocation& invocation, const std::function<std::string()>& draw) {
  if (invocation.config.output.plot.empty()) return Status::Ok();
  return WriteFileAtomically(invocation.config.output.plot, draw());
}

}  // namespace deepinfer::cli
