// SPDX-License-Identifier: Apache-2.0
//
// The tools of a Responses request: functions, namespaces of functions, and the custom tool apply_patch (protocols.md 6).
#pragma once

#include "protocols/responses_request.h"

namespace deepinfer::protocols {

// Reads `tools` and `tool_choice`, and what the response shows of them. An error is one of types; faults of values go to
// request.tools_status.
Status ReadResponsesTools(JsonReader& reader, ResponsesRequest& request);

}  // namespace deepinfer::protocols
