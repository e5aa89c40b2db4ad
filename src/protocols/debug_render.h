// SPDX-License-Identifier: Apache-2.0
//
// `deepinfer debug render`: one request through conversion, rendering and tokenization, as JSON (cli.md, forms 3).
#pragma once

#include <string_view>

#include "core/json.h"
#include "protocols/api.h"
#include "protocols/convert_request.h"
#include "text/tokenizer.h"

namespace deepinfer::protocols {

// {"prompt", "special_ranges", "ids", "images", "stream", "thinking", "effort", "inference", "parsing"}.
Json DescribeRequest(const ConvertedRequest& request);

struct DebugRenderResult {
  Json json;  // the request, or {"error": {"status", "body"}}
  bool is_error = false;
};
DebugRenderResult DebugRender(Api api, std::string_view body, const text::Tokenizer& tokenizer, ConvertOptions options);

}  // namespace deepinfer::protocols
