// SPDX-License-Identifier: Apache-2.0
//
// HTTP requests cut in two: both ways of reading must agree, and nothing may be read that was not sent.
#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "server/http_parser.h"

using deepinfer::server::HttpLimits;
using deepinfer::server::HttpParser;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const HttpLimits limits{.max_header_bytes = 4096, .max_body_bytes = 4096};
  HttpParser whole(limits), cut(limits);
  const size_t used = whole.Feed(bytes);
  DI_CHECK(used <= size);
  const size_t middle = size / 2;
  const size_t first = cut.Feed(bytes.substr(0, middle));
  DI_CHECK(first <= middle);
  if (cut.state() == HttpParser::State::kHead || cut.state() == HttpParser::State::kBody) cut.Feed(bytes.substr(first));
  DI_CHECK((whole.state() == HttpParser::State::kDone) == (cut.state() == HttpParser::State::kDone));
  if (whole.state() == HttpParser::State::kDone) {
    DI_CHECK(whole.Take().body == cut.Take().body);
  }
  return 0;
}
