// SPDX-License-Identifier: Apache-2.0
//
// bench steps: the speed of prefill and decode at exact (batch, prompt length) points, with the time of every stage and,
// for decode, the rate at which its weights were read, beside a sweep of plain reads in the same run.
#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/commands/bench_common.h"
#include "cli/commands/bench_layers.h"
#include "cli/commands/model_session.h"
#include "cli/svg.h"
#include "core/arithmetic_peak.h"
#include "core/clock.h"
#include "core/disk_rate.h"
#include "core/json.h"
#include "core/memory_info.h"
#include "core/progress.h"
#include "core/read_sweep.h"
#include "device/device.h"
#include "model/flops.h"
#include "model/inventory.h"
#include "model/memory_estimate.h"
#include "model/sequence.h"
#include "model/stage_clock.h"
#include "model/streaming_forecast.h"

namespace deepinfer::cli {

namespace {

using model::Stage;

struct Measurement {
  std::vector<double> prefill_tokens_per_s;
  std::vector<double> step_s;  // one decode step of the whole batch
  std::vector<double> sweep_bytes_per_s;
  std::vector<double> peak_flops;  // of the arithmetic, on the same threads
  std::vector<double> disk_bytes_per_s;  // random reads between the repeats, with experts on disk
  device::ExpertStreamStats experts;     // of the measured decode steps
};

// Random reads of the size that experts have, from the checkpoint's files.
Result<double> RandomReadRate(engine::Engine& engine, const std::vector<std::string>& paths, int64_t repeat) {
  RandomReadOptions disk;
  disk.backend = engine.model().device().expert_stats().io == "threads" ? "threads" : "auto";
  disk.piece_bytes = std::clamp<int64_t>(engine.model().device().expert_stats().expert_bytes / 3, 4096, int64_t{8} << 20);
  disk.seed = static_cast<uint64_t>(repeat + 1);
  return MeasureRandomReads(paths, disk);
}

constexpr int64_t kWarmUpSteps = 2;
int64_t NumFabricatedSteps(const BenchConfig& bench) { return kWarmUpSteps + bench.repeats * bench.output_tokens; }

Status Measure(const BenchConfig& bench, int64_t seed, engine::Engine& engine, ThreadPool& pool, ReadSweep& sweep, model::StageClock& prefill_clock,
               model::StageClock& decode_clock, Progress& progress, Measurement& out) {
  model::Model& model = engine.model();
  const Clock& clock = Clock::Steady();
  TokenStream tokens(seed, engine);
  const size_t batch = static_cast<size_t>(bench.batch);
  const int64_t warm_up = 1;
  std::vector<std::string> shard_paths;  // with experts on disk
  if (model.device().streams_experts()) {
    DI_ASSIGN_OR_RETURN(const auto checkpoint, model::Checkpoint::Open(engine.model_dir()));
    shard_paths = checkpoint->ShardPaths();
  }
  for (int64_t repeat = -warm_up; repeat < bench.repeats; ++repeat) {
    const bool is_measured = repeat >= 0;
    std::vector<std::unique_ptr<model::Sequence>> sequences(batch);
    std::vector<std::vector<int32_t>> prompts(batch);
    std::vector<model::SequenceChunk> chunks(batch);
    for (size_t i = 0; i < batch; ++i) {
      DI_ASSIGN_OR_RETURN(sequences[i], model.NewSequence());
      for (int64_t t = 0; t < bench.input_tokens; ++t) prompts[i].push_back(tokens.Next());
      chunks[i].sequence = sequences[i].get();
      chunks[i].ids = prompts[i];
    }
    model.SetStageClock(is_measured ? &prefill_clock : nullptr);
    double start = clock.NowSeconds();
    DI_RETURN_IF_ERROR(model.Forward(chunks).status());
    if (is_measured) {
      out.prefill_tokens_per_s.push_back(static_cast<double>(bench.input_tokens * bench.batch) / (clock.NowSeconds() - start));
    }

    model.SetStageClock(is_measured ? &decode_clock : nullptr);
    const device::ExpertStreamStats before = model.device().expert_stats();
    std::vector<int32_t> next(batch);
    const int64_t steps = is_measured ? bench.output_tokens : std::min<int64_t>(bench.output_tokens, 8);
    for (int64_t step = 0; step < steps; ++step) {
      for (size_t i = 0; i < batch; ++i) {
        next[i] = tokens.Next();
        chunks[i].ids = std::span(next).subspan(i, 1);
      }
      start = clock.NowSeconds();
      DI_RETURN_IF_ERROR(model.Forward(chunks).status());
      if (is_measured) out.step_s.push_back(clock.NowSeconds() - start);
    }
    model.SetStageClock(nullptr);
    if (const device::ExpertStreamStats after = model.device().expert_stats(); is_measured && after.num_slots > 0) {
      device::ExpertStreamStats sum = after;
      sum.num_hits = out.experts.num_hits + after.num_hits - before.num_hits;
      sum.num_misses = out.experts.num_misses + after.num_misses - before.num_misses;
      sum.num_prefetched = out.experts.num_prefetched + after.num_prefetched - before.num_prefetched;
      sum.num_useful = out.experts.num_useful + after.num_useful - before.num_useful;
      sum.num_bytes = out.experts.num_bytes + after.num_bytes - before.num_bytes;
      sum.wait_ns = out.experts.wait_ns + after.wait_ns - before.wait_ns;
      out.experts = sum;
      DI_ASSIGN_OR_RETURN(out.disk_bytes_per_s.emplace_back(), RandomReadRate(engine, shard_paths, repeat));
    }
    if (is_measured && sweep.is_ready()) out.sweep_bytes_per_s.push_back(sweep.Pass());
    if (is_measured) out.peak_flops.push_back(ArithmeticPeak(pool));
    progress.Update(repeat + warm_up + 1, bench.repeats + warm_up);
  }
  return Status::Ok();
}

// Steps behind fabricated caches: the last one measured sees bench.context tokens.
Status MeasureFabricated(const BenchConfig& bench, int64_t seed, engine::Engine& engine, ThreadPool& pool, ReadSweep& sweep,
                         model::StageClock& decode_clock, Progress& progress, Measurement& out) {
  model::Model& model = engine.model();
  const Clock& clock = Clock::Steady();
  TokenStream tokens(seed, engine);
  const size_t batch = static_cast<size_t>(bench.batch);
  const int64_t behind = bench.context - NumFabricatedSteps(bench);
  std::vector<std::unique_ptr<model::Sequence>> sequences(batch);
  std::vector<model::SequenceChunk> chunks(batch);
  for (size_t i = 0; i < batch; ++i) {
    DI_ASSIGN_OR_RETURN(sequences[i], model.NewSequence());
    DI_RETURN_IF_ERROR(sequences[i]->Fabricate(tokens.Take(behind), static_cast<uint64_t>(seed) + i));
    chunks[i].sequence = sequences[i].get();
  }
  std::vector<int32_t> next(batch);
  const auto step = [&]() -> Result<double> {
    for (size_t i = 0; i < batch; ++i) {
      next[i] = tokens.Next();
      chunks[i].ids = std::span(next).subspan(i, 1);
    }
    const double start = clock.NowSeconds();
    DI_RETURN_IF_ERROR(model.Forward(chunks).status());
    return clock.NowSeconds() - start;
  };
  for (int64_t i = 0; i < kWarmUpSteps; ++i) DI_RETURN_IF_ERROR(step().status());
  for (int64_t repeat = 0; repeat < bench.repeats; ++repeat) {
    model.SetStageClock(&decode_clock);
    for (int64_t i = 0; i < bench.output_tokens; ++i) {
      DI_ASSIGN_OR_RETURN(const double seconds, step());
      out.step_s.push_back(seconds);
    }
    model.SetStageClock(nullptr);
    if (sweep.is_ready()) out.sweep_bytes_per_s.push_back(sweep.Pass());
    out.peak_flops.push_back(ArithmeticPeak(pool));
    progress.Update(repeat + 1, bench.repeats);
  }
  return Status::Ok();
}

// Two stacked bars, the time of a prompt and of one decode step by stage.
std::string PlotSvg(const Json& report) {
  constexpr double kWidth = 760, kBar = 600, kLeft = 110;
  const Json& stages = report["stages"];
  SvgPicture picture(kWidth, 150 + 18 * static_cast<double>(stages.size()));
  const auto bar = [&](const char* key, const std::string& label, double y) {
    double total = 0;
    for (const Json& row : stages) total += row[key].get<double>();
    picture.Text(10, y + 20, label);
    double x = kLeft;
    for (size_t i = 0; i < stages.size() && total > 0; ++i) {
      const double width = stages[i][key].get<double>() / total * kBar;
      picture.Rect(x, y, width, 30, SvgPicture::Color(i));
      x += width;
    }
    return total;
  };
  const double prefill = bar("prefill_ms", "prefill", 20), decode = bar("decode_ms", "decode step", 70);
  picture.Text(kLeft, 124, fmt::format("prefill of {} tokens {:.1f} ms, decode step {:.3f} ms, batch {}", report["context"].get<int64_t>(),
                                       prefill, decode, report["batch"].get<int64_t>()));
  for (size_t i = 0; i < stages.size(); ++i) {
    const double y = 138 + 18 * static_cast<double>(i);
    picture.Rect(kLeft, y, 12, 12, SvgPicture::Color(i));
    picture.Text(kLeft + 20, y + 11, fmt::format("{}: {:.2f} ms, {:.4f} ms", stages[i]["stage"].get<std::string>(),
                                                 stages[i]["prefill_ms"].get<double>(), stages[i]["decode_ms"].get<double>()));
  }
  return picture.Finish();
}

Status RunSteps(Invocation& invocation) {
  const Config& config = invocation.config;
  const BenchConfig& bench = config.bench;
  DI_RETURN_IF_ERROR(CheckPlotName(config.output.plot));
  DI_ASSIGN_OR_RETURN(const auto engine, LoadEngineFor(invocation, false, Defaults::kProduction,
                                                        [](engine::LoadOptions& options) { options.num_drafts = 0; }));
  const model::ModelConfig& shape = engine->config();
  const bool is_fabricated = bench.context > 0;
  const int64_t needed = is_fabricated ? bench.context : bench.input_tokens + bench.output_tokens;
  if (is_fabricated && bench.context <= NumFabricatedSteps(bench)) {
    return InvalidArgument(fmt::format("--context is {} but {} steps are to be measured within it; raise it, or lower --output-tokens or --repeats",
                                       bench.context, NumFabricatedSteps(bench)));
  }
  if (is_fabricated && needed > engine->model().max_model_len()) {
    return InvalidArgument(fmt::format("--context is {} but the model holds {} tokens; lower it", needed, engine->model().max_model_len()));
  }
  if (needed > engine->model().max_model_len()) {
    return InvalidArgument(fmt::format("--input-tokens plus --output-tokens is {} but the context holds {}; lower them", needed,
                                       engine->model().max_model_len()));
  }
  {
    model::MemoryPlan plan;
    DI_ASSIGN_OR_RETURN(plan.numerics, model::ParseNumerics(config.model.numerics));
    plan.with_draft = false;
    plan.use_fp4_sparse_kv = config.model.kv_format == "fp4";
    plan.num_sequences = bench.batch;
    plan.cache_tokens = bench.batch * needed;
    plan.chunk_tokens = std::min<int64_t>(bench.batch * (is_fabricated ? 1 : bench.input_tokens), 2048);
    const int64_t caches = model::EstimateMemory(shape, plan).cache_bytes, available = ReadMemoryInfo().available_bytes;
    if (caches > available) {
      return ResourceExhausted(fmt::format("--batch {} needs {} for caches but {} is available; lower it", bench.batch, FormatBytes(caches),
                                           FormatBytes(available)));
    }
  }
  const int layers = shape.num_hidden_layers;
  model::StageClock prefill_clock(layers), decode_clock(layers);
  Measurement m;
  ThreadPool sweep_pool(static_cast<int>(config.model.threads));
  ReadSweep sweep(sweep_pool);
  {
    Progress progress("bench steps", {.quiet = config.log.quiet, .unit = ProgressUnit::kItems, .clock = nullptr, .write_line = {}});
    const int64_t seed = config.sampling.seed.value_or(0);
    DI_RETURN_IF_ERROR(is_fabricated ? MeasureFabricated(bench, seed, *engine, sweep_pool, sweep, decode_clock, progress, m)
                                     : Measure(bench, seed, *engine, sweep_pool, sweep, prefill_clock, decode_clock, progress, m));
  }

  const auto bytes = BytesPerToken(shape);
  const double steps = static_cast<double>(m.step_s.size());
  const double prefills = static_cast<double>(m.prefill_tokens_per_s.size());
  const double step_s = Quantile(m.step_s, 0.5);
  std::vector<double> decode_rates;
  for (const double s : m.step_s) decode_rates.push_back(static_cast<double>(bench.batch) / s);
  const double sweep_rate = Quantile(m.sweep_bytes_per_s, 0.5);
  // By the estimator, which knows what decoder replay leaves out.
  const model::FlopsModel flops(shape);
  model::FlopsCounts decode_counts;
  const int64_t decoded_behind = is_fabricated ? bench.context - NumFabricatedSteps(bench) / 2 : bench.input_tokens + bench.output_tokens / 2;
  flops.Add({.start = decoded_behind, .num_tokens = 1, .num_consumer_tokens = 1, .num_logit_rows = 1}, decode_counts);
  const double prefill_flop = is_fabricated ? 0.0 : flops.OfPrompt(bench.input_tokens, engine->model().decoder_keep()).flop();
  const double decode_flop = flops.Evaluate(decode_counts).flop() * static_cast<double>(bench.batch);
  const double prefill_flops = prefill_flop / static_cast<double>(bench.input_tokens) * Quantile(m.prefill_tokens_per_s, 0.5);
  const double decode_flops = step_s > 0 ? decode_flop / step_s : 0.0, peak = Quantile(m.peak_flops, 0.5);
  // Exact for one sequence; several may share experts, so their traffic is not derived.
  const bool has_bytes = bench.batch == 1;
  const std::vector<LayerRow> rows = LayerRows(
      shape, {.prefill = &prefill_clock, .prefills = prefills, .decode = &decode_clock, .steps = steps}, decoded_behind);
  double weight_bytes = 0, context_bytes = 0;
  for (const LayerRow& row : rows) {
    weight_bytes += row.weight_bytes;
    context_bytes += row.context_bytes;
  }
  const double all_bytes = weight_bytes + context_bytes;

  Json stages = Json::array();
  for (int s = 0; s < model::kNumStages; ++s) {
    const Stage stage = static_cast<Stage>(s);
    double prefill_ns = 0, decode_ns = 0, stage_bytes = 0;
    for (int layer = 0; layer <= layers; ++layer) {
      prefill_ns += static_cast<double>(prefill_clock.nanoseconds(layer, stage));
      decode_ns += static_cast<double>(decode_clock.nanoseconds(layer, stage));
      if (const auto it = bytes.find({layer, stage}); it != bytes.end() && stage != Stage::kInput) stage_bytes += it->second;
    }
    if (prefill_ns == 0 && decode_ns == 0) continue;
    Json row = {{"stage", model::StageName(stage)},
                {"prefill_ms", prefills > 0 ? prefill_ns / prefills * 1e-6 : 0.0},
                {"decode_ms", decode_ns / steps * 1e-6}};
    if (has_bytes) row["decode_gb_per_s"] = decode_ns > 0 ? stage_bytes / (decode_ns / steps) : 0.0;
    stages.push_back(std::move(row));
  }
  const Json per_layer = LayersJson(rows, sweep_rate, peak, has_bytes);
  Json report = {{"bench", "steps"},
                 {"model", config.model.model},
                 {"numerics", config.model.numerics},
                 {"threads", sweep_pool.num_threads()},
                 {"batch", bench.batch},
                 {"context", is_fabricated ? bench.context : bench.input_tokens},
                 {"fabricated", is_fabricated},
                 {"output_tokens", bench.output_tokens},
                 {"reps", bench.repeats},
                 {"load_s", engine->load_s()},
                 {"prefill_tokens_per_s", Spread(m.prefill_tokens_per_s)},
                 {"decode_tokens_per_s", Spread(decode_rates)},
                 {"step_ms", Quantile(m.step_s, 0.5) * 1e3},
                 {"read_sweep_gb_per_s", sweep_rate * 1e-9},
                 {"prefill_gflop", prefill_flop * 1e-9},
                 {"decode_gflop", decode_flop * 1e-9},
                 {"prefill_gflop_per_s", prefill_flops * 1e-9},
                 {"decode_gflop_per_s", decode_flops * 1e-9},
                 {"peak_gflop_per_s", peak * 1e-9},
                 {"prefill_ratio_peak", peak > 0 ? prefill_flops / peak : 0.0},
                 {"decode_ratio_peak", peak > 0 ? decode_flops / peak : 0.0}};
  if (has_bytes) {
    report["decode_weight_bytes"] = weight_bytes;
    report["decode_context_bytes"] = context_bytes;
    report["decode_gb_per_s"] = all_bytes / step_s * 1e-9;
    report["ratio_read"] = sweep_rate > 0 ? all_bytes / step_s / sweep_rate : 0.0;
  }
  std::string streaming_text;
  if (m.experts.num_slots > 0 && has_bytes) {
    const device::ExpertStreamStats& e = m.experts;
    const model::InventorySummary summary = model::SummarizeInventory(shape, false);
    const double wanted = static_cast<double>(e.num_hits + e.num_misses), disk = Quantile(m.disk_bytes_per_s, 0.5);
    const model::StepWork work = {.dense_bytes = model::DenseBytesPerToken(summary),
                                  .expert_bytes = int64_t{layers} * shape.num_experts_per_tok * e.expert_bytes};
    const model::MachineRates rates = {.memory_bytes_per_s = sweep_rate, .disk_bytes_per_s = disk};
    const auto speed_with = [&](double hit_rate) { return model::EstimateDecode(work, 1, rates, hit_rate, model::kStreamingOverlap).tokens_per_s; };
    const double predicted_hits = static_cast<double>(e.num_slots) / static_cast<double>(e.num_experts);
    const double predicted = speed_with(predicted_hits);
    const double hits = wanted > 0 ? static_cast<double>(e.num_hits) / wanted : 0.0, read_s = step_s * steps;
    // What the formula says for the bytes that were in fact read.
    const double for_reads = speed_with(1 - static_cast<double>(e.num_bytes) / steps / static_cast<double>(work.expert_bytes));
    const double rate = read_s > 0 ? static_cast<double>(e.num_bytes) / read_s : 0.0;
    report["streaming"] = {{"io", e.io},
                           {"experts", e.num_experts},
                           {"experts_in_memory", e.num_slots},
                           {"hit_rate", hits},
                           {"predicted_hit_rate", predicted_hits},
                           {"predicted_tokens_per_s", predicted},
                           {"predicted_tokens_per_s_for_reads", for_reads},
                           {"prefetched", e.num_prefetched},
                           {"prefetched_and_used", e.num_useful},
                           {"disk_gb_per_s", rate * 1e-9},
                           {"disk_random_gb_per_s", disk * 1e-9},
                           {"ratio_disk", disk > 0 ? rate / disk : 0.0},
                           {"wait_s", 1e-9 * static_cast<double>(e.wait_ns)}};
    streaming_text = fmt::format(
        "experts: {} of {} in memory, {:.1f} % found there (predicted {:.1f} %), {} of {} read ahead were used; {:.3f} GB/s of {:.3f} GB/s that the disk "
        "gives at random ({}); predicted {:.3f} tokens/s, {:.3f} for the bytes that were read",
        e.num_slots, e.num_experts, hits * 100, predicted_hits * 100, e.num_useful, e.num_prefetched, rate * 1e-9, disk * 1e-9, e.io, predicted, for_reads);
  }
  const std::string replay = DecoderReplayName(invocation, shape);
  report["decoder_replay"] = replay;
  report["stages"] = stages;
  report["layers"] = per_layer;
  const Json released = has_bytes ? ExtrapolateToReleased(shape, rows, sweep_rate, peak, decoded_behind) : Json();
  if (!released.is_null()) report["released"] = released;
  DI_RETURN_IF_ERROR(WritePlot(invocation, [&] { return PlotSvg(report); }));
  DI_ASSIGN_OR_RETURN(const bool is_written, WriteRecord(invocation, report));
  if (is_written) return Status::Ok();

  const auto line = [&](const std::string& text) { invocation.out.Line(text); };
  if (is_fabricated) {
    line(fmt::format("{}: batch {}, {} decode steps behind fabricated caches of {} tokens, {} repeats, {} threads, loaded in {:.2f} s",
                     config.model.model, bench.batch, bench.output_tokens, bench.context, bench.repeats, sweep_pool.num_threads(),
                     engine->load_s()));
  } else {
    line(fmt::format("{}: batch {}, {} prompt tokens, {} decode steps, {} repeats, {} threads, decoder replay {}, loaded in {:.2f} s",
                     config.model.model, bench.batch, bench.input_tokens, bench.output_tokens, bench.repeats,
                     sweep_pool.num_threads(), replay, engine->load_s()));
    line(fmt::format("prefill {:10.1f} tokens/s   (p10 {:.1f}, p90 {:.1f})", Quantile(m.prefill_tokens_per_s, 0.5),
                     Quantile(m.prefill_tokens_per_s, 0.1), Quantile(m.prefill_tokens_per_s, 0.9)));
  }
  line(fmt::format("decode  {:10.1f} tokens/s   (p10 {:.1f}, p90 {:.1f})", Quantile(decode_rates, 0.5), Quantile(decode_rates, 0.1),
                   Quantile(decode_rates, 0.9)));
  if (has_bytes) {
    line(fmt::format("memory  {:10.2f} GB/s of {:.2f} GB/s in the read sweep: {:.3f} ({:.1f} MB of weights, {:.1f} MB of keys a token)",
                     all_bytes / step_s * 1e-9, sweep_rate * 1e-9, sweep_rate > 0 ? all_bytes / step_s / sweep_rate : 0.0,
                     weight_bytes * 1e-6, context_bytes * 1e-6));
  }
  if (!streaming_text.empty()) line(streaming_text);
  line(fmt::format("arithmetic: prefill {:.2f} GFLOP a prompt, {:.1f} GFLOP/s; decode {:.2f} GFLOP a step, {:.1f} GFLOP/s; {:.1f} GFLOP/s is the peak",
                   prefill_flop * 1e-9, prefill_flops * 1e-9, decode_flop * 1e-9, decode_flops * 1e-9, peak * 1e-9));
  line("");
  line(fmt::format("{:<20} {:>12} {:>12} {:>12}", "stage", "prefill ms", "decode ms", has_bytes ? "decode GB/s" : ""));
  for (const Json& row : stages) {
    line(fmt::format("{:<20} {:>12.3f} {:>12.4f} {:>12}", row["stage"].get<std::string>(), row["prefill_ms"].get<double>(),
                     row["decode_ms"].get<double>(),
                     has_bytes ? fmt::format("{:.2f}", row["decode_gb_per_s"].get<double>()) : std::string()));
  }
  line("");
  for (const std::string& text : LayerLines(per_layer)) line(text);
  if (!released.is_null()) {
    line("");
    line(ExtrapolationLine(released));
  }
  return invocation.out.Check();
}

}  // namespace

Command BenchStepsCommand() {
  Command command;
  command.name = "bench steps";
  command.summary = "speed of prefill and decode steps, with the time of every stage";
  command.run = RunSteps;
  command.details =
      "Runs random tokens through the model: --input-tokens of prompt, then --output-tokens single steps, for --batch\n"
      "sequences together. With --load-format dummy no weights are read from disk; with --context N no prompt is run, the\n"
      "steps see N tokens of random keys.";
  return command;
}

}  // namespace deepinfer::cli
