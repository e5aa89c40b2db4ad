// SPDX-License-Identifier: Apache-2.0
//
// The paths of the public port and what they mean (operations.md 1.2, protocols.md 8 of the specification).
#pragma once

#include <string>
#include <string_view>

#include "protocols/api.h"

namespace deepinfer::server {

enum class Endpoint {
  kChat,
  kCompletions,
  kBetaCompletions,
  kResponses,
  kMessages,
  kCountTokens,
  kTokenize,
  kDetokenize,
  kModels,
  kModel,
  kHealthz,
  kReadyz,
  kMetrics,
  kVersion,
  kPage,
};

struct Route {
  Endpoint endpoint = Endpoint::kPage;
  std::string_view name;    // for metrics and logs
  std::string_view method;  // GET or POST
  protocols::Api api = protocols::Api::kChat;  // form of its errors
  bool needs_key = false;
  std::string argument;  // kModel: the id, decoded
};

// False: no such path.
bool FindRoute(std::string_view path, Route& route);

}  // namespace deepinfer::server
