// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <random>
#include <set>

#include "core/utf8.h"
#include "protocols/chat_request.h"
#include "protocols/debug_stream.h"
#include "protocols/golden_cases.h"
#include "protocols/golden_tokenizer.h"

namespace deepinfer::protocols {
namespace {

// Our arguments where they differ on purpose (README of the golden cases).
const std::map<std::string, std::string>& OurArguments() {
  static const auto* const arguments = new std::map<std::string, std::string>{
      {"chat/stream-tool-badjson", R"({"n": "oops"})"},
      {"chat/stream-tool-no-string-attr", R"({"a": "x"})"},
      {"chat/stream-end-pname-quote", R"({"ab": )"},
  };
  return *arguments;
}

// What a delta adds to: two neighbours of the same target may be joined.
std::string TargetOf(const Json& data) {
  if (!data.is_object()) return "done";
  const Json& choice = data["choices"][0];
  if (!choice["finish_reason"].is_null()) return "last";
  const Json& delta = choice["delta"];
  if (delta.contains("role")) return "first";
  if (delta.contains("tool_calls")) {
    const Json& call = delta["tool_calls"][0];
    return (call.contains("id") ? "call " : "arguments ") + DumpJson(call["index"]);
  }
  return delta.contains("reasoning_content") && !delta["reasoning_content"].is_null() ? "reasoning" : "content";
}

void Join(Json& into, const Json& from, const std::string& target) {
  Json& choice = into["choices"][0];
  const Json& added = from["choices"][0];
  const auto append = [](Json& a, const Json& b) { a = a.get<std::string>() + b.get<std::string>(); };
  if (target == "content") {
    append(choice["delta"]["content"], added["delta"]["content"]);
  } else if (target == "reasoning") {
    append(choice["delta"]["reasoning_content"], added["delta"]["reasoning_content"]);
  } else {
    append(choice["delta"]["tool_calls"][0]["function"]["arguments"],
           added["delta"]["tool_calls"][0]["function"]["arguments"]);
  }
  if (!added["logprobs"].is_object()) return;
  for (const auto& [key, list] : added["logprobs"].items()) {
    for (const Json& entry : list) choice["logprobs"][key].push_back(entry);
  }
}

std::vector<Json> Merge(const std::vector<Json>& lines) {
  std::vector<Json> merged;
  std::string last_target;
  for (const Json& line : lines) {
    const std::string target = TargetOf(line["data"]);
    const bool can_join = target == "content" || target == "reasoning" || target.substr(0, 9) == "arguments";
    if (can_join && target == last_target) {
      Join(merged.back()["data"], line["data"], target);
    } else {
      merged.push_back(line);
    }
    last_target = target;
  }
  return merged;
}

struct RunResult {
  std::vector<Json> lines;
  std::vector<size_t> lines_per_push;
  Json response;
};

DebugStreamOptions OptionsOf(const Json& test_case) {
  DebugStreamOptions options;
  options.normalize = true;
  options.finish = ParseEngineFinish(test_case["finish"].get<std::string>()).value();
  options.prompt_tokens = test_case["prompt_usage"]["prompt_tokens"].get<int64_t>();
  options.cached_tokens = test_case["prompt_usage"]["prompt_cache_hit_tokens"].get<int64_t>();
  if (!test_case["system_fingerprint"].is_null()) options.system_fingerprint = test_case["system_fingerprint"].get<std::string>();
  return options;
}

RunResult RunStream(const Json& test_case, const std::vector<Json>& chunks) {
  RunResult result;
  DebugStreamOptions options = OptionsOf(test_case);
  for (const bool accumulate : {false, true}) {
    options.accumulate = accumulate;
    auto stream = DebugStream::Create(
        Api::kChat, DumpJson(test_case["request"]), GoldenTokenizer(), ConvertOptions(), options);
    EXPECT_TRUE(stream.ok()) << stream.status().ToString();
    if (!stream.ok()) return result;
    std::vector<Json> lines = (*stream)->Start();
    if (!accumulate) result.lines_per_push.push_back(lines.size());
    const auto add = [&](const std::vector<Json>& more) {
      if (!accumulate) result.lines_per_push.push_back(more.size());
      lines.insert(lines.end(), more.begin(), more.end());
    };
    for (const Json& chunk : chunks) {
      auto more = (*stream)->Push(chunk);
      EXPECT_TRUE(more.ok()) << more.status().ToString();
      if (more.ok()) add(*more);
    }
    add((*stream)->Finish());
    if (accumulate) {
      EXPECT_EQ(lines.size(), 1u);
      if (!lines.empty()) result.response = lines[0];
    } else {
      result.lines = std::move(lines);
    }
  }
  return result;
}

std::vector<Json> ChunksOf(const Json& test_case) {
  return {test_case["chunks"].begin(), test_case["chunks"].end()};
}

bool IsMadeOfText(const Json& test_case) {
  for (const Json& chunk : test_case["chunks"]) {
    if (chunk.contains("ids")) return false;
  }
  return true;
}

void ForgetReasoningTokens(Json& data) {
  if (data.is_object() && data.contains("usage") && data["usage"].is_object() &&
      data["usage"].contains("completion_tokens_details")) {
    data["usage"]["completion_tokens_details"]["reasoning_tokens"] = 0;
  }
}

void SetArguments(Json& data, const std::string& arguments) {
  Json& choice = data["choices"][0];
  for (const char* key : {"delta", "message"}) {
    const auto holder = choice.find(key);
    if (holder == choice.end() || !holder->contains("tool_calls")) continue;
    Json& function = (*holder)["tool_calls"][0]["function"];
    if (function["arguments"] != "") function["arguments"] = arguments;  // "" stands in the first delta of a call
  }
}

TEST(ChatStream, GoldenCases) {
  int num_cases = 0;
  for (const Json& test_case : ReadJsonLines("protocols/chat_stream.jsonl")) {
    const std::string id = test_case["id"];
    SCOPED_TRACE(id);
    ++num_cases;
    RunResult ours = RunStream(test_case, ChunksOf(test_case));
    std::vector<Json> expected(test_case["expect"]["events"].begin(), test_case["expect"]["events"].end());
    Json response = test_case["expect"]["response"];
    if (!test_case["expect"]["sse_done"].is_null()) {
      Json done = Json::object();
      done["event"] = nullptr;
      done["data"] = test_case["expect"]["sse_done"];
      expected.push_back(done);
    }
    ours.lines = Merge(ours.lines);
    expected = Merge(expected);
    if (IsMadeOfText(test_case)) {
      for (Json& line : ours.lines) ForgetReasoningTokens(line["data"]);
      for (Json& line : expected) ForgetReasoningTokens(line["data"]);
      ForgetReasoningTokens(ours.response);
      ForgetReasoningTokens(response);
    }
    if (const auto it = OurArguments().find(id); it != OurArguments().end()) {
      for (Json& line : expected) {
        if (line["data"].is_object()) SetArguments(line["data"], it->second);
      }
      SetArguments(response, it->second);
    }
    ASSERT_EQ(ours.lines.size(), expected.size()) << DumpJson(Json(ours.lines)) << "\n" << DumpJson(Json(expected));
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(ours.lines[i], expected[i]);
    EXPECT_EQ(ours.response, response);
  }
  EXPECT_EQ(num_cases, 60);
}

size_t VisibleBytes(const Json& data) {
  if (!data.is_object()) return 0;
  const Json& delta = data["choices"][0]["delta"];
  size_t bytes = 0;
  for (const char* key : {"content", "reasoning_content"}) {
    if (const auto it = delta.find(key); it != delta.end() && it->is_string()) bytes += it->get<std::string>().size();
  }
  if (const auto it = delta.find("tool_calls"); it != delta.end()) {
    bytes += (*it)[0]["function"]["arguments"].get<std::string>().size();
  }
  return bytes;
}

// Text is released at the latest when the reference releases it (it often holds a whole piece for a tag at its end).
TEST(ChatStream, NothingIsHeldLongerThanInTheReference) {
  for (const Json& test_case : ReadJsonLines("protocols/chat_stream.jsonl")) {
    if (!IsMadeOfText(test_case) || OurArguments().contains(test_case["id"].get<std::string>())) continue;
    if (test_case["id"] == "chat/stream-end-pname-open") continue;  // parameter names are held (protocols.md 4)
    SCOPED_TRACE(test_case["id"].get<std::string>());
    const RunResult ours = RunStream(test_case, ChunksOf(test_case));
    const Json& their_counts = test_case["expect"]["events_per_push"];
    const Json& their_events = test_case["expect"]["events"];
    size_t our_event = 0;
    size_t their_event = 0;
    size_t our_bytes = 0;
    size_t their_bytes = 0;
    for (size_t push = 0; push < ours.lines_per_push.size() && push < their_counts.size(); ++push) {
      for (size_t i = 0; i < ours.lines_per_push[push]; ++i) our_bytes += VisibleBytes(ours.lines[our_event++]["data"]);
      for (size_t i = 0; i < their_counts[push].get<size_t>(); ++i) their_bytes += VisibleBytes(their_events[their_event++]["data"]);
      EXPECT_GE(our_bytes, their_bytes) << "push " << push;
    }
  }
}

// Cuts the text of all chunks anew at whole characters; token counts stay.
std::vector<Json> Rechunk(const Json& test_case, std::mt19937& random) {
  std::string text;
  int64_t num_tokens = 0;
  for (const Json& chunk : test_case["chunks"]) {
    text += chunk["text"].get<std::string>();
    num_tokens += chunk.contains("tokens") ? chunk["tokens"].get<int64_t>() : 1;
  }
  std::vector<Json> chunks;
  const int max_characters = 1 + static_cast<int>(random() % 12);
  std::string_view rest = text;
  while (!rest.empty()) {
    size_t n = 0;
    for (int left = 1 + static_cast<int>(random() % static_cast<unsigned>(max_characters)); left > 0 && n < rest.size(); --left) {
      n += DecodeUtf8(rest.substr(n)).num_bytes;
    }
    Json chunk = Json::object();
    chunk["text"] = std::string(rest.substr(0, n));
    chunk["tokens"] = 0;
    chunks.push_back(chunk);
    rest.remove_prefix(n);
  }
  if (!chunks.empty()) chunks.front()["tokens"] = num_tokens;
  return chunks;
}

// completion_tokens depends on where a stop string ends the stream; everything else must not change.
void ForgetCounts(std::vector<Json>& lines) {
  for (Json& line : lines) {
    if (line["data"].is_object() && line["data"].contains("usage")) line["data"].erase("usage");
  }
}

TEST(ChatStream, AnyChunkingGivesTheSameEvents) {
  std::mt19937 random(7);
  int num_runs = 0;
  for (const Json& test_case : ReadJsonLines("protocols/chat_stream.jsonl")) {
    if (!IsMadeOfText(test_case)) continue;
    SCOPED_TRACE(test_case["id"].get<std::string>());
    RunResult whole = RunStream(test_case, ChunksOf(test_case));
    std::vector<Json> expected = Merge(whole.lines);
    ForgetCounts(expected);
    for (int round = 0; round < 40; ++round) {
      const std::vector<Json> chunks = Rechunk(test_case, random);
      RunResult ours = RunStream(test_case, chunks);
      std::vector<Json> merged = Merge(ours.lines);
      ForgetCounts(merged);
      ASSERT_EQ(merged, expected) << DumpJson(Json(chunks));
      ++num_runs;
    }
  }
  RecordProperty("runs", num_runs);
}

// The same for tokens: one by one, all at once, or in between.
TEST(ChatStream, AnyGroupingOfTokensGivesTheSameEvents) {
  std::mt19937 random(11);
  for (const Json& test_case : ReadJsonLines("protocols/chat_stream.jsonl")) {
    if (IsMadeOfText(test_case)) continue;
    SCOPED_TRACE(test_case["id"].get<std::string>());
    Json ids = Json::array();
    Json logprobs = Json::array();
    for (const Json& chunk : test_case["chunks"]) {
      for (const Json& id : chunk["ids"]) ids.push_back(id);
      if (chunk.contains("logprobs")) {
        for (const Json& entry : chunk["logprobs"]) logprobs.push_back(entry);
      }
    }
    const std::vector<Json> expected = Merge(RunStream(test_case, ChunksOf(test_case)).lines);
    for (int round = 0; round < 20; ++round) {
      std::vector<Json> chunks;
      for (size_t i = 0; i < ids.size();) {
        const size_t n = std::min(ids.size() - i, size_t{1} + random() % 4);
        Json chunk = Json::object();
        chunk["ids"] = Json(std::vector<Json>(ids.begin() + static_cast<long>(i), ids.begin() + static_cast<long>(i + n)));
        if (!logprobs.empty()) {
          chunk["logprobs"] =
              Json(std::vector<Json>(logprobs.begin() + static_cast<long>(i), logprobs.begin() + static_cast<long>(i + n)));
        }
        chunks.push_back(chunk);
        i += n;
      }
      EXPECT_EQ(Merge(RunStream(test_case, chunks).lines), expected);
    }
  }
}

}  // namespace
}  // namespace deepinfer::protocols
