// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the CPU backend at the shapes of the released model. Every repetition is paired with a read sweep of other
// memory on the same threads (ratio_read) and, for arithmetic, with a loop of register-only multiply-adds (ratio_peak:
// float32 FMA, or bf16 dot products on AVX-512). Weights rotate over more than four times the last-level cache.
//   kernels_cpu --benchmark_filter='Fp4MatVec.*' [--cpu-isa=avx2] [--pairs=25] [--jsonl=FILE]
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <benchmark/benchmark.h>

#include "backends/cpu/kernels/attention.h"
#include "backends/cpu/kernels/index.h"
#include "backends/cpu/kernels/matmul_tile.h"
#include "backends/registry.h"
#include "bench/cpu_shapes.h"
#include "bench/paired.h"
#include "bench/record.h"
#include "core/clock.h"
#include "core/cpu_features.h"
#include "core/threads.h"
#include "device/device.h"
#include "model/engram_hash.h"
#include "model/released_config.h"
#include "sampling/params.h"
#include "sampling/sampler.h"

namespace deepinfer::bench {
namespace {

using cpu::ActivationForm;
using cpu::AlignedBuffer;
using cpu::PreparedActivations;
using cpu::WeightFormat;

int g_pairs = 25;

// Runs `subject` (one repetition, returns nothing) in pairs. bytes and flops are of one repetition.
template <typename F>
void RunPaired(benchmark::State& state, Bench& bench, double bytes, double flops, F&& subject,
               double (*peak_of)(ThreadPool&) = ArithmeticPeak) {
  subject();  // touches everything
  PairedRatio read, peak;
  std::vector<double> times, sweeps;
  const int64_t switches = InvoluntarySwitches();
  const double start = Clock::Steady().NowSeconds();
  int pair = 0;
  for (auto _ : state) {
    double seconds = 0, sweep_rate = 0, peak_rate = 0;
    const auto references = [&] {
      sweep_rate = bench.Sweep();
      peak_rate = peak_of(bench.pool);
    };
    if (pair % 2 == 0) references();
    seconds = SecondsOf(subject);
    if (pair % 2 == 1) references();
    ++pair;
    state.SetIterationTime(seconds);
    read.Add(bytes / seconds, sweep_rate);
    peak.Add(flops / seconds, peak_rate);
    times.push_back(seconds);
    sweeps.push_back(sweep_rate);
  }
  const double elapsed = Clock::Steady().NowSeconds() - start;
  std::sort(times.begin(), times.end());
  std::sort(sweeps.begin(), sweeps.end());
  const auto at = [](const std::vector<double>& sorted, double q) {
    return sorted.empty() ? 0.0 : sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1))];
  };
  const PairedRatio::Summary r = read.Summarize();
  const PairedRatio::Summary p = peak.Summarize();
  state.counters["bytes"] = bytes;
  state.counters["flops"] = flops;
  state.counters["GB/s"] = r.subject * 1e-9;
  state.counters["GFLOP/s"] = p.subject * 1e-9;
  state.counters["sweep_GB/s"] = r.reference * 1e-9;
  state.counters["peak_GFLOP/s"] = p.reference * 1e-9;
  state.counters["ratio_read"] = r.ratio;
  state.counters["ratio_read_lo"] = r.low;
  state.counters["ratio_read_hi"] = r.high;
  state.counters["ratio_peak"] = p.ratio;
  state.counters["threads"] = bench.pool.num_threads();
  state.counters["median_us"] = at(times, 0.5) * 1e6;
  state.counters["p10_us"] = at(times, 0.1) * 1e6;
  state.counters["p90_us"] = at(times, 0.9) * 1e6;
  // Of the middle eight tenths, so that one interrupted sweep does not spoil a run.
  state.counters["sweep_spread"] = at(sweeps, 0.9) > 0 ? 1 - at(sweeps, 0.1) / at(sweeps, 0.9) : 0.0;
  state.counters["switches_per_s"] = elapsed > 0 ? static_cast<double>(InvoluntarySwitches() - switches) / elapsed : 0.0;
}

