// SPDX-License-Identifier: Apache-2.0
//
// The whole model against the reference (tests/golden/model), in the order its README suggests.
#include <cstring>

#include "core/cpu_features.h"
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


TEST(GoldenPlain, EveryTracedStageOfLength40) {
  const Golden golden("trace_plain.safetensors");
  Recorder recorder;
  const auto logits = FullLogits(Nano(Numerics::kPlain), golden.Ints("tokens"), &recorder.sink);
  EXPECT_LT(MaxAbsDiff(logits, golden.Floats("logits")), 1e-3f);
  int num_compared = 0;
  for (const std::string& name : golden.Names()) {
    if (name == "tokens" || name == "logits") continue;
    SCOPED_TRACE(name);
    const bool is_int = recorder.ints.count(name) != 0;
    if (!is_int && recorder.floats.count(name) == 0) {
      ADD_FAILURE() << "not traced";
      continue;
    }
    ASSERT_EQ(recorder.shapes[name], golden.Shape(name));
    ++num_compared;
    if (is_int) {
      EXPECT_EQ(recorder.ints[name], golden.Ints(name));
    } else {
      EXPECT_LT(MaxAbsDiff(recorder.floats[name], golden.Floats(name)), 5e-5f);
    }
  }
  EXPECT_GE(num_compared, 180);
}

// The other kernels of this machine against the same data.
TEST(GoldenPlain, LogitsOnEveryInstructionSet) {
  const Golden golden(CaseName(40));
  for (const CpuIsa isa : SupportedCpuIsas()) {
    SCOPED_TRACE(CpuIsaName(isa));
    const ScopedCpuIsa scoped(isa);
    const auto model = LoadNano(Numerics::kPlain);
    EXPECT_LT(MaxAbsDiff(FullLogits(*model, golden.Ints("tokens")), golden.Floats("plain.logits_full")), 1e-3f);
    const auto release = LoadNano(Numerics::kRelease);
    const auto logits = FullLogits(*release, Golden(CaseName(17)).Ints("tokens"));
    EXPECT_LT(MaxAbsDiff(logits, Golden(CaseName(17)).Floats("qat16.logits_full")), 0.4f);
  }
}

TEST(GoldenPlain, SelectionsOfLength333AreExact) {
  const Golden golden("selections_plain.safetensors");
  Recorder recorder;
  FullLogits(Nano(Numerics::kPlain), golden.Ints("tokens"), &recorder.sink);
  for (const std::string& name : golden.Names()) {
    if (name == "tokens" || name.starts_with("margin.")) continue;
    ASSERT_EQ(recorder.ints.count(name), 1u) << name;
    EXPECT_EQ(recorder.ints[name], golden.Ints(name)) << name;
  }
}

// ---- one sub-layer at a time, in the three arithmetics ------------------------------------------------------------------

struct SubLayerLimits {
  Numerics numerics;
  float attention_abs, attention_norm;
  float experts_abs, experts_norm;
  float experts_loose_abs;        // allowed in at most experts_loose_rows of the rows
  double experts_loose_rows;
  double equal_choices;           // share of the rows whose selections and experts must be equal
};

class GoldenSubLayer : public testing::TestWithParam<SubLayerLimits> {};

double NormOfDiff(std::span<const float> a, std::span<const float> b) {
  double diff = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    diff += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(diff / norm);
}

