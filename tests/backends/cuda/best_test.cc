// SPDX-License-Identifier: Apache-2.0
//
// Greedy choices on the GPU against the host's sampler: the same token, the same log probability, bit by bit.
#include <cstring>

#include "device_pair.h"
#include "sampling/draw.h"
#include "sampling/row_ops.h"

namespace deepinfer::cuda {
namespace {

class CudaBest : public OnBothDevices {};
INSTANTIATE_TEST_SUITE_P(Of, CudaBest, testing::Values(Kernels::kGeneral), KernelsName);

TEST_P(CudaBest, TokensAndSumsAreTheSamplersOwn) {
  const sampling::RowOps& ops = sampling::GetRowOps();
  Random random(31);
  for (const int64_t width : {5, 1000, 4099, 8192, 129280}) {
    for (const float inverse_temperature : {1.0f, 0.6f, 1.0f / 1e-5f}) {
      constexpr int64_t kRows = 6;
      std::vector<float> x = random.Floats(kRows * width, 3.0f, false);
      const auto row_of = [&](int64_t t) { return x.data() + t * width; };
      // Ties, zeros of both signs as the best, values far below.
      row_of(1)[width - 1] = row_of(1)[width / 2] = 50.0f;
      for (int64_t i = 0; i < width; ++i) row_of(2)[i] = i % 3 == 0 ? -0.0f : i % 3 == 1 ? 0.0f : -200.0f;
      row_of(3)[width / 3] = -INFINITY;
      std::vector<uint32_t> first(static_cast<size_t>((width + 31) / 32)), second(first.size(), 0);
      for (uint32_t& word : first) word = static_cast<uint32_t>(random.Bits());
      first[0] |= 1;
      second[0] = 1u << 4;
      Side side(*Gpu());
      const uint32_t* masks[kRows] = {nullptr, nullptr, side.Put(first), side.Put(first), side.Put(second), nullptr};
      const std::vector<uint32_t>* host_masks[kRows] = {nullptr, nullptr, &first, &first, &second, nullptr};
      for (const bool is_masked : {false, true}) {
        device::RowBest found[kRows];
        device::RowBestArgs args{.x = side.Put(x), .rows = kRows, .width = width, .stride = width, .inverse_temperature = inverse_temperature, .host_masks = {}};
        if (is_masked) args.host_masks = masks;
        ASSERT_TRUE(side->finds_best());
        side->FindBest(args, found);
        for (int64_t t = 0; t < kRows; ++t) {
          std::vector<float> row(row_of(t), row_of(t) + width);
          if (is_masked && host_masks[t] != nullptr) ops.apply_mask(row.data(), width, host_masks[t]->data());
          const float max = *std::max_element(row.begin(), row.end());
          EXPECT_EQ(found[t].max, max) << width << ", row " << t;
          EXPECT_EQ(found[t].id, ops.find_equal(row.data(), width, max)) << width << ", row " << t;
          const int num_lanes = sampling::NumLanes(width);
          std::vector<float> lanes(static_cast<size_t>(num_lanes));
          const float sum = ops.sum_exp(row.data(), width, max, inverse_temperature, lanes.data(), num_lanes);
          EXPECT_EQ(0, std::memcmp(&found[t].sum_exp, &sum, sizeof(sum))) << width << ", row " << t << ": " << found[t].sum_exp << " for " << sum;
        }
      }
    }
  }
}

TEST_P(CudaBest, ValuesThatAreNoNumbersAreSeen) {
  Side side(*Gpu());
  std::vector<float> x(3 * 4096, 1.0f);
  x[100] = NAN;
  x[4096 + 7] = INFINITY;
  for (int i = 0; i < 4096; ++i) x[static_cast<size_t>(2 * 4096 + i)] = -INFINITY;
  device::RowBest found[3];
  side->FindBest({.x = side.Put(x), .rows = 3, .width = 4096, .stride = 4096, .inverse_temperature = 1, .host_masks = {}}, found);
  for (const device::RowBest& best : found) EXPECT_FALSE(std::isfinite(best.max) && std::isfinite(best.sum_exp));
}

}  // namespace
}  // namespace deepinfer::cuda