// args: rows, cols, M, threads, groups
void MatMulBench(benchmark::State& state, WeightFormat format, int64_t rows, int64_t cols, int64_t m, int threads,
                 int64_t groups) {
  Bench bench(threads);
  MatMulShape shape(bench, format, rows, cols, m, groups);
  RunPaired(state, bench, shape.bytes(), shape.flops(), [&] { shape.Run(); });
}

// 24 experts of the released shape stand for 384; routing uniform or Zipf.
void MoeBench(benchmark::State& state, int64_t m, int threads, bool zipf) {
  Bench bench(threads);
  MoeShape shape(bench, m, 24, zipf, true);
  RunPaired(state, bench, shape.bytes(), shape.flops(), [&] { shape.Run(); });
}

void AttentionBench(benchmark::State& state, int keys, int heads, int64_t rows, int threads) {
  constexpr int kDim = 512;
  Bench bench(threads);
  const std::vector<float> query = Input(rows * heads * kDim), key = Input(keys * cpu::KeyStride(kDim));
  const std::vector<float> sink(static_cast<size_t>(heads), 0.5f);
  std::vector<float> out(query.size());
  cpu::SparseAttention attention;
  cpu::SparseAttention::Shape shape;
  shape.heads = heads;
  shape.dim = kDim;
  shape.scale = 0.0441941738f;
  shape.sink = sink.data();
  shape.round_bf16 = true;
  shape.max_keys = keys;
  RunPaired(state, bench, static_cast<double>(rows * keys * kDim * 4),
            4.0 * static_cast<double>(rows * heads) * keys * kDim, [&] {
              attention.Run(
                  bench.pool, shape, rows, [&](int64_t) { return keys; },
                  [&](int64_t, int first, int last, const float** list, float*) {
                    for (int i = first; i < last; ++i) list[i] = key.data() + i * cpu::KeyStride(kDim);
                  },
                  [&](int64_t row) { return query.data() + row * heads * kDim; },
                  [&](int64_t row) { return out.data() + row * heads * kDim; }, [](int64_t, int, int) {});
            });
}

// Scores of one query against `rows` FP4 keys; topk > 0: and the best of them. ratio_peak is of the rate of byte products.
void IndexBench(benchmark::State& state, int64_t rows, int threads, int topk) {
  constexpr int kHeads = 32, kDim = 128;
  Bench bench(threads);
  std::vector<float> query(kHeads * kDim), weights(kHeads, 0.01f), scores(static_cast<size_t>(rows));
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.5f, -1, -2, -6};
  uint64_t random = 5;
  for (float& v : query) v = kValues[NextRandom(random) % 12];
  AlignedBuffer data(rows * kDim / 2), scales(rows * kDim / 32);
  FillRandom(data);
  std::memset(scales.data(), 125, static_cast<size_t>(scales.bytes()));
  cpu::IndexScorer scorer;
  std::vector<int32_t> chosen(static_cast<size_t>(std::max(topk, 1)));
  RunPaired(
      state, bench, static_cast<double>(rows * 68), 2.0 * kHeads * kDim * static_cast<double>(rows),
      [&] {
        scorer.Prepare(query.data(), weights.data(), kHeads, kDim, true);
        constexpr int64_t kRowsPerTile = 512;
        bench.pool.ParallelFor((rows + kRowsPerTile - 1) / kRowsPerTile, [&](int64_t tile, int) {
          const int64_t begin = tile * kRowsPerTile;
          const auto count = static_cast<int>(std::min(kRowsPerTile, rows - begin));
          scorer.ScoreFp4(data.data() + begin * kDim / 2, scales.data() + begin * kDim / 32, count, scores.data() + begin);
        });
        if (topk > 0) cpu::SelectTopK(scores.data(), static_cast<int>(rows), topk, chosen.data());
      },
      IntegerPeak);
}

