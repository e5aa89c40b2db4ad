// SPDX-License-Identifier: Apache-2.0
//
// Embedding, Engram, hyper-connections, copies of the NVIDIA backend against the CPU backend.
#include <cstring>

#include "device_pair.h"

namespace deepinfer::cuda {
namespace {

using device::WeightFormat;

class CudaStreams : public OnBothDevices {};
INSTANTIATE_TEST_SUITE_P(Of, CudaStreams, testing::Values(Kernels::kGeneral, Kernels::kReleased), KernelsName);

TEST_P(CudaStreams, EmbeddingAndTables) {
  Random random(11);
  const HostWeight embed = RandomWeight(random, WeightFormat::kBf16, 50, 256), engram = RandomWeight(random, WeightFormat::kFp8Row32, 40, 64);
  const std::vector<int32_t> ids = {0, 49, 7, 7, 12}, image_row = {-1, 0, -1, 1, -1}, rows = {3, 0, 39, 5, 5, 1, 2, 4, 6, 38};
  const auto image = random.Floats(2 * 256, 1.0f, false);
  for (const Arithmetic& a : Arithmetics()) {
    for (const bool is_volatile : {false, true}) {
      const auto both = OnBoth([&](Side& side) {
        device::HostMatrix source = engram.matrix;
        source.is_volatile = is_volatile;
        const auto table = side->CreateTable(embed.matrix).value(), second = side->CreateTable(source).value();
        const Act trunk = side.MakeAct(5, 4 * 256), found = side.MakeAct(5, 2 * 64);
        side->Embed(a, *table, side.Put(ids), side.Put(image_row), side.Put(image), 5, 4, 256, trunk);
        side->GatherRows(a, *second, side.Put(rows), 5, 2, 64, found);
        auto result = side.GetAct(trunk, 5, 4 * 256);
        const auto more = side.GetAct(found, 5, 2 * 64);
        result.insert(result.end(), more.begin(), more.end());
        return result;
      });
      EXPECT_EQ(both.cpu, both.gpu);
    }
  }
}

TEST_P(CudaStreams, EngramInjection) {
  Random random(12);
  for (const int64_t hidden : {96, 256, 5120}) {
    for (const Arithmetic& a : Arithmetics()) {
      const auto kv = random.Floats(3 * 5 * hidden), qk = random.Floats(4 * hidden), x = random.Floats(3 * 4 * hidden);
      const std::vector<uint8_t> dead = {0, 1, 0};
      ExpectNear(OnBoth([&](Side& side) {
                   const Act trunk = side.PutAct(x, 4 * hidden);
                   side->EngramInject(a, side.PutAct(kv, 5 * hidden), side.Put(qk), side.Put(dead), 3, 4, hidden, 1e-20f, trunk, nullptr);
                   return side.GetAct(trunk, 3, 4 * hidden);
                 }),
                 a.round_bf16 ? 4e-2 : 2e-5, std::to_string(hidden));
    }
  }
}

// Mix, expansion and collapse in the order of a layer, so that what runs together or beside is covered.
TEST_P(CudaStreams, HyperConnections) {
  Random random(13);
  for (const int streams : {2, 4}) {
    for (const int hidden : {96, 256, 5120}) {
      const int outputs = streams * (streams + 2);
      const int64_t rows = 9, n = int64_t{streams} * hidden;
      const HostWeight fn = RandomWeight(random, WeightFormat::kF32, outputs, n);
      const auto base = random.Floats(outputs, 0.3f), scale = random.Floats(3), x = random.Floats(rows * n), y = random.Floats(rows * hidden),
                 norm = random.Floats(hidden);
      for (const Arithmetic& a : Arithmetics()) {
        std::vector<float> mixes[2];
        int at = 0;
        const auto both = OnBoth([&](Side& side) {
          const auto w = side->CreateMatrix({&fn.matrix, 1}).value();
          device::HyperConnectionSite site;
          site.fn = w.get();
          site.base = side.Put(base);
          site.scale = side.Put(scale);
          site.streams = streams;
          site.hidden = hidden;
          site.norm_eps = 1e-20f;
          const Act trunk = side.PutAct(x, n), in = side.PutAct(y, hidden), out = side.MakeAct(rows, hidden), collapsed = side.MakeAct(rows, hidden);
          auto* pre = static_cast<float*>(side.Make(rows * streams * 4));
          auto* post = static_cast<float*>(side.Make(rows * streams * 4));
          auto* comb = static_cast<float*>(side.Make(rows * streams * streams * 4));
          side->HyperConnectionMix(site, trunk, rows, pre, post, comb);
          side->Expand(a, in, post, comb, rows, streams, hidden, trunk);
          side->CollapseNorm(a, trunk, pre, rows, streams, hidden, side.Put(norm), 1e-20f, collapsed, out);
          side->Expand(a, in, post, comb, rows, streams, hidden, trunk);
          side->StreamMean(a, trunk, rows, streams, hidden, collapsed);
          auto result = side.GetAct(trunk, rows, n);
          for (const Act& more : {out, collapsed}) {
            const auto values = side.GetAct(more, rows, hidden);
            result.insert(result.end(), values.begin(), values.end());
          }
          mixes[at] = side.Get(pre, rows * streams);
          for (const auto& [from, count] : {std::pair<float*, int64_t>{post, rows * streams}, {comb, rows * streams * streams}}) {
            const auto values = side.Get(from, count);
            mixes[at].insert(mixes[at].end(), values.begin(), values.end());
          }
          ++at;
          return result;
        });
        for (size_t i = 0; i < mixes[0].size(); ++i) ASSERT_NEAR(mixes[0][i], mixes[1][i], 2e-5) << hidden << " value " << i;
        ExpectNear(both, a.round_bf16 ? 5e-2 : 5e-4, std::to_string(streams) + " x " + std::to_string(hidden));
      }
    }
  }
}

TEST_P(CudaStreams, RowsDoNotDependOnTheirNeighbours) {
  Random random(16);
  constexpr int kHidden = 5120;
  constexpr int64_t kRows = 70, kWidth = 4 * kHidden;
  const HostWeight fn = RandomWeight(random, WeightFormat::kF32, 24, kWidth);
  const auto base = random.Floats(24, 0.3f), scale = random.Floats(3), x = random.Floats(kRows * kWidth), y = random.Floats(kRows * kHidden),
             norm = random.Floats(kHidden);
  Side side(*Gpu());
  const auto w = side->CreateMatrix({&fn.matrix, 1}).value();
  device::HyperConnectionSite site;
  site.fn = w.get();
  site.base = side.Put(base);
  site.scale = side.Put(scale);
  site.hidden = kHidden;
  site.norm_eps = 1e-20f;
  const auto run = [&](int64_t first, int64_t rows) {
    const auto part = [&](const std::vector<float>& v, int64_t width) {
      return side.PutAct({v.begin() + first * width, v.begin() + (first + rows) * width}, width);
    };
    const Act trunk = part(x, kWidth), out = side.MakeAct(rows, kHidden);
    auto* pre = static_cast<float*>(side.Make(rows * 4 * 4));
    auto* post = static_cast<float*>(side.Make(rows * 4 * 4));
    auto* comb = static_cast<float*>(side.Make(rows * 16 * 4));
    side->HyperConnectionMix(site, trunk, rows, pre, post, comb);
    side->Expand(kRelease, part(y, kHidden), post, comb, rows, 4, kHidden, trunk);
    side->CollapseNorm(kRelease, trunk, pre, rows, 4, kHidden, side.Put(norm), 1e-20f, Act(), out);
    auto result = side.GetAct(trunk, rows, kWidth);
    const auto normed = side.GetAct(out, rows, kHidden);
    for (int64_t t = rows; t-- > 0;) result.insert(result.begin() + (t + 1) * kWidth, normed.begin() + t * kHidden, normed.begin() + (t + 1) * kHidden);
    return result;
  };
  const auto all = run(0, kRows);
  for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 1}, {5, 3}, {20, 9}, {6, 64}}) {
    const auto some = run(first, rows);
    EXPECT_EQ(0, std::memcmp(some.data(), all.data() + first * (kWidth + kHidden), some.size() * sizeof(float))) << rows;
  }
}

