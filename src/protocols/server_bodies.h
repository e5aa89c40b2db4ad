// SPDX-License-Identifier: Apache-2.0
//
// Bodies of the small routes: the list of models, and the tokenizer's routes (protocols.md 8).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/status.h"

namespace deepinfer::protocols {

struct ServedModel {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  int64_t max_model_len = 0;
};

// Both forms have what the clients of OpenAI and of Anthropic require.
std::string ModelBody(const ServedModel& model);
std::string ModelListBody(std::span<const ServedModel> models);

// {"text", "parse_special"?}: whether added tokens in the text are recognised; default true.
struct TokenizeRequest {
  std::string text;
  bool parse_special = true;
};
Result<TokenizeRequest> ParseTokenizeRequest(const Json& body);
std::string TokenizeBody(std::span<const int32_t> ids);

// {"ids"}, each below `vocab_size`.
Result<std::vector<int32_t>> ParseDetokenizeRequest(const Json& body, int vocab_size);
std::string DetokenizeBody(std::string_view text);

}  // namespace deepinfer::protocols
