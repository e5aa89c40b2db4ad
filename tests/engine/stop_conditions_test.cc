// SPDX-License-Identifier: Apache-2.0
//
// When a request ends (specification, engine 6.3): context length, max_tokens, end token, stop token, stop strings across
// token and step boundaries. Many requests at once through the asynchronous engine, planned ahead or not, against an
// evaluation that looks at one token after the other and decodes everything anew each time. Without drafts and with true
// ones, so that several tokens come at once and the end lies among them.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/async_engine.h"
#include "engine/token_policy.h"
#include "fake_step_model.h"
#include "scripted_drafts.h"

namespace deepinfer::engine {
namespace {

constexpr int kVocab = 4096;
constexpr int64_t kMaxLen = 34;

const text::Tokenizer& Words() {
  static const std::unique_ptr<text::Tokenizer> instance =
      std::move(text::Tokenizer::Load(std::string(DEEPINFER_SOURCE_DIR) + "/models/demo")).value();
  return *instance;
}

struct Case {
  TextRequest request;
  std::vector<int32_t> script;  // what the model says
};

struct Ending {
  std::vector<int32_t> ids;
  std::string text;
  FinishReason reason = FinishReason::kNone;
  std::optional<int32_t> stop_token_id;
  std::optional<std::string> stop_string;
};

Ending TokenByToken(const Case& c) {
  const SamplingParams& p = c.request.params;
  const int32_t eos = Words().FindAddedToken(kEndOfSentence);
  Ending end;
  for (const int32_t id : c.script) {
    end.ids.push_back(id);
    const size_t before = end.text.size();
    end.text = Words().Decode(end.ids, false);
    const int64_t num_output = static_cast<int64_t>(end.ids.size());
    const bool is_stop_token = std::find(p.stop_token_ids.begin(), p.stop_token_ids.end(), id) != p.stop_token_ids.end();
    if ((id == eos && !p.ignore_eos) || is_stop_token) {
      end.reason = FinishReason::kStop;
      end.stop_token_id = id;
    } else if (static_cast<int64_t>(c.request.prompt_ids.size()) + num_output > kMaxLen || num_output == p.max_tokens) {
      end.reason = FinishReason::kLength;
    }
    for (size_t stop_end = before + 1; stop_end <= end.text.size() && num_output >= p.min_tokens; ++stop_end) {
      const std::string_view seen = std::string_view(end.text).substr(0, stop_end);
      const auto stop = std::find_if(p.stop.begin(), p.stop.end(), [&](const std::string& s) { return seen.ends_with(s); });
      if (stop == p.stop.end()) continue;
      if (end.reason != FinishReason::kStop) end.stop_string = *stop;
      end.reason = FinishReason::kStop;
      end.text.resize(p.include_stop_str_in_output ? stop_end : stop_end - stop->size());
      return end;
    }
    if (end.reason != FinishReason::kNone) return end;
  }
  ADD_FAILURE() << "the script does not end";
  return end;
}

std::vector<Case> Cases(uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const std::vector<std::string> words = {"the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "42", "runs"};
  const int32_t eos = Words().FindAddedToken(kEndOfSentence);
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    Case& c = cases.emplace_back();
    std::string text;
    for (size_t n = 3 + below(12); n > 0; --n) text += words[below(words.size())] + " ";
    c.script = Words().EncodePlain(text);
    const std::vector<int32_t> spoken = c.script;
    SamplingParams& p = c.request.params;
    c.request.prompt_ids.assign(1 + below(20), 100 + static_cast<int32_t>(below(50)));
    p.temperature = below(2) == 0 ? 0.0 : 0.8;
    p.seq_seed = random();
    p.max_tokens = 1 + static_cast<int64_t>(below(40));
    p.ignore_eos = below(4) == 0;
    // Stop strings: pieces of the text, cut anywhere, and one that does not come.
    for (size_t n = below(3); n > 0; --n) {
      const size_t begin = below(text.size());
      p.stop.push_back(text.substr(begin, 1 + below(8)));
    }
    if (below(3) == 0) p.stop.push_back("never said");
    if (!p.stop.empty() && below(3) == 0) p.min_tokens = std::min<int64_t>(static_cast<int64_t>(below(6)), p.max_tokens);
    // Bans of min_tokens do not meet forced tokens here.
    if (p.min_tokens == 0 && below(3) == 0) p.stop_token_ids = {c.script[below(c.script.size())]};
    p.include_stop_str_in_output = below(4) == 0;
    if (below(3) != 0 && p.min_tokens == 0) c.script.resize(1 + below(c.script.size()));
    c.script.push_back(eos);
    while (static_cast<int64_t>(c.script.size()) <= std::max(p.max_tokens, kMaxLen)) c.script.push_back(spoken[below(spoken.size())]);
    p.golden_token_ids = c.script;
  }
  return cases;
}

void ExpectTheSameEnds(bool is_async, uint64_t seed, int num_drafts) {
  AsyncEngineOptions options;
  SchedulerOptions& s = options.core.scheduler;
  options.core.is_async = is_async;
  s.max_model_len = kMaxLen;
  s.max_num_batched_tokens = 128;
  s.max_num_seqs = 7;
  s.num_drafts = num_drafts;
  s.num_blocks = 20;
  options.fingerprint.model_id = "fake";
  FakeStepModel model(kVocab, 640, s.num_blocks, s.num_state_slots(), 0, 1);
  const std::vector<Case> cases = Cases(seed, 60);
  ScriptedDrafts drafts(model, s.num_state_slots(), ScriptedDrafts::Kind::kTruth);
  for (const Case& c : cases) drafts.Learn(c.request.prompt_ids, c.script);
  auto engine = AsyncEngine::Create(drafts, Words(), std::move(options));
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  std::vector<TextHandle> handles;
  for (const Case& c : cases) {
    auto handle = (*engine)->Submit(c.request);
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    handles.push_back(std::move(handle).value());
  }
  int num_stop = 0, num_strings = 0, num_length = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Ending want = TokenByToken(cases[i]);
    // The pieces make the whole.
    std::string pieces;
    TextOutput output;
    while (handles[i].Next(output)) pieces += output.text;
    const Completion got = std::move(handles[i].TakeCompletions().front());
    EXPECT_EQ(got.ids, want.ids) << i;
    EXPECT_EQ(got.text, want.text) << i;
    EXPECT_EQ(pieces, want.text) << i;
    EXPECT_EQ(got.finish_reason, want.reason) << i;
    EXPECT_EQ(got.stop_token_id, want.stop_token_id) << i;
    EXPECT_EQ(got.stop_string, want.stop_string) << i;
    num_stop += got.stop_token_id ? 1 : 0;
    num_strings += got.stop_string ? 1 : 0;
    num_length += got.finish_reason == FinishReason::kLength ? 1 : 0;
  }
  // Every kind of end was seen.
  EXPECT_GT(num_stop, 3);
  EXPECT_GT(num_strings, 3);
  EXPECT_GT(num_length, 3);
  EXPECT_EQ((*engine)->core().Stats().stats.num_accepted_drafts > 100, num_drafts > 0);
}

TEST(StopConditions, PlannedAhead) {
  for (uint64_t seed = 1; seed <= 4; ++seed) ExpectTheSameEnds(true, seed, 0);
}

TEST(StopConditions, OneStepAfterTheOther) {
  for (uint64_t seed = 1; seed <= 4; ++seed) ExpectTheSameEnds(false, seed, 0);
}

TEST(StopConditions, BehindDrafts) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    for (const int num_drafts : {1, 5}) {
      ExpectTheSameEnds(true, seed, num_drafts);
      ExpectTheSameEnds(false, seed, num_drafts);
    }
  }
}

}  // namespace
}  // namespace deepinfer::engine
