// SPDX-License-Identifier: Apache-2.0
#include "protocols/debug_render.h"

namespace deepinfer::protocols {

namespace {

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json DescribeInference(const InferenceOptions& inference) {
  Json out = Json::object();
  out["max_tokens"] = OrNull(inference.max_tokens);
  out["temperature"] = inference.temperature;
  out["top_p"] = inference.top_p;
  out["logprobs"] = inference.logprobs;
  out["top_logprobs"] = OrNull(inference.top_logprobs);
  out["seed"] = OrNull(inference.seed);
  out["constraint"] = nullptr;
  if (inference.constraint) {
    Json constraint = Json::object();
    constraint["kind"] = std::string(ConstraintKindName(inference.constraint->kind));
    constraint["schema"] = inference.constraint->schema;
    out["constraint"] = std::move(constraint);
  }
  return out;
}

Json DescribeParsing(const text::ParserOptions& parsing) {
  Json out = Json::object();
  out["parse_tool_calls"] = parsing.parse_tool_calls;
  out["starts_in_tool_calls"] = parsing.starts_in_tool_calls;
  out["parse_json_output"] = parsing.parse_json_output;
  out["initial_stage"] = std::string(text::InitialStageName(parsing.initial_stage));
  out["stop_sequences"] = parsing.stop_sequences;
  return out;
}

DebugRenderResult Error(Api api, const Status& status) {
  Json error = Json::object();
  error["status"] = HttpStatus(status);
  error["body"] = ErrorBody(api, status);
  DebugRenderResult result;
  result.json["error"] = std::move(error);
  result.is_error = true;
  return result;
}

}  // namespace

Json DescribeRequest(const ConvertedRequest& request) {
  Json out = Json::object();
  out["prompt"] = request.prompt.text;
  Json ranges = Json::array();
  for (const text::SpecialRange& range : request.prompt.special_ranges) ranges.push_back({range.begin, range.end});
  out["special_ranges"] = std::move(ranges);
  out["images"] = request.prompt.images.size();
  out["stream"] = request.stream;
  out["thinking"] = request.conversation.thinking;
  if (!request.conversation.thinking) {
    out["effort"] = nullptr;
  } else if (request.effort_name.empty()) {
    out["effort"] = request.conversation.effort;
  } else {
    out["effort"] = request.effort_name;
  }
  out["inference"] = DescribeInference(request.inference);
  out["parsing"] = DescribeParsing(request.parsing);
  return out;
}

DebugRenderResult DebugRender(Api api, std::string_view body, const text::Tokenizer& tokenizer, ConvertOptions options) {
  Result<text::PromptTokens> tokens = text::PromptTokens::FromTokenizer(tokenizer);
  if (!tokens.ok()) return Error(api, tokens.status());
  options.tokens = *std::move(tokens);
  const Result<ConvertedRequest> request = ConvertRequest(api, body, options);
  if (!request.ok()) return Error(api, request.status());
  const auto ids = tokenizer.EncodePrompt(request->prompt.text, request->prompt.special_ranges);
  if (!ids.ok()) return Error(api, ids.status());
  DebugRenderResult result;
  // `ids` stands after the ranges it comes from.
  const Json described = DescribeRequest(*request);
  result.json = Json::object();
  for (const auto& [key, value] : described.items()) {
    result.json[key] = value;
    if (key == "special_ranges") result.json["ids"] = *ids;
  }
  return result;
}

}  // namespace deepinfer::protocols
