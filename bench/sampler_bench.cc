// SPDX-License-Identifier: Apache-2.0
//
// The sampler on one row, at the released vocabulary and at the demo model's.
#include "sampling/sampler.h"

#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "sampling/params.h"

namespace deepinfer::sampling {
namespace {

enum Mode { kGreedy, kTemperature, kTopP, kTopKTopP, kSeeded, kSeededTopP };

// Logits as a trained model gives them: a few large ones above a wide floor.
std::vector<float> Logits(int n) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> row(static_cast<size_t>(n));
  for (float& x : row) x = normal(rng);
  for (int i = 0; i < 50; ++i) row[rng() % row.size()] += 12.0f;
  return row;
}

void BM_Sample(benchmark::State& state) {
  const int n = static_cast<int>(state.range(0));
  const auto mode = static_cast<Mode>(state.range(1));
  const std::vector<float> logits = Logits(n);
  Sampler sampler(n);
  SamplingParams params;
  if (mode == kGreedy) params.temperature = 0;
  if (mode == kTopP || mode == kTopKTopP || mode == kSeededTopP) params.top_p = 0.95;
  if (mode == kTopKTopP) params.top_k = 50;
  params = Normalized(params);
  RowContext context;
  context.seed = 7;
  context.draw_mode = mode == kSeeded || mode == kSeededTopP ? DrawMode::kRace : DrawMode::kInverseCdf;
  for (auto _ : state) {
    ++context.position;
    benchmark::DoNotOptimize(sampler.Sample(logits, params, context));
  }
  state.SetItemsProcessed(state.iterations());
  static const char* const kNames[] = {"greedy", "temperature", "top-p", "top-k top-p", "seeded", "seeded top-p"};
  state.SetLabel(kNames[mode]);
}

BENCHMARK(BM_Sample)->ArgsProduct({{4096, 129280}, {kGreedy, kTemperature, kTopP, kTopKTopP, kSeeded, kSeededTopP}});

}  // namespace
}  // namespace deepinfer::sampling

BENCHMARK_MAIN();
