// SPDX-License-Identifier: Apache-2.0
//
// bench_streaming DIR --expert-budget BYTES: decode steps of random tokens on a checkpoint whose experts are read from disk;
// hit rate, bytes per second and tokens per second beside random reads of the same files in the same run and beside the
// forecast (docs/internals/streaming.md). Works on the model alone, without scheduler or tokenizer.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "backends/registry.h"
#include "core/clock.h"
#include "core/disk_rate.h"
#include "core/json.h"
#include "core/read_sweep.h"
#include "model/expert_files.h"
#include "model/model.h"
#include "model/sequence.h"
#include "model/streaming_forecast.h"

namespace deepinfer::model {
namespace {

struct Options {
  std::string dir, io = "auto", pack = "off";
  int64_t expert_budget = 0;
  int64_t batch = 1, warm_up = 4, steps = 12, reps = 3;
  int threads = 0;
  double seconds = 0;
  uint64_t seed = 1;
};

int64_t StatusKib(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return std::strtoll(line.c_str() + key.size(), nullptr, 10);
  return 0;
}

Status Run(const Options& options) {
  DI_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::Load(options.dir));
  DI_ASSIGN_OR_RETURN(std::shared_ptr<const Checkpoint> checkpoint, Checkpoint::Open(options.dir));
  backends::DeviceOptions device_options;
  device_options.num_threads = options.threads;
  DI_ASSIGN_OR_RETURN(const auto device, backends::CreateDevice("cpu", device_options));
  device::ExpertStreaming streaming = ExpertFiles(*checkpoint);
  streaming.budget_bytes = options.expert_budget;
  streaming.io = options.io;
  streaming.pack_path = PackPath(*checkpoint, options.pack);
  std::vector<std::string> paths = checkpoint->ShardPaths();
  if (!streaming.pack_path.empty()) paths = {streaming.pack_path};
  DI_RETURN_IF_ERROR(device->StreamExperts(std::move(streaming)));
  LoadOptions load;
  load.with_draft = false;
  load.max_model_len = 4096;
  for (int32_t i = 0; i < config.vocab_size; ++i) load.compressed_vocab.push_back(i % static_cast<int32_t>(std::max<int64_t>(config.engram_compressed_vocab_size, 1)));
  const Clock& clock = Clock::Steady();
  double begin_s = clock.NowSeconds();
  DI_ASSIGN_OR_RETURN(const auto model, Model::Load(checkpoint, config, device, std::move(load)));
  fmt::print(stderr, "loaded in {:.1f} s, resident {} MB\n", clock.NowSeconds() - begin_s, StatusKib("VmRSS:") / 1024);

