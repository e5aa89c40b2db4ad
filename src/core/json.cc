// SPDX-License-Identifier: Apache-2.0
#include "core/json.h"

#include <fmt/format.h>

#include "core/file.h"

namespace deepinfer {

namespace {

// Deepest nesting of arrays and objects, found without recursion.
int NestingDepth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Result<Json> ParseJson(std::string_view text, int max_depth) {
  if (const int depth = NestingDepth(text); depth > max_depth) {
    return InvalidArgument(fmt::format("invalid JSON: nested {} deep, the limit is {}", depth, max_depth));
  }
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& e) {
    std::string reason = e.what();
    if (const size_t at = reason.rfind(": "); at != std::string::npos) reason = reason.substr(at + 2);
    return InvalidArgument(fmt::format("invalid JSON at byte {}: {}", e.byte, reason));
  } catch (const std::exception& e) {  // number out of range, out of memory
    return InvalidArgument(fmt::format("invalid JSON: {}", e.what()));
  }
}

Result<Json> ReadJsonFile(const std::string& path, int64_t max_bytes) {
  DI_ASSIGN_OR_RETURN(std::string text, ReadFile(path, max_bytes));
  Result<Json> json = ParseJson(text);
  if (!json.ok()) return BadModel(fmt::format("{}: {}", path, json.status().message()));
  return json;
}

std::string DumpJson(const Json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace deepinfer
