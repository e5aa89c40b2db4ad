// SPDX-License-Identifier: Apache-2.0
//
// A request body of any conversation protocol -> ConvertedRequest. A refusal is a Status whose message is what the client reads
// (api.h makes the HTTP status and the body of it).
#pragma once

#include <string_view>

#include "core/json.h"
#include "protocols/api.h"
#include "protocols/converted_request.h"

namespace deepinfer::protocols {

Result<ConvertedRequest> ConvertRequest(Api api, std::string_view body, const ConvertOptions& options);
Result<ConvertedRequest> ConvertParsedRequest(Api api, const Json& body, const ConvertOptions& options);

}  // namespace deepinfer::protocols
