// SPDX-License-Identifier: Apache-2.0
#include "protocols/convert_request.h"

#include <utility>

#include "protocols/chat_request.h"
#include "protocols/messages_request.h"
#include "protocols/responses_request.h"

namespace deepinfer::protocols {

Result<ConvertedRequest> ConvertRequest(Api api, std::string_view body, const ConvertOptions& options) {
  const Result<Json> json = ParseJson(body);
  if (!json.ok()) return DeserializeError("", json.status().message());
  return ConvertParsedRequest(api, *json, options);
}

Result<ConvertedRequest> ConvertParsedRequest(Api api, const Json& body, const ConvertOptions& options) {
  switch (api) {
    case Api::kChat: {
      DI_ASSIGN_OR_RETURN(ChatRequest request, ParseChatRequest(body, options));
      return ConvertChatRequest(std::move(request), options);
    }
    case Api::kResponses: {
      DI_ASSIGN_OR_RETURN(ResponsesRequest request, ParseResponsesRequest(body, options));
      return ConvertResponsesRequest(std::move(request), options);
    }
    case Api::kMessages: {
      DI_ASSIGN_OR_RETURN(MessagesRequest request, ParseMessagesRequest(body, options));
      return ConvertMessagesRequest(std::move(request), options);
    }
  }
  return Internal("unknown API");
}

}  // namespace deepinfer::protocols
