// SPDX-License-Identifier: Apache-2.0
#include "protocols/api.h"

#include <fmt/format.h>

#include "core/json.h"

namespace deepinfer::protocols {

Result<Api> ParseApi(std::string_view name) {
  if (name == "chat") return Api::kChat;
  if (name == "responses") return Api::kResponses;
  if (name == "messages") return Api::kMessages;
  return InvalidArgument(fmt::format("unknown API {}; use chat, responses or messages", name), "api");
}

std::string_view ApiName(Api api) {
  switch (api) {
    case Api::kChat: return "chat";
    case Api::kResponses: return "responses";
    case Api::kMessages: return "messages";
  }
  return "";
}

int HttpStatus(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk: return 200;
    case StatusCode::kInvalidArgument: return 400;
    case StatusCode::kUnauthenticated: return 401;
    case StatusCode::kPermissionDenied: return 403;
    case StatusCode::kNotFound: return 404;
    case StatusCode::kTooLarge: return 413;
    case StatusCode::kResourceExhausted: return 429;
    case StatusCode::kCancelled: return 499;
    case StatusCode::kInternal:
    case StatusCode::kBadModel: return 500;
    case StatusCode::kUnimplemented: return 501;
    case StatusCode::kUnavailable: return 503;
    case StatusCode::kDeadlineExceeded: return 504;
  }
  return 500;
}

std::string_view ErrorType(Api api, int http_status) {
  switch (http_status) {
    case 401: return "authentication_error";
    case 402: return "insufficient_quota";
    case 403: return "permission_error";
    case 404:
    case 405: return api == Api::kMessages ? "not_found_error" : "invalid_request_error";
    case 408:
    case 504: return "timeout";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 500: return api == Api::kMessages ? "api_error" : "internal_error";
    case 503: return "overloaded_error";
    default: return "invalid_request_error";
  }
}

Json ErrorBody(Api api, const Status& status, std::string_view request_id) {
  Json body = ErrorBody(api, HttpStatus(status), status.message(), request_id);
  if (api == Api::kMessages && status.field() == kThreadField) {
    body["error"]["details"] = Json{{"error_code", "thread_unsupported_request"}, {"unsupported", Json::array({std::string(kThreadField)})}};
  }
  return body;
}

Json ErrorBody(Api api, int http_status, std::string_view message, std::string_view request_id) {
  const std::string type(ErrorType(api, http_status));
  Json body = Json::object();
  if (api == Api::kMessages) body["type"] = "error";
  body["error"] = Json{{"message", std::string(message)}, {"type", type}, {"param", nullptr}, {"code", type}};
  if (api == Api::kMessages) body["request_id"] = std::string(request_id);
  return body;
}

Status DeserializeError(std::string_view path, std::string_view reason) {
  std::string message = "Failed to deserialize the JSON body into the target type: ";
  if (!path.empty()) {
    message += path;
    message += ": ";
  }
  message += reason;
  return InvalidArgument(std::move(message), std::string(path));
}

}  // namespace deepinfer::protocols
