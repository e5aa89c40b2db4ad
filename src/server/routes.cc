// SPDX-License-Identifier: Apache-2.0
#include "server/routes.h"

#include <array>

#include "server/http_message.h"

#include "core/ascii.h"

namespace deepinfer::server {

namespace {

using protocols::Api;

struct Row {
  std::string_view path;
  Endpoint endpoint;
  std::string_view name;
  std::string_view method;
  Api api;
  bool needs_key;
};

constexpr std::array kRows = {
    Row{"/v1/chat/completions", Endpoint::kChat, "chat_completions", "POST", Api::kChat, true},
    Row{"/chat/completions", Endpoint::kChat, "chat_completions", "POST", Api::kChat, true},
    Row{"/beta/chat/completions", Endpoint::kChat, "chat_completions", "POST", Api::kChat, true},
    Row{"/v1/completions", Endpoint::kCompletions, "completions", "POST", Api::kChat, true},
    Row{"/completions", Endpoint::kCompletions, "completions", "POST", Api::kChat, true},
    Row{"/beta/completions", Endpoint::kBetaCompletions, "completions", "POST", Api::kChat, true},
    Row{"/v1/responses", Endpoint::kResponses, "responses", "POST", Api::kResponses, true},
    Row{"/responses", Endpoint::kResponses, "responses", "POST", Api::kResponses, true},
    Row{"/v1/messages", Endpoint::kMessages, "messages", "POST", Api::kMessages, true},
    Row{"/messages", Endpoint::kMessages, "messages", "POST", Api::kMessages, true},
    Row{"/anthropic/v1/messages", Endpoint::kMessages, "messages", "POST", Api::kMessages, true},
    Row{"/anthropic/messages", Endpoint::kMessages, "messages", "POST", Api::kMessages, true},
    Row{"/v1/messages/count_tokens", Endpoint::kCountTokens, "count_tokens", "POST", Api::kMessages, true},
    Row{"/messages/count_tokens", Endpoint::kCountTokens, "count_tokens", "POST", Api::kMessages, true},
    Row{"/anthropic/v1/messages/count_tokens", Endpoint::kCountTokens, "count_tokens", "POST", Api::kMessages, true},
    Row{"/anthropic/messages/count_tokens", Endpoint::kCountTokens, "count_tokens", "POST", Api::kMessages, true},
    Row{"/tokenize", Endpoint::kTokenize, "tokenize", "POST", Api::kChat, true},
    Row{"/v1/tokenize", Endpoint::kTokenize, "tokenize", "POST", Api::kChat, true},
    Row{"/detokenize", Endpoint::kDetokenize, "detokenize", "POST", Api::kChat, true},
    Row{"/v1/detokenize", Endpoint::kDetokenize, "detokenize", "POST", Api::kChat, true},
    Row{"/v1/models", Endpoint::kModels, "models", "GET", Api::kChat, true},
    Row{"/models", Endpoint::kModels, "models", "GET", Api::kChat, true},
    Row{"/anthropic/v1/models", Endpoint::kModels, "models", "GET", Api::kMessages, true},
    Row{"/healthz", Endpoint::kHealthz, "health", "GET", Api::kChat, false},
    Row{"/readyz", Endpoint::kReadyz, "health", "GET", Api::kChat, false},
    Row{"/health", Endpoint::kReadyz, "health", "GET", Api::kChat, false},
    Row{"/metrics", Endpoint::kMetrics, "metrics", "GET", Api::kChat, false},
    Row{"/version", Endpoint::kVersion, "version", "GET", Api::kChat, false},
    Row{"/", Endpoint::kPage, "page", "GET", Api::kChat, false},
    Row{"/page.js", Endpoint::kPage, "page", "GET", Api::kChat, false},
    Row{"/markdown.js", Endpoint::kPage, "page", "GET", Api::kChat, false},
    Row{"/page.css", Endpoint::kPage, "page", "GET", Api::kChat, false},
    Row{"/openapi.json", Endpoint::kPage, "openapi", "GET", Api::kChat, false},
};

}  // namespace

bool FindRoute(std::string_view path, Route& route) {
  for (const Row& row : kRows) {
    if (row.path != path) continue;
    route = {row.endpoint, row.name, row.method, row.api, row.needs_key, {}};
    return true;
  }
  for (const std::string_view prefix : {"/v1/models/", "/models/", "/anthropic/v1/models/"}) {
    if (!path.starts_with(prefix) || path.size() == prefix.size()) continue;
    const Api api = prefix.starts_with("/anthropic") ? Api::kMessages : Api::kChat;
    route = {Endpoint::kModel, "models", "GET", api, true, PercentDecode(path.substr(prefix.size()))};
    return true;
  }
  return false;
}

}  // namespace deepinfer::server
