// SPDX-License-Identifier: Apache-2.0
//
// The FP4 expert layer: 384 experts at real width, top 6.
#include "bench/kernels_cuda.h"

#include <cstring>
#include <random>

#include "backends/cuda/kernels/experts.h"

namespace deepinfer::bench {
namespace {

using namespace deepinfer::cuda;

constexpr int kExperts = 384, kChosen = 6;
constexpr int kH = kExpertHidden, kI = kExpertWidth;
constexpr double kGateUpBytes = 2.0 * kI * kH * 0.53125, kDownBytes = 1.0 * kI * kH * 0.53125;

struct Bank {
  PackedLayout gate_up = ExpertGateUpLayout(), down = ExpertDownLayout();
  DeviceArray<uint8_t> packed;
  DeviceArray<const uint8_t*> gate_up_table, down_table;
  // Checkpoint bytes of an expert are made again from its number.
  static constexpr int64_t kW = int64_t{kI} * kH;
  static void Raw(int e, uint8_t* w1, uint8_t* w3, uint8_t* w2, uint8_t* s1, uint8_t* s3, uint8_t* s2) {
    FillBytes(w1, kW / 2, Fill::kBytes, 10 * e + 1);
    FillBytes(w3, kW / 2, Fill::kBytes, 10 * e + 2);
    FillBytes(w2, kW / 2, Fill::kBytes, 10 * e + 3);
    FillBytes(s1, kW / 32, Fill::kScales, 10 * e + 4);
    FillBytes(s3, kW / 32, Fill::kScales, 10 * e + 5);
    FillBytes(s2, kW / 32, Fill::kScales, 10 * e + 6);
  }
  DeviceArray<uint8_t> raw{3 * kW / 2 + 3 * kW / 32};
  uint8_t* Part(int i) const { return i < 3 ? raw.data() + i * (kW / 2) : raw.data() + 3 * kW / 2 + (i - 3) * (kW / 32); }
  void MakeRaw(int e) const { Raw(e, Part(0), Part(1), Part(2), Part(3), Part(4), Part(5)); }

  Bank() {
    const int64_t each = gate_up.bytes() + down.bytes();
    packed = DeviceArray<uint8_t>(each * kExperts);
    DeviceArray<int> error(1);
    std::vector<const uint8_t*> gu, dn;
    for (int e = 0; e < kExperts; ++e) {
      uint8_t* at = packed.data() + e * each;
      MakeRaw(e);
      const PackSource w13[] = {{Part(0), Part(3), kI}, {Part(1), Part(4), kI}};
      const PackSource w2[] = {{Part(2), Part(5), kH}};
      DI_CUDA(LaunchPack(gate_up, RowOrder::kInterleaved, w13, 2, at, error.data(), nullptr));
      DI_CUDA(LaunchPack(down, RowOrder::kStacked, w2, 1, at + gate_up.bytes(), error.data(), nullptr));
      gu.push_back(at);
      dn.push_back(at + gate_up.bytes());
    }
    gate_up_table = DeviceArray<const uint8_t*>(gu);
    down_table = DeviceArray<const uint8_t*>(dn);
    if (error.Host()[0] != 0) Check("expert scales", 1, 0);
  }
};

// Uniform routing: six distinct experts a row.
std::vector<int32_t> Routing(int rows, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> chosen;
  for (int t = 0; t < rows; ++t) {
    std::vector<int32_t> mine;
    while (mine.size() < kChosen) {
      const auto e = static_cast<int32_t>(rng() % kExperts);
      if (std::find(mine.begin(), mine.end(), e) == mine.end()) mine.push_back(e);
    }
    chosen.insert(chosen.end(), mine.begin(), mine.end());
  }
  return chosen;
}

int Distinct(const std::vector<int32_t>& chosen) {
  std::vector<int32_t> sorted = chosen;
  std::sort(sorted.begin(), sorted.end());
  return static_cast<int>(std::unique(sorted.begin(), sorted.end()) - sorted.begin());
}

// All that one call needs.
struct Call {
  DeviceArray<int32_t> chosen;
  DeviceArray<float> weights;
  DeviceArray<uint8_t> workspace;
  DeviceArray<__nv_bfloat16> act;
  DeviceArray<uint8_t> y;
  DeviceArray<float> out;
  ExpertsArgs args;

