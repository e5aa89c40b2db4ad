// SPDX-License-Identifier: Apache-2.0
//
// instruction_probe NAME: one kernel of the CPU backend at a small fixed shape, on one thread; without NAME, the list of names.
// tools/instruction_gate.sh runs it under callgrind, which collects inside CountedRun only, and compares the instructions with
// bench/instructions.txt.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "backends/cpu/kernels/attention.h"
#include "backends/cpu/kernels/index.h"
#include "bench/cpu_shapes.h"

namespace deepinfer::bench {
namespace {

constexpr int64_t kRows = 256, kCols = 1024;

// What a probe works on; set up and warmed outside of the counted part.
struct Product {
  Product(ThreadPool& p, cpu::WeightFormat format, int64_t m) : pool(p), y(static_cast<size_t>(m * kRows)) {
    const Weights weights(format, kRows, kCols);
    matrix = cpu::PackedMatrix::Pack({&weights.source, 1}, nullptr);
    const std::vector<float> x = Input(m * kCols);
    prepared.Prepare(pool, x.data(), m, kCols, kCols,
                     format == cpu::WeightFormat::kBf16 ? cpu::ActivationForm::kBf16 : cpu::ActivationForm::kFp8);
  }
  void Run() { cpu::MatMul(pool, prepared, matrix, y.data(), kRows, cpu::Rounding::kBf16); }

  ThreadPool& pool;
  cpu::PackedMatrix matrix;
  cpu::PreparedActivations prepared;
  std::vector<float> y;
};

struct Quantisation {
  explicit Quantisation(ThreadPool& p) : pool(p), x(Input(4 * 5120)) {}
  void Run() { prepared.Prepare(pool, x.data(), 4, 5120, 5120, cpu::ActivationForm::kFp8); }

  ThreadPool& pool;
  std::vector<float> x;
  cpu::PreparedActivations prepared;
};

struct Attention {
  explicit Attention(ThreadPool& p)
      : pool(p), query(Input(kHeads * kDim)), key(Input(kKeys * cpu::KeyStride(kDim))), sink(kHeads, 0.5f), out(query.size()) {
    shape.heads = kHeads;
    shape.dim = kDim;
    shape.scale = 0.0441941738f;
    shape.sink = sink.data();
    shape.round_bf16 = true;
    shape.max_keys = kKeys;
  }
  void Run() {
    attention.Run(
        pool, shape, 1, [&](int64_t) { return kKeys; },
        [&](int64_t, int first, int last, const float** list, float*) {
          for (int i = first; i < last; ++i) list[i] = key.data() + i * cpu::KeyStride(kDim);
        },
        [&](int64_t) { return query.data(); }, [&](int64_t) { return out.data(); }, [](int64_t, int, int) {});
  }

  static constexpr int kHeads = 16, kDim = 512, kKeys = 96;
  ThreadPool& pool;
  std::vector<float> query, key, sink, out;
  cpu::SparseAttention attention;
  cpu::SparseAttention::Shape shape;
};

struct Index {
  Index() : query(kHeads * kDim), weights(kHeads, 0.01f), scores(kKeys), data(kKeys * kDim / 2), scales(kKeys * kDim / 32) {
    constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.5f, -1, -2, -6};
    uint64_t random = 5;
    for (float& v : query) v = kValues[NextRandom(random) % 12];
    FillRandom(data);
    std::memset(scales.data(), 125, static_cast<size_t>(scales.bytes()));
  }
  void Run() {
    scorer.Prepare(query.data(), weights.data(), kHeads, kDim, true);
    scorer.ScoreFp4(data.data(), scales.data(), kKeys, scores.data());
  }

  static constexpr int kHeads = 32, kDim = 128, kKeys = 1024;
  std::vector<float> query, weights, scores;
  cpu::AlignedBuffer data, scales;
  cpu::IndexScorer scorer;
};

struct TopK {
  TopK() : scores(Input(16384)), out(512) {
    uint64_t random = 7;
    for (float& v : scores) v += static_cast<float>(NextRandom(random) % 10000) * 1e-5f;
  }
  void Run() { cpu::SelectTopK(scores.data(), static_cast<int>(scores.size()), 512, out.data()); }

  std::vector<float> scores;
  std::vector<int32_t> out;
};

// The counted part: nothing else is called between its entry and its end.
__attribute__((noinline, used)) void CountedRun(void (*run)(void*), void* subject) { run(subject); }

template <typename T, typename... Args>
void Count(Args&&... args) {
  T subject(std::forward<Args>(args)...);
  subject.Run();  // grows buffers
  CountedRun([](void* s) { static_cast<T*>(s)->Run(); }, &subject);
}

struct Probe {
  const char* name;
  void (*run)(Bench& bench);
};

constexpr Probe kProbes[] = {
    {"Fp4MatVec", [](Bench& b) { Count<Product>(b.pool, cpu::WeightFormat::kFp4Row32, 1); }},
    {"Fp8MatVec", [](Bench& b) { Count<Product>(b.pool, cpu::WeightFormat::kFp8Tile32, 1); }},
    {"Bf16MatVec", [](Bench& b) { Count<Product>(b.pool, cpu::WeightFormat::kBf16, 1); }},
    {"Fp4MatMul32", [](Bench& b) { Count<Product>(b.pool, cpu::WeightFormat::kFp4Row32, 32); }},
    {"Fp8MatMul32", [](Bench& b) { Count<Product>(b.pool, cpu::WeightFormat::kFp8Tile32, 32); }},
    {"MoeLayer1", [](Bench& b) { Count<MoeShape>(b, 1, 8, false, true, 1024, 256); }},
    {"MoeLayer8", [](Bench& b) { Count<MoeShape>(b, 8, 8, false, true, 1024, 256); }},
    {"Quantise", [](Bench& b) { Count<Quantisation>(b.pool); }},
    {"Attention", [](Bench& b) { Count<Attention>(b.pool); }},
    {"IndexScore", [](Bench&) { Count<Index>(); }},
    {"TopK512", [](Bench&) { Count<TopK>(); }},
};

}  // namespace
}  // namespace deepinfer::bench

int main(int argc, char** argv) {
  using namespace deepinfer;
  if (argc < 2) {
    for (const auto& probe : bench::kProbes) std::printf("%s\n", probe.name);
    return 0;
  }
  // The level is part of the baseline: chosen by DEEPINFER_CPU_ISA, never by what the machine can do best.
  const char* isa = std::getenv("DEEPINFER_CPU_ISA");
  if (isa == nullptr || CpuIsaName(ActiveCpuIsa()) != isa) {
    std::fprintf(stderr, "error: set DEEPINFER_CPU_ISA to a level of this machine, for example avx2\n");
    return 2;
  }
  for (const auto& probe : bench::kProbes) {
    if (std::strcmp(probe.name, argv[1]) != 0) continue;
    bench::Bench machine(1, false);
    probe.run(machine);
    return 0;
  }
  std::fprintf(stderr, "error: no probe %s\n", argv[1]);
  return 2;
}