TEST_P(GoldenSubLayer, FedFromTheTrace) {
  const SubLayerLimits& limits = GetParam();
  const Golden golden(fmt::format("trace_{}.safetensors", FileName(limits.numerics)));
  Recorder recorder;
  recorder.sink.inject = [&](const std::string& name, std::span<const int64_t> shape, float* data) {
    if (!name.ends_with(".attn.input") && !name.ends_with(".ffn.input")) return false;
    if (!golden.Has(name)) return false;
    const auto values = golden.Floats(name);
    EXPECT_EQ(static_cast<int64_t>(values.size()), Recorder::Count(shape));
    std::copy(values.begin(), values.end(), data);
    return true;
  };
  FullLogits(Nano(limits.numerics), golden.Ints("tokens"), &recorder.sink);
  const int num_layers = Nano(limits.numerics).config().num_hidden_layers;
  float worst_attention = 0, worst_experts = 0;
  double worst_attention_norm = 0, worst_experts_norm = 0;
  for (int layer = 0; layer < num_layers; ++layer) {
    SCOPED_TRACE(layer);
    const std::string name = fmt::format("layers.{}.", layer);
    const auto attention = golden.Floats(name + "attn.output");
    const auto& ours = recorder.floats[name + "attn.output"];
    worst_attention = std::max(worst_attention, MaxAbsDiff(ours, attention));
    worst_attention_norm = std::max(worst_attention_norm, NormOfDiff(ours, attention));
    const auto experts = golden.Floats(name + "ffn.output");
    const auto& ours_experts = recorder.floats[name + "ffn.output"];
    worst_experts_norm = std::max(worst_experts_norm, NormOfDiff(ours_experts, experts));
    const size_t rows = static_cast<size_t>(golden.Shape(name + "ffn.output")[0]), width = experts.size() / rows;
    size_t num_loose = 0;
    for (size_t t = 0; t < rows; ++t) {
      const float d = MaxAbsDiff(std::span(ours_experts).subspan(t * width, width), std::span(experts).subspan(t * width, width));
      worst_experts = std::max(worst_experts, d);
      if (d >= limits.experts_abs) ++num_loose;
      EXPECT_LT(d, std::max(limits.experts_abs, limits.experts_loose_abs));
    }
    EXPECT_LE(static_cast<double>(num_loose), limits.experts_loose_rows * static_cast<double>(rows));

    for (const char* what : {"indexer.selected", "router.experts"}) {
      if (!golden.Has(name + what)) continue;
      const auto expected = golden.Ints(name + what);
      const auto& got = recorder.ints[name + what];
      ASSERT_EQ(got.size(), expected.size());
      const size_t k = expected.size() / rows;
      size_t num_equal = 0;
      for (size_t t = 0; t < rows; ++t)
        num_equal += std::equal(got.begin() + static_cast<long>(t * k), got.begin() + static_cast<long>((t + 1) * k), expected.begin() + static_cast<long>(t * k));
      EXPECT_GE(static_cast<double>(num_equal), limits.equal_choices * static_cast<double>(rows)) << what;
    }
  }
  EXPECT_LT(worst_attention, limits.attention_abs);
  EXPECT_LT(worst_attention_norm, limits.attention_norm);
  EXPECT_LT(worst_experts_norm, limits.experts_norm);
  std::printf("%s: attention %.2g abs, %.2g of the norm; experts %.2g abs, %.2g of the norm\n", FileName(limits.numerics),
              static_cast<double>(worst_attention), worst_attention_norm, static_cast<double>(worst_experts), worst_experts_norm);
}

INSTANTIATE_TEST_SUITE_P(Arithmetics, GoldenSubLayer,
                         testing::Values(SubLayerLimits{Numerics::kPlain, 5e-5f, 1e-4f, 5e-5f, 1e-4f, 0, 0, 1.0},
                                         SubLayerLimits{Numerics::kFp32, 1e-2f, 2e-3f, 5e-5f, 1.0f, 1e-2f, 0.05, 1.0},
                                         SubLayerLimits{Numerics::kRelease, 6e-2f, 1.5e-2f, 6e-2f, 1e-2f, 0, 0, 0.98}),
                         [](const auto& param_info) { return std::string(FileName(param_info.param.numerics)); });

// ---- whole model with rounding on ---------------------------------------------------------------------------------------

struct CaseResult {
  double mean_top_diff = 0;   // of the eight best logits
  double same_best = 0;       // share of the rows
  double stable_in_limit = 1; // share of the stable rows whose eight best logits differ by less than `limit`
};

CaseResult CompareCase(Numerics numerics, int length, float limit) {
  const Golden golden(CaseName(length));
  const std::string key = FileName(numerics);
  Model& model = Nano(numerics);
  const size_t v = static_cast<size_t>(model.config().vocab_size);
  const auto logits = FullLogits(model, golden.Ints("tokens"));
  const auto tokens = golden.Ints(key + ".top_tokens");
  const auto values = golden.Floats(key + ".top_values");
  const auto stable = golden.Ints(key + ".stable_rows");
  CaseResult r;
  int num_same = 0, num_stable = 0, num_close = 0;
  for (size_t t = 0; t < static_cast<size_t>(length); ++t) {
    const auto row = std::span(logits).subspan(t * v, v);
    num_same += ArgMax(row) == tokens[8 * t];
    float worst = 0;
    for (size_t i = 8 * t; i < 8 * t + 8; ++i) {
      const float d = std::fabs(row[static_cast<size_t>(tokens[i])] - values[i]);
      worst = std::max(worst, d);
      r.mean_top_diff += d / 8.0 / length;
    }
    num_stable += stable[t];
    num_close += stable[t] && worst < limit;
  }
  r.same_best = static_cast<double>(num_same) / length;
  if (num_stable > 0) r.stable_in_limit = static_cast<double>(num_close) / num_stable;
  std::printf("%s length %d: mean difference of the top 8 %.3g, best token equal in %.1f%%, stable rows in tolerance %.1f%%\n",
              key.c_str(), length, r.mean_top_diff, 100 * r.same_best, 100 * r.stable_in_limit);
  return r;
}

