// SPDX-License-Identifier: Apache-2.0
//
// What a Responses request shows again in its response (protocols.md 6.2), as JSON texts, and how calls of its tools are named.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

namespace deepinfer::protocols {

struct ResponsesEcho {
  std::string instructions = "null";
  std::string max_output_tokens = "null";
  std::string reasoning_effort = "null";
  std::string temperature = "1.0";
  std::string text_format = R"({"type":"text"})";
  std::string tool_choice = R"("auto")";
  std::string tools = "[]";
  std::string top_logprobs = "0";
  std::string top_p = "1.0";
  std::string user = "null";

  std::map<std::string, std::pair<std::string, std::string>, std::less<>> namespace_tools;  // "ns::f" -> (ns, f)
  std::set<std::string, std::less<>> custom_tools;  // calls of these are custom_tool_call items
};

}  // namespace deepinfer::protocols
