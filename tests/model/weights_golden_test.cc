// SPDX-License-Identifier: Apache-2.0
//
// Every weight of the nano checkpoint after de-quantisation against
// tests/golden/model/weights.json.
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "core/json.h"
#include "model/checkpoint.h"

namespace deepinfer::model {
namespace {

const std::string kGolden = DEEPINFER_SOURCE_DIR "/tests/golden/model";

std::vector<float> Dequantise(const Checkpoint& checkpoint, const TensorView& view) {
  if (view.dtype == DType::kF32) {
    std::vector<float> values(static_cast<size_t>(view.num_elements()));
    std::memcpy(values.data(), view.data, static_cast<size_t>(view.num_bytes));
    return values;
  }
  std::vector<float> values;
  if (view.dtype == DType::kBf16) {
    for (int64_t i = 0; i < view.num_elements(); ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, view.data + 2 * i, 2);
      values.push_back(Bf16ToFloat(bits));
    }
    return values;
  }
  const std::string base = view.name.substr(0, view.name.size() - std::string(".weight").size());
  const TensorView scale = checkpoint.Get(base + ".scale").value();
  const int64_t scale_cols = scale.dim(1);
  const bool is_per_row = scale.dim(0) == view.dim(0);
  const bool is_fp4 = view.dtype == DType::kI8;
  const int64_t cols = view.dim(1) * (is_fp4 ? 2 : 1);
  for (int64_t r = 0; r < view.dim(0); ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const float s = E8M0ToFloat(scale.data[(is_per_row ? r : r / 32) * scale_cols + c / 32]);
      if (is_fp4) {
        const uint8_t byte = view.data[r * view.dim(1) + c / 2];
        values.push_back(E2M1ToFloat(static_cast<uint8_t>(c % 2 == 0 ? byte & 15 : byte >> 4)) * s);
      } else {
        values.push_back(E4M3ToFloat(view.data[r * cols + c]) * s);
      }
    }
  }
  return values;
}

TEST(WeightsGolden, EveryWeightAfterDequantisation) {
  const Json golden = ReadJsonFile(kGolden + "/weights.json").value();
  const auto checkpoint = Checkpoint::Open(kGolden + "/nano").value();
  for (const auto& [name, expected] : golden.items()) {
    const TensorView* view = checkpoint->Find(name);
    ASSERT_NE(view, nullptr) << name;
    const std::vector<float> values = Dequantise(*checkpoint, *view);
    int64_t count = 1;
    for (const Json& d : expected.at("shape")) count *= d.get<int64_t>();
    ASSERT_EQ(static_cast<int64_t>(values.size()), count) << name;
    double sum = 0;
    double abs_sum = 0;
    for (const float v : values) {
      sum += double{v};
      abs_sum += std::fabs(double{v});
    }
    EXPECT_NEAR(sum, expected.at("sum").get<double>(), 1e-9 * abs_sum) << name;
    EXPECT_NEAR(abs_sum, expected.at("abs_sum").get<double>(), 1e-9 * abs_sum) << name;
    for (size_t i = 0; i < expected.at("first").size(); ++i) {
      EXPECT_EQ(double{values[i]}, expected.at("first")[i].get<double>()) << name << " " << i;
    }
    EXPECT_EQ(double{values.back()}, expected.at("last").get<double>()) << name;
  }
  EXPECT_GT(golden.size(), 350u);
}

}  // namespace
}  // namespace deepinfer::model
