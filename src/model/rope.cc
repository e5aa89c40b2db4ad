// SPDX-License-Identifier: Apache-2.0
#include "model/rope.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace deepinfer::model {

namespace {

// Math libraries differ by 1-2 units in the last place here, which at positions near a million turns the fast pairs by up to
// 0.1 rad. So the released tables are fixed bit patterns.
constexpr uint32_t kPlain[32] = {
    0x3f800000, 0x3f3ff911, 0x3f0ff59a, 0x3ed7e89b, 0x3ea1e89b, 0x3e72d423, 0x3e361887, 0x3e088d77,
    0x3dcccccd, 0x3d99940d, 0x3d6655c2, 0x3d2cba15, 0x3d0186e3, 0x3cc2434f, 0x3c91ad39, 0x3c5a7bf2,
    0x3c23d70a, 0x3bf5b9b0, 0x3bb8449c, 0x3b8a2e77, 0x3b4f3e38, 0x3b1b690d, 0x3ae91528, 0x3aaec98e,
    0x3a83126f, 0x3a44948c, 0x3a136a16, 0x39dd1725, 0x39a5cb60, 0x3978a815, 0x393a7753, 0x390bd472};
constexpr uint32_t kYarn[32] = {
    0x3f800000, 0x3f300a3a, 0x3ef21c1f, 0x3ea67d01, 0x3e64f92e, 0x3e1d7475, 0x3dd88cb4, 0x3d94e963,
    0x3d4ccccd, 0x3d0cd4fb, 0x3cc1b019, 0x3c8530ce, 0x3c372dbf, 0x3bfbed88, 0x3bad3d5e, 0x3b6e4237,
    0x3b147ae1, 0x3ab714e0, 0x3a5ebdb6, 0x3a0530ce, 0x399bb3af, 0x39305978, 0x38be904d, 0x383e9b5f,
    0x37a3d70c, 0x36b443d0, 0x3677eba6, 0x362a7be8, 0x35ea77ff, 0x35a13bdc, 0x355dbf30, 0x35187c4d};

std::vector<float> Bits(const uint32_t (&table)[32]) {
  std::vector<float> out;
  for (uint32_t bits : table) out.push_back(std::bit_cast<float>(bits));
  return out;
}

std::vector<float> Powers(double theta, int rope_dim) {
  std::vector<float> out;
  for (int i = 0; i < rope_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(rope_dim);
    out.push_back(1.0f / std::pow(static_cast<float>(theta), exponent));
  }
  return out;
}

}  // namespace

std::vector<float> PlainInverseFrequencies(const ModelConfig& config) {
  if (config.qk_rope_head_dim == 64 && config.rope_theta == 10000) return Bits(kPlain);
  return Powers(config.rope_theta, config.qk_rope_head_dim);
}

std::vector<float> YarnInverseFrequencies(const ModelConfig& config) {
  const int rd = config.qk_rope_head_dim;
  const double theta = config.compress_rope_theta;
  std::vector<float> freq = Powers(theta, rd);
  if (!config.yarn.has_value()) return freq;
  const YarnConfig& yarn = *config.yarn;
  if (rd == 64 && theta == 160000 && yarn.factor == 16 && yarn.beta_fast == 32 && yarn.beta_slow == 1 &&
      yarn.original_max_position_embeddings == 65536)
    return Bits(kYarn);
  const auto dim_of = [&](double turns) {
    return rd * std::log(static_cast<double>(yarn.original_max_position_embeddings) / (turns * 2 * M_PI)) /
           (2 * std::log(theta));
  };
  const double low = std::max(std::floor(dim_of(yarn.beta_fast)), 0.0);
  const double high = std::min(std::ceil(dim_of(yarn.beta_slow)), static_cast<double>(rd - 1));
  const float span = static_cast<float>(std::max(high - low, 1e-3));
  for (size_t i = 0; i < freq.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - static_cast<float>(low)) / span, 0.0f, 1.0f);
    freq[i] = freq[i] / static_cast<float>(yarn.factor) * ramp + freq[i] * (1.0f - ramp);
  }
  return freq;
}

}  // namespace deepinfer::model
