// SPDX-License-Identifier: Apache-2.0
#include "protocols/convert_request.h"

#include <utility>

#include <fmt/format.h>

#include "protocols/chat_request.h"

namespace deepinfer::protocols {

Result<ConvertedRequest> ConvertRequest(Api api, std::string_view body, const ConvertOptions& options) {
  const Result<Json> json = ParseJson(body);
  if (!json.ok()) return DeserializeError("", json.status().message());
  return ConvertRequest(api, *json, options);
}

Result<ConvertedRequest> ConvertRequest(Api api, const Json& body, const ConvertOptions& options) {
  if (api == Api::kChat) {
    DI_ASSIGN_OR_RETURN(ChatRequest request, ParseChatRequest(body, options));
    return ConvertChatRequest(std::move(request), options);
  }
  return Unimplemented(fmt::format("the {} API is not built yet; use chat", ApiName(api)));
}

}  // namespace deepinfer::protocols
