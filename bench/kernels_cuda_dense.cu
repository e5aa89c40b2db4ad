// SPDX-License-Identifier: Apache-2.0
//
// Dense products of every projection shape.
#include "bench/kernels_cuda.h"

#include "backends/cuda/kernels/dense.h"

namespace deepinfer::bench {
namespace {

using namespace deepinfer::cuda;

struct Shape {
  const char* name;
  int rows, cols, groups;
  bool is_bf16;
};
constexpr Shape kShapes[] = {
    {"wq_a+wkv 5120x1792", 1792, 5120, 1, false},   {"wq_b 1280x32768", 32768, 1280, 1, false},
    {"wo_a 8x(4096x1024)", 8192, 4096, 8, false},   {"wo_b 8192x5120", 5120, 8192, 1, false},
    {"shared gate+up 5120x4608", 4608, 5120, 1, false}, {"shared down 2304x5120", 5120, 2304, 1, false},
    {"engram 6144x25600", 25600, 6144, 1, false},   {"index wq_b 1280x4096", 4096, 1280, 1, false},
    {"router 5120x384", 384, 5120, 1, true},        {"head 5120x129280", 129280, 5120, 1, true},
};

DenseArgs ArgsOf(const Shape& s, const PackedLayout& layout, const uint8_t* weights, const __nv_bfloat16* x, void* y,
                 void* workspace, int tokens) {
  DenseArgs a;
  a.layout = layout;
  a.weights = weights;
  a.x = x;
  a.ldx = int64_t{s.cols} * s.groups;
  a.tokens = tokens;
  a.num_groups = s.groups;
  a.y = y;
  a.ldy = s.rows;
  a.out = OutputType::kFloat;
  a.workspace = workspace;
  return a;
}

std::vector<float> FirstOf(const DeviceArray<float>& array, int64_t count) {
  std::vector<float> host(static_cast<size_t>(count));
  DI_CUDA(cudaMemcpy(host.data(), array.data(), host.size() * 4, cudaMemcpyDeviceToHost));
  return host;
}

}  // namespace

void BenchDense(bool quick) {
  constexpr int kMaxTokens = 4096, kFew = 16;
  for (const Shape& s : kShapes) {
    const PackedLayout layout = LayoutOf(s.is_bf16 ? PackedKind::kBf16 : PackedKind::kFp8, s.rows, s.cols);
    const int64_t raw_bytes = int64_t{s.rows} * s.cols * (s.is_bf16 ? 2 : 1);
    const int64_t scale_bytes = s.is_bf16 ? 0 : int64_t{s.rows / 32} * (s.cols / 32);
    DeviceArray<uint8_t> raw(raw_bytes), scale(scale_bytes);
    if (s.is_bf16) {
      FillNormal(reinterpret_cast<__nv_bfloat16*>(raw.data()), raw_bytes / 2, 0.02f, 1);
    } else {
      FillBytes(raw.data(), raw_bytes, Fill::kFp8, 1);
      FillBytes(scale.data(), scale_bytes, Fill::kScales, 2);
    }
    DeviceArray<int> error(1);
    const int copies = static_cast<int>(std::max<int64_t>(2, (kRotateBytes + layout.bytes() - 1) / layout.bytes()));
    std::vector<DeviceArray<uint8_t>> packed;
    for (int i = 0; i < copies; ++i) {
      packed.emplace_back(layout.bytes());
      const PackSource source{raw.data(), scale.data(), s.rows};
      DI_CUDA(LaunchPack(layout, RowOrder::kStacked, &source, 1, packed.back().data(), error.data(), nullptr));
    }
    const int64_t ldx = int64_t{s.cols} * s.groups;
    DeviceArray<__nv_bfloat16> plain(kMaxTokens * ldx), x(kMaxTokens * ldx);
    FillNormal(plain.data(), plain.size(), 1.0f, 3);
    DI_CUDA(LaunchQuantize(plain.data(), false, ldx, kMaxTokens, static_cast<int>(ldx), x.data(), ldx, nullptr));
    const int many = s.rows > 40000 ? 256 : kMaxTokens;
    DeviceArray<float> y(int64_t{many} * s.rows), reference(int64_t{kFew} * s.rows);
    DeviceArray<uint8_t> workspace(DenseWorkspaceBytes(layout));

    // Against float64, then one token alone against its row.
    y.Poison();
    DI_CUDA(LaunchDenseStream(ArgsOf(s, layout, packed[0].data(), x.data(), y.data(), workspace.data(), kFew), nullptr));
    if (!s.is_bf16) {
      const int part = s.rows / s.groups;
      for (int g = 0; g < s.groups; ++g)
        ReferenceProduct(false, raw.data() + int64_t{g} * part * s.cols, scale.data() + int64_t{g} * (part / 32) * (s.cols / 32),
                         part, s.cols, x.data() + g * s.cols, ldx, nullptr, kFew, reference.data() + g * part, s.rows);
      Check(std::string("dense ") + s.name, RelativeError(FirstOf(y, int64_t{kFew} * s.rows), reference.Host()), 1e-5);
    }
    double worst = 0;
    const std::vector<float> all = FirstOf(y, int64_t{kFew} * s.rows);
    for (const int tokens : {1, 5}) {
      for (const int t : {0, 9}) {
        if (t + tokens > kFew) continue;
        DeviceArray<float> some(int64_t{tokens} * s.rows);
        some.Poison();
        DI_CUDA(LaunchDenseStream(
            ArgsOf(s, layout, packed[0].data(), x.data() + t * ldx, some.data(), workspace.data(), tokens), nullptr));
        const std::vector<float> host = some.Host();
        for (size_t i = 0; i < host.size(); ++i)
          if (!(host[i] == all[static_cast<size_t>(t) * s.rows + i])) worst += 1;
      }
    }
    Check(std::string("dense invariance ") + s.name, worst, 0);

    // Many tokens: the same bits, or another order of sums.
    {
      DenseArgs a = ArgsOf(s, layout, packed[0].data(), x.data(), y.data(), workspace.data(), 100);
      y.Poison();
      DI_CUDA(LaunchDenseWide(a, nullptr));
      const std::vector<float> wide = FirstOf(y, int64_t{100} * s.rows);
      worst = 0;
      for (size_t i = 0; i < all.size(); ++i) worst += !(wide[i] == all[i]);
      Check(std::string("dense wide, other bits ") + s.name, worst, 0);
      a.fast = true;
      y.Poison();
      DI_CUDA(LaunchDenseWide(a, nullptr));
      Check(std::string("dense fast ") + s.name, RelativeError(FirstOf(y, int64_t{100} * s.rows), wide), 2e-5);
    }
    for (const int m : {64, 256, 4096}) {
      if (m > many) continue;
      for (const bool fast : {false, true}) {
        if (fast && m <= 64) continue;
        DeviceArray<__nv_bfloat16> out(int64_t{m} * s.rows);
        const Timing t = Time(m == 4096 ? 2 : 8, [&](int i, cudaStream_t stream) {
          DenseArgs a = ArgsOf(s, layout, packed[static_cast<size_t>(i % copies)].data(), x.data(), out.data(), workspace.data(), m);
          a.out = OutputType::kBf16;
          a.fast = fast;
          DI_CUDA(LaunchDenseWide(a, stream));
        }, quick ? 5 : 11);
        Record(fast ? "dense, fast" : "dense, by slice", s.name, m, t, static_cast<double>(raw_bytes + scale_bytes), 2.0 * m * s.rows * s.cols);
      }
    }

    for (const int m : quick ? std::vector<int>{1, 16} : std::vector<int>{1, 2, 8, 16}) {
      for (const bool dependent : {false, true}) {
        const Timing t = Time(std::max(16, copies), [&](int i, cudaStream_t stream) {
          DenseArgs a = ArgsOf(s, layout, packed[static_cast<size_t>(i % copies)].data(), x.data(), y.data(), workspace.data(), m);
          a.dependent = dependent;
          DI_CUDA(LaunchDenseStream(a, stream));
        });
        Record(dependent ? "dense small M, dependent launch" : "dense small M", s.name, m, t,
               static_cast<double>(raw_bytes + scale_bytes), 2.0 * m * s.rows * s.cols);
      }
    }
    if (error.Host()[0] != 0) Check("dense scales", 1, 0);
  }
}

}  // namespace deepinfer::bench