  std::mt19937_64 random(options.seed);
  std::vector<std::unique_ptr<Sequence>> sequences;
  const auto step = [&]() -> Status {
    std::vector<int32_t> ids;
    std::vector<SequenceChunk> chunks;
    for (int64_t i = 0; i < options.batch; ++i) ids.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(config.vocab_size)));
    if (sequences.empty() || sequences[0]->length() > 3000) {
      sequences.clear();
      for (int64_t i = 0; i < options.batch; ++i) {
        DI_ASSIGN_OR_RETURN(sequences.emplace_back(), model->NewSequence());
      }
    }
    for (size_t i = 0; i < sequences.size(); ++i) chunks.push_back({.sequence = sequences[i].get(), .ids = std::span(ids).subspan(i, 1)});
    return model->Forward(chunks).status();
  };
  for (int64_t i = 0; i < options.warm_up; ++i) DI_RETURN_IF_ERROR(step());

  const InventorySummary summary = SummarizeInventory(config, false);
  ReadSweep sweep(device->pool(), int64_t{256} << 20);
  RandomReadOptions disk;
  disk.backend = options.io == "threads" ? "threads" : "auto";
  disk.piece_bytes = std::min<int64_t>(device->expert_stats().expert_bytes / (options.pack == "off" ? 3 : 1), int64_t{32} << 20);
  const double run_begin_s = clock.NowSeconds();
  for (int64_t rep = 0; options.seconds > 0 ? clock.NowSeconds() - run_begin_s < options.seconds : rep < options.reps; ++rep) {
    disk.seed = static_cast<uint64_t>(2 * rep + 1);
    DI_ASSIGN_OR_RETURN(const double disk_before, MeasureRandomReads(paths, disk));
    const auto before = device->expert_stats();
    begin_s = clock.NowSeconds();
    for (int64_t i = 0; i < options.steps; ++i) DI_RETURN_IF_ERROR(step());
    const double took_s = clock.NowSeconds() - begin_s;
    const auto after = device->expert_stats();
    ++disk.seed;
    DI_ASSIGN_OR_RETURN(const double disk_after, MeasureRandomReads(paths, disk));
    const double disk_rate = (disk_before + disk_after) / 2, memory_rate = sweep.Pass();
    const double bytes = static_cast<double>(after.num_bytes - before.num_bytes), steps = static_cast<double>(options.steps);
    const double hits = static_cast<double>(after.num_hits - before.num_hits), misses = static_cast<double>(after.num_misses - before.num_misses);
    const double guessed = static_cast<double>(after.num_prefetched - before.num_prefetched), used = static_cast<double>(after.num_useful - before.num_useful);
    const double forecast_hits = static_cast<double>(after.num_slots) / static_cast<double>(after.num_experts);
    const double per_step = (hits + misses) / steps * static_cast<double>(after.expert_bytes);
    const StepWork work = {.dense_bytes = DenseBytesPerToken(summary), .expert_bytes = static_cast<int64_t>(per_step)};
    const MachineRates rates = {.memory_bytes_per_s = memory_rate, .disk_bytes_per_s = disk_rate};
    const double forecast = EstimateDecode(work, options.batch, rates, forecast_hits, kStreamingOverlap).tokens_per_s;
    const double tokens = static_cast<double>(options.batch) * steps / took_s;
    // An expert that a guess had read counts as found; what stayed in memory from earlier steps is the forecast's subject.
    const double kept = (hits - used) / (hits + misses);
    const Json record = {{"bench", "streaming"}, {"io", after.io}, {"pack", options.pack != "off"}, {"batch", options.batch}, {"steps", options.steps},
                         {"experts", after.num_experts}, {"slots", after.num_slots}, {"expert_bytes", after.expert_bytes},
                         {"hit_rate", hits / (hits + misses)}, {"kept_rate", kept}, {"forecast_hit_rate", forecast_hits},
                         {"prefetched", guessed}, {"prefetched_used", used}, {"read_mb_per_s", bytes / took_s * 1e-6},
                         {"disk_random_mb_per_s", disk_rate * 1e-6}, {"ratio_disk", bytes / took_s / disk_rate}, {"memory_gb_per_s", memory_rate * 1e-9},
                         {"tokens_per_s", tokens}, {"forecast_tokens_per_s", forecast}, {"ratio_forecast", tokens / forecast},
                         {"wait_share", 1e-9 * static_cast<double>(after.wait_ns - before.wait_ns) / took_s},
                         {"rss_mb", StatusKib("VmRSS:") / 1024}, {"rss_peak_mb", StatusKib("VmHWM:") / 1024}};
    std::puts(record.dump().c_str());
    std::fflush(stdout);
  }
  return Status::Ok();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("decode steps with experts on disk");
  app.add_option("dir", options.dir, "checkpoint")->required();
  app.add_option("--expert-budget", options.expert_budget, "bytes for experts")->required();
  app.add_option("--io", options.io, "auto, uring, threads, mmap");
  app.add_option("--pack", options.pack, "off, beside or a directory");
  app.add_option("--batch", options.batch, "sequences of a step");
  app.add_option("--warm-up", options.warm_up, "steps before");
  app.add_option("--steps", options.steps, "steps of a repeat");
  app.add_option("--reps", options.reps, "repeats");
  app.add_option("--seconds", options.seconds, "repeat for so long");
  app.add_option("--threads", options.threads, "compute threads");
  app.add_option("--seed", options.seed, "of the tokens");
  CLI11_PARSE(app, argc, argv);
  const Status status = Run(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "error: {}\n", status.message());
  return 1;
}

}  // namespace
}  // namespace deepinfer::model

int main(int argc, char** argv) { return deepinfer::model::Main(argc, argv); }
