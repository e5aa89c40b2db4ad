// SPDX-License-Identifier: Apache-2.0
//
// The demo model against the reference: negative log-likelihood and greedy continuations in the three arithmetics.
#include <cmath>

#include "core/json.h"
#include "model/golden_support.h"
#include "text/tokenizer.h"
#include "test_device.h"

namespace deepinfer::model {
namespace {

const std::string kDemo = std::string(DEEPINFER_SOURCE_DIR) + "/models/demo";
const std::string kTiny = std::string(DEEPINFER_SOURCE_DIR) + "/tests/golden/tiny/";

std::unique_ptr<Model> LoadDemo(Numerics numerics) {
  LoadOptions options;
  options.numerics = numerics;
  options.with_draft = false;
  options.compressed_vocab = text::Tokenizer::Load(kDemo).value()->BuildCompressedVocab().map;
  auto checkpoint = Checkpoint::Open(kDemo);
  auto model = Model::Load(std::move(checkpoint).value(), ModelConfig::Load(kDemo).value(), TestDevice().value(), options);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return std::move(model).value();
}

class DemoTest : public testing::TestWithParam<Numerics> {};
INSTANTIATE_TEST_SUITE_P(Arithmetics, DemoTest, testing::Values(Numerics::kPlain, Numerics::kFp32, Numerics::kRelease),
                         [](const auto& param_info) { return std::string(FileName(param_info.param)); });

TEST_P(DemoTest, NegativeLogLikelihood) {
  const auto model = LoadDemo(GetParam());
  const Json golden = ReadJsonFile(kTiny + "nll.json").value();
  const std::string key = FileName(GetParam());
  const size_t v = static_cast<size_t>(model->config().vocab_size);
  double sum = 0, weight = 0, worst = 0;
  for (const Json& sample : golden["samples"]) {
    const auto ids = sample["ids"].get<std::vector<int32_t>>();
    const auto logits = FullLogits(*model, ids);
    double nll = 0;
    for (size_t t = 0; t + 1 < ids.size(); ++t) {
      const auto row = std::span(logits).subspan(t * v, v);
      double total = 0;
      for (const float x : row) total += std::exp(static_cast<double>(x));
      nll += std::log(total) - row[static_cast<size_t>(ids[t + 1])];
    }
    const double steps = static_cast<double>(ids.size() - 1);
    worst = std::max(worst, std::fabs(nll / steps - sample[key].get<double>()));
    sum += nll;
    weight += steps;
  }
  const double expected = golden["mean_negative_log_likelihood_per_token"][key].get<double>();
  std::printf("%s: mean %.6f, reference %.6f; worst sample differs by %.2g\n", key.c_str(), sum / weight, expected, worst);
  EXPECT_NEAR(sum / weight, expected, 0.003);
  EXPECT_LT(worst, 0.05);
}

TEST_P(DemoTest, GreedyUpToTheFirstSmallGap) {
  const auto model = LoadDemo(GetParam());
  const Json golden = ReadJsonFile(kTiny + "greedy.json").value();
  const std::string key = FileName(GetParam());
  size_t num_compared = 0, num_equal = 0, num_tokens = 0;
  for (const Json& item : golden) {
    const auto expected = item[key]["ids"].get<std::vector<int32_t>>();
    const auto gaps = item[key]["gap_to_second"].get<std::vector<float>>();
    auto sequence = NewSequence(*model);
    auto ids = item["prompt_ids"].get<std::vector<int32_t>>();
    bool must_match = true, matches = true;
    for (size_t i = 0; i < expected.size(); ++i) {
      SequenceChunk chunk{.sequence = sequence.get(), .ids = ids};
      const auto logits = model->Forward({&chunk, 1});
      ASSERT_TRUE(logits.ok());
      const int32_t best = ArgMax(*logits);
      must_match = must_match && gaps[i] >= 0.3f;
      matches = matches && best == expected[i];
      if (must_match) {
        ++num_compared;
        EXPECT_EQ(best, expected[i]) << "step " << i;
      }
      num_equal += matches;
      ++num_tokens;
      ids = {expected[i]};
    }
  }
  std::printf("%s: %zu of %zu greedy tokens equal before a first difference; %zu had to be\n", key.c_str(), num_equal, num_tokens, num_compared);
  EXPECT_GT(num_compared, 0u);
}

}  // namespace
}  // namespace deepinfer::model