void TopKBench(benchmark::State& state, int64_t rows, int k) {
  Bench bench(1);
  std::vector<float> scores = Input(rows);
  uint64_t random = 7;
  for (float& v : scores) v += static_cast<float>(NextRandom(random) % 10000) * 1e-5f;
  std::vector<int32_t> out(static_cast<size_t>(k));
  RunPaired(state, bench, static_cast<double>(rows * 4), 0, [&] {
    benchmark::DoNotOptimize(cpu::SelectTopK(scores.data(), static_cast<int>(rows), k, out.data()));
  });
}

void BlocksBench(benchmark::State& state, int64_t rows) {
  Bench bench(1);
  const std::vector<float> scores = Input(rows);
  std::vector<float> maxima(static_cast<size_t>(rows / 8 + 1));
  std::vector<int32_t> out(2048);
  RunPaired(state, bench, static_cast<double>(rows * 4), 0, [&] {
    cpu::BlockMaxima(scores.data(), static_cast<int>(rows), 8, maxima.data());
    benchmark::DoNotOptimize(cpu::SelectTopK(maxima.data(), static_cast<int>((rows + 7) / 8), 2048, out.data()));
  });
}

void QuantBench(benchmark::State& state, int64_t m) {
  Bench bench(1);
  const std::vector<float> x = Input(m * 5120);
  PreparedActivations prepared;
  RunPaired(state, bench, static_cast<double>(m * 5120 * 4), 0,
            [&] { prepared.Prepare(bench.pool, x.data(), m, 5120, 5120, ActivationForm::kFp8); });
}

// ---- ops of the device, at released widths ---------------------------------------------------------------------------

constexpr int kStreams = 4;
constexpr device::Arithmetic kRelease{true, true};

std::shared_ptr<device::Device> NewDevice(int threads) {
  backends::DeviceOptions options;
  options.num_threads = threads;
  options.cpu_isa = CpuIsaName(ActiveCpuIsa());
  return backends::CreateDevice("cpu", options).value();
}

device::Act ActOf(std::vector<float>& values, int64_t width) { return {values.data(), width, 4}; }

// One repetition of a small op does it often enough for a steady clock.
int64_t RepeatsOf(double bytes) { return std::max<int64_t>(1, static_cast<int64_t>(4e6 / bytes)); }

void RmsNormBench(benchmark::State& state, int64_t rows, int threads) {
  Bench bench(threads);
  const auto device = NewDevice(threads);
  std::vector<float> x = Input(rows * kHidden), norm = Input(kHidden), out(x.size());
  const double bytes = static_cast<double>((2 * rows + 1) * kHidden * 4);
  const int64_t repeats = RepeatsOf(bytes);
  RunPaired(state, bench, bytes * static_cast<double>(repeats), 4.0 * static_cast<double>(rows * kHidden * repeats), [&] {
    for (int64_t i = 0; i < repeats; ++i)
      device->RmsNorm(kRelease, ActOf(x, kHidden), norm.data(), rows, kHidden, 1e-20f, ActOf(out, kHidden));
  });
}

// The whole mix of a hyper-connection site: 24 products of 20480, gates, Sinkhorn.
void SinkhornBench(benchmark::State& state, int64_t rows, int threads) {
  Bench bench(threads);
  const auto device = NewDevice(threads);
  constexpr int kOutputs = kStreams * (kStreams + 2);
  constexpr int64_t kWidth = kStreams * kHidden;
  std::vector<float> x = Input(rows * kWidth), base = Input(kOutputs), weights = Input(kOutputs * kWidth);
  for (float& w : weights) w *= 0.004f;
  const std::vector<float> scale(3, 0.6f);
  const device::HostMatrix source{device::WeightFormat::kF32, kOutputs, kWidth, weights.data(), nullptr};
  const auto fn = device->CreateMatrix({&source, 1}).value();
  device::HyperConnectionSite site;
  site.fn = fn.get();
  site.base = base.data();
  site.scale = scale.data();
  site.streams = kStreams;
  site.hidden = kHidden;
  site.norm_eps = 1e-20f;
  std::vector<float> pre(static_cast<size_t>(rows * kStreams)), post(pre.size()), comb(pre.size() * kStreams);
  const double bytes = static_cast<double>((rows + kOutputs) * kWidth * 4);
  const int64_t repeats = RepeatsOf(bytes);
  RunPaired(state, bench, bytes * static_cast<double>(repeats), 2.0 * static_cast<double>(rows * (kOutputs + 1) * kWidth * repeats),
            [&] {
              for (int64_t i = 0; i < repeats; ++i)
                device->HyperConnectionMix(site, ActOf(x, kWidth), rows, pre.data(), post.data(), comb.data());
            });
}

