// SPDX-License-Identifier: Apache-2.0
//
// JSON as text for prompts and grammars, in two spellings (protocols.md 2.3 and 3.5). kPython: json.dumps with
// ensure_ascii=False, blanks after `,` and `:`. kCompact: no blanks, and another layout of exponents. Both print the shortest
// digits that read back as the same double and keep non-ASCII characters raw.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace deepinfer {
using Json = nlohmann::ordered_json;
}

namespace deepinfer::text {

enum class JsonStyle { kPython, kCompact };

void AppendJson(const Json& json, JsonStyle style, std::string& out);
std::string PythonJson(const Json& json);
std::string CompactJson(const Json& json);

// The inside of a JSON string: escapes `"`, `\` and control characters, keeps everything else. No quotes around it.
void AppendJsonEscaped(std::string_view text, std::string& out);

// True if `text` is one JSON document (blanks around it allowed). Needs no memory for the values and bounded stack.
bool IsJsonText(std::string_view text);

}  // namespace deepinfer::text
