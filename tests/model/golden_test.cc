// SPDX-License-Identifier: Apache-2.0
//
// The whole model against the reference (tests/golden/model), in the order its README suggests.
#include <cstring>

#include "model/golden_support.h"

namespace deepinfer::model {
namespace {

constexpr int kLengths[] = {1, 5, 15, 17, 40, 96, 333};

std::string CaseName(int length) { return fmt::format("cases/len{:04d}.safetensors", length); }

// ---- plain: sharp everywhere ------------------------------------------------------------------------------------------

TEST(GoldenPlain, LogitsOfEveryCaseWithin1e3) {
  Model& model = Nano(Numerics::kPlain);
  const size_t v = static_cast<size_t>(model.config().vocab_size);
  for (const int length : kLengths) {
    SCOPED_TRACE(length);
    const Golden golden(CaseName(length));
    const auto logits = FullLogits(model, golden.Ints("tokens"));
    ASSERT_EQ(logits.size(), static_cast<size_t>(length) * v);
    const std::span<const float> all(logits);
    float worst = MaxAbsDiff(all.last(v), golden.Floats("plain.logits_last"));
    if (golden.Has("plain.logits_full")) worst = std::max(worst, MaxAbsDiff(all, golden.Floats("plain.logits_full")));
    const auto tokens = golden.Ints("plain.top_tokens");
    const auto values = golden.Floats("plain.top_values");
    const auto logsumexp = golden.Floats("plain.logsumexp");
    for (int t = 0; t < length; ++t) {
      const auto row = all.subspan(static_cast<size_t>(t) * v, v);
      double sum = 0;
      for (float x : row) sum += std::exp(static_cast<double>(x));
      EXPECT_NEAR(std::log(sum), logsumexp[static_cast<size_t>(t)], 1e-3);
      for (size_t i = static_cast<size_t>(t) * 8; i < static_cast<size_t>(t) * 8 + 8; ++i)
        worst = std::max(worst, std::fabs(row[static_cast<size_t>(tokens[i])] - values[i]));
    }
    EXPECT_LT(worst, 1e-3f);
    RecordProperty(fmt::format("worst_{}", length), fmt::format("{:.2g}", worst));
    std::printf("plain length %d: worst logit difference %.3g\n", length, static_cast<double>(worst));
  }
}

}  // namespace
}  // namespace deepinfer::model