// The queries of a layer: 64 heads of 512, the last 64 channels turn.
void RopeBench(benchmark::State& state, int64_t rows, int threads) {
  constexpr int kHeads = 64, kDim = 512, kRope = 64;
  Bench bench(threads);
  const auto device = NewDevice(threads);
  std::vector<float> x = Input(rows * kHeads * kDim), inverse = Input(kRope / 2), table(static_cast<size_t>(rows * kRope));
  std::vector<int32_t> positions(static_cast<size_t>(rows));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(100003 + i);
  device->RopeTable(positions.data(), rows, inverse.data(), kRope, table.data());
  const double bytes = static_cast<double>(rows * (kHeads * kRope * 2 + kRope) * 4);
  const int64_t repeats = RepeatsOf(bytes);
  RunPaired(state, bench, bytes * static_cast<double>(repeats), 3.0 * static_cast<double>(rows * kHeads * kRope * repeats), [&] {
    for (int64_t i = 0; i < repeats; ++i)
      device->Rope(kRelease, ActOf(x, kHeads * kDim), rows, kHeads, kDim, kRope, table.data());
  });
}

// Hash of the tokens and read of 24 rows of 256 FP8 values each. Cold: rows not read before, from a table of 264 MB.
void EngramBench(benchmark::State& state, int64_t rows, int threads, bool cold) {
  Bench bench(threads);
  const auto device = NewDevice(threads);
  const auto config = model::ModelConfig::FromJson(model::SliceConfigJson({}), "slice configuration").value();
  std::vector<int32_t> map(static_cast<size_t>(config.vocab_size));
  for (size_t i = 0; i < map.size(); ++i) map[i] = static_cast<int32_t>(i % static_cast<size_t>(config.engram_compressed_vocab_size));
  const auto hasher = model::EngramHasher::Create(config, map).value();
  const int columns = hasher.num_columns();
  const int64_t width = config.engram_head_dim, table_rows = config.engram_num_embeddings[0];
  AlignedBuffer data(table_rows * width), scales(table_rows * (width / 32));
  FillRandom(data);
  for (int64_t i = 0; i < data.bytes(); ++i) data.data()[i] &= 0xb7;
  std::memset(scales.data(), 120, static_cast<size_t>(scales.bytes()));
  const auto table = device->CreateTable({device::WeightFormat::kFp8Row32, table_rows, width, data.data(), scales.data()}).value();
  std::vector<int32_t> tokens(static_cast<size_t>(rows)), ids(static_cast<size_t>(rows * columns));
  std::vector<int64_t> found(ids.size());
  std::vector<float> out(static_cast<size_t>(rows * columns * width));
  uint64_t random = 3;
  const double bytes = static_cast<double>(rows * columns * (width + width / 32));
  const int64_t repeats = RepeatsOf(bytes);
  RunPaired(state, bench, bytes * static_cast<double>(repeats), 0, [&] {
    if (!cold) random = 3;
    for (int64_t i = 0; i < repeats; ++i) {
      if (!cold && i > 0) random = 3;
      for (int32_t& t : tokens) t = static_cast<int32_t>(NextRandom(random) % static_cast<uint64_t>(config.vocab_size));
      model::EngramHistory history;
      hasher.Rows(tokens, {}, &history, found.data());
      std::copy(found.begin(), found.end(), ids.begin());
      device->GatherRows(kRelease, *table, ids.data(), rows, columns, width, ActOf(out, columns * width));
    }
  });
}

