// SPDX-License-Identifier: Apache-2.0
#include "protocols/converted_request.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace deepinfer::protocols {

void FinishConversion(const ConvertOptions& options, ConvertedRequest& request) {
  request.prompt = text::RenderPrompt(request.conversation, options.tokens);
  request.parsing.parse_tool_calls = !request.conversation.tools.empty();
  request.parsing.starts_in_tool_calls = request.prompt.starts_in_tool_calls;
  request.parsing.parse_json_output =
      request.conversation.response_format.kind == text::ResponseFormat::Kind::kJsonObject;
  request.parsing.initial_stage = request.prompt.stage;
}

Status CheckModelName(std::string_view model, const ConvertOptions& options) {
  const auto& served = options.served_models;
  if (std::find(served.begin(), served.end(), model) != served.end()) return Status::Ok();
  return InvalidArgument(
      fmt::format("The supported API model names are {}, but you passed {}.", fmt::join(served, ", "), model), "model");
}

}  // namespace deepinfer::protocols
