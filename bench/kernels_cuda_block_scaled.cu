// SPDX-License-Identifier: Apache-2.0
//
// Block-scaled products: packing and quantisation against the layouts on any GPU, products where the GPU has them.
#include "bench/kernels_cuda.h"

#include <random>

#include "backends/cuda/kernels/block_scaled.h"
#include "backends/cuda/kernels/kernel_set.h"

namespace deepinfer::bench {
namespace {

using namespace deepinfer::cuda;

struct Shape {
  const char* name;
  int rows, cols, groups;
};
constexpr Shape kShapes[] = {
    {"wq_a+wkv 5120x1792", 1792, 5120, 1},  {"wq_b 1280x32768", 32768, 1280, 1},          {"wo_a 8x(4096x1024)", 8192, 4096, 8},
    {"wo_b 8192x5120", 5120, 8192, 1},      {"shared gate+up 5120x4608", 4608, 5120, 1},  {"shared down 2304x5120", 5120, 2304, 1},
    {"engram 6144x25600", 25600, 6144, 1},  {"index wq_b 1280x4096", 4096, 1280, 1},
};

const char* NameOf(BlockScaledForm form) { return form == BlockScaledForm::kSm100a ? "sm_100a" : "sm_120a"; }

// Two sources, in turns or one after the other, against the layout's own functions.
void CheckPacking(BlockScaledForm form, BlockScaledKind kind, RowOrder order) {
  constexpr int kRows = 160, kCols = 256;
  const bool is_fp4 = kind == BlockScaledKind::kFp4;
  const int row_bytes = is_fp4 ? kCols / 2 : kCols, scale_rows = is_fp4 ? kRows : kRows / 32;
  const BlockScaledLayout layout{form, kind, 2 * kRows, kCols};
  DeviceArray<uint8_t> data(2 * kRows * row_bytes), scale(2 * scale_rows * (kCols / 32)), out(layout.bytes());
  FillBytes(data.data(), data.size(), Fill::kBytes, 1);
  FillBytes(scale.data(), scale.size(), Fill::kBytes, 2);
  const PackSource sources[] = {{data.data(), scale.data(), kRows},
                                {data.data() + kRows * row_bytes, scale.data() + scale_rows * (kCols / 32), kRows}};
  DI_CUDA(LaunchBlockScaledPack(layout, order, sources, 2, out.data(), nullptr));
  const std::vector<uint8_t> codes = data.Host(), scales = scale.Host(), got = out.Host();
  const auto source_row = [&](int row) {
    if (row >= 2 * kRows) return -1;
    if (order == RowOrder::kStacked) return row;
    const InterleavedRow r = Interleave(row);
    return r.source * kRows + r.row;
  };
  double wrong = 0;
  for (int panel = 0; panel < layout.panels(); ++panel) {
    for (int stage = 0; stage < layout.stages(); ++stage) {
      const uint8_t* at = got.data() + panel * layout.panel_bytes() + stage * PanelStageBytes(kind);
      for (int i = 0; i < PanelCodeBytes(kind); ++i) {
        for (int nibble = 0; nibble < (is_fp4 ? 2 : 1); ++nibble) {
          const PanelElement e = PackedElement(form, kind, i, nibble);
          const int row = source_row(panel * kPanelRows + e.row), col = stage * kStageCols + e.col;
          const int expected = row < 0 ? 0 : is_fp4 ? codes[row * row_bytes + col / 2] >> (4 * (col & 1)) & 15 : codes[row * row_bytes + col];
          wrong += (is_fp4 ? at[i] >> (4 * nibble) & 15 : at[i]) != expected;
        }
      }
      for (int i = 0; i < kScaleStageBytes; ++i) {
        const PanelElement e = PackedScale(form, i);
        const int row = source_row(panel * kPanelRows + e.row);
        wrong += at[PanelCodeBytes(kind) + i] != (row < 0 ? 127 : scales[(is_fp4 ? row : row / 32) * (kCols / 32) + stage * kStageSteps + e.col]);
      }
    }
  }
  Check(std::string("block-scaled packing ") + NameOf(form) + (is_fp4 ? " FP4" : " FP8") + (order == RowOrder::kStacked ? "" : " interleaved"),
        wrong, 0);
}

float CodeValue(uint8_t code) {
  const int e = code >> 3 & 15, m = code & 7;
  const float v = e == 0 ? std::ldexp(static_cast<float>(m), -9) : std::ldexp(static_cast<float>(8 + m), e - 10);
  return code & 128 ? -v : v;
}

std::vector<float> ValuesOf(const std::vector<uint8_t>& rows, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::ldexp(CodeValue(rows[i]), rows[values.size() + i / 32] - 127);
  return values;
}

// Codes and scales are the values of the quantiser of dense.h, from what it makes as from plain numbers.
void CheckQuantizer() {
  constexpr int kRows = 37, kCols = 1280;
  DeviceArray<float> x(kRows * kCols);
  FillNormal(x.data(), x.size(), 1.0f, 3);
  DI_CUDA(cudaMemset(x.data(), 0, 5 * 32 * 4));
  DeviceArray<__nv_bfloat16> quantized(x.size());
  DI_CUDA(LaunchQuantize(x.data(), true, kCols, kRows, kCols, quantized.data(), kCols, nullptr));
  const std::vector<float> expected = ToFloats(quantized.Host());
  for (const bool is_plain : {true, false}) {
    DeviceArray<uint8_t> rows(BlockScaledRowsBytes(kRows, kCols));
    const void* from = is_plain ? static_cast<const void*>(x.data()) : quantized.data();
    DI_CUDA(LaunchBlockScaledQuantize(from, is_plain, kCols, kRows, kCols, BlockScaledRowsIn(rows.data(), kRows, kCols), false, nullptr));
    const std::vector<float> got = ValuesOf(rows.Host(), x.size());
    double wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) wrong += got[i] != expected[i];
    Check(is_plain ? "block-scaled quantiser" : "block-scaled quantiser, quantised values", wrong, 0);
  }
}

void BenchProducts(BlockScaledForm form, bool quick) {
  constexpr int kMany = 4096, kChecked = 131;
  for (const Shape& s : kShapes) {
    const BlockScaledLayout layout{form, BlockScaledKind::kFp8, s.rows, s.cols};
    DeviceArray<uint8_t> raw(int64_t{s.rows} * s.cols), scale(int64_t{s.rows / 32} * (s.cols / 32));
    FillBytes(raw.data(), raw.size(), Fill::kFp8, 1);
    FillBytes(scale.data(), scale.size(), Fill::kScales, 2);
    const int copies = static_cast<int>(std::max<int64_t>(2, (kRotateBytes + layout.bytes() - 1) / layout.bytes()));
    std::vector<DeviceArray<uint8_t>> packed;
    for (int i = 0; i < copies; ++i) {
      packed.emplace_back(layout.bytes());
      const PackSource source{raw.data(), scale.data(), s.rows};
      DI_CUDA(LaunchBlockScaledPack(layout, RowOrder::kStacked, &source, 1, packed.back().data(), nullptr));
    }
    const int64_t ldx = int64_t{s.cols} * s.groups;
    DeviceArray<__nv_bfloat16> plain(kMany * ldx), x(kMany * ldx);
    FillNormal(plain.data(), plain.size(), 1.0f, 3);
    DI_CUDA(LaunchQuantize(plain.data(), false, ldx, kMany, static_cast<int>(ldx), x.data(), ldx, nullptr));
    DeviceArray<uint8_t> workspace(BlockScaledRowsBytes(kMany, ldx));
    DeviceArray<float> y(int64_t{kChecked} * s.rows), reference(y.size()), one(s.rows);
    DenseArgs a;
    a.x = x.data();
    a.ldx = ldx;
    a.num_groups = s.groups;
    a.ldy = s.rows;
    a.out = OutputType::kFloat;
    a.workspace = workspace.data();
    a.weights = packed[0].data();
    a.y = y.data();
    a.tokens = kChecked;
    y.Poison();
    DI_CUDA(LaunchDenseBlockScaled(layout, a, nullptr));
    const int part = s.rows / s.groups;
    for (int g = 0; g < s.groups; ++g)
      ReferenceProduct(false, raw.data() + int64_t{g} * part * s.cols, scale.data() + int64_t{g} * (part / 32) * (s.cols / 32), part, s.cols,
                       x.data() + g * s.cols, ldx, nullptr, kChecked, reference.data() + g * part, s.rows);
    const std::vector<float> all = y.Host();
    Check(std::string("block-scaled ") + s.name, RelativeError(all, reference.Host()), 1e-5);
    a.y = one.data();
    a.x = x.data() + 130 * ldx;
    a.tokens = 1;
    DI_CUDA(LaunchDenseBlockScaled(layout, a, nullptr));
    const std::vector<float> alone = one.Host();
    double worst = 0;
    for (size_t i = 0; i < alone.size(); ++i) worst += !(alone[i] == all[size_t{130} * alone.size() + i]);
    Check(std::string("block-scaled invariance ") + s.name, worst, 0);
    for (const int m : quick ? std::vector<int>{64, kMany} : std::vector<int>{1, 16, 64, 256, kMany}) {
      DeviceArray<__nv_bfloat16> out(int64_t{m} * s.rows);
      a.x = x.data();
      a.y = out.data();
      a.out = OutputType::kBf16;
      a.tokens = m;
      const Timing t = Time(m == kMany ? 2 : 8, [&](int i, cudaStream_t stream) {
        a.weights = packed[static_cast<size_t>(i % copies)].data();
        DI_CUDA(LaunchDenseBlockScaled(layout, a, stream));
      });
      Record("dense, block-scaled", s.name, m, t, static_cast<double>(raw.size() + scale.size()), 2.0 * m * s.rows * s.cols);
    }
  }
}

// A layer of 16 experts: gate and up against the plain product, SwiGLU and quantiser, down against the plain product of what came out.
void BenchLayer(BlockScaledForm form, bool quick) {
  constexpr int kExperts = 16, kChosen = 2, kH = kExpertHidden, kI = kExpertWidth;
  constexpr int64_t kW = int64_t{kH} * kI;
  const BlockScaledLayout gate_up = BlockScaledGateUpLayout(form), down = BlockScaledDownLayout(form);
  DeviceArray<uint8_t> raw(kExperts * 3 * (kW / 2 + kW / 32)), packed(kExperts * (gate_up.bytes() + down.bytes()));
  const auto data = [&](int e, int i) { return raw.data() + (e * 3 + i) * (kW / 2 + kW / 32); };
  std::vector<const uint8_t*> tables[2];
  for (int e = 0; e < kExperts; ++e) {
    for (int i = 0; i < 3; ++i) {
      FillBytes(data(e, i), kW / 2, Fill::kBytes, 10 * e + i);
      FillBytes(data(e, i) + kW / 2, kW / 32, Fill::kScales, 10 * e + 5 + i);
    }
    uint8_t* at = packed.data() + e * (gate_up.bytes() + down.bytes());
    const PackSource w13[] = {{data(e, 0), data(e, 0) + kW / 2, kI}, {data(e, 1), data(e, 1) + kW / 2, kI}};
    const PackSource w2{data(e, 2), data(e, 2) + kW / 2, kH};
    DI_CUDA(LaunchBlockScaledPack(gate_up, RowOrder::kInterleaved, w13, 2, at, nullptr));
    DI_CUDA(LaunchBlockScaledPack(down, RowOrder::kStacked, &w2, 1, at + gate_up.bytes(), nullptr));
    tables[0].push_back(at);
    tables[1].push_back(at + gate_up.bytes());
  }
  DeviceArray<const uint8_t*> gate_up_table(tables[0]), down_table(tables[1]);
  for (const int rows : quick ? std::vector<int>{300} : std::vector<int>{300, 4096}) {
    std::mt19937 random(7);
    std::vector<int32_t> chosen;
    std::vector<float> weights;
    for (int t = 0; t < rows; ++t) {
      const int first = static_cast<int>(random() % kExperts);
      chosen.insert(chosen.end(), {first, (first + 1 + static_cast<int>(random() % (kExperts - 1))) % kExperts});
      weights.insert(weights.end(), {0.3f, 0.7f});
    }
    const int pairs = rows * kChosen;
    DeviceArray<__nv_bfloat16> plain(int64_t{rows} * kH), x(plain.size()), act(int64_t{pairs} * kI);
    FillNormal(plain.data(), plain.size(), 1.0f, 3);
    DI_CUDA(LaunchQuantize(plain.data(), false, kH, rows, kH, x.data(), kH, nullptr));
    DeviceArray<int32_t> chosen_on_device(chosen);
    DeviceArray<float> weights_on_device(weights), y(int64_t{pairs} * kH);
    DeviceArray<uint8_t> plan(PlanBytes(rows, kChosen, kExperts)), workspace(BlockScaledRowsBytes(rows, kH));
    ExpertsArgs a;
    a.plan = PlanViews(plan.data(), rows, kChosen, kExperts);
    a.num_experts = kExperts;
    a.num_chosen = kChosen;
    a.rows = rows;
    a.chosen = chosen_on_device.data();
    a.weights = weights_on_device.data();
    a.gate_up = gate_up_table.data();
    a.down = down_table.data();
    a.x = x.data();
    a.ldx = kH;
    a.swiglu_limit = 10;
    a.round_bf16 = false;
    a.act = act.data();
    a.y = y.data();
    a.form = ExpertForm::kWide;
    a.fast = true;
    DI_CUDA(LaunchExpertPlan(a, nullptr));
    DI_CUDA(LaunchExpertGateUpBlockScaled(form, a, workspace.data(), nullptr));
    DI_CUDA(LaunchExpertDownBlockScaled(form, a, nullptr));
    if (rows == 300) {
      std::vector<int32_t> slot(static_cast<size_t>(pairs));
      DI_CUDA(cudaMemcpy(slot.data(), a.plan.pair_slot, slot.size() * 4, cudaMemcpyDeviceToHost));
      std::vector<uint8_t> act_bytes(static_cast<size_t>(BlockScaledRowsBytes(pairs, kI)));
      DI_CUDA(cudaMemcpy(act_bytes.data(), act.data(), act_bytes.size(), cudaMemcpyDeviceToHost));
      const std::vector<float> got_act = ValuesOf(act_bytes, int64_t{pairs} * kI), got_y = y.Host();
      std::vector<__nv_bfloat16> act_values;
      for (const float v : got_act) act_values.push_back(__float2bfloat16_rn(v));
      DeviceArray<__nv_bfloat16> act_rows(act_values);
      std::vector<float> expected_act(got_act.size()), expected_y(got_y.size());
      for (int e = 0; e < kExperts; ++e) {
        std::vector<int32_t> mine, slots;
        for (int i = 0; i < pairs; ++i)
          if (chosen[static_cast<size_t>(i)] == e) mine.push_back(i), slots.push_back(slot[static_cast<size_t>(i)]);
        if (mine.empty()) continue;
        const int n = static_cast<int>(mine.size());
        std::vector<int32_t> token;
        for (const int32_t i : mine) token.push_back(i / kChosen);
        DeviceArray<int32_t> token_on_device(token), slots_on_device(slots);
        DeviceArray<float> gate(int64_t{n} * kI), up(gate.size()), out(int64_t{n} * kH);
        ReferenceProduct(true, data(e, 0), data(e, 0) + kW / 2, kI, kH, x.data(), kH, token_on_device.data(), n, gate.data(), kI);
        ReferenceProduct(true, data(e, 1), data(e, 1) + kW / 2, kI, kH, x.data(), kH, token_on_device.data(), n, up.data(), kI);
        ReferenceProduct(true, data(e, 2), data(e, 2) + kW / 2, kH, kI, act_rows.data(), kI, slots_on_device.data(), n, out.data(), kH);
        std::vector<float> g = gate.Host();
        const std::vector<float> u = up.Host(), o = out.Host();
        for (size_t i = 0; i < g.size(); ++i) {
          const float limited = std::min(g[i], 10.0f);
          g[i] = weights[static_cast<size_t>(mine[i / kI])] * (limited / (1 + std::exp(-limited)) * std::clamp(u[i], -10.0f, 10.0f));
        }
        DeviceArray<float> swiglu(g);
        DeviceArray<__nv_bfloat16> quantized(swiglu.size());
        DI_CUDA(LaunchQuantize(swiglu.data(), true, kI, n, kI, quantized.data(), kI, nullptr));
        const std::vector<float> q = ToFloats(quantized.Host());
        for (int i = 0; i < n; ++i) {
          std::copy_n(q.begin() + int64_t{i} * kI, kI, expected_act.begin() + int64_t{slots[static_cast<size_t>(i)]} * kI);
          std::copy_n(o.begin() + int64_t{i} * kH, kH, expected_y.begin() + int64_t{slots[static_cast<size_t>(i)]} * kH);
        }
      }
      Check("block-scaled experts, gate and up", RelativeError(got_act, expected_act), 1e-3);
      Check("block-scaled experts, down", RelativeError(got_y, expected_y), 1e-5);
    }
    const double bytes = kExperts * kW * 0.53125;
    const Timing first = Time(4, [&](int, cudaStream_t stream) { DI_CUDA(LaunchExpertGateUpBlockScaled(form, a, workspace.data(), stream)); });
    Record("experts gate+up, block-scaled", "16 experts, top 2", rows, first, 2 * bytes, 4.0 * pairs * kW);
    const Timing second = Time(4, [&](int, cudaStream_t stream) { DI_CUDA(LaunchExpertDownBlockScaled(form, a, stream)); });
    Record("experts down, block-scaled", "16 experts, top 2", rows, second, bytes, 2.0 * pairs * kW);
  }
}

}  // namespace

void BenchBlockScaled(bool quick) {
  for (const BlockScaledForm form : {BlockScaledForm::kSm100a, BlockScaledForm::kSm120a})
    for (const BlockScaledKind kind : {BlockScaledKind::kFp8, BlockScaledKind::kFp4})
      for (const RowOrder order : {RowOrder::kStacked, RowOrder::kInterleaved}) CheckPacking(form, kind, order);
  CheckQuantizer();
  int device = 0, major = 0, minor = 0;
  DI_CUDA(cudaGetDevice(&device));
  DI_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  DI_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  if (!KernelSetOf(major, minor).has_block_scaled) {
    std::printf("{\"skipped\":\"block-scaled products need compute capability 10.0 or 12.0\"}\n");
    return;
  }
  const BlockScaledForm form = major == 10 ? BlockScaledForm::kSm100a : BlockScaledForm::kSm120a;
  BenchProducts(form, quick);
  BenchLayer(form, quick);
}

}  // namespace deepinfer::bench