TEST(GoldenFp32, Cases) {
  for (const int length : kLengths) {
    SCOPED_TRACE(length);
    const CaseResult r = CompareCase(Numerics::kFp32, length, 0.1f);
    if (length <= 40) {
      EXPECT_GE(r.stable_in_limit, 0.95);
    } else {
      EXPECT_GE(r.same_best, 0.85);
      EXPECT_LT(r.mean_top_diff, 0.5);
    }
  }
}

TEST(GoldenRelease, Cases) {
  for (const int length : kLengths) {
    SCOPED_TRACE(length);
    const CaseResult r = CompareCase(Numerics::kRelease, length, 0.25f);
    if (length <= 17) {
      EXPECT_LT(r.mean_top_diff, 0.4);
    } else {
      EXPECT_LT(r.mean_top_diff, 1.2);
      EXPECT_GE(r.same_best, 0.6);
    }
  }
}

// ---- greedy -----------------------------------------------------------------------------------------------------------------

class GoldenByNumerics : public testing::TestWithParam<Numerics> {};
INSTANTIATE_TEST_SUITE_P(Arithmetics, GoldenByNumerics, testing::Values(Numerics::kPlain, Numerics::kFp32, Numerics::kRelease),
                         [](const auto& param_info) { return std::string(FileName(param_info.param)); });

TEST_P(GoldenByNumerics, GreedyContinuations) {
  const Golden golden("greedy.safetensors");
  const std::string key = FileName(GetParam());
  Model& model = Nano(GetParam());
  const auto prompts = golden.Ints(key + ".prompts"), expected = golden.Ints(key + ".continuations");
  const auto prefix = golden.Ints(key + ".stable_prefix");
  const size_t num = 3, prompt_len = prompts.size() / num, steps = expected.size() / num;
  for (size_t i = 0; i < num; ++i) {
    auto sequence = NewSequence(model);
    std::vector<int32_t> ids(prompts.begin() + static_cast<long>(i * prompt_len), prompts.begin() + static_cast<long>((i + 1) * prompt_len));
    const size_t must_match = GetParam() == Numerics::kPlain ? steps
                              : GetParam() == Numerics::kFp32 ? static_cast<size_t>(prefix[i])
                                                              : std::min<size_t>(3, static_cast<size_t>(prefix[i]));
    size_t num_equal = 0;
    bool is_equal = true;
    for (size_t step = 0; step < steps; ++step) {
      SequenceChunk chunk;
      chunk.sequence = sequence.get();
      chunk.ids = ids;
      const auto logits = model.Forward({&chunk, 1});
      ASSERT_TRUE(logits.ok());
      const int32_t best = ArgMax(*logits);
      is_equal = is_equal && best == expected[i * steps + step];
      num_equal += is_equal;
      if (step < must_match) {
        EXPECT_EQ(best, expected[i * steps + step]) << "step " << step;
      }
      // Teacher forcing keeps later steps comparable.
      ids = {expected[i * steps + step]};
    }
    std::printf("%s prompt %zu: first %zu of %zu tokens equal (%zu asked for)\n", key.c_str(), i, num_equal, steps, must_match);
  }
}

// ---- draft head -------------------------------------------------------------------------------------------------------------

TEST_P(GoldenByNumerics, DraftFromStoredTaps) {
  const Golden golden("draft.safetensors");
  const std::string key = FileName(GetParam());
  const bool is_release = GetParam() == Numerics::kRelease;
  const float logits_limit = GetParam() == Numerics::kPlain ? 1e-3f : GetParam() == Numerics::kFp32 ? 0.1f : 0.6f;
  const float confidence_limit = GetParam() == Numerics::kPlain ? 1e-3f : GetParam() == Numerics::kFp32 ? 0.05f : 0.3f;
  Model& model = Nano(GetParam());
  const auto tokens = golden.Ints(key + ".tokens");
  const auto taps = golden.Floats(key + ".taps");
  const size_t width = taps.size() / tokens.size(), v = static_cast<size_t>(model.config().vocab_size);
  float worst_overall = 0;
  for (const int p : golden.Ints("positions")) {
    SCOPED_TRACE(p);
    const std::string name = fmt::format("{}.{}.", key, p);
    auto draft = model.DraftFromTaps(std::span(taps).first(static_cast<size_t>(p + 1) * width), p + 1,
                                     tokens[static_cast<size_t>(p) + 1], true);
    ASSERT_TRUE(draft.ok()) << draft.status().ToString();
    const auto drafted = golden.Ints(name + "drafted");
    const auto gaps = golden.Floats(name + "gaps");
    const auto logits = golden.Floats(name + "logits");
    const auto confidence = golden.Floats(name + "confidence");
    ASSERT_EQ(draft->tokens.size(), drafted.size());
    const float base = MaxAbsDiff(draft->base_logits, golden.Floats(name + "base_logits"));
    EXPECT_LT(base, logits_limit);
    worst_overall = std::max(worst_overall, base);
    for (size_t j = 0; j < gaps.size(); ++j) {
      const float d = MaxAbsDiff(std::span(draft->logits).subspan(j * v, v), std::span(logits).subspan(j * v, v));
      EXPECT_LT(d, logits_limit) << j;
      const bool is_equal = draft->tokens[j + 1] == drafted[j + 1];
      if (!is_equal && is_release) {
        EXPECT_LT(gaps[j], 0.3f) << j;
        break;
      }
      EXPECT_TRUE(is_equal) << j;
      EXPECT_NEAR(draft->confidence_logits[j], confidence[j], confidence_limit) << j;
    }
  }
  std::printf("%s draft: worst base logit difference %.3g\n", key.c_str(), static_cast<double>(worst_overall));
}