TEST_P(CudaStreams, CopiesOfRowsInPlaceToo) {
  Random random(14);
  const auto x = random.Floats(64 * 300);
  std::vector<int32_t> rows;
  for (int32_t i = 1; i < 64; i += 3) rows.push_back(i);
  const auto count = static_cast<int64_t>(rows.size());
  const auto both = OnBoth([&](Side& side) {
    const Act in = side.PutAct(x, 300), out = side.MakeAct(count, 300);
    side->CopyRows(in, side.Put(rows), count, 300, out);
    side->CopyRows(in, side.Put(rows), count, 300, in);
    auto result = side.GetAct(out, count, 300);
    const auto same = side.GetAct(in, count, 300);
    result.insert(result.end(), same.begin(), same.end());
    return result;
  });
  EXPECT_EQ(both.cpu, both.gpu);
}

// A kept sequence of ops gives what single ones give, with new values in the same places.
TEST_P(CudaStreams, RepeatedStepsReadNewValues) {
  if (!Gpu()->repeats_steps()) GTEST_SKIP() << "this device keeps no steps";
  Random random(15);
  Side side(*Gpu());
  const Act x = side.MakeAct(4, 256), y = side.MakeAct(4, 256);
  auto* norm = side.Put(random.Floats(256));
  const std::vector<int64_t> key = {-1, 4, 256};
  int num_runs = 0;
  for (int i = 0; i < 5; ++i) {
    const auto values = random.Floats(4 * 256);
    side->Upload(x.data, values.data(), 4 * 256 * 4);
    if (!side->BeginRepeat(key)) {
      side->RmsNorm(kRelease, x, norm, 4, 256, 1e-20f, y);
      side->Scale(kRelease, y, 4, 256, 2.0f);
      side->EndRepeat();
      ++num_runs;
    }
    const auto kept = side.GetAct(y, 4, 256);
    side->RmsNorm(kRelease, x, norm, 4, 256, 1e-20f, y);
    side->Scale(kRelease, y, 4, 256, 2.0f);
    EXPECT_EQ(kept, side.GetAct(y, 4, 256)) << i;
  }
  EXPECT_LE(num_runs, 3);  // one more when memory of the ops grew
  EXPECT_TRUE(Gpu()->TakeError().ok());
}

}  // namespace
}  // namespace deepinfer::cuda
