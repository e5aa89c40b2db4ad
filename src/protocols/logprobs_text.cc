// SPDX-License-Identifier: Apache-2.0
#include "protocols/logprobs_text.h"

#include "protocols/json_text.h"
#include "protocols/token_text.h"

namespace deepinfer::protocols {

namespace {

// Without the closing brace.
void AppendToken(std::string_view bytes, double logprob, std::string& out) {
  out += R"({"token":)";
  AppendJsonString(ReadableToken(bytes), out);
  out += R"(,"logprob":)";
  AppendJsonDouble(logprob, out);
  out += R"(,"bytes":[)";
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out += ',';
    AppendJsonInt(static_cast<unsigned>(static_cast<unsigned char>(bytes[i])), out);
  }
  out += ']';
}

}  // namespace

void AppendLogprobEntries(std::span<const TokenLogprob> tokens, std::string& out) {
  bool is_first = true;
  for (const TokenLogprob& token : tokens) {
    if (!is_first) out += ',';
    is_first = false;
    AppendToken(token.bytes, token.logprob, out);
    out += R"(,"top_logprobs":[)";
    for (size_t i = 0; i < token.top.size(); ++i) {
      if (i > 0) out += ',';
      AppendToken(token.top[i].first, token.top[i].second, out);
      out += '}';
    }
    out += "]}";
  }
}

}  // namespace deepinfer::protocols
