// SPDX-License-Identifier: Apache-2.0
//
// The golden streams: runs them through DebugStream, joins neighbouring deltas of one target, and forgets what is not compared
// (README of the golden cases).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "protocols/debug_stream.h"
#include "protocols/golden_cases.h"
#include "protocols/golden_tokenizer.h"

namespace deepinfer::protocols {

inline constexpr Api kStreamApis[] = {Api::kChat, Api::kResponses, Api::kMessages};

inline std::vector<Json> StreamCases(Api api) { return ReadJsonLines(fmt::format("protocols/{}_stream.jsonl", ApiName(api))); }

inline std::vector<Json> ChunksOf(const Json& test_case) { return {test_case["chunks"].begin(), test_case["chunks"].end()}; }

inline bool IsMadeOfText(const Json& test_case) {
  for (const Json& chunk : test_case["chunks"]) {
    if (chunk.contains("ids")) return false;
  }
  return true;
}

// --- walks over JSON ---

inline void ForEachObject(Json& json, const std::function<void(Json&)>& fn) {
  if (json.is_object()) fn(json);
  if (!json.is_structured()) return;
  for (Json& item : json) ForEachObject(item, fn);
}

inline void ForgetReasoningTokens(Json& json) {
  ForEachObject(json, [](Json& object) {
    if (object.contains("reasoning_tokens")) object["reasoning_tokens"] = 0;
  });
}

// completion_tokens depends on where a stop string ends the stream.
inline void ForgetUsage(std::vector<Json>& lines) {
  for (Json& line : lines) {
    ForEachObject(line, [](Json& object) {
      if (object.contains("usage")) object.erase("usage");
    });
  }
}

// --- joining deltas ---

// Where the text of a delta is, and what it adds to; an empty target is never joined.
struct DeltaPlace {
  std::string target;
  Json* text = nullptr;
  Json* logprobs = nullptr;  // a list of entries, or the object that holds lists
};

inline DeltaPlace ChatDelta(Json& data) {
  DeltaPlace place;
  if (!data.contains("choices") || data["choices"].empty()) return place;
  Json& choice = data["choices"][0];
  Json& delta = choice["delta"];
  if (!choice["finish_reason"].is_null() || delta.contains("role")) return place;
  if (delta.contains("tool_calls")) {
    Json& call = delta["tool_calls"][0];
    if (!call.contains("id")) place = {"arguments " + DumpJson(call["index"]), &call["function"]["arguments"], nullptr};
    return place;
  }
  const bool is_reasoning = delta.contains("reasoning_content") && !delta["reasoning_content"].is_null();
  const char* key = is_reasoning ? "reasoning_content" : "content";
  return {key, &delta[key], &choice["logprobs"]};
}

inline DeltaPlace EventDelta(Json& data) {
  DeltaPlace place;
  const std::string type = data.value("type", "");
  if (type == "content_block_delta") {
    Json& delta = data["delta"];
    for (const char* key : {"text", "thinking", "partial_json"}) {
      if (delta.contains(key)) place = {fmt::format("{} {}", key, DumpJson(data["index"])), &delta[key], nullptr};
    }
  } else if (type.ends_with(".delta")) {
    place = {type + data["item_id"].get<std::string>(), &data["delta"], data.contains("logprobs") ? &data["logprobs"] : nullptr};
  }
  return place;
}

inline DeltaPlace PlaceOf(Api api, Json& line) {
  Json& data = line["data"];
  if (!data.is_object()) return {};
  return api == Api::kChat ? ChatDelta(data) : EventDelta(data);
}

inline void JoinLogprobs(Json& into, const Json& from) {
  if (from.is_array()) into.insert(into.end(), from.begin(), from.end());
  if (!from.is_object()) return;
  for (const auto& [key, list] : from.items()) {
    for (const Json& entry : list) into[key].push_back(entry);
  }
}

// Sequence numbers count events; they are checked on their own and dropped.
inline std::vector<Json> Merge(Api api, const std::vector<Json>& lines) {
  std::vector<Json> merged;
  std::string last_target;
  int64_t sequence_number = 0;
  for (Json line : lines) {
    if (api == Api::kResponses && line["data"].is_object()) {
      EXPECT_EQ(line["data"]["sequence_number"], sequence_number++);
      line["data"].erase("sequence_number");
    }
    const DeltaPlace place = PlaceOf(api, line);
    if (!place.target.empty() && place.target == last_target) {
      const DeltaPlace into = PlaceOf(api, merged.back());
      *into.text = into.text->get<std::string>() + place.text->get<std::string>();
      if (place.logprobs != nullptr) JoinLogprobs(*into.logprobs, *place.logprobs);
    } else {
      last_target = place.target;
      merged.push_back(std::move(line));
    }
  }
  return merged;
}

// --- running ---

struct RunResult {
  std::vector<Json> lines;
  std::vector<size_t> lines_per_push;
  Json response;
};

inline DebugStreamOptions OptionsOf(const Json& test_case) {
  DebugStreamOptions options;
  options.normalize = true;
  options.finish = ParseEngineFinish(test_case["finish"].get<std::string>()).value();
  options.prompt_tokens = test_case["prompt_usage"]["prompt_tokens"].get<int64_t>();
  options.cached_tokens = test_case["prompt_usage"]["prompt_cache_hit_tokens"].get<int64_t>();
  if (!test_case["system_fingerprint"].is_null()) options.system_fingerprint = test_case["system_fingerprint"].get<std::string>();
  return options;
}

inline RunResult RunStream(Api api, const Json& test_case, const std::vector<Json>& chunks) {
  RunResult result;
  DebugStreamOptions options = OptionsOf(test_case);
  for (const bool accumulate : {false, true}) {
    options.accumulate = accumulate;
    auto stream = DebugStream::Create(api, DumpJson(test_case["request"]), GoldenTokenizer(), ConvertOptions(), options);
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

}  // namespace deepinfer::protocols