// The taps of a forward pass lead to the same drafts as the stored ones, at every position of the draft window.
TEST(Draft, FromTheSequenceEqualsFromItsTaps) {
  const Golden golden("draft.safetensors");
  Model& model = Nano(Numerics::kPlain);
  const auto tokens = golden.Ints("plain.tokens");
  for (const int p : golden.Ints("positions")) {
    SCOPED_TRACE(p);
    auto sequence = NewSequence(model);
    SequenceChunk chunk;
    chunk.sequence = sequence.get();
    chunk.ids = std::span(tokens).first(static_cast<size_t>(p) + 1);
    ASSERT_TRUE(model.Forward({&chunk, 1}).ok());
    auto draft = model.Draft(*sequence, tokens[static_cast<size_t>(p) + 1], true);
    ASSERT_TRUE(draft.ok()) << draft.status().ToString();
    EXPECT_EQ(draft->tokens, golden.Ints(fmt::format("plain.{}.drafted", p)));
    EXPECT_LT(MaxAbsDiff(draft->logits, golden.Floats(fmt::format("plain.{}.logits", p))), 1e-3f);
  }
}

// ---- images -----------------------------------------------------------------------------------------------------------------

TEST_P(GoldenByNumerics, PromptWithAnImage) {
  const Golden golden("image.safetensors");
  const std::string key = FileName(GetParam());
  Model& model = Nano(GetParam());
  const auto ids = golden.Ints("tokens"), image = golden.Ints("image");
  const auto embeds = golden.Floats("embeds");
  const std::vector<uint8_t> is_image(image.begin(), image.end());
  auto sequence = NewSequence(model);
  SequenceChunk chunk;
  chunk.sequence = sequence.get();
  chunk.ids = ids;
  chunk.is_image = is_image;
  chunk.image_embeds = embeds.data();
  chunk.all_logits = true;
  Recorder recorder;
  const auto logits = model.Forward({&chunk, 1}, &recorder.sink);
  ASSERT_TRUE(logits.ok()) << logits.status().ToString();
  EXPECT_EQ(recorder.ints["engram_rows"], golden.Ints("engram_rows"));
  const auto expected = golden.Floats(key + ".logits");
  const size_t v = static_cast<size_t>(model.config().vocab_size), rows = ids.size();
  double mean = 0;
  int num_same = 0;
  for (size_t t = 0; t < rows; ++t) {
    num_same += ArgMax(logits->subspan(t * v, v)) == ArgMax(std::span(expected).subspan(t * v, v));
    for (size_t i = t * v; i < (t + 1) * v; ++i) mean += std::fabs((*logits)[i] - expected[i]) / static_cast<double>(rows * v);
  }
  std::printf("%s image: mean logit difference %.3g, best token equal in %d of %zu rows\n", key.c_str(), mean, num_same, rows);
  if (GetParam() == Numerics::kPlain) {
    EXPECT_LT(MaxAbsDiff(*logits, expected), 1e-3f);
    for (int layer = 0; layer < model.config().num_hidden_layers; ++layer) {
      const std::string name = fmt::format("layers.{}.router.experts", layer);
      EXPECT_EQ(recorder.ints[name], golden.Ints("plain." + name)) << layer;
    }
  } else {
    EXPECT_LT(mean, GetParam() == Numerics::kFp32 ? 0.5 : 1.2);
    EXPECT_GE(num_same, static_cast<int>(static_cast<double>(rows) * (GetParam() == Numerics::kFp32 ? 0.85 : 0.6)));
  }
}

}  // namespace
}  // namespace deepinfer::model
