// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_limit.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/commands/bench_layers.h"
#include "core/clock.h"
#include "model/decode_estimate.h"
#include "model/inventory.h"
#include "model/released_config.h"

namespace deepinfer::cli {

namespace {

// Bytes a second, 0 when the memory for it is not there.
double CopyRate(device::Device& device) {
  constexpr int64_t kBytes = int64_t{512} << 20;
  constexpr int kCopies = 8, kRuns = 5;
  if (device.free_bytes() < 4 * kBytes) return 0;
  auto from = device.Allocate(kBytes), to = device.Allocate(kBytes);
  if (!from.ok() || !to.ok()) return 0;
  const Clock& clock = Clock::Steady();
  std::vector<double> rates;
  uint32_t word = 0;
  for (int run = 0; run <= kRuns; ++run) {
    const double start = clock.NowSeconds();
    for (int i = 0; i < kCopies; ++i) device.Copy(to->data(), from->data(), kBytes);
    device.Download(&word, to->data(), sizeof(word));
    if (run > 0) rates.push_back(2.0 * kCopies * static_cast<double>(kBytes) / (clock.NowSeconds() - start));
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

}  // namespace

Json DecodeLimit(engine::Engine& engine, int64_t batch, int64_t context, double step_s) {
  device::Device& device = engine.model().device();
  if (device.has_host_memory() || step_s <= 0) return nullptr;
  const double rate = CopyRate(device);
  if (rate <= 0) return nullptr;
  const model::ModelConfig& config = engine.model().config();
  const model::StepWork work = model::EstimateStep(config, model::SummarizeInventory(config, false), batch, context);
  const double limit_s = static_cast<double>(work.memory_bytes()) / rate;
  Json result = {{"memory_gb_per_s", rate * 1e-9},
                 {"step_mb", static_cast<double>(work.memory_bytes()) * 1e-6},
                 {"limit_ms", limit_s * 1e3},
                 {"step_ms", step_s * 1e3},
                 {"share", limit_s / step_s}};
  const auto parsed = model::ModelConfig::FromJson(model::ReleasedConfigJson(), "released configuration");
  if (!parsed.ok() || !HasReleasedWidths(config, *parsed)) return result;
  const model::StepWork whole = model::EstimateStep(*parsed, model::SummarizeInventory(*parsed, false), batch, context);
  const double limit = static_cast<double>(batch) * rate / static_cast<double>(whole.memory_bytes());
  result["released"] = {{"layers", parsed->num_hidden_layers}, {"limit_tokens_per_s", limit}, {"tokens_per_s", limit * limit_s / step_s}};
  return result;
}

std::vector<std::string> DecodeLimitLines(const Json& limit) {
  std::vector<std::string> lines = {fmt::format(
      "memory limit     {:10.3f} of a decode step of {:.2f} ms: {:.0f} MB at {:.2f} TB/s take {:.2f} ms", limit["share"].get<double>(),
      limit["step_ms"].get<double>(), limit["step_mb"].get<double>(), limit["memory_gb_per_s"].get<double>() * 1e-3, limit["limit_ms"].get<double>())};
  if (limit.contains("released")) {
    const Json& released = limit["released"];
    lines.push_back(fmt::format("at that share    {:10.1f} of {:.1f} tokens/s with all {} layers on one such GPU", released["tokens_per_s"].get<double>(),
                                released["limit_tokens_per_s"].get<double>(), released["layers"].get<int>()));
  }
  return lines;
}

}  // namespace deepinfer::cli