void SamplerBench(benchmark::State& state, bool is_greedy) {
  constexpr int kVocab = 129280;
  Bench bench(1);
  std::vector<float> logits(kVocab);
  uint64_t random = 11;
  // A wide floor and a few large ones, as a trained model gives them.
  for (float& v : logits) {
    v = 0;
    for (int i = 0; i < 4; ++i) v += static_cast<float>(NextRandom(random) % 10000) * 2e-4f - 1.0f;
    v *= 1.7f;
  }
  for (int i = 0; i < 50; ++i) logits[NextRandom(random) % logits.size()] += 12.0f;
  sampling::Sampler sampler(kVocab);
  SamplingParams params;
  if (is_greedy) params.temperature = 0;
  if (!is_greedy) params.top_p = 0.95;
  params = sampling::Normalized(params);
  sampling::RowContext context;
  context.seed = 7;
  constexpr int64_t kRepeats = 8;
  RunPaired(state, bench, static_cast<double>(kRepeats * kVocab * 4), 0, [&] {
    for (int64_t i = 0; i < kRepeats; ++i) {
      ++context.position;
      benchmark::DoNotOptimize(sampler.Sample(logits, params, context));
    }
  });
}

void SweepBench(benchmark::State& state, int threads) {
  Bench bench(threads);
  RunPaired(state, bench, static_cast<double>(kPairBytes), 0, [&] { bench.Sweep(); });
}

template <typename F>
void Register(const std::string& name, F&& f) {
  benchmark::RegisterBenchmark(name.c_str(), f)->UseManualTime()->Iterations(g_pairs)->Unit(benchmark::kMicrosecond);
}

