// SPDX-License-Identifier: Apache-2.0
//
// The three conversation protocols and the error body they share (protocols.md 3.7). A conversion reports a client's mistake as
// a Status whose message is exactly what the client reads; this file turns it into an HTTP status and a body.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "core/status.h"

namespace deepinfer {
using Json = nlohmann::ordered_json;
}

namespace deepinfer::protocols {

enum class Api { kChat, kResponses, kMessages };

// The field of a Status that refuses a conversation stored by the server; Messages clients read it from the error's `details`.
inline constexpr std::string_view kThreadField = "thread";

Result<Api> ParseApi(std::string_view name);  // chat, responses, messages
std::string_view ApiName(Api api);

int HttpStatus(const Status& status);
// The type that goes with an HTTP status: "invalid_request_error".
std::string_view ErrorType(Api api, int http_status);
// {"error": {...}}; for Messages with "type" and "request_id" at the top. The second form is for statuses that no Status has
// (402, 405, 408, 431).
Json ErrorBody(Api api, const Status& status, std::string_view request_id = {});
Json ErrorBody(Api api, int http_status, std::string_view message, std::string_view request_id = {});

// A body that is no JSON, or has a field of the wrong type. `path` is empty for the body itself.
Status DeserializeError(std::string_view path, std::string_view reason);

}  // namespace deepinfer::protocols
