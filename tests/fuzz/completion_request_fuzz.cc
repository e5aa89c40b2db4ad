// SPDX-License-Identifier: Apache-2.0
//
// Completions: any body is refused with a message or gives prompts that are not empty.
#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "protocols/api.h"
#include "protocols/completion_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deepinfer;
  const Result<Json> body = ParseJson(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!body.ok()) return 0;
  const Result<protocols::CompletionRequest> request = protocols::ConvertCompletionRequest(*body, {});
  if (request.ok()) {
    DI_CHECK(!request->prompts.empty());
    DI_CHECK(request->params.n >= 1 && request->params.n <= 8);
  } else {
    DI_CHECK(!request.status().message().empty());
    DI_CHECK(protocols::HttpStatus(request.status()) == 400) << request.status().ToString();
  }
  return 0;
}