void RegisterAll() {
  struct Shape {
    const char* name;
    int64_t rows, cols, groups;
  };
  // Names are KxN as in the specification: inputs x outputs.
  const Shape fp4[] = {{"5120x2304", 2304, 5120, 1}, {"2304x5120", 5120, 2304, 1}, {"5120x4608", 4608, 5120, 1}};
  const Shape fp8[] = {{"5120x2304", 2304, 5120, 1},  {"5120x1280", 1280, 5120, 1},   {"1280x32768", 32768, 1280, 1},
                       {"5120x512", 512, 5120, 1},    {"4096x1024x8", 8192, 4096, 8}, {"8192x5120", 5120, 8192, 1},
                       {"5120x4608", 4608, 5120, 1},  {"2304x5120", 5120, 2304, 1},   {"6144x25600", 25600, 6144, 1}};
  const Shape bf16[] = {{"5120x129280", 129280, 5120, 1}};
  std::vector<int> thread_counts = {1, 2};
  if (ThreadPool::NumAvailableCores() > 2) thread_counts.push_back(ThreadPool::NumAvailableCores());
  for (int threads : thread_counts) {
    const std::string suffix = "/threads:" + std::to_string(threads);
    Register("ReadSweep" + suffix, [=](benchmark::State& s) { SweepBench(s, threads); });
    const auto add = [&](const char* family, WeightFormat format, const Shape& shape, int64_t m) {
      Register(std::string(family) + "/" + shape.name + "/M:" + std::to_string(m) + suffix, [=](benchmark::State& s) {
        MatMulBench(s, format, shape.rows, shape.cols, m, threads, shape.groups);
      });
    };
    for (const Shape& shape : fp4) add("Fp4MatVec", WeightFormat::kFp4Row32, shape, 1);
    for (const Shape& shape : fp8) add("Fp8MatVec", WeightFormat::kFp8Tile32, shape, 1);
    for (const Shape& shape : bf16) add("Bf16MatVec", WeightFormat::kBf16, shape, 1);
    for (int64_t m : {2, 4, 8, 16, 32, 64, 128, 512}) {
      add("Fp4MatMul", WeightFormat::kFp4Row32, fp4[0], m);
      add("Fp8MatMul", WeightFormat::kFp8Tile32, fp8[0], m);
    }
    for (int64_t m : {1, 8, 128}) {
      Register("MoeLayer/uniform/M:" + std::to_string(m) + suffix, [=](benchmark::State& s) { MoeBench(s, m, threads, false); });
    }
    Register("MoeLayer/zipf/M:128" + suffix, [=](benchmark::State& s) { MoeBench(s, 128, threads, true); });
    for (int keys : {128, 640}) {
      for (int64_t rows : {1, 16, 512}) {
        if (rows == 512 && keys == 128) continue;
        Register("SparseAttn/keys:" + std::to_string(keys) + "/heads:64/T:" + std::to_string(rows) + suffix,
                 [=](benchmark::State& s) { AttentionBench(s, keys, 64, rows, threads); });
      }
    }
    for (int64_t rows : {4096, 65536, 1048576}) {
      Register("IndexScore/rows:" + std::to_string(rows) + suffix, [=](benchmark::State& s) { IndexBench(s, rows, threads, 0); });
    }
    Register("IndexTopK/rows:1048576" + suffix, [=](benchmark::State& s) { IndexBench(s, 1048576, threads, 512); });
    for (int64_t m : {1, 128}) {
      const std::string size = "/T:" + std::to_string(m) + suffix;
      Register("RmsNorm5120" + size, [=](benchmark::State& s) { RmsNormBench(s, m, threads); });
      Register("SinkhornMhc" + size, [=](benchmark::State& s) { SinkhornBench(s, m, threads); });
      Register("Rope/64x512" + size, [=](benchmark::State& s) { RopeBench(s, m, threads); });
      Register("EngramHashGather/cold" + size, [=](benchmark::State& s) { EngramBench(s, m, threads, true); });
      Register("EngramHashGather/warm" + size, [=](benchmark::State& s) { EngramBench(s, m, threads, false); });
    }
  }
  for (int64_t rows : {4096, 65536, 1048576}) {
    Register("TopK512/rows:" + std::to_string(rows), [=](benchmark::State& s) { TopKBench(s, rows, 512); });
  }
  Register("CandidateBlocks/rows:1048576", [](benchmark::State& s) { BlocksBench(s, 1048576); });
  Register("Sampler/129280/greedy", [](benchmark::State& s) { SamplerBench(s, true); });
  Register("Sampler/129280/top-p", [](benchmark::State& s) { SamplerBench(s, false); });
  for (int64_t m : {1, 128}) {
    Register("ActQuantFp8/5120/M:" + std::to_string(m), [=](benchmark::State& s) { QuantBench(s, m); });
  }
}

}  // namespace
}  // namespace deepinfer::bench

int main(int argc, char** argv) {
  using namespace deepinfer;
  int kept = 1;
  std::string record_path;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg.starts_with("--cpu-isa=")) {
      const auto isa = ParseCpuIsa(arg.substr(10));
      if (!isa.ok()) {
        std::fprintf(stderr, "%s\n", isa.status().message().c_str());
        return 2;
      }
      SetCpuIsa(*isa);
    } else if (arg.starts_with("--prefetch=")) {
      cpu::SetPrefetchBytes(std::atoi(argv[i] + 11));
    } else if (arg.starts_with("--item-bytes=")) {
      cpu::SetItemBytes(std::atoi(argv[i] + 13));
    } else if (arg.starts_with("--jsonl=")) {
      record_path = arg.substr(8);
    } else if (arg.starts_with("--pairs=")) {
      bench::g_pairs = std::max(1, std::atoi(argv[i] + 8));
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("cpu_isa", std::string(CpuIsaName(ActiveCpuIsa())));
  bench::RegisterAll();
  bench::RecordingReporter reporter("kernels_cpu", record_path, DEEPINFER_SOURCE_DIR);
  if (!record_path.empty() && !reporter.is_open()) {
    std::fprintf(stderr, "error: cannot write %s\n", record_path.c_str());
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks(&reporter);
  return 0;
}