  Call(const Bank& bank, const std::vector<int32_t>& host, int rows, const __nv_bfloat16* x, bool round)
      : chosen(host), weights(static_cast<int64_t>(host.size())), workspace(PlanBytes(rows, kChosen, kExperts)),
        act(int64_t{rows} * kChosen * kI), y(int64_t{rows} * kChosen * kH * 4), out(int64_t{rows} * kH) {
    std::vector<float> w(host.size());
    for (size_t i = 0; i < w.size(); ++i) w[i] = 0.1f + 0.05f * static_cast<float>(i % 7);
    weights = DeviceArray<float>(w);
    args.plan = PlanViews(workspace.data(), rows, kChosen, kExperts);
    args.num_experts = kExperts;
    args.num_chosen = kChosen;
    args.rows = rows;
    args.chosen = chosen.data();
    args.weights = weights.data();
    args.gate_up = bank.gate_up_table.data();
    args.down = bank.down_table.data();
    args.x = x;
    args.ldx = kH;
    args.swiglu_limit = 10;
    args.round_bf16 = round;
    args.act = act.data();
    args.y = y.data();
    args.out = out.data();
    args.ldo = kH;
    args.out_type = round ? OutputType::kFloatRounded : OutputType::kFloat;
  }
  void Run(cudaStream_t stream) {
    DI_CUDA(LaunchExpertPlan(args, stream));
    DI_CUDA(LaunchExpertGateUp(args, stream));
    DI_CUDA(LaunchExpertDown(args, stream));
    DI_CUDA(LaunchExpertSum(args, stream));
  }
};

float HostQuantize(float amax) {
  const float t = std::max(amax, 1e-4f) * (1.0f / 448.0f);
  uint32_t bits;
  std::memcpy(&bits, &t, 4);
  return std::ldexp(1.0f, static_cast<int>((bits - 1) >> 23) + 1 - 127);
}
float HostE4m3(float x) {  // to nearest even, saturating
  if (x == 0) return x;
  const float a = std::min(std::fabs(x), 448.0f);
  int e;
  std::frexp(a, &e);
  const float ulp = std::ldexp(1.0f, std::max(e - 1, -6) - 3);
  return std::copysign(std::min(std::nearbyint(a / ulp) * ulp, 448.0f), x);
}

// The layer: float64 products, the activation quantiser in between, storage points rounded to bf16 on request.
std::vector<float> Reference(const Bank& bank, const std::vector<int32_t>& chosen, int rows, const __nv_bfloat16* x, bool round) {
  const auto store = [round](float v) { return round ? __bfloat162float(__float2bfloat16_rn(v)) : v; };
  std::vector<float> out(static_cast<size_t>(rows) * kH, 0.0f);
  for (int e = 0; e < kExperts; ++e) {
    std::vector<int32_t> mine, pairs;
    for (int i = 0; i < rows * kChosen; ++i)
      if (chosen[static_cast<size_t>(i)] == e) mine.push_back(i / kChosen), pairs.push_back(i);
    if (mine.empty()) continue;
    const int n = static_cast<int>(mine.size());
    bank.MakeRaw(e);
    DeviceArray<int32_t> index(mine);
    DeviceArray<float> gate(int64_t{n} * kI), up(int64_t{n} * kI), y(int64_t{n} * kH);
    ReferenceProduct(true, bank.Part(0), bank.Part(3), kI, kH, x, kH, index.data(), n, gate.data(), kI);
    ReferenceProduct(true, bank.Part(1), bank.Part(4), kI, kH, x, kH, index.data(), n, up.data(), kI);
    const std::vector<float> g = gate.Host(), u = up.Host();
    std::vector<__nv_bfloat16> a(static_cast<size_t>(n) * kI);
    for (int t = 0; t < n; ++t) {
      const float weight = 0.1f + 0.05f * static_cast<float>(pairs[static_cast<size_t>(t)] % 7);
      for (int b = 0; b < kI; b += 32) {
        float v[32], amax = 0;
        for (int i = 0; i < 32; ++i) {
          const size_t at = static_cast<size_t>(t) * kI + b + i;
          const float gi = std::min(store(g[at]), 10.0f), ui = std::clamp(store(u[at]), -10.0f, 10.0f);
          v[i] = store(weight * (gi / (1.0f + std::exp(-gi)) * ui));
          amax = std::max(amax, std::fabs(v[i]));
        }
        const float s = HostQuantize(amax);
        for (int i = 0; i < 32; ++i) a[static_cast<size_t>(t) * kI + b + i] = __float2bfloat16_rn(HostE4m3(v[i] / s) * s);
      }
    }
    DeviceArray<__nv_bfloat16> act(a);
    ReferenceProduct(true, bank.Part(2), bank.Part(5), kH, kI, act.data(), kI, nullptr, n, y.data(), kH);
    const std::vector<float> part = y.Host();
    for (int t = 0; t < n; ++t)
      for (int r = 0; r < kH; ++r) out[static_cast<size_t>(mine[static_cast<size_t>(t)]) * kH + r] += store(part[static_cast<size_t>(t) * kH + r]);
  }
  for (float& v : out) v = store(v);
  return out;
}

}  // namespace

void ProfileExperts() {
  const Bank bank;
  DeviceArray<__nv_bfloat16> x(int64_t{4096} * kH);
  FillNormal(x.data(), x.size(), 1.0f, 77);
  for (const int m : {1, 256, 4096}) {
    Call call(bank, Routing(m, 3), m, x.data(), true);
    call.Run(nullptr);
    DI_CUDA(cudaDeviceSynchronize());
  }
}

void BenchExperts(bool quick) {
  const Bank bank;
  constexpr int kMaxRows = 4096;
  DeviceArray<__nv_bfloat16> plain(int64_t{kMaxRows} * kH), x(int64_t{kMaxRows} * kH);
  FillNormal(plain.data(), plain.size(), 1.0f, 77);
  DI_CUDA(LaunchQuantize(plain.data(), false, kH, kMaxRows, kH, x.data(), kH, nullptr));

  // Several rows of one expert: rows 40.. share their experts.
  std::vector<int32_t> routing = Routing(64, 5);
  for (int t = 41; t < 64; ++t) std::copy_n(routing.begin() + 40 * kChosen, kChosen, routing.begin() + t * kChosen);
  std::vector<float> all;
  for (const bool round : {false, true}) {
    Call call(bank, routing, 64, x.data(), round);
    call.out.Poison();
    call.Run(nullptr);
    DI_CUDA(cudaDeviceSynchronize());
    const std::vector<float> out = call.out.Host();
    Check(round ? "experts, bf16 storage" : "experts, float32 storage",
          RelativeError(out, Reference(bank, routing, 64, x.data(), round)), round ? 5e-3 : 2e-3);
    if (round) all = out;
  }
  double different = 0;
  for (const int t : {0, 17, 40, 63}) {
    const std::vector<int32_t> mine(routing.begin() + t * kChosen, routing.begin() + (t + 1) * kChosen);
    Call call(bank, mine, 1, x.data() + int64_t{t} * kH, true);
    std::vector<float> w(kChosen);
    for (int i = 0; i < kChosen; ++i) w[static_cast<size_t>(i)] = 0.1f + 0.05f * static_cast<float>((t * kChosen + i) % 7);
    call.weights = DeviceArray<float>(w);
    call.args.weights = call.weights.data();
    call.Run(nullptr);
    DI_CUDA(cudaDeviceSynchronize());
    const std::vector<float> out = call.out.Host();
    for (int r = 0; r < kH; ++r) different += !(out[static_cast<size_t>(r)] == all[static_cast<size_t>(t) * kH + r]);
  }
  // Five rows, two of them with the same experts: nothing is planned.
  {
    Call call(bank, {routing.begin() + 38 * kChosen, routing.begin() + 43 * kChosen}, 5, x.data() + int64_t{38} * kH, true);
    std::vector<float> w(5 * kChosen);
    for (size_t i = 0; i < w.size(); ++i) w[i] = 0.1f + 0.05f * static_cast<float>((38 * kChosen + i) % 7);
    call.weights = DeviceArray<float>(w);
    call.args.weights = call.weights.data();
    call.out.Poison();
    call.Run(nullptr);
    DI_CUDA(cudaDeviceSynchronize());
    const std::vector<float> out = call.out.Host();
    for (size_t i = 0; i < out.size(); ++i) different += !(out[i] == all[size_t{38} * kH + i]);
  }
  Check("experts invariance", different, 0);

  // The form for many rows: the same bits.
  {
    Call call(bank, routing, 64, x.data(), true);
    call.args.form = ExpertForm::kWide;
    call.out.Poison();
    call.Run(nullptr);
    DI_CUDA(cudaDeviceSynchronize());
    const std::vector<float> out = call.out.Host();
    different = 0;
    for (size_t i = 0; i < out.size(); ++i) different += !(out[i] == all[i]);
    Check("experts, wide form, other bits", different, 0);
    Check("experts, wide form", RelativeError(out, all), 5e-3);
    call.args.fast = true;
    call.out.Poison();
    call.Run(nullptr);
    DI_CUDA(cudaDeviceSynchronize());
    Check("experts, wide form, fast", RelativeError(call.out.Host(), all), 5e-3);
  }

  for (const int m : {1, 4, 8, 64, 256, 1024, 4096}) {
    const int nodes = m <= 4 ? 24 : m == 8 ? 8 : m <= 256 ? 4 : 2;
    std::vector<Call> calls;
    calls.reserve(static_cast<size_t>(nodes));
    double experts = 0;
    for (int i = 0; i < nodes; ++i) {
      const std::vector<int32_t> r = Routing(m, 100 + i);
      experts += static_cast<double>(Distinct(r)) / nodes;
      calls.emplace_back(bank, r, m, x.data(), true);
      DI_CUDA(LaunchExpertPlan(calls.back().args, nullptr));
      DI_CUDA(LaunchExpertGateUp(calls.back().args, nullptr));
    }
    DI_CUDA(cudaDeviceSynchronize());
    const double pairs = 2.0 * m * kChosen * kI * kH;
    const std::string more = "\"distinct_experts\":" + std::to_string(experts);
    for (const int kind : {0, 1, 2}) {
      const bool fast = kind == 2;
      if (fast && m < 1024) continue;
      if (kind == 1 && m >= 1024) continue;
      for (Call& c : calls) {
        c.args.dependent = kind == 1;
        c.args.fast = fast;
        if (fast) {
          DI_CUDA(LaunchExpertPlan(c.args, nullptr));
          DI_CUDA(cudaDeviceSynchronize());
        }
      }
      const std::string suffix = kind == 1 ? ", dependent launch" : fast ? ", fast" : "";
      const auto at = [&](int i) -> Call& { return calls[static_cast<size_t>(i)]; };
      const int replays = quick ? 7 : 15;
      Timing t = Time(nodes, [&](int i, cudaStream_t s) { DI_CUDA(LaunchExpertGateUp(at(i).args, s)); }, replays);
      Record("experts gate+up" + suffix, "384x(5120x4608)", m, t, experts * kGateUpBytes, 2 * pairs, more);
      t = Time(nodes, [&](int i, cudaStream_t s) { DI_CUDA(LaunchExpertDown(at(i).args, s)); }, replays);
      Record("experts down" + suffix, "384x(2304x5120)", m, t, experts * kDownBytes, pairs, more);
      t = Time(nodes, [&](int i, cudaStream_t s) { at(i).Run(s); }, replays);
      Record("experts plan to sum" + suffix, "384x3x(5120x2304)", m, t, experts * (kGateUpBytes + kDownBytes), 3 * pairs, more);
    }
  }
}

}  // namespace deepinfer::bench
